"""Keys whose time is over: found by a column of the key, and taken out of the table.

Facts:
- The search is one vectorised pass over one key column of every run: 8 bytes a row, memory-mapped. A table of 5 M rows
  takes about as long as reading 40 MB. Only what it finds is looked up as a whole.
- A stored row may be superseded or deleted by a newer run, so what is found is probed like any other key.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from stateline.state.columns import Mask, Rows, at_or_below, take
from stateline.state.keys import KeyRows, group_rows
from stateline.state.merge import Expired
from stateline.state.rows import StateRows
from stateline.state.table import StateTable

__all__ = ["ExpiredKeys", "expire_keys", "expire_rows", "over_by"]


@dataclasses.dataclass(frozen=True, slots=True)
class ExpiredKeys:
    """What :func:`expire_keys` or :func:`expire_rows` found.

    Attributes:
        rows: The last state of each expired key, ascending by hash.
        changes: What is to be stored: the given changes of all other keys, and a tombstone for each stored key that has
            expired.
    """

    rows: StateRows
    changes: StateRows


def expire_keys(table: StateTable, changes: StateRows, column: int, *, after: int | None, until: int) -> ExpiredKeys:
    """Takes every key out whose value in a key column is in ``(after, until]``.

    Args:
        table: The state before the changes.
        changes: New rows of a batch. Keys of theirs at or below ``after`` are taken out too.
        column: Which key column: whole numbers or times. Null is never over.
        after: Everything stored at or below it was taken out before; ``None`` for nothing.
        until: Inclusive.
    """
    parts = [
        batch.keys.take(rows)
        for run in table.runs
        for batch in run.batches
        if len(rows := _within(batch, column, after, until))
    ]
    gone = _within(changes, column, None, until)
    parts.append(changes.keys.take(gone))
    keys = group_rows(KeyRows.concat(parts)).keys
    found = table.with_changes(changes).probe(keys)
    live = np.flatnonzero(found.mask)
    expired = StateRows(keys.take(live).declared(table.schema), tuple(take(values, live) for values in found.values))
    stored = expired.keys.take(np.flatnonzero(table.probe(expired.keys).mask))
    kept = changes if len(gone) == 0 else changes.take(np.setdiff1d(np.arange(len(changes)), gone))
    return ExpiredKeys(expired, _joined(kept, _tombstones(table, stored)))


def expire_rows(table: StateTable, changes: StateRows, *, until: int) -> ExpiredKeys:
    """Takes every stored key out whose end, the last value column, is at or below ``until``.

    For those who must know which keys they are: else what has expired is only hidden, and left out by merges. A key
    that the tombstones have taken out is not found again.

    Args:
        table: The state before the changes.
        changes: New rows of a batch, whose ends are later.
        until: Inclusive. Null is never over.
    """
    parts = [
        batch.keys.take(rows)
        for run in table.runs
        for batch in run.batches
        if len(rows := np.flatnonzero(at_or_below(batch.values[-1], until)))
    ]
    if not parts:
        return ExpiredKeys(StateRows.none(table.schema), changes)
    keys = group_rows(KeyRows.concat(parts)).keys
    found = table.with_changes(changes).probe(keys)
    over = np.flatnonzero(found.mask & at_or_below(found.values[-1], until))
    expired = StateRows(keys.take(over).declared(table.schema), tuple(take(values, over) for values in found.values))
    return ExpiredKeys(expired, _joined(changes, _tombstones(table, expired.keys)))


def over_by(column: int, until: int | None) -> Expired:
    """A test for merges: which keys are over, by a key column as in :func:`expire_keys`; none if ``until`` is None."""

    def over(rows: StateRows) -> Mask:
        mask = np.zeros(len(rows), dtype=np.bool_)
        if until is not None:
            mask[_within(rows, column, None, until)] = True
        return mask

    return over


def _within(rows: StateRows, column: int, after: int | None, until: int) -> Rows:
    """The rows, tombstones left out, whose value is in ``(after, until]``."""
    times = rows.keys.columns[column]
    mask = at_or_below(times, until)
    if after is not None:
        mask &= ~at_or_below(times, after)
    if rows.deleted is not None:
        mask &= ~rows.deleted
    return np.flatnonzero(mask)


def _tombstones(table: StateTable, keys: KeyRows) -> StateRows:
    nothing = tuple(pa.nulls(len(keys), field.type) for field in table.schema.values)
    return StateRows(keys, nothing, np.ones(len(keys), dtype=np.bool_))


def _joined(one: StateRows, other: StateRows) -> StateRows:
    """Rows of disjoint keys as one, ascending by hash."""
    if len(one) == 0 or len(other) == 0:
        return one if len(other) == 0 else other
    rows = StateRows.concat([one, other])
    return rows.take(np.argsort(rows.keys.hashes, kind="stable"))
