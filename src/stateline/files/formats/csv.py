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

from stateline.files.formats.format import Format
from stateline.files.formats.kinds import is_binary, is_extension, is_text, is_view
from stateline.files.formats.lines import LINE_CODECS, LineEncoder
from stateline.files.formats.values import check_years

__all__ = ["CSV"]

_YEARS: Final = (-32767, 32767)


class _CsvEncoder(LineEncoder):
    def head(self, schema: pa.Schema) -> bytes:
        return _csv(schema.empty_table(), header=True)

    def lines(self, rows: pa.Table) -> bytes:
        return _csv(rows, header=False) if rows.num_columns > 1 else _csv_of_one_column(rows)


def _csv(rows: pa.Table, *, header: bool) -> bytes:
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(_with_spelled_floats(rows), sink, pyarrow.csv.WriteOptions(include_header=header))
    return bytes(sink.getvalue())


def _with_spelled_floats(rows: pa.Table) -> pa.Table:
    """Columns of floats in which some are no numbers: as text, in the spelling of Spark."""
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


def _complaint(kind: pa.DataType) -> str | None:
    if is_view(kind) or pa.types.is_run_end_encoded(kind):
        return "its encoder knows only plain values"
    if is_extension(kind):
        return f"its encoder knows only plain values; cast it to {kind.storage_type}"
    return "a field of CSV is flat text" if pa.types.is_nested(kind) or is_binary(kind) else None


def _check_rows(rows: pa.Table) -> None:
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        check_years(name, column, _YEARS)


CSV: Final = Format(
    encoder=_CsvEncoder, codecs=LINE_CODECS, complaint=_complaint, check_rows=_check_rows, of_lines=True
)
