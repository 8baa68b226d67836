"""Pieces of state that can be opened: inline ones and files.

Facts:
- The handle of exclusive state is relative to the folder of the record: the folder can be moved as a whole. That of
  shared state is the name from the root of the store.
- A file that is read from its first to its last byte is checked against its CRC32C; a reader that jumps is not.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import BinaryIO, Final

from stateline.blob.api import BlobStore, Buffer
from stateline.blob.checksum import crc32c
from stateline.checkpoint.api import FileState, InlineState
from stateline.checkpoint.layout import check_object_name
from stateline.errors import CorruptDataError, NotFoundError, StatelineError

__all__ = ["FileHandle", "InlineHandle", "open_state"]

_READ_BUFFER_BYTES: Final = 1024 * 1024
_READ_ALL_BYTES: Final = 16 * 1024 * 1024
"""What one request fetches where a file is read as a whole."""


@dataclass(frozen=True, slots=True)
class InlineHandle:
    """State that lives in the handle itself."""

    data: bytes

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data)

    @property
    def state(self) -> InlineState:
        """What a record keeps."""
        return InlineState(data=self.data)

    def open(self) -> BinaryIO:
        """The bytes as a readable, seekable file."""
        return io.BytesIO(self.data)

    def discard(self) -> None:
        """Nothing to delete. Idempotent."""


@dataclass(frozen=True, slots=True, eq=False)
class FileHandle:
    """State in an object of its own. Equal to every handle of the same object, whichever store opened it.

    Attributes:
        store: Where the object is.
        name: Its name from the root of the store.
        size: Bytes.
        crc32c: CRC32C of all of them.
        relative: Whether the record names it relative to its own folder.
    """

    store: BlobStore
    name: str
    size: int
    crc32c: int
    relative: bool

    def _identity(self) -> tuple[str, str, int, int, bool]:
        return self.store.url, self.name, self.size, self.crc32c, self.relative

    def __eq__(self, other: object) -> bool:
        return self._identity() == other._identity() if isinstance(other, FileHandle) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity())

    @property
    def state(self) -> FileState:
        """What a record keeps."""
        name = self.name.rpartition("/")[2] if self.relative else self.name
        return FileState(name=name, relative=self.relative, size=self.size, crc32c=self.crc32c)

    def open(self) -> BinaryIO:
        """A readable, seekable file that fetches ranges as they are needed.

        Reading raises :class:`NotFoundError` if the object is gone, and :class:`CorruptDataError` if it is shorter or
        its checksum is wrong.
        """
        return io.BufferedReader(_ObjectReader(self), _READ_BUFFER_BYTES)

    def discard(self) -> None:
        """Deletes the object, and nothing else. Idempotent; an error if the object is still there, or may be."""
        try:
            self.store.delete([self.name])
        except (StatelineError, OSError):  # OSError: from a store of somebody else's.
            try:
                self.store.head(self.name)
            except NotFoundError:
                return
            raise


def open_state(state: InlineState | FileState, store: BlobStore, folder: str) -> InlineHandle | FileHandle:
    """The handle of what a record keeps in ``Checkpoint.states``. No I/O.

    Args:
        state: What the record keeps.
        store: The root of the record.
        folder: Name of the record's folder, such as ``Checkpoint.folder``.
    """
    if isinstance(state, InlineState):
        return InlineHandle(state.data)
    name = check_object_name(state.object_name(folder))
    return FileHandle(store, name, state.size, state.crc32c, state.relative)


class _ObjectReader(io.RawIOBase):
    """Ranged reads of one object, with a checksum as long as they follow one another."""

    def __init__(self, handle: FileHandle) -> None:
        super().__init__()
        self._handle = handle
        self._position = 0
        self._checked_bytes = 0
        self._checksum = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._handle.size}[whence]
        if base + offset < 0:
            raise ValueError(f"cannot seek to {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Buffer) -> int:  # type: ignore[override]
        view = memoryview(buffer).cast("B")
        data = self._next(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        """All that is left; Python's own makes a request for every 8 KiB."""
        return b"".join(iter(lambda: self._next(_READ_ALL_BYTES), b""))

    def _next(self, length: int) -> bytes:
        end = min(self._position + length, self._handle.size)
        if self._position >= end:
            return b""
        data = self._handle.store.get_range(self._handle.name, self._position, end)
        if self._position == self._checked_bytes:
            self._check(data)
        self._position += len(data)
        return data

    def _check(self, data: bytes) -> None:
        self._checksum = crc32c(data, self._checksum)
        self._checked_bytes += len(data)
        if self._checked_bytes == self._handle.size and self._checksum != self._handle.crc32c:
            raise CorruptDataError(
                f"its CRC32C is {self._checksum:08x}, {self._handle.crc32c:08x} was written",
                operation="read",
                subject=f"{self._handle.store.url}/{self._handle.name}",
                hint="Restore the object, or go back to a checkpoint that does not need it",
            )
