"""Clocks, executors and monitors that the scheduler drives: the simulated side of ``stateline.environment``.

Facts:
- A waiter of a monitor wakes only by ``notify_all`` or by its timeout, as with ``threading.Condition``: a forgotten
  notification is a deadlock here, too.
- ``SimulatedFuture.result`` is a switch point; outside of any actor it runs the world until the result is there.
  ``concurrent.futures.wait`` and ``as_completed`` block on a real event, and so block the world: wait for each future.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from stateline.environment import Cancellable, Environment, Executor, Monitor
from stateline.testing.faults import ActorKilled
from stateline.testing.ids import SeededIds
from tests.kit.scheduler import Group, Scheduler

__all__ = [
    "SimulatedClock",
    "SimulatedEnvironment",
    "SimulatedExecutor",
    "SimulatedExecutors",
    "SimulatedFuture",
    "SimulatedMonitor",
]

T = TypeVar("T")


class SimulatedClock:
    """The virtual clock as one process sees it: sleeping is a switch point, and the wall clock may be wrong.

    Attributes:
        skew_seconds: Added to wall-clock time.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.skew_seconds = 0.0

    def now(self) -> float:
        return self._scheduler.clock.now() + self.skew_seconds

    def monotonic(self) -> float:
        return self._scheduler.clock.monotonic()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            self._scheduler.wait(_never, seconds)
        else:
            self._scheduler.pause()


class SimulatedMonitor:
    """A re-entrant lock with a condition, between actors. Entering is a switch point."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._owner: object | None = None
        self._depth = 0
        self._generation = 0

    def __enter__(self) -> Self:
        me = self._me()
        if self._owner is not me:
            self._scheduler.pause()
            if self._owner is not None:
                self._scheduler.wait(self._is_free)
            self._owner = me
        self._depth += 1
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None

    def wait_for(self, predicate: Callable[[], bool], timeout_seconds: float | None = None) -> bool:
        self._check_held("wait_for")
        clock = self._scheduler.clock
        due = None if timeout_seconds is None else clock.monotonic() + timeout_seconds
        while not predicate():
            remaining = None if due is None else due - clock.monotonic()
            if remaining is not None and remaining <= 0:
                return False
            self._wait(remaining)
        return True

    def notify_all(self) -> None:
        self._check_held("notify_all")
        self._generation += 1

    def _wait(self, remaining: float | None) -> None:
        me, depth, seen = self._owner, self._depth, self._generation
        self._owner, self._depth = None, 0
        try:
            self._scheduler.wait(lambda: self._generation != seen and self._owner is None, remaining)
            if self._owner is not None:  # The time was up while somebody else held the lock.
                self._scheduler.wait(self._is_free)
        finally:
            self._owner, self._depth = me, depth

    def _is_free(self) -> bool:
        return self._owner is None

    def _check_held(self, operation: str) -> None:
        if self._owner is not self._me():
            raise RuntimeError(f"cannot {operation} on a monitor that is not held")

    def _me(self) -> object:
        return self._scheduler.current or self._scheduler


class SimulatedFuture(Future[T], Generic[T]):
    """A future whose ``result`` and ``exception`` let other actors run meanwhile."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    def result(self, timeout: float | None = None) -> T:
        """See :meth:`concurrent.futures.Future.result`; ``timeout`` is in virtual seconds."""
        self._scheduler.wait(self.done, timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._scheduler.wait(self.done, timeout)
        return super().exception(0)


class _Timer:
    """One pending call."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.function: Callable[[], None] | None = function

    def cancel(self) -> bool:
        cancelled = self.function is not None
        self.function = None
        return cancelled

    def never_cancelled(self) -> bool:
        return self.function is None


class SimulatedExecutor:
    """A pool of at most ``num_threads`` actors, with timers. Handing work over is a switch point."""

    def __init__(self, scheduler: Scheduler, group: Group, name: str, num_threads: int) -> None:
        self._scheduler = scheduler
        self._group = group
        self._name = name
        self._num_threads = num_threads
        self._queue: deque[tuple[SimulatedFuture[Any], Callable[..., Any], tuple[Any, ...]]] = deque()
        self._workers = 0
        self._spawned = 0
        self._timers: list[_Timer] = []
        self._timer_running = False
        self._closed = False

    def submit(self, function: Callable[..., T], /, *args: Any) -> Future[T]:
        self._check_open()
        future: SimulatedFuture[T] = SimulatedFuture(self._scheduler)
        self._queue.append((future, function, args))
        if self._workers < self._num_threads:
            self._workers += 1
            self._spawn(self._work)
        self._scheduler.pause()
        return future

    def call_later(self, delay_seconds: float, function: Callable[[], None]) -> Cancellable:
        self._check_open()
        timer = _Timer(function)
        self._timers.append(timer)
        due = self._scheduler.clock.monotonic() + max(delay_seconds, 0.0)
        self._spawn(lambda: self._fire(timer, due))
        return timer

    def close(self, *, wait: bool = True) -> None:
        self._closed = True
        for timer in self._timers:
            timer.cancel()
        while self._queue:
            self._queue.popleft()[0].cancel()
        if wait:
            self._scheduler.wait(lambda: self._workers == 0 and not self._timer_running)

    def _work(self) -> None:
        try:
            while self._queue:
                future, function, args = self._queue.popleft()
                if future.set_running_or_notify_cancel():
                    _complete(future, function, args)
                self._scheduler.pause()
        finally:
            self._workers -= 1

    def _fire(self, timer: _Timer, due: float) -> None:
        """One timer's life: wait, take the one timer thread, call."""
        self._scheduler.wait(timer.never_cancelled, due - self._scheduler.clock.monotonic())
        self._scheduler.wait(lambda: not self._timer_running or timer.function is None)
        function, timer.function = timer.function, None
        self._timers.remove(timer)
        if function is None:
            return
        self._timer_running = True
        try:
            function()
        finally:
            self._timer_running = False

    def _spawn(self, function: Callable[[], None]) -> None:
        self._spawned += 1
        self._scheduler.spawn(f"{self._group.name}/{self._name}-{self._spawned}", function, self._group)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"the executor {self._name} is closed")


class SimulatedExecutors:
    """Executors and monitors of one simulated process; satisfies :class:`stateline.environment.Executors`."""

    def __init__(self, scheduler: Scheduler, group: Group) -> None:
        self._scheduler = scheduler
        self._group = group

    def executor(self, name: str, num_threads: int) -> Executor:
        return SimulatedExecutor(self._scheduler, self._group, name, num_threads)

    def monitor(self) -> Monitor:
        return SimulatedMonitor(self._scheduler)


class SimulatedEnvironment(Environment):
    """The world of one simulated process: pass it wherever an :class:`~stateline.environment.Environment` is taken.

    Args:
        scheduler: The world's scheduler; a new one by default.
        group: The process; a new one, called ``main``, by default.
        seed: Seed of the ids.
    """

    scheduler: Scheduler
    group: Group

    def __init__(self, scheduler: Scheduler | None = None, group: Group | None = None, seed: int = 0) -> None:
        scheduler = scheduler or Scheduler()
        group = group or Group("main")
        super().__init__(
            clock=SimulatedClock(scheduler),
            ids=SeededIds(seed, group.name),
            executors=SimulatedExecutors(scheduler, group),
        )
        object.__setattr__(self, "scheduler", scheduler)
        object.__setattr__(self, "group", group)


def _complete(future: SimulatedFuture[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        result = function(*args)
    except ActorKilled:
        raise
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _never() -> bool:
    return False
