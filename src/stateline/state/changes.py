"""The change feed: what happened to the rows of a slice of state between two checkpoints.

It gives the **net** change of each key: a key that was put and deleted in between does not appear, one that was changed
ten times appears once. So the feed between two checkpoints is one function of them, and repeating it gives the same
rows. Values are compared as they are stored: a rewritten row with equal values is no change.

Why it is cheap. Runs never change, and both stacks keep the order of the runs that they share. A key whose rows lie
only where a run is in both stacks reads the same in both. So only keys in key groups of a run that **one** of the
stacks has can have changed: between neighbouring checkpoints the new run of each subtask, and of older ones the slices
that were merged. Those keys are looked up in both stacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateline.checkpoint.api import SubtaskState
from stateline.handles import RunHandle, SectionIdentity
from stateline.key_groups import KeyGroupRange
from stateline.sizes import sizes
from stateline.state.columns import Mask, Rows, fixed_words, valid_mask
from stateline.state.keys import Hashes, KeyRows
from stateline.state.merge import merge_windows
from stateline.state.rescale import narrowed
from stateline.state.runs import Run
from stateline.state.schema import StateSchema
from stateline.state.stored import SliceReader, StoredState
from stateline.state.table import Found, StateTable

__all__ = ["CHANGE_COLUMN", "ChangeType", "change_schema", "changes_between", "changes_of_stored"]

CHANGE_COLUMN: Final = "__change"
"""First column of the feed. Names that start with ``__`` are Stateline's, so no column of a state is called so."""


class ChangeType(StrEnum):
    """What happened to a key."""

    INSERT = "insert"
    UPDATE_BEFORE = "update_before"
    UPDATE_AFTER = "update_after"
    DELETE = "delete"


_INSERT, _BEFORE, _AFTER, _DELETE = range(4)


def change_schema(schema: StateSchema) -> pa.Schema:
    """The columns of the feed: :data:`CHANGE_COLUMN`, then those of the state."""
    return pa.schema([pa.field(CHANGE_COLUMN, pa.string(), nullable=False), *schema.row])


def changes_of_stored(before: StoredState, after: StoredState) -> Iterator[pa.RecordBatch]:
    """The changes of the whole state of an operator from one checkpoint of a root to another, in any order.

    Rows are read as the newer checkpoint has them. Yields and raises what :func:`changes_between` does.
    """
    parts = max(after.stored_rows // sizes().feed_rows, 1)
    reader = max(before, after, key=lambda state: state.checkpoint_id).reader()  # Rows become newer, never older.
    for was, now in zip(before.slices(parts), after.slices(parts), strict=True):
        yield from changes_between(reader, was, now)


def changes_between(reader: SliceReader, before: SubtaskState | None, after: SubtaskState) -> Iterator[pa.RecordBatch]:
    """The changes that lead from one state of some key groups to another.

    Args:
        reader: Reads both, with the schema of the newer one.
        before: The slice as it was; ``None`` for nothing.
        after: The same key groups, later.

    Yields:
        Batches of :func:`change_schema`, none empty. A key comes once, or twice where its values changed: then
        ``update_before`` and ``update_after`` are neighbours.

    Raises:
        DataLossError: A run is gone: one of the checkpoints was retired.
        CorruptDataError: A run is not what was written.
        InvalidInputError: Of kind ``SCHEMA_MISMATCH``: the older rows cannot be read as the newer ones.
    """
    old_handles = () if before is None else before.runs
    candidates = [*_without(old_handles, after.runs), *_without(after.runs, old_handles)]
    if not candidates:
        return
    opened = {run.handle: run for run in reader.open_runs(candidates)}
    others = [handle for handle in dict.fromkeys((*old_handles, *after.runs)) if handle not in opened]
    hashes = _hashes(list(opened.values()))
    opened |= {run.handle: run for run in reader.open_runs(others, hashes)}
    tables = [
        StateTable(reader.schema, after.key_groups, reader.max_parallelism, [opened[handle] for handle in handles])
        for handles in (old_handles, after.runs)
    ]
    compared = [opened[handle] for handle in candidates]
    schema = change_schema(reader.schema)
    for window in merge_windows(compared, after.key_groups, reader.max_parallelism, drop_tombstones=False):
        old, new = (table.probe(window.keys) for table in tables)
        batch = _compare(window.keys.declared(reader.schema), old, new, schema)
        if batch.num_rows:
            yield batch


def _without(handles: Sequence[RunHandle], others: Sequence[RunHandle]) -> list[RunHandle]:
    """The parts of runs, by key groups, that another stack does not have."""
    taken: dict[SectionIdentity, list[KeyGroupRange]] = {}
    for other in others:
        taken.setdefault(other.identity, []).append(other.key_groups)
    return [
        part
        for handle in handles
        for missing in _outside(handle.key_groups, taken.get(handle.identity, ()))
        if (part := narrowed(handle, missing)) is not None
    ]


def _outside(key_groups: KeyGroupRange, taken: Sequence[KeyGroupRange]) -> Iterator[KeyGroupRange]:
    """What disjoint ranges leave of a range, ascending."""
    start = key_groups.start
    for part in sorted(taken, key=lambda item: item.start):
        if start < part.start <= key_groups.end:
            yield KeyGroupRange(start, part.start - 1)
        start = max(start, part.end + 1)
    if start <= key_groups.end:
        yield KeyGroupRange(start, key_groups.end)


def _hashes(runs: Sequence[Run]) -> Hashes:
    return np.concatenate([batch.keys.hashes for run in runs for batch in run.batches] or [np.empty(0, np.uint64)])


def _compare(keys: KeyRows, old: Found, new: Found, schema: pa.Schema) -> pa.RecordBatch:
    """The changes of some keys, in the order of their hashes."""
    both = old.mask & new.mask
    changed = both & ~_equal_rows(old.values, new.values, len(keys))
    masks = {_DELETE: old.mask & ~new.mask, _BEFORE: changed, _AFTER: changed, _INSERT: new.mask & ~old.mask}
    found = {kind: np.flatnonzero(mask) for kind, mask in masks.items()}
    places = np.concatenate(list(found.values()))
    kinds = np.concatenate([np.full(len(rows), kind, dtype=np.int64) for kind, rows in found.items()])
    order = np.argsort(places, kind="stable")  # A row before its change comes before the row after it.
    places, kinds = places[order], kinds[order]
    is_new = np.isin(kinds, (_INSERT, _AFTER))
    source = pa.array(np.where(is_new, places + len(keys), places))
    columns = [column.take(pa.array(places)) for column in keys.columns]
    columns += [pa.concat_arrays([was, now]).take(source) for was, now in zip(old.values, new.values, strict=True)]
    # Not a constant of the module: whoever first makes an array of a list imports pandas, if it can.
    types = pa.array([kind.value for kind in ChangeType])
    return pa.RecordBatch.from_arrays([types.take(pa.array(kinds)), *columns], schema=schema)


def _equal_rows(left: Sequence[pa.Array], right: Sequence[pa.Array], rows: int) -> Mask:
    equal = np.ones(rows, dtype=np.bool_)
    for one, other in zip(left, right, strict=True):
        equal &= _equal(one, other)
    return equal


def _equal(left: pa.Array, right: pa.Array) -> Mask:
    """Which values are the same as they are stored, null and NaN included, however deep they are nested.

    Nothing becomes a Python value: Arrow has moments and texts that Python has not.
    """
    same = _equal_values(left, right)
    validity, other_validity = valid_mask(left), valid_mask(right)
    if validity is None and other_validity is None:
        return same
    ones = np.ones(len(left), dtype=np.bool_)
    one, two = (ones if mask is None else mask for mask in (validity, other_validity))
    return (same & one & two) | (~one & ~two)


def _equal_values(left: pa.Array, right: pa.Array) -> Mask:
    """As :func:`_equal` where neither is null; anything elsewhere."""
    kind = left.type
    if pa.types.is_null(kind):
        return np.ones(len(left), dtype=np.bool_)
    if pa.types.is_struct(kind):
        one, other = ([side.field(at) for at in range(kind.num_fields)] for side in (left, right))
        return _equal_rows(one, other, len(left))
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return _equal_items(left, right)
    words, others = fixed_words(left), fixed_words(right)
    if words is not None and others is not None:
        same: Mask = words == others
        return same
    if pa.types.is_interval(kind):  # Arrow compares them only as bytes.
        left, right = (side.view(pa.binary(kind.bit_width // 8)) for side in (left, right))
    mask: Mask = pc.equal(left, right).fill_null(False).to_numpy(zero_copy_only=False)
    return mask


def _equal_items(left: pa.Array, right: pa.Array) -> Mask:
    """Which lists have equal items, or maps equal entries in one order. What is null has none."""
    starts, lengths = _places(left)
    other_starts, other_lengths = _places(right)
    same: Mask = lengths == other_lengths
    rows = np.flatnonzero(same)
    ends = np.cumsum(lengths[rows])
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths[rows], lengths[rows])
    items, other_items = (
        side.values.take(pa.array(np.repeat(first[rows], lengths[rows]) + within))
        for side, first in ((left, starts), (right, other_starts))
    )
    different = np.concatenate([[0], np.cumsum(~_equal(items, other_items))])
    same[rows] = different[ends] == different[ends - lengths[rows]]
    return same


def _places(lists: pa.Array) -> tuple[Rows, Rows]:
    """The first item of each list among the values, and how many items it has: none where it is null."""
    offsets = lists.offsets.to_numpy().astype(np.int64)
    lengths, validity = np.diff(offsets), valid_mask(lists)
    return offsets[:-1], lengths if validity is None else np.where(validity, lengths, 0)
