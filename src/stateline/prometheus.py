"""Metrics for Prometheus (extra ``metrics``).

The families of ``prometheus_client``, made of a fresh snapshot at every scrape.

Facts (Prometheus exposition format, ``prometheus_client`` custom collectors):
- A counter's sample ends in ``_total``; ``prometheus_client`` adds that by itself.
- Our histograms keep the newest samples and their quantiles, not buckets: they are summaries. ``prometheus_client`` has
  no quantiles in its summary family, so minimum, median, 99th percentile and maximum of the window are gauges beside
  it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from stateline.errors import InvalidInputError
from stateline.extras import extra_module

__all__ = ["MetricsCollector", "MetricsSource"]

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_WINDOW: Final = ("min", "p50", "p99", "max")


class MetricsSource(Protocol):
    """What can be exported: :class:`stateline.metrics.Metrics`, or anything that wraps one."""

    def snapshot(self) -> Mapping[str, float | Mapping[str, float]]:
        """Every value by name; a histogram is a mapping with ``count``, ``sum`` and, unless it is empty, quantiles."""
        ...

    def kinds(self) -> Mapping[str, str]:
        """``counter``, ``gauge`` or ``histogram`` by name."""
        ...


class MetricsCollector:
    """A custom collector: ``REGISTRY.register(MetricsCollector("stateline_changelog", storage.metrics))``.

    Args:
        prefix: The start of every exported name, joined with ``_``.
        source: The metrics.
        labels: The same for every sample, such as the job.

    Raises:
        NotInstalledError: ``prometheus_client`` is missing.
        InvalidInputError: The prefix or a label is no Prometheus name.
    """

    def __init__(self, prefix: str, source: MetricsSource, labels: Mapping[str, str] | None = None) -> None:
        for name in (prefix, *(labels or {})):
            if not _NAME.fullmatch(name):
                raise InvalidInputError(
                    "is not a Prometheus name", subject=repr(name), hint="Use letters, digits and _"
                )
        self._prefix = prefix
        self._source = source
        self._labels = dict(labels or {})
        self._families = extra_module("prometheus_client.core", "metrics", operation="export", subject="metrics")

    def collect(self) -> Iterator[Any]:
        """The metric families of one scrape."""
        kinds = self._source.kinds()
        for name, value in self._source.snapshot().items():
            yield from self._family(f"{self._prefix}_{name}", kinds.get(name, "gauge"), value)

    def describe(self) -> Iterable[Any]:
        """Nothing: registering must not take a snapshot."""
        return ()

    def _family(self, name: str, kind: str, value: float | Mapping[str, float]) -> Iterator[Any]:
        help_text = name.replace("_", " ")
        if not isinstance(value, Mapping):
            family_of = self._families.CounterMetricFamily if kind == "counter" else self._families.GaugeMetricFamily
            family = family_of(name, help_text, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), value)
            yield family
            return
        summary = self._families.SummaryMetricFamily(name, help_text, labels=list(self._labels))
        summary.add_metric(list(self._labels.values()), count_value=value["count"], sum_value=value["sum"])
        yield summary
        for quantile in _WINDOW:
            if quantile in value:
                gauge = self._families.GaugeMetricFamily(f"{name}_{quantile}", help_text, labels=list(self._labels))
                gauge.add_metric(list(self._labels.values()), value[quantile])
                yield gauge
