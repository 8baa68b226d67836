"""The one door to the world: clocks, identifiers, threads, waiting.

No other module calls ``time``, ``uuid``, ``random`` or starts a thread (ruff's ``banned-api`` and ``tests/arch`` hold
this), so a simulator can drive the whole package from a seed by passing another :class:`Environment`.

Rules:
- Wall-clock time is for people and for ages; safety never depends on it. Durations use the monotonic clock.
- Identifiers are random UUIDs. They make names unique across attempts, hosts and restarts; no name is ever built from
  an attempt number, a task id or a clock.
- Waiting is done on a :class:`Monitor`, so that a simulator can run other actors meanwhile.
"""

from __future__ import annotations

import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Executor as PlainPool
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from stateline.errors import InvalidInputError
from stateline.threads import ThreadedExecutor, ThreadedMonitor

__all__ = [
    "Cancellable",
    "Clock",
    "Closable",
    "Environment",
    "Executor",
    "Executors",
    "Ids",
    "Monitor",
    "SystemClock",
    "SystemExecutors",
    "SystemIds",
    "executor_of",
    "side_by_side",
    "system_environment",
]

T = TypeVar("T")
R = TypeVar("R")


class Closable(ABC):
    """A resource that a ``with`` statement closes."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Closes it. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


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
            RuntimeError: After :meth:`close`; or no thread can be started, which is an ``UnavailableError``, too.
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
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
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
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)


class SystemIds:
    """UUIDs from the operating system's random source; safe across ``fork``, unlike a seeded generator."""

    def new_uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=os.urandom(16), version=4)

    def new_id(self) -> str:
        return self.new_uuid().hex


class SystemExecutors:
    """Real threads."""

    def executor(self, name: str, num_threads: int) -> Executor:
        return ThreadedExecutor(name, num_threads)

    def monitor(self) -> Monitor:
        return ThreadedMonitor()


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Everything nondeterministic that a component may use, as constructor argument."""

    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=SystemIds)
    executors: Executors = field(default_factory=SystemExecutors)


_APART: Final = frozenset({"concurrent.futures.process", "concurrent.futures.interpreter"})
"""Where the pools come from that copy their work to another process or interpreter."""


class _PoolWithTimers:
    """A pool of the standard library, which somebody else closes, and a timer thread, which is closed here."""

    def __init__(self, pool: PlainPool, timers: Executor) -> None:
        self._pool = pool
        self._timers = timers

    def submit(self, function: Callable[..., T], /, *args: Any) -> Future[T]:
        return self._pool.submit(function, *args)

    def call_later(self, delay_seconds: float, function: Callable[[], None]) -> Cancellable:
        return self._timers.call_later(delay_seconds, function)

    def close(self, *, wait: bool = True) -> None:
        """Ends the timers; the pool goes on."""
        self._timers.close(wait=wait)


def executor_of(given: Executor | PlainPool | None, environment: Environment, name: str, num_threads: int) -> Executor:
    """What to run work on: what a caller gave, or a new pool. Whoever gets something else than was given closes it.

    A pool of ``concurrent.futures`` gets timers: without them it would fail on a thread where nobody sees it.

    Raises:
        InvalidInputError: It is no executor, or one whose workers do not share this process's memory.
    """
    if given is None:
        return environment.executors.executor(name, num_threads)
    if any(kind.__module__ in _APART for kind in type(given).__mro__):
        raise InvalidInputError(
            f"must run work on threads of this process, {type(given).__name__} does not",
            subject="executor",
            hint="Give a ThreadPoolExecutor, or None",
        )
    if isinstance(given, PlainPool):
        return _PoolWithTimers(given, environment.executors.executor(f"{name}-timers", 1))
    for method in ("submit", "call_later", "close"):
        if not callable(getattr(given, method, None)):
            raise InvalidInputError(
                f"expected an executor, {type(given).__name__} has no {method}()",
                subject="executor",
                hint="Give a concurrent.futures.Executor, or one with the methods of stateline.environment.Executor",
            )
    return given


def side_by_side(
    environment: Environment, name: str, function: Callable[[T], R], items: Iterable[T], num_threads: int
) -> list[R]:
    """``function`` of every item, several at a time on threads called ``name``; the results in order.

    Every call has ended when this returns or raises; of several errors the first in order is raised. Where no thread
    can be started, the caller's own does the work.
    """
    work = list(items)
    if min(len(work), num_threads) < 2:
        return [function(item) for item in work]
    executor = environment.executors.executor(name, min(num_threads, len(work)))
    monitor = environment.executors.monitor()

    def wake(_: Future[R]) -> None:
        with monitor:
            monitor.notify_all()

    futures: list[Future[R]] = []
    try:
        with suppress(RuntimeError):
            futures.extend(executor.submit(function, item) for item in work)
        for future in futures:
            future.add_done_callback(wake)
        with monitor:
            monitor.wait_for(lambda: all(future.done() for future in futures))
        return [future.result() for future in futures] + [function(item) for item in work[len(futures) :]]
    finally:
        executor.close()


_SYSTEM: Final = Environment()


def system_environment() -> Environment:
    """The real world: system clocks, operating-system randomness, real threads. The same one for everybody."""
    return _SYSTEM
