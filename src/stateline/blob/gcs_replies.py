"""What Cloud Storage says of its objects, and of requests that it refuses."""

from __future__ import annotations

import base64
from typing import Any, Final

from stateline.blob.api import ObjectInfo
from stateline.handles import Part

__all__ = ["NONCE", "object_info", "part_of", "text_of", "url_of"]

NONCE: Final = "stateline-nonce"
"""Under which an object keeps the nonce of its writer."""

_TEXT_LENGTH_MAX: Final = 200


def text_of(response: Any) -> str:
    """What an answer of the service says: its status, and the message in its body."""
    try:
        text = str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):  # From some other server, such as a proxy.
        text = response.text
    line = text.strip().partition("\n")[0][:_TEXT_LENGTH_MAX]
    return f"{response.status_code} {response.reason}" + (f": {line}" if line else "")


def url_of(container: str, key: str) -> str:
    """Where an object is, wherever a store's root may be."""
    return f"gs://{container}/{key}"


def object_info(blob: Any) -> ObjectInfo:
    """What the service says about one object. It may leave out what is zero: a size, and the CRC32C of no bytes."""
    checksum = int.from_bytes(base64.b64decode(blob.crc32c or ""), "big")
    if blob.size is None and checksum:
        raise ValueError("bytes without a size")
    return ObjectInfo(
        name=blob.name,
        size=int(blob.size or 0),
        modified_at=blob.updated.timestamp(),
        crc32c=checksum if blob.crc32c or not blob.size else None,
        version=str(blob.generation),
        nonce=(blob.metadata or {}).get(NONCE, ""),
        container=blob.bucket.name,
    )


def part_of(made: ObjectInfo) -> Part:
    """The piece that an object is."""
    return Part(
        name=made.name, length=made.size, crc32c=made.crc32c or 0, version=made.version, container=made.container
    )
