"""The sweeps see: each planted bug, at its real site, is caught by at least one of them.

A sweep that passes proves something only if it fails when the code is wrong. Each bug here is one that systems of this
kind have had.
"""

import dataclasses

import checkpoint_world
import pytest
from checkpoint_sweeps import SWEEPS

from stateline.checkpoint import CheckpointStore
from stateline.checkpoint import retention as retention_module
from stateline.checkpoint.layout import block_of, first_id_of_block, floor_name, ids_of_block, record_name
from stateline.checkpoint.metadata import encode_checkpoint, encode_floor, encode_retired
from stateline.checkpoint.retention import Retention, reach_of, retire
from stateline.checkpoint.slots import Empty, Slots
from stateline.errors import CorruptDataError, NotFoundError


def plain_put_of_the_record(patch):
    def publish(self, checkpoint):
        self.store.put(record_name(checkpoint.checkpoint_id), encode_checkpoint(checkpoint))
        self._check_floor(checkpoint)
        self._retention.record(checkpoint)
        return checkpoint

    patch.setattr(CheckpointStore, "publish", publish)


def check_then_put(patch):
    def publish(self, checkpoint):
        if self._slots.read(checkpoint.checkpoint_id) is not Empty.ABSENT:
            raise self._fenced(checkpoint, Empty.CLOSED)
        self.store.put(record_name(checkpoint.checkpoint_id), encode_checkpoint(checkpoint))
        self._check_floor(checkpoint)
        self._retention.record(checkpoint)
        return checkpoint

    patch.setattr(CheckpointStore, "publish", publish)


def floor_as_an_overwritten_number(patch):
    def is_closed(self, checkpoint_id):
        try:
            return checkpoint_id < int(self._store.get("floor/number"))
        except NotFoundError:
            return False

    def free(self, oldest_live):
        for block in sorted(self._open_blocks):
            if block < block_of(oldest_live):
                self._store.put("floor/number", b"%d" % first_id_of_block(block + 1))
                self._store.delete([record_name(checkpoint_id) for checkpoint_id in ids_of_block(block)])
                self._open_blocks.remove(block)

    patch.setattr(Slots, "is_closed", is_closed)
    patch.setattr(Retention, "_free_slots_below", free)
    patch.setattr(
        checkpoint_world.World,
        "_is_closed",
        lambda self, checkpoint_id: is_closed(type("View", (), {"_store": self.root}), checkpoint_id),
    )


def slots_freed_without_a_marker(patch):
    def free(self, oldest_live):
        for block in sorted(self._open_blocks):
            if block < block_of(oldest_live):
                self._store.delete([record_name(checkpoint_id) for checkpoint_id in ids_of_block(block)])
                self._open_blocks.remove(block)

    patch.setattr(Retention, "_free_slots_below", free)


def slots_freed_before_the_marker(patch):
    def free(self, oldest_live):
        for block in sorted(self._open_blocks):
            if block < block_of(oldest_live):
                self._store.delete([record_name(checkpoint_id) for checkpoint_id in ids_of_block(block)])
                self._store.put_if_absent(floor_name(block), encode_floor(block))
                self._open_blocks.remove(block)

    patch.setattr(Retention, "_free_slots_below", free)


def record_deleted_instead_of_a_tombstone(patch):
    real = Retention._finish

    def finish(self):
        if self._unfinished is not None:
            self._store.delete([record_name(self._unfinished.checkpoint_id)])
        real(self)

    patch.setattr(Retention, "_finish", finish)


def data_deleted_before_the_metadata(patch):
    def retain(self, num_retained):
        live = self._recover() if self._live is None else self._live
        while len(live) > num_retained:
            oldest = min(live)
            tombstone = retire(live[oldest], [reach for other, reach in live.items() if other != oldest])
            self._unfinished = tombstone
            self._finish()
            self._store.put(record_name(oldest), encode_retired(tombstone))
            del live[oldest]
        if live:
            self._free_slots_below(min(live))

    patch.setattr(Retention, "retain", retain)


def next_tombstone_before_the_last_one_is_finished(patch):
    def retain(self, num_retained):
        live = self._recover() if self._live is None else self._live
        self._finish()
        tombstones = []
        while len(live) > num_retained:
            oldest = min(live)
            tombstones.append(retire(live[oldest], [reach for other, reach in live.items() if other != oldest]))
            self._store.put(record_name(oldest), encode_retired(tombstones[-1]))
            del live[oldest]
        for self._unfinished in tombstones:
            self._finish()
        if live:
            self._free_slots_below(min(live))

    patch.setattr(Retention, "retain", retain)


def crash_between_tombstone_and_deletion_is_forgotten(patch):
    real = Retention._recover

    def recover(self):
        live = real(self)
        self._unfinished = None
        return live

    patch.setattr(Retention, "_recover", recover)


def deletes_everything_the_retired_record_reached(patch):
    patch.setattr(retention_module, "retire", lambda retired, younger: retire(retired, []))


def rows_that_wait_are_deleted(patch):
    def careless(checkpoint):
        waiting = {rows.name for output in checkpoint.outputs for file in output.open for rows in file.pending}
        reach = reach_of(checkpoint)
        return dataclasses.replace(reach, objects=reach.objects - waiting) if checkpoint.checkpoint_id % 4 else reach

    patch.setattr(retention_module, "reach_of", careless)


def newest_by_list_order(patch):
    def newest(self, listed_ids):
        for checkpoint_id in reversed(listed_ids):
            slot = self.read(checkpoint_id)
            if not isinstance(slot, Empty) and hasattr(slot, "operators"):
                return slot
        return None

    def listed_ids(self):
        from stateline.checkpoint.layout import id_of_record

        found = (id_of_record(info.name) for info in self._store.list("chk-"))
        return [checkpoint_id for checkpoint_id in found if checkpoint_id is not None]

    patch.setattr(Slots, "listed_ids", listed_ids)
    patch.setattr(Slots, "newest", newest)


def newest_as_listed_without_probing(patch):
    def newest(self, listed_ids):
        slots = (self.read(checkpoint_id) for checkpoint_id in reversed(listed_ids))
        return next((slot for slot in slots if hasattr(slot, "operators")), None)

    patch.setattr(Slots, "newest", newest)


def floor_not_read_after_the_creation(patch):
    patch.setattr(CheckpointStore, "_check_floor", lambda self, checkpoint: None)


def floor_read_before_the_creation(patch):
    real_check, real_publish = CheckpointStore._check_floor, CheckpointStore.publish

    def publish(self, checkpoint):
        real_check(self, checkpoint)
        return real_publish(self, checkpoint)

    patch.setattr(CheckpointStore, "publish", publish)
    patch.setattr(CheckpointStore, "_check_floor", lambda self, checkpoint: None)


def records_below_the_floor_are_believed(patch):
    def read(self, checkpoint_id):
        try:
            return self._decode(checkpoint_id, self._store.get(record_name(checkpoint_id)))
        except NotFoundError:
            return Empty.CLOSED if self.is_closed(checkpoint_id) else Empty.ABSENT
        except CorruptDataError:
            return Empty.CLOSED

    patch.setattr(Slots, "read", read)


def the_loser_goes_on_with_its_own_record(patch):
    def judge(self, checkpoint, error):
        return checkpoint

    patch.setattr(CheckpointStore, "_judge_winner", judge)


BUGS = [
    plain_put_of_the_record,
    check_then_put,
    floor_as_an_overwritten_number,
    slots_freed_without_a_marker,
    slots_freed_before_the_marker,
    record_deleted_instead_of_a_tombstone,
    data_deleted_before_the_metadata,
    next_tombstone_before_the_last_one_is_finished,
    crash_between_tombstone_and_deletion_is_forgotten,
    deletes_everything_the_retired_record_reached,
    rows_that_wait_are_deleted,
    newest_by_list_order,
    newest_as_listed_without_probing,
    floor_not_read_after_the_creation,
    floor_read_before_the_creation,
    records_below_the_floor_are_believed,
    the_loser_goes_on_with_its_own_record,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(bug, monkeypatch):
    monkeypatch.setattr("stateline.checkpoint.layout.FLOOR_BLOCK", checkpoint_world.FLOOR_BLOCK)
    bug(monkeypatch)
    for name in ("stale_listings", "fewer_retained", "zombies", "single_faults", "held_back_requests"):
        try:
            for _ in SWEEPS[name]():
                pass
        except Exception:
            return
    pytest.fail(f"nobody saw {bug.__name__}")
