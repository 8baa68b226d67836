"""CSV as RFC 4180 has it, with a header line; a null is nothing, an empty string is ``""``.

Facts:
- Floats are ``NaN``, ``Inf`` and ``-Inf``, for Spark reads ``nan`` as null; pyarrow and DuckDB know both.
- Readers skip empty lines, so in a file of one column a null is ``""``, too.
- Arrow's encoder counts years in 16 bits.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from stateline.files.formats.limits import check_years, is_binary, is_extension, is_text, is_view
from stateline.files.formats.lines import LineFormat

__all__ = ["CsvFormat"]

_YEARS: Final = (-32767, 32767)


class CsvFormat(LineFormat):
    """Comma-separated values."""

    name = "csv"
    by_position = True  # By Spark; others go by the header.

    def head(self, schema: pa.Schema) -> bytes:
        return _csv(schema.empty_table(), header=True)

    def lines(self, rows: pa.Table) -> bytes:
        return _csv(rows, header=False) if rows.num_columns > 1 else _csv_of_one_column(rows)

    def complaint(self, kind: pa.DataType) -> str | None:
        if is_view(kind) or pa.types.is_run_end_encoded(kind):
            return "its encoder knows only plain values"
        if is_extension(kind):
            return f"its encoder knows only plain values; cast it to {kind.storage_type}"
        return "a field of CSV is flat text" if pa.types.is_nested(kind) or is_binary(kind) else None

    def check_rows(self, rows: pa.Table) -> None:
        super().check_rows(rows)
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            check_years(name, column, _YEARS)


def _csv(rows: pa.Table, *, header: bool) -> bytes:
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(_with_spelled_floats(rows), sink, pyarrow.csv.WriteOptions(include_header=header))
    return bytes(sink.getvalue())


def _with_spelled_floats(rows: pa.Table) -> pa.Table:
    """Columns with NaN or infinities become text, in the spelling of Spark."""
    for index, (field, column) in enumerate(zip(rows.schema, rows.columns, strict=True)):
        if pa.types.is_floating(field.type) and not pc.all(pc.is_finite(column), min_count=0).as_py():
            text = column.cast(pa.string())
            for name, spelling in (("nan", "NaN"), ("inf", "Inf"), ("-inf", "-Inf")):
                text = pc.if_else(pc.equal(text, name), spelling, text)
            rows = rows.set_column(index, field.name, text)
    return rows


def _csv_of_one_column(rows: pa.Table) -> bytes:
    """Lines of which none is empty, because readers skip empty lines."""
    (column,) = rows.columns
    if column.null_count == 0:
        return _csv(rows, header=False)
    if is_text(column.type):
        return _csv(rows.set_column(0, rows.field(0), pc.fill_null(column, "")), header=False)
    lines = _csv(rows, header=False).split(b"\n")[:-1]
    return b"".join((line or b'""') + b"\n" for line in lines)
