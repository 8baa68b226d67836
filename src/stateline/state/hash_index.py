"""Which hashes are surely not among those of some rows, and about where the others are: far sooner than by a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from stateline.state.columns import Rows
from stateline.state.keys import Hashes

__all__ = ["HashIndex"]

_BITS_PER_ROW: Final = 4
"""At least; at most twice as many. One in five to nine of the hashes that are not there is possible all the same."""

_SET_BITS: Final = np.array([byte.bit_count() for byte in range(256)], dtype=np.int64)


class HashIndex:
    """Where hashes may be among those of some rows, without a look at these.

    A bit for each of equal ranges of hashes says whether any row is there, and a number for each byte of bits how many
    rows lie before it. Within a part hashes are uniform, so few ranges have two rows, and the bits of the byte tell the
    rest of the way. Parts may be of different density.

    Args:
        parts: One or more, not empty; all their hashes ascend.
    """

    __slots__ = ("_marks", "_rows", "_shifts", "_zeros")

    def __init__(self, parts: Sequence[Hashes]) -> None:
        marked, counted, shifts, zeros = [], [], [], []
        dtype = np.min_scalar_type(max(map(len, parts)))
        begin = 0
        for part in parts:  # One by one each fits into the cache.
            span = int(part[-1] - part[0])
            shift = max((span // (_BITS_PER_ROW * len(part))).bit_length() - 1, 0)
            zero = int(part[0]) >> shift
            bits = ((part >> np.uint64(shift)) - np.uint64(zero)).view(np.int64)
            marks = np.zeros((span >> shift) // 8 * 8 + 16, dtype=np.bool_)  # The last byte is for hashes behind all.
            marks[bits] = True
            marked.append(np.packbits(marks, bitorder="little"))
            counts = np.bincount(bits >> 3, minlength=len(marked[-1]))
            counted.append((counts.cumsum() - counts).astype(dtype))
            shifts.append(shift)
            zeros.append((begin - zero) % (1 << 64))
            begin += len(marks)
        self._marks = np.concatenate(marked)
        self._rows = np.concatenate(counted)
        self._shifts = np.array(shifts, dtype=np.uint64)
        self._zeros = np.array(zeros, dtype=np.uint64)

    def possible(self, hashes: Hashes, counts: Rows) -> tuple[Rows, Rows]:
        """Those of ascending hashes that may be there, and about where.

        Args:
            hashes: None is below the first one of all parts.
            counts: How many of them belong to each part: they reach from its first hash up to that of the next part.

        Returns:
            Numbers of hashes, and for each the number of a row of its part, from which on its first row is found. That
            is nearly always this row or the next one. It may lie behind the part where the hash is not there.
        """
        bits = ((hashes >> np.repeat(self._shifts, counts)) + np.repeat(self._zeros, counts)).view(np.int64)
        places, bits_inside = bits >> 3, bits.astype(np.uint8) & np.uint8(7)
        marks = self._marks.take(places, mode="clip")
        # As bools, because numpy finds those four times as fast.
        possible = np.flatnonzero(((marks >> bits_inside) & np.uint8(1)).view(np.bool_))
        lower = marks.take(possible) & ((np.uint8(1) << bits_inside.take(possible)) - np.uint8(1))
        return possible, self._rows.take(places.take(possible), mode="clip") + _SET_BITS.take(lower)
