"""The bounds of floating-point columns, computed while a Parquet file is written.

Arrow's statistics leave NaN out, and Spark orders it last. So a reader that trusts them skips a file of 1.0 and NaN for
``x > 5``. Files have no Parquet statistics of such columns. What tables need for their own bounds is in the metadata of
the footer instead: :func:`stateline.floats.float_leaves` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from stateline.floats import FLOAT_BOUNDS

__all__ = ["FloatBounds"]

_WIDTHS: Final = (pa.float32(), pa.float64())


class FloatBounds:
    """Nulls, least and greatest value of each floating-point leaf that has at most one value in a row.

    Args:
        schema: The columns of the file.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._leaves = [_Leaf(index, column, path) for index, column, path in _float_leaves(schema)]

    def add(self, rows: pa.Table) -> None:
        """Take the values of rows into account."""
        for leaf in self._leaves:
            for chunk in rows.column(leaf.column).chunks:
                leaf.add(chunk)

    def metadata(self) -> dict[bytes, str]:
        """The entries of the footer's metadata; empty for a file without such columns."""
        found = {str(leaf.index): leaf.facts() for leaf in self._leaves}
        return {FLOAT_BOUNDS: json.dumps(found)} if found else {}


class _Leaf:
    def __init__(self, index: int, column: int, path: tuple[int, ...]) -> None:
        self.index = index
        self.column = column
        self._path = path
        self._nulls = 0
        self._least, self._greatest = np.inf, -np.inf
        self._is_finite = True

    def add(self, values: pa.Array) -> None:
        for position in self._path:
            values = values.flatten()[position]
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        self._nulls += values.null_count
        if values.null_count:
            values = values.drop_null()
        if not self._is_finite or not len(values):
            return
        numbers = values.to_numpy()
        with np.errstate(invalid="ignore"):  # A signalling NaN.
            least, greatest = float(numbers.min()), float(numbers.max())
        # Both are NaN where any value is.
        self._is_finite = bool(np.isfinite(least) and np.isfinite(greatest))
        self._least, self._greatest = min(self._least, least), max(self._greatest, greatest)

    def facts(self) -> list[float | int]:
        if not self._is_finite or self._least > self._greatest:
            return [self._nulls]
        # Bounds of zeros hold for both: readers that tell -0.0 from 0.0 put it below.
        least = -0.0 if self._least == 0 else self._least
        return [self._nulls, least, self._greatest + 0.0]


def _float_leaves(schema: pa.Schema) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Leaves in the order of the file: index, column, and the way through its structures, by position."""
    index = 0
    for column, field in enumerate(schema):
        for kind, path in _leaves(field.type, ()):
            if path is not None and kind in _WIDTHS:
                yield index, column, path
            index += 1


def _leaves(kind: pa.DataType, path: tuple[int, ...] | None) -> Iterator[tuple[pa.DataType, tuple[int, ...] | None]]:
    if pa.types.is_dictionary(kind):
        yield from _leaves(kind.value_type, path)
    elif pa.types.is_struct(kind):
        for position in range(kind.num_fields):
            inside = None if path is None else (*path, position)
            yield from _leaves(kind.field(position).type, inside)
    elif pa.types.is_map(kind):
        yield from _leaves(kind.key_type, None)
        yield from _leaves(kind.item_type, None)
    elif pa.types.is_nested(kind):
        yield from _leaves(kind.value_type, None)
    else:
        yield kind, path
