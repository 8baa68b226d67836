"""Rows that wait for their file to roll: Arrow streams, many to an object.

Owns the bytes between a checkpoint and the roll. One call of :func:`store_rows` makes one object, however many files
are open, so a checkpoint costs one request per subtask.

Format: an object is the plain concatenation of Arrow IPC streams (schema, record batches, end-of-stream). The
handle of each stream carries its range and CRC32C; without handles the object is read by opening stream after stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import pyarrow as pa

from stateline.arrow_bounds import check_stream, check_table
from stateline.blob import BlobStore
from stateline.blob.checksum import crc32c
from stateline.blob.mapping import map_object
from stateline.environment import Ids
from stateline.errors import CorruptDataError, DataLossError, NotFoundError
from stateline.files.formats import SinkFile
from stateline.handles import RowsHandle

__all__ = ["encoded_rows", "load_rows", "load_short_rows", "store_rows"]

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


def store_rows(store: BlobStore, ids: Ids, tables: Sequence[pa.Table]) -> list[RowsHandle]:
    """Makes the rows of several open files durable in one object under a fresh name.

    Args:
        store: The store of the checkpoint root.
        ids: Where the name's UUID comes from.
        tables: Rows of one open file each; none may be empty.

    Returns:
        One handle per table, in order.
    """
    if not tables:
        return []
    name = f"shared/rows-{ids.new_id()}.arrows"
    streams = [encoded_rows(table) for table in tables]
    store.put_all_if_absent(name, list(chain.from_iterable(streams)))
    handles = []
    offset = 0
    for stream, table in zip(streams, tables, strict=True):
        length, checksum = sum(map(len, stream)), 0
        for piece in stream:
            checksum = crc32c(piece, checksum)
        handles.append(RowsHandle(name=name, offset=offset, length=length, crc32c=checksum, rows=table.num_rows))
        offset += length
    return handles


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


def _decoded(handle: RowsHandle, data: bytes | pa.Buffer) -> pa.Table:
    where = _where(handle)
    if crc32c(memoryview(data)) != handle.crc32c:
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
    if handle.rows is not None and table.num_rows != handle.rows:
        raise CorruptDataError(
            f"{table.num_rows} rows, its record says {handle.rows}", operation="load_rows", subject=where
        )
    return table


def _bytes_of(store: BlobStore, name: str, handles: Sequence[RowsHandle]) -> Sequence[bytes | pa.Buffer]:
    """The bytes of handles of one object: mapped where the store is this host's disk, so that nothing is copied."""
    try:
        mapped = map_object(store, name)
        if mapped is None:
            return store.get_ranges(name, [(handle.offset, handle.offset + handle.length) for handle in handles])
    except NotFoundError as error:
        raise DataLossError(
            "the rows of an open file are gone",
            operation="load_rows",
            subject=_where(handles[0]),
            hint="Restore the object, or go back to a checkpoint whose objects are complete",
        ) from error
    return [_slice(mapped, handle) for handle in handles]


def _slice(mapped: pa.Buffer, handle: RowsHandle) -> pa.Buffer:
    end = min(handle.offset + handle.length, mapped.size)  # One that was cut short fails the checksum.
    return mapped.slice(min(handle.offset, end), end - min(handle.offset, end))


def _where(handle: RowsHandle) -> str:
    return f"{handle.name}[{handle.offset}:{handle.offset + handle.length}]"
