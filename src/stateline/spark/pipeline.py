"""A whole pipeline, ready to start: streams and operators, and what is checked before their query starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

from stateline.errors import InvalidInputError
from stateline.options import check_kind, check_known, parse_duration
from stateline.pipeline.graph import Graph, Merged, OperatorPlan
from stateline.pipeline.operators.api import OperatorProgram
from stateline.pipeline.output_columns import check_shared_folders
from stateline.pipeline.plan import PipelinePlan
from stateline.spark.api_mode import is_connect
from stateline.spark.columns.checks import check_hidden
from stateline.spark.connect.remote_run import RunDescription
from stateline.spark.job.batch_job import BatchJob
from stateline.spark.places import resolved
from stateline.spark.query.hadoop_files import qualified
from stateline.spark.query.run import PipelineQuery, PipelineRun
from stateline.spark.query.spark_folder import spark_folder
from stateline.spark.query.stream_sources import stream_facts
from stateline.spark.sinks.for_each_batch import BatchDelivery, BatchFunction

if TYPE_CHECKING:
    from stateline.spark.connect.remote_query import RemoteQuery

__all__ = ["Pipeline"]

_TRIGGERS: Final = ("processingTime", "availableNow", "once")
_TRIGGERS_THAT_END: Final = ("availableNow", "once")
_QUIET_SECONDS: Final = 1.0
"""A stream that gives no batch for so long after the next one was to come is quiet."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Keyed operators over one or more streams, with one checkpoint for all of them."""

    _plan: PipelinePlan
    _frames: Mapping[str, DataFrame]
    """The streams, by the name of the input."""
    _programs: Mapping[str, OperatorProgram] = field(default_factory=dict)
    _functions: Mapping[str, BatchFunction] = field(default_factory=dict)
    _initial: Mapping[str, DataFrame] = field(default_factory=dict)

    def alongside(self, other: Pipeline) -> Pipeline:
        """Both pipelines as one: the same batches, one atomic checkpoint for all state and all files.

        A stage that both were made from is there once; streams are the same where their DataFrames are.

        Raises:
            InvalidInputError: They have different roots or parallelism, share a name, or write different columns into
                one folder.
        """
        return self.merged(other)[0]

    def merged(self, other: Pipeline, operation: str = "alongside") -> tuple[Pipeline, Merged]:
        """As :meth:`alongside`; also how the inputs of both are called now."""
        if replace(self._plan, graph=Graph()) != replace(other._plan, graph=Graph()):
            raise InvalidInputError(
                "both must have the same root, options and parallelism",
                operation=operation,
                hint="Use the same for both",
            )
        same = {
            theirs: mine
            for theirs, their_frame in other._frames.items()
            for mine, frame in self._frames.items()
            if frame is their_frame
        }
        shared = [name for name, program in self._programs.items() if other._programs.get(name) is program]
        made = self._plan.graph.alongside(other._plan.graph, same, shared)
        check_shared_folders(made.graph.operators)
        frames = {made.theirs[name]: frame for name, frame in other._frames.items()}
        frames |= {made.mine[name]: frame for name, frame in self._frames.items()}
        pipeline = Pipeline(
            replace(self._plan, graph=made.graph),
            frames,
            {**self._programs, **other._programs},
            {**self._functions, **other._functions},
            {**self._initial, **other._initial},
        )
        return pipeline, made

    def with_operator(self, operator: OperatorPlan, program: OperatorProgram, initial: DataFrame | None) -> Pipeline:
        """The pipeline with one more operator; ``initial`` are rows for its first batch."""
        made = self._plan.graph.with_operator(operator)
        return replace(
            self,
            _plan=replace(self._plan, graph=made.graph),
            _frames={made.mine[name]: frame for name, frame in self._frames.items()},
            _programs={**self._programs, operator.name: program},
            _initial=self._initial if initial is None else {**self._initial, operator.name: initial},
        )

    def with_outputs_of(self, operator: OperatorPlan, function: BatchFunction | None = None) -> Pipeline:
        """The pipeline with an operator that has other outputs; ``function`` is handed its rows."""
        functions = self._functions if function is None else {**self._functions, operator.name: function}
        return replace(
            self, _plan=replace(self._plan, graph=self._plan.graph.with_outputs_of(operator)), _functions=functions
        )

    def with_program(self, operator: OperatorPlan, program: OperatorProgram) -> Pipeline:
        """The pipeline with an operator that has another program, and no outputs; nothing reads it yet."""
        return replace(self.with_outputs_of(operator), _programs={**self._programs, operator.name: program})

    @property
    def plan(self) -> PipelinePlan:
        """What runs, as plain values."""
        return self._plan

    @property
    def session(self) -> SparkSession:
        """The session of its streams."""
        return next(iter(self._frames.values())).sparkSession

    def start(
        self,
        spark_checkpoint: str | None = None,
        *,
        trigger: Mapping[str, Any] | None = None,
        query_name: str | None = None,
        finish_on_stop: bool = False,
    ) -> PipelineQuery | RemoteQuery:
        """Starts the query, or goes on where an earlier run of it ended.

        Args:
            spark_checkpoint: Where Spark keeps its own checkpoint: one per query, as for any streaming query, and
                always the same. By default the folder ``spark`` below the pipeline's root. A relative path is Spark's:
                in the folder where the session began.
            trigger: As keyword arguments of Spark's ``trigger``: ``{"processingTime": "10 seconds"}``,
                ``{"availableNow": True}``, ``{"once": True}``.
            query_name: Spark's name of the query.
            finish_on_stop: Whether files that are still open are finished when the query is stopped. By default they
                stay open, and the next start goes on with them. Each micro-batch of a stream that ends by itself
                (``availableNow``, ``once``) publishes its files in its commit. When such a stream has ended, it closes
                what the last watermark has passed.

        Returns:
            Spark's handle, which also tells what each batch cost. Its ``awaitTermination()`` raises what failed as
            itself: ``FencedError`` in a query whose record was overtaken by another driver. On Connect the query is the
            server's, and the handle tells no costs: ``docs/guides/connect.md``.

        Raises:
            InvalidInputError: The root belongs to another pipeline or is older than Spark's checkpoint, the trigger is
                not a micro-batch trigger, Spark's checkpoint lies where readers of the output find it, or Spark cannot
                write below the root and no other place was given.
            CorruptDataError: The newest checkpoint cannot be read.
        """
        check_kind(trigger, Mapping | None, "trigger", 'a dict: {"processingTime": "10 seconds"}')
        chosen = dict(trigger or {})
        check_known(chosen, _TRIGGERS, "trigger")
        check_kind(spark_checkpoint, str | None, "spark_checkpoint", "a folder, or None for one below the root")
        is_below = spark_checkpoint is None
        if spark_checkpoint is None:
            spark_checkpoint = spark_folder(self.session, self._plan.root_url)
        spark_checkpoint = resolved(spark_checkpoint, "spark_checkpoint", self.session)
        ends = any(chosen.get(name) for name in _TRIGGERS_THAT_END)
        plan = self._plan.ending() if ends else self._plan.endless()
        _check_hidden(self._plan, spark_checkpoint)
        job = BatchJob(plan, self._programs, self._initial)
        rows = job.needed_columns(self._frames)
        writer = _writer(rows, spark_checkpoint, chosen, query_name)  # Before anything is done in the root.
        where = spark_checkpoint if is_connect(self.session) else qualified(self.session, spark_checkpoint)
        plan = replace(plan, stream=stream_facts(rows, where))
        functions = {name: (fn, self._programs[name].output_schema) for name, fn in self._functions.items()}
        if is_connect(self.session):
            from stateline.spark.connect.remote_query import RemoteQuery  # noqa: PLC0415 - needs the client of Connect

            description = RunDescription(
                plan=plan,
                programs=self._programs,
                schema=rows.schema,
                spark_checkpoint=spark_checkpoint,
                makes_folder=is_below,
                pause_seconds=_pause_seconds(chosen),
                ends=ends,
                upstream_state=plan.stream.has_state,
                functions=functions,
                initial=self._initial,
            )
            return RemoteQuery.started(writer, self.session, description, finishes=ends or finish_on_stop)
        run = PipelineRun(plan, job, self.session, rows.schema, BatchDelivery(self.session, plan, functions))
        return run.start(
            writer,
            spark_checkpoint,
            makes_folder=is_below,
            pause_seconds=_pause_seconds(chosen),
            ends=ends,
            finishes=ends or finish_on_stop,
        )


def _writer(
    rows: DataFrame, spark_checkpoint: str, trigger: dict[str, Any], query_name: str | None
) -> DataStreamWriter:
    """Spark's writer with all that the user said of it.

    Raises:
        InvalidInputError: Spark refuses the folder, the trigger or the name.
    """
    if not spark_checkpoint.strip():
        raise InvalidInputError("must not be empty", subject="spark_checkpoint", hint="Give a folder of its own")
    writer = rows.writeStream.option("checkpointLocation", spark_checkpoint)
    try:
        if trigger:
            writer = writer.trigger(**trigger)
        return writer if query_name is None else writer.queryName(query_name)
    except (PySparkException, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"Spark rejects it ({str(error).partition(chr(10))[0]})",
            operation="start",
            subject=f"trigger {trigger}" + ("" if query_name is None else f", query_name {query_name!r}"),
            hint='Give such as {"processingTime": "10 seconds"} or {"availableNow": True}, and a name that is text',
        ) from error


def _pause_seconds(trigger: Mapping[str, Any]) -> float:
    """How long after a batch a stream counts as quiet."""
    try:
        return parse_duration(trigger.get("processingTime", 0), "processingTime") + _QUIET_SECONDS
    except InvalidInputError:  # Such as "interval '1:30' hour to minute", which Spark has accepted.
        return _QUIET_SECONDS


def _check_hidden(plan: PipelinePlan, spark_checkpoint: str) -> None:
    for output in (operator.output for operator in plan.graph.operators):
        if output is not None:
            check_hidden(spark_checkpoint, output.url, "spark_checkpoint")
