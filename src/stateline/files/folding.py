"""Which waiting rows are stored again, in longer pieces. Pure.

Each task of each micro-batch leaves a piece for each open file, and the record names all of them. A file may stay open
for weeks, so without folding a record would grow with the number of batches.

Pieces of 256 KiB and more stay as they are. The objects of the others are put into tiers by the mean length of such
pieces, each tier 16 times as long as the one before. A tier with 16 objects is folded: the pieces that a file has in
them become one. So a file has a piece for each 256 KiB and a few dozen more, and a byte is stored again at most once in
a tier: about three times, for rows of a few hundred bytes a batch.
"""

from __future__ import annotations

from collections.abc import Iterable

from stateline.handles import RowsHandle
from stateline.sizes import sizes

__all__ = ["is_short", "objects_to_fold"]


def is_short(handle: RowsHandle) -> bool:
    """Whether a piece is short enough to be stored again."""
    return handle.length < sizes().waiting_short_bytes


def objects_to_fold(handles: Iterable[RowsHandle]) -> list[frozenset[str]]:
    """Names of objects whose short pieces are to be joined, file by file; those of one set with one another.

    Args:
        handles: The pieces of all open files that are in objects, as the newest record names them.

    Returns:
        The objects of the lowest full tier; nothing where none is full.
    """
    lengths: dict[str, list[int]] = {}
    for handle in filter(is_short, handles):
        lengths.setdefault(handle.name, []).append(handle.length)
    tiers: dict[int, list[str]] = {}
    for name, found in lengths.items():
        tiers.setdefault((sum(found) // len(found)).bit_length() // 4, []).append(name)
    for _, names in sorted(tiers.items()):
        if len(names) >= sizes().waiting_objects:
            step = sizes().waiting_objects_at_once
            return [frozenset(names[at : at + step]) for at in range(0, len(names), step)]
    return []
