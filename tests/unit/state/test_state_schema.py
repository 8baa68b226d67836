"""Names and types of state, their text, and how a stored schema becomes a newer one."""

from __future__ import annotations

import base64
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stateline.errors import CorruptDataError, ErrorKind, InvalidInputError
from stateline.state.evolution import apply_evolution, plan_evolution
from stateline.state.schema import StateSchema

KEYS = pa.schema([("k", pa.string())])


def schema(*values: tuple[str, pa.DataType]) -> StateSchema:
    return StateSchema(KEYS, pa.schema(list(values)))


def test_text_is_read_back_equal() -> None:
    original = StateSchema(
        pa.schema([("a", pa.int64()), ("b", pa.decimal128(20, 3))]),
        pa.schema(
            [("x", pa.list_(pa.int32())), ("y", pa.timestamp("us", tz="UTC")), ("z", pa.struct([("f", pa.string())]))]
        ),
    )
    assert StateSchema.decode(original.encode()) == original


@pytest.mark.parametrize("text", ["", "!!!", "QUFB", "é", StateSchema(KEYS, pa.schema([])).encode()[:-8]])
def test_text_that_is_no_schema_is_corrupt(text: str) -> None:
    with pytest.raises(CorruptDataError):
        StateSchema.decode(text)


def test_a_schema_without_roles_is_corrupt() -> None:
    text = base64.b64encode(pa.schema([("k", pa.string())]).serialize()).decode()
    with pytest.raises(CorruptDataError, match="key or a value"):
        StateSchema.decode(text)


def test_variants_of_one_type_are_stored_alike() -> None:
    stored = StateSchema(
        pa.schema([("k", pa.dictionary(pa.int32(), pa.large_string())), ("t", pa.timestamp("ns"))]),
        pa.schema([("v", pa.large_binary()), ("l", pa.large_list(pa.string_view()))]),
    )
    assert stored.keys.types == [pa.string(), pa.timestamp("us")]
    assert stored.values.types == [pa.binary(), pa.list_(pa.field("element", pa.string()))]


@pytest.mark.parametrize(
    ("keys", "values", "named"),
    [
        ([], [("v", pa.int64())], "state schema"),
        ([("k", pa.map_(pa.string(), pa.int64()))], [], "'k'"),
        ([("__hash", pa.int64())], [], "'__hash'"),
        ([("k", pa.int64())], [("k", pa.int64())], "'k'"),
        ([("k", pa.int64())], [("v", pa.run_end_encoded(pa.int32(), pa.int64()))], "'v'"),
    ],
)
def test_a_schema_that_cannot_be_stored_is_refused(keys: list, values: list, named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        StateSchema(pa.schema(keys), pa.schema(values))


def test_keys_are_taken_in_the_order_named() -> None:
    whole = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.date32())])
    split = StateSchema.of(whole, ["c", "a"])
    assert (split.keys.names, split.values.names) == (["c", "a"], ["b"])
    with pytest.raises(InvalidInputError, match="'d'"):
        StateSchema.of(whole, ["d"])


def test_a_mismatch_shows_both_schemas() -> None:
    with pytest.raises(InvalidInputError) as caught:
        schema(("v", pa.int64())).check_same(schema(("v", pa.string())), "flights")
    assert caught.value.kind is ErrorKind.SCHEMA_MISMATCH
    assert "(k: string) -> (v: string)" in str(caught.value)
    assert "(k: string) -> (v: int64)" in str(caught.value)
    assert "flights" in str(caught.value)


def test_evolution_adds_drops_reorders_and_widens() -> None:
    stored = schema(("a", pa.int32()), ("gone", pa.string()), ("b", pa.float32()))
    wanted = schema(("b", pa.float64()), ("new", pa.date32()), ("a", pa.int64()))
    steps = plan_evolution(stored, wanted)
    old = [pa.array([1, None], pa.int32()), pa.array(["x", "y"]), pa.array([0.5, 2.0], pa.float32())]
    made = apply_evolution(steps, old, 2)
    assert [column.type for column in made] == [pa.float64(), pa.date32(), pa.int32()], "read as it lies"
    assert [column.to_pylist() for column in made] == [[0.5, 2.0], [None, None], [1, None]]


@pytest.mark.parametrize(
    ("old", "values", "new"),
    [
        (pa.int8(), [-128, 127, None], pa.decimal128(5, 2)),
        (pa.int64(), [-(2**63), 2**63 - 1, None], pa.decimal128(38, 19)),
        (pa.decimal128(4, 2), [decimal.Decimal("-99.99"), decimal.Decimal("0.01"), None], pa.decimal128(38, 36)),
    ],
)
def test_the_longest_values_of_a_type_have_room_in_a_wider_one(
    old: pa.DataType, values: list[Any], new: pa.DataType
) -> None:
    steps = plan_evolution(schema(("v", old)), schema(("v", new)))
    (made,) = apply_evolution(steps, [pa.array(values, old)], len(values))
    assert made.type == new
    assert made.to_pylist() == values


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        (pa.int8(), pa.int16(), True),
        (pa.int64(), pa.int32(), False),
        (pa.int32(), pa.float64(), True),
        (pa.int64(), pa.float64(), False),
        (pa.float64(), pa.float32(), False),
        (pa.decimal128(10, 2), pa.decimal128(20, 2), True),
        (pa.decimal128(10, 2), pa.decimal128(20, 3), True),
        (pa.decimal128(10, 2), pa.decimal128(10, 3), False),
        (pa.decimal128(10, 2), pa.decimal128(20, 1), False),
        (pa.int32(), pa.decimal128(12, 2), True),
        (pa.int32(), pa.decimal128(11, 2), False),
        (pa.int64(), pa.decimal128(19, 0), True),
        (pa.decimal128(18, 0), pa.int64(), False),
        (pa.string(), pa.binary(), False),
        (pa.null(), pa.string(), True),
    ],
)
def test_only_lossless_widening_is_allowed(old: pa.DataType, new: pa.DataType, allowed: bool) -> None:
    stored, wanted = schema(("v", old)), schema(("v", new))
    if allowed:
        assert plan_evolution(stored, wanted)[0].source == 0
    else:
        with pytest.raises(InvalidInputError) as caught:
            plan_evolution(stored, wanted)
        assert caught.value.kind is ErrorKind.SCHEMA_MISMATCH


def test_the_key_never_evolves() -> None:
    stored = StateSchema(pa.schema([("k", pa.int32())]), pa.schema([]))
    wanted = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([]))
    with pytest.raises(InvalidInputError, match="ordered by their hash"):
        plan_evolution(stored, wanted)


def test_defaults_are_part_of_the_schema_and_of_its_text() -> None:
    plain = schema(("n", pa.int64()), ("tags", pa.list_(pa.string())), ("when", pa.timestamp("us")))
    given = plain.with_defaults({"tags": ["x"], "n": 7, "when": None})
    assert given != plain
    assert StateSchema.decode(given.encode()) == given
    assert (given.default("n").as_py(), given.default("tags").as_py()) == (7, ["x"])
    assert not given.default("when").is_valid
    assert "n: int64 = 7, tags: list<element: string> = ['x'], when: timestamp[us]" in str(given)
    made = apply_evolution(plan_evolution(schema(), given), [], 2)
    assert [column.to_pylist() for column in made] == [[7, 7], [["x"], ["x"]], [None, None]]


@pytest.mark.parametrize(
    ("defaults", "named"),
    [({"m": 1}, "'m'"), ({"k": "x"}, "'k'"), ({"n": "many"}, "type int64, got 'many'")],
)
def test_a_default_that_cannot_be_is_refused(defaults: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        schema(("n", pa.int64())).with_defaults(defaults)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int32(), 1.5),
        (pa.list_(pa.int32()), [1, 1.5]),
        (pa.struct([("x", pa.int8())]), {"x": 0.25}),
        (pa.int64(), np.float32(2.5)),
    ],
)
def test_no_default_loses_its_fraction(kind: pa.DataType, value: object) -> None:
    with pytest.raises(InvalidInputError, match="It would be kept as"):
        schema(("n", kind)).with_defaults({"n": value})
    assert schema(("n", pa.int32())).with_defaults({"n": 2.0}).default("n").as_py() == 2


@pytest.mark.parametrize(
    "stored",
    [
        b"!!!",
        base64.b64encode(b"no batch"),
        base64.b64encode(pa.record_batch([pa.array([1, 2])], names=["n"]).serialize().to_pybytes()),
    ],
)
def test_a_stored_default_that_is_not_one_value_is_corrupt(stored: bytes) -> None:
    key = pa.field("k", pa.string(), metadata={"stateline.role": "key"})
    value = pa.field("n", pa.int64(), metadata={"stateline.role": "value", "stateline.default": stored})
    with pytest.raises(CorruptDataError):
        StateSchema.decode(base64.b64encode(pa.schema([key, value]).serialize()).decode())
