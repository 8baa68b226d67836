"""The handle of a running pipeline: Spark's own, which also finishes open files at the end and tells of each batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql.streaming import StreamingQuery

from stateline.metrics import Metrics
from stateline.spark.quiet import QuietRounds
from stateline.spark.reporting import BatchReporter

__all__ = ["PipelineQuery"]


class PipelineQuery(StreamingQuery):
    """A ``StreamingQuery`` that knows what is left to do after the last batch.

    Args:
        query: The query that Spark started.
        finish: Finishes the files that the newest checkpoint left open.
        reporter: What the batches cost.
        rounds: What the query does while no rows come.
        finish_on_stop: Whether :meth:`stop` does so too; a stream that ended by itself always does.
    """

    def __init__(
        self,
        query: StreamingQuery,
        finish: Callable[[], None],
        reporter: BatchReporter,
        rounds: QuietRounds,
        *,
        finish_on_stop: bool,
        ends: bool,
    ) -> None:
        super().__init__(query._jsq)  # noqa: SLF001 - the only state of a StreamingQuery
        self._finish = finish
        self._reporter = reporter
        self._rounds = rounds
        self._finish_on_stop = finish_on_stop
        self._ends = ends

    @property
    def metrics(self) -> Metrics:
        """Counters, gauges and histograms of this run of the query, for an exporter or a look."""
        return self._reporter.metrics

    @property
    def recent_reports(self) -> Sequence[Mapping[str, object]]:
        """What each of the newest 100 batches did and cost, oldest first, beside Spark's ``recentProgress``."""
        return self._reporter.recent

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """As Spark's; when a stream with an end (``availableNow``, ``once``) has ended, its open files are finished.

        Raises:
            StreamingQueryException: A batch failed.
            Exception: What was done while no rows came failed: the error of its Spark job, or a ``StatelineError``.
        """
        try:
            ended: bool | None = super().awaitTermination(timeout)
        finally:
            if not self.isActive:
                self._rounds.close()
        if self._rounds.failure is not None:
            raise self._rounds.failure
        if self._ends and not self.isActive and self.exception() is None:
            self._finish()
        return ended

    def stop(self) -> None:
        """As Spark's; open files stay open for the next start unless the pipeline was told to finish them."""
        self._rounds.close()
        super().stop()
        if self._finish_on_stop:
            self._finish()
