"""Bounded lists and sets of values, and the exact number of distinct values.

Facts:
- Nulls are left out, as in Spark's ``collect_list`` and ``collect_set``. A key without any value has an empty list.
- The order of a list is the order of arrival, which a replay may change; a set is kept in the order of first arrival.
- ``count_distinct`` keeps every distinct value: in a table of values where there can be one, else in a list. Where that
  is too much, ``approx_count_distinct`` keeps a sketch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateline.floats import canonical_floats
from stateline.options import parse_int
from stateline.state.aggregate.api import BoundAggregation, Function, GroupedRows, Inputs
from stateline.state.aggregate.lists import Lists, element_codes, first_of_each
from stateline.state.aggregate.values import DistinctCount

__all__ = ["collect_list", "collect_set", "count_distinct"]


def collect_list(column: str, limit: int, *, newest: bool = False) -> Function:
    """Values in order of arrival, at most ``limit``: the first ones, or with ``newest`` the last ones."""
    limit = parse_int(limit, "limit", minimum=1)
    keep = ", newest" if newest else ""
    bound = partial(_Collect, column, limit, distinct=False, newest=newest)
    return Function(f"collect_list({column}, limit={limit}{keep})", (column,), bound)


def collect_set(column: str, limit: int) -> Function:
    """Distinct values in order of first arrival, at most ``limit``."""
    limit = parse_int(limit, "limit", minimum=1)
    bound = partial(_Collect, column, limit, distinct=True)
    return Function(f"collect_set({column}, limit={limit})", (column,), bound, compared=(column,))


def count_distinct(column: str) -> Function:
    """The exact number of distinct values. The state holds all of them."""
    tabled = partial(DistinctCount, column)
    bound = partial(_CountDistinct, column)
    return Function(f"count_distinct({column})", (column,), bound, compared=(column,), tabled=tabled, grows=True)


class _Collect(BoundAggregation):
    def __init__(self, column: str, limit: int, inputs: Inputs, *, distinct: bool, newest: bool = False) -> None:
        kind = inputs.kind(column)
        if distinct and (pa.types.is_nested(kind) or pa.types.is_null(kind)):
            raise inputs.refused(
                f"values of type {kind} cannot be compared for equality",
                "Use a number, string, date, timestamp, boolean, binary or decimal",
            )
        self._column = column
        self._limit = limit
        self._distinct = distinct
        self._newest = newest
        self.output: pa.DataType = pa.list_(pa.field("element", kind))
        self.state = (("", self.output),)

    def partial(self, rows: GroupedRows) -> list[pa.Array]:
        return [self._bounded(_values(rows, self._column)).column()]

    def merge(self, older: Sequence[pa.Array], newer: Sequence[pa.Array]) -> list[pa.Array]:
        return [self._bounded(Lists.joined([Lists.of(older[0]), Lists.of(newer[0])])).column()]

    def _bounded(self, lists: Lists) -> Lists:
        if self._distinct:
            lists = Lists(canonical_floats(lists.elements), lists.lengths)
            lists = lists.where(first_of_each(lists.owners, element_codes(lists.elements)))
        if len(lists.lengths) and int(lists.lengths.max()) > self._limit:
            lists = lists.where((lists.from_end() if self._newest else lists.places) < self._limit)
        return lists


class _CountDistinct(BoundAggregation):
    output = pa.int64()

    def __init__(self, column: str, inputs: Inputs) -> None:
        self._set = _Collect(column, np.iinfo(np.int64).max, inputs, distinct=True)
        self.state = ((".values", self._set.output),)

    def partial(self, rows: GroupedRows) -> list[pa.Array]:
        return self._set.partial(rows)

    def merge(self, older: Sequence[pa.Array], newer: Sequence[pa.Array]) -> list[pa.Array]:
        return self._set.merge(older, newer)

    def result(self, state: Sequence[pa.Array]) -> pa.Array:
        return pc.list_value_length(state[0]).fill_null(0).cast(pa.int64())


def _values(rows: GroupedRows, name: str) -> Lists:
    column = rows.column(name)
    lists = Lists(column, rows.sizes)
    return lists.where(column.is_valid().to_numpy(zero_copy_only=False)) if column.null_count else lists
