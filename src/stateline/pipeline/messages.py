"""What the driver, its subtasks and whoever waits for a batch say to each other: frozen values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from stateline.checkpoint import Checkpoint, SubtaskState
from stateline.handles import FinishedFile, OpenFile, RowsHandle
from stateline.pipeline.operators.api import BatchContext

__all__ = [
    "Batch",
    "BatchReport",
    "LookupSlice",
    "SubtaskInput",
    "SubtaskResult",
    "SubtaskRunner",
    "max_event_times",
    "summed_metrics",
]

D = TypeVar("D")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Generic[D]):
    """One micro-batch as the engine hands it over.

    Attributes:
        query_id: Identity of the query, constant over restarts.
        batch_id: 0 and up, without gaps.
        offsets_digest: Digest of the source offsets of the batch.
        offsets: The entry of Spark's offset log; empty if unknown.
        data: What the subtask runner needs to find the rows; the driver does not look at it.
    """

    query_id: str
    batch_id: int
    offsets_digest: str
    data: D
    offsets: str = ""


class LookupSlice(msgspec.Struct, frozen=True, kw_only=True):
    """What a subtask looks up: state of another operator, of at least the hashes that the subtask owns.

    Attributes:
        state: Key groups and runs.
        max_parallelism: How many key groups there are where the state is from.
        checkpoint_id: The checkpoint that has it.
    """

    state: SubtaskState
    max_parallelism: int
    checkpoint_id: int


class SubtaskInput(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver tells one subtask of one operator, beside its rows.

    Attributes:
        operator: Name of the operator.
        subtask: 0 to ``parallelism - 1``.
        states: Its key groups and its runs so far, by table.
        open_files: Output files it goes on with.
        context: Which batch it is, and when.
        lookups: State of others that it reads, by the name that its program gives it.
    """

    operator: str
    subtask: int
    states: dict[str, SubtaskState]
    open_files: tuple[OpenFile, ...]
    context: BatchContext
    lookups: dict[str, LookupSlice] = {}


class SubtaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one subtask hands back: handles of durable sections, small sections themselves, and counts.

    Attributes:
        operator: Name of the operator.
        subtask: Index of the subtask.
        states: Its runs after the batch, by table.
        finished: Files to publish with the checkpoint.
        open: Files that go on.
        metrics: Counts and seconds by name, summed over subtasks in the report.
        event_times_us: The greatest event time of its rows by the name of the input, microseconds since the epoch.
        delivery: Its output rows, where they are handed to a function after the checkpoint; ``None`` for none.
        next_timer_ms: No timer by processing time comes before this, milliseconds since the epoch; ``None`` for none.
        attempt: Which attempt of the subtask this is, where other operators read its output.
        key_hashes: The hashes of the upsert keys of ``delivery``, eight bytes each, where other subtasks may have the
            same keys; ``None`` where keys of their type have no hash.
        received: Whose output the subtask has read, and of which attempt, by the name of the sender.
    """

    operator: str
    subtask: int
    states: dict[str, SubtaskState]
    finished: tuple[FinishedFile, ...] = ()
    open: tuple[OpenFile, ...] = ()
    metrics: dict[str, float] = {}
    event_times_us: dict[str, int] = {}
    delivery: RowsHandle | None = None
    next_timer_ms: int | None = None
    attempt: str = ""
    key_hashes: bytes | None = b""
    received: dict[str, str] = {}


SubtaskRunner = Callable[[Batch[D], Sequence[SubtaskInput]], Sequence[SubtaskResult]]
"""Runs every subtask of a batch, each at least once, and returns one result for each: of an attempt that ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """What became of one batch.

    Attributes:
        checkpoint: The record that decides the batch, ours or an earlier attempt's.
        replayed: The batch had been decided before; nothing was computed.
        metrics: Sums of the subtasks' metrics, and the driver's own seconds by step.
    """

    checkpoint: Checkpoint
    replayed: bool
    metrics: Mapping[str, float] = field(default_factory=dict)


def summed_metrics(results: Sequence[SubtaskResult]) -> dict[str, float]:
    """The metrics of a batch: sums over its subtasks."""
    totals: dict[str, float] = {}
    for result in results:
        for name, value in result.metrics.items():
            totals[name] = totals.get(name, 0) + value
    return totals


def max_event_times(results: Sequence[SubtaskResult]) -> dict[str, int]:
    """The greatest event time of a batch by input: all subtasks of what reads an input have seen its rows."""
    times: dict[str, int] = {}
    for result in results:
        for name, time_us in result.event_times_us.items():
            times[name] = max(times.get(name, time_us), time_us)
    return times
