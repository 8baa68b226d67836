"""Merging runs: which ones, and how.

The plan is pure: numbers of rows in, numbers of runs out. ``snapshot`` carries it out.

A merge is never all or nothing. The hash space of a subtask is cut into *slices*, and each slice is a stack of its
own: the rows that each run has there. A checkpoint merges the slices that need it most, as many as its budget allows,
and the others wait. In a merged slice the upper part of the stack, always with the newest changes, becomes one layer;
so the layers of all slices together are **one** run, which lies on top of the stack everywhere, and older runs stay
for the slices that still need them.

Invariants:
- Only the upper end of a slice's stack is merged, so "the newer run wins" stays true.
- A tombstone is dropped only where no older run has rows in its slice.

Bounds, for settings ``runs_max``, ``space_factor``, ``rows_per_change`` and ``piece_bytes``:
- **Time**: a checkpoint rewrites about ``rows_per_change`` rows for each changed one, or a quarter of all that is due,
  but never more than twice ``rows_per_change``, so that none takes much longer than its neighbours. What two other
  bounds demand is done beyond it.
- **Reads**: after a checkpoint a key is looked for in at most ``runs_max`` runs.
- **Space**: rows that readers see are at most ``space_factor`` times the live ones (above a floor of ``small_rows``).
- **Writes**: a row is rewritten when runs of about its run's size have gathered, so about log(state / changes) times.
- **Memory**: what is merged at a time, and becomes one object, is about ``piece_bytes``.

Why waiting evens out. Work comes in bursts, as slices that are alike come due at once. Each burst is spread over
several checkpoints, and from then on these slices come due at different times.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from stateline.errors import InvalidInputError
from stateline.key_groups import KeyGroupRange, hash_bounds
from stateline.options import normalise_settings, parse_int, parse_size, setting
from stateline.sizes import sizes
from stateline.state.columns import Mask
from stateline.state.keys import group_starts
from stateline.state.rows import StateRows
from stateline.state.runs import Run

__all__ = ["Counts", "Expired", "MergeSettings", "SlicedStack", "merge_runs", "merge_windows", "plan_merges"]

_TIER_SLACK: Final = 1.2
"""How much bigger than all newer runs together the next older one may be to be of their size. Batches vary."""

_DEBT_SHARE: Final = 4
"""Of what is due, a checkpoint pays one part in so many."""

_STORED_MAX: Final = 2.5
"""Rows that may be stored for each live row of a slice: an object stays as long as any slice needs any of its rows."""

_PATIENCE: Final = 2.0
"""How many times ``rows_per_change`` a checkpoint may pay because much is due."""

Expired = Callable[[StateRows], Mask]

Counts = np.ndarray[Any, np.dtype[np.int64]]
"""Rows by run (oldest first) and slice."""


def _factor(value: float | str, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 1.0 < number <= 100.0:
        raise InvalidInputError(f"must be a number above 1, at most 100, got {value!r}", subject=name, hint="Such as 2")
    return number


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MergeSettings:
    """When runs are merged.

    Attributes:
        runs_max: Runs that a key may be in after a checkpoint, at most.
        tier_runs: How many runs of about one size are gathered before they are merged.
        space_factor: Rows stored for each live row, at most. Merges for it begin half way.
        small_rows: A stack of fewer rows is never merged for its space.
        rows_per_change: Rows that a checkpoint may merge for each row that changed.
        piece_bytes: How much is merged at a time, about. A merge needs memory for two to three times as much; its
            result is one object for each piece, so a checkpoint that merges more than this writes more objects.
    """

    runs_max: int = setting(16, lambda value, name: parse_int(value, name, minimum=1), help="runs of a key, at most")
    tier_runs: int = setting(
        4, lambda value, name: parse_int(value, name, minimum=2), help="runs of one size before they are merged"
    )
    space_factor: float = setting(2.0, _factor, help="rows stored for each live row, at most")
    small_rows: int = setting(
        10_000,
        lambda value, name: parse_int(value, name, minimum=0),
        help="smaller stacks are not merged for space",
        size="merge_small_rows",
    )
    rows_per_change: float = setting(4.0, _factor, help="rows that may be merged for each row that changed")
    piece_bytes: int = setting("256MiB", parse_size, help="bytes that are merged at a time", size="merge_piece_bytes")

    def __post_init__(self) -> None:
        normalise_settings(self)
        if self.piece_bytes < 1:
            raise InvalidInputError("must be 1 byte or more, got 0", subject="piece_bytes", hint="Give, say, 256MiB")


@dataclasses.dataclass(frozen=True, slots=True)
class _Due:
    """A merge of one slice that is due."""

    slice: int
    first: int  # The oldest run that takes part.
    height: int
    rows: int
    at_once: bool  # A bound would be broken without it.


@dataclasses.dataclass(frozen=True, slots=True)
class SlicedStack:
    """What the plan looks at: numbers by run, oldest first, and slice.

    Attributes:
        rows: How many rows each run has in each slice.
        tombstones: How many of them delete their key, about.
        stored: The rows that are stored for them: more where the object of a run stays for the sake of few slices.
        changed: Rows that are new in this checkpoint; they are part of the newest runs.
    """

    rows: Counts
    tombstones: Counts
    stored: Counts
    changed: int


def plan_merges(stack: SlicedStack, settings: MergeSettings | None = None) -> list[int | None]:
    """For each slice the oldest run that is merged, together with all newer ones; ``None`` where none is."""
    settings = settings or MergeSettings()
    chosen: list[int | None] = [None] * stack.rows.shape[1]
    is_small = int(stack.rows.sum()) <= settings.small_rows
    columns = stack.rows.T.tolist(), stack.tombstones.sum(axis=0).tolist(), stack.stored.sum(axis=0).tolist()
    slices = (_Slice(number, *numbers) for number, numbers in enumerate(zip(*columns, strict=True)))
    due = [found for part in slices if (found := part.due(settings, is_small=is_small)) is not None]
    # Of slices of one height, neighbours come together: what they leave of older runs is in few parts.
    due.sort(key=lambda item: (not item.at_once, -item.height, item.slice))
    allowed = settings.rows_per_change * stack.changed
    budget = min(max(allowed, sum(item.rows for item in due) / _DEBT_SHARE), _PATIENCE * allowed)
    budget = max(budget, sizes().merge_free_rows)
    for number, item in enumerate(due):
        budget -= item.rows
        if budget < 0 and number and not item.at_once:
            break
        chosen[item.slice] = item.first
    return chosen


@dataclasses.dataclass(frozen=True, slots=True)
class _Slice:
    """One slice of a stack: numbers of rows, by run (oldest first) and in all."""

    number: int
    runs: Sequence[int]
    tombstones: int
    stored: int

    def due(self, settings: MergeSettings, *, is_small: bool) -> _Due | None:
        """The merge that it needs."""
        numbers = [number for number, count in enumerate(self.runs) if count]
        rows = [self.runs[number] for number in numbers]
        height, total = len(rows), sum(rows)
        if height < 2:
            return None
        live = max(rows[0] - self.tombstones, 1)  # At least: what lies at the bottom.
        if not is_small and (total > (1 + settings.space_factor) / 2 * live or self.stored > _STORED_MAX * live):
            at_once = total > settings.space_factor * live or height > settings.runs_max
            return _Due(self.number, numbers[0], height, total, at_once)
        start, gathered = height - 1, rows[-1]
        while start > 0 and rows[start - 1] <= _TIER_SLACK * gathered:
            start -= 1
            gathered += rows[start]
        if height > settings.runs_max:
            start = min(start, _best_balanced(rows, height - settings.runs_max))
        elif height - start < settings.tier_runs:
            return None
        return _Due(self.number, numbers[start], height, sum(rows[start:]), height > settings.runs_max)


def _best_balanced(rows: Sequence[int], fewer: int) -> int:
    """Where the upper part of a stack begins that shortens it by ``fewer`` or more with the least futile rewriting.

    Rewriting a big run to take a small one in is futile, so the best part is the one whose biggest run is the smallest
    share of it (``docs/decisions/0017-grouping.md``).
    """
    totals = list(itertools.accumulate(reversed(rows)))[::-1]
    biggest = list(itertools.accumulate(reversed(rows), max))[::-1]
    starts = range(len(rows) - fewer)
    return min(starts, key=lambda start: (biggest[start] / max(totals[start] - biggest[start], 1), totals[start]))


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
        drop_tombstones: Whether no older run has rows in these key groups, so that nothing is left to hide.
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
    append_only: bool = False,
    window_rows: int | None = None,
) -> Iterator[StateRows]:
    """The newest row of each key, ascending by hash, window after window; see :func:`merge_runs`.

    Args:
        runs: See :func:`merge_runs`, also for what is not said here.
        key_groups: What the result covers.
        max_parallelism: Number of key groups.
        drop_tombstones: Whether nothing is left to hide.
        expired: Which rows have outlived their time.
        append_only: Whether no key is in two of the runs, as of :attr:`StateSchema.append_only`.
        window_rows: Rows merged at a time, about; by default ``Sizes.merge_window_rows``.

    Yields:
        Rows of neighbouring, disjoint ranges of hashes; none is empty.
    """
    borders = _window_borders(runs, key_groups, max_parallelism, window_rows or sizes().merge_window_rows)
    for low, high in itertools.pairwise(borders):
        stacks = [parts for run in reversed(runs) if (parts := run.between(low, high))]
        # The rows of one run are merged already: they are handed on as they lie.
        windows: Iterable[StateRows] = itertools.chain(*stacks)
        if len(stacks) > 1:
            windows = [(_ordered if append_only else _newest)(list(windows))]
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


def _ordered(parts: Sequence[StateRows]) -> StateRows:
    """All rows of parts, each of which ascends by itself."""
    rows = StateRows.concat(parts)
    return rows.take(np.argsort(rows.keys.hashes, kind="stable"))


def _newest(parts: Sequence[StateRows]) -> StateRows:
    """One row per key out of parts, of which the first ones are newer."""
    rows = StateRows.concat(parts)
    # The parts ascend each by itself: a stable sort merges them, and leaves the newest row of a key in front.
    order = np.argsort(rows.keys.hashes, kind="stable")
    order, starts = group_starts(rows.keys, order, rows.keys.hashes.take(order))
    newest = rows.take(order.take(starts))
    if newest.deleted is not None and not newest.deleted.any():
        newest = dataclasses.replace(newest, deleted=None)
    return newest


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
