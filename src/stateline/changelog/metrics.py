"""What a changelog measures: the definitions, and the typed set of one storage.

Owns names, units and meanings. Does not own the export: ``stateline.prometheus`` reads the same snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stateline.metrics import Counter, Gauge, Histogram, Metrics

__all__ = ["DEFINITIONS", "ChangelogMetrics", "MetricDefinition"]


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """One metric: its name with the unit last, its kind, and what it says."""

    name: str
    kind: type[Counter] | type[Gauge] | type[Histogram]
    help: str

    def register(self, metrics: Metrics) -> None:
        """Makes the metric, with the value of something that has not happened yet."""
        if self.kind is Counter:
            metrics.counter(self.name)
        elif self.kind is Gauge:
            metrics.gauge(self.name)
        else:
            metrics.histogram(self.name)


DEFINITIONS: Final = (
    MetricDefinition("upload_attempts", Counter, "attempts started"),
    MetricDefinition("upload_attempt_failures", Counter, "attempts that ended with an error"),
    MetricDefinition("upload_failures", Counter, "batches for which no attempt was left"),
    MetricDefinition("attempts_per_upload", Histogram, "number of the attempt that won"),
    MetricDefinition("total_attempts_per_upload", Histogram, "attempts started for a successful upload"),
    MetricDefinition("upload_batch_tasks", Histogram, "tasks per batch, which is per object"),
    MetricDefinition("upload_latency_seconds", Histogram, "duration of successful attempts"),
    MetricDefinition("upload_object_bytes", Histogram, "bytes per object, framing included, as stored"),
    MetricDefinition("upload_queue_tasks", Gauge, "tasks that wait for their batch"),
    MetricDefinition("upload_queue_bytes", Gauge, "bytes of changes that wait for their batch"),
    MetricDefinition("in_flight_bytes", Gauge, "bytes of changes queued or being uploaded"),
    MetricDefinition("capacity_wait_seconds", Histogram, "time that a writer was blocked by max_in_flight"),
    MetricDefinition("queue_wait_seconds", Histogram, "from a task's arrival to the start of its first attempt"),
    MetricDefinition("retry_wait_seconds", Histogram, "from the start of the first attempt to that of the winner"),
    MetricDefinition("discarded_objects", Counter, "objects deleted because nothing needed them"),
    MetricDefinition("discard_failures", Counter, "objects that should have been deleted and could not be"),
    MetricDefinition("orphaned_objects", Counter, "objects left for the sweep: unconfirmed at close, or not deletable"),
    MetricDefinition("local_copies", Counter, "objects copied to this host's disk"),
    MetricDefinition("local_copies_skipped", Counter, "objects that got no local copy: full, slow or broken disk"),
    MetricDefinition("local_reads", Counter, "segments read from a local copy"),
    MetricDefinition("local_read_fallbacks", Counter, "damaged local copies or downloads, replaced by a remote read"),
    MetricDefinition("cache_downloads", Counter, "objects downloaded into this host's cache"),
    MetricDefinition("cache_hits", Counter, "objects found in this host's cache"),
    MetricDefinition("cache_evictions", Counter, "objects deleted from this host's cache"),
    MetricDefinition("read_bytes", Counter, "bytes fetched by readers, from wherever"),
)
"""Every metric of a changelog storage. A released name keeps its meaning."""


class ChangelogMetrics:
    """The metrics of one storage, by name: ``metrics.counter("upload_attempts")`` and so on.

    Args:
        metrics: Where to register them; a fresh set by default.
    """

    def __init__(self, metrics: Metrics | None = None) -> None:
        self._metrics = metrics if metrics is not None else Metrics()
        for definition in DEFINITIONS:
            definition.register(self._metrics)

    def counter(self, name: str) -> Counter:
        """The counter called ``name``."""
        return self._metrics.counter(name)

    def gauge(self, name: str) -> Gauge:
        """The gauge called ``name``."""
        return self._metrics.gauge(name)

    def histogram(self, name: str) -> Histogram:
        """The histogram called ``name``."""
        return self._metrics.histogram(name)

    def snapshot(self) -> dict[str, float | Mapping[str, float]]:
        """Every value by name; a histogram is its count, sum, minimum, median, 99th percentile and maximum."""
        return self._metrics.snapshot()

    def kinds(self) -> dict[str, str]:
        """``counter``, ``gauge`` or ``histogram`` by name."""
        return self._metrics.kinds()
