"""The format of a changelog object, version 1.

This module owns the bytes of objects: frames, their heads, the index at the end. ``block`` owns the bytes of one block.
Neither owns names, stores or retries. This page is generated into the documentation; it is all that another
implementation needs.

**A changelog object is a sequence of frames and an index.** A frame is one change set of one writer, so an object may
hold frames of many writers. Objects are written whole, by one create-if-absent, and never changed::

    object  := frame* index
    frame   := head block*
    head    := header table
    index   := index-header entry* trailer

All numbers are little-endian; every part is a multiple of 8 bytes long.

**Header**, 72 bytes::

    offset  bytes  type    field
    0       4      bytes   magic "SLCF"
    4       2      uint16  version, 1
    6       1      uint8   compression: 0 none, 1 LZ4 frame, 2 Zstandard
    7       1      uint8   zero
    8       16     bytes   log id: the UUID of the writer
    24      8      int64   sequence number, 0 or more
    32      8      uint64  bytes of all blocks
    40      8      uint64  bytes of all changes, uncompressed, without framing
    48      8      uint64  number of changes
    56      4      uint32  number of blocks, at most 65,536
    60      2      int16   lowest key group; -1 if there is metadata (0 if there is no change)
    62      2      int16   highest key group (-1 if there is no change)
    64      4      uint32  zero
    68      4      uint32  CRC32C of the header up to here and of the table

**Table**, 32 bytes per block, in the order of the blocks::

    0       2      int16   lowest key group in the block
    2       2      int16   highest key group in the block
    4       4      uint32  number of changes, 1 or more
    8       8      uint64  bytes of the block
    16      8      uint64  bytes of its changes, uncompressed
    24      4      uint32  CRC32C of the block
    28      4      uint32  CRC32C of its three Arrow buffers before compression; 0 if there is none

Blocks follow the table without gaps. Changes are sorted by key group, and within one key group they keep the order in
which they were appended; neighbouring blocks may share a key group. Metadata has key group -1 and blocks of its own,
which come first. So a reader that wants some key groups fetches the head and one or two ranges of blocks.

**Block**: one Arrow IPC stream (schema message, one record-batch message, end-of-stream mark) with the columns
``key_group: int16`` and ``change: binary``, neither nullable. With compression, the stream uses Arrow's own buffer
compression, except that a block whose buffers take more than 16 MiB is stored without; no block of any object
decompresses into more than that. Its messages are constants but for a few numbers; ``block`` has them.

**Index header**, 8 bytes: magic "SLCI", uint32 number of frames, at most 65,536. **Entry**, 48 bytes per frame::

    0       16     bytes   log id
    16      8      int64   sequence number
    24      8      uint64  offset of the frame in the object
    32      8      uint64  bytes of the frame
    40      4      uint32  bytes of its head
    44      4      uint32  CRC32C field of its header

**Trailer**, the last 24 bytes of the object::

    0       8      uint64  offset of the index header
    8       4      uint32  number of frames
    12      2      uint16  version, 1
    14      2      uint16  zero
    16      4      uint32  CRC32C of the index header, the entries, and the trailer up to here
    20      4      bytes   magic "SLCX"

An object without a valid trailer is torn: its whole frames are found by reading heads one after the other from offset
0. The checksum of a head covers those of its blocks, so the head's checksum in a handle vouches for every byte of the
frame. A reader refuses a newer version, a length that leaves the object, and any number that contradicts another one,
before it allocates anything for it.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn
from uuid import UUID

import numpy as np

from stateline.blob.api import Buffer
from stateline.blob.checksum import crc32c
from stateline.changelog.block import Compression, block_compression, encode_block, raw_bytes
from stateline.changelog.columns import ChangeColumns, sorted_columns
from stateline.errors import CorruptDataError, UnsupportedVersionError
from stateline.key_groups import KeyGroupRange

__all__ = [
    "FORMAT_VERSION",
    "HEADER_BYTES",
    "INDEX_MAGIC",
    "MAX_FRAMES",
    "MAX_HEAD_BYTES",
    "MAX_INDEX_BYTES",
    "TRAILER_BYTES",
    "BlockEntry",
    "EncodedFrame",
    "FrameHead",
    "IndexEntry",
    "decode_head",
    "decode_index",
    "decode_trailer",
    "encode_frame",
    "encode_index",
    "head_length_of",
]

FORMAT_VERSION: Final = 1
"""The version that this program writes, and the newest that it reads."""

INDEX_MAGIC: Final = b"SLCI"
_FRAME_MAGIC: Final = b"SLCF"
_TRAILER_MAGIC: Final = b"SLCX"
_HEADER: Final = struct.Struct("<4sHBB16sqQQQIhhII")
_ENTRY: Final = struct.Struct("<hhIQQII")
_INDEX_HEADER: Final = struct.Struct("<4sI")
_INDEX_ENTRY: Final = struct.Struct("<16sqQQII")
_TRAILER: Final = struct.Struct("<QIHHI4s")
_CRC: Final = struct.Struct("<I")

HEADER_BYTES: Final = _HEADER.size
TRAILER_BYTES: Final = _TRAILER.size
_MAX_BLOCKS: Final = 65_536
MAX_HEAD_BYTES: Final = HEADER_BYTES + _MAX_BLOCKS * _ENTRY.size
MAX_FRAMES: Final = 65_536
MAX_INDEX_BYTES: Final = _INDEX_HEADER.size + MAX_FRAMES * _INDEX_ENTRY.size + TRAILER_BYTES

_BLOCKS_WANTED: Final = 28
"""Blocks of a large frame. One sixteenth of the key groups lies in at most three of them, which are below one eighth of
the bytes; more blocks would be shorter, but then up to four. And a block is long enough for a codec to find what
repeats: 80 kB of text take twice the bytes that 250 kB take, and longer."""

_BLOCK_BYTES_MIN: Final = 16 * 1024
_BLOCK_BYTES_MAX: Final = 4 * 1024 * 1024
_BLOCK_ROWS_MAX: Final = 500_000
_ROW_BYTES: Final = 6
"""What a change takes besides its bytes: its key group and its offset."""


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """One row of a frame's table.

    Attributes:
        key_groups: Lowest and highest key group, inclusive; (-1, -1) for metadata.
        rows: Changes in the block.
        offset: First byte of the block, counted from the first byte of the frame.
        length: Bytes of the block.
        change_bytes: Bytes of its changes, uncompressed.
        crc32c: CRC32C of the block.
        raw_crc32c: CRC32C of its columns before compression, or 0.
    """

    key_groups: tuple[int, int]
    rows: int
    offset: int
    length: int
    change_bytes: int
    crc32c: int
    raw_crc32c: int

    @property
    def is_metadata(self) -> bool:
        """Whether every reader needs the block."""
        return self.key_groups[1] < 0

    def overlaps(self, wanted: KeyGroupRange) -> bool:
        """Whether the block may hold changes of ``wanted``, or is metadata."""
        return self.is_metadata or (self.key_groups[0] <= wanted.end and wanted.start <= self.key_groups[1])


@dataclass(frozen=True, slots=True)
class FrameHead:
    """The decoded head of a frame.

    Attributes:
        log_id: The writer.
        sequence_number: The change set.
        compression: Of its blocks.
        size: Bytes of the changes.
        changes: Number of changes, metadata included.
        head_length: Bytes of header and table.
        length: Bytes of the whole frame.
        crc32c: The checksum field of the header.
        blocks: The table.
    """

    log_id: UUID
    sequence_number: int
    compression: Compression
    size: int
    changes: int
    head_length: int
    length: int
    crc32c: int
    blocks: tuple[BlockEntry, ...]

    @property
    def key_groups(self) -> tuple[int, int]:
        """Lowest and highest key group, inclusive; the lowest is -1 if there is metadata; (0, -1) without changes."""
        return (self.blocks[0].key_groups[0], self.blocks[-1].key_groups[1]) if self.blocks else (0, -1)


@dataclass(frozen=True, slots=True)
class EncodedFrame:
    """A frame ready to be written.

    Attributes:
        head: What :func:`decode_head` will find.
        pieces: The bytes, head included, to be written one after the other.
    """

    head: FrameHead
    pieces: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One row of an object's index: where a frame is, and what its head must say."""

    log_id: UUID
    sequence_number: int
    offset: int
    length: int
    head_length: int
    crc32c: int


def encode_frame(log_id: UUID, sequence_number: int, unsorted: ChangeColumns, compression: Compression) -> EncodedFrame:
    """The frame of one change set: sorts, cuts into blocks, compresses, checksums."""
    columns = sorted_columns(unsorted)
    table = bytearray()
    entries: list[BlockEntry] = []
    payload: list[Buffer] = []
    cuts = list(_cuts(columns))
    position = head_length = HEADER_BYTES + len(cuts) * _ENTRY.size
    for start, end in cuts:
        first, last = int(columns.offsets[start]), int(columns.offsets[end])
        offsets = (columns.offsets[start : end + 1] - first).astype("<i4")
        data = columns.data.slice(first, last - first)
        block = encode_block(columns.key_groups[start:end], offsets, data, compression)
        groups = (int(columns.key_groups[start]), int(columns.key_groups[end - 1]))
        entries.append(
            BlockEntry(groups, end - start, position, block.length, last - first, block.crc32c, block.raw_crc32c)
        )
        table += _ENTRY.pack(*groups, end - start, block.length, last - first, block.crc32c, block.raw_crc32c)
        payload += block.pieces
        position += block.length
    groups = (entries[0].key_groups[0], entries[-1].key_groups[1]) if entries else (0, -1)
    header = _HEADER.pack(
        _FRAME_MAGIC,
        FORMAT_VERSION,
        compression,
        0,
        log_id.bytes,
        sequence_number,
        position - head_length,
        columns.size,
        len(columns),
        len(entries),
        *groups,
        0,
        0,
    )
    checksum = crc32c(bytes(table), crc32c(header[: -_CRC.size]))
    head = FrameHead(
        log_id,
        sequence_number,
        compression,
        columns.size,
        len(columns),
        head_length,
        position,
        checksum,
        tuple(entries),
    )
    return EncodedFrame(head, (header[: -_CRC.size] + _CRC.pack(checksum) + bytes(table), *payload))


def _cuts(columns: ChangeColumns) -> Iterator[tuple[int, int]]:
    """The half-open row ranges of the blocks: metadata apart, and cut between key groups unless one is very large."""
    rows, groups, offsets = len(columns), columns.key_groups, columns.offsets
    metadata = int(np.searchsorted(groups, 0))
    steps = np.append(np.flatnonzero(groups[1:] != groups[:-1]) + 1, rows)
    # Few numbers from here on, one per key group: plain integers are faster than arrays.
    weights = (offsets[steps] - offsets[0] + _ROW_BYTES * steps).tolist()
    borders = steps.tolist()
    target = min(max(weights[-1] // _BLOCKS_WANTED, _BLOCK_BYTES_MIN), _BLOCK_BYTES_MAX)
    start = weight = 0
    while start < rows:
        wanted = weight + target
        found = min(bisect.bisect_left(weights, wanted), len(borders) - 1)
        if found and borders[found - 1] > start and wanted - weights[found - 1] < weights[found] - wanted:
            found -= 1  # The border before is nearer.
        end = borders[found]
        if start < metadata < end:
            end = metadata
        if int(offsets[end] - offsets[start]) > _BLOCK_BYTES_MAX or end - start > _BLOCK_ROWS_MAX:
            fitting = int(np.searchsorted(offsets, offsets[start] + _BLOCK_BYTES_MAX, side="right")) - 1
            end = min(end, max(fitting, start + 1), start + _BLOCK_ROWS_MAX)
        yield start, end
        start = end
        weight = int(offsets[start] - offsets[0]) + _ROW_BYTES * start


def head_length_of(header: bytes | memoryview, subject: str) -> int:
    """The length of the head that starts with these :data:`HEADER_BYTES` bytes; bounded, not verified."""
    if len(header) < HEADER_BYTES:
        _refuse(f"{len(header)} bytes are left, a frame has at least {HEADER_BYTES}", subject)
    _check_magic(bytes(header[:8]), subject)
    blocks: int = _HEADER.unpack_from(header)[9]
    if blocks > _MAX_BLOCKS:
        _refuse(f"{blocks} blocks are more than {_MAX_BLOCKS}", subject)
    return HEADER_BYTES + blocks * _ENTRY.size


def decode_head(data: bytes | memoryview, subject: str) -> FrameHead:
    """The head at the start of ``data``; what follows it is not looked at.

    Args:
        data: At least the whole head.
        subject: The object and the offset, for errors.

    Raises:
        CorruptDataError: Truncated, damaged, foreign, or with numbers that contradict each other.
        UnsupportedVersionError: A newer version wrote it.
    """
    head_length = head_length_of(data[:HEADER_BYTES], subject)
    if len(data) < head_length:
        _refuse(f"the head has {head_length} bytes, {len(data)} are there", subject)
    fields = _HEADER.unpack_from(data)
    _, _, compression, zero, log_id, number, payload, size, changes, count, low, high, zero_too, checksum = fields
    stored = bytes(data[:head_length])
    if crc32c(stored[HEADER_BYTES:], crc32c(stored[: HEADER_BYTES - _CRC.size])) != checksum:
        _refuse("the checksum of the head does not match", subject)
    if zero or zero_too or number < 0 or compression not in tuple(Compression):
        _refuse("a field of the header is out of bounds", subject)
    compression = Compression(compression)
    blocks = tuple(_entries(stored, head_length, compression, subject))
    found = (
        sum(block.length for block in blocks),
        sum(block.change_bytes for block in blocks),
        sum(block.rows for block in blocks),
        (blocks[0].key_groups[0], blocks[-1].key_groups[1]) if blocks else (0, -1),
    )
    if found != (payload, size, changes, (low, high)) or count != len(blocks):
        _refuse("the header and the table contradict each other", subject)
    length = head_length + payload
    return FrameHead(UUID(bytes=log_id), number, compression, size, changes, head_length, length, checksum, blocks)


def _entries(head: bytes, head_length: int, compression: Compression, subject: str) -> Iterator[BlockEntry]:
    position = head_length
    previous = -1
    for low, high, rows, length, change_bytes, checksum, raw_crc in _ENTRY.iter_unpack(head[HEADER_BYTES:]):
        raw = raw_bytes(rows, change_bytes)
        if low < previous or high < low or (low < 0 <= high) or rows == 0 or length % 8 or length == 0:
            _refuse("an entry of the table is out of bounds", subject)
        if block_compression(compression, rows, change_bytes) is Compression.NONE and raw > length:
            _refuse("a block is smaller than its changes", subject)
        yield BlockEntry((low, high), rows, position, length, change_bytes, checksum, raw_crc)
        position += length
        previous = high


def encode_index(frames: Sequence[tuple[int, FrameHead]]) -> bytes:
    """The end of an object, from the offset and head of each of its frames; everything before it is frames."""
    body = bytearray(_INDEX_HEADER.pack(INDEX_MAGIC, len(frames)))
    end = 0
    for offset, head in frames:
        body += _INDEX_ENTRY.pack(
            head.log_id.bytes, head.sequence_number, offset, head.length, head.head_length, head.crc32c
        )
        end = offset + head.length
    trailer = _TRAILER.pack(end, len(frames), FORMAT_VERSION, 0, 0, _TRAILER_MAGIC)
    checksum = crc32c(trailer[:16], crc32c(body))
    return bytes(body) + trailer[:16] + _CRC.pack(checksum) + _TRAILER_MAGIC


def decode_trailer(trailer: bytes, size: int, subject: str) -> int:
    """The offset of the index, from the last :data:`TRAILER_BYTES` bytes of an object of ``size`` bytes."""
    if len(trailer) != TRAILER_BYTES:
        _refuse(f"{len(trailer)} bytes are no trailer", subject)
    offset, frames, version, zero, _, magic = _TRAILER.unpack(trailer)
    if magic != _TRAILER_MAGIC:
        _refuse("the trailer is missing: the object is torn, or no changelog object", subject)
    _check_version(version, subject)
    if zero or frames > MAX_FRAMES or offset + _INDEX_HEADER.size + frames * _INDEX_ENTRY.size + TRAILER_BYTES != size:
        _refuse("the trailer contradicts the length of the object", subject)
    return int(offset)


def decode_index(index: bytes, offset: int, subject: str) -> tuple[IndexEntry, ...]:
    """The entries of an index with its trailer, which starts at ``offset`` of the object.

    Raises:
        CorruptDataError: Damaged, or the frames do not fill the object from 0 to ``offset`` without gaps.
    """
    body, trailer = index[:-TRAILER_BYTES], index[-TRAILER_BYTES:]
    checksum = _TRAILER.unpack(trailer)[4]
    magic, frames = _INDEX_HEADER.unpack_from(body)
    if crc32c(trailer[:16], crc32c(body)) != checksum:
        _refuse("the checksum of the index does not match", subject)
    if magic != INDEX_MAGIC or _INDEX_HEADER.size + frames * _INDEX_ENTRY.size != len(body):
        _refuse("the header of the index is out of bounds", subject)
    entries = []
    position = 0
    for log_id, number, start, length, head_length, crc in _INDEX_ENTRY.iter_unpack(body[_INDEX_HEADER.size :]):
        if start != position or not HEADER_BYTES <= head_length <= min(length, MAX_HEAD_BYTES) or number < 0:
            _refuse("an entry of the index is out of bounds", subject)
        entries.append(IndexEntry(UUID(bytes=log_id), number, start, length, head_length, crc))
        position = start + length
    if position != offset:
        _refuse("the frames of the index do not fill the object", subject)
    return tuple(entries)


def _check_magic(start: bytes, subject: str) -> None:
    if start[:4] != _FRAME_MAGIC:
        _refuse("there is no frame", subject)
    _check_version(struct.unpack_from("<H", start, 4)[0], subject)


def _check_version(version: int, subject: str) -> None:
    if version > FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"version {version} is newer than {FORMAT_VERSION}",
            operation="decode",
            subject=subject,
            hint="Upgrade Stateline",
        )
    if version != FORMAT_VERSION:
        _refuse(f"version {version} does not exist", subject)


def _refuse(message: str, subject: str) -> NoReturn:
    raise CorruptDataError(
        message, operation="decode", subject=subject, hint="The object is damaged or was not written by Stateline"
    )
