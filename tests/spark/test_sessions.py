"""Sessions: the answers of Spark's own ``session_window`` over the same files, batch by batch, and over restarts."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import functions as F

from stateline.spark import collect_list, count, max, mean, sum
from tests.spark.event_files import LATE_AND_EARLY, EventFiles, same


@pytest.fixture
def events(tmp_path, spark):
    return EventFiles(tmp_path, spark)


def drawn(seed, batches=6, rows=30):
    """Keys and minutes: sessions that grow, are bridged and are late, keys that are null, rows without a time."""
    draws = random.Random(seed)
    return [
        [
            (
                draws.choice(["a", "b", "c", None]),
                None if draws.random() < 0.03 else number * 9 + draws.uniform(-25, 15),
            )
            for _ in range(draws.choice([1, rows]))
        ]
        for number in range(batches)
    ]


def ours(events, mode, gap, **options):
    stream = events.keyed(**options).sessions("at", gap)
    return events.run(stream.aggregate(mode, n=count(), total=sum("value"), most=max("value"), average=mean("value")))


def theirs(events, rows, gap):
    """Spark's aggregation, with its session as our two columns."""
    grouped = rows.groupBy("key", F.session_window("at", gap).alias("window"))
    return grouped.agg(
        F.count("*").alias("n"),
        F.sum("value").alias("total"),
        F.max("value").alias("most"),
        F.mean("value").alias("average"),
    )


@pytest.mark.parametrize("batches", [LATE_AND_EARLY, drawn(1, batches=9)], ids=["late and early", "drawn"])
def test_append_answers_as_sparks_own_sessions_do(events, batches):
    events.add(*batches)
    found = ours(events, "append", "2 minutes", watermark=("at", "10 minutes"))
    expected = theirs(events, events.events().withWatermark("at", "10 minutes"), "2 minutes")
    assert same(found) == same(events.spark_answer(expected, "append"))
    assert len(found) > 1


def test_complete_answers_as_sparks_own_sessions_do(events):
    events.add(*drawn(3))
    found = ours(events, "complete", "3 minutes", watermark=("at", "10 minutes"))
    expected = theirs(events, events.events().withWatermark("at", "10 minutes"), "3 minutes")
    assert same(found) == same(events.spark_answer(expected, "complete"))


def test_restarts_at_other_parallelisms_answer_as_spark_restarted_does(events):
    batches, found, expected = drawn(4), {}, {}
    for parallelism, first in ((1, 0), (3, 2), (2, 4)):
        events.add(*batches[first : first + 2])
        found = ours(events, "append", "2 minutes", parallelism=parallelism, watermark=("at", "10 minutes"))
        rows = events.events().withWatermark("at", "10 minutes")
        expected |= events.spark_answer(theirs(events, rows, "2 minutes"), "append")
    assert same(found) == same(expected)


def test_updates_lead_to_the_sessions_of_all_rows(events, spark):
    events.add(*drawn(5))
    sessions = {}
    for _, rows in sorted(ours(events, "update", "2 minutes").items()):
        for row in rows:
            inside = [
                one
                for one in sessions
                if one[0] == row["key"] and row["window_start"] <= one[1] and one[2] <= row["window_end"]
            ]
            for one in inside:  # It has absorbed them.
                del sessions[one]
            sessions[row["key"], row["window_start"], row["window_end"]] = row
    rows = spark.read.schema(events.events().schema).parquet(str(events.folder / "source"))
    batch = theirs(events, rows, "2 minutes").select("*", "window.*").drop("window")
    expected = [
        {{"start": "window_start", "end": "window_end"}.get(name, name): value for name, value in row.items()}
        for row in batch.toArrow().to_pylist()
    ]
    assert same({0: sessions.values()}) == same({0: expected})


def test_values_of_a_session_are_kept_in_the_order_in_which_they_came(events):
    events.add([("a", 10), ("a", 0), ("a", 20)], [("a", 5), ("a", 15), ("a", 4)])
    stream = events.keyed().sessions("at", "5 minutes")
    found = events.run(stream.aggregate(values=collect_list("value", 10)))
    assert [row["values"] for row in found[1]] == [[2, 1, 3, 3, 1, 2]]
