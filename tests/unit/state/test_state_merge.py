"""Which runs are merged, and what comes out."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_kit import ALL, LONGS, MAX_PARALLELISM, changes, collide, contents, merge_once, run_of, table_of

from stateline.errors import InvalidInputError
from stateline.key_groups import KeyGroupRange, key_group_of, stable_hash
from stateline.state import snapshot as snapshot_module
from stateline.state.merge import (
    MergeSettings,
    SlicedStack,
    merge_runs,
    merge_windows,
    plan_merges,
)
from stateline.state.rows import StateRows
from stateline.state.runs import Run
from stateline.state.snapshot import Layers
from stateline.state.table import StateTable

LEFT, RIGHT = KeyGroupRange(0, 7), KeyGroupRange(8, 15)


def planned(*stack: int, tombstones: int = 0, **bounds: Any) -> int | None:
    """The first run of a table of one slice that is merged."""
    rows = np.array([[count] for count in stack], dtype=np.int64).reshape(-1, 1)
    deleted = np.zeros_like(rows)
    if tombstones:
        deleted[-1] = tombstones
    (first,) = plan_merges(SlicedStack(rows, deleted, rows, stack[-1] if stack else 0), MergeSettings(**bounds))
    return first


@pytest.mark.parametrize(
    ("stack", "first"),
    [
        ((), None),
        ((1_000_000,), None),
        ((1_000_000, 100_000), None),
        ((1_000_000, 100_000, 100_000, 100_000, 100_000), 1),
        ((2_000_000, 300_000, 100_000, 100_000, 100_000, 100_000), 1),
        ((1_000_000, 300_000, 250_000), 0),
        ((1_000_000, 0, 300_000, 0, 100_000), None),
        ((0, 100_000, 0, 100_000, 100_000, 100_000), 1),
        ((100, 90, 80), None),
        ((100, 90, 80, 60), None),
        ((100, 90, 80, 90), 0),
    ],
)
def test_the_plan_of_a_slice(stack: tuple[int, ...], first: int | None) -> None:
    assert planned(*stack) == first


def test_deletions_count_as_waste() -> None:
    assert planned(1_000_000, 450_000) is None
    assert planned(1_000_000, 450_000, tombstones=400_000) == 0


def test_a_slice_of_too_many_runs_is_merged_where_least_is_rewritten_in_vain() -> None:
    stack = (10_000_000, 256, 128, 64, 32, 16, 8, 4, 2)
    assert planned(*stack) is None
    assert planned(*stack, runs_max=8) == 1
    assert planned(10_000_000, 90_000, 300, 200, 150, 100, 80, 50, 40, 30, runs_max=8) == 3


def test_settings_are_checked() -> None:
    wrongs: list[dict[str, Any]] = [{"space_factor": 1.0}, {"space_factor": "x"}, {"runs_max": 0}, {"tier_runs": 1}]
    wrongs += [{"piece_bytes": 0}, {"rows_per_change": 1}, {"rows_per_change": "x"}]
    for wrong in wrongs:
        with pytest.raises(InvalidInputError):
            MergeSettings(**wrong)
    assert MergeSettings(space_factor="1.5").space_factor == 1.5  # type: ignore[arg-type]


@given(
    batches=st.lists(st.integers(1, 400), min_size=1, max_size=60),
    runs_max=st.integers(1, 8),
    tier_runs=st.integers(2, 5),
    keys=st.integers(1, 500),
    slices=st.integers(1, 6),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_reads_and_space_are_bounded(
    batches: list[int], runs_max: int, tier_runs: int, keys: int, slices: int, seed: int
) -> None:
    """Simulates merging over sets of keys: whatever the batches, the promised bounds hold after each."""
    bounds = MergeSettings(runs_max=runs_max, tier_runs=tier_runs, small_rows=50)
    dice = np.random.default_rng(seed)
    stack: list[dict[int, bool]] = []  # per run: key -> is a tombstone; a key is in the slice of its remainder
    for count in batches:
        stack.append({int(key): bool(dice.random() < 0.3) for key in dice.integers(0, keys, count)})
        parts = [[{k: v for k, v in run.items() if k % slices == part} for part in range(slices)] for run in stack]
        rows = np.array([[len(part) for part in run] for run in parts], dtype=np.int64)
        deleted = np.array([[sum(part.values()) for part in run] for run in parts], dtype=np.int64)
        for part, first in enumerate(plan_merges(SlicedStack(rows, deleted, rows, len(stack[-1])), bounds)):
            if first is None:
                continue
            merged: dict[int, bool] = {}
            for run in parts[first:]:
                merged |= run[part]
                run[part] = {}
            if not rows[:first, part].any():
                merged = {key: False for key, gone in merged.items() if not gone}
            parts[-1][part] = merged
        for part in range(slices):
            assert sum(bool(run[part]) for run in parts) <= runs_max
        stack = [whole for run in parts if (whole := {k: v for part in run for k, v in part.items()})]
        newest: dict[int, bool] = {}
        for run in stack:
            newest |= run
        live = sum(not gone for gone in newest.values())
        assert sum(map(len, stack)) <= max(bounds.small_rows, 2 * live)


@dataclasses.dataclass
class Course:
    """What became of a table of one subtask, in millions of fluid rows: the rows of random keys of a universe."""

    merged: list[float] = dataclasses.field(default_factory=list)
    heights: list[int] = dataclasses.field(default_factory=list)
    stored: list[float] = dataclasses.field(default_factory=list)
    live: list[float] = dataclasses.field(default_factory=list)


def course(universe: int, batch: int, batches: int, slices: int = 64) -> Course:
    """Random keys, so many at a time; a run that any slice needs is stored whole."""
    share, made = universe / slices, Course()
    changed = np.full(slices, share * (1 - (1 - 1 / universe) ** batch))
    stack: list[np.ndarray] = []
    sizes: list[float] = []
    for _ in range(batches):
        stack.append(changed.copy())
        rows = np.rint(np.array(stack)).astype(np.int64)
        merged = 0.0
        weights = np.array([[size / run.sum()] for size, run in zip([*sizes, changed.sum()], stack, strict=True)])
        sliced = SlicedStack(rows, np.zeros_like(rows), (rows * weights).astype(np.int64), int(rows[-1].sum()))
        for part, first in enumerate(plan_merges(sliced)):
            if first is not None:
                taken = np.array([run[part] for run in stack[first:]])
                merged += float(taken.sum())
                for run in stack[first:]:
                    run[part] = 0
                stack[-1][part] = share * (1 - np.prod(1 - taken / share))
        sizes.append(float(stack[-1].sum()))
        left = [number for number, run in enumerate(stack) if run.any()]
        stack, sizes = [stack[number] for number in left], [sizes[number] for number in left]
        made.merged.append(merged / float(changed.sum()))
        made.heights.append(int((np.array(stack) > 0).sum(axis=0).max()))
        made.stored.append(sum(sizes))
        made.live.append(float((share * (1 - np.prod([1 - run / share for run in stack], axis=0))).sum()))
    return made


@pytest.mark.parametrize(
    ("universe", "batch", "batches", "mean_max", "most"),
    [
        (50_000_000, 500_000, 100, 3.6, 8.1),
        (5_000_000, 100_000, 200, 3.6, 8.1),
        (5_000_000, 500_000, 100, 3.1, 8.1),
        (1_000_000, 500_000, 60, 2.3, 8.1),
        (500_000, 100_000, 100, 2.8, 8.1),
    ],
)
def test_no_checkpoint_merges_much_more_than_the_others(
    universe: int, batch: int, batches: int, mean_max: float, most: float
) -> None:
    """In rows merged for each row that changed; all at once, as it was once, some checkpoints merge 93 of them."""
    found = course(universe, batch, batches)
    assert max(found.merged) <= most
    assert np.mean(found.merged) <= mean_max
    assert max(found.heights) <= MergeSettings().runs_max
    late = slice(10, None)
    ratios = np.array(found.stored[late]) / np.array(found.live[late])
    assert ratios.max() <= 2.1, "also with what is stored of runs that only some slices need"


def test_what_few_slices_need_of_a_large_object_is_merged_so_that_the_object_can_go() -> None:
    rows = np.full((2, 8), 100_000, dtype=np.int64)
    rows[1] = 10_000
    stored = rows.copy()
    stored[0, 3] *= 8
    assert plan_merges(SlicedStack(rows, np.zeros_like(rows), rows, 80_000)) == [None] * 8
    chosen = plan_merges(SlicedStack(rows, np.zeros_like(rows), stored, 80_000))
    assert [number for number, first in enumerate(chosen) if first is not None] == [3]


def test_little_change_merges_little_also_where_much_is_due() -> None:
    rows = np.array([[100_000] * 64, [60_000] * 64, [1] * 64], dtype=np.int64)
    chosen = plan_merges(SlicedStack(rows, np.zeros_like(rows), rows, 64))
    assert chosen == [0, *[None] * 63]


def test_the_highest_slices_come_first_and_neighbours_together() -> None:
    rows = np.full((6, 8), 100_000, dtype=np.int64)
    rows[0] = 10_000_000
    rows[1, [0, 1, 2, 3, 6, 7]] = 0  # Slices 4 and 5 have a run more.
    chosen = plan_merges(SlicedStack(rows, np.zeros_like(rows), rows, 800_000), MergeSettings(rows_per_change=2))
    assert [number for number, first in enumerate(chosen) if first is not None] == [0, 4, 5]


def test_a_row_is_rewritten_a_logarithmic_number_of_times() -> None:
    stack, written = [100_000_000], 0
    for _ in range(1000):
        stack.append(10_000)
        first = planned(*stack)
        if first is not None:
            merged = sum(stack[first:])
            stack[first:] = [merged]
            written += merged
    assert written <= 6 * 1000 * 10_000


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
    assert len(covered) == len(set(covered)), "no key group is in two of them"
    assert merge_once(merged, MergeSettings(runs_max=1, piece_bytes=1))[1] == 0, "pieces are no reason to merge"


def test_a_slice_drops_tombstones_where_nothing_lies_below_it() -> None:
    """An older run covers the left half only: a deletion on the right has nothing more to hide."""
    below = run_of(changes(LONGS, {n: [n] for n in range(1000)}), LEFT)
    numbers = range(100)
    layers = [run_of(changes(LONGS, {n: [-n] for n in numbers})), run_of(changes(LONGS, deleted=numbers))]
    table = StateTable(LONGS, ALL, MAX_PARALLELISM, [below, *layers])
    merged, count = merge_once(table, MergeSettings(tier_runs=2, piece_bytes=1))
    assert (count, contents(merged)) == (2, contents(table))
    assert sum(run.tombstones for run in merged.runs) == sum(
        len(run.part(LEFT, MAX_PARALLELISM, None)) for run in layers[1:]
    )


def test_a_run_stays_in_the_slices_that_are_not_merged() -> None:
    """The left half has a run more, so it is merged; nothing of the right half is written again."""
    oldest, both = (run_of(changes(LONGS, {n: [n + age] for n in range(100)}), ALL) for age in (0, 1))
    left = run_of(changes(LONGS, {n: [2] for n in range(100)}), LEFT)
    newest = run_of(changes(LONGS, {n: [3] for n in range(0, 100, 2)}))
    table = StateTable(LONGS, ALL, MAX_PARALLELISM, [oldest, both, left, newest])
    merged, count = merge_once(table, MergeSettings(runs_max=3, tier_runs=4, piece_bytes=1))
    assert contents(merged) == contents(table)
    assert count == 4
    kept = [run.key_groups for run in merged.runs if run.batches and run.key_groups.start >= RIGHT.start]
    assert KeyGroupRange(8, 15) in kept
    again, _ = merge_once(StateTable(LONGS, ALL, MAX_PARALLELISM, merged.runs), MergeSettings(runs_max=1))
    assert contents(again) == contents(table)


@pytest.mark.parametrize(("deleted", "passes"), [((), 1), (tuple(range(1, 40, 2)), 2)])
def test_slices_of_different_depth_are_merged_together_unless_deletions_differ(
    deleted: tuple[int, ...], passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The left half is merged with the oldest run, the right half above it: only there deletions stay."""
    oldest = run_of(changes(LONGS, {n: [n] for n in range(100)}))
    left, both = (run_of(changes(LONGS, {n: [age] for n in range(90)}), part) for age, part in ((1, LEFT), (2, ALL)))
    newest = run_of(changes(LONGS, {n: [3] for n in range(0, 100, 2)}, deleted=deleted))
    table = StateTable(LONGS, ALL, MAX_PARALLELISM, [oldest, left, both, newest])
    layers = Layers(table, 3, MergeSettings(runs_max=16, piece_bytes=1 << 20), None)
    halves = [(LEFT, 0, True), (RIGHT, 2, False)]
    layers._layers = [snapshot_module._Layer(part, first, bottom, True, 0) for part, first, bottom in halves]
    called = []

    def counted(*arguments: Any, **more: Any) -> Any:
        called.append(more["drop_tombstones"])
        return merge_windows(*arguments, **more)

    monkeypatch.setattr(snapshot_module, "merge_windows", counted)
    (made,) = layers.made()
    assert len(called) == passes
    kept = oldest.part(RIGHT, MAX_PARALLELISM, None)
    assert contents(StateTable(LONGS, ALL, MAX_PARALLELISM, [kept, made])) == contents(table)
    assert made.tombstones == sum(key_group_of(stable_hash(n), MAX_PARALLELISM) in RIGHT for n in deleted)


def test_pieces_are_made_one_after_the_other() -> None:
    table = table_of(LONGS, changes(LONGS, {n: [n] for n in range(100)}), changes(LONGS, {n: [2] for n in range(100)}))
    asked = []

    def expired(rows: StateRows) -> np.ndarray:
        asked.append(len(rows))
        return np.zeros(len(rows), dtype=np.bool_)

    made = Layers(table, 1, MergeSettings(runs_max=1, piece_bytes=1), expired).made()
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
