"""Time to live: rows of state that count as absent from a moment of processing time on.

The moment is kept beside each row, as the last value column. Nobody looks for rows whose time is over: whoever reads a
row compares its moment with the time of the batch, and merges leave out what nobody sees any more.

Facts:
- Processing time never goes back (:attr:`~stateline.pipeline.operators.api.BatchContext.now`), so a row that has been
  absent once stays so, whether it has been merged away meanwhile or not.
- A row without a moment lives for ever: it was stored before its table had a time to live.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from stateline.errors import InvalidInputError
from stateline.options import duration_microseconds
from stateline.state.columns import Mask, at_or_below, from_words
from stateline.state.keys import KeyRows
from stateline.state.merge import Expired
from stateline.state.rows import StateRows
from stateline.state.schema import StateSchema
from stateline.state.table import Found, StateTable

__all__ = ["EXPIRY_COLUMN", "Lifetime", "LiveTable", "expiry_test", "ttl_milliseconds", "with_expiry"]

EXPIRY_COLUMN: Final = "expires_at_ms"
"""Milliseconds since the epoch from which on a row counts as absent; the last value column."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long the rows of a table count.

    Attributes:
        now_ms: Processing time of the batch, milliseconds since the epoch.
        ttl_ms: Time to live after the last write; ``None`` for ever, and for tables without :data:`EXPIRY_COLUMN`.
    """

    now_ms: int
    ttl_ms: int | None = None

    def live(self, values: Sequence[pa.Array]) -> Mask | None:
        """Which rows have not expired; ``None`` for all of them."""
        if self.ttl_ms is None or len(values[-1]) == 0:
            return None
        gone = at_or_below(values[-1], self.now_ms)
        return ~gone if gone.any() else None

    def stamped(self, values: Sequence[pa.Array], rows: int) -> list[pa.Array]:
        """Value columns with the expiry of rows that are written now."""
        if self.ttl_ms is None:
            return list(values)
        return [*values, pa.array(np.full(rows, self.now_ms + self.ttl_ms))]


class LiveTable:
    """A table as its program sees it: what has expired is not there, and nor is :data:`EXPIRY_COLUMN`.

    Args:
        table: The table itself.
        lifetime: The time of the batch, and the time to live; without one all of the table is seen.
    """

    __slots__ = ("_lifetime", "_table", "schema")

    def __init__(self, table: StateTable, lifetime: Lifetime) -> None:
        self._table = table
        self._lifetime = lifetime
        whole = table.schema
        expires = lifetime.ttl_ms is not None
        self.schema = replace(whole, values=whole.values.remove(len(whole.values) - 1)) if expires else whole

    def probe(self, keys: KeyRows) -> Found:
        """As :meth:`StateTable.probe`."""
        found = self._table.probe(keys)
        live = self._lifetime.live(found.values)
        values = found.values[: len(self.schema.values)]
        if live is None:
            return Found(found.mask, values)
        mask = found.mask & live
        rows = from_words(np.arange(len(mask)), pa.int64(), mask)
        return Found(mask, tuple(column.take(rows) for column in values))

    def scan(self) -> Iterator[pa.RecordBatch]:
        """As :meth:`StateTable.scan`."""
        columns = list(range(len(self.schema.row)))
        for batch in self._table.scan():
            live = self._lifetime.live(batch.columns)
            kept = batch if live is None else batch.filter(pa.array(live))
            if kept.num_rows:
                yield kept.select(columns)

    def with_changes(self, changes: StateRows) -> LiveTable:
        """As :meth:`StateTable.with_changes`, of changes that :meth:`written` gave."""
        return LiveTable(self._table.with_changes(changes), self._lifetime)

    def written(self, changes: StateRows) -> StateRows:
        """Changes as the table itself stores them: their time to live begins now."""
        return StateRows(changes.keys, tuple(self._lifetime.stamped(changes.values, len(changes))), changes.deleted)


def expiry_test(now_ms: int) -> Expired:
    """A test for merges: which rows of a table with a time to live have expired."""

    def expired(rows: StateRows) -> Mask:
        return at_or_below(rows.values[-1], now_ms)

    return expired


def with_expiry(schema: StateSchema, operation: str) -> StateSchema:
    """A table's schema with :data:`EXPIRY_COLUMN`.

    Raises:
        InvalidInputError: A column has that name already.
    """
    if EXPIRY_COLUMN in schema.row.names:
        raise InvalidInputError(
            "is the name of a column that a time to live needs itself",
            operation=operation,
            subject=f"{EXPIRY_COLUMN!r}",
            hint="Rename yours",
        )
    values = schema.values.append(pa.field(EXPIRY_COLUMN, pa.int64()))
    return replace(schema, values=values)


def ttl_milliseconds(ttl: object, operation: str) -> int:
    """A time to live in whole milliseconds.

    Args:
        ttl: A duration, as users give it.
        operation: The call that was given it.

    Raises:
        InvalidInputError: It is no duration, or shorter than a millisecond.
    """
    milliseconds = duration_microseconds(ttl, "ttl") // 1_000  # type: ignore[arg-type]
    if milliseconds < 1:
        raise InvalidInputError(
            f"must be 1 millisecond or more, got {ttl!r}",
            operation=operation,
            subject="ttl",
            hint="Give the time after which a key is forgotten, such as '2 hours'; leave it out to keep keys for ever",
        )
    return milliseconds
