"""The order of values as SQL sees it, in whole columns.

Facts:
- NaN equals NaN and is greater than every other number; -0.0 equals 0.0 (Spark SQL, "NaN semantics").
- Strings and binaries are compared by unsigned bytes, as Spark's default collation does.
- The bits of a double, with all but the sign flipped where the sign is set, order as signed integers do.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stateline.floats import canonical_words
from stateline.state.aggregate.api import GroupedRows
from stateline.state.columns import Mask, Rows, fixed_words, from_words, valid_mask

__all__ = ["best_rows", "from_ordinals", "greater", "is_invertible", "is_orderable", "ordinals"]

Ordinals = npt.NDArray[np.int64]

_LOWEST: Final = np.int64(-(2**63))
_HIGHEST: Final = np.int64(2**63 - 1)
_LONG_DECIMAL_DIGITS: Final = 18
"""Decimals of up to this many digits fit a 64-bit integer."""


def is_orderable(kind: pa.DataType) -> bool:
    """Whether values of a type have an order: all but lists, structs, maps, nulls and intervals of months and days."""
    refused = (pa.types.is_nested, pa.types.is_null, pa.types.is_float16, pa.types.is_interval)
    return not any(test(kind) for test in refused)


def is_invertible(kind: pa.DataType) -> bool:
    """Whether :func:`from_ordinals` can give values of this type back."""
    return fixed_words(pa.array([], kind)) is not None and not pa.types.is_float16(kind)


def ordinals(column: pa.Array, wanted: Mask | None = None) -> Ordinals:
    """Integers that order as the values do. Those of nulls mean nothing.

    Args:
        column: Of an orderable type.
        wanted: Rows whose order matters; where ranking is expensive, the others are left out and get 0.
    """
    kind = column.type
    words = fixed_words(column)
    if words is not None:
        if pa.types.is_floating(kind):
            return _float_ordinals(words.view(np.float64 if kind.bit_width == 64 else np.float32))
        if pa.types.is_unsigned_integer(kind):
            plain = words.view(f"u{kind.bit_width // 8}")
            return (plain ^ np.uint64(1 << 63)).view(np.int64) if kind.bit_width == 64 else plain.astype(np.int64)
        signed: Ordinals = words.astype(np.int64, copy=False)
        return signed
    if pa.types.is_boolean(kind):
        truth: npt.NDArray[Any] = column.fill_null(False).to_numpy(zero_copy_only=False)
        return truth.astype(np.int64)
    if pa.types.is_decimal128(kind) and kind.precision <= _LONG_DECIMAL_DIGITS:
        halves = np.frombuffer(column.buffers()[1], dtype=np.int64)
        return halves[2 * column.offset : 2 * (column.offset + len(column)) : 2]
    if wanted is not None and not wanted.all():
        ranks = np.zeros(len(column), dtype=np.int64)
        rows = np.flatnonzero(wanted)
        ranks[rows] = _ranks(column.take(pa.array(rows)))
        return ranks
    return _ranks(column)


def from_ordinals(numbers: Ordinals, kind: pa.DataType, valid: Mask | None) -> pa.Array:
    """The values whose :func:`ordinals` these are; null where ``valid`` is false. For invertible types."""
    if pa.types.is_floating(kind):
        bits = np.where(numbers < 0, numbers ^ _HIGHEST, numbers)
        doubles = bits.view(np.float64)
        return from_words(doubles if kind.bit_width == 64 else doubles.astype(np.float32), kind, valid)
    if pa.types.is_unsigned_integer(kind) and kind.bit_width == 64:
        return from_words(numbers.view(np.uint64) ^ np.uint64(1 << 63), kind, valid)
    return from_words(numbers.astype(f"i{kind.bit_width // 8}", copy=False), kind, valid)


def greater(left: pa.Array, right: pa.Array) -> pa.Array:
    """Element by element whether ``left > right``; null where one is null."""
    if pa.types.is_floating(left.type):
        left_nan = pc.is_nan(left)
        if pc.any(left_nan).as_py():
            above = pc.and_(left_nan, pc.invert(pc.is_nan(right)))
            return pc.or_(pc.greater(left, right), above)
    return pc.greater(left, right)


def best_rows(rows: GroupedRows, by: pa.Array, *, largest: bool, value: pa.Array | None = None) -> Rows:
    """The row of each group with the largest (or smallest) ``by``; -1 for a group where all are null.

    Ties are decided by ``value`` in the same sense, a null losing against every value; then the first row is taken.
    Both columns are in the order of the grouping.
    """
    valid = valid_mask(by)
    numbers = ordinals(by, _in_larger_groups(rows))
    candidates = _best_candidates(numbers, valid, rows.starts, rows.index, largest=largest)
    groups = rows.index.take(candidates)
    if value is not None and len(groups) > 1 and (groups[1:] == groups[:-1]).any():
        candidates = _decide_ties(candidates, groups, value, largest=largest)
        groups = rows.index.take(candidates)
    best = np.full(len(rows), -1, dtype=np.int64)
    best[groups[::-1]] = candidates[::-1]  # The first candidate of a group is written last.
    return best


def _decide_ties(candidates: Rows, groups: Rows, value: pa.Array, *, largest: bool) -> Rows:
    """The candidates that are best by ``value`` too; all candidates of groups whose values are all null."""
    values = value.take(pa.array(candidates))
    valid = valid_mask(values)
    starts = np.flatnonzero(np.concatenate(([True], groups[1:] != groups[:-1])))
    index = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(groups)))
    numbers = ordinals(values)
    if valid is not None:
        # A null may stay only where its whole group is null.
        some = np.logical_or.reduceat(valid, starts)
        numbers = np.where(valid, numbers, 0)
        valid = valid | ~some.take(index)
    return candidates.take(_best_candidates(numbers, valid, starts, index, largest=largest))


def _best_candidates(numbers: Ordinals, valid: Mask | None, starts: Rows, index: Rows, *, largest: bool) -> Rows:
    """The rows whose number equals the best one of their group."""
    if valid is not None:
        numbers = np.where(valid, numbers, _LOWEST if largest else _HIGHEST)
    best = (np.maximum if largest else np.minimum).reduceat(numbers, starts)
    is_best = numbers == best.take(index)
    if valid is not None:
        is_best &= valid
    return np.flatnonzero(is_best)


def _in_larger_groups(rows: GroupedRows) -> Mask:
    """The rows that are not alone in their group: only their order matters."""
    larger: Mask = (rows.sizes > 1).take(rows.index)
    return larger


def _float_ordinals(values: npt.NDArray[Any]) -> Ordinals:
    bits = canonical_words(values.astype(np.float64)).view(np.int64)
    return np.where(bits < 0, bits ^ _HIGHEST, bits)


def _ranks(column: pa.Array) -> Ordinals:
    ranks = pc.rank(column, sort_keys="ascending", tiebreaker="dense")
    numbers: Ordinals = ranks.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers
