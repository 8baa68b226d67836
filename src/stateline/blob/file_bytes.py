"""The bytes of files on the local disk, in and out. Nothing that is written here is safe before an ``fsync``.

Long objects that nobody reads soon go past the page cache, where the file system allows it: a copy into memory that was
not used for a while is what most of the time of a write through it goes into. 100 MB take 55 to 115 milliseconds of a
processor through the cache, and 25 past it. Bytes that were written so are read so: only once, to be written elsewhere.

Facts (``open(2)`` on Linux, "O_DIRECT"):
- Address, length and position must be multiples of the disk's block, of which 4096 is one everywhere. So the pieces
  are gathered in aligned memory, little enough to stay in the processor's own cache, and the last bytes of a file, less
  than a block, are written in the usual way. A read may reach beyond the end.
- A file system that cannot do it says ``EINVAL``, to the flag or to the first call. Then all goes as usual.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from stateline.blob.api import Buffer

__all__ = ["read_once", "write_all", "write_pieces"]

_VECTOR_PIECES: Final = 1024
"""Pieces in one ``writev``: IOV_MAX of Linux."""

_BLOCK_BYTES: Final = 4096
_DIRECT_CHUNK_BYTES: Final = 1024 * 1024
_DIRECT_BYTES_MIN: Final = 2 * 1024 * 1024
"""Shorter files go through the page cache: there the copy is cheap, and one call for the disk is enough."""

_O_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)


def write_all(descriptor: int, data: Buffer) -> None:
    """Writes all bytes at the current position, in as many calls as that takes."""
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(descriptor, view) :]


def write_pieces(descriptor: int, pieces: Iterable[Buffer], size: int) -> None:
    """Writes the pieces of a new file that nobody reads soon, one after the other.

    Args:
        descriptor: Of an empty file, at its start.
        pieces: Contiguous buffers. Those of an iterator need be good only until the next one is asked for.
        size: How many bytes they have: decides which way they are written, not how many are.
    """
    if size >= _DIRECT_BYTES_MIN and _set_direct(descriptor, True):
        _write_past_cache(descriptor, pieces)
    elif isinstance(pieces, Sequence):
        _write_vector(descriptor, pieces)
    else:
        for piece in pieces:
            write_all(descriptor, piece)


def read_once(descriptor: int, size: int) -> Iterator[Buffer]:
    """Reads a file from its start, in chunks that are good until the next one is asked for.

    Args:
        descriptor: Of the file, at its start.
        size: How long it is, about: decides which way it is read, not how much.
    """
    memory = memoryview(mmap.mmap(-1, _DIRECT_CHUNK_BYTES))
    if size >= _DIRECT_BYTES_MIN:
        _set_direct(descriptor, True)
    while count := _read_aligned(descriptor, memory):
        yield memory[:count]


def _read_aligned(descriptor: int, memory: memoryview) -> int:
    """Reads what comes next; as usual from where the file system does not give it past its cache."""
    try:
        return os.readv(descriptor, [memory])
    except OSError as error:
        if error.errno != errno.EINVAL or not _is_direct(descriptor):
            raise
        _set_direct(descriptor, False)
        return os.readv(descriptor, [memory])


def _write_vector(descriptor: int, pieces: Sequence[Buffer]) -> None:
    """Writes many pieces in few calls: the page cache takes one large write twice as fast as many odd-sized ones."""
    views = [view for piece in pieces if (view := memoryview(piece).cast("B"))]
    first = 0
    while first < len(views):
        written = os.writev(descriptor, views[first : first + _VECTOR_PIECES])
        while first < len(views) and written >= len(views[first]):
            written -= len(views[first])
            first += 1
        if written:
            views[first] = views[first][written:]


def _write_past_cache(descriptor: int, pieces: Iterable[Buffer]) -> None:
    memory = mmap.mmap(-1, _DIRECT_CHUNK_BYTES)  # Begins at a page.
    chunk, view = np.frombuffer(memory, np.uint8), memoryview(memory)
    filled = 0
    for piece in pieces:
        rest = np.frombuffer(memoryview(piece).cast("B"), np.uint8)
        while len(rest):
            taken = rest[: _DIRECT_CHUNK_BYTES - filled]
            chunk[filled : filled + len(taken)] = taken  # By numpy, which lets other threads run meanwhile.
            filled += len(taken)
            rest = rest[len(taken) :]
            if filled == _DIRECT_CHUNK_BYTES:
                _write_aligned(descriptor, view)
                filled = 0
    whole = filled - filled % _BLOCK_BYTES
    _write_aligned(descriptor, view[:whole])
    _set_direct(descriptor, False)
    write_all(descriptor, view[whole:filled])


def _write_aligned(descriptor: int, view: memoryview) -> None:
    """Writes whole blocks; as usual from where the file system does not take them past its cache."""
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError as error:
        if error.errno != errno.EINVAL or not _is_direct(descriptor):
            raise
        _set_direct(descriptor, False)
        write_all(descriptor, view)


def _is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & _O_DIRECT)


def _set_direct(descriptor: int, wanted: bool) -> bool:
    """Turns the way past the cache on or off; whether it is on now."""
    if not _O_DIRECT:
        return False
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _O_DIRECT if wanted else flags & ~_O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return wanted
