"""Bounded lists and sets of values, and the exact number of distinct values.

Facts:
- Nulls are left out, as in Spark's ``collect_list`` and ``collect_set``. A key without any value has an empty list.
- The order of a list is the order of arrival, which a replay may change; a set is kept in the order of first arrival.
- ``count_distinct`` keeps every distinct value. Where that is too much, ``approx_count_distinct`` keeps a sketch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateline.errors import InvalidInputError
from stateline.options import parse_int
from stateline.state.aggregate.api import Aggregation, BoundAggregation, GroupedRows, field_of
from stateline.state.aggregate.lists import Lists, element_codes, first_of_each, one_form

__all__ = ["Collect", "CountDistinct"]


class Collect(Aggregation):
    """Values of a column, at most ``limit`` of them.

    Args:
        column: The column.
        limit: Elements of a list, at most.
        distinct: Whether equal values are kept once.
        newest: Whether the newest values stay when there are too many, instead of the first ones.
    """

    def __init__(self, column: str, limit: int, *, distinct: bool, newest: bool = False) -> None:
        self.columns = (column,)
        self.compared = (column,) if distinct else ()
        self._limit = parse_int(limit, "limit", minimum=1)
        self._distinct = distinct
        self._newest = newest

    @property
    def definition(self) -> str:
        function = "collect_set" if self._distinct else "collect_list"
        keep = ", newest" if self._newest else ""
        return f"{function}({self.columns[0]}, limit={self._limit}{keep})"

    def bind(self, schema: pa.Schema, name: str) -> BoundAggregation:
        kind = field_of(schema, self.columns[0], self.definition).type
        if self._distinct:
            _check_distinct(kind, f"{name}={self.definition}")
        return _BoundCollect(self.columns[0], kind, self._limit, distinct=self._distinct, newest=self._newest)


class _BoundCollect(BoundAggregation):
    def __init__(self, column: str, kind: pa.DataType, limit: int, *, distinct: bool, newest: bool) -> None:
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

    def result(self, state: Sequence[pa.Array]) -> pa.Array:
        return state[0]

    def _bounded(self, lists: Lists) -> Lists:
        if self._distinct:
            lists = Lists(one_form(lists.elements), lists.lengths)
            lists = lists.where(first_of_each(lists.owners, element_codes(lists.elements)))
        if len(lists.lengths) and int(lists.lengths.max()) > self._limit:
            lists = lists.where((lists.from_end() if self._newest else lists.places) < self._limit)
        return lists


class CountDistinct(Aggregation):
    """The exact number of distinct values of a column. Its state holds all of them."""

    def __init__(self, column: str) -> None:
        self.columns = self.compared = (column,)

    @property
    def definition(self) -> str:
        return f"count_distinct({self.columns[0]})"

    def bind(self, schema: pa.Schema, name: str) -> BoundAggregation:
        kind = field_of(schema, self.columns[0], self.definition).type
        _check_distinct(kind, f"{name}={self.definition}")
        return _BoundCountDistinct(self.columns[0], kind)


class _BoundCountDistinct(BoundAggregation):
    output = pa.int64()

    def __init__(self, column: str, kind: pa.DataType) -> None:
        self._set = _BoundCollect(column, kind, np.iinfo(np.int64).max, distinct=True, newest=False)
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


def _check_distinct(kind: pa.DataType, subject: str) -> None:
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        raise InvalidInputError(
            f"values of type {kind} cannot be compared for equality",
            operation="aggregate",
            subject=subject,
            hint="Use a number, string, date, timestamp, boolean, binary or decimal",
        )
