"""Value, list and map state and timers: long random lives agree with plain Python, whatever was merged or rescaled."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from state_kit import ALL, MAX_PARALLELISM, collide, merge_once

from stateline.key_groups import KeyGroupRange, key_group_of
from stateline.state import subkeys
from stateline.state.keys import group_rows, key_rows
from stateline.state.list_state import POSITION, ListState
from stateline.state.map_state import MapState
from stateline.state.merge import MergeSettings
from stateline.state.schema import StateSchema
from stateline.state.table import StateTable
from stateline.state.time_to_live import EXPIRY_COLUMN, Lifetime, expiry_test
from stateline.state.timers import EXPIRY, Timers, expired_timers
from stateline.state.value_state import ValueState
from stateline.state.variables import variable_schema

GROUPING = pa.schema([pa.field("k", pa.string()), pa.field("d", pa.int32())])
VALUE = pa.schema([pa.field("v", pa.int64())])
ENTRY = pa.schema([pa.field("e", pa.string())])
NOTHING = pa.schema([])
KEYS = [(name, number) for name in ("a", "b", None) for number in range(4)]


class PlainCodec:
    """One column of values that Arrow converts as they are."""

    def __init__(self, schema):
        self.schema = schema

    def decode(self, columns, rows):
        return list(zip(*(column.to_pylist() for column in columns), strict=True))

    def encode(self, rows):
        return [
            pa.array([None if row is None else row[number] for row in rows], field.type)
            for number, field in enumerate(self.schema)
        ]


def keys_of(picked):
    columns = [pa.array([key[0] for key in picked], pa.string()), pa.array([key[1] for key in picked], pa.int32())]
    groups = group_rows(key_rows(StateSchema(GROUPING, NOTHING), columns))
    return groups.keys, list(zip(*(column.to_pylist() for column in groups.keys.columns), strict=True))


class Life:
    """A table through many batches: changes become runs, runs are merged."""

    def __init__(self, schema, seed, ttl_ms=None):
        self.table = StateTable(schema, ALL, MAX_PARALLELISM)
        self.random = random.Random(seed)
        self.ttl_ms = ttl_ms
        self.now_ms = 0
        self.batch = 0

    def lifetime(self):
        return Lifetime(self.now_ms, self.ttl_ms)

    def pick(self):
        return keys_of(self.random.sample(KEYS, self.random.randint(1, len(KEYS))))

    def end(self, changes):
        if changes is not None:
            hashes = changes.keys.hashes
            assert (hashes[1:] > hashes[:-1]).all() or len(set(hashes.tolist())) < len(hashes)
            self.table = self.table.with_changes(changes)
        expired = None if self.ttl_ms is None else expiry_test(self.now_ms)
        settings = MergeSettings(runs_max=3, tier_runs=2, small_rows=10)
        self.table, _ = merge_once(self.table, settings, expired)
        self.batch += 1
        self.now_ms += self.random.randint(0, 7)


@pytest.fixture(params=[None, 34, 2], ids=["hashes", "few-lower-bits", "colliding"])
def hashes(request, monkeypatch):
    """Hashes as they are, and hashes of so few bits that different rows share them."""
    if request.param is not None:
        collide(monkeypatch, request.param)


@pytest.mark.parametrize("ttl_ms", [None, 10])
@pytest.mark.parametrize("seed", range(2))
def test_value_state_lives_like_a_dict(hashes, seed, ttl_ms):
    life = Life(variable_schema(GROUPING, NOTHING, VALUE, has_ttl=ttl_ms is not None), seed, ttl_ms)
    model = {}
    for _ in range(16):
        keys, picked = life.pick()
        state = ValueState(life.table, keys, PlainCodec(VALUE), life.lifetime())
        model = {key: kept for key, kept in model.items() if kept[1] > life.now_ms}
        until = float("inf") if ttl_ms is None else life.now_ms + ttl_ms
        for number, key in enumerate(picked):
            action = life.random.choice(["get", "update", "clear", "both", "twice"])
            if action in ("get", "both"):
                assert state.get(number) == model.get(key, (None,))[0]
            if action in ("update", "both", "twice"):
                model[key] = ((life.random.randint(0, 9),), until)
                state.update(number, model[key][0])
                assert state.get(number) == model[key][0]
            if action in ("clear", "twice"):
                state.clear(number)
                model.pop(key, None)
                assert state.get(number) is None
        life.end(state.changes())
    assert model


@pytest.mark.parametrize("ttl_ms", [None, 10])
@pytest.mark.parametrize("seed", range(2))
def test_list_state_lives_like_a_list(hashes, seed, ttl_ms):
    life = Life(variable_schema(GROUPING, POSITION, VALUE, has_ttl=ttl_ms is not None), seed, ttl_ms)
    model = {key: [] for key in KEYS}
    for _ in range(16):
        keys, picked = life.pick()
        state = ListState(life.table, keys, PlainCodec(VALUE), life.lifetime(), life.batch)
        until = float("inf") if ttl_ms is None else life.now_ms + ttl_ms
        model = {key: [item for item in items if item[1] > life.now_ms] for key, items in model.items()}
        for number, key in enumerate(picked):
            made = [((life.random.randint(0, 3),), until) for _ in range(life.random.randint(0, 3))]
            for action in life.random.sample(["get", "append", "append", "put", "clear"], 2):
                if action == "append":
                    model[key] = model[key] + made
                    state.append(number, [item[0] for item in made])
                elif action in ("put", "clear"):
                    model[key] = made if action == "put" else []
                    state.put(number, [item[0] for item in model[key]])
                elif action == "get":
                    assert state.get(number) == [item[0] for item in model[key]]
                    assert state.exists(number) == bool(model[key])
        life.end(state.changes())


@pytest.mark.parametrize("ttl_ms", [None, 10])
@pytest.mark.parametrize("seed", range(2))
def test_map_state_lives_like_a_dict(hashes, seed, ttl_ms):
    life = Life(variable_schema(GROUPING, ENTRY, VALUE, has_ttl=ttl_ms is not None), seed, ttl_ms)
    model = {key: {} for key in KEYS}
    for _ in range(16):
        keys, picked = life.pick()
        state = MapState(life.table, keys, PlainCodec(ENTRY), PlainCodec(VALUE), life.lifetime())
        until = float("inf") if ttl_ms is None else life.now_ms + ttl_ms
        model = {key: {e: v for e, v in items.items() if v[1] > life.now_ms} for key, items in model.items()}
        for number, key in enumerate(picked):
            entry = (life.random.choice("xyz"),)
            for action in life.random.sample(["items", "get", "update", "update", "remove", "clear"], 3):
                if action == "update":
                    model[key][entry] = ((life.random.randint(0, 9),), until)
                    state.update(number, entry, model[key][entry][0])
                elif action == "remove":
                    model[key].pop(entry, None)
                    state.remove(number, entry)
                elif action == "clear":
                    model[key] = {}
                    state.clear(number)
                elif action == "get":
                    assert state.get(number, entry) == model[key].get(entry, (None,))[0]
                else:
                    assert state.items(number) == {e: v[0] for e, v in model[key].items()}
        life.end(state.changes())


@pytest.mark.parametrize("seed", range(2))
def test_timers_live_like_sets_and_come_in_order(hashes, seed):
    life = Life(variable_schema(GROUPING, EXPIRY, NOTHING, has_ttl=False), seed)
    model = {key: set() for key in KEYS}
    for _ in range(16):
        come = expired_timers(life.table, life.now_ms)
        stored = sorted(zip(*(column.to_pylist() for column in come.columns), strict=True), key=repr)
        expected = [(*key, time) for key, times in model.items() for time in times if time <= life.now_ms]
        assert stored == sorted(expected, key=repr)
        keys, picked = keys_of(KEYS)
        numbers = {key: number for number, key in enumerate(picked)}
        expired = [(time, numbers[name, number]) for name, number, time in stored]
        timers = Timers(life.table, keys, expired)
        for number, key in enumerate(picked):
            for action in life.random.sample(["register", "register", "delete", "list"], 2):
                time = life.now_ms + life.random.randint(-3, 12)
                if action == "register":
                    timers.register(number, time)
                    model[key].add(time)
                elif action == "delete":
                    timers.delete(number, time)
                    model[key].discard(time)
                else:
                    assert timers.of_key(number) == sorted(model[key])
        due = [(time, numbers[key]) for key, times in model.items() for time in times if time <= life.now_ms]
        assert timers.due(life.now_ms) == sorted(due)
        for time, number in due:
            timers.delete(number, time)
            model[picked[number]].discard(time)
        life.end(timers.changes())


def test_rows_of_a_key_live_in_its_key_group_and_are_found_by_any_subtask_that_owns_it():
    keys, picked = keys_of(KEYS)
    schema = variable_schema(GROUPING, POSITION, VALUE, has_ttl=False)
    state = ListState(StateTable(schema, ALL, MAX_PARALLELISM), keys, PlainCodec(VALUE), Lifetime(0), 7)
    for number in range(len(picked)):
        state.append(number, [(number,)] * 3)
    changes = state.changes()
    groups = dict(zip(picked, key_group_of(keys.hashes, MAX_PARALLELISM).tolist(), strict=True))
    for name, number, group in zip(
        changes.keys.columns[0].to_pylist(),
        changes.keys.columns[1].to_pylist(),
        key_group_of(changes.keys.hashes, MAX_PARALLELISM).tolist(),
        strict=True,
    ):
        assert groups[name, number] == group
    whole = StateTable(schema, ALL, MAX_PARALLELISM).with_changes(changes)
    owned = KeyGroupRange(0, 7)
    mine = np.flatnonzero(key_group_of(keys.hashes, MAX_PARALLELISM) <= owned.end)
    half = StateTable(
        schema, owned, MAX_PARALLELISM, [type(run)(run.batches, owned, MAX_PARALLELISM) for run in whole.runs]
    )
    assert len(subkeys.rows_of_keys(half, keys.take(mine)).rows) == 3 * len(mine)


def test_an_append_logs_only_what_it_appends_and_reads_nothing(monkeypatch):
    keys, _ = keys_of(KEYS[:1])
    schema = variable_schema(GROUPING, POSITION, VALUE, has_ttl=False)
    table = StateTable(schema, ALL, MAX_PARALLELISM)
    first = ListState(table, keys, PlainCodec(VALUE), Lifetime(0), 0)
    first.append(0, [(number,) for number in range(100)])
    table = table.with_changes(first.changes())
    second = ListState(table, keys, PlainCodec(VALUE), Lifetime(0), 1)
    with monkeypatch.context() as patched:
        patched.setattr("stateline.state.list_state.rows_of_keys", None)
        second.append(0, [(100,)])
        changes = second.changes()
    assert len(changes) == 1
    third = ListState(table.with_changes(changes), keys, PlainCodec(VALUE), Lifetime(0), 2)
    assert third.get(0) == [(number,) for number in range(101)]
    third.put(0, [*third.get(0)[:50], (-1,)])
    assert len(third.changes()) == 51, "one new element and 50 tombstones; the 50 that stay are not logged"


def test_what_is_equal_and_not_the_same_replaces_what_was_in_a_list():
    keys, _ = keys_of(KEYS[:1])
    floats = pa.schema([pa.field("v", pa.float64()), pa.field("inside", pa.list_(pa.float64()))])
    schema = variable_schema(GROUPING, POSITION, floats, has_ttl=False)
    table = StateTable(schema, ALL, MAX_PARALLELISM)
    for batch, row in enumerate([(0.0, [0.0]), (-0.0, [0.0]), (-0.0, [-0.0])]):
        state = ListState(table, keys, PlainCodec(floats), Lifetime(0), batch)
        state.put(0, [row])
        table = table.with_changes(state.changes())
        assert repr(ListState(table, keys, PlainCodec(floats), Lifetime(0), batch).get(0)) == repr([row])
    state = ListState(table, keys, PlainCodec(floats), Lifetime(0), 4)
    state.put(0, [(-0.0, [-0.0])])
    assert state.changes() is None


def test_a_map_logs_only_the_entries_that_change():
    keys, _ = keys_of(KEYS[:1])
    schema = variable_schema(GROUPING, ENTRY, VALUE, has_ttl=False)
    table = StateTable(schema, ALL, MAX_PARALLELISM)
    first = MapState(table, keys, PlainCodec(ENTRY), PlainCodec(VALUE), Lifetime(0))
    for number in range(100):
        first.update(0, (str(number),), (number,))
    table = table.with_changes(first.changes())
    second = MapState(table, keys, PlainCodec(ENTRY), PlainCodec(VALUE), Lifetime(0))
    second.update(0, ("5",), (-5,))
    second.remove(0, ("6",))
    assert len(second.changes()) == 2


def test_names_that_are_taken_or_reserved_get_a_prefix():
    made = variable_schema(
        pa.schema([pa.field("k", pa.string())]),
        pa.schema([pa.field("k", pa.string())]),
        pa.schema([pa.field("k", pa.int64()), pa.field("__x", pa.int64()), pa.field(EXPIRY_COLUMN, pa.int64())]),
        has_ttl=True,
    )
    assert made.keys.names == ["k", "key.k"]
    assert made.values.names == ["value.k", "value.__x", f"value.{EXPIRY_COLUMN}", EXPIRY_COLUMN]
