"""Windows and watermarks: the answers of Spark's own stateful queries, batch by batch, and their life over restarts."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from stateline.spark import count, sum
from tests.spark.event_files import LATE_AND_EARLY, EventFiles, same


@pytest.fixture
def events(tmp_path, spark):
    return EventFiles(tmp_path, spark)


@pytest.mark.parametrize(
    ("mode", "window"),
    [
        ("append", ("10 minutes",)),
        ("append", ("10 minutes", "4 minutes")),
        ("update", ("10 minutes", "5 minutes")),
        ("complete", ("10 minutes",)),
    ],
)
def test_windows_answer_as_sparks_own_aggregation_does(events, mode, window):
    events.add(*LATE_AND_EARLY)
    ours = events.run(
        events.keyed(watermark=("at", "10 minutes"))
        .window("at", *window)
        .aggregate(mode, n=count(), total=sum("value"))
    )
    grouped = events.events().withWatermark("at", "10 minutes").groupBy("key", F.window("at", *window))
    theirs = events.spark_answer(grouped.agg(F.count("*").alias("n"), F.sum("value").alias("total")), mode)
    assert same(ours) == same(theirs)
    assert ours
