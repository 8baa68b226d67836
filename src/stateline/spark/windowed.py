"""A keyed stream in windows of event time: what :meth:`stateline.spark.KeyedStream.window` returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from stateline.state.aggregate import Aggregation

if TYPE_CHECKING:
    from stateline.spark.stream import PipelineStage

__all__ = ["WindowedStream"]


class WindowedStream:
    """Made by :meth:`stateline.spark.KeyedStream.window`.

    Args:
        aggregated: Makes the stage of an output mode and aggregations.
    """

    def __init__(self, aggregated: Callable[[str, Mapping[str, Aggregation]], PipelineStage]) -> None:
        self._aggregated = aggregated

    def aggregate(self, output_mode: str = "update", /, **aggregations: Aggregation) -> PipelineStage:
        """Keeps aggregations per key and window; see :meth:`stateline.spark.KeyedStream.aggregate`.

        With a watermark on the windows' column, a window closes when the watermark passes its end: in the modes
        ``update`` and ``append`` its state goes then, and in ``append`` that is when its row appears.
        """
        return self._aggregated(output_mode, aggregations)
