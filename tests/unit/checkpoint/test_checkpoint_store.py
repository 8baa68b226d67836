"""Who may decide a checkpoint, which one is the newest, and what the store costs."""

import random

import pytest
from checkpoint_kit import checkpoint, finished_file, full_checkpoint

from stateline.blob import InstrumentedStore, StoreDecorator
from stateline.blob.checksum import crc32c
from stateline.blob.local import LocalStore, LocalStoreSettings
from stateline.blob.memory import MemoryStore
from stateline.checkpoint import CheckpointStore, CheckpointStoreSettings, OutputState
from stateline.checkpoint.layout import FLOOR_BLOCK, floor_name, record_name
from stateline.checkpoint.metadata import Retired, encode_checkpoint, encode_floor, encode_retired
from stateline.checkpoint.slots import Slots
from stateline.environment import SystemIds
from stateline.errors import (
    CorruptDataError,
    DataLossError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedVersionError,
)


@pytest.fixture(params=["memory", "local"])
def blobs(request, tmp_path):
    if request.param == "local":
        return LocalStore(tmp_path / "root", LocalStoreSettings(fsync=False))
    return MemoryStore(SystemIds().new_id())


@pytest.fixture
def store(blobs):
    return CheckpointStore(blobs)


class Failing(StoreDecorator):
    """Fails the named operation, once, before or after its effect."""

    def __init__(self, inner, operation, *, after=False, error=None):
        super().__init__(inner)
        self.operation, self.after = operation, after
        self.error = error or UnavailableError("no answer", operation=operation)

    def _maybe(self, operation, call):
        if operation != self.operation:
            return call()
        self.operation = ""
        if self.after:
            call()
        raise self.error

    def put_if_absent(self, name, data):
        return self._maybe("put_if_absent", lambda: self.inner.put_if_absent(name, data))

    def get(self, name):
        return self._maybe(f"get {name}", lambda: self.inner.get(name))


class Shuffled(StoreDecorator):
    """Lists in a random order, and hides the names that a stale listing would not have yet."""

    def __init__(self, inner, seed, hidden=()):
        super().__init__(inner)
        self.random, self.hidden = random.Random(seed), hidden

    def list(self, prefix):
        found = [info for info in self.inner.list(prefix) if info.name not in self.hidden]
        self.random.shuffle(found)
        return iter(found)


def corrupt(blobs, checkpoint_id):
    data = bytearray(blobs.get(record_name(checkpoint_id)))
    data[100] ^= 1
    blobs.put(record_name(checkpoint_id), bytes(data))


def test_a_missing_root_has_no_checkpoint(store):
    assert store.latest() is None
    assert store.list() == []


def test_what_is_published_is_the_latest_and_is_found_by_id(store, blobs):
    for checkpoint_id in range(3):
        value = checkpoint(checkpoint_id, ("a",))
        assert store.publish(value) == value
    fresh = CheckpointStore(blobs)
    assert fresh.latest() == checkpoint(2, ("a",))
    assert fresh.get(1) == checkpoint(1, ("a",))
    assert [found.checkpoint_id for found in fresh.list()] == [0, 1, 2]


def test_the_first_checkpoint_may_have_any_id(store):
    value = full_checkpoint()
    assert value.checkpoint_id == 7
    store.publish(value)
    assert store.latest() == value


def test_publishing_costs_one_create_and_one_read_and_neither_list_nor_head(blobs):
    counted = InstrumentedStore(blobs)
    store = CheckpointStore(counted)
    reads = []
    counted.get = lambda name: reads.append(name) or InstrumentedStore.get(counted, name)
    for checkpoint_id in (0, 1, FLOOR_BLOCK - 1, FLOOR_BLOCK):
        counted.reset()
        CheckpointStore(counted).publish(checkpoint(checkpoint_id))
        assert counted.calls == {"put_if_absent": 1, "get": 1}
        assert reads.pop() == floor_name(checkpoint_id // FLOOR_BLOCK)
    counted.reset()
    store.publish(checkpoint(FLOOR_BLOCK + 1))
    store.publish(checkpoint(FLOOR_BLOCK + 2))
    assert counted.calls == {"put_if_absent": 2, "get": 2}


def test_publishing_the_same_record_again_succeeds(store, blobs):
    store.publish(checkpoint(0))
    assert store.publish(checkpoint(0)) == checkpoint(0)
    assert CheckpointStore(blobs).publish(checkpoint(0)) == checkpoint(0)


def test_the_second_driver_is_fenced_and_told_by_whom(store, blobs):
    store.publish(checkpoint(0, nonce="first"))
    with pytest.raises(FencedError) as caught:
        CheckpointStore(blobs).publish(checkpoint(0, nonce="second", query_id="other"))
    text = str(caught.value)
    for word in (
        "query query",
        "first",
        "2023-11-14T22:13:20+00:00",
        "query other",
        "second",
        "Stop",
        "chk-0/_metadata",
    ):
        assert word in text
    assert store.get(0).nonce == "first"


def test_a_record_with_our_nonce_is_ours_even_if_its_bytes_differ(store, blobs):
    store.publish(checkpoint(0, ("a",), nonce="mine"))
    assert CheckpointStore(blobs).publish(checkpoint(0, ("b",), nonce="mine")) == checkpoint(0, ("a",), nonce="mine")


def test_a_gap_after_the_newest_checkpoint_is_refused(store):
    store.publish(checkpoint(0))
    with pytest.raises(InvalidInputError, match="the newest checkpoint is 0, so the next one is 1"):
        store.publish(checkpoint(2))
    assert store.latest() == checkpoint(0)


@pytest.mark.parametrize("wrong", [None, True, 1.5, "one"])
def test_what_is_no_number_is_refused_before_anything_is_retired(store, wrong):
    for number in range(3):
        store.publish(checkpoint(number))
    with pytest.raises(InvalidInputError, match="num_retained"):
        store.retain(wrong)
    with pytest.raises(InvalidInputError, match="checkpoint_id"):
        store.get(wrong)
    with pytest.raises(InvalidInputError, match="expected a Checkpoint"):
        store.publish(wrong)
    assert [kept.checkpoint_id for kept in store.list()] == [0, 1, 2]


def test_a_record_that_no_reader_would_take_creates_nothing(store, blobs):
    with pytest.raises(InvalidInputError):
        store.publish(checkpoint(0, ("../../x",)))
    assert list(blobs.list("")) == []


@pytest.mark.parametrize("after", [False, True])
def test_a_lost_answer_is_resolved_by_reading_back(blobs, after):
    unknown = OutcomeUnknownError("no answer", operation="put_if_absent")
    store = CheckpointStore(Failing(blobs, "put_if_absent", after=after, error=unknown))
    if after:
        assert store.publish(checkpoint(0)) == checkpoint(0)
    else:
        with pytest.raises(OutcomeUnknownError):
            store.publish(checkpoint(0))
        assert store.publish(checkpoint(0)) == checkpoint(0)


def test_a_lost_answer_of_the_loser_is_fenced(blobs):
    unknown = OutcomeUnknownError("no answer", operation="put_if_absent")
    CheckpointStore(blobs).publish(checkpoint(0, nonce="winner"))
    with pytest.raises(FencedError, match="winner"):
        CheckpointStore(Failing(blobs, "put_if_absent", error=unknown)).publish(checkpoint(0))


def test_a_plain_error_of_a_foreign_store_is_resolved_by_reading_back(blobs):
    reset = ConnectionResetError("no answer")
    assert CheckpointStore(Failing(blobs, "put_if_absent", after=True, error=reset)).publish(checkpoint(0))
    with pytest.raises(ConnectionResetError):
        CheckpointStore(Failing(blobs, "put_if_absent", error=reset)).publish(checkpoint(1))
    exists = FileExistsError("it is there")
    with pytest.raises(FencedError):
        CheckpointStore(Failing(blobs, "put_if_absent", error=exists)).publish(checkpoint(0, nonce="other"))


@pytest.mark.parametrize("error", [None, ConnectionResetError("no answer")])
@pytest.mark.parametrize("name", [floor_name(0), record_name(0)])
def test_a_check_that_fails_after_the_creation_leaves_the_outcome_unknown(blobs, name, error):
    failing = Failing(blobs, f"get {name}", error=error)
    if name == record_name(0):
        blobs.put(name, encode_checkpoint(checkpoint(0, ("other bytes",))))
    with pytest.raises(OutcomeUnknownError, match="Publish the same checkpoint again"):
        CheckpointStore(failing).publish(checkpoint(0))
    assert CheckpointStore(failing).publish(checkpoint(0)).nonce == "nonce-0"


def test_a_freed_slot_that_is_taken_again_is_fenced_by_the_floor_and_never_read(blobs):
    blobs.put(floor_name(0), encode_floor(0))
    store = CheckpointStore(blobs)
    CheckpointStore(blobs).publish(checkpoint(FLOOR_BLOCK))
    with pytest.raises(FencedError, match="retired long ago"):
        store.publish(checkpoint(3))
    assert store.latest() == checkpoint(FLOOR_BLOCK)
    assert store.list() == [checkpoint(FLOOR_BLOCK)]
    with pytest.raises(NotFoundError, match="checkpoint 3 was retired"):
        store.get(3)
    with pytest.raises(FencedError):
        CheckpointStore(blobs).publish(checkpoint(3))


def test_the_newest_is_found_by_number_and_not_by_list_order(blobs):
    for checkpoint_id in range(12):
        CheckpointStore(blobs).publish(checkpoint(checkpoint_id))
    for seed in range(20):
        store = CheckpointStore(Shuffled(blobs, seed))
        assert store.latest().checkpoint_id == 11
        assert [found.checkpoint_id for found in store.list()] == list(range(12))


@pytest.mark.parametrize("visible", range(5))
def test_a_stale_listing_is_completed_by_exact_name(blobs, visible):
    for checkpoint_id in range(5):
        CheckpointStore(blobs).publish(checkpoint(checkpoint_id))
    hidden = [record_name(checkpoint_id) for checkpoint_id in range(visible, 5)]
    assert CheckpointStore(Shuffled(blobs, 0, hidden)).latest() == checkpoint(4)
    assert CheckpointStore(Shuffled(blobs, 0, hidden)).list() == [checkpoint(number) for number in range(5)]


def test_a_stale_listing_does_not_hide_the_older_checkpoint_that_stands_in(blobs):
    for checkpoint_id in range(4):
        CheckpointStore(blobs).publish(checkpoint(checkpoint_id))
    corrupt(blobs, 3)
    stale = Shuffled(blobs, 0, [record_name(2), record_name(3)])
    assert CheckpointStore(stale, settings=CheckpointStoreSettings(allow_older=True)).latest() == checkpoint(2)


def test_a_stale_listing_that_shows_only_garbage_below_the_floor_is_completed(blobs):
    blobs.put(record_name(3), encode_checkpoint(checkpoint(3)))
    live = 2 * FLOOR_BLOCK
    for checkpoint_id in (live, live + 1):
        CheckpointStore(blobs).publish(checkpoint(checkpoint_id))
    for block in (0, 1):
        blobs.put(floor_name(block), encode_floor(block))
    hidden = [record_name(live), record_name(live + 1)]
    assert CheckpointStore(Shuffled(blobs, 0, hidden)).latest() == checkpoint(live + 1)


def test_names_that_only_look_like_records_are_ignored(store, blobs):
    store.publish(checkpoint(0))
    for name in (
        "chk-07/_metadata",
        "chk-9/_metadata.tmp",
        "chk-9/x",
        "chk--1/_metadata",
        "chk-9x/_metadata",
        "chk-٣/_metadata",
    ):
        blobs.put(name, b"foreign")
    assert store.latest() == checkpoint(0)
    assert store.list() == [checkpoint(0)]


def test_a_corrupt_newest_record_is_an_error_and_never_an_older_one(store, blobs):
    store.publish(checkpoint(0))
    store.publish(checkpoint(1))
    corrupt(blobs, 1)
    for call in (store.latest, store.list, lambda: store.get(1)):
        with pytest.raises(CorruptDataError, match="chk-1/_metadata"):
            call()


def test_an_older_checkpoint_stands_in_only_by_an_explicit_option(store, blobs):
    for checkpoint_id in range(3):
        store.publish(checkpoint(checkpoint_id))
    corrupt(blobs, 1)
    corrupt(blobs, 2)
    lenient = CheckpointStore(blobs, settings=CheckpointStoreSettings.from_options({"allow_older": "true"}))
    assert lenient.latest() == checkpoint(0)
    assert lenient.list() == [checkpoint(0)]
    corrupt(blobs, 0)
    with pytest.raises(CorruptDataError, match="chk-2"):
        lenient.latest()


def test_a_corrupt_record_in_the_middle_stops_the_list_unless_it_may_be_left_out(store, blobs):
    for checkpoint_id in range(4):
        store.publish(checkpoint(checkpoint_id))
    corrupt(blobs, 1)
    assert store.latest() == checkpoint(3)
    with pytest.raises(CorruptDataError, match="chk-1"):
        store.list()
    lenient = CheckpointStore(blobs, settings=CheckpointStoreSettings(allow_older=True))
    assert [found.checkpoint_id for found in lenient.list()] == [0, 2, 3]
    put_record_of_a_newer_version(blobs, 1)
    with pytest.raises(UnsupportedVersionError):
        lenient.list()


def test_a_record_that_is_gone_from_the_middle_does_not_hide_the_older_ones(store, blobs):
    for checkpoint_id in range(5):
        store.publish(checkpoint(checkpoint_id))
    store.retain(4)
    blobs.delete([record_name(0)])
    assert [found.checkpoint_id for found in store.list()] == [1, 2, 3, 4]
    blobs.delete([record_name(3)])
    lenient = CheckpointStore(blobs, settings=CheckpointStoreSettings(allow_older=True))
    for damage in (lambda: None, lambda: corrupt(blobs, 2)):
        damage()
        with pytest.raises(DataLossError, match="chk-3/_metadata"):
            store.list()
    assert [found.checkpoint_id for found in lenient.list()] == [1, 4]


def test_the_slot_of_a_corrupt_record_stays_taken(blobs):
    CheckpointStore(blobs).publish(checkpoint(0))
    corrupt(blobs, 0)
    with pytest.raises(CorruptDataError):
        CheckpointStore(blobs).publish(checkpoint(0, nonce="other"))


def put_record_of_a_newer_version(blobs, checkpoint_id):
    body = encode_checkpoint(checkpoint(checkpoint_id)).replace(b'"version": 1', b'"version": 2')
    body = body[: body.rindex(b',\n  "crc32c"')]
    blobs.put(record_name(checkpoint_id), body + b',\n  "crc32c": "%08x"\n}\n' % crc32c(body))


def test_no_fallback_goes_past_a_newer_version_or_a_retired_checkpoint(blobs):
    lenient = CheckpointStore(blobs, settings=CheckpointStoreSettings(allow_older=True))
    for checkpoint_id in range(4):
        lenient.publish(checkpoint(checkpoint_id))
    put_record_of_a_newer_version(blobs, 2)
    corrupt(blobs, 3)
    with pytest.raises(CorruptDataError, match="chk-3"):
        lenient.latest()
    blobs.put(record_name(2), encode_retired(Retired(checkpoint_id=2)))
    with pytest.raises(CorruptDataError, match="chk-3"):
        lenient.latest()


def test_a_record_of_a_newer_version_is_never_passed_over(store, blobs):
    store.publish(checkpoint(0))
    put_record_of_a_newer_version(blobs, 1)
    for settings in (CheckpointStoreSettings(), CheckpointStoreSettings(allow_older=True)):
        with pytest.raises(UnsupportedVersionError):
            CheckpointStore(blobs, settings=settings).latest()


def test_a_record_under_another_id_is_corrupt(store, blobs):
    store.publish(checkpoint(0))
    blobs.put(record_name(1), blobs.get(record_name(0)))
    with pytest.raises(CorruptDataError, match="that of checkpoint 0"):
        store.latest()


def test_a_live_checkpoint_that_somebody_deleted_is_data_loss_and_not_an_older_one(store, blobs):
    for checkpoint_id in range(3):
        store.publish(checkpoint(checkpoint_id))
    store.retain(1)
    blobs.delete([record_name(2)])
    with pytest.raises(DataLossError, match="no checkpoint 2"):
        store.latest()


def test_a_record_that_is_listed_and_gone_is_data_loss_and_not_an_empty_root(blobs):
    class Ghost(StoreDecorator):
        def list(self, prefix):
            found = list(self.inner.list(prefix))
            blobs.delete([info.name for info in found])
            return iter(found)

    CheckpointStore(blobs).publish(checkpoint(0))
    with pytest.raises(DataLossError, match="no checkpoint 0"):
        CheckpointStore(Ghost(blobs)).latest()


def test_a_closed_block_is_remembered_and_an_open_one_is_asked_again(blobs):
    counted = InstrumentedStore(blobs)
    slots = Slots(counted, allow_older=False)
    assert not slots.is_closed(3)
    blobs.put(floor_name(0), encode_floor(0))
    assert slots.is_closed(3)
    assert slots.is_closed(4)
    assert counted.calls == {"get": 2}


def test_what_was_never_created_is_told_from_what_was_retired(store):
    store.publish(checkpoint(0))
    store.publish(checkpoint(1))
    store.retain(1)
    with pytest.raises(NotFoundError, match=r"checkpoint 0 was retired\. Retain more checkpoints"):
        store.get(0)
    for checkpoint_id in (2, -1):
        with pytest.raises(NotFoundError, match=rf"there is no checkpoint {checkpoint_id}\. `stateline checkpoint ls`"):
            store.get(checkpoint_id)


def test_a_root_is_opened_by_url(tmp_path):
    store = CheckpointStore(f"file://{tmp_path}/root")
    store.publish(checkpoint(0))
    assert CheckpointStore(str(tmp_path / "root")).latest() == checkpoint(0)
    store.close()


def test_options_are_parsed_and_unknown_ones_are_refused():
    assert CheckpointStoreSettings(allow_older="yes").allow_older is True
    with pytest.raises(InvalidInputError, match="true or false"):
        CheckpointStoreSettings(retire_unreadable="maybe")
    with pytest.raises(InvalidInputError, match="allow_older"):
        CheckpointStoreSettings.from_options({"allow_oldest": "true"})


def test_a_checkpoint_is_published_once_it_was_marked_or_if_it_finishes_no_file(store, blobs):
    assert store.is_published(checkpoint(0))
    output = OutputState(operator="flights", url="u", finished=(finished_file("f", ()),))
    with_files = store.publish(checkpoint(0, outputs=(output,)))
    assert not store.is_published(with_files)
    store.mark_published(0)
    store.mark_published(0)
    assert CheckpointStore(blobs).is_published(with_files)
    assert store.list() == [with_files]
