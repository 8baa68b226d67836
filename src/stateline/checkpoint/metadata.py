"""The bytes of ``_metadata``: JSON documents that a person can read and a program can trust.

Format: every document has the envelope that :mod:`stateline.checkpoint.envelope` specifies (``format`` and ``version``
first, ``crc32c`` last). Between them:

| ``format`` | members |
|---|---|
| ``stateline.checkpoint`` | the fields of :class:`stateline.checkpoint.api.Checkpoint` and of the handles in it |
| ``stateline.savepoint`` | the same; names are relative to the folder of the document |
| ``stateline.retired`` | the fields of :class:`Retired` |
| ``stateline.floor`` | ``block``, ``first_id``, ``last_id`` (inclusive) |
| ``stateline.published`` | ``checkpoint_id`` |
| ``stateline.claimed`` | ``owner`` |

The layout between the members is made for reading, one run or file on a line, and may change. Unknown members are
refused, because a reader that skipped one would restore half a state; so a new member means a new version. So is a
member that comes twice, of which readers of JSON take whichever they like.

What is decoded is also checked (``rules``). What is encoded is decoded again before it is returned, so a record that no
reader would take is never published.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from stateline.checkpoint.api import (
    Checkpoint,
    DeliveryState,
    OperatorState,
    OutputState,
    SubtaskState,
)
from stateline.checkpoint.envelope import corrupt, seal, unseal
from stateline.checkpoint.layout import check_object_name, first_id_of_block
from stateline.checkpoint.rules import check_checkpoint, check_position
from stateline.errors import CorruptDataError, InvalidInputError

__all__ = [
    "Retired",
    "check_mark",
    "decode_claim",
    "decode_record",
    "decode_savepoint",
    "encode_checkpoint",
    "encode_claim",
    "encode_floor",
    "encode_published",
    "encode_retired",
    "encode_savepoint",
]

_CHECKPOINT: Final = b"stateline.checkpoint"
_SAVEPOINT: Final = b"stateline.savepoint"
_RETIRED: Final = b"stateline.retired"
_FLOOR: Final = b"stateline.floor"
_PUBLISHED: Final = b"stateline.published"
_CLAIMED: Final = b"stateline.claimed"


class Retired(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tombstone of a checkpoint: keeps its slot taken, and remembers what is to be deleted with it.

    Attributes:
        checkpoint_id: The slot.
        query_id: Of the checkpoint that was retired; empty where its record could not be read.
        nonce: Of that checkpoint.
        created_at: Of that checkpoint.
        delete: Objects of the root that it reached and its successor does not, to be deleted by exact name.
    """

    checkpoint_id: int
    query_id: str = ""
    nonce: str = ""
    created_at: float = 0.0
    delete: tuple[str, ...] = ()


class _Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    owner: str


_JSON: Final = msgspec.json.Encoder()
_DECODERS: Final[dict[bytes, msgspec.json.Decoder[Any]]] = {
    _CHECKPOINT: msgspec.json.Decoder(Checkpoint),
    _SAVEPOINT: msgspec.json.Decoder(Checkpoint),
    _RETIRED: msgspec.json.Decoder(Retired),
    _CLAIMED: msgspec.json.Decoder(_Claim),
}
_BROKEN: Final = (OperatorState, SubtaskState, OutputState, DeliveryState)
"""Values whose members get lines of their own; every other value is written on one line."""


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The bytes of a checkpoint's record, checked by reading them back.

    Raises:
        InvalidInputError: The checkpoint breaks a rule of the format or is too large; the message says which.
    """
    return _encode(_CHECKPOINT, checkpoint, f"checkpoint {checkpoint.checkpoint_id}")


def encode_savepoint(checkpoint: Checkpoint) -> bytes:
    """The bytes of a savepoint's ``_metadata``, whose names are relative to its folder; as for a checkpoint."""
    return _encode(_SAVEPOINT, checkpoint, f"savepoint of checkpoint {checkpoint.checkpoint_id}")


def encode_retired(retired: Retired) -> bytes:
    """The bytes of a tombstone; as :func:`encode_checkpoint`."""
    return _encode(_RETIRED, retired, f"tombstone of checkpoint {retired.checkpoint_id}")


def encode_floor(block: int) -> bytes:
    """The bytes of a floor marker. Its existence is what counts; nobody decodes it."""
    first, end = first_id_of_block(block), first_id_of_block(block + 1)
    return seal(_FLOOR, b'  "block": %d,\n  "first_id": %d,\n  "last_id": %d' % (block, first, end - 1))


def encode_published(checkpoint_id: int) -> bytes:
    """The bytes of the mark that a checkpoint's files are visible. Its existence is what counts, as with the floor."""
    return seal(_PUBLISHED, b'  "checkpoint_id": %d' % checkpoint_id)


def encode_claim(owner: str) -> bytes:
    """The bytes of the mark that a savepoint has an owner; equal owners give equal bytes."""
    return seal(_CLAIMED, b'  "owner": %s' % _JSON.encode(owner))


_EXACT_TYPES: Final = "Use tuples for sequences, finite numbers for times, and the exact types of stateline.handles"


def _encode(kind: bytes, value: Checkpoint | Retired, subject: str) -> bytes:
    try:
        data = seal(kind, _members(value, 0))
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(str(error), operation="encode", subject=subject, hint=_EXACT_TYPES) from error
    try:
        decoded, _ = _decode(data, (kind,), subject)
    except CorruptDataError as error:
        raise InvalidInputError(error.message, operation="encode", subject=subject, hint=_EXACT_TYPES) from error
    if decoded != value:
        raise InvalidInputError("does not read back equal", operation="encode", subject=subject, hint=_EXACT_TYPES)
    return data


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
    if isinstance(value[0], _BROKEN):
        lines = b",\n".join(b"%s{\n%s\n%s}" % (start, _members(item, indent + 2), start) for item in value)
    else:
        # One call for all of them; a line feed inside a string is escaped, so each one that is found ends an item.
        # A list, because of anything else msgspec 0.22 never gives back the iterator.
        lines = start + _JSON.encode_lines(list(value))[:-1].replace(b"\n", b",\n" + start)
    return b"[\n%s\n%s]" % (lines, b" " * indent)


def decode_record(data: bytes, subject: str) -> Checkpoint | Retired:
    """What is in the slot of a checkpoint: the checkpoint, or the tombstone that replaced it.

    Args:
        data: All bytes of the object.
        subject: Its URL, for the error.

    Raises:
        CorruptDataError: The bytes are not what was written, or break a rule of the format.
        UnsupportedVersionError: A newer version wrote them.
    """
    decoded, body = _decode(data, (_CHECKPOINT, _RETIRED), subject)
    _check_no_member_twice(body, decoded, subject)
    return decoded


def decode_savepoint(data: bytes, subject: str) -> Checkpoint:
    """The checkpoint in a savepoint's ``_metadata``; arguments and errors as :func:`decode_record`."""
    decoded, body = _decode(data, (_SAVEPOINT,), subject)
    if not isinstance(decoded, Checkpoint):
        raise corrupt("is not a savepoint", subject)
    _check_no_member_twice(body, decoded, subject)
    return decoded


def decode_claim(data: bytes, subject: str) -> str:
    """The owner in a claim; arguments and errors as :func:`decode_record`."""
    _, claim, body = _document(data, (_CLAIMED,), subject)
    _refuse_member_twice(body, subject)
    owner: str = claim.owner
    return owner


def check_mark(data: bytes, written: bytes, subject: str) -> None:
    """Compares a floor marker, or the mark that files are visible, with what was written; only ``verify`` does.

    Raises:
        CorruptDataError: They differ.
        UnsupportedVersionError: A newer version wrote it.
    """
    unseal(data, (_FLOOR, _PUBLISHED), subject)
    if data != written:
        raise corrupt("its checksum is right but it is not the mark that its name says", subject)


def _decode(data: bytes, kinds: tuple[bytes, ...], subject: str) -> tuple[Checkpoint | Retired, bytes]:
    """The value of a document, checked, and its members as a JSON object."""
    kind, decoded, body = _document(data, kinds, subject)
    try:
        complaint = _check_retired(decoded) if kind == _RETIRED else check_checkpoint(decoded)
    except InvalidInputError as error:
        raise corrupt(str(error), subject) from error
    if complaint is not None:
        raise corrupt(complaint, subject)
    return decoded, body


def _document(data: bytes, kinds: tuple[bytes, ...], subject: str) -> tuple[bytes, Any, bytes]:
    """The kind of a document, what it says, and its members as a JSON object."""
    kind, members = unseal(data, kinds, subject)
    body = b"{%s}" % members
    try:
        return kind, _DECODERS[kind].decode(body), body
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise corrupt(f"its checksum is right but it is not a {kind.decode()} document: {error}", subject) from error


def _check_no_member_twice(body: bytes, decoded: Checkpoint | Retired, subject: str) -> None:
    """Refuses an object with two members of one name.

    Nearly every document is, but for its white space, what this program writes, which takes a tenth of the time to see.
    """
    if msgspec.json.format(body, indent=-1) != _JSON.encode(decoded):
        _refuse_member_twice(body, subject)


def _refuse_member_twice(body: bytes, subject: str) -> None:
    def check(pairs: list[tuple[str, object]]) -> None:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            twice = next(name for at, name in enumerate(names) if name in names[:at])
            raise corrupt(f"its checksum is right but a member {twice!r} comes twice in one object", subject)

    json.loads(body, object_pairs_hook=check)


def _check_retired(retired: Retired) -> str | None:
    """The first rule that a tombstone breaks; ``None`` for none. A bad name is refused by an error."""
    for name in retired.delete:
        check_object_name(name)
    return check_position(retired.checkpoint_id, retired.created_at)
