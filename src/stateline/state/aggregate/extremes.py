"""Minimum, maximum, and the value at the minimum or maximum of another column.

Facts:
- The result of ``first``/``last`` (by time) and ``min_by``/``max_by`` does not depend on the order of rows or batches:
  among rows of equal ``by`` the value itself decides, in the same sense. Replays and other partitionings agree.
- Rows where ``by`` is null do not take part; the value at the winner may be null, as in Spark's ``max_by``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateline.state.aggregate.api import (
    BoundAggregation,
    Function,
    GroupedRows,
    Inputs,
    SqlWords,
    merge_nullable,
    sql_name,
)
from stateline.state.aggregate.ordering import (
    best_rows,
    from_ordinals,
    greater,
    is_invertible,
    is_orderable,
    ordinals,
)
from stateline.state.aggregate.values import ValueExtreme
from stateline.state.columns import Rows, valid_mask

__all__ = ["first", "last", "max", "max_by", "min", "min_by"]


def min(column: str) -> Function:  # noqa: A001 - Spark's word
    """The smallest value of a column of any type that has an order. NaN is greater than every number."""
    return _extreme("min", column, largest=False)


def max(column: str) -> Function:  # noqa: A001 - Spark's word
    """The largest value of a column of any type that has an order. NaN is greater than every number."""
    return _extreme("max", column, largest=True)


def first(column: str, *, by: str) -> Function:
    """The value of the row that is first in the order of ``by``, usually a time; the smallest value among equals."""
    return _value_at(column, by, "first", largest=False)


def last(column: str, *, by: str) -> Function:
    """The value of the row that is last in the order of ``by``, usually a time; the largest value among equals."""
    return _value_at(column, by, "last", largest=True)


def min_by(column: str, by: str) -> Function:
    """The value where ``by`` is smallest; the smallest value among equals."""
    return _value_at(column, by, "min_by", largest=False)


def max_by(column: str, by: str) -> Function:
    """The value where ``by`` is largest; the largest value among equals."""
    return _value_at(column, by, "max_by", largest=True)


def _extreme(function: str, column: str, *, largest: bool) -> Function:
    kept = partial(_Extreme, column, largest=largest)
    tabled = partial(_tabled_extreme, column, largest=largest)
    return Function(f"{function}({column})", (column,), kept, compared=(column,), tabled=tabled)


def _tabled_extreme(column: str, inputs: Inputs, condition: str | None, *, largest: bool) -> ValueExtreme:
    return ValueExtreme(column, _orderable(inputs, column), condition, largest=largest)


def _value_at(column: str, by: str, function: str, *, largest: bool) -> Function:
    columns = (column,) if column == by else (column, by)
    bound = partial(_ValueAtExtreme, column, by, largest=largest)
    return Function(f"{function}({column}, by={by})", columns, bound, compared=(by,))


class _Extreme(BoundAggregation):
    def __init__(self, column: str, inputs: Inputs, *, largest: bool) -> None:
        kind = _orderable(inputs, column)
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

    def _better(self, older: pa.Array, newer: pa.Array) -> pa.Array:
        newer_wins = greater(newer, older) if self._largest else greater(older, newer)
        return pc.if_else(newer_wins, newer, older)

    def sql(self, words: SqlWords) -> Sequence[str]:
        best = words.aggregate("max" if self._largest else "min", sql_name(self._column))
        zero = {pa.float64(): " + 0.0D", pa.float32(): " + 0.0F"}.get(self.output, "")  # Of -0.0 it makes 0.0.
        return [f"{best}{zero}"]


class _ValueAtExtreme(BoundAggregation):
    def __init__(self, column: str, by: str, inputs: Inputs, *, largest: bool) -> None:
        value, by_type = inputs.kind(column), _orderable(inputs, by)
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


def _orderable(inputs: Inputs, column: str) -> pa.DataType:
    kind = inputs.kind(column)
    if not is_orderable(kind):
        raise inputs.refused(
            f"column {column!r} has type {kind}, which has no order",
            "Use a number, string, date, timestamp, boolean, binary or decimal",
        )
    return kind


def _take(column: pa.Array, rows: Rows) -> pa.Array:
    """The rows numbered; null for -1."""
    missing = rows < 0
    return column.take(pa.array(rows, mask=missing if missing.any() else None))
