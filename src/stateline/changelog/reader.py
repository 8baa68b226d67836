"""From a handle back to its changes.

Guarantees:
- Segments come in the order of the handle; within one, metadata first, then key group by key group, and within a key
  group the order of appending.
- Only the key groups that were asked for come out, and only the blocks that may hold them are fetched. Metadata
  always is.
- Every byte is proved by a checksum before any of it comes out. A damaged or missing local copy is replaced by a remote
  read; a damaged object is an error that names it and the offset.
- A few segments are fetched ahead, in parallel; what is held at a time is bounded by their number times
  :data:`RUN_BYTES`, or one block that is larger.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateline.blob.api import BlobStore
from stateline.blob.checksum import crc32c
from stateline.changelog.api import StateChange
from stateline.changelog.block import END_OF_STREAM, SCHEMA, SCHEMA_MESSAGE, decode_block
from stateline.changelog.changes import BlockEntry, ChangesTable, decode_table
from stateline.changelog.handle import ChangelogHandle, SegmentHandle
from stateline.changelog.host_cache import HostCache
from stateline.changelog.metrics import ChangelogMetrics
from stateline.changelog.section_reader import SectionReader
from stateline.environment import Environment, Executor, system_environment
from stateline.errors import CorruptDataError, DataLossError, InvalidInputError, NotFoundError
from stateline.key_groups import KeyGroupRange

__all__ = ["RUN_BYTES", "ChangelogReader", "Downloads", "Fetch", "check_messages", "decode_blocks", "runs_of"]

RUN_BYTES: Final = 8 * 1024 * 1024
"""Blocks are fetched in runs of at most this many bytes."""

SMALL_SEGMENT_BYTES: Final = 64 * 1024
"""A segment up to this size is fetched whole, in one request."""

_READERS: Final = 8
"""Readers that fetch ahead at full speed at the same time; more of them share the threads of so many."""

Columns: TypeAlias = tuple[npt.NDArray[np.int16], pa.Array]
"""Key groups and changes of one block."""

Fetch: TypeAlias = Callable[[int, int], bytes]
"""Gives the bytes of a half-open range of one object."""

T = TypeVar("T")


class Downloads:
    """The threads of any number of readers, of which each fetches a few segments ahead. Safe from any thread.

    Threads are started when they are needed, and stay for the next reader: so a reader costs none of its own, whether
    its iterators are exhausted, kept or forgotten.

    Args:
        num_threads: Segments that one reader fetches ahead.
        environment: Threads.
    """

    def __init__(self, num_threads: int, environment: Environment) -> None:
        self._num_threads = num_threads * _READERS
        self._executors = environment.executors
        self._monitor = environment.executors.monitor()
        self._executor: Executor | None = None

    def submit(self, load: Callable[[], T]) -> Future[T] | None:
        """Loads something soon; ``None`` where no thread is to be had."""
        with self._monitor:
            if self._executor is None:
                self._executor = self._executors.executor("changelog-download", self._num_threads)
            executor = self._executor
        with suppress(RuntimeError):
            return executor.submit(load)
        return None

    def close(self) -> None:
        """Ends the threads. Idempotent; they come again when they are needed."""
        with self._monitor:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.close(wait=False)


class ChangelogReader:
    """Reads changelog handles. Safe from any thread. Made by a storage.

    Args:
        store: The objects.
        cache: Copies of them on this host, which are tried first.
        downloaded: Downloads shared on this host, tried next.
        num_threads: Segments that are fetched ahead.
        downloads: The threads for that, which others may use, too; by default some of its own.
        metrics: Where to count.
        environment: The world; the real one by default.
    """

    def __init__(
        self,
        store: BlobStore,
        *,
        cache: HostCache | None = None,
        downloaded: HostCache | None = None,
        num_threads: int = 4,
        downloads: Downloads | None = None,
        metrics: ChangelogMetrics | None = None,
        environment: Environment | None = None,
    ) -> None:
        environment = environment or system_environment()
        self._store = store
        self._sections = SectionReader(store, cache, downloaded)
        self._num_threads = num_threads
        self._metrics = metrics or ChangelogMetrics()
        self._executors = environment.executors
        self._downloads = downloads or Downloads(num_threads, environment)
        self._owns_downloads = downloads is None

    def read(self, handle: ChangelogHandle, key_groups: KeyGroupRange | None = None) -> Iterator[StateChange]:
        """The changes of a handle, in the order of the module docstring.

        Args:
            handle: What to read.
            key_groups: Only these (inclusive), and only those of the handle's own range; ``None``: its whole range.
                Where the two have nothing in common, nothing comes, metadata neither.

        Raises:
            DataLossError: An object that the handle names is gone.
            CorruptDataError: An object is damaged, or is not the one that the handle names.
        """
        for groups, values in self._read(handle, key_groups):
            yield from map(StateChange, groups.tolist(), values.to_pylist())

    def read_batches(
        self, handle: ChangelogHandle, key_groups: KeyGroupRange | None = None
    ) -> Iterator[pa.RecordBatch]:
        """As :meth:`read`, as Arrow record batches with the columns ``key_group`` and ``change``."""
        for groups, values in self._read(handle, key_groups):
            column = pa.Array.from_buffers(pa.int16(), len(groups), [None, pa.py_buffer(groups)])
            yield pa.RecordBatch.from_arrays([column, values], schema=SCHEMA)

    def close(self) -> None:
        """Ends the threads that fetch ahead, if no other reader uses them. Idempotent; the reader may be used again."""
        if self._owns_downloads:
            self._downloads.close()

    def _read(self, handle: ChangelogHandle, key_groups: KeyGroupRange | None) -> Iterator[Columns]:
        if not isinstance(handle, ChangelogHandle):
            raise InvalidInputError(
                f"expected a ChangelogHandle, got {type(handle).__name__}",
                operation="read",
                hint="Give the .remote of a SnapshotResult, or ChangelogHandle.from_bytes(...)",
            )
        if not isinstance(key_groups, KeyGroupRange | None):
            raise InvalidInputError(
                f"key_groups must be a KeyGroupRange or None, got {key_groups!r}",
                operation="read",
                hint="Leave key_groups out to read them all",
            )
        wanted = handle.key_group_range if key_groups is None else handle.key_group_range.intersection(key_groups)
        if len(wanted) == 0:
            return
        for loaded in self._ahead(handle.segments, wanted):
            for columns in itertools.chain(loaded.first, *(self._run(loaded, run) for run in loaded.rest)):
                kept = _within(columns, wanted)
                if len(kept[0]):
                    yield kept

    # -- fetching ahead -------------------------------------------------------------------------------------------

    def _ahead(self, segments: Sequence[SegmentHandle], wanted: KeyGroupRange) -> Iterator[_Loaded]:
        """Loads segments in parallel, hands them out in order."""
        if len(segments) == 1:
            yield self._load(segments[0], wanted)
            return
        monitor = self._executors.monitor()
        pending: deque[tuple[SegmentHandle, Future[_Loaded] | None]] = deque()
        coming = iter(segments)

        def wake(_: object) -> None:
            with monitor:
                monitor.notify_all()

        try:
            while True:
                for segment in itertools.islice(coming, self._num_threads - len(pending)):
                    future = self._downloads.submit(functools.partial(self._load, segment, wanted))
                    pending.append((segment, future))
                    if future is not None:
                        future.add_done_callback(wake)
                if not pending:
                    return
                segment, future = pending.popleft()
                if future is not None:
                    with monitor:
                        monitor.wait_for(future.done)
                if future is None or future.cancelled():  # There is no thread, or the threads were ended.
                    yield self._load(segment, wanted)
                else:
                    yield future.result()
        finally:
            for _, future in pending:
                if future is not None:
                    future.cancel()

    # -- one segment ----------------------------------------------------------------------------------------------

    def _load(self, segment: SegmentHandle, wanted: KeyGroupRange) -> _Loaded:
        """The table of a segment and its first run of blocks."""
        return self._from_sources(segment, lambda fetch: _load(segment, wanted, fetch))

    def _run(self, loaded: _Loaded, run: Sequence[BlockEntry]) -> list[Columns]:
        """One more run of blocks."""
        return self._from_sources(loaded.segment, lambda fetch: _fetch_run(loaded.segment, loaded.table, run, fetch))

    def _from_sources(self, segment: SegmentHandle, read: Callable[[Fetch], T]) -> T:
        """What ``read`` makes of the nearest place that has its bytes undamaged."""
        try:
            near = self._sections.copied(segment, lambda buffer: read(self._counted(_ranges_of(buffer, segment))))
            if near is not None:
                return near
            return read(self._counted(lambda start, end: self._store.get_range(segment.name, start, end)))
        except NotFoundError as error:
            raise _gone(segment) from error

    def _counted(self, fetch: Fetch) -> Fetch:
        def counted(start: int, end: int) -> bytes:
            data = fetch(start, end)
            self._metrics.counter("read_bytes").increment(len(data))
            return data

        return counted


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A segment of which the first run of blocks is decoded."""

    segment: SegmentHandle
    table: ChangesTable
    first: list[Columns]
    rest: list[list[BlockEntry]]


def _ranges_of(buffer: pa.Buffer, segment: SegmentHandle) -> Fetch:
    """Fetches from the bytes of a segment; counts from the first byte of its object."""

    def fetch(start: int, end: int) -> bytes:
        start, end = start - segment.offset, end - segment.offset
        if end > buffer.size:
            raise CorruptDataError(
                f"ends at byte {buffer.size}, expected at least {end}",
                operation="read",
                subject=segment.name,
                hint="The object is damaged: restore it, or go back to an older checkpoint",
            )
        return bytes(buffer.slice(start, end - start))

    return fetch


def _load(segment: SegmentHandle, wanted: KeyGroupRange, fetch: Fetch) -> _Loaded:
    """Fetches the table and the first run of wanted blocks, in one request where that fetches nothing in vain."""
    covered = wanted.start <= max(segment.first_key_group, 0) and segment.last_key_group <= wanted.end
    start, end = segment.offset, segment.offset + segment.length
    if segment.length <= SMALL_SEGMENT_BYTES or (covered and segment.length <= RUN_BYTES):
        whole = fetch(start, end)
        table = _checked_table(segment, whole[segment.length - segment.head_length :])
        check_messages(lambda first, last: whole[first - start : last - start], table, segment.name, start)
        blocks = [block for block in table.blocks if block.overlaps(wanted)]
        return _Loaded(segment, table, decode_blocks(memoryview(whole), 0, table, blocks, segment.name, start), [])
    table = _checked_table(segment, fetch(end - segment.head_length, end))
    runs = list(runs_of(block for block in table.blocks if block.overlaps(wanted)))
    first = _fetch_run(segment, table, runs[0], fetch) if runs else []
    return _Loaded(segment, table, first, runs[1:])


def _checked_table(segment: SegmentHandle, data: bytes) -> ChangesTable:
    """The table of exactly the change set that the handle names."""
    subject = f"{segment.name} at byte {segment.offset + segment.length - segment.head_length}"
    table = decode_table(data, subject)
    found = (table.crc32c, table.log_id.hex, table.sequence_number, table.length, table.head_length, table.size)
    named = (
        segment.crc32c,
        segment.log_id,
        segment.sequence_number,
        segment.length,
        segment.head_length,
        segment.size,
    )
    if found != named:
        raise CorruptDataError(
            f"the table is of set {table.sequence_number} of log {table.log_id.hex}, not the one that the handle names",
            operation="read",
            subject=subject,
            hint="The object was exchanged, or the handle belongs to another store",
        )
    return table


def runs_of(blocks: Iterable[BlockEntry]) -> Iterator[list[BlockEntry]]:
    """Neighbouring blocks together, up to :data:`RUN_BYTES`."""
    run: list[BlockEntry] = []
    for block in blocks:
        adjacent = run and run[-1].offset + run[-1].length == block.offset
        if run and (not adjacent or block.offset + block.length - run[0].offset > RUN_BYTES):
            yield run
            run = []
        run.append(block)
    if run:
        yield run


def _fetch_run(segment: SegmentHandle, table: ChangesTable, run: Sequence[BlockEntry], fetch: Fetch) -> list[Columns]:
    start, end = run[0].offset, run[-1].offset + run[-1].length
    data = fetch(segment.offset + start, segment.offset + end)
    return decode_blocks(memoryview(data), start, table, run, segment.name, segment.offset)


def decode_blocks(
    data: memoryview, base: int, table: ChangesTable, blocks: Iterable[BlockEntry], name: str, offset: int
) -> list[Columns]:
    """Checks and decodes blocks.

    Args:
        data: Bytes of the section from ``base`` on.
        base: Where ``data`` starts, counted from the first byte of the section.
        table: Of the section.
        blocks: Which ones; all within ``data``.
        name: The object, for errors.
        offset: The first byte of the section in it, for errors.

    Raises:
        CorruptDataError: A block is not what the table says.
    """
    decoded = []
    for block in blocks:
        subject = f"{name} at byte {offset + block.offset}"
        stored = data[block.offset - base : block.offset - base + block.length]
        if len(stored) != block.length or crc32c(stored) != block.crc32c:
            raise CorruptDataError(
                "the checksum of the block does not match",
                operation="read",
                subject=subject,
                hint="The object is damaged: restore it, or go back to an older checkpoint",
            )
        groups, values = decode_block(
            stored,
            rows=block.rows,
            change_bytes=block.change_bytes,
            raw_crc32c=block.raw_crc32c,
            compression=table.compression,
            subject=subject,
        )
        if (int(groups[0]), int(groups[-1])) != block.key_groups:
            raise CorruptDataError("the block holds other key groups than the table", operation="read", subject=subject)
        decoded.append((groups, values))
    return decoded


def check_messages(fetch: Fetch, table: ChangesTable, name: str, offset: int) -> None:
    """Checks what no block covers, and only other Arrow readers look at: the messages around the blocks.

    Args:
        fetch: Reads the object.
        table: Of the section.
        name: The object, for errors.
        offset: The first byte of the section.

    Raises:
        CorruptDataError: One is not what begins, or ends, every stream of changes.
    """
    end = table.length - table.head_length - len(END_OF_STREAM)
    for start, message in ((offset, SCHEMA_MESSAGE), (offset + end, END_OF_STREAM)):
        if fetch(start, start + len(message)) != message:
            raise CorruptDataError(
                "the message around the blocks is not that of a stream of changes",
                operation="read",
                subject=f"{name} at byte {start}",
            )


def _within(columns: Columns, wanted: KeyGroupRange) -> Columns:
    """The part of a block that was asked for; all of it if it is metadata."""
    groups, values = columns
    if groups[-1] < 0:
        return columns
    start = int(np.searchsorted(groups, wanted.start, side="left"))
    end = int(np.searchsorted(groups, wanted.end, side="right"))
    return groups[start:end], values[start:end]


def _gone(segment: SegmentHandle) -> DataLossError:
    return DataLossError(
        "the object that a changelog handle names is gone",
        operation="read",
        subject=segment.name,
        hint="Restore it, or go back to an older checkpoint; find out who deletes objects below the changelog's root",
    )
