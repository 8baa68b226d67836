"""What one checkpoint is: the value behind ``_metadata``, and who may decide it.

Invariants of a root, which every module here keeps:

- **The record is the commit.** ``chk-<id>/_metadata`` is created last, by create-if-absent, and names only objects that
  are durable already. What it names exists; what no record names is garbage.
- **One winner per id, for ever.** A slot is never freed before a floor that covers it is durable, and whoever has just
  created a record reads the floor before acting on it.
- **Everything else is immutable** and has a unique name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from stateline.checkpoint.layout import RECORD_PREFIX
from stateline.handles import FinishedFile, OpenFile, RowsHandle, RunHandle, SectionHandle
from stateline.key_groups import KeyGroupRange

__all__ = [
    "EARLIER_CHECKPOINTS",
    "HISTORY",
    "MAX_FILE_STATE_THRESHOLD",
    "Checkpoint",
    "DeliveryState",
    "FileState",
    "InlineState",
    "InputState",
    "OperatorState",
    "OutputState",
    "SubtaskState",
    "checkpoint_time",
]

MAX_FILE_STATE_THRESHOLD: Final = 1_048_576
"""Bytes of the largest state that a record may hold inline."""

EARLIER_CHECKPOINTS: Final = "savepoint.checkpoints"
"""Name in ``Checkpoint.properties``, carried from record to record: :attr:`Checkpoint.earlier_checkpoints`."""


HISTORY: Final = "history"
"""Name in ``Checkpoint.states``: what the newest checkpoints did and cost. No restart needs it."""


class SubtaskState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of one subtask of one operator: a stack of runs, oldest first.

    Attributes:
        first_key_group: Lowest key group of the subtask (inclusive).
        last_key_group: Highest key group (inclusive).
        runs: Oldest first; a newer run wins. Only rows within the key groups count.
    """

    first_key_group: int
    last_key_group: int
    runs: tuple[RunHandle, ...] = ()

    @property
    def key_groups(self) -> KeyGroupRange:
        """The inclusive range of key groups."""
        return KeyGroupRange(self.first_key_group, self.last_key_group)


class OperatorState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of one operator.

    Attributes:
        name: Unique within the pipeline.
        schema: Arrow schema of the state table, serialised as an IPC message and base64-encoded; its field metadata
            tells keys from values.
        definition: What computes the state (for an aggregation: its columns and functions), compared on restart.
        subtasks: In order of their key groups; together they cover all of them.
    """

    name: str
    schema: str
    definition: str
    subtasks: tuple[SubtaskState, ...]


class OutputState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files of one output.

    Attributes:
        operator: Name of the operator whose rows they hold.
        url: Root of the output, without credentials.
        finished: Files that this checkpoint publishes, after it exists.
        open: Files that go on growing after it.
    """

    operator: str
    url: str
    finished: tuple[FinishedFile, ...] = ()
    open: tuple[OpenFile, ...] = ()


class InputState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far event time has come in one input of the pipeline.

    Attributes:
        name: Name of an operator that reads the input.
        column: The event time that its watermark was made from.
        watermark_us: The watermark after the batch, microseconds since the epoch; ``None`` before any event.
        late_watermark_us: The one that the batch worked with: everything at or below it is closed.
    """

    name: str
    column: str
    watermark_us: int | None = None
    late_watermark_us: int | None = None


class DeliveryState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows that are handed over after the checkpoint exists, and then never again.

    Attributes:
        operator: Name of the operator whose output they are.
        rows: A section for each subtask that had any, in the order of the subtasks.
    """

    operator: str
    rows: tuple[RowsHandle, ...]


class InlineState(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="inline", tag_field="kind"
):
    """A small piece of state, at most :data:`MAX_FILE_STATE_THRESHOLD` bytes, that travels inside the record."""

    data: bytes


class FileState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="file", tag_field="kind"):
    """A piece of state in an object of its own.

    Attributes:
        name: Relative to the folder of the record if ``relative``, to the root of the store otherwise.
        relative: Exclusive state is, so that a checkpoint's folder can be moved; shared state is not.
        size: Bytes of the object.
        crc32c: CRC32C of the whole object.
    """

    name: str
    relative: bool
    size: int
    crc32c: int

    def object_name(self, folder: str) -> str:
        """Name in the store, given the name of the folder that holds the record."""
        return f"{folder}/{self.name}" if self.relative else self.name


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One decision: the output and the state of one micro-batch.

    Attributes:
        checkpoint_id: 0 and up, without gaps.
        batch_id: The micro-batch that is decided. Advances with ``checkpoint_id``; the end of a stream makes one more
            checkpoint of the same batch, in which open files are finished.
        query_id: Identity of the streaming query, constant over its restarts.
        offsets_digest: Digest of the source offsets that the batch covers; the same batch id with another digest is a
            rolled-back or copied Spark checkpoint, never a replay.
        max_parallelism: Number of key groups; fixed for the life of the root.
        parallelism: Subtasks of this batch.
        nonce: Unique to the attempt that wrote the record: tells one's own record from another driver's.
        created_at: The time of the checkpoint, seconds since the epoch; see :func:`checkpoint_time`.
        operators: State.
        outputs: Files.
        deliveries: Rows to be handed over, of each operator that has any.
        inputs: The inputs that have a watermark.
        properties: Free text for people and tools. What is told of an output has a key that ends with a space and its
            URL.
        states: Whatever else a restart needs, by name, written through a ``CheckpointStreamFactory``.
    """

    checkpoint_id: int
    batch_id: int
    query_id: str
    offsets_digest: str
    max_parallelism: int
    parallelism: int
    nonce: str
    created_at: float
    operators: tuple[OperatorState, ...] = ()
    outputs: tuple[OutputState, ...] = ()
    deliveries: tuple[DeliveryState, ...] = ()
    inputs: tuple[InputState, ...] = ()
    properties: dict[str, str] = {}
    states: dict[str, InlineState | FileState] = {}

    @property
    def folder(self) -> str:
        """Name of the folder that holds the record, below the root."""
        return f"{RECORD_PREFIX}{self.checkpoint_id}"

    @property
    def publishes(self) -> bool:
        """Whether something is left to do once the record exists: files to make visible, rows to hand over."""
        return any(output.finished for output in self.outputs) or bool(self.deliveries)

    @property
    def watermark_us(self) -> int | None:
        """The least watermark of all inputs after the batch; ``None`` without one."""
        return min((us for each in self.inputs if (us := each.watermark_us) is not None), default=None)

    @property
    def earlier_checkpoints(self) -> int:
        """Checkpoints that the state has behind it from before the savepoint that the root began with; 0 without one.

        With ``checkpoint_id`` it makes a number that never repeats in the life of a state, whatever root it is in.
        """
        return int(self.properties.get(EARLIER_CHECKPOINTS, "0"))

    def without_deliveries(self) -> Checkpoint:
        """The same state, with nothing left to hand over: for whatever goes on from this checkpoint."""
        return msgspec.structs.replace(self, deliveries=())

    def operator(self, name: str) -> OperatorState | None:
        """The state of the operator called ``name``; ``None`` if there is none."""
        return next((state for state in self.operators if state.name == name), None)

    def sections(self) -> Iterator[SectionHandle]:
        """Every section that this checkpoint reaches, inline or not."""
        return (section for _, section in self.owned_sections())

    def owned_sections(self) -> Iterator[tuple[str, SectionHandle]]:
        """Every section with its owner, as the directory of a segment names it."""
        for operator in self.operators:
            for subtask in operator.subtasks:
                yield from ((operator.name, run) for run in subtask.runs)
        for output in self.outputs:
            for file in output.open:
                yield from ((file.target, rows) for rows in file.pending)
        for delivery in self.deliveries:
            yield from ((delivery.operator, rows) for rows in delivery.rows)

    def object_names(self) -> Iterator[str]:
        """The names in the root's store that this checkpoint reaches, repeated where several handles share one."""
        yield from (section.name for section in self.sections() if not section.is_inline)
        for state in self.states.values():
            if isinstance(state, FileState):
                yield state.object_name(self.folder)


def checkpoint_time(now: float, newest: Checkpoint | None) -> float:
    """The time of the checkpoint that follows ``newest``: what a clock says, but never a time before that one's.

    Clocks are set back, and the next driver may be on a host whose clock is behind. What has passed must not come back:
    a time to live, a timer, the age of a file. So time stands still until the clock has caught up.
    """
    return now if newest is None else max(now, newest.created_at)
