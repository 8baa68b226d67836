"""The canonical form of floating-point numbers: numbers that SQL calls equal have equal bits.

-0.0 becomes 0.0, and every NaN the quiet one whose payload is zero.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["FINITE_COLUMNS", "canonical_float", "canonical_floats", "canonical_words"]


FINITE_COLUMNS: Final = b"stateline.finite"
"""Key of the metadata in the footers of our Parquet files: the columns of floats without NaN and infinity, as JSON.

The statistics of a footer leave NaN out, so without this nobody knows whether they are bounds of all rows.
"""


def canonical_float(value: float) -> float:
    """A number in canonical form; one object for every NaN, so that a dict finds it."""
    return math.nan if math.isnan(value) else value + 0.0


def canonical_floats(column: pa.Array) -> pa.Array:
    """A column of floats in canonical form, its nulls kept; a column of another type as it is."""
    if not pa.types.is_floating(column.type):
        return column
    numbers = column.fill_null(0.0).to_numpy(zero_copy_only=False)
    nulls = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    return pa.array(canonical_words(numbers).view(numbers.dtype), column.type, mask=nulls, from_pandas=False)


def canonical_words(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The bits of floats in canonical form, as unsigned integers of their width."""
    # Integers only: arithmetic on a signalling NaN would warn.
    words = numbers.view(f"u{numbers.dtype.itemsize}")
    infinity, nan = np.array([np.inf, np.nan], numbers.dtype).view(words.dtype)
    magnitudes = words & words.dtype.type(np.iinfo(words.dtype).max >> 1)
    words = np.where(magnitudes > infinity, nan, words)
    return np.where(magnitudes == 0, words.dtype.type(0), words)
