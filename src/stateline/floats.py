"""The canonical form of floating-point numbers: numbers that SQL calls equal have equal bits.

-0.0 becomes 0.0, and every NaN the quiet one whose payload is zero.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["FLOAT_BOUNDS", "FloatLeaf", "canonical_float", "canonical_floats", "canonical_words", "float_leaves"]


FLOAT_BOUNDS: Final = b"stateline.float-bounds"
"""Key of the metadata in the footers of our Parquet files: what :func:`float_leaves` returns, as JSON."""


@dataclass(frozen=True, slots=True)
class FloatLeaf:
    """What is known of one floating-point leaf column of a Parquet file.

    Attributes:
        nulls: Rows without a value, also where a structure around it is null.
        least: A lower bound of all values; ``None`` where all are null, or one is NaN or infinite.
        greatest: An upper bound, under the same condition. Zeros count as -0.0 below, and as 0.0 above.
    """

    nulls: int
    least: float | None = None
    greatest: float | None = None


def float_leaves(metadata: Mapping[bytes, bytes] | None) -> dict[int, FloatLeaf]:
    """Read the bounds of floating-point leaves from the metadata of a footer.

    Returns:
        By the position of the leaf in the file. Leaves inside lists and maps are left out.
    """
    found = json.loads((metadata or {}).get(FLOAT_BOUNDS, b"{}"))
    return {int(index): FloatLeaf(*facts) for index, facts in found.items()}


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
