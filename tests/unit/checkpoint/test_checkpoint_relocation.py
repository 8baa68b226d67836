"""Outputs that lie elsewhere now: what is looked for in the new place, and who may decide that they do."""

import pytest
from checkpoint_kit import checkpoint, finished_file
from msgspec.structs import replace

from stateline.blob import StoreDecorator
from stateline.blob.memory import MemoryStore
from stateline.checkpoint import (
    CheckpointStore,
    FileState,
    OutputState,
    relocate_outputs,
)
from stateline.environment import Environment, SystemIds
from stateline.errors import (
    CorruptDataError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
)
from stateline.testing import ManualClock

OLD = "memory://old"


class Blind(StoreDecorator):
    """As Azure: what is staged cannot be read before it is published."""

    def read_staged(self, part):
        return None


class Meanwhile(StoreDecorator):
    """Does something just before a record is created."""

    def __init__(self, inner, act):
        super().__init__(inner)
        self.act = act

    def put_if_absent(self, name, data):
        if self.act is not None and name.endswith("_metadata"):
            act, self.act = self.act, None
            act(name, data)
        return self.inner.put_if_absent(name, data)


@pytest.fixture
def moved():
    """The new place of an output with a file that is decided and not visible yet."""
    return MemoryStore(SystemIds().new_id())


@pytest.fixture
def newest(moved):
    pieces = (moved.stage("a.csv", b"one"), moved.stage("a.csv", b"two"))
    files = OutputState(operator="flights", url=OLD, finished=(finished_file("a.csv", pieces),))
    other = OutputState(operator="other", url="memory://other")
    properties = {f"columns of csv {OLD}": "c", "columns of csv memory://other": "o", "program": OLD}
    states = {"model": FileState(name="model", relative=True, size=5, crc32c=1)}
    return replace(checkpoint(0, outputs=(files, other)), properties=properties, states=states)


@pytest.fixture
def root(newest):
    store = CheckpointStore(MemoryStore(SystemIds().new_id()))
    store.publish(newest)
    return store


def test_one_more_checkpoint_has_the_same_state_and_files_below_another_url(root, newest, moved):
    looked = relocate_outputs(root, {"flights": moved}, dry_run=True)
    assert root.latest() == looked.before == newest
    clock = ManualClock(newest.created_at - 100)
    record = relocate_outputs(root, {"flights": moved}, environment=Environment(clock=clock)).record
    assert root.latest() == record
    assert record.operators == newest.operators
    assert [(output.operator, output.url) for output in record.outputs] == [
        ("flights", moved.url),
        ("other", "memory://other"),
    ]
    assert record.outputs[0].finished == newest.outputs[0].finished
    assert (record.checkpoint_id, record.batch_id, record.query_id) == (1, 0, newest.query_id)
    assert record.offsets_digest == newest.offsets_digest
    assert record.created_at == newest.created_at
    assert record.properties == {
        f"columns of csv {moved.url}": "c",
        "columns of csv memory://other": "o",
        "program": OLD,
    }
    assert record.states == {"model": FileState(name="chk-0/model", relative=False, size=5, crc32c=1)}


def test_outputs_may_change_places(root, newest, moved):
    back = relocate_outputs(root, {"flights": moved}).record
    urls = {output.operator: output.url for output in back.outputs}
    other = MemoryStore("other")
    parts = back.outputs[0].finished[0].commit.parts
    for part in parts:
        other.put(part.name, moved.get(part.name))
    swapped = relocate_outputs(root, {"flights": other, "other": moved}).record
    assert {output.operator: output.url for output in swapped.outputs} == {
        "flights": urls["other"],
        "other": urls["flights"],
    }
    assert swapped.properties[f"columns of csv {moved.url}"] == "o"
    assert swapped.properties["columns of csv memory://other"] == "c"


def test_what_is_remembered_stays_where_another_output_is_in_the_same_place(root, newest, moved):
    both = replace(newest, checkpoint_id=1, outputs=(newest.outputs[0], replace(newest.outputs[1], url=OLD)))
    root.publish(both)
    found = relocate_outputs(root, {"flights": moved}).record.properties
    assert (found[f"columns of csv {OLD}"], found[f"columns of csv {moved.url}"]) == ("c", "c")


def test_each_piece_that_is_not_there_is_named_and_nothing_is_decided(root, newest, moved):
    first, second = newest.outputs[0].finished[0].commit.parts
    moved.put(second.name, b"TWO")
    with pytest.raises(CorruptDataError, match=second.name):
        relocate_outputs(root, {"flights": moved})
    moved.discard([first, second])
    with pytest.raises(NotFoundError, match=rf"{first.name} is missing.*{second.name} is missing.*begin with a point"):
        relocate_outputs(root, {"flights": moved})
    assert root.latest() == newest


def test_pieces_that_cannot_be_read_cannot_be_moved(root, newest, moved):
    with pytest.raises(InvalidInputError, match=r"unreadable.*let the query finish there first"):
        relocate_outputs(root, {"flights": Blind(moved)})
    assert root.latest() == newest


def test_a_driver_that_decides_meanwhile_wins(root, newest, moved):
    other = CheckpointStore(root.store)
    first = replace(newest, checkpoint_id=1, nonce="z")
    racing = CheckpointStore(Meanwhile(root.store, lambda *_: other.publish(first)))
    with pytest.raises(FencedError):
        relocate_outputs(racing, {"flights": moved})
    assert root.latest().nonce == "z"
    assert relocate_outputs(root, {"flights": moved}).record.checkpoint_id == 2


def test_after_a_lost_answer_it_is_done_once(root, newest, moved):
    def lose(name, data):
        root.store.put_if_absent(name, data)
        raise OutcomeUnknownError("the answer was lost")

    made = relocate_outputs(CheckpointStore(Meanwhile(root.store, lose)), {"flights": moved})
    assert made.record.checkpoint_id == 1
    again = relocate_outputs(root, {"flights": moved})
    assert again.record == again.before == made.record
