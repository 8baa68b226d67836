"""Rows that wait, for their file to roll or for their delivery: sections of a segment, each an Arrow IPC stream.

Owns the bytes of such sections. Does not own segments (``stateline.changelog.segment``), nor who waits for what.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from stateline.arrow_bounds import check_stream, check_table
from stateline.blob import BlobStore
from stateline.blob.checksum import crc32c
from stateline.blob.mapping import map_object
from stateline.changelog.segment import Section, SectionKind
from stateline.changelog.segment_writer import SegmentWriter
from stateline.errors import CorruptDataError, DataLossError, NotFoundError
from stateline.files.formats import SinkFile
from stateline.handles import RowsHandle, SectionHandle

__all__ = ["add_rows", "decode_rows", "encoded_rows", "load_rows", "load_short_rows"]

_BATCH_ROWS: Final = 32_768
"""Rows of a record batch, on average; shorter ones are joined before they are stored."""


class _Pieces:
    """Keeps what an encoder writes as it comes: buffers of the rows themselves, not copies."""

    def __init__(self) -> None:
        self.views: list[memoryview] = []

    def write(self, data: bytes) -> int:
        """Takes all of ``data``."""
        self.views.append(memoryview(data).cast("B"))
        return len(data)


def encoded_rows(rows: pa.Table) -> list[memoryview]:
    """One Arrow IPC stream of ``rows``, in pieces that share memory with them."""
    pieces = _Pieces()
    with pa.ipc.new_stream(pa.PythonFile(SinkFile(pieces), mode="w"), rows.schema) as writer:
        writer.write_table(_in_long_batches(rows))
    return pieces.views


def _in_long_batches(rows: pa.Table) -> pa.Table:
    return rows if len(rows.to_batches()) <= 1 + rows.num_rows // _BATCH_ROWS else rows.combine_chunks()


def add_rows(segment: SegmentWriter, owner: str, rows: pa.Table, number: int = 0) -> RowsHandle:
    """Adds rows to a segment, as one section; they are durable when that is finished.

    Args:
        segment: Where they go.
        owner: Whose rows they are, for the segment's directory.
        rows: None may be missing: an empty table is no section.
        number: The checkpoint, where the caller knows it.
    """
    stream = tuple(encoded_rows(rows))
    checksum = 0
    for piece in stream:
        checksum = crc32c(piece, checksum)
    section = Section(SectionKind.ROWS, owner, number, stream, sum(map(len, stream)), checksum)
    return segment.add(section, RowsHandle, rows=rows.num_rows)


def load_rows(store: BlobStore, handles: Sequence[RowsHandle]) -> Iterator[pa.Table]:
    """Reads pending rows back, in order, fetching just their bytes.

    Raises:
        DataLossError: An object is gone.
        CorruptDataError: Bytes are not what was stored.
    """
    for handle in handles:
        (data,) = _bytes_of(store, handle.name, [handle])
        yield _decoded(handle, data)


def load_short_rows(store: BlobStore, handles: Iterable[RowsHandle]) -> dict[RowsHandle, pa.Table]:
    """Reads many short pieces at once: those of one object in one call of the store.

    Raises:
        DataLossError: An object is gone.
        CorruptDataError: Bytes are not what was stored.
    """
    objects: dict[str, list[RowsHandle]] = {}
    for handle in handles:
        objects.setdefault(handle.name, []).append(handle)
    return {
        handle: _decoded(handle, data)
        for name, wanted in objects.items()
        for handle, data in zip(wanted, _bytes_of(store, name, wanted), strict=True)
    }


def decode_rows(section: SectionHandle, data: bytes | pa.Buffer) -> pa.Table:
    """The rows of a section, from its bytes.

    Raises:
        CorruptDataError: They are not what was stored, or no rows.
    """
    where = section.place
    if crc32c(memoryview(data)) != section.crc32c:
        raise CorruptDataError("the checksum does not match", operation="load_rows", subject=where)
    check_stream(memoryview(data), where)
    try:
        table = pa.ipc.open_stream(data).read_all()
        list(table.schema)  # A name may be no text, and a type one that pyarrow has not.
        # Offsets that lead outside their buffer would crash whoever reads them. Text may be any bytes, as in Spark: the
        # rows are in a record, and what is refused here would be refused at every start.
        check_table(table)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptDataError(f"not an Arrow stream ({error})", operation="load_rows", subject=where) from error
    return table


def _decoded(handle: RowsHandle, data: bytes | pa.Buffer) -> pa.Table:
    table = decode_rows(handle, data)
    if table.num_rows != handle.rows:
        raise CorruptDataError(
            f"{table.num_rows} rows, its record says {handle.rows}", operation="load_rows", subject=handle.place
        )
    return table


def _bytes_of(store: BlobStore, name: str, handles: Sequence[RowsHandle]) -> Sequence[bytes | pa.Buffer]:
    """The bytes of handles of one object: mapped where the store is this host's disk, so that nothing is copied."""
    if not name:
        return [handle.data for handle in handles]
    try:
        mapped = map_object(store, name)
        if mapped is None:
            return store.get_ranges(name, [(handle.offset, handle.end) for handle in handles])
    except NotFoundError as error:
        raise DataLossError(
            "the rows of an open file are gone",
            operation="load_rows",
            subject=handles[0].place,
            hint="Restore the object, or go back to a checkpoint whose objects are complete",
        ) from error
    return [_slice(mapped, handle) for handle in handles]


def _slice(mapped: pa.Buffer, handle: RowsHandle) -> pa.Buffer:
    end = min(handle.end, mapped.size)  # One that was cut short fails the checksum.
    return mapped.slice(min(handle.offset, end), end - min(handle.offset, end))
