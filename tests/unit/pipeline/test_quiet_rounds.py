"""Rounds without rows: when they come, that none runs beside a batch or after the end, and what a failure does."""

from __future__ import annotations

import threading

import pytest

from stateline.environment import Environment, SystemExecutors, system_environment
from stateline.errors import UserCodeError
from stateline.pipeline.idle import QuietRounds
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.state.aggregate import count
from stateline.testing import ManualClock
from tests.unit.pipeline.engine import Engine
from tests.unit.pipeline.test_modes_and_windows import SCHEMA, TUMBLING, WATERMARK, rows


class HeldTimers(SystemExecutors):
    """Timers that go off when the test says so, on its own thread; work is done at once."""

    def __init__(self):
        self.waiting = []
        self.closed = False

    def executor(self, name, num_threads):
        return self

    def call_later(self, delay_seconds, function):
        timer = HeldTimer(delay_seconds, function, self.waiting)
        self.waiting.append(timer)
        return timer

    def submit(self, function, *args):
        assert not self.closed
        function(*args)

    def close(self, *, wait=True):
        self.closed = True
        self.waiting.clear()

    def go_off(self):
        (timer,) = self.waiting
        self.waiting.clear()
        timer.function()

    @property
    def delays(self):
        return [timer.delay for timer in self.waiting]


class HeldTimer:
    def __init__(self, delay, function, waiting):
        self.delay, self.function, self._waiting = delay, function, waiting

    def cancel(self):
        waited = self in self._waiting
        if waited:
            self._waiting.remove(self)
        return waited


class Bench:
    """Rounds over a time that the test sets."""

    def __init__(self):
        self.timers, self.due, self.acted, self.stopped, self.error = HeldTimers(), None, 0, 0, None
        self.is_active = True
        environment = Environment(clock=ManualClock(100.0), executors=self.timers)
        self.rounds = QuietRounds(environment, 5.0, lambda: self.due, self.act, self.stop)

    def act(self):
        if not self.is_active:
            return False
        self.acted += 1
        self.due = None
        if self.error is not None:
            raise self.error
        return True

    def stop(self):
        self.stopped += 1

    def batch(self, due):
        with self.rounds.batch():
            assert self.timers.delays == [], "no round begins now"
            self.due = due


def test_a_round_comes_when_it_is_due_and_never_before_the_pause():
    bench = Bench()
    bench.rounds.start()
    assert bench.timers.delays == []
    bench.batch(due=160.0)
    assert bench.timers.delays == [60.0]
    bench.batch(due=0)
    assert bench.timers.delays == [5.0], "the time has come, but perhaps the next batch does it"
    bench.batch(due=102.0)
    bench.timers.go_off()
    assert (bench.acted, bench.timers.delays) == (1, []), "nothing more is due"


def test_what_is_due_at_the_start_is_done_without_a_batch():
    bench = Bench()
    bench.due = 0
    assert bench.timers.delays == []
    bench.rounds.start()
    bench.timers.go_off()
    assert bench.acted == 1


def test_a_stream_that_ends_by_itself_makes_no_rounds():
    bench = Bench()
    bench.batch(due=0)
    assert bench.timers.delays == []


def test_no_round_begins_after_the_end():
    bench = Bench()
    bench.rounds.start()
    bench.batch(due=0)
    (timer,) = bench.timers.waiting
    bench.rounds.close()
    bench.rounds.close()
    timer.function()
    bench.batch(due=0)
    assert (bench.acted, bench.timers.delays) == (0, [])


def test_a_round_that_fails_ends_the_query_and_every_later_batch():
    bench = Bench()
    bench.rounds.start()
    bench.batch(due=0)
    bench.error = UserCodeError("a timer raised")
    bench.timers.go_off()
    assert (bench.acted, bench.stopped, bench.timers.delays) == (1, 1, [])
    assert bench.rounds.failure is bench.error
    with pytest.raises(UserCodeError, match="a timer raised"), bench.rounds.batch():
        pytest.fail("a batch ran")
    assert bench.timers.delays == []


def test_a_batch_that_fails_gives_way_to_rounds():
    bench = Bench()
    bench.rounds.start()
    bench.due = 0
    with pytest.raises(ZeroDivisionError), bench.rounds.batch():
        raise ZeroDivisionError
    assert bench.timers.delays == [5.0]


def test_a_query_that_has_ended_unnoticed_is_not_asked_for_ever():
    bench = Bench()
    bench.rounds.start()
    bench.batch(due=0)
    bench.is_active = False
    bench.timers.go_off()
    assert (bench.acted, bench.timers.delays) == (0, [])


def test_a_batch_waits_for_a_round_and_the_end_waits_too():
    acting, go_on, order = threading.Event(), threading.Event(), []

    def act():
        acting.set()
        go_on.wait(60)
        order.append("round")
        return True

    due = iter([0, None, None])
    rounds = QuietRounds(system_environment(), 0.0, lambda: next(due), act, lambda: None)
    rounds.start()
    assert acting.wait(60)

    def batch():
        with rounds.batch():
            order.append("batch")

    thread = threading.Thread(target=batch)
    thread.start()
    go_on.set()
    thread.join(60)
    rounds.close()
    assert order == ["round", "batch"]


def test_a_round_closes_what_the_watermark_has_passed_once_and_a_replay_finds_the_batch_decided():
    program = AggregateProgram.bind(
        SCHEMA, ["key"], {"n": count()}, output_mode="append", window=TUMBLING, watermark=WATERMARK
    )
    engine = Engine(program, SCHEMA, watermark=WATERMARK)
    coordinator = engine.coordinator
    assert coordinator.act_on_time(dict) is None, "there is no batch to go on from"
    engine.run(rows(("a", 1), ("b", 30)))
    assert coordinator.due_at() == 0
    acted = coordinator.act_on_time(dict)
    assert (acted.checkpoint.checkpoint_id, acted.checkpoint.batch_id) == (1, 0)
    assert [row["key"] for row in engine.output[1]] == ["a"]
    assert (coordinator.due_at(), coordinator.act_on_time(dict)) == (None, None)
    restarted = Engine(program, SCHEMA, root=engine.root, watermark=WATERMARK)
    assert restarted.run(rows(("a", 1), ("b", 30)), batch_id=0) == acted.checkpoint
    assert restarted.coordinator.due_at() is None
    assert restarted.run(rows(("c", 31))).checkpoint_id == 2


def test_a_round_for_which_no_thread_is_to_be_had_comes_after_another_pause(monkeypatch):
    bench = Bench()
    bench.batch(due=101.0)
    bench.rounds.start()

    def refused(function, *args):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(bench.timers, "submit", refused)
        bench.timers.go_off()
    assert (bench.acted, bench.timers.delays) == (0, [5.0])
    bench.timers.go_off()
    assert bench.acted == 1
