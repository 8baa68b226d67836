"""Which runs are merged, and what comes out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_kit import ALL, LONGS, MAX_PARALLELISM, changes, collide, contents, run_of, table_of

from stateline.errors import InvalidInputError
from stateline.handles import RunHandle
from stateline.key_groups import KeyGroupRange
from stateline.state.merge import (
    MergeSettings,
    RunSize,
    drops_tombstones,
    is_merge_due,
    live_rows_min,
    merge_pieces,
    merge_runs,
    merge_windows,
    plan_merge,
)
from stateline.state.rows import Run, StateRows
from stateline.state.snapshot import merge_once

LEFT, RIGHT = KeyGroupRange(0, 7), KeyGroupRange(8, 15)


def sizes(*rows: int, tombstones: int = 0) -> list[RunSize]:
    """Runs of these rows, the newest of which has the tombstones."""
    made = [RunSize(count, ALL) for count in rows]
    if tombstones:
        made[-1] = RunSize(rows[-1], ALL, tombstones)
    return made


@pytest.mark.parametrize(
    ("stack", "planned"),
    [
        (sizes(), None),
        (sizes(1_000_000), None),
        (sizes(1_000_000, 100_000), None),
        (sizes(1_000_000, 100_000, 100_000, 100_000, 100_000), range(1, 5)),
        (sizes(1_000_000, 300_000, 100_000, 100_000, 100_000, 100_000), range(1, 6)),
        (sizes(1_000_000, 600_000, 500_000), range(3)),
        (sizes(1_000_000, 450_000, tombstones=400_000), range(2)),
        (sizes(100, 90, 80), None),
        (sizes(100, 90, 80, 60), None),
        (sizes(100, 90, 80, 90), range(4)),
        (sizes(10_000_000, 256, 128, 64, 32, 16, 8, 4, 2), range(1, 9)),
        (sizes(10_000_000, 90_000, 80_000, 300, 200, 20_000, 19_000, 800, 700, 200), range(1, 10)),
        (sizes(10_000_000, 90_000, 9_000, 300, 200, 20_000, 2_000, 1_000, 700, 100), range(6, 10)),
    ],
)
def test_the_plan(stack: list[RunSize], planned: range | None) -> None:
    assert plan_merge(stack) == planned


def test_settings_are_checked() -> None:
    wrongs = ({"space_factor": 1.0}, {"space_factor": "x"}, {"runs_max": 0}, {"tier_runs": 1}, {"piece_bytes": 0})
    for wrong in wrongs:
        with pytest.raises(InvalidInputError):
            MergeSettings(**wrong)
    assert MergeSettings(space_factor="1.5").space_factor == 1.5  # type: ignore[arg-type]


def pieces(rows: int, count: int = 4) -> list[RunSize]:
    """One level of so many rows, in runs of neighbouring key groups."""
    width = len(ALL) // count
    return [RunSize(rows // count, KeyGroupRange(n * width, (n + 1) * width - 1)) for n in range(count)]


@pytest.mark.parametrize(
    ("stack", "planned"),
    [
        (pieces(1_000_000, 16), None),
        ([*pieces(1_000_000, 16), *sizes(100_000)], None),
        ([*pieces(1_000_000), *sizes(600_000, 500_000)], range(6)),
        ([*pieces(10_000_000), *sizes(100_000, 100_000, 100_000, 100_000)], range(4, 8)),
        ([*pieces(10_000_000), *pieces(100_000), *sizes(90_000, 100_000, 100_000)], range(4, 11)),
        ([*pieces(10_000_000), *pieces(1_000_000, 16), *sizes(10_000, 9_000)], None),
        (sizes(10_000_000) + pieces(256, 2) + sizes(128, 64, 32, 16, 8, 4, 2), range(1, 10)),
    ],
)
def test_runs_that_share_no_key_group_are_one_level(stack: list[RunSize], planned: range | None) -> None:
    assert plan_merge(stack) == planned


def test_disjoint_stacks_do_not_count_as_waste() -> None:
    stack = [RunSize(1000, LEFT), RunSize(900, RIGHT), RunSize(100, LEFT, 10)]
    assert live_rows_min(stack) == 1890
    assert drops_tombstones([LEFT], [RIGHT])
    assert not drops_tombstones([LEFT, RIGHT], [RIGHT])
    assert drops_tombstones([], [ALL])


@given(
    batches=st.lists(st.integers(1, 400), min_size=1, max_size=60),
    runs_max=st.integers(1, 8),
    tier_runs=st.integers(2, 5),
    keys=st.integers(1, 500),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_reads_space_and_writes_are_bounded(
    batches: list[int], runs_max: int, tier_runs: int, keys: int, seed: int
) -> None:
    """Simulates merging over sets of keys: whatever the batches, the promised bounds hold after each."""
    bounds = MergeSettings(runs_max=runs_max, tier_runs=tier_runs, small_rows=50)
    dice = np.random.default_rng(seed)
    stack: list[dict[int, bool]] = []  # per run: key -> is a tombstone
    for count in batches:
        change = {int(key): bool(dice.random() < 0.3) for key in dice.integers(0, keys, count)}
        stack.append(change)
        planned = plan_merge([RunSize(len(run), ALL, sum(run.values())) for run in stack], bounds)
        if planned is not None:
            merged: dict[int, bool] = {}
            for number in planned:
                merged |= stack[number]
            if planned.start == 0:
                merged = {key: False for key, gone in merged.items() if not gone}
            stack[planned.start : planned.stop] = [merged] if merged else []
        newest: dict[int, bool] = {}
        for run in stack:
            newest |= run
        live = sum(not gone for gone in newest.values())
        rows = sum(map(len, stack))
        assert len(stack) <= runs_max
        assert rows <= max(bounds.small_rows, 2 * live)


def test_a_row_is_rewritten_a_logarithmic_number_of_times() -> None:
    stack, written = [100_000_000], 0
    for _ in range(1000):
        stack.append(10_000)
        planned = plan_merge([RunSize(rows, ALL) for rows in stack])
        if planned is not None:
            merged = sum(stack[number] for number in planned)
            stack[planned.start : planned.stop] = [merged]
            written += merged
    assert written <= 6 * 1000 * 10_000


def test_subtasks_that_grow_alike_come_to_merge_at_the_same_checkpoints() -> None:
    """Each has a million live rows, of which every checkpoint changes 400,000, and begins at another point."""

    def handles(stack: list[int]) -> list[RunHandle]:
        return [
            RunHandle(
                name=str(number), size=1, crc32c=0, rows=rows, first_key_group=0, last_key_group=0, checkpoint_id=0
            )
            for number, rows in enumerate(stack)
        ]

    stacks = [[1_000_000], [1_000_000, 400_000], [1_000_000, 400_000, 400_000]]
    merged_at: list[set[int]] = []
    for _ in range(30):
        is_due = any(is_merge_due(handles(stack)) for stack in stacks)
        merging = set()
        for number, stack in enumerate(stacks):
            stack.append(400_000 + 1000 * number)
            bounds = MergeSettings().sooner if is_due else MergeSettings()
            planned = plan_merge([RunSize(rows, ALL) for rows in stack], bounds)
            if planned is not None:
                assert planned == range(len(stack))
                stack[:] = [1_000_000]
                merging.add(number)
        merged_at.append(merging)
    late = merged_at[10:]
    assert {frozenset(merging) for merging in late} == {frozenset(), frozenset({0, 1, 2})}
    assert sum(map(bool, late)) <= len(late) / 2, "merging together must not mean merging always"


# -- merging ----------------------------------------------------------------------------------------


def as_dict(batches: list[StateRows]) -> dict[int, int | None]:
    """Value by key; ``None`` for a tombstone."""
    found = {}
    for batch in batches:
        deleted = np.zeros(len(batch), bool) if batch.deleted is None else batch.deleted
        for key, value, gone in zip(
            batch.keys.columns[0].to_pylist(), batch.values[0].to_pylist(), deleted.tolist(), strict=True
        ):
            assert key not in found
            found[key] = None if gone else value
    return found


@pytest.mark.parametrize("bits", [64, 3, 0])
@pytest.mark.parametrize("window_rows", [1, 7, 1000])
def test_the_newest_row_of_each_key_wins(bits: int, window_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if bits < 64:
        collide(monkeypatch, bits)
    layers = [
        changes(LONGS, {n: [n] for n in range(50)}),
        changes(LONGS, {n: [100 + n] for n in range(0, 50, 2)}, deleted=range(1, 50, 4)),
        changes(LONGS, {n: [200 + n] for n in range(0, 60, 5)}, deleted=[2, 99]),
    ]
    runs = [run_of(layer) for layer in layers]
    expected: dict[int, int | None] = {n: n for n in range(50)}
    expected |= {n: 100 + n for n in range(0, 50, 2)} | dict.fromkeys(range(1, 50, 4))
    expected |= {n: 200 + n for n in range(0, 60, 5)} | {2: None, 99: None}

    def merged(drop: bool) -> dict[int, int | None]:
        windows = list(merge_windows(runs, ALL, MAX_PARALLELISM, drop_tombstones=drop, window_rows=window_rows))
        firsts = [int(rows.keys.hashes[0]) for rows in windows]
        assert firsts == sorted(set(firsts))
        return as_dict(windows)

    assert merged(drop=False) == expected
    assert merged(drop=True) == {key: value for key, value in expected.items() if value is not None}


def test_a_merge_that_leaves_an_older_run_out_keeps_tombstones() -> None:
    table = table_of(
        LONGS,
        changes(LONGS, {n: [n] for n in range(1, 20)}),
        changes(LONGS, {3: [9]}),
        changes(LONGS, deleted=[1]),
        changes(LONGS, {2: [5]}),
    )
    expected = {2: (5,), 3: (9,)} | {n: (n,) for n in range(4, 20)}
    tight = MergeSettings(runs_max=2, tier_runs=3, small_rows=1000)
    merged, count = merge_once(table, tight)
    assert (count, len(merged.runs)) == (3, 2)
    assert contents(merged) == contents(table) == expected
    assert merged.runs[1].tombstones == 1
    again, count = merge_once(merged, MergeSettings(runs_max=1))
    assert (count, len(again.runs), again.rows) == (2, 1, 18)
    assert contents(again) == expected


@pytest.mark.parametrize("piece_bytes", [1, 100, 300, 1 << 20])
def test_a_large_merge_is_cut_at_key_groups(piece_bytes: int) -> None:
    table = table_of(
        LONGS,
        changes(LONGS, {n: [n] for n in range(40)}),
        changes(LONGS, {n: [-n] for n in range(0, 60, 3)}, deleted=range(1, 60, 6)),
    )
    merged, count = merge_once(table, MergeSettings(runs_max=1, piece_bytes=piece_bytes))
    wanted = min(-(-table.nbytes // piece_bytes), len(ALL))
    assert (count, contents(merged)) == (2, contents(table))
    assert len(merged.runs) <= wanted
    assert len(merged.runs) > wanted / 2, "most key groups have rows here"
    covered = [group for run in merged.runs for group in run.key_groups]
    assert covered == sorted(set(covered))
    assert merge_once(merged, MergeSettings(runs_max=1, piece_bytes=1))[1] == 0, "pieces are no reason to merge"


def test_a_piece_drops_tombstones_where_nothing_lies_below_it() -> None:
    """An older run covers the left half only: a deletion on the right has nothing more to hide."""
    numbers = range(100)
    below = run_of(changes(LONGS, {n: [n] for n in numbers}), LEFT)
    layers = [run_of(changes(LONGS, {n: [-n] for n in numbers})), run_of(changes(LONGS, deleted=numbers))]
    made = list(merge_pieces([below], layers, MAX_PARALLELISM, 1))
    assert [run.key_groups.start for run in made] == [*LEFT]
    assert sum(run.tombstones for run in made) == len(below)


def test_pieces_are_made_one_after_the_other() -> None:
    table = table_of(LONGS, changes(LONGS, {n: [n] for n in range(100)}), changes(LONGS, {1: [2]}))
    asked = []

    def expired(rows: StateRows) -> np.ndarray:
        asked.append(len(rows))
        return np.zeros(len(rows), dtype=np.bool_)

    made = merge_pieces((), table.runs, MAX_PARALLELISM, 1, expired)
    assert asked == []
    first = next(made)
    assert len(first) == sum(asked) < 100
    assert len(first) + sum(map(len, made)) == sum(asked) == 100


def test_a_merge_of_nothing_but_deletions_leaves_no_run() -> None:
    table = table_of(LONGS, changes(LONGS, {1: [1]}), changes(LONGS, deleted=[1]))
    merged, count = merge_once(table, MergeSettings(runs_max=1))
    assert (count, merged.runs) == (2, ())
    assert contents(merged) == {}


@pytest.mark.parametrize("drop", [True, False])
def test_expired_rows_go_as_if_deleted(drop: bool) -> None:
    runs = [run_of(changes(LONGS, {n: [n] for n in range(10)})), run_of(changes(LONGS, {3: [30]}, deleted=[4]))]

    def expired(rows: StateRows) -> np.ndarray:
        return rows.values[0].fill_null(0).to_numpy() >= 8

    merged = as_dict(list(merge_runs(runs, ALL, MAX_PARALLELISM, drop_tombstones=drop, expired=expired).batches))
    live = {0: 0, 1: 1, 2: 2, 5: 5, 6: 6, 7: 7}
    assert merged == (live if drop else {**live, 3: None, 4: None, 8: None, 9: None})


def test_one_run_alone_is_passed_through_without_a_copy() -> None:
    run = run_of(changes(LONGS, {n: [n] for n in range(10)}), batch_rows=100)
    (window,) = merge_windows([run], ALL, MAX_PARALLELISM, drop_tombstones=True)
    assert window.values[0].buffers()[1].address == run.batches[0].values[0].buffers()[1].address


def test_rows_outside_the_key_groups_are_left_out() -> None:
    run = run_of(changes(LONGS, {n: [n] for n in range(100)}))
    left = merge_runs([run], LEFT, MAX_PARALLELISM, drop_tombstones=True)
    right = merge_runs([run], RIGHT, MAX_PARALLELISM, drop_tombstones=True)
    assert as_dict(list(left.batches)) | as_dict(list(right.batches)) == {n: n for n in range(100)}
    assert len(left) + len(right) == 100
    assert isinstance(left, Run)
