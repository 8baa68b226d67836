"""Tables with several rows per grouping key: elements of a list, entries of a map, timers.

The whole key of a row is the grouping key, then a sub-key. Its 64-bit hash is made of two halves:

- the upper half is that of the **grouping key's** hash. It alone decides the key group, so a row lives in the subtask,
  the key group and the slice of a run where its grouping key lives;
- the lower half comes from the hash of the whole key, so rows of one grouping key differ in it. Sorting, searching and
  merging see distinct hashes, as everywhere else, and need no rule of their own.

So all rows of a grouping key are one contiguous range of every run, found by two binary searches. Two grouping keys may
share an upper half: whole keys are compared, as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from stateline.state.columns import Mask, Rows
from stateline.state.keys import Hashes, KeyRows, equal_at, group_sorted, key_rows
from stateline.state.rows import Run, StateRows
from stateline.state.schema import StateSchema
from stateline.state.table import StateTable

__all__ = ["OwnedRows", "rows_of_keys", "rows_where", "subkey_changes", "subkey_rows"]

_UPPER: Final = np.uint64(0xFFFF_FFFF_0000_0000)
_LOWER: Final = np.uint64(0x0000_0000_FFFF_FFFF)
_HALF: Final = np.uint64(32)


@dataclass(frozen=True, slots=True)
class OwnedRows:
    """Rows of a table and the keys that own them.

    Attributes:
        owners: For each row the number of its grouping key, among those asked for.
        rows: Live rows, ascending by hash.
    """

    owners: Rows
    rows: StateRows


def subkey_changes(
    table: StateTable,
    keys: KeyRows,
    owners: Sequence[int] | Rows,
    subkeys: Sequence[pa.Array],
    values: Sequence[pa.Array],
    deleted: Mask,
) -> StateRows:
    """Changes of a table with sub-keys, ascending by the hash that the module defines.

    Args:
        table: Its key is the grouping key, then the sub-key.
        keys: Grouping keys.
        owners: For each row the number of its grouping key; no whole key comes twice.
        subkeys: One column per sub-key column.
        values: One column per value column.
        deleted: Which rows are tombstones.
    """
    whole = subkey_rows(table.schema, keys, owners, subkeys)
    rows = StateRows(whole, tuple(values), deleted if deleted.any() else None)
    return rows.take(np.argsort(whole.hashes, kind="stable"))


def subkey_rows(
    schema: StateSchema, keys: KeyRows, owners: Sequence[int] | Rows, subkeys: Sequence[pa.Array]
) -> KeyRows:
    """Whole keys with the hashes that the module defines, in the order of ``owners``; see :func:`subkey_changes`."""
    grouping = keys.take(np.array(owners, dtype=np.int64))
    whole = key_rows(schema, [*grouping.columns, *subkeys])
    return KeyRows((grouping.hashes & _UPPER) | (whole.hashes >> _HALF), whole.columns)


def rows_of_keys(table: StateTable, keys: KeyRows) -> OwnedRows:
    """All live rows of many grouping keys, in one pass over the runs.

    Args:
        table: A table with sub-keys.
        keys: Distinct grouping keys of this subtask, ascending by hash: the table's key without its sub-key.
    """
    table.check_owned(keys)
    upper = keys.hashes & _UPPER
    parts: list[StateRows] = []
    owners: list[Rows] = []
    for run in reversed(table.runs):
        for part, owner in _search(run, keys, upper):
            parts.append(part)
            owners.append(owner)
    return _newest(table, parts, owners)


def rows_where(table: StateTable, test: Callable[[StateRows], Mask]) -> StateRows:
    """All live rows that pass a test on their **key**: the same answer for every version of a row.

    So rows are sifted before versions are compared, and a big table with few matches costs one look at its keys.
    """
    parts = []
    for run in reversed(table.runs):
        for batch in run.batches:
            passed = np.flatnonzero(test(batch))
            if len(passed):
                parts.append(batch.take(passed))
    return _newest(table, parts, [np.zeros(len(part), dtype=np.int64) for part in parts]).rows


def _search(run: Run, keys: KeyRows, upper: Hashes) -> list[tuple[StateRows, Rows]]:
    """Rows of a run whose grouping key is one of ``keys``, and which one."""
    found = []
    for batch in run.batches:
        stored = batch.keys.hashes
        first = int((upper | _LOWER).searchsorted(stored[0]))
        end = int(upper.searchsorted(stored[-1], side="right"))
        if first >= end:
            continue
        wanted = upper[first:end]
        starts = stored.searchsorted(wanted)
        counts = stored.searchsorted(wanted | _LOWER, side="right") - starts
        rows = _ranges(starts, counts)
        owner = np.repeat(np.arange(first, end), counts)
        same = equal_at(keys, owner, _grouping(batch.keys, len(keys.columns)), rows)
        if not same.all():
            rows, owner = rows[same], owner[same]
        if len(rows):
            found.append((batch.take(rows), owner))
    return found


def _ranges(starts: Rows, counts: Rows) -> Rows:
    """The numbers of many ranges, one range after the other."""
    total = int(counts.sum())
    shifts = np.repeat(starts - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    return np.arange(total) + shifts


def _grouping(keys: KeyRows, columns: int) -> KeyRows:
    return KeyRows(keys.hashes, keys.columns[:columns])


def _newest(table: StateTable, parts: Sequence[StateRows], owners: Sequence[Rows]) -> OwnedRows:
    """The newest version of each row, without those deleted; newer parts come first."""
    if not parts:
        return OwnedRows(np.empty(0, dtype=np.int64), StateRows.none(table.schema))
    rows, owner = StateRows.concat(parts), np.concatenate(owners)
    order = np.argsort(rows.keys.hashes, kind="stable")
    groups = group_sorted(rows.keys, order, rows.keys.hashes.take(order))
    newest = groups.order.take(groups.starts)
    if rows.deleted is not None:
        newest = newest[~rows.deleted.take(newest)]
    live = rows.take(newest)
    return OwnedRows(owner.take(newest), StateRows(live.keys, live.values).declared(table.schema))
