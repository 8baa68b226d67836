"""Real threads that outlive neither their program nor a fork: pools with timers, monitors, locks.

Rules:
- No thread keeps Python alive. At its end, Python waits for a short while for work that nobody closed; a store that
  never answers does not hold it up for longer. Whoever needs work to be done closes what does it.
- A thread that has nothing to do for a while ends, so a pool may live as long as its process.
- A thread that the system refuses costs the call that needed it, no later one.
- After a fork the child has none of the threads, and the locks are as they were. So in the child pools begin anew,
  locks are free, and a wait without a bound for what only the parent's threads could bring is an error.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from _thread import RLock, start_new_thread
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from stateline.errors import ClosedError, UnavailableError

__all__ = ["Lock", "ThreadedExecutor", "ThreadedMonitor", "Timer", "new_lock"]

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

_EXIT_SECONDS: Final = 5.0
"""How long the end of Python waits for work that nobody closed."""

_IDLE_SECONDS: Final = 30.0
"""How long a thread waits for more work before it ends; the next piece of work starts another one."""


class Lock(RLock):  # type: ignore[misc] # Final for type checkers only.
    """A re-entrant lock that no interrupt leaves held, where ``with`` takes it.

    Python runs the handlers of signals after calls, so a lock would be held for ever where one raises between the call
    that takes it and the block: at a call in a method of Python, and on 3.14 at ``with`` on an object of C, too
    (python/cpython#148874). It runs none after an unpacking, nor when a method of Python returns. The end of the block
    is a method of C, which lets go before anything else happens.
    """

    def __enter__(self) -> bool:  # type: ignore[override] # A `with` gives nothing to it.
        (taken,) = map(self.acquire, (True,))
        return taken


def new_lock() -> Lock:
    """A lock that is free in a forked process, whoever held it in the other."""
    lock = Lock()
    _LOCKS.add(lock)
    return lock


class ThreadedMonitor(Lock):  # type: ignore[misc]
    """A lock with a condition of its own; see :class:`~stateline.environment.Monitor`.

    It is a lock, and does not only have one: see there what an interrupt would do to a method that takes another.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition(self)
        self._is_inherited = False
        _MONITORS.add(self)

    def wait_for(self, predicate: Callable[[], bool], timeout_seconds: float | None = None) -> bool:
        if timeout_seconds is None and self._is_inherited and not predicate():
            raise ClosedError(
                "cannot wait for a thread of the process that this one was forked from",
                operation="wait",
                hint="Open storages, writers and streams in the process that uses them",
            )
        limit = None if timeout_seconds is None else min(timeout_seconds, threading.TIMEOUT_MAX)
        return self._condition.wait_for(predicate, limit)

    def notify_all(self) -> None:
        self._condition.notify_all()

    def after_fork(self) -> None:
        """Frees the lock, which a thread may have held that this process does not have."""
        self._at_fork_reinit()  # type: ignore[attr-defined] # As the standard library does with its own locks.
        self._condition = threading.Condition(self)
        self._is_inherited = True


class Timer:
    """One pending call of a :class:`_Pool`."""

    def __init__(self, due: float, function: Callable[[], None], pool: _Pool) -> None:
        self.due = due
        self.function: Callable[[], None] | None = function
        self._pool = pool

    def cancel(self) -> bool:
        return self._pool.cancel(self)


class _NoThreadError(UnavailableError, RuntimeError):
    """The system has no thread to give just now; a closed executor raises ``RuntimeError``, too."""


@dataclass(slots=True)
class _Work:
    """One call and where its result goes."""

    future: Future[Any]
    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.function(*self.arguments)
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            self.future.set_exception(error)
            del self  # The traceback names this frame: without it, error and future would keep each other alive.
        else:
            self.future.set_result(result)


class _Pool:
    """Threads with a queue, and one more with timers; each is started when there is something for it.

    The threads know the pool and not its executor, so they end soon after an executor that nobody has any more. They
    are daemons: Python ends without them, but for a short while waits for what they are at.
    """

    def __init__(self, name: str, num_threads: int) -> None:
        self._name = name
        self._num_threads = num_threads
        self._is_over = False
        self.after_fork()
        _POOLS.add(self)

    def after_fork(self) -> None:
        """Begins anew, without threads: what was asked for so far is the business of the process that was forked."""
        self._lock = Lock()  # Taken itself, not through a condition, whose method would take another.
        self._work_came = threading.Condition(self._lock)
        self._timer_came = threading.Condition(self._lock)
        self._is_quiet = threading.Condition(self._lock)
        self._queue: deque[_Work] = deque()
        self._timers: list[Timer] = []
        self._threads: set[threading.Thread] = set()
        self._timer_thread: threading.Thread | None = None
        self._started = self._idle = 0

    def submit(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            self._check_open()
            self._queue.append(_Work(future, function, arguments))
            if self._idle < len(self._queue) and len(self._threads) < self._num_threads:
                try:
                    self._start_worker()
                except _NoThreadError:
                    if not self._threads:  # Else they come to it in time.
                        self._queue.pop()
                        raise
            self._work_came.notify()
        return future

    def call_later(self, delay_seconds: float, function: Callable[[], None]) -> Timer:
        with self._lock:
            self._check_open()
            if self._timer_thread is None or not self._timer_thread.is_alive():  # Its start may be interrupted.
                self._timer_thread = self._start_thread(self._run_timers, f"{self._name}-timer")
            timer = Timer(time.monotonic() + max(delay_seconds, 0.0), function, self)
            self._timers.append(timer)
            self._timer_came.notify()
        return timer

    def cancel(self, timer: Timer) -> bool:
        with self._lock:
            cancelled = timer.function is not None
            timer.function = None
            return cancelled

    def close(self, *, wait: bool) -> None:
        with self._lock:
            cancelled, self._queue = self._queue, deque()
            self._timers.clear()
            self.let_end()
            threads = [*self._threads, self._timer_thread]
        for work in cancelled:
            work.future.cancel()
            work.future.set_running_or_notify_cancel()
        for thread in threads if wait else ():
            if thread is not None and thread is not threading.current_thread():
                thread.join()

    def let_end(self) -> None:
        """Takes no more work; the threads end when they are through with what there is."""
        with self._lock:
            self._is_over = True
            self._work_came.notify_all()
            self._timer_came.notify_all()

    def wait_until_quiet(self, seconds: float) -> None:
        """Waits until nothing is queued or running, but not for timers."""
        with self._lock:
            self._is_quiet.wait_for(lambda: not self._queue and self._idle == len(self._threads), seconds)

    def _check_open(self) -> None:
        if self._is_over:
            raise RuntimeError(f"the executor {self._name} is closed")

    def _start_worker(self) -> None:
        thread = self._start_thread(self._run_work, f"{self._name}_{self._started}")
        self._started += 1
        self._threads.add(thread)

    def _start_thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        try:
            _start_uninterrupted(thread)
        except RuntimeError as error:
            raise _NoThreadError(
                f"no thread can be started ({error})",
                operation="start thread",
                subject=name,
                hint="Raise the limit of threads of this user or container, or run fewer processes",
            ) from error
        return thread

    def _run_work(self) -> None:
        with self._lock:
            self._threads.add(threading.current_thread())  # Whoever started it may have been interrupted.
        while True:
            with self._lock:
                has_waited = False
                while not self._queue:
                    if self._is_over or has_waited:
                        self._threads.discard(threading.current_thread())
                        self._is_quiet.notify_all()
                        return
                    self._idle += 1
                    self._is_quiet.notify_all()
                    has_waited = not self._work_came.wait(_IDLE_SECONDS)
                    self._idle -= 1
                work = self._queue.popleft()
            work.run()
            del work

    def _run_timers(self) -> None:
        while True:
            with self._lock:
                self._timers = [timer for timer in self._timers if timer.function is not None]
                due = min(self._timers, key=lambda timer: timer.due, default=None)
                if due is None:
                    if self._is_over or (not self._timer_came.wait(_IDLE_SECONDS) and not self._timers):
                        self._timer_thread = None
                        return
                    continue
                left = due.due - time.monotonic()
                if left > 0:
                    self._timer_came.wait(min(left, threading.TIMEOUT_MAX))
                    continue
                self._timers.remove(due)
                function, due.function = due.function, None
            try:
                if function is not None:
                    function()
            except Exception as error:  # noqa: BLE001 - the other timers must not suffer
                _LOG.error("a timer of %s raised", self._name, exc_info=error)
            del due, function


def _start_uninterrupted(thread: threading.Thread) -> None:
    """Starts a thread from another one, which nothing interrupts.

    No thread of the process would begin or end any more if an interrupt left a lock of the standard library held.
    """
    failed: list[BaseException] = []
    is_over = threading.Lock()
    is_over.acquire()

    def start() -> None:
        try:
            thread.start()
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            failed.append(error)
        finally:
            is_over.release()

    start_new_thread(start, ())
    is_over.acquire()
    if failed:
        raise failed.pop()


class ThreadedExecutor:
    """A pool that ends with whoever uses it. In a forked process it begins anew, without the work of the other."""

    def __init__(self, name: str, num_threads: int) -> None:
        self._pool = _Pool(name, num_threads)
        weakref.finalize(self, self._pool.let_end).atexit = False

    def submit(self, function: Callable[..., T], /, *args: Any) -> Future[T]:
        return self._pool.submit(function, args)

    def call_later(self, delay_seconds: float, function: Callable[[], None]) -> Timer:
        return self._pool.call_later(delay_seconds, function)

    def close(self, *, wait: bool = True) -> None:
        self._pool.close(wait=wait)


_POOLS: Final[weakref.WeakSet[_Pool]] = weakref.WeakSet()
_MONITORS: Final[weakref.WeakSet[ThreadedMonitor]] = weakref.WeakSet()
_LOCKS: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in _POOLS:
        pool.after_fork()
    for monitor in _MONITORS:
        monitor.after_fork()
    for lock in _LOCKS:
        lock._at_fork_reinit()  # noqa: SLF001 - as the standard library does with its own locks


def _at_exit() -> None:
    deadline = time.monotonic() + _EXIT_SECONDS
    for pool in list(_POOLS):
        pool.wait_until_quiet(max(deadline - time.monotonic(), 0.0))


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
