"""The frame of a key depends on the rows of this key only: a null, or another value, of another key changes nothing."""

# ruff: noqa: N802, N803 - methods and arguments are Spark's

from __future__ import annotations

import datetime as dt
import decimal
import random

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import StatefulProcessor

from stateline.spark.processor.frame_inputs import key_frames
from stateline.spark.processor.frames import FrameForm
from stateline.testing import KeyedStreamHarness

LONG = 9_007_199_254_740_993
MOMENTS = [dt.datetime(2024, 1, 1), dt.datetime(1999, 12, 31, 23, 59, 59, 999999)]
INTEGERS = {
    pa.int8(): [-128, 0, 127],
    pa.int16(): [-(2**15), 0, 1],
    pa.int32(): [-(2**31), 0, 2**31 - 1],
    pa.int64(): [LONG, -LONG, -(2**63), 2**63 - 1, 0, 1, 2**53],
}
PLAIN = INTEGERS | {
    pa.bool_(): [True, False],
    pa.float32(): [1.5, float("nan")],
    pa.float64(): [1.5, float("nan"), 2.0**60],
    pa.string(): ["", "text"],
    pa.binary(): [b"", b"\0"],
    pa.date32(): [dt.date(2024, 1, 1), dt.date(1, 1, 1)],
    pa.duration("us"): [dt.timedelta(days=1), dt.timedelta(microseconds=1)],
    pa.timestamp("us"): MOMENTS,
    pa.timestamp("us", "UTC"): MOMENTS,
    pa.decimal128(38, 3): [decimal.Decimal("12345678901234567890123456789012345.678"), decimal.Decimal("0.000")],
}


def nested(kind):
    """Types that hold values of a kind, and how each is made of drawn values."""
    return {
        pa.list_(kind): lambda draw: [draw() for _ in range(3)],
        pa.list_(pa.list_(kind)): lambda draw: [[draw(), draw()], [draw(), draw()]],
        pa.struct([("a", kind), ("b", pa.list_(kind))]): lambda draw: {"a": draw(), "b": [draw(), draw()]},
        pa.list_(pa.struct([("a", kind)])): lambda draw: [{"a": draw()}, None],
        pa.map_(pa.string(), pa.list_(kind)): lambda draw: [("x", [draw()]), ("y", None), ("z", [draw()])],
        pa.map_(pa.string(), kind): lambda draw: [("x", draw()), ("y", draw())],
    }


TYPES = [
    *((kind, lambda draw: draw(), values) for kind, values in PLAIN.items()),
    *((made, make, values) for kind, values in PLAIN.items() for made, make in nested(kind).items()),
]


def drawn(seed, make, values, *, nulls):
    """A column of rows key after key, and the ends of the keys, some of which have no rows."""
    chance = random.Random(seed)
    rows, ends = [], []
    for _ in range(12):
        has_nulls = nulls and chance.random() < 0.4

        def draw(has_nulls=has_nulls):
            return None if has_nulls and chance.random() < 0.4 else chance.choice(values)

        count = chance.randrange(4)
        rows += [None if has_nulls and chance.random() < 0.3 else make(draw) for _ in range(count)]
        ends.append(len(rows))
    return rows, np.array(ends)


def shown(value):
    """A value with its type, and for arrays the type of their elements."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, [shown(item) for item in value]
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    return type(value).__name__, str(value)


def table(*columns):
    made = pa.table(list(columns), names=[f"c{number}" for number in range(len(columns))])
    return made, from_arrow_schema(made.schema, prefer_timestamp_ntz=True)


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize(("kind", "make", "values"), TYPES, ids=[str(kind) for kind, *_ in TYPES])
def test_a_frame_is_that_of_its_key_alone(kind, make, values, nulls):
    rows, ends = drawn(str(kind), make, values, nulls=nulls)
    data, schema = table(pa.array(rows, kind), pa.array(range(len(rows)), pa.int64()))
    part, start = key_frames(data, schema, "Europe/Berlin", ends), 0
    for end in ends.tolist():
        if start < end:
            got = part(start, end)
            alone = key_frames(data.slice(start, end - start), schema, "Europe/Berlin", np.array([end - start]))
            expected = alone(0, end - start)
            assert got.dtypes.tolist() == expected.dtypes.tolist()
            assert [shown(item) for item in got["c0"]] == [shown(item) for item in expected["c0"]]
            assert got["c1"].tolist() == list(range(start, end))
        start = end


@pytest.mark.parametrize("kind", [*INTEGERS, pa.bool_()], ids=str)
def test_no_value_changes_and_types_are_sparks_unless_a_value_would_change(kind):
    values = PLAIN[kind]
    for seed in range(20):
        rows, ends = drawn(seed, lambda draw: draw(), values, nulls=True)
        data, schema = table(pa.array(rows, kind))
        part, start = key_frames(data, schema, "UTC", ends), 0
        for end in ends.tolist():
            given = rows[start:end]
            if given:
                column = part(start, end)["c0"]
                items = [None if pd.isna(item) else int(item) for item in column]
                assert items == [None if item is None else int(item) for item in given]
                is_long = any(abs(item) > 2**53 for item in given if item is not None)
                whole, missing = ("bool", "object") if kind == pa.bool_() else ("int64", "float64")
                assert str(column.dtype) == (whole if None not in given else "Int64" if is_long else missing)
            start = end


def test_a_null_in_an_array_changes_arrays_of_its_own_key_and_place_only():
    kind = pa.struct([("a", pa.list_(pa.int64())), ("b", pa.list_(pa.bool_()))])
    rows = [{"a": [LONG, None], "b": [True]}, {"a": [1], "b": []}, {"a": [LONG], "b": [True, None]}, None]
    rows.append({"a": [2], "b": [False]})
    data, schema = table(pa.array(rows, kind))
    part = key_frames(data, schema, "UTC", np.array([2, 4, 5]))
    items = [item for start, end in ((0, 2), (2, 4), (4, 5)) for item in part(start, end)["c0"].tolist()]
    kinds = [None if item is None else (item["a"].dtype.kind, item["b"].dtype.kind) for item in items]
    assert kinds == [("O", "b"), ("O", "b"), ("i", "O"), None, ("i", "b")]
    assert [None if item is None else {name: list(inner) for name, inner in item.items()} for item in items] == rows


def test_keys_with_nulls_in_many_columns_have_the_rows_of_their_own():
    chance = random.Random(1)
    columns = [[chance.choice([None, LONG, 1]) for _ in range(300)] for _ in range(6)]
    data, schema = table(*(pa.array(column, pa.int64()) for column in columns))
    ends = np.arange(3, 303, 3)
    part = key_frames(data, schema, "UTC", ends)
    for end in ends.tolist():
        frame = part(end - 3, end)
        assert frame.index.tolist() == [0, 1, 2]
        for number, column in enumerate(columns):
            got = [None if pd.isna(item) else int(item) for item in frame[f"c{number}"]]
            assert got == column[end - 3 : end]


def test_a_batch_without_nulls_is_one_frame(monkeypatch):
    calls = []
    frame = pd.DataFrame
    monkeypatch.setattr(
        "stateline.spark.processor.frame_inputs.pd.DataFrame", lambda columns: calls.append(columns) or frame(columns)
    )
    data, schema = table(pa.array([1, 2, 3]), pa.array([None, "a", "b"]), pa.array([None, 1.5, 2.5]))
    key_frames(data, schema, "UTC", np.array([1, 2, 3]))
    assert len(calls) == 1


@pytest.mark.parametrize("kind", INTEGERS, ids=str)
def test_frames_of_integers_and_of_doubles_become_one_exact_column(kind):
    names = {pa.int8(): "byte", pa.int16(): "short", pa.int32(): "int", pa.int64(): "long"}
    output = from_arrow_schema(pa.schema([("n", kind)]))
    form = FrameForm(output, "UTC")
    values = INTEGERS[kind]
    form.take([pd.DataFrame({"n": [value]}) for value in values])
    form.take([pd.DataFrame({"n": [1.0, np.nan]}), pd.DataFrame({"n": pd.array([values[0], None], "Int64")})])
    form.take([pd.DataFrame({"n": np.array([7], np.int8)}), pd.DataFrame({"n": [None]})])
    (column,) = form.output()
    assert column.to_pylist() == [*values, 1, None, values[0], None, 7, None], names[kind]


def test_times_of_several_units_become_one_column():
    form = FrameForm(from_arrow_schema(pa.schema([("t", pa.timestamp("us"))]), prefer_timestamp_ntz=True), "UTC")
    far, near = dt.datetime(3000, 1, 1), dt.datetime(2024, 1, 1)
    form.take([pd.DataFrame({"t": np.array([far], "M8[us]")}), pd.DataFrame({"t": np.array([near], "M8[ns]")})])
    (column,) = form.output()
    assert column.to_pylist() == [far, near]


class Passes(StatefulProcessor):
    """Yields its rows, keeps the sum, and remembers what dtype a frame had."""

    def init(self, handle):
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key, rows, timerValues):
        for frame in rows:
            (before,) = self.total.get() or (0,)
            self.total.update((before + sum(int(item) for item in frame["x"].dropna()),))
            yield frame.assign(kind=str(frame["x"].dtype))[["key", "x", "flag", "kind"]]

    def handleInitialState(self, key, initialState, timerValues):
        self.total.update((int(initialState["x"].dropna().sum()),))

    def close(self):
        pass


def test_the_null_of_one_key_changes_no_row_of_another(monkeypatch):
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    schema = pa.schema([("key", pa.string()), ("x", pa.int64()), ("flag", pa.bool_())])
    first = pa.table({"key": ["x", "y"], "x": pa.array([None, LONG], pa.int64())})
    harness = KeyedStreamHarness(schema, "key", parallelism=1).process(
        Passes(), "key string, x long, flag boolean, kind string", form="pandas", initial_state=first
    )
    rows = [("x", LONG, True), ("x", None, None), ("y", LONG, True), ("z", 1, False), ("z", None, False)]
    out = harness.run_batch([dict(zip(schema.names, row, strict=True)) for row in rows])
    kinds = {"x": "Int64", "y": "int64", "z": "float64"}
    expected = [dict(zip([*schema.names, "kind"], [*row, kinds[row[0]]], strict=True)) for row in rows]
    assert sorted(out, key=str) == sorted(expected, key=str)
    totals = {row["key"]: row["n"] for row in harness.state("total")}
    assert totals == {"x": LONG, "y": 2 * LONG, "z": 1}
