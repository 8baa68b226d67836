"""Raw access to Arrow columns: bit patterns as numpy arrays, and copies of many rows at a time.

Facts (measured, ``docs/decisions/0017-grouping.md``):
- Taking rows in random order from a column of strings costs Arrow six times what it costs numpy to take records of one
  fixed length, and keys are often of one length: identifiers, codes, padded numbers.
- For numbers without nulls, numpy takes rows about half as fast again as Arrow.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateline.errors import InternalError
from stateline.sizes import sizes

__all__ = [
    "Column",
    "Mask",
    "Rows",
    "at_or_below",
    "contiguous",
    "fixed_words",
    "from_words",
    "take",
    "valid_mask",
    "word_type",
    "words_of",
]

Rows = npt.NDArray[np.int64]
"""Row numbers."""
Mask = npt.NDArray[np.bool_]
Column: TypeAlias = Any
"""A pa.Array or a pa.ChunkedArray."""

_WORDS: Final = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
"""Signed, so that whole numbers of different widths compare, and are copied, as numbers."""


def contiguous(column: Column) -> pa.Array:
    """A column as one array. Many chunks are copied, one is not.

    Raises:
        pa.ArrowInvalid: More than 2 GiB of text.
    """
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def fixed_words(column: pa.Array) -> npt.NDArray[Any] | None:
    """The bits of values of 1, 2, 4 or 8 bytes, as signed numbers and without a copy; ``None`` for other types."""
    dtype = word_type(column.type)
    if dtype is None:
        return None
    values = column.buffers()[1]
    if values is None:
        return np.empty(0, dtype=dtype)
    return np.frombuffer(values, dtype=dtype)[column.offset : column.offset + len(column)]


def words_of(column: pa.Array) -> npt.NDArray[Any]:
    """As :func:`fixed_words`, of a column that has them.

    Raises:
        InternalError: It has a type of another kind.
    """
    words = fixed_words(column)
    if words is None:
        raise InternalError("expected whole numbers or times", operation="read", subject=str(column.type))
    return words


def word_type(kind: pa.DataType) -> type[Any] | None:
    """The type of the bit patterns of :func:`fixed_words`, if columns of a type have them."""
    return _WORDS.get(kind.bit_width) if _is_word(kind) else None


def from_words(words: npt.NDArray[Any], kind: pa.DataType, valid: Mask | None = None) -> pa.Array:
    """A column from the bit patterns of its values, without a copy; null where ``valid`` is false."""
    bitmap = None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(words), [bitmap, pa.py_buffer(np.ascontiguousarray(words))])


def valid_mask(column: pa.Array) -> Mask | None:
    """Which values are not null; ``None`` where all are."""
    if column.null_count == 0:
        return None
    mask: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return mask


def at_or_below(column: pa.Array, bound: int) -> Mask:
    """Which values of a column of whole numbers or times, by their words, are at or below a bound. Nulls are not.

    Raises:
        InternalError: A column of another type.
    """
    mask: Mask = words_of(column) <= bound
    valid = valid_mask(column)
    return mask if valid is None else mask & valid


def take(column: pa.Array, rows: Rows) -> pa.Array:
    """The rows numbered, in that order. Every number is a row of the column."""
    if column.null_count == 0:
        words = fixed_words(column)
        if words is not None:
            return from_words(words.take(rows), column.type)
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            records = _records(column)
            if records is not None:
                return _from_records(records.take(rows), column.type)
    return column.take(pa.array(rows))


def _is_word(kind: pa.DataType) -> bool:
    return (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind))
    )


def _records(column: pa.Array) -> npt.NDArray[Any] | None:
    """The strings as records of one length, without a copy; ``None`` if their lengths differ."""
    if len(column) == 0:
        return None
    _, offsets_buffer, data = column.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    length = int(offsets[1]) - int(offsets[0])
    if not 0 < length <= sizes().record_bytes or int(offsets[-1]) - int(offsets[0]) != length * len(column):
        return None
    if not (np.diff(offsets) == length).all():
        return None
    return np.frombuffer(data, dtype=f"V{length}", count=len(column), offset=int(offsets[0]))


def _from_records(records: npt.NDArray[Any], kind: pa.DataType) -> pa.Array | None:
    length = records.dtype.itemsize
    offsets = np.arange(0, (len(records) + 1) * length, length, dtype=np.int32)
    return pa.Array.from_buffers(kind, len(records), [None, pa.py_buffer(offsets), pa.py_buffer(records)])
