"""The format of a segment, version 1: sections of many writers and states in one object, and a directory of them.

**A segment is a sequence of sections and a directory.** It is written whole, by one create-if-absent, and never
changed::

    segment   := (section padding)* directory trailer

All numbers are little-endian. Sections and the directory begin at multiples of 64 bytes, so that buffers which are
mapped into memory are aligned; padding is zeros, fewer than 64. **Each section opens with pyarrow alone** at its
offset:

- ``changes``: one change set of one writer. An Arrow IPC stream, and behind its end a table that says where the blocks
  of neighbouring key groups are.
- ``run``: sorted rows of one state table. An Arrow IPC file.
- ``rows``: rows of files that are still open, or that wait to be delivered. An Arrow IPC stream.

Who has a handle (object, offset, length, CRC32C) reads the section and nothing else. Without any handle there is the
**directory**, an Arrow IPC stream with one record batch, of one row per section, in the order of the object::

    kind         string   "changes", "run" or "rows"
    owner        string   the writer's log id (32 hexadecimal digits), the state's name, or the target of the rows
    number       int64    sequence number of the change set, or number of the checkpoint
    offset       int64    first byte of the section
    length       int64    its bytes, 1 or more
    crc32c       uint32   CRC32C that its handle has: of all bytes; of changes, the checksum in their table, which
                          covers those of the blocks
    head_length  int64    bytes of the table at the end of changes; else 0

**Trailer**, the last 24 bytes of the object::

    offset  bytes  type    field
    0       8      uint64  offset of the directory
    8       2      uint16  version, 1
    10      6      bytes   zero
    16      4      uint32  CRC32C of the directory and of the trailer up to here
    20      4      bytes   magic "SLSG"

A reader refuses a newer version, a directory of more than 64 MiB or 65,536 sections, sections that do not fill the
object up to the directory, and any number that contradicts another one, before it allocates anything for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Final, NoReturn

import pyarrow as pa

from stateline.arrow_bounds import ValueCheck, check_stream
from stateline.blob.api import BlobStore, Buffer
from stateline.blob.checksum import crc32c
from stateline.errors import CorruptDataError, InvalidInputError, UnsupportedVersionError

__all__ = [
    "MAX_SECTIONS",
    "SECTION_ALIGNMENT",
    "SEGMENT_VERSION",
    "Directory",
    "DirectoryEntry",
    "EncodedSegment",
    "Section",
    "SectionKind",
    "damaged",
    "encode_segment",
    "read_directory",
]

SEGMENT_VERSION: Final = 1
"""The version that this program writes, and the newest that it reads."""

MAX_SECTIONS: Final = 65_536
"""Sections of one segment."""

SECTION_ALIGNMENT: Final = 64
"""Sections begin at multiples of so many bytes."""

_ZEROS: Final = bytes(SECTION_ALIGNMENT)
_END_OF_STREAM: Final = bytes.fromhex("ffffffff00000000")
_MAGIC: Final = b"SLSG"
_TRAILER: Final = struct.Struct("<QH6sI4s")
_CHECKED_TRAILER_BYTES: Final = 16
_MAX_DIRECTORY_BYTES: Final = 64 * 1024 * 1024
_TAIL_GUESS_BYTES: Final = 64 * 1024
"""How much of the end of a segment is fetched first: the directory of some hundred sections."""

_SCHEMA: Final = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in (
            ("kind", pa.string()),
            ("owner", pa.string()),
            ("number", pa.int64()),
            ("offset", pa.int64()),
            ("length", pa.int64()),
            ("crc32c", pa.uint32()),
            ("head_length", pa.int64()),
        )
    ]
)
_SCHEMA_MESSAGE: Final = _SCHEMA.serialize().to_pybytes()


class SectionKind(StrEnum):
    """What a section is."""

    CHANGES = "changes"
    RUN = "run"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class Section:
    """A section before its upload.

    Attributes:
        kind: What it is.
        owner: The writer's log id, the state's name, or the target of the rows.
        number: Sequence number, or number of the checkpoint.
        pieces: Its bytes, to be written one after the other.
        length: Their number.
        crc32c: What its handle has.
        head_length: Bytes of the table at the end of changes.
    """

    kind: SectionKind
    owner: str
    number: int
    pieces: tuple[Buffer, ...]
    length: int
    crc32c: int
    head_length: int = 0


@dataclass(frozen=True, slots=True)
class EncodedSegment:
    """A segment ready to be written.

    Attributes:
        pieces: Its bytes, to be written one after the other.
        size: Their number.
        offsets: Where each section begins, in order.
    """

    pieces: tuple[Buffer, ...]
    size: int
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """One section as the directory names it; see the module docstring."""

    kind: SectionKind
    owner: str
    number: int
    offset: int
    length: int
    crc32c: int
    head_length: int

    @property
    def padding(self) -> int:
        """Zeros between the section and what follows it."""
        return -self.length % SECTION_ALIGNMENT


def encode_segment(sections: Sequence[Section]) -> EncodedSegment:
    """Lays sections out as one object. Their pieces are not copied.

    Raises:
        InvalidInputError: There are more sections, or longer owners, than a directory holds.
    """
    pieces: list[Buffer] = []
    offsets = []
    position = 0
    for section in sections:
        offsets.append(position)
        pieces += section.pieces
        padding = -section.length % SECTION_ALIGNMENT
        if padding:
            pieces.append(_ZEROS[:padding])
        position += section.length + padding
    directory = _encode_directory(sections, offsets)
    if len(sections) > MAX_SECTIONS or len(directory) > _MAX_DIRECTORY_BYTES:
        raise InvalidInputError(
            f"{len(sections)} sections with a directory of {len(directory)} bytes are too many for one segment",
            operation="encode",
            subject="segment",
            hint=f"A segment holds {MAX_SECTIONS} sections and a directory of {_MAX_DIRECTORY_BYTES} bytes",
        )
    trailer = _TRAILER.pack(position, SEGMENT_VERSION, bytes(6), 0, _MAGIC)[:_CHECKED_TRAILER_BYTES]
    checksum = crc32c(trailer, crc32c(directory))
    tail = b"".join((directory, trailer, struct.pack("<I", checksum), _MAGIC))
    return EncodedSegment((*pieces, tail), position + len(tail), tuple(offsets))


def _encode_directory(sections: Sequence[Section], offsets: Sequence[int]) -> bytes:
    columns = [
        _texts([section.kind for section in sections]),
        _texts([section.owner for section in sections]),
        _numbers("q", [section.number for section in sections]),
        _numbers("q", offsets),
        _numbers("q", [section.length for section in sections]),
        _numbers("I", [section.crc32c for section in sections]),
        _numbers("q", [section.head_length for section in sections]),
    ]
    arrays = [
        pa.Array.from_buffers(field.type, len(sections), [None, *map(pa.py_buffer, buffers)])
        for field, buffers in zip(_SCHEMA, columns, strict=True)
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
    return b"".join((_SCHEMA_MESSAGE, memoryview(batch.serialize()), _END_OF_STREAM))


def _texts(values: Iterable[str]) -> tuple[bytes, bytes]:
    """The buffers of a column. Not by ``pa.array``: its first call imports pandas, if it can."""
    texts = [value.encode() for value in values]
    ends = accumulate(map(len, texts))
    return struct.pack(f"<{1 + len(texts)}i", 0, *ends), b"".join(texts)


def _numbers(layout: str, values: Sequence[int]) -> tuple[bytes]:
    return (struct.pack(f"<{len(values)}{layout}", *values),)


@dataclass(frozen=True, slots=True)
class Directory:
    """The directory of a segment, and which bytes of the object it is.

    Attributes:
        entries: One for each section, in the order of the object.
        offset: Its first byte; it ends with the object, and so does the trailer.
        crc32c: CRC32C of all bytes from there on.
    """

    entries: tuple[DirectoryEntry, ...]
    offset: int
    crc32c: int


def read_directory(store: BlobStore, name: str) -> Directory:
    """The directory of a segment: one small read of its end, and another one where the directory is long.

    Raises:
        NotFoundError: There is no such object.
        CorruptDataError: Truncated, damaged, foreign, or with numbers that contradict each other.
        UnsupportedVersionError: A newer version wrote it.
    """
    size = store.head(name).size
    start = max(size - _TAIL_GUESS_BYTES, 0)
    end = memoryview(store.get_range(name, start, size))
    offset = _directory_offset(bytes(end[-_TRAILER.size :]), size, name)
    if offset < start:
        end, start = memoryview(store.get_range(name, offset, size)), offset
    if len(end) != size - start:
        _refuse(f"{len(end)} of its last {size - start} bytes are there", name, start)
    directory = end[offset - start : -_TRAILER.size]
    trailer = bytes(end[-_TRAILER.size :])
    if crc32c(trailer[:_CHECKED_TRAILER_BYTES], crc32c(directory)) != _TRAILER.unpack(trailer)[3]:
        _refuse("the checksum of the directory does not match", name, offset)
    entries = _decode_directory(directory, f"{name} at byte {offset}")
    position = 0
    for entry in entries:
        in_order = entry.offset == position and 0 < entry.length <= offset - position
        head_fits = 0 <= entry.head_length <= (entry.length if entry.kind is SectionKind.CHANGES else 0)
        if not in_order or not head_fits or entry.number < 0:
            _refuse("a section of the directory is out of bounds", name, offset)
        position = entry.offset + entry.length + entry.padding
    if position != offset:
        _refuse("the sections of the directory do not fill the segment", name, offset)
    return Directory(entries, offset, crc32c(end[offset - start :]))


def _directory_offset(trailer: bytes, size: int, name: str) -> int:
    """Where the directory begins; bounded, not verified."""
    if len(trailer) != _TRAILER.size:
        _refuse(f"{size} bytes are too few for a segment", name, 0)
    at = size - _TRAILER.size
    offset, version, zeros, _, magic = _TRAILER.unpack(trailer)
    if magic != _MAGIC:
        _refuse("the trailer is missing: the object is cut off, or no segment", name, at)
    if version > SEGMENT_VERSION:
        raise UnsupportedVersionError(
            f"version {version} is newer than {SEGMENT_VERSION}",
            operation="decode",
            subject=f"{name} at byte {at}",
            hint="Upgrade Stateline",
        )
    if version != SEGMENT_VERSION or any(zeros) or offset > at or at - offset > _MAX_DIRECTORY_BYTES:
        _refuse("a number of the trailer is out of bounds", name, at)
    return int(offset)


def _decode_directory(directory: memoryview, subject: str) -> tuple[DirectoryEntry, ...]:
    check_stream(directory, subject)
    try:
        with pa.ipc.open_stream(pa.py_buffer(directory)) as reader:
            if not reader.schema.equals(_SCHEMA, check_metadata=True):
                raise pa.ArrowInvalid("expected other columns")
            batch = reader.read_next_batch()
        ValueCheck(_SCHEMA)(batch)
        if batch.num_rows > MAX_SECTIONS or any(column.null_count for column in batch.columns):
            raise pa.ArrowInvalid(f"{batch.num_rows} rows are too many, or a value is null")
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return tuple(DirectoryEntry(SectionKind(kind), *rest) for kind, *rest in rows)
    except (pa.ArrowException, OSError, ValueError, MemoryError, StopIteration) as error:
        raise damaged(f"the directory cannot be read: {error}", subject) from error


def _refuse(message: str, name: str, offset: int) -> NoReturn:
    raise damaged(message, f"{name} at byte {offset}")


def damaged(message: str, subject: str) -> CorruptDataError:
    """The error of stored bytes that are not what was written."""
    return CorruptDataError(
        message, operation="decode", subject=subject, hint="The object is damaged or was not written by Stateline"
    )
