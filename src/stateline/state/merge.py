"""Merging runs: which ones, and how.

Owns the plan (pure: sizes in, adjacent runs out) and the vectorised merge. Does not own when it runs or where the
result goes (``snapshot``).

Invariants:
- Only adjacent runs are merged, and the result takes their place, so "the newer run wins" stays true.
- A tombstone is dropped only when no older run that could hold its key is left outside the merge.
- Neighbours in a stack that share no key group are one *level*, and are merged only together: no key is in two of them.

Bounds, for settings ``runs_max``, ``space_factor`` and ``piece_bytes``:
- **Reads**: after a checkpoint a stack has at most ``runs_max`` levels, so a key is looked for in so many runs at most.
- **Space**: rows stored are at most ``space_factor`` times the live ones (above a floor of ``small_rows``). Live rows
  are at least those of the oldest runs less all tombstones.
- **Writes**: a row is rewritten when runs of about its run's size have gathered, so about log(state / changes) times:
  5 times in 1,000 checkpoints of equal size, 8 times in 5,000.
- **Memory**: what is merged at a time, and becomes one run, is about ``piece_bytes``, however large the state is. A
  level that is larger is several runs of neighbouring key groups.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Self

import numpy as np

from stateline.errors import InvalidInputError
from stateline.handles import RunHandle
from stateline.key_groups import KeyGroupRange, hash_bounds
from stateline.options import normalise_settings, parse_int, parse_size, setting
from stateline.state.columns import Mask, take
from stateline.state.keys import group_sorted
from stateline.state.rows import Run, StateRows

__all__ = [
    "MergeSettings",
    "RunSize",
    "drops_tombstones",
    "is_merge_due",
    "live_rows_min",
    "merge_pieces",
    "merge_runs",
    "merge_windows",
    "plan_merge",
]

_WINDOW_ROWS: Final = 131_072
"""Rows merged at a time: few enough to stay in the cache, enough to make numpy's overhead vanish."""

_SOONER: Final = 0.5
_TIER_SLACK: Final = 1.2
"""How much bigger than all newer runs together the next older one may be to be of their size. Batches vary."""

Expired = Callable[[StateRows], Mask]


def _factor(value: float | str, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 1.0 < number <= 100.0:
        raise InvalidInputError(f"{value!r} is not valid", subject=name, hint="Give a number above 1, such as 2")
    return number


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MergeSettings:
    """When runs are merged.

    Attributes:
        runs_max: Runs that a key may be in after a checkpoint, at most.
        tier_runs: How many runs of about one size are gathered before they are merged.
        space_factor: Rows stored for each live row, at most.
        small_rows: A stack of fewer rows is never merged for its space.
        piece_bytes: How much is merged at a time, about. A merge needs memory for two to three times as much; its
            result is one run for each piece, so a checkpoint that merges more than this writes more objects.
    """

    runs_max: int = setting(8, lambda value, name: parse_int(value, name, minimum=1), help="runs of a key, at most")
    tier_runs: int = setting(
        4, lambda value, name: parse_int(value, name, minimum=2), help="runs of one size before they are merged"
    )
    space_factor: float = setting(2.0, _factor, help="rows stored for each live row, at most")
    small_rows: int = setting(
        10_000, lambda value, name: parse_int(value, name, minimum=0), help="smaller stacks are not merged for space"
    )
    piece_bytes: int = setting("256MiB", parse_size, help="bytes that are merged at a time")

    def __post_init__(self) -> None:
        normalise_settings(self)
        if self.piece_bytes < 1:
            raise InvalidInputError("0 is not valid", subject="piece_bytes", hint="Give 1 byte or more, such as 256MiB")

    @property
    def sooner(self) -> Self:
        """For a subtask whose neighbours merge now: it merges too, if it is half way to the bound of space.

        Subtasks grow alike, so from then on they merge in the same checkpoints. A micro-batch lasts as long as its
        slowest subtask: merges that take turns would lengthen every batch, those that coincide only some.
        """
        return dataclasses.replace(self, space_factor=1 + (self.space_factor - 1) * _SOONER)


@dataclasses.dataclass(frozen=True, slots=True)
class RunSize:
    """What the plan looks at.

    Attributes:
        rows: Rows that count.
        key_groups: What the run covers.
        tombstones: How many of the rows delete their key.
    """

    rows: int
    key_groups: KeyGroupRange
    tombstones: int = 0

    @classmethod
    def of(cls, run: Run) -> RunSize:
        """The size of an open run."""
        return cls(len(run), run.key_groups, run.tombstones)


def plan_merge(sizes: Sequence[RunSize], settings: MergeSettings | None = None) -> range | None:
    """The adjacent runs to merge next, as their numbers; ``None`` if the stack is good as it is.

    Args:
        sizes: Oldest first.
        settings: The bounds to keep.
    """
    settings = settings or MergeSettings()
    levels = _levels(sizes)
    rows = [sum(sizes[number].rows for number in level) for level in levels]
    planned = _plan_levels(rows, live_rows_min(sizes), settings)
    return None if planned is None else range(levels[planned[0]].start, levels[planned[-1]].stop)


def _plan_levels(rows: Sequence[int], live_rows: int, settings: MergeSettings) -> range | None:
    """The adjacent levels to merge next; arguments are the rows of each, oldest first, and a bound of the live ones."""
    count = len(rows)
    if count < 2:
        return None
    if sum(rows) > settings.small_rows and sum(rows) > settings.space_factor * live_rows:
        return range(count)
    start, gathered = count - 1, rows[-1]
    while start > 0 and rows[start - 1] <= _TIER_SLACK * gathered:
        start -= 1
        gathered += rows[start]
    if count - start >= settings.tier_runs:
        return range(start, count)
    return _best_balanced(rows, count - settings.runs_max) if count > settings.runs_max else None


def _levels(sizes: Sequence[RunSize]) -> list[range]:
    """The stack as groups of neighbours that share no key group, each as large as can be, oldest first."""
    levels: list[range] = []
    for number, size in enumerate(sizes):
        if levels and not any(len(sizes[other].key_groups.intersection(size.key_groups)) for other in levels[-1]):
            levels[-1] = range(levels[-1].start, number + 1)
        else:
            levels.append(range(number, number + 1))
    return levels


def is_merge_due(stack: Sequence[RunHandle], settings: MergeSettings | None = None) -> bool:
    """Whether a stack will be merged at the next checkpoint, if that brings as many changes as the last one."""
    sizes = [RunSize(run.rows, KeyGroupRange(run.first_key_group, run.last_key_group), run.tombstones) for run in stack]
    newest = _levels(sizes)[-1:]
    return plan_merge([*sizes, *(sizes[number] for level in newest for number in level)], settings) is not None


def _best_balanced(rows: Sequence[int], fewer: int) -> range:
    """The adjacent runs that shorten the stack by ``fewer`` or more with the least futile rewriting.

    Rewriting a big run to take a small one in is futile, so the best window is the one whose biggest run is the
    smallest part of it. Picking the window with the fewest rows instead rewrites each row fifty times
    (``docs/decisions/0017-grouping.md``).
    """
    best, best_score = range(len(rows)), (float("inf"), 0)
    for start in range(len(rows)):
        total = biggest = rows[start]
        for end in range(start + 1, len(rows)):
            total += rows[end]
            biggest = max(biggest, rows[end])
            score = (biggest / max(total - biggest, 1), total)
            if end - start >= fewer and score < best_score:
                best, best_score = range(start, end + 1), score
    return best


def live_rows_min(sizes: Sequence[RunSize]) -> int:
    """A lower bound of the live rows: those of the runs with nothing below them, less all tombstones."""
    bottoms = [
        size.rows
        for number, size in enumerate(sizes)
        if drops_tombstones([below.key_groups for below in sizes[:number]], [size.key_groups])
    ]
    return max(sum(bottoms) - sum(size.tombstones for size in sizes), 0)


def drops_tombstones(older: Sequence[KeyGroupRange], merged: Sequence[KeyGroupRange]) -> bool:
    """Whether a merge may forget what it deletes: no run below it covers any of its key groups."""
    return not any(len(below.intersection(part)) for below in older for part in merged)


def merge_pieces(
    below: Sequence[Run], runs: Sequence[Run], max_parallelism: int, piece_bytes: int, expired: Expired | None = None
) -> Iterator[Run]:
    """One level in memory with the newest row of each key, a piece at a time: none is made before it is asked for.

    Args:
        below: What is older in the stack. Tombstones are kept where it may hold their keys.
        runs: Adjacent, oldest first; at least one.
        max_parallelism: Number of key groups.
        piece_bytes: Of ``runs``, about, that become one piece, unless one key group alone has more.
        expired: As in :func:`merge_runs`.

    Returns:
        Runs of neighbouring, disjoint key groups, ascending; none is empty. Nothing here holds on to one it has given.
    """
    first = min(run.key_groups.start for run in runs)
    count = max(run.key_groups.end for run in runs) + 1 - first
    pieces = min(max(-(-sum(run.nbytes for run in runs) // piece_bytes), 1), count)
    borders = [first + number * count // pieces for number in range(pieces + 1)]
    parts = (KeyGroupRange(start, end - 1) for start, end in itertools.pairwise(borders))
    older = [run.key_groups for run in below]
    merged = (
        merge_runs(runs, part, max_parallelism, drop_tombstones=drops_tombstones(older, [part]), expired=expired)
        for part in parts
    )
    return filter(len, merged)


def merge_runs(
    runs: Sequence[Run],
    key_groups: KeyGroupRange,
    max_parallelism: int,
    *,
    drop_tombstones: bool,
    expired: Expired | None = None,
) -> Run:
    """One run in memory with the newest row of each key.

    Args:
        runs: Adjacent, oldest first.
        key_groups: What the result covers; rows outside are left out.
        max_parallelism: Number of key groups.
        drop_tombstones: See :func:`drops_tombstones`.
        expired: Tells which rows have outlived their time. They are dropped as if deleted, which leaves a tombstone
            wherever an older version could come to light.
    """
    merged = merge_windows(runs, key_groups, max_parallelism, drop_tombstones=drop_tombstones, expired=expired)
    return Run(list(merged), key_groups, max_parallelism)


def merge_windows(
    runs: Sequence[Run],
    key_groups: KeyGroupRange,
    max_parallelism: int,
    *,
    drop_tombstones: bool,
    expired: Expired | None = None,
    window_rows: int = _WINDOW_ROWS,
) -> Iterator[StateRows]:
    """The newest row of each key, ascending by hash, window after window; see :func:`merge_runs`.

    Yields:
        Rows of neighbouring, disjoint ranges of hashes; none is empty.
    """
    borders = _window_borders(runs, key_groups, max_parallelism, window_rows)
    for low, high in itertools.pairwise(borders):
        stacks = [parts for run in reversed(runs) if (parts := run.between(low, high))]
        # The rows of one run are merged already: they are handed on as they lie.
        windows = [_newest(list(itertools.chain(*stacks)))] if len(stacks) > 1 else itertools.chain(*stacks)
        for window in windows:
            kept = _kept(window, drop_tombstones=drop_tombstones, expired=expired)
            if len(kept):
                yield kept


def _kept(rows: StateRows, *, drop_tombstones: bool, expired: Expired | None) -> StateRows:
    """What remains of rows once those that expired, and tombstones below which nothing lies, are gone."""
    if expired is not None:
        rows = _with_expired(rows, expired(rows))
    if drop_tombstones and rows.deleted is not None:
        rows = dataclasses.replace(rows.take(np.flatnonzero(~rows.deleted)), deleted=None)
    return rows


def _newest(parts: Sequence[StateRows]) -> StateRows:
    """One row per key out of parts, of which the first ones are newer."""
    rows = StateRows.concat(parts)
    # The parts ascend each by itself: a stable sort merges them, and leaves the newest row of a key in front.
    order = np.argsort(rows.keys.hashes, kind="stable")
    groups = group_sorted(rows.keys, order, rows.keys.hashes.take(order))
    newest = groups.order.take(groups.starts)  # Not of ``order``: colliding hashes may have changed it.
    values = tuple(take(column, newest) for column in rows.values)
    deleted = None if rows.deleted is None else rows.deleted.take(newest)
    return StateRows(groups.keys, values, deleted if deleted is not None and deleted.any() else None)


def _with_expired(rows: StateRows, gone: Mask) -> StateRows:
    if not gone.any():
        return rows
    return dataclasses.replace(rows, deleted=gone if rows.deleted is None else gone | rows.deleted)


def _window_borders(
    runs: Sequence[Run], key_groups: KeyGroupRange, max_parallelism: int, window_rows: int
) -> list[int]:
    """Hashes that cut the key groups so that about ``window_rows`` rows lie between two: hashes are uniform.

    The cuts are borders of key groups wherever there are enough of them, which makes for well-cut record batches.
    """
    low, high = hash_bounds(key_groups, max_parallelism)
    windows = -(-sum(len(run) for run in runs) // window_rows)
    groups = len(key_groups)
    if windows <= groups:
        firsts = [key_groups.start + number * groups // windows for number in range(1, windows)]
        inner = [hash_bounds(KeyGroupRange(first, first), max_parallelism)[0] for first in firsts]
    else:
        inner = [low + number * (high - low) // windows for number in range(1, windows)]
    return [low, *inner, high]
