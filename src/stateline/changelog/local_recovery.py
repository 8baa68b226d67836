"""Second copies of changelog objects on this host's disk: nice to have, never in the way.

Owns the folder of copies: its bound, its deletes, and the waiting for a copy. Does not own uploads (``uploader``) or
which copy a checkpoint uses (``registry``).

Rules:
- Copies are in a folder of their own, :data:`COPIES_FOLDER`, below the one that the user names. Only what has the name
  of a changelog object there counts for the bound, and only that is deleted.
- A copy has the name and the bytes of its object, so a reader finds it by name and proves it by checksum.
- The folder never holds more than its bound, over all processes: the oldest copies go first, and what cannot fit is not
  copied. So one process writes at a time, and who has to wait for longer than the copy timeout goes without a copy.
- Copies are written by a thread of their own. A slow, full, broken or hanging disk costs an upload at most the copy
  timeout; a copy that lands after that is deleted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from stateline.blob.api import BlobStore, Buffer, ObjectInfo
from stateline.blob.names import STAGING_PREFIX
from stateline.changelog.host_lock import held_lock
from stateline.changelog.metrics import ChangelogMetrics
from stateline.changelog.object_names import is_object_name
from stateline.changelog.registry import TaskChangelogRegistry
from stateline.environment import Environment, system_environment

__all__ = ["COPIES_FOLDER", "LocalCopies", "LocalCopy"]

_LOG = logging.getLogger(__name__)

COPIES_FOLDER: Final = "stateline-changelog-copies"
"""The name of the folder, so that people know whose it is."""

_LOCK: Final = f"{STAGING_PREFIX}room.lock"
_MAX_PENDING: Final = 4
"""Copies that may wait for the disk. Each holds the bytes of its object, so more are skipped, not queued."""


class LocalCopies:
    """The local copies of one storage.

    Args:
        store: The folder. It needs no fsync: a copy that does not survive is fetched from the remote store.
        max_bytes: Bound of the folder, over all processes that share it.
        copy_timeout: Seconds that a finished upload waits for its copy.
        metrics: Where to count.
        environment: The world; the real one by default.
    """

    def __init__(
        self,
        store: BlobStore,
        max_bytes: int,
        copy_timeout: float,
        *,
        metrics: ChangelogMetrics | None = None,
        environment: Environment | None = None,
    ) -> None:
        environment = environment or system_environment()
        self.store = store
        self.metrics = metrics or ChangelogMetrics()
        self.registry = TaskChangelogRegistry(store, metrics=ChangelogMetrics(), environment=environment)
        self.copy_timeout = copy_timeout
        self.monitor = environment.executors.monitor()
        self._max_bytes = max_bytes
        self._executor = environment.executors.executor("changelog-local-copy", 1)
        self._clock = environment.clock
        self._pending = 0

    def start(self, name: str, pieces: Sequence[Buffer], size: int) -> LocalCopy:
        """Begins to copy an object; never fails and never waits."""
        copy = LocalCopy(self, name)
        with self.monitor:
            skip = self._pending >= _MAX_PENDING or size > self._max_bytes
            self._pending += not skip
        if skip:
            copy.end(done=False)
            return copy
        try:
            self._executor.submit(self._run, copy, pieces, size)
        except RuntimeError:
            self._ended(copy, done=False)
        return copy

    def close(self) -> None:
        """Ends the threads. Copies stay for the next process on this host."""
        self._executor.close(wait=False)
        self.registry.close()

    def _run(self, copy: LocalCopy, pieces: Sequence[Buffer], size: int) -> None:
        done = False
        try:
            with self._alone() as alone:
                if alone and not copy.abandoned and self._make_room(size):
                    self.store.put_all_if_absent(copy.name, pieces)
                    done = True
        except (OSError, ValueError) as error:
            _LOG.debug("no local copy of %s: %s", copy.name, error)
        finally:
            self._ended(copy, done=done)

    def _ended(self, copy: LocalCopy, *, done: bool) -> None:
        with self.monitor:
            self._pending -= 1
        copy.end(done=done)

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether no other process writes to the folder meanwhile; a lock ends with its process."""
        path = self.store.local_path(_LOCK)
        if path is None:  # No other process can see it.
            yield True
            return
        os.makedirs(path.parent, 0o700, exist_ok=True)
        with held_lock(path, self.copy_timeout, self._clock) as is_mine:
            yield is_mine

    def _make_room(self, size: int) -> bool:
        """Deletes the oldest copies, of whatever process, until ``size`` bytes more keep the bound."""
        found = [info for info in self.store.list("") if is_object_name(info.name)]
        excess = sum(info.size for info in found) + size - self._max_bytes
        victims: list[ObjectInfo] = []
        for info in sorted(found, key=lambda info: (info.modified_at, info.name)):
            if excess <= 0:
                break
            victims.append(info)
            excess -= info.size
        if victims:
            self.store.delete([info.name for info in victims])
        return excess <= 0


class LocalCopy:
    """One copy on its way. Whoever started it calls :meth:`wait` or :meth:`abandon`, once."""

    def __init__(self, copies: LocalCopies, name: str) -> None:
        self.name = name
        self.abandoned = False
        self._copies = copies
        self._done: bool | None = None

    def wait(self, reference_count: int) -> bool:
        """Whether the copy is complete, at the latest after the timeout. If it is, it is tracked from now on."""
        copies = self._copies
        with copies.monitor:
            copies.monitor.wait_for(lambda: self._done is not None, copies.copy_timeout)
            done = self._done is True
            self.abandoned = not done
        if done:
            copies.registry.start_tracking(self, reference_count)
        copies.metrics.counter("local_copies" if done else "local_copies_skipped").increment()
        return done

    def abandon(self) -> None:
        """Nobody needs the copy: it is deleted, now or when it lands."""
        with self._copies.monitor:
            self.abandoned = True
            done = self._done is True
        if done:
            self._copies.registry.discard(self)

    def end(self, *, done: bool) -> None:
        """The copying thread is through with it."""
        with self._copies.monitor:
            self._done = done
            late = done and self.abandoned
            self._copies.monitor.notify_all()
        if late:
            self._copies.registry.discard(self)
