"""Sessions in mode append: Stateline beside Spark's ``session_window`` over RocksDB with changelog checkpointing.

Keys come at random from as many as there are, and event time moves on by the same step in each micro-batch. So after a
few of them most keys have a session that is open, and from then on each micro-batch extends, opens and closes some. The
first micro-batches of a round are not counted: they fill the state. Both engines must close as many sessions.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import BesideSpark, Run, add_rounds, costs_of, finish, rate, use_rocksdb

ENGINES = ("rocksdb", "stateline")
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

    use_rocksdb(spark)
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
    add_rounds(parser, ENGINES, rounds=1)
    arguments = parser.parse_args(argv)
    closed: dict[str, set[int]] = {engine: set() for engine in arguments.engines.split(",")}
    gap, delay = f"{arguments.gap} seconds", f"{arguments.delay} seconds"
    with BesideSpark("sessions", arguments) as beside:
        make_source(
            beside.source,
            batches=arguments.batches,
            rows=arguments.rows,
            keys=arguments.keys,
            step=arguments.step,
            seed=1,
        )

        def run(session: Any, place: Path, engine: str) -> Run:
            events = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(beside.source))
            if engine == "rocksdb":
                done, details, count = run_spark(session, events, place, gap, delay)
            else:
                done, details, count = run_stateline(events, place, gap, delay, arguments.parallelism)
            closed[engine].add(count)
            return Run(rate(done, arguments.skip), [costs_of(done), details])

        beside.run({engine: partial(run, engine=engine) for engine in closed})
        beside.report(("sessions closed", {engine: sorted(counts) for engine, counts in closed.items()}))
    return 0 if len(set.union(*closed.values())) == 1 else 1
