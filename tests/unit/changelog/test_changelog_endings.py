"""Whatever others do wrong, an upload ends: with a result or a typed error, never with somebody who waits for ever."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stateline.blob import StoreDecorator
from stateline.blob.api import Buffer, ObjectInfo
from stateline.blob.memory import MemoryStore
from stateline.changelog import (
    BlobUploader,
    ChangelogSettings,
    ChangelogStorage,
    RetryingExecutor,
    RetryPolicy,
    SequenceNumber,
    TaskChangelogRegistry,
    UploadTask,
    UploadTasksResult,
    batching_scheduler,
    direct_scheduler,
)
from stateline.environment import system_environment
from stateline.errors import ClosedError, InternalError, InvalidInputError, UnavailableError, chain_of
from stateline.key_groups import KeyGroupRange
from stateline.redaction import safe_error
from tests.unit.changelog.worlds import memory_store, results_of, task_of, values

WAIT = 30
"""Seconds after which a test gives up."""

START = SequenceNumber(0)


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """Ends a test that spins or waits for ever."""

    def give_up(*_: object) -> None:
        raise AssertionError("it did not end")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(2 * WAIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


class Ended:
    """A task, and a future for how it ended."""

    def __init__(self, *sizes: int) -> None:
        self.future: Future[int] = Future()
        self.task = UploadTask(
            task_of(*sizes).change_sets,
            lambda results: self.future.set_result(len(results)),
            lambda _, error: self.future.set_exception(error),
        )


# -- errors that are their own causes --------------------------------------------------------------------------------


def from_itself() -> Exception:
    error = OSError("of itself")
    error.__cause__ = error
    return error


def in_a_circle() -> Exception:
    first, second = OSError("first"), ValueError("second")
    first.__cause__, second.__context__ = second, first
    return first


@pytest.mark.parametrize("made", [from_itself, in_a_circle])
def test_an_error_that_is_its_own_cause_is_an_error_as_any_other(made: Callable[[], Exception]) -> None:
    class Broken(StoreDecorator):
        def put_if_absent(self, name: str, data: Buffer) -> ObjectInfo:
            raise made()

    store = Broken(MemoryStore("endings-circle"))
    assert len(list(chain_of(made()))) <= 2
    assert isinstance(safe_error(made()), OSError)
    with ChangelogStorage.open(store, ChangelogSettings(persist_delay=0, retry_delay=0)) as storage:
        writer = storage.create_writer("operator", KeyGroupRange(0, 9))
        writer.append(1, b"x")
        with pytest.raises(OSError, match=r"itself|first"):
            writer.persist(START, 1).result(WAIT)


def test_a_secret_in_a_circle_of_causes_is_not_shown() -> None:
    error = in_a_circle()
    error.__cause__.args = ("https://x/?sig=canary",)  # type: ignore[union-attr]
    shown = safe_error(error)
    assert "canary" not in "".join(traceback.format_exception(shown))


# -- readers ---------------------------------------------------------------------------------------------------------


def written(storage: ChangelogStorage, sets: int = 6) -> Any:
    writer = storage.create_writer("operator", KeyGroupRange(0, 9))
    for number in range(sets):
        writer.append(1, b"%d" % number)
        writer.persist(START, number).result(WAIT)
    return writer.persist(START, sets).result(WAIT).remote


@pytest.mark.parametrize("use", ["exhausted", "begun and forgotten", "begun and kept", "closed"])
def test_readers_in_a_loop_leave_no_threads(use: str) -> None:
    with ChangelogStorage.open(memory_store(), ChangelogSettings(persist_delay=0)) as storage:
        handle = written(storage)
        before, kept = threading.active_count(), []
        for _ in range(100):
            reader = storage.create_reader()
            changes = reader.read(handle)
            if use in ("exhausted", "closed"):
                assert len(list(changes)) == 6
            else:
                next(changes)
            if use == "begun and kept":
                kept.append(changes)
            if use == "closed":
                reader.close()
        readers = 8 if use == "begun and kept" else 2
        # A thread that has nothing to do any more ends soon, and how soon depends on how busy the machine is.
        deadline = time.monotonic() + WAIT
        while threading.active_count() - before > readers * storage.settings.num_download_threads:
            assert time.monotonic() < deadline, "the threads of readers do not end"
            time.sleep(0.01)
        assert all(len(list(changes)) == 5 for changes in kept)


# -- checkpoint ids --------------------------------------------------------------------------------------------------


def test_checkpoint_ids_of_numpy_work_with_local_copies(tmp_path: Path) -> None:
    settings = ChangelogSettings(persist_delay=0, local_recovery_dir=str(tmp_path))
    with ChangelogStorage.open(memory_store(), settings) as storage:
        writer = storage.create_writer("operator", KeyGroupRange(0, 9))
        for checkpoint in (np.int64(1), np.int32(2), np.uint8(3)):
            writer.append(1, b"x")
            result = writer.persist(START, checkpoint).result(WAIT)
            assert result.local is not None
            writer.confirm(START, writer.next_sequence_number(), checkpoint)
        assert len(values(storage.create_reader().read(result.remote))) == 3


# -- uploaders -------------------------------------------------------------------------------------------------------


class Answering:
    """An uploader that answers as the test says."""

    def __init__(self, answer: Callable[[list[UploadTask]], Any]) -> None:
        self.answer = answer

    def upload(self, tasks: Collection[UploadTask]) -> Any:
        return self.answer(list(tasks))

    def discard(self, result: UploadTasksResult) -> None: ...

    def close(self) -> None: ...


ANSWERS: dict[str, Callable[[list[UploadTask]], Any]] = {
    "names no task": lambda tasks: UploadTasksResult(),
    "names no set": lambda tasks: UploadTasksResult({task: [] for task in tasks}),
    "forgets a set": lambda tasks: UploadTasksResult({task: results_of(task, "o")[:-1] for task in tasks}),
    "names a set twice": lambda tasks: UploadTasksResult({task: results_of(task, "o")[:1] * 2 for task in tasks}),
    "names others": lambda tasks: UploadTasksResult({"task": []}),  # type: ignore[dict-item]
    "names no results": lambda tasks: UploadTasksResult(dict.fromkeys(tasks)),  # type: ignore[arg-type]
    "fails without an error": lambda tasks: UploadTasksResult({}, dict.fromkeys(tasks)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("make", [direct_scheduler, batching_scheduler])
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_a_task_that_the_uploader_forgets_fails(make: Any, answer: Any) -> None:
    scheduler, ended = make(Answering(answer)), Ended(3, 4)
    scheduler.upload(ended.task)
    assert isinstance(ended.future.exception(WAIT), InternalError)
    scheduler.close()


def test_a_callback_that_raises_does_not_keep_other_tasks_from_ending() -> None:
    def broken(*_: object) -> None:
        raise ValueError("a callback")

    scheduler = batching_scheduler(
        Answering(lambda tasks: UploadTasksResult({task: results_of(task, "o") for task in tasks})),
        ChangelogSettings(persist_delay=0.2),
    )
    scheduler.upload(UploadTask(task_of(1).change_sets, broken, broken))
    ended = Ended(2)
    scheduler.upload(ended.task)
    assert ended.future.result(WAIT) == 1
    scheduler.close()


def test_results_may_come_in_another_order_and_as_a_tuple() -> None:
    def answer(tasks: list[UploadTask]) -> Any:
        return UploadTasksResult({task: tuple(reversed(results_of(task, "o"))) for task in tasks})  # type: ignore[misc]

    ended = Ended(3, 4, 5)
    direct_scheduler(Answering(answer)).upload(ended.task)
    assert ended.future.result(WAIT) == 3


# -- executors -------------------------------------------------------------------------------------------------------


class Ignoring(ThreadPoolExecutor):
    """Takes work and cancels it, as one that is shut down at the wrong moment."""

    def submit(self, function: Any, /, *arguments: Any, **more: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.cancel()
        return future


class Copying(ThreadPoolExecutor):
    """Cannot run what it was given, and says so in the future: as a pool that copies work to other processes."""

    def submit(self, function: Any, /, *arguments: Any, **more: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(TypeError("cannot pickle '_thread.RLock' object"))
        return future


def shut_down() -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    return pool


POOLS: dict[str, Callable[[], Any]] = {"shut down": shut_down, "cancels": Ignoring, "copies": Copying}


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
@pytest.mark.parametrize("delay", [0, 0.001])
def test_an_executor_that_does_not_run_uploads_fails_them(pool: Any, delay: float) -> None:
    scheduler = batching_scheduler(
        BlobUploader(memory_store()), ChangelogSettings(persist_delay=delay), executor=pool()
    )
    ended = Ended(3)
    scheduler.upload(ended.task)
    assert isinstance(ended.future.exception(WAIT), ClosedError | TypeError)
    scheduler.close()


class Action:
    """Succeeds."""

    def try_execute(self) -> int:
        return 5

    def discard(self, result: object) -> None: ...

    def complete(self, result: object) -> None: ...

    def fail(self, error: BaseException) -> None: ...


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_an_executor_that_does_not_run_attempts_fails_the_action(pool: Any) -> None:
    retrying = RetryingExecutor(executor=pool())
    future = retrying.execute(RetryPolicy.fixed(3, 1, 0.001), Action())
    assert isinstance(future.exception(WAIT), ClosedError | TypeError)
    retrying.close()


def test_attempts_that_wait_in_a_pool_that_is_shut_down_fail() -> None:
    release, pool = threading.Event(), ThreadPoolExecutor(1)
    pool.submit(release.wait, WAIT)
    future = RetryingExecutor(executor=pool).execute(RetryPolicy.none(), Action())
    pool.shutdown(wait=False, cancel_futures=True)
    assert isinstance(future.exception(WAIT), ClosedError)
    release.set()


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_a_registry_whose_executor_does_not_run_deletes_can_be_closed(pool: Any) -> None:
    registry = TaskChangelogRegistry(memory_store(), executor=pool())
    for name in "abc":
        handle = type("Handle", (), {"name": name})()
        registry.start_tracking(handle, 1)
        registry.release(handle)
    assert registry._pending == 0
    registry.close()


def test_a_pool_of_processes_is_refused_where_it_is_given() -> None:
    with ProcessPoolExecutor(1) as pool:
        for make in (
            lambda: batching_scheduler(BlobUploader(memory_store()), executor=pool),
            lambda: RetryingExecutor(executor=pool),
            lambda: TaskChangelogRegistry(memory_store(), executor=pool),
        ):
            with pytest.raises(InvalidInputError, match="threads of this process"):
                make()


def test_a_thread_that_cannot_be_started_costs_an_upload_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    real, refused = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("changelog-upload") and len(refused) < 2:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    settings = ChangelogSettings(persist_delay=0, retry_delay=0, max_attempts=3)
    with ChangelogStorage.open(memory_store(), settings) as storage:
        assert len(values(storage.create_reader().read(written(storage)))) == 6
    assert len(refused) == 2


def test_where_no_thread_can_be_started_the_upload_fails_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    settings = ChangelogSettings(persist_delay=0, retry_delay=0)
    with ChangelogStorage.open(memory_store(), settings) as storage:
        writer = storage.create_writer("operator", KeyGroupRange(0, 9))
        writer.append(1, b"x")
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            with pytest.raises(UnavailableError, match="can't start new thread"):
                writer.persist(START, 1).result(WAIT)
        assert writer.persist(START, 2).result(WAIT).remote.segments  # The change was kept.


# -- availability ----------------------------------------------------------------------------------------------------


def test_whoever_cancels_a_future_of_availability_hurts_nobody() -> None:
    release = threading.Event()

    def answer(tasks: list[UploadTask]) -> Any:
        assert release.wait(WAIT)
        return UploadTasksResult({task: results_of(task, "o") for task in tasks})

    settings = ChangelogSettings(persist_delay=0, persist_size_threshold=5, max_in_flight=5, upload_timeout=0)
    scheduler, ended = batching_scheduler(Answering(answer), settings), Ended(5)
    scheduler.upload(ended.task)
    mine, yours = scheduler.availability.availability_future(), scheduler.availability.availability_future()
    assert not mine.done()
    assert mine.cancel() is False
    release.set()
    assert ended.future.result(WAIT) == 1
    assert yours.result(WAIT) is None
    assert mine.result(WAIT) is None
    assert scheduler.availability.available
    scheduler.close()


# -- forks -----------------------------------------------------------------------------------------------------------


def in_a_fork(check: Callable[[], None]) -> None:
    """Runs ``check`` in a forked process, which has no thread but this one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Newer Pythons warn of threads. They are the point here.
        child = os.fork()
    if child == 0:
        try:
            signal.alarm(WAIT)
            check()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Gated(StoreDecorator):
    """Writes wait until the test opens the gate; deletes are noted."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(f"endings-{os.urandom(4).hex()}"))
        self.gate, self.entered = threading.Event(), threading.Event()
        self.deleted: list[str] = []

    def put_if_absent(self, name: str, data: Buffer) -> ObjectInfo:
        self.entered.set()
        assert self.gate.wait(WAIT)
        return super().put_if_absent(name, data)

    def delete(self, names: Any) -> None:
        self.deleted += names
        super().delete(self.deleted)


@pytest.mark.parametrize("scheduler", ["batching", "direct"])
def test_a_storage_is_read_and_not_written_in_a_forked_process(tmp_path: Path, scheduler: str) -> None:
    store = Gated()
    store.gate.set()
    settings = ChangelogSettings(
        persist_delay=0, scheduler=scheduler, local_recovery_dir=str(tmp_path / "local"), preemptive_persist_threshold=1
    )
    storage = ChangelogStorage.open(store, settings)
    handle = written(storage)
    writer = storage.create_writer("other", KeyGroupRange(0, 9))
    writer.append(1, b"uploaded")
    writer.persist(START, 1).result(WAIT)

    def check() -> None:
        assert len(values(storage.create_reader().read(handle))) == 6
        with pytest.raises(ClosedError, match="forked"):
            storage.create_writer("operator", KeyGroupRange(0, 9))
        writer.append(1, b"y")
        with pytest.raises(ClosedError, match="forked"):
            writer.persist(START, 2).result()
        assert storage.availability.available
        assert storage.availability.availability_future().result(WAIT) is None
        writer.truncate(writer.next_sequence_number())
        writer.close()
        storage.close()
        assert store.deleted == [], "the parent names it"

    in_a_fork(check)
    assert writer.persist(START, 2).result(WAIT).remote.segments
    storage.close()


def test_an_upload_on_its_way_is_not_waited_for_in_a_forked_process() -> None:
    store = Gated()
    settings = ChangelogSettings(persist_delay=0, upload_timeout=0, max_in_flight=1, persist_size_threshold=1)
    storage = ChangelogStorage.open(store, settings)
    writer = storage.create_writer("operator", KeyGroupRange(0, 9))
    writer.append(1, b"x")
    future = writer.persist(START, 1)
    assert store.entered.wait(WAIT)

    def check() -> None:
        with pytest.raises(ClosedError, match="forked"):
            future.result()
        assert storage.availability.availability_future().result(WAIT) is None
        writer.append(1, b"y")
        with pytest.raises(ClosedError, match="forked"):
            writer.persist(START, 2).result()
        storage.close()

    in_a_fork(check)
    store.gate.set()
    assert future.result(WAIT).remote.segments
    storage.close()


def test_a_storage_that_was_opened_in_a_forked_process_works(tmp_path: Path) -> None:
    busy = system_environment().executors.executor("busy", 2)
    busy.submit(lambda: 1).result(WAIT)

    def check() -> None:
        with ChangelogStorage.open(tmp_path, ChangelogSettings(persist_delay=0)) as storage:
            assert len(values(storage.create_reader().read(written(storage)))) == 6

    in_a_fork(check)
    busy.close()
