"""The tables by themselves: every short history of one upload, the room before it, and the sets of a writer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stateline.changelog import ChangelogSettings, StateChangeSet, UploadResult
from stateline.changelog.set_table import SetTable, Snapshot
from stateline.changelog.upload_table import LIFE, Attempts, Batch, RetryPolicy, UploadRoom
from stateline.errors import NotFoundError, OutcomeUnknownError, UnavailableError
from tests.unit.changelog.worlds import result_of, task_of


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
        if event == "closed":
            assert self.attempts.has_ended, "nobody waits any more"
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


class Request:
    """One history of a request: which attempts run, and what the others said."""

    def __init__(self, policy: RetryPolicy, way: tuple[tuple[str, int, type[OSError] | None], ...]) -> None:
        self.attempts = Attempts(policy, is_request=True)
        self.running: set[int] = set()
        self.errors: list[OSError] = []
        self._start()
        for event, attempt, kind in way:
            self._follow(event, attempt, None if kind is None else kind("told"))

    def moves(self) -> Iterator[tuple[str, int, type[OSError] | None]]:
        if self.attempts.has_ended:
            return
        if self.attempts.started in self.running and self.attempts.may_be_late:
            yield "late", self.attempts.started, TimeoutError
        for attempt in self.running:
            yield "succeeded", attempt, None
            for kind in (UnavailableError, OutcomeUnknownError, NotFoundError):
                yield "broke", attempt, kind

    def _start(self) -> None:
        assert self.attempts.on("due") == "start"
        self.running.add(self.attempts.started)

    def _follow(self, event: Any, attempt: int, error: OSError | None) -> None:
        instruction = self.attempts.on(event, attempt, error)
        if event == "late":
            assert instruction == "repeat"
            assert self.attempts.delay == 0
            self._start()
            return
        self.running.discard(attempt)
        if error is None:
            assert instruction == "complete"
            return
        self.errors.append(error)
        is_answer = isinstance(error, NotFoundError)
        assert instruction == ("fail" if is_answer or not self.running else "nothing")
        if instruction == "fail":
            assert self.attempts.error in self.errors
            uncertain = any(isinstance(one, OutcomeUnknownError) for one in self.errors)
            assert type(self.attempts.error) is type(error) or uncertain
            assert isinstance(self.attempts.error, OutcomeUnknownError) == (uncertain and not is_answer)


@pytest.mark.parametrize("max_attempts", [1, 2, 3])
def test_every_short_history_of_a_request_ends_with_an_answer_or_when_nothing_is_under_way(max_attempts: int) -> None:
    policy = RetryPolicy.fixed(max_attempts, 1, 0.5)
    ways: list[tuple[tuple[str, int, type[OSError] | None], ...]] = [()]
    endings = set()
    while ways:
        way = ways.pop()
        request = Request(policy, way)
        ways += [(*way, move) for move in request.moves()]
        if request.attempts.has_ended:
            endings.add((request.attempts.state, len(request.running)))
    left = {(state, left) for state in ("done", "failed") for left in range(max_attempts)}
    assert endings == left


def test_every_step_of_the_table_leads_to_a_state_of_the_table() -> None:
    states = {state for state, _ in LIFE}
    assert {after for after, _ in LIFE.values()} <= states
    for (state, event), (after, instruction) in LIFE.items():
        if state in ("done", "failed"):
            assert (after, event, instruction) == (state, "succeeded", "discard"), "an end is an end"


queue_steps = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.lists(st.integers(0, 15), min_size=1, max_size=3)),
        st.tuples(st.just("leave"), st.none()),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(queue_steps, st.sampled_from([0.0, 1.0]), st.sampled_from([1, 10, 20]))
def test_the_room_keeps_its_limit_and_the_bounds_of_batches(steps: list[Any], delay: float, batch_bytes: int) -> None:
    made = ChangelogSettings(persist_delay=delay, persist_size_threshold=batch_bytes, max_in_flight=20)
    room, batch = UploadRoom(made), Batch()
    on_their_way: list[Batch] = []
    for kind, value in steps:
        if kind == "arrive":
            task = task_of(*value)
            if not room.has_room_for(task):
                assert room.throttle.in_flight + min(task.size, 20) > 20, "there was room"
                continue
            if not room.fits(batch, task):
                assert delay == 0 or batch.bytes + task.size > batch_bytes, "there was room in the batch"
                on_their_way.append(batch)
                batch = Batch()
            room.enter(batch, batch.with_task(task, 0.0))
            assert task.taken
            assert batch.bytes == sum(place.task.size for place in batch.places)
            assert len(batch.places) == 1 or (batch.bytes <= batch_bytes and delay > 0)
            assert room.is_full(batch) == (delay == 0 or batch.bytes >= batch_bytes)
        elif on_their_way:
            gone = on_their_way.pop(0)
            tasks = [place.task for place in gone.places]
            assert room.leave(gone) == tasks
            assert room.leave(gone) == [], "the room is given back once"
        held = [place.task.size for one in (*on_their_way, batch) for place in one.places]
        assert room.throttle.in_flight == sum(min(size, 20) for size in held) <= 20


def test_who_waits_is_served_in_the_order_of_arrival() -> None:
    room, batch = UploadRoom(ChangelogSettings(persist_size_threshold=10, max_in_flight=10)), Batch()
    first, large, small = task_of(5), task_of(10), task_of(1)
    room.enter(batch, batch.with_task(first, 0.0))
    room.waiting += [large, small]
    assert not room.has_room_for(small), "a small task overtakes a large one"
    assert room.is_full(batch), "a batch waits for more tasks while others wait for its room"
    room.leave(batch)
    assert room.has_room_for(large)
    assert not room.has_room_for(small)


def test_a_task_that_cannot_enter_leaves_everything_as_it_was() -> None:
    class Untakable:
        size, change_sets = 3, ()

        def __setattr__(self, name: str, value: object) -> None:
            raise KeyboardInterrupt

    room, batch = UploadRoom(ChangelogSettings(persist_size_threshold=10, max_in_flight=10)), Batch()
    room.enter(batch, batch.with_task(task_of(2), 0.0))
    with pytest.raises(KeyboardInterrupt):
        room.enter(batch, batch.with_task(Untakable(), 0.0))  # type: ignore[arg-type]
    assert (len(batch.places), batch.bytes, room.throttle.in_flight) == (1, 2, 2)


class Sets(RuleBasedStateMachine):
    """The table of a writer's sets against a list of what was released, given away and is still named."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SetTable()
        self.sets: list[StateChangeSet] = []
        self.results: list[UploadResult] = []
        self.released: list[str] = []
        self.given: set[str] = set()
        self.undecided: list[Snapshot] = []
        self.waiting: list[Snapshot] = []

    def release(self, results: Any) -> None:
        for result in results:
            name = result.handle.name
            assert name not in self.released, "it is released once"
            assert self.table.uploaded.get(result.sequence_number.value) is not result, "the writer needs it"
            assert all(result not in snapshot.results.values() for snapshot in self.undecided), "a snapshot names it"
            self.released.append(name)

    @rule()
    def cut(self) -> None:
        [change_set] = task_of(1, first=len(self.sets)).change_sets
        self.sets.append(change_set)
        self.table.waiting.put(change_set)

    @rule()
    def send(self) -> None:
        self.table.sent(list(self.table.waiting.values()))
        assert not self.table.waiting
        assert (self.table.waiting.weight, self.table.failed.weight) == (0, 0)

    @precondition(lambda self: self.sets)
    @rule(data=st.data(), count=st.integers(1, 3))
    def arrive(self, data: st.DataObject, count: int) -> None:
        """Also twice, as after an interrupt, which may have sent a set again."""
        numbers = data.draw(st.lists(st.integers(0, len(self.sets) - 1), min_size=1, max_size=count, unique=True))
        results = [result_of(self.sets[number], f"object-{len(self.results)}-{number}") for number in numbers]
        self.results += results
        for snapshot in self.table.arrived(results):
            assert len(snapshot.results) == snapshot.end - snapshot.start
            self.table.wait.pop(snapshot)
            self.waiting.remove(snapshot)
        for snapshot in self.waiting:
            assert {number for number in numbers if number in snapshot} <= set(snapshot.results)
        self.release([result for result in results if not self.table.keeps(result)])

    @precondition(lambda self: self.table.in_flight)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.table.in_flight)))
        for snapshot in self.table.broken([number]):
            assert number in snapshot
            self.undecided = [one for one in self.undecided if one is not snapshot]
            self.release(self.table.let_go([snapshot]))
            self.table.wait.pop(snapshot)
            self.waiting.remove(snapshot)
        assert not any(number in snapshot for snapshot in self.waiting), "somebody waits for what will not come"
        self.table.failed_for_good([number])
        if number >= self.table.lowest:
            assert self.table.waiting[number] is self.table.failed[number] is self.sets[number], "its bytes are kept"

    @rule(back=st.integers(0, 4), checkpoint=st.integers(0, 3))
    def persist(self, back: int, checkpoint: int) -> None:
        start = max(self.table.lowest, len(self.sets) - back)
        snapshot = Snapshot(start, len(self.sets), checkpoint, None)  # type: ignore[arg-type]
        self.table.begin(snapshot)
        self.undecided.append(snapshot)
        if snapshot.is_complete:
            self.table.wait.pop(snapshot)
        else:
            self.waiting.append(snapshot)

    @rule(checkpoint=st.integers(0, 3))
    def confirm(self, checkpoint: int) -> None:
        decided = [one for one in self.undecided if one.checkpoint_id <= checkpoint and one not in self.waiting]
        given = self.table.confirmed(self.table.lowest, len(self.sets), checkpoint)
        assert [result.handle.name for result in given if result.handle.name in self.released] == []
        for snapshot in decided:
            if snapshot.checkpoint_id == checkpoint:
                named = [one for number, one in snapshot.results.items() if number >= self.table.lowest]
                assert all(result in given for result in named), "the checkpoint owns what it names"
        self.given |= {result.handle.name for result in given}
        self.undecided = [one for one in self.undecided if one not in decided]
        self.release(self.table.let_go(self.table.complete_up_to(checkpoint)))

    @rule(checkpoint=st.integers(0, 3))
    def reset(self, checkpoint: int) -> None:
        aborted = [one for one in self.table.name if one.checkpoint_id == checkpoint]
        self.undecided = [one for one in self.undecided if one.checkpoint_id != checkpoint]
        self.release(self.table.let_go(aborted))

    @rule(to=st.integers(0, 10))
    def truncate(self, to: int) -> None:
        self.release(self.table.truncate(min(to, len(self.sets))))

    @invariant()
    def every_set_is_in_one_place(self) -> None:
        table = self.table
        places = [*table.waiting, *table.in_flight, *table.uploaded]
        assert len(places) == len(set(places))
        assert set(table.failed) <= set(table.waiting)
        assert all(number >= table.lowest for number in (*table.waiting, *table.uploaded))
        for sets in (table.waiting, table.failed):
            assert sets.weight == sum(one.weight for one in sets.values())

    @invariant()
    def what_nobody_needs_is_released(self) -> None:
        kept = {result.handle.name for result in self.table.uploaded.values()}
        named = {result.handle.name for snapshot in self.undecided for result in snapshot.results.values()}
        everything = {result.handle.name for result in self.results}
        assert set(self.released) == everything - kept - named


TestSets = Sets.TestCase
TestSets.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
