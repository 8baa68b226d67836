"""State read from outside: scans, point reads that fetch little, and the change feed against a model."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from state_kit import MAX_PARALLELISM, StoredRuns, changes, collide, columns, snapshot

from stateline.blob import InstrumentedStore
from stateline.blob.memory import MemoryStore
from stateline.checkpoint import Checkpoint, OperatorState, SubtaskState
from stateline.errors import CorruptDataError, DataLossError, InvalidInputError
from stateline.key_groups import KeyGroupRange
from stateline.state.changes import CHANGE_COLUMN, _equal, change_schema, changes_between
from stateline.state.keys import group_rows, key_rows
from stateline.state.merge import MergeSettings
from stateline.state.open_runs import OpenRuns
from stateline.state.rescale import rescale
from stateline.state.run import RunSettings
from stateline.state.run_store import RunReader
from stateline.state.schema import StateSchema
from stateline.state.stored import StoredState, find_operator
from stateline.state.subkeys import subkey_changes
from stateline.state.table import StateTable
from stateline.state.variables import variable_schema

SCHEMA = StateSchema(
    pa.schema([("k", pa.int64()), ("part", pa.string())]),
    pa.schema([("n", pa.int64()), ("text", pa.string()), ("items", pa.list_(pa.float64()))]),
)
ABSENT = object()
Key = tuple[int, str | None]
Row = tuple[Any, ...]


class Life:
    """A state that lives through checkpoints, with what it held at each of them."""

    def __init__(self, store: InstrumentedStore, seed: int) -> None:
        self.store = store
        self.dice = random.Random(seed)
        empty = SubtaskState(first_key_group=0, last_key_group=MAX_PARALLELISM - 1)
        self.operator = OperatorState(name="o", schema=SCHEMA.encode(), definition="", subtasks=(empty,))
        self.history: list[tuple[StoredState, dict[Key, Row]]] = []

    def row(self) -> Row:
        number = self.dice.choice([None, 1, 2, 2**40])
        return (number, self.dice.choice([None, "", "é"]), self.dice.choice([None, [], [1.5, math.nan], [None]]))

    def step(self, keys: int) -> None:
        before = dict(self.history[-1][1]) if self.history else {}
        touched: set[Key] = {
            (self.dice.randrange(keys), self.dice.choice(["a", None])) for _ in range(self.dice.randrange(1, keys))
        }
        gone = {key for key in touched if self.dice.random() < 0.3}
        put = {key: self.row() for key in touched - gone}
        subtasks = []
        for state in rescale(self.operator, self.dice.randint(1, 4), MAX_PARALLELISM):
            runs = RunReader(self.store, SCHEMA, open_runs=OpenRuns()).open_all(state.runs)
            table = StateTable(SCHEMA, state.key_groups, MAX_PARALLELISM, runs)
            rows = changes(SCHEMA, put, sorted(gone, key=repr))
            mine = rows.between(*_bounds(state.key_groups))
            writer = StoredRuns(self.store, SCHEMA, MAX_PARALLELISM, settings=RunSettings(batch_rows=4))
            merging = MergeSettings(runs_max=4, tier_runs=3, small_rows=20)
            made = snapshot(table, mine if len(mine) else None, writer, len(self.history), settings=merging)
            subtasks.append(made.state)
        self.operator = OperatorState(name="o", schema=SCHEMA.encode(), definition="", subtasks=tuple(subtasks))
        after = {key: row for key, row in {**before, **put}.items() if key not in gone}
        stored = StoredState(self.store, len(self.history), self.operator, MAX_PARALLELISM)
        self.history.append((stored, after))


def _bounds(key_groups: KeyGroupRange) -> tuple[int, int]:
    from stateline.key_groups import hash_bounds

    return hash_bounds(key_groups, MAX_PARALLELISM)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[InstrumentedStore]:
    name = f"stored-{request.node.name}"
    yield InstrumentedStore(MemoryStore(name))
    MemoryStore.forget(name)


def plain(value: Any) -> Any:
    """Equal exactly where the stored values are: NaN equals NaN."""
    return repr(value)


def rows_of(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> list[Row]:
    table = pa.Table.from_batches(list(batches), schema=schema)
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def feed(life: Life, start: int | None, end: int, parts: int) -> list[Row]:
    after = life.history[end][0]
    before = None if start is None else life.history[start][0].slices(parts)
    found: list[Row] = []
    reader = after.reader()
    for number, state in enumerate(after.slices(parts)):
        made = changes_between(reader, None if before is None else before[number], state)
        found += rows_of(made, change_schema(SCHEMA))
    return found


def expected(before: dict[Key, Row], after: dict[Key, Row]) -> list[Row]:
    rows: list[Row] = []
    for key in {**before, **after}:
        was, now = before.get(key, ABSENT), after.get(key, ABSENT)
        if was is ABSENT:
            rows.append(("insert", *key, *after[key]))
        elif now is ABSENT:
            rows.append(("delete", *key, *before[key]))
        elif plain(was) != plain(now):
            rows += [("update_before", *key, *before[key]), ("update_after", *key, *after[key])]
    return rows


@pytest.mark.parametrize("seed", range(6))
def test_the_feed_between_any_two_checkpoints_is_the_difference_of_their_states(
    store: InstrumentedStore, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        collide(monkeypatch, 5)
    life = Life(store, seed)
    for _ in range(9):
        life.step(keys=15)
    for end in range(len(life.history)):
        for start in (None, *range(end + 1)):
            before = {} if start is None else life.history[start][1]
            found = feed(life, start, end, parts=1 + end % 3)
            assert sorted(map(repr, found)) == sorted(map(repr, expected(before, life.history[end][1])))
            for number, row in enumerate(found):
                if row[0] == "update_before":
                    assert found[number + 1][:3] == ("update_after", *row[1:3])


NESTED = [
    pa.list_(pa.float64()),
    pa.list_(pa.list_(pa.string())),
    pa.struct([("a", pa.int32()), ("b", pa.list_(pa.bool_()))]),
    pa.map_(pa.string(), pa.list_(pa.int8())),
    pa.list_(pa.struct([("x", pa.binary()), ("y", pa.map_(pa.string(), pa.string()))])),
    pa.list_(pa.null()),
    pa.struct([]),
    pa.list_(pa.month_day_nano_interval()),
]


def drawn(kind: pa.DataType, dice: random.Random, null: float = 0.2) -> Any:
    if dice.random() < null or pa.types.is_null(kind):
        return None
    if pa.types.is_list(kind):
        return [drawn(kind.value_type, dice) for _ in range(dice.randrange(3))]
    if pa.types.is_map(kind):
        return [(drawn(kind.key_type, dice, 0.0), drawn(kind.item_type, dice)) for _ in range(dice.randrange(3))]
    if pa.types.is_struct(kind):
        return {field.name: drawn(field.type, dice) for field in kind}
    if pa.types.is_interval(kind):
        return pa.MonthDayNano([dice.randrange(2), 0, 1])
    return {
        pa.bool_(): dice.random() < 0.5,
        pa.string(): dice.choice(["", "a"]),
        pa.binary(): dice.choice([b"", b"a"]),
        pa.float64(): dice.choice([math.nan, 0.5]),
    }.get(kind, dice.randrange(2))


@pytest.mark.parametrize("kind", NESTED, ids=str)
def test_nested_values_are_compared_as_they_are_stored(kind: pa.DataType) -> None:
    for seed in range(60):
        dice = random.Random(seed)
        left = [drawn(kind, dice) for _ in range(dice.randrange(30))]
        right = [value if dice.random() < 0.4 else drawn(kind, dice) for value in left]
        before = pa.array([drawn(kind, dice), *left], kind)[1:]
        same = [plain(one) == plain(other) for one, other in zip(before.to_pylist(), right, strict=True)]
        assert _equal(before, pa.array(right, kind)).tolist() == same


def test_values_that_python_has_not_can_be_compared() -> None:
    far = pa.array([[400_000_000_000_000_000], [400_000_000_000_000_001]], pa.list_(pa.timestamp("us")))
    latin = pa.array([b"caf\xe9", b"caf\xe8"], pa.binary()).view(pa.string())
    text = pa.StructArray.from_arrays([latin], ["text"])
    for column in (far, text, latin):
        assert _equal(column, column.take(pa.array([0, 0]))).tolist() == [True, False]


@pytest.mark.parametrize("seed", range(3))
def test_scans_and_point_reads_agree_with_the_model_at_every_checkpoint(store: InstrumentedStore, seed: int) -> None:
    life = Life(store, seed)
    for _ in range(6):
        life.step(keys=20)
    for stored, model in life.history:
        reader = stored.reader()
        scanned = [row for state in stored.slices(3) for row in rows_of(reader.scan(state), SCHEMA.row)]
        assert sorted(map(repr, scanned)) == sorted(repr((*key, *row)) for key, row in model.items())
        asked = [(number, part) for number in range(22) for part in ("a", None)] * 2
        for state in (stored.whole(), *stored.slices(3)):
            batch = reader.get(state, columns(SCHEMA.keys, asked))
            assert {repr(tuple(row.values())) for row in batch.to_pylist()} == {
                repr(row) for row in rows_of(reader.scan(state), SCHEMA.row)
            }


@pytest.mark.parametrize("seed", range(3))
def test_a_row_with_a_sub_key_is_found_by_its_whole_key_and_by_its_grouping_key(
    store: InstrumentedStore, seed: int
) -> None:
    dice = random.Random(seed)
    grouping, subkey = pa.schema([("k", pa.int64()), ("part", pa.string())]), pa.schema([("place", pa.int64())])
    schema = variable_schema(grouping, subkey, pa.schema([("v", pa.int64())]), has_ttl=False)
    model: dict[tuple[int, str | None], dict[int, int]] = {}
    table = StateTable(schema, KeyGroupRange(0, MAX_PARALLELISM - 1), MAX_PARALLELISM)
    writer = StoredRuns(store, schema, MAX_PARALLELISM, settings=RunSettings(batch_rows=4))
    for number in range(4):
        owners = sorted({(dice.randrange(9), dice.choice(["a", None])) for _ in range(6)}, key=repr)
        rows = [(at, place, dice.random() < 0.3) for at in range(len(owners)) for place in range(dice.randrange(9))]
        for at, place, gone in rows:
            model.setdefault(owners[at], {})[place] = number
            if gone:
                del model[owners[at]][place]
        made = subkey_changes(
            table,
            (groups := group_rows(key_rows(schema.grouping, columns(grouping, owners)))).keys,
            [int(np.flatnonzero(groups.order == at)[0]) for at, _, _ in rows],
            [pa.array([place for _, place, _ in rows], pa.int64())],
            [pa.array([None if gone else number for _, _, gone in rows], pa.int64())],
            np.array([gone for _, _, gone in rows], dtype=np.bool_),
        )
        state = snapshot(table, made, writer, number).state
        runs = RunReader(store, schema, open_runs=OpenRuns()).open_all(state.runs)
        table = StateTable(schema, table.key_groups, MAX_PARALLELISM, runs)
    operator = OperatorState(name="o", schema=schema.encode(), definition="", subtasks=(state,))
    stored = StoredState(store, 4, operator, MAX_PARALLELISM)
    everything = {(*key, place, value) for key, places in model.items() for place, value in places.items()}
    groups_asked = [(key, part) for key in range(10) for part in ("a", None)] * 2
    keys_asked = [(key, part, place) for key, part in groups_asked for place in range(10)]
    for state in (stored.whole(), *stored.slices(3)):
        for asked in (columns(schema.keys, keys_asked), columns(grouping, groups_asked)):
            found = [tuple(row.values()) for row in stored.reader().get(state, asked).to_pylist()]
            assert len(found) == len(set(found))
            assert set(found) == set(rows_of(stored.reader().scan(state), schema.row))
    assert set(rows_of(stored.reader().scan(stored.whole()), schema.row)) == everything
    (key, part, place, value) = min(everything, key=repr)
    one = stored.reader().get(stored.whole(), columns(schema.keys, [(key, part, place)]), ["v"])
    assert one.to_pylist() == [{"v": value}]


def test_only_the_columns_asked_for_come_in_the_order_asked(store: InstrumentedStore) -> None:
    life = Life(store, 1)
    life.step(keys=9)
    stored, model = life.history[0]
    batches = list(stored.reader().scan(stored.whole(), ["text", "k"]))
    assert {batch.schema.names == ["text", "k"] for batch in batches} == {True}
    found = sorted(repr(tuple(row.values())) for batch in batches for row in batch.to_pylist())
    assert found == sorted(repr((row[1], key[0])) for key, row in model.items())
    with pytest.raises(InvalidInputError, match="txet"):
        list(stored.reader().scan(stored.whole(), ["txet"]))


def test_a_point_read_fetches_few_bytes_and_the_feed_of_one_checkpoint_not_much_more(store: InstrumentedStore) -> None:
    schema = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64()), ("w", pa.float64())]))
    numbers = pa.array(range(600_000))
    from stateline.state.rows import StateRows

    def rows(first: int, count: int, value: int) -> StateRows:
        groups = group_rows(key_rows(schema, [numbers.slice(first, count)]))
        return StateRows(groups.keys, (pa.array([value] * count), pa.nulls(count, pa.float64())))

    table = StateTable(schema, KeyGroupRange(0, MAX_PARALLELISM - 1), MAX_PARALLELISM)
    writer = StoredRuns(store, schema, MAX_PARALLELISM)
    made = []
    for number, (count, value) in enumerate(((600_000, 1), (20, 2))):
        state = snapshot(table, rows(7, count - 7, value) if number == 0 else rows(7, 20, 2), writer, number).state
        operator = OperatorState(name="o", schema=schema.encode(), definition="", subtasks=(state,))
        made.append(StoredState(store, number, operator, MAX_PARALLELISM))
        runs = RunReader(store, schema, open_runs=OpenRuns()).open_all(state.runs)
        table = StateTable(schema, table.key_groups, MAX_PARALLELISM, runs)
    total = sum(run.length for run in made[1].operator.subtasks[0].runs)
    store.reset()
    assert made[1].reader().get(made[1].whole(), [pa.array([8])]).to_pylist() == [{"k": 8, "v": 2, "w": None}]
    assert store.bytes_read < total / 50
    store.reset()
    found = list(changes_between(made[1].reader(), made[0].whole(), made[1].whole()))
    assert sum(batch.num_rows for batch in found) == 40
    assert {batch.schema.names[0] for batch in found} == {CHANGE_COLUMN}
    assert store.bytes_read < total / 2


def test_a_missing_run_and_a_damaged_one_are_named(store: InstrumentedStore) -> None:
    life = Life(store, 2)
    life.step(keys=9)
    stored = life.history[0][0]
    name = next(run.name for subtask in stored.operator.subtasks for run in subtask.runs)
    data = store.get(name)
    store.put(name, data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with pytest.raises(CorruptDataError, match=rf"{name}\[0:\d+\]: .*damaged in (bytes|its tail)"):
        list(stored.reader().scan(stored.whole()))
    store.delete([name])
    with pytest.raises(DataLossError, match=name):
        list(stored.reader().scan(stored.whole()))


def test_an_operator_is_found_by_name_or_because_it_is_the_only_one() -> None:
    def record(*names: str) -> Checkpoint:
        whole = SubtaskState(first_key_group=0, last_key_group=0)
        operators = tuple(OperatorState(name=name, schema="", definition="", subtasks=(whole,)) for name in names)
        return Checkpoint(
            checkpoint_id=4,
            batch_id=4,
            query_id="q",
            offsets_digest="",
            max_parallelism=1,
            parallelism=1,
            nonce="n",
            created_at=0.0,
            operators=operators,
        )

    assert find_operator(record("by_key"), None).name == "by_key"
    assert find_operator(record("one", "two"), "two").name == "two"
    with pytest.raises(InvalidInputError, match="one, two"):
        find_operator(record("one", "two"), None)
    with pytest.raises(InvalidInputError, match="Did you mean 'one'"):
        find_operator(record("one", "two"), "onee")
    with pytest.raises(InvalidInputError, match="does not hold keyed state"):
        find_operator(record(), None)
