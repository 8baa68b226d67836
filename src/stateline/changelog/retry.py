"""Attempts that race each other: when to try again, and who wins.

Owns the life of one action over all its attempts. Does not own what an attempt does (``uploader``).

Rules:
- An attempt's time runs from its real start, not from its place in the queue. When it is over, the attempt goes on, but
  the next one starts at once: its result goes to the first that succeeds, old or new.
- Every later success is discarded. Every attempt makes objects of its own, so a discard cannot touch the winner's.
- An attempt that ends with an I/O error is repeated after a delay. No other error is.
- The action fails exactly once: when the policy allows no further attempt and none that is still in time is running.
"""

from __future__ import annotations

import functools
import logging
import traceback
from collections.abc import Callable
from concurrent.futures import Executor as PlainPool
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from stateline.changelog.api import RetriableAction
from stateline.changelog.metrics import ChangelogMetrics
from stateline.changelog.settings import ChangelogSettings
from stateline.environment import (
    Cancellable,
    Clock,
    Environment,
    Executor,
    Monitor,
    executor_of,
    system_environment,
)
from stateline.errors import ClosedError, ErrorKind, StatelineError, UnavailableError, chain_of
from stateline.options import check_kind, parse_duration, parse_int

__all__ = ["RetryPolicy", "RetryingExecutor"]

_LOG = logging.getLogger(__name__)

_NONE: Final = 0
"""The number of no attempt: a follow-up waits for its time."""


class RetryPolicy:
    """When a failed attempt is followed by another. Make one with :meth:`none`, :meth:`fixed` or :meth:`of`.

    Attributes:
        max_attempts: The first included.
        timeout_seconds: Of one attempt, from its start; ``None``: never over.
        delay_seconds: After an I/O error. After a timeout there is no delay.
    """

    __slots__ = ("delay_seconds", "max_attempts", "timeout_seconds")

    def __init__(self, max_attempts: int, timeout_seconds: float | None, delay_seconds: float) -> None:
        self.max_attempts = max_attempts
        self.timeout_seconds = timeout_seconds
        self.delay_seconds = delay_seconds

    def __repr__(self) -> str:
        return f"RetryPolicy({self.max_attempts}, {self.timeout_seconds}, {self.delay_seconds})"

    @classmethod
    def none(cls) -> RetryPolicy:
        """One attempt, without a timeout."""
        return cls(1, None, 0.0)

    @classmethod
    def fixed(cls, max_attempts: int, timeout: Any, delay_after_failure: Any) -> RetryPolicy:
        """A fixed number of attempts.

        Args:
            max_attempts: 1 or more.
            timeout: Of one attempt: seconds, a ``timedelta`` or a string; 0: never over.
            delay_after_failure: Likewise.
        """
        seconds = parse_duration(timeout, "timeout")
        return cls(
            parse_int(max_attempts, "max_attempts", minimum=1),
            seconds if seconds > 0 else None,
            parse_duration(delay_after_failure, "delay_after_failure"),
        )

    @classmethod
    def of(cls, settings: ChangelogSettings) -> RetryPolicy:
        """The policy that the settings name."""
        if settings.retry_policy == "none":
            return cls.none()
        return cls.fixed(settings.max_attempts, settings.upload_timeout, settings.retry_delay)

    def retry_after(self, attempt: int, error: BaseException) -> float | None:
        """Seconds until the next attempt; ``None`` if there is none.

        Args:
            attempt: The number of the attempt that failed; 1 is the first.
            error: Why it failed. ``TimeoutError``: 0 seconds; another ``OSError``: the delay; anything else: no retry.
        """
        if parse_int(attempt, "attempt", minimum=1) >= self.max_attempts or not isinstance(error, OSError):
            return None
        return 0.0 if isinstance(error, TimeoutError) else self.delay_seconds


class RetryingExecutor:
    """Runs actions on a pool of threads, each as often as its policy says.

    Args:
        num_threads: Attempts that run at the same time. An attempt that is out of time keeps its thread until it ends.
        executor: Where attempts and timers run: one of ``stateline.environment``, or a pool of ``concurrent.futures``;
            by default a new pool of ``environment``, closed with this object.
        clock: For latencies.
        metrics: Where to count.
        environment: Where clock, pool and monitor come from unless they are given.
    """

    def __init__(
        self,
        num_threads: int = 1,
        *,
        executor: Executor | PlainPool | None = None,
        clock: Clock | None = None,
        metrics: ChangelogMetrics | None = None,
        environment: Environment | None = None,
    ) -> None:
        environment = environment or system_environment()
        num_threads = parse_int(num_threads, "num_threads", minimum=1)
        used = executor_of(executor, environment, "changelog-upload", num_threads)
        self._owned = used is not executor
        self._world = _World(
            used,
            clock or environment.clock,
            environment.executors.monitor(),
            metrics or ChangelogMetrics(),
        )
        self._closed = False

    def execute(self, policy: RetryPolicy, action: RetriableAction) -> Future[Any]:
        """Starts the first attempt and returns at once.

        Returns:
            The winner's result, or the last error. Done after ``complete`` or ``fail`` of the action has returned.
        """
        check_kind(policy, RetryPolicy, "policy")
        execution = _Execution(self._world, policy, action)
        with self._world.monitor:
            closed = self._closed
            if not closed:
                self._world.undecided[execution] = None
        if closed:
            execution.give_up(_closed())
        else:
            execution.submit_next()
        return execution.future

    def close(self) -> None:
        """Fails every action that has no winner yet. Attempts that run go on, and are discarded if they succeed."""
        with self._world.monitor:
            self._closed = True
            undecided = list(self._world.undecided)
        if self._owned:
            self._world.executor.close(wait=False)
        for execution in undecided:
            execution.give_up(_closed())


@dataclass(slots=True)
class _World:
    """What all actions of one executor share."""

    executor: Executor
    clock: Clock
    monitor: Monitor
    metrics: ChangelogMetrics
    undecided: dict[_Execution, None] = field(default_factory=dict)


class _Execution:
    """One action. The shared monitor guards its fields and is never held while the action's methods run."""

    def __init__(self, world: _World, policy: RetryPolicy, action: RetriableAction) -> None:
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()
        self._world = world
        self._policy = policy
        self._action = action
        self._decided = False
        self._started = 0
        self._in_time = _NONE
        self._first_start: float | None = None

    def submit_next(self) -> None:
        """Queues one more attempt."""
        with self._world.monitor:
            if self._decided:
                return
            self._started += 1
            attempt = self._in_time = self._started
        try:
            future = self._world.executor.submit(self._run, attempt)
            future.add_done_callback(functools.partial(self._ended, attempt))
        except Exception as error:  # noqa: BLE001 - from an executor of whatever kind: the attempt has failed
            self._failed(attempt, _refusal(error))

    def give_up(self, error: BaseException) -> None:
        """Fails the action, unless it has a winner."""
        if self._decide():
            self._end(self._action.fail, error)
            self.future.set_exception(error)

    def _ended(self, attempt: int, future: Future[None]) -> None:
        """The executor is through with an attempt, which it may have cancelled or failed without running it."""
        error = _closed() if future.cancelled() else future.exception()
        if error is not None:
            self._failed(attempt, error)

    def _run(self, attempt: int) -> None:
        if self._decided:
            return
        metrics, clock = self._world.metrics, self._world.clock
        metrics.counter("upload_attempts").increment()
        started = clock.monotonic()
        self._first_start = started if self._first_start is None else self._first_start
        timer: Cancellable | None = None
        try:
            timer = self._start_timer(attempt)
            result = self._action.try_execute()
        except BaseException as error:
            metrics.counter("upload_attempt_failures").increment()
            _let_go(error)
            self._failed(attempt, error)
            if not isinstance(error, Exception):
                raise
        else:
            metrics.histogram("upload_latency_seconds").record(clock.monotonic() - started)
            self._succeeded(attempt, started, result)
        finally:
            if timer is not None:
                timer.cancel()

    def _start_timer(self, attempt: int) -> Cancellable | None:
        timeout = self._policy.timeout_seconds
        if timeout is None:
            return None
        try:
            return self._world.executor.call_later(timeout, functools.partial(self._timed_out, attempt, timeout))
        except RuntimeError as error:
            if isinstance(error, StatelineError):
                raise  # No thread for the timer: an attempt that nobody would race.
            return None  # Closed meanwhile: the action has failed already.

    def _timed_out(self, attempt: int, timeout: float) -> None:
        error = _AttemptTimeoutError(
            f"attempt {attempt} was not done after {timeout:g} s",
            operation="upload",
            hint="Raise upload_timeout if the store is merely slow",
            kind=ErrorKind.TIMEOUT,
        )
        self._failed(attempt, error)

    def _failed(self, attempt: int, error: BaseException) -> None:
        """An attempt ended with an error or ran out of time. Only the first of the two counts, and only while in time.

        An attempt that is out of time has a follow-up already, so its error says nothing about the action.
        """
        with self._world.monitor:
            if self._decided or attempt != self._in_time:
                return
            self._in_time = _NONE
        delay = self._policy.retry_after(attempt, error)
        if delay is None:
            self.give_up(error)
        else:
            self._retry_later(delay)

    def _retry_later(self, delay: float) -> None:
        if delay == 0:
            self.submit_next()
            return
        try:
            self._world.executor.call_later(delay, self.submit_next)
        except Exception as error:  # noqa: BLE001 - from an executor of whatever kind: nothing else tries again
            self.give_up(_refusal(error))

    def _succeeded(self, attempt: int, started: float, result: object) -> None:
        if not self._decide():
            self._end(self._action.discard, result)
            return
        metrics = self._world.metrics
        metrics.histogram("attempts_per_upload").record(attempt)
        metrics.histogram("total_attempts_per_upload").record(self._started)
        metrics.histogram("retry_wait_seconds").record(started - (self._first_start or started))
        self._end(self._action.complete, result)
        self.future.set_result(result)

    def _decide(self) -> bool:
        """Whether the caller is the first to decide the action."""
        with self._world.monitor:
            first, self._decided = not self._decided, True
            self._world.undecided.pop(self, None)
        return first

    def _end(self, call: Callable[[Any], None], argument: object) -> None:
        """Calls the action. An error there must not end the thread, nor the other actions."""
        try:
            call(argument)
        except Exception as error:  # noqa: BLE001 - logged with its traceback
            _LOG.error("a callback of an upload raised", exc_info=error)


class _AttemptTimeoutError(UnavailableError, TimeoutError):
    """An attempt ran out of time; it may still succeed."""


def _let_go(error: BaseException) -> None:
    """Empties the frames of an error, which would keep the bytes of its attempt alive for as long as it is known."""
    for link in chain_of(error):
        traceback.clear_frames(link.__traceback__)


def _refusal(error: Exception) -> Exception:
    """What it means that an executor takes no work. ``RuntimeError`` is how those that are closed say so."""
    return _closed() if isinstance(error, RuntimeError) and not isinstance(error, StatelineError) else error


def _closed() -> ClosedError:
    return ClosedError("it was closed before the upload ended", operation="upload", subject="changelog")
