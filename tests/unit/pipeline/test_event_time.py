"""Watermarks and windows as values: what they refuse, how they advance, what a checkpoint keeps of them."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.checkpoint import Checkpoint, InlineState
from stateline.errors import CorruptDataError, InvalidInputError
from stateline.pipeline.compatibility import check_plan
from stateline.pipeline.event_time import (
    EVENT_TIME_COLUMN,
    Duration,
    EventTimeWatch,
    Watermark,
    WatermarkPlan,
    WindowPlan,
)
from stateline.pipeline.plan import PipelinePlan
from tests.unit.pipeline.records import record

SCHEMA = pa.schema([("key", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("local", pa.timestamp("us"))])
PLAN = WatermarkPlan.of(SCHEMA, "at", "10 seconds")


def record_with(watermark: Watermark) -> Checkpoint:
    return record(watermark_us=watermark.current_us, states=dict(watermark.states))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WatermarkPlan.of(SCHEMA, "key", "1s"), "must be a timestamp, this column is string"),
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


@given(st.lists(st.none() | st.integers(-(10**15), 10**15), max_size=12))
def test_a_watermark_never_goes_back_and_follows_the_greatest_time(times):
    watermark, seen = Watermark(), []
    for time in times:
        before, watermark = watermark, watermark.after(PLAN, time)
        seen += [] if time is None else [time]
        assert watermark.applied_us == before.current_us
        assert watermark.current_us == (max(seen) // 1000 * 1000 - 10_000_000 if seen else None)
        assert Watermark.of(record_with(watermark)) == watermark


def test_without_a_watermark_what_is_stored_stays_as_it_is():
    stored = Watermark(7, 5, "at")
    assert stored.after(None, 10**9) == stored
    assert not Watermark().after(None, 1).states
    assert Watermark().is_applied


def test_a_smaller_delay_after_a_restart_moves_it_forward_and_a_greater_one_does_not_move_it_back():
    stored = Watermark().after(PLAN, 60_000_000)
    assert stored.after(WatermarkPlan.of(SCHEMA, "at", "5s"), 60_000_000).current_us == 55_000_000
    assert stored.after(WatermarkPlan.of(SCHEMA, "at", "1h"), 60_000_000).current_us == 50_000_000


def test_a_watermark_of_another_column_is_refused_with_both_names():
    plan = PipelinePlan(root_url="x", parallelism=1, max_parallelism=1, operators=(), watermark=PLAN)
    check_plan(plan, record_with(Watermark(1, 1, "at")), {})
    with pytest.raises(InvalidInputError, match=r"column of the watermark.*local.*at"):
        check_plan(plan, record_with(Watermark(1, 1, "local")), {})


@pytest.mark.parametrize("data", [b"", b"{}", b'{"column": "at"}', b'{"column": "at", "applied_us": 1.5}'])
def test_a_watermark_that_cannot_be_read_is_loud(data):
    with pytest.raises(CorruptDataError, match="watermark"):
        Watermark.of(record(states={"watermark": InlineState(data=data)}))


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
