"""The bytes of one block: a record-batch message of an Arrow IPC stream, constant but for a few numbers in it.

A block holds the changes of some neighbouring key groups, as one record batch with the columns ``key_group`` (int16)
and ``change`` (binary), both without nulls. Any Arrow reader opens the stream of a schema message, blocks, and the end
of stream.

Why not through a general Arrow reader ourselves: a message is fixed by the number of its rows and the lengths of its
buffers, so this module writes messages as constants and, when it reads, compares them byte for byte with the ones that
it would have written. Nothing that a hostile file says is ever interpreted: a length is used only after it
was found to agree with the checked table, and nothing is decompressed into more bytes than the table announced.

Facts (Arrow columnar format 1.5, "IPC streaming format"):
- A message is 0xFFFFFFFF, the length of its metadata (int32), the metadata (a flatbuffer, padded to 8 bytes), the body.
- A compressed buffer starts with its uncompressed length (int64), or with -1 if it is stored as it is. An empty buffer
  has neither.
- ``pyarrow.Codec("lz4")`` is the LZ4 frame format. It does not notice that a frame ends before the announced length,
  and leaves the rest of its output undefined; so compressed blocks also carry a checksum of what was compressed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateline.blob.api import Buffer
from stateline.blob.checksum import crc32c
from stateline.changelog.segment import damaged

__all__ = [
    "END_OF_STREAM",
    "MAX_COMPRESSED_BLOCK_BYTES",
    "MESSAGES",
    "SCHEMA",
    "SCHEMA_MESSAGE",
    "Compression",
    "EncodedBlock",
    "MessageLayout",
    "block_compression",
    "decode_block",
    "encode_block",
    "raw_bytes",
]

MAX_COMPRESSED_BLOCK_BYTES: Final = 16 * 1024 * 1024
"""A block whose columns take more than this is stored as it is, so that no block decompresses into more."""

SCHEMA: Final = pa.schema(
    [pa.field("key_group", pa.int16(), nullable=False), pa.field("change", pa.binary(), nullable=False)]
)
"""The columns of every block."""

_SMALL_BLOCK_BYTES: Final = 64 * 1024
"""Below this, the pieces of a block are copied together; above, the changes are handed on without a copy."""

SCHEMA_MESSAGE: Final = bytes.fromhex(
    "ffffffffb00000001000000000000a000c000600050008000a000000000104000c000000080008000000040008000000"
    "04000000020000004400000004000000d4ffffff00000004100000001c0000000400000000000000060000006368616e"
    "676500000400040004000000100014000800000007000c00000010001000000000000002100000002400000004000000"
    "00000000090000006b65795f67726f757000000008000c0008000700080000000000000110000000"
)
"""The first message of every stream."""

END_OF_STREAM: Final = bytes.fromhex("ffffffff00000000")
"""The last bytes of every stream."""

_BODY_LENGTH_AT: Final = 40
_ZEROS: Final = bytes(8)
_INT64: Final = struct.Struct("<q")
_NODES: Final = struct.Struct("<4q")
_BUFFERS: Final = struct.Struct("<10q")


class Compression(IntEnum):
    """How the columns of a block are compressed; the number is what tables store."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


@dataclass(frozen=True, slots=True)
class MessageLayout:
    """The record-batch message of one kind of compression: its bytes, and where its numbers are.

    ``buffers_at`` is followed by five pairs (offset, length), 8 constant bytes, and two pairs (rows, nulls).
    """

    constant: bytes
    rows_at: int
    buffers_at: int

    @property
    def nodes_at(self) -> int:
        """Where the two pairs (rows, nulls) are."""
        return self.buffers_at + _BUFFERS.size + 8


def _message(rows_at: int, buffers_at: int, head: str) -> MessageLayout:
    """A message from the constant bytes before its numbers; all numbers are zero."""
    tail = _BUFFERS.size + 8 + _NODES.size
    constant = bytearray(bytes.fromhex(head) + bytes(tail))
    struct.pack_into("<I", constant, buffers_at + _BUFFERS.size + 4, 2)
    return MessageLayout(bytes(constant), rows_at, buffers_at)


MESSAGES: Final = {
    Compression.NONE: _message(
        72,
        88,
        "ffffffffc800000014000000000000000c0016000600050008000c000c00000000030400180000000000000000000000"
        "00000a0018000c00040008000a0000006c0000001000000000000000000000000000000005000000",
    ),
    Compression.LZ4: _message(
        80,
        104,
        "ffffffffd800000014000000000000000c0018000600050008000c000c000000000304001c0000000000000000000000"
        "000000000c001c001000040008000c000c000000780000001c0000001400000000000000000000000000000004000400"
        "0400000005000000",
    ),
    Compression.ZSTD: _message(
        80,
        112,
        "ffffffffe000000014000000000000000c0018000600050008000c000c000000000304001c0000000000000000000000"
        "000000000c001e001000040008000c000c00000080000000240000001800000000000000000000000000000000000600"
        "08000700060000000000000105000000",
    ),
}
"""The record-batch message of each compression, with zeros for its numbers."""


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """The bytes of a block, in pieces that are meant to be written one after the other.

    Attributes:
        pieces: Together a multiple of 8 bytes.
        length: Their bytes.
        crc32c: CRC32C of them.
        raw_crc32c: CRC32C of the three columns' buffers before compression; 0 if the block is stored as it is.
    """

    pieces: tuple[Buffer, ...]
    length: int
    crc32c: int
    raw_crc32c: int


def raw_bytes(rows: int, change_bytes: int) -> int:
    """Bytes of the buffers of a block before compression."""
    return 2 * rows + 4 * (rows + 1) + change_bytes


def block_compression(wanted: Compression, rows: int, change_bytes: int) -> Compression:
    """How a block of this size is stored where ``wanted`` is asked for."""
    fits = raw_bytes(rows, change_bytes) <= MAX_COMPRESSED_BLOCK_BYTES
    return wanted if fits else Compression.NONE


def encode_block(
    key_groups: npt.NDArray[np.int16], offsets: npt.NDArray[np.int32], changes: pa.Buffer, compression: Compression
) -> EncodedBlock:
    """The bytes of one block.

    Args:
        key_groups: Of each change, ascending.
        offsets: Where each change starts in ``changes``, and the end of the last: ``len(key_groups) + 1`` numbers
            from 0.
        changes: All changes, one after the other.
        compression: Of the change set.
    """
    rows = len(key_groups)
    compression = block_compression(compression, rows, changes.size)
    columns: list[Any] = [
        np.ascontiguousarray(key_groups, "<i2").tobytes(),
        np.ascontiguousarray(offsets, "<i4").tobytes(),
        memoryview(changes),
    ]
    raw_crc = 0
    if compression is not Compression.NONE:
        for column in columns:
            raw_crc = crc32c(column, raw_crc)
        groups, bounds, data = columns
        columns = [_deflate(groups, compression), _as_it_is(bounds), _deflate(data, compression)]
    lengths = [len(column) for column in columns]
    front = b"".join(
        (_front(compression, rows, lengths), columns[0], _padding(lengths[0]), columns[1], _padding(lengths[1]))
    )
    pieces: tuple[Buffer, ...] = (front, columns[2], _padding(lengths[2]))
    if lengths[2] < _SMALL_BLOCK_BYTES:
        pieces = (b"".join(pieces),)
    checksum = 0
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    return EncodedBlock(pieces, sum(len(piece) for piece in pieces), checksum, raw_crc)


def decode_block(
    stored: memoryview, *, rows: int, change_bytes: int, raw_crc32c: int, compression: Compression, subject: str
) -> tuple[npt.NDArray[np.int16], pa.Array]:
    """The columns of one block, whose own checksum the caller has verified.

    Args:
        stored: The bytes of the block. For a block that is not compressed, the result refers to them.
        rows: Number of changes, from the table.
        change_bytes: Bytes of all changes, from the table.
        raw_crc32c: Checksum before compression, from the table.
        compression: Of the change set.
        subject: The object and the offset, for errors.

    Returns:
        The key groups and the changes, the latter as an Arrow binary array.

    Raises:
        CorruptDataError: The bytes are not what :func:`encode_block` makes for these numbers.
    """
    compression = block_compression(compression, rows, change_bytes)
    raw_lengths = (2 * rows, 4 * (rows + 1), change_bytes)
    lengths: Sequence[int] = raw_lengths
    if compression is not Compression.NONE:
        lengths = _stored_lengths(stored, compression, subject)
    front = _front(compression, rows, lengths)
    starts = [len(front)]
    for length in lengths:
        starts.append(starts[-1] + length + len(_padding(length)))
    if len(stored) != starts[3]:
        raise damaged(f"the block has {len(stored)} bytes, its columns need {starts[3]}", subject)
    if stored[: len(front)] != front:
        raise damaged("the block is not the Arrow message that its table announces", subject)
    pieces = [pa.py_buffer(stored[start : start + length]) for start, length in zip(starts, lengths, strict=False)]
    if compression is not Compression.NONE:
        pieces = _inflate(pieces, raw_lengths, raw_crc32c, compression, subject)
    elif raw_crc32c != 0:
        raise damaged("a block that is not compressed has a checksum of its columns", subject)
    return _columns(pieces, rows, change_bytes, subject)


def _front(compression: Compression, rows: int, lengths: Sequence[int]) -> bytes:
    """The record-batch message, up to the body."""
    template = MESSAGES[compression]
    message = bytearray(template.constant)
    second = lengths[0] + len(_padding(lengths[0]))
    third = second + lengths[1] + len(_padding(lengths[1]))
    body = third + lengths[2] + len(_padding(lengths[2]))
    _INT64.pack_into(message, _BODY_LENGTH_AT, body)
    _INT64.pack_into(message, template.rows_at, rows)
    _BUFFERS.pack_into(
        message, template.buffers_at, 0, 0, 0, lengths[0], second, 0, second, lengths[1], third, lengths[2]
    )
    _NODES.pack_into(message, template.nodes_at, rows, 0, rows, 0)
    return bytes(message)


def _stored_lengths(stored: memoryview, compression: Compression, subject: str) -> tuple[int, int, int]:
    """The lengths of the compressed buffers, as the block says; the caller compares the whole message afterwards."""
    at = MESSAGES[compression].buffers_at
    if len(stored) < at + _BUFFERS.size:
        raise damaged("the block ends within its message", subject)
    numbers = _BUFFERS.unpack_from(stored, at)
    first, second, third = numbers[3], numbers[7], numbers[9]
    if min(first, second, third) < 0 or max(first, second, third) > len(stored):
        raise damaged("a column of the block is longer than the block", subject)
    return first, second, third


def _deflate(column: Buffer, compression: Compression) -> Buffer:
    if len(column) == 0:
        return b""
    packed = pa.Codec(compression.name.lower()).compress(column)
    return _as_it_is(column) if packed.size >= len(column) else b"".join((_INT64.pack(len(column)), packed))


def _as_it_is(column: Buffer) -> Buffer:
    """A column of a compressed block that is not compressed: what does not shrink, and offsets, which shrink little."""
    return b"".join((_INT64.pack(-1), column))


def _inflate(
    pieces: Sequence[pa.Buffer], raw_lengths: Sequence[int], raw_crc: int, compression: Compression, subject: str
) -> list[pa.Buffer]:
    """The columns before compression. Allocates at most :data:`MAX_COMPRESSED_BLOCK_BYTES` in all."""
    codec = pa.Codec(compression.name.lower())
    columns = []
    checksum = 0
    for piece, raw_length in zip(pieces, raw_lengths, strict=True):
        if raw_length == 0 and piece.size == 0:
            columns.append(piece)
            continue
        announced = _INT64.unpack_from(piece)[0] if piece.size >= _INT64.size else None
        packed = piece[_INT64.size :] if announced is not None else piece
        if announced == raw_length:
            try:
                column = codec.decompress(packed, decompressed_size=raw_length)
            except (OSError, pa.ArrowException) as error:
                raise damaged(f"the block cannot be decompressed: {error}", subject) from error
        elif announced == -1 and packed.size == raw_length:
            column = packed
        else:
            raise damaged(f"a column announces {announced} bytes where the table has {raw_length}", subject)
        checksum = crc32c(memoryview(column), checksum)
        columns.append(column)
    if checksum != raw_crc:
        raise damaged("the decompressed block does not match its checksum", subject)
    return columns


def _columns(
    pieces: Sequence[pa.Buffer], rows: int, change_bytes: int, subject: str
) -> tuple[npt.NDArray[np.int16], pa.Array]:
    """Checks that the numbers make an array, then makes it without a copy."""
    key_groups = np.frombuffer(pieces[0], "<i2", rows)
    offsets = np.frombuffer(pieces[1], "<i4", rows + 1)
    if offsets[0] != 0 or offsets[-1] != change_bytes or (rows and bool((offsets[1:] < offsets[:-1]).any())):
        raise damaged("the offsets of the changes are not ascending", subject)
    if rows and bool((key_groups[1:] < key_groups[:-1]).any()):
        raise damaged("the changes are not sorted by key group", subject)
    return key_groups, pa.Array.from_buffers(pa.binary(), rows, [None, pieces[1], pieces[2]])


def _padding(length: int) -> bytes:
    return _ZEROS[: -length % 8]
