"""The writer of one operator's subtask: collects changes, numbers them in sets, has them uploaded.

Invariants:
- A set is in exactly one place: active (still growing), or one of the table. Nothing is uploaded twice, over any number
  of checkpoints and aborts; a set that failed waits again, with its bytes.
- An interrupt between any two steps loses nothing and doubles nothing: see ``docs/decisions/0024-interrupts.md``.
- Numbers have no gap and never repeat: ``append`` leaves the number alone, closing a set with changes adds one, closing
  an empty set does nothing.
- An object that a snapshot names is kept until that checkpoint is confirmed or reset.
- Everything here runs on the owner's thread. The one exception is a result that arrives after ``close``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from operator import iconcat
from typing import Any, Final, NoReturn
from uuid import UUID

import numpy as np

from stateline.blob.api import Buffer
from stateline.changelog.active_set import ActiveSet
from stateline.changelog.api import SequenceNumber, SnapshotResult, StateChange, UploadResult
from stateline.changelog.change_set import StateChangeSet
from stateline.changelog.columns import EMPTY_CHANGE_BYTES, MAX_CHANGE_BYTES, batch_columns
from stateline.changelog.mailbox import Mailbox, PersistFuture
from stateline.changelog.registry import Ownership
from stateline.changelog.set_table import SetTable, Snapshot
from stateline.changelog.settings import ChangelogSettings
from stateline.changelog.upload_task import StateChangeUploadScheduler, UploadTask
from stateline.environment import Environment
from stateline.errors import ClosedError, InvalidInputError, StatelineError, UnavailableError
from stateline.key_groups import MAX_PARALLELISM_LIMIT, KeyGroupRange

__all__ = ["ChangelogWriter"]

_INITIAL: Final = SequenceNumber(0)
_join: Final[Callable[[bytearray, Buffer], object]] = iconcat  # Not +=: a numpy value would add numbers, in place.
_NO_CHANGE: Final = (TypeError, ValueError, OverflowError, BufferError, MemoryError)
_CLOSED: Final = -1  # In place of the last key group: the next append has to look at more than the key group.
_MAX_TASK_SETS: Final = 4096  # In one upload task, and that wait without a checkpoint, however small they are.


class ChangelogWriter:
    """See the module docstring, and ``stateline.changelog.api`` for the life of a change. Made by a storage.

    Not safe to use from two threads. Every method first runs the callbacks of uploads that have ended meanwhile.

    Attributes:
        operator_id: Whose changes these are; for people.
        log_id: Identity of this writer's numbering, unique over restarts.
        key_group_range: The key groups that may be appended (inclusive).
    """

    __slots__ = (
        "_active",
        "_buffers",
        "_closed",
        "_ended",
        "_failure",
        "_first",
        "_given",
        "_last",
        "_mailbox",
        "_ownership",
        "_room",
        "_scheduler",
        "_sets",
        "_settings",
        "_threshold",
        "key_group_range",
        "log_id",
        "operator_id",
    )
    _buffers: tuple[bytearray, Callable[[int], None], Callable[[int], None]]
    _room: int
    _ended: int | None  # Bytes of the whole changes in the buffers; None while one is being added, or was interrupted.

    def __init__(
        self,
        operator_id: str,
        log_id: UUID,
        key_group_range: KeyGroupRange,
        scheduler: StateChangeUploadScheduler,
        ownership: Ownership,
        settings: ChangelogSettings,
        environment: Environment,
    ) -> None:
        if len(key_group_range) == 0 or key_group_range.end >= MAX_PARALLELISM_LIMIT:
            raise InvalidInputError(
                f"{key_group_range} is empty or ends above {MAX_PARALLELISM_LIMIT - 1}",
                operation="create_writer",
                subject=operator_id,
                hint="Take it from range_for_subtask",
            )
        self.operator_id = operator_id
        self.log_id = log_id
        self.key_group_range = key_group_range
        self._scheduler = scheduler
        self._ownership = ownership
        self._settings = settings
        self._threshold = min(settings.preemptive_persist_threshold, settings.max_in_flight, MAX_CHANGE_BYTES)
        self._mailbox = Mailbox(environment)
        self._grow(ActiveSet(0, self._threshold))
        self._sets = SetTable()
        self._given: UploadTask | None = None
        self._failure: BaseException | None = None
        self._closed = False
        self._first, self._last = key_group_range.start, key_group_range.end

    def __repr__(self) -> str:
        return f"ChangelogWriter({self.operator_id!r}, {self.key_group_range}, next {self._active.number})"

    # -- appending ------------------------------------------------------------------------------------------------

    def append(self, key_group: int, value: Buffer) -> None:
        """Adds one change to the active set. Copies ``value``.

        May start an upload, and may then wait for room (see :attr:`ChangelogStorage.availability`).

        Raises:
            InvalidInputError: The key group is outside the writer's range, or ``value`` is not bytes-like.
            UnavailableError: More than ``max_in_flight`` bytes have failed to upload. Nothing was added; ``persist``
                sends them again.
            ClosedError: The writer is closed.
        """
        try:
            if not self._first <= key_group <= self._last:
                self._enter(key_group)
            before = self._ended
            if before is None:
                before = self._seal()
            self._ended = None
            data, add_key_group, add_end = self._buffers
            add_key_group(key_group)
            _join(data, value)
            size = len(data)
            if before < size < self._room:
                add_end(size)  # From here on, the change is there.
                self._ended = size
                return
        except StatelineError:
            raise
        except _NO_CHANGE as error:
            self._refuse_change(key_group, value, error)
        self._end_change(before, size)

    def append_meta(self, value: Buffer) -> None:
        """Adds metadata, which every reader gets first, whatever it asks for. Otherwise as :meth:`append`."""
        self._enter(self.key_group_range.start)
        before = self._seal() if self._ended is None else self._ended
        self._ended = None
        data, add_key_group, _ = self._buffers
        try:
            add_key_group(StateChange.META)
            _join(data, value)
        except _NO_CHANGE as error:
            self._refuse_change(StateChange.META, value, error)
        self._end_change(before, len(data))

    def _grow(self, active: ActiveSet) -> None:
        """Makes ``active`` the set that grows. The one step that counts is its assignment."""
        self._ended = None
        self._active = active
        self._buffers = active.data, active.key_groups.append, active.ends.append
        self._room = active.room
        self._ended = 0

    def _seal(self) -> int:
        """Turns the changes that came one by one into columns, and leaves behind what is no whole change."""
        if self._ended != 0 or len(self._active.ends) > 1:
            self._ended = None
            self._grow(self._active.sealed())
        return 0

    def append_batch(self, key_groups: Any, values: Any) -> None:
        """Adds many changes in one call: the fast path.

        A batch above ``persist_size_threshold`` is cut into sets of about that size, as if it had been appended piece
        by piece, so that its uploads run side by side.

        Args:
            key_groups: One integer per change: a numpy array, an Arrow array or a sequence.
            values: One value per change: an Arrow (large) binary or string array, chunked or not, which is taken
                without a copy and must not change afterwards; or a sequence of bytes-like.

        Raises:
            InvalidInputError: Different lengths, nulls, other types, or a key group outside the range. Nothing was
                added.
            UnavailableError: As :meth:`append`.
            ClosedError: The writer is closed.
        """
        self._enter(self.key_group_range.start)
        limit = max(self._settings.persist_size_threshold, 1)
        for columns in batch_columns(key_groups, values, self.key_group_range):
            for piece in (columns,) if columns.weight <= limit else columns.split(limit):
                self._seal()
                self._active = self._active.with_columns(piece)
                self._room = self._active.room
                if self._room <= 0:
                    self._rollover()
                    self._submit()

    def _enter(self, key_group: int) -> None:
        """Runs callbacks, then checks that the writer takes changes and this key group: the slow path of an append."""
        self._mailbox.run()
        if self._closed:
            raise self._closed_error("append")
        if self._sets.failed.weight > self._settings.max_in_flight:
            raise UnavailableError(
                f"{self._sets.failed.weight} bytes of changes could not be uploaded ({self._failure})",
                operation="append",
                subject=self.operator_id,
                hint="Nothing was added. Call persist to send them again once the store is back, or close the writer",
            ) from self._failure
        self._last = self.key_group_range.end
        if self._mailbox.letters:  # Whoever left one meanwhile may have closed it before it was opened.
            self._last = _CLOSED
        if not self._first <= key_group <= self.key_group_range.end:
            raise InvalidInputError(
                f"key group {key_group} is outside {self.key_group_range}",
                operation="append",
                subject=self.operator_id,
                hint="Route each key to the subtask that owns its key group",
            )

    def _end_change(self, before: int, size: int) -> None:
        """Adds the end of a change that is empty, or fills the set, or is too long for any block: that fills it too."""
        if size == before:
            self._room -= EMPTY_CHANGE_BYTES
        full = size >= self._room
        if full and size - before > MAX_CHANGE_BYTES:
            raise InvalidInputError(
                f"a change of {size - before} bytes is above the limit of {MAX_CHANGE_BYTES}",
                operation="append",
                subject=self.operator_id,
                hint="Split the value",
            )
        self._active.ends.append(size)
        self._ended = size
        if full:
            self._rollover()
            self._submit()

    def _refuse_change(self, key_group: object, value: object, error: Exception) -> NoReturn:
        """Says what is wrong. What was added of the change is left behind by the next one."""
        if isinstance(error, MemoryError):
            raise error
        raise InvalidInputError(
            f"expected an integer and bytes, got {type(key_group).__name__} and {type(value).__name__}",
            operation="append",
            subject=self.operator_id,
            hint="Give an integer and contiguous bytes",
        ) from error

    # -- numbers --------------------------------------------------------------------------------------------------

    def initial_sequence_number(self) -> SequenceNumber:
        """The number of the first set of every writer: 0."""
        self._mailbox.run()
        return _INITIAL

    def next_sequence_number(self) -> SequenceNumber:
        """Closes the active set if it has changes. Returns the number of the next set: all appended so far is below it.

        Idempotent while nothing is appended.
        """
        self._check_open("next_sequence_number")
        self._rollover()
        waiting = self._sets.waiting
        if waiting.weight >= self._settings.persist_size_threshold or len(waiting) >= _MAX_TASK_SETS:
            self._submit()  # Nobody may ever persist what a materialization has cut off.
        return SequenceNumber(self._active.number)

    def _rollover(self) -> None:
        """Closes the active set, if it has changes, and gives the next one its number."""
        self._seal()
        active = self._active
        columns = active.columns()
        if not columns:
            return
        self._sets.waiting.put(StateChangeSet.of_columns(self.log_id, SequenceNumber(active.number), columns))
        self._grow(ActiveSet(active.number + 1, self._threshold))  # Until then the set does not count: it may yet grow.

    # -- uploading ------------------------------------------------------------------------------------------------

    def persist(self, from_: SequenceNumber, checkpoint_id: int) -> Future[SnapshotResult]:
        """Makes every set from ``from_`` (inclusive) on durable. What is uploaded or on its way is not sent again.

        Returns:
            A future of the handles. It fails if an upload fails for good; the changes are kept and the next persist
            sends them again. It runs callbacks while its ``result()`` waits on the owner's thread.

        Raises:
            InvalidInputError: ``from_`` is no sequence number, was truncated, or is above the next one.
            ClosedError: The writer is closed.
        """
        self._check_open("persist")
        self._check_checkpoint(checkpoint_id, "persist")
        start, lowest = self._checked("from_", from_, "persist"), self._sets.lowest
        if start < lowest:
            raise self._bad_number(f"{start} was truncated: the changelog starts at {lowest}", "persist")
        self._rollover()
        snapshot = Snapshot(start, self._active.number, checkpoint_id, PersistFuture(self._mailbox))
        try:
            self._sets.begin(snapshot)
            self._ownership.use_locally(snapshot.results.values(), checkpoint_id)
            if snapshot.is_complete:
                self._complete(snapshot)
            else:
                self._submit(start)
        except BaseException as error:
            self._fail(snapshot, error)  # Its future reaches nobody.
            raise
        self._mailbox.run()
        return snapshot.future

    def _submit(self, start: int = 0) -> None:
        """Sends the sets from ``start`` on that wait, in as few tasks as a batch's bound allows. May wait for room."""
        waiting = self._sets.waiting
        numbers = sorted(number for number in waiting if number >= start)
        self._note_given()
        left = filter(waiting.__contains__, numbers)
        for sets in waiting.groups(left, self._settings.persist_size_threshold, _MAX_TASK_SETS):
            self._given = UploadTask(sets, self._posted(self._on_success), self._posted(self._on_failure))
            self._scheduler.upload(self._given)
            self._given.taken = True
            self._note_given()

    def _note_given(self) -> None:
        """Notes that what the scheduler has taken is in flight; later, if that was interrupted."""
        if self._given is not None and self._given.taken:
            self._sets.sent(self._given.change_sets)
        self._given = None

    def _posted(self, callback: Callable[..., None]) -> Callable[..., None]:
        """What an upload thread calls: leaves the call, with a list of its own, for the owner."""

        def post(items: Iterable[Any], *error: BaseException) -> None:
            self._mailbox.post(partial(callback, list(items), *error))
            self._last = _CLOSED

        return post

    def _on_success(self, results: list[UploadResult]) -> None:
        """Consumes ``results``, so that it may run again after an interrupt. After ``close``, on any thread."""
        if not self._closed:
            self._note_given()
            for snapshot in self._sets.arrived(results):
                self._complete(snapshot)
        while results:
            result = results[-1]
            kept = not self._closed and self._sets.keeps(result)
            results.pop()
            if not kept:
                self._ownership.release([result])

    def _on_failure(self, numbers: list[SequenceNumber], error: BaseException) -> None:
        if self._closed:
            return
        self._note_given()
        self._failure = error
        failed = [number.value for number in numbers if number.value in self._sets.in_flight]
        for snapshot in self._sets.broken(failed):
            self._fail(snapshot, error)
        self._sets.failed_for_good(failed)
        if self._sets.failed.weight > self._settings.max_in_flight:
            self._last = _CLOSED

    def _complete(self, snapshot: Snapshot) -> None:
        self._ownership.use_locally(snapshot.results.values(), snapshot.checkpoint_id)
        snapshot.future.settle(snapshot.outcome(self.key_group_range))
        self._sets.wait.pop(snapshot, None)

    def _fail(self, snapshot: Snapshot, error: BaseException) -> None:
        if not isinstance(error, OSError | StatelineError):
            cause, hint = error, "The changes are kept; the next persist sends them again"
            error = UnavailableError(
                f"the upload failed: {cause!r}", operation="persist", subject=self.operator_id, hint=hint
            )
            error.__cause__ = cause
        snapshot.future.settle(error)
        self._ownership.release(self._sets.let_go([snapshot]))
        self._sets.wait.pop(snapshot, None)

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def confirm(self, from_: SequenceNumber, to: SequenceNumber, checkpoint_id: int) -> None:
        """The checkpoint exists: the objects of the sets ``[from_, to)`` that it names belong to its record now.

        Sets that were truncated meanwhile, but are part of its snapshot, belong to it as well. Repeating it is
        harmless.

        Raises:
            InvalidInputError: ``to < from_``, or one of them is above the next sequence number.
            ClosedError: The writer is closed.
        """
        start, end = self._checked_range(from_, to, "confirm")
        self._check_checkpoint(checkpoint_id, "confirm")
        self._ownership.give_away(self._sets.confirmed(start, end, checkpoint_id))
        self._ownership.release(self._sets.let_go(self._sets.complete_up_to(checkpoint_id)))
        self._ownership.discard_local_before(checkpoint_id)

    def reset(self, from_: SequenceNumber, to: SequenceNumber, checkpoint_id: int) -> None:
        """The checkpoint was aborted. Its uploads stay, and the next persist reuses them.

        Raises:
            InvalidInputError: As :meth:`confirm`.
            ClosedError: The writer is closed.
        """
        self._checked_range(from_, to, "reset")
        self._check_checkpoint(checkpoint_id, "reset")
        aborted = [snapshot for snapshot in self._sets.name if snapshot.checkpoint_id == checkpoint_id]
        self._ownership.release(self._sets.let_go(aborted))

    def truncate(self, to: SequenceNumber) -> None:
        """Nothing below ``to`` will be asked for again. Going back does nothing: what was truncated stays so.

        Uploads on their way are not disturbed: a persist that waits for them completes, then they are released.

        Raises:
            InvalidInputError: ``to`` is above the next sequence number.
            ClosedError: The writer is closed.
        """
        self._check_open("truncate")
        self._ownership.release(self._sets.truncate(self._checked("to", to, "truncate")))

    def truncate_and_close(self, from_: SequenceNumber) -> None:
        """Releases every set from ``from_`` (inclusive) on, keeps those below for the last checkpoint, and closes.

        Raises:
            InvalidInputError: ``from_`` is above the next sequence number.
            ClosedError: The writer is closed.
        """
        self._check_open("truncate_and_close")
        start = self._checked("from_", from_, "truncate_and_close")
        self._closed = True  # What arrives from now on is released.
        self._ownership.release(self._sets.forget_uploaded([known for known in self._sets.uploaded if known >= start]))
        self.close()

    def close(self) -> None:
        """Drops what was not uploaded and fails every persist that waits. Idempotent. Uploaded sets stay stored."""
        self._mailbox.run()
        self._closed = True
        self._last = _CLOSED
        for snapshot in list(self._sets.wait):
            self._fail(snapshot, self._closed_error("persist"))
        self._sets.clear()
        self._grow(ActiveSet(self._active.number, 0))
        self._mailbox.close()

    def run_callbacks(self) -> int:
        """Runs the callbacks of uploads that have ended, on the caller's thread; returns how many there were."""
        return self._mailbox.run()

    # -- checks ---------------------------------------------------------------------------------------------------

    def _check_open(self, operation: str) -> None:
        self._mailbox.run()
        if self._closed:
            raise self._closed_error(operation)

    def _check_checkpoint(self, checkpoint_id: object, operation: str) -> None:
        if not isinstance(checkpoint_id, int | np.integer) or isinstance(checkpoint_id, bool):
            raise InvalidInputError(
                f"checkpoint_id must be an integer, got {checkpoint_id!r}",
                operation=operation,
                subject=self.operator_id,
                hint="Give its number",
            )

    def _checked(self, name: str, number: SequenceNumber, operation: str) -> int:
        if not isinstance(number, SequenceNumber):
            raise self._bad_number(f"{name} is {number!r}, not a SequenceNumber", operation)
        if number.value > self._active.number:
            raise self._bad_number(f"{name} is {number}, {self._active.number} is the set that is growing", operation)
        return number.value

    def _checked_range(self, from_: SequenceNumber, to: SequenceNumber, operation: str) -> tuple[int, int]:
        self._check_open(operation)
        start, end = self._checked("from_", from_, operation), self._checked("to", to, operation)
        if end < start:
            raise self._bad_number(f"from_ must not be above to, got {start} and {end}", operation)
        return start, end

    def _bad_number(self, message: str, operation: str) -> InvalidInputError:
        hint = "Take numbers from next_sequence_number"
        return InvalidInputError(message, operation=operation, subject=self.operator_id, hint=hint)

    def _closed_error(self, operation: str) -> ClosedError:
        return ClosedError("the writer is closed", operation=operation, subject=self.operator_id)
