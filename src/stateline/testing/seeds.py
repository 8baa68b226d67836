"""Draws that depend on a seed and on nothing else.

Every choice comes from a :class:`Dice` that is named by what it is for. So a draw that is added in one place changes
none in another, and ``PYTHONHASHSEED``, wall clocks and addresses change nothing.

Facts:
- Python keeps the sequence of ``Random(n).random()`` for an integer seed over its versions, and promises so; it does
  not promise it for ``choice`` or ``shuffle``. So only ``random()`` is used, and a seed in a bug report stays good.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from random import Random  # noqa: TID251 - the one seeded generator
from typing import TypeVar

__all__ = ["Dice", "derive_seed"]

T = TypeVar("T")


def derive_seed(*path: int | str) -> int:
    """A 64-bit seed for the purpose that ``path`` names, equal on every machine and in every process."""
    text = "\x1f".join(str(part) for part in path)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class Dice:
    """A seeded generator.

    Args:
        path: What the draws are for, such as ``(seed, "faults")``.
    """

    def __init__(self, *path: int | str) -> None:
        self._random = Random(derive_seed(*path)).random  # noqa: S311 - no secret is made here

    def fraction(self) -> float:
        """A number in ``[0, 1)``."""
        return self._random()

    def chance(self, probability: float) -> bool:
        """``True`` with that probability."""
        return self._random() < probability

    def below(self, bound: int) -> int:
        """A whole number in ``[0, bound)``."""
        return int(self._random() * bound)

    def pick(self, items: Sequence[T]) -> T:
        """One of ``items``, which must not be empty."""
        return items[int(self._random() * len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """``items`` in a random order."""
        result = list(items)
        for last in range(len(result) - 1, 0, -1):
            other = int(self._random() * (last + 1))
            result[last], result[other] = result[other], result[last]
        return result

    def log_uniform(self, low: float, high: float) -> float:
        """A number in ``[low, high)`` whose logarithm is uniform: small rates are as likely as large ones."""
        return low * math.exp(self._random() * math.log(high / low))
