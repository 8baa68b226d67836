"""Every query of Nexmark, from files to files, compared row by row with SQL over the same events."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples.nexmark.events import EventSettings
from examples.nexmark.queries import QUERIES
from examples.nexmark.run import run_query
from examples.nexmark.source import prepare
from examples.nexmark.verification import compare

pytestmark = pytest.mark.spark

SLOW = EventSettings(events=24_000, rate=1, block=8_000, start=dt.datetime(2026, 1, 1, 18, tzinfo=dt.UTC))
"""From the evening over midnight: many windows and sessions, every time of the day, no two events at once."""
FAST = EventSettings(events=9_000, rate=10_000, block=3_000)
"""Less than a second: many bids at once, whose order is only that of their arrival."""
TIED = ("q4", "q9", "q18", "q19")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nexmark")


def check(spark: SparkSession, name: str, settings: EventSettings, folder: Path, place: Path) -> None:
    source = prepare(settings, folder)
    batches = run_query(spark, name, source, settings, place)
    assert len(batches) == settings.events // settings.block
    comparison = compare(name, source, place / "output")
    assert comparison.is_equal, comparison.differences
    assert comparison.rows > 0


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_gives_what_sql_gives(name: str, spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    check(spark, name, SLOW, folder, tmp_path)


@pytest.mark.parametrize("name", TIED)
def test_ties_of_time_change_nothing(name: str, spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    check(spark, name, FAST, folder, tmp_path)
