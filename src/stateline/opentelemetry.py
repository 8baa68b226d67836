"""Metrics for OpenTelemetry (extra ``otel``): observable instruments, read whenever a reader collects.

Facts (OpenTelemetry metrics API and Python SDK 1.x):
- An observable instrument is a name and a function that says its value at each collection.
- The SDK holds a lock while it collects, so no instrument can be made then; and our metrics get their names while a
  query runs. So a collection that finds new names has their instruments made beside it, and they are exported from the
  next one on. What finds them is an instrument that is always there, ``PREFIX.metrics``: how many names there are.
- Our histograms keep quantiles and not buckets: their count and sum are counters, and minimum, median, 99th percentile
  and maximum of the window are gauges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from stateline.environment import Closable, Environment, system_environment
from stateline.errors import InvalidInputError
from stateline.extras import extra_module
from stateline.prometheus import MetricsSource
from stateline.threads import new_lock

__all__ = ["MetricsInstruments"]

_PREFIX: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,127}")
_TOTALS: Final = ("count", "sum")
_WINDOW: Final = ("min", "p50", "p99", "max")


class MetricsInstruments(Closable):
    """The instruments of some metrics: ``MetricsInstruments(get_meter("stateline"), "flights", query.metrics)``.

    Exports until it is closed: then its instruments have no values any more.

    Args:
        meter: A meter of the program's provider.
        prefix: The start of every name, joined with a dot.
        source: The metrics.
        attributes: The same for every value, such as the job.
        environment: Threads.

    Raises:
        NotInstalledError: ``opentelemetry-api`` is missing.
        InvalidInputError: The prefix is no name of an instrument.
    """

    def __init__(
        self,
        meter: Any,
        prefix: str,
        source: MetricsSource,
        attributes: Mapping[str, str] | None = None,
        environment: Environment | None = None,
    ) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise InvalidInputError(
                "is not the name of an instrument",
                subject=repr(prefix),
                hint="Use letters, digits, _, ., - and /, and begin with a letter",
            )
        metrics = extra_module("opentelemetry.metrics", "otel", operation="export", subject="metrics")
        self._observation = metrics.Observation
        self._meter = meter
        self._prefix = prefix
        self._source: MetricsSource | None = source
        self._attributes = dict(attributes or {})
        self._lock = new_lock()
        self._known: set[str] = set()
        self._executor = (environment or system_environment()).executors.executor("stateline-otel", 1)
        self._make_missing()
        meter.create_observable_gauge(f"{prefix}.metrics", callbacks=[self._count], description="names of metrics")

    def close(self) -> None:
        """Ends the export. Idempotent."""
        self._source = None
        self._executor.close()

    def _count(self, options: Any) -> Iterator[Any]:  # noqa: ARG002 - the signature of a callback
        source = self._source
        if source is None:
            return
        names = source.kinds()
        if not self._known.issuperset(names):
            self._executor.submit(self._make_missing)
        yield self._observation(len(names), self._attributes)

    def _make_missing(self) -> None:
        """Makes the instruments of names that are new."""
        source = self._source
        with self._lock:
            for name, kind in () if source is None else source.kinds().items():
                if name not in self._known:
                    self._known.add(name)
                    self._make(name, kind)

    def _make(self, name: str, kind: str) -> None:
        full = f"{self._prefix}.{name}"
        counter, gauge = self._meter.create_observable_counter, self._meter.create_observable_gauge
        if kind != "histogram":
            (counter if kind == "counter" else gauge)(full, callbacks=[self._value(name)])
            return
        for part in _TOTALS:
            counter(f"{full}.{part}", callbacks=[self._value(name, part)])
        for part in _WINDOW:
            gauge(f"{full}.{part}", callbacks=[self._value(name, part)])

    def _value(self, name: str, part: str = "") -> Callable[[Any], Iterator[Any]]:
        return partial(self._observed, name, part)

    def _observed(self, name: str, part: str, options: Any) -> Iterator[Any]:  # noqa: ARG002 - as above
        source = self._source
        value = None if source is None else source.snapshot().get(name)
        found = value.get(part) if isinstance(value, Mapping) else value
        if found is not None:
            yield self._observation(found, self._attributes)
