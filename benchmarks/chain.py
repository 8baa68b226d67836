"""Counts by key and window, then the best key of each window: one query of ours beside two of Spark over files.

Spark has no best rows in a stream. Its second query, over the files that its first one has written in mode append,
keeps the greatest count of each window and a key that has it, which is ``top`` of one row. With ``--then aggregate``
both keep the greatest count, and how many keys a window had. Spark's two queries are both counted; ours does all of it
in one query and one checkpoint. Both write the last step as Parquet files, and the answers are compared.

Event time goes on by a quarter of a window from batch to batch, so about two windows of all keys are open. Engines run
in one session, in turn, several rounds on empty state; the first round warms the JVM and is not counted.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import BesideSpark, Run, add_rounds, use_rocksdb

ENGINES = ("rocksdb", "stateline")
THEN = ("top", "aggregate")
START_US = 1_700_000_000_000_000
WINDOW_US = 40_000_000
WINDOW, DELAY = "40 seconds", "10 seconds"
SCHEMA = "k long, v long, at timestamp"


def make_source(folder: Path, *, batches: int, rows: int, keys: int, seed: int) -> None:
    """One Parquet file per micro-batch, and two of one row each, much later: with the second one all windows close."""
    generator = np.random.default_rng(seed)
    step_us = WINDOW_US // 4
    for batch in range(batches + 2):
        ends = batch >= batches
        size = 1 if ends else rows
        times = START_US + (batch + 100 * ends) * step_us + generator.integers(0, step_us, size)
        columns = {
            "k": generator.integers(0, keys, size),
            "v": generator.integers(0, 1000, size),
            "at": pa.array(times, pa.timestamp("us", "UTC")),
        }
        pq.write_table(pa.table(columns), folder / f"{batch:05}.parquet")


def run_spark(spark: Any, events: Any, folder: Path, then: str) -> float:
    """Seconds of all micro-batches of both queries."""
    from pyspark.sql import functions as F

    use_rocksdb(spark)
    counted = (
        events.withWatermark("at", DELAY)
        .groupBy("k", F.window("at", WINDOW).alias("w"))
        .agg(F.count("*").alias("n"), F.sum("v").alias("s"))
    )
    between = folder / "between"
    seconds = write(counted.select("k", F.col("w.end").alias("window_end"), "n", "s"), between, folder / "spark-1")
    closed = spark.readStream.schema("k long, window_end timestamp, n long, s long").parquet(str(between))
    grouped = closed.withWatermark("window_end", "0 seconds").groupBy("window_end")
    if then == "top":
        best = grouped.agg(F.max(F.struct("n", "k")).alias("best")).select("window_end", "best.k", "best.n")
    else:
        best = grouped.agg(F.max("n").alias("most"), F.count("*").alias("keys"), F.sum("s").alias("s"))
    return seconds + write(best, folder / "out", folder / "spark-2")


def write(frame: Any, path: Path, checkpoint: Path) -> float:
    writer = frame.writeStream.outputMode("append").format("parquet").option("path", str(path))
    return seconds_of(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start())


def run_stateline(events: Any, folder: Path, then: str, parallelism: int) -> float:
    """Seconds of all micro-batches."""
    from stateline.spark import KeyedStream, count, max, sum

    stream = KeyedStream(
        events, key="k", checkpoint=f"file://{folder}/state", parallelism=parallelism, watermark=("at", DELAY)
    )
    by_window = stream.window("at", WINDOW).aggregate("append", n=count(), s=sum("v")).key_by("window_end")
    if then == "top":
        stage = by_window.top(1, ["n", "k"], columns=["n", "k"])
    else:
        stage = by_window.aggregate("append", most=max("n"), keys=count(), s=sum("s"))
    pipeline = stage.write_files(f"file://{folder}/out")
    return seconds_of(pipeline.start(str(folder / "spark"), trigger={"availableNow": True}))


def seconds_of(query: Any) -> float:
    query.awaitTermination()
    return float(sum(item["durationMs"]["triggerExecution"] for item in query.recentProgress)) / 1000


def answer(folder: Path, then: str) -> list[tuple[Any, ...]]:
    """What an engine has written, for comparison."""
    columns = ["n", "k"] if then == "top" else ["most", "keys", "s"]
    written = pq.read_table(folder / "out")
    ends = written["window_end"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return sorted(zip(ends.to_pylist(), *(written[name].to_pylist() for name in columns), strict=True))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks chain", description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000, help="rows per micro-batch")
    parser.add_argument("--keys", type=int, default=500_000, help="distinct keys; about twice as many are in windows")
    parser.add_argument("--batches", type=int, default=12, help="micro-batches per round")
    parser.add_argument("--then", choices=THEN, default="top", help="the second step")
    add_rounds(parser, ENGINES, counted="rounds that are counted")
    arguments = parser.parse_args(argv)
    answers: dict[str, list[tuple[Any, ...]]] = {}
    with BesideSpark("chain", arguments, {"spark.sql.session.timeZone": "UTC"}) as beside:
        make_source(beside.source, batches=arguments.batches, rows=arguments.rows, keys=arguments.keys, seed=1)

        def run(session: Any, place: Path, engine: str) -> Run:
            reader = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
            events = reader.parquet(str(beside.source))
            if engine == "rocksdb":
                seconds = run_spark(session, events, place, arguments.then)
            else:
                seconds = run_stateline(events, place, arguments.then, arguments.parallelism)
            answers[engine] = answer(place, arguments.then)
            return Run(arguments.rows * arguments.batches / seconds)

        beside.run({engine: partial(run, engine=engine) for engine in arguments.engines.split(",")}, warm_up=True)
        if len(set(map(str, answers.values()))) > 1:
            print(f"the answers differ: {answers}")
            return 1
        beside.report()
    return 0
