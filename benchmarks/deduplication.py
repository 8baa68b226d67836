"""``drop_duplicates(within_watermark=True)`` beside Spark's ``dropDuplicatesWithinWatermark`` over RocksDB.

Each batch has rows of new keys and duplicates of keys that came shortly before, shuffled; event time goes on by one
minute from batch to batch. The delay of the watermark is chosen so that about ``--keys`` keys are remembered once the
state has filled, which the first batches of a round do; they are not counted. Both engines run in one session, in turn,
several rounds; each round starts every engine on an empty state.
"""

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import median, own_workers, spark_as_it_comes, spread, table, write_results
from benchmarks.stateful import ROCKSDB, finish, rate

ENGINES = ("rocksdb", "stateline")
SCHEMAS = {"long": "k long, at timestamp, v long", "string": "k string, at timestamp, v long"}
START_US = 1_700_000_000_000_000
MINUTE_US = 60_000_000


def make_source(folder: Path, *, batches: int, rows: int, fresh: int, remembered: int, kind: str, seed: int) -> None:
    """One Parquet file per micro-batch.

    Args:
        folder: Where it goes.
        batches: Files.
        rows: Rows of each.
        fresh: How many of them have a key that never came before.
        remembered: Batches for which a key is remembered at least: duplicates come within so many.
        kind: Of the key.
        seed: Of everything that is drawn.
    """
    generator = np.random.default_rng(seed)
    for batch in range(batches):
        oldest = max(batch - remembered + 1, 0) * fresh
        again = generator.integers(oldest, (batch + 1) * fresh, rows - fresh)
        numbers = generator.permutation(np.concatenate([np.arange(batch * fresh, (batch + 1) * fresh), again]))
        spread_out = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        longs = spread_out.view(np.int64)
        texts = (spread_out % np.uint64(10**16)).astype("U16")
        keys = pa.array(longs) if kind == "long" else pa.array(np.char.zfill(texts, 16))
        times = START_US + batch * MINUTE_US + generator.integers(0, MINUTE_US, rows)
        columns = {"k": keys, "at": pa.array(times, pa.timestamp("us", "UTC")), "v": np.arange(rows)}
        pq.write_table(pa.table(columns), folder / f"{batch:05}.parquet")


def run_spark(spark: Any, events: Any, delay: str, folder: Path, *, files: bool) -> list[dict[str, Any]]:
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    writer = events.withWatermark("at", delay).dropDuplicatesWithinWatermark(["k"]).writeStream.outputMode("append")
    writer = writer.format("parquet").option("path", str(folder / "out")) if files else writer.format("noop")
    return finish(writer.option("checkpointLocation", str(folder / "spark")).trigger(availableNow=True).start())


def run_stateline(events: Any, delay: str, folder: Path, parallelism: int, *, files: bool) -> list[dict[str, Any]]:
    from stateline.spark import KeyedStream

    stream = KeyedStream(
        events, key="k", checkpoint=f"file://{folder}/state", parallelism=parallelism, watermark=("at", delay)
    )
    stage = stream.drop_duplicates(within_watermark=True)
    pipeline = stage.write_files(f"file://{folder}/out") if files else stage.state_only()
    return finish(pipeline.start(str(folder / "spark"), trigger={"availableNow": True}))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks deduplication", description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000, help="rows per micro-batch")
    parser.add_argument("--fresh", type=int, default=250_000, help="rows of a batch whose key never came before")
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys remembered, about")
    parser.add_argument("--kind", choices=tuple(SCHEMAS), default="long", help="kind of key")
    parser.add_argument("--batches", type=int, default=14, help="micro-batches per round")
    parser.add_argument("--skip", type=int, default=6, help="first batches of a round that are not counted")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the median counts")
    parser.add_argument("--parallelism", type=int, default=2, help="cores, shuffle partitions and subtasks")
    parser.add_argument("--engines", default=",".join(ENGINES), help="which, in which order")
    parser.add_argument("--files", action="store_true", help="both write what passes as Parquet files")
    arguments = parser.parse_args(argv)
    unknown = set(arguments.engines.split(",")) - set(ENGINES)
    if unknown:
        parser.error(f"no such engine: {', '.join(sorted(unknown))}")

    from stateline.spark import get_or_create_session

    spark = get_or_create_session(
        "stateline-benchmark",
        master=f"local[{arguments.parallelism}]",
        **{
            "spark.sql.shuffle.partitions": str(arguments.parallelism),
            "spark.driver.memory": "6g",
            "spark.ui.showConsoleProgress": "false",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    peers = spark_as_it_comes(spark)
    remembered = max(arguments.keys // arguments.fresh, 1)
    # A key is forgotten when the watermark, which stays behind by the delay, has come to its time and the delay.
    delay = f"{30 * (remembered - 1)} seconds"
    rates: dict[str, list[float]] = {engine: [] for engine in arguments.engines.split(",")}
    batches: dict[str, list[Any]] = {engine: [] for engine in rates}
    with tempfile.TemporaryDirectory(prefix="stateline-bench-") as folder:
        source = Path(folder, "source")
        source.mkdir()
        make_source(
            source,
            batches=arguments.batches,
            rows=arguments.rows,
            fresh=arguments.fresh,
            remembered=remembered,
            kind=arguments.kind,
            seed=1,
        )
        for round_ in range(arguments.rounds):
            for engine in rates:
                session = spark if engine == "stateline" else peers
                own_workers(session, engine, tuned=session is spark)
                reader = session.readStream.schema(SCHEMAS[arguments.kind]).option("maxFilesPerTrigger", 1)
                events = reader.parquet(str(source))
                place = Path(folder, f"{engine}-{round_}")
                place.mkdir()
                if engine == "rocksdb":
                    done = run_spark(session, events, delay, place, files=arguments.files)
                else:
                    done = run_stateline(events, delay, place, arguments.parallelism, files=arguments.files)
                rates[engine].append(rate(done, arguments.skip))
                batches[engine].append([(item["batchId"], item["numInputRows"], item["durationMs"]) for item in done])
                print(f"round {round_ + 1} {engine:10} {rates[engine][-1]:12,.0f} rows/s", flush=True)
                shutil.rmtree(place)
    ours = median(rates.get("stateline", []))
    rows = [
        (engine, f"{median(values):,.0f}", spread(values), f"{ours / median(values):.2f}x")
        for engine, values in rates.items()
    ]
    print("\n" + table(("engine", "rows/s (median)", "lowest .. highest", "stateline is"), rows))
    figures = {"settings": vars(arguments), "rows_per_second": rates, "batches": batches, "spark": spark.version}
    print(f"\nEvery figure: {write_results('deduplication', figures)}")
    spark.stop()
    return 0
