"""Changelog objects without their handles: what is inside, and whether it is whole.

Owns finding frames, by the index or, in a torn object, one after the other. Does not own the format (``frame``) or the
printing (``stateline.cli.changelog``).

Memory: heads, and one run of blocks at a time; never a whole object. Damage is reported with its offset and does not
hide what is intact elsewhere in the object.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from stateline.blob.api import BlobStore
from stateline.changelog.api import StateChange
from stateline.changelog.frame import (
    HEADER_BYTES,
    INDEX_MAGIC,
    MAX_INDEX_BYTES,
    TRAILER_BYTES,
    FrameHead,
    IndexEntry,
    decode_head,
    decode_index,
    decode_trailer,
    head_length_of,
)
from stateline.changelog.reader import Columns, decode_blocks, runs_of
from stateline.errors import CorruptDataError
from stateline.key_groups import KeyGroupRange

__all__ = ["FoundFrame", "Inspection", "Problem", "changes_of", "inspect_object", "verify_frame"]

_ALL: Final = KeyGroupRange(0, 32767)


@dataclass(frozen=True, slots=True)
class Problem:
    """Damage.

    Attributes:
        offset: The first byte that could not be used.
        message: What is wrong there.
    """

    offset: int
    message: str


@dataclass(frozen=True, slots=True)
class FoundFrame:
    """A frame whose head is intact.

    Attributes:
        offset: Its first byte in the object.
        head: What it says.
    """

    offset: int
    head: FrameHead


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is known about one object.

    Attributes:
        name: The object.
        size: Its bytes.
        frames: Those with an intact head, in order.
        problems: None if the index and all heads are intact.
    """

    name: str
    size: int
    frames: tuple[FoundFrame, ...]
    problems: tuple[Problem, ...]


def inspect_object(store: BlobStore, name: str) -> Inspection:
    """Reads the index and all heads of an object; blocks are not looked at, see :func:`verify_frame`.

    Raises:
        NotFoundError: There is no such object.
    """
    size = store.head(name).size
    problems: list[Problem] = []
    try:
        entries: tuple[IndexEntry, ...] | None = _read_index(store, name, size)
    except CorruptDataError as error:
        problems.append(Problem(max(size - TRAILER_BYTES, 0), error.message))
        entries = None
    frames: list[FoundFrame] = []
    for found in _scan(store, name, size) if entries is None else _indexed(store, name, entries):
        if isinstance(found, Problem):
            problems.append(found)
        else:
            frames.append(found)
    return Inspection(name, size, tuple(frames), tuple(problems))


def verify_frame(store: BlobStore, name: str, frame: FoundFrame) -> Problem | None:
    """Reads every block of a frame and checks it; ``None`` if all are intact."""
    try:
        for _ in _columns_of(store, name, frame, _ALL):
            pass
    except CorruptDataError as error:
        return Problem(_offset_in(error, frame.offset), error.message)
    return None


def changes_of(
    store: BlobStore, name: str, frame: FoundFrame, key_groups: KeyGroupRange | None = None
) -> Iterator[StateChange]:
    """The changes of a frame, metadata first, then by key group.

    Args:
        store: Where the object is.
        name: The object.
        frame: From :func:`inspect_object`.
        key_groups: Only these, and metadata.

    Raises:
        CorruptDataError: A block is damaged. What came before it was intact.
    """
    wanted = _ALL if key_groups is None else key_groups
    for groups, values in _columns_of(store, name, frame, wanted):
        for key_group, value in zip(groups.tolist(), values.to_pylist(), strict=True):
            if key_group < 0 or key_group in wanted:
                yield StateChange(key_group, value)


def _columns_of(store: BlobStore, name: str, frame: FoundFrame, wanted: KeyGroupRange) -> Iterator[Columns]:
    for run in runs_of(block for block in frame.head.blocks if block.overlaps(wanted)):
        start, end = run[0].offset, run[-1].offset + run[-1].length
        data = store.get_range(name, frame.offset + start, frame.offset + end)
        yield from decode_blocks(memoryview(data), start, frame.head, run, name, frame.offset)


def _read_index(store: BlobStore, name: str, size: int) -> tuple[IndexEntry, ...]:
    if size < TRAILER_BYTES:
        raise CorruptDataError(f"{size} bytes are too few for a changelog object", operation="inspect", subject=name)
    trailer = store.get_range(name, size - TRAILER_BYTES, size)
    offset = decode_trailer(trailer, size, f"{name} at byte {size - TRAILER_BYTES}")
    if size - offset > MAX_INDEX_BYTES:
        raise CorruptDataError(f"an index of {size - offset} bytes is too long", operation="inspect", subject=name)
    return decode_index(store.get_range(name, offset, size), offset, f"{name} at byte {offset}")


def _indexed(store: BlobStore, name: str, entries: tuple[IndexEntry, ...]) -> Iterator[FoundFrame | Problem]:
    for entry in entries:
        subject = f"{name} at byte {entry.offset}"
        try:
            head = decode_head(store.get_range(name, entry.offset, entry.offset + entry.head_length), subject)
            found = IndexEntry(
                head.log_id, head.sequence_number, entry.offset, head.length, head.head_length, head.crc32c
            )
            if found != entry:
                raise CorruptDataError("the frame is not the one of the index", operation="inspect", subject=subject)
        except CorruptDataError as error:
            yield Problem(entry.offset, error.message)
        else:
            yield FoundFrame(entry.offset, head)


def _scan(store: BlobStore, name: str, size: int) -> Iterator[FoundFrame | Problem]:
    """Frame by frame from the start, up to the first that is not whole."""
    position = 0
    while position < size:
        subject = f"{name} at byte {position}"
        try:
            start = store.get_range(name, position, min(position + HEADER_BYTES, size))
            if start[:4] == INDEX_MAGIC:
                return
            head_length = head_length_of(start, subject)
            if position + head_length > size:
                raise CorruptDataError(
                    "the object ends within the head of a frame", operation="inspect", subject=subject
                )
            head = decode_head(store.get_range(name, position, position + head_length), subject)
            if position + head.length > size:
                missing = position + head.length - size
                raise CorruptDataError(f"the last {missing} bytes of the frame are missing", subject=subject)
        except CorruptDataError as error:
            yield Problem(position, error.message)
            return
        yield FoundFrame(position, head)
        position += head.length


def _offset_in(error: CorruptDataError, default: int) -> int:
    """The offset that the subject of an error ends with."""
    _, found, number = (error.subject or "").rpartition(" at byte ")
    return int(number) if found and number.isdecimal() else default
