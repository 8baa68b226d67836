"""Text: one line per row, of one string column. A null is an empty line.

Facts:
- Readers end a line at a carriage return, too.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from stateline.errors import InvalidInputError
from stateline.files.formats.format import Format
from stateline.files.formats.lines import LINE_CODECS, LineEncoder

__all__ = ["TEXT"]


class _TextEncoder(LineEncoder):
    def lines(self, rows: pa.Table) -> bytes:
        _check_lines(rows)
        return "".join(f"{value or ''}\n" for value in rows.column(0).to_pylist()).encode()


def _check_lines(rows: pa.Table) -> None:
    if pc.any(pc.match_substring_regex(rows.column(0), "[\r\n]")).as_py():
        raise InvalidInputError(
            "a value holds a line break",
            operation="write_files",
            subject=f"column {rows.column_names[0]!r}",
            hint="Replace it, or use the format jsonl",
        )


TEXT: Final = Format(
    encoder=_TextEncoder, codecs=LINE_CODECS, complaint=lambda _: None, check_rows=_check_lines, of_lines=True
)
