"""Sums, means and variances over rows that may be taken back: of whole numbers and decimals, and exact.

Facts:
- What is kept has an inverse: a row that is taken back leaves nothing behind. So sums are kept as whole numbers, with
  the count of the values in them, which alone tells a sum of nothing from 0.
- Floating-point numbers have no such sum: adding rounds, and what was rounded away does not come back. They are
  refused.
- What a batch takes back may need more bits than any sum that is shown: sums of whole numbers are kept as two halves.
- A variance needs the sum of squares: a decimal of 38 digits, and what does not fit is an error. The variance itself is
  one exact difference, divided once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stateline.state.aggregate.api import (
    BoundAggregation,
    GroupedRows,
    Inputs,
    arithmetic,
    merge_nullable,
    unretractable,
)
from stateline.state.aggregate.exact import (
    DECIMAL_DIGITS_MAX,
    add,
    carried,
    decimal_mean,
    decimal_sums,
    half_sums,
    halves_as_doubles,
    joined_halves,
    longs,
    mean_type,
    numeric,
    sum_type,
)
from stateline.state.columns import from_words, valid_mask

__all__ = ["RetractableMean", "RetractableSum", "RetractableVariance"]

_LONG = pa.decimal128(19, 0)
"""Holds every 64-bit number."""
_SQUARE_SCALE_MAX = DECIMAL_DIGITS_MAX // 2


class _Total(BoundAggregation):
    """A sum that has an inverse, and how many values are in it: what a sum and a mean have in common."""

    def __init__(self, column: str, inputs: Inputs) -> None:
        kind = _exact(column, inputs)
        self._column = column
        self._subject = inputs.subject
        self._total = sum_type(kind)
        self._is_decimal = pa.types.is_decimal(kind)
        total = [(".total", self._total)] if self._is_decimal else [(".high", pa.int64()), (".low", pa.int64())]
        self.state = (*total, (".count", pa.int64()))

    def partial(self, rows: GroupedRows) -> list[pa.Array]:
        column = rows.column(self._column)
        valid = valid_mask(column)
        count = pa.array(rows.counts(valid))
        if self._is_decimal:
            return [decimal_sums(column, valid, rows, self._total, None, self._subject), count]
        return [*map(pa.array, half_sums(longs(column), rows)), count]

    def merge(self, older: Sequence[pa.Array], newer: Sequence[pa.Array]) -> list[pa.Array]:
        count = merge_nullable(older[-1], newer[-1], pc.add)
        if self._is_decimal:
            return [add(older[0], newer[0], self._subject), count]
        halves = (longs(old) + longs(new) for old, new in zip(older[:2], newer[:2], strict=True))
        return [*map(pa.array, carried(*halves)), count]


class RetractableSum(_Total):
    """A sum; null of no value."""

    def __init__(self, column: str, inputs: Inputs) -> None:
        super().__init__(column, inputs)
        self.output = self._total

    def result(self, state: Sequence[pa.Array]) -> pa.Array:
        count = longs(state[-1])
        if self._is_decimal:
            return pc.if_else(pa.array(count > 0), state[0], pa.scalar(None, self.output))
        return from_words(joined_halves(longs(state[0]), longs(state[1]), self._subject), self.output, count > 0)


class RetractableMean(_Total):
    """A mean; null of no value."""

    def __init__(self, column: str, inputs: Inputs) -> None:
        super().__init__(column, inputs)
        self.output = mean_type(inputs.kind(column))

    def result(self, state: Sequence[pa.Array]) -> pa.Array:
        if self._is_decimal:
            return decimal_mean(state[0], state[1], self.output, self._subject)
        count = longs(state[-1])
        mean = halves_as_doubles(longs(state[0]), longs(state[1])) / np.maximum(count, 1)
        return from_words(mean, self.output, count > 0)


class RetractableVariance(BoundAggregation):
    """Count, sum and sum of squares; the sample or population variance, or its root."""

    output = pa.float64()

    def __init__(self, column: str, inputs: Inputs, *, sample: bool, root: bool) -> None:
        kind = _exact(column, inputs)
        scale = kind.scale if pa.types.is_decimal(kind) else 0
        if scale > _SQUARE_SCALE_MAX or (pa.types.is_decimal(kind) and kind.precision == DECIMAL_DIGITS_MAX):
            raise unretractable(
                inputs.subject,
                f"the squares of {kind} have more digits than a decimal",
                f"Cast the column to one of fewer digits, at most {_SQUARE_SCALE_MAX} of them behind the point",
            )
        self._column = column
        self._subject = inputs.subject
        self._sample = sample
        self._root = root
        self._total = pa.decimal128(DECIMAL_DIGITS_MAX - 1, scale)
        self._squares = pa.decimal128(DECIMAL_DIGITS_MAX, 2 * scale)
        self.state = ((".count", pa.int64()), (".sum", self._total), (".squares", self._squares))

    def partial(self, rows: GroupedRows) -> list[pa.Array]:
        column = _decimals(rows.column(self._column))
        valid = valid_mask(column)
        wide = column.cast(pa.decimal256(column.type.precision, column.type.scale))
        with arithmetic(self._subject, self._squares):
            squares = pc.multiply(wide, wide).cast(self._squares)
        return [
            pa.array(rows.counts(valid)),
            decimal_sums(column, valid, rows, self._total, None, self._subject),
            decimal_sums(squares, valid, rows, self._squares, None, self._subject),
        ]

    def merge(self, older: Sequence[pa.Array], newer: Sequence[pa.Array]) -> list[pa.Array]:
        counts = merge_nullable(older[0], newer[0], pc.add)
        return [counts, *(add(old, new, self._subject) for old, new in zip(older[1:], newer[1:], strict=True))]

    def result(self, state: Sequence[pa.Array]) -> pa.Array:
        count, total, squares = state
        n = count.to_numpy(zero_copy_only=False).astype(np.float64)
        divisor = n * (n - 1 if self._sample else n)
        defined = divisor > 0
        numerator = self._spread(count, total, squares)
        value = np.divide(numerator, divisor, out=np.zeros(len(n)), where=defined)
        return from_words(np.sqrt(value) if self._root else value, pa.float64(), defined)

    def _spread(self, count: pa.Array, total: pa.Array, squares: pa.Array) -> npt.NDArray[np.float64]:
        """``n`` times the sum of squares, less the square of the sum: without rounding, up to the last step."""
        wide = total.cast(pa.decimal256(total.type.precision, total.type.scale))
        many = squares.cast(pa.decimal256(squares.type.precision, squares.type.scale))
        spread = pc.subtract(pc.multiply(many, count.cast(pa.decimal256(19, 0))), pc.multiply(wide, wide))
        doubles: npt.NDArray[np.float64] = spread.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return doubles


def _exact(column: str, inputs: Inputs) -> pa.DataType:
    """The type of a column that has exact sums.

    Raises:
        InvalidInputError: It is not numeric, or floating.
    """
    kind = numeric(inputs, column)
    if pa.types.is_floating(kind):
        raise unretractable(
            inputs.subject,
            f"column {column!r} has type {kind}, and a rounded sum cannot be taken back to what it was",
            "Cast the column to a decimal in front of the first step",
        )
    return kind


def _decimals(column: pa.Array) -> pa.Array:
    return column if pa.types.is_decimal(column.type) else column.cast(pa.int64()).cast(_LONG)
