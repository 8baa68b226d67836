"""The pandas form of a processor, that of ``transformWithStateInPandas``: data frames in, data frames out.

Facts:
- A data frame of its own for each key costs more than most processors do. So the whole batch is one frame in the order
  of its keys, and a key gets a slice of it, with an index of its own (``frame_blocks``).
- Frames hold what Spark's conversion gives, in the session's time zone: ``int64``, ``float64``, ``datetime64[ns]``.
- A null never changes the values or types of another key (:mod:`stateline.spark.processor.frame_inputs`).
- What processors yield is taken apart at once, joined per column, over all keys, and converted once.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import types as spark_types
from pyspark.sql.types import DataType, StructType

from stateline.errors import ErrorKind, InvalidInputError
from stateline.spark.processor.frame_blocks import FrameColumns, blocks_are_known
from stateline.spark.processor.frame_inputs import key_frames
from stateline.spark.processor.rows import Slices, wrong_output
from stateline.spark.processor.values import StructCodec, is_whole
from stateline.state.columns import Rows

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
        self._codec = StructCodec(output, "output frame", is_output=True)
        self._taken = FrameColumns(by_block=blocks_are_known())

    def keys(self, columns: Sequence[pa.Array]) -> list[tuple[Any, ...]]:
        return list(zip(*(_key_items(column, self._time_zone) for column in columns), strict=True))

    def inputs(self, rows: pa.Table, schema: StructType, ends: Rows) -> Slices:
        part = key_frames(rows, schema, self._time_zone, ends)
        return lambda start, end: iter((part(start, end),))

    initial = inputs

    def take(self, yielded: Iterable[Any]) -> None:
        """See :class:`ProcessorForm`. Columns go by name, or by place where no name is a string."""
        for frame in yielded:
            if not isinstance(frame, pd.DataFrame):
                hint = 'Yield pandas frames; a processor of rows needs form="row"'
                raise wrong_output(self._names, f"got a {type(frame).__name__}: {frame!r:.100}", hint)
            names = frame.columns.tolist()
            if names != self._names:
                self._check_names(names, rows=len(frame))
            if len(frame):
                self._taken.add(frame, names)

    def output(self) -> list[pa.Array] | None:
        columns = self._taken.columns(self._places)
        return [self._column(number, parts) for number, parts in enumerate(columns)] or None

    def _check_names(self, names: list[Any], *, rows: int) -> None:
        if rows == 0 and not names:
            return
        by_place = _is_by_place(names)
        if (by_place and len(names) != len(self._names)) or not (by_place or set(names) == set(self._names)):
            raise wrong_output(self._names, f"got a frame with {names}", "Yield frames with the columns of the schema")

    def _places(self, names: list[Any]) -> list[int]:
        return list(range(len(names))) if _is_by_place(names) else [names.index(name) for name in self._names]

    def _column(self, number: int, parts: Sequence[Any]) -> pa.Array:
        kind = self._struct[number].dataType
        values = _joined(parts, is_integral=isinstance(kind, spark_types.IntegralType))
        if isinstance(kind, spark_types.TimestampType):
            values = _in_utc(values, self._time_zone)
        field = self._codec.schema.field(number)
        if not isinstance(kind, spark_types.ArrayType | spark_types.MapType | StructType):
            if not _says_what_it_is(values, field.type):
                return self._codec.column(number, _without_missing(values))
            try:
                # Where the schema rules nulls out, NaN is a number, as it is to Spark.
                return pa.array(values, type=field.type, from_pandas=self._struct[number].nullable)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                return self._codec.column(number, _without_missing(values))
        items, convert = _without_missing(values), _instants(kind, self._time_zone)
        if convert is not None:
            items = [None if item is None else convert(item) for item in items]
        return self._codec.column(number, items)


def _says_what_it_is(values: pd.Series, kind: pa.DataType) -> bool:
    """Whether Arrow takes the values for what they are.

    It cuts fractions off where the column is one of objects, and of numbers for a binary field it keeps the bytes.
    """
    if pa.types.is_binary(kind):
        return False
    return values.dtype.kind != "O" or is_whole(values, kind)


def _key_items(column: pa.Array, time_zone: str) -> list[Any]:
    """Values of one grouping column: times as those of pandas, by the session's clock; the others as Python's."""
    if not pa.types.is_timestamp(column.type):
        items: list[Any] = column.to_pylist()
        return items
    times = column.to_pandas()
    if column.type.tz is not None:
        times = times.dt.tz_convert(time_zone).dt.tz_localize(None)
    return [None if time is pd.NaT else time for time in times.tolist()]


def _is_by_place(names: Sequence[Any]) -> bool:
    return not any(isinstance(name, str) for name in names)


def _joined(parts: Sequence[Any], *, is_integral: bool) -> pd.Series:
    """The parts of one column as one. Where their kinds differ each value stays as it is: a double cuts longs off.

    Args:
        parts: Arrays, in their order.
        is_integral: Whether the column is one of integers.
    """
    arrays = [part.to_numpy() if isinstance(part, pd.arrays.NumpyExtensionArray) else part for part in parts]
    kinds = {part.dtype.kind for part in arrays}
    if is_integral and kinds == {"i", "f"}:  # Keys with a null have doubles, the others integers.
        integers = _integers(arrays)
        if integers is not None:
            return integers
    series = [pd.Series(part, copy=False) for part in arrays]
    if len(kinds) > 1 or (kinds <= {"M", "m"} and len({part.dtype for part in arrays}) > 1):
        series = [part.astype(object) for part in series]
    return series[0] if len(series) == 1 else pd.concat(series, ignore_index=True)


def _integers(arrays: Sequence[Any]) -> pd.Series | None:
    """Integers and doubles as integers with nulls; ``None`` if a double has a fraction, or no integer of 64 bits."""
    values, missing = [], []
    for array in arrays:
        if array.dtype.kind == "i":
            nulls = np.asarray(pd.isna(array))
            values.append(pd.Series(array, copy=False).fillna(0).to_numpy(np.int64))
        else:
            doubles = np.asarray(array, np.float64)
            nulls = np.isnan(doubles)
            doubles = np.where(nulls, 0, doubles)
            if not (np.abs(doubles) < _LONG_END).all() or (doubles != np.trunc(doubles)).any():
                return None
            values.append(doubles.astype(np.int64))
        missing.append(nulls)
    return pd.Series(pd.arrays.IntegerArray(np.concatenate(values), np.concatenate(missing)))


_LONG_END: Final = 2.0**63


_TIMES: Final = (dt.date, np.datetime64, str)
"""What is a time in a column of objects; ``datetime`` and those of pandas are dates, too."""


def _in_utc(values: pd.Series, time_zone: str) -> pd.Series:
    """Time stamps as instants: naive ones are in the session's time zone, as in Spark.

    What is no time is left alone: to Arrow, and so in Spark, whole numbers are microseconds, and others an error.

    Raises:
        InvalidInputError: A naive one that no clock of the zone shows, or a text that tells no time.
    """
    stamps = values
    if values.dtype.kind == "O":
        known = values.dropna()
        if not all(isinstance(item, _TIMES) for item in known):
            return values
        if len({getattr(item, "tzinfo", None) is None for item in known}) > 1:
            return _each_in_utc(values, time_zone)  # Of frames with times of both kinds.
        try:
            stamps = pd.to_datetime(values.mask(values.isna(), None))
        except ValueError:  # 64 bits of nanoseconds end in the year 2262; or a text tells a time otherwise, or none.
            return _each_in_utc(values, time_zone)
    if isinstance(stamps.dtype, pd.ArrowDtype):  # Its clocks refuse to say which of two times is meant.
        stamps = pa.array(stamps).to_pandas()
    if stamps.dtype.kind != "M":
        return values
    if stamps.dt.tz is None:
        local, stamps = stamps, stamps.dt.tz_localize(time_zone, ambiguous=False, nonexistent="NaT")
        lost = local[stamps.isna() & local.notna()]
        if len(lost):
            raise _no_such_time(lost.iloc[0], time_zone)
    return stamps.dt.tz_convert("UTC")


def _each_in_utc(values: pd.Series, time_zone: str) -> pd.Series:
    instants = [None if pd.isna(item) else _instant(_stamp(item), time_zone) for item in values]
    return pd.Series(instants, dtype=object)


def _stamp(value: Any) -> pd.Timestamp:
    try:
        return pd.Timestamp(value)
    except ValueError as error:
        raise InvalidInputError(
            f"expected a time, got {value!r:.100} ({error})",
            operation="process",
            subject="output frame",
            hint="Yield times, such as those of pd.Timestamp or datetime",
            kind=ErrorKind.SCHEMA_MISMATCH,
        ) from error


def _no_such_time(local: pd.Timestamp, zone: str) -> InvalidInputError:
    return InvalidInputError(
        f"no clock of {zone} shows {local}: clocks are put forward over it",
        operation="process",
        subject="output",
        hint="Yield times with a zone, such as those of pd.Timestamp(..., tz='UTC')",
    )


def _instants(kind: DataType, zone: str) -> Callable[[Any], Any] | None:
    """Makes instants of the times inside of values, as :func:`_in_utc` of columns; ``None`` where there are none."""
    if isinstance(kind, spark_types.TimestampType):
        return lambda value: _instant(value, zone)
    if isinstance(kind, spark_types.ArrayType):
        element = _instants(kind.elementType, zone)
        return None if element is None else lambda items: None if items is None else [element(item) for item in items]
    if isinstance(kind, spark_types.MapType):
        key, value = _instants(kind.keyType, zone), _instants(kind.valueType, zone)
        if key is None and value is None:
            return None
        pairs = _either(key), _either(value)
        return lambda items: (
            None
            if items is None
            else [(pairs[0](name), pairs[1](item)) for name, item in getattr(items, "items", lambda: items)()]
        )
    if isinstance(kind, StructType):
        fields = {field.name: _instants(field.dataType, zone) for field in kind}
        return _fields_instants(fields) if any(fields.values()) else None
    return None


def _either(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    return (lambda value: value) if convert is None else convert


def _fields_instants(fields: dict[str, Callable[[Any], Any] | None]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, dict):
            return {name: _either(fields.get(name))(item) for name, item in value.items()}
        items = list(value)
        return [_either(one)(item) for one, item in zip(fields.values(), items, strict=False)] + items[len(fields) :]

    return convert


def _instant(value: Any, zone: str) -> Any:
    if not isinstance(value, dt.datetime | np.datetime64) or pd.isna(value):
        return None if value is pd.NaT else value
    stamp = pd.Timestamp(value)
    if stamp.tzinfo is not None:
        return stamp
    known = stamp.tz_localize(zone, ambiguous=False, nonexistent="NaT")
    if known is pd.NaT:
        raise _no_such_time(stamp, zone)
    return known


def _without_missing(values: pd.Series) -> list[Any]:
    """Python values, with ``None`` for what pandas calls missing."""
    return [None if _is_missing(value) else value for value in values.tolist()]


def _is_missing(value: Any) -> bool:
    if isinstance(value, decimal.Decimal):
        return value.is_nan()
    return value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and value != value)
