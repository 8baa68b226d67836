"""Sessions in mode append: Stateline beside Spark's ``session_window`` over RocksDB with changelog checkpointing.

Keys come at random from as many as there are, and event time moves on by the same step in each micro-batch. So after a
few of them most keys have a session that is open, and from then on each micro-batch extends, opens and closes some. The
first micro-batches of a round are not counted: they fill the state. Both engines must close as many sessions.
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

SCHEMA = "k long, at timestamp, v long"
BEGIN_US = 1_700_000_000_000_000
SECOND_US = 1_000_000


def make_source(folder: Path, *, batches: int, rows: int, keys: int, step: int, seed: int) -> None:
    """One Parquet file for each micro-batch, its rows in the order of time."""
    generator = np.random.default_rng(seed)
    names = generator.permutation(np.unique(generator.integers(-(2**62), 2**62, keys)))
    for batch in range(batches):
        times = np.sort(generator.integers(0, step * SECOND_US, rows)) + BEGIN_US + batch * step * SECOND_US
        columns = {
            "k": names[generator.integers(0, len(names), rows)],
            "at": pa.array(times, pa.timestamp("us", "UTC")),
            "v": generator.integers(0, 1000, rows),
        }
        pq.write_table(pa.table(columns), folder / f"{batch:05}.parquet")


def run_spark(spark: Any, events: Any, folder: Path, gap: str, delay: str) -> tuple[list[dict[str, Any]], int, int]:
    """The progress of all micro-batches, the sessions that are open at the end, and those that were closed."""
    from pyspark.sql import functions as F

    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    sessions = events.withWatermark("at", delay).groupBy("k", F.session_window("at", gap))
    aggregated = sessions.agg(F.count("*").alias("n"), F.sum("v").alias("s"), F.max("v").alias("m"))
    query = (
        aggregated.writeStream.outputMode("append")
        .format("noop")
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    done = finish(query)
    states = [progress["stateOperators"][0] for progress in query.recentProgress if progress["stateOperators"]]
    return done, states[-1]["numRowsTotal"], sum(state["numRowsRemoved"] for state in states)


def run_stateline(events: Any, folder: Path, gap: str, delay: str, parallelism: int) -> Any:
    """As :func:`run_spark`; what is open at the end is not told by a query."""
    from stateline.spark import KeyedStream, count, max, sum

    stream = KeyedStream(
        events, key="k", checkpoint=f"file://{folder}/state", parallelism=parallelism, watermark=("at", delay)
    )
    pipeline = stream.sessions("at", gap).aggregate("append", n=count(), s=sum("v"), m=max("v")).state_only()
    query = pipeline.start(str(folder / "spark"), trigger={"availableNow": True})
    done = finish(query)
    reports = list(query.recent_reports)
    return done, reports, int(np.sum([report.get("windows_closed", 0) for report in reports]))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks sessions", description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000, help="rows per micro-batch")
    parser.add_argument("--keys", type=int, default=1_000_000, help="distinct keys")
    parser.add_argument("--step", type=int, default=10, help="seconds of event time that a micro-batch covers")
    parser.add_argument("--gap", type=int, default=60, help="gap of the sessions, seconds")
    parser.add_argument("--delay", type=int, default=10, help="delay of the watermark, seconds")
    parser.add_argument("--batches", type=int, default=14, help="micro-batches per round")
    parser.add_argument("--skip", type=int, default=9, help="first batches of a round that are not counted")
    parser.add_argument("--rounds", type=int, default=1, help="rounds; the median counts")
    parser.add_argument("--parallelism", type=int, default=2, help="cores, shuffle partitions and subtasks")
    parser.add_argument("--engines", default="rocksdb,stateline", help="which, in which order")
    arguments = parser.parse_args(argv)
    unknown = set(arguments.engines.split(",")) - {"rocksdb", "stateline"}
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
    rates: dict[str, list[float]] = {engine: [] for engine in arguments.engines.split(",")}
    batches: dict[str, list[Any]] = {engine: [] for engine in rates}
    closed: dict[str, set[int]] = {engine: set() for engine in rates}
    gap, delay = f"{arguments.gap} seconds", f"{arguments.delay} seconds"
    with tempfile.TemporaryDirectory(prefix="stateline-bench-") as folder:
        source = Path(folder, "source")
        source.mkdir()
        make_source(
            source,
            batches=arguments.batches,
            rows=arguments.rows,
            keys=arguments.keys,
            step=arguments.step,
            seed=1,
        )
        for round_ in range(arguments.rounds):
            for engine in rates:
                session = spark if engine == "stateline" else peers
                own_workers(session, engine, tuned=session is spark)
                events = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
                place = Path(folder, f"{engine}-{round_}")
                place.mkdir()
                if engine == "rocksdb":
                    done, details, count = run_spark(session, events, place, gap, delay)
                else:
                    done, details, count = run_stateline(events, place, gap, delay, arguments.parallelism)
                closed[engine].add(count)
                rates[engine].append(rate(done, arguments.skip))
                batches[engine].append(
                    [[(item["batchId"], item["numInputRows"], item["durationMs"]) for item in done], details]
                )
                print(f"round {round_ + 1} {engine:10} {rates[engine][-1]:12,.0f} rows/s", flush=True)
                shutil.rmtree(place)
    ours = median(rates.get("stateline", []))
    rows = [
        (engine, f"{median(values):,.0f}", spread(values), f"{ours / median(values):.2f}x", sorted(closed[engine]))
        for engine, values in rates.items()
    ]
    headers = ("engine", "rows/s (median)", "lowest .. highest", "stateline is", "sessions closed")
    print("\n" + table(headers, rows))
    figures = {"settings": vars(arguments), "rows_per_second": rates, "batches": batches, "spark": spark.version}
    print(f"\nEvery figure: {write_results('sessions', figures)}")
    spark.stop()
    return 0 if len(set.union(*closed.values())) == 1 else 1
