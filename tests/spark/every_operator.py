"""Pipelines with every operator, which run in a classic session and over Connect: their output must be the same."""

from __future__ import annotations

import collections
import json
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import functions as F

from stateline.spark import KeyedStream, count, max, mean, sum
from tests.spark.keyed_driver import SCHEMA
from tests.spark.processor_samples import FrameCounter, Seeded

OUTPUTS = ("aggregate", "applied", "distinct", "top", "windows", "sessions", "chained", "joined", "asof", "late")
"""Folders that :func:`many` writes."""


def time_of(event_id):
    """The time of an event, in seconds: in no order, so that some come too late."""
    return event_id * 17 % 61


def timed(spark, folder, name="source"):
    """The events, with their times."""
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"{folder}/{name}")
    return events.withColumn("at", F.timestamp_seconds(time_of(F.col("id"))))


def running_total(events, state, moment):
    """A function over Arrow tables."""
    sums = events.group_by("key_index").aggregate([("value", "sum")]).sort_by("key_index")
    before = state["total"].fill_null(0).to_pylist()
    total = pa.array([a + b for a, b in zip(before, sums["value_sum"].to_pylist(), strict=True)], pa.int64())
    after = state.set_column(state.schema.get_field_index("total"), "total", total)
    return after, after


def many(spark, folder):
    """All operators beside each other, behind each other, and over two streams, in one checkpoint."""
    left, right = timed(spark, folder), timed(spark, folder, "other")

    def keyed(frame, name):
        return KeyedStream(frame, "key", f"{folder}/state", parallelism=2, name=name, watermark=("at", "10 seconds"))

    first = keyed(left, "aggregate").aggregate(n=count(), total=sum("value"), mean_value=mean("value"))
    windows = keyed(left, "windows").window("at", "20 seconds").aggregate("append", n=count())
    stages = {
        "aggregate": first,
        "applied": keyed(left, "applied").apply_arrow(running_total, "total long", "key long, total long"),
        "distinct": keyed(left, "distinct").drop_duplicates(),
        "top": keyed(left, "top").top(2, by="value"),
        "windows": windows,
        "sessions": keyed(left, "sessions").sessions("at", "4 seconds").aggregate("append", largest=max("value")),
        "chained": windows.key_by("n", name="chained").aggregate(windows=count()),
        "joined": keyed(left, "joined").join(keyed(right, "right"), "left", within=("-5 seconds", "5 seconds")),
        "asof": keyed(left, "asof").join_asof(keyed(right, "versions"), how="left"),
        "late": windows.late_rows(),
    }
    pipelines = [stage.write_files(f"{folder}/{name}") for name, stage in stages.items()]
    pipeline = pipelines[0]
    for other in pipelines[1:]:
        pipeline = pipeline.alongside(other)
    return pipeline


def processors(spark, folder):
    """Stateful processors of rows and of frames, one with initial state, each a pipeline of its own."""
    initial = spark.createDataFrame([("3", 1000), ("nobody", 5)], "k string, n long")
    rows = timed(spark, folder).selectExpr("CAST(key AS string) AS k", "value AS v", "at")
    by_row = KeyedStream(rows, "k", f"{folder}/rows-state", parallelism=2)
    by_frame = KeyedStream(rows, "k", f"{folder}/frames-state", parallelism=2)
    return [
        by_row.process(Seeded(), "k string, n long, total long", initial_state=initial).write_files(f"{folder}/rows"),
        by_frame.process(FrameCounter(), "k string, n long, total long, newest timestamp").write_files(
            f"{folder}/frames"
        ),
    ]


def looked_up(spark, folder):
    """Rows beside the state that :func:`many` keeps in the same folder."""
    stream = KeyedStream(timed(spark, folder), "key", f"{folder}/lookup-state", parallelism=2)
    found = stream.lookup(f"{folder}/state", operator="aggregate", columns=["n", "total"])
    return found.write_files(f"{folder}/looked-up")


def delivered(spark, folder):
    """Windows that are handed to a function, which stores them with their key; the last ones at the end only."""
    stream = KeyedStream(timed(spark, folder), "key", f"{folder}/delivery-state", watermark=("at", "0 seconds"))
    stage = stream.window("at", "10 seconds").aggregate("append", n=count())

    def store(rows, key):
        place = Path(f"{folder}/delivered")
        place.mkdir(exist_ok=True)
        found = [[row["key"], row["n"]] for row in rows.collect()]
        written = place / uuid.uuid4().hex
        written.write_text(json.dumps({"key": str(key), "rows": sorted(found)}))

    return stage.for_each_batch(store)


def finish(pipeline, spark_checkpoint=None):
    """Runs a pipeline to the end of its input."""
    query = pipeline.start(spark_checkpoint, trigger={"availableNow": True})
    query.awaitTermination()
    return query


def rows_of(folder, name):
    """The rows of an output, however they lie in files."""
    found = ds.dataset(Path(folder) / name, format="parquet").to_table().to_pylist()
    return collections.Counter(json.dumps(row, default=str, sort_keys=True) for row in found)
