"""One run of a pipeline's query: what Spark, time and the end of the query call, from its start to its end.

Owns the order of these calls and what they share. Does not own any decision (``coordinator``), nor when rounds without
rows come (``quiet``), nor who notices the end (``end_listener``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter

from stateline.changelog.segment_writer import Segments
from stateline.environment import Environment
from stateline.pipeline.coordinator import Batch, MicroBatchCoordinator
from stateline.pipeline.driver_stores import DriverStores
from stateline.pipeline.end_of_stream import finish_open_files, plan_finisher
from stateline.pipeline.idle import QuietRounds
from stateline.pipeline.offsets import ReadFile, offsets_digest
from stateline.pipeline.plan import PipelinePlan
from stateline.pipeline.query_end import QueryEnd
from stateline.pipeline.reporting import BatchReporter
from stateline.pipeline.upkeep import Upkeep
from stateline.spark.job.arrow_batches import set_arrow_batches
from stateline.spark.job.end_listener import listener_of
from stateline.spark.job.local_copies import host_copies
from stateline.spark.job.query import BatchFailure, PipelineQuery
from stateline.spark.job.upstream_state import drain

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["PipelineRun"]


class PipelineRun:
    """What one run needs.

    Args:
        plan: The pipeline.
        rows: The stream, with what the operators need of it.
        stores: Of the driver; closed when the query has ended.
        upkeep: What the driver does beside its batches; ended before that.
        make_coordinator: Makes a driver over these stores.
        environment: Clock, ids and threads.
        close: Gives back what its jobs hold in Spark.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        rows: DataFrame,
        stores: DriverStores,
        upkeep: Upkeep,
        make_coordinator: Callable[[], MicroBatchCoordinator[DataFrame]],
        environment: Environment,
        close: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._rows = rows
        self._session = rows.sparkSession
        self._stores = stores
        self._upkeep = upkeep
        self._make_coordinator = make_coordinator
        self._environment = environment
        self._close_job = close
        self.coordinator = make_coordinator()
        self._reporter = BatchReporter(environment.clock, plan.metrics_log or None)
        self._failure = BatchFailure()
        self._rounds: QuietRounds
        self._query: StreamingQuery

    def start(
        self,
        writer: DataStreamWriter,
        spark_checkpoint: str,
        read: ReadFile,
        *,
        pause_seconds: float,
        ends: bool,
        finishes: bool,
    ) -> PipelineQuery:
        """Starts Spark's query.

        Args:
            writer: Spark's, with all that the user said of it.
            spark_checkpoint: Where Spark keeps its checkpoint, for messages.
            read: Reads files of it.
            pause_seconds: How long after a batch the stream counts as quiet.
            ends: Whether it ends by itself.
            finishes: Whether open files are finished when it has ended.
        """

        def handle(rows: DataFrame, batch_id: int) -> None:
            session = self._session = rows.sparkSession
            session.conf.set("spark.sql.adaptive.enabled", "false")
            set_arrow_batches(session)
            query_id = session.sparkContext.getLocalProperty("sql.streaming.queryId")
            with self._failure.kept():
                digest = offsets_digest(read, spark_checkpoint, batch_id)
                batch = Batch(query_id=query_id, batch_id=batch_id, offsets_digest=digest, data=rows)
                with self._rounds.batch():
                    report = self.coordinator.run_batch(batch)
                    if report.replayed:
                        drain(rows)
                    self._reporter(report)

        self._rounds = QuietRounds(self._environment, pause_seconds, self.coordinator.due_at, self._act, self._stop)
        end = QueryEnd(self._environment, self._plan.root_url, self._finish if finishes else None, self._close)
        listener = listener_of(self._rows.sparkSession)
        self._query = writer.foreachBatch(handle).start()
        if not ends:
            self._rounds.start()
        listener.watch(self._query, end)
        return PipelineQuery(self._query, end, self._reporter, self._rounds, self._failure)

    def _act(self) -> bool:
        """Makes one round without rows; whether the query goes on."""
        if not self._query.isActive:
            return False
        finish_files = plan_finisher(self._plan, self._stores, self._segments())
        acted = self.coordinator.act_on_time(self._no_rows, finish_files)
        if acted is not None:
            self._reporter(acted)
        return True

    def _stop(self) -> None:
        self._query.stop()

    def _finish(self) -> None:
        """Closes what the last watermark has passed, and finishes the files that are open."""
        if self._rounds.failure is not None:
            return
        settled = self.coordinator.settle(self._no_rows)
        if settled is not None:
            self._reporter(settled)
        finish_open_files(self._plan, self._stores, self._segments(), self.coordinator, self._make_coordinator)
        self._upkeep.settle()

    def _close(self) -> None:
        self._rounds.close()
        self._upkeep.close()
        self._stores.close()
        self._close_job()

    def _segments(self) -> Segments:
        """Where the rows of open files are."""
        return Segments(self._stores.root, self._environment, host_copies(self._plan, self._stores.root))

    def _no_rows(self) -> DataFrame:
        """Rows of a job that has none. A local relation would be optimised away, and the subtasks would run here.

        The session is that of the batches, whose settings keep subtasks on their hosts.
        """
        session = self._session
        return session.createDataFrame(session.sparkContext.emptyRDD(), self._rows.schema)
