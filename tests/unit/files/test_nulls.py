"""Where values break the promise of their schema that there is no null."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stateline.errors import InvalidInputError
from stateline.files import FileOutput
from stateline.files.nulls import broken_promise

SURE = pa.field("x", pa.int64(), nullable=False)
ITEM = pa.field("element", pa.int64(), nullable=False)
LIST = pa.list_(ITEM)
MAP = pa.map_(pa.string(), pa.field("value", LIST, nullable=False))


@pytest.mark.parametrize(
    ("kind", "whole", "broken", "where"),
    [
        (pa.struct([SURE]), [{"x": 1}, None], [{"x": None}], "c.x"),
        (pa.struct([("s", pa.struct([SURE]))]), [None, {"s": None}, {"s": {"x": 1}}], [{"s": {"x": None}}], "c.s.x"),
        (LIST, [[], None, [1]], [[1, None]], "c.element"),
        (pa.large_list(ITEM), [[], None, [1]], [[1, None]], "c.element"),
        (MAP, [None, [], [("a", [1])]], [[("a", None)]], "c.value"),
        (MAP, [[("a", [])]], [[("a", [None])]], "c.value.element"),
        (pa.list_(pa.struct([SURE])), [[None, {"x": 1}]], [[{"x": 1}, {"x": None}]], "c.item.x"),
        (pa.list_(pa.int64()), [[None], None], [], None),
    ],
)
def test_a_null_is_found_at_every_depth_and_only_where_there_is_a_place_for_a_value(kind, whole, broken, where):
    for nullable in (True, False):
        field = pa.field("c", kind, nullable=nullable)
        there = [value for value in whole if nullable or value is not None]
        assert broken_promise(field, pa.array(there, kind)) is None
        assert broken_promise(field, pa.array([*there, *broken], kind)) == where
        # Only what is in the slice counts.
        assert broken_promise(field, pa.array([*broken, *there], kind)[len(broken) :]) is None
    assert broken_promise(pa.field("c", kind, nullable=False), pa.array([None], kind)) == "c"


@pytest.mark.parametrize("form", ["parquet", "jsonl", "arrow"])
@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.null()),
        pa.map_(pa.string(), pa.null()),
        pa.list_(pa.struct([("x", pa.null())])),
        pa.struct([("x", pa.list_(pa.null()))]),
    ],
)
def test_elements_without_a_type_are_refused_where_the_output_is_declared(form, kind):
    """At the first batch with more of them than rows the task would say that its rows are not what they are."""
    schema = pa.schema([("key", pa.string()), ("v", kind)])
    with pytest.raises(InvalidInputError, match=r"column 'v': .* has elements without a type.*cast"):
        FileOutput(url="memory://out", format=form).file_schema(schema)


def test_columns_and_fields_without_a_type_are_not():
    schema = pa.schema([("key", pa.string()), ("v", pa.null()), ("s", pa.struct([("x", pa.null())]))])
    assert FileOutput(url="memory://out", format="parquet").file_schema(schema) == schema
