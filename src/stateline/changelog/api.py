"""What a state changelog is: values, and the protocols between its parts. No I/O, no threads.

The life of a change::

    writer.append(5, b"...")                  # active: part of no change set yet
    a = writer.next_sequence_number()         # the active changes become change set a - 1; a is the next one
    future = writer.persist(first, 17)        # every set from `first` on is uploaded, or already was
    handle = future.result().remote           # durable; goes into the record of checkpoint 17
    writer.confirm(first, a, 17)              # the record exists: whoever keeps records owns the objects now
    writer.reset(first, a, 17)                # or: it was aborted; the next checkpoint reuses the same uploads
    writer.truncate(a)                        # nothing before `a` will be asked for again

Bounds: ``from_`` is inclusive, ``to`` is exclusive, a key-group range is inclusive at both ends.

Threads: a writer belongs to one thread, its owner. Schedulers, uploaders, registries, stores and readers may be used
from any thread. Callbacks of an upload are run by the owner of the writer, never under a lock.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import ClassVar, Final, Protocol, Self

import msgspec

from stateline.changelog.handle import ChangelogHandle, SegmentHandle
from stateline.errors import InvalidInputError

__all__ = [
    "AvailabilityProvider",
    "RetriableAction",
    "SequenceNumber",
    "SnapshotResult",
    "StateChange",
    "UploadResult",
]

_MAX_SEQUENCE_NUMBER: Final = 2**63 - 1


class SequenceNumber(msgspec.Struct, frozen=True, order=True):
    """The number of one change set of one writer; 0 is the first. Totally ordered.

    Raises:
        InvalidInputError: Not an integer, negative, or above 2**63 - 1.
    """

    value: int

    def __post_init__(self) -> None:
        if (
            not isinstance(self.value, int)
            or isinstance(self.value, bool)
            or not 0 <= self.value <= _MAX_SEQUENCE_NUMBER
        ):
            raise InvalidInputError(
                f"must be an integer from 0 to 2**63 - 1, got {self.value!r}",
                subject="SequenceNumber",
                hint="Take numbers from next_sequence_number",
            )

    @classmethod
    def of(cls, value: int) -> Self:
        """The sequence number ``value``."""
        return cls(value)

    def next(self) -> SequenceNumber:
        """The one that follows.

        Raises:
            InvalidInputError: There is none above 2**63 - 1.
        """
        return SequenceNumber(self.value + 1)

    def __str__(self) -> str:
        return str(self.value)


class StateChange(msgspec.Struct, frozen=True, gc=False):
    """One logged change of keyed state, or metadata.

    Attributes:
        key_group: The key group, or :attr:`META` for metadata, which every reader gets whatever key groups it asks for.
        value: The bytes as they were appended.
    """

    key_group: int
    value: bytes

    META: ClassVar[int] = -1


class UploadResult(msgspec.Struct, frozen=True):
    """Where one change set is, after its upload.

    Attributes:
        sequence_number: The change set.
        handle: Where it is in the store.
        local_handle: The same bytes on this host's disk, if there is a copy.
        offset: First byte of the set in its object.
        size: Bytes of the changes, without any framing.
    """

    sequence_number: SequenceNumber
    handle: SegmentHandle
    local_handle: SegmentHandle | None = None
    offset: int = 0
    size: int = 0


class SnapshotResult(msgspec.Struct, frozen=True):
    """What :meth:`ChangelogWriter.persist` gives.

    Attributes:
        remote: Durable; belongs into the checkpoint's record.
        local: The same change sets on this host's disk, only if every one of them has a copy there. A reader of
            ``remote`` on this host finds these copies by itself.
    """

    remote: ChangelogHandle
    local: ChangelogHandle | None = None


class AvailabilityProvider(Protocol):
    """Tells a producer when to pause, so that it need not block inside a call."""

    @property
    def available(self) -> bool:
        """Whether there is room for another upload right now."""

    def availability_future(self) -> Future[None]:
        """Done when there is room: at once, or as soon as an upload ends or the scheduler is closed."""


class RetriableAction(Protocol):
    """One piece of work that may be attempted several times, also at the same time."""

    def try_execute(self) -> object:
        """One attempt. Attempts share nothing, so that a slow one can be raced by another."""

    def discard(self, result: object) -> None:
        """Takes back what a late attempt made. Called once per superfluous success."""

    def complete(self, result: object) -> None:
        """The first success. Called at most once, and never after :meth:`fail`."""

    def fail(self, error: BaseException) -> None:
        """No attempt is left. Called at most once, and never after :meth:`complete`."""
