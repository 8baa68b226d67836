"""What staged pieces are called on Cloud Storage, where they lie at the root of a bucket and not below a store's root.

Owns one layout, which is shared with other writers of recoverable files. Does not own requests.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from stateline.blob.checksum import crc32c
from stateline.blob.names import STAGING_PREFIX
from stateline.errors import InvalidInputError
from stateline.handles import Part

__all__ = ["check_staged", "is_entropy_folder", "staging_key"]

_KEY_BYTES_MAX: Final = 1024
_STAGED: Final = re.compile(r"(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})?" + re.escape(STAGING_PREFIX))
"""Staged names; a leading UUID is how other writers add entropy."""

_ENTROPY: Final = re.compile(re.escape(STAGING_PREFIX) + "[0-9a-f]{2}/")


def staging_key(bucket: str, prefix: str, key: str, leaf: str, *, entropy: bool) -> str:
    """The key of a piece of the object ``key``, which lies below ``prefix`` in ``bucket``."""
    digits = f"{crc32c(leaf.encode()) & 0xFF:02x}/" if entropy else ""
    name = f"{STAGING_PREFIX}{digits}{bucket}/{key}/{leaf}"
    if len(name.encode()) <= _KEY_BYTES_MAX:
        return name
    digest = hashlib.sha256(key.encode()).hexdigest()[:32]
    root = f"{prefix}/" if prefix else ""
    return f"{STAGING_PREFIX}{digits}{bucket}/{root}{digest}/{leaf}"


def check_staged(part: Part) -> None:
    """Refuses what staging did not make.

    Raises:
        InvalidInputError: It is not the name of a staged piece.
    """
    if not part.container or _STAGED.match(part.name) is None:
        raise InvalidInputError(
            "it is not the name of a staged piece",
            operation="staged piece",
            subject=part.name,
            hint="The point was damaged or belongs to another store",
        )


def is_entropy_folder(folder: str) -> bool:
    """Whether a folder holds pieces whose names begin with random digits."""
    return _ENTROPY.fullmatch(folder) is not None
