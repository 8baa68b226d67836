"""``KeyedStream.apply_arrow``: a function of the user's own over Arrow tables, called once per subtask and batch.

The contract::

    def fn(events, state):                      # or fn(events, state, context)
        ...
        return output, new_state                # or output, new_state, deleted

- ``events``: the rows of the batch that belong to one subtask, in order of arrival, and ``key_index``: which row of
  ``state`` is that of the event's key.
- ``state``: one row for each key of the events: the key columns, then the columns of the state schema. All of these are
  null for a key without state.
- ``context``: a :class:`stateline.pipeline.operators.api.BatchContext`.
- ``output``: rows of the output schema, any number; ``None`` for none.
- ``new_state``: rows as in ``state``, of keys that are in ``state``, each at most once. They replace what was stored;
  keys that are left out stay as they are. ``None`` to change nothing.
- ``deleted``: the key columns of keys that are in ``state``: their state goes. ``None`` for none.

It is not called for a subtask without events. It must not keep anything between calls, and a batch may be computed more
than once: only one result counts.
"""

from __future__ import annotations

import inspect
import json
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

import numpy as np
import pyarrow as pa

from stateline.errors import ErrorKind, InvalidInputError, StatelineError, UserCodeError
from stateline.options import check_known, parse_choice
from stateline.pipeline.event_time import WatermarkPlan
from stateline.pipeline.operators.api import HASH_COLUMN, BatchContext, Emits, OperatorProgram, Processed, Reading
from stateline.state.columns import Rows, contiguous, take
from stateline.state.keys import Groups, KeyRows, group_rows, key_rows
from stateline.state.rows import StateRows
from stateline.state.schema import StateSchema, is_kept_alike
from stateline.state.table import Found, StateTable
from stateline.state.time_to_live import Lifetime, LiveTable, expiry_test, with_expiry

__all__ = ["KEY_INDEX", "ArrowFunction", "ArrowFunctionProgram"]

KEY_INDEX: Final = "key_index"
"""Column of the events: the row of the state table that belongs to the event's key."""

_TABLE: Final = "state"
_MODES: Final = ("append", "update")
_OPERATION: Final = "apply_arrow"
_HINT: Final = "Nothing was committed. See the contract in stateline.pipeline.operators.arrow_function"

ArrowFunction: TypeAlias = Callable[..., Any]
"""See the module's contract."""


@dataclass(frozen=True, slots=True)
class ArrowFunctionProgram(OperatorProgram):
    """A user's function over one keyed stream."""

    _function: ArrowFunction
    _takes_context: bool
    _state: StateSchema
    _output: pa.Schema
    _columns: tuple[str, ...]
    _watermark: WatermarkPlan | None
    _mode: str
    _ttl_ms: int | None = None

    @classmethod
    def bind(
        cls,
        schema: pa.Schema,
        keys: Sequence[str],
        function: ArrowFunction,
        state_schema: pa.Schema,
        output_schema: pa.Schema,
        *,
        output_mode: str = "update",
        columns: Sequence[str] | None = None,
        watermark: WatermarkPlan | None = None,
        state_defaults: Mapping[str, Any] | None = None,
        ttl_ms: int | None = None,
    ) -> Self:
        """Checks everything that can be checked before the function is called.

        With ``ttl_ms`` a key that had no event for so many milliseconds of processing time has no state any more.

        Raises:
            InvalidInputError: No function of two or three arguments, an unknown mode or column, a name that is taken,
                a type that cannot be stored.
        """
        parse_choice(output_mode, _MODES, "output mode")
        read = list(schema.names if columns is None else columns)
        check_known(read, schema.names, "column")
        if KEY_INDEX in (*read, *state_schema.names):
            raise InvalidInputError(
                "cannot be a column of yours: the events get one of that name",
                operation=_OPERATION,
                subject=KEY_INDEX,
                hint="Rename yours",
            )
        if not state_schema.names:
            raise InvalidInputError(
                "must not be empty", operation=_OPERATION, subject="state_schema", hint="Name at least one column"
            )
        state = StateSchema(pa.schema([schema.field(key) for key in keys]), state_schema.remove_metadata())
        program = cls(
            function,
            _takes_context(function),
            state.with_defaults(state_defaults or {}),
            output_schema.remove_metadata(),
            tuple(dict.fromkeys([*keys, *read])),
            watermark if watermark is not None and watermark.drops_late_rows else None,
            output_mode,
            ttl_ms,
        )
        program.tables  # noqa: B018 - refuses names that are taken
        return program

    @property
    def key_columns(self) -> tuple[str, ...]:
        return tuple(self._state.keys.names)

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The columns of the events, keys first; the event time too, where late rows are dropped."""
        late_by = () if self._watermark is None else (self._watermark.column,)
        return tuple(dict.fromkeys([*self._columns, *late_by]))

    @property
    def readings(self) -> tuple[Reading, ...]:
        """One: a row is late when its time is not after the watermark of the batch before."""
        late_by = None if self._watermark is None else self._watermark.column
        return (Reading(key_columns=self.key_columns, columns=self.input_columns, late_by=late_by),)

    @property
    def wants_hash(self) -> bool:
        return True

    @property
    def emits(self) -> Emits:
        return "appends" if self._mode == "append" else "unknown"

    @property
    def ttl_ms(self) -> int | None:
        return self._ttl_ms

    @property
    def tables(self) -> Mapping[str, StateSchema]:
        return {_TABLE: self._state if self._ttl_ms is None else with_expiry(self._state, _OPERATION)}

    @property
    def definition(self) -> str:
        """The keys, as text. The function may change, and what it keeps may evolve."""
        lifetime = {} if self._ttl_ms is None else {"ttl": True}
        return json.dumps({"keys": list(self.key_columns), "program": "apply_arrow"} | lifetime)

    @property
    def output_schema(self) -> pa.Schema:
        return self._output

    def process(
        self, batches: Iterable[pa.RecordBatch], tables: Mapping[str, StateTable], context: BatchContext
    ) -> Processed:
        """Calls the function with the events and the state of their keys, and checks what comes back."""
        received = list(batches)
        expired = {} if self._ttl_ms is None else {_TABLE: expiry_test(context.now_ms)}
        events = pa.Table.from_batches(received) if received else None
        if events is None or events.num_rows == 0:
            return Processed(changes={}, expired=expired)
        metrics = {"rows": events.num_rows}
        table = LiveTable(tables[_TABLE], Lifetime(context.now_ms, self._ttl_ms))
        keys = [events.column(name) for name in self.key_columns]
        groups = group_rows(key_rows(self._state, keys, events.column(HASH_COLUMN).to_numpy()))
        metrics["keys"] = len(groups)
        found = table.probe(groups.keys)
        state = pa.table([*groups.keys.columns, *found.values], schema=self._state.row)
        output, new_state, deleted = self._call(self._indexed(events, groups), state, context)
        untouched = None if self._ttl_ms is None else found
        changes = self._changes(groups.keys, new_state, deleted, untouched)
        return Processed(
            changes={} if changes is None else {_TABLE: table.written(changes)},
            output=self._checked_output(output),
            expired=expired,
            metrics=metrics,
        )

    def _indexed(self, events: pa.Table, groups: Groups) -> pa.Table:
        index = np.empty(events.num_rows, dtype=np.int64)
        index[groups.order] = groups.index()
        return events.select(list(self._columns)).append_column(KEY_INDEX, pa.array(index))

    def _call(self, events: pa.Table, state: pa.Table, context: BatchContext) -> tuple[Any, Any, Any]:
        arguments = (events, state, context) if self._takes_context else (events, state)
        try:
            returned = self._function(*arguments)
        except StatelineError:
            raise
        except UserCodeError.causes as error:
            raise UserCodeError(
                f"raised {UserCodeError.described(error)}",
                operation=_OPERATION,
                subject=_name(self._function),
                hint=f"Nothing was committed. {''.join(traceback.format_exception(error))}",
            ) from error
        if not isinstance(returned, tuple) or len(returned) not in (2, 3):
            what = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
            raise self._wrong(f"expected (output, state) or (output, state, deleted), got {what}")
        output, new_state, deleted = (*returned, None)[:3]
        return output, new_state, deleted

    def _changes(self, keys: KeyRows, new_state: Any, deleted: Any, renewed: Found | None) -> StateRows | None:
        """What is to be stored, ascending by hash; also what is ``renewed`` as it was."""
        parts = []
        taken = np.zeros(len(keys), dtype=np.bool_)
        if new_state is not None:
            table = self._checked(new_state, self._state.row, "state")
            rows = self._places(keys, table, taken, "state")
            values = tuple(contiguous(table.column(name)) for name in self._state.values.names)
            parts.append(StateRows(keys.take(rows), values))
        if deleted is not None:
            table = self._checked(deleted, self._state.keys, "deleted")
            rows = self._places(keys, table, taken, "deleted")
            nothing = tuple(pa.nulls(len(rows), field.type) for field in self._state.values)
            parts.append(StateRows(keys.take(rows), nothing, np.ones(len(rows), dtype=np.bool_)))
        if renewed is not None:
            rows = np.flatnonzero(renewed.mask & ~taken)
            parts.append(StateRows(keys.take(rows), tuple(take(column, rows) for column in renewed.values)))
        parts = [part for part in parts if len(part)]
        if not parts:
            return None
        changes = StateRows.concat(parts)
        return changes.take(np.argsort(changes.keys.hashes, kind="stable"))

    def _places(self, keys: KeyRows, table: pa.Table, taken: Any, what: str) -> Rows:
        """The rows of ``keys`` that the keys of a returned table are; marks them as taken."""
        returned = key_rows(self._state, [table.column(name) for name in self.key_columns])
        together = group_rows(KeyRows.concat([keys, returned]))
        group = np.empty(len(keys) + len(returned), dtype=np.int64)
        group[together.order] = together.index()
        place_of_group = np.full(len(together), -1, dtype=np.int64)
        place_of_group[group[: len(keys)]] = np.arange(len(keys))
        places = place_of_group[group[len(keys) :]]
        for row in np.flatnonzero(places < 0)[:1]:
            raise self._wrong(f"{what}: expected keys of the events, got {_key(table, row)}")
        repeated = np.zeros(len(places), dtype=np.bool_)
        repeated[np.setdiff1d(np.arange(len(places)), np.unique(places, return_index=True)[1])] = True
        for row in np.flatnonzero(repeated | taken[places])[:1]:
            raise self._wrong(f"{what}: expected each key at most once, got {_key(table, row)} again")
        taken[places] = True
        return places

    def _checked_output(self, output: Any) -> pa.Table | None:
        if output is None:
            return None
        table = self._checked(output, self._output, "output")
        return table if table.num_rows else None

    def _checked(self, returned: Any, schema: pa.Schema, what: str) -> pa.Table:
        """A returned table with exactly the columns of a schema, in its order."""
        table = pa.Table.from_batches([returned]) if isinstance(returned, pa.RecordBatch) else returned
        if not isinstance(table, pa.Table):
            raise self._wrong(f"{what}: expected a pyarrow.Table, got {type(returned).__name__}")
        if sorted(table.schema.names) != sorted(schema.names):
            raise self._wrong(f"{what}: expected the columns {schema.names}, got {table.schema.names}")
        columns = []
        for field in schema:
            column = table.column(field.name)
            columns.append(self._cast(column, field, what))
        return pa.table(columns, schema=pa.schema([field.with_nullable(True) for field in schema]))

    def _cast(self, column: pa.ChunkedArray, field: pa.Field, what: str) -> pa.ChunkedArray:
        if column.type == field.type:
            return column
        wrong = f"{what}: {field.name!r}: expected {field.type}, got {column.type}"
        if not is_kept_alike(column.type, field.type):
            raise self._wrong(wrong)
        try:
            return column.cast(field.type)
        except pa.ArrowException as error:  # Such as a null where the declared type has none.
            raise self._wrong(f"{wrong} ({error})") from error

    def _wrong(self, reason: str) -> InvalidInputError:
        return InvalidInputError(
            reason,
            operation=_OPERATION,
            subject=_name(self._function),
            hint=_HINT,
            kind=ErrorKind.SCHEMA_MISMATCH,
        )


def _takes_context(function: ArrowFunction) -> bool:
    """Whether a function also takes the context of the batch.

    Raises:
        InvalidInputError: It takes neither two nor three arguments.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"{function!r} is not a function with a signature", operation=_OPERATION, hint="Give a Python function"
        ) from error
    for count in (2, 3):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count == 3
    raise InvalidInputError(
        f"expected fn(events, state) or fn(events, state, context), got {_name(function)}{signature}",
        operation=_OPERATION,
        subject="fn",
        hint="Give it two or three parameters",
    )


def _name(function: ArrowFunction) -> str:
    return str(getattr(function, "__qualname__", repr(function)))


def _key(table: pa.Table, row: int) -> str:
    return str(table.slice(int(row), 1).to_pylist()[0])
