"""The persists of one writer that wait, and what finished ones keep alive.

Owns listeners: which sets a persist still needs, and which objects a checkpoint that is being built names. Does not
own the sets (``writer``) or the counts (``registry``). Used by the owner of the writer only.

Invariants:
- A listener is completed or failed exactly once. If it was completed, it pins what it names until its checkpoint is
  confirmed or reset.
- What a snapshot will name is retained from the moment its listener knows it, and until its checkpoint is confirmed or
  reset. So no truncation can delete it, not even while the listener still waits for other sets.
- Whatever is interrupted may be done again. Objects are retained before that is noted, and let go after that is noted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from stateline.changelog.api import SnapshotResult, UploadResult
from stateline.changelog.handle import ChangelogHandle, SegmentHandle
from stateline.changelog.mailbox import PersistFuture
from stateline.changelog.ownership import Ownership
from stateline.errors import InvalidInputError, StatelineError, UnavailableError
from stateline.key_groups import KeyGroupRange

__all__ = ["Listener", "Snapshots"]


class Listener:
    """A persist that waits for uploads: of the sets ``[start, end)``, for one checkpoint."""

    __slots__ = ("checkpoint_id", "end", "future", "let_go", "ready_bytes", "results", "start")

    def __init__(self, start: int, end: int, checkpoint_id: int, future: PersistFuture) -> None:
        self.start = start
        self.end = end
        self.checkpoint_id = checkpoint_id
        self.future = future
        self.results: dict[int, UploadResult] = {}
        self.ready_bytes = 0
        self.let_go = False

    def __contains__(self, number: int) -> bool:
        return self.start <= number < self.end

    @property
    def is_complete(self) -> bool:
        """Whether every set of the range is durable."""
        return len(self.results) == self.end - self.start


class Snapshots:
    """See the module docstring.

    Args:
        operator_id: Of the writer; for errors.
        key_group_range: Of the writer; goes into every handle.
        ownership: Whom to tell what is named.
    """

    def __init__(self, operator_id: str, key_group_range: KeyGroupRange, ownership: Ownership) -> None:
        self._operator_id = operator_id
        self._key_group_range = key_group_range
        self._ownership = ownership
        self._waiting: dict[Listener, None] = {}
        self._pins: dict[Listener, None] = {}

    def begin(self, listener: Listener, uploaded: Mapping[int, UploadResult]) -> bool:
        """Starts a persist with what is uploaded already. Returns whether that was all; then it is completed."""
        self._check_checkpoint(listener.checkpoint_id, "persist")
        ready = [uploaded[number] for number in range(listener.start, listener.end) if number in uploaded]
        self._take(listener, ready)
        listener.ready_bytes = sum(result.size for result in ready)
        self._ownership.use_locally(ready, listener.checkpoint_id)
        if listener.is_complete:
            self._complete(listener)
            return True
        self._waiting[listener] = None
        return False

    def forget(self, listener: Listener) -> None:
        """The persist was interrupted before its future reached anybody."""
        self._let_go(listener)
        self._waiting.pop(listener, None)
        self._pins.pop(listener, None)

    def offer(self, results: Iterable[UploadResult]) -> None:
        """Sets became durable."""
        for listener in list(self._waiting):
            self._take(listener, results)
            if listener.is_complete:
                self._complete(listener)

    def fail(self, numbers: Collection[int], error: BaseException) -> None:
        """Sets failed for good: every persist that needs one of them fails."""
        for listener in list(self._waiting):
            if any(number in listener for number in numbers):
                self._fail(listener, _as_io_error(error, self._operator_id))

    def confirm(self, start: int, end: int, checkpoint_id: int, uploaded: Mapping[int, UploadResult]) -> None:
        """The checkpoint exists: what it names of ``[start, end)`` is its own now, truncated meanwhile or not."""
        self._check_checkpoint(checkpoint_id, "confirm")
        given = [uploaded[number] for number in uploaded if start <= number < end]
        for listener in self._pins:
            if listener.checkpoint_id == checkpoint_id:
                given += [result for number, result in listener.results.items() if start <= number < end]
        self._ownership.give_away(given)
        self._unpin([listener for listener in self._pins if listener.checkpoint_id <= checkpoint_id])
        self._ownership.discard_local_before(checkpoint_id)

    def reset(self, checkpoint_id: int) -> None:
        """The checkpoint was aborted: nothing is kept for it any more, also not by a persist that ends later."""
        self._check_checkpoint(checkpoint_id, "reset")
        self._unpin([listener for listener in self._pins if listener.checkpoint_id == checkpoint_id])
        for listener in self._waiting:
            if listener.checkpoint_id == checkpoint_id:
                self._let_go(listener)

    def close(self, error: BaseException) -> None:
        """Fails every persist that waits. The pins of finished ones stay: their checkpoints may yet exist."""
        for listener in list(self._waiting):
            self._fail(listener, error)

    def _check_checkpoint(self, checkpoint_id: object, operation: str) -> None:
        if not isinstance(checkpoint_id, int | np.integer) or isinstance(checkpoint_id, bool):
            raise InvalidInputError(
                f"{checkpoint_id!r} is no checkpoint id",
                operation=operation,
                subject=self._operator_id,
                hint="Give the integer that the checkpoint is known by",
            )

    def _take(self, listener: Listener, results: Iterable[UploadResult]) -> None:
        """Retains and notes what the listener needs of ``results``."""
        for result in results:
            number = result.sequence_number.value
            if number in listener and number not in listener.results:
                if not listener.let_go:
                    self._ownership.retain([result])
                listener.results[number] = result

    def _let_go(self, listener: Listener) -> None:
        """Nobody will name the listener's sets: retains them no more, now and later."""
        if not listener.let_go:
            listener.let_go = True
            self._ownership.unpin(listener.results.values())

    def _unpin(self, listeners: Iterable[Listener]) -> None:
        for listener in listeners:
            self._let_go(listener)
            del self._pins[listener]

    def _fail(self, listener: Listener, error: BaseException) -> None:
        listener.future.settle(error)
        self._let_go(listener)
        del self._waiting[listener]

    def _complete(self, listener: Listener) -> None:
        results = [listener.results[number] for number in sorted(listener.results)]
        self._ownership.use_locally(results, listener.checkpoint_id)
        missing_bytes = sum(result.size for result in results) - listener.ready_bytes
        remote = self._handle([result.handle for result in results], results, missing_bytes)
        copies = [result.local_handle for result in results if result.local_handle is not None]
        all_local = bool(copies) and len(copies) == len(results)
        local = self._handle(copies, results, missing_bytes) if all_local else None
        listener.future.settle(SnapshotResult(remote, local))
        if not listener.let_go:
            self._pins[listener] = None
        self._waiting.pop(listener, None)

    def _handle(
        self, segments: Iterable[SegmentHandle], results: Iterable[UploadResult], missing_bytes: int
    ) -> ChangelogHandle:
        return ChangelogHandle(
            key_group_range=self._key_group_range,
            segments=tuple(segments),
            state_size=sum(result.size for result in results),
            checkpointed_size=missing_bytes,
        )


def _as_io_error(error: BaseException, operator_id: str) -> BaseException:
    """The error of a failed persist: ours and I/O errors as they are, anything else as the cause of one."""
    if isinstance(error, OSError | StatelineError):
        return error
    wrapped = UnavailableError(
        f"the upload failed: {error!r}",
        operation="persist",
        subject=operator_id,
        hint="The changes are kept; the next persist sends them again",
    )
    wrapped.__cause__ = error
    return wrapped
