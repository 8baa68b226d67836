"""Who may delete which object, and when.

Rules:
- An object is counted once per change set in it, over all writers. Each writer releases each of its sets once.
- What nobody counts any more is deleted by its exact name, by threads of its own. A delete that fails leaves garbage
  for the sweep, never an error: nothing depends on it.
- Releasing what is not tracked does nothing. It is the normal case after a confirmed checkpoint.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from concurrent.futures import Executor as PlainPool
from concurrent.futures import Future
from typing import Final, Protocol, cast

from stateline.blob.api import BlobStore
from stateline.blob.urls import store_of
from stateline.changelog.api import UploadResult
from stateline.changelog.metrics import ChangelogMetrics
from stateline.environment import Environment, Executor, executor_of, system_environment
from stateline.options import check_kind, parse_int

__all__ = ["LocalChangelogRegistry", "Ownership", "TaskChangelogRegistry"]

_LOG = logging.getLogger(__name__)

_CLOSE_TIMEOUT_SECONDS: Final = 10.0
"""How long a close waits for deletes that have begun; what is left then is garbage for the sweep."""


class _Named(Protocol):
    """Any handle: objects are known by their names."""

    @property
    def name(self) -> str: ...


def _name_of(handle: _Named) -> str:
    name = getattr(handle, "name", None)
    check_kind(name, str, f"name of handle {handle!r}")
    return cast("str", name)


class _Registry:
    """A number for each object, and deletes by exact name, on threads of its own. Safe from any thread.

    Args:
        store: Where the objects are.
        num_discard_threads: Deletes at the same time.
        executor: Where deletes run; by default a new pool of ``environment``. Closed with the registry.
        metrics: Where to count.
        environment: The world; the real one by default.
    """

    def __init__(
        self,
        store: BlobStore,
        *,
        num_discard_threads: int = 1,
        executor: Executor | PlainPool | None = None,
        metrics: ChangelogMetrics | None = None,
        environment: Environment | None = None,
    ) -> None:
        environment = environment or system_environment()
        self._store = store_of(store)
        self._executor = executor_of(executor, environment, "changelog-discard", num_discard_threads)
        self._metrics = metrics or ChangelogMetrics()
        self._monitor = environment.executors.monitor()
        self._process = os.getpid()
        self._pending = 0
        self._numbers: dict[str, int] = {}

    def close(self) -> None:
        """Waits for the deletes that were asked for, within reason, then ends the threads. What is left stays."""
        with self._monitor:
            self._numbers = {}
        if self._process != os.getpid():
            return
        with self._monitor:
            self._monitor.wait_for(lambda: self._pending == 0, _CLOSE_TIMEOUT_SECONDS)
        self._executor.close(wait=False)

    def _delete(self, name: str) -> None:
        """Deletes soon; at once, in the caller's thread, if the executor takes no more work.

        A forked process has the counts of its parent, which goes on to use the objects: it deletes nothing.
        """
        if self._process != os.getpid():
            return
        with self._monitor:
            self._pending += 1
        try:
            future = self._executor.submit(self._run, name)
        except RuntimeError:
            self._run(name)
            self._end()
        else:
            future.add_done_callback(self._ended)

    def _run(self, name: str) -> None:
        try:
            self._store.delete([name])
        except Exception as error:  # noqa: BLE001 - from a store of whatever kind: the object stays
            _LOG.debug("%s stays for the sweep: %s", name, error)
            self._failed()
        else:
            self._metrics.counter("discarded_objects").increment()

    def _failed(self) -> None:
        self._metrics.counter("discard_failures").increment()
        self._metrics.counter("orphaned_objects").increment()

    def _ended(self, future: Future[None]) -> None:
        """The executor is through with a delete, which it may have cancelled or failed without running it."""
        if future.cancelled() or future.exception() is not None:
            self._failed()
        self._end()

    def _end(self) -> None:
        with self._monitor:
            self._pending -= 1
            self._monitor.notify_all()


class TaskChangelogRegistry(_Registry):
    """Reference counts of the objects that this process owns; see :class:`_Registry` for the arguments."""

    def start_tracking(self, handle: _Named, n: int) -> None:
        """Takes an object over that is used ``n`` times, 1 or more."""
        count = parse_int(n, "n", minimum=1)
        name = _name_of(handle)
        with self._monitor:
            self._numbers[name] = count

    def stop_tracking(self, handle: _Named) -> None:
        """Gives the object away: somebody else deletes it from now on. It stays where it is."""
        name = _name_of(handle)
        with self._monitor:
            self._numbers.pop(name, None)

    def retain(self, handle: _Named) -> None:
        """One use more. Does nothing for an object that is not tracked, which nobody here can delete anyway."""
        name = _name_of(handle)
        with self._monitor:
            if name in self._numbers:
                self._numbers[name] += 1

    def release(self, handle: _Named) -> None:
        """One use less; the last one deletes the object. Does nothing for an object that is not tracked."""
        name = _name_of(handle)
        with self._monitor:
            left = self._numbers.get(name, 0) - 1
            if left > 0:
                self._numbers[name] = left
            last = left == 0
            if last:
                del self._numbers[name]
        if last:
            self._delete(name)

    def discard(self, handle: _Named) -> None:
        """Deletes an object that no handle can name, tracked or not."""
        self.stop_tracking(handle)
        self._delete(handle.name)

    def is_tracked(self, handle: _Named) -> bool:
        """Whether this process still owns the object."""
        with self._monitor:
            return handle.name in self._numbers

    def close(self) -> None:
        """Ends the deletes. Tracked objects stay: a checkpoint may name them, or the sweep finds them."""
        self._metrics.counter("orphaned_objects").increment(len(self._numbers))
        super().close()


class LocalChangelogRegistry(_Registry):
    """Which checkpoint used a local copy last; see :class:`_Registry` for the arguments.

    When it is closed it forgets the copies, which stay for the recovery of the next process.
    """

    def register(self, handle: _Named, checkpoint_id: int) -> None:
        """Notes that the checkpoint uses the copy. The highest checkpoint counts."""
        name, checkpoint_id = _name_of(handle), parse_int(checkpoint_id, "checkpoint_id")
        with self._monitor:
            self._numbers[name] = max(checkpoint_id, self._numbers.get(name, checkpoint_id))

    def discard_up_to(self, checkpoint_id: int) -> None:
        """Deletes every copy whose last checkpoint is **before** ``checkpoint_id``."""
        checkpoint_id = parse_int(checkpoint_id, "checkpoint_id")
        with self._monitor:
            names = [name for name, last in self._numbers.items() if last < checkpoint_id]
            for name in names:
                del self._numbers[name]
        for name in names:
            self._delete(name)


class Ownership:
    """The registries of one storage, as a writer sees them: one call for results, wherever their bytes are.

    Args:
        remote: Objects in the store.
        local: Copies on this host that no checkpoint was confirmed with yet.
        checkpoints: Copies on this host by the last checkpoint that used them.
    """

    def __init__(
        self,
        remote: TaskChangelogRegistry,
        local: TaskChangelogRegistry | None = None,
        checkpoints: LocalChangelogRegistry | None = None,
    ) -> None:
        self.remote = remote
        self._local = local
        self._checkpoints = checkpoints

    def release(self, results: Iterable[UploadResult]) -> None:
        """The writer needs these no more, and no snapshot names them."""
        for result in results:
            self.remote.release(result.handle)
            if self._local is not None and result.local_handle is not None:
                self._local.release(result.local_handle)

    def give_away(self, results: Iterable[UploadResult]) -> None:
        """A confirmed checkpoint owns these now."""
        for result in results:
            self.remote.stop_tracking(result.handle)
            if self._local is not None and result.local_handle is not None:
                self._local.stop_tracking(result.local_handle)

    def use_locally(self, results: Iterable[UploadResult], checkpoint_id: int) -> None:
        """The checkpoint may be recovered from the local copies of these."""
        for result in results:
            if self._checkpoints is not None and result.local_handle is not None:
                self._checkpoints.register(result.local_handle, checkpoint_id)

    def discard_local_before(self, checkpoint_id: int) -> None:
        """No checkpoint below this one will be recovered."""
        if self._checkpoints is not None:
            self._checkpoints.discard_up_to(checkpoint_id)

    def close(self) -> None:
        """Ends the deletes of all registries."""
        self.remote.close()
        if self._checkpoints is not None:
            self._checkpoints.close()
