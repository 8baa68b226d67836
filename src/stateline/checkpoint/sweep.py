"""Garbage in a checkpoint root: objects that crashed tasks and drivers left, and that no checkpoint reaches.

- Only what lies in ``shared/``, ``taskowned/`` or ``chk-<id>/`` and has a name that Stateline gives to data objects is
  looked at: one with a UUID. So it is no record and no mark, and nothing that somebody else put there.
- Of ``history/`` only what lies behind the bound of the history is looked at.
- What a live checkpoint reaches stays: runs, pending rows of open files, state files.
- What is not older than the newest record stays. The next checkpoint adds only objects that were written after that
  record, so even without any grace period nothing goes that a query at work is about to name.
- A root without a checkpoint is refused, and so is one with a record that cannot be read or is gone from between the
  others: what it reaches is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from stateline.blob.api import ObjectInfo
from stateline.blob.sweep import SweepResult, sweep
from stateline.checkpoint.api import Checkpoint
from stateline.checkpoint.history import is_outdated
from stateline.checkpoint.layout import (
    HISTORY_PREFIX,
    RECORD_PREFIX,
    SHARED_PREFIX,
    TASKOWNED_PREFIX,
    is_made_here,
    record_name,
)
from stateline.checkpoint.store import CheckpointStore
from stateline.environment import Environment

__all__ = ["RootSweep", "sweep_root"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RootSweep:
    """What a sweep of a root saw.

    Attributes:
        checkpoints: The live checkpoints, oldest first.
        result: What was counted, records and marks left out, and whether the leftovers were deleted.
        newest_age: Seconds since the newest record was made, by the store's time.
    """

    checkpoints: tuple[Checkpoint, ...]
    result: SweepResult
    newest_age: float


def sweep_root(
    root: CheckpointStore,
    *,
    min_age: float | str | timedelta = "7d",
    delete: bool = False,
    on_leftover: Callable[[ObjectInfo], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    environment: Environment | None = None,
) -> RootSweep:
    """Finds what no live checkpoint of a root reaches, and with ``delete`` deletes it.

    Args:
        root: The root.
        min_age: The grace period; a duration as in options.
        delete: Without it, a dry run.
        on_leftover: Called with each leftover before it is deleted.
        progress: ``progress(objects_done, objects_in_all)``, called after each object that was looked at.
        environment: Clock of a dry run, and ids.

    Raises:
        NotFoundError: The root has no checkpoint.
        CorruptDataError: A record cannot be read. Nothing was deleted.
        DataLossError: A record is gone from between the others. Nothing was deleted.
        OutcomeUnknownError: Some deletions got no answer. Repeat the sweep.
    """
    store = root.store
    prefixes = (SHARED_PREFIX, TASKOWNED_PREFIX, RECORD_PREFIX)
    listed = [info for prefix in prefixes for info in store.list(prefix) if is_made_here(info.name)]
    strict = CheckpointStore(store)  # Whatever settings the caller's has.
    strict.newest("sweep")  # Without a checkpoint, nothing tells what is needed.
    checkpoints = tuple(strict.list())
    newest_id = checkpoints[-1].checkpoint_id
    listed += [info for info in store.list(HISTORY_PREFIX) if is_outdated(info.name, newest_id)]
    newest_at = store.head(record_name(newest_id)).modified_at
    result = sweep(
        store,
        {name for checkpoint in checkpoints for name in checkpoint.object_names()},
        listed=_told(listed, progress),
        newest_at=newest_at,
        min_age=min_age,
        delete=delete,
        on_leftover=on_leftover,
        environment=environment,
    )
    return RootSweep(checkpoints=checkpoints, result=result, newest_age=result.swept_at - newest_at)


def _told(listed: Sequence[ObjectInfo], progress: Callable[[int, int], None] | None) -> Iterator[ObjectInfo]:
    """The same objects, with a word on each that is done when the next one is asked for."""
    for done, info in enumerate(listed, start=1):
        yield info
        if progress is not None:
            progress(done, len(listed))
