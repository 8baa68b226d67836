"""The pandas form of a processor, that of ``transformWithStateInPandas``: data frames in, data frames out.

Owns the conversion between Arrow and the frames of many keys. Does not own the order of calls (``processor_run``).

Facts:
- A data frame of its own for each key costs more than most processors do. So the whole batch is one frame in the order
  of its keys, and a key gets a slice of it, with an index of its own.
- Frames hold what Spark's conversion gives, in the session's time zone: ``int64``, ``float64``, ``datetime64[ns]``.
- What processors yield is joined per column, over all keys, and converted once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import _create_converter_to_pandas
from pyspark.sql.types import StructType

from stateline.spark.processor_rows import Slices, wrong_output
from stateline.spark.processor_values import StructCodec

__all__ = ["FrameForm"]


class FrameForm:
    """``transformWithStateInPandas``: data frames in, data frames out.

    Args:
        output: Schema of the output.
        time_zone: The session's.
    """

    def __init__(self, output: StructType, time_zone: str) -> None:
        self._struct = output
        self._names = output.names
        self._time_zone = time_zone
        self._codec = StructCodec(output, "output frame", naive_is_utc=True)

    def inputs(self, rows: pa.Table, schema: StructType) -> Slices:
        """See :class:`ProcessorForm`."""
        part = _parts(_frame(rows, schema, self._time_zone))
        return lambda start, end: iter((part(start, end),))

    def initial(self, rows: pa.Table, schema: StructType) -> Slices:
        """See :class:`ProcessorForm`."""
        return self.inputs(rows, schema)

    def output(self, yielded: Sequence[Any]) -> list[pa.Array]:
        """See :class:`ProcessorForm`. Columns go by name, or by place where no name is a string."""
        frames = [frame for frame in yielded if self._checked(frame)]
        return [self._column(number, frames) for number in range(len(self._names))]

    def _checked(self, frame: Any) -> bool:
        if not isinstance(frame, pd.DataFrame):
            raise wrong_output(self._names, f"a {type(frame).__name__} came: {frame!r:.100}", "Yield pandas frames")
        names = frame.columns.tolist()
        if names == self._names:
            return len(frame) > 0
        if len(frame) == 0 and not names:
            return False
        by_place = not any(isinstance(name, str) for name in names)
        if (by_place and len(names) != len(self._names)) or not (by_place or set(names) == set(self._names)):
            raise wrong_output(self._names, f"a frame has {names}", "Yield frames with the columns of the schema")
        return len(frame) > 0

    def _column(self, number: int, frames: Sequence[pd.DataFrame]) -> pa.Array:
        name, kind = self._names[number], self._struct[number].dataType
        parts = [frame[name].array if name in frame.columns else frame.iloc[:, number].array for frame in frames]
        values = _joined(parts)
        if isinstance(kind, spark_types.TimestampType):
            values = _in_utc(values, self._time_zone)
        field = self._codec.schema.field(number)
        if not isinstance(kind, spark_types.ArrayType | spark_types.MapType | StructType):
            try:
                return pa.Array.from_pandas(values, type=field.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                return self._codec.column(number, _without_missing(values))
        return self._codec.column(number, _without_missing(values))


def _parts(frame: pd.DataFrame) -> Callable[[int, int], pd.DataFrame]:
    """Slices of a frame, each with an index from 0, that may be written to without a warning."""
    indexes: dict[int, pd.RangeIndex] = {}

    def part(start: int, end: int) -> pd.DataFrame:
        index = indexes.get(end - start)
        if index is None:
            index = indexes[end - start] = pd.RangeIndex(end - start)
        made = frame.iloc[start:end]
        made.index = index
        made._is_copy = None  # noqa: SLF001 - the key's own rows: a write to them is no mistake
        return made

    return part


_WIDE: Final[dict[str, str]] = {"i": "int64", "f": "float64"}


def _frame(rows: pa.Table, schema: StructType, time_zone: str) -> pd.DataFrame:
    """The frame that Spark makes of these rows."""
    columns: dict[str, Any] = {}
    for column, field in zip(rows.columns, schema, strict=True):
        nested = isinstance(field.dataType, spark_types.ArrayType | spark_types.MapType | StructType)
        series = column.to_pandas(date_as_object=True, timestamp_as_object=nested)
        if nested or pa.types.is_temporal(column.type):
            convert = _create_converter_to_pandas(
                field.dataType,
                timezone=time_zone,
                struct_in_pandas="dict",
                error_on_duplicated_field_names=False,
            )
            series = convert(series)
        wide = _WIDE.get(series.dtype.kind)
        columns[field.name] = series if wide is None else series.astype(wide, copy=False)
        if series.dtype.kind == "M":
            columns[field.name] = series.astype("datetime64[ns]", copy=False)
    return pd.DataFrame(columns)


def _joined(parts: Sequence[Any]) -> pd.Series:
    """The parts of one column as one: cheap where all are numpy arrays of one type."""
    if not parts:
        return pd.Series([], dtype="object")
    arrays = [part.to_numpy() if isinstance(part, pd.arrays.NumpyExtensionArray) else part for part in parts]
    first = arrays[0]
    if isinstance(first, np.ndarray) and all(
        isinstance(array, np.ndarray) and array.dtype == first.dtype for array in arrays
    ):
        return pd.Series(np.concatenate(arrays))
    return pd.concat([pd.Series(part) for part in parts], ignore_index=True)


def _in_utc(values: pd.Series, time_zone: str) -> pd.Series:
    """Time stamps as instants: naive ones are in the session's time zone, as in Spark."""
    stamps = values if values.dtype.kind == "M" else pd.to_datetime(values)
    if stamps.dt.tz is None:
        stamps = stamps.dt.tz_localize(time_zone, ambiguous=False)
    return stamps.dt.tz_convert("UTC")


def _without_missing(values: pd.Series) -> list[Any]:
    """Python values, with ``None`` for what pandas calls missing."""
    return [None if _is_missing(value) else value for value in values.tolist()]


def _is_missing(value: Any) -> bool:
    return value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and value != value)
