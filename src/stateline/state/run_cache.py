"""Runs close to where they are searched: open ones in this process, fetched ones on this host's disk.

Owns two bounded caches. Does not own fetching or checking (``run_store``): whatever comes out of the disk cache is
proved
again before it is used, once per process, so a damaged, truncated or foreign file costs a fetch and nothing else.

Rules:
- The disk cache is safe between processes: a file appears whole, by rename, and is deleted by name; what is
  memory-mapped stays readable after that.
- Its files are in a folder of their own, :data:`RUNS_FOLDER`, below the one that the user names. Only what has a name
  that it makes counts for the bound, and only that is deleted.
- It is best effort: no failure of the local disk fails a task. :attr:`RunCache.failures` counts them.
- A file of a slice is sparse: it is as long as the run, and only the record batches of the slice take room.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from stateline.blob.api import BlobStore, Buffer
from stateline.blob.local import LocalStore
from stateline.blob.places import check_apart
from stateline.environment import Environment
from stateline.handles import RunHandle, SectionHandle
from stateline.key_groups import KeyGroupRange
from stateline.metrics import Counter
from stateline.options import check_kind
from stateline.state.rows import Run
from stateline.state.schema import StateSchema
from stateline.threads import new_lock

__all__ = ["RUNS_FOLDER", "Extent", "OpenRun", "OpenRuns", "RunCache", "StackKey", "apart_from"]

RUNS_FOLDER: Final = "stateline-runs"
"""The name of the folder, so that people know whose it is."""

_OURS: Final = re.compile(r"[0-9a-f]{64}(-\d+-\d+)?\.run|[0-9a-f]{32}\.tmp")
_PART: Final = re.compile(r"([0-9a-f]{64})-(\d+)-(\d+)\.run")

_TEMPORARY_AGE_SECONDS: Final = 3600.0
"""After this long a temporary file has lost its writer."""

_BLOCK_BYTES: Final = 512
"""The unit of ``st_blocks``, whatever the file system's own block is."""


@dataclasses.dataclass(frozen=True, slots=True)
class OpenRun:
    """A proved run: its bytes, mapped or in memory, and its rows in place.

    Attributes:
        size: Bytes that it pins.
        max_parallelism: Number of key groups that it was written for.
        run: What was read; its key groups say how much of the run that is.
    """

    size: int
    max_parallelism: int
    run: Run


OpenKey = tuple[str, str, int, int, int, bytes, StateSchema]
"""Store URL, name, offset, length, CRC32C, inline bytes, schema."""

StackKey = tuple[str, str, int, int]
"""Whose runs a stack has: operator, table, first and last key group."""


class OpenRuns:
    """The runs that this process has proved and mapped: the least recently used go first. Safe from any thread.

    What a stack has lost to a merge is let go when the stack is opened again, as a mapped file keeps its room on the
    disk after its deletion. The bounds are for all the rest.

    Args:
        bytes_max: Bytes of all runs together; a mapped one costs page cache, not memory of the process.
        runs_max: Number of runs.
    """

    def __init__(self, bytes_max: int = 4 << 30, runs_max: int = 1024) -> None:
        self._bytes_max = bytes_max
        self._runs_max = runs_max
        self._lock = new_lock()
        self._runs: OrderedDict[OpenKey, tuple[OpenRun, ...]] = OrderedDict()
        self._stacks: OrderedDict[tuple[str, StackKey], frozenset[OpenKey]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, key: OpenKey, key_groups: KeyGroupRange) -> OpenRun | None:
        """The run, if so much of it is open."""
        with self._lock:
            parts = self._runs.get(key, ())
            if parts:
                self._runs.move_to_end(key)
            return next((part for part in parts if _covers(part, key_groups)), None)

    def put(self, key: OpenKey, run: OpenRun) -> None:
        """Keeps a run, or a part of it, open, and lets others go until the bounds hold.

        One that is still in use stays readable.
        """
        with self._lock:
            before = self._runs.pop(key, ())
            parts = (*(part for part in before if not _covers(run, part.run.key_groups)), run)
            self._runs[key] = parts
            self._bytes += _bytes_of(parts) - _bytes_of(before)
            while self._runs and (self._bytes > self._bytes_max or len(self._runs) > self._runs_max):
                _, dropped = self._runs.popitem(last=False)
                self._bytes -= _bytes_of(dropped)

    def keep_only(self, store_url: str, stack: StackKey, keys: Iterable[OpenKey]) -> None:
        """Says which runs a stack has now; those that it had before, and no stack has any longer, are let go."""
        now = frozenset(keys)
        with self._lock:
            lost = self._stacks.pop((store_url, stack), frozenset()) - now
            for key in lost.difference(*self._stacks.values()):
                self._bytes -= _bytes_of(self._runs.pop(key, ()))
            self._stacks[store_url, stack] = now
            if len(self._stacks) > self._runs_max:
                self._stacks.popitem(last=False)

    def clear(self) -> None:
        """Lets all go."""
        with self._lock:
            self._runs.clear()
            self._stacks.clear()
            self._bytes = 0


def _covers(opened: OpenRun, key_groups: KeyGroupRange) -> bool:
    return opened.run.key_groups.intersection(key_groups) == key_groups


def _bytes_of(parts: Iterable[OpenRun]) -> int:
    return sum(part.size for part in parts)


@dataclasses.dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of a run and where they begin in it."""

    offset: int
    data: memoryview


class RunCache:
    """Fetched runs on the local disk, within a bound of bytes.

    Args:
        folder: Where the cache makes a folder of its own (for this user only) when first needed. Any number of
            processes may share it.
        bytes_max: Disk room of all files; the least recently used are deleted.
        environment: Ids for temporary names, the clock for their age.
    """

    def __init__(self, folder: str | Path, bytes_max: int, environment: Environment) -> None:
        self._given = Path(folder)
        self._folder = self._given / RUNS_FOLDER
        self._bytes_max = bytes_max
        self._environment = environment
        self.failures = Counter()

    def check_apart(self, stores: Iterable[BlobStore], option: str) -> None:
        """Refuses a folder that overlaps the root of a store, where files that are not copies must stay.

        Raises:
            InvalidInputError: It is, contains or lies in such a root; links are followed.
        """
        for place in (self._given, self._folder):
            check_apart(option, LocalStore(place), stores)

    def load(self, handle: RunHandle, store_url: str, *, whole: bool) -> pa.Buffer | None:
        """The bytes kept for a run, memory-mapped and **not proved**; ``None`` where there are none."""
        try:
            path = self._found(handle, store_url, whole=whole)
            with pa.memory_map(str(path)) as mapped:
                buffer = mapped.read_buffer()
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError:
            self.failures.increment()
            return None
        return buffer

    def save(self, handle: SectionHandle, store_url: str, extents: Sequence[Extent], *, whole: bool) -> None:
        """Keeps proved bytes of a run; what lies between the extents stays a hole."""
        with self._best_effort():
            os.makedirs(self._folder, 0o700, exist_ok=True)
            temporary = self._folder / f"{self._environment.ids.new_id()}.tmp"
            try:
                self._write(temporary, handle.length, extents)
                os.rename(temporary, self._path(handle, store_url, whole=whole))
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
            self._trim()

    def keep(self, handle: SectionHandle, store_url: str, pieces: Sequence[Buffer]) -> None:
        """Keeps a whole section that was just written."""
        offsets = itertools.accumulate(map(len, pieces), initial=0)
        extents = [Extent(offset, memoryview(piece).cast("B")) for offset, piece in zip(offsets, pieces, strict=False)]
        self.save(handle, store_url, extents, whole=True)

    def drop(self, handle: RunHandle, store_url: str, *, whole: bool) -> None:
        """Forgets a run whose bytes turned out damaged."""
        with self._best_effort(), contextlib.suppress(FileNotFoundError):
            os.unlink(self._found(handle, store_url, whole=whole))

    def size(self) -> int:
        """Bytes of disk that all files take."""
        return sum(blocks for _, blocks, _ in self._files())

    def _path(self, handle: SectionHandle, store_url: str, *, whole: bool) -> Path:
        identity = f"{store_url}\0{handle.name}\0{handle.offset}\0{handle.length}\0{handle.crc32c}"
        part = (
            "" if whole or not isinstance(handle, RunHandle) else f"-{handle.first_key_group}-{handle.last_key_group}"
        )
        return self._folder / f"{hashlib.sha256(identity.encode()).hexdigest()}{part}.run"

    def _found(self, handle: RunHandle, store_url: str, *, whole: bool) -> Path:
        """The file of a run, or one of a part that holds the key groups of the handle: a merge may have left fewer."""
        path = self._path(handle, store_url, whole=whole)
        if whole or path.exists():
            return path
        digest = path.name.partition("-")[0]
        for name in os.listdir(self._folder):
            found = _PART.fullmatch(name)
            if found is not None and found[1] == digest:
                first, last = int(found[2]), int(found[3])
                if first <= handle.first_key_group and handle.last_key_group <= last:
                    return self._folder / name
        return path

    def _write(self, path: Path, size: int, extents: Sequence[Extent]) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.truncate(descriptor, size)
            for extent in extents:
                position, left = extent.offset, extent.data
                while left:
                    written = os.pwrite(descriptor, left, position)
                    position, left = position + written, left[written:]
        finally:
            os.close(descriptor)

    def _trim(self) -> None:
        files = sorted(self._files())
        room = sum(blocks for _, blocks, _ in files)
        oldest_temporary = self._environment.clock.now() - _TEMPORARY_AGE_SECONDS
        for used_at, blocks, path in files:
            if path.suffix == ".tmp" and used_at > oldest_temporary:
                continue  # Its writer may be at it right now.
            if path.suffix != ".tmp" and room <= self._bytes_max:
                continue
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            room -= blocks

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Time of last use, bytes of disk and path of each file of ours."""
        try:
            entries = list(os.scandir(self._folder))
        except FileNotFoundError:
            return
        for entry in entries:
            if _OURS.fullmatch(entry.name):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    yield status.st_mtime, status.st_blocks * _BLOCK_BYTES, Path(entry.path)

    @contextlib.contextmanager
    def _best_effort(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.failures.increment()


def apart_from(root: BlobStore, cache: RunCache | None) -> RunCache | None:
    """``cache``, if it is one whose folder does not overlap the root.

    Raises:
        InvalidInputError: It does, or is something else.
    """
    check_kind(cache, RunCache | None, "cache", "a RunCache")
    if cache is not None:
        cache.check_apart([root], "cache")
    return cache
