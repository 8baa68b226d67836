"""The writer: numbers, persist in every situation, confirm, reset, truncate, close. The test ends the uploads."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from stateline.changelog import ChangelogSettings, ChangelogStorage, SequenceNumber, StateChange, UploadTask
from stateline.errors import ClosedError, InvalidInputError, UnavailableError
from stateline.key_groups import KeyGroupRange
from tests.unit.changelog.worlds import ManualWorld, RecordingScheduler, memory_store, results_of


class Bench:
    """A writer whose uploads the test completes, in a storage whose deletes it sees."""

    def __init__(self, **settings: Any) -> None:
        self.world = ManualWorld()
        self.store = memory_store(self.world)
        self.scheduler = RecordingScheduler()
        self.storage = ChangelogStorage.open(
            self.store,
            ChangelogSettings(**settings),
            job_id="job",
            scheduler=self.scheduler,
            environment=self.world.environment,
        )
        self.writer = self.storage.create_writer("operator", KeyGroupRange(0, 127))

    def append(self, *values: bytes) -> int:
        """Appends, closes the set, returns its number."""
        for value in values:
            self.writer.append(5, value)
        return self.writer.next_sequence_number().value - 1

    def persist(self, start: int = 0, checkpoint_id: int = 1) -> Any:
        return self.writer.persist(SequenceNumber(start), checkpoint_id)

    def complete(self, index: int) -> None:
        """Completes a task; its object is tracked with one reference per set, as an uploader would do."""
        task = self.scheduler.tasks[index]
        name = f"object-{index}"
        self.store.inner.put(name, b"x")
        self.storage.registry.start_tracking(_Named(name), len(task.change_sets))
        self.scheduler.complete(index, "object")
        self.writer.run_callbacks()

    def fail(self, index: int, error: BaseException | None = None) -> None:
        self.scheduler.fail(index, error)
        self.writer.run_callbacks()

    def exists(self, index: int) -> bool:
        self.world.run()
        return f"object-{index}" in self.store.names()

    def is_tracked(self, index: int) -> bool:
        return self.storage.registry.is_tracked(_Named(f"object-{index}"))


class _Named:
    def __init__(self, name: str) -> None:
        self.name = name


def numbers_in(snapshot: Any) -> list[int]:
    return [segment.sequence_number for segment in snapshot.remote.segments]


def sn(value: int) -> SequenceNumber:
    return SequenceNumber(value)


# -- numbers ---------------------------------------------------------------------------------------------------------


def test_numbers_begin_at_zero_and_grow_with_each_closed_set() -> None:
    bench = Bench()
    assert bench.writer.initial_sequence_number() == sn(0)
    assert bench.writer.next_sequence_number() == sn(0)  # Nothing to close.
    bench.writer.append(1, b"a")
    bench.writer.append(2, b"b")
    assert bench.writer.next_sequence_number() == sn(1)
    assert bench.writer.next_sequence_number() == sn(1)
    bench.writer.append_meta(b"m")
    assert bench.writer.next_sequence_number() == sn(2)
    bench.writer.append_batch([1, 2], [b"a", b"b"])
    assert bench.writer.next_sequence_number() == sn(3)
    bench.writer.append_batch([], [])
    assert bench.writer.next_sequence_number() == sn(3)


def test_changes_of_all_kinds_stay_in_the_order_of_appending() -> None:
    bench = Bench()
    bench.writer.append(1, b"a")
    bench.writer.append_batch(np.array([1, 0]), [b"b", b"c"])
    bench.writer.append(1, bytearray(b"d"))
    bench.writer.append_meta(memoryview(b"m"))
    bench.writer.append_batch([1], [b"e"])
    bench.persist()
    [task] = bench.scheduler.tasks
    [change_set] = task.change_sets
    assert change_set.changes == tuple(
        StateChange(*pair) for pair in [(1, b"a"), (1, b"b"), (0, b"c"), (1, b"d"), (-1, b"m"), (1, b"e")]
    )
    assert change_set.size == 6


def test_a_value_is_copied() -> None:
    bench = Bench()
    value = bytearray(b"before")
    bench.writer.append(1, value)
    value[:] = b"after!"
    bench.persist()
    assert bench.scheduler.tasks[0].change_sets[0].changes == (StateChange(1, b"before"),)


@pytest.mark.parametrize("key_group", [-1, 128, 2**40, -(2**40)])
def test_a_key_group_outside_the_range_is_refused_and_nothing_is_added(key_group: int) -> None:
    bench = Bench()
    with pytest.raises(ValueError, match=r"outside \[0, 127\]"):
        bench.writer.append(key_group, b"x")
    with pytest.raises(InvalidInputError):
        bench.writer.append_batch([0, key_group], [b"a", b"b"])
    assert bench.writer.next_sequence_number() == sn(0)
    bench.writer.append(0, b"x")
    bench.writer.append(127, b"x")


@pytest.mark.parametrize(
    ("key_group", "value"),
    [(5, None), (5, "text"), (5, 5), (5, [1]), (5.5, b"x"), ("5", b"x"), (None, b"x"), (5, memoryview(b"abcd")[::2])],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_change_is_refused_and_nothing_is_added(key_group: Any, value: Any) -> None:
    bench = Bench()
    bench.writer.append(1, b"a")
    with pytest.raises(InvalidInputError, match="operator"):
        bench.writer.append(key_group, value)
    if key_group == 5:
        with pytest.raises(InvalidInputError):
            bench.writer.append_meta(value)
    bench.writer.append(np.int64(2), b"b")
    bench.persist()
    assert bench.scheduler.tasks[0].change_sets[0].changes == (StateChange(1, b"a"), StateChange(2, b"b"))


def test_a_change_that_no_block_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateline.changelog.writer.MAX_CHANGE_BYTES", 10)
    bench = Bench()
    bench.writer.append(1, b"a" * 4)
    with pytest.raises(InvalidInputError, match="11 bytes"):
        bench.writer.append(1, b"b" * 11)
    bench.writer.append(2, b"c" * 3)
    bench.persist()
    assert [change.value for change in bench.scheduler.tasks[0].change_sets[0].changes] == [b"aaaa", b"ccc"]


def test_a_writer_needs_key_groups_within_bounds() -> None:
    bench = Bench()
    for bad in (KeyGroupRange.EMPTY, KeyGroupRange(0, 32768), None, (0, 1)):
        with pytest.raises(InvalidInputError):
            bench.storage.create_writer("operator", bad)


# -- pre-emptive persist ---------------------------------------------------------------------------------------------


def test_the_threshold_itself_starts_an_upload() -> None:
    bench = Bench(preemptive_persist_threshold=10)
    bench.writer.append(1, b"x" * 9)
    assert bench.scheduler.tasks == []
    bench.writer.append(1, b"x")
    assert bench.scheduler.numbers() == [[0]]
    assert bench.writer.next_sequence_number() == sn(1)


def test_threshold_zero_uploads_every_append() -> None:
    bench = Bench(preemptive_persist_threshold=0)
    bench.writer.append(1, b"")
    bench.writer.append_meta(b"")
    bench.writer.append_batch([1], [b""])
    assert bench.scheduler.numbers() == [[0], [1], [2]]


def test_batches_and_single_changes_count_together() -> None:
    bench = Bench(preemptive_persist_threshold=10)
    bench.writer.append(1, b"x" * 4)
    bench.writer.append_batch([1], [b"x" * 5])
    assert bench.scheduler.tasks == []
    bench.writer.append_meta(b"x")
    assert bench.scheduler.numbers() == [[0]]


def test_an_upload_without_a_checkpoint_takes_older_sets_along() -> None:
    bench = Bench(preemptive_persist_threshold=10)
    bench.append(b"old")
    bench.append(b"older")
    bench.writer.append(1, b"x" * 10)
    assert bench.scheduler.numbers() == [[0, 1, 2]]


def test_sets_that_are_only_cut_off_do_not_pile_up() -> None:
    bench = Bench(persist_size_threshold=100, preemptive_persist_threshold=1000)
    for _ in range(9):
        bench.append(b"x" * 30)
    assert sum(task.size for task in bench.scheduler.tasks) >= 180


def test_a_large_batch_is_cut_into_sets() -> None:
    bench = Bench(persist_size_threshold=100, preemptive_persist_threshold=50)
    bench.writer.append_batch([1] * 25, [b"x" * 10] * 25)
    assert bench.scheduler.numbers() == [[0], [1], [2]]
    assert [task.size for task in bench.scheduler.tasks] == [100, 100, 50]


@pytest.mark.parametrize(
    "append",
    [
        lambda writer: writer.append(1, b""),
        lambda writer: writer.append_meta(b""),
        lambda writer: writer.append_batch([1], [b""]),
    ],
    ids=["append", "append_meta", "append_batch"],
)
def test_empty_changes_fill_a_set_too(append: Any) -> None:
    bench = Bench(preemptive_persist_threshold=1000, persist_size_threshold=1000)
    for _ in range(100):
        assert bench.scheduler.tasks == []
        append(bench.writer)
    [task] = bench.scheduler.tasks
    assert [len(change_set) for change_set in task.change_sets] == [100]
    assert task.change_sets[0].size == 0


def test_empty_changes_count_towards_the_bounds_of_batches_and_of_bytes_in_flight() -> None:
    bench = Bench(preemptive_persist_threshold=1000, persist_size_threshold=1000)
    bench.writer.append_batch([1] * 250, [b""] * 250)
    bench.persist()
    assert [[len(change_set) for change_set in task.change_sets] for task in bench.scheduler.tasks] == [
        [100],
        [100],
        [50],
    ]
    assert [task.size for task in bench.scheduler.tasks] == [1000, 1000, 500]


def test_empty_changes_that_failed_are_refused_at_the_limit() -> None:
    bench = Bench(preemptive_persist_threshold=500, persist_size_threshold=500, max_in_flight=1000)
    for _ in range(3):
        bench.writer.append_batch([1] * 50, [b""] * 50)
        for index in range(len(bench.scheduler.tasks)):
            bench.fail(index)
        bench.scheduler.tasks.clear()
    with pytest.raises(UnavailableError, match="1500 bytes"):
        bench.writer.append(1, b"")


def test_sets_that_are_only_cut_off_do_not_pile_up_however_small_they_are() -> None:
    bench = Bench()
    for _ in range(5000):
        bench.append(b"x")
    assert bench.scheduler.numbers()[0] == list(range(4096))


def _calls(function: Any) -> int:
    """How many functions are called, which no clock decides."""
    count = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_the_work_for_many_sets_grows_with_their_number() -> None:
    def cut_off(sets: int) -> Bench:
        bench = Bench()
        for _ in range(sets):
            bench.append(b"x")
        return bench

    def live(sets: int) -> None:
        bench = cut_off(sets)
        bench.persist()
        bench.complete(0)
        for number in range(sets):
            bench.writer.truncate(sn(number))

    for work in (cut_off, live):
        assert _calls(lambda: work(1600)) < 2.2 * _calls(lambda: work(800))  # noqa: B023


# -- persist ---------------------------------------------------------------------------------------------------------


def test_persist_checks_its_argument_in_this_order() -> None:
    bench = Bench()
    for _ in range(3):
        bench.append(b"x")
    bench.writer.truncate(sn(2))
    for bad in (None, 2, "2"):
        with pytest.raises(InvalidInputError, match="not a SequenceNumber"):
            bench.writer.persist(bad, 1)
    with pytest.raises(InvalidInputError, match="truncated"):
        bench.persist(1)
    with pytest.raises(InvalidInputError, match="growing"):
        bench.persist(4)
    bench.writer.append(1, b"active")
    with pytest.raises(InvalidInputError):
        bench.persist(4)  # The active set is 3 until persist has passed its checks.
    assert bench.scheduler.tasks == []
    assert bench.writer.next_sequence_number() == sn(4)


def test_persist_uploads_what_is_not_uploaded_in_one_task() -> None:
    bench = Bench()
    bench.append(b"aa")
    bench.writer.append(5, b"bbb")
    future = bench.persist()
    assert bench.scheduler.numbers() == [[0, 1]]
    assert not future.done()
    bench.complete(0)
    assert future.done()
    result = future.result()
    assert numbers_in(result) == [0, 1]
    assert result.local is None
    assert result.remote.key_group_range == KeyGroupRange(0, 127)
    assert (result.remote.state_size, result.remote.checkpointed_size) == (5, 5)


def test_persist_of_nothing_is_done_at_once() -> None:
    bench = Bench()
    future = bench.persist()
    assert future.done()
    assert future.result().remote.segments == ()
    assert future.result().remote.state_size == 0
    bench.append(b"a")
    assert bench.persist(1).result().remote.segments == ()
    assert bench.scheduler.tasks == []


def test_what_is_uploaded_is_not_sent_again() -> None:
    bench = Bench()
    bench.append(b"aa")
    bench.persist()
    bench.complete(0)
    future = bench.persist(checkpoint_id=2)
    assert future.done()
    assert (future.result().remote.state_size, future.result().remote.checkpointed_size) == (2, 0)
    bench.append(b"bbb")
    third = bench.persist(checkpoint_id=3)
    assert bench.scheduler.numbers() == [[0], [1]]
    bench.complete(1)
    assert numbers_in(third.result()) == [0, 1]
    assert (third.result().remote.state_size, third.result().remote.checkpointed_size) == (5, 3)


def test_what_is_in_flight_is_waited_for_and_not_sent_again() -> None:
    bench = Bench()
    bench.append(b"a")
    first = bench.persist(checkpoint_id=1)
    second = bench.persist(checkpoint_id=2)
    bench.append(b"b")
    third = bench.persist(checkpoint_id=3)
    assert bench.scheduler.numbers() == [[0], [1]]
    bench.complete(1)
    assert not any(future.done() for future in (first, second, third))
    bench.complete(0)
    assert numbers_in(first.result()) == numbers_in(second.result()) == [0]
    assert numbers_in(third.result()) == [0, 1]


def test_a_preemptive_upload_in_flight_is_reused() -> None:
    bench = Bench(preemptive_persist_threshold=5)
    bench.writer.append(1, b"x" * 5)
    future = bench.persist()
    assert bench.scheduler.numbers() == [[0]]
    bench.complete(0)
    assert numbers_in(future.result()) == [0]


def test_only_sets_from_the_given_number_on_are_sent() -> None:
    bench = Bench()
    bench.append(b"a")
    bench.append(b"b")
    future = bench.persist(1)
    assert bench.scheduler.numbers() == [[1]]
    bench.complete(0)
    assert numbers_in(future.result()) == [1]
    bench.persist(0)
    assert bench.scheduler.numbers() == [[1], [0]]


def test_a_task_never_exceeds_the_bound_of_a_batch() -> None:
    bench = Bench(persist_size_threshold=10, preemptive_persist_threshold=1000)
    for _ in range(5):
        bench.writer.append(1, b"x" * 4)
        bench.writer._rollover()
    future = bench.persist()
    assert bench.scheduler.numbers() == [[0, 1], [2, 3], [4]]
    for index in range(3):
        bench.complete(index)
    assert numbers_in(future.result()) == [0, 1, 2, 3, 4]


def test_a_failed_set_keeps_its_bytes_and_the_next_persist_sends_it_again() -> None:
    bench = Bench()
    bench.append(b"aa")
    bench.append(b"bb")
    error = OSError("gone")
    first = bench.persist()
    bench.fail(0, error)
    assert first.exception() is error
    second = bench.persist(checkpoint_id=2)
    assert bench.scheduler.numbers() == [[0, 1], [0, 1]]
    assert bench.scheduler.tasks[1].change_sets[0].changes == (StateChange(5, b"aa"),)
    bench.complete(1)
    assert numbers_in(second.result()) == [0, 1]


def test_after_a_partial_failure_only_what_failed_is_sent_again() -> None:
    bench = Bench()
    bench.append(b"a")
    first = bench.persist()
    bench.append(b"b")
    second = bench.persist(checkpoint_id=2)
    bench.fail(0)
    bench.complete(1)
    assert isinstance(first.exception(), OSError)
    assert isinstance(second.exception(), OSError)
    third = bench.persist(checkpoint_id=3)
    assert bench.scheduler.numbers() == [[0], [1], [0]]
    bench.complete(2)
    assert numbers_in(third.result()) == [0, 1]
    assert third.result().remote.checkpointed_size == 1


def test_a_failure_below_the_range_of_a_persist_does_not_touch_it() -> None:
    bench = Bench()
    bench.append(b"a")
    bench.persist()
    bench.append(b"b")
    later = bench.persist(1, checkpoint_id=2)
    bench.fail(0)
    bench.complete(1)
    assert numbers_in(later.result()) == [1]


def test_a_failure_without_a_checkpoint_is_swept_by_the_next_flush() -> None:
    bench = Bench(preemptive_persist_threshold=4)
    bench.writer.append(1, b"aaaa")
    bench.fail(0)
    bench.writer.append(1, b"bbbb")
    assert bench.scheduler.numbers() == [[0], [0, 1]]


def test_an_error_that_is_no_io_error_is_wrapped() -> None:
    bench = Bench()
    bench.append(b"a")
    future = bench.persist()
    bench.fail(0, ZeroDivisionError("a defect"))
    error = future.exception()
    assert isinstance(error, UnavailableError)
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_when_too_much_has_failed_append_refuses_until_persist_has_sent_it() -> None:
    bench = Bench(preemptive_persist_threshold=4, persist_size_threshold=10, max_in_flight=10)
    for _ in range(3):
        bench.writer.append(1, b"aaaa")
    for index in range(3):
        bench.fail(index, OSError("away"))
    for append in (
        lambda: bench.writer.append(1, b"x"),
        lambda: bench.writer.append_meta(b"x"),
        lambda: bench.writer.append_batch([1], [b"x"]),
    ):
        with pytest.raises(UnavailableError, match="away"):
            append()
    future = bench.persist()
    assert bench.scheduler.numbers()[3:] == [[0, 1], [2]]
    bench.writer.append(1, b"x")
    bench.complete(3)
    bench.complete(4)
    assert numbers_in(future.result()) == [0, 1, 2]


def test_an_interrupted_persist_leaves_its_sets_for_the_next() -> None:
    bench = Bench(persist_size_threshold=10, preemptive_persist_threshold=100)
    for _ in range(3):
        bench.writer.append(1, b"x" * 6)
        bench.writer._rollover()
    bench.scheduler.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        bench.persist()
    bench.scheduler.error = None
    future = bench.persist()
    assert sorted(number for task in bench.scheduler.numbers() for number in task) == [0, 1, 2]
    for index in range(3):
        bench.complete(index)
    assert numbers_in(future.result()) == [0, 1, 2]


def test_the_callbacks_run_on_the_owners_thread_only_when_it_comes_by() -> None:
    bench = Bench()
    bench.append(b"a")
    future = bench.persist()
    bench.scheduler.complete(0)
    assert not future.done()
    assert bench.writer.run_callbacks() == 1
    assert future.done()
    assert bench.writer.run_callbacks() == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda writer: writer.append(1, b"x"),
        lambda writer: writer.append_meta(b"x"),
        lambda writer: writer.append_batch([1], [b"x"]),
        lambda writer: writer.initial_sequence_number(),
        lambda writer: writer.next_sequence_number(),
        lambda writer: writer.persist(sn(0), 2),
        lambda writer: writer.confirm(sn(0), sn(1), 2),
        lambda writer: writer.reset(sn(0), sn(1), 2),
        lambda writer: writer.truncate(sn(0)),
        lambda writer: writer.truncate_and_close(sn(0)),
        lambda writer: writer.close(),
    ],
)
def test_every_method_runs_waiting_callbacks_first(call: Any) -> None:
    bench = Bench()
    bench.append(b"a")
    future = bench.persist()
    bench.scheduler.complete(0)
    call(bench.writer)
    assert numbers_in(future.result()) == [0]


def test_a_persist_cannot_be_cancelled_and_times_out_politely() -> None:
    bench = Bench()
    bench.append(b"a")
    future = bench.persist()
    assert not future.cancel()
    before = bench.world.time
    with pytest.raises(TimeoutError):
        future.result(timeout=3)
    with pytest.raises(TimeoutError):
        future.exception(timeout=0)
    assert bench.world.time == before + 3
    bench.world.executor("x", 1).call_later(1, lambda: bench.scheduler.complete(0) and None)
    assert numbers_in(future.result(timeout=3)) == [0]


CALLBACKS: dict[str, Any] = {
    "append": lambda bench: bench.writer.append(5, b"by the callback"),
    "next_sequence_number": lambda bench: bench.writer.next_sequence_number(),
    "persist": lambda bench: bench.persist(checkpoint_id=2).result(timeout=1),
    "confirm": lambda bench: bench.writer.confirm(sn(0), sn(1), 1),
    "reset": lambda bench: bench.writer.reset(sn(0), sn(1), 1),
    "truncate": lambda bench: bench.writer.truncate(sn(1)),
    "close": lambda bench: bench.writer.close(),
    "truncate_and_close": lambda bench: bench.writer.truncate_and_close(sn(0)),
    "run_callbacks": lambda bench: bench.writer.run_callbacks(),
}


@pytest.mark.parametrize("end", ["complete", "fail"])
@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback_of_a_persist_may_call_any_method_of_the_writer(name: str, end: str) -> None:
    bench = Bench()
    bench.append(b"a")
    first, other = bench.persist(), bench.persist()
    seen: list[Any] = []

    def call(_: Any) -> None:
        if name == "persist" and end == "fail":
            bench.world.executor("x", 1).submit(lambda: bench.scheduler.complete(1, "object"))
        seen.append(CALLBACKS[name](bench))

    first.add_done_callback(call)
    getattr(bench, end)(0)
    assert len(seen) == 1
    assert first.done()
    assert other.done()
    if name == "persist":
        assert numbers_in(seen[0]) == [0]


def test_a_callback_may_start_the_next_persist_again_and_again() -> None:
    bench = Bench()
    results: list[Any] = []

    def go_on(future: Any) -> None:
        results.append(numbers_in(future.result()))
        if len(results) < 20:
            bench.append(b"next")
            bench.persist(len(results), checkpoint_id=len(results) + 1).add_done_callback(go_on)

    bench.append(b"first")
    bench.persist().add_done_callback(go_on)
    for index in range(20):
        bench.complete(index)
    assert results == [[number] for number in range(20)]


# -- confirm and reset -----------------------------------------------------------------------------------------------


def persisted(bench: Bench, *, checkpoint_id: int = 1, start: int = 0) -> int:
    """One more set, persisted and completed; returns the index of its task."""
    bench.append(b"x")
    future = bench.persist(start, checkpoint_id)
    index = len(bench.scheduler.tasks) - 1
    bench.complete(index)
    assert future.done()
    return index


def test_confirmed_objects_belong_to_the_checkpoint() -> None:
    bench = Bench()
    index = persisted(bench)
    assert bench.is_tracked(index)
    bench.writer.confirm(sn(0), sn(1), 1)
    assert not bench.is_tracked(index)
    bench.writer.truncate(sn(1))
    assert bench.exists(index)
    bench.writer.confirm(sn(0), sn(1), 1)  # Repeated: harmless.


def test_unconfirmed_objects_are_deleted_when_they_are_truncated() -> None:
    bench = Bench()
    index = persisted(bench)
    bench.writer.reset(sn(0), sn(1), 1)
    assert bench.exists(index)
    bench.writer.truncate(sn(1))
    assert not bench.exists(index)


def test_after_an_abort_the_next_checkpoint_reuses_the_uploads() -> None:
    bench = Bench()
    persisted(bench)
    bench.writer.reset(sn(0), sn(1), 1)
    future = bench.persist(checkpoint_id=2)
    assert numbers_in(future.result()) == [0]
    assert len(bench.scheduler.tasks) == 1


def test_an_abort_while_uploading_keeps_the_upload_and_pins_nothing() -> None:
    bench = Bench()
    bench.append(b"a")
    future = bench.persist()
    bench.writer.reset(sn(0), sn(1), 1)
    bench.complete(0)
    assert numbers_in(future.result()) == [0]
    bench.writer.truncate(sn(1))
    assert not bench.exists(0)


def test_what_a_snapshot_names_survives_truncation_until_it_is_decided() -> None:
    for decide, survives in (("confirm", True), ("reset", False)):
        bench = Bench()
        index = persisted(bench)
        bench.writer.truncate(sn(1))
        assert bench.exists(index)
        getattr(bench.writer, decide)(sn(0), sn(1), 1)
        assert bench.exists(index) is survives
        assert not bench.is_tracked(index)


def test_a_set_truncated_while_in_flight_still_reaches_the_snapshot_that_waits_for_it() -> None:
    bench = Bench()
    bench.append(b"a")
    future = bench.persist()
    bench.writer.truncate(sn(1))
    bench.complete(0)
    assert numbers_in(future.result()) == [0]
    assert bench.exists(0)
    bench.writer.reset(sn(0), sn(1), 1)
    assert not bench.exists(0)


def test_a_set_truncated_while_in_flight_without_a_snapshot_is_released_on_arrival() -> None:
    bench = Bench(preemptive_persist_threshold=1)
    bench.writer.append(1, b"a")
    bench.writer.truncate(sn(1))
    bench.complete(0)
    assert not bench.exists(0)


def test_a_snapshot_that_still_waits_keeps_what_it_has_through_truncations() -> None:
    """Of two sets one is there, or arrives first, and both are truncated before the other arrives."""
    for order in ([0, 1], [1, 0]):
        for truncate_first in (True, False):
            bench = Bench(preemptive_persist_threshold=1)
            bench.writer.append(1, b"a")
            bench.writer.append(1, b"b")
            future = bench.persist()
            if truncate_first:
                bench.writer.truncate(sn(2))
            bench.complete(order[0])
            bench.writer.truncate(sn(2))
            assert bench.exists(order[0])
            bench.complete(order[1])
            assert numbers_in(future.result()) == [0, 1]
            assert bench.exists(0)
            assert bench.exists(1)
            bench.writer.reset(sn(0), sn(2), 1)
            assert not bench.exists(0)
            assert not bench.exists(1)


@pytest.mark.parametrize("end", ["fail", "reset", "close"])
def test_a_snapshot_that_does_not_come_about_keeps_nothing(end: str) -> None:
    bench = Bench(preemptive_persist_threshold=1)
    bench.writer.append(1, b"a")
    bench.writer.append(1, b"b")
    bench.persist()
    bench.complete(0)
    if end == "fail":
        bench.fail(1)
    elif end == "reset":
        bench.writer.reset(sn(0), sn(2), 1)
    bench.writer.truncate(sn(2))
    if end == "close":
        assert bench.exists(0)
        bench.writer.close()
    assert not bench.exists(0)


def test_a_newer_confirmation_ends_the_pins_of_older_checkpoints() -> None:
    bench = Bench()
    first = persisted(bench, checkpoint_id=1)
    second = persisted(bench, checkpoint_id=2, start=1)
    bench.writer.confirm(sn(1), sn(2), 2)
    assert bench.is_tracked(first)
    bench.writer.truncate(sn(1))
    assert not bench.exists(first)
    assert bench.exists(second)


def test_only_the_confirmed_range_changes_hands() -> None:
    bench = Bench()
    first, second = persisted(bench), persisted(bench, checkpoint_id=2)
    bench.writer.confirm(sn(1), sn(2), 2)
    assert bench.is_tracked(first)
    assert not bench.is_tracked(second)


def test_two_persists_of_one_checkpoint_pin_once() -> None:
    bench = Bench()
    index = persisted(bench)
    bench.persist()
    bench.writer.reset(sn(0), sn(1), 1)
    bench.writer.truncate(sn(1))
    assert not bench.exists(index)


@pytest.mark.parametrize("name", ["confirm", "reset"])
def test_confirm_and_reset_check_their_range(name: str) -> None:
    bench = Bench()
    bench.append(b"a")
    call = getattr(bench.writer, name)
    for start, end in ((1, 0), (0, 2), (2, 2)):
        with pytest.raises(InvalidInputError):
            call(sn(start), sn(end), 1)
    with pytest.raises(InvalidInputError):
        call(0, 1, 1)


def test_an_object_shared_by_two_writers_lives_until_both_have_released_it() -> None:
    bench = Bench()
    other = bench.storage.create_writer("other", KeyGroupRange(0, 127))
    bench.append(b"a")
    bench.persist()
    other.append(1, b"b")
    other.persist(sn(0), 1)
    mine, theirs = bench.scheduler.tasks
    bench.store.inner.put("shared", b"x")
    bench.storage.registry.start_tracking(_Named("shared"), 2)
    for task, writer in ((mine, bench.writer), (theirs, other)):
        task.complete(results_of(task, "shared"))
        writer.reset(sn(0), sn(1), 1)
    bench.writer.truncate(sn(1))
    bench.world.run()
    assert "shared" in bench.store.names()
    other.truncate(sn(1))
    bench.world.run()
    assert "shared" not in bench.store.names()


# -- truncate --------------------------------------------------------------------------------------------------------


def test_truncate_never_goes_back() -> None:
    bench = Bench()
    for _ in range(3):
        bench.append(b"x")
    bench.writer.truncate(sn(2))
    bench.writer.truncate(sn(1))
    with pytest.raises(InvalidInputError, match="starts at 2"):
        bench.persist(1)
    bench.persist(2)
    assert bench.scheduler.numbers() == [[2]]


def test_truncate_beyond_the_end_is_refused() -> None:
    bench = Bench()
    bench.append(b"x")
    with pytest.raises(InvalidInputError):
        bench.writer.truncate(sn(2))
    bench.writer.append(1, b"active")
    bench.writer.truncate(sn(1))
    future = bench.persist(1)
    bench.complete(0)
    assert numbers_in(future.result()) == [1]


def test_truncated_sets_that_were_never_sent_are_forgotten() -> None:
    bench = Bench(preemptive_persist_threshold=100)
    bench.append(b"old")
    bench.writer.truncate(sn(1))
    bench.writer.append(1, b"x" * 100)
    assert bench.scheduler.numbers() == [[1]]


def test_a_set_truncated_while_in_flight_is_not_kept_when_it_fails() -> None:
    bench = Bench(preemptive_persist_threshold=1)
    bench.writer.append(1, b"a")
    bench.writer.truncate(sn(1))
    bench.fail(0)
    bench.writer.append(1, b"b")
    assert bench.scheduler.numbers() == [[0], [1]]


# -- close -----------------------------------------------------------------------------------------------------------


def test_closing_fails_every_persist_that_waits() -> None:
    bench = Bench()
    bench.append(b"a")
    futures = [bench.persist(), bench.persist(checkpoint_id=2)]
    bench.writer.close()
    bench.writer.close()
    for future in futures:
        with pytest.raises(ClosedError):
            future.result()


@pytest.mark.parametrize(
    "call",
    [
        lambda writer: writer.append(1, b"x"),
        lambda writer: writer.append(1000, b"x"),
        lambda writer: writer.append_meta(b"x"),
        lambda writer: writer.append_batch([1], [b"x"]),
        lambda writer: writer.next_sequence_number(),
        lambda writer: writer.persist(sn(0), 1),
        lambda writer: writer.confirm(sn(0), sn(0), 1),
        lambda writer: writer.reset(sn(0), sn(0), 1),
        lambda writer: writer.truncate(sn(0)),
        lambda writer: writer.truncate_and_close(sn(0)),
    ],
)
def test_a_closed_writer_says_so(call: Any) -> None:
    bench = Bench()
    bench.writer.close()
    with pytest.raises(ClosedError, match="the writer is closed"):
        call(bench.writer)


def test_results_after_close_are_released_by_whoever_brings_them() -> None:
    bench = Bench()
    bench.append(b"a")
    bench.persist()
    bench.writer.close()
    bench.complete(0)
    assert not bench.exists(0)


def test_a_late_result_does_not_delete_what_another_writer_shares() -> None:
    bench = Bench()
    bench.append(b"a")
    bench.persist()
    bench.writer.close()
    bench.store.inner.put("object-0", b"x")
    bench.storage.registry.start_tracking(_Named("object-0"), 2)
    bench.scheduler.complete(0, "object")
    assert bench.exists(0)
    assert bench.is_tracked(0)


def test_a_failure_after_close_is_ignored() -> None:
    bench = Bench()
    bench.append(b"a")
    future = bench.persist()
    bench.writer.close()
    bench.fail(0)
    assert future.done()
    assert not bench.is_tracked(0)


def test_a_result_that_waits_for_the_owner_when_it_closes_counts() -> None:
    bench = Bench()
    bench.append(b"a")
    future = bench.persist()
    bench.scheduler.complete(0)
    bench.writer.close()
    assert numbers_in(future.result()) == [0]


def test_uploaded_sets_stay_when_the_writer_is_closed() -> None:
    bench = Bench()
    index = persisted(bench)
    bench.writer.close()
    assert bench.exists(index)


def test_truncate_and_close_keeps_what_the_last_checkpoint_may_use() -> None:
    bench = Bench()
    first = persisted(bench)
    bench.append(b"y")
    bench.persist(1, checkpoint_id=2)
    second = len(bench.scheduler.tasks) - 1
    bench.complete(second)
    bench.writer.reset(sn(1), sn(2), 2)
    bench.writer.truncate_and_close(sn(1))
    assert bench.exists(first)
    assert not bench.exists(second)
    with pytest.raises(ClosedError):
        bench.writer.append(1, b"x")


def test_truncate_and_close_checks_its_number() -> None:
    bench = Bench()
    with pytest.raises(InvalidInputError):
        bench.writer.truncate_and_close(sn(1))
    bench.writer.append(1, b"still open")


# -- what a careless neighbour does -----------------------------------------------------------------------------------


class RaisingScheduler(RecordingScheduler):
    """Breaks its promise: it raises and leaves the task alone."""

    error: BaseException | None = OSError("no")

    def upload(self, task: UploadTask) -> None:
        if self.error is not None:
            raise self.error
        super().upload(task)


@pytest.mark.parametrize("error", [OSError("no"), ValueError("no"), KeyboardInterrupt()])
def test_a_scheduler_that_raises_loses_no_set(error: BaseException) -> None:
    bench = Bench()
    scheduler = RaisingScheduler()
    scheduler.error = error
    storage = ChangelogStorage.open(bench.store, scheduler=scheduler, environment=bench.world.environment)
    writer = storage.create_writer("operator", KeyGroupRange(0, 127))
    writer.append(5, b"kept")
    with pytest.raises(type(error)):
        writer.persist(sn(0), 1)
    scheduler.error = None
    future = writer.persist(sn(0), 2)
    assert scheduler.numbers() == [[0]]
    scheduler.complete(0)
    assert numbers_in(future.result(0)) == [0]


@pytest.mark.parametrize("meta", [False, True])
@pytest.mark.parametrize("value", [np.array([3, 4], np.uint8), np.uint8(3), np.bytes_(b"ab"), np.array(b"ab")])
def test_a_value_of_numpy_is_joined_and_adds_nothing_to_its_neighbours(value: Any, meta: bool) -> None:
    with ChangelogStorage.open(memory_store()) as storage:
        writer = storage.create_writer("operator", KeyGroupRange(0, 127))
        append = writer.append_meta if meta else lambda one: writer.append(5, one)
        for one in (b"\x01\x02", value, b"\x07"):
            append(one)
        handle = writer.persist(sn(0), 1).result().remote
        found = [change.value for change in storage.create_reader().read(handle)]
    assert found == [b"\x01\x02", bytes(memoryview(value)), b"\x07"]


def test_a_value_that_cannot_be_read_leaves_nothing_behind() -> None:
    released = memoryview(b"x")
    released.release()
    with ChangelogStorage.open(memory_store()) as storage:
        writer = storage.create_writer("operator", KeyGroupRange(0, 127))
        with pytest.raises(InvalidInputError):
            writer.append(5, released)
        with pytest.raises(InvalidInputError):
            writer.append_meta(released)
        writer.append(7, b"a")
        handle = writer.persist(sn(0), 1).result().remote
        assert [(one.key_group, one.value) for one in storage.create_reader().read(handle)] == [(7, b"a")]


@pytest.mark.parametrize("checkpoint_id", [None, "1", 1.5, True])
def test_a_checkpoint_id_is_an_integer(checkpoint_id: Any) -> None:
    bench = Bench()
    with pytest.raises(InvalidInputError, match="checkpoint_id must be an integer"):
        bench.writer.persist(sn(0), checkpoint_id)
    for call in (bench.writer.confirm, bench.writer.reset):
        with pytest.raises(InvalidInputError, match="checkpoint_id must be an integer"):
            call(sn(0), sn(0), checkpoint_id)
    assert bench.writer.persist(sn(0), np.int64(3)).done()


def test_key_groups_of_ragged_sequences_are_refused() -> None:
    with pytest.raises(InvalidInputError):
        Bench().writer.append_batch([1, [2]], [b"a", b"b"])
