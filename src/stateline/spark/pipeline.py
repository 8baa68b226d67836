"""A whole pipeline, ready to start: operators over one stream, and one checkpoint for all of them.

Owns the start of the query and the wiring of coordinator, stores, tasks and reports. Does not own the description
(``stream`` builds it) nor any decision (``coordinator``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore
from stateline.environment import Environment, system_environment
from stateline.errors import InvalidInputError
from stateline.options import check_kind, check_known, parse_duration
from stateline.spark.arrow_batches import set_arrow_batches
from stateline.spark.batch_job import BatchJob
from stateline.spark.continuity import check_follows
from stateline.spark.coordinator import Batch, MicroBatchCoordinator
from stateline.spark.ending import finish_open_files
from stateline.spark.for_each_batch import BatchDelivery, BatchFunction
from stateline.spark.offsets import list_with_hadoop, next_batch, offsets_digest, read_with_hadoop
from stateline.spark.plan import PipelinePlan
from stateline.spark.query import PipelineQuery
from stateline.spark.quiet import QuietRounds
from stateline.spark.reporting import BatchReporter
from stateline.spark.stream_checks import check_hidden
from stateline.spark.task import OperatorProgram
from stateline.spark.upstream_state import drain

__all__ = ["Pipeline"]

_TRIGGERS: Final = ("processingTime", "availableNow", "once")
_TRIGGERS_THAT_END: Final = ("availableNow", "once")
_QUIET_SECONDS: Final = 1.0
"""A stream that gives no batch for so long after the next one was to come is quiet."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One or more keyed operators over one stream, with one checkpoint for all of them."""

    _df: DataFrame
    _plan: PipelinePlan
    _programs: Mapping[str, OperatorProgram]
    _functions: Mapping[str, BatchFunction] = field(default_factory=dict)
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
        programs, functions = {**self._programs, **other._programs}, {**self._functions, **other._functions}
        return Pipeline(self._df, plan, programs, functions, {**self._initial, **other._initial})

    def start(
        self,
        spark_checkpoint: str,
        *,
        trigger: Mapping[str, Any] | None = None,
        query_name: str | None = None,
        finish_on_stop: bool = False,
    ) -> PipelineQuery:
        """Starts the query, or goes on where an earlier run of it ended.

        Args:
            spark_checkpoint: Where Spark keeps its offsets. One per query, as for any streaming query. A relative path
                is Spark's: in the folder where the session began.
            trigger: As keyword arguments of Spark's ``trigger``: ``{"processingTime": "10 seconds"}``,
                ``{"availableNow": True}``, ``{"once": True}``.
            query_name: Spark's name of the query.
            finish_on_stop: Whether ``stop()`` finishes files that are still open. By default they stay open, and the
                next start goes on with them. A stream that ends by itself (``availableNow``) always finishes them when
                ``awaitTermination()`` returns, and closes what the last watermark has passed.

        Returns:
            Spark's handle, which also tells what each batch cost. A query whose record was overtaken by another driver
            fails with ``FencedError``.

        Raises:
            InvalidInputError: The root belongs to another pipeline or is older than Spark's checkpoint, the trigger is
                not a micro-batch trigger, or Spark's checkpoint lies where readers of the output find it.
            CorruptDataError: The newest checkpoint cannot be read.
        """
        check_kind(trigger, Mapping | None, "trigger", 'a dict: {"processingTime": "10 seconds"}')
        chosen = dict(trigger or {})
        check_known(chosen, _TRIGGERS, "trigger")
        check_kind(spark_checkpoint, str, "spark_checkpoint")
        _check_hidden(self._plan, spark_checkpoint)
        job = BatchJob(self._plan, self._programs, self._initial)
        narrowed = job.narrowed(self._df)
        writer = _writer(narrowed, spark_checkpoint, chosen, query_name)  # Before anything is done in the root.
        environment = system_environment()
        coordinator = self._coordinator(job, environment)
        read = read_with_hadoop(self._df.sparkSession, spark_checkpoint)
        # Read before the records: another driver, that is to be fenced, may add to both meanwhile.
        following = next_batch(read, list_with_hadoop(self._df.sparkSession, spark_checkpoint))
        newest = coordinator.start()
        if following is not None:
            check_follows(newest, *following)
        reporter = BatchReporter(environment.clock, self._plan.metrics_log or None)

        def handle(rows: DataFrame, batch_id: int) -> None:
            session = rows.sparkSession
            session.conf.set("spark.sql.adaptive.enabled", "false")
            set_arrow_batches(session)
            query_id = session.sparkContext.getLocalProperty("sql.streaming.queryId")
            digest = offsets_digest(read, spark_checkpoint, batch_id)
            batch = Batch(query_id=query_id, batch_id=batch_id, offsets_digest=digest, data=rows)
            with rounds.batch():
                report = coordinator.run_batch(batch)
                if report.replayed:
                    drain(rows)
                reporter(report)

        def finish() -> None:
            settled = coordinator.settle(_no_rows(narrowed))
            if settled is not None:
                reporter(settled)
            finish_open_files(self._plan, coordinator, environment)

        def act() -> bool:
            if not query.isActive:
                return False
            acted = coordinator.act_on_time(lambda: _no_rows(narrowed))
            if acted is not None:
                reporter(acted)
            return True

        def stop() -> None:
            query.stop()

        ends = any(chosen.get(name) for name in _TRIGGERS_THAT_END)
        rounds = QuietRounds(environment, _pause_seconds(chosen), coordinator.due_at, act, stop)
        query = writer.foreachBatch(handle).start()
        if not ends:
            rounds.start()
        return PipelineQuery(query, finish, reporter, rounds, finish_on_stop=finish_on_stop, ends=ends)

    def _coordinator(self, job: BatchJob, environment: Environment) -> MicroBatchCoordinator[DataFrame]:
        root = open_store(self._plan.root_url, self._plan.root_options, environment)
        outputs = {
            operator.name: open_store(operator.output.url, operator.output.store_options, environment)
            for operator in self._plan.operators
            if operator.output is not None
        }
        functions = {name: (fn, self._programs[name].output_schema) for name, fn in self._functions.items()}
        return MicroBatchCoordinator(
            self._plan,
            CheckpointStore(root, environment=environment),
            outputs,
            job,
            environment,
            BatchDelivery(self._df.sparkSession, self._plan, functions),
        )


def _writer(
    rows: DataFrame, spark_checkpoint: str, trigger: dict[str, Any], query_name: str | None
) -> DataStreamWriter:
    """Spark's writer with all that the user said of it.

    Raises:
        InvalidInputError: Spark refuses the folder, the trigger or the name.
    """
    if not spark_checkpoint.strip():
        raise InvalidInputError("it is empty", subject="spark_checkpoint", hint="Give a folder of its own")
    writer = rows.writeStream.option("checkpointLocation", spark_checkpoint)
    try:
        if trigger:
            writer = writer.trigger(**trigger)
        return writer if query_name is None else writer.queryName(query_name)
    except (PySparkException, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"Spark refuses it ({str(error).partition(chr(10))[0]})",
            operation="start",
            subject=f"trigger {trigger}" + ("" if query_name is None else f", query_name {query_name!r}"),
            hint='Give such as {"processingTime": "10 seconds"} or {"availableNow": True}, and a name that is text',
        ) from error


def _pause_seconds(trigger: Mapping[str, Any]) -> float:
    """How long after a batch a stream counts as quiet."""
    try:
        return parse_duration(trigger.get("processingTime", 0), "processingTime") + _QUIET_SECONDS
    except InvalidInputError:  # Such as "1 minute 30 seconds", which Spark understands.
        return _QUIET_SECONDS


def _check_hidden(plan: PipelinePlan, spark_checkpoint: str) -> None:
    for output in (operator.output for operator in plan.operators):
        if output is not None:
            check_hidden(spark_checkpoint, output.url, "spark_checkpoint")


def _no_rows(df: DataFrame) -> DataFrame:
    """Rows of a job that has none. A local relation would be optimised away, and the subtasks would run here."""
    session = df.sparkSession
    return session.createDataFrame(session.sparkContext.emptyRDD(), df.schema)
