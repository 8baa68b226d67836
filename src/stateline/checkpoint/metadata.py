r"""The bytes of ``_metadata``: JSON documents that a person can read and a program can trust.

Owns the encoding of a checkpoint, of the tombstone that replaces it when it is retired, and of the markers beside them.
Does not own when they are written (``store``, ``retention``).

Format, for each kind of document::

    {\n
      "format": "stateline.checkpoint",\n      which one: .checkpoint, .savepoint, .retired, .floor, .published
      "version": 1,\n
      ...members of the document, one JSON member after the other...
      "crc32c": "0a1b2c3d"\n                   exactly eight lower-case hexadecimal digits
    }\n

- The bytes are UTF-8 JSON. The two first members (the *header*, up to and including the line feed after the version)
  and the last one (the *trailer*, the 25 bytes from the comma before ``crc32c`` to the end) have exactly this
  layout in every version; what lies between is laid out for reading, one run or file on a line, and may change.
- The CRC32C covers all bytes before the trailer. So every byte is held: by the CRC or by being fixed.
- Nothing follows the trailer. A document has at most :data:`MAX_METADATA_BYTES`.
- The members of a checkpoint are the fields of :class:`stateline.checkpoint.api.Checkpoint` and of the handles that
  it holds, under their names. Unknown members are refused, because a reader that skipped one would restore half a
  state; so a new member means a new version.
- A newer version number is refused by name, but only once the CRC has shown that the number is not a flipped bit.

What is decoded is also checked: names stay inside the root and name data only, numbers are in range, the subtasks of
an operator cover the key groups exactly. :func:`encode_checkpoint` decodes what it made before it returns it, so a
record that no reader would take is never published.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec

from stateline.blob.checksum import crc32c
from stateline.blob.names import check_name
from stateline.checkpoint.api import (
    MAX_FILE_STATE_THRESHOLD,
    Checkpoint,
    FileState,
    InlineState,
    OperatorState,
    OutputState,
    SubtaskState,
)
from stateline.checkpoint.layout import check_object_name, first_id_of_block
from stateline.errors import CorruptDataError, InvalidInputError, UnsupportedVersionError
from stateline.handles import CommitPoint, OpenFile, Part, ResumePoint, RunHandle
from stateline.key_groups import check_parallelism

__all__ = [
    "MAX_METADATA_BYTES",
    "Retired",
    "decode_record",
    "decode_savepoint",
    "encode_checkpoint",
    "encode_floor",
    "encode_published",
    "encode_retired",
    "encode_savepoint",
]

T = TypeVar("T", bound=msgspec.Struct)

MAX_METADATA_BYTES: Final = 64 * 1024 * 1024
"""Some 350,000 runs. What is larger is refused before it is parsed, and before it is written."""

_VERSION: Final = 1
_CHECKPOINT: Final = b"stateline.checkpoint"
_SAVEPOINT: Final = b"stateline.savepoint"
_RETIRED: Final = b"stateline.retired"
_FLOOR: Final = b"stateline.floor"
_PUBLISHED: Final = b"stateline.published"

_HEADER: Final = re.compile(rb'\{\n  "format": "([a-z.]{1,40})",\n  "version": ([1-9][0-9]{0,8}),\n')
_TRAILER: Final = b',\n  "crc32c": "%08x"\n}\n'
_TRAILER_BYTES: Final = len(_TRAILER % 0)
_MAX_COUNT: Final = 2**63 - 1
_MAX_ID: Final = 10**18 - 1
_END_OF_TIME: Final = 253402300800.0
"""The year 10000, where calendars of programs end."""


class Retired(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tombstone of a checkpoint: keeps its slot taken, and remembers what is to be deleted with it.

    Attributes:
        checkpoint_id: The slot.
        query_id: Of the checkpoint that was retired; empty where its record could not be read.
        nonce: Of that checkpoint.
        created_at: Of that checkpoint.
        delete: Objects of the root that it reached and its successor does not, to be deleted by exact name.
        discard: Staged pieces that it reached and its successor does not, by URL of their output.
    """

    checkpoint_id: int
    query_id: str = ""
    nonce: str = ""
    created_at: float = 0.0
    delete: tuple[str, ...] = ()
    discard: dict[str, tuple[Part, ...]] = {}


class _CheckpointDocument(Checkpoint, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: str
    version: int
    crc32c: str


class _RetiredDocument(Retired, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: str
    version: int
    crc32c: str


_JSON: Final = msgspec.json.Encoder()
_DECODERS: Final[dict[bytes, msgspec.json.Decoder[Any]]] = {
    _CHECKPOINT: msgspec.json.Decoder(_CheckpointDocument),
    _SAVEPOINT: msgspec.json.Decoder(_CheckpointDocument),
    _RETIRED: msgspec.json.Decoder(_RetiredDocument),
}
_BROKEN: Final = (OperatorState, SubtaskState, OutputState)
"""Values whose members get lines of their own; every other value is written on one line."""


# -- encoding ---------------------------------------------------------------------------------------------------------


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The bytes of a checkpoint's record, checked by reading them back.

    Raises:
        InvalidInputError: The checkpoint breaks a rule of the format or is too large; the message says which.
    """
    return _encode(_CHECKPOINT, checkpoint, f"checkpoint {checkpoint.checkpoint_id}")


def encode_savepoint(checkpoint: Checkpoint) -> bytes:
    """The bytes of a savepoint's ``_metadata``: a checkpoint whose names are relative to the savepoint's folder.

    Raises:
        InvalidInputError: As :func:`encode_checkpoint`.
    """
    return _encode(_SAVEPOINT, checkpoint, f"savepoint of checkpoint {checkpoint.checkpoint_id}")


def encode_retired(retired: Retired) -> bytes:
    """The bytes of a tombstone; equal tombstones give equal bytes.

    Raises:
        InvalidInputError: As :func:`encode_checkpoint`.
    """
    return _encode(_RETIRED, retired, f"tombstone of checkpoint {retired.checkpoint_id}")


def encode_floor(block: int) -> bytes:
    """The bytes of a floor marker. Its existence is what counts; nobody decodes it."""
    first, end = first_id_of_block(block), first_id_of_block(block + 1)
    return _seal(_FLOOR, b'  "block": %d,\n  "first_id": %d,\n  "last_id": %d' % (block, first, end - 1))


def encode_published(checkpoint_id: int) -> bytes:
    """The bytes of the mark that a checkpoint's files are visible. Its existence is what counts, as with the floor."""
    return _seal(_PUBLISHED, b'  "checkpoint_id": %d' % checkpoint_id)


def _encode(kind: bytes, value: Checkpoint | Retired, subject: str) -> bytes:
    try:
        data = _seal(kind, _members(value, 0))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(str(error), operation="encode", subject=subject) from error
    try:
        decoded = _decode(data, (kind,), subject)
    except CorruptDataError as error:
        raise InvalidInputError(error.message, operation="encode", subject=subject) from error
    if decoded != value:
        raise InvalidInputError(
            "it does not read back as what was written",
            operation="encode",
            subject=subject,
            hint="Use tuples for sequences, finite numbers for times, and the exact types of stateline.handles",
        )
    return data


def _seal(kind: bytes, members: bytes) -> bytes:
    body = b'{\n  "format": "%s",\n  "version": %d,\n%s' % (kind, _VERSION, members)
    return body + _TRAILER % crc32c(body)


def _members(value: msgspec.Struct, indent: int) -> bytes:
    """The members of an object, each on its line, without the braces and without a comma at the end."""
    start = b" " * (indent + 2)
    lines = [
        b'%s"%s": %s' % (start, name.encode(), _value(getattr(value, name), indent + 2))
        for name in value.__struct_fields__
    ]
    return b",\n".join(lines)


def _value(value: object, indent: int) -> bytes:
    if not isinstance(value, tuple) or not value:
        return _JSON.encode(value)
    start = b" " * (indent + 2)
    lines = [
        b"%s{\n%s\n%s}" % (start, _members(item, indent + 2), start)
        if isinstance(item, _BROKEN)
        else start + _JSON.encode(item)
        for item in value
    ]
    return b"[\n%s\n%s]" % (b",\n".join(lines), b" " * indent)


# -- decoding ---------------------------------------------------------------------------------------------------------


def decode_record(data: bytes, subject: str) -> Checkpoint | Retired:
    """What is in the slot of a checkpoint: the checkpoint, or the tombstone that replaced it.

    Args:
        data: All bytes of the object.
        subject: Its URL, for the error.

    Raises:
        CorruptDataError: The bytes are not what was written, or break a rule of the format.
        UnsupportedVersionError: A newer version wrote them.
    """
    return _decode(data, (_CHECKPOINT, _RETIRED), subject)


def decode_savepoint(data: bytes, subject: str) -> Checkpoint:
    """The checkpoint in a savepoint's ``_metadata``; arguments and errors as :func:`decode_record`."""
    decoded = _decode(data, (_SAVEPOINT,), subject)
    if not isinstance(decoded, Checkpoint):
        raise _corrupt("it is no savepoint", subject)
    return decoded


def _decode(data: bytes, kinds: tuple[bytes, ...], subject: str) -> Checkpoint | Retired:
    kind = _unseal(data, kinds, subject)
    try:
        document = _DECODERS[kind].decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _corrupt(f"its checksum is right but it is not a {kind.decode()} document: {error}", subject) from error
    decoded: Checkpoint | Retired
    try:
        if kind == _RETIRED:
            decoded = _without_envelope(document, Retired)
            complaint = _check_retired(decoded)
        else:
            decoded = _without_envelope(document, Checkpoint)
            complaint = _check_checkpoint(decoded)
    except InvalidInputError as error:
        raise _corrupt(str(error), subject) from error
    if complaint is not None:
        raise _corrupt(complaint, subject)
    return decoded


def _unseal(data: bytes, kinds: tuple[bytes, ...], subject: str) -> bytes:
    """Checks everything that holds for all documents and versions; returns the kind."""
    if len(data) > MAX_METADATA_BYTES:
        raise _corrupt(
            f"it has {len(data)} bytes, more than the {MAX_METADATA_BYTES} that a document may have", subject
        )
    header = _HEADER.match(data)
    if header is None:
        raise _corrupt("it does not begin as a document of Stateline (byte 0)", subject)
    end = len(data) - _TRAILER_BYTES
    if end < header.end() or data[end:] != _TRAILER % crc32c(data[:end]):
        raise _corrupt(f"its CRC32C is wrong, or it does not end with one (byte {max(end, 0)})", subject)
    if int(header[2]) > _VERSION:
        raise UnsupportedVersionError(
            f"it has format version {header[2].decode()}, this program reads up to {_VERSION}",
            operation="decode",
            subject=subject,
            hint="Upgrade Stateline",
        )
    if header[1] not in kinds:
        expected = " or ".join(kind.decode() for kind in kinds)
        raise _corrupt(f"it is a {header[1].decode()} document, not a {expected}", subject)
    return header[1]


def _without_envelope(document: msgspec.Struct, cls: type[T]) -> T:
    return cls(**{name: getattr(document, name) for name in cls.__struct_fields__})


def _corrupt(message: str, subject: str) -> CorruptDataError:
    return CorruptDataError(
        message,
        operation="decode",
        subject=subject,
        hint="Restore the object, or go on from another checkpoint or savepoint by an explicit choice",
    )


# -- rules ------------------------------------------------------------------------------------------------------------


def _check_checkpoint(checkpoint: Checkpoint) -> str | None:
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
    for name, state in checkpoint.states.items():
        complaint = _check_state(state, checkpoint.folder)
        if complaint is not None:
            return f"state {name!r}: {complaint}"
    return None


def _check_identity(checkpoint: Checkpoint) -> str | None:
    if not 0 <= checkpoint.checkpoint_id <= _MAX_ID:
        return f"the checkpoint id {checkpoint.checkpoint_id} is out of range"
    if not -1 <= checkpoint.batch_id <= _MAX_ID:
        return f"the batch id {checkpoint.batch_id} is out of range"
    if not checkpoint.query_id or not checkpoint.nonce:
        return "the query id or the nonce is empty"
    if not 0 <= checkpoint.created_at < _END_OF_TIME:
        return f"the time {checkpoint.created_at} is out of range"
    if checkpoint.watermark_us is not None and not -_MAX_COUNT - 1 <= checkpoint.watermark_us <= _MAX_COUNT:
        return f"the watermark {checkpoint.watermark_us} is out of range"
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
            check_object_name(run.name)
            if not _is_sound_run(run, checkpoint):
                return f"run {run.name} has a number that is out of range"
    if key_group != checkpoint.max_parallelism:
        return f"its subtasks cover {key_group} key groups of {checkpoint.max_parallelism}"
    return None


def _is_sound_run(run: RunHandle, checkpoint: Checkpoint) -> bool:
    return (
        0 <= run.tombstones <= run.rows <= _MAX_COUNT
        and 0 <= run.size <= _MAX_COUNT
        and 0 <= run.crc32c <= 0xFFFFFFFF
        and 0 <= run.first_key_group <= run.last_key_group < checkpoint.max_parallelism
        and -1 <= run.checkpoint_id <= checkpoint.checkpoint_id
    )


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
        check_object_name(rows.name)
        if min(rows.offset, rows.length, rows.rows) < 0 or not 0 <= rows.crc32c <= 0xFFFFFFFF:
            return f"pending rows in {rows.name} have a number that is out of range"
    if file.resume is None:
        return None
    if file.resume.target != file.target:
        return f"its resume point belongs to {file.resume.target}"
    return _check_point(file.resume)


def _check_point(point: CommitPoint) -> str | None:
    check_name(point.target)
    superseded = point.superseded if isinstance(point, ResumePoint) else ()
    for part in (*point.parts, *superseded):
        _check_part(part)
    if sum(part.length for part in point.parts) != point.length:
        return f"its pieces do not add up to {point.length} bytes"
    if not 0 <= point.crc32c <= 0xFFFFFFFF:
        return "its CRC32C is out of range"
    return None


def _check_part(part: Part) -> None:
    check_name(part.name)
    if part.container:
        check_name(part.container)
    if not 0 <= part.length <= _MAX_COUNT or not 0 <= part.crc32c <= 0xFFFFFFFF:
        raise InvalidInputError("a number is out of range", subject=f"piece {part.name}")


def _check_retired(retired: Retired) -> str | None:
    if not 0 <= retired.checkpoint_id <= _MAX_ID:
        return f"the checkpoint id {retired.checkpoint_id} is out of range"
    if not 0 <= retired.created_at < _END_OF_TIME:
        return f"the time {retired.created_at} is out of range"
    for name in retired.delete:
        check_object_name(name)
    for parts in retired.discard.values():
        for part in parts:
            _check_part(part)
    return None
