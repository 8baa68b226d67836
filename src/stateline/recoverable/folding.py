"""Which small pieces to merge into the next one, so that their number and the rewriting both stay bounded.

Every ``persist`` must make the bytes since the last one durable, and a store can only add whole pieces. Left alone, a
file would collect one piece per persist; merged each time, its tail would be rewritten over and over. So pieces are
merged as the sorted runs of a log-structured tree are: small ones have a *tier*, the logarithm of their length to the
base :data:`PIECES_PER_TIER`, and a new piece absorbs those before it

- that have a lower tier than it has (they would be out of order), and
- that have its own tier, once it would be the :data:`PIECES_PER_TIER`-th of that tier. Then it rises to the next one.

From it follow, for pieces shorter than ``fold_bytes`` (longer ones are never touched again):

- at most ``PIECES_PER_TIER - 1`` of them in each tier, and at most :func:`tier_count` tiers;
- a byte is written again only when its tier rises: at most :func:`tier_count` times. The lowest tier is the exception:
  what is smaller than :data:`LOWEST_TIER_BYTES` may be rewritten as often as it is cheaper than the request itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["LOWEST_TIER_BYTES", "PIECES_PER_TIER", "pieces_to_fold", "tier_count"]

PIECES_PER_TIER: Final = 4
"""So many pieces of one tier become one of the next."""

LOWEST_TIER_BYTES: Final = 64 * 1024
"""Everything smaller is of tier 0: sending so few bytes costs less than the request that carries them."""


def pieces_to_fold(lengths: Sequence[int], new_bytes: int, fold_bytes: int) -> int:
    """How many pieces at the end of ``lengths`` the next piece should absorb.

    Args:
        lengths: Bytes of the small pieces at the end of the file, in order; each below ``fold_bytes``.
        new_bytes: Bytes that no piece holds yet.
        fold_bytes: A piece at least so long is never merged again, so it leaves no small piece before it.
    """
    merged, folded = new_bytes, 0
    while folded < len(lengths):
        if merged >= fold_bytes:
            return len(lengths)
        rest = lengths[: len(lengths) - folded]
        tier = _tier(merged)
        smaller = _trailing(rest, tier - 1)
        not_larger = _trailing(rest, tier)
        absorbed = not_larger if not_larger - smaller >= PIECES_PER_TIER - 1 else smaller
        if absorbed == 0:
            break
        merged += sum(rest[len(rest) - absorbed :])
        folded += absorbed
    return folded


def tier_count(fold_bytes: int) -> int:
    """How many tiers the pieces shorter than ``fold_bytes`` can have."""
    return _tier(max(fold_bytes - 1, 0)) + 1


def _tier(length: int) -> int:
    tier, bound = 0, LOWEST_TIER_BYTES
    while length >= bound:
        tier += 1
        bound *= PIECES_PER_TIER
    return tier


def _trailing(lengths: Sequence[int], tier: int) -> int:
    """How many pieces at the end have at most this tier."""
    count = 0
    while count < len(lengths) and _tier(lengths[-1 - count]) <= tier:
        count += 1
    return count
