"""The operators that a keyed stream offers over its own rows: one method each, which binds and names what runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import StructType

from stateline.errors import InvalidInputError
from stateline.pipeline.event_time import Duration, WatermarkPlan, WindowPlan
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.pipeline.operators.api import OperatorProgram
from stateline.pipeline.operators.arrow_function import ArrowFunction, ArrowFunctionProgram
from stateline.pipeline.operators.deduplication import DropDuplicatesProgram
from stateline.pipeline.operators.ranking import Ties
from stateline.pipeline.operators.top import TopProgram
from stateline.pipeline.windows import windows_over
from stateline.spark.arrow_types import declared_schema
from stateline.spark.columns.initial_state import initial_rows
from stateline.spark.processor.operator import ProcessorProgram
from stateline.spark.stream.keyed_rows import KeyedRows
from stateline.spark.stream.outputs import StageOutputs
from stateline.spark.stream.sessions import sessions_of
from stateline.spark.stream.windows import WindowedStream
from stateline.state.aggregate import Aggregation
from stateline.state.time_to_live import ttl_milliseconds

__all__ = ["StreamOperators"]

_Stage = TypeVar("_Stage", bound=StageOutputs)


class StreamOperators(ABC, Generic[_Stage]):
    """What may be done with keyed rows alone. Each method gives a stage, whose output has no place yet."""

    _rows: KeyedRows
    _keys: list[str]
    _schema: pa.Schema
    _watermark: WatermarkPlan | None
    _updates: bool
    _name: str
    _ttl_ms: int | None

    def aggregate(self, output_mode: str = "update", /, **aggregations: Aggregation) -> _Stage:
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
    ) -> _Stage:
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

    def drop_duplicates(self, *, within_watermark: bool = False, ttl: Duration | None = None) -> _Stage:
        """Lets the first row of each key pass, in order of arrival, with all columns: ``docs/guides/deduplication.md``.

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
    ) -> _Stage:
        """Keeps the best rows of each key: ``docs/guides/top.md``.

        The output has ``rank: int`` from 1, too: in each batch all rows of each key whose best rows have changed.

        Args:
            n: Rows of a key, 1 or more.
            by: The column that says which row is better, or several: the next one decides among equal rows.
            ascending: Whether smaller is better: for all columns, or for each. Null is worse than all values.
            ties: Which of equal rows is better: that which came ``first`` or ``last``; or ``all`` are shown, as equals.
            columns: Columns that are kept and shown beside the key and ``by``. Default: all.

        Raises:
            InvalidInputError: ``n`` below 1, a column that does not exist, has no order, or cannot be taken back; a ttl
                of the stream where rows may be taken back.
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
            ttl_ms=self._ttl_ms,
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
    ) -> _Stage:
        """Runs a ``StatefulProcessor``, in either of Spark's forms, unchanged: ``docs/guides/processors.md``.

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

    def window(
        self, column: str, size: Duration, slide: Duration | None = None, *, start: Duration = "0 seconds"
    ) -> WindowedStream[_Stage]:
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

    def sessions(self, column: str, gap: Duration) -> WindowedStream[_Stage]:
        """Groups by sessions of event time too: rows of a key that follow upon each other, with no gap between them.

        The sessions are those of ``pyspark.sql.functions.session_window``: a row at ``t`` opens ``[t, t + gap)``, and
        what overlaps or touches becomes one. The output has the columns ``window_start`` (inclusive) and
        ``window_end`` (exclusive: the last row and the gap) after the key columns. Rows without a time are in no
        session. A key may have any number of sessions: only those are read that rows of a batch touch.

        Args:
            column: Event time: a timestamp column.
            gap: The time without rows after which a session is over, such as ``"10 minutes"``.

        Raises:
            InvalidInputError: No timestamp column, a gap of nothing or less.
        """
        program = sessions_of(self._rows, column, gap)
        return WindowedStream(lambda mode, aggregations: self._stage(program(mode, aggregations)))

    def _aggregated(
        self,
        output_mode: str,
        aggregations: Mapping[str, Aggregation],
        window: WindowPlan | None,
        watermark: WatermarkPlan | None,
    ) -> _Stage:
        program = AggregateProgram.bind(
            self._rows.read_by(aggregations),
            self._keys,
            aggregations,
            output_mode=output_mode,
            window=window,
            watermark=watermark,
            updates=self._updates,
            behind=self._rows.frame is None,
            ttl_ms=self._ttl_ms,
        )
        self._rows.check_compared(aggregations)
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

    @abstractmethod
    def _stage(self, program: OperatorProgram, *, initial: DataFrame | None = None) -> _Stage:
        """The stage that a program makes of the rows."""
