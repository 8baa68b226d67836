"""Batch jobs of ``stateline_files`` beside the root of a stream: what dead ones left, and what decided ones need.

- A sink keeps the records of streams in ``<place>/stream``, and those of each job in ``<place>/jobs/<32 digits>``.
- A job with a record was decided: all that it has stays until ``finish_files`` has made its files visible.
- One without a record is at work, or dead. Only age tells.
- Objects are listed before the records are read. Whatever is decided meanwhile needs rows no more, only pieces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from stateline.blob import BlobStore, open_store
from stateline.blob.api import ObjectInfo
from stateline.blob.sweep import SweepResult, sweep
from stateline.checkpoint import Checkpoint, CheckpointStore
from stateline.environment import Environment

__all__ = ["JobsSweep", "jobs_beside", "sweep_jobs"]

_STREAM: Final = "/stream"
_OBJECT: Final = re.compile(r"([0-9a-f]{32})/(?:chk-[0-9]+|shared|taskowned|floor|\.inprogress)/[^/]+")
"""What a job makes. Anything else below a folder that happens to be called ``jobs`` is somebody else's."""


@dataclass(frozen=True, slots=True)
class JobsSweep:
    """What a sweep of jobs saw.

    Attributes:
        checkpoints: The records of jobs that are decided and not finished.
        result: What was counted, and whether it was deleted.
    """

    checkpoints: tuple[Checkpoint, ...]
    result: SweepResult


def jobs_beside(root: BlobStore, options: Mapping[str, str]) -> BlobStore | None:
    """The place of batch jobs, where the root is one of a sink's streams."""
    place = root.url.removesuffix(_STREAM)
    if place == root.url or place.endswith("/"):
        return None
    return open_store(f"{place}/jobs", options)


def sweep_jobs(
    jobs: BlobStore,
    options: Mapping[str, str],
    grace: float,
    *,
    delete: bool,
    on_leftover: Callable[[ObjectInfo], None],
    world: Environment,
) -> JobsSweep:
    """Finds what undecided jobs left that is older than a grace period, and with ``delete`` deletes it.

    Args:
        jobs: From :func:`jobs_beside`.
        options: Options of its store.
        grace: Seconds.
        delete: Without it, a dry run.
        on_leftover: Called with each leftover before it is deleted.
        world: Clock of a dry run, and ids.

    Raises:
        CorruptDataError: A record cannot be read. Nothing was deleted.
        OutcomeUnknownError: Some deletions got no answer. Repeat the sweep.
    """
    listed = [info for info in jobs.list("") if _OBJECT.fullmatch(info.name)]
    records = {
        job: CheckpointStore(open_store(f"{jobs.url}/{job}", options)).list()
        for job in dict.fromkeys(map(_job_of, listed))
    }
    result = sweep(
        jobs,
        {info.name for info in listed if records[_job_of(info)]},
        listed=listed,
        min_age=grace,
        delete=delete and bool(listed),  # Where no job ever was, nothing is written to learn the time.
        on_leftover=on_leftover,
        environment=world,
    )
    return JobsSweep(tuple(record for found in records.values() for record in found), result)


def _job_of(info: ObjectInfo) -> str:
    return info.name.partition("/")[0]
