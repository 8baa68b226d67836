"""Checks of values that more than one format needs.

Facts:
- Spark has years that lines have not: Python's times, of which folders and JSON are made, know 1 to 9999, and Arrow's
  CSV counts years in 16 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateline.errors import InvalidInputError
from stateline.files.formats.kinds import holds, is_text

__all__ = ["PYTHON_YEARS", "check_text", "check_years"]

PYTHON_YEARS: Final = (1, 9999)
"""First and last year of Python's times."""

_SECONDS_A_DAY: Final = 86_400
_IN_A_SECOND: Final[Mapping[str, int]] = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def check_text(rows: pa.Table) -> None:
    """Checks that all text is UTF-8. Spark makes text of any bytes, but readers refuse a file that holds such.

    Raises:
        InvalidInputError: Some is not; names the column.
    """
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if not holds(field.type, is_text):
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InvalidInputError(
                f"a value is not UTF-8 ({error})",
                operation="write_files",
                subject=f"column {field.name!r}",
                hint="Mend it with make_valid_utf8(), or keep the column as binary",
            ) from error


def check_years(name: str, column: Any, years: tuple[int, int]) -> None:
    """Checks that a column, or an array inside of one, has no times outside of some years.

    Raises:
        InvalidInputError: It has; names the column.
    """
    kind = column.type
    if pa.types.is_date32(kind):
        in_a_day, values = 1, column.cast(pa.int32())
    elif pa.types.is_date64(kind):
        in_a_day, values = _SECONDS_A_DAY * _IN_A_SECOND["ms"], column.cast(pa.int64())
    elif pa.types.is_timestamp(kind):
        in_a_day, values = _SECONDS_A_DAY * _IN_A_SECOND[kind.unit], column.cast(pa.int64())
    else:
        return
    first, end = (_days_before(year) * in_a_day for year in (years[0], years[1] + 1))
    bounds = pc.min_max(values).as_py()
    if bounds["min"] is not None and not first <= bounds["min"] <= bounds["max"] < end:
        raise InvalidInputError(
            f"a value lies outside of the years {years[0]} to {years[1]}",
            operation="write_files",
            subject=f"column {name!r}",
            hint="Make it text, or write it as a column of a Parquet file",
        )


def _days_before(year: int) -> int:
    return int(np.datetime64(year - 1970, "Y").astype("datetime64[D]").astype("int64"))
