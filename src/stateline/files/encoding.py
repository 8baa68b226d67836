"""Rows as one whole file: which of them become one row group (Parquet) or record batch (Arrow), and where bytes go.

Row groups: pieces of rows, as they wait, are gathered until the next one would make more rows than the output's
``row_group_rows``, or more than 32 MiB. So a short trigger interval does not make small row groups, long rows do not
make row groups that fill the memory, and what is in a full one does not depend on what comes later. A piece that is
longer by itself is written alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from stateline.blob import BlobStore
from stateline.environment import Environment
from stateline.file_columns import as_in_file, file_schema
from stateline.files.api import FileOutput
from stateline.files.background import BackgroundSink
from stateline.files.formats.format import Encoder, Sink
from stateline.handles import CommitPoint, RowsHandle
from stateline.recoverable import RecoverableWriter
from stateline.sizes import sizes

__all__ = ["PartialFile", "encode_file", "first_full_group", "joined", "row_groups"]


class _HeldBytes:
    """Keeps what an encoder writes, until there is a file for it."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._sink: Sink | None = None
        self.size = 0

    def write(self, data: bytes) -> int:
        """Takes all of ``data``."""
        if self._sink is not None:
            return self._sink.write(data)
        self._chunks.append(data)
        self.size += len(data)
        return len(data)

    def hand_to(self, sink: Sink) -> None:
        """Writes what was kept, and from now on everything, to the file."""
        chunks, self._chunks, self.size = self._chunks, [], 0
        self._sink = sink
        for chunk in chunks:
            sink.write(chunk)


@dataclass(slots=True)
class PartialFile:
    """The first row groups of a file, encoded, and held in memory.

    Attributes:
        output: The settings they were encoded with.
        handles: The rows they hold, in order: the first ones of the file.
        encoder: Continues where they end.
        schema: Columns of the file, with names and ids of its own.
        held: Their bytes.
    """

    output: FileOutput
    handles: tuple[RowsHandle, ...]
    encoder: Encoder
    schema: pa.Schema
    held: _HeldBytes

    @classmethod
    def begin(cls, output: FileOutput, target: str, schema: pa.Schema) -> Self:
        """A file without rows yet, in the format that the target's name tells."""
        held = _HeldBytes()
        form, codec = output.encoding_of(target)
        schema = file_schema(schema, output.file_columns)
        return cls(output, (), form.encoder(held, schema, codec, output.row_group_rows), schema, held)

    def write(self, rows: pa.Table) -> None:
        """Encode rows, as one row group or more."""
        self.encoder.write(as_in_file(rows, self.schema))


def encode_file(
    output: FileOutput,
    store: BlobStore,
    target: str,
    tables: Iterable[pa.Table],
    environment: Environment,
    begun: PartialFile | None = None,
) -> CommitPoint:
    """Encodes rows as one whole file and stages it; it becomes visible when the commit point is committed.

    Args:
        output: Codec and row groups. The target's name tells the format; see :meth:`FileOutput.encoding_of`.
        store: Store of the output.
        target: Relative name of the file.
        tables: The rows, at least one table; small ones are gathered into full row groups.
        environment: Threads, and ids for names.
        begun: The rows before these, encoded.
    """
    stream = RecoverableWriter(store, environment=environment).open(target)
    groups = row_groups(tables, output.row_group_rows)
    first = next(groups)
    with BackgroundSink(stream, environment, in_memory=begun.held.size if begun else 0) as sink:
        file = begun or PartialFile.begin(output, target, first.schema)
        file.held.hand_to(sink)
        file.write(first)
        for group in groups:
            file.write(group)
        file.encoder.finish()
    return stream.close_for_commit().commit_point


def row_groups(tables: Iterable[pa.Table], max_rows: int) -> Iterator[pa.Table]:
    """The row groups of a file whose rows are ``tables``, in order; those of one table that is longer are not split."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        if waiting and _is_over(rows + table.num_rows, size + table.nbytes, max_rows):
            yield joined(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(table)
        rows += table.num_rows
        size += table.nbytes
    if waiting:
        yield joined(waiting)


def first_full_group(handles: Sequence[RowsHandle], max_rows: int) -> tuple[RowsHandle, ...]:
    """The pieces of the first row group, if more pieces follow that do not belong to it; else none."""
    rows = size = 0
    for index, handle in enumerate(handles):
        rows += handle.rows
        size += handle.length
        if index and _is_over(rows, size, max_rows):
            return tuple(handles[:index])
    return ()


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables of one layout as one."""
    return pa.concat_tables(tables, promote_options="default")


def _is_over(rows: int, size: int, max_rows: int) -> bool:
    return rows > max_rows or size > sizes().encoded_bytes
