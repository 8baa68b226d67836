"""Upserts: one row of each key over all subtasks, and rows that go where their operator takes back or forgets them."""

from __future__ import annotations

import dataclasses
import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from stateline.environment import Environment
from stateline.errors import InvalidInputError
from stateline.key_groups import hash_columns, key_group_of
from stateline.pipeline import subtask
from stateline.pipeline.event_time import SessionPlan, WatermarkPlan, WindowPlan
from stateline.pipeline.graph import Graph
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.pipeline.operators.deduplication import DropDuplicatesProgram
from stateline.pipeline.operators.selection import SelectionProgram
from stateline.pipeline.operators.sessions import SessionProgram
from stateline.pipeline.operators.top import TopProgram
from stateline.state import aggregate as agg
from stateline.tables import TableTarget
from stateline.testing import ManualClock
from tests.unit.pipeline.engine import Engine
from tests.unit.tables.table_kit import DeltaPlace, SqlitePlace

SECOND = 1_000_000
SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64()), ("at", pa.timestamp("us"))])
WATERMARK = WatermarkPlan.of(SCHEMA, "at", "0 seconds")
WINDOWS = WindowPlan.of(SCHEMA, "at", "10s", None, "0s")
COUNT = {"n": agg.count(), "total": agg.sum("value")}
FORMATS = {"sqlite": SqlitePlace, "delta": DeltaPlace}


def into(folder, form, program, key, *, deletes=True, watermark=None, parallelism=2, earlier=None):
    """A driver whose operator writes into a table by key."""
    place = FORMATS[form](folder, "upsert")
    target = dataclasses.replace(place.target(), key=key, deletes=deletes)
    more = {} if earlier is None else {"root": earlier.root, "environment": earlier.environment}
    engine = Engine(program, SCHEMA, **({"environment": Environment(clock=ManualClock(1000.0))} | more))
    engine.operator = dataclasses.replace(engine.operator, table=target)
    engine.plan = dataclasses.replace(engine.plan, graph=Graph.of_one_input([engine.operator], watermark))
    engine.restart(parallelism=parallelism)
    return engine, place


def rows(*keys, at=0, value=1):
    return [{"key": key, "value": value, "at": at * SECOND} for key in keys]


def keys_in(place):
    return [row[0] for row in place.rows()]


def apart():
    """Two keys that different subtasks have, if there are eight."""
    groups = key_group_of(hash_columns([pa.array(list("abcdefgh"))]), 8)
    return "a", next(key for key, group in zip("abcdefgh", groups, strict=True) if group != groups[0])


APART = apart()


def by_key(**more):
    return AggregateProgram.bind(SCHEMA, ["key"], COUNT, **more)


# -- one row of each key -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deletes", [False, True])
def test_a_key_that_two_subtasks_have_is_refused_before_it_is_decided(tmp_path, deletes):
    engine, place = into(tmp_path, "sqlite", by_key(), ("n",), deletes=deletes, parallelism=8)
    for _ in range(2):
        with pytest.raises(InvalidInputError, match=r"one row of each key, got several of 1 keys, such as .*'n': 1"):
            engine.run(rows(*APART))
    assert engine.coordinator.newest is None, "nothing is decided: the program may be mended"
    other, place = into(tmp_path, "sqlite", by_key(), ("key",), deletes=deletes, parallelism=8, earlier=engine)
    other.run(rows(*APART))
    assert keys_in(place) == list(APART)


def test_keys_of_one_hash_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(subtask, "key_hashes", lambda found, _: bytes(8) * found.num_rows)
    engine, place = into(tmp_path, "sqlite", by_key(), ("key",))
    engine.run(rows(*"abcdefgh"))
    assert keys_in(place) == list("abcdefgh")


def test_keys_that_have_no_hash_are_compared_themselves(tmp_path, monkeypatch):
    monkeypatch.setattr(subtask, "key_hashes", lambda *_: None)
    engine, _ = into(tmp_path, "sqlite", by_key(), ("n",), parallelism=8)
    with pytest.raises(InvalidInputError, match="one row of each key"):
        engine.run(rows(*APART))


# -- rows that go -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_windows_that_close_leave_the_table(tmp_path, form):
    program = by_key(window=WINDOWS, watermark=WATERMARK)
    engine, place = into(tmp_path, form, program, ("key", "window_start"), watermark=WATERMARK)
    engine.run(rows("a", "b", at=5))
    assert keys_in(place) == ["a", "b"]
    engine.run(rows("c", at=12))
    assert keys_in(place) == ["a", "b", "c"], "the watermark of a batch is that of the one before"
    engine.run(rows("d", at=13))
    assert keys_in(place) == ["c", "d"]
    engine.run([])
    assert keys_in(place) == ["c", "d"]
    engine.run(rows("e", at=40))
    engine.run(rows("f", at=41))
    assert keys_in(place) == ["e", "f"]


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_keys_whose_time_is_over_leave_the_table(tmp_path, form):
    engine, place = into(tmp_path, form, by_key(ttl_ms=5000), ("key",))
    engine.run(rows("a", "b"))
    engine.clock.advance(3)
    engine.run(rows("b", "c"))
    engine.clock.advance(3)
    engine.run(rows("d"))
    assert keys_in(place) == ["b", "c", "d"]
    engine.run(rows("a"))
    assert [row[:2] for row in place.rows()] == [("a", 1), ("b", 2), ("c", 1), ("d", 1)], "a begins anew"
    engine.clock.advance(60)
    engine.run([])
    assert keys_in(place) == []


@pytest.mark.parametrize("seed", range(4))
def test_the_table_is_the_state_after_any_batches(tmp_path, seed):
    """With a time to live, over restarts, replays and merges."""
    dice = random.Random(seed)
    engine, place = into(tmp_path, "sqlite", by_key(ttl_ms=5000), ("key",))
    for _ in range(25):
        engine.clock.advance(dice.choice([0, 1, 2, 7]))
        engine.run(rows(*(dice.choice("abcdefgh") for _ in range(dice.randrange(4)))))
        if dice.random() < 0.3:
            engine, place = into(
                tmp_path, "sqlite", by_key(ttl_ms=5000), ("key",), parallelism=dice.randrange(1, 4), earlier=engine
            )
        assert [row[:3] for row in place.rows()] == sorted((r["key"], r["n"], r["total"]) for r in engine.state())


def test_a_window_that_opens_and_closes_in_one_batch_is_never_there(tmp_path):
    watermark = dataclasses.replace(WATERMARK, late_data="keep")
    program = by_key(window=WINDOWS, watermark=watermark)
    engine, place = into(tmp_path, "sqlite", program, ("key", "window_start"), watermark=watermark)
    engine.run(rows("a", at=50))
    engine.run(rows("late", at=1))
    assert keys_in(place) == ["a"]


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_sessions_that_were_absorbed_or_have_closed_leave_the_table(tmp_path, form):
    program = SessionProgram.bind(
        SCHEMA, ["key"], SessionPlan.of(SCHEMA, "at", "10s"), COUNT, output_mode="update", watermark=WATERMARK
    )
    engine, place = into(tmp_path, form, program, ("key", "window_start"), watermark=WATERMARK)
    engine.run(rows("a", at=30) + rows("a", at=45) + rows("b", at=31))
    assert keys_in(place) == ["a", "a", "b"]
    engine.run(rows("a", at=37))
    assert keys_in(place) == ["a"], "one has absorbed the other; b has closed"
    engine.run(rows("c", at=90))
    engine.run(rows("c", at=91))
    assert keys_in(place) == ["c"]


def test_rows_that_fall_out_of_the_best_leave_the_table(tmp_path):
    program = TopProgram.bind(SCHEMA, ["key"], 2, "value", updates=False)
    engine, place = into(tmp_path, "sqlite", program, ("key", "value"))
    for value in (3, 1, 7, 5):
        engine.run(rows("a", value=value))
    assert sorted(row[1] for row in place.rows()) == [5, 7]


def test_rows_that_no_longer_fit_leave_the_table(tmp_path):
    program = SelectionProgram.filtered(by_key(), pc.less(pc.field("n"), 3))
    engine, place = into(tmp_path, "sqlite", program, ("key",))
    engine.run(rows("a", "a", "b"))
    engine.run(rows("a", "b"))
    assert [row[:2] for row in place.rows()] == [("b", 2)]


def test_without_deletes_rows_stay(tmp_path):
    program = by_key(window=WINDOWS, watermark=WATERMARK)
    engine, place = into(tmp_path, "sqlite", program, ("key", "window_start"), deletes=False, watermark=WATERMARK)
    for at in (5, 12, 40, 41):
        engine.run(rows("a", at=at))
    assert len(place.rows()) == 3


def test_operators_say_why_nobody_knows_what_they_forget():
    keyed = WatermarkPlan.of(SCHEMA, "at", "0 seconds")
    assert by_key().removals_unknown == by_key(ttl_ms=5).removals_unknown == ""
    assert "complete" in by_key(output_mode="complete").removals_unknown
    assert "final" in by_key(output_mode="append", window=WINDOWS, watermark=WATERMARK).removals_unknown
    assert "passed" in TopProgram.bind(SCHEMA, ["key", "at"], 1, "value", watermark=keyed).removals_unknown
    assert "final" in DropDuplicatesProgram.bind(SCHEMA, ["key"]).removals_unknown
    assert SelectionProgram.filtered(by_key(), pc.field("n") > 1).removals_unknown == ""


def test_deletes_go_with_upserts_alone():
    with pytest.raises(InvalidInputError, match="must go with mode upsert"):
        TableTarget(format="sqlite", target="t", deletes=True)
