"""Rows that are taken back: aggregations of what updates, and what updated rows take back, against plain models."""

from __future__ import annotations

import collections
import decimal
import statistics

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline.errors import ErrorKind, InternalError, InvalidInputError
from stateline.pipeline.event_time import WatermarkPlan, WindowPlan
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.state import aggregate as agg
from tests.unit.pipeline.steps import Steps, back

D = decimal.Decimal
SECOND = 1_000_000
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("n", pa.int64()),
        ("small", pa.int8()),
        ("name", pa.string()),
        ("large", pa.bool_()),
        ("price", pa.decimal128(10, 2)),
        ("share", pa.float64()),
        ("end", pa.timestamp("us")),
        ("checkpoint_id", pa.int64()),
    ]
)
EXACT = {
    "rows": agg.count(),
    "some": agg.count("n"),
    "total": agg.sum("n"),
    "cash": agg.sum("price"),
    "average": agg.mean("n"),
    "cost": agg.mean("price"),
    "spread": agg.variance("n"),
    "deviation": agg.stddev_pop("price"),
    "narrow": agg.var_pop("small"),
    "least": agg.min("n"),
    "most": agg.max("price"),
    "last": agg.max("name"),
    "kinds": agg.count_distinct("n"),
    "large": agg.count_if("large"),
    "large_total": agg.sum("n").where("large"),
    "large_most": agg.max("n").where("large"),
    "large_kinds": agg.count_distinct("n").where("large"),
}


def aggregated(rows):
    """What the aggregations are of the rows of one key, in plain Python."""
    n, price, small = ([row[name] for row in rows if row[name] is not None] for name in ("n", "price", "small"))
    large = [row["n"] for row in rows if row["large"] and row["n"] is not None]
    return {
        "rows": len(rows),
        "some": len(n),
        "total": sum(n) if n else None,
        "cash": sum(price) if price else None,
        "average": sum(n) / len(n) if n else None,
        "cost": (sum(price) / len(price)).quantize(D("1.000000"), decimal.ROUND_HALF_UP) if price else None,
        "spread": float(statistics.variance(n)) if len(n) > 1 else None,
        "deviation": float(statistics.pstdev(price)) if price else None,
        "narrow": float(statistics.pvariance(small)) if small else None,
        "least": min(n, default=None),
        "most": max(price, default=None),
        "last": max((row["name"] for row in rows if row["name"] is not None), default=None),
        "kinds": len(set(n)),
        "large": sum(row["large"] is True for row in rows),
        "large_total": sum(large) if large else None,
        "large_most": max(large, default=None),
        "large_kinds": len(set(large)),
    }


def close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), name


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(["a", "b", None]),
            "n": st.none() | st.sampled_from([0, 1, -(2**58), 2**58 - 1, 2**40 + 1, 10**9]),
            "small": st.none() | st.integers(-128, 127),
            "name": st.none() | st.text("abé", max_size=2),
            "large": st.none() | st.booleans(),
            "price": st.none() | st.decimals(D("-99999999.99"), D("99999999.99"), places=2),
        }
    ),
    max_size=6,
)


@settings(max_examples=80, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=5), st.data())
def test_every_exact_aggregate_equals_the_model_when_rows_are_taken_back(batches, data):
    steps = Steps(AggregateProgram.bind(SCHEMA, ["key"], EXACT, updates=True), SCHEMA)
    there, shown = [], {}
    for batch in batches:
        gone = data.draw(st.lists(st.sampled_from(range(len(there))), unique=True)) if there else []
        rows = [back(there[number]) for number in gone] + batch
        there = [row for number, row in enumerate(there) if number not in gone] + batch
        output, retracted = steps.run(rows)
        touched = {row["key"] for row in rows}
        assert {row["key"] for row in retracted} == touched & shown.keys()
        for row in retracted:
            assert shown.pop(row["key"]) == {name: row[name] for name in EXACT}, "what was shown, bit by bit"
        for row in output:
            shown[row["key"]] = {name: row[name] for name in EXACT}
        assert shown.keys() == {row["key"] for row in there}, "a key without rows is gone"
        for key, found in shown.items():
            close(found, aggregated([row for row in there if row["key"] == key]))
        assert len(steps.state("")) == len(shown)


def test_a_row_that_comes_and_goes_leaves_nothing():
    steps = Steps(AggregateProgram.bind(SCHEMA, ["key"], {"total": agg.sum("n")}, updates=True), SCHEMA)
    row = {"key": "a", "n": 3}
    assert steps.run([row, back(row)]) == ([], [])
    assert steps.state("") == []
    with pytest.raises(InternalError, match="more rows"):
        steps.run([back(row)])


def test_numbers_of_any_size_are_taken_back_to_the_last_digit():
    steps = Steps(
        AggregateProgram.bind(SCHEMA, ["key"], {"total": agg.sum("n"), "mean": agg.mean("n")}, updates=True), SCHEMA
    )
    low, high, one = ({"key": "a", "n": n} for n in (-(2**63), 2**63 - 1, 1))
    steps.run([low, high])
    ((row,), _) = steps.run([back(low), one, back(one)])
    assert (row["total"], row["mean"]) == (2**63 - 1, 2.0**63)
    with pytest.raises(InvalidInputError) as failure:
        steps.run([high])
    assert failure.value.kind is ErrorKind.ARITHMETIC_OVERFLOW


def test_what_updates_takes_back_what_it_had_shown_and_what_closes_takes_back_nothing():
    watermark = WatermarkPlan.of(SCHEMA, "end", "0 seconds")
    window = WindowPlan.of(SCHEMA, "end", "10s", None, "0s")
    rows = [{"key": "a", "end": 3 * SECOND, "window_start": 0}]
    for mode, shows, takes_back in (("update", 1, 1), ("append", 0, 0)):
        made = AggregateProgram.bind(
            SCHEMA, ["key"], {"n": agg.count()}, output_mode=mode, window=window, watermark=watermark
        )
        assert made.emits == {"update": "updates", "append": "appends"}[mode]
        assert made.event_time_columns == ("window_end",)
        steps = Steps(made, SCHEMA.append(pa.field("window_start", pa.timestamp("us"))))
        assert steps.run(rows) == ([{**KEY, "n": 1, "checkpoint_id": 0}][:shows], [])
        output, retracted = steps.run(rows)
        assert [row["n"] for row in output] == [2][:shows]
        assert retracted == [{**KEY, "n": 1, "checkpoint_id": 1}][:takes_back]
        assert steps.run(rows, retracts=False)[1] == []
        output, retracted = steps.run([], watermark_us=10 * SECOND)
        assert [row["n"] for row in output] == [] if mode == "update" else [3]
        assert retracted == []
    kept = WatermarkPlan.of(SCHEMA, "end", "0 seconds", "keep")
    reopened = AggregateProgram.bind(SCHEMA, ["key"], {"n": agg.count()}, window=window, watermark=kept)
    assert reopened.event_time_columns == (), "a window that begins anew is shown again"
    complete = AggregateProgram.bind(SCHEMA, ["key"], {"n": agg.count()}, output_mode="complete")
    assert (complete.emits, complete.event_time_columns) == ("unknown", ())


KEY = {
    "key": "a",
    "window_start": pa.scalar(0, pa.timestamp("us")).as_py(),
    "window_end": pa.scalar(10 * SECOND, pa.timestamp("us")).as_py(),
}


def test_behind_an_operator_a_key_with_the_watermark_closes_when_that_has_passed_it():
    watermark = WatermarkPlan.of(SCHEMA, "end", "0 seconds")
    bind = AggregateProgram.bind
    with pytest.raises(InvalidInputError, match="mode append"):
        bind(SCHEMA, ["end"], {"n": agg.count()}, output_mode="append", watermark=watermark)
    made = bind(SCHEMA, ["end"], {"n": agg.count()}, output_mode="append", watermark=watermark, behind=True)
    assert made.event_time_columns == ("end",)
    assert made.closes_windows
    steps = Steps(made, SCHEMA)
    assert steps.run([{"end": 5}, {"end": 5}, {"end": 6}, {"end": None}])[0] == []
    output, _ = steps.run([{"end": 5}], watermark_us=5)
    assert [(row["end"].microsecond, row["n"]) for row in output] == [(5, 3)]
    output, _ = steps.run([], watermark_us=9, late_watermark_us=5)
    assert [(row["end"].microsecond, row["n"]) for row in output] == [(6, 1)]
    assert [row["end"] for row in steps.state("")] == [None]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=6), min_size=1, max_size=6))
def test_a_second_step_over_the_rows_of_the_first_holds_their_sum_at_every_batch(batches):
    """Counts by key, then how many keys have a count: every row of the first step goes and comes in the second one."""
    first = Steps(AggregateProgram.bind(SCHEMA, ["key"], {"n": agg.count()}), SCHEMA)
    rows = pa.schema([("key", pa.string()), ("n", pa.int64()), ("checkpoint_id", pa.int64())])
    second = Steps(AggregateProgram.bind(rows, ["n"], {"keys": agg.count(), "sum": agg.sum("n")}, updates=True), rows)
    counts, shown = collections.Counter(), {}
    for batch in batches:
        counts.update(str(key) for key, _ in batch)
        output, retracted = first.run([{"key": str(key)} for key, _ in batch])
        output, retracted = second.run([back(row) for row in retracted] + output)
        for row in retracted:
            assert shown.pop(row["n"]) == (row["keys"], row["sum"])
        for row in output:
            shown[row["n"]] = row["keys"], row["sum"]
        expected = collections.Counter(counts.values())
        assert shown == {n: (keys, n * keys) for n, keys in expected.items()}


@pytest.mark.parametrize(
    ("made", "match"),
    [
        (agg.sum("share"), "rounded sum"),
        (agg.mean("share"), "rounded sum"),
        (agg.variance("share"), "rounded sum"),
        (agg.last("n", by="end"), "cannot be taken out"),
        (agg.collect_list("n", 3), "cannot be taken out"),
        (agg.approx_count_distinct("n"), "cannot be taken out"),
        (agg.sum("key"), "not numeric"),
        (agg.last("absent", by="n"), "absent"),
    ],
)
def test_what_cannot_be_taken_back_is_refused_with_the_reason(made, match):
    with pytest.raises(InvalidInputError, match=match):
        AggregateProgram.bind(SCHEMA, ["key"], {"x": made}, updates=True)
    if match == "cannot be taken out":
        AggregateProgram.bind(SCHEMA, ["key"], {"x": made})


def test_squares_that_no_decimal_holds_are_refused():
    for kind in (pa.decimal128(38, 2), pa.decimal128(30, 20)):
        with pytest.raises(InvalidInputError, match="squares"):
            AggregateProgram.bind(
                pa.schema([("key", pa.string()), ("x", kind)]), ["key"], {"x": agg.variance("x")}, updates=True
            )
