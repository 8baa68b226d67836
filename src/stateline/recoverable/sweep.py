"""Finding and deleting what crashed writers left behind.

Owns the choice of what may go. Does not own what is reachable: the caller reads that from its checkpoints.

A staged piece is a leftover if no point that may still be restored or committed names it, **and** it is older than a
grace period. The age protects the pieces of writers at work, which no checkpoint names yet: give more than the longest
time between staging a piece and recording it, which is one micro-batch with all its retries.

Safety:
- Only what the store itself lists as staged by this root is looked at, and it is deleted by exact name and version.
- Ages are differences of the store's own times. When something is to be deleted, the present is read from the store,
  too: from an empty object that is made for that and deleted. So a wrong clock here deletes nothing.
- A dry run, which is the default, writes and deletes nothing. It takes the present from the local clock.
- Leftovers are handled in batches while they are listed, so any number of them needs little memory. A sweep that fails
  half-way may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from stateline.blob.ages import store_time
from stateline.blob.api import BlobStore, ObjectInfo
from stateline.environment import Environment, system_environment
from stateline.errors import InvalidInputError
from stateline.handles import CommitPoint, Part
from stateline.options import parse_duration

__all__ = ["SweepResult", "reachable_names", "sweep"]

_BATCH: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """What a sweep saw.

    Attributes:
        examined: Staged objects listed.
        reachable: Those that a point names.
        young: Those that none names, but that are within the grace period.
        leftovers: The rest.
        leftover_bytes: Bytes of the rest.
        deleted: Whether the rest was deleted.
    """

    examined: int
    reachable: int
    young: int
    leftovers: int
    leftover_bytes: int
    deleted: bool


def reachable_names(points: Iterable[CommitPoint]) -> set[str]:
    """The names of every piece that some points need.

    What a resume point has superseded is not among them: older points that need it name it themselves.
    """
    return {part.name for point in points for part in point.parts}


def sweep(
    store: BlobStore,
    reachable: Collection[str],
    *,
    min_age: float | str | timedelta = "7d",
    delete: bool = False,
    on_leftover: Callable[[ObjectInfo], None] | None = None,
    environment: Environment | None = None,
) -> SweepResult:
    """Finds leftovers below the root of a store, and with ``delete`` deletes them.

    Args:
        store: The output or checkpoint root.
        reachable: Names that must stay: :func:`reachable_names` of all points in all retained checkpoints.
        min_age: The grace period; a duration as in options.
        delete: Without it, a dry run.
        on_leftover: Called with each leftover before it is deleted, for a log or a plan.
        environment: Clock of a dry run, and ids.

    Raises:
        InvalidInputError: ``min_age`` is not a duration, or ``reachable`` holds something else than names.
        OutcomeUnknownError: Some deletions got no answer. Repeat the sweep.
    """
    world = environment or system_environment()
    kept = _names(reachable)
    grace = parse_duration(min_age, "min_age")
    before = (store_time(store, world.ids) if delete else world.clock.now()) - grace
    examined = reachable_count = young = leftovers = leftover_bytes = 0

    def chosen() -> Iterator[ObjectInfo]:
        nonlocal examined, reachable_count, young
        for found in store.list_staged():
            examined += 1
            if found.name in kept:
                reachable_count += 1
            elif found.modified_at > before:
                young += 1
            else:
                yield found

    for batch in _batches(chosen()):
        leftovers += len(batch)
        leftover_bytes += sum(found.size for found in batch)
        for found in batch:
            if on_leftover is not None:
                on_leftover(found)
        if delete:
            store.discard([_part(found) for found in batch])
    return SweepResult(
        examined=examined,
        reachable=reachable_count,
        young=young,
        leftovers=leftovers,
        leftover_bytes=leftover_bytes,
        deleted=delete,
    )


def _names(reachable: Collection[str]) -> Collection[str]:
    """Names in a set. Points would match nothing, and every piece that they name would be a leftover."""
    if isinstance(reachable, str) or not all(isinstance(name, str) for name in reachable):
        raise InvalidInputError(
            "it holds something else than names",
            operation="sweep",
            subject="reachable",
            hint="Give reachable_names(points). Nothing was deleted",
        )
    return reachable if isinstance(reachable, set | frozenset) else set(reachable)


def _batches(leftovers: Iterator[ObjectInfo]) -> Iterator[list[ObjectInfo]]:
    batch: list[ObjectInfo] = []
    for found in leftovers:
        batch.append(found)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _part(found: ObjectInfo) -> Part:
    return Part(name=found.name, length=found.size, crc32c=0, version=found.version, container=found.container)
