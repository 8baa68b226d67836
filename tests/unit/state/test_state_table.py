"""Searching a stack of runs: newest first, whole keys, only one's own key groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from state_kit import ALL, LONGS, MAX_PARALLELISM, STRINGS, changes, collide, columns, contents, run_of, table_of

from stateline.errors import InvalidInputError
from stateline.key_groups import KeyGroupRange, key_group_of, stable_hash
from stateline.state.keys import group_rows, key_rows
from stateline.state.runs import SearchedBatches
from stateline.state.schema import StateSchema
from stateline.state.table import StateTable


def lookup(table: StateTable, wanted: list[Any]) -> dict[Any, tuple[Any, ...] | None]:
    """What the table says about each key; ``None`` where it is not there."""
    rows = [key if isinstance(key, tuple) else (key,) for key in wanted]
    keys = group_rows(key_rows(table.schema, columns(table.schema.keys, rows))).keys
    found = table.probe(keys)
    names = list(zip(*(column.to_pylist() for column in keys.columns), strict=True))
    values = list(zip(*(column.to_pylist() for column in found.values), strict=True)) or [()] * len(keys)
    for there, value in zip(found.mask.tolist(), values, strict=True):
        assert there or all(part is None for part in value)
    width = len(table.schema.keys)
    return {
        (name[0] if width == 1 else name): (value if there else None)
        for name, value, there in zip(names, values, found.mask.tolist(), strict=True)
    }


@pytest.mark.parametrize("bits", [64, 2, 0])
def test_the_newest_version_of_each_key_is_found(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if bits < 64:
        collide(monkeypatch, bits)
    table = table_of(
        LONGS,
        changes(LONGS, {n: [n] for n in range(40)}),
        changes(LONGS, {n: [100 + n] for n in range(0, 40, 3)}, deleted=range(1, 40, 3)),
        changes(LONGS, {1: [201], 2: [None]}, deleted=[0, 77]),
    )
    expected: dict[int, tuple[Any, ...] | None] = {n: (n,) for n in range(40)}
    expected |= {n: (100 + n,) for n in range(0, 40, 3)} | dict.fromkeys(range(1, 40, 3))
    expected |= {1: (201,), 2: (None,), 0: None, 77: None, -5: None, 1000: None}
    assert lookup(table, list(expected)) == expected
    assert contents(table) == {key: value for key, value in expected.items() if value is not None}


def test_null_keys_and_values_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(
        STRINGS, changes(STRINGS, {None: ["null key", None], "": [None, 2.0]}), changes(STRINGS, {"a": ["x", 1.0]})
    )
    assert lookup(table, [None, "", "a", "b"]) == {
        None: ("null key", None),
        "": (None, 2.0),
        "a": ("x", 1.0),
        "b": None,
    }


def test_an_empty_table_and_an_empty_question() -> None:
    empty = table_of(STRINGS)
    assert lookup(empty, ["a"]) == {"a": None}
    assert list(empty.scan()) == []
    found = table_of(LONGS, changes(LONGS, {1: [1]})).probe(
        group_rows(key_rows(LONGS, [pa.array([], pa.int64())])).keys
    )
    assert (len(found.mask), len(found.values[0])) == (0, 0)


def test_a_scan_copies_only_batches_of_which_some_rows_are_hidden() -> None:
    """The oldest run has batches of three rows; the first row of the first one is changed, the second one deleted."""
    oldest = run_of(changes(LONGS, {key: [key] for key in range(9)}))
    hidden, gone, kept = (batch.keys.columns[0].to_pylist() for batch in oldest.batches)
    newest = run_of(changes(LONGS, {hidden[0]: [-1]}, deleted=gone))
    table = StateTable(LONGS, ALL, MAX_PARALLELISM, [oldest, newest])
    *changed, partly, whole = table.scan(columns=[1, 0])
    assert {row["k"]: row["v"] for batch in changed for row in batch.to_pylist()} == {hidden[0]: -1}
    assert [batch.to_pydict() for batch in (partly, whole)] == [
        {"v": hidden[1:], "k": hidden[1:]},
        {"v": kept, "k": kept},
    ]
    where = [batch.column("v").buffers()[1].address for batch in (partly, whole)]
    stored = oldest.batches[0].values[0].buffers()[1].address
    assert (where[0] != stored, where[1] == stored) == (True, True)


def test_a_set_of_keys_needs_no_values() -> None:
    schema = StateSchema(pa.schema([("a", pa.string()), ("b", pa.date32())]), pa.schema([]))
    import datetime as dt

    day = dt.date(2024, 2, 29)
    table = table_of(schema, changes(schema, {("x", day): [], (None, day): []}))
    assert lookup(table, [("x", day), ("x", None), (None, day)]) == {
        ("x", day): (),
        ("x", None): None,
        (None, day): (),
    }


def test_changes_win_and_leave_the_old_table_as_it_was() -> None:
    table = table_of(LONGS, changes(LONGS, {1: [1], 2: [2]}))
    changed = table.with_changes(changes(LONGS, {1: [10]}, deleted=[2]))
    assert contents(changed) == {1: (10,)}
    assert contents(table) == {1: (1,), 2: (2,)}
    assert table.with_changes(changes(LONGS)) is table


def test_only_ones_own_key_groups_are_seen_and_written() -> None:
    mine = KeyGroupRange(0, 7)
    rows = changes(LONGS, {n: [n] for n in range(200)})
    table = table_of(LONGS, rows, key_groups=mine)
    owned = {n for n in range(200) if key_group_of(stable_hash(n), 16) in mine}
    assert set(contents(table)) == owned
    foreign = next(n for n in range(200) if n not in owned)
    with pytest.raises(InvalidInputError, match="another subtask"):
        lookup(table, [foreign])
    with pytest.raises(InvalidInputError, match="another subtask"):
        table.with_changes(changes(LONGS, {foreign: [0]}))


def test_a_scan_can_be_narrowed() -> None:
    table = table_of(LONGS, changes(LONGS, {n: [n] for n in range(200)}), changes(LONGS, deleted=range(0, 200, 2)))
    parts = [contents(table, KeyGroupRange(first, first + 4)) for first in (0, 5, 10)]
    assert sorted(key for part in parts for key in part) == [
        n for n in range(1, 200, 2) if key_group_of(stable_hash(n), 16) < 15
    ]
    assert contents(table, KeyGroupRange(3, 2)) == {}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.list_(pa.int64()), [[1, 2], [], None]),
        (pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1, "b": "x"}, None, {"a": None, "b": None}]),
        (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [], None]),
        (pa.bool_(), [True, False, None]),
        (pa.decimal128(20, 2), [None, None, None]),
        (pa.int16(), [1, -1, None]),
        (pa.float32(), [1.5, float("inf"), None]),
        (pa.timestamp("ns"), [None, None, None]),
        (pa.null(), [None, None, None]),
    ],
)
def test_values_of_every_type_are_put_together(kind: pa.DataType, values: list[Any]) -> None:
    schema = StateSchema(LONGS.keys, pa.schema([("v", kind)]))
    older = changes(schema, {n: [value] for n, value in enumerate(values)})
    newer = changes(schema, {n + 2: [value] for n, value in enumerate(values)})
    table = table_of(schema, older, newer)
    expected = {n: (value,) for n, value in enumerate(values)} | {n + 2: (value,) for n, value in enumerate(values)}
    assert lookup(table, [*expected, 99]) == {**expected, 99: None}
    assert contents(table) == expected


def test_parts_of_one_object_are_searched_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The middle part is gone from the oldest run: what the others have of these keys counts, and nothing of it."""
    oldest = run_of(changes(LONGS, {n: [n] for n in range(200)}))
    newer = run_of(changes(LONGS, {n: [-n] for n in range(0, 200, 3)}), KeyGroupRange(2, 9))
    sides = KeyGroupRange(0, 3), KeyGroupRange(8, ALL.end)
    stack = [*(oldest.part(side, MAX_PARALLELISM, None) for side in sides), newer]
    table = StateTable(LONGS, ALL, MAX_PARALLELISM, stack)
    searched = []
    find = SearchedBatches.find

    def counted(self: SearchedBatches, keys: Any, wanted: np.ndarray) -> Any:
        searched.append(self)
        assert (np.diff(wanted) > 0).all()
        return find(self, keys, wanted)

    monkeypatch.setattr(SearchedBatches, "find", counted)
    keys = group_rows(key_rows(LONGS, columns(LONGS.keys, [(n,) for n in range(200)]))).keys
    found = table.probe(keys)
    assert searched == [newer.searched, oldest.searched]
    expected = []
    for number in keys.columns[0].to_pylist():
        group = key_group_of(stable_hash(number), MAX_PARALLELISM)
        is_newer = number % 3 == 0 and group in newer.key_groups
        expected.append(-number if is_newer else number if group in sides[0] or group in sides[1] else None)
    assert found.values[0].to_pylist() == expected
    assert None in expected
