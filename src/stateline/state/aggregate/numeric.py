"""Counts, sums, means and variances.

Facts:
- Result types are Spark's: the sum of integers is ``int64``, of floats ``float64``, of ``decimal(p, s)`` is
  ``decimal(p + 10, s)``; the mean is ``float64``, of decimals ``decimal(p + 4, s + 4)``, both capped at 38 digits.
- The sum of integers is exact; one that does not fit is an error, as in Spark's ANSI mode, and never wraps.
- Variance is kept as count, mean and sum of squared differences, and merged by the formula of Chan, Golub and LeVeque
  (1979), which does not cancel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stateline.state.aggregate.api import (
    Aggregation,
    BoundAggregation,
    Function,
    GroupedRows,
    Inputs,
    arithmetic,
    merge_nullable,
    overflow,
)
from stateline.state.columns import Mask, Rows, from_words, valid_mask

__all__ = ["count", "mean", "stddev", "stddev_pop", "sum", "var_pop", "variance"]

Doubles = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]

_DECIMAL_DIGITS_MAX: Final = 38
_HALF_BITS: Final = 32
_HALF_MASK: Final = np.int64(0xFFFFFFFF)
_INT_LIMIT: Final = 1 << 31
_LONG_LIMIT: Final = 1 << 63


def count(column: str | None = None) -> Aggregation:
    """The number of rows; with a column, of its values that are not null."""
    if column is None:
        return Function("count(*)", (), _Count)
    return Function(f"count({column})", (column,), _Count)


def sum(column: str) -> Aggregation:  # noqa: A001 - Spark's word
    """The sum of a numeric column. One that does not fit is an error, as in Spark's ANSI mode."""
    return Function(f"sum({column})", (column,), partial(_Sum, column))


def mean(column: str) -> Aggregation:
    """The arithmetic mean of a numeric column."""
    return Function(f"mean({column})", (column,), partial(_Mean, column))


def variance(column: str) -> Aggregation:
    """The sample variance of a numeric column; null for fewer than two values."""
    return Function(f"var_samp({column})", (column,), partial(_Variance, column, sample=True, root=False))


def var_pop(column: str) -> Aggregation:
    """The population variance of a numeric column."""
    return Function(f"var_pop({column})", (column,), partial(_Variance, column, sample=False, root=False))


def stddev(column: str) -> Aggregation:
    """The sample standard deviation of a numeric column; null for fewer than two values."""
    return Function(f"stddev_samp({column})", (column,), partial(_Variance, column, sample=True, root=True))


def stddev_pop(column: str) -> Aggregation:
    """The population standard deviation of a numeric column."""
    return Function(f"stddev_pop({column})", (column,), partial(_Variance, column, sample=False, root=True))


class _Count(BoundAggregation):
    state = (("", pa.int64()),)
    output = pa.int64()

    def __init__(self, inputs: Inputs) -> None:
        self._columns = tuple(inputs.schema.names)

    def partial(self, rows: GroupedRows) -> list[pa.Array]:
        valid = valid_mask(rows.column(self._columns[0])) if self._columns else None
        return [pa.array(rows.counts(valid))]

    def merge(self, older: Sequence[pa.Array], newer: Sequence[pa.Array]) -> list[pa.Array]:
        return [merge_nullable(older[0], newer[0], pc.add)]


class _Sum(BoundAggregation):
    def __init__(self, column: str, inputs: Inputs) -> None:
        self._column = column
        self._subject = inputs.subject
        self.output = _sum_type(_numeric(inputs, column))
        self.state = (("", self.output),)

    def partial(self, rows: GroupedRows) -> list[pa.Array]:
        return [_sums(rows, self._column, self.output, self._subject)]

    def merge(self, older: Sequence[pa.Array], newer: Sequence[pa.Array]) -> list[pa.Array]:
        return [_add(older[0], newer[0], self._subject)]


class _Mean(BoundAggregation):
    def __init__(self, column: str, inputs: Inputs) -> None:
        kind = _numeric(inputs, column)
        self._column = column
        self._subject = inputs.subject
        self._sum_type = _sum_type(kind) if pa.types.is_decimal(kind) else pa.float64()
        self.output = _mean_type(kind)
        self.state = ((".sum", self._sum_type), (".count", pa.int64()))

    def partial(self, rows: GroupedRows) -> list[pa.Array]:
        valid = valid_mask(rows.column(self._column))
        return [_sums(rows, self._column, self._sum_type, self._subject), pa.array(rows.counts(valid))]

    def merge(self, older: Sequence[pa.Array], newer: Sequence[pa.Array]) -> list[pa.Array]:
        return [_add(older[0], newer[0], self._subject), merge_nullable(older[1], newer[1], pc.add)]

    def result(self, state: Sequence[pa.Array]) -> pa.Array:
        total, count = state
        if pa.types.is_float64(self.output):
            return pc.divide(total, count.cast(pa.float64(), safe=False))
        return _decimal_mean(total, count, self.output, self._subject)


class _Variance(BoundAggregation):
    """Sample or population variance, or its root. A sample of one value has none: its divisor is ``n - 1``."""

    state = ((".count", pa.int64()), (".mean", pa.float64()), (".squares", pa.float64()))
    output = pa.float64()

    def __init__(self, column: str, inputs: Inputs, *, sample: bool, root: bool) -> None:
        _numeric(inputs, column)
        self._column = column
        self._sample = sample
        self._root = root

    def partial(self, rows: GroupedRows) -> list[pa.Array]:
        column = rows.column(self._column)
        valid = valid_mask(column)
        values = _doubles(column)
        count = rows.counts(valid)
        # Seen from the first value, equal values differ by nothing at all, and huge ones do not overflow their sum.
        pivot = values.take(_first_valid(valid, rows))
        shifted = values - pivot.take(rows.index)
        if valid is not None:
            shifted = np.where(valid, shifted, 0.0)
        offset = np.add.reduceat(shifted, rows.starts) / np.maximum(count, 1)
        average = pivot + offset
        difference = shifted - offset.take(rows.index)
        if valid is not None:
            difference = np.where(valid, difference, 0.0)
        squares = np.add.reduceat(difference * difference, rows.starts)
        return [pa.array(count), pa.array(average, from_pandas=False), pa.array(squares, from_pandas=False)]

    def merge(self, older: Sequence[pa.Array], newer: Sequence[pa.Array]) -> list[pa.Array]:
        n, mean, squares = (_filled(column) for column in older)
        m, other_mean, other_squares = (_filled(column) for column in newer)
        total = n + m
        share = np.divide(m, total, out=np.zeros(len(total)), where=total > 0)
        difference = other_mean - mean
        merged_mean = np.where(n == 0, other_mean, np.where(m == 0, mean, mean + difference * share))
        cross = np.where((n == 0) | (m == 0), 0.0, difference * difference * n * share)
        merged = squares + other_squares + cross
        return [
            pa.array(total.astype(np.int64)),
            pa.array(merged_mean, from_pandas=False),
            pa.array(merged, from_pandas=False),
        ]

    def result(self, state: Sequence[pa.Array]) -> pa.Array:
        count, squares = _filled(state[0]), _filled(state[2])
        divisor = count - 1 if self._sample else count
        defined = divisor > 0
        value = np.divide(squares, divisor, out=np.zeros(len(count)), where=defined)
        return from_words(np.sqrt(value) if self._root else value, pa.float64(), defined)


def _numeric(inputs: Inputs, column: str) -> pa.DataType:
    kind = inputs.kind(column)
    fits = (
        (pa.types.is_integer(kind) and not pa.types.is_uint64(kind))
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_decimal128(kind)
    )
    if not fits:
        raise inputs.refused(
            f"column {column!r} has type {kind}, which is not numeric",
            "Cast the column to a number before, or count it",
        )
    return kind


def _sum_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind):
        return pa.decimal128(min(kind.precision + 10, _DECIMAL_DIGITS_MAX), kind.scale)
    return pa.float64() if pa.types.is_floating(kind) else pa.int64()


def _mean_type(kind: pa.DataType) -> pa.DataType:
    """Spark's type of a mean: four digits more behind the point, also where 38 in all leave fewer before it."""
    if not pa.types.is_decimal(kind):
        return pa.float64()
    digits, scale = kind.precision + 4, kind.scale + 4
    if digits > _DECIMAL_DIGITS_MAX:
        scale = min(scale, _DECIMAL_DIGITS_MAX)
        digits = _DECIMAL_DIGITS_MAX
    return pa.decimal128(digits, scale)


def _sums(rows: GroupedRows, name: str, kind: pa.DataType, subject: str) -> pa.Array:
    """The sum of each group as ``kind``; null where all values are."""
    column = rows.column(name)
    valid = valid_mask(column)
    some = None if valid is None else rows.counts(valid) > 0
    if pa.types.is_float64(kind):
        return from_words(np.add.reduceat(_doubles(column), rows.starts), kind, some)
    if pa.types.is_decimal(kind):
        return _decimal_sums(column, valid, rows, kind, some, subject)
    return from_words(_long_sums(_longs(column), rows, subject), kind, some)


def _add(older: pa.Array, newer: pa.Array, subject: str) -> pa.Array:
    kind = newer.type
    with arithmetic(subject, kind):
        if not pa.types.is_decimal(kind):
            return merge_nullable(older, newer, pc.add_checked)
        wide = pa.decimal256(kind.precision, kind.scale)
        return merge_nullable(older.cast(wide), newer.cast(wide), _add_wide).cast(kind)


def _add_wide(left: pa.Array, right: pa.Array) -> pa.Array:
    """A sum of decimals in their own type: the 256 bits behind it have room for many more digits than 38."""
    return pc.add(left, right).cast(left.type)


def _long_sums(values: Longs, rows: GroupedRows, subject: str) -> Longs:
    largest = max(-int(values.min()), int(values.max()), 0)
    if largest * int(rows.sizes.max()) < _LONG_LIMIT:
        sums: Longs = np.add.reduceat(values, rows.starts)
        return sums
    low = np.add.reduceat(values & _HALF_MASK, rows.starts)
    high = np.add.reduceat(values >> _HALF_BITS, rows.starts) + (low >> _HALF_BITS)
    if ((high >= _INT_LIMIT) | (high < -_INT_LIMIT)).any():
        raise overflow(subject, pa.int64())
    joined: Longs = (high << _HALF_BITS) | (low & _HALF_MASK)
    return joined


def _decimal_sums(
    column: pa.Array, valid: Mask | None, rows: GroupedRows, kind: pa.DataType, some: Mask | None, subject: str
) -> pa.Array:
    """Exact sums of 128-bit integers: four limbs of 32 bits are added by themselves, then carries are moved up."""
    words = np.frombuffer(column.buffers()[1], dtype=np.int64).reshape(-1, 2)
    words = words[column.offset : column.offset + len(column)]
    if valid is not None:
        words = np.where(valid[:, None], words, 0)
    low, high = words[:, 0], words[:, 1]
    limbs = [low & _HALF_MASK, (low >> _HALF_BITS) & _HALF_MASK, high & _HALF_MASK, high >> _HALF_BITS]
    sums = [np.add.reduceat(limb, rows.starts) for limb in limbs]
    for place in range(3):
        sums[place + 1] += sums[place] >> _HALF_BITS
        sums[place] &= _HALF_MASK
    if ((sums[3] >= _INT_LIMIT) | (sums[3] < -_INT_LIMIT)).any():
        raise overflow(subject, kind)
    joined = np.empty((len(rows), 2), dtype=np.int64)
    joined[:, 0] = sums[0] | (sums[1] << _HALF_BITS)
    joined[:, 1] = sums[2] | (sums[3] << _HALF_BITS)
    bitmap = None if some is None or some.all() else pa.py_buffer(np.packbits(some, bitorder="little"))
    widest = pa.decimal128(_DECIMAL_DIGITS_MAX, kind.scale)
    made = pa.Array.from_buffers(widest, len(rows), [bitmap, pa.py_buffer(joined)])
    with arithmetic(subject, kind):
        # Arrow does not look at the digits when it makes an array; the wider cast and back does.
        return made.cast(pa.decimal256(_DECIMAL_DIGITS_MAX + 1, kind.scale)).cast(kind)


def _decimal_mean(total: pa.Array, count: pa.Array, kind: pa.DataType, subject: str) -> pa.Array:
    """The quotient, rounded half away from zero, as Spark divides decimals."""
    with arithmetic(subject, kind):
        extra = kind.scale + 1 - total.type.scale
        wide = total.cast(pa.decimal256(_DECIMAL_DIGITS_MAX + extra, total.type.scale + extra))
        some = pc.greater(count, 0)
        divisor = pc.if_else(some, count, 1).cast(pa.decimal256(19, 0))
        quotient = pc.divide(wide, divisor)
        rounded = pc.round(quotient, ndigits=kind.scale, round_mode="half_towards_infinity")
        return pc.if_else(some, rounded, pa.scalar(None, rounded.type)).cast(kind)


def _first_valid(valid: Mask | None, rows: GroupedRows) -> Rows:
    """The first row of each group that is not null; of a group of nulls its first row."""
    if valid is None:
        return rows.starts
    first: Rows = rows.starts.copy()
    places = np.flatnonzero(valid)
    first[rows.index.take(places[::-1])] = places[::-1]  # The first one of a group is written last.
    return first


def _longs(column: pa.Array) -> Longs:
    """The values as 64-bit integers, 0 where null."""
    wide = column if pa.types.is_int64(column.type) else column.cast(pa.int64())
    values: Longs = (wide.fill_null(0) if wide.null_count else wide).to_numpy()
    return values


def _doubles(column: pa.Array) -> Doubles:
    """The values as doubles, 0 where null."""
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    wide = column if pa.types.is_float64(column.type) else column.cast(pa.float64(), safe=False)
    values: Doubles = (wide.fill_null(0.0) if wide.null_count else wide).to_numpy()
    return values


def _filled(column: pa.Array) -> npt.NDArray[Any]:
    """The values as doubles (counts as they are), 0 where null."""
    values: npt.NDArray[Any] = (column.fill_null(0) if column.null_count else column).to_numpy(zero_copy_only=False)
    return values
