"""The registries of one storage, as a writer sees them: one call for an upload result, wherever its bytes are.

Owns which registry hears what. Does not own counts or deletes (``registry``).
"""

from __future__ import annotations

from collections.abc import Iterable

from stateline.changelog.api import UploadResult
from stateline.changelog.registry import LocalChangelogRegistry, TaskChangelogRegistry

__all__ = ["Ownership"]


class Ownership:
    """Remote and local ownership of uploaded change sets. Safe from any thread.

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

    def retain(self, results: Iterable[UploadResult]) -> None:
        """A snapshot names these."""
        for result in results:
            self.remote.retain(result.handle)

    def release(self, results: Iterable[UploadResult]) -> None:
        """The writer needs these no more, and nobody else was told of them by it."""
        for result in results:
            self.remote.release(result.handle)
            if self._local is not None and result.local_handle is not None:
                self._local.release(result.local_handle)

    def unpin(self, results: Iterable[UploadResult]) -> None:
        """Takes :meth:`retain` back."""
        for result in results:
            self.remote.release(result.handle)

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
