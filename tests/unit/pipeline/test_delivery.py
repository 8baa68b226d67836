"""Rows for functions: at least once, after the record, always the same under one key."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest
from msgspec.structs import replace

from stateline.checkpoint import OutputState, create_savepoint, open_savepoint, start_from_savepoint
from stateline.errors import FencedError, InternalError, InvalidInputError
from stateline.handles import OpenFile
from stateline.pipeline.coordinator import MicroBatchCoordinator
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.state.aggregate import count
from tests.unit.pipeline.engine import Engine

SCHEMA = pa.schema([("key", pa.string())])
PROGRAM = AggregateProgram.bind(SCHEMA, ["key"], {"n": count()})


def rows(*keys):
    return [{"key": key} for key in keys]


class Sink:
    """Remembers every call; fails when it is told to."""

    def __init__(self):
        self.calls, self.fails = [], 0

    def __call__(self, rows, key):
        self.calls.append((str(key), sorted((row["key"], row["n"]) for row in rows)))
        if self.fails:
            self.fails -= 1
            raise RuntimeError("the sink is down")


@pytest.fixture
def sink():
    return Sink()


def test_rows_come_once_per_checkpoint_under_a_key_that_names_it(sink):
    engine = Engine(PROGRAM, SCHEMA, deliver=sink)
    engine.run(rows("a", "b"))
    engine.run([])
    engine.run(rows("a"))
    assert sink.calls == [("q/op/0", [("a", 1), ("b", 1)]), ("q/op/2", [("a", 2)])]
    Engine(PROGRAM, SCHEMA, root=engine.root, deliver=sink).coordinator.start()
    assert len(sink.calls) == 2, "the mark says that they were delivered"


def test_after_a_failure_the_next_start_delivers_the_same_rows_under_the_same_key(sink):
    engine = Engine(PROGRAM, SCHEMA, deliver=sink)
    sink.fails = 2
    with pytest.raises(RuntimeError):
        engine.run(rows("a"))
    assert engine.checkpoints.latest().batch_id == 0, "the checkpoint stands"
    with pytest.raises(RuntimeError):
        Engine(PROGRAM, SCHEMA, root=engine.root, deliver=sink, parallelism=1).run(rows("x", "y"), batch_id=0)
    again = Engine(PROGRAM, SCHEMA, root=engine.root, deliver=sink, parallelism=1)
    assert again.run(rows("x", "y"), batch_id=0).checkpoint_id == 0, "a replay finds the batch decided"
    assert sink.calls == [("q/op/0", [("a", 1)])] * 3
    again.run(rows("a"))
    assert sink.calls[3:] == [("q/op/1", [("a", 2)])]


def test_a_driver_whose_sink_failed_delivers_before_it_goes_on(sink):
    engine = Engine(PROGRAM, SCHEMA, deliver=sink)
    sink.fails = 1
    with pytest.raises(RuntimeError):
        engine.run(rows("a"))
    engine.run(rows("a"))
    assert [key for key, _ in sink.calls] == ["q/op/0", "q/op/0", "q/op/1"]


def test_a_driver_that_lost_the_race_delivers_nothing(sink):
    engine = Engine(PROGRAM, SCHEMA, deliver=sink)
    zombie = Engine(PROGRAM, SCHEMA, root=engine.root, deliver=sink)
    zombie.coordinator.start()
    engine.run(rows("a"))
    with pytest.raises(FencedError):
        zombie.run(rows("z"), batch_id=0)
    assert sink.calls == [("q/op/0", [("a", 1)])]


def test_retention_keeps_rows_as_long_as_their_checkpoint():
    engine = Engine(PROGRAM, SCHEMA, retained=2)
    for _ in range(6):
        engine.run(rows("a", "b"))
    records = [engine.checkpoints.get(number) for number in (4, 5)]
    assert all(record.deliveries for record in records)
    kept = {name for record in records for name in record.object_names()}
    assert kept == {info.name for info in engine.root.list("shared/")}


def test_the_end_of_a_stream_delivers_nothing_twice(sink):
    engine = Engine(PROGRAM, SCHEMA, deliver=sink)
    record = engine.run(rows("a"))
    assert record.publishes
    assert not record.without_deliveries().publishes
    assert record.without_deliveries().operators == record.operators
    assert engine.coordinator.finish(lambda operator, files: []) == record
    file = OpenFile(target="f.arrow", subtask=0, layout="", opened_at=0.0, written_at=0.0, rows=1, bytes=1)
    opened = replace(record, outputs=(OutputState(operator="op", url=engine.root.url, open=(file,)),))
    engine.coordinator._newest, engine.coordinator._outputs = opened, {"op": engine.root}
    finished = engine.coordinator.finish(lambda operator, files: [])
    assert (finished.checkpoint_id, finished.outputs[0].open) == (1, ())
    assert len(sink.calls) == 1


def test_a_savepoint_holds_state_and_no_rows_to_deliver(sink):
    engine = Engine(PROGRAM, SCHEMA, deliver=sink)
    engine.run(rows("a"))
    savepoint = create_savepoint(engine.checkpoints, engine.root)
    assert not savepoint.checkpoint.publishes
    new = Engine(PROGRAM, SCHEMA, deliver=sink)
    found = open_savepoint(engine.root, savepoint.folder)
    new.checkpoints.publish(start_from_savepoint(found, new.checkpoints, query_id="q"))
    new.run(rows("a"))
    assert sink.calls[1:] == [("q/op/1", [("a", 2)])]


def test_rows_without_anybody_to_deliver_to_are_loud(sink):
    engine = Engine(PROGRAM, SCHEMA, deliver=sink)
    sink.fails = 1
    with pytest.raises(RuntimeError):
        engine.run(rows("a"))
    coordinator = engine.coordinator
    plan = dataclasses.replace(coordinator._plan)
    nobody = MicroBatchCoordinator(plan, engine.checkpoints, {}, coordinator._run_subtasks, engine.environment)
    with pytest.raises((InternalError, InvalidInputError), match="q/op/0"):
        nobody.start()
