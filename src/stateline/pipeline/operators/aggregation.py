"""``KeyedStream.aggregate``: vectorised aggregation as an operator of a pipeline, with or without windows.

Facts, the same as of Spark's own aggregations:

- ``update``: a row for each key that the batch touched.
- ``complete``: a row for every key, at every batch. Nothing is late and nothing is closed, so the state only grows.
- ``append``: a row for each window that the watermark has passed, once, when it closes; so it needs windows and a
  watermark on their column.
- In ``update`` and ``append`` the state of a closed window goes, where there is a watermark on the column of the
  windows; and rows that come for it afterwards are late.
- Behind another operator, a key column that is an event time of its output closes as a window of no length does.
- A row that is updated takes back the one that the key had before; a key that is closed takes back nothing. Over rows
  that may be taken back, a key without any row left is gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from stateline.errors import InvalidInputError
from stateline.options import parse_choice
from stateline.pipeline.event_time import WINDOW_END, WINDOW_START, WatermarkPlan, WindowPlan
from stateline.pipeline.operators.api import (
    CHECKPOINT_COLUMN,
    HASH_COLUMN,
    ROWS_COLUMN,
    WEIGHT_COLUMN,
    BatchContext,
    Emits,
    OperatorProgram,
    Processed,
    Reading,
    combined_columns,
    rows_counted,
)
from stateline.state.aggregate import Aggregation, KeyedAggregation
from stateline.state.aggregate.api import SqlWords
from stateline.state.columns import contiguous, fixed_words, from_words
from stateline.state.expiry import ExpiredKeys, expire_keys, expire_rows, over_by
from stateline.state.merge import Expired
from stateline.state.rows import StateRows
from stateline.state.schema import StateSchema
from stateline.state.table import StateTable
from stateline.state.time_to_live import Lifetime, LiveTable, expiry_test, with_expiry

__all__ = ["CHECKPOINT_COLUMN", "OUTPUT_MODES", "AggregateProgram", "check_names"]

OUTPUT_MODES: Final = ("append", "complete", "update")

_TABLE: Final = ""
"""Called as the operator, whether there are tables of values beside it or not: those come and go over restarts."""
_EMITS: Final[Mapping[str, Emits]] = {"append": "appends", "complete": "unknown", "update": "updates"}
"""All rows of each batch are no change of rows: whoever reads them cannot tell which are new."""


@dataclass(frozen=True, slots=True)
class AggregateProgram(OperatorProgram):
    """Aggregations of one keyed stream."""

    _aggregation: KeyedAggregation
    _mode: str
    _window: WindowPlan | None
    _watermark: WatermarkPlan | None
    _closes_by: tuple[int, int] | None
    _ttl_ms: int | None = None

    @classmethod
    def bind(
        cls,
        schema: pa.Schema,
        keys: Sequence[str],
        aggregations: Mapping[str, Aggregation],
        *,
        output_mode: str = "update",
        window: WindowPlan | None = None,
        watermark: WatermarkPlan | None = None,
        updates: bool = False,
        behind: bool = False,
        ttl_ms: int | None = None,
    ) -> Self:
        """Checks keys, aggregations and mode against the columns of the input.

        Args:
            schema: The input.
            keys: Key columns.
            aggregations: By the name of the result.
            output_mode: See the module.
            window: Windows, if there are any.
            watermark: The watermark of the input.
            updates: Rows of the input may be taken back: they carry weights.
            behind: The input is the output of another operator: a key that has the watermark is final when that has
                passed it.
            ttl_ms: A key that no row touched for so many milliseconds of processing time is forgotten.

        Raises:
            InvalidInputError: Nothing to keep, a name that is taken, a column that does not exist or does not fit, an
                unknown mode, a mode that needs windows or a watermark, an aggregation of which no row can be taken
                back, or a time to live in mode ``append`` or where rows may be taken back.
        """
        mode = parse_choice(output_mode, OUTPUT_MODES, "output mode")
        check_names(keys, aggregations, () if window is None else (WINDOW_START, WINDOW_END))
        closes_by = _closing(keys, window, watermark, behind=behind)
        if mode == "append" and closes_by is None:
            raise InvalidInputError(
                "a row of mode append is final, and nothing here says when one is",
                operation="aggregate",
                subject="output mode 'append'",
                hint="Give the stream windows, .window(column, size), and a watermark on the same column: "
                "KeyedStream(..., watermark=(column, delay)). Or use mode update",
            )
        if mode == "append" and ttl_ms is not None:
            raise InvalidInputError(
                "cannot be used in mode append: the row of a window that is forgotten would never come",
                operation="aggregate",
                subject="ttl",
                hint="Leave it out: the state of a window goes when the watermark passes its end",
            )
        grouped = list(keys)
        if window is not None:
            start = schema.field(window.column).with_name(WINDOW_START)
            schema = pa.schema([*(field for field in schema if field.name != WINDOW_START), start])
            grouped.append(WINDOW_START)
        if updates and ttl_ms is not None:
            raise InvalidInputError(
                "cannot follow an operator that replaces rows: what is forgotten could not be taken back",
                operation="aggregate",
                subject="ttl",
                hint="Leave it out, or let the operator in front append, such as windows in mode 'append'",
            )
        aggregation = KeyedAggregation.bind(schema, grouped, aggregations, updates=updates, tables=ttl_ms is None)
        if closes_by is None or mode == "complete":
            watermark, closes_by = None, None
        program = cls(aggregation, mode, window, watermark, closes_by, ttl_ms)
        program.tables  # noqa: B018 - refuses names that are taken
        return program

    @property
    def key_columns(self) -> tuple[str, ...]:
        return tuple(self._aggregation.state_schema.keys.names)

    @property
    def input_columns(self) -> tuple[str, ...]:
        return self._aggregation.input_columns

    @property
    def readings(self) -> tuple[Reading, ...]:
        """One: a row is late when a batch before has closed its window."""
        reading = Reading(key_columns=self.key_columns, columns=self.input_columns)
        if self._closes_by is None or self._watermark is None or not self._watermark.drops_late_rows:
            return (reading,)
        column, size_us = self._closes_by
        return (replace(reading, late_by=self.key_columns[column], late_after_us=size_us),)

    def combined(self, words: SqlWords) -> Sequence[str]:
        return self._aggregation.sql(words)

    @property
    def wants_hash(self) -> bool:
        kinds = [field.type for field in self._aggregation.state_schema.keys]
        return len(kinds) > 1 or not pa.types.is_primitive(kinds[0])

    @property
    def closes_windows(self) -> bool:
        return self._closes_by is not None

    @property
    def emits(self) -> Emits:
        # Of a key that is forgotten nobody knows the row that its next one replaces.
        return "unknown" if self._ttl_ms is not None else _EMITS[self._mode]

    @property
    def removals_unknown(self) -> str:
        if self._mode == "append":
            return "a row of mode append is final"
        return (
            "" if self._mode == "update" else "mode complete shows the keys that are there, and not those that are gone"
        )

    @property
    def event_time_columns(self) -> tuple[str, ...]:
        if self._closes_by is None or self.readings[0].late_by is None:
            return ()  # A closed window that begins anew shows itself again.
        return (self.key_columns[self._closes_by[0]] if self._window is None else WINDOW_END,)

    @property
    def window(self) -> WindowPlan | None:
        return self._window

    @property
    def ttl_ms(self) -> int | None:
        return self._ttl_ms

    @property
    def tables(self) -> Mapping[str, StateSchema]:
        schema = self._aggregation.state_schema
        values = {each.name: each.schema for each in self._aggregation.value_tables}
        return {_TABLE: schema if self._ttl_ms is None else with_expiry(schema, "aggregate"), **values}

    @property
    def definition(self) -> str:
        more: dict[str, Any] = {}
        if self._window is not None:
            # Where windows close, a window that is not stored is a closed one: so that belongs to the meaning.
            more |= {"window": self._window.definition, "closes": self.closes_windows}
        elif self._closes_by is not None:
            more["closes"] = True
        if self._ttl_ms is not None:
            more["ttl"] = True
        return json.dumps(json.loads(self._aggregation.definition) | more)

    @property
    def output_schema(self) -> pa.Schema:
        """Key columns, ``window_start`` and ``window_end`` if there are windows, aggregations, ``checkpoint_id``."""
        schema = self._aggregation.output_schema
        if self._window is not None:
            start = schema.get_field_index(WINDOW_START)
            schema = schema.insert(start + 1, schema.field(start).with_name(WINDOW_END))
        return schema.append(pa.field(CHECKPOINT_COLUMN, pa.int64(), nullable=False))

    def process(
        self, batches: Iterable[pa.RecordBatch], tables: Mapping[str, StateTable], context: BatchContext
    ) -> Processed:
        """Merges the rows into the state of their keys, and hands on what the output mode says."""
        table = tables[_TABLE]
        live = LiveTable(table, Lifetime(context.now_ms, self._ttl_ms))
        received = list(batches)
        rows = pa.Table.from_batches(received) if received else None
        metrics = {"rows": rows_counted(rows)}
        retracted: list[pa.RecordBatch] = []
        forgotten: list[pa.RecordBatch] = []
        value_changes: Mapping[str, StateRows] = {}
        if rows is not None and rows.num_rows:
            hashes = rows.column(HASH_COLUMN).to_numpy() if self.wants_hash else None
            if ROWS_COLUMN in rows.schema.names:
                states = combined_columns(len(self._aggregation.state_schema.values))
                update = self._aggregation.update_combined(live, rows, states, hashes)
            else:
                weights = rows.column(WEIGHT_COLUMN).to_numpy().astype(np.int64) if self._aggregation.updates else None
                update = self._aggregation.update(live, rows, hashes, weights, tables)
            changes, output, value_changes = live.written(update.changes), [update.output], update.value_changes
            if context.retracts and self._mode == "update":
                retracted = [self._aggregation.before(update)]
        else:
            changes, output = StateRows.none(table.schema), []
        metrics["keys"] = len(changes)
        if self._closes_by is not None and context.watermark_us is not None:
            closed = self._close(table, changes, context)
            metrics["windows_closed"] = len(closed.rows)
            if context.forgets:
                forgotten = [self._results(closed.rows)]
            changes, output = closed.changes, output if self._mode == "update" else [self._results(closed.rows)]
        elif self._mode == "append":
            output = []
        if context.forgets and self._ttl_ms is not None:
            over = expire_rows(table, changes, until=context.now_ms)
            without_end = StateRows(over.rows.keys, over.rows.values[:-1])
            changes, forgotten = over.changes, [*forgotten, self._results(without_end)]
        if self._mode == "complete":
            output = [self._aggregation.results(batch) for batch in live.with_changes(changes).scan()]
        return Processed(
            changes={name: rows for name, rows in {_TABLE: changes, **value_changes}.items() if len(rows)},
            output=self._output(output, context),
            retracted=self._output(retracted, context),
            forgotten=self._output(forgotten, context),
            expired=self._expired(context),
            metrics=metrics,
        )

    def _close(self, table: StateTable, changes: StateRows, context: BatchContext) -> ExpiredKeys:
        column, size_us = self._closes_by or (0, 0)
        late_us = context.late_watermark_us
        return expire_keys(
            table,
            changes,
            column,
            after=None if late_us is None else late_us - size_us,
            until=(context.watermark_us or 0) - size_us,
        )

    def _expired(self, context: BatchContext) -> dict[str, Expired]:
        """Keys that are forgotten; and the values of closed keys, at which nobody looks: the keys have no state."""
        if self._ttl_ms is not None:
            return {_TABLE: expiry_test(context.now_ms)}
        if self._closes_by is None or context.watermark_us is None:
            return {}
        column, size_us = self._closes_by
        over = over_by(column, context.watermark_us - size_us)
        return {each.name: over for each in self._aggregation.value_tables}

    def _results(self, rows: StateRows) -> pa.RecordBatch:
        columns = [*rows.keys.columns, *rows.values]
        return self._aggregation.results(pa.RecordBatch.from_arrays(columns, schema=self._aggregation.state_schema.row))

    def _output(self, batches: Sequence[pa.RecordBatch], context: BatchContext) -> pa.Table | None:
        """The rows of the output with the columns that no aggregation makes."""
        made = pa.Table.from_batches(batches, self._aggregation.output_schema)
        if made.num_rows == 0:
            return None
        columns = made.columns
        if self._window is not None:
            start = made.schema.get_field_index(WINDOW_START)
            starts = contiguous(columns[start])
            ends = from_words(_times(starts) + self._window.size_us, starts.type)
            columns.insert(start + 1, ends)
        columns.append(pa.array(np.full(made.num_rows, context.checkpoint_id)))
        return pa.Table.from_arrays(columns, schema=self.output_schema)


def check_names(keys: Sequence[str], aggregations: Mapping[str, Any], added: Sequence[str]) -> None:
    """Checks that no key and no aggregation has the name of a column that the operator adds."""
    if isinstance(aggregations.get("output_mode"), str):
        raise InvalidInputError(
            "must be given by position, without a name",
            operation="aggregate",
            subject="output_mode",
            hint=f'Names are aggregations. Give the mode first: aggregate("{aggregations["output_mode"]}", ...)',
        )
    taken = [CHECKPOINT_COLUMN, *added]
    for name in (*keys, *aggregations):
        if name in taken:
            raise InvalidInputError(
                "is the name of a column that the output gets",
                operation="aggregate",
                subject=f"{name!r}",
                hint="Rename it",
            )


def _closing(
    keys: Sequence[str], window: WindowPlan | None, watermark: WatermarkPlan | None, *, behind: bool
) -> tuple[int, int] | None:
    """The key column by which a key closes, and how much later than its value; ``None`` where no key does."""
    if watermark is None:
        return None
    if window is not None:
        return (len(keys), window.size_us) if window.column == watermark.column else None
    return (list(keys).index(watermark.column), 0) if behind and watermark.column in keys else None


def _times(column: pa.Array) -> Any:
    """Microseconds since the epoch; there are no nulls."""
    words = fixed_words(column)
    return np.empty(0, dtype=np.int64) if words is None else words.view(np.int64)
