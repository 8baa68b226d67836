"""Parquet: row groups as ``row_groups`` says, and no statistics of floats: see ``float_bounds``.

What Spark cannot read is refused where the output is declared; later the error would come to whoever reads the folder,
about all of its files. Each type of Arrow was written by pyarrow 26 and read by Spark 4.3:

| Arrow | Spark reads |
|---|---|
| ``bool``, ``int8`` to ``int64``, ``float``, ``double`` | the same |
| ``uint8``, ``uint16``, ``uint32``, ``uint64`` | ``smallint``, ``int``, ``bigint``, ``decimal(20, 0)`` |
| ``decimal32``, ``decimal64``, ``decimal128``, ``decimal256`` to 38 digits | ``decimal`` |
| ``decimal256`` of more digits | an error: ``DECIMAL_PRECISION_EXCEEDS_MAX_PRECISION`` |
| ``float16`` | an error: ``PARQUET_TYPE_ILLEGAL`` |
| ``timestamp`` in s, ms, us | ``timestamp`` with a zone, ``timestamp_ntz`` without one |
| ``timestamp`` in ns | an error: ``PARQUET_TYPE_ILLEGAL`` |
| ``date32``, ``date64`` | ``date`` |
| ``time64`` in us, ns | ``time``, where ``spark.sql.timeType.enabled`` is set |
| ``time32`` | an error: ``PARQUET_TYPE_ILLEGAL`` |
| strings, binary, large and fixed-size | ``string``, ``binary`` |
| lists of any layout, structures, maps, dictionaries | what is inside decides |

pyarrow itself writes no intervals of months, no views, no runs, no structures without fields, and decimals only whose
point lies within their digits. Its extension types have no kernel that counts distinct values, and Spark would read
what they are stored as.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stateline.files.formats.float_bounds import FloatBounds
from stateline.files.formats.format import Encoder, Format, Sink, SinkFile
from stateline.files.formats.limits import is_extension, is_view

__all__ = ["ParquetFormat"]

_FLOATS: Final = ("FLOAT", "DOUBLE")
_SAMPLE_ROWS: Final = 16_384
_UNIQUE_SHARE: Final = 0.5
"""How many of the first rows may have values of their own before a dictionary is not worth its time."""

_SPARK_DIGITS: Final = 38


class ParquetFormat(Format):
    """Parquet files."""

    name = "parquet"
    codecs = ("snappy", "zstd", "lz4", "gzip", "brotli", "none")

    def encoder(self, sink: Sink, schema: pa.Schema, codec: str | None, row_group_rows: int) -> Encoder:
        return _ParquetEncoder(sink, schema, codec, row_group_rows)

    def complaint(self, kind: pa.DataType) -> str | None:
        if pa.types.is_struct(kind) and kind.num_fields == 0:
            return "Parquet has no structures without fields"
        if pa.types.is_decimal(kind) and not 0 <= kind.scale <= kind.precision:
            return "Parquet has no decimals whose point lies beside their digits"
        if is_view(kind) or pa.types.is_run_end_encoded(kind):
            return "its encoder knows only plain values"
        return f"its encoder knows only plain values; cast it to {kind.storage_type}" if is_extension(kind) else None

    def cast(self, kind: pa.DataType) -> pa.DataType | None:
        if pa.types.is_float16(kind):
            return pa.float32()
        if pa.types.is_decimal(kind) and kind.precision > _SPARK_DIGITS:
            return pa.decimal128(_SPARK_DIGITS, min(kind.scale, _SPARK_DIGITS))
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            return pa.timestamp("us", kind.tz)
        return pa.time64("us") if pa.types.is_time32(kind) else None


class _ParquetEncoder(Encoder):
    def __init__(self, sink: Sink, schema: pa.Schema, codec: str | None, row_group_rows: int) -> None:
        self._rows = row_group_rows
        self._file = pa.PythonFile(SinkFile(sink), mode="w")
        self._schema = schema
        self._codec = codec or "none"
        self._opened: pq.ParquetWriter | None = None
        self._bounds = FloatBounds(schema)

    def write(self, rows: pa.Table) -> None:
        self._bounds.add(rows)
        self._writer(rows).write_table(rows, row_group_size=self._rows)

    def finish(self) -> None:
        writer = self._writer(self._schema.empty_table())
        if metadata := self._bounds.metadata():
            writer.add_key_value_metadata(metadata)
        writer.close()

    def _writer(self, rows: pa.Table) -> pq.ParquetWriter:
        if self._opened is None:
            leaves = _leaves_of(rows.schema)
            self._opened = pq.ParquetWriter(
                self._file,
                self._schema,
                compression=self._codec,
                use_dictionary=_repeating_leaves(rows, leaves) or False,
                write_statistics=_ordered_leaves(leaves),
            )
        return self._opened


def _leaves_of(schema: pa.Schema) -> list[pq.ColumnSchema]:
    """The leaf columns of a Parquet file of these columns."""
    empty = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), empty)
    leaves = pq.read_metadata(pa.BufferReader(empty.getvalue())).schema
    return [leaves.column(index) for index in range(len(leaves))]


def _ordered_leaves(leaves: list[pq.ColumnSchema]) -> list[str]:
    """The leaf columns, by path, that get statistics: all but floats, whose NaN readers order differently."""
    floats = {leaf.path for leaf in leaves if leaf.physical_type in _FLOATS or str(leaf.logical_type) == "Float16"}
    return [leaf.path for leaf in leaves if leaf.path not in floats]


def _repeating_leaves(rows: pa.Table, leaves: list[pq.ColumnSchema]) -> list[str]:
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
    return [leaf.path for leaf in leaves if leaf.path not in unique]
