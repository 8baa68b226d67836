"""The settings of an exactly-once file output, and what a task hands back for it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from stateline.changelog.segment_writer import Placement
from stateline.errors import ErrorKind, InvalidInputError
from stateline.file_columns import FileColumn
from stateline.files.formats import FORMATS
from stateline.files.formats.format import GZIP_SUFFIX, Format
from stateline.files.nulls import check_countable
from stateline.files.partitions import check_partition, check_zone
from stateline.files.rolling import RollingPolicy
from stateline.handles import FinishedFile, OpenFile
from stateline.options import check_kind, parse_int
from stateline.partition_fields import PartitionField

__all__ = ["FileOutput", "FilesResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOutput:
    """One folder of output files.

    Files are called ``<column>=<value>/.../part-<uuid>.<format>``, with ``.gz`` where lines are compressed. The UUID is
    random, so no two files ever share a name.

    Attributes:
        url: Root of the output.
        format: One of :data:`~stateline.files.formats.FORMATS`.
        partition_by: Columns that become folders, outermost first. As in Spark, case does not matter; a folder is named
            as the column is spelled here. Where files have the columns, too, also parts of moments: ``day(column)``.
        partition_zone: The time zone whose clock names the folders of timestamps with a zone.
        columns_in_files: Whether files have the partition columns, too: for readers that do not look at folders.
        file_columns: Columns of the table that the files belong to, where it knows them by ids; empty for other files.
        compression: A codec of the format; ``None`` for its default.
        rolling: When a file is complete.
        row_group_rows: Most rows of a row group (Parquet) or record batch (Arrow); of long rows it has fewer.
        store_options: Options of the output's store.
    """

    url: str
    format: str = "parquet"
    partition_by: tuple[str, ...] = ()
    partition_zone: str = "UTC"
    columns_in_files: bool = False
    file_columns: tuple[FileColumn, ...] = ()
    compression: str | None = None
    rolling: RollingPolicy = field(default_factory=RollingPolicy)
    row_group_rows: int = 1_048_576
    store_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise _unknown("format", self.format, FORMATS)
        codecs = self.form.codecs
        if self.compression is not None and self.compression not in codecs:
            raise _unknown(f"compression of {self.format}", self.compression, codecs)
        for column in self.partition_by:
            check_kind(column, str, "partition_by", "names of columns")
        if len({column.lower() for column in self.partition_by}) != len(self.partition_by):
            raise InvalidInputError(
                f"cannot name a column twice, got {list(self.partition_by)}",
                subject="partition_by",
                hint="Remove the repeated name",
            )
        check_zone(self.partition_zone)
        check_kind(self.row_group_rows, int, "row_group_rows")
        parse_int(self.row_group_rows, "row_group_rows", minimum=1)

    def file_schema(self, rows: pa.Schema) -> pa.Schema:
        """The schema of the files for rows of this schema: without the partition columns.

        Raises:
            InvalidInputError: A partition column is missing or cannot name folders, no column is left for the files,
                the format cannot hold one, or two columns, also of a structure, differ only in case.
        """
        _check_distinct(list(rows))
        rows = self.named(rows)
        for each in self.partition_fields:
            if each.column not in rows.names:
                raise InvalidInputError(
                    f"expected a column of the output, got {each.column!r}",
                    operation="write_files",
                    subject="partition_by",
                    hint=f"The output has the columns {rows.names}",
                    kind=ErrorKind.SCHEMA_MISMATCH,
                )
            each.check(rows)
            check_partition(rows.field(each.column) if each.name == each.column else pa.field(each.name, pa.string()))
        in_folders = () if self.columns_in_files else self.partition_by
        left = pa.schema([field for field in rows if field.name not in in_folders])
        if not left.names:
            raise InvalidInputError(
                "must leave at least one column for the files",
                operation="write_files",
                subject=f"partition_by {self.partition_by}",
                hint="Name fewer columns: those of partition_by become folders",
            )
        check_countable(rows, "write_files")
        self.form.check_schema(left)
        return left

    @property
    def partition_fields(self) -> tuple[PartitionField, ...]:
        """What files are split by."""
        parse = PartitionField.parse if self.columns_in_files else PartitionField
        return tuple(map(parse, self.partition_by))

    def named(self, rows: pa.Schema) -> pa.Schema:
        """The same columns, named as in files and folders: as ``partition_by`` spells them, if it does."""
        spelled = {column.lower(): column for column in self.partition_by}
        fields = [field.with_name(spelled.get(field.name.lower(), field.name)) for field in rows]
        return pa.schema(fields, metadata=rows.metadata)

    def layout(self, rows: pa.Schema) -> str:
        """Digest of what all rows of one file have in common: 16 hexadecimal digits."""
        # Each value has a folder of its own now: rows of files that were opened before that stay among themselves.
        kept = ("exact",) if self.partition_by else (True,)
        told = (self.format, self.partition_by, *(kept if self.columns_in_files else ()))
        digest = hashlib.sha256(repr(told).encode())
        digest.update(rows.remove_metadata().serialize().to_pybytes())
        return digest.hexdigest()[:16]

    @property
    def form(self) -> Format:
        """The format."""
        return FORMATS[self.format]

    @property
    def suffix(self) -> str:
        """What follows ``part-<uuid>`` in the names of the files."""
        return f".{self.format}{GZIP_SUFFIX if self.form.of_lines and self.codec == 'gzip' else ''}"

    def encoding_of(self, target: str) -> tuple[Format, str | None]:
        """Format and codec of a file, by its name: it is finished as it was begun, also after a change of settings."""
        plain = target.removesuffix(GZIP_SUFFIX)
        form = FORMATS[plain.rpartition(".")[2]]
        if form.of_lines:
            return form, None if plain == target else "gzip"
        return form, (self if form is self.form else FileOutput(url=self.url, format=form.name)).codec

    @property
    def codec(self) -> str | None:
        """The codec as pyarrow spells it; ``None`` for uncompressed."""
        name = self.compression or self.form.codecs[0]
        return None if name == "none" else name


class FilesResult(msgspec.Struct, frozen=True):
    """What a task hands back: none of it visible, all of it durable once the segment is finished that was given.

    Attributes:
        finished: Files that the checkpoint publishes.
        open: Files that go on growing.
    """

    finished: tuple[FinishedFile, ...] = ()
    open: tuple[OpenFile, ...] = ()

    def placed(self, placement: Placement) -> FilesResult:
        """The same once the segment is finished that rows were added to."""
        files = (msgspec.structs.replace(file, pending=tuple(map(placement.of, file.pending))) for file in self.open)
        return FilesResult(self.finished, tuple(files))


def _check_distinct(fields: list[pa.Field]) -> None:
    """Spark, Hive, Trino and DuckDB ignore the case of names: they could not read the file."""
    seen: dict[str, str] = {}
    for name in (each.name for each in fields):
        other = seen.get(name.lower())
        seen[name.lower()] = name
        if other is not None:
            raise InvalidInputError(
                f"readers would take {other!r} and {name!r} for one column",
                operation="write_files",
                subject="schema",
                hint="Rename one of them",
                kind=ErrorKind.SCHEMA_MISMATCH,
            )
    for kind in (each.type for each in fields):
        if pa.types.is_nested(kind):
            _check_distinct([kind.field(index) for index in range(kind.num_fields)])


def _unknown(what: str, value: str, known: Iterable[str]) -> InvalidInputError:
    return InvalidInputError(f"unknown value {value!r}", subject=what, hint=f"Give one of {', '.join(known)}")
