"""The handle of a running pipeline: Spark's own, which also finishes open files when the stream has ended."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql.streaming import StreamingQuery

__all__ = ["PipelineQuery"]


class PipelineQuery(StreamingQuery):
    """A ``StreamingQuery`` that knows what is left to do after the last batch.

    Args:
        query: The query that Spark started.
        finish: Finishes the files that the newest checkpoint left open.
        finish_on_stop: Whether :meth:`stop` does so too; a stream that ended by itself always does.
    """

    def __init__(self, query: StreamingQuery, finish: Callable[[], None], *, finish_on_stop: bool, ends: bool) -> None:
        super().__init__(query._jsq)  # noqa: SLF001 - the only state of a StreamingQuery
        self._finish = finish
        self._finish_on_stop = finish_on_stop
        self._ends = ends

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """As Spark's; when a stream with an end (``availableNow``, ``once``) has ended, its open files are finished."""
        ended: bool | None = super().awaitTermination(timeout)
        if self._ends and not self.isActive and self.exception() is None:
            self._finish()
        return ended

    def stop(self) -> None:
        """As Spark's; open files stay open for the next start unless the pipeline was told to finish them."""
        super().stop()
        if self._finish_on_stop:
            self._finish()
