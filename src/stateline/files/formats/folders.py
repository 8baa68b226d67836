"""Columns whose values become names of folders: a form of values beside the formats of files.

Facts:
- Readers take a moment in the name of a folder for one of a clock, without a zone. Spark writes and reads that of its
  session. A clock that is put back shows an hour twice, and then the name does not tell which one is meant.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateline.errors import ErrorKind, InvalidInputError
from stateline.files.formats.kinds import is_binary, is_extension, is_interval, is_view
from stateline.files.formats.values import PYTHON_YEARS, check_text, check_years
from stateline.files.partitions import name_fits
from stateline.files.precision import check_microseconds
from stateline.options import check_kind

__all__ = ["check_partition", "check_zone", "folder_values"]


def check_partition(field: pa.Field) -> None:
    """Checks that the values of a column can be names of folders.

    Raises:
        InvalidInputError: Names the column, its type and the reason.
    """
    reason = None
    if field.name.startswith((".", "_")):
        reason = "readers skip folders whose names begin so"
    elif not name_fits(field.name):
        reason = "its name leaves no room for a value in the name of a folder"
    elif pa.types.is_nested(field.type):
        reason = f"{field.type} has no form as the name of a folder"
    elif pa.types.is_dictionary(field.type) or is_view(field.type) or is_extension(field.type):
        reason = f"rows are not split by {field.type}, only by plain values"
    elif is_interval(field.type):
        reason = f"{field.type} cannot be the name of a folder: readers do not agree on the form of intervals"
    if reason is not None:
        raise InvalidInputError(
            reason,
            operation="write_files",
            subject=f"partition_by {field.name!r}",
            hint="Rename or convert the column, or partition by another one",
            kind=ErrorKind.SCHEMA_MISMATCH,
        )


def check_zone(zone: str) -> None:
    """Checks that the clock of a zone is known.

    Raises:
        InvalidInputError: It is not.
    """
    check_kind(zone, str, "partition_zone", "the name of a time zone")
    try:
        pc.local_timestamp(pa.array([0], pa.timestamp("us", zone or "none")))
    except pa.ArrowException as error:
        raise InvalidInputError(
            f"{zone!r} is no time zone that Arrow knows ({error})",
            subject="partition_zone",
            hint="Give a name such as Europe/Berlin, or an offset such as +05:00",
        ) from error


def folder_values(rows: pa.Table, zone: str) -> tuple[pa.Table, Any]:
    """What folders tell of columns: moments as the clock of a zone shows them, all else as it is.

    Args:
        rows: The columns.
        zone: The zone; only columns of moments with a zone ask for it.

    Returns:
        The columns, and for each row whether its clock shows the same again, so that the folder does not tell it all.

    Raises:
        InvalidInputError: A value cannot be the name of a folder; names the column, and says what is wrong.
    """
    _check_values(rows)
    twice = np.zeros(rows.num_rows, dtype=np.bool_)
    for index, field in enumerate(rows.schema):
        if not pa.types.is_timestamp(field.type) or field.type.tz is None:
            continue
        shown = pc.local_timestamp(rows.column(index).cast(pa.timestamp("us", zone)))
        check_years(field.name, shown, PYTHON_YEARS)
        rows = rows.set_column(index, field.name, shown)
        if zone != "UTC":
            first, last = (pc.assume_timezone(shown, zone, ambiguous=which) for which in ("earliest", "latest"))
            twice |= pc.fill_null(pc.not_equal(first, last), False).to_numpy()
    return rows, twice


def _check_values(rows: pa.Table) -> None:
    binary = [index for index, field in enumerate(rows.schema) if is_binary(field.type)]
    for index in binary:
        # Different bytes would become the same text otherwise, and the folder is all that tells the value.
        column = rows.column(index).cast(pa.large_binary()).cast(pa.large_string(), safe=False)
        rows = rows.set_column(index, rows.field(index).name, column)
    check_text(rows)
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        check_years(name, column, PYTHON_YEARS)
    check_microseconds(rows)
