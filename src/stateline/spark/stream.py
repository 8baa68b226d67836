"""What users call: a DataFrame, a key, what to keep per key, and where the results go.

    (KeyedStream(events, key="tailnum", checkpoint="s3://bucket/flights/state")
        .aggregate(flights=count(), mean_delay=mean("dep_delay"), last_seen=max("ts"))
        .write_files("s3://bucket/flights/out", partition_by=["origin"])
        .start("s3://bucket/flights/spark", trigger={"processingTime": "10 seconds"}))

Every misspelled column, wrong type or unknown option is refused by the call that names it, before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import pyarrow as pa
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import StructType

from stateline.errors import InvalidInputError
from stateline.options import check_kind, parse_choice
from stateline.pipeline.event_time import WINDOW_START, Duration, LateData, WatermarkPlan, WindowPlan
from stateline.pipeline.graph import OperatorPlan, Source
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.pipeline.operators.api import OperatorProgram
from stateline.pipeline.operators.arrow_function import ArrowFunction, ArrowFunctionProgram
from stateline.pipeline.operators.deduplication import DropDuplicatesProgram
from stateline.pipeline.operators.late_output import LateRowsProgram
from stateline.pipeline.operators.ranking import Ties
from stateline.pipeline.operators.top import TopProgram
from stateline.pipeline.windows import windows_over
from stateline.spark.arrow_types import declared_schema
from stateline.spark.initial_state import initial_rows
from stateline.spark.keyed_rows import KeyedRows, pipeline_settings
from stateline.spark.processor.operator import ProcessorProgram
from stateline.spark.stage_outputs import StageOutputs
from stateline.spark.stream_checks import check_columns, shipped
from stateline.spark.stream_joins import join_of
from stateline.state.aggregate import Aggregation
from stateline.state.time_to_live import ttl_milliseconds

__all__ = ["KeyedStream", "PipelineStage", "WindowedStream"]

_FORGETTING: Final = (AggregateProgram, ArrowFunctionProgram, DropDuplicatesProgram)
"""Operators that forget keys by the clock."""


class KeyedStream:
    """A streaming DataFrame, grouped by a key, with durable state per key.

    Args:
        df: A streaming DataFrame of replayable sources.
        key: One column, or several. Null is a key like any other, as in Spark's ``groupBy``, and names are found as
            there: unless ``spark.sql.caseSensitive`` is set, ``k`` means column ``K``, and the output calls it ``k``.
        checkpoint: Root URL of the state: ``file:``, ``s3:``, ``gs:``, ``az:`` or a path. One root belongs to one
            query.
        parallelism: Subtasks; may change at every restart. Default: the cores that Spark has.
        max_parallelism: Key groups; fixed for the life of the root, and the bound of ``parallelism``.
        options: Settings by name; see ``PipelineSettings``. ``root.<option>`` goes to the root's store,
            ``savepoint.<option>`` to that of the savepoint.
        name: Name of the operator in the checkpoint. Default: made from the key.
        start_from: URL of a savepoint from which a root without checkpoints starts; the option of that name.
        watermark: Event-time column and delay, such as ``("at", "10 minutes")``: rows may come this much later than
            the newest one. ``df.withWatermark(...)`` says the same and is honoured; there is one watermark per stream.
            It is kept in the checkpoint and never goes back.
        late_data: What happens to rows that come later: ``drop`` (counted as ``rows_late`` in the metrics) or
            ``keep`` (a closed window begins anew with them). As in Spark, a row is late for a window when a batch
            before has closed the window, and for a function of :meth:`apply_arrow` when its time is not after the
            watermark of the batch before. For aggregations without windows nothing is late.
        ttl: A key that no row touched for so long by the clock is forgotten, such as ``"30 days"``: for
            :meth:`aggregate` and :meth:`apply_arrow`, and the default of :meth:`drop_duplicates`. It may be added and
            changed at any restart, and not be taken away again. Without one, keys stay for ever.

    Raises:
        InvalidInputError: ``df`` is no stream, a key column does not exist or cannot be a key, an option is unknown,
            the watermark is not on a timestamp or its delay is negative, the ttl is less than a millisecond.
    """

    def __init__(
        self,
        df: DataFrame,
        key: str | Sequence[str],
        checkpoint: str,
        *,
        parallelism: int | None = None,
        max_parallelism: int = 128,
        options: Mapping[str, str] | None = None,
        name: str | None = None,
        start_from: str | None = None,
        watermark: tuple[str, Duration] | None = None,
        late_data: LateData = "drop",
        ttl: Duration | None = None,
    ) -> None:
        if not getattr(df, "isStreaming", False):
            raise InvalidInputError(
                "must be a stream", operation="KeyedStream", subject="df", hint="Read it with spark.readStream"
            )
        if not hasattr(df, "_jdf"):
            raise InvalidInputError(
                "cannot run on Spark Connect",
                operation="KeyedStream",
                subject="df",
                hint="Use a classic session: the micro-batch protocol runs beside Spark's driver",
            )
        plan = pipeline_settings(df, checkpoint, parallelism, max_parallelism, options, start_from)
        self._open(KeyedRows.of_frame(df, key, plan, watermark, late_data), name, ttl, "KeyedStream")

    def _open(self, rows: KeyedRows, name: str | None, ttl: Duration | None, operation: str) -> None:
        self._rows = rows
        self._keys = list(rows.keys)
        self._schema = rows.schema
        self._watermark = rows.watermark
        self._updates = rows.updates
        self._name = name or "by_" + "_".join(self._keys)
        self._ttl_ms = None if ttl is None else ttl_milliseconds(ttl, operation)

    @classmethod
    def _of_stage(
        cls, stage: PipelineStage, key: str | Sequence[str], name: str | None, ttl: Duration | None
    ) -> KeyedStream:
        stream = cls.__new__(cls)
        operator = stage._operator.name  # noqa: SLF001 - one module
        rows = KeyedRows.of_operator(stage._pipeline, operator, stage._program, key)  # noqa: SLF001
        name = name or f"{operator}_by_{'_'.join(rows.keys)}"
        stream._open(rows, name, ttl, "key_by")  # noqa: SLF001 - its own
        return stream

    def aggregate(self, output_mode: str = "update", /, **aggregations: Aggregation) -> PipelineStage:
        """Keeps aggregations per key, vectorised.

        The output has the key columns, the aggregations by the names given here, and ``checkpoint_id: long``.

        Args:
            output_mode: ``update``: one row per key touched by a batch. ``complete``: one row per key, at every batch.
                ``append``, for windows with a watermark: one row per window, when it closes. Given by position, as in
                ``aggregate("append", n=count())``: every name belongs to an aggregation.
            aggregations: ``name=count()``, ``name=sum("column")``, ...; see :mod:`stateline.state.aggregate`.

        Raises:
            InvalidInputError: No aggregation, a column that does not exist or does not fit, a name that is taken, an
                unknown mode, or ``append`` without windows and a watermark on their column.
        """
        return self._aggregated(output_mode, aggregations, None, self._rows.watermark_of_key)

    def apply_arrow(
        self,
        fn: ArrowFunction,
        state_schema: pa.Schema | StructType | str,
        output_schema: pa.Schema | StructType | str,
        output_mode: str = "update",
        *,
        columns: Sequence[str] | None = None,
        state_defaults: Mapping[str, object] | None = None,
    ) -> PipelineStage:
        """Runs a function of your own over Arrow tables: the events of a batch and the state of their keys.

        A running total::

            def total(events, state):
                sums = events.group_by("key_index").aggregate([("value", "sum")]).sort_by("key_index")
                new = pc.add(state["total"].fill_null(0), sums["value_sum"])
                state = state.set_column(state.schema.get_field_index("total"), "total", new)
                return state, state

            stream.apply_arrow(total, "total long", "key string, total long")

        The function is called once per subtask and batch. Column ``key_index`` of the events is the row of ``state``
        that belongs to the event's key; ``state`` has one row per key, and nulls for a key without state. It returns
        ``(output, state)`` or ``(output, state, deleted)``, each a ``pyarrow.Table`` or ``None``. A third parameter of
        the function is given the :class:`stateline.pipeline.operators.api.BatchContext`.
        :mod:`stateline.pipeline.operators.arrow_function` has the whole contract.

        Args:
            fn: The function. It is shipped to the tasks, and may be called again for a batch that is computed again.
            state_schema: Columns kept per key, without the key columns: an Arrow schema, a Spark schema, or its DDL.
            output_schema: All columns of the output, in the same forms.
            output_mode: ``update`` or ``append``: what the function returns is the output in both.
            columns: Columns of the stream that the function reads; the key columns always come along. Default: all.
            state_defaults: What columns that were added to ``state_schema`` have for keys that are stored already; null
                without one. It belongs to the column from then on.

        Raises:
            InvalidInputError: A function of other parameters, an unknown mode or column, a schema that cannot be kept.
        """
        if columns is None:
            columns = self._rows.all_columns()
        self._check_final("apply_arrow")
        program = ArrowFunctionProgram.bind(
            self._rows.spelled(columns),
            self._keys,
            fn,
            declared_schema(state_schema, "state_schema"),
            declared_schema(output_schema, "output_schema"),
            output_mode=output_mode,
            columns=columns,
            watermark=self._watermark,
            state_defaults=state_defaults,
            ttl_ms=self._ttl_ms,
        )
        return self._stage(program)

    def drop_duplicates(self, *, within_watermark: bool = False, ttl: Duration | None = None) -> PipelineStage:
        """Lets the first row of each key pass, in order of arrival, with all columns: ``docs/deduplication.md``.

        As ``dropDuplicates`` of Spark: a key is remembered for ever, or, where the column of the watermark is part of
        it, until the watermark reaches its time. Late rows never pass.

        Args:
            within_watermark: As ``dropDuplicatesWithinWatermark``: a key is remembered until the watermark reaches the
                time of the row that passed plus the watermark's delay.
            ttl: A key is forgotten so long by the clock after its row passed. Default: that of the stream.

        Raises:
            InvalidInputError: ``within_watermark`` without a watermark, or together with a ttl; a ttl of less than a
                millisecond; rows that an operator in front replaces by newer ones.
        """
        self._check_final("drop_duplicates")
        watermark, own = self._watermark, self._rows.key_columns
        for column in self._rows.event_times:
            if column in own:
                watermark = self._rows.watermark_of(column, "drop_duplicates")
        program = DropDuplicatesProgram.bind(
            self._schema,
            self._keys,
            grouped_by=own,
            watermark=watermark,
            event_times=self._rows.event_times,
            within_watermark=within_watermark,
            ttl_ms=self._ttl_ms if ttl is None else ttl_milliseconds(ttl, "drop_duplicates"),
        )
        return self._stage(program)

    def top(
        self,
        n: int,
        by: str | Sequence[str],
        *,
        ascending: bool | Sequence[bool] = False,
        ties: Ties = "first",
        columns: Sequence[str] | None = None,
    ) -> PipelineStage:
        """Keeps the best rows of each key; all are put out, with their ``rank``, when they change: ``docs/top.md``.

        Args:
            n: Rows of a key, 1 or more.
            by: The column that says which row is better, or several: the next one decides among equal rows.
            ascending: Whether smaller is better: for all columns, or for each. Null is worse than all values.
            ties: Which of equal rows is better: that which came ``first`` or ``last``; or ``all`` are shown, as equals.
            columns: Columns that are kept and shown beside the key and ``by``. Default: all.

        Raises:
            InvalidInputError: ``n`` below 1, a column that does not exist, has no order, or cannot be taken back.
        """
        order = [by] if isinstance(by, str) else list(by)
        columns = self._rows.all_columns(order) if columns is None else columns
        program = TopProgram.bind(
            self._rows.spelled([*order, *columns]),
            self._keys,
            n,
            order,
            ascending=ascending,
            ties=ties,
            columns=columns,
            watermark=self._rows.watermark_of_key,
            updates=self._updates,
        )
        self._rows.check_collations(map(self._rows.columns.own, order), "column of top")
        return self._stage(program)

    def process(
        self,
        processor: StatefulProcessor,
        output_schema: StructType | str,
        output_mode: str = "update",
        time_mode: str = "None",
        initial_state: GroupedData | DataFrame | None = None,
        *,
        form: str | None = None,
    ) -> PipelineStage:
        """Runs a ``StatefulProcessor`` of ``transformWithState`` or its pandas form, unchanged: ``docs/processors.md``.

        Args:
            processor: An instance; each batch and subtask works on a copy of it.
            output_schema: What it yields, as a struct or DDL text.
            output_mode: ``update`` or ``append``: a word for the reader.
            time_mode: ``None``, ``ProcessingTime`` or ``EventTime``, for timers and time to live.
            initial_state: Rows for ``handleInitialState`` in the first batch of a new root, grouped or not. They are
                left out where the root starts from a savepoint: its state goes on.
            form: ``row`` or ``pandas``. Default: what the annotations of ``handleInputRows`` say, else ``row``.

        Raises:
            InvalidInputError: A mode, schema or state variable that cannot be.
            UserCodeError: ``init`` raised.
        """
        frame = self._rows.frame
        if frame is None:
            raise InvalidInputError(
                "cannot read the output of another operator",
                operation="process",
                subject=f"operator {self._name!r}",
                hint="Use aggregate, apply_arrow, drop_duplicates, join or top behind an operator, or give the "
                "processor a stream of its own",
            )
        for name in self._schema.names:
            self._rows.columns.own(name)  # A processor gets them all.
        initial = initial_rows(initial_state, self._keys)
        program = ProcessorProgram.bind(
            processor,
            frame.schema,
            self._keys,
            grouped_by=self._rows.key_columns,
            output_schema=output_schema,
            output_mode=output_mode,
            time_mode=time_mode,
            time_zone=str(frame.sparkSession.conf.get("spark.sql.session.timeZone")),
            form=form,
            initial=None if initial is None else initial.rows.schema,
            initial_keys=() if initial is None else initial.keys,
            watermark=self._watermark,
        )
        return self._stage(program, initial=None if initial is None else initial.rows)

    def join(
        self,
        other: KeyedStream,
        how: str = "inner",
        *,
        within: tuple[Duration, Duration] | None = None,
        suffix: str = "_right",
        ttl: Duration | None = None,
    ) -> PipelineStage:
        """Joins the rows of another keyed stream whose keys are equal, and whose times are near: ``docs/joins.md``.

        The output has the key columns by their names here, the other columns of this stream, and the other columns of
        the other stream, with ``suffix`` where a name is taken. It only appends.

        Args:
            other: The right side: a keyed stream with the same checkpoint, and keys of the same types.
            how: ``inner``, ``left``, ``right``, ``full``, or ``semi`` for rows of this stream that have a partner,
                once.
            within: Which times match: ``(lower, upper)`` for left time + lower <= right time <= left time + upper.
                The times are the watermark columns of the two streams. State is bounded by it, and outer joins need it.
            suffix: Added to names of the other stream that this one has.
            ttl: Without ``within``: processing time after which a row is forgotten. Default: never.

        Raises:
            InvalidInputError: An unknown kind, keys that do not go together, an interval without two watermarks, an
                outer join without an interval, rows that an operator in front replaces, a name that is taken.
        """
        check_kind(other, KeyedStream, "other", "a KeyedStream")
        program = join_of(self._rows, other._rows, how, within, suffix, ttl)
        return self._stage(program, other)

    def window(
        self, column: str, size: Duration, slide: Duration | None = None, *, start: Duration = "0 seconds"
    ) -> WindowedStream:
        """Groups by windows of event time too: every row counts for each window that its time is in.

        The windows are exactly those of ``pyspark.sql.functions.window``. Their start is part of the key: the output
        has the columns ``window_start`` (inclusive) and ``window_end`` (exclusive) after the key columns, and state is
        spread over the subtasks by key and window. Rows without a time are in no window.

        Args:
            column: Event time: a timestamp column.
            size: Length of a window, such as ``"10 minutes"``.
            slide: From one start to the next; less than ``size`` for windows that overlap. Default: ``size``.
            start: Offset of the windows from the epoch, such as ``-8 hours``: between minus and plus ``slide``.

        Raises:
            InvalidInputError: No timestamp column, or lengths that make no windows.
        """
        own = self._rows.columns.own(column)
        watermark = self._rows.watermark_of(own, "window")
        plan = windows_over(self._schema, own, size, slide, start, behind=self._rows.frame is None)
        return WindowedStream(lambda mode, aggregations: self._aggregated(mode, aggregations, plan, watermark))

    def _aggregated(
        self,
        output_mode: str,
        aggregations: Mapping[str, Aggregation],
        window: WindowPlan | None,
        watermark: WatermarkPlan | None,
    ) -> PipelineStage:
        named = [name for one in aggregations.values() for name in getattr(one, "columns", ()) or ()]
        program = AggregateProgram.bind(
            self._rows.spelled(named),
            self._keys,
            aggregations,
            output_mode=output_mode,
            window=window,
            watermark=watermark,
            updates=self._updates,
            behind=self._rows.frame is None,
            ttl_ms=self._ttl_ms,
        )
        compared = [self._rows.columns.own(column) for one in aggregations.values() for column in one.compared]
        self._rows.check_collations(compared, "aggregated column")
        return self._stage(program)

    def _check_final(self, operation: str) -> None:
        """Checks that rows stay as they are, for an operator that cannot take them back.

        Raises:
            InvalidInputError: They are updated by the operator in front.
        """
        if self._updates:
            raise InvalidInputError(
                f"cannot read rows that operator {self._rows.source.name!r} replaces by newer ones",
                operation=operation,
                subject=f"operator {self._name!r}",
                hint="Use mode append in front, where rows are final: windows with a watermark, sessions, joins",
            )

    def _stage(self, program: OperatorProgram, *others: KeyedStream, initial: DataFrame | None = None) -> PipelineStage:
        forgets = any(stream._ttl_ms is not None for stream in (self, *others))  # noqa: SLF001 - of this class
        if forgets and not isinstance(program, _FORGETTING):
            raise InvalidInputError(
                "cannot be used here: this operator does not forget keys by the clock",
                operation="KeyedStream",
                subject=f"ttl of operator {self._name!r}",
                hint="Leave it out. aggregate, apply_arrow and drop_duplicates honour it; a join, and each state "
                "variable of a processor, has one of its own",
            )
        output = program.output_schema
        check_columns(output, output.names, "output_schema")
        shipped(program, "KeyedStream", f"operator {self._name}")  # Or every batch would fail, with Spark's words.
        further = (other._rows for other in others)  # noqa: SLF001 - of this class
        pipeline, operator = self._rows.feeding(self._name, program, *further, initial=initial)
        given = tuple(stream._schema for stream in (self, *others))  # noqa: SLF001 - of this class
        return PipelineStage(pipeline, operator, program, given)


@dataclass(frozen=True, slots=True)
class PipelineStage(StageOutputs):
    """A keyed operator whose output has no place yet. Made by :class:`KeyedStream`."""

    _given: tuple[pa.Schema, ...] = ()
    """The columns that it is given, on each side."""

    def key_by(self, key: str | Sequence[str], *, name: str | None = None, ttl: Duration | None = None) -> KeyedStream:
        """Groups the output by a key, for another operator in the same checkpoint.

        Args:
            key: One column of the output, or several.
            name: Name of the next operator in the checkpoint. Default: made from this one's and the key.
            ttl: As of :class:`KeyedStream`, for the next operator.

        Raises:
            InvalidInputError: A column that does not exist or cannot be a key; or rows of the output replace others,
                and nobody knows which.
        """
        return KeyedStream._of_stage(self, key, name, ttl)  # noqa: SLF001 - one module

    def late_rows(self, side: Literal["left", "right"] = "left", *, name: str | None = None) -> PipelineStage:
        """The rows that come too late for this operator, in place of being dropped: all columns that it is given.

        Args:
            side: Of a join, whose rows.
            name: Name of this output in the pipeline. Default: made from the operator's.

        Raises:
            InvalidInputError: No row is late for the operator: it has no watermark, or keeps late rows.
        """
        number = ("left", "right").index(parse_choice(side, ("left", "right"), "side"))
        operator = self._operator
        if number >= len(operator.readings) or operator.readings[number].late_by is None:
            raise InvalidInputError(
                "cannot have late rows",
                operation="late_rows",
                subject=f"operator {operator.name!r}, side {side}",
                hint="Rows are late for windows, sessions, joins, deduplication and apply_arrow with a watermark, "
                "unless late_data is keep",
            )
        given = self._given[number]
        if operator.window is not None and WINDOW_START not in given.names:
            given = given.append(given.field(operator.window.column).with_name(WINDOW_START))
        program = LateRowsProgram(given, operator.readings[number].key_columns)
        plan = replace(operator, late_columns={**operator.late_columns, number: tuple(program.output_schema.names)})
        pipeline = self._pipeline.with_outputs_of(plan)
        reader = OperatorPlan.of(name or f"{operator.name}_late", program, (Source("late", operator.name, number),))
        pipeline = pipeline.with_operator(reader, program, None)
        return PipelineStage(pipeline, pipeline.plan.graph.operator(reader.name), program, (given,))


class WindowedStream:
    """A keyed stream in windows of event time, made by :meth:`KeyedStream.window`."""

    def __init__(self, aggregated: Callable[[str, Mapping[str, Aggregation]], PipelineStage]) -> None:
        self._aggregated = aggregated

    def aggregate(self, output_mode: str = "update", /, **aggregations: Aggregation) -> PipelineStage:
        """Keeps aggregations per key and window; see :meth:`KeyedStream.aggregate`.

        With a watermark on the windows' column, a window closes when the watermark passes its end: in the modes
        ``update`` and ``append`` its state goes then, and in ``append`` that is when its row appears.
        """
        return self._aggregated(output_mode, aggregations)
