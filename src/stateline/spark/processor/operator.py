"""``KeyedStream.process``: a ``StatefulProcessor`` of PySpark, unchanged, as an operator of a pipeline.

The order of calls is that of :mod:`stateline.spark.processor.run`; state and timers are reached through
:mod:`stateline.spark.processor.handle`.

Facts:
- Each state variable is a table; timers are one more. Their keys begin with the grouping key, in its key group.
- A processor works on a copy of its own for each batch and subtask, as in Spark, so what it keeps on ``self`` is gone
  with the batch.
- A subtask without rows and without expired timers does not run the processor at all.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, TypeAlias, get_args, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues
from pyspark.sql.types import StructField, StructType

from stateline.errors import ErrorKind, InvalidInputError
from stateline.options import parse_choice
from stateline.pipeline.event_time import WatermarkPlan
from stateline.pipeline.late_rows import rows_in_time
from stateline.pipeline.operators.api import HASH_COLUMN, BatchContext, OperatorProgram, Processed
from stateline.spark.arrow_types import arrow_schema
from stateline.spark.columns.checks import shipped
from stateline.spark.columns.initial_state import INITIAL_COLUMN, INPUT_COLUMN
from stateline.spark.processor.handle import ProcessorHandle
from stateline.spark.processor.rows import ProcessorForm, RowForm
from stateline.spark.processor.run import KeyedInput, ProcessorRun, keyed_input, rare_collections
from stateline.spark.processor.values import StructCodec, row_class
from stateline.spark.processor.variables import (
    EVENT_TIME,
    PROCESSING_TIME,
    TimeMode,
    Variable,
    definition,
    discover,
    parse_struct,
)
from stateline.state.columns import Rows
from stateline.state.keys import KeyRows, key_rows
from stateline.state.rows import StateRows
from stateline.state.schema import StateSchema
from stateline.state.table import StateTable
from stateline.state.time_to_live import expiry_test
from stateline.state.timers import EXPIRY, Timers, expired_timers, next_timer
from stateline.state.variables import variable_schema

__all__ = ["Form", "OutputMode", "ProcessorProgram"]

Form: TypeAlias = Literal["row", "pandas"]
OutputMode: TypeAlias = Literal["update", "append"]

_TIMERS: Final = "timers"
_VARIABLE: Final = "state."


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorProgram(OperatorProgram):
    """A processor over one keyed stream.

    Attributes:
        processor: Pickled.
        form: Whether it takes rows or data frames.
        keys: Names of the grouping columns, as the user gave them.
        grouped_by: The names of the same columns in the input.
        input: Spark's schema of the rows.
        output: Spark's schema of the output.
        variables: What ``init`` declares, by name.
        time_zone: The session's, for rows and data frames.
        initial: Schema of the initial state, if there is any.
        initial_keys: The names of the grouping columns there; without initial rows, those in the input.
        event_time: The column of the watermark, by which late rows are dropped; ``None`` to keep them.
    """

    processor: bytes
    form: Form
    keys: tuple[str, ...]
    grouped_by: tuple[str, ...]
    input: StructType
    output: StructType
    time_mode: TimeMode
    variables: Mapping[str, Variable]
    time_zone: str
    initial: StructType | None = None
    initial_keys: tuple[str, ...]
    event_time: str | None = None

    @classmethod
    def bind(
        cls,
        processor: object,
        schema: StructType,
        keys: Sequence[str],
        *,
        grouped_by: Sequence[str] = (),
        output_schema: StructType | str,
        output_mode: str,
        time_mode: str,
        time_zone: str,
        form: str | None = None,
        initial: StructType | None = None,
        initial_keys: Sequence[str] = (),
        watermark: WatermarkPlan | None = None,
    ) -> Self:
        """Checks everything that can be checked before a row comes, and learns the state variables from ``init``.

        Raises:
            InvalidInputError: No processor, an unknown mode or form, a declaration that cannot be.
            UserCodeError: ``init`` raised.
        """
        if not isinstance(processor, StatefulProcessor):
            raise _refused(
                "processor",
                f"must be a StatefulProcessor, got {type(processor).__name__}",
                "Give an instance of a subclass of pyspark.sql.streaming.StatefulProcessor",
            )
        parse_choice(output_mode, get_args(OutputMode), "output_mode")
        mode = parse_choice(time_mode, get_args(TimeMode), "time_mode")
        pickled = shipped(processor, "process", type(processor).__name__)
        program = cls(
            processor=pickled,
            form=_form_of(processor) if form is None else parse_choice(form, get_args(Form), "form"),
            keys=tuple(keys),
            grouped_by=tuple(grouped_by or keys),
            input=schema,
            output=parse_struct(output_schema, "output_schema"),
            time_mode=mode,
            variables=discover(pickled, mode),
            time_zone=time_zone,
            initial=initial,
            initial_keys=tuple(initial_keys or grouped_by or keys),
            event_time=_late_by(mode, watermark),
        )
        program.tables  # noqa: B018 - refuses types that cannot be stored
        program._check_initial()
        return program

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self.keys

    @property
    def input_columns(self) -> tuple[str, ...]:
        """All columns: a processor may look at any."""
        return tuple(self.input.names)

    @property
    def wants_hash(self) -> bool:
        return True

    @property
    def tables(self) -> Mapping[str, StateSchema]:
        """One table per state variable, and one for timers."""
        grouping = self._grouping
        made = {_VARIABLE + name: variable.table(grouping) for name, variable in sorted(self.variables.items())}
        if self._has_timers:
            made[_TIMERS] = variable_schema(grouping, EXPIRY, pa.schema([]), has_ttl=False)
        return made

    @property
    def definition(self) -> str:
        return definition(self._grouping, self.variables, self.time_mode)

    @property
    def output_schema(self) -> pa.Schema:
        return arrow_schema(self.output)

    @property
    def acts_on_watermark(self) -> bool:
        """Whether a watermark that advances may fire timers."""
        return self.time_mode == EVENT_TIME

    @property
    def acts_on_time(self) -> bool:
        """Whether processing time may fire timers."""
        return self.time_mode == PROCESSING_TIME

    @property
    def _grouping(self) -> pa.Schema:
        schema = arrow_schema(self.input)
        columns = zip(self.keys, self.grouped_by, strict=True)
        return pa.schema([schema.field(column).with_name(name) for name, column in columns])

    @property
    def _has_timers(self) -> bool:
        return self.time_mode != "none"

    def process(
        self, batches: Iterable[pa.RecordBatch], tables: Mapping[str, StateTable], context: BatchContext
    ) -> Processed:
        """Runs the processor over the rows, then over the timers that have come."""
        with rare_collections():
            return self._process(list(batches), tables, context)

    def _process(
        self, batches: Sequence[pa.RecordBatch], tables: Mapping[str, StateTable], context: BatchContext
    ) -> Processed:
        rows, hashes, initial, initial_hashes = self._received(batches)
        received = rows.num_rows
        rows, hashes = self._in_time(rows, hashes, context)
        now_ms = context.now_ms
        watermark_ms = 0 if context.watermark_us is None else context.watermark_us // 1000
        until_ms = watermark_ms if self.time_mode == EVENT_TIME else now_ms
        grouping = StateSchema(self._grouping, pa.schema([]))
        timer_keys, timer_times = self._come(grouping, tables, until_ms)
        expired = {
            _VARIABLE + name: expiry_test(now_ms) for name, variable in self.variables.items() if variable.ttl_ms
        }
        counts = {"rows": received, "rows_late": received - rows.num_rows}
        if rows.num_rows + initial.num_rows + len(timer_keys) == 0:
            return Processed(
                changes={}, metrics=counts, expired=expired, next_timer_ms=self._next_timer(tables, until_ms, None)
            )
        keyed = keyed_input(
            key_rows(grouping, [rows[name] for name in self.grouped_by], hashes),
            key_rows(grouping, [initial[name] for name in self.initial_keys], initial_hashes),
            timer_keys,
            timer_times,
        )
        timers = Timers(tables[_TIMERS], keyed.keys, keyed.expired) if self._has_timers else None
        handle = ProcessorHandle(
            self.variables,
            {name: tables[_VARIABLE + name] for name in self.variables},
            timers,
            keyed.keys,
            time_mode=self.time_mode,
            now_ms=now_ms,
            sequence=context.sequence,
        )
        timer_values = TimerValues(now_ms, watermark_ms) if self._has_timers else TimerValues()
        form = self._make_form()
        run = ProcessorRun(self._copy(), handle, form.keys(keyed.keys.columns), timer_values, form.take)
        output = self._run(run, form, keyed, rows, initial, timers, until_ms)
        changes: dict[str, StateRows] = {_VARIABLE + name: made for name, made in handle.changes().items()}
        timer_changes = None if timers is None else timers.changes()
        if timer_changes is not None:
            changes[_TIMERS] = timer_changes
        return Processed(
            changes=changes,
            output=output,
            metrics=counts | {"keys": len(keyed.keys), "timers_fired": run.fired},
            expired=expired,
            next_timer_ms=self._next_timer(tables, until_ms, timer_changes),
        )

    def _run(
        self,
        run: ProcessorRun,
        form: ProcessorForm,
        keyed: KeyedInput,
        rows: pa.Table,
        initial: pa.Table,
        timers: Timers | None,
        until_ms: int,
    ) -> pa.Table | None:
        run.init()
        inputs = None
        if rows.num_rows:
            inputs = form.inputs(_taken(rows, keyed.input_order), self.input, keyed.input_ends)
        firsts = None
        if initial.num_rows and self.initial is not None:
            firsts = form.initial(_taken(initial, keyed.initial_order), self.initial, keyed.initial_ends)
        run.handle_rows(keyed, inputs, firsts)
        if timers is not None:
            run.fire_timers(timers, until_ms, self._timer_rows(keyed.keys))
        run.close()
        columns = form.output()
        if columns is None:
            return None
        schema = self.output_schema
        return pa.table([column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)

    def _check_initial(self) -> None:
        if self.initial is None:
            return
        for name, theirs in zip(self.grouped_by, self.initial_keys, strict=True):
            found = self.initial[theirs].dataType if theirs in self.initial.names else None
            if found != self.input[name].dataType:
                what = "no such column" if found is None else f"type {found.simpleString()}"
                raise InvalidInputError(
                    f"the initial state has {what}, the stream has {self.input[name].dataType.simpleString()}",
                    operation="process",
                    subject=f"key {name!r} of initial_state",
                    hint="Give both the same key columns",
                    kind=ErrorKind.SCHEMA_MISMATCH,
                )

    def _copy(self) -> StatefulProcessor:
        processor: StatefulProcessor = CloudPickleSerializer().loads(self.processor)
        return processor

    def _make_form(self) -> ProcessorForm:
        if self.form == "row":
            return RowForm(self.output, self.time_zone)
        from stateline.spark.processor.frames import FrameForm  # noqa: PLC0415 - pandas takes a second to load

        return FrameForm(self.output, self.time_zone)

    def _received(self, batches: Sequence[pa.RecordBatch]) -> tuple[pa.Table, Any, pa.Table, Any]:
        """Input rows and initial rows, each with its hashes."""
        nothing = _no_rows(self.input)
        if not batches:
            return nothing, None, _no_rows(self.initial or self.input), None
        table = pa.Table.from_batches(batches)
        if INPUT_COLUMN not in table.schema.names:
            return table.select(self.input.names), _hashes(table), _no_rows(self.initial or self.input), None
        is_input = table[INPUT_COLUMN].is_valid()
        mine, first = table.filter(is_input), table.filter(pc.invert(is_input))
        return (
            _unpacked(mine, INPUT_COLUMN, self.input),
            _hashes(mine),
            _unpacked(first, INITIAL_COLUMN, self.initial or self.input),
            _hashes(first),
        )

    def _in_time(self, rows: pa.Table, hashes: Any, context: BatchContext) -> tuple[pa.Table, Any]:
        """The rows that are not late, and their hashes."""
        kept = None if self.event_time is None else rows_in_time(rows, self.event_time, context.late_watermark_us)
        if kept is None:
            return rows, hashes
        return rows.filter(pa.array(kept)), None if hashes is None else hashes[kept]

    def _come(self, grouping: StateSchema, tables: Mapping[str, StateTable], until_ms: int) -> tuple[KeyRows, Rows]:
        """Stored timers up to now: their grouping keys and times."""
        if not self._has_timers:
            return key_rows(grouping, [pa.nulls(0, field.type) for field in grouping.keys]), np.empty(0, np.int64)
        come = expired_timers(tables[_TIMERS], until_ms)
        return key_rows(grouping, come.columns[:-1]), come.columns[-1].to_numpy()

    def _next_timer(self, tables: Mapping[str, StateTable], until_ms: int, changes: StateRows | None) -> int | None:
        return next_timer(tables[_TIMERS], until_ms, changes) if self.acts_on_time else None

    def _timer_rows(self, keys: KeyRows) -> list[Any]:
        """Grouping keys as Spark gives them to ``handleExpiredTimer``: rows."""
        columns = zip(self.keys, self.grouped_by, strict=True)
        fields = StructType([StructField(name, self.input[column].dataType) for name, column in columns])
        make = row_class(fields.names)
        return [tuple.__new__(make, key) for key in StructCodec(fields, "key").decode(keys.columns, len(keys))]


def _hashes(table: pa.Table) -> Any:
    return table[HASH_COLUMN].to_numpy() if HASH_COLUMN in table.schema.names else None


def _taken(rows: pa.Table, order: Rows) -> pa.Table:
    return rows.combine_chunks().take(pa.array(order))


def _no_rows(schema: StructType) -> pa.Table:
    return arrow_schema(schema).empty_table()


def _unpacked(table: pa.Table, column: str, schema: StructType) -> pa.Table:
    structs = table[column].combine_chunks()
    if isinstance(structs, pa.ChunkedArray):
        structs = pa.concat_arrays(structs.chunks) if structs.num_chunks else pa.nulls(0, table[column].type)
    return pa.table(structs.flatten(), names=schema.names)


def _form_of(processor: StatefulProcessor) -> Form:
    """The form that the annotations of ``handleInputRows`` speak of; rows where they speak of none."""
    function = type(processor).handleInputRows
    try:
        hints: Mapping[str, Any] = get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        hints = inspect.get_annotations(function)
    said = " ".join(str(hint) for hint in hints.values()).lower()
    return "pandas" if "dataframe" in said or "pandas" in said or "pd." in said else "row"


def _late_by(time_mode: TimeMode, watermark: WatermarkPlan | None) -> str | None:
    """The column by which rows are late; ``None`` if none is."""
    if time_mode != EVENT_TIME:
        return None
    if watermark is None:
        raise _refused(
            "time_mode", "EventTime needs a watermark", "Call df.withWatermark(...), or give KeyedStream(watermark=...)"
        )
    return watermark.column if watermark.drops_late_rows else None


def _refused(subject: str, reason: str, hint: str) -> InvalidInputError:
    return InvalidInputError(reason, operation="process", subject=subject, hint=hint)
