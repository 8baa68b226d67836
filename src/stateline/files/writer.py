"""One task's share of a file output: rows in, durable pieces and handles out.

Owns the split by partition, the buffering between checkpoints and the encoding at roll. Does not own visibility.

Invariants:
- Everything it writes has a fresh UUID in its name, so a retry, a zombie or a speculative twin makes garbage at worst.
- Rows of a file that stays open are durable once the segment is finished that :meth:`FileWriter.finish` has added them
  to; rows of a file that rolls are durable as staged pieces of the file itself. A row is in exactly one of the two.
- Rows that travel inline are stored again whenever their file grows, so a file has one such piece at most.
- Memory: the rows of this micro-batch, up to ``buffer_bytes`` and 8 MiB that are not split by folder yet, plus one
  file's row group while it is encoded. What was encoded before (``ahead``) has a bound of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateline.blob import BlobStore
from stateline.changelog.segment_writer import Segments, SegmentWriter
from stateline.environment import Environment
from stateline.errors import ErrorKind, InvalidInputError
from stateline.files.ahead import BegunFile, EncodingAhead
from stateline.files.api import FileOutput, FilesResult
from stateline.files.background import BackgroundSink
from stateline.files.folding import is_short, objects_to_fold
from stateline.files.formats import check_rows, folder_values, make_encoder
from stateline.files.nulls import filled_variants, with_nulls_inside
from stateline.files.partitions import is_abbreviated, partition_folder
from stateline.files.pending import add_rows, load_rows, load_short_rows
from stateline.files.row_groups import row_groups
from stateline.handles import CommitPoint, FinishedFile, OpenFile, RowsHandle
from stateline.recoverable import RecoverableWriter

__all__ = ["FileWriter", "encode_file"]

_BUFFER_BYTES: Final = 64 * 1024 * 1024

_GATHERED_ROWS: Final = 65_536
_GATHERED_BYTES: Final = 8 * 1024 * 1024
"""How much is split by folder at a time. Spark hands over 1,024 rows at once, of which each of 500 folders gets two:
that would make almost as many tables as rows. The second bound is for long rows."""


@dataclass(slots=True)
class _Growing:
    """An open file during this task."""

    target: str
    layout: str
    opened_at: float
    written_at: float
    rows: int = 0
    bytes: int = 0
    pending: list[RowsHandle] = field(default_factory=list)
    buffered: list[pa.Table] = field(default_factory=list)

    @property
    def folder(self) -> str:
        return self.target.rpartition("/")[0]


class FileWriter:
    """Writes the rows that one subtask has for one output in one checkpoint.

    Args:
        output: The output.
        segments: Where pending rows go that are too many to be kept in memory, and where they are read.
        segment: Where all others go.
        store: Store of the output: keeps pieces of files, and the files.
        schema: Schema of the rows. An open file of another layout is finished, and a new one is begun.
        open_files: Files that an earlier checkpoint left open and this subtask goes on with.
        staged: Files that other tasks of this checkpoint began: no record names their pieces yet.
        subtask: Index of the subtask, for the record.
        now: The checkpoint's wall-clock time, seconds since the epoch.
        environment: Ids for names.
        ahead: Has encoded the beginnings of some open files.
        buffer_bytes: Rows held in memory before they are made durable early.
    """

    def __init__(
        self,
        output: FileOutput,
        segments: Segments,
        segment: SegmentWriter,
        store: BlobStore,
        schema: pa.Schema,
        *,
        open_files: Iterable[OpenFile],
        subtask: int,
        now: float,
        environment: Environment,
        staged: Iterable[OpenFile] = (),
        ahead: EncodingAhead | None = None,
        buffer_bytes: int = _BUFFER_BYTES,
    ) -> None:
        self._output = output
        self._segments = segments
        self._segment = segment
        self._root = segments.store
        self._store = store
        self._subtask = subtask
        self._now = now
        self._environment = environment
        self._ahead = ahead
        self._buffer_bytes = buffer_bytes
        self._buffered = 0
        self._gathered: list[pa.Table] = []
        self._gathered_rows = 0
        self._gathered_bytes = 0
        self._names = schema.names
        self._schema = output.named(with_nulls_inside(schema.remove_metadata()))
        self._layout = output.layout(self._schema)
        self._growing: dict[tuple[str, str], _Growing] = {}
        self._finished: list[FinishedFile] = []
        recorded = tuple(open_files)
        pieces = (handle for file in recorded for handle in file.pending)
        self._recorded = frozenset(handle.name for handle in pieces if not handle.is_inline)
        for file in (*recorded, *staged):
            self._adopt(file)

    def write(self, rows: pa.Table) -> None:
        """Takes rows.

        Raises:
            InvalidInputError: These or earlier ones do not fit the schema. The next call, or :meth:`finish`, may be
                what says so.
        """
        if self._gathered and not rows.schema.equals(self._gathered[0].schema, check_metadata=True):
            self._take_gathered()
        self._gathered.append(rows)
        self._gathered_rows += rows.num_rows
        self._gathered_bytes += rows.nbytes
        if self._gathered_rows >= _GATHERED_ROWS or self._gathered_bytes >= min(_GATHERED_BYTES, self._buffer_bytes):
            self._take_gathered()

    def _take_gathered(self) -> None:
        """Hands gathered rows to the files of their folders."""
        if not self._gathered:
            return
        gathered = pa.concat_tables(self._gathered)
        self._gathered, self._gathered_rows, self._gathered_bytes = [], 0, 0
        for folder, part in self._split(self._checked(gathered)):
            file = self._growing.get((self._layout, folder))
            if file is None:
                name = f"part-{self._environment.ids.new_id()}{self._output.ending}"
                target = f"{folder}/{name}" if folder else name
                file = _Growing(target, self._layout, opened_at=self._now, written_at=self._now)
                self._growing[self._layout, folder] = file
            file.buffered.append(part)
            file.written_at = self._now
            file.rows += part.num_rows
            file.bytes += part.nbytes
            self._buffered += part.nbytes
        if self._buffered >= self._buffer_bytes:
            self._make_room()

    def finish(self) -> FilesResult:
        """Rolls what is complete, adds the rest to the segment, and returns both.

        Raises:
            InvalidInputError: Rows do not fit the schema, or a value has no place in the format or in a folder's name.
        """
        self._take_gathered()
        for key in [key for key, file in self._growing.items() if self._is_complete(file)]:
            self._roll(key)
        rest = self._growing.values()
        self._spill([file for file in rest if file.buffered], self._segment)
        # Only what a record names goes by itself, with that record.
        pieces = (handle for file in rest for handle in file.pending if handle.name in self._recorded)
        for names in objects_to_fold(pieces):
            self._fold(names)
        return FilesResult(finished=tuple(self._finished), open=tuple(self._closed(file) for file in rest))

    def _make_room(self) -> None:
        """Rolls files that have their size, and makes all other rows durable, those of files that roll later too."""
        for key in [key for key, file in self._growing.items() if file.bytes >= self._output.rolling.roll_bytes]:
            self._roll(key)
        segment = self._segments.writer()
        files = [file for file in self._growing.values() if file.buffered]
        self._spill(files, segment)
        placement = segment.finish()
        for file in files:
            file.pending = list(map(placement.of, file.pending))

    def _adopt(self, file: OpenFile) -> None:
        """Goes on with a file. After a rescale two files of one folder may meet: their rows join."""
        growing = _Growing(
            file.target, file.layout, file.opened_at, file.written_at, file.rows, file.bytes, list(file.pending)
        )
        other = self._growing.setdefault((growing.layout, growing.folder), growing)
        if other is not growing:
            other.opened_at = min(other.opened_at, growing.opened_at)
            other.written_at = max(other.written_at, growing.written_at)
            other.rows += growing.rows
            other.bytes += growing.bytes
            other.pending += growing.pending

    def _is_complete(self, file: _Growing) -> bool:
        return file.layout != self._layout or self._output.rolling.is_complete(
            size=file.bytes, opened_at=file.opened_at, written_at=file.written_at, now=self._now
        )

    def _spill(self, files: Sequence[_Growing], segment: SegmentWriter) -> None:
        for file in files:
            inline = [handle for handle in file.pending if handle.is_inline]
            rows = pa.concat_tables([*load_rows(self._root, inline), self._checked_values(file)])
            file.pending = [handle for handle in file.pending if not handle.is_inline]
            file.pending.append(add_rows(segment, file.target, rows))
            self._buffered -= sum(part.nbytes for part in file.buffered)
            file.buffered.clear()

    def _fold(self, names: frozenset[str]) -> None:
        """Joins the short pieces that each file has in some objects, as many files at a time as may be in memory."""
        group: list[_Growing] = []
        size = 0
        for file in self._growing.values():
            lengths = [handle.length for handle in file.pending if _is_folded(handle, names)]
            if lengths:
                group.append(file)
                size += sum(lengths)
            if size >= self._buffer_bytes:
                self._store_again(group, names)
                group, size = [], 0
        if group:
            self._store_again(group, names)

    def _store_again(self, files: Sequence[_Growing], names: frozenset[str]) -> None:
        chosen = [[handle for handle in file.pending if _is_folded(handle, names)] for file in files]
        loaded = load_short_rows(self._root, chain.from_iterable(chosen), self._segments.copies)
        for file, handles in zip(files, chosen, strict=True):
            handle = add_rows(self._segment, file.target, pa.concat_tables([loaded[each] for each in handles]))
            kept = [each for each in file.pending if not _is_folded(each, names)]
            at = next(index for index, each in enumerate(file.pending) if _is_folded(each, names))
            file.pending = [*kept[:at], handle, *kept[at:]]

    def _roll(self, key: tuple[str, str]) -> None:
        """Encodes a file; later rows of its folder begin another one."""
        file = self._growing.pop(key)
        begun = self._ahead.take(file.target, self._output, file.pending) if self._ahead else None
        pending = file.pending[len(begun.handles) :] if begun else file.pending

        def tables() -> Iterator[pa.Table]:
            yield from load_rows(self._root, pending, self._segments.copies)
            if file.buffered:
                yield self._checked_values(file)

        commit = encode_file(self._output, self._store, file.target, tables(), self._environment, begun)
        self._buffered -= sum(part.nbytes for part in file.buffered)
        self._finished.append(FinishedFile(commit=commit, rows=file.rows))

    def _checked_values(self, file: _Growing) -> pa.Table:
        """The buffered rows of a file, whose values it can hold."""
        rows = pa.concat_tables(file.buffered)
        check_rows(self._output.encoding_of(file.target)[0], rows)
        return rows

    def _closed(self, file: _Growing) -> OpenFile:
        return OpenFile(
            target=file.target,
            subtask=self._subtask,
            layout=file.layout,
            opened_at=file.opened_at,
            written_at=file.written_at,
            rows=file.rows,
            bytes=file.bytes,
            pending=tuple(file.pending),
        )

    def _checked(self, rows: pa.Table) -> pa.Table:
        try:
            filled = filled_variants(rows.select(self._names))
            return filled.rename_columns(self._schema.names).cast(self._schema)
        except (KeyError, ValueError) as error:
            raise InvalidInputError(
                f"the rows are {rows.schema.to_string(show_field_metadata=False)!r}, expected "
                f"{self._schema.to_string(show_field_metadata=False)!r} ({error})",
                operation="write_files",
                hint="Give the output the schema that was declared",
                kind=ErrorKind.SCHEMA_MISMATCH,
            ) from error

    def _split(self, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Rows by the folder they belong to, without the columns that the folder's name tells."""
        columns = self._output.partition_by
        if rows.num_rows == 0:
            return
        if not columns:
            yield "", rows.combine_chunks()  # Now, while Spark fills the next batches, and not when all wait for it.
            return
        told, is_shown_twice = folder_values(rows.select(columns), self._output.partition_zone)
        codes, values = _partition_codes(told, columns)
        order = np.argsort(codes, kind="stable")
        starts = np.searchsorted(codes[order], np.arange(len(values) + 1))
        ordered = rows.take(pa.array(order))
        slim = ordered.drop_columns(list(columns))
        for code, value in enumerate(values):
            tells_less = is_abbreviated(columns, value) or is_shown_twice[order[starts[code]]]
            source = ordered if tells_less else slim
            yield partition_folder(columns, value), source.slice(starts[code], starts[code + 1] - starts[code])


def _is_folded(handle: RowsHandle, names: frozenset[str]) -> bool:
    return handle.name in names and is_short(handle)


def encode_file(
    output: FileOutput,
    store: BlobStore,
    target: str,
    tables: Iterable[pa.Table],
    environment: Environment,
    begun: BegunFile | None = None,
) -> CommitPoint:
    """Encodes rows as one whole file and stages it; it becomes visible when the commit point is committed.

    Args:
        output: Codec and row groups. The format is that of the target's ending; see :meth:`FileOutput.encoding_of`.
        store: Store of the output.
        target: Relative name of the file.
        tables: The rows, at least one table; small ones are gathered into full row groups.
        environment: Threads, and ids for names.
        begun: What is encoded of the file already, of rows before these.
    """
    stream = RecoverableWriter(store, environment=environment).open(target)
    groups = row_groups(tables, output.row_group_rows)
    first = next(groups)
    with BackgroundSink(stream, environment, in_memory=begun.held.size if begun else 0) as sink:
        if begun is None:
            name, codec = output.encoding_of(target)
            encoder = make_encoder(name, sink, first.schema, codec, output.row_group_rows)
        else:
            encoder = begun.go_on(sink)
        encoder.write(first)
        for group in groups:
            encoder.write(group)
        encoder.finish()
    return stream.close_for_commit().commit_point


def _partition_codes(rows: pa.Table, columns: Sequence[str]) -> tuple[np.ndarray, list[tuple[object, ...]]]:
    """A dense code per row and the partition values of each code."""
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    values: list[tuple[object, ...]] = [()]
    for column in columns:
        encoded = pc.dictionary_encode(rows[column].combine_chunks(), null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        known = encoded.dictionary.to_pylist()
        # Dense after each column, so that the product of many large columns cannot overflow.
        combined, codes = np.unique(codes * len(known) + encoded.indices.to_numpy(), return_inverse=True)
        values = [(*values[code // len(known)], known[code % len(known)]) for code in combined.tolist()]
    return codes, values
