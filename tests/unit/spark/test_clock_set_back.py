"""Clocks that are set back, and drivers on hosts whose clocks differ: what has passed does not come back."""

# ruff: noqa: N802, N803 - methods and arguments are Spark's

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructType

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore, create_savepoint, start_from_savepoint
from stateline.environment import Environment
from stateline.files import FileOutput, RollingPolicy
from stateline.pipeline.files_decision import FilesDecision, files_plan
from stateline.pipeline.plan import PLAIN
from stateline.spark.processor.operator import ProcessorProgram
from stateline.state import KeyedStateBackend
from stateline.testing import ManualClock
from tests.unit.pipeline.engine import Engine

SCHEMA = pa.schema([("key", pa.string())])
ROWS = StructType().add("key", StringType())
COUNTS = StructType().add("key", StringType()).add("n", LongType())
PX = pa.schema([("p", pa.int64())])


class CountFor10Seconds(StatefulProcessor):
    def init(self, handle):
        self.n = handle.getValueState("n", StructType().add("n", LongType()), 10_000)

    def handleInputRows(self, key, rows, timerValues):
        n = (self.n.get() or (0,))[0] + len(list(rows))
        self.n.update((n,))
        yield Row(key=key[0], n=n)

    def close(self):
        pass


class Alarm(StatefulProcessor):
    """Asks, while it fires, to be called once more for a time that has passed."""

    def init(self, handle):
        self.handle = handle

    def handleInputRows(self, key, rows, timerValues):
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1_000)
        yield Row(key=key[0], n=0)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        if expiredTimerInfo.getExpiryTimeInMs() > 1:
            self.handle.registerTimer(1)
        yield Row(key=key[0], n=expiredTimerInfo.getExpiryTimeInMs())

    def close(self):
        pass


def engine_of(processor, clock, root=None):
    program = ProcessorProgram.bind(
        processor,
        ROWS,
        ["key"],
        output_schema=COUNTS,
        output_mode="update",
        time_mode="ProcessingTime",
        time_zone="UTC",
        form="row",
    )
    return Engine(program, SCHEMA, root=root, environment=Environment(clock=clock))


@pytest.fixture
def clock():
    return ManualClock(1_000.0)


def test_what_has_outlived_its_time_does_not_come_back_when_the_clock_is_set_back(clock):
    engine = engine_of(CountFor10Seconds(), clock)
    engine.run([{"key": "a"}])
    clock.advance(11)
    engine.run([{"key": "b"}])
    clock.jump(-5)
    for driver in (engine, engine_of(CountFor10Seconds(), clock, engine.root)):
        record = driver.run([{"key": "a"}])
        assert record.created_at == 1_011.0, "time stands still until the clock has caught up"
        assert driver.output[record.checkpoint_id][0]["n"] == record.checkpoint_id - 1
    clock.advance(6)
    assert engine_of(CountFor10Seconds(), clock, engine.root).run([]).created_at == 1_012.0


def test_a_timer_that_the_checkpoint_has_come_to_is_due_whatever_the_clock_says(clock):
    engine = engine_of(Alarm(), clock)
    engine.run([{"key": "a"}])
    clock.advance(1)
    assert engine.coordinator.due_at() == 1_001.0
    assert engine.coordinator.act_on_time(dict).checkpoint.created_at == 1_001.0
    clock.jump(-1_001)
    assert engine.coordinator.due_at() == 0
    acted = engine.coordinator.act_on_time(dict).checkpoint
    assert engine.output[acted.checkpoint_id] == [{"key": "a", "n": 1}]
    assert acted.created_at == 1_001.0


def test_the_end_of_a_stream_and_a_savepoint_are_never_older_than_what_they_follow(clock, tmp_path):
    out, root = open_store(f"{tmp_path}/out"), open_store(f"{tmp_path}/root")
    environment = Environment(clock=clock)
    decision = FilesDecision(files_plan(root.url, FileOutput(url=out.url), PLAIN), root, out, PX, environment)
    made = [decision.stage(pa.table({"p": [1]}).to_batches())]
    decision.commit(made, batch_id=0, offsets_digest="", query_id="q")
    clock.jump(-500)
    coordinator = decision.coordinator()
    coordinator.start()
    assert coordinator.finish(lambda operator, files: ()).created_at == 1_000.0
    made = create_savepoint(CheckpointStore(root), f"{tmp_path}/kept", environment=environment)
    assert made.checkpoint.created_at == 1_000.0
    clock.jump(-400)
    new_root = CheckpointStore(open_store(f"{tmp_path}/new"))
    assert start_from_savepoint(made, new_root, query_id="r", environment=environment).created_at == 1_000.0
    with KeyedStateBackend.open(f"{tmp_path}/own", environment=environment) as backend:
        times = [backend.checkpoint().created_at]
        clock.jump(-50)
        times.append(backend.checkpoint().created_at)
    assert times == [100.0, 100.0]


@pytest.mark.parametrize("off_by", [-3_600, 3_600])
def test_the_age_of_a_file_is_told_by_the_checkpoints_and_not_by_the_clock_of_a_task(clock, tmp_path, off_by):
    out, root = open_store(f"{tmp_path}/out"), open_store(f"{tmp_path}/root")
    output = FileOutput(url=out.url, rolling=RollingPolicy(roll_seconds=60))
    plan = files_plan(root.url, output, PLAIN)
    task = FilesDecision(plan, root, out, PX, Environment(clock=ManualClock(1_000.0 + off_by)))
    driver = FilesDecision(plan, root, out, PX, Environment(clock=clock))
    found = []
    for batch_id in range(3):
        made = [task.stage(pa.table({"p": [batch_id]}).to_batches())]
        report = driver.commit(made, batch_id=batch_id, offsets_digest="", query_id="q")
        [files] = report.checkpoint.outputs
        found.append((len(files.open), len(files.finished)))
        clock.advance(30)
    assert found == [(1, 0), (1, 0), (0, 1)]
