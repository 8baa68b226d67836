"""A processor over lists of rows: state, timers, time to live, initial state, restarts. No session runs."""

# ruff: noqa: N802, N803 - methods and arguments are Spark's

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from stateline.errors import InvalidInputError, UserCodeError
from stateline.testing import KeyedStreamHarness, ManualClock

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
SECOND = 1_000_000


class Alarms(StatefulProcessor):
    """Counts rows; tells the count ten seconds after the newest one."""

    def __init__(self, time_mode):
        self.event_time = time_mode == "EventTime"

    def init(self, handle):
        self.handle = handle
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key, rows, timerValues):
        rows = list(rows)
        if rows[0].value == -1:
            raise KeyError("no such value")
        (n,) = self.count.get() or (0,)
        self.count.update((n + len(rows),))
        for timer in self.handle.listTimers():
            self.handle.deleteTimer(timer)
        now = int(rows[-1].at.timestamp() * 1000) if self.event_time else timerValues.getCurrentProcessingTimeInMs()
        self.handle.registerTimer(now + 10_000)
        return iter(())

    def handleInitialState(self, key, initialState, timerValues):
        self.count.update((initialState.n,))

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        (n,) = self.count.get()
        yield Row(key=key[0], n=n)

    def close(self):
        pass


class Remembers(StatefulProcessor):
    """Tells whether it has seen the key in the last minute."""

    def init(self, handle):
        self.seen = handle.getValueState("seen", "n long", 60_000)

    def handleInputRows(self, key, rows, timerValues):
        yield Row(key=key[0], n=int(self.seen.exists()))
        self.seen.update((1,))

    def close(self):
        pass


def rows(*keys, value=1, at=0):
    return [{"key": key, "value": value, "at": at * SECOND} for key in keys]


@pytest.fixture(autouse=True)
def _no_session(monkeypatch):
    """Another test of this process may have started one."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)


def alarms(stream, time_mode="ProcessingTime", **more):
    return stream.process(Alarms(time_mode), "key string, n long", time_mode=time_mode, **more)


def test_timers_by_processing_time_fire_when_the_clock_has_come_to_them_also_after_a_restart():
    harness = alarms(KeyedStreamHarness(SCHEMA, "key", clock=ManualClock(100.0)))
    assert harness.run_batch(rows("a", "b", "a")) == []
    assert {row["key"]: row["n"] for row in harness.state("count")} == {"a": 2, "b": 1}
    assert {row["expiry_ms"] for row in harness.state("timers")} == {110_000}
    assert harness.advance_time(5) == []
    harness.run_batch(rows("a"))
    harness.restart(parallelism=7)
    assert harness.advance_time(5) == [{"key": "b", "n": 1}]
    assert harness.advance_time(5) == [{"key": "a", "n": 3}]
    assert harness.state("timers") == []
    assert harness.advance_time(3_600) == []


def test_timers_by_event_time_fire_when_the_watermark_has_come_to_them():
    stream = KeyedStreamHarness(SCHEMA, "key", watermark=("at", "0 seconds"))
    harness = alarms(stream, "EventTime")
    harness.run_batch(rows("a", at=1))
    assert harness.run_batch(rows("b", at=11)) == []
    assert harness.advance_time() == [{"key": "a", "n": 1}]
    assert harness.run_batch(rows("a", at=3)) == [], "late"
    assert harness.metrics["rows_late"] == 1


def test_what_has_outlived_its_time_is_gone():
    harness = KeyedStreamHarness(SCHEMA, "key").process(Remembers(), "key string, n long", time_mode="ProcessingTime")
    assert harness.run_batch(rows("a")) == [{"key": "a", "n": 0}]
    harness.clock.advance(59)
    assert harness.run_batch(rows("a")) == [{"key": "a", "n": 1}]
    harness.clock.advance(60)
    harness.run_batch(rows("b"))
    assert [row["key"] for row in harness.state("seen")] == ["b"]
    assert harness.run_batch(rows("a")) == [{"key": "a", "n": 0}]


def test_initial_state_comes_with_the_first_batch_and_never_again():
    initial = pa.table({"key": ["a", "c"], "n": [10, 30]})
    stream = KeyedStreamHarness(SCHEMA, "key")
    harness = alarms(stream, initial_state=initial)
    harness.run_batch(rows("a", "b"))
    assert {row["key"]: row["n"] for row in harness.state("count")} == {"a": 11, "b": 1, "c": 30}
    again = alarms(stream, initial_state=initial)
    again.run_batch(rows("c"))
    assert {row["key"]: row["n"] for row in again.state("count")} == {"a": 11, "b": 1, "c": 31}


def test_a_processor_that_raises_keeps_nothing_of_its_batch():
    harness = alarms(KeyedStreamHarness(SCHEMA, "key"))
    harness.run_batch(rows("a"))
    with pytest.raises(UserCodeError, match=r"handleInputRows Alarms, key .*'b'.*no such value"):
        harness.run_batch(rows("a") + rows("b", value=-1))
    assert [row["n"] for row in harness.state("count")] == [1]


def test_rows_may_be_sparks_and_variables_are_called_by_their_names():
    harness = alarms(KeyedStreamHarness("key string, value long, at timestamp", "key"))
    harness.run_batch([Row(key="a", value=1, at=None)])
    assert harness.state("count") == harness.state("state.count")
    with pytest.raises(InvalidInputError, match=r"2 state tables.*count, timers"):
        harness.state()
    with pytest.raises(InvalidInputError, match=r"'cuont'.*Did you mean 'count'"):
        harness.state("cuont")


@pytest.mark.parametrize("text", ["key string, values array<long>", "key string,", "key varchar(3)", ""])
def test_text_of_other_than_plain_types_needs_a_session(text):
    with pytest.raises(InvalidInputError, match=r"without Spark.*Start a session"):
        KeyedStreamHarness(text, "key")
