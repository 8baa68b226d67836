"""What staged pieces are called on Cloud Storage, where they lie at the root of a bucket and not below a store's root.

Other writers of recoverable files use this layout, too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

from stateline.blob.checksum import crc32c
from stateline.blob.names import STAGING_PREFIX, not_staged
from stateline.handles import Part

__all__ = ["check_staged", "is_entropy_folder", "staging_key"]

_KEY_BYTES_MAX: Final = 1024
_STAGED: Final = re.compile(
    r"(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})?" + re.escape(STAGING_PREFIX) + "(?:[0-9a-f]{2}/)?"
)
"""How staged names begin; a leading UUID is how other writers add entropy, and no bucket has a name of two letters."""

_ENTROPY: Final = re.compile(re.escape(STAGING_PREFIX) + "[0-9a-f]{2}/")


def staging_key(bucket: str, prefix: str, key: str, leaf: str, *, entropy: bool) -> str:
    """The key of a piece of the object ``key``, which lies below ``prefix`` in ``bucket``."""
    digits = f"{crc32c(leaf.encode()) & 0xFF:02x}/" if entropy else ""
    name = f"{STAGING_PREFIX}{digits}{bucket}/{key}/{leaf}"
    if len(name.encode()) <= _KEY_BYTES_MAX:
        return name
    root = f"{prefix}/" if prefix else ""
    return f"{STAGING_PREFIX}{digits}{bucket}/{root}{_digest(key)}/{leaf}"


def check_staged(parts: Iterable[Part], root: str, key: str | None = None) -> None:
    """Refuses what staging did not make here: names say which file a piece is of, and a piece is found from anywhere.

    Args:
        parts: The pieces.
        root: Bucket and prefix of the store, with a slash at the end.
        key: The key of the only object that they may be pieces of.

    Raises:
        InvalidInputError: It is not the name of a staged piece, or one of another root or object.
    """
    own = None if key is None else {f"{root.partition('/')[0]}/{key}", f"{root}{_digest(key)}"}
    for part in parts:
        staged = _STAGED.match(part.name)
        folder = "" if staged is None else part.name[staged.end() :].rpartition("/")[0]
        if not part.container or not f"{folder}/".startswith(root) or (own is not None and folder not in own):
            raise not_staged(part.name, f"is not the name of a staged piece of {key or 'this store'}")


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def is_entropy_folder(folder: str) -> bool:
    """Whether a folder holds pieces whose names begin with random digits."""
    return _ENTROPY.fullmatch(folder) is not None
