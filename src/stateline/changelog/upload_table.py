"""The life of an action that is attempted several times, as a table: pure values, without threads, clock or I/O.

- :data:`LIFE` is the table: states, events, and the instruction of each step. What it does not list comes too late, and
  nothing happens. :class:`Attempts` is one action in it; ``retry`` is the shell that executes what it says.
- :class:`UploadRoom` is what comes before an upload: the room of all uploads together, the order of those who wait for
  it, and which tasks share an upload. An upload that is queued, and had no attempt yet, may get more tasks.

Rules for every action:
- An attempt's time runs from its real start, not from its place in the queue. When it is over, the attempt goes on, but
  the next one starts at once: the action goes to the first that succeeds, old or new.
- Every later success is discarded. Every attempt makes objects of its own, so a discard cannot touch the winner's.

Uploads (:class:`~stateline.changelog.retry.RetryingExecutor`) have a budget of time:
- An attempt that ends with an I/O error is repeated after a delay. No other error is. An error of an attempt that is
  late says nothing. An upload fails exactly once: when the policy allows no further attempt and none that is still in
  time is running.

Requests (:class:`~stateline.changelog.racing.RacingStore`) never fail because a store is slow:
- "There is none", "there is one already" and "it holds something else" are answers: each was true during the call.
- Any other error is not repeated, as stores retry by themselves. It is told only when **every** attempt has ended, so
  nothing is under way that could take effect after it. It says "not done" only if each attempt said so; otherwise the
  outcome is unknown.

Rules for batches:
- Bytes in flight (queued or being uploaded) never exceed the limit; a single task above it goes alone, when nothing
  else is on its way. Tasks are served in the order of their arrival, so a large one is not overtaken for ever.
- A batch becomes one object. It has at most ``persist_size_threshold`` bytes, unless a single task has more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from stateline.changelog.settings import ChangelogSettings
from stateline.changelog.upload_task import UploadTask
from stateline.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ClosedError,
    ConflictError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    StorageFullError,
    TooManyOpenFilesError,
    UnavailableError,
)
from stateline.options import parse_duration, parse_int, parse_size

__all__ = ["LIFE", "Attempts", "Batch", "Event", "QueuedTask", "RetryPolicy", "UploadRoom", "UploadThrottle"]

MAX_BATCH_CHANGE_SETS: Final = 16_384
"""Change sets in one batch, however small they are: each is a section of the object."""


_ANSWERS: Final = (NotFoundError, AlreadyExistsError, ConflictError)
_NOT_DONE: Final = (UnavailableError, AccessDeniedError, StorageFullError, TooManyOpenFilesError, ClosedError)

State: TypeAlias = Literal["queued", "in flight", "racing", "done", "failed"]
"""Queued: waits for its time, and no attempt may still succeed. In flight: one attempt runs, in time. Racing: an
attempt is late and may still succeed, beside those that follow it."""

Event: TypeAlias = Literal["due", "succeeded", "broke", "late", "spent", "closed"]
"""Due: its time has come. Succeeded: any attempt, however late. Broke: the attempt in time ended with an error. Late:
it is out of time. Spent: either of the two, and the policy allows no other attempt. Closed: nobody waits any more."""

Instruction: TypeAlias = Literal["start", "repeat", "complete", "fail", "discard", "nothing"]
"""Start an attempt. Repeat: it is due after the policy's delay. Complete with, or discard, this attempt's result."""

LIFE: Final[Mapping[tuple[State, Event], tuple[State, Instruction]]] = {
    ("queued", "due"): ("in flight", "start"),
    ("queued", "closed"): ("failed", "fail"),
    ("in flight", "succeeded"): ("done", "complete"),
    ("in flight", "broke"): ("queued", "repeat"),
    ("in flight", "late"): ("racing", "repeat"),
    ("in flight", "spent"): ("failed", "fail"),
    ("in flight", "closed"): ("failed", "fail"),
    ("racing", "due"): ("racing", "start"),
    ("racing", "succeeded"): ("done", "complete"),
    ("racing", "broke"): ("racing", "repeat"),
    ("racing", "late"): ("racing", "repeat"),
    ("racing", "spent"): ("failed", "fail"),
    ("racing", "closed"): ("failed", "fail"),
    ("done", "succeeded"): ("done", "discard"),
    ("failed", "succeeded"): ("failed", "discard"),
}


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


class Attempts:
    """One action in the table. Not safe to use from two threads at once.

    Args:
        policy: When to try again.
        is_request: Whether the rules of requests hold, and not those of uploads; see the module docstring.

    Attributes:
        policy, is_request: As given.
        state: Where it is.
        started: Attempts so far; the last one has this number.
        delay: Of the repetition that was asked for, in seconds.
        error: What the action has failed with.
    """

    __slots__ = ("_errors", "_in_time", "delay", "error", "is_request", "policy", "started", "state")

    def __init__(self, policy: RetryPolicy, *, is_request: bool = False) -> None:
        self.policy = policy
        self.state: State = "queued"
        self.started = 0
        self.delay = 0.0
        self.error: BaseException | None = None
        self.is_request = is_request
        self._in_time = 0  # The number of the attempt whose error counts; 0: of none. Of uploads.
        self._errors: dict[int, BaseException] = {}  # Of requests: by attempt.

    @property
    def is_open(self) -> bool:
        """Whether it may yet get more to upload."""
        return self.state == "queued" and self.started == 0

    @property
    def has_ended(self) -> bool:
        """Whether it was completed or failed."""
        return self.state in ("done", "failed")

    @property
    def may_be_late(self) -> bool:
        """Whether it means anything that the newest attempt is out of time: the last one of a request never is."""
        return not self.is_request or self.started < self.policy.max_attempts

    def on(self, event: Event, attempt: int = 0, error: BaseException | None = None) -> Instruction:
        """Takes one step of the table.

        Args:
            event: What happened.
            attempt: To which attempt.
            error: Why it broke, is late or is closed.
        """
        if error is not None and self.has_ended:
            return "nothing"
        if error is not None and event != "closed":
            step = self._request_step if self.is_request else self._upload_step
            judged = step(event, attempt, error)
            if judged is None:
                return "nothing"
            event = judged
        elif error is not None:
            self.error = error
        self.state, instruction = LIFE.get((self.state, event), (self.state, "nothing"))
        if instruction == "start":
            self.started += 1
            self._in_time = self.started
        return instruction

    def _upload_step(self, event: Event, attempt: int, error: BaseException) -> Event | None:
        """What an error, or lateness, means for an upload: of one attempt only the first of the two counts."""
        if attempt != self._in_time:
            return None
        self._in_time = 0
        self.error = error
        delay = self.policy.retry_after(attempt, error)
        self.delay = delay or 0.0
        return "spent" if delay is None else event

    def _request_step(self, event: Event, attempt: int, error: BaseException) -> Event | None:
        """What an error, or lateness, means for a request: it fails when nothing is under way, or with an answer."""
        if event == "late":
            return event if attempt == self.started < self.policy.max_attempts else None
        self._errors[attempt] = error
        if not isinstance(error, _ANSWERS) and len(self._errors) < self.started:
            return None
        uncertain = (one for one in self._errors.values() if not isinstance(one, _NOT_DONE))
        self.error = error if isinstance(error, _ANSWERS) else next(uncertain, error)
        return "spent"


class UploadThrottle:
    """A strict limit of bytes in flight. Not safe to use from two threads at once.

    A request above the limit is as large as the limit, so that it goes when nothing else is on its way, and alone.

    Args:
        max_in_flight: Bytes, or text such as ``"5MB"``; 1 or more.
    """

    __slots__ = ("_in_flight", "max_in_flight")

    def __init__(self, max_in_flight: int | str) -> None:
        self.max_in_flight = parse_size(max_in_flight, "max_in_flight")
        if self.max_in_flight < 1:
            raise InvalidInputError(
                f"must be at least 1 byte, got {max_in_flight}", subject="max_in_flight", hint="Raise it"
            )
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        """Bytes that were seized and not released."""
        return self._in_flight

    @property
    def has_capacity(self) -> bool:
        """Whether anything more may be seized."""
        return self._in_flight < self.max_in_flight

    def fits(self, size: int) -> bool:
        """Whether :meth:`seize` of ``size`` bytes would stay within the limit."""
        return self._in_flight + min(size, self.max_in_flight) <= self.max_in_flight

    def seize(self, n: int) -> None:
        """Takes ``n`` bytes of the limit, at most all of it.

        Raises:
            InternalError: They do not fit; the caller had to wait.
            InvalidInputError: It is no whole number.
        """
        size = parse_int(n, "n")
        if size < 0 or not self.fits(size):
            raise InternalError(
                f"{size} bytes do not fit beside {self._in_flight} of {self.max_in_flight}", operation="seize"
            )
        self._in_flight += min(size, self.max_in_flight)

    def release(self, n: int) -> None:
        """Gives back what :meth:`seize` took for the same ``n``."""
        counted = min(parse_int(n, "n"), self.max_in_flight)
        if not 0 <= counted <= self._in_flight:
            raise InternalError(f"{n} bytes were never seized", operation="release")
        self._in_flight -= counted


@dataclass(eq=False, frozen=True, slots=True)
class QueuedTask:
    """A task in its batch.

    Attributes:
        task: The writer's.
        arrived_at: When it got its place.
        bytes: Of the batch, up to it.
        sets: Change sets of the batch, up to it.
    """

    task: UploadTask
    arrived_at: float
    bytes: int
    sets: int


class Batch:
    """Tasks that become one object.

    Attributes:
        places: The tasks, until they end.
    """

    def __init__(self) -> None:
        self.places: list[QueuedTask] = []

    @property
    def bytes(self) -> int:
        """Of its tasks."""
        return self.places[-1].bytes if self.places else 0

    def with_task(self, task: UploadTask, now: float) -> QueuedTask:
        """The place that the task would have."""
        sets = self.places[-1].sets if self.places else 0
        return QueuedTask(task, now, self.bytes + task.size, sets + len(task.change_sets))


class UploadRoom:
    """Who may go, and together with whom: the bytes in flight of one scheduler. Not safe from two threads at once.

    Attributes:
        throttle: The bytes in flight.
        waiting: Who waits for room, in the order of arrival.
    """

    def __init__(self, settings: ChangelogSettings) -> None:
        self.throttle = UploadThrottle(settings.max_in_flight)
        self.waiting: deque[UploadTask] = deque()
        self._limit = settings.persist_size_threshold
        self._has_delay = settings.persist_delay > 0

    def has_room_for(self, task: UploadTask) -> bool:
        """Whether it is this task's turn, and there is room for it."""
        return self.throttle.fits(task.size) and (not self.waiting or self.waiting[0] is task)

    def fits(self, batch: Batch, task: UploadTask) -> bool:
        """Whether the batch stays within its bounds with this task, too; a single one may exceed the first."""
        if not batch.places:
            return True
        place = batch.with_task(task, 0.0)
        return self._has_delay and place.bytes <= self._limit and place.sets <= MAX_BATCH_CHANGE_SETS

    def is_full(self, batch: Batch) -> bool:
        """Whether the batch has to wait for no more tasks."""
        return not self._has_delay or batch.bytes >= self._limit or bool(self.waiting)

    def enter(self, batch: Batch, place: QueuedTask) -> None:
        """Gives a task its room and its place, or leaves everything as it was: the caller may be interrupted."""
        task, in_flight = place.task, self.throttle.in_flight
        try:
            self.throttle.seize(task.size)
            batch.places.append(place)
            task.taken = True
        except BaseException:
            if batch.places and batch.places[-1] is place:
                batch.places.pop()
            if self.throttle.in_flight != in_flight:
                self.throttle.release(task.size)
            raise

    def leave(self, batch: Batch) -> list[UploadTask]:
        """Gives the room of the tasks back, which end now."""
        places, batch.places = batch.places, []
        for place in places:
            self.throttle.release(place.task.size)
        return [place.task for place in places]
