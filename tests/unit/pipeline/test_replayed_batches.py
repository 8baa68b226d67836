"""Batches that come again after others were decided: Spark's checkpoint was restored from an older copy."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stateline.errors import NotFoundError
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.state.aggregate import count
from tests.unit.pipeline.engine import Engine

SCHEMA = pa.schema([("key", pa.string())])
PROGRAM = AggregateProgram.bind(SCHEMA, ["key"], {"n": count()})


@pytest.fixture
def engine():
    engine = Engine(PROGRAM, SCHEMA, retained=3)
    for _ in range(6):
        engine.run([{"key": "a"}])
    return Engine(PROGRAM, SCHEMA, root=engine.root)


def test_a_batch_whose_record_is_retained_is_found_decided(engine):
    assert engine.run([{"key": "a"}], batch_id=3).batch_id == 3
    assert engine.checkpoints.latest().batch_id == 5


def test_an_older_one_is_an_error_that_says_whose_copy_is_old(engine):
    said = r"batch 2 of memory://.*: the newest decided batch is 5.*Spark's checkpoint is older than this root.*Restore"
    with pytest.raises(NotFoundError, match=said):
        engine.run([{"key": "a"}], batch_id=2)
    assert engine.checkpoints.latest().batch_id == 5
