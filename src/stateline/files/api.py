"""What an exactly-once file output is, told once by the user and carried to every task.

Owns the settings and the result of a task. Does not own the decision: a file is visible only after the checkpoint
record that names it exists, and the coordinator publishes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from stateline.changelog.segment_writer import Placement
from stateline.errors import ErrorKind, InvalidInputError
from stateline.files.formats import (
    COMPRESSIONS,
    FORMATS,
    GZIP_ENDING,
    LINE_FORMATS,
    check_partition,
    check_schema,
    check_zone,
)
from stateline.files.nulls import check_countable
from stateline.files.rolling import RollingPolicy
from stateline.handles import FinishedFile, OpenFile
from stateline.options import check_kind, parse_int

__all__ = ["FileOutput", "FilesResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOutput:
    """One folder of output files.

    Files are called ``<column>=<value>/.../part-<uuid>.<format>``, and ``.gz`` is added where lines are compressed: the
    UUID is random, so no two files ever share a name, and a name says nothing about attempts.

    Attributes:
        url: Root of the output.
        format: One of :data:`~stateline.files.formats.FORMATS`.
        partition_by: Columns that become folders, outermost first. As in Spark, upper and lower case are not told
            apart, and a folder is called as the column is spelled here.
        partition_zone: The time zone whose clock names the folders of moments with a zone.
        compression: A codec of the format; ``None`` for its default.
        rolling: When a file is complete.
        row_group_rows: Most rows of a row group (Parquet) or record batch (Arrow); of long rows it has fewer.
        store_options: Options of the output's store.
    """

    url: str
    format: str = "parquet"
    partition_by: tuple[str, ...] = ()
    partition_zone: str = "UTC"
    compression: str | None = None
    rolling: RollingPolicy = field(default_factory=RollingPolicy)
    row_group_rows: int = 1_048_576
    store_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise _unknown("format", self.format, FORMATS)
        if self.compression is not None and self.compression not in COMPRESSIONS[self.format]:
            raise _unknown(f"compression of {self.format}", self.compression, COMPRESSIONS[self.format])
        for column in self.partition_by:
            check_kind(column, str, "partition_by", "names of columns")
        if len({column.lower() for column in self.partition_by}) != len(self.partition_by):
            raise InvalidInputError(
                f"{list(self.partition_by)} names a column twice", subject="partition_by", hint="Name each column once"
            )
        check_zone(self.partition_zone)
        check_kind(self.row_group_rows, int, "row_group_rows")
        parse_int(self.row_group_rows, "row_group_rows", minimum=1)

    def file_schema(self, rows: pa.Schema) -> pa.Schema:
        """The schema of the files for rows of this schema: without the columns that the folders tell.

        Raises:
            InvalidInputError: A partition column is missing or cannot be a folder, no column would be left for the
                files, the format cannot hold one, elements of lists or maps have no type, or two columns differ only in
                upper and lower case, also in structures.
        """
        _check_distinct(list(rows))
        rows = self.named(rows)
        for column in self.partition_by:
            if column not in rows.names:
                raise InvalidInputError(
                    f"there is no column {column!r}",
                    operation="write_files",
                    subject="partition_by",
                    hint=f"The output has {rows.names}",
                    kind=ErrorKind.SCHEMA_MISMATCH,
                )
            check_partition(rows.field(column))
        left = pa.schema([field for field in rows if field.name not in self.partition_by])
        if not left.names:
            raise InvalidInputError(
                "no column would be left for the files",
                operation="write_files",
                subject=f"partition_by {self.partition_by}",
                hint="Name fewer columns: those of partition_by become folders",
            )
        check_countable(rows, "write_files")
        check_schema(self.format, left)
        return left

    def named(self, rows: pa.Schema) -> pa.Schema:
        """The same columns, named as in files and folders: as ``partition_by`` spells them, if it does."""
        spelled = {column.lower(): column for column in self.partition_by}
        fields = [field.with_name(spelled.get(field.name.lower(), field.name)) for field in rows]
        return pa.schema(fields, metadata=rows.metadata)

    def layout(self, rows: pa.Schema) -> str:
        """Digest of what all rows of one file have in common: 16 hexadecimal digits."""
        digest = hashlib.sha256(repr((self.format, self.partition_by)).encode())
        digest.update(rows.remove_metadata().serialize().to_pybytes())
        return digest.hexdigest()[:16]

    @property
    def ending(self) -> str:
        """How the names of the files end: what comes after ``part-<uuid>``."""
        return f".{self.format}{GZIP_ENDING if self.format in LINE_FORMATS and self.codec == 'gzip' else ''}"

    def encoding_of(self, target: str) -> tuple[str, str | None]:
        """Format and codec of a file, by its name: it is finished as it was begun, also after a change of settings."""
        plain = target.removesuffix(GZIP_ENDING)
        name = plain.rpartition(".")[2]
        if name in LINE_FORMATS:
            return name, None if plain == target else "gzip"
        return name, (self if name == self.format else FileOutput(url=self.url, format=name)).codec

    @property
    def codec(self) -> str | None:
        """The codec as pyarrow spells it; ``None`` for uncompressed."""
        name = self.compression or COMPRESSIONS[self.format][0]
        return None if name == "none" else name


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesResult:
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
        return FilesResult(finished=self.finished, open=tuple(files))


def _check_distinct(fields: list[pa.Field]) -> None:
    """Spark, Hive, Trino and DuckDB do not tell upper and lower case apart: they could not read the file."""
    seen: dict[str, str] = {}
    for name in (each.name for each in fields):
        other = seen.get(name.lower())
        seen[name.lower()] = name
        if other is not None:
            raise InvalidInputError(
                f"readers take {other!r} and {name!r} for one column",
                operation="write_files",
                subject="schema",
                hint="Rename one of them",
                kind=ErrorKind.SCHEMA_MISMATCH,
            )
    for kind in (each.type for each in fields):
        if pa.types.is_nested(kind):
            _check_distinct([kind.field(index) for index in range(kind.num_fields)])


def _unknown(what: str, value: str, known: tuple[str, ...]) -> InvalidInputError:
    return InvalidInputError(f"{value!r} is not one", subject=what, hint=f"Known: {', '.join(known)}")
