"""What each micro-batch cost, in three forms: metrics for an exporter, a line of JSON for a log, a list for programs.

Facts:
- Seconds and counts are sums over the subtasks, except those that the coordinator takes by itself: ``subtasks_seconds``
  (the Spark job), ``record_seconds``, ``publish_seconds`` and ``retain_seconds`` are durations of the batch.
- ``lag_seconds`` is how far the watermark lies behind the clock, where the stream has a watermark.
- A log that cannot be written fails no batch: the batch is durable by then. It is said once, by a warning.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from stateline.environment import Clock
from stateline.metrics import Metrics
from stateline.pipeline.messages import BatchReport

__all__ = ["REPORTS_KEPT", "BatchReporter"]

REPORTS_KEPT: Final = 100
"""As many as Spark keeps of its own progress."""

_COUNTED: Final = (
    "rows",
    "rows_late",
    "rows_duplicate",
    "state_bytes_written",
    "runs_merged",
    "bytes_fetched",
    "requests",
)
"""Figures that add up over batches; the others are those of the newest batch."""

_MICROSECONDS: Final = 1_000_000

_LOGGER: Final = logging.getLogger(__name__)


class BatchReporter:
    """Takes the report of each batch, on the thread that ran it.

    Args:
        clock: For the time of a line and the lag.
        log: A file to which each batch appends one line of JSON; ``None`` for none.

    Attributes:
        metrics: For :class:`stateline.prometheus.MetricsCollector`, or to be asked for a snapshot.
    """

    def __init__(self, clock: Clock, log: str | Path | None = None) -> None:
        self.metrics = Metrics()
        self._clock = clock
        self._log = None if log is None else Path(log)
        self._recent: deque[Mapping[str, object]] = deque(maxlen=REPORTS_KEPT)

    @property
    def recent(self) -> Sequence[Mapping[str, object]]:
        """The newest batches, oldest first, as they stand in the log."""
        return tuple(self._recent)

    def __call__(self, report: BatchReport) -> None:
        """Takes one report."""
        checkpoint = report.checkpoint
        figures = dict(report.metrics)
        if checkpoint.watermark_us is not None:
            figures["lag_seconds"] = max(self._clock.now() - checkpoint.watermark_us / _MICROSECONDS, 0.0)
        self._measure(report, figures)
        line: dict[str, object] = {
            "time": round(self._clock.now(), 3),
            "query_id": checkpoint.query_id,
            "batch_id": checkpoint.batch_id,
            "checkpoint_id": checkpoint.checkpoint_id,
            "replayed": report.replayed,
            "parallelism": checkpoint.parallelism,
        }
        if checkpoint.watermark_us is not None:
            line["watermark_us"] = checkpoint.watermark_us
        line |= {name: round(value, 6) for name, value in sorted(figures.items())}
        self._recent.append(line)
        self._append(line)

    def _measure(self, report: BatchReport, figures: Mapping[str, float]) -> None:
        self.metrics.gauge("checkpoint_id").set(report.checkpoint.checkpoint_id)
        self.metrics.counter("batches").increment()
        if report.replayed:
            self.metrics.counter("batches_replayed").increment()
        for name, value in figures.items():
            if name in _COUNTED:
                self.metrics.counter(name).increment(int(value))
            elif name.endswith("_seconds") and name != "lag_seconds":
                self.metrics.histogram(name).record(value)
            else:
                self.metrics.gauge(name).set(value)

    def _append(self, line: Mapping[str, object]) -> None:
        if self._log is None:
            return
        try:
            with self._log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            _LOGGER.warning("The log of metrics %s cannot be written, and is given up: %s", self._log, error)
            self._log = None
