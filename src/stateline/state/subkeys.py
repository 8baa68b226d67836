"""Tables with several rows per grouping key: elements of a list, entries of a map, timers, rows of a join.

The whole key of a row is the grouping key, then a sub-key. Its 64-bit hash is made of two halves:

- the upper half is that of the **grouping key's** hash. It alone decides the key group, so a row lives in the subtask,
  the key group and the slice of a run where its grouping key lives;
- the lower half tells rows of one grouping key apart. It comes from the hash of the whole key, or from something by
  which rows are to be ordered within their grouping key, such as a time. Sorting, searching and merging see hashes,
  as everywhere else, and need no rule of their own.

So all rows of a grouping key, or those in a range of its order, are one contiguous range of every run, found by two
binary searches. Two grouping keys may share an upper half: whole keys are compared, as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from stateline.state.columns import Mask, Rows, take
from stateline.state.keys import Hashes, KeyRows, equal_keys, group_sorted, key_rows
from stateline.state.rows import StateRows
from stateline.state.schema import StateSchema
from stateline.state.table import Located, StateTable

__all__ = [
    "LOWER_HALF",
    "OwnedRows",
    "grouping_keys",
    "in_lower_half",
    "of_keys",
    "ordered_hashes",
    "rows_of_keys",
    "rows_where",
    "subkey_changes",
    "subkey_rows",
]

_UPPER: Final = np.uint64(0xFFFF_FFFF_0000_0000)
LOWER_HALF: Final = np.uint64(0x0000_0000_FFFF_FFFF)
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


def ordered_hashes(hashes: Hashes, order: Hashes | np.uint64) -> Hashes:
    """Hashes of rows that are ordered within their grouping key.

    Args:
        hashes: Of the grouping keys.
        order: A number below 2**32 for each row, or for all of them.
    """
    return (hashes & _UPPER) | order


def in_lower_half(numbers: Rows) -> Hashes:
    """Whole numbers modulo 2**32: an order that begins anew after 2**32."""
    return numbers.view(np.uint64) & LOWER_HALF


def grouping_keys(keys: KeyRows, columns: int) -> KeyRows:
    """The grouping keys of rows, or of whole keys: their first columns, and of their hashes what rows are found by."""
    return KeyRows(keys.hashes & _UPPER, keys.columns[:columns])


def subkey_changes(
    table: StateTable,
    keys: KeyRows,
    owners: Sequence[int] | Rows,
    subkeys: Sequence[pa.Array],
    values: Sequence[pa.Array],
    deleted: Mask,
    order: Hashes | None = None,
) -> StateRows:
    """Changes of a table with sub-keys, ascending by the hash that the module defines.

    Args:
        table: Its key is the grouping key, then the sub-key.
        keys: Grouping keys.
        owners: For each row the number of its grouping key; no whole key comes twice.
        subkeys: One column per sub-key column.
        values: One column per value column.
        deleted: Which rows are tombstones.
        order: For each row a number below 2**32 that orders it within its grouping key, and is always the same for one
            whole key; ``None`` for the hash of the whole key.
    """
    whole = subkey_rows(table.schema, keys, owners, subkeys, order)
    rows = StateRows(whole, tuple(values), deleted if deleted.any() else None)
    return rows.take(np.argsort(whole.hashes, kind="stable"))


def subkey_rows(
    schema: StateSchema,
    keys: KeyRows,
    owners: Sequence[int] | Rows,
    subkeys: Sequence[pa.Array],
    order: Hashes | None = None,
) -> KeyRows:
    """Whole keys with the hashes that the module defines, in the order of ``owners``; see :func:`subkey_changes`."""
    grouping = keys.take(np.asarray(owners, dtype=np.int64))
    whole = key_rows(schema, [*grouping.columns, *subkeys])
    return KeyRows(ordered_hashes(grouping.hashes, whole.hashes >> _HALF if order is None else order), whole.columns)


def rows_of_keys(table: StateTable, keys: KeyRows, until: Hashes | None = None) -> OwnedRows:
    """All live rows of many grouping keys, in one pass over the runs.

    Args:
        table: A table with sub-keys.
        keys: Distinct grouping keys of this subtask, ascending by hash: the table's key without its sub-key.
        until: For each key the place in its order up to which rows are wanted, inclusive; rows beyond it may come, too.
    """
    table.check_owned(keys)
    upper = keys.hashes & _UPPER
    last = upper | (LOWER_HALF if until is None else until)
    parts: list[StateRows] = []
    owners: list[Rows] = []
    for candidates in table.between(upper, np.maximum.accumulate(last)):  # Keys may share an upper half.
        found = of_keys(candidates, keys.columns)
        if len(found.numbers):
            parts.append(found.source.rows(found.places))
            owners.append(found.numbers)
    return _newest(table, parts, owners)


def of_keys(found: Located, columns: Sequence[pa.Array]) -> Located:
    """Those of one or more rows that have the grouping key by which they were looked for.

    Args:
        found: The rows; their numbers are rows of ``columns``.
        columns: One per column of the grouping key.
    """
    asked = [take(column, found.numbers) for column in columns]
    same = equal_keys(asked, [column.take(found.places) for column in found.source.keys[: len(columns)]])
    return found if same.all() else found.take(np.flatnonzero(same))


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


def _newest(table: StateTable, parts: Sequence[StateRows], owners: Sequence[Rows]) -> OwnedRows:
    """The newest version of each row, without those deleted; newer parts come first."""
    if not parts:
        return OwnedRows(np.empty(0, dtype=np.int64), StateRows.none(table.schema))
    rows, owner = StateRows.concat(parts), np.concatenate(owners)
    newest = np.argsort(rows.keys.hashes, kind="stable")
    if not table.is_append_only:
        groups = group_sorted(rows.keys, newest, rows.keys.hashes.take(newest))
        newest = groups.order.take(groups.starts)
    if rows.deleted is not None:
        newest = newest[~rows.deleted.take(newest)]
    live = rows.take(newest)
    return OwnedRows(owner.take(newest), StateRows(live.keys, live.values).declared(table.schema))
