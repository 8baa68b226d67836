"""Garbage in a checkpoint root: objects that crashed tasks and drivers left, and that no checkpoint reaches.

Owns the choice of what may go, and its deletion. Does not own staged pieces of files (``stateline.recoverable.sweep``),
nor what a checkpoint reaches (``api``), nor checkpoints that are no longer retained (``retention``).

An object goes if all of this holds:

- It lies in ``shared/``, ``taskowned/`` or ``chk-<id>/``, and has a name that Stateline gives to data objects: one with
  a UUID. So it is no record and no mark, and nothing that somebody else put there.
- No live checkpoint reaches it: no run, no pending rows of an open file, no state file.
- It is older than a grace period.
- It is older than the newest record. The next checkpoint adds only objects that were written after that record, so
  even without any grace period nothing goes that a query at work is about to name.

Safety:
- A root without a checkpoint is refused, and so is one with a record that cannot be read or is gone from between the
  others: what it reaches is unknown.
- The root is listed before the records are read. What is written meanwhile is not listed, or too young.
- Ages are differences of the store's own times. A dry run, which is the default, writes and deletes nothing, and takes
  the present from the local clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from stateline.blob.ages import store_time
from stateline.blob.api import ObjectInfo
from stateline.checkpoint.api import Checkpoint
from stateline.checkpoint.layout import (
    RECORD_PREFIX,
    SHARED_PREFIX,
    TASKOWNED_PREFIX,
    is_made_here,
    record_name,
)
from stateline.checkpoint.store import CheckpointStore
from stateline.environment import Environment, system_environment
from stateline.errors import NotFoundError
from stateline.options import parse_duration

__all__ = ["RootSweep", "sweep_root"]

_PREFIXES: Final = (SHARED_PREFIX, TASKOWNED_PREFIX, RECORD_PREFIX)
_BATCH: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RootSweep:
    """What a sweep of a root saw.

    Attributes:
        checkpoints: The live checkpoints, oldest first.
        examined: Objects of its own that were listed, records and marks left out.
        reachable: Those that a live checkpoint reaches.
        young: Those that none reaches, but that are too young to go.
        leftovers: The rest.
        leftover_bytes: Bytes of the rest.
        deleted: Whether the rest was deleted.
        newest_age: Seconds since the newest record was made, by the store's time.
    """

    checkpoints: tuple[Checkpoint, ...]
    examined: int
    reachable: int
    young: int
    leftovers: int
    leftover_bytes: int
    deleted: bool
    newest_age: float


def sweep_root(
    root: CheckpointStore,
    *,
    min_age: float | str | timedelta = "7d",
    delete: bool = False,
    on_leftover: Callable[[ObjectInfo], None] | None = None,
    environment: Environment | None = None,
) -> RootSweep:
    """Finds what no live checkpoint of a root reaches, and with ``delete`` deletes it.

    Args:
        root: The root.
        min_age: The grace period; a duration as in options.
        delete: Without it, a dry run.
        on_leftover: Called with each leftover before it is deleted.
        environment: Clock of a dry run, and ids.

    Raises:
        NotFoundError: The root has no checkpoint.
        CorruptDataError: A record cannot be read. Nothing was deleted.
        DataLossError: A record is gone from between the others. Nothing was deleted.
        OutcomeUnknownError: Some deletions got no answer. Repeat the sweep.
    """
    world = environment or system_environment()
    grace = parse_duration(min_age, "min_age")
    listed = [info for prefix in _PREFIXES for info in root.store.list(prefix) if is_made_here(info.name)]
    checkpoints = tuple(CheckpointStore(root.store).list())  # Whatever the caller's may leave out.
    if not checkpoints:
        raise NotFoundError(
            "the root has no checkpoint, so nothing tells what is needed",
            operation="sweep",
            subject=root.store.url,
            hint="Give the URL of a checkpoint root",
        )
    reached = {name for checkpoint in checkpoints for name in checkpoint.object_names()}
    newest = root.store.head(record_name(checkpoints[-1].checkpoint_id)).modified_at
    now = store_time(root.store, world.ids) if delete else world.clock.now()
    before = min(now - grace, newest)
    unreached = [info for info in listed if info.name not in reached]
    leftovers = [info for info in unreached if info.modified_at < before]
    for start in range(0, len(leftovers), _BATCH):
        batch = leftovers[start : start + _BATCH]
        for info in batch:
            if on_leftover is not None:
                on_leftover(info)
        if delete:
            root.store.delete([info.name for info in batch])
    return RootSweep(
        checkpoints=checkpoints,
        examined=len(listed),
        reachable=len(listed) - len(unreached),
        young=len(unreached) - len(leftovers),
        leftovers=len(leftovers),
        leftover_bytes=sum(info.size for info in leftovers),
        deleted=delete,
        newest_age=now - newest,
    )
