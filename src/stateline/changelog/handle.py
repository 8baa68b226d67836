"""What a checkpoint remembers of a changelog: frozen values and their bytes. No I/O.

Rules:
- A handle is made only after what it names is durable.
- It names an object by its exact, relative name in the store of the changelog, and carries the checksum of the
  section's table, which in turn holds the checksum of every block: what is read can be proved to be what was written.

Encoding, little-endian::

    offset  bytes
    0       4      magic "SLCH"
    4       2      version, 1
    6       2      zero
    8       4      length of the body
    12      4      CRC32C of the body
    16      ...    body: the handle as MessagePack; a segment is an array of its fields in order, the rest are maps

Nothing may follow the body, no key or field may be unknown, every name is checked as a blob name and every number
against its bounds.
"""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID

import msgspec

from stateline.blob.checksum import crc32c
from stateline.blob.names import check_name
from stateline.errors import CorruptDataError, InvalidInputError, UnsupportedVersionError
from stateline.key_groups import MAX_PARALLELISM_LIMIT, KeyGroupRange

__all__ = ["HANDLE_VERSION", "ChangelogHandle", "SegmentHandle"]

HANDLE_VERSION: Final = 1
"""The version of the encoding that this program writes, and the newest that it reads."""

_MAGIC: Final = b"SLCH"
_PREFIX: Final = struct.Struct("<4sHHII")
_MAX_INT64: Final = 2**63 - 1
_MAX_UINT32: Final = 2**32 - 1


class SegmentHandle(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """One durable change set: one section of kind ``changes`` inside one segment.

    Attributes:
        name: Exact name of the object, relative to the root of the store. Several segments may share an object.
        offset: First byte of the section.
        length: Bytes of the section.
        head_length: Bytes of the table at the end of the section: what a ranged reader fetches first.
        crc32c: CRC32C of the table as it is stored, which covers the checksums of all blocks.
        log_id: The writer, as 32 hexadecimal digits.
        sequence_number: The change set of that writer.
        size: Bytes of the changes, without any framing, uncompressed.
        first_key_group: Lowest key group with changes; -1 if there is metadata; 0 if there is no change.
        last_key_group: Highest key group with changes; -1 if there is none.
    """

    name: str
    offset: int
    length: int
    head_length: int
    crc32c: int
    log_id: str
    sequence_number: int
    size: int
    first_key_group: int
    last_key_group: int


class ChangelogHandle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All change sets of one writer from one sequence number to another, in order.

    Attributes:
        key_group_range: What a reader of this handle gets: the writer's range, or a part of it after a rescale.
        segments: In order of their sequence numbers. Empty if there was no change.
        state_size: Bytes of the changes in all segments (full size).
        checkpointed_size: Bytes of the changes that were not durable yet when the checkpoint asked (incremental size).
    """

    key_group_range: KeyGroupRange
    segments: tuple[SegmentHandle, ...] = ()
    state_size: int = 0
    checkpointed_size: int = 0

    def intersection(self, key_group_range: KeyGroupRange) -> ChangelogHandle | None:
        """The handle for the key groups in both ranges; ``None`` if there is none.

        Every segment stays, because each may hold changes of every key group; a reader fetches only the blocks that it
        needs. The incremental size of a part is not known and is 0.
        """
        both = self.key_group_range.intersection(key_group_range)
        if len(both) == 0:
            return None
        return msgspec.structs.replace(self, key_group_range=both, checkpointed_size=0)

    def object_names(self) -> tuple[str, ...]:
        """The distinct names of the objects that this handle reaches, in order of first use."""
        return tuple(dict.fromkeys(segment.name for segment in self.segments))

    def to_bytes(self) -> bytes:
        """The encoding of the module docstring."""
        body = _ENCODER.encode(self)
        return _PREFIX.pack(_MAGIC, HANDLE_VERSION, 0, len(body), crc32c(body)) + body

    @classmethod
    def from_bytes(cls, b: bytes | bytearray | memoryview) -> ChangelogHandle:
        """The handle that :meth:`to_bytes` encoded.

        Raises:
            CorruptDataError: Truncated, damaged, foreign, followed by other bytes, or out of bounds.
            InvalidInputError: Not bytes at all.
            UnsupportedVersionError: A newer version wrote it.
        """
        if not isinstance(b, bytes | bytearray | memoryview):
            raise InvalidInputError(
                f"{type(b).__name__} is not bytes",
                operation="decode",
                subject="changelog handle",
                hint="Give to_bytes()",
            )
        data = bytes(b)
        if len(data) < _PREFIX.size:
            raise _damaged(f"{len(data)} bytes are too few for a changelog handle", 0)
        magic, version, zero, length, checksum = _PREFIX.unpack_from(data)
        if magic != _MAGIC:
            raise _damaged("the magic number is missing", 0)
        if version > HANDLE_VERSION:
            raise UnsupportedVersionError(
                f"version {version} is newer than {HANDLE_VERSION}",
                operation="decode",
                subject="changelog handle at byte 4",
                hint="Upgrade Stateline, or restore from an older checkpoint",
            )
        body = data[_PREFIX.size :]
        if version != HANDLE_VERSION or zero != 0:
            raise _damaged("the version field is not valid", 4)
        if length != len(body):
            raise _damaged(f"{length} bytes are announced, {len(body)} are there", 8)
        if checksum != crc32c(body):
            raise _damaged("the checksum does not match", 12)
        try:
            handle = _DECODER.decode(body)
            _check(handle)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _damaged(f"the body is not valid: {error}", _PREFIX.size) from error
        return handle


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(ChangelogHandle)


def _check(handle: ChangelogHandle) -> None:
    """Bounds that the types cannot say."""
    _check_number("last key group", handle.key_group_range.end + 1, MAX_PARALLELISM_LIMIT)
    _check_number("state_size", handle.state_size)
    _check_number("checkpointed_size", handle.checkpointed_size)
    previous = -1
    for segment in handle.segments:
        check_name(segment.name)
        UUID(segment.log_id) if len(segment.log_id) == 32 else _refuse("log_id", segment.log_id)
        for name in ("offset", "length", "size", "sequence_number"):
            _check_number(name, getattr(segment, name))
        _check_number("crc32c", segment.crc32c, _MAX_UINT32)
        _check_number("head_length", segment.head_length, segment.length)
        _check_number("end", segment.offset + segment.length)
        _check_number("first_key_group", segment.first_key_group + 1, MAX_PARALLELISM_LIMIT)
        _check_number("last_key_group", segment.last_key_group + 1, MAX_PARALLELISM_LIMIT)
        if segment.sequence_number <= previous:
            _refuse("sequence_number", segment.sequence_number)
        previous = segment.sequence_number


def _check_number(name: str, value: int, maximum: int = _MAX_INT64) -> None:
    if not 0 <= value <= maximum:
        _refuse(name, value)


def _refuse(name: str, value: object) -> None:
    raise InvalidInputError(
        f"must be a number that a handle can hold, got {value!r}",
        subject=name,
        hint="Use handles as ChangelogWriter.persist() made them",
    )


def _damaged(message: str, offset: int) -> CorruptDataError:
    return CorruptDataError(
        message,
        operation="decode",
        subject=f"changelog handle at byte {offset}",
        hint="Restore from a checkpoint whose record is intact",
    )
