"""What must hold for the values in a record, whoever wrote it and however right its checksum is.

- Names stay inside the root and name data only.
- Numbers are in range, and what they count can exist.
- The subtasks of an operator cover the key groups exactly: a gap would lose state without a word.
"""

from __future__ import annotations

import re
from typing import Final

from stateline.blob.names import check_name
from stateline.checkpoint.api import (
    EARLIER_CHECKPOINTS,
    MAX_FILE_STATE_THRESHOLD,
    Checkpoint,
    FileState,
    InlineState,
    OperatorState,
    OutputState,
)
from stateline.checkpoint.layout import check_object_name
from stateline.errors import InvalidInputError
from stateline.handles import CommitPoint, OpenFile, Part, RunHandle, SectionHandle
from stateline.key_groups import check_parallelism

__all__ = ["check_checkpoint", "check_position"]

_MAX_COUNT: Final = 2**63 - 1
_MAX_ID: Final = 10**18 - 1
_COUNT: Final = re.compile("[0-9]{1,18}")
_END_OF_TIME: Final = 253402300800.0
"""The year 10000, where calendars of programs end."""


def check_checkpoint(checkpoint: Checkpoint) -> str | None:
    """The first rule that a checkpoint breaks; ``None`` for none.

    Raises:
        InvalidInputError: A name or a parallelism is not one.
    """
    complaint = _check_identity(checkpoint)
    if complaint is not None:
        return complaint
    check_parallelism(checkpoint.parallelism, checkpoint.max_parallelism)
    names = [operator.name for operator in checkpoint.operators]
    if len(set(names)) != len(names):
        return f"two operators have one name: {sorted(names)}"
    for operator in checkpoint.operators:
        complaint = _check_operator(operator, checkpoint)
        if complaint is not None:
            return f"operator {operator.name!r}: {complaint}"
    for output in checkpoint.outputs:
        complaint = _check_output(output)
        if complaint is not None:
            return f"output {output.url!r}: {complaint}"
    for delivery in checkpoint.deliveries:
        if not all(_is_sound_section(rows) and rows.rows >= 0 for rows in delivery.rows):
            return f"rows to be delivered of {delivery.operator!r} have a number that is out of range"
    for name, state in checkpoint.states.items():
        complaint = _check_state(state, checkpoint.folder)
        if complaint is not None:
            return f"state {name!r}: {complaint}"
    return None


def _check_identity(checkpoint: Checkpoint) -> str | None:
    complaint = check_position(checkpoint.checkpoint_id, checkpoint.created_at)
    if complaint is not None:
        return complaint
    if not -1 <= checkpoint.batch_id <= _MAX_ID:
        return f"the batch id {checkpoint.batch_id} is out of range"
    if not checkpoint.query_id or not checkpoint.nonce:
        return "the query id or the nonce is empty"
    complaint = _check_inputs(checkpoint)
    if complaint is not None:
        return complaint
    earlier = checkpoint.properties.get(EARLIER_CHECKPOINTS, "0")
    if not _COUNT.fullmatch(earlier):
        return f"the property {EARLIER_CHECKPOINTS!r} is {earlier!r}, not a number of checkpoints"
    return None


def _check_inputs(checkpoint: Checkpoint) -> str | None:
    names = [each.name for each in checkpoint.inputs]
    if len(set(names)) != len(names):
        return f"two inputs have one name: {sorted(names)}"
    for each in checkpoint.inputs:
        for watermark_us in (each.watermark_us, each.late_watermark_us):
            if watermark_us is not None and not -_MAX_COUNT - 1 <= watermark_us <= _MAX_COUNT:
                return f"input {each.name!r}: the watermark {watermark_us} is out of range"
    return None


def _check_state(state: InlineState | FileState, folder: str) -> str | None:
    if isinstance(state, InlineState):
        too_large = len(state.data) > MAX_FILE_STATE_THRESHOLD
        return f"{len(state.data)} bytes are too many for the record" if too_large else None
    check_object_name(state.object_name(folder))
    return None if state.size >= 0 and 0 <= state.crc32c <= 0xFFFFFFFF else "a number is out of range"


def _check_operator(operator: OperatorState, checkpoint: Checkpoint) -> str | None:
    key_group = 0
    for subtask in operator.subtasks:
        if subtask.first_key_group != key_group or subtask.last_key_group < key_group:
            return f"its subtasks do not cover key group {key_group} exactly once"
        key_group = subtask.last_key_group + 1
        for run in subtask.runs:
            if not _is_sound_section(run) or not _is_sound_run(run, checkpoint):
                return f"run {run.place} has a number that is out of range"
    if key_group != checkpoint.max_parallelism:
        return f"its subtasks cover {key_group} key groups of {checkpoint.max_parallelism}"
    return None


def _is_sound_run(run: RunHandle, checkpoint: Checkpoint) -> bool:
    return (
        0 <= run.tombstones <= run.rows <= _MAX_COUNT
        and 0 <= run.first_key_group <= run.last_key_group < checkpoint.max_parallelism
        and -1 <= run.checkpoint_id <= checkpoint.checkpoint_id
    )


def _is_sound_section(section: SectionHandle) -> bool:
    """Whether a section can be where its handle says. A bad name is refused by an error."""
    if section.is_inline:
        is_placed = section.offset == 0 and section.length == len(section.data) <= MAX_FILE_STATE_THRESHOLD
    else:
        check_object_name(section.name)
        is_placed = not section.data and min(section.offset, section.length) >= 0 and section.end <= _MAX_COUNT
    return is_placed and 0 <= section.crc32c <= 0xFFFFFFFF


def _check_output(output: OutputState) -> str | None:
    for finished in output.finished:
        complaint = _check_point(finished.commit)
        if complaint is not None or finished.rows < 0:
            return f"file {finished.commit.target}: {complaint or 'a negative number of rows'}"
    for file in output.open:
        complaint = _check_open_file(file)
        if complaint is not None:
            return f"open file {file.target}: {complaint}"
    return None


def _check_open_file(file: OpenFile) -> str | None:
    check_name(file.target)
    if min(file.rows, file.bytes, file.subtask) < 0:
        return "a negative number"
    for rows in file.pending:
        if not _is_sound_section(rows) or rows.rows < 0:
            return f"pending rows in {rows.place} have a number that is out of range"
    return None


def _check_point(point: CommitPoint) -> str | None:
    check_name(point.target)
    for part in point.parts:
        _check_part(part)
    if sum(part.length for part in point.parts) != point.length:
        return f"its pieces do not add up to {point.length} bytes"
    if not 0 <= point.crc32c <= 0xFFFFFFFF:
        return "its CRC32C is out of range"
    return None


def _check_part(part: Part) -> None:
    """Refuses a staged piece with a bad name, or a number that is out of range."""
    check_name(part.name)
    if part.container:
        check_name(part.container)
    if not 0 <= part.length <= _MAX_COUNT or not 0 <= part.crc32c <= 0xFFFFFFFF:
        raise InvalidInputError(
            "a number is out of range", subject=f"piece {part.name}", hint="Use pieces as BlobStore.stage() made them"
        )


def check_position(checkpoint_id: int, created_at: float) -> str | None:
    """Where in the life of a root something belongs: the rule that it breaks, ``None`` for none."""
    if not 0 <= checkpoint_id <= _MAX_ID:
        return f"the checkpoint id {checkpoint_id} is out of range"
    if not 0 <= created_at < _END_OF_TIME:
        return f"the time {created_at} is out of range"
    return None
