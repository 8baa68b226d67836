"""Keyed count/sum/max over 500,000-row micro-batches: Stateline beside Spark's state stores and beside no state.

All engines run in one session, in turn, several rounds; each round starts every engine on an empty state. The first
batches of a round are not counted: code compiles, and the state is still small.
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

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
IN_MEMORY = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


def make_source(folder: Path, *, batches: int, rows: int, keys: int, kind: str, seed: int, zipf: float | None) -> str:
    """One Parquet file per micro-batch; returns the Spark schema."""
    generator = np.random.default_rng(seed)
    names = generator.permutation(np.unique(generator.integers(-(2**62), 2**62, keys)))
    for batch in range(batches):
        if zipf is None:
            picks = generator.integers(0, len(names), rows)
        else:
            picks = generator.zipf(zipf, rows) % len(names)
        longs = names[picks]
        columns: dict[str, Any] = {}
        if kind == "string":
            columns["k"] = pa.array(np.char.zfill((longs % 10**16).astype("U16"), 16))
        elif kind == "composite":
            columns["k"] = pa.array(np.char.add("key-", (longs % 10**7).astype("U8")))
            columns["d"] = pa.array((longs % 365).astype(np.int32), pa.date32())
        else:
            columns["k"] = longs
        columns["v"] = generator.integers(0, 1000, rows)
        pq.write_table(pa.table(columns), folder / f"{batch:05}.parquet")
    types = {"long": "k long, v long", "string": "k string, v long", "composite": "k string, d date, v long"}
    return types[kind]


def run_spark(spark: Any, events: Any, keys: list[str], folder: Path, provider: str) -> list[dict[str, Any]]:
    from pyspark.sql import functions as F

    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    aggregated = events.groupBy(*keys).agg(F.count("*").alias("n"), F.sum("v").alias("s"), F.max("v").alias("m"))
    writer = aggregated.writeStream.outputMode("update").format("noop")
    return finish(writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start())


def run_stateless(events: Any, keys: list[str], folder: Path, parallelism: int) -> list[dict[str, Any]]:
    """The same pipeline without state: source, shuffle by key, Arrow to Python, one row back per task."""
    from pyspark.sql import functions as F

    from stateline.spark.job.batch_job import subtask_expression

    def count(batches: Any) -> Any:
        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})

    def handle(batch: Any, _: int) -> None:
        subtask = F.expr(subtask_expression(f"xxhash64({', '.join(keys)})", parallelism, 128))
        shuffled = batch.withColumn("__subtask", subtask).repartitionById(parallelism, "__subtask").drop("__subtask")
        shuffled.mapInArrow(count, "rows long").collect()

    writer = events.writeStream.foreachBatch(handle)
    return finish(writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start())


def run_stateline(events: Any, keys: list[str], folder: Path, parallelism: int) -> list[dict[str, Any]]:
    from stateline.spark import KeyedStream, count, max, sum

    pipeline = (
        KeyedStream(events, key=keys, checkpoint=f"file://{folder}/state", parallelism=parallelism)
        .aggregate(n=count(), s=sum("v"), m=max("v"))
        .state_only()
    )
    return finish(pipeline.start(str(folder / "spark"), trigger={"availableNow": True}))


def finish(query: Any) -> list[dict[str, Any]]:
    query.awaitTermination()
    return [progress for progress in query.recentProgress if progress["numInputRows"]]


def rate(progress: list[dict[str, Any]], skip: int) -> float:
    """Rows per second of the counted batches, by Spark's own measure of a trigger."""
    counted = progress[skip:]
    seconds = [item["durationMs"]["triggerExecution"] / 1000 for item in counted]
    return float(np.sum([item["numInputRows"] for item in counted]) / np.sum(seconds))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks stateful", description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000, help="rows per micro-batch")
    parser.add_argument("--keys", type=int, default=1_000_000, help="distinct keys")
    parser.add_argument("--kind", choices=("long", "string", "composite"), default="long", help="kind of key")
    parser.add_argument("--zipf", type=float, help="skew of the keys, such as 1.2; uniform without it")
    parser.add_argument("--batches", type=int, default=12, help="micro-batches per round")
    parser.add_argument("--skip", type=int, default=4, help="first batches of a round that are not counted")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the median counts")
    parser.add_argument("--parallelism", type=int, default=2, help="cores, shuffle partitions and subtasks")
    parser.add_argument("--engines", default="rocksdb,memory,stateless,stateline", help="which, in which order")
    parser.add_argument(
        "--tuned-peers",
        action="store_true",
        help="Spark's engines get the settings that make Stateline's own session faster",
    )
    arguments = parser.parse_args(argv)
    unknown = set(arguments.engines.split(",")) - {"rocksdb", "memory", "stateless", "stateline"}
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
    peers = spark if arguments.tuned_peers else spark_as_it_comes(spark)
    keys = ["k", "d"] if arguments.kind == "composite" else ["k"]
    rates: dict[str, list[float]] = {engine: [] for engine in arguments.engines.split(",")}
    batches: dict[str, list[Any]] = {engine: [] for engine in rates}
    with tempfile.TemporaryDirectory(prefix="stateline-bench-") as folder:
        source = Path(folder, "source")
        source.mkdir()
        schema = make_source(
            source,
            batches=arguments.batches,
            rows=arguments.rows,
            keys=arguments.keys,
            kind=arguments.kind,
            seed=1,
            zipf=arguments.zipf,
        )
        for round_ in range(arguments.rounds):
            for engine in rates:
                session = spark if engine == "stateline" else peers
                own_workers(session, engine, tuned=session is spark)
                events = session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
                place = Path(folder, f"{engine}-{round_}")
                place.mkdir()
                if engine in ("rocksdb", "memory"):
                    done = run_spark(session, events, keys, place, ROCKSDB if engine == "rocksdb" else IN_MEMORY)
                elif engine == "stateless":
                    done = run_stateless(events, keys, place, arguments.parallelism)
                else:
                    done = run_stateline(events, keys, place, arguments.parallelism)
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
    print(f"\nEvery figure: {write_results('stateful', figures)}")
    spark.stop()
    return 0
