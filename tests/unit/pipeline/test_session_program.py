"""Sessions against a model in plain Python: random streams, stacks of runs, colliding hashes, restarts."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from stateline.errors import InvalidInputError
from stateline.key_groups import hash_columns
from stateline.pipeline.event_time import SessionPlan, WatermarkPlan, WindowPlan
from stateline.pipeline.graph import Graph, Input, OperatorPlan, Source
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.pipeline.operators.sessions import SessionProgram
from stateline.state import keys
from stateline.state.aggregate import Aggregator, count, first, sum
from stateline.state.merge import MergeSettings
from stateline.testing import GraphHarness, KeyedStreamHarness
from tests.unit.pipeline.engine import Engine
from tests.unit.pipeline.session_model import TEXT, Driver, Model, micros, program_of, schema_of, shown

GAP_US = 5_000
MERGING = [None, MergeSettings(), MergeSettings(tier_runs=2, small_rows=0), MergeSettings(runs_max=1, small_rows=0)]
LAST_SLOT = (1 << 32) - (1 << 30)
"""From here on, the order of slots is not that of their lower halves."""
SECOND = 1_000_000


def streams(seed, *, batches=12, rows=14, names="ab", origin=0, pace=4_000, spread=12_000):
    """Batches of rows that move on in time, some of them early, late, or without a time."""
    dice = random.Random(seed)
    value = 0
    for number in range(batches):
        batch = []
        for _ in range(dice.choice([0, 1, rows, rows])):
            at = origin + number * pace + dice.randint(-spread, spread) // 1000 * 1000
            batch.append((dice.choice(names), at if dice.random() < 0.95 else None, value))
            value += 1
        yield batch, dice


def run(stream, mode, watermark, gap_us=GAP_US, key=TEXT):
    """Runs both; the number of rows that came out."""
    model, driver = Model(mode, gap_us, watermark), Driver(mode, gap_us, watermark, key)
    rows = 0
    for batch, dice in stream:
        ours = driver.run(batch, model, dice.choice(MERGING), dice.choice([None, dice]))
        theirs = model.run(batch)
        assert ours == theirs
        assert driver.open_sessions(model) == collections.Counter(model.open_sessions())
        rows += len(theirs[0])
    return rows


def watermark_of(delay_us, late_data="drop"):
    return WatermarkPlan(column="at", delay_us=delay_us, late_data=late_data)


@pytest.mark.parametrize("mode", ["append", "update", "complete"])
@pytest.mark.parametrize("late_data", ["drop", "keep"])
def test_every_mode_equals_the_model(mode, late_data):
    sessions = [run(streams(seed), mode, watermark_of(9_000, late_data), seed % 4 * 1500 + 1) for seed in range(16)]
    assert np.sum(sessions) > 250


def test_sessions_without_a_watermark_stay_for_ever():
    for seed in range(8):
        run(streams(seed, spread=200_000, rows=40), "update", None)


@pytest.fixture
def few_hashes(monkeypatch):
    """Two upper halves for all keys."""

    def weak(columns):
        return (hash_columns(columns) & np.uint64(1)) << np.uint64(60)

    monkeypatch.setattr(keys, "hash_columns", weak)


@pytest.mark.parametrize("mode", ["append", "update"])
def test_keys_whose_hashes_are_equal_have_sessions_of_their_own(mode, few_hashes):
    for seed in range(10):
        run(streams(seed, names="abcdefgh", spread=40_000, rows=30), mode, watermark_of(20_000))


@pytest.mark.parametrize("mode", ["append", "update"])
def test_slots_whose_lower_halves_begin_anew_come_after_those_before(mode):
    for seed in range(8):
        run(streams(seed, origin=LAST_SLOT * GAP_US, spread=40_000, rows=30), mode, watermark_of(60_000))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), ["a", "", None, "long enough to be no record"]),
        (pa.int32(), [1, -1, None, 2**31 - 1]),
        (pa.float64(), [0.5, None, float("inf")]),
        (pa.bool_(), [True, False, None]),
        (pa.binary(), [b"a", b"", None]),
        (pa.date32(), [dt.date(2024, 1, 1), None, dt.date(1900, 1, 1)]),
        (pa.decimal128(20, 2), [decimal.Decimal("1.00"), None, decimal.Decimal("-7.25")]),
    ],
    ids=str,
)
def test_keys_of_every_type_have_sessions(kind, values):
    for seed in range(3):
        run(streams(seed, names=values, rows=20), "update", watermark_of(20_000), key=kind)


@pytest.mark.parametrize("mode", ["append", "update"])
@pytest.mark.parametrize("seed", range(3))
def test_restarts_at_other_parallelisms_change_nothing(mode, seed):
    watermark, model, root = watermark_of(9_000), Model(mode, GAP_US, watermark_of(9_000)), None
    schema = schema_of(TEXT)
    for batch, dice in streams(seed, names="abcdefg", rows=40):
        program = program_of(schema, mode, GAP_US, watermark)
        engine = Engine(program, schema, root=root, watermark=watermark, parallelism=dice.choice([1, 2, 3, 8]))
        record = engine.run([dict(zip(schema.names, row, strict=True)) for row in batch])
        output = engine.output.get(record.checkpoint_id, [])
        assert shown(output) == model.run(batch)[0]
        assert all(row["checkpoint_id"] == record.checkpoint_id for row in output)
        assert engine.metrics["rows_late"] == model.late
        assert engine.metrics["rows"] == len(batch)
        root = engine.root
    settled = engine.settle()
    if mode == "append" and model.applied != model.current:
        assert shown(engine.output.get(settled.checkpoint_id, [])) == model.run([])[0]


def harness_of(mode="append", watermark=("at", "10 seconds"), key="key", **aggregations):
    schema = pa.schema([("key", TEXT), ("other", pa.int64()), ("value", pa.int64()), ("at", pa.timestamp("us"))])
    stream = KeyedStreamHarness(schema, key, watermark=watermark)
    return stream.sessions("at", "5 seconds").aggregate(mode, **(aggregations or {"n": count()}))


def rows(*pairs):
    return [{"key": key, "other": 1, "value": 1, "at": int(at * SECOND)} for key, at in pairs]


def seconds(output):
    epoch = dt.datetime(1970, 1, 1)
    second = dt.timedelta(seconds=1)
    return sorted(
        (row["key"], (row["window_start"] - epoch) / second, (row["window_end"] - epoch) / second, row["n"])
        for row in output
    )


def test_a_row_between_two_sessions_joins_them_and_a_row_behind_one_touches_it():
    harness = harness_of()
    harness.run_batch(rows(("u", 100), ("u", 104), ("u", 112)))
    harness.run_batch(rows(("u", 108)))
    harness.run_batch(rows(("u", 117)))
    assert harness.run_batch(rows(("v", 140))) == []
    assert seconds(harness.advance_time()) == [("u", 100, 122, 5)]
    harness.run_batch(rows(("u", 123), ("u", 126)))
    assert harness.metrics["rows_late"] == 1
    harness.run_batch(rows(("v", 160)))
    assert seconds(harness.advance_time()) == [("u", 126, 131, 1), ("v", 140, 145, 1)]


def test_an_update_shows_a_session_with_all_that_it_has_absorbed():
    harness = harness_of("update")
    assert seconds(harness.run_batch(rows(("u", 100), ("u", 110), ("w", 100)))) == [
        ("u", 100, 105, 1),
        ("u", 110, 115, 1),
        ("w", 100, 105, 1),
    ]
    assert seconds(harness.run_batch(rows(("u", 105)))) == [("u", 100, 115, 3)]
    assert sorted((row["key"], row["n"]) for row in harness.state()) == [("u", 3), ("w", 1)]


def test_sessions_of_several_key_columns_are_kept_apart():
    harness = harness_of("update", key=["key", "other"])
    batch = [*rows(("u", 100), ("u", 101)), {"key": "u", "other": None, "value": 1, "at": 102 * SECOND}]
    found = harness.run_batch(batch)
    assert sorted((row["other"] or 0, row["n"]) for row in found) == [(0, 1), (1, 2)]


def test_only_the_sessions_that_a_batch_touches_are_written():
    driver, model = Driver("update", GAP_US, None), Model("update", GAP_US, None)
    driver.run([("hot", number * 3 * GAP_US, number) for number in range(2_000)], model, MergeSettings())
    before = driver.table
    driver.run([("hot", 300 * GAP_US, 0), ("hot", 300 * GAP_US + 1, 1), ("hot", 7_000 * GAP_US, 2)], model)
    (added,) = driver.table.runs[len(before.runs) :]
    assert len(added) == 2
    assert len(driver.open_sessions(model)) == 2_001


class Longest(Aggregator):
    """The longest text; its state is one word for each row, which no other function keeps."""

    state_schema = pa.schema([("words", pa.list_(pa.string()))])
    output_type = pa.string()

    def reduce(self, rows, group, num_groups):
        words = [[] for _ in range(num_groups)]
        for number, word in zip(group.to_pylist(), rows["key"].to_pylist(), strict=True):
            words[number].append(word)
        return pa.table([pa.array(words, pa.list_(pa.string()))], schema=self.state_schema)

    def merge(self, older, newer):
        pairs = zip(older["words"].to_pylist(), newer["words"].to_pylist(), strict=True)
        return pa.table(
            [pa.array([(old or []) + new for old, new in pairs], pa.list_(pa.string()))], schema=self.state_schema
        )

    def result(self, state):
        return pc.list_value_length(state["words"]).cast(pa.string())


def test_an_aggregation_that_was_added_later_has_no_part_in_what_was_stored_before():
    schema = pa.schema([("key", TEXT), ("at", pa.timestamp("us"))])
    stream = KeyedStreamHarness(schema, "key").sessions("at", "5 seconds")
    stream.aggregate(n=count()).run_batch([{"key": "u", "at": at * SECOND} for at in (0, 10, 20)])
    harness = stream.aggregate(n=count(), words=Longest("key"), start=first("at", by="at"))
    assert [row["words"] for row in harness.run_batch([{"key": "u", "at": 11 * SECOND}])] == ["1"]
    (joined,) = harness.run_batch([{"key": "u", "at": at * SECOND} for at in (5, 16)])
    assert (joined["n"], joined["words"]) == (6, "3")
    assert joined["start"] == dt.datetime(1970, 1, 1) + dt.timedelta(seconds=5), "of the rows since it was added"


@pytest.mark.parametrize("seed", range(3))
def test_an_operator_behind_sessions_works_with_their_ends(seed):
    watermark, schema = watermark_of(9_000), schema_of(TEXT)
    sessions = program_of(schema, "append", GAP_US, watermark)
    assert (sessions.emits, sessions.event_time_columns) == ("appends", ("window_end",))
    starts = sessions.output_schema.get_field_index("window_start")
    counted = AggregateProgram.bind(
        sessions.output_schema.remove(starts),
        ["key"],
        {"sessions": count(), "rows": sum("n")},
        output_mode="append",
        window=WindowPlan(column="window_end", size_us=20_000, slide_us=20_000, shift_us=-1),
        watermark=WatermarkPlan(column="window_end", delay_us=0),
    )
    operators = (
        OperatorPlan.of("sessions", sessions, (Source("input", "sessions"),)),
        OperatorPlan.of("counted", counted, (Source("operator", "sessions"),)),
    )
    graph = Graph((Input(name="sessions", watermark=watermark),), operators)
    harness = GraphHarness(graph, {"sessions": sessions, "counted": counted}, {"sessions": schema})
    model, expected, found = Model("append", GAP_US, watermark), collections.Counter(), collections.Counter()
    batches = [batch for batch, _ in streams(seed, rows=40)]
    for batch in [*batches, [("end", 10_000_000, 0)], [], []]:
        output = harness.run_batch({"sessions": [dict(zip(schema.names, row, strict=True)) for row in batch]})
        closed = model.run(batch)[0]
        assert shown(output.get("sessions", [])) == closed
        for key, _, end, values in closed:
            start = (end - 1) // 20_000 * 20_000
            expected[key, start, "sessions"] += 1
            expected[key, start, "rows"] += len(values)
        for row in output.get("counted", []):
            for name in ("sessions", "rows"):
                assert (row["key"], micros(row["window_start"]), name) not in found, "a window closes once"
                found[row["key"], micros(row["window_start"]), name] = row[name]
    assert found == expected


def bind(mode="update", key="key", gap="5 seconds", watermark=None, updates=False, **aggregations):
    schema = pa.schema([("key", TEXT), ("window_start", TEXT), ("value", pa.int64()), ("at", pa.timestamp("us"))])
    return SessionProgram.bind(
        schema,
        [key],
        SessionPlan.of(schema, "at", gap),
        aggregations or {"n": count()},
        output_mode=mode,
        watermark=watermark,
        updates=updates,
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bind("upsert"), "append, complete, update"),
        (lambda: bind("append"), "nothing here says when one is"),
        (lambda: bind("append", watermark=WatermarkPlan(column="value", delay_us=0)), r"watermark=\('at', delay\)"),
        (lambda: bind(key="window_start"), "'window_start'.*is the name of a column that the output gets"),
        (lambda: bind(window_end=count()), "'window_end'.*is the name of a column that the output gets"),
        (lambda: bind(window_slot=count()), "'window_slot'.*is the name of a column that the output gets"),
        (lambda: bind(gap="0 seconds"), "gap of the sessions.*must be longer than nothing"),
        (lambda: bind(gap="-5 seconds"), "gap of the sessions.*must not be negative"),
        (lambda: bind(gap="soon"), "soon"),
        (lambda: bind(updates=True), "cannot take rows back"),
        (lambda: SessionPlan.of(schema_of(TEXT), "key", 1), "must be a timestamp, got string"),
        (lambda: SessionPlan.of(schema_of(TEXT), "att", 1), "Did you mean 'at'"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()


def test_another_gap_is_another_program():
    stream = KeyedStreamHarness(schema_of(TEXT), "key")
    stream.sessions("at", "5 seconds").aggregate(n=count()).run_batch([])
    with pytest.raises(InvalidInputError, match="gap_us"):
        stream.sessions("at", "6 seconds").aggregate(n=count()).run_batch([])
