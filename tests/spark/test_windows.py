"""Windows and watermarks: the answers of Spark's own stateful queries, batch by batch, and their life over restarts."""

from __future__ import annotations

import pytest
from py4j.java_gateway import get_field
from pyspark.sql import functions as F

from stateline.errors import InvalidInputError
from stateline.options import duration_microseconds
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
    with pytest.raises(InvalidInputError, match=r"column of the watermark.*expected at .*got other"):
        events.run(events.keyed(renamed, watermark=("other", "1 minute")).aggregate(n=count()))


def test_lengths_of_time_are_those_that_spark_reads_in_the_same_text(spark):
    read = spark._jvm.org.apache.spark.sql.catalyst.util.IntervalUtils.fromIntervalString
    day_us = 86_400_000_000
    for text in (
        "1 hour 30 minutes", "interval 1 hour", "INTERVAL  1 HOUR\t30 Minutes ", "90 minutes", "30 minutes 1 hour",
        "interval '1' hour", "interval '1 hour 1 second'", "interval 1 hour '30' minutes", "1 week 1 day 24 hours",
        "-1 hour 30 minutes", "1 hour - 30 minutes", "- 1 hour", ".5 seconds", "5. seconds", "0.0000019 seconds",
        "1 second 1 millisecond 1 microsecond", "9223372036854775807 microseconds",
    ):  # fmt: skip
        months, days, microseconds = (get_field(read(text), name) for name in ("months", "days", "microseconds"))
        assert (months, days * day_us + microseconds) == (0, duration_microseconds(text)), text
    for text in (
        "1 hour30 minutes",
        "1 hour, 30 minutes",
        "1e3 seconds",
        "interval",
        "-interval 1 hour",
        "interval1 hour",
    ):
        with pytest.raises(Exception, match="CANNOT_PARSE_INTERVAL"):
            read(text)
        with pytest.raises(InvalidInputError):
            duration_microseconds(text)
