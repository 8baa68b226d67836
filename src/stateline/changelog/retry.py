"""The shell of attempts: does what the table of an action says (``upload_table``), on threads and timers.

:class:`RetryingExecutor` runs uploads with it, :class:`~stateline.changelog.racing.RacingStore` requests.
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
from stateline.changelog.upload_table import Attempts, Event, RetryPolicy
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
from stateline.options import check_kind, parse_int

__all__ = ["Pledge", "Race", "RetryingExecutor", "Track", "closed_uploads"]

_LOG: Final = logging.getLogger(__name__)


class RetryingExecutor:
    """Runs actions on a pool of threads, each as often as its policy says.

    Args:
        num_threads: Attempts that run at the same time. An attempt that is out of time keeps its thread until it ends.
        executor: Where attempts and timers run: one of ``stateline.environment``, or a pool of ``concurrent.futures``;
            by default a new pool of ``environment``, closed with this object.
        clock: For latencies.
        metrics: Where to count.
        environment: Where clock, pool and monitor come from unless they are given.

    Attributes:
        executor, clock, metrics: As given, or made.
        monitor: Of everything that is uploaded here.
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
        self.executor = executor_of(executor, environment, "changelog-upload", num_threads)
        self.clock = clock or environment.clock
        self.metrics = metrics or ChangelogMetrics()
        self.monitor = environment.executors.monitor()
        self._owns_executor = self.executor is not executor
        self._track = Track(self.executor, self.clock, self.metrics, closed_uploads)

    def execute(self, policy: RetryPolicy, action: RetriableAction) -> Future[Any]:
        """Starts the first attempt and returns at once.

        Returns:
            The winner's result, or the last error. Done after ``complete`` or ``fail`` of the action has returned.
        """
        check_kind(policy, RetryPolicy, "policy")
        race = self.race(policy, action)
        self.queue(race)
        race.due()
        return race.future

    def race(self, policy: RetryPolicy, action: RetriableAction) -> Race:
        """An upload that is not queued yet."""
        return Race(self._track, Attempts(policy), action, self.monitor)

    def queue(self, race: Race, delay: float | None = None) -> None:
        """Takes an upload that is due when :meth:`Race.due` says so, and at the latest after ``delay``."""
        with self.monitor:
            self._track.live[race] = None
            if delay is not None:
                race.timer = self.executor.call_later(delay, race.due)

    def close(self) -> None:
        """Fails every action that has no winner yet. Attempts that run go on, and are discarded if they succeed."""
        with self.monitor:
            self._track.is_closed = True
            live = list(self._track.live)
        if self._owns_executor:
            self.executor.close(wait=False)
        for race in live:
            race.close()


@dataclass(slots=True, eq=False)
class Track:
    """What the races of one owner share.

    Attributes:
        executor: Where attempts and timers run.
        clock: For latencies.
        metrics: Where to count.
        closed: Why nothing starts once the executor is closed.
        live: The races that were queued and have not ended.
        is_closed: Whether a race that becomes due now fails.
    """

    executor: Executor
    clock: Clock
    metrics: ChangelogMetrics
    closed: Callable[[], ClosedError]
    live: dict[Race, None] = field(default_factory=dict)
    is_closed: bool = False


class Race:
    """One action over all its attempts.

    Args:
        track: Where it is run.
        attempts: Its place in the table.
        action: What is attempted.
        monitor: Guards the place in the table. Notified when the race is over.

    Attributes:
        attempts: As given.
        future: The outcome. Done after ``complete`` or ``fail`` of the action has returned.
        timer: Makes the action due; cancelled once it is.
    """

    def __init__(self, track: Track, attempts: Attempts, action: RetriableAction, monitor: Monitor) -> None:
        self.attempts = attempts
        self.future: Future[Any] = Pledge()
        self.timer: Cancellable | None = None
        self._track = track
        self._action = action
        self._monitor = monitor
        self._first_start: float | None = None

    def due(self) -> None:
        """Starts the next attempt, if the table says so."""
        self._step("due")

    def run(self) -> None:
        """As :meth:`due`, for a thread of the executor, which goes on with the attempt."""
        self._step("due", start=self._attempt)

    def close(self) -> None:
        """Fails the action, unless it has ended. Attempts that run go on."""
        self._step("closed", self._track.closed())

    def answer(self) -> Any:
        """Waits for the outcome: the result of the first success. Raises the error of the action."""
        with self._monitor:
            self._monitor.wait_for(self.future.done)
        return self.future.result()

    def _step(
        self, event: Event, value: Any = None, attempt: int = 0, start: Callable[[int], None] | None = None
    ) -> None:
        """Tells the table what happened, and does what it says.

        Args:
            event: What happened.
            value: The attempt's result, or the error.
            attempt: Its number.
            start: How the next attempt is started; by default on a thread of the executor.
        """
        if event == "due" and self._track.is_closed:
            event, value = "closed", self._track.closed()
        with self._monitor:
            instruction = self.attempts.on(event, attempt, None if event == "succeeded" else value)
            number, delay, error = self.attempts.started, self.attempts.delay, self.attempts.error
            if self.attempts.has_ended:
                self._track.live.pop(self, None)
            timer, self.timer = (None, self.timer) if instruction == "nothing" else (self.timer, None)
        if timer is not None:
            timer.cancel()
        if instruction == "start":
            (start or self._start)(number)
        elif instruction == "repeat":
            self._repeat(delay)
        elif instruction == "discard":
            _call(self._action.discard, value)
        elif instruction == "fail":
            _call(self._action.fail, error)
            self._end(functools.partial(self.future.set_exception, error))
        elif instruction == "complete":
            self._track.metrics.histogram("attempts_per_upload").record(attempt)
            self._track.metrics.histogram("total_attempts_per_upload").record(number)
            _call(self._action.complete, value)
            self._end(functools.partial(self.future.set_result, value))

    def _end(self, settle: Callable[[], None]) -> None:
        settle()
        with self._monitor:
            self._monitor.notify_all()

    def _start(self, attempt: int) -> None:
        try:
            future = self._track.executor.submit(self._attempt, attempt)
            future.add_done_callback(functools.partial(self._ended, attempt))
        except Exception as error:  # noqa: BLE001 - from an executor of whatever kind: the attempt has failed
            self._step("broke", self._refusal(error), attempt)

    def _repeat(self, delay: float) -> None:
        if delay == 0:
            self.due()
            return
        try:
            self._track.executor.call_later(delay, self.due)
        except Exception as error:  # noqa: BLE001 - from an executor of whatever kind: nothing else tries again
            self._step("closed", self._refusal(error))

    def _ended(self, attempt: int, future: Future[None]) -> None:
        """The executor is through with an attempt, which it may have cancelled or failed without running it."""
        error = self._track.closed() if future.cancelled() else future.exception()
        if error is not None:
            self._step("broke", error, attempt)

    def _attempt(self, attempt: int) -> None:
        if self.attempts.has_ended:
            return
        self._track.metrics.counter("upload_attempts").increment()
        started = self._track.clock.monotonic()
        if self._first_start is None:
            self._first_start = started
        timer: Cancellable | None = None
        try:
            timer = self._start_timer(attempt)
            result = self._action.try_execute()
        except BaseException as error:
            self._track.metrics.counter("upload_attempt_failures").increment()
            _let_go(error)
            self._step("broke", error, attempt)
            if not isinstance(error, Exception):
                raise
        else:
            self._track.metrics.histogram("upload_latency_seconds").record(self._track.clock.monotonic() - started)
            if not self.attempts.has_ended:
                self._track.metrics.histogram("retry_wait_seconds").record(started - self._first_start)
            self._step("succeeded", result, attempt)
        finally:
            if timer is not None:
                timer.cancel()

    def _start_timer(self, attempt: int) -> Cancellable | None:
        timeout = self.attempts.policy.timeout_seconds
        if timeout is None or not self.attempts.may_be_late:
            return None
        try:
            return self._track.executor.call_later(timeout, functools.partial(self._is_late, attempt, timeout))
        except RuntimeError as error:
            if isinstance(error, StatelineError) and not self.attempts.is_request:
                raise  # No thread for the timer: an attempt that nobody would race.
            return None  # A request goes on alone; an upload was closed, and has failed already.

    def _is_late(self, attempt: int, timeout: float) -> None:
        error = _AttemptTimeoutError(
            f"attempt {attempt} was not done after {timeout:g} s",
            operation="upload",
            hint="Raise upload_timeout if the store is merely slow",
            kind=ErrorKind.TIMEOUT,
        )
        self._step("late", error, attempt)

    def _refusal(self, error: Exception) -> Exception:
        """What it means that an executor takes no work. ``RuntimeError`` is how those that are closed say so."""
        is_closed = isinstance(error, RuntimeError) and not isinstance(error, StatelineError)
        return self._track.closed() if is_closed else error


class Pledge(Future[Any]):
    """A future that whoever waits for it cannot cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()


def closed_uploads() -> ClosedError:
    """Why nothing is uploaded any more."""
    return ClosedError("closed before the upload ended", operation="upload", subject="changelog")


class _AttemptTimeoutError(UnavailableError, TimeoutError):
    """An attempt ran out of time; it may still succeed."""


def _call(call: Callable[[Any], None], argument: object) -> None:
    """Calls an action. An error there must not end the thread, nor the other actions."""
    try:
        call(argument)
    except Exception as error:  # noqa: BLE001 - logged with its traceback
        _LOG.error("a callback of an upload raised", exc_info=error)


def _let_go(error: BaseException) -> None:
    """Empties the frames of an error, which would keep the bytes of its attempt alive for as long as it is known."""
    for link in chain_of(error):
        traceback.clear_frames(link.__traceback__)
