"""Counters, gauges and histograms that cost a few nanoseconds and need no dependency.

``Metrics.snapshot`` is what the Prometheus exporter, the JSON log and Spark's progress read. All methods are safe to
call from any thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from stateline.threads import new_lock

__all__ = ["HISTOGRAM_WINDOW", "Counter", "Gauge", "Histogram", "Metrics"]

M = TypeVar("M", bound="Counter | Gauge | Histogram")

HISTOGRAM_WINDOW: Final = 1000
"""Samples that a histogram keeps: the newest ones."""


class Counter:
    """A number that only grows."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._value = 0

    def increment(self, amount: int = 1) -> None:
        """Adds ``amount`` (0 or more)."""
        with self._lock:
            self._value += amount

    @property
    def value(self) -> int:
        """The sum so far."""
        return self._value


class Gauge:
    """The latest of a changing value; 0 at first."""

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        """Replaces the value."""
        self.value = value


class Histogram:
    """The newest :data:`HISTOGRAM_WINDOW` samples, and the count and sum of all."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._samples: deque[float] = deque(maxlen=HISTOGRAM_WINDOW)
        self._count = 0
        self._sum = 0.0

    def record(self, value: float) -> None:
        """Adds one sample."""
        with self._lock:
            self._samples.append(value)
            self._count += 1
            self._sum += value

    def summary(self) -> dict[str, float]:
        """``count`` and ``sum`` of all; ``min``, ``p50``, ``p99`` and ``max`` of the window (absent if empty)."""
        with self._lock:
            ordered = sorted(self._samples)
            count, total = self._count, self._sum
        if not ordered:
            return {"count": 0, "sum": 0.0}
        last = len(ordered) - 1
        return {
            "count": count,
            "sum": total,
            "min": ordered[0],
            "p50": ordered[round(last * 0.50)],
            "p99": ordered[round(last * 0.99)],
            "max": ordered[last],
        }


class Metrics:
    """A named set of metrics. A name is registered on first use and keeps its kind."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._metrics: dict[str, Counter | Gauge | Histogram] = {}

    def counter(self, name: str) -> Counter:
        """The counter called ``name``."""
        return self._get(name, Counter)

    def gauge(self, name: str) -> Gauge:
        """The gauge called ``name``."""
        return self._get(name, Gauge)

    def histogram(self, name: str) -> Histogram:
        """The histogram called ``name``."""
        return self._get(name, Histogram)

    def snapshot(self) -> dict[str, float | Mapping[str, float]]:
        """Every value by name, sorted: numbers for counters and gauges, a summary for histograms."""
        with self._lock:
            items = sorted(self._metrics.items())
        return {name: item.summary() if isinstance(item, Histogram) else item.value for name, item in items}

    def kinds(self) -> dict[str, str]:
        """``counter``, ``gauge`` or ``histogram`` by name, sorted: what an exporter must know beside the values."""
        with self._lock:
            return {name: type(item).__name__.lower() for name, item in sorted(self._metrics.items())}

    def _get(self, name: str, make: Callable[[], M]) -> M:
        with self._lock:
            found = self._metrics.get(name)
            if found is None:
                found = self._metrics[name] = make()
            return found  # type: ignore[return-value]
