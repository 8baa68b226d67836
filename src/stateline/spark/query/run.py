"""One run of a pipeline's query, from its start to its end, and the handle of it that programs wait for."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from pyspark.sql.types import StructType

from stateline.changelog.segment_writer import Segments
from stateline.checkpoint import CheckpointStore
from stateline.checkpoint.position import check_not_begun
from stateline.checkpoint.spark_files import SparkFiles
from stateline.environment import system_environment
from stateline.errors import FencedError, StatelineError
from stateline.metrics import Metrics
from stateline.pipeline.compatibility import check_follows
from stateline.pipeline.coordinator import MicroBatchCoordinator
from stateline.pipeline.delivery import Delivery
from stateline.pipeline.driver_stores import DriverStores
from stateline.pipeline.end_of_stream import finish_open_files, plan_finisher
from stateline.pipeline.history import HistoryRecorder, described
from stateline.pipeline.idle import QuietRounds
from stateline.pipeline.lookups import LookupRoots
from stateline.pipeline.messages import Batch
from stateline.pipeline.offsets import (
    ListFolder,
    ReadFile,
    list_with_hadoop,
    next_batch,
    query_of,
    read_with_hadoop,
    source_offsets,
)
from stateline.pipeline.plan import PipelinePlan
from stateline.pipeline.query_end import QueryEnd
from stateline.pipeline.reporting import BatchReporter
from stateline.pipeline.savepoint_start import continues_source, restore_source
from stateline.pipeline.upkeep import Upkeep
from stateline.spark.api_mode import empty_rows
from stateline.spark.job.arrow_batches import set_arrow_batches
from stateline.spark.job.batch_job import BatchJob
from stateline.spark.job.local_copies import host_copies
from stateline.spark.job.upstream_state import drain
from stateline.spark.query.end_listener import listener_of
from stateline.spark.query.hadoop_files import spark_files
from stateline.spark.query.spark_folder import make_spark_folder
from stateline.spark.query.stopping import brief
from stateline.spark.query.takeover import Runs, Watched

__all__ = ["PipelineQuery", "PipelineRun"]

_LOGGER: Final = logging.getLogger(__name__)


class PipelineRun:
    """What Spark, time and the end of the query call while a query runs. It opens the driver's stores.

    It lives where batches are handed over: in the program of a classic session, in the server's worker on Connect.

    Args:
        plan: The pipeline.
        job: Runs its subtasks.
        session: The session of the stream.
        schema: Its columns, which the operators need.
        deliver: Hands over rows after their checkpoint.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        job: BatchJob,
        session: SparkSession,
        schema: StructType,
        deliver: Callable[[Delivery], None],
    ) -> None:
        self._plan = plan
        self._job = job
        self._schema = schema
        self._deliver = deliver
        self._session = self._started_in = session
        self._prepared: SparkSession | None = None
        self._environment = system_environment()
        self._stores = DriverStores.open(plan, self._environment)
        self._upkeep = Upkeep(self._environment)
        self._history = HistoryRecorder(self._stores.root, self._environment)
        self._coordinator: MicroBatchCoordinator[DataFrame]
        self._query: StreamingQuery
        self._handle: PipelineQuery | None = None
        self._read: ReadFile
        self._spark_checkpoint = ""
        self._looks_again = False
        self.reporter = BatchReporter(self._environment.clock, plan.metrics_log or None)
        self.rounds: QuietRounds
        self.end: QueryEnd
        self.failure: StatelineError | None = None  # What failed a batch, as itself: Spark makes text of it.

    def start(
        self,
        writer: DataStreamWriter,
        spark_checkpoint: str,
        *,
        makes_folder: bool,
        pause_seconds: float,
        ends: bool,
        finishes: bool,
    ) -> PipelineQuery:
        """Starts Spark's query, in a classic session.

        Args:
            writer: Spark's, with all that the user said of it.
            spark_checkpoint: Where Spark keeps its checkpoint.
            makes_folder: Whether that is the folder below the root, to be made for a new root.
            pause_seconds: How long after a batch the stream counts as quiet.
            ends: Whether it ends by itself.
            finishes: Whether open files are finished when it has ended.

        Raises:
            InvalidInputError: The root is of another program, or does not go with Spark's checkpoint.
            StatelineError: Files that an earlier run left open could not be finished.
        """
        try:
            read = read_with_hadoop(self._session, spark_checkpoint)
            list_folder = list_with_hadoop(self._session, spark_checkpoint)
            files = spark_files(self._session, spark_checkpoint)
            self.open(spark_checkpoint, read, list_folder, files, makes_folder=makes_folder)
            if ends:
                self.finish_earlier_run()
            self.plan_rounds(pause_seconds, lambda: self._query.isActive, self._stop)
            self.end = QueryEnd(self._environment, self._plan.root_url, self.finish if finishes else None, self.close)
            listener = listener_of(self._session)
            with Runs.beginning(self._plan.root_url) as runs:
                self._query = writer.foreachBatch(self._run_batch).start()
                self._handle = runs.begun(PipelineQuery(self._query, self))
        except BaseException:
            self._stores.close()
            raise
        if not ends:
            self.rounds.start()
        listener.watch(self._query, self.end)
        return self._handle

    def open(
        self,
        spark_checkpoint: str,
        read: ReadFile,
        list_folder: ListFolder,
        files: SparkFiles,
        *,
        makes_folder: bool,
        looks_again: bool = False,
    ) -> None:
        """Checks that the root, Spark's checkpoint and the tables go on together, before anything runs.

        Args:
            spark_checkpoint: Where Spark keeps its checkpoint.
            read: Reads its files.
            list_folder: Lists its folders.
            files: Its files, where those of a savepoint are laid.
            makes_folder: As of :meth:`start`.
            looks_again: Whether another driver may go on until the first batch comes, as the run that this one takes
                over from.

        Raises:
            InvalidInputError: The root is of another program, or does not go with Spark's checkpoint.
        """
        self._read, self._spark_checkpoint, self._looks_again = read, spark_checkpoint, looks_again
        self._coordinator = self._make_coordinator()
        # Read before the records: another driver, that is to be fenced, may add to both meanwhile.
        following = next_batch(read, list_folder)
        newest = self._coordinator.start()
        if newest is not None:
            _LOGGER.info("The query over %s goes on from %s", self._plan.root_url, described(newest))
        if following is not None and (newest is not None or not continues_source(self._plan)):
            check_follows(newest, *following, self._plan.root_url)
        self._coordinator.check_tables()
        if newest is None:
            if makes_folder:
                make_spark_folder(self._stores.root)
            self._begin(files)

    def _begin(self, files: SparkFiles) -> None:
        """Prepares a root without checkpoints: continues where the sources of a savepoint stand, if there is one.

        Spark's files are durable before the record, and Spark has not started yet.
        """
        if not continues_source(self._plan):
            check_not_begun(files)
            return
        query_id = restore_source(self._plan, self._stores.root, files, self._environment)
        record = self._coordinator.begin(query_id)
        _LOGGER.info("The query over %s continues a savepoint after batch %d", self._plan.root_url, record.batch_id)

    def finish_earlier_run(self) -> None:
        """Publishes the files that an earlier run left open: a run that finds no new rows has no batch to do so.

        The root of another query is left as it is; the first batch is refused there. Where a run that this one takes
        over from goes on meanwhile, the batches and the end of this run publish its files.

        Raises:
            StatelineError: It failed.
        """
        newest = self._coordinator.newest
        if newest is None or newest.query_id != query_of(self._read):
            return
        try:
            self._finish_open_files()
        except FencedError:
            _LOGGER.info("Another run of the query over %s goes on; this one takes over from it", self._plan.root_url)
            self._coordinator, self._looks_again = self._make_coordinator(), True

    def plan_rounds(self, pause_seconds: float, is_active: Callable[[], bool], stop: Callable[[], None]) -> None:
        """Prepares the rounds without rows.

        Args:
            pause_seconds: How long after a batch the stream counts as quiet.
            is_active: Whether the query still runs.
            stop: Ends it.
        """
        self.rounds = QuietRounds(self._environment, pause_seconds, self._due_at, lambda: self._act(is_active), stop)

    def _make_coordinator(self) -> MicroBatchCoordinator[DataFrame]:
        return MicroBatchCoordinator(
            self._plan,
            CheckpointStore(self._stores.root, environment=self._environment),
            self._stores.outputs,
            self._job,
            self._environment,
            self._deliver,
            self._upkeep,
            host_copies(self._plan, self._stores.root),
            LookupRoots(self._stores.lookups),
            self._history,
        )

    def _run_batch(self, rows: DataFrame, batch_id: int) -> None:
        query_id = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        try:
            self.run_batch(rows, batch_id, query_id)
        except Exception as error:
            query = self._started_in.streams.get(query_id)
            if query is None or not query.isActive:
                raise brief(error) from None
            raise

    def run_batch(self, rows: DataFrame, batch_id: int, query_id: str) -> None:
        """Runs one batch, in the session of its rows.

        Raises:
            StatelineError: It failed.
        """
        self.prepare(rows.sparkSession)
        try:
            batch = self._batch(rows, batch_id, query_id)
            with self.rounds.batch():
                if self._looks_again:
                    self._coordinator, self._looks_again = self._make_coordinator(), False
                report = self._coordinator.run_batch(batch)
                if report.replayed:
                    drain(rows, self._job.upstream_state)
                self.reporter(report)
        except StatelineError as error:
            self.failure = error
            if isinstance(error, FencedError):
                self._history.fenced(self._coordinator.newest, query_id)
            raise

    def _batch(self, rows: DataFrame, batch_id: int, query_id: str) -> Batch[DataFrame]:
        """The batch with what it covers, as Spark's checkpoint says."""
        digest, entry = source_offsets(self._read, self._spark_checkpoint, batch_id)
        return Batch(query_id=query_id, batch_id=batch_id, offsets_digest=digest, data=rows, offsets=entry)

    def prepare(self, session: SparkSession) -> None:
        """Sets what jobs of this run need in a session of their own, and has the next ones run there."""
        self._session = session
        if session is not self._prepared:
            session.conf.set("spark.sql.adaptive.enabled", "false")
            set_arrow_batches(session)
            self._prepared = session

    def _due_at(self) -> float | None:
        return self._coordinator.due_at()  # Of the one that there is by then.

    def _act(self, is_active: Callable[[], bool]) -> bool:
        """Makes one round without rows; whether the query goes on."""
        if not is_active():
            return False
        finish_files = plan_finisher(self._plan, self._stores, self._segments())
        try:
            acted = self._coordinator.act_on_time(self._no_rows, finish_files)
        except FencedError:
            self._history.fenced(self._coordinator.newest)
            raise
        if acted is not None:
            self.reporter(acted)
        return True

    def _stop(self) -> None:
        self._query.stop()

    def finish(self) -> None:
        """Closes what the last watermark has passed, and finishes the files that are open."""
        if self.rounds.failure is not None or (self._handle is not None and self._handle.taken_over_by):
            return
        settled = self._coordinator.settle(self._no_rows)
        if settled is not None:
            self.reporter(settled)
        self._finish_open_files()
        self._upkeep.settle()

    def _finish_open_files(self) -> None:
        finish_open_files(self._plan, self._stores, self._segments(), self._coordinator, self._make_coordinator)

    def close(self) -> None:
        """Gives back what the run holds."""
        self.rounds.close()
        self._upkeep.close()
        self._stores.close()
        self._job.close()

    def _segments(self) -> Segments:
        """Where the rows of open files are."""
        return Segments(self._stores.root, self._environment, host_copies(self._plan, self._stores.root))

    def _no_rows(self) -> DataFrame:
        """Rows of a job that has none, in the session of the batches, whose settings keep subtasks on their hosts."""
        return empty_rows(self._session, self._schema)


class PipelineQuery(Watched, StreamingQuery):
    """A ``StreamingQuery`` that also knows what each batch cost and what is left to do after the last one."""

    def __init__(self, query: StreamingQuery, run: PipelineRun) -> None:
        super().__init__(query._jsq)  # noqa: SLF001 - the only state of a StreamingQuery
        self._run = run

    @property
    def metrics(self) -> Metrics:
        """Counters, gauges and histograms of this run of the query, for an exporter or a look."""
        return self._run.reporter.metrics

    @property
    def recent_reports(self) -> Sequence[Mapping[str, object]]:
        """What each of the newest 100 batches did and cost, oldest first, beside Spark's ``recentProgress``."""
        return self._run.reporter.recent

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """As Spark's, and also while the files of a query that has ended are being finished."""
        if super().isActive or self._run.end.is_running:
            return True
        with suppress(StreamingQueryException):  # Its last batch may still be on its way out.
            super().awaitTermination()
        self._run_end()  # Where nobody has: a listener may miss the end, if the session is stopped, too.
        return False

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """As Spark's; when the query has ended, its files are finished if they are to be.

        Raises:
            StatelineError: A batch failed, or what was done while no rows came or after the last batch. Of a batch, the
                cause is the ``StreamingQueryException``.
            StreamingQueryException: A batch failed for a reason that is none of Stateline's.
            Exception: What was done while no rows came failed in Spark.
        """
        try:
            ended: bool | None = super().awaitTermination(timeout)
        except StreamingQueryException as stopped:
            self._run.end.run(failed=True)
            if self._run.failure is None:
                raise
            stopped.__cause__ = self._run.failure
            raise copy.copy(self._run.failure) from stopped
        if ended is not False:
            self._run_end()
            failure = self._run.rounds.failure or self._run.end.failure
            if failure is not None:
                raise failure
            self.check_place()
        return ended

    def stop(self) -> None:
        """As Spark's; open files stay open for the next start unless the pipeline was told to finish them.

        Raises:
            StatelineError: They could not be finished.
        """
        self._run.rounds.close()
        super().stop()
        self._run_end()
        if self._run.end.failure is not None:
            raise self._run.end.failure

    def _run_end(self) -> None:
        self._run.end.run(failed=self.exception() is not None)
