"""Aggregations against a naive model of Spark's semantics, over every type, any split into batches, and nulls."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import statistics
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_kit import ALL, MAX_PARALLELISM, StoredRuns, collide, merge_once, run_of

from stateline.blob.memory import MemoryStore
from stateline.errors import ErrorKind, InvalidInputError, UserCodeError
from stateline.state import aggregate as agg
from stateline.state.merge import MergeSettings
from stateline.state.rows import StateRows
from stateline.state.run_store import RunReader
from stateline.state.runs import Run
from stateline.state.table import StateTable

D = decimal.Decimal
NAN = math.nan
EPOCH = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)

COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "i8": (pa.int8(), st.integers(-128, 127)),
    "i32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "i64": (pa.int64(), st.integers(-(2**58), 2**58)),
    "f32": (pa.float32(), st.floats(width=32)),
    "f64": (pa.float64(), st.floats()),
    "d10": (pa.decimal128(10, 2), st.decimals(D("-99999999.99"), D("99999999.99"), places=2)),
    "d30": (pa.decimal128(28, 2), st.integers(-(10**28) + 1, 10**28 - 1).map(lambda n: D(n).scaleb(-2))),
    "s": (pa.string(), st.text("abé\0z", max_size=3)),
    "b": (pa.binary(), st.binary(max_size=3)),
    "t": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates()),
    "ts": (pa.timestamp("us", tz="UTC"), st.integers(-5, 5).map(lambda n: EPOCH + dt.timedelta(microseconds=n))),
    "small": (pa.int64(), st.integers(0, 3)),
}
SCHEMA = pa.schema([("k", pa.int64()), *((name, kind) for name, (kind, _) in COLUMNS.items())])
decimal.getcontext().prec = 80


def order(value: Any) -> tuple[Any, ...]:
    """Sorts as SQL does: NaN above all, -0.0 as 0.0, strings by bytes."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value + 0.0)
    if isinstance(value, str):
        return (value.encode(),)
    return (value,)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-9) or left == right
    return bool(left == right)


def feed(
    aggregations: dict[str, agg.Aggregation],
    batches: Sequence[Sequence[dict[str, Any]]],
    schema: pa.Schema = SCHEMA,
    *,
    merging: MergeSettings | None = None,
) -> dict[Any, dict[str, Any]]:
    """Runs the batches through a table; returns the newest output of each key."""
    plan = agg.KeyedAggregation.bind(schema, ["k"], aggregations)
    table = StateTable(plan.state_schema, ALL, MAX_PARALLELISM)
    seen: dict[Any, dict[str, Any]] = {}
    for batch in batches:
        update = plan.update(table, pa.Table.from_pylist(list(batch), schema=schema))
        assert [column.type for column in update.changes.values] == plan.state_schema.values.types
        touched = {row["k"] for row in update.output.to_pylist()}
        assert touched == {row["k"] for row in batch}
        for row in update.output.to_pylist():
            seen[row.pop("k")] = row
        table, _ = merge_once(table.with_changes(update.changes), merging)
    stored = {row.pop("k"): row for batch in table.scan() for row in plan.results(batch).to_pylist()}
    assert repr(sorted(stored.items(), key=repr)) == repr(sorted(seen.items(), key=repr))
    return seen


def values_of(batches: Sequence[Sequence[dict[str, Any]]], key: Any, column: str) -> list[Any]:
    return [row[column] for batch in batches for row in batch if row["k"] == key and row[column] is not None]


@st.composite
def batches_of(draw: st.DrawFn, *names: str, keys: int = 3) -> list[list[dict[str, Any]]]:
    row = st.fixed_dictionaries(
        {"k": st.none() | st.integers(0, keys - 1), **{name: st.none() | COLUMNS[name][1] for name in names}}
    )
    return draw(st.lists(st.lists(row, max_size=8), min_size=1, max_size=4))


def assert_equals_model(
    column: str,
    batches: list[list[dict[str, Any]]],
    made: agg.Aggregation,
    expected: Callable[[list[Any]], Any],
) -> None:
    found = feed({"x": made}, batches)
    for key, row in found.items():
        values = values_of(batches, key, column)
        assert same(row["x"], expected(values)), (values, row["x"], expected(values))


# -- counts, sums, means
# ------------------------------------------------------------------------------------------------


@given(batches_of("s"))
@settings(max_examples=20, deadline=None)
def test_count(batches: list[list[dict[str, Any]]]) -> None:
    found = feed({"rows": agg.count(), "values": agg.count("s")}, batches)
    for key, row in found.items():
        rows = sum(one["k"] == key for batch in batches for one in batch)
        assert row == {"rows": rows, "values": len(values_of(batches, key, "s"))}


@pytest.mark.parametrize("column", ["i8", "i32", "i64", "d10", "d30"])
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_sums_of_exact_numbers_are_exact(column: str, data: st.DataObject) -> None:
    batches = data.draw(batches_of(column))
    assert_equals_model(column, batches, agg.sum(column), lambda values: sum(values[1:], values[0]) if values else None)


@pytest.mark.parametrize("column", ["f32", "f64"])
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_sums_and_means_of_doubles(column: str, data: st.DataObject) -> None:
    batches = data.draw(batches_of(column))
    for row in (row for batch in batches for row in batch):
        if row[column] is not None and 1e15 < abs(row[column]) < math.inf:
            row[column] = None  # Cancellation makes the order of addition visible, here as in Spark.
    assert_equals_model(column, batches, agg.sum(column), lambda values: float(sum(values)) if values else None)
    assert_equals_model(column, batches, agg.mean(column), lambda values: sum(values) / len(values) if values else None)


@pytest.mark.parametrize("column", ["i8", "i32", "small"])
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_means_of_integers(column: str, data: st.DataObject) -> None:
    batches = data.draw(batches_of(column))
    assert_equals_model(column, batches, agg.mean(column), lambda values: sum(values) / len(values) if values else None)


@given(batches_of("d10", "d30"))
@settings(max_examples=20, deadline=None)
def test_means_of_decimals_are_rounded_half_away_from_zero(batches: list[list[dict[str, Any]]]) -> None:
    def expected(values: list[D]) -> D | None:
        exact = sum(values, D(0)) / len(values) if values else None
        return None if exact is None else exact.quantize(D("0.000001"), rounding=decimal.ROUND_HALF_UP)

    assert_equals_model("d10", batches, agg.mean("d10"), expected)
    assert_equals_model("d30", batches, agg.mean("d30"), expected)


def test_types_of_sums_and_means_are_sparks() -> None:
    schema = pa.schema(
        [
            ("k", pa.int64()),
            ("i", pa.int16()),
            ("f", pa.float32()),
            ("d", pa.decimal128(10, 2)),
            ("w", pa.decimal128(38, 6)),
        ]
    )
    plan = agg.KeyedAggregation.bind(
        schema, ["k"], {f"{how}_{c}": getattr(agg, how)(c) for how in ("sum", "mean") for c in "ifdw"}
    )
    assert plan.output_schema.types[1:] == [
        pa.int64(),
        pa.float64(),
        pa.decimal128(20, 2),
        pa.decimal128(38, 6),
        pa.float64(),
        pa.float64(),
        pa.decimal128(14, 6),
        pa.decimal128(38, 10),
    ]


@pytest.mark.parametrize(
    ("kind", "one", "many"),
    [
        (pa.int64(), 2**63 - 1, [[2**62, 2**62]]),
        (pa.int64(), -(2**63), [[-(2**63)], [-1]]),
        (pa.decimal128(38, 0), D(10**38 - 1), [[D(6 * 10**37)] * 2]),
        (pa.decimal128(38, 0), D(-(10**38) + 1), [[D(-(10**38) + 1)], [D(-1)]]),
        (pa.decimal128(38, 0), D(1), [[D(10**38 - 1)] * 5]),
    ],
)
def test_a_sum_that_does_not_fit_is_an_error_and_the_largest_one_is_not(kind: pa.DataType, one: Any, many: Any) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", kind)])
    assert feed({"x": agg.sum("v")}, [[{"k": 1, "v": one}, {"k": 1, "v": None}], [{"k": 1, "v": None}]], schema) == {
        1: {"x": one}
    }
    with pytest.raises(InvalidInputError, match=r"sum\(v\)") as caught:
        feed({"x": agg.sum("v")}, [[{"k": 1, "v": value} for value in batch] for batch in many], schema)
    assert caught.value.kind is ErrorKind.ARITHMETIC_OVERFLOW


def test_a_sum_whose_parts_cancel_fits() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    rows = [{"k": 1, "v": value} for value in (2**63 - 1, 2**62, -(2**62), -5)]
    assert feed({"x": agg.sum("v")}, [rows], schema) == {1: {"x": 2**63 - 6}}


@pytest.mark.parametrize("column", ["i32", "f64", "d10"])
@pytest.mark.parametrize(
    ("made", "model", "least"),
    [
        (agg.variance, statistics.variance, 2),
        (agg.var_pop, statistics.pvariance, 1),
        (agg.stddev, statistics.stdev, 2),
        (agg.stddev_pop, statistics.pstdev, 1),
    ],
)
def test_variances(column: str, made: Callable[[str], agg.Aggregation], model: Callable[..., Any], least: int) -> None:
    dice = np.random.default_rng(1)
    draw = {"i32": lambda: int(dice.integers(-1000, 1000)), "f64": lambda: 1e6 + float(dice.random())}
    draw["d10"] = lambda: D(int(dice.integers(-1000, 1000))).scaleb(-2)  # type: ignore[assignment, return-value]
    for _ in range(30):
        batches = [
            [
                {"k": int(dice.integers(0, 3)), column: None if dice.random() < 0.2 else draw[column]()}
                for _ in range(dice.integers(0, 8))
            ]
            for _ in range(3)
        ]
        found = feed({"x": made(column)}, batches)
        for key, row in found.items():
            values = [float(value) for value in values_of(batches, key, column)]
            if len(values) < least:
                assert row["x"] is None
            else:
                assert math.isclose(row["x"], model(values), rel_tol=1e-6, abs_tol=1e-9)


@pytest.mark.parametrize("value", [0.1, 123456789.123, 1e308, -1e308])
@pytest.mark.parametrize("batches", [[3], [1, 2], [7, 3, 5]])
def test_equal_values_do_not_vary(value: float, batches: list[int]) -> None:
    """Not by a rounding error either, nor where their sum is infinite: to Spark it is exactly 0."""
    rows = [[{"k": 1, "f64": one} for one in [None, *[value] * count]] for count in batches]
    functions = {"v": agg.variance, "vp": agg.var_pop, "s": agg.stddev, "sp": agg.stddev_pop}
    assert feed({name: made("f64") for name, made in functions.items()}, rows) == {1: dict.fromkeys(functions, 0.0)}


# -- extremes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", [name for name in COLUMNS if name != "small"])
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_minimum_and_maximum_of_every_type(column: str, data: st.DataObject) -> None:
    batches = data.draw(batches_of(column))
    assert_equals_model(column, batches, agg.max(column), lambda values: max(values, key=order, default=None))
    assert_equals_model(column, batches, agg.min(column), lambda values: min(values, key=order, default=None))


def test_nan_is_above_infinity() -> None:
    rows = [[{"k": 1, "f64": value}] for value in (1.0, NAN, math.inf, None)]
    found = feed({"high": agg.max("f64"), "low": agg.min("f64")}, rows)[1]
    assert math.isnan(found["high"])
    assert found["low"] == 1.0
    assert math.isnan(feed({"low": agg.min("f64")}, [[{"k": 1, "f64": NAN}, {"k": 1, "f64": None}]])[1]["low"])


@pytest.mark.parametrize(
    ("value", "by"),
    [("s", "ts"), ("i64", "f64"), ("f64", "small"), ("ts", "s"), ("small", "t"), ("d30", "small"), ("small", "small")],
)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_the_value_at_the_extreme_depends_on_no_order_of_rows(value: str, by: str, data: st.DataObject) -> None:
    batches = data.draw(batches_of(value, by))
    found = feed(
        {"late": agg.last(value, by=by), "early": agg.first(value, by=by), "top": agg.max_by(value, by)}, batches
    )
    for key, row in found.items():
        rows = [r for batch in batches for r in batch if r["k"] == key and r[by] is not None]

        def rank(one: dict[str, Any], null_first: bool) -> tuple[Any, ...]:
            some = one[value] is not None
            return (order(one[by]), some if null_first else not some, order(one[value]) if some else ())

        late = max(rows, key=lambda one: rank(one, True), default={value: None})[value]
        early = min(rows, key=lambda one: rank(one, False), default={value: None})[value]
        assert same(row["late"], late)
        assert same(row["top"], late)
        assert same(row["early"], early)


def test_a_value_without_an_order_is_kept_too() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.list_(pa.int64())), ("t", pa.int64())])
    batches = [
        [{"k": 1, "v": [1], "t": 5}, {"k": 1, "v": [2], "t": 7}, {"k": 1, "v": [9], "t": 7}],
        [{"k": 1, "v": [3], "t": 7}, {"k": 1, "v": None, "t": None}],
        [{"k": 1, "v": [4], "t": 1}],
    ]
    found = feed({"late": agg.last("v", by="t"), "early": agg.first("v", by="t")}, batches, schema)
    assert found == {1: {"late": [2], "early": [4]}}


# -- lists, sets, sketches
# ----------------------------------------------------------------------------------------------


@given(batches_of("s", "f64"), st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_lists_and_sets_are_bounded_and_in_order_of_arrival(batches: list[list[dict[str, Any]]], limit: int) -> None:
    found = feed(
        {
            "head": agg.collect_list("s", limit),
            "tail": agg.collect_list("s", limit, newest=True),
            "set": agg.collect_set("s", limit),
            "floats": agg.collect_set("f64", 100),
            "exact": agg.count_distinct("s"),
        },
        batches,
    )
    for key, row in found.items():
        values = values_of(batches, key, "s")
        assert row["head"] == values[:limit]
        assert row["tail"] == values[-limit:]
        assert row["set"] == list(dict.fromkeys(values))[:limit]
        assert row["exact"] == len(set(values))
        assert len(row["floats"]) == len({order(value) for value in values_of(batches, key, "f64")})


def test_a_key_with_nothing_but_nulls_has_an_empty_list() -> None:
    found = feed({"l": agg.collect_list("s", 3), "n": agg.count_distinct("s")}, [[{"k": 1, "s": None}]] * 2)
    assert found == {1: {"l": [], "n": 0}}


@pytest.mark.parametrize(("kind", "bits"), [(np.float64, np.uint64), (np.float32, np.uint32)])
def test_every_nan_is_the_same_value_whatever_its_bits(kind: Any, bits: Any) -> None:
    plain = np.array([np.nan, 0.0, 1.5], dtype=kind)
    signed = (plain.view(bits) | (bits(1) << bits(8 * plain.itemsize - 1))).view(kind)[:2]  # -NaN and -0.0
    column = pa.array(np.concatenate([plain, signed]), from_pandas=False)
    batch = pa.table({"k": pa.array([1] * len(column)), "v": column})
    plan = agg.KeyedAggregation.bind(batch.schema, ["k"], {"n": agg.count_distinct("v"), "s": agg.collect_set("v", 9)})
    table = StateTable(plan.state_schema, ALL, MAX_PARALLELISM)
    for _ in range(2):
        update = plan.update(table, batch)
        table = table.with_changes(update.changes)
        (row,) = update.output.to_pylist()
        assert (row["n"], len(row["s"])) == (3, 3)


def test_a_set_holds_zero_without_a_sign_as_spark_s_does() -> None:
    found = feed({"s": agg.collect_set("f64", 9)}, [[{"k": 1, "f64": value} for value in (-0.0, 0.0)]])
    assert str(found[1]["s"]) == "[0.0]"


@pytest.mark.parametrize("distinct", [0, 1, 10, 200, 5_000, 100_000])
@pytest.mark.parametrize("rsd", [0.05, 0.01])
def test_the_approximate_count_is_within_four_deviations(distinct: int, rsd: float) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    plan = agg.KeyedAggregation.bind(schema, ["k"], {"n": agg.approx_count_distinct("v", rsd)})
    table = StateTable(plan.state_schema, ALL, MAX_PARALLELISM)
    for part in range(3):  # Overlapping thirds, each value in two of them.
        values = [value for value in range(distinct) if value % 3 != part] + [None]
        update = plan.update(table, pa.table({"k": [7] * len(values), "v": pa.array(values, pa.int64())}))
        table = table.with_changes(update.changes)
    (row,) = update.output.to_pylist()
    assert abs(row["n"] - distinct) <= max(4 * rsd * distinct, 0)


def test_the_sketch_of_many_keys_at_once() -> None:
    rows = [{"k": key, "i64": value} for key in range(50) for value in range(key)] + [{"k": 0, "i64": None}]
    found = feed({"n": agg.approx_count_distinct("i64", 0.02)}, [rows, rows[::-1]])
    for key, row in found.items():
        assert abs(row["n"] - key) <= max(1, 0.1 * key)


@pytest.mark.parametrize(
    ("narrow", "wide"), [(pa.int8(), pa.int64()), (pa.int32(), pa.int64()), (pa.float32(), pa.float64())]
)
def test_a_column_that_becomes_wider_is_counted_on(narrow: pa.DataType, wide: pa.DataType) -> None:
    def bind(kind: pa.DataType) -> agg.KeyedAggregation:
        schema = pa.schema([("k", pa.int64()), ("v", kind)])
        return agg.KeyedAggregation.bind(schema, ["k"], {"n": agg.approx_count_distinct("v", 0.01)})

    old, new = bind(narrow), bind(wide)
    assert (new.definition, new.state_schema) == (old.definition, old.state_schema)
    rows = pa.table({"k": [1] * 100, "v": pa.array(range(100), narrow)})
    table = StateTable(old.state_schema, ALL, MAX_PARALLELISM)
    before = old.update(table, rows)
    after = new.update(table.with_changes(before.changes), rows.set_column(1, "v", rows["v"].cast(wide)))
    assert before.output["n"].to_pylist() == after.output["n"].to_pylist()


def test_a_count_of_values_of_another_type_is_another_count() -> None:
    kinds = (pa.int64(), pa.string(), pa.float64(), pa.decimal128(10, 2), pa.decimal128(20, 2), pa.date32())
    schemas = (pa.schema([("k", pa.int64()), ("v", kind)]) for kind in kinds)
    plans = [agg.KeyedAggregation.bind(schema, ["k"], {"n": agg.approx_count_distinct("v")}) for schema in schemas]
    assert len({plan.definition for plan in plans}) == len(kinds)


def test_parameters_are_checked() -> None:
    for wrong in (0.0, 1.0, 0.0001, -1.0, None, "0.05"):
        with pytest.raises(InvalidInputError, match="rsd"):
            agg.approx_count_distinct("i64", wrong)


def test_an_approximate_count_of_what_has_no_hash_is_refused_by_its_own_name():
    schema = pa.schema([("k", pa.int64()), ("v", pa.duration("us"))])
    with pytest.raises(InvalidInputError, match=r"'v'.*duration.*cannot be counted by approx_count_distinct"):
        agg.KeyedAggregation.bind(schema, ["k"], {"n": agg.approx_count_distinct("v")})
    with pytest.raises(InvalidInputError, match="limit"):
        agg.collect_list("s", 0)


# -- the plan ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [64, 2, 0])
def test_colliding_keys_are_aggregated_apart_through_merges(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if bits < 64:
        collide(monkeypatch, bits)
    dice = np.random.default_rng(7)
    batches = [
        [{"k": int(dice.integers(0, 30)), "i64": int(dice.integers(0, 100))} for _ in range(40)] for _ in range(12)
    ]
    found = feed({"n": agg.count(), "x": agg.sum("i64")}, batches, merging=MergeSettings(runs_max=3, tier_runs=2))
    for key, row in found.items():
        values = values_of(batches, key, "i64")
        assert row == {"n": len(values), "x": sum(values)}


def test_names_of_state_columns_and_outputs() -> None:
    plan = agg.KeyedAggregation.bind(
        SCHEMA, ["s", "date"], {"n": agg.count(), "m": agg.mean("f64"), "place": agg.last("i64", by="ts")}
    )
    assert plan.state_schema.row.names == ["s", "date", "n", "m.sum", "m.count", "place", "place.by"]
    assert plan.output_schema.names == ["s", "date", "n", "m", "place"]
    assert plan.input_columns == ("s", "date", "f64", "i64", "ts")
    assert '"m": "mean(f64)"' in plan.definition


def test_the_plan_travels_to_other_processes() -> None:
    import pickle

    plan = agg.KeyedAggregation.bind(
        SCHEMA, ["k"], {"n": agg.count(), "m": agg.variance("f64"), "l": agg.collect_set("s", 3)}
    )
    copy = pickle.loads(pickle.dumps(plan))
    assert copy.definition == plan.definition
    table = StateTable(copy.state_schema, ALL, MAX_PARALLELISM)
    assert copy.update(table, pa.Table.from_pylist([{"k": 1, "s": "x"}], schema=SCHEMA)).output.num_rows == 1


def test_chunks_dictionaries_and_large_strings_are_read() -> None:
    schema = pa.schema(
        [("k", pa.dictionary(pa.int32(), pa.large_string())), ("v", pa.dictionary(pa.int8(), pa.string()))]
    )
    plan = agg.KeyedAggregation.bind(schema, ["k"], {"top": agg.max("v"), "n": agg.count("v")})
    rows = pa.concat_tables(
        [
            pa.table({"k": pa.array(["a", "b"]), "v": pa.array(["x", None])}).cast(schema),
            pa.table({"k": pa.array(["a"]), "v": pa.array(["y"])}).cast(schema),
        ]
    )
    table = StateTable(plan.state_schema, ALL, MAX_PARALLELISM)
    found = plan.update(table, rows).output.to_pylist()
    assert sorted(found, key=lambda row: row["k"]) == [{"k": "a", "top": "y", "n": 2}, {"k": "b", "top": None, "n": 0}]


def test_a_batch_without_rows_changes_nothing() -> None:
    plan = agg.KeyedAggregation.bind(SCHEMA, ["k"], {"n": agg.count(), "l": agg.collect_list("s", 2)})
    table = StateTable(plan.state_schema, ALL, MAX_PARALLELISM)
    update = plan.update(table, SCHEMA.empty_table())
    assert (len(update.changes), update.output.num_rows) == (0, 0)
    assert update.output.schema == plan.output_schema


@pytest.mark.parametrize(
    ("aggregations", "said"),
    [
        ({}, "must have an aggregation"),
        ({"k": agg.count()}, "key column"),
        ({"x": agg.sum("s")}, "not numeric"),
        ({"x": agg.mean("t")}, "not numeric"),
        ({"x": agg.sum("i46")}, "Did you mean 'i64'"),
        ({"x": agg.count("nothing like it")}, "Known: "),
        ({"x": agg.last("s", by="tss")}, "Did you mean 'ts'"),
        ({"x": "count"}, "is not an aggregation"),
        ({"__x": agg.count()}, "reserved"),
    ],
)
def test_what_cannot_be_aggregated_is_refused_before_anything_runs(aggregations: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        agg.KeyedAggregation.bind(SCHEMA, ["k"], aggregations)


def test_a_misspelled_key_and_a_batch_with_other_columns_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="Did you mean 'small'"):
        agg.KeyedAggregation.bind(SCHEMA, ["smal"], {"n": agg.count()})
    plan = agg.KeyedAggregation.bind(SCHEMA, ["k"], {"n": agg.sum("i64")})
    table = StateTable(plan.state_schema, ALL, MAX_PARALLELISM)
    with pytest.raises(InvalidInputError, match="'i64'"):
        plan.update(table, pa.table({"k": [1]}))


def test_types_without_order_or_equality_are_refused() -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.list_(pa.int64()))])
    for made in (
        agg.max("v"),
        agg.count_distinct("v"),
        agg.collect_set("v", 2),
        agg.first("k", by="v"),
        agg.approx_count_distinct("v"),
    ):
        with pytest.raises(InvalidInputError):
            agg.KeyedAggregation.bind(schema, ["k"], {"x": made})


# -- one's own ---------------------------------------------------------------------------------------


class Spread(agg.Aggregator):
    state_schema = pa.schema([("low", pa.int64()), ("high", pa.int64())])
    output_type = pa.int64()

    def reduce(self, rows: pa.Table, group: pa.Array, num_groups: int) -> pa.Table:
        made = rows.append_column("g", group).group_by("g").aggregate([("i64", "min"), ("i64", "max")]).sort_by("g")
        return pa.table([made["i64_min"], made["i64_max"]], schema=self.state_schema)

    def merge(self, older: pa.Table, newer: pa.Table) -> pa.Table:
        return pa.table(
            [pc.min_element_wise(older["low"], newer["low"]), pc.max_element_wise(older["high"], newer["high"])],
            schema=self.state_schema,
        )

    def result(self, state: pa.Table) -> pa.Array:
        return pc.subtract(state["high"], state["low"])


@given(batches_of("i64"))
@settings(max_examples=20, deadline=None)
def test_an_aggregator_of_ones_own(batches: list[list[dict[str, Any]]]) -> None:
    assert_equals_model("i64", batches, Spread("i64"), lambda values: max(values) - min(values) if values else None)


class Newest(agg.Aggregator):
    """The last value, kept and shown in whatever type the class declares."""

    def reduce(self, rows: pa.Table, group: pa.Array, num_groups: int) -> pa.Table:
        last = dict(zip(group.to_pylist(), rows.column(0).to_pylist(), strict=True))
        values = pa.array([last[number] for number in range(num_groups)], rows.schema.types[0])
        return pa.table({"v": values, "n": pa.array([1] * num_groups)})

    def merge(self, older: pa.Table, newer: pa.Table) -> pa.Table:
        assert older.schema == newer.schema
        return pa.table({"v": newer["v"], "n": pc.add(older["n"].fill_null(0), newer["n"])})

    def result(self, state: pa.Table) -> pa.Array:
        return state["v"]


@pytest.mark.parametrize(
    ("plain", "declared", "values"),
    [
        (pa.string(), pa.large_string(), ["a", None, "b"]),
        (pa.string(), pa.string_view(), ["a", None, "b"]),
        (pa.string(), pa.dictionary(pa.int32(), pa.string()), ["a", None, "b"]),
        (pa.list_(pa.string()), pa.large_list(pa.large_string()), [["a"], None, []]),
        (pa.list_(pa.int64()), pa.list_(pa.field("element", pa.int64(), nullable=False)), [[1], None, []]),
        (pa.struct({"a": pa.int64()}), pa.struct([pa.field("a", pa.int64(), nullable=False)]), [{"a": 1}] * 3),
    ],
    ids=str,
)
def test_an_aggregator_may_declare_any_type_that_is_kept_in_another_one(
    plain: pa.DataType, declared: pa.DataType, values: list[Any]
) -> None:
    schema = pa.schema([("k", pa.int64()), ("x", plain)])
    made = type("Made", (Newest,), {"state_schema": pa.schema([("v", declared), ("n", pa.int64())])})
    made.output_type = declared
    plan = agg.KeyedAggregation.bind(schema, ["k"], {"x": made("x")})
    table = StateTable(plan.state_schema, ALL, MAX_PARALLELISM)
    for batch in range(3):  # Each one touches keys that are there and keys that are not.
        rows = [{"k": batch + number, "x": value} for number, value in enumerate(values)]
        update = plan.update(table, pa.Table.from_pylist(rows, schema))
        assert {row["k"]: row["x"] for row in update.output.to_pylist()} == {row["k"]: row["x"] for row in rows}
        assert [column.type for column in update.changes.values] == plan.state_schema.values.types
        table = StateTable(plan.state_schema, ALL, MAX_PARALLELISM, [*table.runs, stored(plan, update.changes)])
    table, merged = merge_once(table, MergeSettings(runs_max=1))
    assert merged
    assert {row["k"] for batch in table.scan() for row in plan.results(batch).to_pylist()} == set(range(5))


def stored(plan: agg.KeyedAggregation, rows: StateRows) -> Run:
    """The rows as a run that has been written and read."""
    store = MemoryStore(uuid.uuid4().hex)
    handle = StoredRuns(store, plan.state_schema, MAX_PARALLELISM).write(run_of(rows), 0)
    return RunReader(store, plan.state_schema).open(handle)


class Raises(Spread):
    def merge(self, older: pa.Table, newer: pa.Table) -> pa.Table:
        raise KeyError("oops")


class WrongRows(Spread):
    def reduce(self, rows: pa.Table, group: pa.Array, num_groups: int) -> pa.Table:
        return super().reduce(rows, group, num_groups).slice(0, 0)


class WrongColumns(Spread):
    def reduce(self, rows: pa.Table, group: pa.Array, num_groups: int) -> pa.Table:
        return pa.table({"low": [1]})


class WrongType(Spread):
    def result(self, state: pa.Table) -> pa.Array:
        return state["high"].cast(pa.string())


class NoArrow(Spread):
    def result(self, state: pa.Table) -> pa.Array:
        return 5


@pytest.mark.parametrize(
    ("made", "error", "said"),
    [
        (Raises, UserCodeError, "merge raised KeyError"),
        (WrongRows, InvalidInputError, "expected 1 rows of int64, got 0"),
        (WrongColumns, InvalidInputError, r"columns \['low', 'high'\], got \['low'\]"),
        (WrongType, InvalidInputError, "result: expected 1 rows of int64, got 1 of string"),
        (NoArrow, InvalidInputError, "expected an Arrow array, got int"),
    ],
)
def test_an_aggregator_that_does_wrong_is_told_what(made: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        feed({"x": made("i64")}, [[{"k": 1, "i64": 1}], [{"k": 1, "i64": 2}]])
    assert f"x={made.__name__}(i64)" in str(caught.value)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"state_schema": None}, "state_schema: expected a pyarrow.Schema .*, got None"),
        ({"state_schema": [("low", pa.int64())]}, "state_schema: expected a pyarrow.Schema .*, got .*'low'"),
        ({"state_schema": pa.schema([])}, "state_schema: expected a pyarrow.Schema of one column or more"),
        ({"output_type": "long"}, "output_type: expected a pyarrow.DataType, got 'long'"),
    ],
)
def test_an_aggregator_that_does_not_say_what_it_keeps_is_refused_where_it_is_bound(declared: Any, said: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("i64", pa.int64())])
    made = type("Made", (Spread,), declared)
    with pytest.raises(InvalidInputError, match=f"x=Made: {said}"):
        agg.KeyedAggregation.bind(schema, ["k"], {"x": made("i64")})
    with pytest.raises(InvalidInputError, match=r"x=Spread: columns: expected column names, got \(5,\)"):
        agg.KeyedAggregation.bind(schema, ["k"], {"x": Spread(5)})


def test_intervals_of_months_and_days_have_no_order_and_are_values_all_the_same() -> None:
    schema = pa.schema([("k", pa.int64()), ("at", pa.int64()), ("i", pa.month_day_nano_interval())])
    with pytest.raises(InvalidInputError, match="which has no order"):
        agg.KeyedAggregation.bind(schema, ["k"], {"x": agg.min("i")})
    day, month = pa.MonthDayNano([0, 1, 0]), pa.MonthDayNano([1, 0, 0])
    rows = [{"k": 1, "at": 2, "i": month}, {"k": 1, "at": 1, "i": day}]
    assert feed({"x": agg.last("i", by="at"), "n": agg.count_distinct("i")}, [rows, rows], schema) == {
        1: {"x": month, "n": 2}
    }


class Forgetful(Spread):
    def __init__(self, column: str) -> None:
        self.column = column


class Unnamed(Spread):
    definition = None


class Unnameable(Spread):
    @property
    def definition(self) -> str:
        raise KeyError("bounds")


@pytest.mark.parametrize(
    ("made", "error", "said"),
    [
        (Forgetful, InvalidInputError, r"expected column names, got None; super\(\).__init__ takes them"),
        (Unnamed, InvalidInputError, "definition: expected a string, got None"),
        (Unnameable, UserCodeError, "definition raised KeyError: 'bounds'"),
    ],
)
def test_an_aggregator_that_forgets_its_columns_or_its_definition_is_told_so(
    made: Any, error: type[Exception], said: str
) -> None:
    schema = pa.schema([("k", pa.int64()), ("i64", pa.int64())])
    with pytest.raises(error, match=f"x={made.__name__}: .*{said}"):
        agg.KeyedAggregation.bind(schema, ["k"], {"x": made("i64")})
