"""A driver that slept through more checkpoints than are retained is fenced: its data is gone, and nothing is lost."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stateline.checkpoint import OutputState
from stateline.errors import DataLossError, ErrorKind, FencedError, InvalidInputError
from stateline.handles import OpenFile
from stateline.pipeline.compatibility import check_continuation, next_step
from stateline.pipeline.graph import Graph
from stateline.pipeline.messages import Batch
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.pipeline.plan import PipelinePlan
from stateline.state.aggregate import count
from tests.unit.pipeline.engine import Engine
from tests.unit.pipeline.records import record

SCHEMA = pa.schema([("key", pa.string())])
PROGRAM = AggregateProgram.bind(SCHEMA, ["key"], {"n": count()})
ROWS = [{"key": "a"}, {"key": "b"}]


def overtaken(by, retained=2):
    """A driver that has made checkpoint 0, after ``by`` more of its successor."""
    engine = Engine(PROGRAM, SCHEMA, retained=retained)
    engine.run(ROWS)
    successor = Engine(PROGRAM, SCHEMA, root=engine.root, retained=retained)
    for _ in range(by):
        successor.run(ROWS)
    return engine


@pytest.mark.parametrize("by", [1, 12], ids=["its runs are there", "its runs are deleted"])
def test_an_overtaken_driver_is_fenced(by):
    engine = overtaken(by)
    with pytest.raises(FencedError, match=r"chk-1/_metadata: another driver was first: query q decided it"):
        engine.run(ROWS, batch_id=1)


def test_a_driver_whose_data_is_gone_and_whom_nobody_overtook_has_lost_it():
    engine = overtaken(0)
    gone = [info.name for info in engine.root.list("shared/")]
    engine.root.delete(gone)
    with pytest.raises(DataLossError):
        engine.run(ROWS, batch_id=1)


def test_a_record_that_somebody_deleted_is_lost_and_fences_nobody():
    engine = overtaken(12)
    engine.root.delete([f"chk-{number}/_metadata" for number in (11, 12)])
    with pytest.raises(DataLossError, match="Somebody deleted it"):
        Engine(PROGRAM, SCHEMA, root=engine.root).run(ROWS, batch_id=13)


def test_a_driver_that_finds_a_gap_reads_the_newest_record_again_and_goes_on():
    """Both have one Spark checkpoint: this driver looked at the root, the other one decided a batch, Spark goes on."""
    engine = overtaken(2)
    assert engine.run(ROWS, batch_id=3).checkpoint_id == 3
    counted = {row["key"]: row["n"] for row in engine.output[3]}
    assert counted == {"a": 4, "b": 4}, "it goes on from what the other one counted"


def test_a_driver_of_a_new_root_that_finds_a_gap_reads_the_newest_record_again():
    engine = Engine(PROGRAM, SCHEMA)
    assert engine.coordinator.start() is None
    Engine(PROGRAM, SCHEMA, root=engine.root).run(ROWS)
    assert engine.run(ROWS, batch_id=1).checkpoint_id == 1


def test_a_driver_that_went_on_fences_the_other_one():
    engine = overtaken(1)
    successor = Engine(PROGRAM, SCHEMA, root=engine.root)
    assert engine.run(ROWS, batch_id=2).batch_id == 2
    successor.run(ROWS, batch_id=3)
    with pytest.raises(FencedError):
        engine.run(ROWS, batch_id=3)


def test_a_gap_that_stays_is_refused():
    engine = overtaken(1)
    with pytest.raises(InvalidInputError, match="the newest decided batch is 1, so batch 2 must come next"):
        engine.run(ROWS, batch_id=3)


ROOT = "s3://bucket/flights"


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({"query_id": "another"}, ErrorKind.FOREIGN_ROOT),
        ({"offsets_digest": "other"}, ErrorKind.CONFLICT),
        ({"batch_id": 7}, ErrorKind.CONFLICT),
    ],
    ids=["another query", "other offsets", "a gap"],
)
def test_what_does_not_follow_the_newest_record_is_told_with_the_root(asked, kind):
    batch = Batch(**{"query_id": "q", "batch_id": 0, "offsets_digest": "", "data": None, **asked})
    with pytest.raises(InvalidInputError, match=rf"run_batch batch \d of {ROOT}: ") as caught:
        next_step(record(), batch, ROOT)
    assert caught.value.kind is kind


def test_another_output_is_told_with_the_root():
    file = OpenFile(target="f.arrow", subtask=0, layout="", opened_at=0.0, written_at=0.0, rows=1, bytes=1)
    newest = record(outputs=(OutputState(operator="op", url="file:///old", open=(file,)),))
    plan = PipelinePlan(root_url=ROOT, parallelism=1, max_parallelism=1, graph=Graph())
    with pytest.raises(
        InvalidInputError, match=f"output of operator op in {ROOT}: expected file:///old as in the checkpoint"
    ):
        check_continuation(plan, newest, {"op": "file:///new"})
