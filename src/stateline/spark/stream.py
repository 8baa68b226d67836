"""What users call: a DataFrame, a key, what to keep per key, and where the results go.

    (KeyedStream(events, key="tailnum", checkpoint="s3://bucket/flights/state")
        .aggregate(flights=count(), mean_delay=mean("dep_delay"), last_seen=max("ts"))
        .write_files("s3://bucket/flights/out", partition_by=["origin"])
        .start("s3://bucket/flights/spark", trigger={"processingTime": "10 seconds"}))

Owns the checks that can be made before anything runs: every misspelled column, wrong type or unknown option is
refused by the call that names it. Does not own the run: ``coordinator`` decides, ``batch_job`` computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.streaming import StatefulProcessor, StreamingQuery
from pyspark.sql.types import StructType

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore
from stateline.environment import Environment, system_environment
from stateline.errors import ErrorKind, InvalidInputError
from stateline.files import FileOutput, RollingPolicy
from stateline.key_groups import check_key_type, check_parallelism
from stateline.options import check_known, settings_from_options
from stateline.spark.aggregation import AggregateProgram
from stateline.spark.arrow_types import arrow_schema
from stateline.spark.batch_job import BatchJob
from stateline.spark.coordinator import Batch, MicroBatchCoordinator
from stateline.spark.ending import finish_open_files
from stateline.spark.initial_state import initial_rows
from stateline.spark.offsets import offsets_digest, read_with_hadoop
from stateline.spark.plan import OperatorPlan, PipelinePlan, PipelineSettings
from stateline.spark.processor import ProcessorProgram, event_time_column
from stateline.spark.query import PipelineQuery
from stateline.spark.task import OperatorProgram
from stateline.state.aggregate import Aggregation

__all__ = ["KeyedStream", "Pipeline", "PipelineStage"]

_ROOT_PREFIX: Final = "root."
_TRIGGERS: Final = ("processingTime", "availableNow", "once")
_TRIGGERS_THAT_END: Final = ("availableNow", "once")


class KeyedStream:
    """A streaming DataFrame, grouped by a key, with durable state per key.

    Args:
        df: A streaming DataFrame of replayable sources.
        key: One column, or several. Null is a key like any other, as in Spark's ``groupBy``.
        checkpoint: Root URL of the state: ``file:``, ``s3:``, ``gs:``, ``az:`` or a path. One root belongs to one
            query.
        parallelism: Subtasks; may change at every restart. Default: the cores that Spark has.
        max_parallelism: Key groups; fixed for the life of the root, and the bound of ``parallelism``.
        options: Settings by name; see ``PipelineSettings``. ``root.<option>`` goes to the root's store.
        name: Name of the operator in the checkpoint. Default: made from the key.

    Raises:
        InvalidInputError: ``df`` is no stream, a key column does not exist or cannot be a key, an option is unknown.
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
    ) -> None:
        if not df.isStreaming:
            raise InvalidInputError(
                "it is not a stream", operation="KeyedStream", subject="df", hint="Read it with spark.readStream"
            )
        if not hasattr(df, "_jdf"):
            raise InvalidInputError(
                "Spark Connect cannot run it",
                operation="KeyedStream",
                subject="df",
                hint="Use a classic session: the micro-batch protocol runs beside Spark's driver",
            )
        self._df = df
        self._schema = arrow_schema(df.schema)
        self._keys = [key] if isinstance(key, str) else list(key)
        _check_columns(self._schema, self._keys, "key")
        for column in self._keys:
            check_key_type(self._schema.field(column).type, column)
        _check_collation(df, self._keys)
        cores = df.sparkSession.sparkContext.defaultParallelism
        self._parallelism = min(cores, max_parallelism) if parallelism is None else parallelism
        check_parallelism(self._parallelism, max_parallelism)
        self._max_parallelism = max_parallelism
        self._checkpoint = checkpoint
        given = dict(options or {})
        self._root_options = {
            key.removeprefix(_ROOT_PREFIX): given.pop(key) for key in list(given) if key.startswith(_ROOT_PREFIX)
        }
        self._settings = settings_from_options(PipelineSettings, given)
        self._name = name or "by_" + "_".join(self._keys)

    def aggregate(self, **aggregations: Aggregation) -> PipelineStage:
        """Keeps aggregations per key, vectorised.

        The output has one row per key touched by a batch: the key columns, the aggregations by the names given here,
        and ``checkpoint_id: long``.

        Args:
            aggregations: ``name=count()``, ``name=sum("column")``, ...; see :mod:`stateline.state.aggregate`.

        Raises:
            InvalidInputError: No aggregation, a column that does not exist or does not fit, a name that is taken.
        """
        program = AggregateProgram.bind(self._schema, self._keys, aggregations)
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
        """Runs a ``StatefulProcessor``, written for ``transformWithState`` or its pandas form, unchanged.

        ``init`` runs once here, on a copy, to learn the state variables. What the processor yields is the output.

        Args:
            processor: An instance; each batch and subtask works on a copy of it.
            output_schema: What it yields, as a struct or DDL text.
            output_mode: ``update`` or ``append``: as for Spark, a word for the reader.
            time_mode: ``None``, ``ProcessingTime`` or ``EventTime``, for timers and time to live.
            initial_state: Rows for ``handleInitialState`` in the first batch of a new root: a grouped DataFrame as for
                Spark, or a DataFrame with the key columns.
            form: ``row`` for a processor of ``transformWithState``, ``pandas`` for one of
                ``transformWithStateInPandas``. Default: what the annotations of its ``handleInputRows`` say, and
                ``row`` where they say nothing.

        Raises:
            InvalidInputError: A mode, schema or state variable that cannot be.
            UserCodeError: ``init`` raised.
        """
        initial = initial_rows(initial_state, self._keys)
        program = ProcessorProgram.bind(
            processor,
            self._df.schema,
            self._keys,
            output_schema=output_schema,
            output_mode=output_mode,
            time_mode=time_mode,
            time_zone=str(self._df.sparkSession.conf.get("spark.sql.session.timeZone")),
            form=form,
            initial=None if initial is None else initial.schema,
            event_time=event_time_column(self._df.schema),
        )
        return replace(self._stage(program), _initial=initial)

    def _stage(self, program: OperatorProgram) -> PipelineStage:
        plan = PipelinePlan(
            root_url=self._checkpoint,
            parallelism=self._parallelism,
            max_parallelism=self._max_parallelism,
            operators=(),
            retained_checkpoints=self._settings.retained_checkpoints,
            root_options=self._root_options,
        )
        operator = OperatorPlan(
            name=self._name,
            tables={name: schema.encode() for name, schema in program.tables.items()},
            definition=program.definition,
        )
        return PipelineStage(self._df, plan, operator, program)


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """A keyed operator whose output has no place yet. Made by :class:`KeyedStream`."""

    _df: DataFrame
    _plan: PipelinePlan
    _operator: OperatorPlan
    _program: OperatorProgram
    _initial: DataFrame | None = None

    def write_files(
        self,
        path: str,
        format: str = "parquet",  # noqa: A002 - Spark's word
        partition_by: Sequence[str] | str = (),
        *,
        roll_bytes: int | str = "128MB",
        roll_seconds: float | str | None = None,
        idle_seconds: float | str | None = None,
        every_checkpoint: bool = False,
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
            roll_seconds: Age at which a file is finished.
            idle_seconds: Time without rows after which a file is finished.
            every_checkpoint: Finish every file with its checkpoint: rows are visible at once, in more and smaller
                files.
            compression: A codec of the format.
            options: Options of the output's store.

        Raises:
            InvalidInputError: An unknown format, codec or column.
        """
        columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        output = FileOutput(
            url=path,
            format=format,
            partition_by=columns,
            compression=compression,
            rolling=RollingPolicy(
                roll_bytes=roll_bytes,  # type: ignore[arg-type]
                roll_seconds=roll_seconds,  # type: ignore[arg-type]
                idle_seconds=idle_seconds,  # type: ignore[arg-type]
                every_checkpoint=every_checkpoint,
            ),
            store_options=dict(options or {}),
        )
        output.file_schema(self._program.output_schema)
        return self._pipeline(replace(self._operator, output=output))

    def state_only(self) -> Pipeline:
        """Keeps the state and writes nothing else."""
        return self._pipeline(self._operator)

    def _pipeline(self, operator: OperatorPlan) -> Pipeline:
        plan = replace(self._plan, operators=(operator,))
        initial = {} if self._initial is None else {operator.name: self._initial}
        return Pipeline(self._df, plan, {operator.name: self._program}, initial)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One or more keyed operators over one stream, with one checkpoint for all of them."""

    _df: DataFrame
    _plan: PipelinePlan
    _programs: Mapping[str, OperatorProgram]
    _initial: Mapping[str, DataFrame] = field(default_factory=dict)

    def alongside(self, other: Pipeline) -> Pipeline:
        """Both pipelines as one: the same batches, one atomic checkpoint for all state and all files.

        Raises:
            InvalidInputError: They read different DataFrames, have different roots or parallelism, or share a name.
        """
        if self._df is not other._df:
            raise InvalidInputError(
                "they read different DataFrames",
                operation="alongside",
                hint="Build both from the same variable: one checkpoint covers one stream",
            )
        taken = self._programs.keys() & other._programs.keys()
        if taken:
            raise InvalidInputError(
                f"both have an operator called {sorted(taken)}", operation="alongside", hint="Give KeyedStream a name="
            )
        if replace(self._plan, operators=()) != replace(other._plan, operators=()):
            raise InvalidInputError(
                "their roots, options or parallelism differ", operation="alongside", hint="Use the same for both"
            )
        plan = replace(self._plan, operators=self._plan.operators + other._plan.operators)
        return Pipeline(self._df, plan, {**self._programs, **other._programs}, {**self._initial, **other._initial})

    def start(
        self,
        spark_checkpoint: str,
        *,
        trigger: Mapping[str, Any] | None = None,
        query_name: str | None = None,
        finish_on_stop: bool = False,
    ) -> StreamingQuery:
        """Starts the query, or goes on where an earlier run of it ended.

        Args:
            spark_checkpoint: Where Spark keeps its offsets. One per query, as for any streaming query.
            trigger: As keyword arguments of Spark's ``trigger``: ``{"processingTime": "10 seconds"}``,
                ``{"availableNow": True}``, ``{"once": True}``.
            query_name: Spark's name of the query.
            finish_on_stop: Whether ``stop()`` finishes files that are still open. By default they stay open, and the
                next start goes on with them. A stream that ends by itself (``availableNow``) always finishes them when
                ``awaitTermination()`` returns.

        Returns:
            Spark's handle. A query whose record was overtaken by another driver fails with ``FencedError``.

        Raises:
            InvalidInputError: The root belongs to another pipeline, or the trigger is not a micro-batch trigger.
            CorruptDataError: The newest checkpoint cannot be read.
        """
        chosen = dict(trigger or {})
        check_known(chosen, _TRIGGERS, "trigger")
        environment = system_environment()
        coordinator = self._coordinator(environment)
        coordinator.start()

        def handle(rows: DataFrame, batch_id: int) -> None:
            session = rows.sparkSession
            session.conf.set("spark.sql.adaptive.enabled", "false")
            query_id = session.sparkContext.getLocalProperty("sql.streaming.queryId")
            read = read_with_hadoop(session, spark_checkpoint)
            digest = offsets_digest(read, spark_checkpoint, batch_id)
            coordinator.run_batch(Batch(query_id=query_id, batch_id=batch_id, offsets_digest=digest, data=rows))

        writer = self._df.writeStream.foreachBatch(handle).option("checkpointLocation", spark_checkpoint)
        if chosen:
            writer = writer.trigger(**chosen)
        if query_name is not None:
            writer = writer.queryName(query_name)
        return PipelineQuery(
            writer.start(),
            lambda: finish_open_files(self._plan, coordinator, environment),
            finish_on_stop=finish_on_stop,
            ends=any(chosen.get(name) for name in _TRIGGERS_THAT_END),
        )

    def _coordinator(self, environment: Environment) -> MicroBatchCoordinator[DataFrame]:
        root = open_store(self._plan.root_url, self._plan.root_options, environment)
        outputs = {
            operator.name: open_store(operator.output.url, operator.output.store_options, environment)
            for operator in self._plan.operators
            if operator.output is not None
        }
        return MicroBatchCoordinator(
            self._plan,
            CheckpointStore(root, environment=environment),
            outputs,
            BatchJob(self._plan, self._programs, self._initial),
            environment,
        )


def _check_columns(schema: pa.Schema, columns: Sequence[str], what: str) -> None:
    if what == "key" and not columns:
        raise InvalidInputError("it is empty", subject="key", hint="Name at least one column")
    for position, column in enumerate(columns):
        if column in columns[:position]:
            raise InvalidInputError(f"{column!r} is named twice", subject=what, hint="Name each column once")
        check_known([column], schema.names, what)


def _check_collation(df: DataFrame, columns: Sequence[str]) -> None:
    """Refuses strings that Spark compares by other rules than their bytes: its hash and ours would differ."""
    for column in columns:
        collation = getattr(df.schema[column].dataType, "collation", "UTF8_BINARY")
        if collation != "UTF8_BINARY":
            raise InvalidInputError(
                f"its collation is {collation}",
                subject=f"key {column!r}",
                hint="Cast it: F.col(...).cast('string collate UTF8_BINARY')",
                kind=ErrorKind.SCHEMA_MISMATCH,
            )
