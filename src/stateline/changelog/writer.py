"""The writer of one operator's subtask: collects changes, numbers them in sets, has them uploaded.

Owns the sets and their numbers. Does not own when uploads run (``scheduler``), retries, objects (``uploader``) or
deletes (``registry``).

Invariants:
- A set is in exactly one place: active (still growing), waiting (not sent, or failed for good), in flight, or uploaded.
  Nothing is uploaded twice, over any number of checkpoints and aborts; a set that failed waits again, with its bytes.
- Numbers have no gap and never repeat: ``append`` leaves the number alone, closing a set with changes adds one, closing
  an empty set does nothing.
- ``lowest`` only grows. What is below it is released as soon as it is not part of a snapshot.
- An object that a snapshot names is retained until that checkpoint is confirmed or reset.
- Everything here runs on the owner's thread. The one exception is a result that arrives after ``close``.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from operator import iconcat
from typing import Any, Final, NoReturn
from uuid import UUID

import numpy as np
import pyarrow as pa

from stateline.blob.api import Buffer
from stateline.changelog.api import (
    SequenceNumber,
    SnapshotResult,
    StateChange,
    StateChangeUploadScheduler,
    UploadResult,
)
from stateline.changelog.change_set import StateChangeSet
from stateline.changelog.columns import MAX_CHANGE_BYTES, ChangeColumns, batch_columns
from stateline.changelog.mailbox import Mailbox, PersistFuture
from stateline.changelog.ownership import Ownership
from stateline.changelog.settings import ChangelogSettings
from stateline.changelog.snapshot import Listener, Snapshots
from stateline.changelog.upload_task import UploadTask
from stateline.environment import Environment
from stateline.errors import ClosedError, InvalidInputError, StatelineError, UnavailableError
from stateline.key_groups import MAX_PARALLELISM_LIMIT, KeyGroupRange

__all__ = ["ChangelogWriter"]

_INITIAL: Final = SequenceNumber(0)
_join: Final[Callable[[bytearray, Buffer], object]] = iconcat  # Not +=: a numpy value would add numbers, in place.
_NO_CHANGE: Final = (TypeError, ValueError, OverflowError, BufferError, MemoryError)
_MAX_TASK_SETS: Final = 4096
"""Change sets in one upload task, however small they are."""


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
        "_chunks",
        "_closed",
        "_data",
        "_ends",
        "_failed_bytes",
        "_failure",
        "_first",
        "_flush_at",
        "_highest",
        "_in_flight",
        "_key_groups",
        "_last",
        "_letters",
        "_lowest",
        "_mailbox",
        "_ownership",
        "_scheduler",
        "_sealed_bytes",
        "_settings",
        "_snapshots",
        "_threshold",
        "_uploaded",
        "_waiting",
        "key_group_range",
        "log_id",
        "operator_id",
    )

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
        self._letters = self._mailbox.letters
        self._active = 0
        self._lowest = 0
        self._highest: int | None = None
        self._waiting: dict[int, StateChangeSet] = {}
        self._in_flight: dict[int, StateChangeSet] = {}
        self._uploaded: dict[int, UploadResult] = {}
        self._snapshots = Snapshots(operator_id, key_group_range, ownership)
        self._failed_bytes: dict[int, int] = {}
        self._failure: BaseException | None = None
        self._closed = False
        self._first, self._last = key_group_range.start, key_group_range.end
        self._start_active_set()

    def __repr__(self) -> str:
        return f"ChangelogWriter({self.operator_id!r}, {self.key_group_range}, next {self._active})"

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
            if not self._first <= key_group <= self._last or self._letters:
                self._enter(key_group)
            self._key_groups.append(key_group)
            _join(self._data, value)
        except StatelineError:
            raise
        except _NO_CHANGE as error:
            self._refuse_change(key_group, value, error)
        size = len(self._data)
        self._ends.append(size)
        if size >= self._flush_at:
            self._flush()

    def append_meta(self, value: Buffer) -> None:
        """Adds metadata, which every reader gets first, whatever it asks for. Otherwise as :meth:`append`."""
        self._enter(self.key_group_range.start)
        try:
            self._key_groups.append(StateChange.META)
            _join(self._data, value)
        except _NO_CHANGE as error:
            self._refuse_change(StateChange.META, value, error)
        self._ends.append(len(self._data))
        if len(self._data) >= self._flush_at:
            self._flush()

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
            added. UnavailableError: As :meth:`append`.
            ClosedError: The writer is closed.
        """
        self._enter(self.key_group_range.start)
        for columns in batch_columns(key_groups, values, self.key_group_range):
            for piece in columns.split(max(self._settings.persist_size_threshold, 1)):
                self._seal()
                self._chunks.append(piece)
                self._sealed_bytes += piece.size
                self._flush_at = self._threshold - self._sealed_bytes
                if self._flush_at <= 0:
                    self._flush()

    def _enter(self, key_group: int) -> None:
        """Runs callbacks, then checks that the writer takes changes and this key group: the slow path of an append."""
        self._mailbox.run()
        if self._closed:
            raise self._closed_error("append")
        if self._is_refusing:
            raise UnavailableError(
                f"{sum(self._failed_bytes.values())} bytes of changes could not be uploaded ({self._failure})",
                operation="append",
                subject=self.operator_id,
                hint="Nothing was added. Call persist to send them again once the store is back, or close the writer",
            ) from self._failure
        self._first, self._last = self.key_group_range.start, self.key_group_range.end
        if not self._first <= key_group <= self._last:
            raise InvalidInputError(
                f"key group {key_group} is outside {self.key_group_range}",
                operation="append",
                subject=self.operator_id,
                hint="Route each key to the subtask that owns its key group",
            )

    def _refuse_change(self, key_group: object, value: object, error: Exception) -> NoReturn:
        """Takes a half-added change back."""
        del self._key_groups[len(self._ends) - 1 :]
        if isinstance(error, MemoryError):
            raise error
        raise InvalidInputError(
            f"({type(key_group).__name__}, {type(value).__name__}) is no change",
            operation="append",
            subject=self.operator_id,
            hint="Give an integer and contiguous bytes",
        ) from error

    def _take_back_last(self) -> NoReturn:
        """Refuses a change that no block can hold. Any such change reaches the threshold, so :meth:`_flush` sees it."""
        del self._data[self._ends[-2] :]
        length = self._ends.pop() - self._ends[-1]
        self._key_groups.pop()
        raise InvalidInputError(
            f"a change of {length} bytes is above the limit of {MAX_CHANGE_BYTES}",
            operation="append",
            subject=self.operator_id,
            hint="Split the value",
        )

    @property
    def _is_refusing(self) -> bool:
        return sum(self._failed_bytes.values()) > self._settings.max_in_flight

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
        if sum(change_set.size for change_set in self._waiting.values()) >= self._settings.persist_size_threshold:
            self._submit(sorted(self._waiting))  # Nobody may ever persist what a materialization has cut off.
        return SequenceNumber(self._active)

    def _start_active_set(self) -> None:
        self._chunks: list[ChangeColumns] = []
        self._sealed_bytes = 0
        self._flush_at = self._threshold
        self._start_buffers()

    def _start_buffers(self) -> None:
        self._key_groups = array("h")
        self._ends = array("q", [0])
        self._data = bytearray()

    def _seal(self) -> None:
        """Turns the changes that came one by one into columns; they keep their place in the order."""
        if not self._key_groups:
            return
        key_groups, offsets = np.frombuffer(self._key_groups, np.int16), np.frombuffer(self._ends, np.int64)
        self._chunks.append(ChangeColumns(key_groups, offsets, pa.py_buffer(self._data)))
        self._sealed_bytes += len(self._data)
        self._flush_at = self._threshold - self._sealed_bytes
        self._start_buffers()

    def _rollover(self) -> None:
        """Closes the active set, if it has changes, and gives the next one its number."""
        self._seal()
        if not self._chunks:
            return
        change_set = StateChangeSet.of_columns(self.log_id, SequenceNumber(self._active), self._chunks)
        self._waiting[self._active] = change_set
        self._active += 1
        self._start_active_set()

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
        start = self._checked("from_", from_, "persist")
        if start < self._lowest:
            raise self._bad_number(f"{start} was truncated: the changelog starts at {self._lowest}", "persist")
        self._rollover()
        listener = Listener(start, self._active, checkpoint_id, PersistFuture(self._mailbox))
        if not self._snapshots.begin(listener, self._uploaded):
            try:
                self._submit(sorted(number for number in self._waiting if number >= start))
            except BaseException:
                self._snapshots.forget(listener)
                raise
            self._mailbox.run()
        return listener.future

    def _flush(self) -> None:
        """Sends everything that waits, without a checkpoint."""
        if len(self._ends) > 1 and self._ends[-1] - self._ends[-2] > MAX_CHANGE_BYTES:
            self._take_back_last()
        self._rollover()
        self._submit(sorted(self._waiting))

    def _submit(self, numbers: list[int]) -> None:
        """Sends waiting sets, in as few tasks as the bound of a batch allows. May wait for room."""
        for group in self._groups(numbers):
            sets = [self._waiting.pop(number) for number in group]
            for change_set in sets:
                number = change_set.sequence_number.value
                self._in_flight[number] = change_set
                self._failed_bytes.pop(number, None)
            task = UploadTask(sets, self._posted(self._on_success), self._posted(self._on_failure))
            try:
                self._scheduler.upload(task)
            except BaseException as error:
                task.fail(error)  # A scheduler should have done so; without it, its sets would be in flight for ever.
                raise

    def _groups(self, numbers: Iterable[int]) -> Iterator[list[int]]:
        group: list[int] = []
        size = 0
        for number in numbers:
            length = self._waiting[number].size
            if group and (size + length > self._settings.persist_size_threshold or len(group) == _MAX_TASK_SETS):
                yield group
                group, size = [], 0
            group.append(number)
            size += length
        if group:
            yield group

    def _posted(self, callback: Callable[..., None]) -> Callable[..., None]:
        """What an upload thread calls: leaves the call for the owner."""
        mailbox = self._mailbox
        return lambda *arguments: mailbox.post(lambda: callback(*arguments))

    def _on_success(self, results: list[UploadResult]) -> None:
        if self._closed:  # Nobody waits for it, so nobody will ever name it.
            self._ownership.release(results)
            return
        self._snapshots.offer(results)
        for result in results:
            number = result.sequence_number.value
            self._in_flight.pop(number, None)
            if self._is_wanted(number):
                self._uploaded[number] = result
            else:
                self._ownership.release([result])

    def _on_failure(self, numbers: list[SequenceNumber], error: BaseException) -> None:
        if self._closed:
            return
        self._failure = error
        failed = [number.value for number in numbers]
        for number in failed:
            change_set = self._in_flight.pop(number, None)
            if change_set is not None and self._is_wanted(number):
                self._waiting[number] = change_set
                self._failed_bytes[number] = change_set.size
        if self._is_refusing:
            self._first, self._last = 0, -1  # Sends the next append through _enter.
        self._snapshots.fail(failed, error)

    def _is_wanted(self, number: int) -> bool:
        return self._lowest <= number and (self._highest is None or number < self._highest)

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
        self._snapshots.confirm(start, end, checkpoint_id, self._uploaded)

    def reset(self, from_: SequenceNumber, to: SequenceNumber, checkpoint_id: int) -> None:
        """The checkpoint was aborted. Its uploads stay, and the next persist reuses them.

        Raises:
            InvalidInputError: As :meth:`confirm`.
            ClosedError: The writer is closed.
        """
        self._checked_range(from_, to, "reset")
        self._snapshots.reset(checkpoint_id)

    def truncate(self, to: SequenceNumber) -> None:
        """Nothing below ``to`` will be asked for again. Going back does nothing: what was truncated stays so.

        Uploads on their way are not disturbed: a persist that waits for them completes, then they are released.

        Raises:
            InvalidInputError: ``to`` is above the next sequence number.
            ClosedError: The writer is closed.
        """
        self._check_open("truncate")
        self._lowest = max(self._lowest, self._checked("to", to, "truncate"))
        for number in [known for known in self._waiting if known < self._lowest]:
            del self._waiting[number]
            self._failed_bytes.pop(number, None)
        dropped = [number for number in self._uploaded if number < self._lowest]
        self._ownership.release([self._uploaded.pop(number) for number in dropped])

    def truncate_and_close(self, from_: SequenceNumber) -> None:
        """Releases every set from ``from_`` (inclusive) on, keeps those below for the last checkpoint, and closes.

        Raises:
            InvalidInputError: ``from_`` is above the next sequence number.
            ClosedError: The writer is closed.
        """
        self._check_open("truncate_and_close")
        self._highest = self._checked("from_", from_, "truncate_and_close")
        dropped = [number for number in self._uploaded if number >= self._highest]
        self._ownership.release([self._uploaded.pop(number) for number in dropped])
        self.close()

    def close(self) -> None:
        """Drops what was not uploaded and fails every persist that waits. Idempotent. Uploaded sets stay stored."""
        if self._closed:
            return
        self._mailbox.run()
        self._closed = True
        self._first, self._last = 0, -1
        self._waiting.clear()
        self._in_flight.clear()
        self._uploaded.clear()
        self._failed_bytes.clear()
        self._start_active_set()
        self._mailbox.close()
        self._snapshots.close(self._closed_error("persist"))

    def run_callbacks(self) -> int:
        """Runs the callbacks of uploads that have ended, on the caller's thread; returns how many there were."""
        return self._mailbox.run()

    # -- checks ---------------------------------------------------------------------------------------------------

    def _check_open(self, operation: str) -> None:
        self._mailbox.run()
        if self._closed:
            raise self._closed_error(operation)

    def _checked(self, name: str, number: SequenceNumber, operation: str) -> int:
        if not isinstance(number, SequenceNumber):
            raise self._bad_number(f"{name} is {number!r}, not a SequenceNumber", operation)
        if number.value > self._active:
            raise self._bad_number(f"{name} is {number}, the set that is growing is {self._active}", operation)
        return number.value

    def _checked_range(self, from_: SequenceNumber, to: SequenceNumber, operation: str) -> tuple[int, int]:
        self._check_open(operation)
        start, end = self._checked("from_", from_, operation), self._checked("to", to, operation)
        if end < start:
            raise self._bad_number(f"[{start}, {end}) is no range", operation)
        return start, end

    def _bad_number(self, message: str, operation: str) -> InvalidInputError:
        hint = "Take numbers from next_sequence_number"
        return InvalidInputError(message, operation=operation, subject=self.operator_id, hint=hint)

    def _closed_error(self, operation: str) -> ClosedError:
        return ClosedError("the writer is closed", operation=operation, subject=self.operator_id)
