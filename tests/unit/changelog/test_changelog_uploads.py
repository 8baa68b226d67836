"""Tasks, throttle, retries and schedulers, in a world of one thread."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline.changelog import (
    ChangelogMetrics,
    ChangelogSettings,
    RetryingExecutor,
    RetryPolicy,
    SequenceNumber,
    UploadTask,
    UploadTasksResult,
    UploadThrottle,
    batching_scheduler,
    direct_scheduler,
    scheduler_from_options,
)
from stateline.errors import ClosedError, InternalError, InvalidInputError, UnavailableError
from stateline.key_groups import KeyGroupRange
from tests.unit.changelog.worlds import (
    ManualExecutor,
    ManualWorld,
    memory_store,
    open_storage,
    results_of,
    task_of,
)

# -- tasks -----------------------------------------------------------------------------------------------------------


def test_the_size_of_a_task_is_the_sum_of_its_sets() -> None:
    assert task_of(3, 4, 5).size == 12


def test_of_complete_and_fail_the_first_wins() -> None:
    for first, second in [("complete", "fail"), ("fail", "complete"), ("fail", "fail"), ("complete", "complete")]:
        events: list[Any] = []
        task = task_of(1, 2, events=events)
        error = OSError("x")
        ends = {"complete": lambda: task.complete([]), "fail": lambda: task.fail(error)}  # noqa: B023
        ends[first]()
        ends[second]()
        assert events == [("done", []) if first == "complete" else ("failed", error)]
        assert task.finished


def test_a_failure_names_every_set() -> None:
    seen: list[Any] = []
    task = UploadTask(task_of(1, 1, first=5).change_sets, seen.append, lambda numbers, error: seen.append(numbers))
    task.fail(OSError())
    assert [number.value for number in seen[0]] == [5, 6]


# -- throttle --------------------------------------------------------------------------------------------------------


def test_the_limit_is_strict() -> None:
    throttle = UploadThrottle(10)
    throttle.seize(6)
    assert throttle.has_capacity
    assert throttle.fits(4)
    assert not throttle.fits(5)
    with pytest.raises(InternalError):
        throttle.seize(5)
    throttle.seize(4)
    assert not throttle.has_capacity
    throttle.release(6)
    assert throttle.has_capacity
    assert throttle.in_flight == 4
    with pytest.raises(InternalError):
        throttle.release(5)
    for wrong in (0, -1, "0", "much", None, True, 1.5):
        with pytest.raises(InvalidInputError):
            UploadThrottle(wrong)  # type: ignore[arg-type]
    assert UploadThrottle("5MB").max_in_flight == 5_000_000


def test_a_request_above_the_limit_goes_alone() -> None:
    throttle = UploadThrottle(10)
    throttle.seize(1)
    assert not throttle.fits(1000)
    throttle.release(1)
    throttle.seize(1000)
    assert throttle.in_flight == 10
    assert not throttle.fits(1)
    throttle.release(1000)
    assert throttle.in_flight == 0


@settings(deadline=None)
@given(st.lists(st.integers(0, 15), max_size=60))
def test_what_is_seized_never_exceeds_the_limit(sizes: list[int]) -> None:
    throttle = UploadThrottle(10)
    held: list[int] = []
    for size in sizes:
        if throttle.fits(size):
            throttle.seize(size)
            held.append(size)
        elif held:
            throttle.release(held.pop(0))
        assert 0 <= throttle.in_flight <= 10
    for size in held:
        throttle.release(size)
    assert throttle.in_flight == 0


# -- policy ----------------------------------------------------------------------------------------------------------


def test_a_fixed_policy_retries_io_errors_and_timeouts_only() -> None:
    policy = RetryPolicy.fixed(3, timedelta(seconds=1), "500ms")
    assert policy.retry_after(1, OSError()) == 0.5
    assert policy.retry_after(2, UnavailableError("x")) == 0.5
    assert policy.retry_after(1, TimeoutError()) == 0
    assert policy.retry_after(3, OSError()) is None
    assert policy.retry_after(3, TimeoutError()) is None
    assert policy.retry_after(1, ValueError()) is None
    assert policy.retry_after(1, KeyboardInterrupt()) is None
    assert policy.timeout_seconds == 1


def test_no_policy_means_one_attempt_without_a_timeout() -> None:
    assert RetryPolicy.none().retry_after(1, OSError()) is None
    assert RetryPolicy.none().timeout_seconds is None
    assert RetryPolicy.fixed(1, 0, 0).timeout_seconds is None
    with pytest.raises(InvalidInputError):
        RetryPolicy.fixed(0, 1, 1)


# -- retries ---------------------------------------------------------------------------------------------------------


class Action:
    """Does, in each attempt, what its script says: a value, an error, or a wait before one of them."""

    def __init__(self, world: ManualWorld, *script: Any) -> None:
        self.world = world
        self.script = list(script)
        self.started: list[float] = []
        self.events: list[Any] = []

    def try_execute(self) -> object:
        self.started.append(self.world.time - 1000)
        act = self.script.pop(0)
        if isinstance(act, tuple):
            self.world.sleep(act[0])
            act = act[1]
        if isinstance(act, BaseException):
            raise act
        return act

    def discard(self, result: object) -> None:
        self.events.append(("discard", result))

    def complete(self, result: object) -> None:
        self.events.append(("complete", result))

    def fail(self, error: BaseException) -> None:
        self.events.append(("fail", error))


def retrying(world: ManualWorld, metrics: ChangelogMetrics | None = None) -> RetryingExecutor:
    return RetryingExecutor(3, metrics=metrics, environment=world.environment)


POLICY = RetryPolicy.fixed(3, 1.0, 0.5)


def run(*script: Any, policy: RetryPolicy = POLICY) -> tuple[Action, Any, dict[str, Any]]:
    world = ManualWorld()
    metrics = ChangelogMetrics()
    action = Action(world, *script)
    future = retrying(world, metrics).execute(policy, action)
    world.advance(100)
    return action, future, metrics.snapshot()


def test_the_first_success_completes() -> None:
    action, future, metrics = run("a")
    assert action.events == [("complete", "a")]
    assert future.result(0) == "a"
    assert metrics["attempts_per_upload"]["max"] == metrics["total_attempts_per_upload"]["max"] == 1


def test_an_io_error_is_really_retried_after_the_delay() -> None:
    action, future, metrics = run(OSError("1"), UnavailableError("2"), "c")
    assert action.started == [0, 0.5, 1.0]
    assert action.events == [("complete", "c")]
    assert future.result(0) == "c"
    assert metrics["attempts_per_upload"]["max"] == 3
    assert metrics["upload_attempts"] == 3
    assert metrics["upload_attempt_failures"] == 2
    assert metrics["retry_wait_seconds"]["max"] == 1.0


def test_the_last_io_error_fails_once() -> None:
    last = OSError("3")
    action, future, metrics = run(OSError("1"), OSError("2"), last)
    assert action.events == [("fail", last)]
    assert future.exception(0) is last
    assert metrics["attempts_per_upload"]["count"] == 0


def test_no_other_error_is_retried() -> None:
    error = ValueError("a defect")
    action, _, _ = run(error, "never")
    assert action.events == [("fail", error)]
    assert action.script == ["never"]


def test_a_slow_attempt_is_raced_and_the_first_success_wins() -> None:
    action, _, metrics = run((5.0, "slow"), "fast")
    assert action.started == [0, 1.0]
    assert action.events == [("complete", "fast"), ("discard", "slow")]
    assert metrics["attempts_per_upload"]["max"] == 2
    assert metrics["total_attempts_per_upload"]["max"] == 2


def test_the_time_of_an_attempt_runs_from_its_start() -> None:
    world = ManualWorld()
    executor = retrying(world)
    first, second = Action(world, "x"), Action(world, (0.9, "y"))
    executor.execute(POLICY, first)
    executor.execute(POLICY, second)
    world.time += 30  # Nothing could start for a long time.
    world.advance(10)
    assert second.events == [("complete", "y")]
    assert len(second.started) == 1


def test_an_error_of_an_attempt_that_is_out_of_time_does_not_count() -> None:
    action, _, _ = run((2.0, OSError("late")), (3.0, OSError("later")), "third")
    assert action.events == [("complete", "third")]
    assert action.started == [0, 1.0, 2.0]


def test_it_fails_when_the_last_attempt_is_out_of_time_and_discards_what_comes_later() -> None:
    action, future, _ = run((50.0, "a"), (60.0, OSError("b")), (70.0, "c"))
    assert [event[0] for event in action.events] == ["fail", "discard", "discard"]
    assert isinstance(future.exception(0), TimeoutError)
    assert isinstance(future.exception(0), UnavailableError)


def test_an_error_that_is_kept_does_not_keep_the_bytes_of_its_attempt() -> None:
    class Bytes:
        pass

    seen: list[weakref.ref[Bytes]] = []

    class Failing(Action):
        def try_execute(self) -> object:
            held = Bytes()
            seen.append(weakref.ref(held))
            try:
                raise ValueError("cause")
            except ValueError as error:
                raise OSError("kept") from error

    world = ManualWorld()
    action = Failing(world)
    future = retrying(world).execute(POLICY, action)
    world.advance(10)
    assert str(future.exception(0)) == "kept"
    assert len(seen) == 3
    assert [reference() for reference in seen] == [None] * 3


def test_uploaded_bytes_are_freed_without_the_garbage_collector() -> None:
    world = ManualWorld()
    storage = open_storage(world, memory_store(world))
    writer = storage.create_writer("operator", KeyGroupRange(0, 9))
    base = pa.total_allocated_bytes()
    gc.collect()
    gc.disable()
    try:
        for number in range(10):
            writer.append_batch([number % 10, 0] * 50, [bytes(10_000)] * 100)
            storage.store.script.append(OSError("x") if number % 2 else None)
            writer.persist(SequenceNumber(0), number).result()
            assert pa.total_allocated_bytes() - base < 1_500_000
    finally:
        gc.enable()


def test_closing_fails_what_has_no_winner_and_discards_what_ends_later() -> None:
    world = ManualWorld()
    executor = retrying(world)
    waiting, running = Action(world, OSError(), "never"), Action(world, (5.0, "late"))
    executor.execute(POLICY, waiting)
    executor.execute(POLICY, running)
    world.executor("x", 1).call_later(0.2, executor.close)
    world.advance(100)
    assert [event[0] for event in running.events] == ["fail", "discard"]
    assert [event[0] for event in waiting.events] == ["fail"]
    late = Action(world, "x")
    assert isinstance(executor.execute(POLICY, late).exception(0), ClosedError)
    assert [event[0] for event in late.events] == ["fail"]


# -- schedulers ------------------------------------------------------------------------------------------------------


class Uploader:
    """Notes its calls. Succeeds, raises what its script says, or sleeps."""

    def __init__(self, world: ManualWorld | None = None, *script: Any) -> None:
        self.world = world
        self.script = list(script)
        self.calls: list[list[int]] = []
        self.discarded: list[UploadTasksResult] = []
        self.closed = 0

    def upload(self, tasks: Collection[UploadTask]) -> UploadTasksResult:
        self.calls.append([task.size for task in tasks])
        act = self.script.pop(0) if self.script else None
        if isinstance(act, float):
            self.world.sleep(act)
        elif act is not None:
            raise act
        return UploadTasksResult({task: results_of(task, f"object-{len(self.calls)}") for task in tasks})

    def discard(self, result: UploadTasksResult) -> None:
        self.discarded.append(result)

    def close(self) -> None:
        self.closed += 1


def batching(world: ManualWorld, uploader: Any, **settings: Any) -> Any:
    defaults = {"persist_delay": 0.01, "persist_size_threshold": 100, "max_in_flight": 1000}
    return batching_scheduler(uploader, ChangelogSettings(**{**defaults, **settings}), environment=world.environment)


def test_direct_uploads_at_once() -> None:
    uploader = Uploader()
    events: list[Any] = []
    scheduler = direct_scheduler(uploader)
    scheduler.upload(task_of(1, events=events))
    scheduler.upload(task_of(2, events=events))
    assert uploader.calls == [[1], [2]]
    assert [event[0] for event in events] == ["done", "done"]
    assert scheduler.availability.available
    assert scheduler.availability.availability_future().done()
    scheduler.close()
    scheduler.upload(task_of(3, events=events))
    assert isinstance(events[-1][1], ClosedError)


def test_direct_fails_the_task_and_lets_only_interruptions_through() -> None:
    events: list[Any] = []
    scheduler = direct_scheduler(Uploader(None, OSError("x"), KeyboardInterrupt()))
    scheduler.upload(task_of(1, events=events))
    with pytest.raises(KeyboardInterrupt):
        scheduler.upload(task_of(1, events=events))
    assert [event[0] for event in events] == ["failed", "failed"]


def test_many_tasks_make_one_batch_after_the_delay_of_the_first() -> None:
    world, events = ManualWorld(), []
    uploader = Uploader()
    scheduler = batching(world, uploader)
    for size in (1, 2, 3):
        scheduler.upload(task_of(size, events=events))
        world.advance(0.004)
    assert uploader.calls == [[1, 2, 3]]  # 12 ms have passed since the first, 4 ms since the last.
    assert [event[0] for event in events] == ["done"] * 3
    scheduler.upload(task_of(4))
    world.advance(0.009)
    assert len(uploader.calls) == 1
    world.advance(0.001)
    assert uploader.calls[1:] == [[4]]


def test_a_full_queue_starts_at_once_and_the_timer_starts_nothing_more() -> None:
    world = ManualWorld()
    uploader = Uploader()
    scheduler = batching(world, uploader)
    scheduler.upload(task_of(99))
    world.run()
    assert uploader.calls == []
    scheduler.upload(task_of(1))
    world.run()
    assert uploader.calls == [[99, 1]]
    world.advance(1)
    assert len(uploader.calls) == 1


def test_without_a_delay_every_task_goes_alone() -> None:
    world = ManualWorld()
    uploader = Uploader()
    scheduler = batching(world, uploader, persist_delay=0)
    scheduler.upload(task_of(1))
    scheduler.upload(task_of(2))
    world.run()
    assert uploader.calls == [[1], [2]]


def test_batches_are_bounded() -> None:
    world = ManualWorld()
    uploader = Uploader()
    scheduler = batching(world, uploader, persist_delay=10)
    for size in (60, 30, 500, 99):
        scheduler.upload(task_of(size))
    world.advance(10)
    world.run()
    assert uploader.calls == [[60, 30], [500], [99]]


def test_many_small_sets_make_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateline.changelog.upload_table.MAX_BATCH_CHANGE_SETS", 4)
    world = ManualWorld()
    uploader = Uploader()
    scheduler = batching(world, uploader)
    for _ in range(3):
        scheduler.upload(task_of(1, 1))
    world.advance(1)
    assert uploader.calls == [[2, 2], [2]]


def test_an_upload_that_fails_for_good_fails_every_task_of_its_batch_once() -> None:
    world, events = ManualWorld(), []
    error = OSError("3")
    uploader = Uploader(world, OSError("1"), OSError("2"), error)
    scheduler = batching(world, uploader)
    scheduler.upload(task_of(1, events=events))
    scheduler.upload(task_of(2, events=events))
    world.advance(10)
    assert events == [("failed", error)] * 2
    assert uploader.calls == [[1, 2]] * 3
    scheduler.upload(task_of(3, events=events))
    world.advance(1)
    assert events[-1][0] == "done"  # One bad batch says nothing about the next.


def test_the_loser_of_a_race_is_discarded() -> None:
    world, events = ManualWorld(), []
    uploader = Uploader(world, 5.0)
    scheduler = batching(world, uploader)
    scheduler.upload(task_of(1, events=events))
    world.advance(10)
    [done] = events
    assert done[1][0].handle.name == "object-2"
    assert [handle.name for handle in uploader.discarded[0].handles()] == ["object-2"]


def test_a_task_without_a_result_is_failed() -> None:
    class Forgetful(Uploader):
        def upload(self, tasks: Collection[UploadTask]) -> UploadTasksResult:
            first, *_ = tasks
            return UploadTasksResult({first: results_of(first, "object")})

    world, events = ManualWorld(), []
    scheduler = batching(world, Forgetful())
    scheduler.upload(task_of(1, events=events))
    scheduler.upload(task_of(2, events=events))
    world.advance(1)
    assert [event[0] for event in events] == ["done", "failed"]
    assert isinstance(events[1][1], InternalError)


def test_an_uploader_may_fail_single_tasks() -> None:
    class Picky(Uploader):
        def upload(self, tasks: Collection[UploadTask]) -> UploadTasksResult:
            first, second = tasks
            return UploadTasksResult({first: results_of(first, "object")}, {second: ValueError("no")})

    world, events = ManualWorld(), []
    scheduler = batching(world, Picky())
    scheduler.upload(task_of(1, events=events))
    scheduler.upload(task_of(2, events=events))
    world.advance(1)
    assert [event[0] for event in events] == ["done", "failed"]


def test_bytes_in_flight_never_exceed_the_limit_and_writers_wait() -> None:
    world, events = ManualWorld(), []
    peak = []
    uploader = Uploader(world)

    def upload(tasks: Collection[UploadTask]) -> UploadTasksResult:
        peak.append(scheduler._uploads.throttle.in_flight)
        world.sleep(0.1)
        return UploadTasksResult({task: results_of(task, "x") for task in tasks})

    uploader.upload = upload
    scheduler = batching(world, uploader, persist_size_threshold=10, max_in_flight=50, upload_timeout=0)
    for size in (10, 20, 30, 40, 50, 60, 1, 2):
        scheduler.upload(task_of(size, events=events))
        assert scheduler._uploads.throttle.in_flight <= 50
    world.advance(10)
    assert [event[0] for event in events] == ["done"] * 8
    assert max(peak) <= 50
    assert scheduler._uploads.throttle.in_flight == 0


def test_a_waiting_writer_does_not_wait_for_the_delay_of_what_is_queued() -> None:
    world, events = ManualWorld(), []
    scheduler = batching(world, Uploader(), persist_delay=3600, persist_size_threshold=50, max_in_flight=50)
    scheduler.upload(task_of(40, events=events))
    before = world.time
    scheduler.upload(task_of(40, events=events))
    assert world.time == before
    assert [event[0] for event in events] == ["done"]


def test_a_writer_wakes_when_the_upload_before_it_fails() -> None:
    world, events = ManualWorld(), []
    uploader = Uploader(world, *[OSError("x")] * 3)
    scheduler = batching(world, uploader, persist_size_threshold=10, max_in_flight=10)
    scheduler.upload(task_of(10, events=events))
    scheduler.upload(task_of(10, events=events))
    world.advance(1)
    assert [event[0] for event in events] == ["failed", "done"]


def test_a_writer_wakes_when_the_scheduler_is_closed() -> None:
    world, events = ManualWorld(), []
    scheduler = batching(world, Uploader(world, 1e6), persist_size_threshold=10, max_in_flight=10, upload_timeout=0)
    scheduler.upload(task_of(10, events=events))
    world.executor("x", 1).call_later(5, scheduler.close)
    scheduler.upload(task_of(10, events=events))
    assert [type(event[1]) for event in events] == [ClosedError, ClosedError]
    assert scheduler.availability.available


def test_an_interrupted_writer_fails_its_task_and_leaves_the_queue() -> None:
    class Stuck(ManualExecutor):
        def submit(self, function: Any, /, *arguments: Any) -> Any:
            return Future()

    def interrupt() -> None:
        raise KeyboardInterrupt

    world, events = ManualWorld(), []
    settings = ChangelogSettings(persist_size_threshold=10, max_in_flight=10)
    scheduler = batching_scheduler(Uploader(), settings, executor=Stuck(world), environment=world.environment)
    scheduler.upload(task_of(10, events=events))
    world.executor("x", 1).call_later(5, interrupt)
    with pytest.raises(KeyboardInterrupt):
        scheduler.upload(task_of(7, events=events))
    assert [type(event[1]) for event in events] == [KeyboardInterrupt]
    assert not scheduler._uploads.waiting


def test_availability_follows_the_room() -> None:
    world = ManualWorld()
    scheduler = batching(world, Uploader(world, 1.0), persist_size_threshold=10, max_in_flight=10, upload_timeout=0)
    availability = scheduler.availability
    assert availability.available
    assert availability.availability_future().done()
    scheduler.upload(task_of(10))
    assert not availability.available
    future = availability.availability_future()
    assert not future.done()
    assert future is availability.availability_future()
    held = []
    future.add_done_callback(lambda _: held.append(scheduler._monitor.depth))
    world.advance(2)
    assert future.done()
    assert held == [0]  # Completed outside the lock.
    assert availability.available


def test_no_callback_runs_under_the_lock_of_the_scheduler() -> None:
    world, depths = ManualWorld(), []
    scheduler = batching(world, Uploader(world, None, *[OSError()] * 3))
    for _ in range(2):
        sets = task_of(1).change_sets
        note = lambda *_: depths.append((scheduler._monitor.depth, scheduler.retrying.monitor.depth))  # noqa: E731
        scheduler.upload(UploadTask(sets, note, note))
        world.advance(10)
    assert depths == [(0, 0), (0, 0)]


def test_closing_fails_every_unfinished_task_once() -> None:
    world, events = ManualWorld(), []
    uploader = Uploader(world, 50.0)
    scheduler = batching(world, uploader, persist_size_threshold=10)
    scheduler.upload(task_of(10, events=events))
    scheduler.upload(task_of(1, events=events))
    world.executor("x", 1).call_later(0.005, scheduler.close)
    world.advance(100)
    assert [type(event[1]) for event in events] == [ClosedError, ClosedError]
    assert uploader.closed == 1
    assert len(uploader.discarded) == 1  # The upload that went on ended for nothing.
    scheduler.close()
    scheduler.upload(task_of(1, events=events))
    assert isinstance(events[-1][1], ClosedError)


def test_a_closed_pool_fails_tasks_instead_of_losing_them() -> None:
    world, events = ManualWorld(), []
    executor = world.executor("x", 1)
    scheduler = batching_scheduler(Uploader(), ChangelogSettings(), executor=executor, environment=world.environment)
    executor.close()
    scheduler.upload(task_of(1, events=events))
    assert isinstance(events[0][1], ClosedError)


def test_metrics_tell_queue_upload_and_retry_apart() -> None:
    world = ManualWorld()
    metrics = ChangelogMetrics()
    uploader = Uploader(world, OSError(), 0.25)
    scheduler = batching_scheduler(uploader, ChangelogSettings(), metrics=metrics, environment=world.environment)
    scheduler.upload(task_of(4))
    scheduler.upload(task_of(5))
    snapshot = metrics.snapshot()
    assert (snapshot["upload_queue_tasks"], snapshot["upload_queue_bytes"], snapshot["in_flight_bytes"]) == (2, 9, 9)
    world.advance(10)
    snapshot = metrics.snapshot()
    assert (snapshot["upload_queue_tasks"], snapshot["upload_queue_bytes"], snapshot["in_flight_bytes"]) == (0, 0, 0)
    assert snapshot["queue_wait_seconds"]["sum"] == pytest.approx(0.02)
    assert snapshot["retry_wait_seconds"]["sum"] == pytest.approx(0.5)
    assert snapshot["upload_latency_seconds"]["sum"] == pytest.approx(0.25)
    assert snapshot["upload_batch_tasks"]["max"] == 2


def test_the_scheduler_is_chosen_by_name() -> None:
    world = ManualWorld()
    uploader = Uploader()
    events: list[Any] = []
    scheduler_from_options(uploader, {"scheduler": "Direct"}).upload(task_of(1, events=events))
    assert events
    batching_one = scheduler_from_options(uploader, environment=world.environment)
    batching_one.upload(task_of(1, events=events))
    assert len(events) == 1
    with pytest.raises(InvalidInputError, match="batching, direct"):
        scheduler_from_options(uploader, {"scheduler": "random"})


def test_settings_check_their_relations() -> None:
    with pytest.raises(InvalidInputError, match="persist_size_threshold"):
        ChangelogSettings(persist_size_threshold="2MB", max_in_flight="1MB")
    with pytest.raises(InvalidInputError, match="max_in_flight"):
        ChangelogSettings(persist_size_threshold=0, max_in_flight=0)
    with pytest.raises(InvalidInputError, match="Did you mean 'persist_delay'"):
        ChangelogSettings.from_options({"persist_dely": "1"})
    made = ChangelogSettings.from_options({"persist_delay": "20ms", "max_in_flight": "200MB", "compression": "ZSTD"})
    assert (made.persist_delay, made.max_in_flight, made.compression) == (0.02, 200_000_000, "zstd")
    assert ChangelogSettings().upload_budget_seconds == pytest.approx(4.0)
    assert ChangelogSettings(upload_timeout=0).upload_budget_seconds is None
    assert ChangelogSettings(retry_policy="none").upload_budget_seconds is None


# -- uploaders of others ---------------------------------------------------------------------------------------------


class SmallestUploader:
    """The protocol of ``upload`` and ``close``, and nothing else."""

    def __init__(self, *given: Any) -> None:
        self.given = given

    def upload(self, tasks: Collection[UploadTask]) -> Any:
        return self.given[0] if self.given else UploadTasksResult({task: results_of(task, "o") for task in tasks})

    def close(self) -> None: ...


@pytest.mark.parametrize("given", [None, {}, UploadTasksResult()])
def test_direct_fails_a_task_that_the_uploader_forgets(given: Any) -> None:
    events: list[Any] = []
    direct_scheduler(SmallestUploader(given)).upload(task_of(1, events=events))
    (event,) = events
    assert event[0] == "failed"
    assert isinstance(event[1], InternalError)


def test_an_uploader_need_not_discard(caplog: pytest.LogCaptureFixture) -> None:
    world = ManualWorld()
    events: list[Any] = []

    class Slow(SmallestUploader):
        slow = True

        def upload(self, tasks: Collection[UploadTask]) -> Any:
            if self.slow:
                self.slow = False
                world.sleep(5)
            return super().upload(tasks)

    settings = ChangelogSettings(persist_delay=0, upload_timeout=1)
    scheduler = batching_scheduler(Slow(), settings, environment=world.environment)
    scheduler.upload(task_of(1, events=events))
    world.run()
    assert [event[0] for event in events] == ["done"]
    assert not caplog.records


def test_a_throttle_takes_no_negative_sizes() -> None:
    throttle = UploadThrottle(10)
    for call in (throttle.seize, throttle.release):
        with pytest.raises(InternalError):
            call(-1)
    assert throttle.in_flight == 0


def test_an_executor_has_a_thread() -> None:
    with pytest.raises(InvalidInputError):
        RetryingExecutor(0)
