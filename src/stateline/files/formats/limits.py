"""Questions about types, and checks of values, that more than one format asks.

Facts:
- Spark has years that files have not: Python's times, of which folders and JSON are made, know 1 to 9999, and Arrow's
  CSV encoder counts years in 16 bits.
- Spark's ``TIME`` arrives as nanoseconds whatever its precision, so only the values tell whether any would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateline.errors import InvalidInputError

__all__ = [
    "PYTHON_YEARS",
    "check_microseconds",
    "check_text",
    "check_years",
    "children",
    "is_binary",
    "is_extension",
    "is_interval",
    "is_text",
    "is_view",
]

PYTHON_YEARS: Final = (1, 9999)
"""First and last year of Python's times."""

_SECONDS_PER_DAY: Final = 86_400
_UNITS_PER_SECOND: Final[Mapping[str, int]] = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def children(kind: pa.DataType) -> list[pa.DataType]:
    """The types inside a type, one level down."""
    return [kind.field(index).type for index in range(kind.num_fields)] if pa.types.is_nested(kind) else []


def is_interval(kind: pa.DataType) -> bool:
    """Spark's intervals, of either sort."""
    return bool(pa.types.is_interval(kind) or pa.types.is_duration(kind))


def is_text(kind: pa.DataType) -> bool:
    """Strings in their plain layouts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Bytes in their plain layouts."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def is_view(kind: pa.DataType) -> bool:
    """Strings and bytes in the layout of views."""
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def is_extension(kind: pa.DataType) -> bool:
    """Types that say how another type is meant."""
    return isinstance(kind, pa.BaseExtensionType)


def check_text(rows: pa.Table) -> None:
    """Checks that all text is UTF-8. Spark makes text of any bytes, but readers refuse a file with such text.

    Raises:
        InvalidInputError: Some text is not; names the column.
    """
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if not _holds(field.type, is_text):
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InvalidInputError(
                f"a value is not UTF-8 ({error})",
                operation="write_files",
                subject=f"column {field.name!r}",
                hint="Repair it with make_valid_utf8(), or keep the column as binary",
            ) from error


def check_years(name: str, column: Any, years: tuple[int, int]) -> None:
    """Checks that the times of a column, or of an array inside one, lie within some years.

    Raises:
        InvalidInputError: One does not; names the column.
    """
    kind = column.type
    if pa.types.is_date32(kind):
        units_per_day, values = 1, column.cast(pa.int32())
    elif pa.types.is_date64(kind):
        units_per_day, values = _SECONDS_PER_DAY * _UNITS_PER_SECOND["ms"], column.cast(pa.int64())
    elif pa.types.is_timestamp(kind):
        units_per_day, values = _SECONDS_PER_DAY * _UNITS_PER_SECOND[kind.unit], column.cast(pa.int64())
    else:
        return
    first, end = (_days_before(year) * units_per_day for year in (years[0], years[1] + 1))
    bounds = pc.min_max(values).as_py()
    if bounds["min"] is not None and not first <= bounds["min"] <= bounds["max"] < end:
        raise InvalidInputError(
            f"a value is not within the years {years[0]} to {years[1]}",
            operation="write_files",
            subject=f"column {name!r}",
            hint="Convert it to text, or write it as a column of a Parquet file",
        )


def check_microseconds(rows: pa.Table) -> None:
    """Checks that all times, also inside other values, are whole microseconds.

    Raises:
        InvalidInputError: One is not; names the column.
    """
    for field, column in zip(rows.schema, rows.columns, strict=True):
        kind = _in_microseconds(field.type)
        if kind.equals(field.type):
            continue
        try:
            column.cast(kind)
        except pa.ArrowInvalid as error:
            raise InvalidInputError(
                f"a value must be whole microseconds, got nanoseconds ({error})",
                operation="write_files",
                subject=f"column {field.name!r}",
                hint="Round it, as CAST(... AS TIME(6)) does, or write it as a column of a Parquet file",
            ) from error


def _holds(kind: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    return test(kind) or any(_holds(child, test) for child in children(kind))


def _days_before(year: int) -> int:
    return int(np.datetime64(year - 1970, "Y").astype("datetime64[D]").astype("int64"))


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_time64(kind):
        return pa.time64("us")
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_microseconds(field.type)) for field in kind])
    if pa.types.is_map(kind):
        key, item = (field.with_type(_in_microseconds(field.type)) for field in (kind.key_field, kind.item_field))
        return pa.map_(key, item, keys_sorted=kind.keys_sorted)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lists = pa.large_list if pa.types.is_large_list(kind) else pa.list_
        return lists(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    return kind
