"""Points of Apache Flink's Cloud Storage writer, so that a file which Flink began is finished here.

Format, version 1; integers are big-endian and signed, ``utf`` is a u16 byte length and Java's modified UTF-8 (NUL as
``C0 80``, characters beyond the basic plane as two surrogates of three bytes each)::

    commit := bucket utf | object utf | count i32 | count * (component id: 16 bytes of a UUID)
    resume := commit | position i64 | closed u8 (0 or 1)

The name of a component follows from its id and the options of Flink's writer: ``.inprogress/<bucket>/<object>/<id>`` in
the target's bucket or the temporary one; with entropy the id also stands, without separator, at the front.

The format has no checksum, and Flink ignores what follows. Here bytes left over are refused.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Final, Protocol

from msgspec.structs import asdict

from stateline.blob.checksum import crc32c_of_parts
from stateline.blob.names import STAGING_PREFIX
from stateline.blob.urls import relative_name
from stateline.errors import DataLossError, NotFoundError
from stateline.handles import CommitPoint, Part, ResumePoint
from stateline.recoverable.serializers import FieldReader

__all__ = ["FlinkPoint", "StagedParts", "import_point", "read_commit", "read_resume"]

_VERSION: Final = 1
_ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkPoint:
    """What Flink remembers of a file.

    Attributes:
        bucket: Bucket of the file.
        object: Name of the file in it.
        components: Ids of its pieces, in order.
        position: Bytes so far, of a file that may go on; ``None`` of one that is to be published.
        closed: Whether the stream had been closed.
    """

    bucket: str
    object: str
    components: tuple[uuid.UUID, ...]
    position: int | None = None
    closed: bool = True


class StagedParts(Protocol):
    """What :func:`import_point` needs of a store; ``GcsStore`` has it."""

    @property
    def url(self) -> str:
        """The root."""
        ...

    def staged_part(self, container: str, name: str) -> Part:
        """Length, checksum and generation of a staged object."""
        ...


def read_commit(version: int, data: bytes) -> FlinkPoint:
    """The commit point in some bytes.

    Raises:
        UnsupportedVersionError: A newer version.
        CorruptDataError: They are too short, too long or not text where text should be.
    """
    fields = FieldReader(data, version, _VERSION, "Flink commit point")
    point = _commit(fields)
    fields.end()
    return point


def read_resume(version: int, data: bytes) -> FlinkPoint:
    """The resume point in some bytes.

    Raises:
        As :func:`read_commit`.
    """
    fields = FieldReader(data, version, _VERSION, "Flink resume point")
    point = _commit(fields)
    position, closed = fields.unpack(">qB")
    if position < 0 or closed > 1:
        raise fields.corrupt(f"position {position} and flag {closed} are impossible")
    fields.end()
    return replace(point, position=position, closed=bool(closed))


def import_point(
    point: FlinkPoint, store: StagedParts, nonce: str, *, temporary_bucket: str = "", entropy: bool = False
) -> CommitPoint:
    """Our point for a file that Flink began: one to publish, or, where it may go on, a :class:`ResumePoint`.

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
        name = f"{component if entropy else ''}{STAGING_PREFIX}{point.bucket}/{point.object}/{component}"
        try:
            parts.append(store.staged_part(temporary_bucket or point.bucket, name))
        except NotFoundError as error:
            raise DataLossError(
                f"its piece {name} is gone", operation="import", subject=target, hint="Was the file published already?"
            ) from error
    length = sum(part.length for part in parts)
    commit = CommitPoint(target=target, parts=tuple(parts), length=length, crc32c=crc32c_of_parts(parts), nonce=nonce)
    if point.position is None:
        return commit
    if length != point.position:
        raise DataLossError(
            f"its pieces must have {point.position} bytes, got {length}",
            operation="import",
            subject=target,
            hint="A piece is not the one that the checkpoint meant",
        )
    return ResumePoint(**asdict(commit), closed=point.closed)


def _commit(fields: FieldReader) -> FlinkPoint:
    bucket, name = _text(fields), _text(fields)
    count = fields.count(">i", _ID_BYTES)
    components = tuple(uuid.UUID(bytes=fields.take(_ID_BYTES)) for _ in range(count))
    return FlinkPoint(bucket=bucket, object=name, components=components)


def _text(fields: FieldReader) -> str:
    """A text in modified UTF-8, of which only the shortest form of each character is accepted, as Java writes it."""
    (length,) = fields.unpack(">H")
    data = fields.take(length)
    try:
        units = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        text = units.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    except UnicodeDecodeError as error:
        raise fields.corrupt("a text is not modified UTF-8") from error
    if b"\0" in data or any(ord(unit) > 0xFFFF for unit in units):
        raise fields.corrupt("a text is not modified UTF-8")
    return text
