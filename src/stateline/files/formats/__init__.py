"""From Arrow rows to the bytes of a file, format by format, each in a module of its own.

Owns the encoding. Does not own when a file is complete (``rolling``) nor where its bytes go (the recoverable stream).

| format | bytes | limits |
|---|---|---|
| ``parquet`` | row groups as ``row_groups`` says | what Spark cannot read from it |
| ``arrow`` | Arrow IPC file, record batches as ``row_groups`` says | |
| ``csv`` | RFC 4180 with a header line; a null is nothing, an empty string is ``""`` | flat columns |
| ``jsonl`` | one JSON object per line | keys of maps are no structures, fractions or booleans |
| ``text`` | one line per row; a null is an empty line | one string column; a value must not hold a line break |

Spark's intervals have no common form in files, so columns of these types are refused with that reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from stateline.errors import ErrorKind, InvalidInputError
from stateline.files.formats.arrow import ARROW
from stateline.files.formats.csv import CSV
from stateline.files.formats.folders import check_partition, check_zone, folder_values
from stateline.files.formats.format import Encoder, Format, Sink, SinkFile
from stateline.files.formats.jsonl import JSONL
from stateline.files.formats.kinds import children, is_interval, is_text
from stateline.files.formats.lines import GZIP_ENDING
from stateline.files.formats.parquet import PARQUET
from stateline.files.formats.text import TEXT
from stateline.files.formats.values import check_text

__all__ = [
    "COMPRESSIONS",
    "FORMATS",
    "GZIP_ENDING",
    "LINE_FORMATS",
    "Encoder",
    "Sink",
    "SinkFile",
    "check_partition",
    "check_rows",
    "check_schema",
    "check_zone",
    "folder_values",
    "make_encoder",
]

_FORMATS: Final[Mapping[str, Format]] = {
    "parquet": PARQUET,
    "arrow": ARROW,
    "csv": CSV,
    "jsonl": JSONL,
    "text": TEXT,
}

FORMATS: Final = tuple(_FORMATS)
"""Formats by name; it is also the ending of the files' names."""

LINE_FORMATS: Final = tuple(name for name, form in _FORMATS.items() if form.of_lines)
"""Formats of lines, whose codec is told by the end of the name."""

COMPRESSIONS: Final[Mapping[str, tuple[str, ...]]] = {name: form.codecs for name, form in _FORMATS.items()}
"""Codecs per format; the first is the default."""


def make_encoder(name: str, sink: Sink, schema: pa.Schema, codec: str | None, row_group_rows: int) -> Encoder:
    """An encoder for one file.

    Args:
        name: One of :data:`FORMATS`.
        sink: Where the bytes go.
        schema: Of all tables to come.
        codec: One of the format's :data:`COMPRESSIONS`; ``None`` for none.
        row_group_rows: Rows per row group or record batch.
    """
    return _FORMATS[name].encoder(sink, schema, codec, row_group_rows)


def check_schema(name: str, schema: pa.Schema, *, for_spark: bool = True) -> None:
    """Checks that a format can hold columns of these types.

    Args:
        name: One of :data:`FORMATS`.
        schema: The columns.
        for_spark: Whether Spark must be able to read them, too.

    Raises:
        InvalidInputError: Names the column, its type and the reason, or what to cast it to.
    """
    for field in schema:
        reason = _complaint(_FORMATS[name], field.type, for_spark=for_spark)
        if reason is not None:
            raise InvalidInputError(
                f"{field.type} cannot be written as {name}: {reason}",
                operation="write_files",
                subject=f"column {field.name!r}",
                hint="Convert the column, or choose another format",
                kind=ErrorKind.SCHEMA_MISMATCH,
            )
    if name == "text" and (len(schema) != 1 or not is_text(schema.field(0).type)):
        raise InvalidInputError(
            f"text files hold one string column, the output has {schema.names}",
            operation="write_files",
            hint="Select one string column, or choose another format",
            kind=ErrorKind.SCHEMA_MISMATCH,
        )


def check_rows(name: str, rows: pa.Table) -> None:
    """Checks what only the values tell, before they are durable: afterwards nobody could take them back.

    Raises:
        InvalidInputError: Names the column, and says what is wrong with a value.
    """
    check_text(rows)
    _FORMATS[name].check_rows(rows)


def _complaint(form: Format, kind: pa.DataType, *, for_spark: bool) -> str | None:
    if is_interval(kind):
        return "readers do not agree on the form of intervals"
    reason = form.complaint(kind)
    if reason is None and for_spark and (target := form.cast(kind)) is not None:
        reason = f"Spark cannot read {kind} from it; cast it to {target}"
    is_encoded = pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind)
    inside = [kind.value_type] if is_encoded else children(kind)
    return reason or next(filter(None, (_complaint(form, child, for_spark=for_spark) for child in inside)), None)
