"""Metrics as instruments of OpenTelemetry, collected by its own SDK."""

from __future__ import annotations

import importlib
import time

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from stateline.errors import InvalidInputError, NotInstalledError
from stateline.metrics import Metrics
from stateline.opentelemetry import MetricsInstruments


class Collected:
    """What a reader of the SDK sees."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider([self._reader])
        self.meter = self._provider.get_meter("stateline")

    def values(self) -> dict[str, float]:
        data = self._reader.get_metrics_data()
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
        points = [
            (metric.name, point) for scope in scopes for metric in scope.metrics for point in metric.data.data_points
        ]
        assert all(dict(point.attributes) == {"query": "flights"} for _, point in points)
        return {name: point.value for name, point in points}

    def when_there_is(self, name: str) -> dict[str, float]:
        for _ in range(2000):
            found = self.values()
            if name in found:
                return found
            time.sleep(0.005)
        raise AssertionError(f"{name} is not exported")


@pytest.fixture
def collected() -> Collected:
    return Collected()


def test_each_kind_is_exported_as_it_is_at_the_collection(collected: Collected) -> None:
    metrics = Metrics()
    metrics.counter("rows").increment(3)
    metrics.gauge("lag").set(2.5)
    metrics.histogram("empty")
    for seconds in (1.0, 2.0, 3.0):
        metrics.histogram("seconds").record(seconds)
    with MetricsInstruments(collected.meter, "stateline.flights", metrics, {"query": "flights"}):
        expected = {"rows": 3, "lag": 2.5, "empty.count": 0, "empty.sum": 0, "metrics": 4}
        expected |= {f"seconds.{part}": value for part, value in (("count", 3), ("sum", 6), ("min", 1), ("p50", 2))}
        expected |= {"seconds.p99": 3, "seconds.max": 3}
        assert collected.values() == {f"stateline.flights.{name}": value for name, value in expected.items()}
        metrics.counter("rows").increment()
        assert collected.values()["stateline.flights.rows"] == 4


def test_names_that_come_later_are_exported_from_the_next_collection_on(collected: Collected) -> None:
    metrics = Metrics()
    with MetricsInstruments(collected.meter, "stateline", metrics, {"query": "flights"}):
        assert collected.values() == {"stateline.metrics": 0}
        metrics.counter("rows").increment(7)
        assert collected.when_there_is("stateline.rows")["stateline.rows"] == 7
    assert collected.values() == {}, "it is closed"


def test_a_prefix_that_is_no_name_is_refused(collected: Collected) -> None:
    for prefix in ("", "1st", "a b", "ä"):
        with pytest.raises(InvalidInputError, match="name of an instrument"):
            MetricsInstruments(collected.meter, prefix, Metrics())


def test_a_missing_package_says_what_to_install(collected: Collected, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(NotInstalledError, match=r"stateline\[otel\]"):
        MetricsInstruments(collected.meter, "stateline", Metrics())
