"""Tables of intervals: any number of disjoint ones for each grouping key, found by what they touch.

A row is an interval: its key is the grouping key and a *slot*, its values are ``start`` (inclusive), ``end``
(exclusive) and what is kept of the interval. Intervals of one grouping key neither overlap nor touch, and none is
shorter than the *width* of the table. So the slot, ``start // width``, tells them apart, and an interval whose start
moves a little stays the same row.

The upper half of a row's hash is that of its grouping key, as in :mod:`stateline.state.subkeys`; **the lower half is
its slot**. So the intervals of a key lie in every run in the order of time, and those near a given one are found by
two binary searches, however many there are: intervals that nothing touches are neither read nor rewritten.

Which version of an interval counts, without a look at deletions:
- A version that does not count any more lies within a newer one: intervals only grow, and one that was absorbed is
  deleted because another one has taken its place.
- If the newest version of an interval touches what is asked for, so does it in its run: there, only rows that delete
  something lie between the two. So of what lies before a range each run has to show one row.
- What ends at or below ``after`` is not there at all, though runs keep it until they are merged. Its time is over, and
  nobody has deleted it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateline.state.columns import Mask, Rows, from_words, take, words_of
from stateline.state.gather import Piece, Places, gather
from stateline.state.keys import Hashes, KeyRows, equal_keys, group_rows
from stateline.state.rows import StateRows
from stateline.state.runs import SearchedBatches
from stateline.state.subkeys import LOWER_HALF, in_lower_half, ordered_hashes, rows_of_keys
from stateline.state.table import Located, StateTable

__all__ = ["Intervals", "Touching", "ending", "interval_rows", "touching"]

Longs = npt.NDArray[np.int64]

START: Final = 0
"""The value column of starts."""
END: Final = 1
"""The value column of ends."""
_KEPT: Final = 2
"""The first value column of what else is kept."""

_EPOCH_BITS: Final = 32
_EPOCH_SHIFT: Final = 1 << 30
"""So that slots of one second are in one epoch from 1936 to 2072: there, their order is that of their lower halves."""

_LEAST: Final = np.iinfo(np.int64).min
_GREATEST: Final = np.iinfo(np.int64).max


@dataclasses.dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals of grouping keys, ascending by owner, then by start; those of one owner neither overlap nor touch.

    Attributes:
        owners: For each one the number of its grouping key.
        starts: Inclusive.
        ends: Exclusive; one that ends where another starts touches it.
    """

    owners: Rows
    starts: Longs
    ends: Longs

    def __len__(self) -> int:
        return len(self.owners)

    def take(self, rows: Rows) -> Intervals:
        """Those numbered, in that order."""
        return Intervals(self.owners.take(rows), self.starts.take(rows), self.ends.take(rows))


@dataclasses.dataclass(frozen=True, slots=True)
class Touching:
    """Stored intervals that touch some of those asked for, ascending by owner, then by start.

    Attributes:
        intervals: The stored ones.
        firsts: For each the first of those asked for that it touches, by number.
        lasts: The last one; it touches all between.
        kept: What else is kept of each, one column per value column after start and end.
    """

    intervals: Intervals
    firsts: Rows
    lasts: Rows
    kept: tuple[pa.Array, ...]

    def __len__(self) -> int:
        return len(self.firsts)


def interval_rows(
    table: StateTable, keys: KeyRows, intervals: Intervals, width: int, kept: Sequence[pa.Array], deleted: Mask
) -> StateRows:
    """Changes of a table of intervals, ascending by hash.

    Args:
        table: The table.
        keys: Grouping keys.
        intervals: In any order; no two of one owner share a slot.
        width: Of the table.
        kept: One column per value column after start and end.
        deleted: Which rows delete what is stored in their slot.
    """
    grouping = keys.take(intervals.owners)
    slots = intervals.starts // width
    hashes = _hashes(grouping.hashes, slots)
    kinds = table.schema.values.types
    columns = (*grouping.columns, from_words(slots, table.schema.keys.types[-1]))
    ends = (from_words(intervals.starts, kinds[START]), from_words(intervals.ends, kinds[END]))
    rows = StateRows(KeyRows(hashes, columns), (*ends, *kept), deleted if deleted.any() else None)
    return rows if (hashes[1:] >= hashes[:-1]).all() else rows.take(np.argsort(hashes, kind="stable"))


def touching(table: StateTable, keys: KeyRows, asked: Intervals, width: int, *, after: int | None) -> Touching:
    """The stored intervals that touch some of those asked for.

    Args:
        table: A table of intervals.
        keys: Distinct grouping keys of this subtask, ascending by hash.
        asked: Intervals of these keys, none shorter than ``width``.
        width: Of the table.
        after: What ends at or below it is not there; ``None`` for nothing.
    """
    table.check_owned(keys)
    search = _Search(keys, asked, _LEAST if after is None else after)
    apart = _of_one_half(keys)
    if len(asked) and not _in_one_epoch(table, asked, width):
        apart[:] = True
    wanted = np.flatnonzero(~apart.take(asked.owners))
    if len(wanted):
        hashes = keys.hashes.take(asked.owners.take(wanted))
        lows = _hashes(hashes, asked.starts.take(wanted) // width)
        highs = _hashes(hashes, asked.ends.take(wanted) // width)
        for near in table.between(lows, highs, preceded=True):
            search.keep_touching(dataclasses.replace(near, numbers=wanted.take(near.numbers)))
    apart[search.mixed] = True
    if apart.any():
        search.replace(np.flatnonzero(apart), table)
    return search.found(table)


def ending(table: StateTable, changes: StateRows, *, after: int | None, until: int) -> StateRows:
    """All live intervals that end in ``(after, until]``, ascending by hash.

    One pass over the column of ends of those runs that have any: 8 bytes a row, memory-mapped.

    Args:
        table: The state before the changes.
        changes: New rows of a batch; of them also those that end at or below ``after``.
        after: What was stored and ends at or below it is not there; ``None`` for nothing.
        until: Inclusive.
    """
    reach = _LEAST if after is None else after
    column = len(table.schema.keys) + END
    parts = []
    for run in table.runs:
        if len(run) and _overlap(run.searched.bounds(column), reach, until):
            for batch in run.batches:
                rows = _ending_within(batch, reach, until)
                if len(rows):
                    parts.append(batch.keys.take(rows))
    parts.append(changes.keys.take(_ending_within(changes, _LEAST, until)))
    keys = group_rows(KeyRows.concat(parts)).keys
    found = table.with_changes(changes).probe(keys)
    live = StateRows(keys.declared(table.schema), found.values).take(np.flatnonzero(found.mask))
    return live.take(_ending_within(live, _LEAST, until))


def _hashes(grouping: Hashes, slots: Longs) -> Hashes:
    """Where intervals lie: the upper halves of their keys, and their slots."""
    return ordered_hashes(grouping, in_lower_half(slots + _EPOCH_SHIFT))


def _in_one_epoch(table: StateTable, asked: Intervals, width: int) -> bool:
    """Whether all slots, those asked for and those stored, are in the order of their lower halves."""
    column = len(table.schema.keys) - 1
    bounds = [run.searched.bounds(column) for run in table.runs if len(run.searched)]
    bounds.append((int(asked.starts.min()) // width, int(asked.ends.max()) // width))
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    return (low + _EPOCH_SHIFT) >> _EPOCH_BITS == (high + _EPOCH_SHIFT) >> _EPOCH_BITS


def _of_one_half(keys: KeyRows) -> Mask:
    """Which of the keys, ascending by hash, share the upper half of their hash with another one."""
    upper = keys.hashes & ~LOWER_HALF
    same = upper[1:] == upper[:-1]
    mask = np.zeros(len(keys), dtype=np.bool_)
    mask[1:] |= same
    mask[:-1] |= same
    return mask


def _overlap(bounds: tuple[int, int], after: int, until: int) -> bool:
    return bounds[0] <= until and after < min(bounds[1], until)


def _ending_within(rows: StateRows, after: int, until: int) -> Rows:
    """The rows, those that delete left out, whose end is in ``(after, until]``."""
    ends = words_of(rows.values[END])
    mask = ends <= until
    if after != _LEAST:
        mask &= ends > after
    if rows.deleted is not None:
        mask &= ~rows.deleted
    return np.flatnonzero(mask)


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    """Rows of one object that touch what is asked for, ascending."""

    rows: Located
    starts: Longs
    ends: Longs

    @property
    def asked(self) -> Rows:
        """Which of the intervals asked for each row touches."""
        return self.rows.numbers

    def take(self, chosen: Rows) -> _Found:
        return _Found(self.rows.take(chosen), self.starts.take(chosen), self.ends.take(chosen))


class _Search:
    """The search for what touches some intervals, object after object, newest first.

    Attributes:
        mixed: Keys, by number, near whose rows some run has those of another key of the same upper half: these may hide
            what lies before a range.
    """

    def __init__(self, keys: KeyRows, asked: Intervals, after: int) -> None:
        self._keys = keys
        self._asked = asked
        self._after = after
        self._parts: list[_Found] = []
        self.mixed: list[int] = []
        # For each interval asked for the newest one that is known to touch it: older ones within it do not count.
        self._known_starts = np.full(len(asked), _GREATEST)
        self._known_ends = np.full(len(asked), _LEAST)

    def keep_touching(self, near: Located) -> None:
        """Keeps those rows of an object that touch the intervals near which they were found."""
        asked, source = near.numbers, near.source
        owners = self._asked.owners.take(asked)
        keys = [take(column, owners) for column in self._keys.columns]
        same = equal_keys(keys, [column.take(near.places) for column in source.keys[: len(keys)]])
        if not same.all():
            self.mixed += np.unique(owners[~same]).tolist()
        starts, ends = (words_of(source.values[column].take(near.places)) for column in (START, END))
        touches = same & (ends > self._after)
        touches &= (starts <= self._asked.ends.take(asked)) & (ends >= self._asked.starts.take(asked))
        touches &= (starts < self._known_starts.take(asked)) | (ends > self._known_ends.take(asked))
        live = source.live(near.places)
        if live is not None:
            touches &= live
        found = _Found(near, starts, ends).take(np.flatnonzero(touches))
        self._known_starts[found.asked] = found.starts
        self._known_ends[found.asked] = found.ends
        self._parts.append(found)

    def replace(self, owners: Rows, table: StateTable) -> None:
        """Finds everything anew for some keys, by a look at all their intervals."""
        apart = np.zeros(len(self._keys), dtype=np.bool_)
        apart[owners] = True
        self._parts = [
            part.take(np.flatnonzero(~apart.take(self._asked.owners.take(part.asked)))) for part in self._parts
        ]
        owned = rows_of_keys(table, self._keys.take(owners))
        count = len(owned.rows)
        if count == 0:
            return
        starts, ends = words_of(owned.rows.values[START]), words_of(owned.rows.values[END])
        firsts, lasts = _touched(Intervals(owners.take(owned.owners), starts, ends), self._asked)
        everything = Located(firsts, Places(np.arange(count), np.array([count])), SearchedBatches([owned.rows]))
        # As in any other object, a row is found for each that it touches: twice stands for more than once.
        times = np.where(ends > self._after, np.clip(lasts - firsts + 1, 0, 2), 0)
        self._parts.append(_Found(everything, starts, ends).take(np.repeat(np.arange(count), times)))

    def found(self, table: StateTable) -> Touching:
        """What counts of all that was found."""
        parts = [part for part in self._parts if len(part.starts)]
        kinds = table.schema.values.types[_KEPT:]
        if not parts:
            nothing = np.empty(0, dtype=np.int64)
            kept = tuple(pa.array([], kind) for kind in kinds)
            return Touching(Intervals(nothing, nothing, nothing), nothing, nothing, kept)
        asked = np.concatenate([part.asked for part in parts])
        stored = Intervals(
            self._asked.owners.take(asked),
            np.concatenate([part.starts for part in parts]),
            np.concatenate([part.ends for part in parts]),
        )
        order, several = _live(stored)
        firsts, lasts = asked.take(order), asked.take(order)
        if several.any():
            firsts[several], lasts[several] = _touched(stored.take(order[several]), self._asked)
        return Touching(stored.take(order), firsts, lasts, _gathered(kinds, parts, order))


def _live(stored: Intervals) -> tuple[Rows, Mask]:
    """The versions that count, in the order of :class:`Touching`, and which of them came with others of their key.

    Args:
        stored: Versions of intervals, newest first within an owner; some may come twice.
    """
    order = np.argsort(stored.owners, kind="stable")
    owners = stored.owners.take(order)
    same = owners[1:] == owners[:-1]
    several = np.zeros(len(order), dtype=np.bool_)
    several[1:] |= same
    several[:-1] |= same
    if not several.any():
        return order, several
    some = order[several]
    by_start = np.lexsort((-stored.ends.take(some), stored.starts.take(some), stored.owners.take(some)))
    some = some.take(by_start)
    order[several] = some
    # Of one owner, what ends no later than one that starts no later lies within it.
    _, ranks = np.unique(stored.ends.take(some), return_inverse=True)
    reached = stored.owners.take(some) * len(some) + ranks
    counts = np.ones(len(order), dtype=np.bool_)
    counts[several] = reached > np.concatenate(([-1], np.maximum.accumulate(reached)[:-1]))
    return order[counts], several[counts]


def _touched(stored: Intervals, asked: Intervals) -> tuple[Rows, Rows]:
    """For each stored interval the first and the last of those asked for that it touches; the last is less if none."""
    involved = np.flatnonzero(np.isin(asked.owners, stored.owners))
    some = asked.take(involved)
    stored_starts, ends = _ranked(stored.owners, stored.starts, some.owners, some.ends)
    stored_ends, starts = _ranked(stored.owners, stored.ends, some.owners, some.starts)
    firsts = ends.searchsorted(stored_starts)
    lasts = starts.searchsorted(stored_ends, side="right") - 1
    number = np.concatenate((involved, [len(asked)]))  # Behind the last one lies none.
    none = firsts > lasts
    firsts, lasts = number.take(firsts), number.take(lasts, mode="wrap")
    lasts[none] = -1
    return firsts, lasts


def _ranked(owners: Rows, values: Longs, other_owners: Rows, others: Longs) -> tuple[Rows, Rows]:
    """Numbers of both sides that compare as owners do, then values."""
    distinct, ranks = np.unique(np.concatenate([values, others]), return_inverse=True)
    count = len(distinct)
    return owners * count + ranks[: len(values)], other_owners * count + ranks[len(values) :]


def _gathered(kinds: Sequence[pa.DataType], parts: Sequence[_Found], order: Rows) -> tuple[pa.Array, ...]:
    """The value columns after start and end of found rows, which are numbered through all parts."""
    target = np.full(sum(len(part.starts) for part in parts), -1)
    target[order] = np.arange(len(order))
    pieces, sources, first = [], [], 0
    for part in parts:
        to = target[first : first + len(part.starts)]
        first += len(to)
        chosen = np.flatnonzero(to >= 0)
        if len(chosen):
            pieces.append(Piece(to.take(chosen), part.rows.places.take(chosen)))
            sources.append(part.rows.source)
    filled = np.ones(len(order), dtype=np.bool_)
    return tuple(
        gather(kind, pieces, [source.values[number] for source in sources], filled)
        for number, kind in enumerate(kinds, _KEPT)
    )
