"""Which hashes are surely not among those of some rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from stateline.state.columns import Rows
from stateline.state.keys import Hashes

__all__ = ["HashFilter"]

_FILTER_BITS: Final = 4
"""Bits for each row, at least; at most twice as many. One in five to nine of the hashes that are not there passes."""


class HashFilter:
    """Tells most of the hashes that are **not** among those of some rows, far sooner than a search for them.

    A bit for each of equal ranges of hashes says whether any is there. Within a part hashes are uniform, so few ranges
    have two; the parts may be of different density.

    Args:
        parts: One or more, not empty; all their hashes ascend.
    """

    __slots__ = ("_marks", "_shifts", "_zeros")

    def __init__(self, parts: Sequence[Hashes]) -> None:
        marked, shifts, zeros = [], [], []
        bits = 0
        for part in parts:
            span = int(part[-1] - part[0])
            shift = max((span // (_FILTER_BITS * len(part))).bit_length() - 1, 0)
            marks = np.zeros((span >> shift) // 8 * 8 + 16, dtype=np.bool_)
            zero = int(part[0]) >> shift
            marks[((part >> np.uint64(shift)) - np.uint64(zero)).view(np.int64)] = True
            marked.append(np.packbits(marks, bitorder="little"))
            shifts.append(shift)
            zeros.append((bits - zero) % (1 << 64))
            bits += len(marks)
        self._marks = np.concatenate(marked)
        self._shifts = np.array(shifts, dtype=np.uint64)
        self._zeros = np.array(zeros, dtype=np.uint64)

    def passed(self, hashes: Hashes, counts: Rows) -> Rows:
        """Those of ascending hashes, by number, that may be there; ``counts`` of them belong to each part."""
        bits = (hashes >> np.repeat(self._shifts, counts)) + np.repeat(self._zeros, counts)
        marks = self._marks.take((bits >> np.uint64(3)).view(np.int64), mode="clip")
        passed = (marks >> (bits.astype(np.uint8) & np.uint8(7))) & np.uint8(1)
        return np.flatnonzero(passed.view(np.bool_))  # Numpy looks for those of bools four times as fast.
