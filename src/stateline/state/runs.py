"""Runs in memory, and the search through their rows.

Invariants:
- Rows ascend by unsigned hash; each key occurs once in a run.
- The batches of a run are not empty, ascend, and never split rows of one hash.
- A run shows only rows within its key groups, whatever else its object holds.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final, Literal, Self

import numpy as np

from stateline.handles import RunHandle
from stateline.key_groups import KeyGroupRange, hash_bounds
from stateline.sizes import sizes
from stateline.state.columns import Mask, Rows, take, words_of
from stateline.state.gather import Places, Scattered, one_stretch
from stateline.state.hash_index import HashIndex
from stateline.state.keys import Hashes, KeyRows, equal_keys
from stateline.state.rows import HASH_SPACE, StateRows, place_of

__all__ = ["RowRanges", "Run", "SearchedBatches"]


class Run:
    """Rows of one age, in memory or memory-mapped.

    Args:
        batches: Ascending, as the invariants say; empty ones are left out. Or those of another run, which has them too.
        key_groups: What the run covers, inclusive. Rows outside are left out.
        max_parallelism: Number of key groups.
        handle: The durable object behind it; ``None`` while there is none.
        is_exact: Whether no older run has its rows, if its table is append-only. Merges of early versions copied rows.

    Attributes:
        searched: All rows of the object, which the parts of a run share; those outside of ``key_groups`` do not count.
    """

    def __init__(
        self,
        batches: Sequence[StateRows] | SearchedBatches,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        handle: RunHandle | None = None,
        *,
        is_exact: bool = True,
    ) -> None:
        if not isinstance(batches, SearchedBatches):
            batches = SearchedBatches([batch for batch in batches if len(batch)])
        self.searched = batches
        self.key_groups = key_groups
        self.handle = handle
        self.is_exact = is_exact
        self.low, self.high = hash_bounds(key_groups, max_parallelism)

    def part(self, key_groups: KeyGroupRange, max_parallelism: int, handle: RunHandle | None) -> Run:
        """What lies within some of its key groups, without a copy; ``handle`` is the way to it."""
        covered = self.key_groups.intersection(key_groups)
        return Run(self.searched, covered, max_parallelism, handle, is_exact=self.is_exact)

    @cached_property
    def batches(self) -> tuple[StateRows, ...]:
        """The rows; no batch is empty."""
        return tuple(self.searched.between(self.low, self.high))

    def __len__(self) -> int:
        low, high = self._span
        return high - low

    @cached_property
    def _span(self) -> tuple[int, int]:
        """How many rows of the object lie below its key groups, and below the end of them."""
        if self.high >= HASH_SPACE:
            return self.searched.places([self.low])[0], len(self.searched)
        low, high = self.searched.places([self.low, self.high])
        return low, high

    def __repr__(self) -> str:
        name = "in memory" if self.handle is None else self.handle.place
        return f"Run({name}, key groups {self.key_groups}, rows {len(self)}, tombstones {self.tombstones})"

    @property
    def tombstones(self) -> int:
        """Rows that delete their key."""
        return sum(batch.tombstones for batch in self.batches) if self.searched.has_tombstones else 0

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        return sum(batch.nbytes for batch in self.batches)

    def counts(self, borders: Sequence[int]) -> list[int]:
        """How many rows lie between neighbours of ascending hashes, the lower one included; they may end with 2**64."""
        first, end = bisect.bisect_right(borders, self.low), bisect.bisect_left(borders, self.high)
        low, high = self._span
        places = [low] * first + self.searched.places(borders[first:end]) + [high] * (len(borders) - end)
        return [after - before for before, after in itertools.pairwise(places)]

    def between(self, low: int, high: int) -> list[StateRows]:
        """The rows whose hash is in ``[low, high)``, without a copy."""
        low, high = max(low, self.low), min(high, self.high)
        return self.searched.between(low, high) if low < high else []


_UPPER_HALF: Final = np.uint64(0xFFFF_FFFF_0000_0000)


@dataclasses.dataclass(frozen=True, slots=True)
class RowRanges:
    """Rows that lie in ranges of hashes: ranges of rows, each within one batch and of one row or more.

    Attributes:
        numbers: Of the ranges of hashes.
        batches: Ascending.
        starts: Inclusive.
        ends: Exclusive.
    """

    numbers: Rows
    batches: Rows
    starts: Rows
    ends: Rows

    @classmethod
    def none(cls) -> Self:
        """No rows."""
        nothing = np.empty(0, dtype=np.int64)
        return cls(nothing, nothing, nothing, nothing)

    def take(self, chosen: Rows) -> RowRanges:
        """Those numbered, ascending."""
        return RowRanges(*(part.take(chosen) for part in (self.numbers, self.batches, self.starts, self.ends)))

    def firsts(self) -> RowRanges:
        """The first row of each."""
        return dataclasses.replace(self, ends=self.starts + 1)

    def others(self) -> RowRanges:
        """The rows behind the first one, where there are such."""
        more = self.take(np.flatnonzero(self.ends > self.starts + 1))
        return dataclasses.replace(more, starts=more.starts + 1)


class SearchedBatches:
    """Batches of a run, all of which are searched at once.

    Args:
        batches: Not empty, ascending, as the invariants say.
    """

    def __init__(self, batches: Sequence[StateRows]) -> None:
        self._batches = batches
        self._misses = 0
        self._index: HashIndex | None = None
        self._index_of_upper_halves: HashIndex | None = None
        self._bounds: dict[int, tuple[int, int]] = {}
        self._rows_below: dict[int, int] = {}

    def __len__(self) -> int:
        return self._ends[-1]

    @cached_property
    def keys(self) -> list[Scattered]:
        """The key columns."""
        return [Scattered(column) for column in zip(*(batch.keys.columns for batch in self._batches), strict=True)]

    @cached_property
    def values(self) -> list[Scattered]:
        """The value columns."""
        return [Scattered(column) for column in zip(*(batch.values for batch in self._batches), strict=True)]

    def bounds(self, column: int) -> tuple[int, int]:
        """The least and the greatest word in a column, keys before values, of all rows, also of those that delete."""
        found = self._bounds.get(column)
        if found is None:
            words = [words_of((*batch.keys.columns, *batch.values)[column]) for batch in self._batches]
            found = min(int(part.min()) for part in words), max(int(part.max()) for part in words)
            self._bounds[column] = found
        return found

    def between(self, low: int, high: int) -> list[StateRows]:
        """The rows whose hash is in ``[low, high)``, without a copy; only the outer batches need a look inside."""
        first = max(place_of(self._firsts, low, side="right") - 1, 0)
        inside = list(self._batches[first : place_of(self._firsts, high)])
        for outer in {0, len(inside) - 1} if inside else ():
            inside[outer] = inside[outer].between(low, high)
        return [batch for batch in inside if len(batch)]

    def places(self, bounds: Sequence[int]) -> list[int]:
        """How many rows lie below each of some hashes, borders of key groups: so few that answers are kept."""
        for bound in bounds:
            if bound not in self._rows_below:
                number = place_of(self._firsts, bound) - 1
                inside = place_of(self._batches[number].keys.hashes, bound) if number >= 0 else 0
                self._rows_below[bound] = self._ends[max(number, 0)] + inside
        return [self._rows_below[bound] for bound in bounds]

    def live(self, places: Places) -> Mask | None:
        """Which rows do not delete their key; ``None`` where none does."""
        if not self.has_tombstones:
            return None
        live = np.ones(len(places), dtype=np.bool_)
        for number, part in places.by_array():
            deleted = self._batches[number].deleted
            if deleted is not None:
                live[part] = ~deleted.take(places.rows[part])
        return live

    def find(self, keys: KeyRows, wanted: Rows) -> Iterator[tuple[Rows, Places]]:
        """Where keys are.

        Args:
            keys: Ascending by hash, each once.
            wanted: The numbers of those that are looked for, ascending.

        Yields:
            Keys found, by number, and the places of their rows.
        """
        if not self._batches:
            return
        hashes = keys.hashes if len(wanted) == len(keys) else keys.hashes.take(wanted)
        below = int(hashes.searchsorted(self._firsts[0]))
        hashes, wanted = hashes[below:], wanted[below:]
        needles, places = self._hits(hashes)
        while len(needles):
            found = wanted.take(needles)
            asked = [take(column, found) for column in keys.columns]
            equal = equal_keys(asked, [column.take(places) for column in self.keys])
            if equal.all():
                yield found, places
                break
            yield found[equal], places.take(np.flatnonzero(equal))
            # Another key of the same hash: the one we look for may be the next row.
            needles, places = self._next(hashes, needles[~equal], places.take(np.flatnonzero(~equal)))

    def ranges_between(self, lows: Hashes, highs: Hashes, *, preceded: bool = False) -> RowRanges:
        """The rows in ranges of hashes. All hashes of a range have one upper half; both bounds ascend.

        Args:
            lows: Where each range begins, inclusive.
            highs: Where it ends, inclusive.
            preceded: Whether a range begins with the last row before it of its upper half that deletes nothing.
        """
        if not self._batches or len(lows) == 0:
            return RowRanges.none()
        numbers = self._possible_ranges(lows)
        lows, highs = (lows, highs) if len(numbers) == len(lows) else (lows.take(numbers), highs.take(numbers))
        starts, ends = self._below(lows, "left"), self._below(highs, "right")
        if preceded:
            before = self._live_before(starts)
            same = (self._hashes_at(self._places(np.maximum(before, 0))) ^ lows) <= ~_UPPER_HALF
            starts = np.where(same & (before >= 0), before, starts)
        hits = np.flatnonzero(ends > starts)
        self._misses += len(numbers) - len(hits)
        if self._index_of_upper_halves is None and self._misses * sizes().index_rows_per_miss >= len(self):
            self._index_of_upper_halves = HashIndex(self._upper_halves())
        return self._cut_at_batches(numbers.take(hits), starts.take(hits), ends.take(hits))

    def places_in(self, ranges: RowRanges, rows_max: int) -> Iterator[tuple[Rows, Places]]:
        """The places of rows, and for each the number of its range, as many at a time as is asked for.

        Args:
            ranges: Of these rows.
            rows_max: Rows that come at a time, if no single range has more of them in one batch.

        Yields:
            Rows of neighbouring ranges; never none.
        """
        totals = (ranges.ends - ranges.starts).cumsum()
        begin = 0
        while begin < len(totals):
            before = int(totals[begin - 1]) if begin else 0
            end = max(int(totals.searchsorted(before + rows_max, side="right")), begin + 1)
            yield self._places_in_all(ranges.take(np.arange(begin, end)))
            begin = end

    def rows(self, places: Places) -> StateRows:
        """The rows at one or more places."""
        live = self.live(places)
        keys = KeyRows(self._hashes_at(places), tuple(column.take(places) for column in self.keys))
        deleted = None if live is None or live.all() else ~live
        return StateRows(keys, tuple(column.take(places) for column in self.values), deleted)

    def _possible_ranges(self, lows: Hashes) -> Rows:
        """Those ranges, by number, that may have rows here."""
        if self._index_of_upper_halves is None:
            return np.arange(len(lows))
        edges = self._edges(lows)
        edges[0] = 0  # A range may begin before the first row and reach it.
        return self._index_of_upper_halves.possible(lows & _UPPER_HALF, np.diff(edges))[0]

    def _upper_halves(self) -> list[Hashes]:
        """Those of each batch and of the row after it, which a range that begins in the batch may reach."""
        following = [*self._firsts[1:].tolist(), None]
        return [
            (batch.keys.hashes if after is None else np.append(batch.keys.hashes, np.uint64(after))) & _UPPER_HALF
            for batch, after in zip(self._batches, following, strict=True)
        ]

    def _below(self, hashes: Hashes, side: Literal["left", "right"]) -> Rows:
        """How many rows lie below each of ascending hashes; by the right side, those at it are counted too."""
        below = np.zeros(len(hashes), dtype=np.int64)
        edges = self._edges(hashes)
        for batch, before, first, end in zip(self._batches, self._ends, edges, edges[1:], strict=False):
            if first < end:
                below[first:end] = batch.keys.hashes.searchsorted(hashes[first:end], side=side) + before
        return below

    def _live_before(self, rows: Rows) -> Rows:
        """For each of rows, counted through all batches, the last one before it that does not delete its key; or -1."""
        if not self.has_tombstones:
            return rows - 1
        before: Rows = self._live.take(self._live[1:].searchsorted(rows))
        return before

    @cached_property
    def _live(self) -> Rows:
        """-1, then all rows that do not delete their key, counted through all batches."""
        marks = (np.ones(len(batch), np.bool_) if batch.deleted is None else ~batch.deleted for batch in self._batches)
        return np.concatenate(([-1], np.flatnonzero(np.concatenate(list(marks)))))

    def _places(self, rows: Rows) -> Places:
        """The places of rows that are counted through all batches, and ascend."""
        borders = np.array(self._ends)
        ends = rows.searchsorted(borders[1:])
        return Places(rows - borders[:-1].repeat(np.diff(ends, prepend=0)), ends)

    def _cut_at_batches(self, numbers: Rows, starts: Rows, ends: Rows) -> RowRanges:
        """Ranges of rows, counted through all batches, so that each lies in one batch; ascending by batch."""
        borders = np.array(self._ends)
        batches = np.arange(len(self._batches))
        first = np.repeat(batches, np.diff(starts.searchsorted(borders)))
        last = np.repeat(batches, np.diff((ends - 1).searchsorted(borders)))
        more = last - first
        if more.any():
            which = np.repeat(np.arange(len(first)), more + 1)
            first = first.take(which) + np.arange(len(which)) - np.repeat(np.cumsum(more + 1) - more - 1, more + 1)
            order = first.argsort(kind="stable")
            which, first = which.take(order), first.take(order)
            numbers = numbers.take(which)
            starts = np.maximum(starts.take(which), borders.take(first))
            ends = np.minimum(ends.take(which), borders.take(first + 1))
        return RowRanges(numbers, first, starts - borders.take(first), ends - borders.take(first))

    def _places_in_all(self, ranges: RowRanges) -> tuple[Rows, Places]:
        counts = ranges.ends - ranges.starts
        ends = np.bincount(ranges.batches, weights=counts, minlength=len(self._batches)).cumsum().astype(np.int64)
        shifts = ranges.starts - counts.cumsum() + counts
        return ranges.numbers.repeat(counts), Places(np.arange(int(counts.sum())) + shifts.repeat(counts), ends)

    def _edges(self, hashes: Hashes) -> list[int]:
        """Where those of ascending hashes begin that belong to each batch, and where the last ones end."""
        return [*hashes.searchsorted(self._firsts).tolist(), len(hashes)]

    def _hits(self, hashes: Hashes) -> tuple[Rows, Places]:
        """Those of ascending hashes that are there, by number, and the first row of each; none is below all rows."""
        if self._index is None and self._is_index_due(hashes):
            self._index = HashIndex([batch.keys.hashes for batch in self._batches])
        if self._index is None:
            hits, places = self._searched(hashes)
            self._misses += len(hashes) - len(hits)
            return hits, places
        possible, rows = self._index.possible(hashes, np.diff(self._edges(hashes)))
        hits, places = self._walked(hashes.take(possible), rows)
        return possible.take(hits), places

    def _is_index_due(self, hashes: Hashes) -> bool:
        """Whether an index saves what making it costs, by the misses so far and those that a sample foretells."""
        misses = self._misses + len(hashes)
        if misses * sizes().index_rows_per_miss < len(self):
            return False
        sample = hashes[:: max(len(hashes) // sizes().index_sample, 1)]
        misses -= len(hashes) * len(self._searched(sample)[0]) // max(len(sample), 1)
        return misses * sizes().index_rows_per_miss >= len(self)

    def _searched(self, hashes: Hashes) -> tuple[Rows, Places]:
        """As :meth:`_hits`, by a search in each batch."""
        edges = self._edges(hashes)
        places = Places(self._not_below(hashes, edges), np.array(edges[1:]))
        hits = np.flatnonzero(self._hashes_at(places) == hashes)
        return hits, places.take(hits)

    def _walked(self, hashes: Hashes, rows: Rows) -> tuple[Rows, Places]:
        """As :meth:`_hits`, row by row from where the index says that they begin."""
        places = Places(rows, np.array(self._edges(hashes)[1:]))
        lasts = places.each(self._lengths) - 1
        np.minimum(rows, lasts, out=rows)
        found = self._hashes_at(places)
        lower = np.flatnonzero(found < hashes)
        # Rows of one group lie so close together that steps lead nowhere.
        for _ in range(sizes().index_steps if 2 * len(lower) < len(hashes) else 0):
            lower = lower[rows.take(lower) < lasts.take(lower)]
            rows[lower] += 1
            found[lower] = self._hashes_at(places.take(lower))
            lower = lower[found.take(lower) < hashes.take(lower)]
        if len(lower):
            far = hashes.take(lower)
            rows[lower] = self._not_below(far, self._edges(far))
            found[lower] = self._hashes_at(places.take(lower))
        hits = np.flatnonzero(found == hashes)
        return hits, places.take(hits)

    def _not_below(self, hashes: Hashes, edges: list[int]) -> Rows:
        """For each of ascending hashes the first row of its batch that is not below it, or the last one."""
        rows = np.empty(len(hashes), dtype=np.int64)
        for stored, first, end in zip(self._all_but_last, edges, edges[1:], strict=False):
            if first < end:
                rows[first:end] = stored.searchsorted(hashes[first:end])
        return rows

    def _next(self, hashes: Hashes, needles: Rows, places: Places) -> tuple[Rows, Places]:
        """The rows behind these, where they have the hash that is looked for too."""
        behind = Places(places.rows + 1, places.ends)
        there = np.flatnonzero(behind.rows < places.each(self._lengths))  # Rows of one hash are in one batch.
        needles, behind = needles.take(there), behind.take(there)
        same = np.flatnonzero(self._hashes_at(behind) == hashes.take(needles))
        return needles.take(same), behind.take(same)

    def _hashes_at(self, places: Places) -> Hashes:
        hashes, firsts = self._stretch
        return hashes.take(places.each(firsts) + places.rows)

    @cached_property
    def _stretch(self) -> tuple[Hashes, Rows]:
        hashes = [batch.keys.hashes for batch in self._batches]
        starts = [part.__array_interface__["data"][0] for part in hashes]
        stretch = one_stretch(starts, self._lengths.tolist(), np.uint64, hashes)
        return (np.concatenate(hashes), np.cumsum(self._lengths) - self._lengths) if stretch is None else stretch

    @cached_property
    def _all_but_last(self) -> list[Hashes]:
        """A hash greater than these is that of the last row, or not there."""
        return [batch.keys.hashes[:-1] for batch in self._batches]

    @cached_property
    def _firsts(self) -> Hashes:
        return np.array([batch.keys.hashes[0] for batch in self._batches], dtype=np.uint64)

    @cached_property
    def _lengths(self) -> Rows:
        return np.array([len(batch) for batch in self._batches], dtype=np.int64)

    @cached_property
    def _ends(self) -> list[int]:
        """How many rows lie before each batch, and in all."""
        return list(itertools.accumulate(map(len, self._batches), initial=0))

    @cached_property
    def has_tombstones(self) -> bool:
        """Whether any row deletes its key."""
        return any(batch.deleted is not None for batch in self._batches)
