"""Text: one line per row, of one string column. A null is an empty line.

Facts:
- Readers end a line at a carriage return, too.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from stateline.errors import ErrorKind, InvalidInputError
from stateline.files.formats.limits import is_text
from stateline.files.formats.lines import LineFormat

__all__ = ["TextFormat"]


class TextFormat(LineFormat):
    """Lines of text."""

    name = "text"

    def check_schema(self, schema: pa.Schema, *, for_spark: bool = True) -> None:
        super().check_schema(schema, for_spark=for_spark)
        if len(schema) != 1 or not is_text(schema.field(0).type):
            raise InvalidInputError(
                f"text files hold one string column, got {schema.names}",
                operation="write_files",
                hint="Select one string column, or choose another format",
                kind=ErrorKind.SCHEMA_MISMATCH,
            )

    def check_rows(self, rows: pa.Table) -> None:
        super().check_rows(rows)
        _check_lines(rows)

    def lines(self, rows: pa.Table) -> bytes:
        _check_lines(rows)
        return "".join(f"{value or ''}\n" for value in rows.column(0).to_pylist()).encode()


def _check_lines(rows: pa.Table) -> None:
    if pc.any(pc.match_substring_regex(rows.column(0), "[\r\n]")).as_py():
        raise InvalidInputError(
            "a value cannot hold a line break",
            operation="write_files",
            subject=f"column {rows.column_names[0]!r}",
            hint="Replace it, or use the format jsonl",
        )
