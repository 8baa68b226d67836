"""JSON lines: one object per row.

Facts:
- Maps are objects, binary is base64, decimals are text, times are ISO 8601, NaN and infinities are null.
- Python's times, of which some values are made, know the years 1 to 9999 and no nanoseconds. Others are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from stateline.errors import InvalidInputError
from stateline.files.formats.json_text import entries, holds_key_twice, json_lines
from stateline.files.formats.limits import PYTHON_YEARS, check_microseconds, check_years, children
from stateline.files.formats.lines import LineFormat

__all__ = ["JsonLinesFormat"]


class JsonLinesFormat(LineFormat):
    """One JSON object per line."""

    name = "jsonl"

    def complaint(self, kind: pa.DataType) -> str | None:
        if pa.types.is_map(kind) and not _is_name(kind.key_type):
            return f"a name in JSON is text, and not {kind.key_type}"
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            return "a time in a JSON file has microseconds"
        return None

    def check_rows(self, rows: pa.Table) -> None:
        super().check_rows(rows)
        check_microseconds(rows)
        for name, array in _arrays(rows):
            check_years(name, array, PYTHON_YEARS)
        _check_keys(rows)

    def lines(self, rows: pa.Table) -> bytes:
        _check_keys(rows)
        return b"".join(json_lines(batch) for batch in rows.to_batches())


def _check_keys(rows: pa.Table) -> None:
    for name, array in _arrays(rows):
        if pa.types.is_map(array.type) and holds_key_twice(array):
            raise InvalidInputError(
                "a map cannot hold a key twice",
                operation="write_files",
                subject=f"column {name!r}",
                hint="Make its keys distinct, or use the format parquet",
            )


def _arrays(rows: pa.Table) -> Iterator[tuple[str, pa.Array]]:
    """All values of each column, and all inside them."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        for chunk in column.chunks:
            for array in _inside(chunk):
                yield name, array


def _inside(array: Any) -> Iterator[pa.Array]:
    yield array
    kind = array.type
    if pa.types.is_dictionary(kind):
        yield from _inside(array.dictionary)
    elif pa.types.is_run_end_encoded(kind):
        yield from _inside(array.values)
    elif pa.types.is_struct(kind):
        for field in array.flatten():
            yield from _inside(field)
    elif children(kind):
        yield from _inside((entries(array) if pa.types.is_map(kind) else array).flatten())


def _is_name(kind: pa.DataType) -> bool:
    has_no_text = pa.types.is_nested(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)
    return not (has_no_text or pa.types.is_floating(kind))
