"""A world in one thread, where work runs when somebody waits, and a store with scripted faults."""

from __future__ import annotations

import heapq
import itertools
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from stateline.blob import BlobStore, StoreDecorator
from stateline.blob.api import Buffer, ObjectInfo
from stateline.blob.memory import MemoryStore
from stateline.changelog import (
    ChangelogSettings,
    ChangelogStorage,
    SegmentHandle,
    SequenceNumber,
    StateChange,
    StateChangeSet,
    UploadResult,
    UploadTask,
)
from stateline.environment import Environment


class DeadlockError(AssertionError):
    """Somebody waits for ever and nothing is left to run."""


class ManualWorld:
    """Time, ids and threads under the test's control. Work runs, in order, when somebody waits or the test says so."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.ready: deque[tuple[Callable[..., Any], tuple[Any, ...], Future[Any]]] = deque()
        self.timers: list[tuple[float, int, ManualTimer]] = []
        self.counter = itertools.count(1)
        self.environment = Environment(clock=self, ids=self, executors=self)

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        """Lets everything else go on for so long."""
        self.run_until(lambda: False, self.time + seconds)

    def new_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=next(self.counter) << 64 | 0x4000_8000_0000_0000_0000, version=4)

    def new_id(self) -> str:
        return self.new_uuid().hex

    def executor(self, name: str, num_threads: int) -> ManualExecutor:
        return ManualExecutor(self)

    def monitor(self) -> ManualMonitor:
        return ManualMonitor(self)

    def step(self) -> bool:
        """Runs one piece of work that is ready."""
        if not self.ready:
            return False
        function, arguments, future = self.ready.popleft()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)
        return True

    def fire(self, limit: float) -> bool:
        """Runs the next timer that is due by ``limit``, and moves the clock there."""
        while self.timers and self.timers[0][2].function is None:
            heapq.heappop(self.timers)
        if not self.timers or self.timers[0][0] > limit:
            return False
        due, _, timer = heapq.heappop(self.timers)
        self.time = max(self.time, due)
        function, timer.function = timer.function, None
        if function is not None:
            function()
        return True

    def run_until(self, predicate: Callable[[], bool], limit: float | None) -> bool:
        while not predicate():
            if self.step() or self.fire(float("inf") if limit is None else limit):
                continue
            if limit is None:
                raise DeadlockError("nothing is left to run")
            self.time = max(self.time, limit)
            return predicate()
        return True

    def run(self) -> None:
        """Runs what is ready, and no timer."""
        while self.step():
            pass

    def advance(self, seconds: float) -> None:
        """Runs everything that is ready or becomes due within ``seconds``."""
        self.sleep(seconds)


class ManualTimer:
    def __init__(self, function: Callable[[], None]) -> None:
        self.function: Callable[[], None] | None = function

    def cancel(self) -> bool:
        cancelled, self.function = self.function is not None, None
        return cancelled


class ManualExecutor:
    def __init__(self, world: ManualWorld) -> None:
        self.world = world
        self.closed = False
        self.futures: list[Future[Any]] = []

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        if self.closed:
            raise RuntimeError("closed")
        future: Future[Any] = Future()
        self.futures.append(future)
        self.world.ready.append((function, arguments, future))
        return future

    def call_later(self, delay_seconds: float, function: Callable[[], None]) -> ManualTimer:
        if self.closed:
            raise RuntimeError("closed")
        timer = ManualTimer(function)
        heapq.heappush(self.world.timers, (self.world.time + delay_seconds, next(self.world.counter), timer))
        return timer

    def close(self, *, wait: bool = True) -> None:
        self.closed = True
        for future in self.futures:
            future.cancel()


class ManualMonitor:
    def __init__(self, world: ManualWorld) -> None:
        self.world = world
        self.depth = 0

    def __enter__(self) -> Self:
        self.depth += 1
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.depth -= 1

    def wait_for(self, predicate: Callable[[], bool], timeout_seconds: float | None = None) -> bool:
        assert self.depth > 0, "the monitor is not held"
        depth, self.depth = self.depth, 0
        try:
            limit = None if timeout_seconds is None else self.world.time + timeout_seconds
            return self.world.run_until(predicate, limit)
        finally:
            self.depth = depth

    def notify_all(self) -> None:
        assert self.depth > 0, "the monitor is not held"


class ScriptedStore(StoreDecorator):
    """Does to each write what the test put in ``script``: an error before or after the effect, or a wait."""

    def __init__(self, inner: BlobStore, world: ManualWorld | None = None) -> None:
        super().__init__(inner)
        self.world = world
        self.script: deque[Any] = deque()
        self.for_ever: Any = None
        self.calls: list[tuple[str, str]] = []
        self.fetched = 0

    def put_if_absent(self, name: str, data: Buffer) -> ObjectInfo:
        self.calls.append(("put_if_absent", name))
        act = self.script.popleft() if self.script else self.for_ever
        if isinstance(act, float):
            self.world.sleep(act)
        elif isinstance(act, tuple):
            self.inner.put_if_absent(name, data)
            raise act[0]
        elif act is not None:
            raise act
        return self.inner.put_if_absent(name, data)

    def get_range(self, name: str, start: int, end: int) -> bytes:
        self.calls.append(("get_range", name))
        data = super().get_range(name, start, end)
        self.fetched += len(data)
        return data

    def head(self, name: str) -> ObjectInfo:
        self.calls.append(("head", name))
        return super().head(name)

    def list(self, prefix: str) -> Any:
        self.calls.append(("list", prefix))
        return super().list(prefix)

    def delete(self, names: Any) -> None:
        names = list(names)
        self.calls += [("delete", name) for name in names]
        super().delete(names)

    def names(self) -> list[str]:
        return sorted(info.name for info in self.inner.list(""))

    def count(self, operation: str) -> int:
        return sum(call[0] == operation for call in self.calls)


_stores = itertools.count()


def memory_store(world: ManualWorld | None = None) -> ScriptedStore:
    """An empty store of its own."""
    return ScriptedStore(MemoryStore(f"changelog-test-{next(_stores)}", world and world.environment), world)


def open_storage(world: ManualWorld, store: BlobStore, **settings: Any) -> ChangelogStorage:
    return ChangelogStorage.open(store, ChangelogSettings(**settings), job_id="job", environment=world.environment)


class RecordingScheduler:
    """Keeps tasks until the test completes or fails them."""

    def __init__(self) -> None:
        self.tasks: list[UploadTask] = []
        self.closed = False
        self.error: BaseException | None = None

    @property
    def availability(self) -> Any:
        return None

    def upload(self, task: UploadTask) -> None:
        if self.error is not None:
            task.fail(self.error)
            raise self.error
        self.tasks.append(task)

    def close(self) -> None:
        self.closed = True

    def complete(self, index: int, name: str = "object") -> list[UploadResult]:
        results = results_of(self.tasks[index], f"{name}-{index}")
        self.tasks[index].complete(results)
        return results

    def fail(self, index: int, error: BaseException | None = None) -> None:
        self.tasks[index].fail(error or OSError("the store is away"))

    def numbers(self) -> list[list[int]]:
        return [[number.value for number in task.sequence_numbers] for task in self.tasks]


def results_of(task: UploadTask, name: str) -> list[UploadResult]:
    return [result_of(change_set, name, offset) for offset, change_set in enumerate(task.change_sets)]


def result_of(change_set: StateChangeSet, name: str, offset: int = 0) -> UploadResult:
    handle = SegmentHandle(
        name=name,
        offset=offset,
        length=100,
        head_length=72,
        crc32c=0,
        log_id=change_set.log_id.hex,
        sequence_number=change_set.sequence_number.value,
        size=change_set.size,
        first_key_group=0,
        last_key_group=0,
    )
    return UploadResult(change_set.sequence_number, handle, None, offset, change_set.size)


def task_of(*sizes: int, first: int = 0, events: list[Any] | None = None) -> UploadTask:
    """A task with one change set per size, whose end is noted in ``events``."""
    log_id = uuid.UUID(int=7)
    sets = [
        StateChangeSet(log_id, SequenceNumber(first + index), [StateChange(0, bytes(size))])
        for index, size in enumerate(sizes)
    ]
    noted = [] if events is None else events
    return UploadTask(
        sets, lambda results: noted.append(("done", results)), lambda numbers, error: noted.append(("failed", error))
    )


def values(changes: Sequence[StateChange]) -> list[tuple[int, bytes]]:
    return [(change.key_group, change.value) for change in changes]
