"""From upload tasks to one durable object.

Rules:
- A name is never used twice: every call, so every attempt, makes a fresh one. The write is create-if-absent, and
  there is no other request on the way: no LIST, no HEAD, no mkdir.
- The order is write, then (the store) durable, then tracked, then reported. So nothing that is reported can be missing,
  and nothing that failed is tracked.
- An error fails no task: only the last failed attempt does, in ``retry``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from msgspec import structs

from stateline.blob.api import BlobStore, Buffer, ObjectInfo
from stateline.blob.instrumented import StoreDecorator
from stateline.blob.places import check_apart
from stateline.blob.urls import store_of
from stateline.changelog.api import UploadResult
from stateline.changelog.block import Compression
from stateline.changelog.change_set import StateChangeSet
from stateline.changelog.changes import ChangesTable
from stateline.changelog.copier import Copier
from stateline.changelog.handle import SegmentHandle
from stateline.changelog.host_cache import HostCache, HostCopies
from stateline.changelog.metrics import ChangelogMetrics
from stateline.changelog.object_names import is_object_name, object_prefix
from stateline.changelog.registry import TaskChangelogRegistry
from stateline.changelog.segment import encode_segment
from stateline.changelog.settings import ChangelogSettings
from stateline.changelog.upload_task import UploadTask, UploadTasksResult
from stateline.environment import Environment, system_environment
from stateline.errors import OutcomeUnknownError, StatelineError, StorageFullError
from stateline.options import check_kind

__all__ = ["BlobUploader", "ChangelogObject", "DuplicatingUploader", "gather", "without_encoding_room"]

_LARGE_PIECE_BYTES: Final = 64 * 1024
"""Pieces of this size are never copied into a buffer."""


@dataclass(frozen=True, slots=True)
class ChangelogObject:
    """One object before its upload.

    Attributes:
        name: Fresh.
        pieces: Its bytes, to be written one after the other.
        size: Their number.
        change_sets: Number of change sets in it.
        results: What to report once it is durable.
    """

    name: str
    pieces: tuple[Buffer, ...]
    size: int
    change_sets: int
    results: dict[UploadTask, list[UploadResult]]


class BlobUploader:
    """Writes all tasks of a call into one object of a store. Safe from any thread.

    Attributes:
        store: Where it writes.

    Args:
        store: Where to write; a store or its URL.
        settings: Compression and buffer size.
        job_id: The first segment of every name; a fresh id by default.
        registry: Tracks what was written; by default one of its own, which is closed with the uploader.
        metrics: Where to count.
        environment: Ids; the real world by default.
    """

    def __init__(
        self,
        store: BlobStore | str,
        settings: ChangelogSettings | None = None,
        *,
        job_id: str | None = None,
        registry: TaskChangelogRegistry | None = None,
        metrics: ChangelogMetrics | None = None,
        environment: Environment | None = None,
    ) -> None:
        environment = environment or system_environment()
        settings = ChangelogSettings() if settings is None else settings
        check_kind(settings, ChangelogSettings, "settings")
        self.store = store_of(store)
        self._compression = Compression[settings.compression.upper()]
        self._buffer_size = settings.buffer_size
        self._ids = environment.ids
        self._prefix = object_prefix(job_id, environment.ids)
        self._metrics = metrics or ChangelogMetrics()
        self._monitor = environment.executors.monitor()
        self._max_encoding = _encoding_threads(settings)
        self._encoding = 0
        self._owns_registry = registry is None
        self._registry = registry or TaskChangelogRegistry(self.store, metrics=metrics, environment=environment)

    def upload(self, tasks: Collection[UploadTask]) -> UploadTasksResult:
        """See :meth:`StateChangeUploader.upload`. No task, no object."""
        if not tasks:
            return UploadTasksResult()
        made = self.build(tasks)
        self.write(made)
        return UploadTasksResult(made.results)

    def build(self, tasks: Iterable[UploadTask]) -> ChangelogObject:
        """Encodes the change sets, by writer and number within a task, and lays them out under a fresh name.

        Only some threads encode at a time, so that the first objects are on their way while others are still being
        encoded, and so that few sets are in memory in both of their forms.
        """
        with self._monitor:
            self._monitor.wait_for(lambda: self._encoding < self._max_encoding)
            self._encoding += 1
        results: dict[UploadTask, list[UploadResult]] = {task: [] for task in tasks}
        try:
            parts = [
                (task, change_set, change_set.encode(self._compression))
                for task in results
                for change_set in sorted(task.change_sets, key=_order)
            ]
            made = encode_segment([encoded.section for _, _, encoded in parts])
        finally:
            with self._monitor:
                self._encoding -= 1
                self._monitor.notify_all()
        name = self._prefix + self._ids.new_id()
        for (task, change_set, encoded), offset in zip(parts, made.offsets, strict=True):
            results[task].append(_result(name, offset, encoded.table, change_set))
        pieces = tuple(gather(made.pieces, self._buffer_size))
        return ChangelogObject(name, pieces, made.size, len(parts), results)

    def write(self, made: ChangelogObject) -> None:
        """Makes the object durable, then tracks it.

        Raises:
            OSError: See :meth:`StateChangeUploader.upload`. If nobody can tell whether it was written, it is deleted.
        """
        try:
            self.store.put_all_if_absent(made.name, made.pieces)
        except OSError as error:
            # A plain error of I/O, from a store of somebody else's, does not tell either.
            if isinstance(error, OutcomeUnknownError) or not isinstance(error, StatelineError):
                self._registry.discard(_AnyHandle(made.name))
            raise
        self._registry.start_tracking(_AnyHandle(made.name), made.change_sets)
        self._metrics.histogram("upload_object_bytes").record(made.size)

    def discard(self, result: UploadTasksResult) -> None:
        for name in dict.fromkeys(handle.name for handle in result.handles()):
            self._registry.discard(_AnyHandle(name))

    def close(self) -> None:
        if self._owns_registry:
            self._registry.close()


class DuplicatingUploader:
    """Writes to a remote store, and the same bytes under the same name to this host's disk, if that works.

    Whatever happens to the local copy, the upload succeeds exactly when the remote one does. A result has a local
    handle only if its copy was complete when the upload ended, or within the copies' own short timeout after it.

    Args:
        remote: The uploader that counts.
        local: The copies, or where they go: a store, its URL, or an uploader to it. Those get the default bound and
            timeout.
        registry: Tracks the copies; by default one of its own, which is closed with the uploader.

    Raises:
        InvalidInputError: ``remote`` is another kind of uploader, whose bytes nobody else sees, or ``local`` is no
            place, or not one apart from the remote store.
    """

    def __init__(
        self,
        remote: BlobUploader,
        local: HostCache | BlobUploader | BlobStore | str,
        *,
        registry: TaskChangelogRegistry | None = None,
    ) -> None:
        check_kind(remote, BlobUploader, "remote")
        if isinstance(local, HostCache):
            local.check_apart([remote.store], "local")
            self._copier = local.copier
            self._place: BlobStore = HostCopies(local, remote.store)
        else:
            store = local.store if isinstance(local, BlobUploader) else store_of(local)
            check_apart("local", store, [remote.store])
            defaults = ChangelogSettings()
            self._copier = Copier(defaults.local_copy_timeout, ChangelogMetrics(), system_environment())
            self._place = _BoundedCopies(store, defaults.local_recovery_max_bytes)
        self._remote = remote
        self._owns_registry = registry is None
        self._registry = registry or TaskChangelogRegistry(self._place)

    def upload(self, tasks: Collection[UploadTask]) -> UploadTasksResult:
        if not tasks:
            return UploadTasksResult()
        made = self._remote.build(tasks)
        copy = self._copier.start(
            partial(self._place.put_all_if_absent, made.name, made.pieces), partial(self._place.delete, [made.name])
        )
        try:
            self._remote.write(made)
        except BaseException:
            copy.abandon()
            raise
        if not copy.wait():
            copy.abandon()
            return UploadTasksResult(made.results)
        self._registry.start_tracking(_AnyHandle(made.name), made.change_sets)
        return UploadTasksResult(
            {
                task: [structs.replace(one, local_handle=one.handle) for one in many]
                for task, many in made.results.items()
            }
        )

    def discard(self, result: UploadTasksResult) -> None:
        """See :meth:`StateChangeUploader.discard`. The local copy goes too."""
        self._remote.discard(result)
        for name in dict.fromkeys(handle.name for handle in result.handles()):
            self._registry.discard(_AnyHandle(name))

    def close(self) -> None:
        self._remote.close()
        self._copier.close()
        if self._owns_registry:
            self._registry.close()


class _BoundedCopies(StoreDecorator):
    """A store that somebody gave for copies, of which the oldest go first. A host's disk has a :class:`HostCache`."""

    def __init__(self, store: BlobStore, max_bytes: int) -> None:
        super().__init__(store)
        self._max_bytes = max_bytes

    def put_all_if_absent(self, name: str, pieces: Sequence[Buffer], *, read_soon: bool = False) -> ObjectInfo:
        room = sum(map(len, pieces))
        found = sorted((info.modified_at, info.name, info.size) for info in self.list("") if is_object_name(info.name))
        excess = sum(size for _, _, size in found) + room - self._max_bytes
        if room > self._max_bytes:
            raise StorageFullError(f"{room} bytes are more than {self._max_bytes}", operation="copy", subject=name)
        for _, oldest, size in found:
            if excess > 0:
                self.delete([oldest])
                excess -= size
        return self.inner.put_all_if_absent(name, pieces, read_soon=read_soon)


def _encoding_threads(settings: ChangelogSettings) -> int:
    return max(2, settings.num_upload_threads // 2)


def without_encoding_room(settings: ChangelogSettings) -> ChangelogSettings:
    """Settings for a scheduler, whose ``max_in_flight`` leaves room for the sets that are being encoded.

    A set that is being encoded is in memory twice, and buffers that grow are up to an eighth larger than their content.
    All that and what is on its way stay below the limit together, unless less than half of it would be left.
    """
    room = (_encoding_threads(settings) + 1) * settings.preemptive_persist_threshold
    left = max(settings.max_in_flight - room, (settings.max_in_flight + 1) // 2, settings.persist_size_threshold)
    return replace(settings, max_in_flight=left)


@dataclass(frozen=True, slots=True)
class _AnyHandle:
    """A whole object, by name."""

    name: str


def gather(pieces: Sequence[Buffer], buffer_size: int) -> Iterable[Buffer]:
    """Copies runs of small pieces together, up to ``buffer_size`` bytes each; large pieces pass as they are."""
    limit = max(buffer_size, 1)
    run: list[Buffer] = []
    size = 0
    for piece in pieces:
        length = len(piece)
        large = length >= min(_LARGE_PIECE_BYTES, limit)
        if run and (large or size + length > limit):
            yield b"".join(run)
            run, size = [], 0
        if large:
            yield piece
        else:
            run.append(piece)
            size += length
    if run:
        yield b"".join(run)


def _order(change_set: StateChangeSet) -> tuple[int, int]:
    return change_set.log_id.int, change_set.sequence_number.value


def _result(name: str, offset: int, table: ChangesTable, change_set: StateChangeSet) -> UploadResult:
    handle = SegmentHandle(
        name=name,
        offset=offset,
        length=table.length,
        head_length=table.head_length,
        crc32c=table.crc32c,
        log_id=table.log_id.hex,
        sequence_number=table.sequence_number,
        size=table.size,
        first_key_group=table.key_groups[0],
        last_key_group=table.key_groups[1],
    )
    return UploadResult(change_set.sequence_number, handle, None, offset, table.size)
