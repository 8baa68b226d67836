"""The handle of a running pipeline: Spark's own, which also knows the end of the query and what each batch cost."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import StreamingQuery

from stateline.errors import StatelineError
from stateline.metrics import Metrics
from stateline.pipeline.idle import QuietRounds
from stateline.pipeline.query_end import QueryEnd
from stateline.pipeline.reporting import BatchReporter

__all__ = ["BatchFailure", "PipelineQuery"]


class BatchFailure:
    """The error that failed a batch. It is kept in this process, because Spark makes text of it."""

    error: StatelineError | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keeps what the block raises."""
        try:
            yield
        except StatelineError as error:
            self.error = error
            raise


class PipelineQuery(StreamingQuery):
    """A ``StreamingQuery`` that knows what is left to do after the last batch.

    Args:
        query: The query that Spark started.
        end: What is done when it has ended.
        reporter: What the batches cost.
        rounds: What the query does while no rows come.
        failure: What failed its last batch.
    """

    def __init__(
        self,
        query: StreamingQuery,
        end: QueryEnd,
        reporter: BatchReporter,
        rounds: QuietRounds,
        failure: BatchFailure,
    ) -> None:
        super().__init__(query._jsq)  # noqa: SLF001 - the only state of a StreamingQuery
        self._end = end
        self._reporter = reporter
        self._rounds = rounds
        self._failure = failure

    @property
    def metrics(self) -> Metrics:
        """Counters, gauges and histograms of this run of the query, for an exporter or a look."""
        return self._reporter.metrics

    @property
    def recent_reports(self) -> Sequence[Mapping[str, object]]:
        """What each of the newest 100 batches did and cost, oldest first, beside Spark's ``recentProgress``."""
        return self._reporter.recent

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """As Spark's, and also while the files of a query that has ended are being finished."""
        if super().isActive or self._end.is_running:
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
            self._end.run(failed=True)
            if self._failure.error is None:
                raise
            stopped.__cause__ = self._failure.error
            raise copy.copy(self._failure.error) from stopped
        if ended is not False:
            self._run_end()
            failure = self._rounds.failure or self._end.failure
            if failure is not None:
                raise failure
        return ended

    def stop(self) -> None:
        """As Spark's; open files stay open for the next start unless the pipeline was told to finish them.

        Raises:
            StatelineError: They could not be finished.
        """
        self._rounds.close()
        super().stop()
        self._run_end()
        if self._end.failure is not None:
            raise self._end.failure

    def _run_end(self) -> None:
        self._end.run(failed=self.exception() is not None)
