"""What users call: a DataFrame, a key, what to keep per key, and where the results go.

    (KeyedStream(events, key="tailnum", checkpoint="s3://bucket/flights/state")
        .aggregate(flights=count(), mean_delay=mean("dep_delay"), last_seen=max("ts"))
        .write_files("s3://bucket/flights/out", partition_by=["origin"])
        .start("s3://bucket/flights/spark", trigger={"processingTime": "10 seconds"}))

Every misspelled column, wrong type or unknown option is refused by the call that names it, before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import StructType

from stateline.blob.urls import absolute_url
from stateline.errors import InvalidInputError
from stateline.files import FileOutput, RollingPolicy
from stateline.files.nulls import check_countable
from stateline.key_groups import check_key_type, check_parallelism
from stateline.options import check_kind, plain_options, pop_prefixed, settings_from_options
from stateline.pipeline.event_time import Duration, LateData, WatermarkPlan, WindowPlan
from stateline.pipeline.graph import Graph, OperatorPlan
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.pipeline.operators.api import OperatorProgram
from stateline.pipeline.operators.arrow_function import ArrowFunction, ArrowFunctionProgram
from stateline.pipeline.output_columns import columns_of
from stateline.pipeline.plan import PipelinePlan, PipelineSettings, SavepointStart
from stateline.spark.arrow_types import arrow_schema, declared_schema
from stateline.spark.initial_state import initial_rows
from stateline.spark.pipeline import Pipeline
from stateline.spark.processor.operator import ProcessorProgram
from stateline.spark.sinks.for_each_batch import BatchFunction
from stateline.spark.stream_checks import (
    check_collation,
    check_columns,
    check_hidden,
    check_reserved,
    check_shared,
    key_names,
    shipped,
)
from stateline.spark.stream_columns import StreamColumns
from stateline.spark.stream_time import stream_watermark
from stateline.state.aggregate import Aggregation

__all__ = ["KeyedStream", "PipelineStage", "WindowedStream"]

_ROOT_PREFIX: Final = "root."
_SAVEPOINT_PREFIX: Final = "savepoint."


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

    Raises:
        InvalidInputError: ``df`` is no stream, a key column does not exist or cannot be a key, an option is unknown,
            the watermark is not on a timestamp or its delay is negative.
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
        self._df = df
        self._schema = arrow_schema(df.schema)
        check_reserved(self._schema)
        self._columns = StreamColumns.of(df)
        self._keys = key_names(key)
        self._key_columns = [self._columns.own(column) for column in self._keys]
        check_columns(self._schema, self._key_columns, "key")
        for column in self._key_columns:
            check_key_type(self._schema.field(column).type, column)
        check_collation(df, self._key_columns, "key")
        self._checkpoint = absolute_url(checkpoint)  # Tasks run in other folders.
        check_shared(self._checkpoint, "checkpoint")
        cores = df.sparkSession.sparkContext.defaultParallelism
        check_parallelism(1, max_parallelism)
        self._parallelism = min(cores, max_parallelism) if parallelism is None else parallelism
        check_parallelism(self._parallelism, max_parallelism)
        self._max_parallelism = max_parallelism
        given = plain_options(options)
        if start_from is not None:
            given["start_from"] = start_from
        self._root_options = pop_prefixed(given, _ROOT_PREFIX)
        self._savepoint_options = pop_prefixed(given, _SAVEPOINT_PREFIX)
        self._settings = settings_from_options(PipelineSettings, given)
        self._name = name or "by_" + "_".join(self._keys)
        self._watermark = stream_watermark(df, self._schema, self._columns, watermark, late_data)

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
        return self._aggregated(output_mode, aggregations, None)

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
            as_keys = dict(zip(self._key_columns, self._keys, strict=True))
            columns = [as_keys.get(self._columns.own(name), name) for name in self._schema.names]
        program = ArrowFunctionProgram.bind(
            self._columns.spelled(self._schema, [*self._keys, *columns]),
            self._keys,
            fn,
            declared_schema(state_schema, "state_schema"),
            declared_schema(output_schema, "output_schema"),
            output_mode=output_mode,
            columns=columns,
            watermark=self._watermark,
            state_defaults=state_defaults,
        )
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
        for name in self._schema.names:
            self._columns.own(name)  # A processor gets them all.
        initial = initial_rows(initial_state, self._keys)
        program = ProcessorProgram.bind(
            processor,
            self._df.schema,
            self._keys,
            grouped_by=self._key_columns,
            output_schema=output_schema,
            output_mode=output_mode,
            time_mode=time_mode,
            time_zone=str(self._df.sparkSession.conf.get("spark.sql.session.timeZone")),
            form=form,
            initial=None if initial is None else initial.rows.schema,
            initial_keys=() if initial is None else initial.keys,
            watermark=self._watermark,
        )
        return self._stage(program, None if initial is None else initial.rows)

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
        plan = WindowPlan.of(self._schema, self._columns.own(column), size, slide, start)
        return WindowedStream(lambda mode, aggregations: self._aggregated(mode, aggregations, plan))

    def _aggregated(
        self, output_mode: str, aggregations: Mapping[str, Aggregation], window: WindowPlan | None
    ) -> PipelineStage:
        named = [name for one in aggregations.values() for name in getattr(one, "columns", ()) or ()]
        program = AggregateProgram.bind(
            self._columns.spelled(self._schema, [*self._keys, *named]),
            self._keys,
            aggregations,
            output_mode=output_mode,
            window=window,
            watermark=self._watermark,
        )
        compared = [self._columns.own(column) for one in aggregations.values() for column in one.compared]
        check_collation(self._df, compared, "aggregated column")
        return self._stage(program)

    def _start(self) -> SavepointStart | None:
        url, mode = self._settings.start_from, self._settings.start_mode
        if not url:
            return None
        return SavepointStart(url=url, mode="claim" if mode == "claim" else "copy", options=self._savepoint_options)

    def _stage(self, program: OperatorProgram, initial: DataFrame | None = None) -> PipelineStage:
        output = program.output_schema
        check_columns(output, output.names, "output_schema")
        shipped(program, "KeyedStream", f"operator {self._name}")  # Or every batch would fail, with Spark's words.
        plan = PipelinePlan(
            root_url=self._checkpoint,
            parallelism=self._parallelism,
            max_parallelism=self._max_parallelism,
            graph=Graph(),
            retained_checkpoints=self._settings.retained_checkpoints,
            metrics_log=self._settings.metrics_log,
            local_copies=self._settings.local_copies,
            local_copies_bytes=self._settings.local_copies_bytes,
            inline_bytes=self._settings.inline_bytes,
            record_bytes=self._settings.record_bytes,
            upload_timeout=self._settings.upload_timeout,
            max_attempts=self._settings.max_attempts,
            root_options=self._root_options,
            start=self._start(),
        )
        return PipelineStage(self._df, plan, OperatorPlan.of(self._name, program), program, self._watermark, initial)


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """A keyed operator whose output has no place yet. Made by :class:`KeyedStream`."""

    _df: DataFrame
    _plan: PipelinePlan
    _operator: OperatorPlan
    _program: OperatorProgram
    _watermark: WatermarkPlan | None
    _initial: DataFrame | None = None

    def write_files(
        self,
        path: str,
        format: str = "parquet",  # noqa: A002 - Spark's word
        partition_by: Sequence[str] | str = (),
        *,
        roll_bytes: int | str = "128MB",
        roll_seconds: float | str | None = "auto",
        idle_seconds: float | str | None = None,
        every_checkpoint: bool = False,
        partition_zone: str = "UTC",
        compression: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Pipeline:
        """Writes the output as files that appear exactly once, in the same checkpoint as the state.

        A file grows over micro-batches and becomes visible, whole, with the checkpoint that finishes it. Any reader
        that lists the folder sees each row once; there is no side log.

        Args:
            path: Root URL of the output.
            format: ``parquet``, ``arrow``, ``csv``, ``jsonl`` or ``text``.
            partition_by: Columns that become folders, as in Hive and Spark.
            roll_bytes: Size at which a file is finished.
            roll_seconds: Age at which a file is finished, also while no rows come; ``None`` for no limit. By default
                five minutes, unless the stream ends by itself (``availableNow``, ``once``), which finishes its files.
            idle_seconds: Time without rows after which a file is finished, also while none come at all.
            every_checkpoint: Finish every file with its checkpoint: rows are visible at once, in more and smaller
                files.
            partition_zone: Time zone whose clock names the folders of timestamps.
            compression: A codec of the format.
            options: Options of the output's store.

        Raises:
            InvalidInputError: An unknown format, codec or column, or the checkpoint lies where readers of the output
                find it.
        """
        path = absolute_url(path)
        check_shared(path, "path")
        check_hidden(self._plan.root_url, path, "checkpoint")
        check_kind(partition_by, Iterable, "partition_by")
        columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        output = FileOutput(
            url=path,
            format=format,
            partition_by=columns,
            partition_zone=partition_zone,
            compression=compression,
            rolling=RollingPolicy(
                roll_bytes=roll_bytes,  # type: ignore[arg-type]
                roll_seconds=roll_seconds,  # type: ignore[arg-type]
                idle_seconds=idle_seconds,  # type: ignore[arg-type]
                every_checkpoint=every_checkpoint,
            ),
            store_options=plain_options(options),
        )
        rows = self._program.output_schema
        output.file_schema(rows)
        return self._pipeline(replace(self._operator, output=output, output_columns=columns_of(output.named(rows))))

    def for_each_batch(self, fn: BatchFunction) -> Pipeline:
        """Hands the output of each checkpoint to a function, for sinks that are not files.

        ``fn(rows, key)`` gets a DataFrame, as in Spark's ``foreachBatch``, and a
        :class:`~stateline.pipeline.delivery.BatchKey`. It is called at least once for each checkpoint that has rows,
        after the checkpoint is durable, and always with the same rows under the same ``str(key)``, whatever crashed: a
        sink that stores the key in the transaction that stores the rows has each row exactly once.
        :mod:`stateline.spark.sinks.for_each_batch` has all guarantees.

        Args:
            fn: Runs in the driver. When it raises, the query fails, and the next start delivers the rows again.

        Raises:
            InvalidInputError: ``fn`` is no function, or elements of lists or maps in the output have no type.
        """
        if not callable(fn):
            raise InvalidInputError(f"{fn!r} is not a function", operation="for_each_batch", hint="Give fn(rows, key)")
        check_countable(self._program.output_schema, "for_each_batch")
        return replace(self._pipeline(replace(self._operator, delivers=True)), _functions={self._operator.name: fn})

    def state_only(self) -> Pipeline:
        """Keeps the state and writes nothing else."""
        return self._pipeline(self._operator)

    def _pipeline(self, operator: OperatorPlan) -> Pipeline:
        plan = replace(self._plan, graph=Graph.of_one_input([operator], self._watermark))
        initial = {} if self._initial is None else {operator.name: self._initial}
        return Pipeline(self._df, plan, {operator.name: self._program}, _initial=initial)


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
