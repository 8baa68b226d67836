"""One side of a join: how its rows are kept. A table of rows that are never written twice nor deleted.

The key of a row in the table is its grouping key, its event time where the join has an interval, the batch in which it
came, and its number among the rows of that batch that are alike in all of this: equal rows are rows of their own. These
numbers are small, and so is what they take in a run. Rows of a grouping key are ordered by time, or as they came
(``stateline.state.subkeys``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from stateline.pipeline.operators.api import HASH_COLUMN, BatchContext
from stateline.pipeline.operators.join.interval import Interval, Ranges, all_of_keys
from stateline.state.columns import Mask, Rows, contiguous, fixed_words, from_words, valid_mask
from stateline.state.gather import Scattered
from stateline.state.keys import KeyRows, key_rows, sorted_by_hash
from stateline.state.rows import StateRows
from stateline.state.runs import SearchedBatches
from stateline.state.schema import StateSchema
from stateline.state.subkeys import in_lower_half, ordered_hashes

__all__ = ["Arrived", "SideTable", "columns_of"]

_IDENTITY: Final = ("batch", "row")
_ARRIVED: Final = "arrived_ms"
_BATCH_SHIFT: Final = 12
"""Without times, rows of one key are ordered by batch and number, as long as these are below 4,096."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """The rows of one side that came in a batch.

    Attributes:
        rows: Those that can have partners, in the order of the table.
        alone: Those that never can, because a key or their time is null.
    """

    rows: StateRows
    alone: StateRows


@dataclass(frozen=True, slots=True)
class SideTable:
    """The layout of one side's table.

    Attributes:
        keys: The grouping key.
        schema: The table.
        numbers: For each column of the stream its number among the columns of the table, keys first.
        time: The number of the event time, where the join has an interval; it is one of the table's key.
        arrived: The number of the time at which a row came, where rows are forgotten after a while.
        interval: Of the join, seen from this side.
    """

    keys: StateSchema
    schema: StateSchema
    numbers: Mapping[str, int]
    time: int | None
    arrived: int | None
    interval: Interval | None

    @classmethod
    def of(
        cls, schema: pa.Schema, keys: Sequence[str], interval: Interval | None, time: str | None, *, forgets: bool
    ) -> Self:
        """The layout for a stream.

        Args:
            schema: Of the stream.
            keys: Its key columns.
            interval: Of the join, seen from this side; ``None`` for none.
            time: The column of its event time; ``None`` if it has none.
            forgets: Whether rows are forgotten some time after they came.
        """
        grouping = StateSchema(pa.schema([schema.field(key) for key in keys]), pa.schema([]))
        ordered_by = [time] if interval is not None and time is not None and time not in keys else []
        taken = {name.lower() for name in schema.names}
        made = [pa.field(_free(name, taken), pa.int64()) for name in _IDENTITY]
        values = [field for field in schema if field.name not in (*keys, *ordered_by)]
        if forgets:
            values.append(pa.field(_free(_ARRIVED, taken), pa.int64()))
        table = StateSchema(
            pa.schema([*grouping.keys, *(schema.field(name) for name in ordered_by), *made]),
            pa.schema(values),
            append_only=True,
            subkeys=len(ordered_by) + len(made),
        )
        names = table.row.names
        return cls(
            keys=grouping,
            schema=table,
            numbers={name: names.index(name) for name in schema.names},
            time=None if interval is None or time is None else names.index(time),
            arrived=len(names) - 1 if forgets else None,
            interval=interval,
        )

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The columns of the stream, key columns first."""
        return (*self.keys.keys.names, *(name for name in self.numbers if name not in self.keys.keys.names))

    def arrive(self, batches: Iterable[pa.RecordBatch], context: BatchContext) -> Arrived:
        """The rows of a batch as the table keeps them."""
        received = [batch for batch in batches if batch.num_rows]
        if not received:
            nothing = self.no_rows()
            return Arrived(nothing, nothing)
        table = pa.Table.from_batches(received)
        keys = key_rows(
            self.keys, [table.column(key) for key in self.keys.keys.names], table.column(HASH_COLUMN).to_numpy()
        )
        columns = [
            *keys.columns,
            *(self._made(name, table, context) for name in self.schema.row.names[len(self.keys.keys) :]),
        ]
        width = len(self.schema.keys)
        rows = StateRows(KeyRows(keys.hashes, tuple(columns[:width])), tuple(columns[width:]))
        matchable = self._matchable(rows)
        alone = rows.slice(0, 0) if matchable is None else rows.take(np.flatnonzero(~matchable))
        kept = rows if matchable is None else rows.take(np.flatnonzero(matchable))
        return Arrived(self._ordered(kept, context) if len(kept) else kept, alone)

    def no_rows(self) -> StateRows:
        """No rows of the table."""
        keys = KeyRows(np.empty(0, dtype=np.uint64), tuple(pa.nulls(0, kind) for kind in self.schema.keys.types))
        return StateRows(keys, tuple(pa.nulls(0, kind) for kind in self.schema.values.types))

    def ranges(self, rows: StateRows) -> Ranges:
        """Where partners of rows of this side may lie in the other table."""
        if self.interval is None:
            return all_of_keys(rows.keys.hashes)
        return self.interval.ranges(rows.keys.hashes, self.times(rows))

    def times(self, rows: StateRows) -> Rows:
        """Event times of rows that have one, microseconds since the epoch."""
        return _words(columns_of(rows)[self.time or 0])

    def lifetimes(self, rows: StateRows) -> Rows:
        """The times that say when rows are over: :attr:`lifetime`."""
        return _words(columns_of(rows)[self.lifetime])

    @property
    def lifetime(self) -> int:
        """The number of the column that says when a row is over: its event time, or the time at which it came."""
        return (self.time if self.arrived is None else self.arrived) or 0

    def _made(self, name: str, table: pa.Table, context: BatchContext) -> pa.Array:
        """A column of the table that is not one of the grouping key."""
        if name in self.numbers:
            column, kind = contiguous(table.column(name)), self.schema.row.field(name).type
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            return column if column.type == kind else column.cast(kind)
        is_arrival = self.arrived is not None and name == self.schema.row.names[self.arrived]
        constant = context.now_ms if is_arrival else context.sequence  # Rows are numbered when they are in order.
        return from_words(np.full(table.num_rows, constant, dtype=np.int64), pa.int64())

    def _matchable(self, rows: StateRows) -> Mask | None:
        """Which rows have no null where partners must be equal or near; ``None`` for all of them."""
        asked = len(self.schema.keys) - len(_IDENTITY)
        masks = [mask for column in rows.keys.columns[:asked] if (mask := valid_mask(column)) is not None]
        return np.logical_and.reduce(masks) if masks else None

    def _ordered(self, rows: StateRows, context: BatchContext) -> StateRows:
        """One row or more in the order of the table, numbered."""
        times = np.zeros(len(rows), dtype=np.uint64) if self.interval is None else self.interval.order(self.times(rows))
        order, hashes = sorted_by_hash(ordered_hashes(rows.keys.hashes, times))
        rows = rows.take(order)
        starts = np.flatnonzero(np.concatenate([[True], hashes[1:] != hashes[:-1]]))
        numbers = np.arange(len(rows)) - np.repeat(starts, np.diff(starts, append=len(rows)))
        if self.interval is None:
            hashes = ordered_hashes(hashes, in_lower_half(numbers + (context.sequence << _BATCH_SHIFT)))
        columns = (*rows.keys.columns[:-1], from_words(numbers, pa.int64()))
        return dataclasses.replace(rows, keys=KeyRows(hashes, columns))


def columns_of(rows: StateRows | SearchedBatches) -> Sequence[Any]:
    """The columns of rows, those of the key first: :class:`pa.Array`, or :class:`Scattered` of rows in a run."""
    if isinstance(rows, StateRows):
        return (*rows.keys.columns, *rows.values)
    scattered: list[Scattered] = [*rows.keys, *rows.values]
    return scattered


def _words(column: pa.Array) -> Rows:
    words: Rows = fixed_words(column)  # type: ignore[assignment] # Times and whole numbers are words.
    return words


def _free(name: str, taken: set[str]) -> str:
    """A name like this that no column has."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name
