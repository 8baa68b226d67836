"""Keys in columns: equality as Spark groups, collisions of hashes, groups in order."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import LONGS, collide, columns

from stateline.errors import ErrorKind, InvalidInputError
from stateline.key_groups import hash_columns
from stateline.state.keys import KeyRows, equal_at, group_rows, key_rows
from stateline.state.schema import StateSchema

NAN = float("nan")
SAMPLES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [0, -1, 127, None]),
    "int16": (pa.int16(), [0, -1, 1000, None]),
    "int32": (pa.int32(), [0, -1, 2**31 - 1, None]),
    "int64": (pa.int64(), [0, -1, 2**63 - 1, None]),
    "float32": (pa.float32(), [0.0, 1.5, NAN, None]),
    "float64": (pa.float64(), [0.0, 1.5, NAN, None, math.inf]),
    "bool": (pa.bool_(), [True, False, None]),
    "string": (pa.string(), ["", "a", "é" * 40, None]),
    "large_string": (pa.large_string(), ["", "a", None]),
    "binary": (pa.binary(), [b"", b"\0", b"\0\0", None]),
    "fixed": (pa.binary(3), [b"abc", b"abd", None]),
    "date": (pa.date32(), [dt.date(2024, 1, 1), dt.date(1950, 1, 1), None]),
    "timestamp": (pa.timestamp("us", tz="UTC"), [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None]),
    "decimal": (pa.decimal128(10, 2), [decimal.Decimal("1.00"), decimal.Decimal("-1.00"), None]),
    "wide decimal": (pa.decimal128(38, 2), [decimal.Decimal(10) ** 30, decimal.Decimal(0), None]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["x", "y", None]),
    "null": (pa.null(), [None]),
}


def identity(value: Any) -> Any:
    """What makes two keys one in Spark: NaN is NaN, -0.0 is 0.0, null is null."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def grouped(schema: StateSchema, rows: list[tuple[Any, ...]]) -> list[tuple[tuple[Any, ...], list[int]]]:
    groups = group_rows(key_rows(schema, columns(schema.keys, rows)))
    ends = [*groups.starts.tolist(), len(groups.order)][1:]
    keys = list(zip(*(column.to_pylist() for column in groups.keys.columns), strict=True))
    members = [groups.order[start:end].tolist() for start, end in zip(groups.starts, ends, strict=True)]
    assert (np.diff(groups.keys.hashes.astype(object)) >= 0).all()
    return list(zip(keys, members, strict=True))


def model(rows: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], list[int]]:
    expected: dict[tuple[Any, ...], list[int]] = {}
    for number, row in enumerate(rows):
        expected.setdefault(tuple(identity(value) for value in row), []).append(number)
    return expected


@pytest.mark.parametrize("bits", [64, 2, 0])
@pytest.mark.parametrize("name", SAMPLES)
def test_rows_are_grouped_by_whole_key(name: str, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, values = SAMPLES[name]
    if bits < 64:
        collide(monkeypatch, bits)
    schema = StateSchema(pa.schema([("k", kind)]), pa.schema([]))
    rows = [(value,) for value in [*values, *reversed(values), *values]]
    if kind in (pa.float32(), pa.float64()):
        rows.append((-0.0,))
    found = grouped(schema, rows)
    assert {tuple(identity(value) for value in key): members for key, members in found} == model(rows)
    assert not any(str(value) == "-0.0" for key, _ in found for value in key)


@given(data=st.data(), bits=st.sampled_from([64, 3, 1]))
def test_composite_keys_are_grouped_by_all_columns(data: st.DataObject, bits: int) -> None:
    names = data.draw(st.lists(st.sampled_from([name for name in SAMPLES if name != "null"]), min_size=1, max_size=3))
    schema = StateSchema(pa.schema([(f"k{i}", SAMPLES[name][0]) for i, name in enumerate(names)]), pa.schema([]))
    rows = data.draw(st.lists(st.tuples(*(st.sampled_from(SAMPLES[name][1]) for name in names)), max_size=30))
    with pytest.MonkeyPatch.context() as patch:
        if bits < 64:
            collide(patch, bits)
        found = grouped(schema, rows)
    assert {tuple(identity(value) for value in key): members for key, members in found} == model(rows)


def test_hashes_that_share_their_upper_bits_are_still_sorted() -> None:
    hashes = np.array([5 << 40 | 7, 5 << 40 | 3, 5 << 40 | 7, 1], dtype=np.uint64)
    rows = KeyRows(hashes, (pa.array([70, 30, 70, 10]),))
    groups = group_rows(rows)
    assert groups.keys.columns[0].to_pylist() == [10, 30, 70]
    assert groups.order.tolist() == [3, 1, 0, 2]
    assert groups.sizes.tolist() == [1, 1, 2]
    assert groups.index().tolist() == [0, 1, 2, 2]


def test_no_rows_make_no_groups() -> None:
    groups = group_rows(key_rows(LONGS, [pa.array([], pa.int64())]))
    assert (len(groups), len(groups.keys), groups.sizes.tolist()) == (0, 0, [])


def test_given_hashes_are_used_signed_or_unsigned() -> None:
    column = pa.array([1, 2, 3])
    expected = hash_columns([column])
    for given_hashes in (expected, expected.view(np.int64)):
        assert (key_rows(LONGS, [column], given_hashes).hashes == expected).all()


def test_hashes_of_something_else_are_refused() -> None:
    column = pa.array([1, 2, 3])
    for wrong in (hash_columns([column]) + np.uint64(1), hash_columns([column])[:2]):
        with pytest.raises(InvalidInputError, match="not those of the keys"):
            key_rows(LONGS, [column], wrong)


def test_a_key_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="int32") as caught:
        key_rows(LONGS, [pa.array([1], pa.int32())])
    assert caught.value.kind is ErrorKind.SCHEMA_MISMATCH
    with pytest.raises(InvalidInputError, match="got 2"):
        key_rows(LONGS, [pa.array([1]), pa.array([1])])


def test_chunks_and_slices_are_read_as_one_column() -> None:
    whole = pa.array([None, 3, 1, 2, 3, None])
    chunked = pa.chunked_array([whole.slice(0, 2), whole.slice(2, 0), whole.slice(2)])
    assert (key_rows(LONGS, [chunked]).hashes == hash_columns([whole])).all()
    assert key_rows(LONGS, [pa.chunked_array([], pa.int64())]).hashes.tolist() == []


def test_equality_looks_at_rows_of_slices() -> None:
    left = key_rows(LONGS, [pa.array([9, 1, None, 2]).slice(1)])
    right = key_rows(LONGS, [pa.array([2, None, 1])])
    equal = equal_at(left, np.array([0, 1, 2, 0]), right, np.array([2, 1, 0, 0]))
    assert equal.tolist() == [True, True, True, False]
