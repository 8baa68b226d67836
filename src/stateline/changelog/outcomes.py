"""What an upload made of its tasks, as its uploader says, who may be somebody else's.

Owns that each task gets exactly one outcome, and is ended with it. Does not own when uploads run (``scheduler``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from stateline.changelog.api import UploadResult, UploadTasksResult
from stateline.changelog.upload_task import UploadTask
from stateline.errors import ClosedError, InternalError

__all__ = ["Outcome", "closed_scheduler", "end_tasks", "inherited_scheduler", "outcomes_of"]

_LOG: Final = logging.getLogger(__name__)

Outcome = list[UploadResult] | BaseException


def outcomes_of(result: object, tasks: Iterable[UploadTask]) -> list[tuple[UploadTask, Outcome]]:
    """The outcome of each task: an uploader that forgets one, or a part of one, has failed with it."""
    return [(task, _outcome(result, task)) for task in tasks]


def end_tasks(outcomes: Iterable[tuple[UploadTask, Outcome]]) -> None:
    """Completes or fails each task. A callback that raises does not keep the others from their end."""
    for task, outcome in outcomes:
        try:
            if isinstance(outcome, BaseException):
                task.fail(outcome)
            else:
                task.complete(outcome)
        except Exception as error:  # noqa: BLE001 - logged with its traceback; the other tasks must end, too
            _LOG.error("a callback of an upload raised", exc_info=error)


def inherited_scheduler() -> ClosedError:
    """Why a process that was forked cannot upload."""
    return ClosedError(
        "the storage belongs to the process that this one was forked from",
        operation="upload",
        subject="changelog",
        hint="Open a storage in the process that writes",
    )


def closed_scheduler() -> ClosedError:
    """Why nothing is uploaded any more."""
    return ClosedError("the scheduler was closed before the upload ended", operation="upload", subject="changelog")


def _outcome(result: object, task: UploadTask) -> Outcome:
    if isinstance(result, UploadTasksResult):
        error = result.failed.get(task)
        if isinstance(error, BaseException):
            return error
        given = result.successful.get(task) if task not in result.failed else None
        results: list[UploadResult] = list(given) if isinstance(given, Iterable) else []
        if all(isinstance(one, UploadResult) for one in results):
            found, expected = [one.sequence_number for one in results], task.sequence_numbers
            if found == expected or sorted(found) == sorted(expected):
                return results
    return InternalError("the uploader gave no result for this task, or not one per change set", operation="upload")
