"""The changelog of one job on one host: makes writers and readers, and owns what they share."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Final, Self

from stateline.blob.api import BlobStore
from stateline.blob.urls import store_of
from stateline.changelog.api import AvailabilityProvider
from stateline.changelog.host_cache import HostCache, HostCopies
from stateline.changelog.metrics import ChangelogMetrics
from stateline.changelog.object_names import check_job_id
from stateline.changelog.reader import ChangelogReader, Downloads
from stateline.changelog.registry import LocalChangelogRegistry, Ownership, TaskChangelogRegistry
from stateline.changelog.scheduler import scheduler_from_options
from stateline.changelog.settings import ChangelogSettings
from stateline.changelog.upload_task import StateChangeUploader, StateChangeUploadScheduler
from stateline.changelog.uploader import BlobUploader, DuplicatingUploader, without_encoding_room
from stateline.changelog.writer import ChangelogWriter
from stateline.environment import Closable, Environment, system_environment
from stateline.errors import ClosedError, InvalidInputError
from stateline.key_groups import KeyGroupRange
from stateline.options import check_kind, check_known, parse_choice, plain_options

__all__ = ["ChangelogStorage"]

_STORAGES: Final = ("blob", "memory")


class ChangelogStorage(Closable):
    """Open one per job and process, and close it; it is a context manager. Safe from any thread.

    Objects are called ``<job id>/changelog/<uuid>`` below the root of the store.

    Attributes:
        store: Where the objects are.
        settings: As given.
        job_id: The first segment of every name.
        metrics: What happened so far.
        registry: The objects that this process owns.
    """

    def __init__(
        self,
        store: BlobStore,
        settings: ChangelogSettings,
        *,
        job_id: str | None = None,
        uploader: StateChangeUploader | None = None,
        scheduler: StateChangeUploadScheduler | None = None,
        environment: Environment | None = None,
        closes_store: bool = False,
    ) -> None:
        self._environment = system_environment() if environment is None else environment
        check_kind(self._environment, Environment, "environment")
        self.store = store
        self._closes_store = closes_store
        self.settings = settings
        self.job_id = self._environment.ids.new_id() if job_id is None else check_job_id(job_id)
        self.metrics = ChangelogMetrics()
        self.registry = TaskChangelogRegistry(
            store,
            num_discard_threads=settings.num_discard_threads,
            metrics=self.metrics,
            environment=self._environment,
        )
        self._copies = self._open_copies()
        self._copy_registry, checkpoints = None, None
        if self._copies is not None:
            place = HostCopies(self._copies, store)
            self._copy_registry = TaskChangelogRegistry(place, environment=self._environment)
            checkpoints = LocalChangelogRegistry(place, environment=self._environment)
        self._ownership = Ownership(self.registry, self._copy_registry, checkpoints)
        self._scheduler = scheduler or self._make_scheduler(uploader)
        self._cache = self._open_cache()
        self._downloads = Downloads(settings.num_download_threads, self._environment)
        self._process = os.getpid()
        self._closed = False

    @classmethod
    def open(
        cls,
        url_or_store: str | os.PathLike[str] | BlobStore,
        settings: ChangelogSettings | None = None,
        *,
        job_id: str | None = None,
        uploader: StateChangeUploader | None = None,
        scheduler: StateChangeUploadScheduler | None = None,
        environment: Environment | None = None,
    ) -> Self:
        """Opens a changelog. No request is made before the first upload or read.

        Args:
            url_or_store: The root: a URL for :func:`stateline.blob.open_store`, or a store.
            settings: The defaults if not given.
            job_id: One segment of a name, which does not begin with a dot, and is no folder of a checkpoint root. A
                fresh id by default; a restarted job may use its old one.
            uploader: Another way to make change sets durable.
            scheduler: Another way to run uploads; ``uploader`` is not used then.
            environment: Clock, ids and threads; the real ones by default.

        Raises:
            InvalidInputError: A bad ``job_id``, or a folder for local copies that overlaps the root.
        """
        settings = ChangelogSettings() if settings is None else settings
        check_kind(settings, ChangelogSettings, "settings")
        store = store_of(url_or_store, environment)
        return cls(
            store,
            settings,
            job_id=job_id,
            uploader=uploader,
            scheduler=scheduler,
            environment=environment,
            closes_store=store is not url_or_store,
        )

    @classmethod
    def from_options(
        cls, options: Mapping[str, str], *, job_id: str | None = None, environment: Environment | None = None
    ) -> Self:
        """Opens a changelog from strings: the keys of :class:`ChangelogSettings`, and two more.

        ``storage`` is ``blob`` (the default) or ``memory``, which keeps the objects in this process; ``base_path`` is
        the URL of the root, required for ``blob``.

        Raises:
            InvalidInputError: An unknown key or name, a bad value, or no ``base_path``.
        """
        rest = plain_options(options)
        check_known(rest, ["storage", "base_path", *(spec.name for spec in dataclasses.fields(ChangelogSettings))])
        name = parse_choice(rest.pop("storage", "blob"), _STORAGES, "storage")
        url = rest.pop("base_path", None)
        if name == "memory":
            url = url or f"memory://changelog-{(environment or system_environment()).ids.new_id()}"
        if not url:
            raise InvalidInputError("is required", subject="base_path", hint="Give the URL of the root folder")
        return cls.open(url, ChangelogSettings.from_options(rest), job_id=job_id, environment=environment)

    @property
    def availability(self) -> AvailabilityProvider:
        """Whether an append that starts an upload would return without waiting."""
        return self._scheduler.availability

    def create_writer(self, operator_id: str, key_group_range: KeyGroupRange) -> ChangelogWriter:
        """A writer for one subtask, starting at sequence number 0 of a numbering of its own.

        Args:
            operator_id: For people; shown in errors.
            key_group_range: What may be appended (inclusive).

        Raises:
            InvalidInputError: It is empty, or is no range.
            ClosedError: The storage is closed, or another process opened it and was forked.
        """
        self._check_open("create_writer")
        if self._process != os.getpid():
            raise ClosedError(
                "the storage belongs to the process that this one was forked from",
                operation="create_writer",
                subject=self.store.url,
                hint="Open a storage in the process that writes",
            )
        if not isinstance(key_group_range, KeyGroupRange):
            raise InvalidInputError(
                f"key_group_range must be a KeyGroupRange, got {key_group_range!r}",
                operation="create_writer",
                subject=str(operator_id),
                hint="Take it from range_for_subtask",
            )
        return ChangelogWriter(
            operator_id,
            self._environment.ids.new_uuid(),
            key_group_range,
            self._scheduler,
            self._ownership,
            self.settings,
            self._environment,
        )

    def create_reader(self) -> ChangelogReader:
        """A reader of any handle of this store, whoever wrote it. It shares threads with all readers of the storage."""
        self._check_open("create_reader")
        return ChangelogReader(
            self.store,
            cache=self._copies,
            downloaded=self._cache,
            num_threads=self.settings.num_download_threads,
            downloads=self._downloads,
            metrics=self.metrics,
            environment=self._environment,
        )

    def close(self) -> None:
        """Fails what is not uploaded, ends deletes and threads. Objects and local copies stay. Idempotent.

        A store that was opened here from a URL is closed; one that was given stays open.
        """
        if self._closed:
            return
        self._closed = True
        self._scheduler.close()
        self._downloads.close()
        self._ownership.close()
        if self._copy_registry is not None:
            self._copy_registry.close()
        for cache in (self._copies, self._cache):
            if cache is not None:
                cache.close()
        if self._closes_store:
            self.store.close()

    def _make_scheduler(self, uploader: StateChangeUploader | None) -> StateChangeUploadScheduler:
        settings = self.settings
        if uploader is None:
            uploader, settings = self._make_uploader(), without_encoding_room(settings)
        return scheduler_from_options(uploader, settings, metrics=self.metrics, environment=self._environment)

    def _make_uploader(self) -> StateChangeUploader:
        remote = BlobUploader(
            self.store,
            self.settings,
            job_id=self.job_id,
            registry=self.registry,
            metrics=self.metrics,
            environment=self._environment,
        )
        if self._copies is None:
            return remote
        return DuplicatingUploader(remote, self._copies, registry=self._copy_registry)

    def _open_copies(self) -> HostCache | None:
        given, settings = self.settings.local_recovery_dir, self.settings
        if given is None:
            return None
        cache = self._host_cache(given, settings.local_recovery_max_bytes, copy_timeout=settings.local_copy_timeout)
        cache.check_apart([self.store], "local_recovery_dir")
        return cache

    def _open_cache(self) -> HostCache | None:
        """A cache pays only where reading means a request: not for files of this host."""
        given, settings = self.settings.cache_dir, self.settings
        if given is None or self.store.local_path("x") is not None:
            return None
        cache = self._host_cache(given, settings.cache_max_bytes, idle_seconds=settings.cache_idle_timeout)
        cache.prepare()
        return cache

    def _host_cache(self, folder: str, max_bytes: int, **more: float) -> HostCache:
        return HostCache(folder, max_bytes, metrics=self.metrics, environment=self._environment, **more)

    def _check_open(self, operation: str) -> None:
        if self._closed:
            raise ClosedError("the storage is closed", operation=operation, subject=self.store.url)
