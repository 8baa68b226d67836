"""Distinct values by group, each a row of a table: for exact counts of them, and for extremes that may be taken back.

A value table has the key columns of the aggregation and the value as its key, and tells for each condition how many
rows of the group have that value. So a batch writes the values whose counts have changed, however many a group has.

Facts:
- Where rows are only added, a value is there or not: only values that are new are written.
- The rows of a group are next to each other (:mod:`stateline.state.subkeys`). They are read where the least or greatest
  value of a group has been taken back, and nothing as good has come in its place.
- A group that has no state has no values, whatever the table still holds of an earlier life of it.
- Nulls are no values; NaN is one, and -0.0 is 0.0.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stateline.errors import InternalError
from stateline.state.aggregate.api import BoundAggregation, GroupedRows, Inputs, merge_nullable
from stateline.state.aggregate.ordering import ordinals
from stateline.state.columns import Mask, Rows, take, valid_mask
from stateline.state.keys import Groups, group_rows
from stateline.state.rows import StateRows
from stateline.state.schema import StateSchema
from stateline.state.subkeys import rows_of_keys, subkey_rows
from stateline.state.table import StateTable

__all__ = ["DistinctCount", "ValueAggregation", "ValueChange", "ValueExtreme", "ValueTable"]

_PREFIX: Final = "values."
_VALUE: Final = ".value"
_ROWS: Final = ".rows"
_NO_ROWS: Final = np.empty(0, dtype=np.int64)


class ValueAggregation(BoundAggregation):
    """An aggregation that a value table serves.

    Args:
        column: Whose values.
        condition: A column of truth values: only of rows where it is true; ``None`` for all rows.
    """

    input_type = "of values in a table"

    def __init__(self, column: str, condition: str | None) -> None:
        self.column = column
        self.condition = condition

    def partial(self, rows: GroupedRows) -> list[pa.Array]:  # noqa: ARG002
        raise InternalError("has no state of rows alone", operation="aggregate", subject=self.column)

    def merge(self, older: Sequence[pa.Array], newer: Sequence[pa.Array]) -> list[pa.Array]:  # noqa: ARG002
        raise InternalError("has no state of rows alone", operation="aggregate", subject=self.column)

    @abstractmethod
    def changed(self, older: Sequence[pa.Array], change: ValueChange) -> list[pa.Array]:
        """The state columns of the groups of a batch.

        Args:
            older: The state that is stored; null where there is none.
            change: What the batch has done to the values of these groups.
        """


@dataclasses.dataclass(frozen=True, slots=True)
class ValueChange:
    """What a batch has done to the values of its groups.

    Attributes:
        owners: For each value that the batch has touched the number of its group.
        values: The values.
        before: How many rows had them, by condition; or whether any had, where rows are not counted.
        after: The same, now.
        changes: What is to be stored.
        table: What was stored.
        groups: The groups.
    """

    owners: Rows
    values: pa.Array
    before: dict[str | None, npt.NDArray[Any]]
    after: dict[str | None, npt.NDArray[Any]]
    changes: StateRows
    table: StateTable
    groups: GroupedRows

    def of_groups(self, chosen: Rows, condition: str | None) -> tuple[Rows, pa.Array]:
        """All values that some groups have after the batch, under a condition, and whose each is."""
        owned = rows_of_keys(self.table.with_changes(self.changes), self.groups.groups.keys.take(chosen))
        some = np.flatnonzero(_numbers(owned.rows.values[list(self.after).index(condition)]) > 0)
        return chosen.take(owned.owners.take(some)), take(owned.rows.keys.columns[-1], some)


@dataclasses.dataclass(frozen=True, slots=True)
class ValueTable:
    """The values of one column.

    Attributes:
        column: Whose values.
        conditions: Of which rows; see :class:`ValueAggregation`.
        schema: Of the table.
        counts: Whether rows are counted, as they may be taken back; else a value is there or not.
    """

    column: str
    conditions: tuple[str | None, ...]
    schema: StateSchema
    counts: bool

    @classmethod
    def all_of(
        cls, keys: pa.Schema, inputs: pa.Schema, bound: Sequence[BoundAggregation], *, counts: bool
    ) -> tuple[Self, ...]:
        """The tables that some aggregations need: one for each column."""
        wanted: dict[str, dict[str | None, None]] = {}
        for one in bound:
            if isinstance(one, ValueAggregation):
                wanted.setdefault(one.column, {})[one.condition] = None
        kind = pa.int64() if counts else pa.bool_()
        return tuple(
            cls(
                column,
                tuple(conditions),
                StateSchema(
                    keys.append(pa.field(_VALUE, inputs.field(column).type)),
                    pa.schema([(_ROWS if each is None else f"{_ROWS}.{each}", kind) for each in conditions]),
                    subkeys=1,
                ),
                counts,
            )
            for column, conditions in wanted.items()
        )

    @property
    def name(self) -> str:
        """Of the table."""
        return _PREFIX + self.column

    def change(self, table: StateTable, rows: GroupedRows, known: Mask) -> ValueChange:
        """What a batch does to the values of its groups.

        Args:
            table: What is stored.
            rows: The batch.
            known: Which groups have state.

        Raises:
            InternalError: A value was taken back that no row had.
        """
        column = rows.column(self.column)
        valid = valid_mask(column)
        present = np.arange(len(column)) if valid is None else np.flatnonzero(valid)
        owners = rows.index.take(present)
        if len(present) == 0:
            nothing = dict.fromkeys(self.conditions, _NO_ROWS)
            return ValueChange(owners, column.slice(0, 0), nothing, nothing, StateRows.none(self.schema), table, rows)
        values = column if valid is None else take(column, present)
        pairs = group_rows(subkey_rows(self.schema, rows.groups.keys, owners, [values]))
        first = pairs.order.take(pairs.starts)
        owner = owners.take(first)
        found = table.probe(pairs.keys)
        stored = [_numbers(one) if self.counts else _flags(one) for one in found.values]
        lives = known.take(owner)
        before = [one if lives.all() else np.where(lives, one, False) for one in stored]
        came = [self._came(rows, present, pairs, each) for each in self.conditions]
        after = [old + new if self.counts else old | new for old, new in zip(before, came, strict=True)]
        if self.counts and any((one < 0).any() for one in after):
            raise InternalError("a value was taken back that no row had", operation="aggregate", subject=self.column)
        differ = np.logical_or.reduce([new != old for new, old in zip(after, stored, strict=True)])
        chosen = np.flatnonzero(differ)
        kept = [one.take(chosen) for one in after]
        gone = np.logical_and.reduce([one == 0 for one in kept])
        changes = StateRows(pairs.keys.take(chosen), tuple(map(pa.array, kept)), gone if gone.any() else None)
        had, have = (dict(zip(self.conditions, counts, strict=True)) for counts in (before, after))
        return ValueChange(owner, pairs.keys.columns[-1], had, have, changes, table, rows)

    def _came(self, rows: GroupedRows, present: Rows, pairs: Groups, condition: str | None) -> npt.NDArray[Any]:
        """What a batch adds to the rows of each value: how many, or whether there are any."""
        holds = None if condition is None else rows.mask(condition).take(present).take(pairs.order)
        if not self.counts:
            every = np.ones(len(pairs), dtype=np.bool_)
            return every if holds is None else np.logical_or.reduceat(holds, pairs.starts)
        weights = np.ones(len(rows.index), dtype=np.int64) if rows.weights is None else rows.weights
        weights = weights.take(present).take(pairs.order)
        return np.add.reduceat(weights if holds is None else np.where(holds, weights, 0), pairs.starts)


class DistinctCount(ValueAggregation):
    """The exact number of distinct values."""

    state = (("", pa.int64()),)
    output = pa.int64()

    def __init__(self, column: str, inputs: Inputs, condition: str | None = None) -> None:
        super().__init__(column, condition)
        kind = inputs.kind(column)
        if pa.types.is_nested(kind) or pa.types.is_null(kind):
            raise inputs.refused(
                f"values of type {kind} cannot be compared for equality",
                "Use a number, string, date, timestamp, boolean, binary or decimal",
            )

    def changed(self, older: Sequence[pa.Array], change: ValueChange) -> list[pa.Array]:
        before, after = change.before[self.condition] > 0, change.after[self.condition] > 0
        fresh = np.zeros(len(change.groups), dtype=np.int64)
        np.add.at(fresh, change.owners, after.astype(np.int64) - before)
        return [merge_nullable(older[0], pa.array(fresh), pc.add)]


class ValueExtreme(ValueAggregation):
    """The least or greatest value of rows that may be taken back."""

    def __init__(self, column: str, kind: pa.DataType, condition: str | None, *, largest: bool) -> None:
        super().__init__(column, condition)
        self._largest = largest
        self.output = kind
        self.state = (("", kind),)

    def changed(self, older: Sequence[pa.Array], change: ValueChange) -> list[pa.Array]:
        groups = len(change.groups)
        owners = np.concatenate([np.arange(groups), change.owners])
        values = pa.concat_arrays([older[0], change.values])
        numbers = self._numbers(values)
        before, after = change.before[self.condition], change.after[self.condition]
        gone = (before > 0) & (after == 0)
        lost = np.zeros(groups, dtype=np.bool_)
        lost[change.owners[gone & (numbers[groups:] == numbers.take(change.owners))]] = True
        valid = valid_mask(older[0])
        lost &= True if valid is None else valid
        taken = np.concatenate([~lost if valid is None else ~lost & valid, after > 0])
        best = _best(groups, owners, numbers, taken)
        # All of a group that lost its best value, unless what came is as good.
        again = np.flatnonzero(lost & ((best < 0) | (numbers.take(np.maximum(best, 0)) < numbers[:groups])))
        if len(again):
            more, found = change.of_groups(again, self.condition)
            owners = np.concatenate([owners, more])
            values = pa.concat_arrays([values, found])
            taken = np.concatenate([taken, np.ones(len(more), dtype=np.bool_)])
            best = _best(groups, owners, self._numbers(values), taken)
        missing = best < 0
        return [values.take(pa.array(best, mask=missing if missing.any() else None))]

    def _numbers(self, values: pa.Array) -> Rows:
        """Greater is better."""
        numbers = ordinals(values)
        return numbers if self._largest else ~numbers


def _best(groups: int, owners: Rows, numbers: Rows, taken: Mask) -> Rows:
    """The row with the greatest number in each group, of those taken; -1 where there is none."""
    rows = np.flatnonzero(taken)
    order = rows.take(np.lexsort((numbers.take(rows), owners.take(rows))))
    best = np.full(groups, -1, dtype=np.int64)
    best[owners.take(order)] = order  # The greatest of a group is written last.
    return best


def _flags(column: pa.Array) -> Mask:
    """Truth values; false where null."""
    flags: Mask = column.fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    """Counts; 0 where null."""
    wide = column.cast(pa.int64())
    numbers: npt.NDArray[Any] = (wide.fill_null(0) if wide.null_count else wide).to_numpy()
    return numbers
