"""The bytes of commit and resume points.

All integers are little-endian and unsigned. ``text`` is a u16 length and so many bytes of UTF-8::

    point    := magic 4s | version u16 | body length u32 | body | crc32c u32
    body     := commit                                                           magic "SLcp"
              | commit | closed u8 (0 or 1) | count u32 | part * count           magic "SLrp"; the parts are superseded
    commit   := target text | nonce text | length u64 | crc32c u32 | count u32 | part * count
    part     := name text | length u64 | crc32c u32 | version text | container text

The last u32 is the CRC32C of everything before it. A reader refuses what has another magic, a newer version, another
length than it says, another checksum, a count that the remaining bytes cannot hold, or anything left over; and a point
whose pieces do not add up to its length or whose target is not a name. A writer refuses fields that the format cannot
hold. The committed files in ``tests/golden`` hold the format.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import asdict

from stateline.blob.checksum import crc32c
from stateline.blob.names import check_name
from stateline.errors import CorruptDataError, InvalidInputError, UnsupportedVersionError
from stateline.handles import CommitPoint, Part, ResumePoint
from stateline.options import check_kind, check_text, parse_int
from stateline.recoverable.api import check_point

__all__ = ["CommitPointSerializer", "FieldReader", "ResumePointSerializer"]

_VERSION: Final = 1
_COMMIT_MAGIC: Final = b"SLcp"
_RESUME_MAGIC: Final = b"SLrp"
_U32_MAX: Final = 0xFFFF_FFFF
_U64_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF
_HEADER: Final = struct.Struct("<4sHI")
_CHECKSUM: Final = struct.Struct("<I")
_PART_BYTES_MIN: Final = 2 + 8 + 4 + 2 + 2


class CommitPointSerializer:
    """Turns commit points into bytes that a checkpoint can keep, for ever.

    A :class:`ResumePoint` is written as the commit point that it contains.
    """

    version: Final[int] = _VERSION
    """What :meth:`serialize` writes. Store it beside the bytes."""

    def serialize(self, point: CommitPoint) -> bytes:
        """The bytes of a point."""
        check_point(point, CommitPoint, "serialize")
        return _framed(_COMMIT_MAGIC, _commit_body(point))

    def deserialize(self, version: int, data: bytes) -> CommitPoint:
        """The point of some bytes, whichever released version wrote them.

        Raises:
            UnsupportedVersionError: A newer Stateline wrote them.
            CorruptDataError: They are not what was written.
        """
        reader = _PointReader(data, version, _COMMIT_MAGIC, "commit point")
        point = reader.commit()
        reader.end()
        return point


class ResumePointSerializer:
    """Turns resume points into bytes; its methods are those of :class:`CommitPointSerializer`."""

    version: Final[int] = _VERSION

    def serialize(self, point: ResumePoint) -> bytes:
        check_point(point, ResumePoint, "serialize")
        check_kind(point.closed, bool, "closed")
        body = _commit_body(point) + struct.pack("<B", point.closed) + _parts(point.superseded, "superseded")
        return _framed(_RESUME_MAGIC, body)

    def deserialize(self, version: int, data: bytes) -> ResumePoint:
        reader = _PointReader(data, version, _RESUME_MAGIC, "resume point")
        commit, closed, superseded = reader.commit(), reader.flag(), reader.parts()
        reader.end()
        return ResumePoint(**asdict(commit), closed=closed, superseded=superseded)


def _framed(magic: bytes, body: bytes) -> bytes:
    framed = _HEADER.pack(magic, _VERSION, len(body)) + body
    return framed + _CHECKSUM.pack(crc32c(framed))


def _commit_body(point: CommitPoint) -> bytes:
    head = _text(point.target, "target") + _text(point.nonce, "nonce") + _extent(point)
    return head + _parts(point.parts, "parts")


def _parts(parts: Sequence[Part], what: str) -> bytes:
    check_kind(parts, tuple | list, what)
    fields = [struct.pack("<I", len(parts))]
    for part in parts:
        check_kind(part, Part, f"one of {what}")
        fields += [_text(part.name, "name"), _extent(part)]
        fields += [_text(part.version, "version"), _text(part.container, "container")]
    return b"".join(fields)


def _extent(bounds: CommitPoint | Part) -> bytes:
    """Length and CRC32C."""
    return struct.pack(
        "<QI", _unsigned(bounds.length, "length", _U64_MAX), _unsigned(bounds.crc32c, "crc32c", _U32_MAX)
    )


def _unsigned(value: int, what: str, maximum: int) -> int:
    check_kind(value, int, what)  # Not text, which settings may be.
    return parse_int(value, what, minimum=0, maximum=maximum)


def _text(value: str, what: str) -> bytes:
    check_text(value, what)
    encoded = value.encode("utf-8")
    if len(encoded) > 0xFFFF:
        raise InvalidInputError(
            f"{what} has more than 65535 bytes", operation="serialize", subject=value[:80], hint="Use a shorter name"
        )
    return struct.pack("<H", len(encoded)) + encoded


class FieldReader:
    """Takes fields from the front of some bytes, and never more than is there.

    Args:
        data: The bytes.
        version: Of their format, as it was stored beside them.
        newest: The newest version that can be read.
        what: What they are called in errors.
    """

    def __init__(self, data: bytes, version: int, newest: int, what: str) -> None:
        self._what = what
        self._newest = newest
        if type(version) is not int or version < 1:
            raise InvalidInputError(
                f"{version!r} is not a version",
                operation="deserialize",
                subject=what,
                hint="Give the serializer's version that was stored beside the point",
            )
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidInputError(
                f"{type(data).__name__} is not bytes",
                operation="deserialize",
                subject=what,
                hint="Give what serialize() returned",
            )
        self.check_version(version)
        self._data = bytes(data)
        self._at = 0

    def check_version(self, version: int) -> None:
        """Refuses what a newer version wrote."""
        if version > self._newest:
            raise UnsupportedVersionError(
                f"format version {version} is newer than {self._newest}",
                operation="deserialize",
                subject=self._what,
                hint="Upgrade Stateline to the version that wrote it, or a later one",
            )

    def unpack(self, layout: str) -> tuple[Any, ...]:
        """Fields of fixed length, as :mod:`struct` describes them."""
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def take(self, length: int) -> bytes:
        """The next bytes."""
        if length > len(self._data) - self._at:
            raise self.corrupt("a field reaches past the end")
        self._at += length
        return self._data[self._at - length : self._at]

    def count(self, layout: str, bytes_min: int) -> int:
        """The number of items that follow, each of at least ``bytes_min`` bytes."""
        (count,) = self.unpack(layout)
        if not 0 <= count <= (len(self._data) - self._at) // bytes_min:
            raise self.corrupt(f"{count} items cannot fit")
        return int(count)

    def end(self) -> None:
        """Refuses bytes that no field explains."""
        if self._at != len(self._data):
            raise self.corrupt(f"{len(self._data) - self._at} bytes are left over")

    def corrupt(self, message: str) -> CorruptDataError:
        """The error of bytes that are not what was written."""
        return CorruptDataError(
            message,
            operation="deserialize",
            subject=self._what,
            hint="The bytes were damaged, or are not a point: use the checkpoint's other copy or an older checkpoint",
        )


class _PointReader(FieldReader):
    """The fields of a framed point."""

    def __init__(self, data: bytes, version: int, magic: bytes, what: str) -> None:
        super().__init__(data, version, _VERSION, what)
        if len(self._data) < _HEADER.size + _CHECKSUM.size:
            raise self.corrupt(f"{len(self._data)} bytes are too few")
        found_magic, found_version, length = _HEADER.unpack_from(self._data)
        if found_magic != magic:
            raise self.corrupt("the magic is missing")
        self.check_version(found_version)
        if found_version != version:
            raise self.corrupt(f"the bytes say version {found_version}, their record says {version}")
        expected = _HEADER.size + length + _CHECKSUM.size
        if len(self._data) != expected:
            raise self.corrupt(f"expected {expected} bytes, got {len(self._data)}")
        (checksum,) = _CHECKSUM.unpack_from(self._data, expected - _CHECKSUM.size)
        framed = self._data[: -_CHECKSUM.size]
        if crc32c(framed) != checksum:
            raise self.corrupt("the checksum does not match")
        self._data = framed[_HEADER.size :]

    def commit(self) -> CommitPoint:
        """The fields that all points have, checked against each other."""
        target, nonce = self._text(), self._text()
        length, checksum = self.unpack("<QI")
        parts = self.parts()
        if sum(part.length for part in parts) != length:
            raise self.corrupt("the pieces do not add up to the length")
        try:
            check_name(target)
        except InvalidInputError as error:
            raise self.corrupt("the target is not a name") from error
        return CommitPoint(target=target, nonce=nonce, length=length, crc32c=checksum, parts=parts)

    def parts(self) -> tuple[Part, ...]:
        """A counted list of pieces."""
        return tuple(self._part() for _ in range(self.count("<I", _PART_BYTES_MIN)))

    def flag(self) -> bool:
        """One byte, 0 or 1."""
        (value,) = self.unpack("<B")
        if value > 1:
            raise self.corrupt(f"{value} is not a flag")
        return bool(value)

    def _part(self) -> Part:
        name = self._text()
        length, checksum = self.unpack("<QI")
        return Part(name=name, length=length, crc32c=checksum, version=self._text(), container=self._text())

    def _text(self) -> str:
        (length,) = self.unpack("<H")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.corrupt("a text is not UTF-8") from error
