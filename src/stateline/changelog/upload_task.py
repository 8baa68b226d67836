"""One request of a writer, upload these change sets, then tell me; and what carries it out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, Protocol, TypeAlias

from stateline.changelog.api import AvailabilityProvider, SequenceNumber, UploadResult
from stateline.changelog.change_set import StateChangeSet
from stateline.changelog.handle import SegmentHandle
from stateline.errors import InternalError
from stateline.options import check_kind
from stateline.threads import Lock

__all__ = [
    "FailureCallback",
    "StateChangeUploadScheduler",
    "StateChangeUploader",
    "SuccessCallback",
    "UploadTask",
    "UploadTasksResult",
    "end_tasks",
]

_LOG: Final = logging.getLogger(__name__)


SuccessCallback: TypeAlias = Callable[[list[UploadResult]], None]
FailureCallback: TypeAlias = Callable[[list[SequenceNumber], BaseException], None]


class UploadTask:
    """Change sets and two callbacks, of which exactly one is called, once, whatever happens.

    :meth:`complete` and :meth:`fail` may be called from any thread and any number of times; the first call wins, and
    the others do nothing. Two tasks are equal only if they are the same one.

    Args:
        change_sets: Of one or several writers.
        on_success: Gets one result per change set.
        on_failure: Gets the numbers of all change sets, and the error.

    Attributes:
        change_sets: As given.
        size: Their bytes, as limits count them.
        taken: Whether a scheduler has it, and will end it, even if the call that gave it was interrupted.
    """

    __slots__ = ("_callbacks", "_lock", "change_sets", "size", "taken")

    def __init__(
        self, change_sets: Iterable[StateChangeSet], on_success: SuccessCallback, on_failure: FailureCallback
    ) -> None:
        check_kind(change_sets, Iterable, "change_sets")
        self.change_sets = tuple(change_sets)
        for change_set in self.change_sets:
            check_kind(change_set, StateChangeSet, "change_set")
        for name, callback in (("on_success", on_success), ("on_failure", on_failure)):
            check_kind(callback, Callable, name)  # type: ignore[arg-type]
        self.size = sum(change_set.weight for change_set in self.change_sets)
        self._callbacks: tuple[SuccessCallback, FailureCallback] | None = (on_success, on_failure)
        self._lock = Lock()
        self.taken = False

    def __repr__(self) -> str:
        return f"UploadTask({len(self.change_sets)} change sets, {self.size} bytes)"

    @property
    def finished(self) -> bool:
        """Whether the task was completed or failed."""
        return self._callbacks is None

    @property
    def sequence_numbers(self) -> list[SequenceNumber]:
        """The numbers of its change sets."""
        return [change_set.sequence_number for change_set in self.change_sets]

    def complete(self, results: list[UploadResult]) -> None:
        """Every change set is durable."""
        callbacks = self._finish()
        if callbacks is not None:
            callbacks[0](results)

    def fail(self, error: BaseException) -> None:
        """No change set of this task will become durable through it."""
        callbacks = self._finish()
        if callbacks is not None:
            callbacks[1](self.sequence_numbers, error)

    def _finish(self) -> tuple[SuccessCallback, FailureCallback] | None:
        """The callbacks, for the first caller only."""
        with self._lock:
            callbacks, self._callbacks = self._callbacks, None
        return callbacks

    def outcome(self, result: object) -> list[UploadResult] | BaseException:
        """What an uploader made of this task: one that forgets it, or a part of it, has failed with it."""
        if isinstance(result, UploadTasksResult):
            error = result.failed.get(self)
            if isinstance(error, BaseException):
                return error
            given = result.successful.get(self) if self not in result.failed else None
            results: list[UploadResult] = list(given) if isinstance(given, Iterable) else []
            if all(isinstance(one, UploadResult) for one in results):
                found, expected = [one.sequence_number for one in results], self.sequence_numbers
                if found == expected or sorted(found) == sorted(expected):
                    return results
        return InternalError("the uploader gave no result for this task, or not one per change set", operation="upload")


class UploadTasksResult:
    """What one call of an uploader gives: each task is in exactly one of the two mappings.

    Args:
        successful: The results of each task that is durable, one per change set.
        failed: The error of each task that can never succeed. An error that another attempt may cure is raised instead.
    """

    __slots__ = ("failed", "successful")

    def __init__(
        self,
        successful: Mapping[UploadTask, list[UploadResult]] | None = None,
        failed: Mapping[UploadTask, BaseException] | None = None,
    ) -> None:
        for name, given in (("successful", successful), ("failed", failed)):
            check_kind({} if given is None else given, Mapping, name)
        self.successful = dict(successful or {})
        self.failed = dict(failed or {})

    def handles(self) -> Iterator[SegmentHandle]:
        """Every segment that this result made durable."""
        for results in self.successful.values():
            for result in results:
                yield result.handle


class StateChangeUploader(Protocol):
    """Makes change sets durable."""

    def upload(self, tasks: Collection[UploadTask]) -> UploadTasksResult:
        """Uploads the change sets of all tasks into as few objects as possible, under names never used before.

        Returns only when everything is durable. It neither completes nor fails the tasks: whoever retries does.

        Raises:
            OSError: Nothing is durable, or nobody can tell. Another attempt may succeed.
        """

    def discard(self, result: UploadTasksResult) -> None:
        """Gives up what a late :meth:`upload` made, because another attempt had won. A failed delete is no error."""

    def close(self) -> None:
        """Gives connections back. Idempotent."""


class StateChangeUploadScheduler(Protocol):
    """Decides when upload tasks run, and with which others."""

    @property
    def availability(self) -> AvailabilityProvider:
        """Whether :meth:`upload` would return without waiting."""

    def upload(self, task: UploadTask) -> None:
        """Takes a task over: it will be completed or failed exactly once, on any thread.

        May wait for room, and may be interrupted then: the task is failed before the interruption passes on.
        """

    def close(self) -> None:
        """Fails every unfinished task and wakes every waiting caller. Idempotent."""


def end_tasks(outcomes: Iterable[tuple[UploadTask, list[UploadResult] | BaseException]]) -> None:
    """Completes or fails each task. A callback that raises does not keep the others from their end."""
    for task, outcome in outcomes:
        try:
            if isinstance(outcome, BaseException):
                task.fail(outcome)
            else:
                task.complete(outcome)
        except Exception as error:  # noqa: BLE001 - logged with its traceback; the other tasks must end, too
            _LOG.error("a callback of an upload raised", exc_info=error)
