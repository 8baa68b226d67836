"""Which pieces of a file are blocks on Azure, and which are blobs that become blocks: pure rules.

The facts they rely on are in :mod:`stateline.blob.azure`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from stateline.blob.names import not_staged
from stateline.errors import InvalidInputError
from stateline.handles import Part

__all__ = ["check_count", "fits_one_put", "is_block", "recalled", "remembered", "runs_of"]

_BLOCK: Final = re.compile("[0-9a-f]{32}")
"""Names of pieces that are blocks: their ids."""

_BLOCKS_MAX: Final = 50_000
_JOINED_BYTES_MAX: Final = 16 * 1024 * 1024


def is_block(part: Part) -> bool:
    """Whether a piece is an uncommitted block of its target, and not a blob of its own."""
    return _BLOCK.fullmatch(part.name) is not None


def fits_one_put(pieces: Sequence[Part]) -> bool:
    """Whether the pieces are blobs that are read and sent as one, with no blocks."""
    return sum(part.length for part in pieces) <= _JOINED_BYTES_MAX and not any(map(is_block, pieces))


def runs_of(pieces: Sequence[Part]) -> list[list[Part]]:
    """The pieces in order: each block by itself, and short pieces together as long as they stay short."""
    runs: list[list[Part]] = []
    size = 0
    for part in pieces:
        size += part.length
        if not runs or is_block(part) or is_block(runs[-1][-1]) or size > _JOINED_BYTES_MAX:
            runs.append([])
            size = part.length
        runs[-1].append(part)
    return runs


def check_count(operation: str, target: str, runs: Sequence[Sequence[Part]]) -> None:
    """Refuses what has more blocks than a blob may have."""
    if len(runs) > _BLOCKS_MAX:
        raise InvalidInputError(
            f"must have at most {_BLOCKS_MAX} blocks, got {len(runs)} blocks",
            operation=operation,
            subject=target,
            hint="Write smaller files, or give the writer a larger chunk_size",
        )


def remembered(part: Part) -> Part:
    """A short piece whose bytes are in a block: a part without bytes, to be discarded with the others."""
    return Part(name=part.name, length=0, crc32c=0, version=f"{part.length} {part.crc32c}")


def recalled(part: Part) -> Part:
    """The short piece that :func:`remembered` was given."""
    length, _, checksum = part.version.partition(" ")
    if not (length.isdecimal() and checksum.isdecimal()):
        raise not_staged(part.name, "does not name a short piece")
    return Part(name=part.name, length=int(length), crc32c=int(checksum))
