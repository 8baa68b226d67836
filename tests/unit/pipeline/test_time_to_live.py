"""Keys that nobody touched for a while are forgotten: aggregations and functions over Arrow tables, against models."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from stateline.errors import InvalidInputError
from stateline.pipeline.event_time import WatermarkPlan, WindowPlan
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.pipeline.operators.arrow_function import ArrowFunctionProgram
from stateline.state import aggregate as agg
from stateline.testing import OperatorHarness

SECOND = 1_000_000
TTL = 5
SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64()), ("at", pa.timestamp("us"))])
WINDOWS = WindowPlan.of(SCHEMA, "at", "10s", None, "0s")
WATERMARK = WatermarkPlan.of(SCHEMA, "at", "1000 seconds")
STATE = pa.schema([("total", pa.int64())])
OUTPUT = pa.schema([("key", pa.string()), ("total", pa.int64())])
WANTED = {"n": agg.count(), "total": agg.sum("value"), "least": agg.min("value"), "all": agg.collect_list("value", 100)}


def program(mode="update", *, ttl=TTL, wanted=WANTED, **options):
    ttl_ms = None if ttl is None else ttl * 1000
    return AggregateProgram.bind(SCHEMA, ["key"], wanted, output_mode=mode, ttl_ms=ttl_ms, **options)


def apply(function, *, ttl=TTL):
    ttl_ms = None if ttl is None else ttl * 1000
    return ArrowFunctionProgram.bind(SCHEMA, ["key"], function, STATE, OUTPUT, ttl_ms=ttl_ms)


def harness(program, **more):
    return OperatorHarness(program, SCHEMA, **more)


def after(earlier, program, **more):
    """Another program goes on from where a harness is."""
    return harness(program, root=earlier.root, environment=earlier.environment, **more)


def rows(*keys, at=0, value=1):
    return [{"key": key, "value": value, "at": at * SECOND} for key in keys]


def counts(output):
    return {row["key"]: row["n"] for row in output}


@pytest.mark.parametrize("mode", ["update", "complete"])
@pytest.mark.parametrize("windows", [None, WINDOWS], ids=["plain", "windows"])
@pytest.mark.parametrize("seed", range(3))
def test_aggregations_begin_anew_for_a_key_that_was_forgotten(mode, windows, seed):
    draw = random.Random(f"{mode} {seed}")
    ours = harness(program(mode, window=windows))
    kept: dict = {}
    for number in range(40):
        ours.clock.advance(draw.choice([0, 1, 2, 6]))
        if draw.random() < 0.3:
            ours.restart(parallelism=draw.choice([1, 2, 3]))
        now = ours.clock.now()
        kept = {key: (values, ends) for key, (values, ends) in kept.items() if ends > now}
        batch = [
            {"key": draw.choice(["a", "b", "c", None]), "value": draw.randrange(10), "at": draw.randrange(20) * SECOND}
            for _ in range(draw.choice([0, 1, 4]))
        ]
        touched = set()
        for row in batch:
            key = row["key"], None if windows is None else row["at"] // SECOND // 10 * 10
            kept[key] = [*kept.get(key, ([], 0))[0], row["value"]], now + TTL
            touched.add(key)
        expected = {key: values for key, (values, _) in kept.items() if mode == "complete" or key in touched}
        found = {}
        for row in ours.run_batch(batch):
            start = row.get("window_start")
            found[row["key"], None if start is None else start.second] = row
        assert found.keys() == expected.keys(), number
        for key, values in expected.items():
            assert (found[key]["n"], found[key]["total"], found[key]["least"]) == (
                len(values),
                sum(values),
                min(values),
            )
            assert found[key]["all"] == values
    assert {row["key"] for row in ours.state()} == {key for key, _ in kept}


def totals(events, state):
    sums = events.group_by("key_index").aggregate([("value", "sum")]).sort_by("key_index")["value_sum"]
    state = state.set_column(1, "total", pc.add(state["total"].fill_null(0), sums))
    return state, state


def test_a_function_sees_no_state_of_a_key_that_was_forgotten_nor_when_that_is():
    seen = []

    def look(events, state):
        seen.append(state)
        return totals(events, state)

    ours = harness(apply(look), parallelism=1)
    ours.run_batch(rows("a", "b"))
    ours.clock.advance(TTL - 1)
    ours.run_batch(rows("a"))
    ours.clock.advance(1)
    found = ours.run_batch(rows("a", "b"))
    assert {row["key"]: row["total"] for row in found} == {"a": 3, "b": 1}
    assert [sorted(table.schema.names) for table in seen] == [["key", "total"]] * 3


def test_an_event_keeps_a_key_whose_state_the_function_leaves_as_it_is_and_a_deleted_one_stays_deleted():
    def once(events, state):
        stored = state["total"].is_valid()
        ending = pc.is_in(state["key"], pa.array(["gone"]))
        new = state.filter(pc.invert(stored)).set_column(1, "total", pa.array([7] * pc.sum(pc.invert(stored)).as_py()))
        return state, new if new.num_rows else None, state.filter(pc.and_(stored, ending)).select(["key"])

    ours = harness(apply(once), parallelism=2)
    ours.run_batch(rows("a", "gone"))
    for _ in range(4):
        ours.clock.advance(TTL - 1)
        ours.restart(parallelism=3)
        found = {row["key"]: row["total"] for row in ours.run_batch(rows("a"))}
        assert found == {"a": 7}
    ours.run_batch(rows("gone"))
    ours.run_batch(rows("gone"))
    assert {row["key"] for row in ours.state()} == {"a"}
    ours.clock.advance(TTL)
    assert [row["total"] for row in ours.run_batch(rows("a"))] == [None]


def test_state_does_not_grow_without_bound():
    ours = harness(program(wanted={"n": agg.count()}))
    largest = 0
    for batch in range(60):
        ours.run_batch(rows(*(f"{batch} {number}" for number in range(300))))
        ours.clock.advance(1)
        largest = max(largest, ours.metrics["state_rows"])
    assert 300 * TTL <= largest <= 300 * 24


def test_a_ttl_may_be_added_and_changed_and_what_is_stored_already_ends_once_it_is_touched():
    wanted = {"n": agg.count()}
    ours = harness(program(wanted=wanted, ttl=None))
    ours.run_batch(rows("a", "b"))
    ours = after(ours, program(wanted=wanted))
    assert counts(ours.run_batch(rows("a"))) == {"a": 2}
    ours.clock.advance(1000)
    assert counts(ours.run_batch(rows("a", "b"))) == {"a": 1, "b": 2}
    ours = after(ours, program(wanted=wanted, ttl=100))
    ours.clock.advance(TTL - 1)
    assert counts(ours.run_batch(rows("a"))) == {"a": 2}
    ours.clock.advance(99)
    assert counts(ours.run_batch(rows("a", "b"))) == {"a": 3, "b": 1}, "b had the shorter ttl when it was touched last"


@pytest.mark.parametrize("make", [program, lambda **options: apply(totals, **options)])
def test_a_ttl_cannot_be_taken_away(make):
    ours = harness(make())
    ours.run_batch(rows("a"))
    with pytest.raises(InvalidInputError, match="cannot be taken away again"):
        after(ours, make(ttl=None)).run_batch([])
    after(ours, make(ttl=10**6)).run_batch([])


def test_other_changes_are_judged_as_without_a_ttl():
    ours = harness(program(wanted={"n": agg.count()}, ttl=None))
    ours.run_batch(rows("a"))
    both = {"n": agg.count(), "total": agg.sum("value")}
    ours = after(ours, program(wanted=both))
    (row,) = ours.run_batch(rows("a", value=5))
    assert (row["n"], row["total"]) == (2, 5)
    with pytest.raises(InvalidInputError, match="cannot change its meaning"):
        after(ours, program(wanted={"n": agg.sum("value")})).run_batch([])


def test_the_definition_says_that_there_is_one_and_not_how_long():
    assert json.loads(program().definition)["ttl"] is True
    assert program().definition == program(ttl=9).definition
    assert "ttl" not in json.loads(program(ttl=None).definition)


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_nobody_can_take_a_row_back_whose_key_was_forgotten_without_a_trace(mode):
    assert program(mode).emits == "unknown"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: program("append", window=WINDOWS, watermark=WATERMARK), "would never come"),
        (lambda: program(wanted={"expires_at_ms": agg.count()}), "time to live needs itself"),
        (
            lambda: ArrowFunctionProgram.bind(
                SCHEMA, ["key"], totals, pa.schema([("expires_at_ms", pa.int64())]), OUTPUT, ttl_ms=1
            ),
            "time to live needs itself",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()
