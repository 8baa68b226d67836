"""Counts, sums, means and variances.

Facts:
- Result types are Spark's: the sum of integers is ``int64``, of floats ``float64``, of ``decimal(p, s)`` is
  ``decimal(p + 10, s)``; the mean is ``float64``, of decimals ``decimal(p + 4, s + 4)``, both capped at 38 digits.
- The sum of integers is exact; one that does not fit is an error, as in Spark's ANSI mode, and never wraps.
- Over rows that may be taken back, :mod:`stateline.state.aggregate.retraction` keeps what these functions need.
- Variance is kept as count, mean and sum of squared differences, and merged by the formula of Chan, Golub and LeVeque
  (1979), which does not cancel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stateline.state.aggregate.api import (
    BoundAggregation,
    Function,
    GroupedRows,
    Inputs,
    SqlWords,
    merge_nullable,
    overflow,
    sql_name,
)
from stateline.state.aggregate.exact import (
    add,
    decimal_mean,
    decimal_sums,
    long_sums,
    longs,
    mean_type,
    numeric,
    sum_type,
)
from stateline.state.aggregate.retraction import RetractableMean, RetractableSum, RetractableVariance
from stateline.state.columns import Mask, Rows, from_words, valid_mask

__all__ = ["count", "count_if", "mean", "stddev", "stddev_pop", "sum", "var_pop", "variance"]

Doubles = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]


def count(column: str | None = None) -> Function:
    """The number of rows; with a column, of its values that are not null."""
    if column is None:
        return Function("count(*)", (), _Count, retractable=_Count)
    return Function(f"count({column})", (column,), _Count, retractable=_Count)


def count_if(condition: str) -> Function:
    """The number of rows where a column of truth values is true."""
    return count().where(condition)


def sum(column: str) -> Function:  # noqa: A001 - Spark's word
    """The sum of a numeric column. One that does not fit is an error, as in Spark's ANSI mode."""
    return Function(f"sum({column})", (column,), partial(_Sum, column), retractable=partial(RetractableSum, column))


def mean(column: str) -> Function:
    """The arithmetic mean of a numeric column."""
    return Function(f"mean({column})", (column,), partial(_Mean, column), retractable=partial(RetractableMean, column))


def variance(column: str) -> Function:
    """The sample variance of a numeric column; null for fewer than two values."""
    return _spread("var_samp", column, sample=True, root=False)


def var_pop(column: str) -> Function:
    """The population variance of a numeric column."""
    return _spread("var_pop", column, sample=False, root=False)


def stddev(column: str) -> Function:
    """The sample standard deviation of a numeric column; null for fewer than two values."""
    return _spread("stddev_samp", column, sample=True, root=True)


def stddev_pop(column: str) -> Function:
    """The population standard deviation of a numeric column."""
    return _spread("stddev_pop", column, sample=False, root=True)


def _spread(function: str, column: str, *, sample: bool, root: bool) -> Function:
    kept, retractable = (partial(made, column, sample=sample, root=root) for made in (_Variance, RetractableVariance))
    return Function(f"{function}({column})", (column,), kept, retractable=retractable)


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

    def sql(self, words: SqlWords) -> Sequence[str]:
        return [words.aggregate("count", sql_name(self._columns[0]) if self._columns else "*")]


class _Sum(BoundAggregation):
    def __init__(self, column: str, inputs: Inputs) -> None:
        self._column = column
        self._subject = inputs.subject
        self.output = sum_type(numeric(inputs, column))
        self.state = (("", self.output),)

    def partial(self, rows: GroupedRows) -> list[pa.Array]:
        return [_sums(rows, self._column, self.output, self._subject)]

    def merge(self, older: Sequence[pa.Array], newer: Sequence[pa.Array]) -> list[pa.Array]:
        return [add(older[0], newer[0], self._subject)]

    def sql(self, words: SqlWords) -> Sequence[str]:
        if pa.types.is_decimal(self.output):
            return ()
        column = sql_name(self._column)
        if pa.types.is_float64(self.output):
            return [words.aggregate("sum", f"CAST({column} AS DOUBLE)")]
        # Halves of 32 bits: neither sum leaves 64 bits, so only a whole that does not fit is an error.
        wide = f"CAST({column} AS BIGINT)"
        high, low = words.aggregate("sum", f"shiftright({wide}, 32)"), words.aggregate("sum", f"{wide} & 4294967295L")
        upper = f"({high} + shiftright({low}, 32))"
        whole = f"shiftleft({upper}, 32) | ({low} & 4294967295L)"
        fails = words.raising(overflow(self._subject, self.output))
        fits = f"{upper} BETWEEN -2147483648L AND 2147483647L"
        return [f"CASE WHEN {upper} IS NULL THEN NULL WHEN {fits} THEN {whole} ELSE {fails} END"]


class _Mean(BoundAggregation):
    def __init__(self, column: str, inputs: Inputs) -> None:
        kind = numeric(inputs, column)
        self._column = column
        self._subject = inputs.subject
        self._sum_type = sum_type(kind) if pa.types.is_decimal(kind) else pa.float64()
        self.output = mean_type(kind)
        self.state = ((".sum", self._sum_type), (".count", pa.int64()))

    def partial(self, rows: GroupedRows) -> list[pa.Array]:
        valid = valid_mask(rows.column(self._column))
        return [_sums(rows, self._column, self._sum_type, self._subject), pa.array(rows.counts(valid))]

    def merge(self, older: Sequence[pa.Array], newer: Sequence[pa.Array]) -> list[pa.Array]:
        return [add(older[0], newer[0], self._subject), merge_nullable(older[1], newer[1], pc.add)]

    def result(self, state: Sequence[pa.Array]) -> pa.Array:
        total, count = state
        if pa.types.is_float64(self.output):
            return pc.divide(total, count.cast(pa.float64(), safe=False))
        return decimal_mean(total, count, self.output, self._subject)

    def sql(self, words: SqlWords) -> Sequence[str]:
        if pa.types.is_decimal(self._sum_type):
            return ()
        column = sql_name(self._column)
        return [words.aggregate("sum", f"CAST({column} AS DOUBLE)"), words.aggregate("count", column)]


class _Variance(BoundAggregation):
    """Sample or population variance, or its root. A sample of one value has none: its divisor is ``n - 1``."""

    state = ((".count", pa.int64()), (".mean", pa.float64()), (".squares", pa.float64()))
    output = pa.float64()

    def __init__(self, column: str, inputs: Inputs, *, sample: bool, root: bool) -> None:
        numeric(inputs, column)
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


def _sums(rows: GroupedRows, name: str, kind: pa.DataType, subject: str) -> pa.Array:
    """The sum of each group as ``kind``; null where all values are."""
    column = rows.column(name)
    valid = valid_mask(column)
    some = None if valid is None else rows.counts(valid) > 0
    if pa.types.is_float64(kind):
        return from_words(np.add.reduceat(_doubles(column), rows.starts), kind, some)
    if pa.types.is_decimal(kind):
        return decimal_sums(column, valid, rows, kind, some, subject)
    return from_words(long_sums(longs(column), rows, subject), kind, some)


def _first_valid(valid: Mask | None, rows: GroupedRows) -> Rows:
    """The first row of each group that is not null; of a group of nulls its first row."""
    if valid is None:
        return rows.starts
    first: Rows = rows.starts.copy()
    places = np.flatnonzero(valid)
    first[rows.index.take(places[::-1])] = places[::-1]  # The first one of a group is written last.
    return first


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
