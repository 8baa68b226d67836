"""The format of a section of kind ``changes``, version 1: one change set of one writer.

**Changes are one Arrow IPC stream and a table**::

    changes  := schema-message block* end-of-stream table
    table    := header entry*

Each block is a record-batch message with the columns ``key_group: int16`` and ``change: binary``, neither nullable, so
any Arrow reader gets the changes; it stops at the end of the stream and never sees the table. A reader that wants some
key groups fetches the table, whose length is in the handle (``head_length``), and one or two ranges of blocks. All
numbers are little-endian; every part is a multiple of 8 bytes long.

**Header**, 72 bytes::

    offset  bytes  type    field
    0       4      bytes   magic "SLCT"
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
    68      4      uint32  CRC32C of the header up to here and of the entries

**Entry**, 32 bytes per block, in the order of the blocks::

    0       2      int16   lowest key group in the block
    2       2      int16   highest key group in the block
    4       4      uint32  number of changes, 1 or more
    8       8      uint64  bytes of the block
    16      8      uint64  bytes of its changes, uncompressed
    24      4      uint32  CRC32C of the block
    28      4      uint32  CRC32C of its three Arrow buffers before compression; 0 if there is none

Changes are sorted by key group, and within one key group they keep the order in which they were appended; neighbouring
blocks may share a key group. Metadata has key group -1 and blocks of its own, which come first.

With compression, blocks use Arrow's own buffer compression, except that a block whose buffers take more than 16 MiB is
stored without; no block decompresses into more than that. All messages are constants but for a few numbers; ``block``
has them.

The checksum of the table covers those of the blocks, so the checksum in a handle, which is the table's, vouches for
every byte. A reader refuses a newer version, a length that leaves the section, and any number that contradicts another
one, before it allocates anything for it.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import numpy as np

from stateline.blob.api import Buffer
from stateline.blob.checksum import crc32c
from stateline.changelog.block import (
    END_OF_STREAM,
    SCHEMA_MESSAGE,
    Compression,
    block_compression,
    encode_block,
    raw_bytes,
)
from stateline.changelog.columns import ChangeColumns, sorted_columns
from stateline.changelog.segment import Section, SectionKind, damaged
from stateline.errors import UnsupportedVersionError
from stateline.key_groups import KeyGroupRange

__all__ = ["FORMAT_VERSION", "BlockEntry", "ChangesTable", "EncodedChanges", "decode_table", "encode_changes"]

FORMAT_VERSION: Final = 1
"""The version that this program writes, and the newest that it reads."""

_MAGIC: Final = b"SLCT"
_HEADER: Final = struct.Struct("<4sHBB16sqQQQIhhII")
_ENTRY: Final = struct.Struct("<hhIQQII")
_CRC: Final = struct.Struct("<I")
_MAX_BLOCKS: Final = 65_536

_BLOCKS_WANTED: Final = 28
"""Blocks of a large change set. One sixteenth of the key groups lies in at most three of them, below one eighth of
the bytes; more blocks would be shorter, but then up to four. And a block is long enough for a codec to find what
repeats: 80 kB of text take twice the bytes that 250 kB take, and longer."""

_BLOCK_BYTES_MIN: Final = 16 * 1024
_BLOCK_BYTES_MAX: Final = 4 * 1024 * 1024
_BLOCK_ROWS_MAX: Final = 500_000
_ROW_BYTES: Final = 6
"""What a change takes besides its bytes: its key group and its offset."""


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """One block, as the table names it.

    Attributes:
        key_groups: Lowest and highest key group, inclusive; (-1, -1) for metadata.
        rows: Changes in the block.
        offset: First byte of the block, counted from the first byte of the section.
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
class ChangesTable:
    """The decoded table of a change set.

    Attributes:
        log_id: The writer.
        sequence_number: The change set.
        compression: Of its blocks.
        size: Bytes of the changes.
        changes: Number of changes, metadata included.
        head_length: Bytes of the table.
        length: Bytes of the whole section.
        crc32c: The checksum field of the header.
        blocks: The entries.
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
class EncodedChanges:
    """A change set ready to be written.

    Attributes:
        table: What :func:`decode_table` will find.
        section: The bytes, table included.
    """

    table: ChangesTable
    section: Section


def encode_changes(
    log_id: UUID, sequence_number: int, unsorted: ChangeColumns, compression: Compression
) -> EncodedChanges:
    """The section of one change set: sorts, cuts into blocks, compresses, checksums."""
    columns = sorted_columns(unsorted)
    rows = bytearray()
    entries: list[BlockEntry] = []
    pieces: list[Buffer] = [SCHEMA_MESSAGE]
    position = len(SCHEMA_MESSAGE)
    for start, end in _cuts(columns):
        first, last = int(columns.offsets[start]), int(columns.offsets[end])
        offsets = (columns.offsets[start : end + 1] - first).astype("<i4")
        data = columns.data.slice(first, last - first)
        block = encode_block(columns.key_groups[start:end], offsets, data, compression)
        groups = (int(columns.key_groups[start]), int(columns.key_groups[end - 1]))
        entries.append(
            BlockEntry(groups, end - start, position, block.length, last - first, block.crc32c, block.raw_crc32c)
        )
        rows += _ENTRY.pack(*groups, end - start, block.length, last - first, block.crc32c, block.raw_crc32c)
        pieces += block.pieces
        position += block.length
    groups = (entries[0].key_groups[0], entries[-1].key_groups[1]) if entries else (0, -1)
    header = _HEADER.pack(
        _MAGIC,
        FORMAT_VERSION,
        compression,
        0,
        log_id.bytes,
        sequence_number,
        position - len(SCHEMA_MESSAGE),
        columns.size,
        len(columns),
        len(entries),
        *groups,
        0,
        0,
    )[: -_CRC.size]
    checksum = crc32c(rows, crc32c(header))
    pieces.append(b"".join((END_OF_STREAM, header, _CRC.pack(checksum), rows)))
    head_length = _HEADER.size + len(rows)
    length = position + len(END_OF_STREAM) + head_length
    table = ChangesTable(
        log_id,
        sequence_number,
        compression,
        columns.size,
        len(columns),
        head_length,
        length,
        checksum,
        tuple(entries),
    )
    kind, owner = SectionKind.CHANGES, log_id.hex
    return EncodedChanges(table, Section(kind, owner, sequence_number, tuple(pieces), length, checksum, head_length))


def _cuts(columns: ChangeColumns) -> Iterator[tuple[int, int]]:
    """The half-open row ranges of the blocks: metadata apart, and cut between key groups unless one is very large."""
    rows, groups, offsets = len(columns), columns.key_groups, columns.offsets
    if rows and columns.size + _ROW_BYTES * rows <= _BLOCK_BYTES_MIN and (groups[0] >= 0 or groups[-1] < 0):
        yield 0, rows  # What the rest would find, too.
        return
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


def decode_table(data: bytes, subject: str) -> ChangesTable:
    """The table of a change set.

    Args:
        data: The whole table and nothing else.
        subject: The object and the offset, for errors.

    Raises:
        CorruptDataError: Truncated, damaged, foreign, or with numbers that contradict each other.
        UnsupportedVersionError: A newer version wrote it.
    """
    if len(data) < _HEADER.size:
        raise damaged(
            f"{len(data)} bytes are too few for a table of changes: expected at least {_HEADER.size}", subject
        )
    magic, version, compression, zero, log_id, number, payload, size, changes, count, low, high, zero_too, checksum = (
        _HEADER.unpack_from(data)
    )
    if magic != _MAGIC:
        raise damaged("expected the magic number of a table of changes", subject)
    if version > FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"version {version} is newer than {FORMAT_VERSION}",
            operation="decode",
            subject=subject,
            hint="Upgrade Stateline",
        )
    if version != FORMAT_VERSION or count > _MAX_BLOCKS or len(data) != _HEADER.size + count * _ENTRY.size:
        raise damaged(f"{len(data)} bytes do not fit a table of {count} blocks of version {version}", subject)
    if crc32c(data[_HEADER.size :], crc32c(data[: _HEADER.size - _CRC.size])) != checksum:
        raise damaged("the checksum of the table does not match", subject)
    if zero or zero_too or number < 0 or compression not in tuple(Compression):
        raise damaged("a field of the header is out of bounds", subject)
    compression = Compression(compression)
    blocks = tuple(_entries(data, compression, subject))
    found = (
        sum(block.length for block in blocks),
        sum(block.change_bytes for block in blocks),
        sum(block.rows for block in blocks),
        (blocks[0].key_groups[0], blocks[-1].key_groups[1]) if blocks else (0, -1),
    )
    if found != (payload, size, changes, (low, high)):
        raise damaged("the header and the entries contradict each other", subject)
    length = len(SCHEMA_MESSAGE) + payload + len(END_OF_STREAM) + len(data)
    return ChangesTable(UUID(bytes=log_id), number, compression, size, changes, len(data), length, checksum, blocks)


def _entries(table: bytes, compression: Compression, subject: str) -> Iterator[BlockEntry]:
    position = len(SCHEMA_MESSAGE)
    previous = -1
    for low, high, rows, length, change_bytes, checksum, raw_crc in _ENTRY.iter_unpack(table[_HEADER.size :]):
        raw = raw_bytes(rows, change_bytes)
        if low < previous or high < low or (low < 0 <= high) or rows == 0 or length % 8 or length == 0:
            raise damaged("an entry of the table is out of bounds", subject)
        if block_compression(compression, rows, change_bytes) is Compression.NONE and raw > length:
            raise damaged("a block is smaller than its changes", subject)
        yield BlockEntry((low, high), rows, position, length, change_bytes, checksum, raw_crc)
        position += length
        previous = high
