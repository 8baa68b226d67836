"""What a changelog measures: the definitions, and the typed set of one storage."""

from __future__ import annotations

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


class ChangelogMetrics(Metrics):
    """The metrics of one storage, by name: ``metrics.counter("upload_attempts")`` and so on."""

    def __init__(self) -> None:
        super().__init__()
        for definition in DEFINITIONS:
            self._get(definition.name, definition.kind)
