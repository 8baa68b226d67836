"""A keyed stream whose rows are in windows or sessions, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from stateline.state.aggregate import Aggregation

__all__ = ["WindowedStream"]

_Stage = TypeVar("_Stage")


class WindowedStream(Generic[_Stage]):
    """A keyed stream in windows or sessions, made by ``KeyedStream.window`` and ``KeyedStream.sessions``.

    Args:
        aggregated: Makes the stage of an output mode and aggregations.
    """

    def __init__(self, aggregated: Callable[[str, Mapping[str, Aggregation]], _Stage]) -> None:
        self._aggregated = aggregated

    def aggregate(self, output_mode: str = "update", /, **aggregations: Aggregation) -> _Stage:
        """Keeps aggregations per key and window, or session; see :meth:`stateline.spark.KeyedStream.aggregate`.

        With a watermark on the windows' column, a window closes when the watermark passes its end: in the modes
        ``update`` and ``append`` its state goes then, and in ``append`` that is when its row appears. In mode
        ``update`` of sessions a row takes the place of those of all earlier sessions that lie within its own.
        """
        return self._aggregated(output_mode, aggregations)
