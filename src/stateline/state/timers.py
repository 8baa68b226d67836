"""Timers: a set of times per key, and all those that have come.

A timer is a row without values; its time is the sub-key. A timer that is registered twice is one timer.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from stateline.state.columns import Mask
from stateline.state.keys import KeyRows
from stateline.state.rows import StateRows
from stateline.state.subkeys import rows_of_keys, rows_where, subkey_changes
from stateline.state.table import StateTable

__all__ = ["EXPIRY", "Timers", "expired_timers", "next_timer"]

EXPIRY: Final = pa.schema([pa.field("expiry_ms", pa.int64())])
"""The sub-key: milliseconds since the epoch."""


def expired_timers(table: StateTable, until_ms: int) -> KeyRows:
    """All stored timers up to and including ``until_ms``; whole keys, the time is the last column."""

    def come(rows: StateRows) -> Mask:
        mask: Mask = rows.keys.columns[-1].to_numpy() <= until_ms
        return mask

    return rows_where(table, come).keys


def next_timer(table: StateTable, after_ms: int, changes: StateRows | None) -> int | None:
    """A time before which no timer comes, once all up to ``after_ms`` have fired; ``None`` if there is none at all.

    It may be that of a timer which was deleted: only keys are looked at, 8 bytes a row. ``changes`` are timers set and
    deleted meanwhile; one of them may be set for a time that has passed.
    """
    first: list[int] = []
    for run in table.runs:
        for batch in run.batches:
            times = batch.keys.columns[-1].to_numpy()
            later = times[times > after_ms]
            first += [int(later.min())] if len(later) else []
    if changes is not None:
        times = changes.keys.columns[-1].to_numpy()
        kept = times if changes.deleted is None else times[~changes.deleted]
        first += [int(kept.min())] if len(kept) else []
    return min(first, default=None)


class Timers:
    """The timers of many keys.

    Args:
        table: The table of timers.
        keys: Distinct keys, ascending by hash; methods take the number of one.
        expired: The timers that have come, as ``(time, key number)``.
    """

    __slots__ = ("_changed", "_expired", "_keys", "_stored", "_table")

    def __init__(self, table: StateTable, keys: KeyRows, expired: list[tuple[int, int]]) -> None:
        self._table = table
        self._keys = keys
        self._expired = expired
        self._stored: list[set[int]] | None = None
        self._changed: dict[int, dict[int, bool]] = {}

    def register(self, key: int, time_ms: int) -> None:
        """Sets a timer. One that is set already stays."""
        self._changed.setdefault(key, {})[time_ms] = True

    def delete(self, key: int, time_ms: int) -> None:
        """Removes a timer, if it is there."""
        self._changed.setdefault(key, {})[time_ms] = False

    def of_key(self, key: int) -> list[int]:
        """All timers of a key, ascending."""
        if self._stored is None:
            self._stored = self._read()
        times = set(self._stored[key])
        for time_ms, is_set in self._changed.get(key, {}).items():
            (times.add if is_set else times.discard)(time_ms)
        return sorted(times)

    def due(self, until_ms: int) -> list[tuple[int, int]]:
        """The timers up to and including ``until_ms`` as they are now: ``(time, key number)``, ascending."""
        due = set(self._expired)
        for key, times in self._changed.items():
            for time_ms, is_set in times.items():
                (due.add if is_set and time_ms <= until_ms else due.discard)((time_ms, key))
        return sorted(due)

    def changes(self) -> StateRows | None:
        """New rows and tombstones, ascending by hash; ``None`` if nothing changed."""
        changed = [(key, time_ms, is_set) for key, times in self._changed.items() for time_ms, is_set in times.items()]
        if not changed:
            return None
        owners, times, are_set = zip(*changed, strict=True)
        subkeys = [pa.array(times, pa.int64())]
        return subkey_changes(self._table, self._keys, owners, subkeys, (), ~np.array(are_set))

    def _read(self) -> list[set[int]]:
        times: list[set[int]] = [set() for _ in range(len(self._keys))]
        owned = rows_of_keys(self._table, self._keys)
        for owner, time_ms in zip(owned.owners.tolist(), owned.rows.keys.columns[-1].to_pylist(), strict=True):
            times[owner].add(time_ms)
        return times
