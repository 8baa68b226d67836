r"""The envelope of every JSON document below a root: what it is, and proof that it is whole.

Format::

    {\n
      "format": "stateline.checkpoint",\n      which document
      "version": 1,\n
      ...members of the document, one JSON member after the other...
      "crc32c": "0a1b2c3d"\n                   exactly eight lower-case hexadecimal digits
    }\n

- The bytes are UTF-8 JSON. The two first members (the *header*, up to and including the line feed after the version)
  and the last one (the *trailer*, the 27 bytes from the comma before ``crc32c`` to the end) have exactly this layout
  in every version of every document.
- The CRC32C covers all bytes before the trailer. So every byte is held: by the CRC or by being fixed.
- Nothing follows the trailer. A document has at most :data:`MAX_METADATA_BYTES`.
- A newer version number is refused by name, but only once the CRC has shown that the number is not a flipped bit.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec

from stateline.blob.checksum import crc32c
from stateline.errors import CorruptDataError, UnsupportedVersionError

__all__ = ["MAX_METADATA_BYTES", "corrupt", "decode_value", "seal", "unseal"]

T = TypeVar("T")

MAX_METADATA_BYTES: Final = 64 * 1024 * 1024
"""Some 350,000 runs. What is larger is refused before it is parsed, and before it is written."""

_VERSION: Final = 1
_HEADER: Final = re.compile(rb'\{\n  "format": "([a-z.]{1,40})",\n  "version": ([1-9][0-9]{0,8}),\n')
_TRAILER: Final = b',\n  "crc32c": "%08x"\n}\n'
_TRAILER_BYTES: Final = len(_TRAILER % 0)


def seal(kind: bytes, members: bytes) -> bytes:
    """A document of one kind, such as ``b"stateline.checkpoint"``, with these members: JSON, separated by commas."""
    body = b'{\n  "format": "%s",\n  "version": %d,\n%s' % (kind, _VERSION, members)
    return body + _TRAILER % crc32c(body)


def unseal(data: bytes, kinds: tuple[bytes, ...], subject: str) -> tuple[bytes, bytes]:
    """Checks what holds for all documents and versions; returns the kind, one of ``kinds``, and the members.

    Raises:
        CorruptDataError: It is damaged, too large, or a document of another kind.
        UnsupportedVersionError: A newer version wrote it.
    """
    if len(data) > MAX_METADATA_BYTES:
        raise corrupt(f"must have at most {MAX_METADATA_BYTES} bytes, got {len(data)}", subject)
    header = _HEADER.match(data)
    if header is None:
        raise corrupt("does not begin as a document of Stateline (byte 0)", subject)
    end = len(data) - _TRAILER_BYTES
    if end < header.end() or data[end:] != _TRAILER % crc32c(data[:end]):
        raise corrupt(f"its CRC32C is wrong, or it does not end with one (byte {max(end, 0)})", subject)
    if int(header[2]) > _VERSION:
        raise UnsupportedVersionError(
            f"cannot read format version {header[2].decode()}: this program reads up to {_VERSION}",
            operation="decode",
            subject=subject,
            hint="Upgrade Stateline",
        )
    if header[1] not in kinds:
        expected = " or ".join(kind.decode() for kind in kinds)
        raise corrupt(f"expected a {expected} document, got a {header[1].decode()}", subject)
    return header[1], data[header.end() : end]


def decode_value(data: bytes | str, kind: type[T], what: str, subject: str) -> T:
    """A JSON value of a type, inside of a document, called ``what`` in the :class:`CorruptDataError` of another one."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise corrupt(f"{what} cannot be read: {error}", subject) from error


def corrupt(message: str, subject: str) -> CorruptDataError:
    """The error of a document that cannot be used."""
    return CorruptDataError(
        message,
        operation="decode",
        subject=subject,
        hint="Restore the object, or go on from another checkpoint or savepoint by an explicit choice",
    )
