"""The aggregations of a keyed stream: bound to its columns, then updated batch by batch.

The way of one batch: group by key, partial states, search, merge, changed rows and output.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stateline.errors import ErrorKind, InternalError, InvalidInputError
from stateline.options import check_kind, check_known, check_text
from stateline.state.aggregate.api import Aggregation, BoundAggregation, GroupedRows, SqlWords, merge_nullable
from stateline.state.aggregate.values import ValueAggregation, ValueChange, ValueTable
from stateline.state.columns import contiguous, take
from stateline.state.keys import KeyRows, group_rows, key_rows
from stateline.state.rows import StateRows
from stateline.state.schema import StateSchema, stored_type
from stateline.state.table import Found, StateTable
from stateline.state.time_to_live import LiveTable

__all__ = ["KeyedAggregation", "Update"]

_WEIGHT: Final = ".weight"
"""State column: the rows of a key, less those taken back. No name of a user's begins like this."""

Rows: TypeAlias = Any
"""A pa.Table or a pa.RecordBatch."""


@dataclasses.dataclass(frozen=True, slots=True)
class Update:
    """What one batch did to the state of one subtask.

    Attributes:
        changes: The new state of each key of the batch, ascending by hash; a tombstone for one whose rows were all
            taken back.
        output: One row per key of the batch that has a state now, in the same order: key columns, then results.
        found: The state that these keys had before.
        value_changes: New rows of the tables of values, by table.
    """

    changes: StateRows
    output: pa.RecordBatch
    found: Found
    value_changes: Mapping[str, StateRows] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class KeyedAggregation:
    """Aggregations bound to the columns of a stream. Made by :meth:`bind`; picklable.

    Attributes:
        state_schema: What is kept per key: a column per aggregation, or several, called ``name.suffix``.
        output_schema: Key columns, then one column per aggregation.
        input_columns: The columns of the stream that are read, keys first.
        definition: All that decides what the state means, as text. State of another definition must not be read.
        updates: Whether rows may be taken back.
        value_tables: The tables of values that are kept beside the state.
    """

    state_schema: StateSchema
    output_schema: pa.Schema
    input_columns: tuple[str, ...]
    definition: str
    updates: bool
    value_tables: tuple[ValueTable, ...]
    _input: pa.Schema
    _bound: tuple[BoundAggregation, ...]

    @classmethod
    def bind(
        cls,
        schema: pa.Schema,
        keys: Sequence[str],
        aggregations: Mapping[str, Aggregation],
        *,
        updates: bool = False,
        tables: bool = False,
    ) -> Self:
        """Checks keys and aggregations against the columns of the input.

        Args:
            schema: The input.
            keys: Key columns, one or more.
            aggregations: What to keep, by the name of the result.
            updates: Rows may be taken back: each comes with a weight, 1 or -1.
            tables: Tables of values can be kept beside the state, as they must where rows may be taken back.

        Raises:
            InvalidInputError: Nothing to keep, a name that is taken, a column that does not exist or does not fit, an
                aggregation of which no row can be taken back.
        """
        check_kind(schema, pa.Schema, "schema", "a pyarrow.Schema")
        check_kind(keys, list | tuple, "keys", "a list of column names")
        check_kind(aggregations, Mapping, "aggregations", 'a dict, such as {"n": count()}')
        if not aggregations:
            raise InvalidInputError(
                "must have an aggregation", operation="aggregate", hint="Give one, such as n=count()"
            )
        check_known(keys, schema.names, "key column")
        for name, aggregation in aggregations.items():
            check_text(name, "name of an aggregation")
            if name in keys:
                raise InvalidInputError(
                    "is the name of a key column", operation="aggregate", subject=f"{name!r}", hint="Choose another"
                )
            if not isinstance(aggregation, Aggregation):
                raise InvalidInputError(
                    f"{aggregation!r} is not an aggregation",
                    operation="aggregate",
                    subject=f"{name!r}",
                    hint="Use the functions of stateline, not those of pyspark",
                )
        stored = pa.schema([pa.field(field.name, stored_type(field.type, field.name)) for field in schema])
        way = "bind_retractable" if updates else "bind_tabled" if tables else "bind"
        bound: dict[str, BoundAggregation] = {
            name: getattr(aggregation, way)(stored, name) for name, aggregation in aggregations.items()
        }
        values = [pa.field(name + suffix, kind) for name, one in bound.items() for suffix, kind in one.state]
        if updates:
            values.append(pa.field(_WEIGHT, pa.int64()))
        state = StateSchema(pa.schema([stored.field(key) for key in keys]), pa.schema(values))
        outputs = [pa.field(name, one.output) for name, one in bound.items()]
        read = dict.fromkeys([*keys, *(column for one in aggregations.values() for column in one.columns)])
        texts = {
            name: f"{aggregation.definition} {bound[name].input_type}".rstrip()
            for name, aggregation in aggregations.items()
        }
        return cls(
            state_schema=state,
            output_schema=pa.schema([*state.keys, *outputs]),
            input_columns=tuple(read),
            definition=json.dumps({"keys": list(keys), "aggregations": texts} | ({"updates": True} if updates else {})),
            updates=updates,
            value_tables=ValueTable.all_of(state.keys, stored, list(bound.values()), counts=updates),
            _input=pa.schema([stored.field(name) for name in read]),
            _bound=tuple(bound.values()),
        )

    def update(
        self,
        table: StateTable | LiveTable,
        rows: Rows,
        hashes: npt.NDArray[Any] | None = None,
        weights: npt.NDArray[np.int64] | None = None,
        value_tables: Mapping[str, StateTable] | None = None,
    ) -> Update:
        """Merges a batch into the state of its keys. The table is not changed.

        Args:
            table: The state before.
            rows: The batch; at least ``input_columns``. A table may have any number of chunks.
            hashes: ``xxhash64`` of the key columns, where they are known already.
            weights: 1 or -1 for each row, where rows may be taken back.
            value_tables: The tables of :attr:`value_tables` before, by name, if there are any.

        Raises:
            InvalidInputError: A missing column or another type, a key of another subtask, a sum that does not fit.
        """
        keys = self.keys(rows, hashes)
        groups = group_rows(keys)
        if len(groups) == 0:
            return self._empty(keys)
        grouped = GroupedRows(groups, self.columns(rows, keys), weights)
        found = table.probe(groups.keys)
        values_now = {
            each.column: each.change((value_tables or {})[each.name], grouped, found.mask) for each in self.value_tables
        }
        value_changes = {each.name: values_now[each.column].changes for each in self.value_tables}
        with np.errstate(over="ignore", invalid="ignore"):  # Infinities and NaN are results like any other.
            values = self._merged(grouped, found, values_now)
            if not self.updates:
                changes = StateRows(groups.keys, tuple(values))
                return Update(changes, self._results(groups.keys.columns, values), found, value_changes)
            rows_now = merge_nullable(found.values[-1], pa.array(grouped.counts(None)), pc.add)
            gone = _gone(rows_now)
            changes = StateRows(groups.keys, (*values, rows_now), gone if gone.any() else None)
            return Update(changes, self._results_at(changes, np.flatnonzero(~gone)), found, value_changes)

    def sql(self, words: SqlWords) -> Sequence[str]:
        """Spark's SQL of each state column over the rows of a key; empty where Spark does not compute the same."""
        if self.updates or self.value_tables:
            return ()
        found = [one.sql(words) for one in self._bound]
        return [text for texts in found for text in texts] if all(found) else ()

    def update_combined(
        self, table: StateTable | LiveTable, rows: Rows, states: Sequence[str], hashes: npt.NDArray[Any] | None = None
    ) -> Update:
        """As :meth:`update`, of one row for each key of the batch, with what :meth:`sql` gives.

        Args:
            table: The state before.
            rows: Key columns and state columns.
            states: The names of these, in the order of :attr:`state_schema`.
            hashes: As :meth:`update`.

        Raises:
            InvalidInputError: As :meth:`update`.
            InternalError: A key has two rows.
        """
        keys = key_rows(self.state_schema, [rows.column(name) for name in self.state_schema.keys.names], hashes)
        groups = group_rows(keys)
        if len(groups) == 0:
            return self._empty(keys)
        if len(groups) != len(keys):
            raise InternalError("a key has several rows that were to be one", operation="update")
        newer = [
            take(_plain(rows.column(name), field), groups.order)
            for name, field in zip(states, self.state_schema.values, strict=True)
        ]
        found = table.probe(groups.keys)
        values = self.merge(found.values, newer) if found.mask.any() else newer
        return Update(StateRows(groups.keys, tuple(values)), self._results(groups.keys.columns, values), found)

    def keys(self, rows: Rows, hashes: npt.NDArray[Any] | None = None) -> KeyRows:
        """The keys of a batch; arguments and errors as :meth:`update`."""
        self._check_columns(rows)
        return key_rows(self.state_schema, [rows.column(name) for name in self.state_schema.keys.names], hashes)

    def columns(self, rows: Rows, keys: KeyRows) -> dict[str, pa.Array]:
        """The columns of a batch that aggregations read, as they are stored."""
        by_name = dict(zip(self.state_schema.keys.names, keys.columns, strict=True))
        return {
            field.name: by_name[field.name] if field.name in by_name else _plain(rows.column(field.name), field)
            for field in self._input
        }

    def partial(self, rows: GroupedRows) -> list[pa.Array]:
        """The state columns of groups of rows by themselves; without :attr:`value_tables`."""
        with np.errstate(over="ignore", invalid="ignore"):
            return [column for one in self._bound for column in one.partial(rows)]

    def merge(self, older: Sequence[pa.Array], newer: Sequence[pa.Array]) -> list[pa.Array]:
        """The states of both, row by row; of two stored ones, too.

        On both sides a state that is all null is absent: an aggregation that was added later has none in rows that were
        stored before.

        Raises:
            InvalidInputError: A sum that does not fit.
        """
        values: list[pa.Array] = []
        with np.errstate(over="ignore", invalid="ignore"):
            for one in self._bound:
                columns = slice(len(values), len(values) + len(one.state))
                values.extend(one.merge(*_absent_first(older[columns], newer[columns])))
        return values

    def before(self, update: Update) -> pa.RecordBatch:
        """The results that the keys of a batch had before it; those without state are left out."""
        rows = StateRows(update.changes.keys, update.found.values)
        return self._results_at(rows, np.flatnonzero(update.found.mask))

    def _merged(self, grouped: GroupedRows, found: Found, values_now: Mapping[str, ValueChange]) -> list[pa.Array]:
        """The new state columns of the aggregations."""
        merges = bool(found.mask.any())
        values: list[pa.Array] = []
        for one in self._bound:
            older = found.values[len(values) : len(values) + len(one.state)]
            if isinstance(one, ValueAggregation):
                values.extend(one.changed(older, values_now[one.column]))
                continue
            state = one.partial(grouped)
            values.extend(one.merge(older, state) if merges else state)
        return values

    def _results_at(self, rows: StateRows, places: npt.NDArray[np.int64]) -> pa.RecordBatch:
        chosen = rows if len(places) == len(rows) else rows.take(places)
        return self._results(chosen.keys.columns, chosen.values)

    def results(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """What users see of stored rows, such as :meth:`StateTable.scan` gives: key columns, then results."""
        columns = rows.columns
        width = len(self.state_schema.keys)
        return self._results(columns[:width], columns[width:])

    def _results(self, keys: Sequence[pa.Array], values: Sequence[pa.Array]) -> pa.RecordBatch:
        results, first = [], 0
        for one in self._bound:
            results.append(one.result(values[first : first + len(one.state)]))
            first += len(one.state)
        return pa.RecordBatch.from_arrays([*keys, *results], schema=self.output_schema)

    def _empty(self, keys: KeyRows) -> Update:
        nothing = tuple(pa.array([], field.type) for field in self.state_schema.values)
        found = Found(np.empty(0, dtype=np.bool_), nothing)
        return Update(StateRows(keys, nothing), pa.RecordBatch.from_pylist([], schema=self.output_schema), found)

    def _check_columns(self, rows: Rows) -> None:
        check_kind(rows, pa.Table | pa.RecordBatch, "rows", "a pyarrow.Table or a pyarrow.RecordBatch")
        for name in self.input_columns:
            if rows.schema.names.count(name) != 1:
                reason = f"must come once, got it {rows.schema.names.count(name)} times"
                raise _refused(name, reason, f"Columns of the batch: {', '.join(rows.schema.names)}")


def _absent_first(
    older: Sequence[pa.Array], newer: Sequence[pa.Array]
) -> tuple[Sequence[pa.Array], Sequence[pa.Array]]:
    """Both states, in each row the one that is all null first, if any is."""
    if not all(column.null_count for column in newer):
        return older, newer
    absent = functools.reduce(pc.and_, [column.is_null() for column in newer])
    pairs = list(zip(older, newer, strict=True))
    return (
        [pc.if_else(absent, new, old) for old, new in pairs],
        [pc.if_else(absent, old, new) for old, new in pairs],
    )


def _gone(rows: pa.Array) -> npt.NDArray[np.bool_]:
    """Which keys have no row any more."""
    left = rows.to_numpy()
    if (left < 0).any():
        raise InternalError("more rows of a key were taken back than it has", operation="update")
    gone: npt.NDArray[np.bool_] = left == 0
    return gone


def _plain(column: Any, field: pa.Field) -> pa.Array:
    """One contiguous array of the type that is stored."""
    if stored_type(column.type, field.name) != field.type:
        reason = f"expected type {field.type}, got {column.type}"
        raise _refused(field.name, reason, "Cast it before: each batch has the types of the first one")
    array = contiguous(column)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array if array.type == field.type else array.cast(field.type)


def _refused(column: str, reason: str, hint: str) -> InvalidInputError:
    return InvalidInputError(
        reason, operation="update", subject=f"column {column!r}", hint=hint, kind=ErrorKind.SCHEMA_MISMATCH
    )
