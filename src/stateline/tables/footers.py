"""The footers of Parquet files in a store: what a table must know of a file before it may name it."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from stateline.blob import BlobStore
from stateline.errors import CorruptDataError, DataLossError, NotFoundError
from stateline.floats import float_leaves
from stateline.tables.api import NewFile

__all__ = ["LeafBounds", "column_reader", "leaf_bounds", "read_footer"]

_TAIL_BYTES: Final = 64 * 1024
_END_BYTES: Final = 8
"""Four bytes of length and the magic."""


@dataclass(frozen=True, slots=True)
class LeafBounds:
    """What a footer says for certain of all values of one leaf column.

    Attributes:
        nulls: Its nulls; ``None`` if unknown.
        least: Its least value, as pyarrow returns it; ``None`` if unknown, or where all values are null.
        greatest: Its greatest value, likewise. Texts and bytes are never cut.
    """

    nulls: int | None = None
    least: Any = None
    greatest: Any = None


def leaf_bounds(footer: pq.FileMetaData) -> list[LeafBounds]:
    """The bounds of all leaf columns of a file, in its order.

    Those of floating-point columns were computed while the file was written, and are known only where every value is
    finite: statistics leave NaN out, and readers differ in its order.
    """
    floats = float_leaves(footer.metadata)
    found = []
    for index in range(len(footer.schema)):
        if index in floats:
            found.append(LeafBounds(floats[index].nulls, floats[index].least, floats[index].greatest))
        elif _is_floating(footer.schema.column(index)):
            found.append(LeafBounds())
        else:
            found.append(_from_statistics(footer, index))
    return found


def _is_floating(leaf: pq.ColumnSchema) -> bool:
    return leaf.physical_type in ("FLOAT", "DOUBLE") or str(leaf.logical_type) == "Float16"


def _from_statistics(footer: pq.FileMetaData, index: int) -> LeafBounds:
    least = greatest = None
    nulls = 0
    is_certain = True
    for group in range(footer.num_row_groups):
        chunk = footer.row_group(group).column(index)
        found = chunk.statistics
        if found is None or not found.has_null_count:
            return LeafBounds()
        nulls += found.null_count
        if found.null_count == chunk.num_values:
            continue
        values = _values(found)
        if values is None:
            is_certain = False
        elif is_certain:
            least = values[0] if least is None else min(least, values[0])
            greatest = values[1] if greatest is None else max(greatest, values[1])
    return LeafBounds(nulls, least, greatest) if is_certain else LeafBounds(nulls)


def _values(found: pq.Statistics) -> tuple[Any, Any] | None:
    if not found.has_min_max:
        return None
    try:
        return found.min, found.max
    except (ValueError, OverflowError, UnicodeDecodeError):
        return None  # A time that Python has not, or a text that is none.


def read_footer(store: BlobStore, file: NewFile) -> pq.FileMetaData:
    """The footer of a published file; one request of the store where it is short.

    Raises:
        DataLossError: The file is gone.
        CorruptDataError: It is not the file that the record names.
    """
    subject = f"{store.url}/{file.name}"
    try:
        path = store.local_path(file.name)
        metadata = pq.read_metadata(_tail(store, file) if path is None else path)
    except (NotFoundError, FileNotFoundError) as error:
        raise DataLossError(
            "a file that a record has published is gone, and its rows are not in the table yet",
            operation="commit",
            subject=subject,
            hint="Bring it back to this name: nothing but the query may move files of a table",
        ) from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptDataError(
            f"is not a Parquet file ({error})",
            operation="commit",
            subject=subject,
            hint="Restore it from a copy",
        ) from error
    if metadata.num_rows != file.rows:
        raise CorruptDataError(
            f"expected {file.rows} rows as in the record, got {metadata.num_rows}", operation="commit", subject=subject
        )
    return metadata


def column_reader(store: BlobStore, file: NewFile) -> Callable[[int], pa.ChunkedArray]:
    """What reads one leaf column of a published file, by its number: no other bytes than those, and the footer."""

    @cache
    def opened() -> pq.ParquetFile:
        path = store.local_path(file.name)
        return pq.ParquetFile(_StoredFile(store, file) if path is None else path)

    def read(index: int) -> pa.ChunkedArray:
        return opened().reader.read_all(column_indices=[index]).column(0)

    return read


class _StoredFile(io.RawIOBase):
    """A file of a store, for a reader that seeks in it."""

    def __init__(self, store: BlobStore, file: NewFile) -> None:
        self._store = store
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """The next byte to read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a byte."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.length}[whence]
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read as many bytes as fit."""
        view = memoryview(buffer).cast("B")
        end = min(self._at + len(view), self._file.length)
        if end <= self._at:
            return 0
        data = self._store.get_range(self._file.name, self._at, end)
        view[: len(data)] = data
        self._at = end
        return len(data)


def _tail(store: BlobStore, file: NewFile) -> pa.BufferReader:
    tail = store.get_range(file.name, max(0, file.length - _TAIL_BYTES), file.length)
    wanted = int.from_bytes(tail[-_END_BYTES : -_END_BYTES // 2], "little") + _END_BYTES
    if len(tail) < wanted <= file.length:
        tail = store.get_range(file.name, file.length - wanted, file.length - len(tail)) + tail
    return pa.BufferReader(tail)
