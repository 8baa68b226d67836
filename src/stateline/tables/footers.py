"""The footers of Parquet files in a store: what a table must know of a file before it may name it."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from stateline.blob import BlobStore
from stateline.errors import CorruptDataError, DataLossError, NotFoundError
from stateline.tables.api import NewFile

__all__ = ["read_footer"]

_TAIL_BYTES: Final = 64 * 1024
_END_BYTES: Final = 8
"""Four bytes of length and the magic."""


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


def _tail(store: BlobStore, file: NewFile) -> pa.BufferReader:
    tail = store.get_range(file.name, max(0, file.length - _TAIL_BYTES), file.length)
    wanted = int.from_bytes(tail[-_END_BYTES : -_END_BYTES // 2], "little") + _END_BYTES
    if len(tail) < wanted <= file.length:
        tail = store.get_range(file.name, file.length - wanted, file.length - len(tail)) + tail
    return pa.BufferReader(tail)
