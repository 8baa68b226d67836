"""Commit and resume points of Apache Flink's Cloud Storage writer, read and written.

Owns these two foreign formats and the translation to and from our points. Does not own our own format
(``serializers``), which carries what these lack: lengths, checksums, generations, a nonce, a magic.

Format, version 1; integers are big-endian and signed, ``utf`` is a u16 byte length and Java's modified UTF-8 (NUL as
``C0 80``, characters beyond the basic plane as two surrogates of three bytes each)::

    commit := bucket utf | object utf | count i32 | count * (component id: 16 bytes of a UUID)
    resume := commit | position i64 | closed u8 (0 or 1)

The name of a component follows from the ids and from the writer's options: ``.inprogress/<bucket>/<object>/<id>`` in
the target's bucket or the temporary one; with entropy the id also stands, without separator, at the front.

The formats have no checksum and their reader ignores what follows. Here bytes left over are refused.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from typing import Final, Protocol

from stateline.blob.checksum import crc32c_of_parts
from stateline.blob.names import STAGING_PREFIX
from stateline.blob.urls import relative_name
from stateline.errors import (
    CorruptDataError,
    DataLossError,
    InvalidInputError,
    NotFoundError,
    UnsupportedVersionError,
)
from stateline.handles import CommitPoint, Part, ResumePoint
from stateline.options import check_kind

__all__ = [
    "VERSION",
    "FlinkCommit",
    "FlinkResume",
    "StagedParts",
    "component_name",
    "export_point",
    "import_point",
    "read_commit",
    "read_resume",
    "write_commit",
    "write_resume",
]

VERSION: Final = 1
_ID_BYTES: Final = 16
_UTF_BYTES_MAX: Final = 0xFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkCommit:
    """What Flink remembers of a file to be published.

    Attributes:
        bucket: Bucket of the file.
        object: Name of the file in it.
        components: Ids of its pieces, in order.
    """

    bucket: str
    object: str
    components: tuple[uuid.UUID, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkResume(FlinkCommit):
    """What Flink remembers of a file that may go on.

    Attributes:
        position: Bytes so far.
        closed: Whether the stream had been closed.
    """

    position: int
    closed: bool


class StagedParts(Protocol):
    """What :func:`import_point` needs of a store; ``GcsStore`` has it."""

    @property
    def url(self) -> str:
        """The root."""
        ...

    def staged_part(self, container: str, name: str) -> Part:
        """Length, checksum and generation of a staged object."""
        ...


def write_commit(point: FlinkCommit) -> bytes:
    """Bytes of version 1."""
    check_kind(point, FlinkCommit, "point")
    head = _utf(point.bucket) + _utf(point.object) + struct.pack(">i", len(point.components))
    return head + b"".join(component.bytes for component in point.components)


def write_resume(point: FlinkResume) -> bytes:
    """Bytes of version 1."""
    check_kind(point, FlinkResume, "point")
    return write_commit(point) + struct.pack(">q?", point.position, point.closed)


def read_commit(version: int, data: bytes) -> FlinkCommit:
    """The commit point in some bytes.

    Raises:
        UnsupportedVersionError: A newer version.
        CorruptDataError: They are too short, too long or not text where text should be.
    """
    reader = _Reader(version, data)
    bucket, name, components = reader.commit()
    reader.end()
    return FlinkCommit(bucket=bucket, object=name, components=components)


def read_resume(version: int, data: bytes) -> FlinkResume:
    """The resume point in some bytes.

    Raises:
        As :func:`read_commit`.
    """
    reader = _Reader(version, data)
    bucket, name, components = reader.commit()
    position, closed = reader.unpack(">qB")
    if position < 0 or closed > 1:
        raise _corrupt(f"position {position} and flag {closed} are impossible")
    reader.end()
    return FlinkResume(bucket=bucket, object=name, components=components, position=position, closed=bool(closed))


def component_name(point: FlinkCommit, component: uuid.UUID, *, entropy: bool = False) -> str:
    """Name of a piece under Flink's option ``gs.filesink.entropy.enabled``."""
    return f"{component if entropy else ''}{STAGING_PREFIX}{point.bucket}/{point.object}/{component}"


def import_point(
    point: FlinkCommit, store: StagedParts, nonce: str, *, temporary_bucket: str = "", entropy: bool = False
) -> CommitPoint:
    """Our point for a file that Flink began: publish it, or, if it is a :class:`FlinkResume`, go on with it.

    Asks the store for length, checksum and generation of each piece, which Flink did not keep.

    Args:
        point: From Flink's checkpoint.
        store: The store that the file belongs to.
        nonce: A fresh id. Keep the point that is returned: it is what makes later commits idempotent.
        temporary_bucket: Flink's option ``gs.writer.temporary.bucket.name``.
        entropy: Flink's option ``gs.filesink.entropy.enabled``.

    Raises:
        InvalidInputError: The file lies outside the store's root.
        DataLossError: A piece is gone, or they do not add up to the position.
    """
    target = relative_name(store.url, f"gs://{point.bucket}/{point.object}")
    parts = []
    for component in point.components:
        name = component_name(point, component, entropy=entropy)
        try:
            parts.append(store.staged_part(temporary_bucket or point.bucket, name))
        except NotFoundError as error:
            raise DataLossError(
                f"its piece {name} is gone", operation="import", subject=target, hint="Was the file published already?"
            ) from error
    length, checksum = sum(part.length for part in parts), crc32c_of_parts(parts)
    if not isinstance(point, FlinkResume):
        return CommitPoint(target=target, parts=tuple(parts), length=length, crc32c=checksum, nonce=nonce)
    if length != point.position:
        raise DataLossError(
            f"its pieces have {length} bytes, not {point.position}",
            operation="import",
            subject=target,
            hint="A piece is not the one that the checkpoint meant",
        )
    return ResumePoint(
        target=target, parts=tuple(parts), length=length, crc32c=checksum, nonce=nonce, closed=point.closed
    )


def export_point(point: CommitPoint, store_url: str) -> FlinkCommit:
    """What Flink would remember of our file: a :class:`FlinkResume` of a resume point.

    Raises:
        InvalidInputError: A piece does not have the name that Flink would look for. Ours do unless the store's option
            ``entropy`` was on, or the name of the file is too long to be repeated in them.
    """
    bucket, _, folder = store_url.removeprefix("gs://").partition("/")
    name = f"{folder}/{point.target}" if folder else point.target
    exported = FlinkCommit(bucket=bucket, object=name, components=())
    components = []
    for part in _pieces(point):
        component = _id_of(part) or uuid.UUID(int=0)
        if part.name != component_name(exported, component):
            raise InvalidInputError(
                f"its piece {part.name} has a name that Flink would not find",
                operation="export",
                subject=point.target,
                hint="Write the file without entropy and with a shorter name",
            )
        components.append(component)
    if not isinstance(point, ResumePoint):
        return FlinkCommit(bucket=bucket, object=name, components=tuple(components))
    return FlinkResume(
        bucket=bucket, object=name, components=tuple(components), position=point.length, closed=point.closed
    )


def _pieces(point: CommitPoint) -> list[Part]:
    """The pieces as they were staged: where all were joined when the file ended, they are kept without bytes."""
    pieces = [part for part in point.parts if part.length]
    if any(_id_of(part) for part in pieces):
        return pieces
    return [part for part in point.parts if not part.length and _id_of(part)] or pieces


def _id_of(part: Part) -> uuid.UUID | None:
    """The id of a component; ``None`` where it is no piece as it was staged."""
    try:
        return uuid.UUID(part.name.rpartition("/")[2])
    except ValueError:
        return None


class _Reader:
    def __init__(self, version: int, data: bytes) -> None:
        check_kind(version, int, "version")
        check_kind(data, bytes | bytearray | memoryview, "data", "bytes")
        if version < 1:
            raise InvalidInputError(
                f"{version} is not a version",
                operation="deserialize",
                subject="Flink point",
                hint="Give the version that was stored beside the point",
            )
        if version > VERSION:
            raise UnsupportedVersionError(
                f"format version {version} is newer than {VERSION}", operation="deserialize", subject="Flink point"
            )
        self._data = bytes(data)
        self._at = 0

    def commit(self) -> tuple[str, str, tuple[uuid.UUID, ...]]:
        bucket, name = self._utf(), self._utf()
        (count,) = self.unpack(">i")
        if not 0 <= count <= (len(self._data) - self._at) // _ID_BYTES:
            raise _corrupt(f"{count} components cannot fit")
        return bucket, name, tuple(uuid.UUID(bytes=self._take(_ID_BYTES)) for _ in range(count))

    def unpack(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))

    def end(self) -> None:
        if self._at != len(self._data):
            raise _corrupt(f"{len(self._data) - self._at} bytes are left over")

    def _utf(self) -> str:
        (length,) = self.unpack(">H")
        return _from_modified_utf8(self._take(length))

    def _take(self, length: int) -> bytes:
        if length > len(self._data) - self._at:
            raise _corrupt("a field reaches past the end")
        self._at += length
        return self._data[self._at - length : self._at]


def _utf(text: str) -> bytes:
    encoded = b"".join(_unit(unit) for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")))
    if len(encoded) > _UTF_BYTES_MAX:
        raise InvalidInputError(
            "it has more than 65535 bytes", operation="serialize", subject=text[:80], hint="Use a shorter name"
        )
    return struct.pack(">H", len(encoded)) + encoded


def _unit(unit: int) -> bytes:
    """One UTF-16 code unit in modified UTF-8."""
    return b"\xc0\x80" if unit == 0 else chr(unit).encode("utf-8", "surrogatepass")


def _from_modified_utf8(data: bytes) -> str:
    """The text of some modified UTF-8; only the shortest form of each character is accepted, as it is written."""
    try:
        units = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        text = units.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    except UnicodeDecodeError as error:
        raise _corrupt("a text is not modified UTF-8") from error
    if _utf(text)[2:] != data:
        raise _corrupt("a text is not modified UTF-8")
    return text


def _corrupt(message: str) -> CorruptDataError:
    return CorruptDataError(
        message, operation="deserialize", subject="Flink point", hint="The bytes were damaged, or are another format"
    )
