"""What tells the hashes that are not there, and about where the others are; and searches that use it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import ALL, LONGS, MAX_PARALLELISM, changes, collide, columns, run_of

from stateline.state.gather import Places, Scattered
from stateline.state.hash_index import HashIndex
from stateline.state.keys import KeyRows, group_rows, key_rows
from stateline.state.rows import StateRows
from stateline.state.runs import Run
from stateline.state.table import StateTable


def possible(parts: list[np.ndarray], hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hashes that may be there, the number of the part of each, and the row from which on it is to be found."""
    edges = hashes.searchsorted(np.array([part[0] for part in parts], dtype=np.uint64))
    counts = np.diff(edges, append=len(hashes))
    hashes = hashes[edges[0] :]
    numbers, rows = HashIndex(parts).possible(hashes, counts)
    return hashes[numbers], np.repeat(np.arange(len(parts)), counts)[numbers], rows


@given(
    stored=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=60),
    asked=st.sets(st.integers(0, 2**64 - 1), max_size=20),
    cuts=st.sets(st.integers(1, 59), max_size=4),
)
def test_a_hash_that_is_there_is_possible_and_not_before_the_row_that_is_told(
    stored: list[int], asked: set[int], cuts: set[int]
) -> None:
    rows = np.array(sorted(stored), dtype=np.uint64)
    whole = [cut for cut in cuts if cut < len(rows) and rows[cut] != rows[cut - 1]]  # Parts do not split a hash.
    parts = [part for part in np.split(rows, sorted(whole)) if len(part)]
    hashes, numbers, firsts = possible(parts, np.array(sorted({*stored, *asked}), dtype=np.uint64))
    assert set(hashes.tolist()) >= set(stored)
    for one, number, first in zip(hashes.tolist(), numbers.tolist(), firsts.tolist(), strict=True):
        assert first >= 0
        assert one not in stored or first <= parts[number].tolist().index(one)


def test_most_of_the_others_are_not_possible_and_rows_are_near_also_where_parts_are_of_different_density() -> None:
    dice = np.random.default_rng(3)
    dense = np.unique(dice.integers(0, 1 << 40, 20_000, dtype=np.uint64))
    sparse = np.unique(dice.integers(1 << 41, 1 << 63, 20_000, dtype=np.uint64))
    for number, (low, high) in enumerate(((0, 1 << 40), (1 << 41, 1 << 63))):
        others = np.unique(dice.integers(low, high, 10_000, dtype=np.uint64))
        assert len(possible([dense, sparse], others)[0]) < 0.25 * len(others)
        part = (dense, sparse)[number]
        hashes, numbers, rows = possible([dense, sparse], part)
        assert hashes.tolist() == part.tolist()
        assert set(numbers.tolist()) == {number}
        steps = np.arange(len(part)) - rows
        assert steps.min() == 0
        assert (steps <= 1).mean() > 0.9
        assert steps.max() < 16


@pytest.mark.parametrize("bits", [64, 3, 0])
def test_what_is_looked_for_in_vain_again_and_again_stays_absent_and_the_rest_is_found(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bits < 64:
        collide(monkeypatch, bits)
    table = StateTable(LONGS, ALL, MAX_PARALLELISM, [run_of(changes(LONGS, {n: [n] for n in range(0, 60, 3)}))])
    for _ in range(3):
        keys = group_rows(key_rows(LONGS, columns(LONGS.keys, [(n,) for n in range(60)]))).keys
        found = table.probe(keys)
        expected = [n if n % 3 == 0 else None for n in keys.columns[0].to_pylist()]
        assert found.values[0].to_pylist() == expected
        assert found.mask.tolist() == [value is not None for value in expected]


def looks(monkeypatch: pytest.MonkeyPatch, run: Run) -> list[int]:
    """How many hashes are searched for, from now on."""
    searched = []
    search = type(run.searched)._not_below

    def counted(self: object, hashes: np.ndarray, edges: list[int]) -> object:
        searched.append(len(hashes))
        return search(self, hashes, edges)  # type: ignore[arg-type]

    monkeypatch.setattr(type(run.searched), "_not_below", counted)
    return searched


def test_an_index_spares_searches_once_many_are_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(changes(LONGS, {n: [n] for n in range(0, 6000, 3)}), batch_rows=500)
    part = run.part(ALL, MAX_PARALLELISM, None)
    keys = group_rows(key_rows(LONGS, columns(LONGS.keys, [(n,) for n in range(6000)]))).keys
    searched = looks(monkeypatch, run)
    answers = [list(one.searched.find(keys, np.arange(len(keys)))) for one in (run, part)]
    assert sum(searched) < 600, (
        "a sample tells that most are not there, and the index is made once for a run and its parts"
    )
    assert answers[0][0][0].tolist() == answers[1][0][0].tolist()
    assert len(answers[0][0][0]) == 2000


def test_no_index_is_made_for_keys_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(changes(LONGS, {n: [n] for n in range(3000)}), batch_rows=500)
    keys = group_rows(key_rows(LONGS, columns(LONGS.keys, [(n,) for n in range(3000)]))).keys
    searched = looks(monkeypatch, run)
    for _ in range(3):
        assert sum(len(found) for found, _ in run.searched.find(keys, np.arange(len(keys)))) == 3000
    assert sum(searched) >= 9000
    assert run.searched._index is None


def test_groups_of_rows_that_lie_close_together_are_found_by_an_index_too() -> None:
    uppers = np.sort(np.random.default_rng(7).integers(0, 1 << 32, 6, dtype=np.uint64)) << np.uint64(32)
    hashes = np.add.outer(uppers, np.arange(900, dtype=np.uint64) << np.uint64(20)).ravel()
    keys = KeyRows(hashes, (pa.array(np.arange(len(hashes))),))
    stored = np.flatnonzero(np.arange(len(hashes)) % 3 == 0)
    run = run_of(StateRows(keys.take(stored), (pa.array(stored),)), batch_rows=200)
    for _ in range(2):
        found = np.concatenate([numbers for numbers, _ in run.searched.find(keys, np.arange(len(keys)))])
        assert np.sort(found).tolist() == stored.tolist()
    assert run.searched._index is not None


def test_a_hash_behind_a_batch_is_not_looked_for_outside_of_it() -> None:
    near, far = np.arange(0, 100, 10, dtype=np.uint64), np.arange(1 << 40, (1 << 40) + 50_000, 10, dtype=np.uint64)
    memory = np.concatenate([far, near])  # Nothing lies behind the first batch.
    parts = [memory[len(far) :], memory[: len(far)]]
    batches = [StateRows(KeyRows(part, (pa.array(part),)), (pa.array(part),)) for part in parts]
    hashes = np.arange(100, 20_000, dtype=np.uint64)
    keys = KeyRows(hashes, (pa.array(hashes),))
    searched = Run(batches, ALL, MAX_PARALLELISM).searched
    assert [list(searched.find(keys, np.arange(len(keys)))) for _ in range(3)] == [[], [], []]
    assert searched._index is not None


def test_columns_of_arrays_that_lie_anywhere_are_read_in_place() -> None:
    arrays = [pa.array([1, 2, 3]), pa.array([9, 4, 5, 6]).slice(1), pa.array([7, None])]
    column = Scattered(arrays)
    some = Places(np.array([2, 0, 1, 2, 1]), np.array([1, 4, 5]))
    assert column.take(some).to_pylist() == [3, 4, 5, 6, None]
    assert some.take(np.array([0, 3, 4])).ends.tolist() == [1, 2, 3]
