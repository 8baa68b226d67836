"""The file output of one task: rows in, durable pieces and handles out.

Memory: the rows of this micro-batch, up to ``buffer_bytes`` and 8 MiB that are not split by folder yet, plus one file's
row group while it is encoded. What was encoded before (``ahead``) has a bound of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from stateline.changelog.segment_writer import SegmentWriter
from stateline.errors import ErrorKind, InvalidInputError
from stateline.files.api import FilesResult
from stateline.files.joiner import FileJoiner, FilesContext
from stateline.files.nulls import filled_variants
from stateline.files.partitions import split_by_folder
from stateline.handles import OpenFile
from stateline.sizes import sizes

__all__ = ["FileWriter"]

# Spark hands over 1,024 rows at once, of which each of 500 folders gets two: that would make almost as many tables as
# rows. So rows are gathered before they are split by folder; the bound of bytes is for long rows.


class FileWriter:
    """Writes the rows that one task has for one output in one checkpoint.

    Args:
        context: The output, its stores, and the time.
        open_files: Files that an earlier checkpoint left open and this subtask goes on with.
    """

    def __init__(self, context: FilesContext, open_files: Iterable[OpenFile] = ()) -> None:
        self._context = context
        self._names = context.schema.names
        self._schema = context.file_rows
        self._joiner = FileJoiner(context, open_files)
        self._gathered: list[pa.Table] = []
        self._gathered_rows = 0
        self._gathered_bytes = 0

    def write(self, rows: pa.Table) -> None:
        """Takes rows.

        Raises:
            InvalidInputError: These or earlier ones do not fit the schema. The next call, or :meth:`finish`, may be
                what says so.
        """
        if self._gathered and not rows.schema.equals(self._gathered[0].schema, check_metadata=True):
            self._split()
        self._gathered.append(rows)
        self._gathered_rows += rows.num_rows
        self._gathered_bytes += rows.nbytes
        bytes_max = min(sizes().gathered_bytes, self._context.buffer_bytes)
        if self._gathered_rows >= sizes().gathered_rows or self._gathered_bytes >= bytes_max:
            self._split()

    def finish(self, segment: SegmentWriter) -> FilesResult:
        """Rolls what is complete, adds the rest to the segment, and returns both.

        Raises:
            InvalidInputError: Rows do not fit the schema, or a value has no place in the format or in a folder's name.
        """
        self._split()
        return self._joiner.finish(segment)

    def _split(self) -> None:
        """Hands gathered rows to the files of their folders."""
        if self._gathered:
            rows = self._checked(pa.concat_tables(self._gathered))
            self._gathered, self._gathered_rows, self._gathered_bytes = [], 0, 0
            output = self._context.output
            parts = split_by_folder(rows, output.partition_by, output.partition_zone, keep=output.columns_in_files)
            self._joiner.append(parts)

    def _checked(self, rows: pa.Table) -> pa.Table:
        try:
            filled = filled_variants(rows.select(self._names))
            return filled.rename_columns(self._schema.names).cast(self._schema)
        except (KeyError, ValueError) as error:
            raise InvalidInputError(
                f"expected {self._schema.to_string(show_field_metadata=False)!r}, got "
                f"{rows.schema.to_string(show_field_metadata=False)!r} ({error})",
                operation="write_files",
                subject="rows",
                hint="Give the output the schema that was declared",
                kind=ErrorKind.SCHEMA_MISMATCH,
            ) from error
