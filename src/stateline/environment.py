"""The one door to the world: clocks, identifiers, threads, waiting.

Owns every source of nondeterminism. Does not own stores (``stateline.blob``). No other module calls ``time``,
``uuid``, ``random`` or starts a thread (ruff's ``banned-api`` and ``tests/arch`` hold this), so a simulator can drive
the whole house from a seed by passing another :class:`Environment`.

Rules:
- Wall-clock time is for people and for ages; safety never depends on it. Durations use the monotonic clock.
- Identifiers are random UUIDs. They make names unique across attempts, hosts and restarts; no name is ever built from
  an attempt number, a task id or a clock.
- Waiting is done on a :class:`Monitor`, so that a simulator can run other actors meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from _thread import RLock
from collections.abc import Callable
from concurrent.futures import Executor as PlainPool
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, TypeVar

from stateline.errors import InvalidInputError

__all__ = [
    "Cancellable",
    "Clock",
    "Environment",
    "Executor",
    "Executors",
    "Ids",
    "Monitor",
    "SystemClock",
    "SystemExecutors",
    "SystemIds",
    "executor_of",
    "system_environment",
]

T = TypeVar("T")


class Clock(Protocol):
    """Time. Implementations must be safe to call from any thread."""

    def now(self) -> float:
        """Wall-clock time: seconds since the Unix epoch, UTC. May jump in both directions."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start. Never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Blocks the caller for at least ``seconds`` of monotonic time (0 or less returns at once)."""
        ...


class Ids(Protocol):
    """Identifiers. Implementations must be safe to call from any thread and never repeat a value."""

    def new_uuid(self) -> uuid.UUID:
        """A fresh version-4 UUID."""
        ...

    def new_id(self) -> str:
        """A fresh UUID as 32 lower-case hexadecimal digits: what object names carry."""
        ...


class Cancellable(Protocol):
    """A timer that has been started."""

    def cancel(self) -> bool:
        """Stops the timer. ``True`` if the callback will not run, ``False`` if it ran or is running."""
        ...


class Executor(Protocol):
    """A bounded pool of threads, with timers."""

    def submit(self, function: Callable[..., T], /, *args: Any) -> Future[T]:
        """Runs ``function(*args)`` on a thread of the pool.

        Raises:
            RuntimeError: After :meth:`close`.
        """
        ...

    def call_later(self, delay_seconds: float, function: Callable[[], None]) -> Cancellable:
        """Runs ``function()`` once, at least ``delay_seconds`` from now, on a thread that is not the caller's.

        The function must be short or hand its work to :meth:`submit`: all timers of a pool share one thread.
        """
        ...

    def close(self, *, wait: bool = True) -> None:
        """Refuses new work, cancels timers and queued work; with ``wait`` lets running work end. Idempotent."""
        ...


class Executors(Protocol):
    """Makes executors and monitors that belong to one world (real threads, or one simulator)."""

    def executor(self, name: str, num_threads: int) -> Executor:
        """A new pool of at most ``num_threads`` threads, whose names start with ``name``."""
        ...

    def monitor(self) -> Monitor:
        """A new, unlocked monitor."""
        ...


class Monitor(Protocol):
    """A re-entrant lock with a condition, as ``threading.Condition`` on an ``RLock``."""

    def __enter__(self) -> object: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def wait_for(self, predicate: Callable[[], bool], timeout_seconds: float | None = None) -> bool:
        """Gives the lock up until ``predicate()`` holds or the time is over; returns the last value of the predicate.

        The caller must hold the lock. ``KeyboardInterrupt`` and other signals of Python interrupt the wait.
        """
        ...

    def notify_all(self) -> None:
        """Wakes every waiter so that it looks at its predicate again. The caller must hold the lock."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        """See :meth:`Clock.now`."""
        return time.time()

    def monotonic(self) -> float:
        """See :meth:`Clock.monotonic`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """See :meth:`Clock.sleep`."""
        if seconds > 0:
            time.sleep(seconds)


class SystemIds:
    """UUIDs from the operating system's random source; safe across ``fork``, unlike a seeded generator."""

    def new_uuid(self) -> uuid.UUID:
        """See :meth:`Ids.new_uuid`."""
        return uuid.UUID(bytes=os.urandom(16), version=4)

    def new_id(self) -> str:
        """See :meth:`Ids.new_id`."""
        return self.new_uuid().hex


class _ThreadedMonitor(RLock):  # type: ignore[misc] # Final for type checkers only.
    """A re-entrant lock with a condition of its own.

    It is a lock, and does not only have one, so that ``with`` takes it in one step of C. A method of Python that takes
    a lock may be interrupted by the handler of a signal, and the lock is then held for ever.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition(self)

    def wait_for(self, predicate: Callable[[], bool], timeout_seconds: float | None = None) -> bool:
        """See :meth:`Monitor.wait_for`."""
        limit = None if timeout_seconds is None else min(timeout_seconds, threading.TIMEOUT_MAX)
        return self._condition.wait_for(predicate, limit)

    def notify_all(self) -> None:
        """See :meth:`Monitor.notify_all`."""
        self._condition.notify_all()


class _Timer:
    """One pending call of a :class:`_ThreadedExecutor`."""

    def __init__(self, due: float, function: Callable[[], None], lock: RLock) -> None:
        self.due = due
        self.function: Callable[[], None] | None = function
        self._lock = lock

    def cancel(self) -> bool:
        """See :meth:`Cancellable.cancel`."""
        with self._lock:
            cancelled = self.function is not None
            self.function = None
            return cancelled


class _ThreadedExecutor:
    """A thread pool plus one lazily started timer thread."""

    def __init__(self, name: str, num_threads: int) -> None:
        self._name = name
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._lock = threading.RLock()  # Taken itself, not through the condition: see _ThreadedMonitor.
        self._condition = threading.Condition(self._lock)
        self._timers: list[_Timer] = []
        self._timer_thread: threading.Thread | None = None
        self._closed = False

    def submit(self, function: Callable[..., T], /, *args: Any) -> Future[T]:
        """See :meth:`Executor.submit`."""
        return self._pool.submit(function, *args)

    def call_later(self, delay_seconds: float, function: Callable[[], None]) -> Cancellable:
        """See :meth:`Executor.call_later`."""
        timer = _Timer(time.monotonic() + max(delay_seconds, 0.0), function, self._lock)
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the executor {self._name} is closed")
            self._timers.append(timer)
            if self._timer_thread is None or not self._timer_thread.is_alive():  # Its start may be interrupted.
                self._timer_thread = threading.Thread(target=self._run_timers, name=f"{self._name}-timer", daemon=True)
                self._timer_thread.start()
            self._condition.notify()
        return timer

    def close(self, *, wait: bool = True) -> None:
        """See :meth:`Executor.close`."""
        with self._lock:
            self._closed = True
            self._timers.clear()
            self._condition.notify()
        thread = self._timer_thread
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join()
        self._pool.shutdown(wait=wait, cancel_futures=True)

    def _run_timers(self) -> None:
        while True:
            with self._lock:
                if self._closed:
                    return
                self._timers = [timer for timer in self._timers if timer.function is not None]
                now = time.monotonic()
                due = min(self._timers, key=lambda timer: timer.due, default=None)
                if due is None:
                    self._condition.wait()
                    continue
                if due.due > now:
                    self._condition.wait(min(due.due - now, threading.TIMEOUT_MAX))
                    continue
                self._timers.remove(due)
                function, due.function = due.function, None
            if function is not None:
                function()


class SystemExecutors:
    """Real threads."""

    def executor(self, name: str, num_threads: int) -> Executor:
        """See :meth:`Executors.executor`."""
        return _ThreadedExecutor(name, num_threads)

    def monitor(self) -> Monitor:
        """See :meth:`Executors.monitor`."""
        return _ThreadedMonitor()


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Everything nondeterministic that a component may use, as constructor argument."""

    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=SystemIds)
    executors: Executors = field(default_factory=SystemExecutors)


class _PoolWithTimers:
    """A pool of the standard library, which somebody else closes, and a timer thread, which is closed here."""

    def __init__(self, pool: PlainPool, timers: Executor) -> None:
        self._pool = pool
        self._timers = timers

    def submit(self, function: Callable[..., T], /, *args: Any) -> Future[T]:
        """See :meth:`Executor.submit`."""
        return self._pool.submit(function, *args)

    def call_later(self, delay_seconds: float, function: Callable[[], None]) -> Cancellable:
        """See :meth:`Executor.call_later`."""
        return self._timers.call_later(delay_seconds, function)

    def close(self, *, wait: bool = True) -> None:
        """Ends the timers; the pool goes on."""
        self._timers.close(wait=wait)


def executor_of(given: Executor | PlainPool | None, environment: Environment, name: str, num_threads: int) -> Executor:
    """What to run work on: what a caller gave, or a new pool. Whoever gets something else than was given closes it.

    A pool of ``concurrent.futures`` gets timers: without them it would fail on a thread where nobody sees it.

    Raises:
        InvalidInputError: It is no executor.
    """
    if given is None:
        return environment.executors.executor(name, num_threads)
    if isinstance(given, PlainPool):
        return _PoolWithTimers(given, environment.executors.executor(f"{name}-timers", 1))
    for method in ("submit", "call_later", "close"):
        if not callable(getattr(given, method, None)):
            raise InvalidInputError(
                f"{type(given).__name__} has no {method}()",
                subject="executor",
                hint="Give a concurrent.futures.Executor, or one with the methods of stateline.environment.Executor",
            )
    return given


def system_environment() -> Environment:
    """The real world: system clocks, operating-system randomness, real threads."""
    return Environment()
