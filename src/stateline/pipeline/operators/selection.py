"""Rows of an operator's output chosen, and columns of it computed, before anybody reads them.

A program around another one's: state, time and lateness are the other one's; what it puts out, and what it takes back,
is filtered and projected by Arrow expressions, row by row. So what reads it sees the same rows come and go as if the
other program had put them out like this.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from stateline.errors import ErrorKind, InvalidInputError
from stateline.options import check_known
from stateline.pipeline.event_time import WindowPlan
from stateline.pipeline.operators.api import BatchContext, Emits, Lookup, OperatorProgram, Processed, Reading
from stateline.state.aggregate.api import SqlWords
from stateline.state.schema import StateSchema
from stateline.state.table import StateTable

__all__ = ["SelectionProgram"]

_HINT: Final = "Use pyarrow.compute.field('column') and functions of pyarrow.compute on it"


@dataclass(frozen=True, slots=True)
class SelectionProgram(OperatorProgram):
    """Another program, and what is left of its rows. Made by :meth:`filtered` and :meth:`projected`."""

    _inner: OperatorProgram
    _condition: pc.Expression | None
    _columns: Mapping[str, pc.Expression]
    _output: pa.Schema

    @classmethod
    def filtered(cls, inner: OperatorProgram, condition: pc.Expression) -> Self:
        """The rows for which a condition holds; neither those for which it does not, nor those where it is null.

        Raises:
            InvalidInputError: No expression, an unknown column, or no boolean.
        """
        _check_expression(condition, "where", "condition")
        schema = inner.output_schema
        [kind] = _projected(inner.columns_handed_on.empty_table(), {"condition": condition}, "where").schema.types
        if not pa.types.is_boolean(kind):
            raise InvalidInputError(
                f"expected a boolean, got {kind}",
                operation="where",
                subject=f"condition {condition}",
                hint="Compare something: pc.field('price') > 100",
                kind=ErrorKind.SCHEMA_MISMATCH,
            )
        return cls(inner, condition, {name: pc.field(name) for name in schema.names}, schema)

    @classmethod
    def projected(
        cls, inner: OperatorProgram, columns: Sequence[str], expressions: Mapping[str, pc.Expression]
    ) -> Self:
        """The columns of these names, then those of the expressions.

        Raises:
            InvalidInputError: No column at all, an unknown or repeated one, no expression, or one that cannot be.
        """
        schema = inner.output_schema
        check_known(columns, schema.names, "column")
        names = [*columns, *expressions]
        if not names or len(set(names)) < len(names):
            raise InvalidInputError(
                f"expected one or more columns of different names, got {names}",
                operation="select",
                subject="columns",
                hint="Name each column once",
            )
        for name, expression in expressions.items():
            _check_expression(expression, "select", f"column {name!r}")
        computed = _projected(inner.columns_handed_on.empty_table(), expressions, "select").schema
        output = pa.schema([*(schema.field(name) for name in columns), *computed])
        return cls(inner, None, {**{name: pc.field(name) for name in columns}, **expressions}, output)

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self._inner.key_columns

    @property
    def input_columns(self) -> tuple[str, ...]:
        return self._inner.input_columns

    @property
    def wants_hash(self) -> bool:
        return self._inner.wants_hash

    @property
    def readings(self) -> tuple[Reading, ...]:
        return self._inner.readings

    def combined(self, words: SqlWords) -> Sequence[str]:
        return self._inner.combined(words)

    @property
    def emits(self) -> Emits:
        return self._inner.emits

    @property
    def removals_unknown(self) -> str:
        return self._inner.removals_unknown

    @property
    def event_time_columns(self) -> tuple[str, ...]:
        """Those that are handed on as they are, by the names that they have now."""
        return tuple(
            name
            for event_time in self._inner.event_time_columns
            for name, expression in self._columns.items()
            if expression.equals(pc.field(event_time))
        )

    @property
    def watermark_lag_us(self) -> int:
        return self._inner.watermark_lag_us

    @property
    def tables(self) -> Mapping[str, StateSchema]:
        return self._inner.tables

    @property
    def lookups(self) -> Mapping[str, Lookup]:
        return self._inner.lookups

    @property
    def definition(self) -> str:
        """What is chosen belongs to it: rows are taken back in the form in which they came."""
        columns = {name: str(expression) for name, expression in self._columns.items()}
        chosen = {"columns": columns} if self._condition is None else {"where": str(self._condition)}
        return json.dumps({"of": self._inner.definition, **chosen})

    @property
    def output_schema(self) -> pa.Schema:
        return self._output

    @property
    def window(self) -> WindowPlan | None:
        return self._inner.window

    @property
    def closes_windows(self) -> bool:
        return self._inner.closes_windows

    @property
    def acts_on_watermark(self) -> bool:
        return self._inner.acts_on_watermark

    @property
    def ttl_ms(self) -> int | None:
        return self._inner.ttl_ms

    @property
    def acts_on_time(self) -> bool:
        return self._inner.acts_on_time

    def process(
        self, batches: Iterable[pa.RecordBatch], tables: Mapping[str, StateTable], context: BatchContext
    ) -> Processed:
        return self._selected(self._inner.process(batches, tables, context))

    def process_sides(
        self, sides: Sequence[Iterable[pa.RecordBatch]], tables: Mapping[str, StateTable], context: BatchContext
    ) -> Processed:
        return self._selected(self._inner.process_sides(sides, tables, context))

    def _selected(self, made: Processed) -> Processed:
        output, retracted, forgotten = map(self._rows, (made.output, made.retracted, made.forgotten))
        return replace(made, output=output, retracted=retracted, forgotten=forgotten)

    def _rows(self, rows: pa.Table | None) -> pa.Table | None:
        if rows is None:
            return None
        if self._condition is not None:
            return rows.filter(self._condition)
        return pa.Table.from_arrays(_projected(rows, self._columns, "select").columns, schema=self._output)


def _projected(rows: pa.Table, columns: Mapping[str, pc.Expression], operation: str) -> pa.Table:
    """The columns, computed for each row, in order."""
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(rows))
    project = acero.Declaration("project", acero.ProjectNodeOptions(list(columns.values()), list(columns)))
    try:
        return acero.Declaration.from_sequence([source, project]).to_table(use_threads=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError) as error:
        raise InvalidInputError(
            f"cannot be computed: {error}",
            operation=operation,
            subject=", ".join(f"{name} = {expression}" for name, expression in columns.items()),
            hint=f"The columns are {rows.schema.names}. {_HINT}",
        ) from error


def _check_expression(given: object, operation: str, subject: str) -> None:
    if not isinstance(given, pc.Expression):
        raise InvalidInputError(
            f"{given!r} is not an Arrow expression", operation=operation, subject=subject, hint=_HINT
        )
