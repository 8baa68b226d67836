"""The data frames that a pandas processor receives: one slice per key, of a frame that many keys share.

Guarantee: a key's frame depends on the rows of this key only. It holds the values and types that Spark gives for these
rows, except that no integer changes its value.

Facts:
- pandas has no null in ``int64`` and ``bool``. A column with a null becomes ``float64`` or ``object`` as a whole, and
  ``float64`` is exact up to 2^53 only.
- So keys share a frame only if the same of their columns hold nulls. A batch without nulls in such columns, the usual
  one, is one frame, and costs one look at the null counts.
- A key with a null and an integer that ``float64`` cannot hold gets ``Int64``, pandas' own nullable integers.
- Arrays inside values are numpy's. Those of a key with a null in one of them hold objects, as in Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import _create_converter_to_pandas
from pyspark.sql.types import DataType, StructType

from stateline.errors import InvalidInputError
from stateline.spark.processor.frame_blocks import Parts, frame_parts
from stateline.state.columns import Mask, Rows

__all__ = ["key_frames"]

_EXACT: Final = 2**53
"""Up to here ``float64`` holds every integer."""

_WIDE: Final[dict[str, str]] = {"i": "int64", "f": "float64"}
_NULLS: Final = 1
_LONG_AND_NULLS: Final = 2


def key_frames(rows: pa.Table, schema: StructType, time_zone: str, ends: Rows) -> Parts:
    """The frame of each key, as a function of the half-open range of its rows.

    Args:
        rows: Rows of a batch, key after key.
        schema: Spark's schema of them.
        time_zone: The session's.
        ends: For each key the end of its rows. A key without rows has the end of the key before.

    Raises:
        InvalidInputError: A time that pandas cannot show in nanoseconds; Spark fails there, too.
    """
    ends = np.unique(ends[ends > 0])
    starts = np.concatenate([np.zeros(1, ends.dtype), ends[:-1]])
    codes = [
        code
        for column in rows.columns
        if column.null_count or pa.types.is_nested(column.type)
        for code in _null_codes(column, starts)
    ]
    if not codes:
        return frame_parts(_frame(rows, schema, time_zone))
    patterns, kinds = np.unique(np.stack(codes, axis=1), axis=0, return_inverse=True)
    kinds = kinds.reshape(-1)
    counts = ends - starts
    sorted_rows = rows.take(pa.array(np.argsort(np.repeat(kinds, counts), kind="stable")))
    order = np.argsort(kinds, kind="stable")
    places = np.cumsum(counts[order]) - counts[order]  # Of each key in the sorted rows.
    firsts = places[np.searchsorted(kinds[order], np.arange(len(patterns)))].tolist()
    frames = [
        frame_parts(_frame(sorted_rows.slice(first, end - first), schema, time_zone))
        for first, end in pairwise([*firsts, len(rows)])
    ]
    found = {
        start: (kind, place - firsts[kind])
        for start, kind, place in zip(starts[order].tolist(), kinds[order].tolist(), places.tolist(), strict=True)
    }

    def part(start: int, end: int) -> pd.DataFrame:
        kind, place = found[start]
        return frames[kind](place, place + end - start)

    return part


def _null_codes(column: pa.ChunkedArray, starts: Rows) -> Iterator[Rows]:
    """For each key what the nulls of its rows do to types, for each place in a column where they do something."""
    kind = column.type
    if pa.types.is_nested(kind):
        for rows in _rows_with_nulls(column.combine_chunks()):
            yield _any(rows, starts).astype(np.int64)
    elif _loses_type(kind):
        codes = _any(column.is_null().to_numpy(), starts).astype(np.int64)
        if kind == pa.int64():
            codes[_any(_is_long(column), starts) & (codes == _NULLS)] = _LONG_AND_NULLS
        yield codes


def _is_long(column: pa.ChunkedArray) -> Mask:
    is_long = pc.or_(pc.greater(column, _EXACT), pc.less(column, -_EXACT)).fill_null(False)
    mask: Mask = is_long.to_numpy()
    return mask


def _any(flags: Mask, starts: Rows) -> Mask:
    found: Mask = np.logical_or.reduceat(flags, starts)
    return found


def _frame(rows: pa.Table, schema: StructType, time_zone: str) -> pd.DataFrame:
    """One frame of rows. Either all of their keys have a null in a place or none has, and the same of long integers."""
    columns: dict[str, Any] = {}
    for column, field in zip(rows.columns, schema, strict=True):
        try:
            if column.type == pa.int64() and column.null_count and _is_long(column).any():
                columns[field.name] = pd.Series(_nullable_integers(column))
            else:
                columns[field.name] = _series(column, field.dataType, time_zone)
        except pd.errors.OutOfBoundsDatetime as error:
            raise InvalidInputError(
                f"cannot show a time before 1677 or after 2262 in a data frame ({error})",
                operation="process",
                subject=f"column {field.name!r} of the input",
                hint="Use the row form, or replace such times before",
            ) from error
    return pd.DataFrame(columns)


def _nullable_integers(column: pa.ChunkedArray) -> pd.arrays.IntegerArray:
    return pd.arrays.IntegerArray(column.fill_null(0).to_numpy(), column.is_null().to_numpy())


def _series(column: pa.ChunkedArray, kind: DataType, time_zone: str) -> pd.Series:
    nested = isinstance(kind, spark_types.ArrayType | spark_types.MapType | StructType)
    # As in Spark, a null integer inside a value becomes None. As NaN it would make doubles of its neighbours.
    series = column.to_pandas(date_as_object=True, timestamp_as_object=nested, integer_object_nulls=nested)
    if nested or pa.types.is_temporal(column.type):
        convert = _create_converter_to_pandas(
            kind, timezone=time_zone, struct_in_pandas="dict", error_on_duplicated_field_names=False
        )
        series = convert(series)
    if series.dtype.kind == "M":
        return series.astype("datetime64[ns]", copy=False)
    wide = _WIDE.get(series.dtype.kind)
    return series if wide is None else series.astype(wide, copy=False)


def _rows_with_nulls(array: pa.Array) -> Iterator[Mask]:
    """For each place with arrays of integers or booleans, at any depth: which rows hold one with a null.

    Arrow converts all arrays of one place at once.
    """
    for children, parents in _children(array):
        if pa.types.is_nested(children.type):
            places = _rows_with_nulls(children)
        elif children.null_count and pa.types.is_list(array.type) and _loses_type(children.type):
            places = iter((children.is_null().to_numpy(zero_copy_only=False),))
        else:
            continue
        for inside in places:
            found = np.zeros(len(array), dtype=bool)
            found[parents[inside]] = True
            yield found


def _loses_type(kind: pa.DataType) -> bool:
    """Whether numpy has no null in this type."""
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _children(array: pa.Array) -> Iterator[tuple[pa.Array, Rows]]:
    """The values inside of nested ones, and for each of these values the row that holds it."""
    kind = array.type
    if pa.types.is_struct(kind):
        rows = np.arange(len(array))
        for child in array.flatten():
            yield child, rows
        return
    if pa.types.is_map(kind):
        array = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    entries = array.flatten()
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    parents = np.repeat(np.arange(len(array)), lengths)
    for child in entries.flatten() if pa.types.is_map(kind) else (entries,):
        yield child, parents
