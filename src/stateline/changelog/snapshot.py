"""The persists of one writer that wait, and what finished ones keep alive.

Owns listeners (which sets a persist still needs) and pins (which objects a checkpoint that is being built names).
Does not own the sets (``writer``) or the counts (``registry``). Used by the owner of the writer only.

Invariants:
- A listener is completed or failed exactly once, and is gone then.
- What a snapshot will name is retained from the moment its listener knows it, and until its checkpoint is confirmed or
  reset. So no truncation can delete it, not even while the listener still waits for other sets.
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

    __slots__ = ("aborted", "checkpoint_id", "end", "future", "missing_bytes", "results", "start")

    def __init__(self, start: int, end: int, checkpoint_id: int, future: PersistFuture) -> None:
        self.start = start
        self.end = end
        self.checkpoint_id = checkpoint_id
        self.future = future
        self.results: dict[int, UploadResult] = {}
        self.missing_bytes = 0
        self.aborted = False

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
        self._listeners: list[Listener] = []
        self._pins: dict[int, dict[int, UploadResult]] = {}

    def begin(self, listener: Listener, ready: Mapping[int, UploadResult]) -> bool:
        """Starts a persist with what is uploaded already. Returns whether that was all; then it is completed."""
        self._check_checkpoint(listener.checkpoint_id, "persist")
        self._take(listener, ready.values())
        self._ownership.use_locally(listener.results.values(), listener.checkpoint_id)
        if listener.is_complete:
            self._complete(listener)
            return True
        self._listeners.append(listener)
        return False

    def forget(self, listener: Listener) -> None:
        """The persist was interrupted before its future reached anybody."""
        if listener in self._listeners:
            self._listeners.remove(listener)
            self._let_go(listener)

    def offer(self, results: Iterable[UploadResult]) -> None:
        """Sets became durable."""
        results = list(results)
        for listener in list(self._listeners):
            listener.missing_bytes += self._take(listener, results)
            if listener.is_complete:
                self._listeners.remove(listener)
                self._complete(listener)

    def fail(self, numbers: Collection[int], error: BaseException) -> None:
        """Sets failed for good: every persist that needs one of them fails."""
        for listener in list(self._listeners):
            if any(number in listener for number in numbers):
                self._listeners.remove(listener)
                self._let_go(listener)
                listener.future.set_exception(_as_io_error(error, self._operator_id))

    def confirm(self, start: int, end: int, checkpoint_id: int, uploaded: Mapping[int, UploadResult]) -> None:
        """The checkpoint exists: what it names of ``[start, end)`` is its own now, truncated meanwhile or not."""
        self._check_checkpoint(checkpoint_id, "confirm")
        named = self._pins.pop(checkpoint_id, {})
        given = {number: result for number, result in {**named, **uploaded}.items() if start <= number < end}
        self._ownership.give_away(given.values())
        self._ownership.unpin(result for number, result in named.items() if number not in given)
        for older in [known for known in self._pins if known < checkpoint_id]:
            self._ownership.unpin(self._pins.pop(older).values())
        self._ownership.discard_local_before(checkpoint_id)

    def reset(self, checkpoint_id: int) -> None:
        """The checkpoint was aborted: nothing is kept for it any more, also not by a persist that ends later."""
        self._check_checkpoint(checkpoint_id, "reset")
        self._ownership.unpin(self._pins.pop(checkpoint_id, {}).values())
        for listener in self._listeners:
            if listener.checkpoint_id == checkpoint_id:
                self._let_go(listener)

    def close(self, error: BaseException) -> None:
        """Fails every persist that waits. The pins of finished ones stay: their checkpoints may yet exist."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            self._let_go(listener)
            listener.future.set_exception(error)

    def _check_checkpoint(self, checkpoint_id: object, operation: str) -> None:
        if not isinstance(checkpoint_id, int | np.integer) or isinstance(checkpoint_id, bool):
            raise InvalidInputError(
                f"{checkpoint_id!r} is no checkpoint id",
                operation=operation,
                subject=self._operator_id,
                hint="Give the integer that the checkpoint is known by",
            )

    def _take(self, listener: Listener, results: Iterable[UploadResult]) -> int:
        """Notes and retains what the listener needs of ``results``; returns its bytes."""
        needed = [
            result
            for result in results
            if result.sequence_number.value in listener and result.sequence_number.value not in listener.results
        ]
        listener.results.update((result.sequence_number.value, result) for result in needed)
        if not listener.aborted:
            self._ownership.retain(needed)
        return sum(result.size for result in needed)

    def _let_go(self, listener: Listener) -> None:
        """Nobody will name the listener's sets: retains them no more, now and later."""
        if not listener.aborted:
            listener.aborted = True
            self._ownership.unpin(listener.results.values())

    def _complete(self, listener: Listener) -> None:
        results = [listener.results[number] for number in sorted(listener.results)]
        if not listener.aborted:
            pins = self._pins.setdefault(listener.checkpoint_id, {})
            self._ownership.unpin(result for number, result in listener.results.items() if number in pins)
            pins.update((number, result) for number, result in listener.results.items() if number not in pins)
        self._ownership.use_locally(results, listener.checkpoint_id)
        remote = self._handle([result.handle for result in results], results, listener.missing_bytes)
        copies = [result.local_handle for result in results if result.local_handle is not None]
        all_local = bool(copies) and len(copies) == len(results)
        local = self._handle(copies, results, listener.missing_bytes) if all_local else None
        listener.future.set_result(SnapshotResult(remote, local))

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
