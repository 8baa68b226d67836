"""The handle of a pipeline's query that runs on a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.connect.streaming.query import StreamingQuery
from pyspark.sql.streaming import DataStreamWriter

from stateline.environment import system_environment
from stateline.errors import InvalidInputError
from stateline.metrics import Metrics
from stateline.pipeline.query_end import QueryEnd
from stateline.spark.connect.remote_run import RemoteBatches, RemoteEnd, RunDescription
from stateline.spark.connect.server_call import call_on_server
from stateline.spark.job.task_errors import rebuilt
from stateline.spark.query.takeover import Runs, Watched

__all__ = ["RemoteQuery"]


class RemoteQuery(Watched, StreamingQuery):
    """As :class:`~stateline.spark.query.run.PipelineQuery`, for a query that outlives its program.

    What is left to do at its end is done by whoever waits for it here, stops it here or asks here whether it is active:
    nobody else is told. A program that is gone by then leaves files open, for the next start or ``finish_files``.
    """

    def __init__(self, session: SparkSession, query: StreamingQuery, end: QueryEnd) -> None:
        super().__init__(session, query.id, query.runId, query.name)
        self._end = end

    @classmethod
    def started(
        cls, writer: DataStreamWriter, session: SparkSession, description: RunDescription, *, finishes: bool
    ) -> RemoteQuery:
        """Starts Spark's query.

        Args:
            writer: Spark's, with all that the user said of it.
            session: The session of the stream.
            description: What runs in the server.
            finishes: Whether open files are finished when it has ended.

        Raises:
            InvalidInputError: The root is of another program, or does not go with Spark's checkpoint.
        """

        def finish() -> None:
            call_on_server(session, RemoteEnd(description))

        end = QueryEnd(system_environment(), description.plan.root_url, finish if finishes else None)
        with rebuilt(), Runs.beginning(description.plan.root_url) as runs:
            query = writer.foreachBatch(RemoteBatches(description)).start()
            made: RemoteQuery = runs.begun(cls(session, query, end))
        return made

    @property
    def metrics(self) -> Metrics:
        """Not here: they are those of a process of the server.

        Raises:
            InvalidInputError: Always.
        """
        _refuse("metrics")

    @property
    def recent_reports(self) -> Sequence[Mapping[str, object]]:
        """Not here, as :attr:`metrics`.

        Raises:
            InvalidInputError: Always.
        """
        _refuse("recent_reports")

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """As Spark's, and also while the files of a query that has ended are being finished."""
        if super().isActive or self._end.is_running:
            return True
        with suppress(StreamingQueryException):  # Its last batch may still be on its way out.
            super().awaitTermination()
        self._run_end()
        return False

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """As Spark's; when the query has ended, its files are finished if they are to be.

        Raises:
            StatelineError: A batch failed, or what was done after the last one. Of a batch, the cause is the
                ``StreamingQueryException``.
            StreamingQueryException: A batch failed for a reason that is none of Stateline's.
        """
        with rebuilt():
            try:
                ended: bool | None = super().awaitTermination(timeout)
            except StreamingQueryException:
                self._end.run(failed=True)
                raise
        if ended is not False:
            self._run_end()
            if self._end.failure is not None:
                raise self._end.failure
            self.check_place()
        return ended

    def stop(self) -> None:
        """As Spark's; open files stay open for the next start unless the pipeline was told to finish them.

        Raises:
            StatelineError: They could not be finished.
        """
        super().stop()
        self._run_end()
        if self._end.failure is not None:
            raise self._end.failure

    def _run_end(self) -> None:
        self._end.run(failed=bool(self.taken_over_by) or self.exception() is not None)


def _refuse(name: str) -> NoReturn:
    raise InvalidInputError(
        "cannot be read on Spark Connect: batches run in a process of the server",
        operation="query",
        subject=name,
        hint="Give KeyedStream options={'metrics_log': <file on the server>}, or look with `stateline checkpoint ls`",
    )
