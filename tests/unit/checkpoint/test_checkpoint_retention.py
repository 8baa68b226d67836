"""What retention deletes, in which order, and at what cost."""

import pytest
from checkpoint_kit import checkpoint, open_file

from stateline.blob import InstrumentedStore, StoreDecorator
from stateline.blob.local import LocalStore, LocalStoreSettings
from stateline.blob.memory import MemoryStore
from stateline.checkpoint import CheckpointStore, CheckpointStoreSettings, OutputState
from stateline.checkpoint.layout import FLOOR_BLOCK, floor_name, published_name, record_name
from stateline.checkpoint.metadata import Retired, decode_record, encode_checkpoint, encode_floor, encode_retired
from stateline.environment import SystemIds
from stateline.errors import CorruptDataError, InvalidInputError, UnavailableError
from stateline.handles import RowsHandle

SLOT_NAMES = (published_name, record_name)
"""In the order in which they go: a process that dies half-way must not leave a mark that no record points to."""


@pytest.fixture(params=["memory", "local"])
def blobs(request, tmp_path):
    if request.param == "local":
        return LocalStore(tmp_path / "root", LocalStoreSettings(fsync=False))
    return MemoryStore(SystemIds().new_id())


class Journal(StoreDecorator):
    """Writes down every change, and fails when it is told to."""

    def __init__(self, inner):
        super().__init__(inner)
        self.log, self.fail = [], set()

    def _do(self, operation, names):
        if operation in self.fail:
            raise UnavailableError("no", operation=operation)
        self.log.extend((operation, name) for name in names)

    def put(self, name, data):
        self._do("put", [name])
        return self.inner.put(name, data)

    def put_if_absent(self, name, data):
        self._do("put_if_absent", [name])
        return self.inner.put_if_absent(name, data)

    def delete(self, names):
        names = list(names)
        self._do("delete", names)
        self.inner.delete(names)


def publish(store, checkpoint_id, *runs):
    for name in runs:
        store.store.put_if_absent(f"shared/{name}", b"run")
    return store.publish(checkpoint(checkpoint_id, runs))


def names(blobs):
    return {info.name for info in blobs.list("")}


def test_the_newest_are_kept_and_what_only_the_others_reach_is_deleted(blobs):
    store = CheckpointStore(blobs)
    publish(store, 0, "a", "b")
    publish(store, 1, "b", "c")
    publish(store, 2, "c", "d")
    store.retain(2)
    assert names(blobs) == {f"chk-{i}/_metadata" for i in range(3)} | {"shared/b", "shared/c", "shared/d"}
    assert [found.checkpoint_id for found in store.list()] == [1, 2]
    store.retain(1)
    assert names(blobs) == {f"chk-{i}/_metadata" for i in range(3)} | {"shared/c", "shared/d"}


def test_a_record_becomes_a_tombstone_before_anything_it_reached_is_deleted(blobs):
    journal = Journal(blobs)
    store = CheckpointStore(journal)
    publish(store, 0, "a")
    publish(store, 1, "b")
    journal.log.clear()
    store.retain(1)
    assert journal.log == [("put", "chk-0/_metadata"), ("delete", "shared/a")]
    assert decode_record(blobs.get("chk-0/_metadata"), "x") == Retired(
        checkpoint_id=0, query_id="query", nonce="nonce-0", created_at=1_700_000_000.5, delete=("shared/a",)
    )


def test_a_retired_slot_stays_taken(blobs):
    store = CheckpointStore(blobs)
    publish(store, 0)
    publish(store, 1)
    store.retain(1)
    with pytest.raises(Exception, match="retired it since"):
        CheckpointStore(blobs).publish(checkpoint(0, nonce="stale"))


def test_slots_are_freed_by_block_after_a_marker(blobs, monkeypatch):
    monkeypatch.setattr("stateline.checkpoint.layout.FLOOR_BLOCK", 4)
    journal = Journal(blobs)
    store = CheckpointStore(journal)
    for checkpoint_id in range(12):
        publish(store, checkpoint_id)
        store.mark_published(checkpoint_id)
        journal.log.clear()
        store.retain(2)
        tombstone = [("put", record_name(checkpoint_id - 2))] if checkpoint_id >= 2 else []
        freed = []
        if checkpoint_id in (5, 9):
            block = checkpoint_id // 4 - 1
            ids = range(4 * block, 4 * block + 4)
            freed = [("put_if_absent", floor_name(block)), *(("delete", name(i)) for i in ids for name in SLOT_NAMES)]
        assert journal.log == tombstone + freed
    assert names(blobs) == {"floor/0", "floor/1", *(name(i) for name in SLOT_NAMES for i in range(8, 12))}


def test_the_steady_state_costs_one_put_and_one_delete(blobs):
    counted = InstrumentedStore(blobs)
    store = CheckpointStore(counted)
    publish(store, 0, "run-0")
    store.retain(2)
    for checkpoint_id in range(1, FLOOR_BLOCK + 10):
        publish(store, checkpoint_id, f"run-{checkpoint_id}")
        counted.reset()
        store.retain(2)
        if checkpoint_id == FLOOR_BLOCK + 1:
            assert counted.calls == {"put": 1, "delete": 2, "put_if_absent": 1}
        elif checkpoint_id >= 2:
            assert counted.calls == {"put": 1, "delete": 1}
    kept = range(FLOOR_BLOCK, FLOOR_BLOCK + 10)
    assert names(blobs) == {floor_name(0), *map(record_name, kept)} | {f"shared/run-{i}" for i in kept[-2:]}


def test_retaining_all_reads_once_and_then_costs_nothing(blobs):
    counted = InstrumentedStore(blobs)
    store = CheckpointStore(counted)
    publish(store, 0)
    store.retain(5)
    counted.reset()
    for checkpoint_id in range(1, 5):
        publish(store, checkpoint_id)
        store.retain(5)
    assert counted.calls == {"put_if_absent": 4, "get": 4}


def test_a_successor_finishes_what_its_predecessor_began(blobs):
    journal = Journal(blobs)
    first = CheckpointStore(journal)
    publish(first, 0, "a")
    publish(first, 1, "b")
    publish(first, 2, "c")
    journal.fail = {"delete"}
    with pytest.raises(UnavailableError):
        first.retain(1)
    assert names(blobs) >= {"shared/a", "shared/b", "shared/c"}
    second = CheckpointStore(blobs)
    assert [found.checkpoint_id for found in second.list()] == [1, 2]
    second.retain(1)
    assert {name for name in names(blobs) if name.startswith("shared/")} == {"shared/c"}


def test_a_failure_is_typed_harmless_and_made_up_for_by_the_next_call(blobs):
    journal = Journal(blobs)
    store = CheckpointStore(journal)
    for checkpoint_id in range(3):
        publish(store, checkpoint_id, f"run-{checkpoint_id}")
    for operation in ("put", "delete"):
        journal.fail = {operation}
        with pytest.raises(UnavailableError):
            store.retain(1)
        assert store.latest().checkpoint_id == 2
    journal.fail = set()
    store.retain(1)
    assert {name for name in names(blobs) if name.startswith("shared/")} == {"shared/run-2"}


def test_a_driver_that_missed_a_checkpoint_reads_again_before_it_retires(blobs):
    store = CheckpointStore(blobs)
    publish(store, 0, "a")
    store.retain(1)
    publish(CheckpointStore(blobs), 1, "a", "b")
    store.latest()
    publish(store, 2, "b")
    store.retain(1)
    assert names(blobs) == {f"chk-{i}/_metadata" for i in range(3)} | {"shared/b"}
    with pytest.raises(Exception, match="checkpoint 1 was retired"):
        store.get(1)


def test_garbage_in_closed_blocks_is_freed_at_start(blobs, monkeypatch):
    monkeypatch.setattr("stateline.checkpoint.layout.FLOOR_BLOCK", 4)
    blobs.put(floor_name(0), encode_floor(0))
    publish(CheckpointStore(blobs), 8, "live")
    blobs.put(record_name(2), encode_checkpoint(checkpoint(2, ("live",))))
    blobs.put(record_name(3), encode_retired(Retired(checkpoint_id=3, delete=("shared/live",))))
    store = CheckpointStore(blobs)
    store.retain(1)
    assert names(blobs) == {floor_name(0), record_name(8), "shared/live"}


def test_a_tombstone_in_a_closed_block_is_not_obeyed(blobs, monkeypatch):
    monkeypatch.setattr("stateline.checkpoint.layout.FLOOR_BLOCK", 1)
    blobs.put("shared/live", b"run")
    publish(CheckpointStore(blobs), 8, "live")
    blobs.put(floor_name(7), encode_floor(7))
    blobs.put(record_name(7), encode_retired(Retired(checkpoint_id=7, delete=("shared/old",))))
    CheckpointStore(blobs).retain(1)
    assert names(blobs) == {floor_name(7), record_name(8), "shared/live"}


def test_a_tombstone_deletes_nothing_that_a_live_checkpoint_needs(blobs):
    for word in ("kept", "lost"):
        blobs.put(f"shared/{word}", b"run")
    store = CheckpointStore(blobs)
    store.publish(checkpoint(1, ("kept",)))
    wrong = Retired(checkpoint_id=0, delete=("shared/kept", "shared/lost"))
    blobs.put(record_name(0), encode_retired(wrong))
    store.retain(1)
    assert names(blobs) == {record_name(0), record_name(1), "shared/kept"}


def test_a_corrupt_record_stops_retention_until_it_is_allowed_to_go(blobs):
    store = CheckpointStore(blobs)
    for checkpoint_id in range(4):
        publish(store, checkpoint_id, f"run-{checkpoint_id}")
    blobs.put(record_name(1), b"damaged")
    before = names(blobs)
    with pytest.raises(CorruptDataError, match="chk-1"):
        store.retain(1)
    assert names(blobs) == before
    CheckpointStore(blobs, settings=CheckpointStoreSettings(retire_unreadable=True)).retain(1)
    assert {name for name in names(blobs) if name.startswith("shared/")} == {"shared/run-1", "shared/run-3"}
    assert isinstance(decode_record(blobs.get(record_name(1)), "x"), Retired)


def test_retention_never_falls_back_to_an_older_checkpoint(blobs):
    store = CheckpointStore(blobs, settings=CheckpointStoreSettings(allow_older=True))
    for checkpoint_id in range(3):
        publish(store, checkpoint_id, f"run-{checkpoint_id}")
    blobs.put(record_name(2), b"damaged")
    before = names(blobs)
    with pytest.raises(CorruptDataError, match="chk-2"):
        store.retain(1)
    assert names(blobs) == before


@pytest.mark.parametrize("number", [0, -1, True, "two", None, 1.5])
def test_the_newest_is_always_kept(blobs, number):
    with pytest.raises(InvalidInputError, match="num_retained"):
        CheckpointStore(blobs).retain(number)


def test_retaining_in_an_empty_root_does_nothing(blobs):
    store = CheckpointStore(blobs)
    store.retain(1)
    publish(store, 0)
    store.retain(1)
    assert names(blobs) == {record_name(0)}


def test_rows_that_only_retired_checkpoints_need_go_with_them(blobs):
    store = CheckpointStore(blobs)
    history = [("one",), ("one", "two"), (), ("next",)]  # The third one has finished the file.
    left = []
    for checkpoint_id, words in enumerate(history):
        rows = [RowsHandle(name=f"shared/{word}", offset=0, length=4, crc32c=1, rows=1) for word in words]
        for handle in rows:
            blobs.put(handle.name, b"rows")
        output = OutputState(operator="flights", url="memory://out", open=(open_file("f", *rows),))
        store.publish(checkpoint(checkpoint_id, outputs=(output,)))
        store.retain(1)
        left.append({name for name in names(blobs) if name.startswith("shared/")})
    assert left == [{"shared/one"}, {"shared/one", "shared/two"}, set(), {"shared/next"}]
