"""The end of a checkpoint: what goes when it is no longer retained, and in which order.

Order for each retired checkpoint, oldest first:

1. **Tombstone**: its record is overwritten, atomically, by a tombstone that lists what is to be deleted. From here on
   nobody can restore it, and its slot stays taken. This is the one overwrite in the house;
   ``docs/decisions/0026-checkpoint-floor.md`` says why it is safe.
2. **Delete**, by exact name, what the tombstone lists: what the checkpoint reached and no younger one does.
3. When every id of a block of slots is retired: the **floor marker** is created, and only then are the tombstones of
   the block deleted.

Invariants:
- What a live checkpoint reaches is never deleted. An object leaves for ever: each checkpoint is built from its
  predecessor and adds only fresh names, so what a checkpoint reaches and its successor does not, none after it does.
- The tombstone of ``id + 1`` exists only after everything that the tombstone of ``id`` lists was deleted. So after a
  crash only the newest tombstone can be unfinished, and one read finds it.
- A slot is freed only after a durable marker covers it.
- Each step may be repeated, by any driver, at any time, also by one that has long been succeeded: it retires only ids
  that its successor retires too, and deletes only names that are never used again.

- The live checkpoints are always the newest ones, without gaps: a rule chooses how many. Clocks have no part in that
  beyond the times in the records, and a wrong time only keeps more or fewer of them.

Cost in the steady state, per checkpoint: one PUT, one DELETE; no LIST, no GET.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from stateline.blob.api import BlobStore
from stateline.checkpoint.api import Checkpoint
from stateline.checkpoint.layout import (
    block_of,
    first_id_of_block,
    floor_name,
    ids_of_block,
    published_name,
    record_name,
)
from stateline.checkpoint.metadata import Retired, encode_floor, encode_retired
from stateline.checkpoint.slots import Empty, Slots
from stateline.errors import CorruptDataError, UnsupportedVersionError

__all__ = ["Reach", "Retention", "RetentionRule", "reach_of", "retire"]

_RECORDS_PER_STATE: Final = 10
"""A rule keeps at most this many records for each state that it must keep: some records change no state."""
_MOST_PER_CALL: Final = 8
"""A batch waits for the retention of the batch before, so one call under a rule retires few checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRule:
    """How many of the newest checkpoints are kept.

    A state is what one or more checkpoints in a row hold: a record that only finishes files, or closes no window,
    repeats the state of the record before.

    Attributes:
        states: States that are kept at least, the newest included.
        seconds: States that are at most this much older than the newest one are kept, too.
        most: Records that are kept at most, whatever they hold.
    """

    states: int
    seconds: float
    most: int

    @classmethod
    def of_states(cls, states: int, *, seconds: float = 0.0) -> RetentionRule:
        """The newest states, in at most ten times as many records."""
        return cls(states=states, seconds=seconds, most=_RECORDS_PER_STATE * states)

    def kept(self, newest_first: Sequence[Reach]) -> int:
        """How many of the live checkpoints are kept; at least one."""
        states = 0
        previous: Reach | None = None
        for number, reach in enumerate(newest_first):
            if previous is None or reach.state != previous.state:
                states += 1
            is_young = reach.created_at >= newest_first[0].created_at - self.seconds
            repeats = previous is not None and reach.state == previous.state
            if number and (number >= self.most or (states > self.states - repeats and not (self.seconds and is_young))):
                return number
            previous = reach
        return len(newest_first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What retention remembers of a live checkpoint: its identity, and the objects in the root that it reaches.

    ``state`` is equal for checkpoints with the same runs, within one process.
    """

    checkpoint_id: int
    query_id: str = ""
    nonce: str = ""
    created_at: float = 0.0
    objects: frozenset[str] = frozenset()
    state: int = 0


def reach_of(checkpoint: Checkpoint) -> Reach:
    """What a checkpoint reaches."""
    return Reach(
        checkpoint_id=checkpoint.checkpoint_id,
        query_id=checkpoint.query_id,
        nonce=checkpoint.nonce,
        created_at=checkpoint.created_at,
        objects=frozenset(checkpoint.object_names()),
        state=hash(checkpoint.operators),
    )


def retire(retired: Reach, younger: Sequence[Reach]) -> Retired:
    """The tombstone of a checkpoint, given all younger live ones, in any order."""
    # Nearly every object that stays is reached by the next checkpoint: looking there first finds it at once.
    nearest_first = [reach.objects for reach in sorted(younger, key=lambda reach: reach.checkpoint_id)]
    objects = [name for name in retired.objects if not any(name in kept for kept in nearest_first)]
    return Retired(
        checkpoint_id=retired.checkpoint_id,
        query_id=retired.query_id,
        nonce=retired.nonce,
        created_at=retired.created_at,
        delete=tuple(sorted(objects)),
    )


def _harmless(tombstone: Retired, live: Collection[Reach]) -> Retired:
    """What a tombstone that was read back may delete: whoever wrote it, nothing that a live checkpoint needs."""
    objects = frozenset[str]().union(*(reach.objects for reach in live))
    return replace(tombstone, delete=tuple(name for name in tombstone.delete if name not in objects))


class Retention:
    """Retires the checkpoints of one root. Not thread-safe.

    Args:
        store: The root.
        slots: Reads it; must not let an older checkpoint stand in for a corrupt newest one.
        retire_unreadable: Whether a record that is corrupt or gone may be retired; what only it reached stays, as
            garbage.
    """

    def __init__(self, store: BlobStore, slots: Slots, *, retire_unreadable: bool) -> None:
        self._store = store
        self._slots = slots
        self._retire_unreadable = retire_unreadable
        self._live: dict[int, Reach] | None = None
        self._unfinished: Retired | None = None
        self._open_blocks: set[int] = set()

    def record(self, checkpoint: Checkpoint) -> None:
        """Remembers a checkpoint that was just created. Without effect before the first :meth:`retain`, which reads."""
        if self._live is None or checkpoint.checkpoint_id in self._live:
            return
        if self._live and checkpoint.checkpoint_id != max(self._live) + 1:
            self._live = None  # Somebody else created what lies between: read everything again.
            return
        self._live[checkpoint.checkpoint_id] = reach_of(checkpoint)
        self._open_blocks.add(block_of(checkpoint.checkpoint_id))

    def retain(self, retained: int | RetentionRule) -> None:
        """As :meth:`stateline.checkpoint.store.CheckpointStore.retain`."""
        live = self._recover() if self._live is None else self._live
        self._finish()
        retirable = _retirable(live, retained)
        for oldest in retirable if isinstance(retained, int) else retirable[:_MOST_PER_CALL]:
            younger = [reach for checkpoint_id, reach in live.items() if checkpoint_id != oldest]
            tombstone = retire(live[oldest], younger)
            self._store.put(record_name(oldest), encode_retired(tombstone))
            del live[oldest]
            self._unfinished = tombstone
            self._finish()
        if live:
            self._free_slots_below(min(live))

    def retirable(self, retained: int | RetentionRule) -> list[int]:
        """The ids that :meth:`retain` would retire, ascending."""
        return _retirable(self._recover() if self._live is None else self._live, retained)

    def _finish(self) -> None:
        """Deletes what the newest tombstone lists."""
        if self._unfinished is not None and self._unfinished.delete:
            self._store.delete(self._unfinished.delete)
        self._unfinished = None

    def _free_slots_below(self, oldest_live: int) -> None:
        """Closes every block that lies wholly below an id, then deletes all its slots and the marks beside them.

        Each mark before its record: a successor finds what is left of a block by its records.
        """
        for block in sorted(self._open_blocks):
            if block < block_of(oldest_live):
                self._store.put_if_absent(floor_name(block), encode_floor(block))
                ids = ids_of_block(block)
                self._store.delete([name for slot in ids for name in (published_name(slot), record_name(slot))])
                self._open_blocks.remove(block)

    def _recover(self) -> dict[int, Reach]:
        """Reads back what a predecessor left: once per process, the only LIST and the only GETs of retention.

        The live checkpoints are found by walking down from the newest by exact name; the first tombstone on the way is
        the newest one. The listing only tells in which blocks there is anything left to free. Where what is gone may be
        retired, the walk goes on to the first slot: each one below the newest was taken, so one that is absent and not
        closed has lost its record, its tombstone or its marker.
        """
        listed_ids = self._slots.listed_ids()
        newest = self._slots.newest(listed_ids)
        live: dict[int, Reach] = {}
        self._unfinished = None
        if newest is not None:
            live[newest.checkpoint_id] = reach_of(newest)
            checkpoint_id = newest.checkpoint_id - 1
            while checkpoint_id >= 0:
                slot = self._read(checkpoint_id)
                if isinstance(slot, Reach):
                    live[checkpoint_id] = slot
                elif isinstance(slot, Retired) and self._unfinished is None:
                    self._unfinished = _harmless(slot, live.values())
                if not isinstance(slot, Reach) and not self._retire_unreadable:
                    break
                closed = slot is Empty.CLOSED
                checkpoint_id = (first_id_of_block(block_of(checkpoint_id)) if closed else checkpoint_id) - 1
        self._open_blocks = {block_of(checkpoint_id) for checkpoint_id in (*listed_ids, *live)}
        self._live = live
        return live

    def _read(self, checkpoint_id: int) -> Reach | Retired | Empty:
        try:
            slot = self._slots.read(checkpoint_id)
        except UnsupportedVersionError:
            raise
        except CorruptDataError:
            if not self._retire_unreadable:
                raise
            return Reach(checkpoint_id=checkpoint_id)
        if slot is Empty.ABSENT and self._retire_unreadable:
            return Reach(checkpoint_id=checkpoint_id)
        return reach_of(slot) if isinstance(slot, Checkpoint) else slot


def _retirable(live: Mapping[int, Reach], retained: int | RetentionRule) -> list[int]:
    """The ids of the live checkpoints that are not kept, ascending."""
    ids = sorted(live)
    kept = retained if isinstance(retained, int) else retained.kept([live[each] for each in reversed(ids)])
    return ids[:-kept]
