"""The best rows of each key, against a plain model: appended and taken back, over restarts and merges."""

from __future__ import annotations

import functools
import itertools
import math
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline.errors import InternalError, InvalidInputError
from stateline.pipeline.event_time import WatermarkPlan
from stateline.pipeline.operators.api import BatchContext
from stateline.pipeline.operators.top import TopProgram
from stateline.testing import OperatorHarness
from tests.unit.pipeline.engine import Engine
from tests.unit.pipeline.steps import Steps, back

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.float64()), ("name", pa.string()), ("at", pa.timestamp("us"))])
SECOND = 1_000_000
TTL = 5

VALUES = st.none() | st.sampled_from([0.0, -1.0, 2.5, math.nan, math.inf, 7.0])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(["a", "b", None]),
            "value": VALUES,
            "name": st.none() | st.sampled_from("xyz"),
            "at": st.just(None),
        }
    ),
    max_size=8,
)


def rank_of(value):
    """Where a value stands in SQL's ascending order, without nulls."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return (False, value)


def compare(one, other, order):
    """Less than 0 where ``one`` is better."""
    for column, ascending in order:
        left, right = one[column], other[column]
        if left is None or right is None:
            if (left is None) != (right is None):
                return 1 if left is None else -1
            continue
        if rank_of(left) != rank_of(right):
            return -1 if (rank_of(left) < rank_of(right)) == ascending else 1
    return 0


def best_of(rows, n, order, ties):
    """The best of rows that are in order of arrival, with their ranks."""
    rows = list(reversed(rows)) if ties == "last" else list(rows)
    ordered = sorted(rows, key=functools.cmp_to_key(lambda one, other: compare(one, other, order)))
    ranks = list(range(1, len(ordered) + 1))
    if ties == "all":
        for number in range(1, len(ordered)):
            if compare(ordered[number - 1], ordered[number], order) == 0:
                ranks[number] = ranks[number - 1]
    return [row | {"rank": rank} for row, rank in zip(ordered, ranks, strict=True) if rank <= n]


def shown(rows):
    return sorted(repr({name: row[name] for name in ("key", "value", "name", "rank")}) for row in rows)


def numbered(batches):
    """The batches with rows that differ: each has a time of its own."""
    numbers = itertools.count()
    return [[row | {"at": next(numbers)} for row in batch] for batch in batches]


class Model:
    def __init__(self, n, order, ties):
        self.rows, self.top, self.rules = {}, {}, (n, order, ties)

    def run(self, batch):
        """The best rows of each key whose best rows have changed, and those that it had before."""
        for row in batch:
            if row.get("weight", 1) > 0:
                self.rows.setdefault(row["key"], []).append(row)
            else:
                self.rows[row["key"]] = [other for other in self.rows[row["key"]] if other["at"] != row["at"]]
        now, before = [], []
        for key in {row["key"] for row in batch}:
            best = best_of(self.rows[key], *self.rules)
            if repr(best) != repr(self.top.get(key, [])):
                before += self.top.get(key, [])
                now += best
                self.top[key] = best
        return shown(now), shown(before)


ORDERS = st.sampled_from(
    [
        (("value", False),),
        (("value", True),),
        (("value", False), ("name", True)),
        (("name", True), ("value", False)),
    ]
)


def program(n, order, ties, **more):
    columns, directions = zip(*order, strict=True)
    return TopProgram.bind(SCHEMA, ["key"], n, columns, ascending=directions, ties=ties, **more)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(ROWS, min_size=1, max_size=5),
    st.integers(1, 3),
    ORDERS,
    st.sampled_from(["first", "last", "all"]),
    st.lists(st.sampled_from([1, 2, 3]), min_size=5, max_size=5),
)
def test_rows_that_stay_equal_the_model_over_restarts(batches, n, order, ties, parallelisms):
    made, model, root = program(n, order, ties), Model(n, order, ties), None
    for batch, parallelism in zip(numbered(batches), parallelisms, strict=False):
        engine = Engine(made, SCHEMA, root=root, parallelism=parallelism)
        root = engine.root
        record = engine.run(batch)
        output = engine.output.get(record.checkpoint_id, [])
        assert shown(output) == model.run(batch)[0]
        assert {row["checkpoint_id"] for row in output} <= {record.checkpoint_id}
        kept = sum(map(len, model.top.values()))
        assert len(engine.state()) == kept, "no other row is kept"


def row(key, value, name=None, at=None):
    return {"key": key, "value": value, "name": name, "at": at}


def ranks(*rows):
    return [row | {"rank": number + 1} for number, row in enumerate(rows)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(ROWS, min_size=1, max_size=5),
    st.integers(1, 3),
    ORDERS,
    st.sampled_from(["first", "last", "all"]),
    st.data(),
)
def test_rows_that_are_taken_back_equal_the_model(batches, n, order, ties, data):
    steps, model, there = Steps(program(n, order, ties, updates=True), SCHEMA), Model(n, order, ties), []
    for batch in numbered(batches):
        gone = data.draw(st.lists(st.sampled_from(range(len(there))), unique=True)) if there else []
        taken = [back(there[number]) for number in gone]
        there = [row for number, row in enumerate(there) if number not in gone] + batch
        assert tuple(map(shown, steps.run(taken + batch))) == model.run(taken + batch)
    assert len(steps.state("rows")) == len(there)


def test_equal_rows_that_may_be_taken_back_count_one_by_one():
    steps = Steps(TopProgram.bind(SCHEMA, ["key"], 2, "value", updates=True), SCHEMA)
    one, other = row("a", 5.0, "x"), row("a", 1.0, "y")
    assert shown(steps.run([one, one, other])[0]) == shown(ranks(one, one))
    assert shown(steps.run([back(one)])[0]) == shown(ranks(one, other))
    assert steps.run([one, back(one)]) == ([], []), "nothing has changed"
    now, before = steps.run([back(one), back(other)])
    assert now == []
    assert shown(before) == shown(ranks(one, other))
    assert steps.state("rows") == []
    with pytest.raises(InternalError, match="taken back"):
        steps.run([back(one)])


@settings(max_examples=30, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=5), st.integers(1, 3), ORDERS, st.sampled_from(["first", "last", "all"]))
def test_what_was_shown_is_what_is_retracted(batches, n, order, ties):
    steps, model = Steps(program(n, order, ties), SCHEMA), Model(n, order, ties)
    for batch in numbered(batches):
        assert tuple(map(shown, steps.run(batch))) == model.run(batch)


def test_an_equal_row_that_comes_later_takes_the_place_only_where_the_last_one_is_better():
    for ties, names in (("first", ["x"]), ("last", ["z"]), ("all", ["x", "y", "z"])):
        engine = Engine(TopProgram.bind(SCHEMA, ["key"], 1, "value", ties=ties), SCHEMA)
        outputs = [engine.run_batch([row("a", 1.0, name)]) for name in "xyz"]
        assert sorted(one["name"] for one in engine.state()) == names
        assert [len(output) for output in outputs] == {"first": [1, 0, 0], "last": [1, 1, 1], "all": [1, 2, 3]}[ties]
        assert {one["rank"] for output in outputs for one in output} == {1}


def test_a_key_goes_when_the_watermark_has_passed_its_time():
    watermark = WatermarkPlan.of(SCHEMA, "at", "0 seconds")
    made = TopProgram.bind(SCHEMA, ["at", "key"], 1, "value", watermark=watermark)
    assert made.readings[0].late_by == "at"
    assert made.event_time_columns == ("at",)
    steps = Steps(made, SCHEMA)
    steps.run([row("a", 1.0, at=1), row("a", 1.0, at=9), row("b", 1.0)], watermark_us=5)
    rows = next(iter(steps.tables["rows"].runs)).batches[0]
    gone = made.process([], steps.tables, BatchContext(9, 0.0, watermark_us=5)).expired["rows"](rows)
    times = rows.keys.columns[0].to_pylist()
    assert {time and time.microsecond: bool(over) for time, over in zip(times, gone, strict=True)} == {
        1: True,
        9: False,
        None: False,
    }
    again = steps.run([row("a", 0.5, at=1), row("a", 0.5, at=9)], watermark_us=7, late_watermark_us=5)
    assert shown(again[0]) == shown(ranks(row("a", 0.5, at=1))), "a late row that is kept begins its key anew"
    kept = WatermarkPlan.of(SCHEMA, "at", "0 seconds", "keep")
    assert TopProgram.bind(SCHEMA, ["at"], 1, "value", watermark=kept).readings[0].late_by is None
    elsewhere = TopProgram.bind(SCHEMA, ["key"], 1, "value", watermark=watermark)
    assert elsewhere.readings[0].late_by is None
    assert elsewhere.event_time_columns == ()


def test_closed_keys_are_dropped_where_runs_are_merged():
    watermark = WatermarkPlan.of(SCHEMA, "at", "0 seconds")
    made = TopProgram.bind(SCHEMA, ["at"], 5, "value", watermark=watermark)
    engine = Engine(made, SCHEMA, watermark=watermark, parallelism=1)
    for second in range(60):
        engine.run_batch([row(None, float(number), at=second * SECOND) for number in range(9)])
    assert len(engine.state()) < 60 * 5 / 3


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"n": 0}, "n: 0 is not valid"),
        ({"by": "price"}, "price"),
        ({"by": "key"}, "part of the key"),
        ({"by": []}, "must name a column"),
        ({"by": ["value", "name"], "ascending": [True]}, "one for each"),
        ({"by": "list"}, "has no order"),
        ({"ties": "none"}, "ties"),
        ({"columns": ["price"]}, "price"),
        ({"schema": SCHEMA.append(pa.field("rank", pa.int32()))}, "rank"),
        ({"schema": SCHEMA.append(pa.field("checkpoint_id", pa.int64()))}, "checkpoint_id"),
        ({"updates": True}, "cannot be compared"),
        ({"updates": True, "ttl_ms": 1}, "could not be taken back"),
        ({"schema": SCHEMA.append(pa.field("expires_at_ms", pa.int64())), "ttl_ms": 1}, "time to live needs itself"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(arguments, match):
    schema = arguments.pop("schema", SCHEMA).append(pa.field("list", pa.list_(pa.int64())))
    with pytest.raises(InvalidInputError, match=match):
        TopProgram.bind(schema, ["key"], arguments.pop("n", 2), arguments.pop("by", "value"), **arguments)


def test_columns_that_are_left_out_are_neither_kept_nor_shown():
    schema = SCHEMA.append(pa.field("checkpoint_id", pa.int64())).append(pa.field("list", pa.list_(pa.int64())))
    made = TopProgram.bind(schema, ["key"], 2, "value", columns=["name"], updates=True)
    assert made.input_columns == ("key", "name", "value")
    assert made.output_schema.names == ["key", "name", "value", "rank", "checkpoint_id"]
    whole = TopProgram.bind(schema, ["key"], 2, "value", columns=["list"])
    assert whole.output_schema.names == ["key", "list", "value", "rank", "checkpoint_id"]


def test_only_rows_that_came_or_went_are_written():
    engine = Engine(TopProgram.bind(SCHEMA, ["key"], 100, "value"), SCHEMA, parallelism=1)
    engine.run_batch([row("a", float(number)) for number in range(100)])
    before = engine.metrics["state_rows"]
    assert len(engine.run_batch([row("a", 99.5)])) == 100
    assert engine.metrics["state_rows"] - before == 2, "one row and one tombstone"
    assert engine.run_batch([row("a", 1.0)]) == []
    assert engine.metrics["state_rows"] - before == 2


def test_a_big_batch_equals_the_model():
    draw = np.random.default_rng(4)
    engine = Engine(TopProgram.bind(SCHEMA, ["key"], 3, "value"), SCHEMA)
    model = Model(3, (("value", False),), "first")
    for _ in range(3):
        batch = [row(str(key), float(value)) for key, value in draw.integers(0, 200, (3000, 2))]
        assert shown(engine.run_batch(batch)) == model.run(batch)[0]


def by_value(n=2, ties="first", ttl=TTL):
    return program(n, (("value", False),), ties, ttl_ms=None if ttl is None else ttl * 1000)


def contents(rows):
    return sorted(repr((row["key"], row["value"], row["name"])) for row in rows)


@pytest.mark.parametrize("ties", ["first", "last", "all"])
@pytest.mark.parametrize("seed", range(4))
def test_the_best_rows_of_a_key_that_nobody_touched_for_a_while_are_forgotten(ties, seed):
    draw, names = random.Random(f"{ties} {seed}"), itertools.count()
    ours, model, ends = OperatorHarness(by_value(ties=ties), SCHEMA), Model(2, (("value", False),), ties), {}
    for number in range(60):
        ours.clock.advance(draw.choice([0, 1, 2, 4]))
        if draw.random() < 0.3:
            ours.restart(parallelism=draw.choice([1, 2, 3]))
        now = ours.clock.now()
        for key in [key for key, end in ends.items() if end <= now]:
            del ends[key], model.rows[key], model.top[key]
        batch = [
            row(draw.choice("abcd"), draw.choice([None, 1.0, 2.0, 3.0, math.nan]), str(at), at)
            for at in itertools.islice(names, draw.choice([0, 1, 3]))
        ]
        ends |= {one["key"]: now + TTL for one in batch}
        assert shown(ours.run_batch(batch)) == model.run(batch)[0], number
        assert contents(ours.state()) == contents(one for best in model.top.values() for one in best), number


def test_a_row_that_is_not_among_the_best_puts_the_end_of_its_key_off():
    ours = OperatorHarness(by_value(), SCHEMA)
    ours.run_batch([row("a", 9.0, "x"), row("a", 8.0, "y"), row("b", 9.0)])
    for _ in range(3):
        ours.clock.advance(TTL - 1)
        assert ours.run_batch([row("a", 1.0)]) == []
    assert contents(ours.state()) == contents([row("a", 9.0, "x"), row("a", 8.0, "y")])
    ours.clock.advance(TTL)
    assert shown(ours.run_batch([row("a", 1.0)])) == shown(ranks(row("a", 1.0)))


def test_forgotten_keys_are_left_out_where_runs_are_merged():
    ours, largest = OperatorHarness(by_value(), SCHEMA), 0
    for batch in range(60):
        ours.run_batch([row(f"{batch} {number}", 1.0) for number in range(100)])
        ours.clock.advance(1)
        largest = max(largest, ours.metrics["state_rows"])
    assert 100 * TTL <= largest <= 100 * 24


def test_a_key_goes_by_the_clock_or_by_the_watermark_whichever_comes_first():
    watermark = WatermarkPlan.of(SCHEMA, "at", "0 seconds", "keep")
    made = TopProgram.bind(SCHEMA, ["key", "at"], 1, "value", watermark=watermark, ttl_ms=TTL * 1000)
    ours = OperatorHarness(made, SCHEMA, watermark=watermark, parallelism=1)
    ours.run_batch([row("a", 9.0, at=1 * SECOND), row("b", 9.0, at=99 * SECOND)])
    ours.run_batch([])
    assert [one["value"] for one in ours.run_batch([row("a", 1.0, at=1 * SECOND)])] == [1.0], "closed by the watermark"
    assert ours.run_batch([row("b", 1.0, at=99 * SECOND + 1)])[0]["value"] == 1.0
    assert ours.run_batch([row("b", 1.0, at=99 * SECOND + 1)]) == []
    ours.clock.advance(TTL)
    assert [one["value"] for one in ours.run_batch([row("b", 0.5, at=99 * SECOND + 1)])] == [0.5], "closed by the clock"


def test_a_ttl_of_the_best_rows_may_be_added_and_not_taken_away():
    ours = OperatorHarness(by_value(ttl=None), SCHEMA)
    ours.run_batch([row("a", 9.0), row("a", 8.0), row("b", 9.0)])
    ours = OperatorHarness(by_value(), SCHEMA, root=ours.root, environment=ours.environment)
    assert ours.run_batch([row("a", 1.0)]) == []
    ours.clock.advance(1000)
    found = ours.run_batch([row("a", 2.0), row("b", 1.0)])
    assert shown(found) == shown([*ranks(row("a", 2.0)), *ranks(row("b", 9.0), row("b", 1.0))])
    with pytest.raises(InvalidInputError, match="cannot be taken away again"):
        OperatorHarness(by_value(ttl=None), SCHEMA, root=ours.root, environment=ours.environment).run_batch([])


def test_nobody_can_take_back_the_best_rows_of_a_key_that_was_forgotten():
    assert by_value(ttl=None).emits == "updates"
    assert by_value().emits == "unknown"
    assert "time to live" in by_value().removals_unknown
