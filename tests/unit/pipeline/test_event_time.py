"""Watermarks and windows as a user asks for them: what is refused, and what a task sees of event time."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest

from stateline.errors import InvalidInputError
from stateline.pipeline.event_time import (
    EVENT_TIME_COLUMN,
    Duration,
    EventTimeWatch,
    WatermarkPlan,
    WindowPlan,
)

SCHEMA = pa.schema([("key", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("local", pa.timestamp("us"))])
PLAN = WatermarkPlan.of(SCHEMA, "at", "10 seconds")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WatermarkPlan.of(SCHEMA, "key", "1s"), "must be a timestamp, got string"),
        (lambda: WatermarkPlan.of(SCHEMA, "att", "1s"), "Did you mean 'at'"),
        (lambda: WatermarkPlan.of(SCHEMA, "at", "-10 minutes"), "delay of the watermark"),
        (lambda: WatermarkPlan.of(SCHEMA, "at", timedelta(seconds=-1)), "delay of the watermark"),
        (lambda: WatermarkPlan.of(SCHEMA, "at", "soon"), "soon"),
        (lambda: WatermarkPlan.of(SCHEMA, "at", "1s", "ignore"), "drop, keep"),
        (lambda: WindowPlan.of(SCHEMA, "key", "1s", None, "0s"), "must be a timestamp"),
        (lambda: WindowPlan.of(SCHEMA, "at", "1s", "2s", "0s"), "slide"),
        (lambda: WindowPlan.of(SCHEMA, "at", "0s", None, "0s"), "slide"),
        (lambda: WindowPlan.of(SCHEMA, "at", "5s", "1s", "1s"), "slide"),
        (lambda: WindowPlan.of(SCHEMA, "at", "5s", "1s", "-1s"), "slide"),
        (lambda: WindowPlan.of(SCHEMA, "at", "5s", None, "--1s"), "duration"),
        (lambda: WindowPlan.of(SCHEMA, "at", "5s", None, float("-inf")), "finite"),
        (lambda: WindowPlan.of(SCHEMA, "at", "5s", None, None), "duration"),
        (lambda: WindowPlan.of(SCHEMA.append(pa.field("window_end", pa.int8())), "at", "1s", None, "0s"), "window_end"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()


def test_timestamps_with_and_without_a_zone_are_event_times():
    assert WatermarkPlan.of(SCHEMA, "local", 1.5).delay_us == 1_500_000
    assert WindowPlan.of(SCHEMA, "local", "1 hour", "10 min", "5 min").start_us == 300_000_000


def times(*values, name):
    return pa.record_batch([pa.array(values, pa.timestamp("us", tz="UTC"))], names=[name])


def test_the_watch_sees_the_greatest_time_and_takes_its_own_column_out():
    watch = EventTimeWatch(PLAN, ["key"])
    assert watch.needs_column
    batches = [
        times(3, None, 9, name=EVENT_TIME_COLUMN),
        times(5, name=EVENT_TIME_COLUMN),
        times(name=EVENT_TIME_COLUMN),
    ]
    assert [batch.num_columns for batch in watch.watch(batches)] == [0, 0, 0]
    assert watch.max_us == 9
    watch = EventTimeWatch(PLAN, ["key", "at"])
    assert not watch.needs_column
    assert [batch.num_columns for batch in watch.watch([times(None, name="at")])] == [1]
    assert watch.max_us is None
    assert list(EventTimeWatch(None, []).watch(batches)) == batches


def test_the_watch_sees_rows_that_come_packed_beside_rows_of_another_kind():
    watch = EventTimeWatch(PLAN, ["key", "at"])
    kind = pa.struct([("at", pa.timestamp("us", tz="UTC"))])
    rows = pa.record_batch(
        [pa.array([None, {"at": 4}, {"at": None}], kind), pa.array([{"at": 9}, None, None], kind)],
        names=["in", "first"],
    )
    assert list(watch.watch([rows])) == [rows]
    assert watch.max_us == 4


@pytest.mark.parametrize("start", ["-2 seconds", "- 2s", -2, -2.0, timedelta(seconds=-2)])
def test_a_negative_start_gives_the_windows_that_spark_gives(start: Duration) -> None:
    """Spark takes any offset that is shorter than the slide; the windows are those of the offset that follows 0."""
    assert WindowPlan.of(SCHEMA, "at", "20s", "10s", start) == WindowPlan.of(SCHEMA, "at", "20s", "10s", "8 seconds")
