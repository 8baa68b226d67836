"""Sums and means of whole numbers and decimals: exact, whatever they add up to, and also where rows are taken back.

Facts:
- 64-bit numbers are added as halves of 32 bits, where their sum might not fit, and decimals as limbs of 32 bits: no
  digit is lost, and what does not fit at the end is an error.
- A row that is taken back has the weight -1 (:attr:`stateline.state.aggregate.api.GroupedRows.weights`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stateline.state.aggregate.api import GroupedRows, Inputs, arithmetic, merge_nullable, overflow
from stateline.state.columns import Mask

__all__ = [
    "DECIMAL_DIGITS_MAX",
    "add",
    "carried",
    "decimal_mean",
    "decimal_sums",
    "half_sums",
    "halves_as_doubles",
    "joined_halves",
    "long_sums",
    "longs",
    "mean_type",
    "numeric",
    "sum_type",
]

Longs = npt.NDArray[np.int64]

DECIMAL_DIGITS_MAX: Final = 38
"""Of Spark's decimals, and of Arrow's of 128 bits."""

_HALF_BITS: Final = 32
_HALF_MASK: Final = np.int64(0xFFFFFFFF)
_INT_LIMIT: Final = 1 << 31
_LONG_LIMIT: Final = 1 << 63


def numeric(inputs: Inputs, column: str) -> pa.DataType:
    """The type of a column of numbers.

    Raises:
        InvalidInputError: It has another type.
    """
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


def sum_type(kind: pa.DataType) -> pa.DataType:
    """Spark's type of a sum."""
    if pa.types.is_decimal(kind):
        return pa.decimal128(min(kind.precision + 10, DECIMAL_DIGITS_MAX), kind.scale)
    return pa.float64() if pa.types.is_floating(kind) else pa.int64()


def mean_type(kind: pa.DataType) -> pa.DataType:
    """Spark's type of a mean: four digits more behind the point, also where 38 in all leave fewer before it."""
    if not pa.types.is_decimal(kind):
        return pa.float64()
    digits, scale = kind.precision + 4, kind.scale + 4
    if digits > DECIMAL_DIGITS_MAX:
        scale = min(scale, DECIMAL_DIGITS_MAX)
        digits = DECIMAL_DIGITS_MAX
    return pa.decimal128(digits, scale)


def _weighed(values: Longs, rows: GroupedRows) -> Longs:
    return values if rows.weights is None else values * rows.weights


def longs(column: pa.Array) -> Longs:
    """The values as 64-bit integers, 0 where null."""
    wide = column if pa.types.is_int64(column.type) else column.cast(pa.int64())
    values: Longs = (wide.fill_null(0) if wide.null_count else wide).to_numpy()
    return values


def long_sums(values: Longs, rows: GroupedRows, subject: str) -> Longs:
    """The sum of each group.

    Raises:
        InvalidInputError: One does not fit 64 bits.
    """
    largest = max(-int(values.min()), int(values.max()), 0)
    if largest * int(rows.sizes.max()) < _LONG_LIMIT:
        sums: Longs = np.add.reduceat(_weighed(values, rows), rows.starts)
        return sums
    return joined_halves(*half_sums(values, rows), subject)


def half_sums(values: Longs, rows: GroupedRows) -> tuple[Longs, Longs]:
    """The sum of each group as ``high * 2**32 + low``, where ``low`` has 32 bits. Sums of less than 2**31 rows fit."""
    low = np.add.reduceat(_weighed(values & _HALF_MASK, rows), rows.starts)
    return carried(np.add.reduceat(_weighed(values >> _HALF_BITS, rows), rows.starts), low)


def carried(high: Longs, low: Longs) -> tuple[Longs, Longs]:
    """The same numbers, with what ``low`` has above 32 bits in ``high``."""
    return high + (low >> _HALF_BITS), low & _HALF_MASK


def joined_halves(high: Longs, low: Longs, subject: str) -> Longs:
    """What :func:`half_sums` gives, as 64-bit numbers.

    Raises:
        InvalidInputError: One does not fit 64 bits.
    """
    if ((high >= _INT_LIMIT) | (high < -_INT_LIMIT)).any():
        raise overflow(subject, pa.int64())
    joined: Longs = (high << _HALF_BITS) | low
    return joined


def halves_as_doubles(high: Longs, low: Longs) -> npt.NDArray[np.float64]:
    """What :func:`half_sums` gives, each rounded once."""
    return high.astype(np.float64) * np.float64(1 << _HALF_BITS) + low


def decimal_sums(
    column: pa.Array, valid: Mask | None, rows: GroupedRows, kind: pa.DataType, some: Mask | None, subject: str
) -> pa.Array:
    """Exact sums of 128-bit integers: four limbs of 32 bits are added by themselves, then carries are moved up."""
    words = np.frombuffer(column.buffers()[1], dtype=np.int64).reshape(-1, 2)
    words = words[column.offset : column.offset + len(column)]
    if valid is not None:
        words = np.where(valid[:, None], words, 0)
    low, high = words[:, 0], words[:, 1]
    limbs = [low & _HALF_MASK, (low >> _HALF_BITS) & _HALF_MASK, high & _HALF_MASK, high >> _HALF_BITS]
    sums = [np.add.reduceat(_weighed(limb, rows), rows.starts) for limb in limbs]
    for place in range(3):
        sums[place + 1] += sums[place] >> _HALF_BITS
        sums[place] &= _HALF_MASK
    if ((sums[3] >= _INT_LIMIT) | (sums[3] < -_INT_LIMIT)).any():
        raise overflow(subject, kind)
    joined = np.empty((len(rows), 2), dtype=np.int64)
    joined[:, 0] = sums[0] | (sums[1] << _HALF_BITS)
    joined[:, 1] = sums[2] | (sums[3] << _HALF_BITS)
    bitmap = None if some is None or some.all() else pa.py_buffer(np.packbits(some, bitorder="little"))
    widest = pa.decimal128(DECIMAL_DIGITS_MAX, kind.scale)
    made = pa.Array.from_buffers(widest, len(rows), [bitmap, pa.py_buffer(joined)])
    with arithmetic(subject, kind):
        # Arrow does not look at the digits when it makes an array; the wider cast and back does.
        return made.cast(pa.decimal256(DECIMAL_DIGITS_MAX + 1, kind.scale)).cast(kind)


def add(older: pa.Array, newer: pa.Array, subject: str) -> pa.Array:
    """The sum of two sums, row by row; the one that is there where the other is null.

    Raises:
        InvalidInputError: One does not fit.
    """
    kind = newer.type
    with arithmetic(subject, kind):
        if not pa.types.is_decimal(kind):
            return merge_nullable(older, newer, pc.add_checked)
        wide = pa.decimal256(kind.precision, kind.scale)
        return merge_nullable(older.cast(wide), newer.cast(wide), _add_wide).cast(kind)


def _add_wide(left: pa.Array, right: pa.Array) -> pa.Array:
    """A sum of decimals in their own type: the 256 bits behind it have room for many more digits than 38."""
    return pc.add(left, right).cast(left.type)


def decimal_mean(total: pa.Array, count: pa.Array, kind: pa.DataType, subject: str) -> pa.Array:
    """The quotient, rounded half away from zero, as Spark divides decimals."""
    with arithmetic(subject, kind):
        extra = kind.scale + 1 - total.type.scale
        wide = total.cast(pa.decimal256(DECIMAL_DIGITS_MAX + extra, total.type.scale + extra))
        some = pc.greater(count, 0)
        divisor = pc.if_else(some, count, 1).cast(pa.decimal256(19, 0))
        quotient = pc.divide(wide, divisor)
        rounded = pc.round(quotient, ndigits=kind.scale, round_mode="half_towards_infinity")
        return pc.if_else(some, rounded, pa.scalar(None, rounded.type)).cast(kind)
