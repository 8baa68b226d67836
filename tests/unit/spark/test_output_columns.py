"""Which changes of a schema the folder of an output stands."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stateline.checkpoint import Checkpoint
from stateline.errors import CorruptDataError, ErrorKind, InvalidInputError
from stateline.files import FileOutput
from stateline.spark.output_columns import check_columns, columns_of, columns_properties
from stateline.spark.plan import OperatorPlan, PipelinePlan
from tests.unit.spark.records import record

HERE = {"files": "file:///out"}
ELSEWHERE = {"files": "file:///other"}
LONG, TEXT = pa.int64(), pa.string()


def plan(schema: pa.Schema, name: str = "parquet") -> PipelinePlan:
    output = FileOutput(url="file:///out", format=name)
    operator = OperatorPlan(name="files", tables={}, definition="", output=output, output_columns=columns_of(schema))
    return PipelinePlan(root_url="memory://root", parallelism=1, max_parallelism=1, operators=(operator,))


def after(*schemas: pa.Schema, name: str = "parquet") -> Checkpoint:
    """The record after rows of these schemas were written, one after the other."""
    newest = None
    for schema in schemas:
        newest = record(properties=columns_properties(plan(schema, name), newest, HERE))
    assert newest is not None
    return newest


def allowed(newest: Checkpoint, schema: pa.Schema, name: str = "parquet", folder: dict[str, str] = HERE) -> bool:
    try:
        check_columns(plan(schema, name), newest, folder)
    except InvalidInputError as error:
        return error.kind is not ErrorKind.SCHEMA_MISMATCH
    return True


def test_columns_may_be_added_and_left_out_and_may_be_null():
    newest = after(pa.schema([("a", LONG), ("b", TEXT)]))
    assert allowed(newest, pa.schema([("b", TEXT), ("a", LONG), ("c", TEXT)]))
    assert allowed(newest, pa.schema([("b", TEXT)]))
    assert allowed(newest, pa.schema([pa.field("a", LONG, nullable=False)]))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (LONG, pa.int32()),
        (LONG, TEXT),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.decimal128(10, 2), pa.decimal128(12, 2)),
        (pa.list_(LONG), pa.list_(TEXT)),
        (pa.list_(LONG), LONG),
        (pa.struct([("x", LONG)]), pa.struct([("x", TEXT)])),
        (pa.map_(TEXT, LONG), pa.map_(TEXT, pa.list_(LONG))),
    ],
)
def test_a_column_keeps_its_type(old, new):
    newest = after(pa.schema([("a", old)]))
    assert allowed(newest, pa.schema([("a", old)]))
    assert not allowed(newest, pa.schema([("a", new)]))
    assert not allowed(after(pa.schema([("a", old)]), pa.schema([("b", LONG)])), pa.schema([("a", new)])), "for ever"


def test_numbers_may_get_more_bits_and_never_less():
    newest = after(pa.schema([("a", pa.int16()), ("f", pa.list_(pa.float32()))]))
    wide = pa.schema([("a", LONG), ("f", pa.list_(pa.float64()))])
    assert allowed(newest, wide)
    assert not allowed(after(pa.schema([("a", pa.int16())]), wide), pa.schema([("a", pa.int16())]))
    assert not allowed(newest, pa.schema([("a", pa.float64())]))


def test_fields_of_structures_may_be_added():
    assert allowed(
        after(pa.schema([("a", pa.list_(pa.struct([("x", LONG)])))])),
        pa.schema([("a", pa.list_(pa.struct([("y", TEXT), ("x", LONG)])))]),
    )


def test_a_dot_in_a_name_is_no_structure():
    assert allowed(after(pa.schema([("a.b", LONG)])), pa.schema([("a", pa.struct([("b", TEXT)]))]))


def test_csv_tells_columns_by_position():
    newest = after(pa.schema([("a", LONG), ("b", TEXT)]), name="csv")
    assert allowed(newest, pa.schema([("a", LONG), ("b", TEXT), ("c", TEXT)]), "csv")
    assert allowed(newest, pa.schema([("a", LONG)]), "csv")
    assert not allowed(newest, pa.schema([("b", TEXT)]), "csv")
    assert not allowed(newest, pa.schema([("b", TEXT), ("a", LONG)]), "csv")


def test_another_folder_another_format_and_old_records_have_no_say():
    text = pa.schema([("a", TEXT)])
    newest = after(pa.schema([("a", LONG)]))
    assert not allowed(newest, text)
    assert allowed(newest, text, folder=ELSEWHERE)
    assert allowed(newest, text, "arrow")
    assert allowed(record(), text)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"a": "\ud800"}'])
def test_a_memory_that_cannot_be_read_is_told(text: str) -> None:
    schema = pa.schema([("a", LONG)])
    [key] = after(schema).properties
    newest = record(properties={key: text})
    with pytest.raises(CorruptDataError, match="the columns of the output cannot be read"):
        check_columns(plan(schema), newest, HERE)
    with pytest.raises(CorruptDataError):
        columns_properties(plan(schema), newest, HERE)
