"""Columns put together from rows of many arrays, without a loop over rows or arrays."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateline.state.columns import Mask, Rows, fixed_words, from_words, take, valid_mask, word_type
from stateline.state.widths import concat

__all__ = ["Piece", "Places", "Scattered", "gather", "one_stretch"]

_ROWS_BITS: Final = 40
"""No array has so many rows that their numbers take more bits."""


@dataclasses.dataclass(frozen=True, slots=True)
class Places:
    """Rows of several arrays: first those of the first array, then those of the next one.

    Attributes:
        rows: Their numbers, each within its array.
        ends: Where the rows of each array end in ``rows``.
    """

    rows: Rows
    ends: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, chosen: Rows) -> Places:
        """Those numbered, ascending."""
        return Places(self.rows.take(chosen), chosen.searchsorted(self.ends))

    def each(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """For each row the number that belongs to its array."""
        counts = self.ends.copy()
        counts[1:] -= self.ends[:-1]
        return numbers.repeat(counts)

    def distinct(self) -> tuple[Places, Rows]:
        """Each place once, ascending; and for each of these places its number among the distinct ones."""
        numbers = self.each(np.arange(len(self.ends)) << _ROWS_BITS) + self.rows
        once, which = np.unique(numbers, return_inverse=True)
        ends = once.searchsorted(np.arange(1, len(self.ends) + 1) << _ROWS_BITS)
        return Places(once & ((1 << _ROWS_BITS) - 1), ends), which

    def by_array(self) -> Iterator[tuple[int, slice]]:
        """The numbers of the arrays that have rows here, and where these are."""
        for number, (first, end) in enumerate(itertools.pairwise([0, *self.ends.tolist()])):
            if first < end:
                yield number, slice(first, end)


def one_stretch(
    starts: Sequence[int], lengths: Sequence[int], dtype: npt.DTypeLike, owner: Any
) -> tuple[npt.NDArray[Any], Rows] | None:
    """Arrays of one type seen as one array, and where each begins in it; ``None`` if they lie no whole items apart.

    It reaches from the first of them in memory to the last; what lies between them is not theirs, and never looked at.

    Args:
        starts: Their addresses.
        lengths: Their items.
        dtype: The type of these.
        owner: What keeps them in memory.
    """
    width = np.dtype(dtype).itemsize
    low = min(starts)
    firsts, uneven = np.divmod(np.array(starts, dtype=np.int64) - low, width)
    if uneven.any():
        return None
    size = max(start + length * width for start, length in zip(starts, lengths, strict=True)) - low
    return np.frombuffer(pa.foreign_buffer(low, size, base=owner), dtype=dtype), firsts


class Scattered:
    """One column in several arrays, of which rows are taken at once wherever they lie.

    Args:
        arrays: One or more.
    """

    __slots__ = ("_arrays", "_has_nulls", "_stretch")

    def __init__(self, arrays: Sequence[pa.Array]) -> None:
        self._arrays = arrays
        self._has_nulls = any(array.null_count for array in arrays)
        kind = arrays[0].type
        dtype = word_type(kind)
        self._stretch: tuple[npt.NDArray[Any], Rows] | None = None
        if dtype is not None and all(array.type == kind for array in arrays):
            width = kind.byte_width
            starts = [array.buffers()[1].address + array.offset * width for array in arrays]
            self._stretch = one_stretch(starts, list(map(len, arrays)), dtype, arrays)

    def words(self, places: Places) -> npt.NDArray[Any] | None:
        """The bit patterns there, as :func:`~stateline.state.columns.fixed_words`."""
        if self._stretch is None:
            return fixed_words(self._joined(places))
        words, firsts = self._stretch
        taken: npt.NDArray[Any] = words.take(places.each(firsts) + places.rows)
        return taken

    def valid(self, places: Places) -> Mask | None:
        """Which values there are not null; ``None`` where all are."""
        if not self._has_nulls:
            return None
        valid = np.ones(len(places), dtype=np.bool_)
        for number, part in places.by_array():
            mask = valid_mask(self._arrays[number])
            if mask is not None:
                valid[part] = mask.take(places.rows[part])
        return valid

    def take(self, places: Places) -> pa.Array:
        """The values there, one or more."""
        words = None if self._stretch is None else self.words(places)
        if words is None:
            return self._joined(places)
        return from_words(words, self._arrays[0].type, self.valid(places))

    def _joined(self, places: Places) -> pa.Array:
        return concat([take(self._arrays[number], places.rows[part]) for number, part in places.by_array()])


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one source that go to given places of the result: ``result[to[i]]`` is what is at place ``i``."""

    to: Rows
    places: Places

    def take(self, chosen: Rows) -> Piece:
        """Those numbered, ascending."""
        return Piece(self.to.take(chosen), self.places.take(chosen))


def gather(kind: pa.DataType, pieces: Sequence[Piece], sources: Sequence[Scattered], filled: Mask) -> pa.Array:
    """One column of ``len(filled)`` values.

    Args:
        kind: Type of the result; the sources may be narrower.
        pieces: What goes where; no place of the result is named twice, and none is empty.
        sources: One source column per piece.
        filled: Which places the pieces name. The others become null.
    """
    sample = fixed_words(pa.array([], kind))
    if sample is not None:
        return _gather_words(kind, sample.dtype, pieces, sources, filled)
    if not pieces:
        return pa.nulls(len(filled), kind)
    taken = pa.concat_arrays([source.take(piece.places) for piece, source in zip(pieces, sources, strict=True)])
    back = np.zeros(len(filled), dtype=np.int64)
    back[np.concatenate([piece.to for piece in pieces])] = np.arange(len(taken))
    return taken.take(pa.array(back, mask=None if filled.all() else ~filled))


def _gather_words(
    kind: pa.DataType,
    dtype: np.dtype[Any],
    pieces: Sequence[Piece],
    sources: Sequence[Scattered],
    filled: Mask,
) -> pa.Array:
    words = np.zeros(len(filled), dtype=dtype)
    valid = filled
    for piece, source in zip(pieces, sources, strict=True):
        words[piece.to] = source.words(piece.places)
        present = source.valid(piece.places)
        if present is not None:
            valid = filled.copy() if valid is filled else valid
            valid[piece.to] = present
    return from_words(words, kind, valid)
