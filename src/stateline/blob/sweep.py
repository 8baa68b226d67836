"""Finding and deleting what crashed writers left behind: staged pieces, objects of checkpoint roots, of changelogs.

An object is a leftover if nothing that may still be restored or committed names it, **and** it is older than a grace
period. The age protects the objects of writers at work, which no checkpoint names yet: give more than the longest time
between making an object and recording it, which is one micro-batch with all its retries.

Safety:
- Objects are listed before what is reachable is read: what is written meanwhile is not listed, or too young. Staged
  pieces, which only a grace period protects, are listed here.
- Only names that Stateline gives are looked at, and they are deleted by exact name, staged pieces by version, too.
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
from itertools import islice
from typing import Final

from stateline.blob.api import BlobStore, ObjectInfo
from stateline.blob.names import STAGING_PREFIX
from stateline.environment import Environment, Ids, system_environment
from stateline.errors import InvalidInputError, UnavailableError
from stateline.handles import CommitPoint, Part
from stateline.options import parse_duration

__all__ = ["SweepResult", "reachable_names", "sweep"]

_BATCH: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """What a sweep saw.

    Attributes:
        examined: Objects that were looked at.
        reachable: Those that something needs.
        young: Those that nothing needs, but that are too young to go.
        leftovers: The rest.
        leftover_bytes: Bytes of the rest.
        deleted: Whether the rest was deleted.
        swept_at: The present that ages were measured against, in seconds since the epoch.
    """

    examined: int
    reachable: int
    young: int
    leftovers: int
    leftover_bytes: int
    deleted: bool
    swept_at: float = 0.0


def reachable_names(points: Iterable[CommitPoint]) -> set[str]:
    """The names of every piece that some points need.

    What a resume point has superseded is not among them: older points that need it name it themselves.
    """
    return {part.name for point in points for part in point.parts}


def sweep(
    store: BlobStore,
    reachable: Collection[str],
    *,
    listed: Iterable[ObjectInfo] | None = None,
    newest_at: float | None = None,
    min_age: float | str | timedelta = "7d",
    delete: bool = False,
    on_leftover: Callable[[ObjectInfo], None] | None = None,
    environment: Environment | None = None,
) -> SweepResult:
    """Finds leftovers below the root of a store, and with ``delete`` deletes them.

    Args:
        store: The output, the checkpoint root, or the store of a changelog.
        reachable: Names that must stay: :func:`reachable_names` of all points in all retained checkpoints, or the names
            in all retained handles.
        listed: The objects to look at, listed before ``reachable`` was read; by default the staged pieces of the store.
        newest_at: The time of the newest record, after which whatever the next one adds was written: by the store's
            time, only what is older goes, even without a grace period.
        min_age: The grace period; a duration as in options.
        delete: Without it, a dry run.
        on_leftover: Called with each leftover before it is deleted, for a log or a plan.
        environment: Clock of a dry run, and ids.

    Raises:
        InvalidInputError: ``min_age`` is not a duration, or ``reachable`` holds something else than names.
        UnavailableError: The listings of the store lag, so it tells no ages. Nothing was deleted.
        OutcomeUnknownError: Some deletions got no answer. Repeat the sweep.
    """
    world = environment or system_environment()
    kept = _names(reachable)
    grace = parse_duration(min_age, "min_age")
    now = _store_time(store, world.ids) if delete else world.clock.now()
    examined = reachable_count = young = leftovers = leftover_bytes = 0

    def chosen() -> Iterator[ObjectInfo]:
        nonlocal examined, reachable_count, young
        for found in store.list_staged() if listed is None else listed:
            examined += 1
            if found.name in kept:
                reachable_count += 1
            elif found.modified_at > now - grace or (newest_at is not None and found.modified_at >= newest_at):
                young += 1
            else:
                yield found

    found = chosen()
    while batch := list(islice(found, _BATCH)):
        leftovers += len(batch)
        leftover_bytes += sum(info.size for info in batch)
        for info in batch:
            if on_leftover is not None:
                on_leftover(info)
        if delete and listed is None:
            store.discard([_part(info) for info in batch])
        elif delete:
            store.delete([info.name for info in batch])
    return SweepResult(
        examined=examined,
        reachable=reachable_count,
        young=young,
        leftovers=leftovers,
        leftover_bytes=leftover_bytes,
        deleted=delete,
        swept_at=now,
    )


def _names(reachable: Collection[str]) -> Collection[str]:
    """Names in a set. Points would match nothing, and every piece that they name would be a leftover."""
    if isinstance(reachable, str) or not all(isinstance(name, str) for name in reachable):
        raise InvalidInputError(
            "must contain only names",
            operation="sweep",
            subject="reachable",
            hint="Give reachable_names(points). Nothing was deleted",
        )
    return reachable if isinstance(reachable, set | frozenset) else set(reachable)


def _part(found: ObjectInfo) -> Part:
    return Part(name=found.name, length=found.size, crc32c=0, version=found.version, container=found.container)


def _store_time(store: BlobStore, ids: Ids) -> float:
    """The store's own present, as its listings tell times: a ``head`` may round them otherwise.

    Makes an empty object where no reader looks, lists it, and deletes it.
    """
    name = f"{STAGING_PREFIX}{ids.new_id()}"
    store.put(name, b"")
    try:
        times = [found.modified_at for found in store.list(name)]
    finally:
        store.delete([name])
    if not times:
        raise UnavailableError(
            "a listing does not show an object that was just made, so it tells no ages",
            operation="sweep",
            subject=f"{store.url}/{name}",
            hint="Try again later; if it lasts, the store does not list consistently and cannot be swept",
        )
    return times[0]
