"""Rows of Spark in other zones: only what their types say changes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stateline.spark.arrow_types import in_utc, in_zone

NEVER_NULL = pa.struct([pa.field("a", pa.int32(), nullable=False)])
PERHAPS = pa.StructArray.from_arrays(
    [pa.array([1, None], pa.int32())], fields=list(NEVER_NULL), mask=pa.array([False, True])
)


@pytest.mark.parametrize("inside", [False, True])
def test_time_stamps_change_their_zone_beside_structures_that_are_null(inside):
    """pyarrow refuses to cast such structures, even to their own type."""
    times = pa.array([0, 1], pa.timestamp("us", "Europe/Berlin"))
    column = pa.StructArray.from_arrays([times], ["at"]) if inside else times
    batch = pa.RecordBatch.from_arrays([column, PERHAPS], names=["t", "s"])
    (changed,) = in_utc([batch])
    assert str(changed.schema.field("t").type) == str(column.type).replace("Europe/Berlin", "UTC")
    assert changed.column(1).equals(PERHAPS)
    back = in_zone(pa.Table.from_batches([changed]), "Europe/Berlin")
    assert back.equals(pa.Table.from_batches([batch]))
