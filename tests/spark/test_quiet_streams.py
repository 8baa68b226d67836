"""A stream without rows: timers by processing time fire, as in Spark, and files are finished when their time comes."""

# ruff: noqa: N802, N803 - methods and arguments are Spark's

from __future__ import annotations

import sys
import threading
import time

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql import Row
from pyspark.sql.functions import udf
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import StructType

from stateline.checkpoint import CheckpointStore
from stateline.environment import Environment
from stateline.errors import UserCodeError
from stateline.spark import KeyedStream, count, register
from stateline.spark.arrow_types import arrow_schema
from stateline.spark.processor.operator import ProcessorProgram
from stateline.testing import ManualClock
from tests.unit.pipeline.engine import Engine

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's workers cannot find this module.

SCHEMA = "k string, v long"


class Alarm(StatefulProcessor):
    """A timer ``v`` ms after each row; one that fires sets another a second later, twice. 0 takes all away."""

    def init(self, handle):
        self.handle = handle
        self.left = handle.getValueState("left", "n long")

    def handleInputRows(self, key, rows, timerValues):
        now = timerValues.getCurrentProcessingTimeInMs()
        for row in rows:
            if row.v == 0:
                for timer in self.handle.listTimers():
                    self.handle.deleteTimer(timer)
            else:
                self.handle.registerTimer(now + row.v)
                self.left.update((2,))
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        if key.k == "bad":
            raise KeyError("no such alarm")
        (left,) = self.left.get()
        if left:
            self.left.update((left - 1,))
            self.handle.registerTimer(expiredTimerInfo.getExpiryTimeInMs() + 1000)
        yield Row(k=key.k, v=left)

    def close(self):
        pass


def engine(clock, root=None):
    schema = StructType.fromDDL(SCHEMA)
    program = ProcessorProgram.bind(
        Alarm(), schema, ["k"], output_schema=SCHEMA, output_mode="update", time_mode="ProcessingTime", time_zone="UTC"
    )
    return Engine(program, arrow_schema(schema), root=root, environment=Environment(clock=clock))


def rows(*pairs):
    return [{"k": key, "v": v} for key, v in pairs]


@pytest.mark.usefixtures("spark")
def test_rounds_come_with_the_times_of_the_timers_also_after_a_restart():
    clock = ManualClock(1_000.0)
    running = engine(clock)
    running.run(rows(("a", 5_000), ("b", 70_000), ("c", 2_000)))
    assert running.coordinator.due_at() == 1_002.0
    running.run(rows(("c", 0)))
    assert running.coordinator.due_at() in (1_002.0, 1_005.0), "at the latest when the first timer comes"
    clock.advance(4.9)
    running.coordinator.act_on_time(dict)
    assert running.coordinator.act_on_time(dict) is None
    assert running.coordinator.due_at() == 1_005.0
    restarted = engine(clock, running.root)
    restarted.coordinator.start()
    assert restarted.coordinator.due_at() == 0, "perhaps one came while nobody ran"
    restarted.coordinator.act_on_time(dict)
    assert (restarted.output, restarted.coordinator.due_at()) == ({}, 1_005.0)
    fired = []
    for _ in range(4):
        clock.advance(max(restarted.coordinator.due_at() - clock.now(), 0))
        report = restarted.coordinator.act_on_time(dict)
        fired.append((clock.now(), restarted.output[report.checkpoint.checkpoint_id]))
    assert fired == [
        (1_005.0, rows(("a", 2))),
        (1_006.0, rows(("a", 1))),
        (1_007.0, rows(("a", 0))),
        (1_070.0, rows(("b", 2))),
    ]
    assert {report.batch_id for report in (running.coordinator.newest, restarted.coordinator.newest)} == {1}


def pipeline(spark, folder, handed_over):
    events = spark.readStream.schema(SCHEMA).parquet(str(folder / "source"))
    stage = KeyedStream(events, "k", f"file://{folder}/state", parallelism=2).process(
        Alarm(), SCHEMA, time_mode="ProcessingTime"
    )
    return stage.for_each_batch(handed_over).start(str(folder / "spark"), trigger={"processingTime": "0 seconds"})


def write(folder, *pairs):
    (folder / "source").mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows(*pairs)), folder / "source" / f"{pairs[0][0]}.parquet")


def test_timers_fire_in_a_stream_without_rows_and_one_that_raises_ends_the_query(spark, tmp_path):
    fired, done = [], threading.Event()

    def take(frame, key):
        fired.extend(row.v for row in frame.collect())
        if fired[-1] == 0:
            done.set()

    write(tmp_path, ("a", 1))
    query = pipeline(spark, tmp_path, take)
    try:
        assert done.wait(120), (fired, query.exception())
        assert fired == [2, 1, 0]
        assert {report["batch_id"] for report in query.recent_reports} == {0}, "Spark had one batch"
        write(tmp_path, ("bad", 1))
        with pytest.raises(UserCodeError, match=r"handleExpiredTimer Alarm, key .*'bad'.*no such alarm"):
            query.awaitTermination(120)
        assert not query.isActive
    finally:
        query.stop()


def visible(out):
    return ds.dataset(out, format="parquet").to_table().to_pylist() if list(out.glob("part-*")) else []


def await_rows(query, out, wanted):
    """Waits until so many rows are visible; the deadline is only against hanging."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and query.isActive:
        found = visible(out)
        if len(found) >= wanted:
            return found
        time.sleep(0.1)
    pytest.fail(f"no rows: {query.exception()}")


def test_files_of_a_keyed_pipeline_are_finished_when_their_time_comes_and_no_rows(spark, tmp_path):
    write(tmp_path, ("a", 1), ("b", 1), ("a", 2))
    events = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "source"))
    stage = KeyedStream(events, "k", f"file://{tmp_path}/state", parallelism=2).aggregate("complete", n=count())
    query = stage.write_files(f"file://{tmp_path}/out", idle_seconds=2).start(str(tmp_path / "spark"))
    try:
        found = await_rows(query, tmp_path / "out", 2)
    finally:
        query.stop()
    assert sorted((row["k"], row["n"]) for row in found) == [("a", 2), ("b", 1)], "the mode shows its state once"
    assert {report["batch_id"] for report in query.recent_reports} == {0}, "Spark had one batch"


def test_files_of_any_stream_are_finished_when_their_time_comes_and_no_rows(spark, tmp_path):
    register(spark)
    run_of_task = udf(lambda: TaskContext.get().getLocalProperty("spark.stateline.run") or "none", "string")
    write(tmp_path, ("a", 1))
    events = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "source")).withColumn("run", run_of_task())
    out = tmp_path / "out"
    writer = events.writeStream.format("stateline_files").option("checkpointLocation", str(tmp_path / "spark"))
    query = writer.option("idle_seconds", "2s").start(str(out))
    try:
        first = await_rows(query, out, 1)
        write(tmp_path, ("b", 2))
        both = await_rows(query, out, 2)
    finally:
        query.stop()
    assert {row["run"] for row in both} == {str(query.runId)}, "tasks are told that the driver makes rounds"
    assert [row["k"] for row in first] == ["a"]
    records = CheckpointStore(f"file://{out}/.stateline/stream").list()
    assert records[-1].batch_id == 1, "Spark had two batches"
    write(tmp_path, ("c", 3))
    query = writer.option("roll_seconds", "auto").trigger(availableNow=True).start(str(out))
    query.awaitTermination()
    assert {row["run"] for row in visible(out) if row["k"] == "c"} == {"none"}, "it ends by itself: no rounds"
