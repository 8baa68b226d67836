"""Minimum, maximum, and the value at the minimum or maximum of another column.

Facts:
- The result of ``first``/``last`` (by time) and ``min_by``/``max_by`` does not depend on the order of rows or batches:
  among rows of equal ``by`` the value itself decides, in the same sense. Replays and other partitionings agree.
- Rows where ``by`` is null do not take part; the value at the winner may be null, as in Spark's ``max_by``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateline.errors import InvalidInputError
from stateline.state.aggregate.api import Aggregation, BoundAggregation, GroupedRows, field_of, merge_nullable
from stateline.state.aggregate.ordering import (
    best_rows,
    from_ordinals,
    greater,
    is_invertible,
    is_orderable,
    ordinals,
)
from stateline.state.columns import Rows, valid_mask

__all__ = ["Extreme", "ValueAtExtreme"]


class Extreme(Aggregation):
    """The smallest or the largest value of a column."""

    def __init__(self, column: str, *, largest: bool) -> None:
        self.columns = self.compared = (column,)
        self._largest = largest

    @property
    def definition(self) -> str:
        return f"{'max' if self._largest else 'min'}({self.columns[0]})"

    def bind(self, schema: pa.Schema, name: str) -> BoundAggregation:
        kind = _orderable(schema, self.columns[0], self.definition, name)
        return _BoundExtreme(self.columns[0], kind, largest=self._largest)


class _BoundExtreme(BoundAggregation):
    def __init__(self, column: str, kind: pa.DataType, *, largest: bool) -> None:
        self._column = column
        self._largest = largest
        self._choose = np.maximum if largest else np.minimum
        self.output = kind
        self.state = (("", kind),)

    def partial(self, rows: GroupedRows) -> list[pa.Array]:
        column = rows.column(self._column)
        if not is_invertible(self.output):
            return [_take(column, best_rows(rows, column, largest=self._largest))]
        valid = valid_mask(column)
        numbers = ordinals(column)
        some = None
        if valid is not None:
            limits = np.iinfo(np.int64)
            numbers = np.where(valid, numbers, limits.min if self._largest else limits.max)
            some = rows.counts(valid) > 0
        best = self._choose.reduceat(numbers, rows.starts)
        return [from_ordinals(best, self.output, some)]

    def merge(self, older: Sequence[pa.Array], newer: Sequence[pa.Array]) -> list[pa.Array]:
        if is_invertible(self.output) and older[0].null_count == newer[0].null_count == 0:
            best = self._choose(ordinals(older[0]), ordinals(newer[0]))
            return [from_ordinals(best, self.output, None)]
        return [merge_nullable(older[0], newer[0], self._better)]

    def result(self, state: Sequence[pa.Array]) -> pa.Array:
        return state[0]

    def _better(self, older: pa.Array, newer: pa.Array) -> pa.Array:
        newer_wins = greater(newer, older) if self._largest else greater(older, newer)
        return pc.if_else(newer_wins, newer, older)


class ValueAtExtreme(Aggregation):
    """The value of a column in the row where another column is smallest or largest.

    Args:
        column: The value.
        by: What decides.
        largest: Whether the largest ``by`` wins.
        function: The name that the user called, for the definition.
    """

    def __init__(self, column: str, by: str, *, largest: bool, function: str) -> None:
        self.columns = (column,) if column == by else (column, by)
        self.compared = (by,)
        self._column = column
        self._by = by
        self._largest = largest
        self._function = function

    @property
    def definition(self) -> str:
        return f"{self._function}({self._column}, by={self._by})"

    def bind(self, schema: pa.Schema, name: str) -> BoundAggregation:
        value = field_of(schema, self._column, self.definition).type
        by = _orderable(schema, self._by, self.definition, name)
        return _BoundValueAtExtreme(self._column, self._by, value, by, largest=self._largest)


class _BoundValueAtExtreme(BoundAggregation):
    def __init__(self, column: str, by: str, value: pa.DataType, by_type: pa.DataType, *, largest: bool) -> None:
        self._column = column
        self._by = by
        self._largest = largest
        self._value_decides = is_orderable(value)
        self.output = value
        self.state = (("", value), (".by", by_type))

    def partial(self, rows: GroupedRows) -> list[pa.Array]:
        value, by = rows.column(self._column), rows.column(self._by)
        decides = value if self._value_decides else None
        best = best_rows(rows, by, largest=self._largest, value=decides)
        return [_take(value, best), _take(by, best)]

    def merge(self, older: Sequence[pa.Array], newer: Sequence[pa.Array]) -> list[pa.Array]:
        newer_wins = pc.or_kleene(self._better(newer[1], older[1]), self._wins_tie(older, newer))
        # Null: one of them has no row at all. Then the other one stands.
        newer_wins = pc.coalesce(newer_wins, older[1].is_null())
        return [pc.if_else(newer_wins, new, old) for old, new in zip(older, newer, strict=True)]

    def result(self, state: Sequence[pa.Array]) -> pa.Array:
        return state[0]

    def _better(self, one: pa.Array, other: pa.Array) -> pa.Array:
        return greater(one, other) if self._largest else greater(other, one)

    def _wins_tie(self, older: Sequence[pa.Array], newer: Sequence[pa.Array]) -> pa.Array:
        """Whether the newer row stands at the same ``by`` and has the better value; a value beats null."""
        differ = pc.or_(self._better(newer[1], older[1]), self._better(older[1], newer[1]))
        if not self._value_decides:
            return pc.and_(differ, False)
        better = self._better(newer[0], older[0])
        better = pc.coalesce(better, pc.and_(older[0].is_null(), newer[0].is_valid()))
        return pc.and_(pc.invert(differ), better)


def _orderable(schema: pa.Schema, column: str, definition: str, name: str) -> pa.DataType:
    kind = field_of(schema, column, definition).type
    if not is_orderable(kind):
        raise InvalidInputError(
            f"{column!r} has type {kind}, which has no order",
            operation="aggregate",
            subject=f"{name}={definition}",
            hint="Use a number, string, date, timestamp, boolean, binary or decimal",
        )
    return kind


def _take(column: pa.Array, rows: Rows) -> pa.Array:
    """The rows numbered; null for -1."""
    missing = rows < 0
    return column.take(pa.array(rows, mask=missing if missing.any() else None))
