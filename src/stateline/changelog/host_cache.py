"""Bytes of objects elsewhere, on this host's disk: copies of uploads, downloads, fetched sections and slices of them.

Rules:
- Files are in a folder of their own, :data:`OWN_FOLDER`, below the one that the user names, for this user only. Only
  what has a name that is made here counts for the bound, and only that is deleted.
- An object never changes and its name is never used twice, so a file is good for ever, for every process, whoever
  wrote it. It is called by the store, the object and, unless it holds all of that, the bytes that it holds. The file of
  a slice is sparse: as long as its section, and only the slice takes room.
- A file appears whole, by rename. A writer takes room for it before the first byte, under the lock of the folder, so
  the bound holds over all processes. What would not fit is not kept.
- The ledger says how much room is taken. It may say too much, as nobody tells it of deletes, and never too little.
  When it is full the files are counted, and the least recently used go.
- Who writes or reads a file holds a lock on it, which ends with its process: what nobody holds may go. So what a dead
  writer left goes too. A mapped file stays readable after its deletion.
- A process that is stopped keeps its locks, so nobody waits for long: who waits in vain goes without.
- All is best effort: no failure of the disk fails whoever reads or uploads.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import stat
import struct
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa

from stateline.blob.api import BlobStore, Buffer, ObjectInfo
from stateline.blob.folders import make_private_folder
from stateline.blob.instrumented import StoreDecorator
from stateline.blob.local import LocalStore
from stateline.blob.places import check_apart
from stateline.changelog.copier import Copier, LocalCopy
from stateline.changelog.metrics import ChangelogMetrics
from stateline.environment import Environment, Executor, system_environment
from stateline.errors import AccessDeniedError, InvalidInputError, StorageFullError

__all__ = ["OWN_FOLDER", "Extent", "Found", "HostCache", "HostCopies"]

_LOG = logging.getLogger(__name__)

OWN_FOLDER: Final = "stateline-copies"
"""The name of the folder, so that people know whose it is."""

_CHUNK_BYTES: Final = 8 * 1024 * 1024
_LOCK_SECONDS: Final = 30.0
_POLL_SECONDS: Final = (0.000_5, 0.01)
_FILES_MAX: Final = 4096
"""More files than this would make counting slow."""

_SPARE: Final = 16
"""When something must go, one file in so many goes, so that the files are counted seldom."""

_BLOCK_BYTES: Final = 512
"""The unit of ``st_blocks``, whatever the file system's own block is."""

_PAGE_BYTES: Final = 4096
_LEDGER: Final = "ledger"
_ENTRY: Final = struct.Struct("<QQ")
_COPY: Final = re.compile(r"[0-9a-f]{32}(?:-\d+-\d+(?:-(\d+)-(\d+))?)?\.copy")
_UNDER_WAY: Final = re.compile(r"[0-9a-f]{32}-(\d+)\.tmp")


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of a section, and where they begin in it."""

    offset: int
    data: Buffer


@dataclass(frozen=True, slots=True)
class Found:
    """A copy: the bytes of a section as they are on the disk, mapped and not proved.

    Attributes:
        buffer: Shorter than the section if the file was cut.
        part: Which part of the section is there, as given to :meth:`HostCache.save`; ``None``: all of it.
        path: The file.
    """

    buffer: pa.Buffer
    part: tuple[int, int] | None
    path: Path


class HostCache:
    """The copies below one folder. Safe from any thread, and between processes.

    Args:
        folder: Where the cache makes a folder of its own when first needed. Shared by processes, and by stores.
        max_bytes: Room of all files, over all processes; and never more than half of what the disk has left for them.
        idle_seconds: What nobody has used for so long is deleted while this process reads; ``None``: nothing is.
        copy_timeout: Seconds that anybody waits for a copy to be written.
        metrics: Where to count.
        environment: The world; the real one by default.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        max_bytes: int,
        *,
        idle_seconds: float | None = None,
        copy_timeout: float = 0.25,
        metrics: ChangelogMetrics | None = None,
        environment: Environment | None = None,
    ) -> None:
        environment = environment or system_environment()
        self._given = Path(os.path.realpath(folder))
        self.folder = self._given / OWN_FOLDER
        self.metrics = metrics or ChangelogMetrics()
        self.copier = Copier(copy_timeout, self.metrics, environment)
        self._max_bytes = max_bytes
        self._idle_seconds = idle_seconds
        self._clock = environment.clock
        self._ids = environment.ids
        self._executors = environment.executors
        self._monitor = environment.executors.monitor()
        self._timers: Executor | None = None
        self._sweeping = self._closed = self._has_counted = False

    def check_apart(self, stores: Iterable[BlobStore], option: str) -> None:
        """Refuses a folder that overlaps the root of a store, where files that are not copies must stay.

        Raises:
            InvalidInputError: It is, contains or lies in such a root; links are followed.
        """
        for place in (self._given, self.folder):  # Both: the second may be a link.
            check_apart(option, LocalStore(place), stores)

    def prepare(self) -> None:
        """Makes the folder, unless it is there.

        Raises:
            InvalidInputError: It cannot be made.
            AccessDeniedError: The same, or it is not for this user alone.
        """
        try:
            make_private_folder(self.folder)
            status = os.lstat(self.folder)
        except OSError as error:
            kind = AccessDeniedError if isinstance(error, PermissionError) else InvalidInputError
            raise kind(
                f"cannot be created ({error.strerror})",
                operation="open cache",
                subject=str(self.folder),
                hint="Give a folder that this user can write to",
            ) from error
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise AccessDeniedError(
                "must be a folder of this user, not a link, that nobody else can write to",
                operation="open cache",
                subject=str(self.folder),
                hint="Give a folder that only this user can write to",
            )

    # -- reading --------------------------------------------------------------------------------------------------

    def find(
        self, store_url: str, name: str, offset: int, length: int, part: tuple[int, int] | None = None
    ) -> Generator[Found]:
        """The copies of a section, each mapped, **not proved**, and held until the next one is asked for.

        Close the iterator. No failure of the disk comes out of it.

        Args:
            store_url: The store.
            name: The object.
            offset: Where the section begins in it.
            length: Bytes of the section.
            part: Such as key groups: first and last, inclusive. Copies of a part that contains it are good, too.
        """
        key = _key(store_url, name)
        section = f"{key}-{offset}-{length}"
        with suppress(OSError, ValueError):
            self.prepare()
            yield from self._held(f"{key}.copy", offset, length)
            yield from self._held(f"{section}.copy")
            for file in os.listdir(self.folder) if part is not None else ():
                match = _COPY.fullmatch(file) if file.startswith(f"{section}-") else None
                if match is not None and part is not None:
                    kept = int(match[1]), int(match[2])
                    if kept[0] <= part[0] and part[1] <= kept[1]:
                        yield from self._held(file, part=kept)

    def drop(self, found: Found) -> None:
        """Deletes a copy that turned out to be damaged. Whoever holds it keeps what it holds."""
        self.metrics.counter("local_read_fallbacks").increment()
        with suppress(OSError):
            os.unlink(found.path)

    def _held(
        self, file: str, offset: int = 0, length: int | None = None, part: tuple[int, int] | None = None
    ) -> Iterator[Found]:
        path = self.folder / file
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.utime(path, (self._clock.now(),) * 2)
            with pa.memory_map(str(path)) as mapped:
                buffer = mapped.read_buffer()
            if length is not None:  # What was cut short fails its proof.
                buffer = buffer.slice(min(offset, buffer.size), max(min(length, buffer.size - offset), 0))
            self.metrics.counter("cache_hits").increment()
            yield Found(buffer, part, path)
        except (BlockingIOError, FileNotFoundError):
            return  # It is being evicted.
        finally:
            os.close(descriptor)
            self._sweep_later()

    # -- writing --------------------------------------------------------------------------------------------------

    def start(self, store: BlobStore, name: str, pieces: Sequence[Buffer]) -> LocalCopy:
        """Begins to copy a whole object that is being, or was, uploaded: see :meth:`Copier.start`."""
        return self.copier.start(partial(self.put, store.url, name, pieces), partial(self.delete, store.url, name))

    def save(
        self,
        store_url: str,
        name: str,
        offset: int,
        length: int,
        extents: Sequence[Extent],
        part: tuple[int, int] | None = None,
    ) -> None:
        """Keeps proved bytes of a section, if it can, and waits for that for a moment.

        What lies between the extents stays a hole. The bytes must not change afterwards.
        """
        suffix = "" if part is None else f"-{part[0]}-{part[1]}"
        room = sum(_size(extent.data) for extent in extents)
        if part is not None:  # Each extent may begin and end within a page.
            room += 2 * _PAGE_BYTES * len(extents)
        file = f"{_key(store_url, name)}-{offset}-{length}{suffix}.copy"
        write = partial(self._write, file, extents, length, room)
        self.copier.start(write, partial(self._unlink, file)).wait()

    def put(self, store_url: str, name: str, pieces: Sequence[Buffer]) -> int:
        """Copies a whole object now. Returns its size.

        Raises:
            OSError: It cannot be written, or there is no room for it.
            InvalidInputError: The folder cannot be made.
        """
        extents, position = [], 0
        for piece in pieces:
            extents.append(Extent(position, piece))
            position += _size(piece)
        self._write(f"{_key(store_url, name)}.copy", extents, position, position)
        return position

    def delete(self, store_url: str, name: str) -> None:
        """Deletes the copy of a whole object, if there is one."""
        self._unlink(f"{_key(store_url, name)}.copy")

    def _unlink(self, file: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.folder / file)

    def download(self, store: BlobStore, name: str) -> None:
        """Fetches a whole object, unless another thread or process does or did; whoever wants it too waits for that.

        Raises:
            NotFoundError: The store has no such object.
            OSError: The download failed; nothing is left behind.
        """
        self.prepare()
        key = _key(store.url, name)
        with self._locked(f"{key[:2]}.lock", _LOCK_SECONDS) as lock:
            if lock is None or (self.folder / f"{key}.copy").exists():
                return
            size = store.head(name).size
            with suppress(StorageFullError), self._new_file(f"{key}.copy", size, size) as descriptor:
                for start in range(0, size, _CHUNK_BYTES):
                    chunk = store.get_range(name, start, min(start + _CHUNK_BYTES, size))
                    self.metrics.counter("read_bytes").increment(len(chunk))
                    _write_at(descriptor, start, chunk)
                self.metrics.counter("cache_downloads").increment()

    def _write(self, file: str, extents: Iterable[Extent], length: int, room: int) -> None:
        with self._new_file(file, length, room) as descriptor:
            for extent in extents:
                _write_at(descriptor, extent.offset, extent.data)

    @contextmanager
    def _new_file(self, file: str, length: int, room: int) -> Iterator[int]:
        """A file that gets its name when all is written."""
        path, descriptor = self._take_room(room)
        try:
            os.truncate(descriptor, length)
            yield descriptor
            os.utime(descriptor, (self._clock.now(),) * 2)
            os.rename(path, self.folder / file)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(path)
            raise
        finally:
            os.close(descriptor)

    # -- room -----------------------------------------------------------------------------------------------------

    def _take_room(self, room: int) -> tuple[Path, int]:
        """Makes an empty file that is held, and for which so many bytes are counted from now on."""
        self.prepare()
        with self._locked(_LEDGER, self.copier.timeout) as ledger:
            fits = False
            if ledger is not None and room <= self._max_bytes:
                entry = os.pread(ledger, _ENTRY.size, 0)
                taken, files = _ENTRY.unpack(entry) if len(entry) == _ENTRY.size else (0, _FILES_MAX)
                # What a ledger says that was there before this process may be from before a loss of power.
                if not self._has_counted or taken + room > self._limit(taken) or files >= _FILES_MAX:
                    taken, files = self._make_room(room)
                    self._has_counted = True
                fits = taken + room <= self._limit(taken)
                os.pwrite(ledger, _ENTRY.pack(taken + room * fits, files + fits), 0)
            if not fits:
                raise StorageFullError(
                    f"{room} bytes do not fit, or another process keeps the folder locked",
                    operation="copy",
                    subject=str(self.folder),
                    hint="Nothing depends on it; raise the bound to keep more copies",
                )
            path = self.folder / f"{self._ids.new_id()}-{room}.tmp"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            return path, descriptor

    def _limit(self, taken: int) -> int:
        disk = os.statvfs(self.folder)
        return min(self._max_bytes, (taken + disk.f_bavail * disk.f_frsize) // 2)

    def _make_room(self, room: int) -> tuple[int, int]:
        """Counts the files, and evicts the longest unused until ``room`` bytes more fit, if that can be.

        Returns the bytes taken and the number of files. Call it under the lock of the ledger.
        """
        # First what is under way: what is complete in between counts twice, and never not at all.
        under_way = [taken for _, path, taken in self._files(_UNDER_WAY) if not self._evict(path)]
        found = sorted(self._files(_COPY))
        taken, files = sum(under_way) + sum(room for _, _, room in found), len(under_way) + len(found)
        limit = self._limit(taken)
        if taken + room <= limit and files < _FILES_MAX:
            return taken, files
        spare = files - len(found) // _SPARE
        for _, path, freed in found:
            if taken + room <= limit and files <= spare and files < _FILES_MAX:
                break
            if self._evict(path):
                taken, files = taken - freed, files - 1
                self.metrics.counter("cache_evictions").increment()
        return taken, files

    def size(self) -> int:
        """Bytes of disk that all copies take."""
        return sum(room for _, _, room in self._files(_COPY))

    def sweep(self) -> None:
        """Deletes what nobody has used for the idle time, and what dead writers left."""
        horizon = self._clock.now() - (self._idle_seconds or 0)
        for used_at, path, _ in self._files(_COPY):
            if self._idle_seconds is not None and used_at <= horizon and self._evict(path):
                self.metrics.counter("cache_evictions").increment()
        with self._locked(_LEDGER, self.copier.timeout) as ledger:
            if ledger is not None:
                os.pwrite(ledger, _ENTRY.pack(*self._make_room(0)), 0)

    def close(self) -> None:
        """Ends the threads. Copies stay for other processes, and for the next one."""
        self.copier.close()
        with self._monitor:
            self._closed = True
            timers, self._timers = self._timers, None
        if timers is not None:
            timers.close(wait=False)

    # -- files ----------------------------------------------------------------------------------------------------

    def _files(self, names: re.Pattern[str]) -> Iterator[tuple[float, str, int]]:
        """When each file was last used, its path, and the bytes for which it counts."""
        with os.scandir(self.folder) as entries:
            for entry in entries:
                match = names.fullmatch(entry.name)
                if match is not None:
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        room = status.st_size if match[1] is None else status.st_blocks * _BLOCK_BYTES
                        if names is _UNDER_WAY:  # What its writer has taken.
                            room = int(match[1])
                        yield status.st_mtime, entry.path, room

    def _evict(self, path: str) -> bool:
        """Deletes a file that nobody holds."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True

    @contextmanager
    def _locked(self, file: str, seconds: float) -> Iterator[int | None]:
        """Holds a lock file, and yields its descriptor; ``None`` where somebody else kept it for so many seconds."""
        descriptor = os.open(self.folder / file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            yield descriptor if self._lock(descriptor, seconds) else None
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int, seconds: float) -> bool:
        """Asks again and again: nothing tells that a lock is free."""
        deadline = self._clock.monotonic() + seconds
        pause, longest = _POLL_SECONDS
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            if self._clock.monotonic() >= deadline:
                return False
            self._clock.sleep(pause)
            pause = min(2 * pause, longest)

    # -- idle -----------------------------------------------------------------------------------------------------

    def _sweep_later(self) -> None:
        """Starts the idle timer, unless it runs."""
        with self._monitor:
            if self._idle_seconds is None or self._closed or self._sweeping:
                return
            if self._timers is None:
                self._timers = self._executors.executor("stateline-host-cache", 1)
            self._sweeping = True
            try:
                self._timers.call_later(self._idle_seconds, self._timer_fired)
            except RuntimeError as error:  # No thread is to be had, which is no reason to fail a read.
                _LOG.debug("the cache is swept after a later read: %s", error)
                self._sweeping = False

    def _timer_fired(self) -> None:
        with self._monitor:
            self._sweeping = False
        with suppress(OSError):
            self.sweep()
            if any(self._files(_COPY)):
                self._sweep_later()


class HostCopies(StoreDecorator):
    """A store of which only the copies of whole objects on this host are made and deleted."""

    def __init__(self, cache: HostCache, store: BlobStore) -> None:
        super().__init__(store)
        self._cache = cache

    def put_all_if_absent(self, name: str, pieces: Sequence[Buffer], **_: bool) -> ObjectInfo:
        return ObjectInfo(name=name, size=self._cache.put(self.url, name, pieces), modified_at=0)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._cache.delete(self.url, name)


def _key(store_url: str, name: str) -> str:
    return hashlib.sha256(f"{store_url}\0{name}".encode()).hexdigest()[:32]


def _size(data: Buffer) -> int:
    return memoryview(data).nbytes


def _write_at(descriptor: int, position: int, data: Buffer) -> None:
    left = memoryview(data).cast("B")
    while left:
        written = os.pwrite(descriptor, left, position)
        position, left = position + written, left[written:]
