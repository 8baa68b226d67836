"""The shell of attempts: does what the table of an upload says, on threads and under one monitor.

Owns attempts and timers as they really are, and that every action ends exactly once. Does not own which step follows
which (``upload_table``), or what an attempt does (``uploader``).
"""

from __future__ import annotations

import functools
import logging
import traceback
from collections.abc import Callable
from concurrent.futures import Executor as PlainPool
from concurrent.futures import Future
from typing import Any, Final

from stateline.changelog.api import RetriableAction
from stateline.changelog.metrics import ChangelogMetrics
from stateline.changelog.upload_table import Attempts, Event, RetryPolicy
from stateline.environment import Cancellable, Clock, Environment, Executor, executor_of, system_environment
from stateline.errors import ClosedError, ErrorKind, StatelineError, UnavailableError, chain_of
from stateline.options import check_kind, parse_int

__all__ = ["Pledge", "RetryingExecutor", "Upload", "closed_uploads"]

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
        self._live: dict[Upload, None] = {}
        self._closed = False

    def execute(self, policy: RetryPolicy, action: RetriableAction) -> Future[Any]:
        """Starts the first attempt and returns at once.

        Returns:
            The winner's result, or the last error. Done after ``complete`` or ``fail`` of the action has returned.
        """
        check_kind(policy, RetryPolicy, "policy")
        upload = Upload(policy, action)
        self.queue(upload)
        self.due(upload)
        return upload.future

    def queue(self, upload: Upload, delay: float | None = None) -> None:
        """Takes an upload that is due when :meth:`due` says so, and at the latest after ``delay``."""
        with self.monitor:
            self._live[upload] = None
            if delay is not None:
                upload.timer = self.executor.call_later(delay, functools.partial(self.due, upload))

    def due(self, upload: Upload) -> None:
        """Starts an upload that is queued, and none that is not."""
        if self._closed:
            self._step(upload, "closed", closed_uploads())
        else:
            self._step(upload, "due")

    def close(self) -> None:
        """Fails every action that has no winner yet. Attempts that run go on, and are discarded if they succeed."""
        with self.monitor:
            self._closed = True
            live = list(self._live)
        if self._owns_executor:
            self.executor.close(wait=False)
        for upload in live:
            self._step(upload, "closed", closed_uploads())

    def _step(self, upload: Upload, event: Event, value: Any = None, attempt: int = 0) -> None:
        """Tells the table what happened, and does what it says. ``value``: the attempt's result, or the error."""
        with self.monitor:
            instruction = upload.attempts.on(event, attempt, value if event in ("broke", "late") else None)
            number, delay = upload.attempts.started, upload.attempts.delay
            if upload.attempts.has_ended:
                self._live.pop(upload, None)
            timer, upload.timer = (None, upload.timer) if instruction == "nothing" else (upload.timer, None)
        if timer is not None:
            timer.cancel()
        if instruction == "repeat":
            self._repeat(upload, delay or 0.0)
        elif instruction == "start":
            self._start(upload, number)
        elif instruction == "discard":
            _call(upload.action.discard, value)
        elif instruction == "fail":
            _call(upload.action.fail, value)
            upload.future.set_exception(value)
        elif instruction == "complete":
            self.metrics.histogram("attempts_per_upload").record(attempt)
            self.metrics.histogram("total_attempts_per_upload").record(number)
            _call(upload.action.complete, value)
            upload.future.set_result(value)

    def _start(self, upload: Upload, attempt: int) -> None:
        try:
            future = self.executor.submit(self._attempt, upload, attempt)
            future.add_done_callback(functools.partial(self._ended, upload, attempt))
        except Exception as error:  # noqa: BLE001 - from an executor of whatever kind: the attempt has failed
            self._step(upload, "broke", _refusal(error), attempt)

    def _repeat(self, upload: Upload, delay: float) -> None:
        if delay == 0:
            self.due(upload)
            return
        try:
            self.executor.call_later(delay, functools.partial(self.due, upload))
        except Exception as error:  # noqa: BLE001 - from an executor of whatever kind: nothing else tries again
            self._step(upload, "closed", _refusal(error))

    def _ended(self, upload: Upload, attempt: int, future: Future[None]) -> None:
        """The executor is through with an attempt, which it may have cancelled or failed without running it."""
        error = closed_uploads() if future.cancelled() else future.exception()
        if error is not None:
            self._step(upload, "broke", error, attempt)

    def _attempt(self, upload: Upload, attempt: int) -> None:
        if upload.attempts.has_ended:
            return
        self.metrics.counter("upload_attempts").increment()
        started = self.clock.monotonic()
        if upload.first_start is None:
            upload.first_start = started
        timer: Cancellable | None = None
        try:
            timer = self._start_timer(upload, attempt)
            result = upload.action.try_execute()
        except BaseException as error:
            self.metrics.counter("upload_attempt_failures").increment()
            _let_go(error)
            self._step(upload, "broke", error, attempt)
            if not isinstance(error, Exception):
                raise
        else:
            self.metrics.histogram("upload_latency_seconds").record(self.clock.monotonic() - started)
            if not upload.attempts.has_ended:
                self.metrics.histogram("retry_wait_seconds").record(started - upload.first_start)
            self._step(upload, "succeeded", result, attempt)
        finally:
            if timer is not None:
                timer.cancel()

    def _start_timer(self, upload: Upload, attempt: int) -> Cancellable | None:
        timeout = upload.attempts.policy.timeout_seconds
        if timeout is None:
            return None
        try:
            return self.executor.call_later(timeout, functools.partial(self._is_late, upload, attempt, timeout))
        except RuntimeError as error:
            if isinstance(error, StatelineError):
                raise  # No thread for the timer: an attempt that nobody would race.
            return None  # Closed meanwhile: the action has failed already.

    def _is_late(self, upload: Upload, attempt: int, timeout: float) -> None:
        error = _AttemptTimeoutError(
            f"attempt {attempt} was not done after {timeout:g} s",
            operation="upload",
            hint="Raise upload_timeout if the store is merely slow",
            kind=ErrorKind.TIMEOUT,
        )
        self._step(upload, "late", error, attempt)


class Upload:
    """One action and its place in the table."""

    def __init__(self, policy: RetryPolicy, action: RetriableAction) -> None:
        self.attempts = Attempts(policy)
        self.action = action
        self.future: Future[Any] = Pledge()
        self.timer: Cancellable | None = None
        self.first_start: float | None = None


class Pledge(Future[Any]):
    """A future that whoever waits for it cannot cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()


def closed_uploads() -> ClosedError:
    """Why nothing is uploaded any more."""
    return ClosedError("it was closed before the upload ended", operation="upload", subject="changelog")


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


def _refusal(error: Exception) -> Exception:
    """What it means that an executor takes no work. ``RuntimeError`` is how those that are closed say so."""
    return closed_uploads() if isinstance(error, RuntimeError) and not isinstance(error, StatelineError) else error
