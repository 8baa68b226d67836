"""Windows and watermarks: the answers of Spark's own stateful queries, batch by batch, and their life over restarts."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from stateline.errors import InvalidInputError
from stateline.spark import count, sum
from tests.spark.event_files import LATE_AND_EARLY, EventFiles, minutes, same


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


def test_restarts_at_other_parallelisms_keep_the_watermark_and_answer_as_spark_restarted_does(events):
    watermarks, ours, theirs = [], {}, {}
    for parallelism, batches in ((1, LATE_AND_EARLY[:2]), (3, LATE_AND_EARLY[2:3]), (2, LATE_AND_EARLY[3:])):
        events.add(*batches)
        stream = events.keyed(events.events().withWatermark("at", "10 minutes"), parallelism=parallelism)
        ours = events.run(stream.window("at", "10 minutes").aggregate("append", n=count()))
        watermarks.append(events.newest().watermark_us)
        grouped = events.events().withWatermark("at", "10 minutes").groupBy("key", F.window("at", "10 minutes"))
        theirs |= events.spark_answer(grouped.agg(F.count("*").alias("n")), "append")
    assert watermarks == [int(minutes(newest - 10).timestamp() * 1e6) for newest in (33, 60, 75.5)]
    assert same(ours) == same(theirs)
    assert len(same(ours)) == 3, "three batches closed windows"


def test_a_watermark_that_moved_to_another_column_is_refused(events):
    events.add([("a", 1)])
    events.run(events.keyed(watermark=("at", "1 minute")).aggregate(n=count()))
    renamed = events.events().withColumn("other", F.col("at"))
    with pytest.raises(InvalidInputError, match=r"column of the watermark.*has at.*asks for other"):
        events.run(events.keyed(renamed, watermark=("other", "1 minute")).aggregate(n=count()))
