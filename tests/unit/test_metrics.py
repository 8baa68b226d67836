"""Counters, gauges, histograms."""

import threading

import pytest

from stateline.metrics import HISTOGRAM_WINDOW, Gauge, Histogram, Metrics


def test_counters_lose_no_increment_between_threads():
    counter = Metrics().counter("n")
    threads = [threading.Thread(target=lambda: [counter.increment() for _ in range(1000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.value == 4000


def test_a_gauge_has_the_latest_value():
    gauge = Gauge()
    assert gauge.value == 0
    gauge.set(3.5)
    assert gauge.value == 3.5


def test_an_empty_histogram_has_a_count_and_a_sum():
    assert Histogram().summary() == {"count": 0, "sum": 0.0}


def test_a_histogram_counts_all_and_keeps_a_window():
    histogram = Histogram()
    for value in range(HISTOGRAM_WINDOW + 10):
        histogram.record(value)
    summary = histogram.summary()
    assert summary["count"] == HISTOGRAM_WINDOW + 10
    assert summary["sum"] == sum(range(HISTOGRAM_WINDOW + 10))
    assert (summary["min"], summary["max"]) == (10, HISTOGRAM_WINDOW + 9)
    assert summary["min"] <= summary["p50"] <= summary["p99"] <= summary["max"]


def test_percentiles_of_one_sample_are_that_sample():
    histogram = Histogram()
    histogram.record(4.0)
    assert histogram.summary() == {"count": 1, "sum": 4.0, "min": 4.0, "p50": 4.0, "p99": 4.0, "max": 4.0}


def test_a_name_keeps_its_metric():
    metrics = Metrics()
    assert metrics.counter("a") is metrics.counter("a")
    assert metrics.histogram("b") is metrics.histogram("b")
    assert metrics.gauge("c") is metrics.gauge("c")


def test_a_snapshot_is_sorted_and_holds_values():
    metrics = Metrics()
    metrics.counter("z").increment(2)
    metrics.gauge("a").set(1.5)
    metrics.histogram("m").record(1.0)
    snapshot = metrics.snapshot()
    assert list(snapshot) == ["a", "m", "z"]
    assert snapshot["z"] == 2
    assert snapshot["a"] == pytest.approx(1.5)
    assert snapshot["m"]["count"] == 1
