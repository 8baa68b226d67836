"""From Arrow rows to the bytes of a file, format by format.

Owns the encoding. Does not own when a file is complete (``rolling``) nor where its bytes go (the recoverable stream).

| format | bytes | limits |
|---|---|---|
| ``parquet`` | row groups as ``row_groups`` says | |
| ``arrow`` | Arrow IPC file, record batches as ``row_groups`` says | |
| ``csv`` | RFC 4180 with a header line; a null is nothing, an empty string is ``""`` | flat columns |
| ``jsonl`` | one JSON object per line | keys of maps are no structures, fractions or booleans |
| ``text`` | one line per row; a null is an empty line | one string column; a value must not hold a line break |

Facts:
- In JSON maps are objects, binary is base64, decimals are text, times are ISO 8601, NaN and infinities are null.
- Spark has years that lines have not: Python's times, of which JSON is made, know 1 to 9999, and Arrow's CSV counts
  years in 16 bits. Others are refused. So are nanoseconds in JSON, for Python's times have none.
- In CSV floats are ``NaN``, ``Inf`` and ``-Inf``, for Spark reads ``nan`` as null; pyarrow and DuckDB know both.
- Parquet has no structures without fields.
- Spark's intervals have no common form in files, so columns of these types are refused with that reason.
- Readers of lines know compressed ones by the ending of the file's name, so it says ``.gz``.
- Readers of CSV skip empty lines, so in a file of one column a null is ``""``, too.
- Readers of text end a line at a carriage return, too.
"""

from __future__ import annotations

import gzip
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from stateline.errors import ErrorKind, InvalidInputError
from stateline.files.partitions import name_fits
from stateline.files.precision import check_microseconds

__all__ = [
    "COMPRESSIONS",
    "FORMATS",
    "GZIP_ENDING",
    "LINE_FORMATS",
    "Encoder",
    "Sink",
    "SinkFile",
    "check_partition",
    "check_partition_values",
    "check_rows",
    "check_schema",
    "make_encoder",
]


_SAMPLE_ROWS: Final = 16_384
_UNIQUE_SHARE: Final = 0.5
"""How many of the first rows may have values of their own before a dictionary is not worth its time."""

_YEARS: Final[Mapping[str, tuple[int, int]]] = {"csv": (-32767, 32767), "jsonl": (1, 9999)}
"""First and last year of a time or date, in formats that do not hold all of Spark's."""

_FOLDER_YEARS: Final = (1, 9999)
_SECONDS_A_DAY: Final = 86_400
_IN_A_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


class Sink(Protocol):
    """Where encoded bytes go."""

    def write(self, data: bytes) -> int:
        """Takes all of ``data``."""
        ...


class Encoder(ABC):
    """Encodes one file. ``write`` any number of tables of one schema, then ``finish`` once."""

    @abstractmethod
    def write(self, rows: pa.Table) -> None:
        """Encodes rows."""

    @abstractmethod
    def finish(self) -> None:
        """Writes what ends the file. Does not close the sink."""


class _ParquetEncoder(Encoder):
    def __init__(self, sink: Sink, schema: pa.Schema, codec: str | None, row_group_rows: int) -> None:
        self._rows = row_group_rows
        self._file = pa.PythonFile(SinkFile(sink), mode="w")
        self._schema = schema
        self._codec = codec or "none"
        self._opened: pq.ParquetWriter | None = None

    def write(self, rows: pa.Table) -> None:
        self._writer(rows).write_table(rows, row_group_size=self._rows)

    def finish(self) -> None:
        self._writer(self._schema.empty_table()).close()

    def _writer(self, rows: pa.Table) -> pq.ParquetWriter:
        if self._opened is None:
            repeating: list[str] | bool = _repeating_leaves(rows) or False
            self._opened = pq.ParquetWriter(self._file, self._schema, compression=self._codec, use_dictionary=repeating)
        return self._opened


def _repeating_leaves(rows: pa.Table) -> list[str]:
    """The leaf columns, by path, that a dictionary makes smaller.

    A dictionary that finds almost every value new is given up by the encoder, but only after it has cost more than all
    the rest of the encoding. So columns whose first values hardly repeat are written without one.
    """
    sample = rows.slice(0, _SAMPLE_ROWS)
    unique = {
        name
        for name, column in zip(sample.column_names, sample.columns, strict=True)
        if not pa.types.is_nested(column.type)
        and not pa.types.is_dictionary(column.type)
        # Spark's variants and the like are nested; nulls have no values to count.
        and not pa.types.is_null(column.type)
        and pc.count_distinct(column).as_py() > _UNIQUE_SHARE * sample.num_rows
    }
    empty = pa.BufferOutputStream()
    pq.write_table(rows.schema.empty_table(), empty)
    leaves = pq.read_metadata(pa.BufferReader(empty.getvalue())).schema
    paths = [leaves.column(index).path for index in range(len(leaves))]
    return [path for path in paths if path not in unique]


class _ArrowEncoder(Encoder):
    def __init__(self, sink: Sink, schema: pa.Schema, codec: str | None, row_group_rows: int) -> None:
        self._rows = row_group_rows
        options = pa.ipc.IpcWriteOptions(compression=codec)
        self._writer = pa.ipc.new_file(pa.PythonFile(SinkFile(sink), mode="w"), schema, options=options)

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, max_chunksize=self._rows)

    def finish(self) -> None:
        self._writer.close()


class _LineEncoder(Encoder):
    """Formats whose files are lines: compressed, a file is a sequence of gzip members, which every reader joins."""

    def __init__(self, sink: Sink, schema: pa.Schema, codec: str | None, row_group_rows: int) -> None:  # noqa: ARG002
        self._sink = sink
        self._codec = codec
        head = self.head(schema)
        if head:
            self._put(head)

    def head(self, schema: pa.Schema) -> bytes:  # noqa: ARG002 - for subclasses
        """What a file begins with."""
        return b""

    @abstractmethod
    def lines(self, rows: pa.Table) -> bytes:
        """Rows as lines."""

    def write(self, rows: pa.Table) -> None:
        self._put(self.lines(rows))

    def finish(self) -> None:
        """Nothing: a file of lines ends with its last line."""

    def _put(self, data: bytes) -> None:
        self._sink.write(gzip.compress(data, mtime=0) if self._codec == "gzip" else data)


class _CsvEncoder(_LineEncoder):
    def head(self, schema: pa.Schema) -> bytes:
        return _csv(schema.empty_table(), header=True)

    def lines(self, rows: pa.Table) -> bytes:
        return _csv(rows, header=False) if rows.num_columns > 1 else _csv_of_one_column(rows)


class _JsonLinesEncoder(_LineEncoder):
    _encoder: Final = msgspec.json.Encoder(decimal_format="string")

    def lines(self, rows: pa.Table) -> bytes:
        return self._encoder.encode_lines(_json_rows(rows))


class _TextEncoder(_LineEncoder):
    def lines(self, rows: pa.Table) -> bytes:
        _check_lines(rows)
        return "".join(f"{value or ''}\n" for value in rows.column(0).to_pylist()).encode()


_ENCODERS: Final[Mapping[str, Callable[[Sink, pa.Schema, str | None, int], Encoder]]] = {
    "parquet": _ParquetEncoder,
    "arrow": _ArrowEncoder,
    "csv": _CsvEncoder,
    "jsonl": _JsonLinesEncoder,
    "text": _TextEncoder,
}

FORMATS: Final = tuple(_ENCODERS)
"""Formats by name; it is also the ending of the files' names."""

LINE_FORMATS: Final = ("csv", "jsonl", "text")
"""Formats of lines, whose codec is told by the end of the name."""

GZIP_ENDING: Final = ".gz"
"""What comes after the format in the name of a compressed file of lines."""

COMPRESSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "parquet": ("snappy", "zstd", "lz4", "gzip", "brotli", "none"),
    "arrow": ("zstd", "lz4", "none"),
    "csv": ("none", "gzip"),
    "jsonl": ("none", "gzip"),
    "text": ("none", "gzip"),
}
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
    return _ENCODERS[name](sink, schema, codec, row_group_rows)


def check_schema(name: str, schema: pa.Schema) -> None:
    """Checks that a format can hold columns of these types.

    Raises:
        InvalidInputError: Names the column, its type and the reason.
    """
    for field in schema:
        reason = _complaint(name, field.type)
        if reason is not None:
            raise InvalidInputError(
                f"{field.type} cannot be written as {name}: {reason}",
                operation="write_files",
                subject=f"column {field.name!r}",
                hint="Convert the column, or choose another format",
                kind=ErrorKind.SCHEMA_MISMATCH,
            )
    if name == "text" and (len(schema) != 1 or not _is_text(schema.field(0).type)):
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
    _check_text(rows)
    if name == "text":
        _check_lines(rows)
    if name in _YEARS:
        _check_years(rows, *_YEARS[name])
    if name == "jsonl":
        check_microseconds(rows)
        _json_rows(rows.select([field.name for field in rows.schema if _may_have_no_json(field.type)]))


def _check_text(rows: pa.Table) -> None:
    """Checks that all text is UTF-8. Spark makes text of any bytes, but readers refuse a file that holds such."""
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if not _holds(field.type, _is_text):
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


def check_partition_values(rows: pa.Table) -> None:
    """Checks that the values of columns can be names of folders.

    Raises:
        InvalidInputError: Names the column, and says what is wrong with a value.
    """
    binary = [index for index, field in enumerate(rows.schema) if _is_binary(field.type)]
    for index in binary:
        # Different bytes would become the same text otherwise, and the folder is all that tells the value.
        column = rows.column(index).cast(pa.large_binary()).cast(pa.large_string(), safe=False)
        rows = rows.set_column(index, rows.field(index).name, column)
    _check_text(rows)
    _check_years(rows, *_FOLDER_YEARS)
    check_microseconds(rows)


def _check_years(rows: pa.Table, first: int, last: int) -> None:
    days = [int(np.datetime64(year - 1970, "Y").astype("datetime64[D]").astype("int64")) for year in (first, last + 1)]
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if pa.types.is_date32(field.type):
            in_a_day, values = 1, column.cast(pa.int32())
        elif pa.types.is_timestamp(field.type):
            in_a_day, values = _SECONDS_A_DAY * _IN_A_SECOND[field.type.unit], column.cast(pa.int64())
        else:
            continue
        bounds = pc.min_max(values).as_py()
        if bounds["min"] is not None and not days[0] * in_a_day <= bounds["min"] <= bounds["max"] < days[1] * in_a_day:
            raise _wrong_year(f"column {field.name!r}", first, last)


def _wrong_year(subject: str, first: int, last: int) -> InvalidInputError:
    return InvalidInputError(
        f"a value lies outside of the years {first} to {last}",
        operation="write_files",
        subject=subject,
        hint="Make it text, or write it as a column of a Parquet file",
    )


def _check_lines(rows: pa.Table) -> None:
    if pc.any(pc.match_substring_regex(rows.column(0), "[\r\n]")).as_py():
        raise InvalidInputError(
            "a value holds a line break",
            operation="write_files",
            subject=f"column {rows.column_names[0]!r}",
            hint="Replace it, or use the format jsonl",
        )


def _json_rows(rows: pa.Table) -> list[dict[str, Any]]:
    try:
        return cast("list[dict[str, Any]]", rows.to_pylist(maps_as_pydicts="strict"))
    except KeyError as error:
        raise InvalidInputError(
            f"a map holds a key twice ({error})",
            operation="write_files",
            subject=f"columns {rows.column_names}",
            hint="Make its keys distinct, or use the format parquet",
        ) from error
    except (OverflowError, ValueError) as error:
        raise _wrong_year(f"columns {rows.column_names}", *_YEARS["jsonl"]) from error


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
    elif pa.types.is_dictionary(field.type) or _is_view(field.type):
        reason = f"rows are not split by {field.type}, only by plain values"
    elif _is_interval(field.type):
        reason = f"{field.type} cannot be the name of a folder: {_INTERVALS}"
    if reason is not None:
        raise InvalidInputError(
            reason,
            operation="write_files",
            subject=f"partition_by {field.name!r}",
            hint="Rename or convert the column, or partition by another one",
            kind=ErrorKind.SCHEMA_MISMATCH,
        )


_INTERVALS: Final = "readers do not agree on the form of intervals"


def _complaint(name: str, kind: pa.DataType) -> str | None:
    if _is_interval(kind):
        return _INTERVALS
    if name == "parquet" and pa.types.is_struct(kind) and kind.num_fields == 0:
        return "Parquet has no structures without fields"
    if name == "parquet" and pa.types.is_decimal(kind) and not 0 <= kind.scale <= kind.precision:
        return "Parquet has no decimals whose point lies beside their digits"
    if name in ("parquet", "csv") and (_is_view(kind) or pa.types.is_run_end_encoded(kind)):
        return "its encoder knows only plain values"
    if name == "csv" and (pa.types.is_nested(kind) or _is_binary(kind)):
        return "a field of CSV is flat text"
    if name == "jsonl" and pa.types.is_map(kind) and not _is_json_name(kind.key_type):
        return f"a name in JSON is text, and not {kind.key_type}"
    if name == "jsonl" and pa.types.is_timestamp(kind) and kind.unit == "ns":
        return "a moment of a JSON file has microseconds"
    return next(filter(None, (_complaint(name, child) for child in _children(kind))), None)


def _children(kind: pa.DataType) -> list[pa.DataType]:
    return [kind.field(index).type for index in range(kind.num_fields)] if pa.types.is_nested(kind) else []


def _holds(kind: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    return test(kind) or any(_holds(child, test) for child in _children(kind))


def _may_have_no_json(kind: pa.DataType) -> bool:
    """Whether only the values tell if they have a form in JSON; :func:`_check_years` looks at flat columns."""
    is_time = pa.types.is_nested(kind) and _holds(kind, lambda child: bool(pa.types.is_temporal(child)))
    return is_time or _holds(kind, pa.types.is_map)


def _is_interval(kind: pa.DataType) -> bool:
    return bool(pa.types.is_interval(kind) or pa.types.is_duration(kind))


def _is_json_name(kind: pa.DataType) -> bool:
    has_no_text = pa.types.is_nested(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)
    return not (has_no_text or pa.types.is_floating(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


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
    if _is_text(column.type):
        return _csv(rows.set_column(0, rows.field(0), pc.fill_null(column, "")), header=False)
    lines = _csv(rows, header=False).split(b"\n")[:-1]
    return b"".join((line or b'""') + b"\n" for line in lines)


class SinkFile:
    """A sink as the file object that pyarrow's encoders write to; closing it publishes nothing."""

    closed = False

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._position = 0

    def write(self, data: Any) -> int:
        """Takes all of ``data``: bytes, or a buffer of Arrow's."""
        self._position += len(data)
        return self._sink.write(data)

    def tell(self) -> int:
        """Bytes so far."""
        return self._position

    def flush(self) -> None:
        """Nothing: what counts is made durable when the stream is closed for its commit."""

    def close(self) -> None:
        """Takes no more."""
        self.closed = True
