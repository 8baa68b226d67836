"""The life of a writer's change sets, as a table: which are where, and who still names what. No threads, clock or I/O.

=============  ==========================  ==========================================================================
A set is       until                       and then
=============  ==========================  ==========================================================================
waiting        a scheduler takes it        in flight
in flight      it is durable               uploaded; released, if it was truncated and no snapshot names it
in flight      its upload fails for good   waiting, with its bytes
uploaded       it is truncated             released, when no snapshot names it (any more)
any            it is truncated             forgotten, unless it is in flight or uploaded
=============  ==========================  ==========================================================================

=============  ==========================  ==========================================================================
A snapshot     until                       and then
=============  ==========================  ==========================================================================
waits          all its sets are durable    it is complete
waits          one of its sets fails, or   it is gone, and names nothing
               the writer is closed
names          its checkpoint is           what it names is the checkpoint's own, truncated meanwhile or not
               confirmed
names          its checkpoint is reset,    it names nothing, also if it still waits
               or a later one confirmed
=============  ==========================  ==========================================================================

Rules:
- A set is in one place. It is put into the next one, then taken out of the last; what was put there twice counts once.
- A result is named from the moment a snapshot knows it, not from when the snapshot is complete. So no truncation can
  delete it, not even while the snapshot still waits for other sets.
- What is to be released is forgotten first, and told once. So an interrupt leaves garbage for the sweep, and never
  deletes what is named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from stateline.changelog.api import SnapshotResult, UploadResult
from stateline.changelog.change_set import StateChangeSet
from stateline.changelog.handle import ChangelogHandle, SegmentHandle
from stateline.changelog.mailbox import PersistFuture
from stateline.key_groups import KeyGroupRange

__all__ = ["SetTable", "Snapshot", "WeighedSets"]


class WeighedSets(dict[int, StateChangeSet]):
    """Change sets of one writer by number, and what they weigh together."""

    weight = 0

    def put(self, change_set: StateChangeSet) -> None:
        """Adds a set, in place of one with the same number."""
        number = change_set.sequence_number.value
        self.drop(number)
        self[number] = change_set
        self.weight += change_set.weight

    def drop(self, number: int) -> None:
        """Forgets the set of this number, if it is here."""
        change_set = self.pop(number, None)
        if change_set is not None:  # An interrupt may have left the sum wrong: it is right again when nothing is left.
            self.weight = self.weight - change_set.weight if self else 0

    def groups(self, numbers: Iterable[int], max_weight: int, max_sets: int) -> Iterator[list[StateChangeSet]]:
        """The sets with these numbers, cut in this order, within both bounds; a single set may exceed the first."""
        group: list[StateChangeSet] = []
        weight = 0
        for number in numbers:
            change_set = self[number]
            if group and (weight + change_set.weight > max_weight or len(group) == max_sets):
                yield group
                group, weight = [], 0
            group.append(change_set)
            weight += change_set.weight
        if group:
            yield group


class Snapshot:
    """A persist of the sets ``[start, end)`` for one checkpoint."""

    __slots__ = ("checkpoint_id", "end", "future", "ready_bytes", "results", "start")

    def __init__(self, start: int, end: int, checkpoint_id: int, future: PersistFuture) -> None:
        self.start = start
        self.end = end
        self.checkpoint_id = checkpoint_id
        self.future = future
        self.results: dict[int, UploadResult] = {}
        self.ready_bytes = 0

    def __contains__(self, number: int) -> bool:
        return self.start <= number < self.end

    def take(self, results: Iterable[UploadResult]) -> None:
        """Notes what is part of it."""
        for result in results:
            if result.sequence_number.value in self:
                self.results.setdefault(result.sequence_number.value, result)

    @property
    def is_complete(self) -> bool:
        """Whether every set of the range is durable."""
        return len(self.results) == self.end - self.start

    def outcome(self, key_groups: KeyGroupRange) -> SnapshotResult:
        """What the persist gives, once it is complete."""
        results = [self.results[number] for number in sorted(self.results)]
        size = sum(result.size for result in results)

        def handle(segments: Iterable[SegmentHandle]) -> ChangelogHandle:
            return ChangelogHandle(
                key_group_range=key_groups,
                segments=tuple(segments),
                state_size=size,
                checkpointed_size=size - self.ready_bytes,
            )

        copies = [result.local_handle for result in results if result.local_handle is not None]
        local = handle(copies) if copies and len(copies) == len(results) else None
        return SnapshotResult(handle(result.handle for result in results), local)


class SetTable:
    """See the module docstring.

    Attributes:
        waiting: Not sent, or failed for good.
        failed: Those of the waiting ones that were sent before.
        in_flight: A scheduler has them.
        uploaded: Durable, and not truncated.
        wait: Snapshots that are not complete.
        name: Snapshots that are undecided, and so keep what they know.
        lowest: What is below it was truncated. Only grows.
    """

    def __init__(self) -> None:
        self.waiting = WeighedSets()
        self.failed = WeighedSets()
        self.in_flight: dict[int, StateChangeSet] = {}
        self.uploaded: dict[int, UploadResult] = {}
        self.wait: dict[Snapshot, None] = {}
        self.name: dict[Snapshot, None] = {}
        self.lowest = self._swept = 0

    # -- sets -----------------------------------------------------------------------------------------------------

    def sent(self, change_sets: Iterable[StateChangeSet]) -> None:
        """A scheduler has taken these."""
        for change_set in change_sets:
            number = change_set.sequence_number.value
            if number in self.waiting:
                self.in_flight[number] = change_set
                self.waiting.drop(number)
                self.failed.drop(number)

    def arrived(self, results: Iterable[UploadResult]) -> list[Snapshot]:
        """These are durable: the snapshots that are complete with them."""
        for snapshot in self.wait:
            snapshot.take(results)
        return [snapshot for snapshot in self.wait if snapshot.is_complete]

    def keeps(self, result: UploadResult) -> bool:
        """Gives a durable set its place; ``False``: nobody needs this result. The first one of a set counts."""
        number = result.sequence_number.value
        kept = self.lowest <= number and self.uploaded.setdefault(number, result) is result
        self.in_flight.pop(number, None)
        self.waiting.drop(number)
        self.failed.drop(number)
        return kept or self._is_named(result)

    def broken(self, numbers: Collection[int]) -> list[Snapshot]:
        """The snapshots that wait for one of these."""
        return [snapshot for snapshot in self.wait if any(number in snapshot for number in numbers)]

    def failed_for_good(self, numbers: Iterable[int]) -> None:
        """These wait again, with their bytes."""
        for number in numbers:
            if self.lowest <= number:
                self.waiting.put(self.in_flight[number])
                self.failed.put(self.in_flight[number])
            del self.in_flight[number]

    def truncate(self, to: int) -> Iterator[UploadResult]:
        """Nothing below ``to`` will be asked for again: what is to be released."""
        self.lowest = max(self.lowest, to)
        while self._swept < self.lowest:
            self.waiting.drop(self._swept)
            self.failed.drop(self._swept)
            yield from self.forget_uploaded([self._swept])
            self._swept += 1

    def forget_uploaded(self, numbers: Iterable[int]) -> Iterator[UploadResult]:
        """The writer does not need these any more: what is to be released."""
        for number in numbers:
            result = self.uploaded.pop(number, None)
            if result is not None and not self._is_named(result):
                yield result

    def clear(self) -> None:
        """The writer has ended: nothing waits. What is durable stays, and so does what is named."""
        for sets in (self.waiting, self.failed, self.in_flight, self.uploaded):
            sets.clear()

    # -- snapshots ------------------------------------------------------------------------------------------------

    def begin(self, snapshot: Snapshot) -> None:
        """A persist has begun, with what is uploaded already."""
        self.wait[snapshot] = self.name[snapshot] = None
        snapshot.take(
            self.uploaded[number] for number in range(snapshot.start, snapshot.end) if number in self.uploaded
        )
        snapshot.ready_bytes = sum(result.size for result in snapshot.results.values())

    def confirmed(self, start: int, end: int, checkpoint_id: int) -> list[UploadResult]:
        """What of ``[start, end)`` belongs to this checkpoint from now on, truncated meanwhile or not."""
        given = [result for number, result in self.uploaded.items() if start <= number < end]
        for snapshot in self.complete_up_to(checkpoint_id):
            if snapshot.checkpoint_id == checkpoint_id:
                given += [result for number, result in snapshot.results.items() if start <= number < end]
        return given

    def complete_up_to(self, checkpoint_id: int) -> list[Snapshot]:
        """Complete snapshots of this checkpoint and those before it that are undecided."""
        return [one for one in self.name if one not in self.wait and one.checkpoint_id <= checkpoint_id]

    def let_go(self, snapshots: Iterable[Snapshot]) -> Iterator[UploadResult]:
        """These name nothing any more: what is to be released."""
        for snapshot in list(snapshots):
            if snapshot in self.name:
                del self.name[snapshot]
                for number, result in snapshot.results.items():
                    if self.uploaded.get(number) is not result and not self._is_named(result):
                        yield result

    def _is_named(self, result: UploadResult) -> bool:
        number = result.sequence_number.value
        return any(snapshot.results.get(number) is result for snapshot in self.name)
