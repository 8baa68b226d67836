"""What the metadata of an Iceberg table says of one file: its partition, its counts and its bounds.

All of it is made from the file, whose columns carry the ids of the table. The library's own way finds columns
by their names and takes partitions from bounds, and bounds leave out what a footer has no room for.

Facts:
- A reader leaves out a file by its partition, or by bounds. So a partition is the value that all rows have, or an
  error; and a bound that is not certain is left out.
- A Parquet footer has no bounds of values over 4 KiB. The value of such a partition is read from the file itself.
- Bounds of texts have 16 characters, of bytes 16 bytes, unless the table says otherwise. A cut upper bound is raised at
  its last character that can be raised; if none can, there is no upper bound.
- Bounds of floats are kept only where every value is finite, and zero is ``-0.0`` below and ``0.0`` above.
- What lies in lists and maps has no counts and no bounds: their values are not those of rows.
- Names of columns that Avro does not take are written in files as Iceberg's own writers write them: readers of other
  engines take a dot for a field of a structure.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import MetricModeTypes, MetricsMode, compute_statistics_plan, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema, make_compatible_name
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros, time_to_micros
from pyiceberg.utils.decimal import decimal_to_bytes

from stateline.errors import InvalidInputError
from stateline.file_columns import FIELD_ID, FileColumn
from stateline.tables.api import NewFile
from stateline.tables.columns import plain_type, refused_columns
from stateline.tables.footers import LeafBounds, leaf_bounds

__all__ = ["FileEntries", "SourceFile", "file_columns", "has_ids", "plain_columns"]

_SURROGATES: Final = (0xD800, 0xE000)
_LAST_CODE: Final = 0x10FFFF
_LAST_BYTE: Final = 0xFF
_FORMATS: Final[Mapping[type[IcebergType], str]] = {
    BooleanType: "<?",
    IntegerType: "<i",
    DateType: "<i",
    LongType: "<q",
    TimeType: "<q",
    TimestampType: "<q",
    TimestamptzType: "<q",
    FloatType: "<f",
    DoubleType: "<d",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A published file.

    Attributes:
        file: What the record says of it.
        path: How the table names it.
        footer: Its footer.
        column: Reads one leaf column, by its number.
    """

    file: NewFile
    path: str
    footer: pq.FileMetaData
    column: Callable[[int], pa.ChunkedArray]


@dataclass(frozen=True, slots=True)
class _Leaf:
    """One leaf column of a file.

    Attributes:
        index: Its number.
        field_id: Its id; ``None`` where the table has no such column.
        kind: Its type.
        name: The column of the file that it belongs to.
        is_repeated: Whether it has any number of values for a row.
    """

    index: int
    field_id: int | None
    kind: pa.DataType
    name: str
    is_repeated: bool


def plain_columns(schema: pa.Schema) -> pa.Schema:
    """Columns in the types that the format has: it has no whole numbers of less than 32 bits."""
    return pa.schema([_wide(pa.field(each.name, plain_type(each.type), each.nullable)) for each in schema])


def file_columns(schema: Schema) -> tuple[FileColumn, ...]:
    """The columns of a table, at any depth, with their ids and their names in files."""
    found: list[FileColumn] = []

    def add(field: NestedField, path: tuple[str, ...], name: str) -> None:
        found.append(FileColumn(path, field.field_id, name))
        kind = field.field_type
        if isinstance(kind, StructType):
            for each in kind.fields:
                add(each, (*path, each.name), make_compatible_name(each.name))
        elif isinstance(kind, ListType):
            add(kind.element_field, (*path, "element"), "element")
        elif isinstance(kind, MapType):
            add(kind.key_field, (*path, "key"), "key")
            add(kind.value_field, (*path, "value"), "value")

    for column in schema.fields:
        add(column, (column.name,), make_compatible_name(column.name))
    return tuple(found)


def has_ids(footer: pq.FileMetaData) -> bool:
    """Whether the columns of a file carry ids. Files of earlier versions do not."""
    return any(FIELD_ID in (field.metadata or {}) for field in footer.schema.to_arrow_schema())


class FileEntries:
    """Makes the entries of files in the manifests of one version of a table.

    Args:
        metadata: The table.
        mapping: Its names for files without ids.
        name: The table, for errors.
    """

    def __init__(self, metadata: TableMetadata, mapping: NameMapping, name: str) -> None:
        self._schema = metadata.schema()
        self._spec = metadata.spec()
        self._mapping = mapping
        self._name = name
        self._kinds = {number: self._schema.find_type(number) for number in self._schema.field_ids}
        self._plan = compute_statistics_plan(self._schema, metadata.properties)
        self._required = {field.name: set(Schema(field).field_ids) for field in self._schema.fields if field.required}

    def entry(self, source: SourceFile) -> DataFile:
        """The entry of a file.

        Raises:
            InvalidInputError: The table cannot take its columns, or it lies in more than one partition.
        """
        footer = source.footer
        leaves = list(_leaves(footer, self._mapping))
        self._check(leaves)
        counts, bounds = _Counts(), leaf_bounds(footer)
        known: dict[int, tuple[_Leaf, LeafBounds]] = {}
        for leaf in leaves:
            number = leaf.field_id
            if number is None or number not in self._plan:
                continue
            chunks = (footer.row_group(group).column(leaf.index) for group in range(footer.num_row_groups))
            counts.column_sizes[number] = sum(chunk.total_compressed_size for chunk in chunks)
            if not leaf.is_repeated:
                known[number] = leaf, bounds[leaf.index]
                counts.add(number, self._plan[number].mode, self._kinds[number], footer.num_rows, bounds[leaf.index])
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=source.path,
            file_format=FileFormat.PARQUET,
            partition=Record(*(self._partition(field, known, source) for field in self._spec.fields)),
            record_count=footer.num_rows,
            file_size_in_bytes=source.file.length,
            split_offsets=_split_offsets(footer),
            sort_order_id=None,
            spec_id=self._spec.spec_id,
            equality_ids=None,
            key_metadata=None,
            **asdict(counts),
        )

    def _check(self, leaves: Sequence[_Leaf]) -> None:
        """Refuses a file that readers of the table could not read, or would read without a column that it needs."""
        hint = "Change the table back"
        for leaf in leaves:
            if leaf.field_id is None:
                reason = f"it has no column for {leaf.name!r}"
            elif (kind := self._kinds.get(leaf.field_id)) is None:
                continue  # Somebody dropped the column after the rows were decided, which drops its values.
            elif isinstance(kind, PrimitiveType) and _becomes(leaf.kind, plain_type(schema_to_pyarrow(kind))):
                continue
            else:
                reason = f"column {leaf.name!r} is {kind} there, and {leaf.kind} in the file"
            raise refused_columns(f"cannot take the files: {reason}", self._name, hint)
        given = {leaf.field_id for leaf in leaves}
        missing = [name for name, numbers in self._required.items() if not numbers & given]
        if missing:
            reason = f"cannot take the files: it needs values for {missing}, and the files have none"
            raise refused_columns(reason, self._name, "Let the table take nulls there")

    def _partition(
        self, field: PartitionField, known: Mapping[int, tuple[_Leaf, LeafBounds]], source: SourceFile
    ) -> Any:
        """The value of one partition field, which all rows of the file have."""
        if field.source_id not in known:
            return None  # The column is not in the file: all its rows have null.
        leaf, values = known[field.source_id]
        if values.nulls != source.footer.num_rows and values.least is None:
            values = _values_in_file(source, leaf)
        if values.nulls == source.footer.num_rows:
            return None
        kind = self._kinds[field.source_id]
        transform = field.transform.transform(kind)
        least, greatest = (transform(_internal(value)) for value in (values.least, values.greatest))
        # Earlier versions wrote null and the empty text into one file.
        has_nulls = values.nulls != 0 and not (isinstance(field.transform, IdentityTransform) and greatest == "")
        if has_nulls or least != greatest:
            raise _several_partitions(leaf, source)
        return least


@dataclass(slots=True)
class _Counts:
    """Counts and bounds of a file by the ids of its columns, named as an entry names them."""

    column_sizes: dict[int, int] = field(default_factory=dict)
    value_counts: dict[int, int] = field(default_factory=dict)
    null_value_counts: dict[int, int] = field(default_factory=dict)
    nan_value_counts: dict[int, int] = field(default_factory=dict)
    lower_bounds: dict[int, bytes] = field(default_factory=dict)
    upper_bounds: dict[int, bytes] = field(default_factory=dict)

    def add(self, number: int, mode: MetricsMode, kind: IcebergType, rows: int, values: LeafBounds) -> None:
        """Add those of one column, as far as the table asks for them and they are certain."""
        if mode.type is MetricModeTypes.NONE:
            return
        self.value_counts[number] = rows
        if values.nulls is not None:
            self.null_value_counts[number] = values.nulls
        if isinstance(kind, FloatType | DoubleType) and (values.least is not None or values.nulls == rows):
            self.nan_value_counts[number] = 0
        if mode.type is MetricModeTypes.COUNTS or values.least is None:
            return
        for side, bound in zip((self.lower_bounds, self.upper_bounds), _bounds(kind, values, mode.length), strict=True):
            if bound is not None:
                side[number] = bound


def _wide(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_int8(kind) or pa.types.is_int16(kind):
        return field.with_type(pa.int32())
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct([_wide(each) for each in kind]))
    if pa.types.is_map(kind):
        return field.with_type(pa.map_(_wide(kind.key_field).type, _wide(kind.item_field).type))
    return field.with_type(pa.list_(_wide(kind.value_field))) if pa.types.is_list(kind) else field


def _leaves(footer: pq.FileMetaData, mapping: NameMapping) -> Iterator[_Leaf]:
    numbers = iter(range(footer.num_columns))
    is_mapped = not has_ids(footer)

    def inside(field: pa.Field, top: str, names: Sequence[MappedField], *, repeated: bool) -> Iterator[_Leaf]:
        kind = field.type
        told = (field.metadata or {}).get(FIELD_ID)
        found = next((each for each in names if field.name in each.names), None) if is_mapped else None
        below = () if found is None else tuple(found.fields)
        if pa.types.is_struct(kind):
            for each in kind:
                yield from inside(each, top, below, repeated=repeated)
        elif pa.types.is_map(kind):
            for each, role in ((kind.key_field, "key"), (kind.item_field, "value")):
                yield from inside(each.with_name(role), top, below, repeated=True)
        elif pa.types.is_nested(kind):
            yield from inside(kind.value_field.with_name("element"), top, below, repeated=True)
        else:
            number = (None if found is None else found.field_id) if is_mapped else None if told is None else int(told)
            yield _Leaf(next(numbers), number, kind, top, repeated)

    for column in footer.schema.to_arrow_schema():
        yield from inside(column, column.name, mapping.root, repeated=False)


def _becomes(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a reader of a table reads a column of a file as the type that the table has, or has got since."""
    kind = _wide(pa.field("", plain_type(kind))).type
    if pa.types.is_decimal(kind) and pa.types.is_decimal(wanted):
        return bool(kind.scale == wanted.scale and kind.precision <= wanted.precision)
    wider = {pa.int32(): pa.int64(), pa.float32(): pa.float64()}
    return bool(kind == wanted or wider.get(kind) == wanted)


def _bounds(kind: IcebergType, values: LeafBounds, length: int | None) -> tuple[bytes | None, bytes | None]:
    """Lower and upper bound as Iceberg stores single values; ``None`` for none."""
    least, greatest = _internal(values.least), _internal(values.greatest)
    if isinstance(kind, StringType):
        upper = _raised_text(greatest, length)
        return least[:length].encode(), None if upper is None else upper.encode()
    if isinstance(kind, BinaryType):
        return least[:length], _raised_bytes(greatest, length)
    if isinstance(kind, DecimalType):
        return decimal_to_bytes(least), decimal_to_bytes(greatest)
    form = _FORMATS.get(type(kind))
    return (None, None) if form is None else (struct.pack(form, least), struct.pack(form, greatest))


def _raised_text(text: str, length: int | None) -> str | None:
    """A text of at most so many characters that is not less than this one; ``None`` if there is none."""
    if length is None or len(text) <= length:
        return text
    for end in range(length, 0, -1):
        code = ord(text[end - 1])
        if code < _LAST_CODE:
            following = _SURROGATES[1] if code + 1 == _SURROGATES[0] else code + 1
            return text[: end - 1] + chr(following)
    return None


def _raised_bytes(value: bytes, length: int | None) -> bytes | None:
    if length is None or len(value) <= length:
        return value
    for end in range(length, 0, -1):
        if value[end - 1] < _LAST_BYTE:
            return value[: end - 1] + bytes([value[end - 1] + 1])
    return None


def _values_in_file(source: SourceFile, leaf: _Leaf) -> LeafBounds:
    """The least and the greatest value of a column of which a footer does not say enough."""
    column = source.column(leaf.index)
    found = sorted(column.unique().drop_null().to_pylist())
    return LeafBounds(column.null_count, found[0], found[-1]) if found else LeafBounds(column.null_count)


def _several_partitions(leaf: _Leaf, source: SourceFile) -> InvalidInputError:
    return InvalidInputError(
        f"cannot take a file whose rows lie in more than one partition of column {leaf.name!r}",
        operation="commit",
        subject=source.path,
        hint="Split the rows by the partitioning of the table",
    )


def _internal(value: Any) -> Any:
    """A value as the library has it inside: days of a date, microseconds of a time, all else as it is."""
    if isinstance(value, dt.datetime):
        return datetime_to_micros(value)
    if isinstance(value, dt.date):
        return date_to_days(value)
    return time_to_micros(value) if isinstance(value, dt.time) else value


def _split_offsets(footer: pq.FileMetaData) -> list[int]:
    """Where the row groups begin."""
    starts = []
    for group in range(footer.num_row_groups):
        chunk = footer.row_group(group).column(0)
        first = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
        starts.append(chunk.data_page_offset if first is None else min(first, chunk.data_page_offset))
    return sorted(starts)
