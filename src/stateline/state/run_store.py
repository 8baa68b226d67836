"""Runs in a store: written once as a section of a segment, opened by handle, proved before the first row is read.

How a run is opened:

1. This process has it open already, or the handle carries it: nothing is read.
2. The store is this host's disk: the object is memory-mapped where it lies.
3. The disk cache has it: memory-mapped from there; a damaged file is replaced.
4. It is fetched: a small run at once; of a big one first the tail, whose index says which record batches the key groups
   need, then those, in ranges that the store may fetch in parallel. What came is kept in the disk cache.

In each case size and CRC32C are checked against the handle once per process; see "Whole" and "Slice" in ``run``.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from stateline.blob.api import BlobStore
from stateline.changelog.host_cache import Extent, HostCache
from stateline.changelog.section_reader import SectionPart, SectionReader
from stateline.changelog.segment import Section, SectionKind
from stateline.changelog.segment_writer import SegmentWriter
from stateline.environment import Clock, Environment, side_by_side, system_environment
from stateline.errors import DataLossError, InvalidInputError, NotFoundError
from stateline.handles import RunHandle
from stateline.key_groups import KeyGroupRange
from stateline.options import normalise_settings, parse_int, parse_size, setting
from stateline.progress import ProgressLog
from stateline.quantities import bytes_text
from stateline.sizes import sizes
from stateline.state.open_runs import OpenKey, OpenRun, OpenRuns, StackKey
from stateline.state.rows import StateRows
from stateline.state.run import (
    RunSettings,
    check_slice,
    check_whole,
    decode_batches,
    encode_run,
    ranged,
    read_index,
    tail_bytes,
)
from stateline.state.run_index import HashRanges, RunIndex
from stateline.state.runs import Run
from stateline.state.schema import StateSchema

__all__ = ["RunReader", "RunReaderSettings", "RunWriter", "process_open_runs"]

_PROCESS_OPEN_RUNS: Final = OpenRuns()

_LOGGER: Final = logging.getLogger(__name__)

Ranges = Sequence[tuple[int, int]]


def process_open_runs() -> OpenRuns:
    """The open runs that all readers of this process share, unless they are given their own."""
    return _PROCESS_OPEN_RUNS


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunReaderSettings:
    """How runs are fetched.

    Attributes:
        whole_bytes: Runs up to this size are fetched at once, without looking at their tail first.
        range_bytes: Bigger ones come in ranges of about this size.
        fetch_threads: Runs fetched at a time.
    """

    whole_bytes: int = setting(
        "1MiB", parse_size, help="runs up to this size are fetched at once", size="fetch_whole_bytes"
    )
    range_bytes: int = setting(
        "8MiB", parse_size, help="bytes per ranged read of a bigger run", size="fetch_range_bytes"
    )
    fetch_threads: int = setting(
        8, lambda value, name: parse_int(value, name, minimum=1, maximum=256), help="runs fetched at a time"
    )

    def __post_init__(self) -> None:
        normalise_settings(self)
        if self.range_bytes == 0:
            raise InvalidInputError("must be 1 byte or more, got 0", subject="range_bytes", hint="Give, say, 8MiB")


class RunWriter:
    """Encodes the runs of one table as sections of a segment.

    Args:
        segment: Where they go; whoever gave it finishes it.
        owner: The name of the state, for the segment's directory.
        schema: What the rows are.
        max_parallelism: Number of key groups.
        settings: How runs are cut and compressed.
    """

    def __init__(
        self,
        segment: SegmentWriter,
        owner: str,
        schema: StateSchema,
        max_parallelism: int,
        *,
        settings: RunSettings | None = None,
    ) -> None:
        self._segment = segment
        self._owner = owner
        self._schema = schema
        self._max_parallelism = max_parallelism
        self._settings = settings or RunSettings()

    @property
    def clock(self) -> Clock:
        """The clock of its environment."""
        return self._segment.environment.clock

    def add(self, run: Run, checkpoint_id: int) -> RunHandle:
        """Adds a run to the segment; it is durable when that is finished.

        Raises:
            InvalidInputError: The run has no rows.
            StatelineError: What the store raises.
        """
        encoded = encode_run(run, self._schema, self._max_parallelism, self._settings)
        size = len(encoded.data)
        section = Section(SectionKind.RUN, self._owner, checkpoint_id, (encoded.data,), size, encoded.crc32c)
        return self._segment.add(
            section,
            RunHandle,
            rows=encoded.rows,
            tombstones=encoded.tombstones,
            first_key_group=run.key_groups.start,
            last_key_group=run.key_groups.end,
            checkpoint_id=checkpoint_id,
        )


class RunReader:
    """Opens runs. Safe from any thread.

    Args:
        store: Of the checkpoint root.
        schema: What the rows become; those of an older schema are evolved.
        settings: How runs are fetched.
        cache: Keeps fetched runs on this host's disk; without one they are in memory only.
        open_runs: Runs open in this process; shared by all readers by default.
        environment: Threads for fetching.
    """

    def __init__(
        self,
        store: BlobStore,
        schema: StateSchema,
        *,
        settings: RunReaderSettings | None = None,
        cache: HostCache | None = None,
        open_runs: OpenRuns | None = None,
        environment: Environment | None = None,
    ) -> None:
        self._store = store
        self._url = store.url  # Asked for once: a key of each run contains it.
        self._schema = schema
        self._settings = settings or RunReaderSettings()
        self._sections = SectionReader(store, cache)
        self._open_runs = process_open_runs() if open_runs is None else open_runs
        self._environment = environment or system_environment()

    def open(self, handle: RunHandle) -> Run:
        """The rows of one run that lie within the key groups of its handle.

        Raises:
            DataLossError: The object is gone.
            CorruptDataError: It is not what the handle says.
            UnsupportedVersionError: A newer format.
            InvalidInputError: Of kind ``SCHEMA_MISMATCH``.
        """
        key = self._key(handle)
        opened = self._open_runs.get(key, handle.key_groups)
        if opened is None:
            opened = self._load(handle)
            self._open_runs.put(key, opened)
        return opened.run.part(handle.key_groups, opened.max_parallelism, handle)

    def index(self, handle: RunHandle) -> RunIndex:
        """Where the rows of one run lie, by its tail alone; raises what :meth:`open` raises."""
        if handle.is_inline:
            return read_index(pa.py_buffer(handle.data), handle)
        try:
            _, space = self._fetch_tail(handle)
        except NotFoundError as error:
            raise _gone(handle) from error
        return read_index(pa.py_buffer(space), handle)

    def open_at(self, handle: RunHandle, wanted: HashRanges) -> Run:
        """The rows of one run in those record batches that may hold given hashes; the others are not fetched.

        For a look at few keys: always by ranged reads, also where the store is this host's disk, and nothing is kept.
        Raises what :meth:`open` raises.
        """
        if handle.is_inline:
            return self.open(handle)
        try:
            tail, space = self._fetch_tail(handle)
            buffer = pa.py_buffer(space)
            index = read_index(buffer, handle)
            batches = index.holding(wanted)
            pieces = (_bytes_of(index, range(number, number + 1)) for number in batches)
            ranges = _joined((start, min(end, tail)) for start, end in pieces if start < tail)
            self._fill(space, handle, ranges)
        except NotFoundError as error:
            raise _gone(handle) from error
        check_slice(buffer, handle, index, batches)
        rows = decode_batches(buffer, handle, self._schema, index, batches)
        return Run(rows, handle.key_groups, index.max_parallelism, handle, is_exact=index.is_exact)

    def open_stack(self, stack: StackKey, handles: Sequence[RunHandle]) -> list[Run]:
        """Opens all runs that a stack has now, as :meth:`open_all`, and lets go of those that it had before."""
        runs = self.open_all(handles)
        now = self._environment.clock.monotonic()
        self._open_runs.keep_only(self._url, stack, map(self._key, handles), now)
        return runs

    def open_all(self, handles: Sequence[RunHandle], wanted: HashRanges | None = None) -> list[Run]:
        """Opens a stack of runs, in the order given; those to be fetched come in parallel.

        Args:
            handles: The runs.
            wanted: Only what :meth:`open_at` opens for them.
        """
        open_one = self.open if wanted is None else partial(self.open_at, wanted=wanted)
        named = [handle.name for handle in handles if not handle.is_inline]
        remote = len(named) > 1 and self._store.local_path(named[0]) is None
        if not remote:
            return [open_one(handle) for handle in handles]
        threads = self._settings.fetch_threads
        told = self._telling(open_one, handles)
        return side_by_side(self._environment, "stateline-fetch", told, handles, threads)

    def _telling(
        self, open_one: Callable[[RunHandle], Run], handles: Sequence[RunHandle]
    ) -> Callable[[RunHandle], Run]:
        """As ``open_one``, and tells the log how much of all runs is there, where that takes long."""
        in_all = sum(handle.length for handle in handles)
        log = ProgressLog(_LOGGER, f"opening state of {self._url}", self._environment.clock, bytes_text)

        def opened(handle: RunHandle) -> Run:
            run = open_one(handle)
            log.advance(handle.length, in_all)
            return run

        return opened

    def _key(self, handle: RunHandle) -> OpenKey:
        return (self._url, handle.identity, handle.length, handle.crc32c, self._schema)

    def _load(self, handle: RunHandle) -> OpenRun:
        """Finds and proves a run, or as much of it as the handle needs."""
        part = handle.first_key_group, handle.last_key_group
        try:
            near = self._sections.near(
                handle,
                lambda buffer: self._decode_whole(buffer, handle),
                SectionPart(part, lambda buffer: self._decode_slice(buffer, handle)),
            )
            if near is not None:
                return near
            buffer, extents, whole = self._fetch(handle)
        except NotFoundError as error:
            raise _gone(handle) from error
        opened = (self._decode_whole if whole else self._decode_slice)(buffer, handle)
        self._sections.keep(handle, extents, None if whole else part)
        return opened

    def _fetch(self, handle: RunHandle) -> tuple[pa.Buffer, list[Extent], bool]:
        """The bytes of a run or of a slice of it, in a buffer as long as the run and as extents; whether it is all."""
        if handle.length <= self._settings.whole_bytes:
            data = self._store.get_range(handle.name, handle.offset, handle.end)
            return pa.py_buffer(data), [Extent(0, memoryview(data))], True
        tail, space = self._fetch_tail(handle)
        buffer = pa.py_buffer(space)
        index = read_index(buffer, handle)
        batches = index.covering(handle.key_groups)
        whole = len(batches) == len(index.batches)
        start, end = _bytes_of(index, batches)
        ranges = _split(0 if whole else start, min(end, tail), self._settings.range_bytes)
        self._fill(space, handle, ranges)
        view = space.data
        extents = [Extent(first, view[first:last]) for first, last in (*ranges, (tail, handle.length))]
        return buffer, extents, whole

    def _fill(self, space: np.ndarray[Any, np.dtype[np.uint8]], handle: RunHandle, ranges: Ranges) -> None:
        """Fetches half-open ranges of a run into a space for it."""
        places = [(handle.offset + first, handle.offset + last) for first, last in ranges]
        for (first, last), data in zip(ranges, self._store.get_ranges(handle.name, places), strict=True):
            space[first:last] = ranged(data, last - first, handle.place)

    def _fetch_tail(self, handle: RunHandle) -> tuple[int, np.ndarray[Any, np.dtype[np.uint8]]]:
        """Fetches the end of the run, all of the tail; where it begins, and a space for the run with the end in place.

        Pages that are never written cost no memory, so a slice of a huge run is a small buffer. There is no space
        before the object has proved to be as long as the handle says.
        """
        start = max(handle.length - sizes().run_tail_bytes, 0)
        while True:
            data = self._store.get_range(handle.name, handle.offset + start, handle.end)
            end = ranged(data, handle.length - start, handle.place)
            needed = max(handle.length - tail_bytes(data), 0)
            if needed >= start:
                break
            start = needed
        space = np.zeros(handle.length, dtype=np.uint8)
        space[start:] = end
        return start, space

    def _decode_whole(self, buffer: pa.Buffer, handle: RunHandle) -> OpenRun:
        check_whole(buffer, handle)
        index = read_index(buffer, handle)
        everything = KeyGroupRange(0, index.max_parallelism - 1)
        return self._opened(buffer, handle, index, range(len(index.batches)), everything)

    def _decode_slice(self, buffer: pa.Buffer, handle: RunHandle) -> OpenRun:
        index = read_index(buffer, handle)
        batches = index.covering(handle.key_groups)
        check_slice(buffer, handle, index, batches)
        return self._opened(buffer, handle, index, batches, handle.key_groups)

    def _opened(
        self, buffer: pa.Buffer, handle: RunHandle, index: RunIndex, batches: range, key_groups: KeyGroupRange
    ) -> OpenRun:
        rows: list[StateRows] = decode_batches(buffer, handle, self._schema, index, batches)
        start, end = _bytes_of(index, batches)
        run = Run(rows, key_groups, index.max_parallelism, is_exact=index.is_exact)
        return OpenRun(end - start, index.max_parallelism, run)


def _bytes_of(index: RunIndex, batches: range) -> tuple[int, int]:
    """The half-open range of bytes in which neighbouring record batches lie."""
    if not batches:
        return index.tail_start, index.tail_start
    first, last = index.batches[batches[0]], index.batches[batches[-1]]
    return first.offset, last.offset + last.length


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ascending half-open ranges, with those that touch made into one."""
    joined: list[tuple[int, int]] = []
    for start, end in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _split(start: int, end: int, step: int) -> list[tuple[int, int]]:
    return [(first, min(first + step, end)) for first in range(start, end, step)]


def _gone(handle: RunHandle) -> DataLossError:
    return DataLossError(
        f"the run is gone, and checkpoints from {handle.checkpoint_id} on name it",
        operation="open",
        subject=handle.name,
        hint="Its checkpoints were retired while it was read (read again, and raise retained_checkpoints), or it was "
        "deleted or expired (check lifecycle rules): restore it, or go back to an older checkpoint",
    )
