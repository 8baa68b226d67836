"""Rows that wait for their file to roll, or for their delivery: sections of a segment, each an Arrow IPC stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pyarrow as pa

from stateline.arrow_bounds import check_stream, check_table
from stateline.blob import BlobStore
from stateline.blob.checksum import crc32c
from stateline.changelog.host_cache import HostCache
from stateline.changelog.section_reader import SectionReader
from stateline.changelog.segment import Section, SectionKind
from stateline.changelog.segment_writer import SegmentWriter
from stateline.errors import CorruptDataError, DataLossError, NotFoundError
from stateline.files.formats.format import SinkFile
from stateline.handles import RowsHandle, SectionHandle
from stateline.sizes import sizes

__all__ = ["add_rows", "decode_rows", "encoded_rows", "load_rows", "load_short_rows"]


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
    return rows if len(rows.to_batches()) <= 1 + rows.num_rows // sizes().waiting_batch_rows else rows.combine_chunks()


def add_rows(segment: SegmentWriter, owner: str, rows: pa.Table, number: int = 0) -> RowsHandle:
    """Adds rows to a segment, as one section; they are durable when the segment is finished.

    Args:
        segment: Where they go.
        owner: Whose rows they are, for the segment's directory.
        rows: At least one.
        number: The checkpoint, where the caller knows it.
    """
    stream = tuple(encoded_rows(rows))
    checksum = 0
    for piece in stream:
        checksum = crc32c(piece, checksum)
    section = Section(SectionKind.ROWS, owner, number, stream, sum(map(len, stream)), checksum)
    return segment.add(section, RowsHandle, rows=rows.num_rows)


def load_rows(store: BlobStore, handles: Sequence[RowsHandle], cache: HostCache | None = None) -> Iterator[pa.Table]:
    """Reads pending rows back, in order, one piece at a time.

    Args:
        store: The root.
        handles: The rows.
        cache: Copies on this host, for a root that is elsewhere.

    Raises:
        DataLossError: An object is gone.
        CorruptDataError: Bytes are not what was stored.
    """
    for handle in handles:
        yield load_short_rows(store, [handle], cache)[handle]


def load_short_rows(
    store: BlobStore, handles: Iterable[RowsHandle], cache: HostCache | None = None
) -> dict[RowsHandle, pa.Table]:
    """As :func:`load_rows`, all pieces at once: those of one object in one call of the store."""
    sections = SectionReader(store, cache)
    loaded: dict[RowsHandle, pa.Table] = {}
    objects: dict[str, list[RowsHandle]] = {}
    for handle in handles:
        with _gone_is_loss(handle):
            near = sections.near(handle, partial(_decoded, handle))
        if near is None:
            objects.setdefault(handle.name, []).append(handle)
        else:
            loaded[handle] = near
    for name, wanted in objects.items():
        with _gone_is_loss(wanted[0]):
            fetched = store.get_ranges(name, [(handle.offset, handle.end) for handle in wanted])
        loaded |= {handle: _decoded(handle, data) for handle, data in zip(wanted, fetched, strict=True)}
    return loaded


@contextmanager
def _gone_is_loss(handle: RowsHandle) -> Iterator[None]:
    try:
        yield
    except NotFoundError as error:
        raise DataLossError(
            "cannot find the rows of an open file",
            operation="load_rows",
            subject=handle.place,
            hint="Restore the object, or go back to a checkpoint whose objects are complete",
        ) from error


def decode_rows(section: SectionHandle, data: bytes | pa.Buffer) -> pa.Table:
    """The rows of a section, from its bytes.

    Raises:
        CorruptDataError: They are not what was stored.
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
        raise CorruptDataError(f"is not an Arrow stream ({error})", operation="load_rows", subject=where) from error
    return table


def _decoded(handle: RowsHandle, data: bytes | pa.Buffer) -> pa.Table:
    table = decode_rows(handle, data)
    if table.num_rows != handle.rows:
        raise CorruptDataError(
            f"expected {handle.rows} rows, got {table.num_rows}", operation="load_rows", subject=handle.place
        )
    return table
