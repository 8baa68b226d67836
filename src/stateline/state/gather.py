"""Columns put together from pieces of other columns.

Owns the copying of values from many places into one column, without a loop over rows. Does not own what is copied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stateline.state.columns import Mask, Rows, fixed_words, from_words, take, valid_mask

__all__ = ["Piece", "gather"]


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one source that go to given places of the result: ``result[places[i]] = source[rows[i]]``."""

    places: Rows
    rows: Rows

    def where(self, mask: Mask) -> Piece:
        """The part of the piece for which ``mask`` holds."""
        return Piece(self.places[mask], self.rows[mask])


def gather(kind: pa.DataType, pieces: Sequence[Piece], sources: Sequence[pa.Array], filled: Mask) -> pa.Array:
    """One column of ``len(filled)`` values.

    Args:
        kind: Type of the sources and of the result.
        pieces: What goes where; no place is named twice.
        sources: One source column per piece.
        filled: Which places the pieces name. The others become null.
    """
    sample = pa.array([], kind)
    words = fixed_words(sample)
    if words is not None:
        return _gather_words(kind, words.dtype, pieces, sources, filled)
    if not pieces:
        return pa.nulls(len(filled), kind)
    taken = pa.concat_arrays([take(source, piece.rows) for piece, source in zip(pieces, sources, strict=True)])
    back = np.zeros(len(filled), dtype=np.int64)
    back[np.concatenate([piece.places for piece in pieces])] = np.arange(len(taken))
    return taken.take(pa.array(back, mask=None if filled.all() else ~filled))


def _gather_words(
    kind: pa.DataType,
    dtype: np.dtype[Any],
    pieces: Sequence[Piece],
    sources: Sequence[pa.Array],
    filled: Mask,
) -> pa.Array:
    words = np.zeros(len(filled), dtype=dtype)
    valid = filled
    for piece, source in zip(pieces, sources, strict=True):
        values = fixed_words(source)
        words[piece.places] = () if values is None else values.take(piece.rows)
        present = valid_mask(source)
        if present is not None:
            valid = filled.copy() if valid is filled else valid
            valid[piece.places] = present.take(piece.rows)
    return from_words(words, kind, valid)
