"""Times of day and moments with nanoseconds, where a file or a folder tells microseconds.

Owns the check. Does not own which formats need it (``formats``).

Spark's ``TIME`` comes as nanoseconds whatever its precision is, so only the values tell whether any would be lost.
"""

from __future__ import annotations

import pyarrow as pa

from stateline.errors import InvalidInputError

__all__ = ["check_microseconds"]


def check_microseconds(rows: pa.Table) -> None:
    """Checks that no value, also inside of others, has nanoseconds that are no whole microseconds.

    Raises:
        InvalidInputError: One has; names the column.
    """
    for field, column in zip(rows.schema, rows.columns, strict=True):
        kind = _in_microseconds(field.type)
        if kind.equals(field.type):
            continue
        try:
            column.cast(kind)
        except pa.ArrowInvalid as error:
            raise InvalidInputError(
                f"a value has nanoseconds, and microseconds are all that fit ({error})",
                operation="write_files",
                subject=f"column {field.name!r}",
                hint="Round it, as CAST(... AS TIME(6)) does, or write it as a column of a Parquet file",
            ) from error


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
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    return kind
