"""What tells the hashes that are not there, and searches that use it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import ALL, LONGS, MAX_PARALLELISM, changes, collide, columns, run_of

from stateline.state.gather import Places, Scattered
from stateline.state.hash_filter import HashFilter
from stateline.state.keys import group_rows, key_rows
from stateline.state.table import StateTable


def passed(parts: list[np.ndarray], hashes: np.ndarray) -> np.ndarray:
    edges = hashes.searchsorted(np.array([part[0] for part in parts], dtype=np.uint64))
    counts = np.diff(edges, append=len(hashes))
    return hashes[edges[0] :][HashFilter(parts).passed(hashes[edges[0] :], counts)]


@given(
    stored=st.sets(st.integers(0, 2**64 - 1), min_size=1, max_size=60),
    asked=st.sets(st.integers(0, 2**64 - 1), max_size=20),
    cuts=st.sets(st.integers(1, 59), max_size=4),
)
def test_a_hash_that_is_there_always_passes(stored: set[int], asked: set[int], cuts: set[int]) -> None:
    rows = np.array(sorted(stored), dtype=np.uint64)
    parts = [part for part in np.split(rows, sorted(cut for cut in cuts if cut < len(rows))) if len(part)]
    hashes = np.array(sorted(stored | asked), dtype=np.uint64)
    assert set(passed(parts, hashes).tolist()) >= stored


def test_most_of_the_others_do_not_pass_also_where_parts_are_of_different_density() -> None:
    dice = np.random.default_rng(3)
    dense = np.unique(dice.integers(0, 1 << 40, 20_000, dtype=np.uint64))
    sparse = np.unique(dice.integers(1 << 41, 1 << 63, 20_000, dtype=np.uint64))
    for low, high in ((0, 1 << 40), (1 << 41, 1 << 63)):
        others = np.unique(dice.integers(low, high, 10_000, dtype=np.uint64))
        assert len(passed([dense, sparse], others)) < 0.25 * len(others)


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


def test_a_filter_spares_searches_once_many_were_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(changes(LONGS, {n: [n] for n in range(0, 900, 3)}), batch_rows=100)
    part = run.part(ALL, MAX_PARALLELISM, None)
    keys = group_rows(key_rows(LONGS, columns(LONGS.keys, [(n,) for n in range(900)]))).keys
    wanted = np.arange(len(keys))
    searched = []
    hits = type(run.searched)._hits

    def counted(self: object, hashes: np.ndarray, edges: list[int]) -> object:
        searched.append(len(hashes))
        return hits(self, hashes, edges)  # type: ignore[arg-type]

    monkeypatch.setattr(type(run.searched), "_hits", counted)
    answers = [list(one.searched.find(keys, wanted)) for one in (run, part)]
    assert searched[0] == 900
    assert 300 <= searched[1] < 500, "the filter is made once for a run and all parts of it"
    assert answers[0][0][0].tolist() == answers[1][0][0].tolist()


def test_columns_of_arrays_that_lie_anywhere_are_read_in_place() -> None:
    arrays = [pa.array([1, 2, 3]), pa.array([9, 4, 5, 6]).slice(1), pa.array([7, None])]
    column = Scattered(arrays)
    some = Places(np.array([2, 0, 1, 2, 1]), np.array([1, 4, 5]))
    assert column.take(some).to_pylist() == [3, 4, 5, 6, None]
    assert some.take(np.array([0, 3, 4])).ends.tolist() == [1, 2, 3]
