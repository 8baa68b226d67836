"""Columns whose values become names of folders: a form of values beside the formats of files."""

from __future__ import annotations

import pyarrow as pa

from stateline.errors import ErrorKind, InvalidInputError
from stateline.files.formats.kinds import is_binary, is_extension, is_interval, is_view
from stateline.files.formats.values import PYTHON_YEARS, check_text, check_years
from stateline.files.partitions import name_fits
from stateline.files.precision import check_microseconds

__all__ = ["check_partition", "check_partition_values"]


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


def check_partition_values(rows: pa.Table) -> None:
    """Checks that the values of columns can be names of folders.

    Raises:
        InvalidInputError: Names the column, and says what is wrong with a value.
    """
    binary = [index for index, field in enumerate(rows.schema) if is_binary(field.type)]
    for index in binary:
        # Different bytes would become the same text otherwise, and the folder is all that tells the value.
        column = rows.column(index).cast(pa.large_binary()).cast(pa.large_string(), safe=False)
        rows = rows.set_column(index, rows.field(index).name, column)
    check_text(rows)
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        check_years(name, column, PYTHON_YEARS)
    check_microseconds(rows)
