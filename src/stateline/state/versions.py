"""Versions of keys: which one held at a time, and which ones nobody can ask for any more. Pure.

A version of a key holds from its own time on, inclusive, until the time of the next one. There is one for each key and
time: of two, the one that arrived later counts. Who asks for a time above a border needs, of each key, the newest
version at or below the border and all that are above it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from stateline.state.columns import Mask, Rows, fixed_words
from stateline.state.keys import Hashes, KeyRows, group_rows
from stateline.state.merge import Expired
from stateline.state.rows import StateRows
from stateline.state.subkeys import LOWER_HALF, grouping_keys

__all__ = ["NO_VERSION", "Times", "Versions", "expired_versions", "order_of_times"]

NO_VERSION: Final = -1
_SECOND_US: Final = 1_000_000
_CODES_MAX: Final = 1 << 62

Times = npt.NDArray[np.int64]
"""Microseconds since the epoch."""


def order_of_times(times: Times) -> Hashes:
    """The order of versions by time within their key: whole seconds; times before 1970 share one, and after 2106."""
    return np.clip(times // _SECOND_US, 0, int(LOWER_HALF)).view(np.uint64)


@dataclass(frozen=True, slots=True)
class _Codes:
    """Key and time in one whole number, which sorts as both do, and faster.

    Attributes:
        times: All times, ascending, where the numbers between them would not fit; ``None`` where they do.
        low: The least time.
        span: Numbers that a key takes: one below its first time, and those of its times.
    """

    times: Times | None
    low: int
    span: int

    @classmethod
    def of(cls, owners: Rows, times: Times) -> Self:
        """For one version or more."""
        low, keys = int(times.min()), int(owners.max()) + 1
        span = int(times.max()) - low + 2
        if keys * span <= _CODES_MAX:
            return cls(None, low, span)
        known = np.unique(times)
        return cls(known, low, len(known) + 1)

    def encode(self, owners: Rows, times: Times) -> Rows:
        """The numbers of some keys and times; of times between those of versions, the number of the one before."""
        if self.times is not None:
            return owners * self.span + self.times.searchsorted(times, side="right")
        return owners * self.span + (np.clip(times, self.low - 1, self.low + self.span - 2) - (self.low - 1))


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of some keys, ascending by key and time; no time of a key comes twice.

    Attributes:
        owners: For each the number of its key.
        times: From when it holds, inclusive.
        rows: The row that it was made from.
        replaces: Whether a row of the same key and time was there before, or it is that row.
        sorted_by: What they ascend by; ``None`` where there are none.
    """

    owners: Rows
    times: Times
    rows: Rows
    replaces: Mask
    sorted_by: tuple[_Codes, Rows] | None

    @classmethod
    def of(cls, owners: Rows, times: Times, stored: int) -> Self:
        """The versions that rows make.

        Args:
            owners: For each row the number of its key.
            times: For each row its time.
            stored: So many rows come first that were there before; the others follow in order of arrival.
        """
        if len(owners) == 0:
            return cls(owners, times, owners, np.zeros(0, dtype=np.bool_), None)
        codes = _Codes.of(owners, times)
        numbers = codes.encode(owners, times)
        order = np.argsort(numbers, kind="stable")  # Of one key and time, the last one arrived last.
        numbers = numbers.take(order)
        edges = np.flatnonzero(numbers[1:] != numbers[:-1])
        first, last = np.concatenate(([0], edges + 1)), np.append(edges, len(order) - 1)
        rows = order.take(last)
        return cls(owners.take(rows), times.take(rows), rows, order.take(first) < stored, (codes, numbers.take(last)))

    def __len__(self) -> int:
        return len(self.rows)

    def holding(self, owners: Rows, times: Times) -> Rows:
        """For each of some keys and times the version that holds: its place here, or :data:`NO_VERSION`."""
        if self.sorted_by is None:
            return np.full(len(owners), NO_VERSION)
        codes, numbers = self.sorted_by
        found = numbers.searchsorted(codes.encode(owners, times), side="right") - 1
        found[self.owners.take(found) != owners] = NO_VERSION  # Also where the last key is found before the first one.
        return found

    def superseded(self, border: int | None) -> Mask:
        """Which versions nobody needs who asks for times above a border only."""
        gone = np.zeros(len(self), dtype=np.bool_)
        if border is not None:
            gone[:-1] = (self.owners[1:] == self.owners[:-1]) & (self.times[1:] <= border)
        return gone


def expired_versions(grouping: int, border: int, outdated: int | None = None) -> Expired:
    """A test for merges of a table whose sub-key is the time of a version.

    It sees a part of a key's versions: a version goes if a newer one at or below the border is among them, and that one
    stays, or goes for one that is newer still.

    Args:
        grouping: Columns of the grouping key; the time is the next one.
        border: Nobody asks for a time at or below it.
        outdated: A version at or below this goes in any case; ``None`` for no such border.
    """

    def expired(rows: StateRows) -> Mask:
        times = fixed_words(rows.keys.columns[grouping])
        gone = np.zeros(len(rows), dtype=np.bool_)
        if times is None or len(rows) == 0:
            return gone
        settled = times <= border
        if rows.deleted is not None:
            settled &= ~rows.deleted
        old = np.flatnonzero(settled)
        if len(old):
            gone[old] = _are_superseded(grouping_keys(rows.keys, grouping).take(old), times.take(old))
        return gone if outdated is None else gone | (times <= outdated)

    return expired


def _are_superseded(keys: KeyRows, times: Times) -> Mask:
    """Which rows are not the newest of their key."""
    groups = group_rows(keys)
    newest = np.maximum.reduceat(times.take(groups.order), groups.starts)
    gone = np.empty(len(times), dtype=np.bool_)
    gone[groups.order] = times.take(groups.order) < newest.repeat(groups.sizes)
    return gone
