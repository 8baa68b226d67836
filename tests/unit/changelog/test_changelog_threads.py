"""Real threads, ordered by events: races that a world of one thread cannot show."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stateline.blob import StoreDecorator
from stateline.blob.api import Buffer, ObjectInfo
from stateline.blob.local import LocalStore
from stateline.blob.memory import MemoryStore
from stateline.changelog import (
    BlobUploader,
    ChangelogSettings,
    ChangelogStorage,
    DuplicatingUploader,
    RetryingExecutor,
    RetryPolicy,
    SequenceNumber,
    batching_scheduler,
)
from stateline.changelog.host_cache import HostCache
from stateline.errors import ClosedError
from stateline.key_groups import KeyGroupRange
from tests.unit.changelog.worlds import task_of, values

WAIT = 30
"""Seconds after which a test gives up on an event."""


class GatedStore(StoreDecorator):
    """A store whose writes wait until the test opens the gate."""

    def __init__(self, name: str) -> None:
        super().__init__(MemoryStore(f"threads-{name}"))
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self.bytes_now = 0
        self.lock = threading.Lock()

    def put_if_absent(self, name: str, data: Buffer) -> ObjectInfo:
        self.entered.release()
        assert self.gate.wait(WAIT)
        return super().put_if_absent(name, data)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[GatedStore]:
    made = GatedStore(request.node.name)
    yield made
    made.gate.set()
    MemoryStore.forget(f"threads-{request.node.name}")


class OneTimeout(RetryPolicy):
    """Only the first attempt ever runs out of time, so that no figure of a clock decides a test."""

    def retry_after(self, attempt: int, error: BaseException) -> float | None:
        self.timeout_seconds = None
        return super().retry_after(attempt, error)


def start(function: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_a_persist_waits_for_uploads_on_other_threads(store: GatedStore) -> None:
    with ChangelogStorage.open(store) as storage:
        writer = storage.create_writer("operator", KeyGroupRange(0, 9))
        writer.append(1, b"x")
        future = writer.persist(SequenceNumber(0), 1)
        with pytest.raises(TimeoutError):
            future.result(timeout=0.01)
        store.gate.set()
        handle = future.result(timeout=WAIT).remote
        assert values(storage.create_reader().read(handle)) == [(1, b"x")]


def test_another_thread_only_waits_and_the_owner_runs_the_callbacks(store: GatedStore) -> None:
    store.gate.set()
    with ChangelogStorage.open(store) as storage, ThreadPoolExecutor(1) as pool:
        writer = storage.create_writer("operator", KeyGroupRange(0, 9))
        writer.append(1, b"x")
        future = writer.persist(SequenceNumber(0), 1)
        ran_on: list[int] = []
        future.add_done_callback(lambda _: ran_on.append(threading.get_ident()))
        other = pool.submit(future.result, WAIT)
        while not future.done():
            with writer._mailbox.monitor:
                writer._mailbox.monitor.wait_for(lambda: bool(writer._mailbox.letters), WAIT)
            writer.run_callbacks()
        assert other.result(WAIT) == future.result()
        assert ran_on == [threading.get_ident()]


def test_a_slow_attempt_may_still_win_and_the_other_is_discarded() -> None:
    first_may_end, second_may_end, second_started = threading.Event(), threading.Event(), threading.Event()
    discarded = threading.Event()
    events: list[Any] = []

    class Action:
        attempts = 0

        def try_execute(self) -> object:
            self.attempts += 1
            if self.attempts == 1:
                assert first_may_end.wait(WAIT)
                return "first"
            second_started.set()
            assert second_may_end.wait(WAIT)
            return "second"

        def discard(self, result: object) -> None:
            events.append(("discard", result))
            discarded.set()

        def complete(self, result: object) -> None:
            events.append(("complete", result))

        def fail(self, error: BaseException) -> None:
            events.append(("fail", error))

    executor = RetryingExecutor(2)
    future = executor.execute(OneTimeout(2, 0.01, 0.0), Action())
    assert second_started.wait(WAIT)
    first_may_end.set()
    assert future.result(WAIT) == "first"
    second_may_end.set()
    assert discarded.wait(WAIT)
    assert events == [("complete", "first"), ("discard", "second")]
    executor.close()


def test_bytes_in_flight_are_bounded_under_many_writers_and_a_slow_store(store: GatedStore) -> None:
    """Ten producers, a store that does nothing for a while: they stop at the limit, and go on when it wakes."""
    limit, change = 100_000, b"x" * 1000
    settings = ChangelogSettings(
        preemptive_persist_threshold=5000,
        persist_size_threshold=10_000,
        max_in_flight=limit,
        upload_timeout=0,
        persist_delay=0.001,
    )
    with ChangelogStorage.open(store, settings) as storage:
        appended = [0] * 10
        results: list[Any] = []

        def produce(index: int) -> None:
            writer = storage.create_writer(f"operator-{index}", KeyGroupRange(0, 9))
            for _ in range(100):
                writer.append(index, change)
                appended[index] += len(change)
            results.append(writer.persist(SequenceNumber(0), 1).result(WAIT).remote)

        threads = [start(lambda index=index: produce(index)) for index in range(10)]
        future = None
        while future is None:
            future = storage.availability.availability_future()
            if future.done():
                future = None
        assert not storage.availability.available
        assert storage._scheduler._uploads.throttle.in_flight <= limit
        # What is held: the limit, and what each writer has in its active set when it is stopped.
        assert sum(appended) <= limit + 10 * (5000 + len(change))
        store.gate.set()
        future.result(WAIT)
        for thread in threads:
            thread.join(WAIT)
        assert sum(appended) == 10 * 100 * 1000
        assert sorted(handle.state_size for handle in results) == [100_000] * 10
        assert storage.metrics.snapshot()["in_flight_bytes"] == 0


def test_a_writer_that_waits_wakes_when_the_storage_is_closed(store: GatedStore) -> None:
    settings = ChangelogSettings(persist_size_threshold=10, max_in_flight=10, preemptive_persist_threshold=10)
    storage = ChangelogStorage.open(store, settings)
    writer = storage.create_writer("operator", KeyGroupRange(0, 9))
    writer.append(1, b"x" * 10)
    assert store.entered.acquire(timeout=WAIT)
    done = threading.Event()

    def block() -> None:
        writer.append(1, b"x" * 10)
        done.set()

    thread = start(block)
    while not storage._scheduler._uploads.waiting:
        thread.join(0.001)
    store.gate.set()
    storage.close()
    assert done.wait(WAIT)
    with pytest.raises(ClosedError):
        writer.persist(SequenceNumber(0), 1).result(WAIT)


def test_a_writer_that_waits_can_be_interrupted() -> None:
    """A real signal, in a process of its own."""
    program = """
        import signal, threading
        from stateline.blob import StoreDecorator
        from stateline.blob.memory import MemoryStore
        from stateline.changelog import ChangelogSettings, ChangelogStorage
        from stateline.key_groups import KeyGroupRange

        entered = threading.Event()
        gate = threading.Event()

        class Stuck(StoreDecorator):
            def put_if_absent(self, name, data):
                entered.set()
                gate.wait()

        settings = ChangelogSettings(
            persist_size_threshold=10, max_in_flight=10, preemptive_persist_threshold=10, upload_timeout=0
        )
        storage = ChangelogStorage.open(Stuck(MemoryStore("x")), settings)
        writer = storage.create_writer("operator", KeyGroupRange(0, 9))
        writer.append(1, b"x" * 10)
        entered.wait()
        def tell():
            while not storage._scheduler._uploads.waiting:
                pass
            print("waiting", flush=True)
        threading.Thread(target=tell, daemon=True).start()
        try:
            writer.append(1, b"y" * 10)
        except KeyboardInterrupt:
            print("interrupted", len(storage._scheduler._uploads.waiting), flush=True)
        gate.set()
        storage.close()
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True, env=environment
    )
    with process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted 0\n"
        assert process.wait(WAIT) == 0


def test_a_hanging_disk_costs_an_upload_the_copy_timeout_and_a_late_copy_is_deleted(store: GatedStore) -> None:
    remote = MemoryStore("threads-remote")
    uploader = DuplicatingUploader(BlobUploader(remote), store)
    uploader._copier.timeout = 0.01
    task = task_of(10)
    [result] = uploader.upload([task]).successful[task]
    assert result.local_handle is None
    assert remote.get(result.handle.name)
    store.gate.set()
    uploader._copier._executor.close()  # Waits for the copy to land.
    assert list(store.list("")) == []
    uploader.close()
    MemoryStore.forget("threads-remote")


def test_a_copy_of_an_object_is_found_by_its_sections(tmp_path: Path) -> None:
    remote = MemoryStore("threads-remote")
    cache = HostCache(tmp_path, 10**6, copy_timeout=WAIT)
    assert cache.start(remote, "object", [b"abc", b"def"]).wait()
    assert [bytes(found.buffer) for found in cache.find(remote.url, "object", 2, 3)] == [b"cde"]
    MemoryStore.forget("threads-remote")


def test_tasks_end_exactly_once_when_the_scheduler_is_closed_meanwhile(store: GatedStore) -> None:
    for round_number in range(20):
        store.gate.set()
        settings = ChangelogSettings(persist_delay=0.001, persist_size_threshold=50, max_in_flight=100)
        scheduler = batching_scheduler(BlobUploader(store), settings)
        ends: list[list[Any]] = [[] for _ in range(40)]

        def send(part: int) -> None:
            for index in range(part, 40, 4):
                scheduler.upload(task_of(10, events=ends[index]))  # noqa: B023

        threads = [start(lambda part=part: send(part)) for part in range(4)]
        if round_number % 2:
            threads[0].join(WAIT)
        scheduler.close()
        for thread in threads:
            thread.join(WAIT)
        scheduler.retrying.executor.close()  # Waits for callbacks that had begun.
        assert [len(events) for events in ends] == [1] * 40
        assert scheduler._uploads.throttle.in_flight == 0


def test_threads_share_one_download(tmp_path: Path) -> None:
    remote = GatedReads()
    cache = HostCache(tmp_path, 10**9)
    with ThreadPoolExecutor(6) as pool:
        futures = [pool.submit(cache.download, remote, "object") for _ in range(6)]
        assert remote.entered.wait(WAIT)
        remote.gate.set()
        for future in futures:
            future.result(WAIT)
    assert remote.downloads == 1
    assert [bytes(found.buffer) for found in cache.find(remote.url, "object", 0, 6)] == [b"object"]
    cache.close()


class GatedReads(StoreDecorator):
    def __init__(self) -> None:
        super().__init__(MemoryStore("threads-reads"))
        self.inner.put("object", b"object" * 1000)
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.downloads = 0

    def get_range(self, name: str, start: int, end: int) -> bytes:
        self.downloads += 1
        self.entered.set()
        assert self.gate.wait(WAIT)
        return super().get_range(name, start, end)


def test_processes_share_one_download(tmp_path: Path) -> None:
    """Five processes want one object at once; the store's folder counts its downloads."""
    program = f"""
        import os, sys
        from stateline.blob import StoreDecorator
        from stateline.blob.local import LocalStore
        from stateline.changelog.host_cache import HostCache
        folder = {str(tmp_path)!r}

        class Counting(StoreDecorator):
            def get_range(self, name, start, end):
                open(os.path.join(folder, "download-" + str(os.getpid())), "w").close()
                return super().get_range(name, start, end)

        store = Counting(LocalStore(folder + "/store"))
        cache = HostCache(folder + "/cache", 10**9)
        sys.stdout.write("ready\\n"); sys.stdout.flush()
        sys.stdin.readline()
        cache.download(store, "object")
        assert [bytes(found.buffer) for found in cache.find(store.url, "object", 0, 3_000_000)] == [b"x" * 3_000_000]
        cache.close()
    """
    LocalStore(tmp_path / "store").put("object", b"x" * 3_000_000)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(5)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=WAIT)
        assert process.returncode == 0
    assert len(list(tmp_path.glob("download-*"))) == 1


def test_ten_writers_share_objects_and_no_request_is_wasted() -> None:
    from stateline.blob import InstrumentedStore

    inner = InstrumentedStore(MemoryStore("threads-ten"))
    with ChangelogStorage.open(inner, ChangelogSettings(persist_delay=0.2)) as storage:
        writers = [storage.create_writer(f"operator-{index}", KeyGroupRange(0, 127)) for index in range(10)]
        for checkpoint in range(5):
            starts = [writer.next_sequence_number() for writer in writers]
            for writer in writers:
                writer.append(5, b"small")
            futures = [writer.persist(begin, checkpoint) for writer, begin in zip(writers, starts, strict=True)]
            assert all(future.result(WAIT).remote.state_size == 5 for future in futures)
    assert inner.calls["put_if_absent"] <= 5
    assert set(inner.calls) == {"put_if_absent"}
    MemoryStore.forget("threads-ten")
