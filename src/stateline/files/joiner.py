"""The open files of one subtask: rows of many checkpoints and tasks, joined file by file.

Invariants:
- Everything it writes has a fresh UUID in its name, so a retry, a zombie or a speculative twin makes garbage at worst.
- Rows of a file that stays open are durable once the segment is finished that :meth:`FileJoiner.finish` has added them
  to; rows of a file that rolls are durable as staged pieces of the file itself. A row is in exactly one of the two.
- Rows that travel inline are stored again whenever their file grows, so a file has one such piece at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa

from stateline.blob import BlobStore
from stateline.changelog.segment_writer import Segments, SegmentWriter
from stateline.files.ahead import EncodingAhead
from stateline.files.api import FileOutput, FilesResult
from stateline.files.encoding import encode_file
from stateline.files.folding import is_short, objects_to_fold
from stateline.files.nulls import with_nulls_inside
from stateline.files.pending import add_rows, load_rows, load_short_rows
from stateline.handles import FinishedFile, OpenFile, RowsHandle
from stateline.sizes import sizes

__all__ = ["FileJoiner", "FilesContext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesContext:
    """What one subtask needs to write one output in one checkpoint.

    Attributes:
        output: The output.
        schema: Schema of the rows.
        store: Store of the output: keeps pieces of files, and the files.
        segments: Where pending rows are read, and where those go that are too many for the memory.
        now: The checkpoint's wall-clock time, seconds since the epoch.
        subtask: Index of the subtask, for the record.
        ahead: Has encoded the beginnings of some open files.
        buffer_bytes: Rows held in memory before they are made durable early.
    """

    output: FileOutput
    schema: pa.Schema
    store: BlobStore
    segments: Segments
    now: float
    subtask: int = 0
    ahead: EncodingAhead | None = None
    buffer_bytes: int = field(default_factory=lambda: sizes().waiting_buffer_bytes)

    @property
    def file_rows(self) -> pa.Schema:
        """Schema of the rows as files and folders have them: named so, and with nulls allowed inside columns."""
        return self.output.named(with_nulls_inside(self.schema.remove_metadata()))


@dataclass(slots=True)
class _File:
    """An open file during this checkpoint."""

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


class FileJoiner:
    """Joins rows to the open files of one subtask, and finishes files that are complete.

    Args:
        context: The output, its stores, and the time.
        recorded: Files that an earlier checkpoint left open and this subtask goes on with. One of another layout than
            that of the rows is finished.
        staged: Files that other tasks of this checkpoint began: no record names their pieces yet.
    """

    def __init__(
        self, context: FilesContext, recorded: Iterable[OpenFile] = (), staged: Iterable[OpenFile] = ()
    ) -> None:
        self._context = context
        self._output = context.output
        self._segments = context.segments
        self._layout = self._output.layout(context.file_rows)
        self._files: dict[tuple[str, str], _File] = {}
        self._finished: list[FinishedFile] = []
        self._buffered = 0
        recorded = tuple(recorded)
        pieces = (handle for file in recorded for handle in file.pending)
        self._recorded = frozenset(handle.name for handle in pieces if not handle.is_inline)
        for file in (*recorded, *staged):
            self._adopt(file)

    def append(self, parts: Iterable[tuple[str, pa.Table]]) -> None:
        """Takes rows of some folders; they are held in memory, or made durable where they are too many."""
        for folder, rows in parts:
            file = self._files.get((self._layout, folder)) or self._begin(folder)
            file.buffered.append(rows)
            file.written_at = self._context.now
            file.rows += rows.num_rows
            file.bytes += rows.nbytes
            self._buffered += rows.nbytes
        if self._buffered >= self._context.buffer_bytes:
            self._make_room()

    def finish(self, segment: SegmentWriter) -> FilesResult:
        """Rolls what is complete, adds the rest to the segment, and returns both.

        Raises:
            InvalidInputError: The format cannot hold a value.
        """
        for key in [key for key, file in self._files.items() if self._is_complete(file)]:
            self._roll(key)
        rest = self._files.values()
        self._spill([file for file in rest if file.buffered], segment)
        # Only what a record names goes by itself, with that record.
        pieces = (handle for file in rest for handle in file.pending if handle.name in self._recorded)
        for names in objects_to_fold(pieces):
            self._fold(names, segment)
        return FilesResult(finished=tuple(self._finished), open=tuple(map(self._closed, rest)))

    def _begin(self, folder: str) -> _File:
        name = f"part-{self._segments.environment.ids.new_id()}{self._output.suffix}"
        now = self._context.now
        file = _File(f"{folder}/{name}" if folder else name, self._layout, opened_at=now, written_at=now)
        self._files[self._layout, folder] = file
        return file

    def _adopt(self, file: OpenFile) -> None:
        """Goes on with a file. After a rescale two files of one folder may meet: their rows join."""
        adopted = _File(
            file.target, file.layout, file.opened_at, file.written_at, file.rows, file.bytes, list(file.pending)
        )
        other = self._files.setdefault((adopted.layout, adopted.folder), adopted)
        if other is not adopted:
            other.opened_at = min(other.opened_at, adopted.opened_at)
            other.written_at = max(other.written_at, adopted.written_at)
            other.rows += adopted.rows
            other.bytes += adopted.bytes
            other.pending += adopted.pending

    def _is_complete(self, file: _File) -> bool:
        return file.layout != self._layout or self._output.rolling.is_complete(
            size=file.bytes, opened_at=file.opened_at, written_at=file.written_at, now=self._context.now
        )

    def _make_room(self) -> None:
        """Rolls files that have their size, and makes all other rows durable, those of files that roll later too."""
        for key in [key for key, file in self._files.items() if file.bytes >= self._output.rolling.roll_bytes]:
            self._roll(key)
        segment = self._segments.writer()
        files = [file for file in self._files.values() if file.buffered]
        self._spill(files, segment)
        placement = segment.finish()
        for file in files:
            file.pending = list(map(placement.of, file.pending))

    def _spill(self, files: Sequence[_File], segment: SegmentWriter) -> None:
        for file in files:
            inline = [handle for handle in file.pending if handle.is_inline]
            rows = pa.concat_tables([*load_rows(self._segments.store, inline), self._checked_values(file)])
            file.pending = [handle for handle in file.pending if not handle.is_inline]
            file.pending.append(add_rows(segment, file.target, rows))
            self._release(file)

    def _fold(self, names: frozenset[str], segment: SegmentWriter) -> None:
        """Joins the short pieces that each file has in some objects, as many files at a time as may be in memory."""
        group: list[_File] = []
        size = 0
        for file in self._files.values():
            lengths = [handle.length for handle in file.pending if _is_folded(handle, names)]
            if lengths:
                group.append(file)
                size += sum(lengths)
            if size >= self._context.buffer_bytes:
                self._store_again(group, names, segment)
                group, size = [], 0
        if group:
            self._store_again(group, names, segment)

    def _store_again(self, files: Sequence[_File], names: frozenset[str], segment: SegmentWriter) -> None:
        chosen = [[handle for handle in file.pending if _is_folded(handle, names)] for file in files]
        loaded = load_short_rows(self._segments.store, chain.from_iterable(chosen), self._segments.copies)
        for file, handles in zip(files, chosen, strict=True):
            handle = add_rows(segment, file.target, pa.concat_tables([loaded[each] for each in handles]))
            kept = [each for each in file.pending if not _is_folded(each, names)]
            at = next(index for index, each in enumerate(file.pending) if _is_folded(each, names))
            file.pending = [*kept[:at], handle, *kept[at:]]

    def _roll(self, key: tuple[str, str]) -> None:
        """Encodes a file; later rows of its folder begin another one."""
        file = self._files.pop(key)
        ahead = self._context.ahead
        begun = ahead.take(file.target, self._output, file.pending) if ahead else None
        pending = file.pending[len(begun.handles) :] if begun else file.pending

        def tables() -> Iterator[pa.Table]:
            yield from load_rows(self._segments.store, pending, self._segments.copies)
            if file.buffered:
                yield self._checked_values(file)

        environment = self._segments.environment
        commit = encode_file(self._output, self._context.store, file.target, tables(), environment, begun)
        self._release(file)
        self._finished.append(FinishedFile(commit=commit, rows=file.rows))

    def _checked_values(self, file: _File) -> pa.Table:
        """The buffered rows of a file, whose values it can hold."""
        rows = pa.concat_tables(file.buffered)
        form, _ = self._output.encoding_of(file.target)
        form.check_rows(rows)
        return rows

    def _release(self, file: _File) -> None:
        self._buffered -= sum(part.nbytes for part in file.buffered)
        file.buffered.clear()

    def _closed(self, file: _File) -> OpenFile:
        return OpenFile(
            target=file.target,
            subtask=self._context.subtask,
            layout=file.layout,
            opened_at=file.opened_at,
            written_at=file.written_at,
            rows=file.rows,
            bytes=file.bytes,
            pending=tuple(file.pending),
        )


def _is_folded(handle: RowsHandle, names: frozenset[str]) -> bool:
    return handle.name in names and is_short(handle)
