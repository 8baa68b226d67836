"""Downloads that the readers of one host share.

Owns a folder of whole objects: one download per object and host, reference counts, idle eviction, a bound. Does not own
what the bytes mean; a reader that finds damage asks for :meth:`HostCache.drop`.

Rules:
- An object never changes and its name is never used twice, so a cached file is valid for ever, for every process.
- A file gets its name when it is complete. Threads and processes that want the same object at once wait for the one
  that holds its lock file; a lock ends with its process. A process that is stopped keeps its locks, so nobody waits for
  long: who waited in vain reads without the cache.
- A reader holds the file open, so an eviction, by whatever process, cannot take it away from under it.
- The bound holds for the folder, over all processes, downloads on their way included: each takes the room of its whole
  file, under the lock of the folder, before it fetches a byte. What would not fit is not cached.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import stat
from collections import Counter
from typing import Final

from stateline.blob.api import BlobStore
from stateline.changelog.host_lock import held_lock
from stateline.changelog.metrics import ChangelogMetrics
from stateline.environment import Environment, Executor, system_environment
from stateline.errors import AccessDeniedError, CorruptDataError, InvalidInputError

__all__ = ["CachedObject", "HostCache"]

_LOG = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 8 * 1024 * 1024
_LOCK_WAIT_SECONDS: Final = 30.0
_LEFTOVER_SECONDS: Final = 3600.0
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_OBJECT: Final = ".object"
_LOCK: Final = ".lock"
_ROOM_LOCK: Final = "room.lock"
_OURS: Final = re.compile(r"[0-9a-f]{32}(?:\.object|\.lock)?")


class CachedObject:
    """An open cached file. Its reader calls :meth:`HostCache.release` with it."""

    def __init__(self, name: str, descriptor: int) -> None:
        self.name = name
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size

    def read(self, start: int, end: int) -> bytes:
        """The half-open range of the object.

        Raises:
            CorruptDataError: The file ends before ``end``.
        """
        data = os.pread(self._descriptor, end - start, start) if end <= self.size else b""
        if len(data) != end - start:
            raise CorruptDataError(
                f"the download ends at {self.size}, before byte {end}", operation="read", subject=self.name
            )
        return data

    def close(self) -> None:
        """Closes the file, once."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class HostCache:
    """The cache of one store on this host. Safe from any thread, and between processes.

    Args:
        folder: Where to keep downloads; made with access for this user only. Shared by processes, and by stores.
        store: Where to download from.
        max_bytes: Bound of the downloads of this store.
        idle_seconds: What nobody has used for so long is deleted.
        metrics: Where to count.
        environment: The world; the real one by default.
    """

    def __init__(
        self,
        folder: str,
        store: BlobStore,
        max_bytes: int,
        idle_seconds: float,
        *,
        metrics: ChangelogMetrics | None = None,
        environment: Environment | None = None,
    ) -> None:
        environment = environment or system_environment()
        self._folder = os.path.join(os.path.realpath(folder), hashlib.sha256(store.url.encode()).hexdigest()[:32])
        self._store = store
        self._max_bytes = max_bytes
        self._idle_seconds = idle_seconds
        self._metrics = metrics or ChangelogMetrics()
        self._clock = environment.clock
        self._ids = environment.ids
        self._executors = environment.executors
        self._monitor = environment.executors.monitor()
        self._uses: Counter[str] = Counter()
        self._executor: Executor | None = None
        self._sweeping = False
        self._closed = False
        self._prepare_folder()

    def acquire(self, name: str) -> CachedObject | None:
        """The object, downloaded if need be; ``None`` if it cannot be cached here.

        Raises:
            NotFoundError: The store has no such object.
            OSError: The download failed; nothing is left behind.
        """
        with self._monitor:
            self._uses[name] += 1
        found: CachedObject | None = None
        try:
            found = self._open(name) or self._download(name)
        finally:
            if found is None:
                self._forget(name)
        return found

    def release(self, cached: CachedObject) -> None:
        """The reader is through with it. Call it once per :meth:`acquire` that returned an object."""
        cached.close()
        self._forget(cached.name)
        with contextlib.suppress(OSError):
            self._touch(self._path(cached.name))
        self._sweep_later()

    def drop(self, name: str) -> None:
        """Deletes a download that turned out to be damaged. Readers that hold it keep what they hold."""
        self._unlink(self._path(name))

    def sweep(self) -> None:
        """Deletes what nobody in this process uses and nobody anywhere has used for the idle time.

        Also what is left of downloads that failed or died: locks and pieces that nobody has touched for an hour.
        """
        horizon = self._clock.now() - self._idle_seconds
        for path, status in self._files():
            if status.st_mtime <= horizon and not self._is_used(path):
                self._evict(path)
        horizon = self._clock.now() - max(self._idle_seconds, _LEFTOVER_SECONDS)
        for path, status in self._files(complete=False):
            if status.st_mtime <= horizon:
                self._unlink(path)

    def close(self) -> None:
        """Ends the idle timer. Downloads stay for other processes; any cache sweeps them when they are idle."""
        with self._monitor:
            self._closed = True
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.close(wait=False)

    # -- downloads ------------------------------------------------------------------------------------------------

    def _open(self, name: str) -> CachedObject | None:
        path = self._path(name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with contextlib.suppress(OSError):
            self._touch(path)
        self._metrics.counter("cache_hits").increment()
        return CachedObject(name, descriptor)

    def _download(self, name: str) -> CachedObject | None:
        """Downloads under the lock file of the object, unless another process did so meanwhile."""
        with self._locked(self._path(name)[: -len(_OBJECT)] + _LOCK) as is_mine:
            if not is_mine:
                return None
            found = self._open(name)
            if found is not None:
                return found
            size = self._store.head(name).size
            temporary = os.path.join(self._folder, self._ids.new_id())
            descriptor = self._take_room(temporary, size)
            if descriptor is None:
                return None
            try:
                for start in range(0, size, _CHUNK_BYTES):
                    chunk = self._store.get_range(name, start, min(start + _CHUNK_BYTES, size))
                    self._metrics.counter("read_bytes").increment(len(chunk))
                    view = memoryview(chunk)
                    while view:
                        view = view[os.write(descriptor, view) :]
                os.rename(temporary, self._path(name))
            except BaseException:
                os.close(descriptor)
                self._unlink(temporary)
                raise
            self._metrics.counter("cache_downloads").increment()
            return CachedObject(name, descriptor)

    def _locked(self, path: str) -> contextlib.AbstractContextManager[bool]:
        """Holds a lock file, and tells whether it does."""
        return held_lock(path, _LOCK_WAIT_SECONDS, self._clock)

    def _take_room(self, path: str, size: int) -> int | None:
        """Makes an empty file that counts as ``size`` bytes from now on, for everybody; ``None`` if it cannot fit."""
        if size > self._max_bytes:
            return None
        with self._locked(os.path.join(self._folder, _ROOM_LOCK)) as is_mine:
            if not is_mine or not self._make_room(size):
                return None
            descriptor = os.open(path, _CREATE | os.O_EXCL, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)  # Until it is closed, so that a dead download takes no room.
                os.ftruncate(descriptor, size)
            except BaseException:
                os.close(descriptor)
                self._unlink(path)
                raise
            return descriptor

    def _make_room(self, size: int) -> bool:
        """Evicts the longest unused files until ``size`` bytes more keep the bound; ``False`` if they cannot."""
        taken = self._bytes_on_their_way()  # First: what is complete in between counts twice, and never not at all.
        found = sorted(self._files(), key=lambda item: (item[1].st_mtime, item[0]))
        excess = sum(status.st_size for _, status in found) + taken + size - self._max_bytes
        for path, status in found:
            if excess <= 0:
                break
            if not self._is_used(path):
                self._evict(path)
                excess -= status.st_size
        return excess <= 0

    def _bytes_on_their_way(self) -> int:
        """The room that downloads have taken. What is left of those that died is deleted; call it under the lock."""
        taken = 0
        for path, status in self._files(complete=False):
            if path.endswith(_LOCK):
                continue
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    self._unlink(path)
                except BlockingIOError:
                    taken += status.st_size
                finally:
                    os.close(descriptor)
        return taken

    # -- files ----------------------------------------------------------------------------------------------------

    def _prepare_folder(self) -> None:
        try:
            os.makedirs(self._folder, 0o700, exist_ok=True)
        except OSError as error:
            kind = AccessDeniedError if isinstance(error, PermissionError) else InvalidInputError
            raise kind(
                f"it cannot be made ({error.strerror})",
                operation="open cache",
                subject=self._folder,
                hint="Give a cache_dir that this user can write to",
            ) from error
        status = os.lstat(self._folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise AccessDeniedError(
                "it is a link, belongs to another user, or others may write to it",
                operation="open cache",
                subject=self._folder,
                hint="Give a cache_dir that only this user can write to",
            )

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, hashlib.sha256(name.encode()).hexdigest()[:32] + _OBJECT)

    def _files(self, *, complete: bool = True) -> list[tuple[str, os.stat_result]]:
        """Every complete download, of whatever process, or locks and pieces of downloads, with its status."""
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if _OURS.fullmatch(entry.name) and entry.name.endswith(_OBJECT) is complete:
                    with contextlib.suppress(FileNotFoundError):
                        found.append((entry.path, entry.stat(follow_symlinks=False)))
        return found

    def _touch(self, path: str) -> None:
        now = self._clock.now()
        os.utime(path, (now, now), follow_symlinks=False)

    def _evict(self, path: str) -> None:
        self._unlink(path)
        self._metrics.counter("cache_evictions").increment()

    def _unlink(self, path: str) -> None:
        for victim in (path, path[: -len(_OBJECT)] + _LOCK) if path.endswith(_OBJECT) else (path,):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(victim)

    # -- uses -----------------------------------------------------------------------------------------------------

    def _forget(self, name: str) -> None:
        with self._monitor:
            self._uses[name] -= 1
            if self._uses[name] == 0:
                del self._uses[name]

    def _is_used(self, path: str) -> bool:
        with self._monitor:
            return any(self._path(name) == path for name in self._uses)

    def _sweep_later(self) -> None:
        """Starts the idle timer, unless it runs."""
        with self._monitor:
            if self._closed or self._sweeping:
                return
            if self._executor is None:
                self._executor = self._executors.executor("changelog-cache", 1)
            self._sweeping = True
            try:
                self._executor.call_later(self._idle_seconds, self._timer_fired)
            except RuntimeError as error:  # No thread is to be had, which is no reason to fail a read.
                _LOG.debug("the cache is swept after a later read: %s", error)
                self._sweeping = False

    def _timer_fired(self) -> None:
        with self._monitor:
            self._sweeping = False
        try:
            self.sweep()
            if self._files():
                self._sweep_later()
        except OSError as error:
            _LOG.debug("the cache could not be swept: %s", error)
