"""What becomes of the columns of frames that a processor yields: a value is kept as it is, or refused by name."""

# ruff: noqa: N802, N803 - methods and arguments are Spark's

from __future__ import annotations

import datetime as dt
import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from processor_kit import Bench
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from stateline.errors import ErrorKind, InvalidInputError

pytestmark = pytest.mark.usefixtures("spark")


class Yields(StatefulProcessor):
    """Yields what it is given."""

    def __init__(self, made):
        self.made = made

    def init(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        yield self.made

    def close(self):
        pass


def put_out(column, kind):
    frame = Yields(pd.DataFrame({"x": column}))
    return [x for (x,) in Bench(frame, "k string", "k", f"x {kind}", form="pandas").batch([("a",)])]


def objects(*values):
    return pd.Series(values, dtype=object)


@pytest.mark.parametrize("kind", ["int", "long", "date", "timestamp", "timestamp_ntz", "interval day to second"])
@pytest.mark.parametrize("number", [1.5, decimal.Decimal("1.5"), np.float32(1.5)])
def test_a_fraction_in_a_column_of_objects_is_not_cut_off(kind, number):
    with pytest.raises(InvalidInputError, match=r"field 'x' got.*1\.5") as raised:
        put_out(objects(None, number), kind)
    assert raised.value.kind is ErrorKind.SCHEMA_MISMATCH


@pytest.mark.parametrize(
    "column", [[1.0], [7], [True], pd.Series([300], dtype="category"), [dt.datetime(2024, 1, 1)], [pd.Timedelta(1)]]
)
def test_what_is_no_binary_is_refused_and_not_kept_as_the_bytes_of_its_memory(column):
    with pytest.raises(InvalidInputError, match="field 'x' got"):
        put_out(column, "binary")


def test_binary_of_every_kind_and_missing_values_are_taken():
    column = objects(b"\xff\x00", bytearray(b"b"), "text", None, np.nan, pd.NA)
    assert put_out(column, "binary") == [None, None, None, b"\xff\x00", b"b", b"text"]
    assert put_out(objects(1, np.nan, decimal.Decimal("NaN")), "long") == [1, None, None]
    assert put_out(objects(2.0, decimal.Decimal(3)), "int") == [2, 3]


@pytest.mark.parametrize(
    ("column", "named"), [(["x"], "'x'"), (["2024-01-01", "soon"], "'soon'"), (pd.Series(["1"], dtype="string"), "'1'")]
)
def test_a_text_that_tells_no_time_is_refused_by_name(column, named):
    with pytest.raises(InvalidInputError, match=f"output frame: expected a time, got {named}") as raised:
        put_out(column, "timestamp")
    assert raised.value.kind is ErrorKind.SCHEMA_MISMATCH


def test_texts_of_two_forms_and_times_of_arrow_are_times():
    noon = dt.datetime(2024, 1, 1, 12)
    for column in (
        ["2024-01-01 12:00", "2024-01-01T12:00:00.000"],
        pd.Series([noon, noon], dtype=pd.ArrowDtype(pa.timestamp("us"))),
        pd.Series([noon, noon], dtype=pd.ArrowDtype(pa.timestamp("ns", "UTC"))),
    ):
        assert [time.replace(tzinfo=None) for time in put_out(column, "timestamp")] == [noon] * 2


@pytest.mark.parametrize("form", ["row", "pandas"])
def test_an_unknown_field_inside_of_a_value_is_refused_as_an_unknown_column_is(form):
    value = {"x": 1, "z": 2}
    made = Row(x=value) if form == "row" else pd.DataFrame({"x": [value]})
    bench = Bench(Yields(made), "k string", "k", "x struct<x:int,y:int>", form=form)
    with pytest.raises(InvalidInputError, match=r"expected the fields \['x', 'y'\], got \['z'\]"):
        bench.batch([("a",)])
    assert put_out([{"x": 1}], "struct<x:int,y:int>") == [{"x": 1, "y": None}]
