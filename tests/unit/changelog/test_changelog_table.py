"""The table of uploads by itself: every short history of one upload, and the queue before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from stateline.changelog import ChangelogSettings
from stateline.changelog.upload_table import LIFE, Attempts, RetryPolicy, UploadQueue
from tests.unit.changelog.worlds import task_of


class History:
    """One upload and what the world did to it; replayed from its beginning, as the table has no copies."""

    def __init__(self, policy: RetryPolicy, moves: tuple[tuple[Any, ...], ...] = ()) -> None:
        self.attempts = Attempts(policy)
        self.running: dict[int, bool] = {}  # Attempt -> whether it is in time.
        self.is_due_later = False
        self.seen: Counter[str] = Counter()
        self.successes = 0
        self.closed = False
        self.step("due")
        for move in moves:
            self.step(*move)

    def moves(self) -> Iterator[tuple[Any, ...]]:
        """What may happen next."""
        if self.is_due_later:
            yield ("due",)
        if not self.closed:
            yield ("closed",)
        for attempt, in_time in self.running.items():
            yield ("succeeded", attempt, None)
            yield ("broke", attempt, OSError())
            yield ("broke", attempt, ValueError())
            if in_time:
                yield ("late", attempt, TimeoutError())

    def step(self, event: Any, attempt: int = 0, error: BaseException | None = None) -> None:
        had_ended = self.attempts.has_ended
        could_go_on = self.is_due_later or any(in_time for one, in_time in self.running.items() if one != attempt)
        if event == "due":
            self.is_due_later = False
        if event == "late":
            self.running[attempt] = False
        elif attempt:
            del self.running[attempt]
            self.successes += event == "succeeded"
        self.closed = self.closed or event == "closed"
        instruction = self.attempts.on(event, attempt, error)
        self.seen[instruction] += 1
        if instruction == "start":
            assert not had_ended, "nothing starts after the end"
            self.running[self.attempts.started] = True
        if instruction == "repeat":
            assert not had_ended
            self.is_due_later = True
        if instruction == "fail" and event != "closed":
            assert not could_go_on, "an attempt is in time or is to come"
        if instruction in ("complete", "discard"):
            assert event == "succeeded", "only a result is used or taken back"
        self.check()

    def check(self) -> None:
        attempts, seen = self.attempts, self.seen
        assert attempts.has_ended == (seen["complete"] + seen["fail"] == 1), "it ends exactly once"
        assert seen["complete"] + seen["fail"] <= 1
        assert seen["complete"] + seen["discard"] == self.successes, "every success but the first is discarded once"
        assert seen["start"] == attempts.started <= attempts.policy.max_attempts
        assert sum(self.running.values()) <= 1, "one attempt at a time is in time"
        if not attempts.has_ended:
            assert self.is_due_later or any(self.running.values()), "somebody will bring it to an end"
            late = any(not in_time for in_time in self.running.values())
            assert attempts.state == "racing" or not late, "what may still succeed is known"


@pytest.mark.parametrize("max_attempts", [1, 2, 3])
def test_every_short_history_of_an_upload_ends_it_once_and_discards_each_late_success(max_attempts: int) -> None:
    policy = RetryPolicy.fixed(max_attempts, 1, 0.5)
    ways: list[tuple[tuple[Any, ...], ...]] = [()]
    whole = 0
    states: set[str] = set()
    while ways:
        way = ways.pop()
        history = History(policy, way)
        moves = list(history.moves())
        states.add(history.attempts.state)
        whole += not moves
        ways += [(*way, move) for move in moves]
    assert whole > 0
    assert states == {"in flight", "done", "failed"} | ({"queued", "racing"} if max_attempts > 1 else set())


def test_every_step_of_the_table_leads_to_a_state_of_the_table() -> None:
    states = {state for state, _ in LIFE}
    assert {after for after, _ in LIFE.values()} <= states
    for (state, event), (after, instruction) in LIFE.items():
        if state in ("done", "failed"):
            assert (after, event, instruction) == (state, "succeeded", "discard"), "an end is an end"


queue_steps = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.lists(st.integers(0, 15), min_size=1, max_size=3)),
        st.tuples(st.just("take"), st.booleans()),
        st.tuples(st.just("leave"), st.none()),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(queue_steps, st.sampled_from([0.0, 1.0]), st.sampled_from([1, 10, 20]))
def test_the_queue_keeps_its_limit_its_order_and_the_bounds_of_batches(
    steps: list[Any], delay: float, batch_bytes: int
) -> None:
    made = ChangelogSettings(persist_delay=delay, persist_size_threshold=batch_bytes, max_in_flight=20)
    queue = UploadQueue(made)
    arrived: list[Any] = []
    started: list[list[Any]] = []
    out: list[Any] = []
    for kind, value in steps:
        if kind == "arrive":
            task = task_of(*value)
            if queue.has_room_for(task):
                queue.enter(queue.place_of(task, 0.0))
                arrived.append(task)
                assert task.taken
            else:
                assert queue.throttle.in_flight + min(task.size, 20) > 20, "there was room"
        elif kind == "take":
            batches = queue.take(only_full=value)
            started += batches
            out += [place for batch in batches for place in batch]
            if not value:
                assert len(queue) == 0
            if delay == 0:
                assert all(len(batch) == 1 for batch in batches)
        elif out:
            queue.leave([out.pop(0)])
        waiting = arrived[sum(map(len, started)) :]
        assert len(queue) == len(waiting)
        assert queue.bytes == sum(task.size for task in waiting)
        held = [place.task.size for place in out] + [task.size for task in waiting]
        assert queue.throttle.in_flight == sum(min(size, 20) for size in held) <= 20
    assert [place.task for batch in started for place in batch] == arrived[: sum(map(len, started))]
    for batch in started:
        assert len(batch) == 1 or sum(place.task.size for place in batch) <= batch_bytes


def test_who_waits_is_served_in_the_order_of_arrival() -> None:
    queue = UploadQueue(ChangelogSettings(persist_size_threshold=10, max_in_flight=10))
    first, large, small = task_of(5), task_of(10), task_of(1)
    queue.enter(queue.place_of(first, 0.0))
    queue.waiting += [large, small]
    assert not queue.has_room_for(small), "a small task overtakes a large one"
    queue.leave(queue.take(only_full=False)[0])
    assert queue.has_room_for(large)
    assert not queue.has_room_for(small)


def test_a_task_that_cannot_enter_leaves_the_queue_as_it_was() -> None:
    class Untakable:
        size, change_sets = 3, ()

        def __setattr__(self, name: str, value: object) -> None:
            raise KeyboardInterrupt

    queue = UploadQueue(ChangelogSettings(persist_size_threshold=10, max_in_flight=10))
    queue.enter(queue.place_of(task_of(2), 0.0))
    with pytest.raises(KeyboardInterrupt):
        queue.enter(queue.place_of(Untakable(), 0.0))  # type: ignore[arg-type]
    assert (len(queue), queue.bytes, queue.throttle.in_flight) == (1, 2, 2)
