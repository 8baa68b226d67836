"""The models agree with the real stores, and the strategies make what they say."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from stateline.blob.local import LocalStore
from stateline.blob.memory import MemoryStore
from stateline.blob.names import check_name
from stateline.errors import ClosedError, ConflictError, StatelineError
from stateline.key_groups import check_key_type, hash_columns
from stateline.testing.crashable import scratch_folder
from tests.kit import strategies
from tests.kit.models import KeyedStateModel, OutputModel, RecoverableFileModel, StoreModel

NAMES = st.sampled_from(["a", "b", "f/a", "f/b", "f/g/a"])
DATA = st.sampled_from([b"", b"1", b"22", b"x" * 600])


class StoreAgainstModel(RuleBasedStateMachine):
    """Any sequence of calls has the same results on a store and on a dictionary."""

    pieces = Bundle("pieces")

    def __init__(self):
        super().__init__()
        self.model = StoreModel()
        self.store = self.open()
        self.parts = {}

    def open(self):
        MemoryStore.forget("machine")
        return MemoryStore("machine")

    def both(self, on_store, on_model):
        results = []
        for call in (on_model, on_store):
            try:
                results.append((call(), None))
            except StatelineError as error:
                results.append((None, type(error)))
        assert results[0][1] is results[1][1]
        return results[1][0], results[0][0]

    @rule(name=NAMES, data=DATA)
    def put(self, name, data):
        self.both(lambda: self.store.put(name, data), lambda: self.model.put(name, data))

    @rule(name=NAMES, data=DATA)
    def put_if_absent(self, name, data):
        self.both(lambda: self.store.put_if_absent(name, data), lambda: self.model.put_if_absent(name, data))

    @rule(name=NAMES)
    def get(self, name):
        real, expected = self.both(lambda: self.store.get(name), lambda: self.model.get(name))
        assert real == expected

    @rule(name=NAMES, start=st.integers(0, 3), length=st.integers(0, 3))
    def get_range(self, name, start, length):
        real, expected = self.both(
            lambda: self.store.get_range(name, start, start + length),
            lambda: self.model.get_range(name, start, start + length),
        )
        assert real == expected

    @rule(names=st.lists(NAMES, max_size=3))
    def delete(self, names):
        self.both(lambda: self.store.delete(names), lambda: self.model.delete(names))

    @rule(target=pieces, data=DATA)
    def stage(self, data):
        number = self.model.stage(data)
        self.parts[number] = self.store.stage("a", data)
        return number

    @rule(name=NAMES, chosen=st.lists(pieces, max_size=3))
    def publish(self, name, chosen):
        self.both(
            lambda: self.store.publish(name, [self.parts[number] for number in chosen], ""),
            lambda: self.model.publish(name, chosen),
        )

    @rule(chosen=st.lists(consumes(pieces), max_size=2))
    def discard(self, chosen):
        self.both(lambda: self.store.discard([self.parts[n] for n in chosen]), lambda: self.model.discard(chosen))

    @rule(prefix=st.sampled_from(["", "f", "f/", "f/a", "x"]))
    def list(self, prefix):
        found = {info.name: info.size for info in self.store.list(prefix) if not info.name.startswith(".")}
        assert found == self.model.list(prefix)

    @invariant()
    def pieces_are_those_of_the_model(self):
        staged = {info.name for info in self.store.list_staged()}
        assert staged == {self.parts[number].name for number in self.model.pieces}


class LocalAgainstModel(StoreAgainstModel):
    def open(self):
        self.folder = scratch_folder()
        return LocalStore(self.folder.__enter__() + "/root")

    def teardown(self):
        self.store.close()
        self.folder.__exit__(None, None, None)


MEMORY = settings(max_examples=60, stateful_step_count=40, deadline=None)
LOCAL = settings(max_examples=25, stateful_step_count=30, deadline=None)


class TestMemoryStoreAgainstModel(StoreAgainstModel.TestCase):
    settings = MEMORY


class TestLocalStoreAgainstModel(LocalAgainstModel.TestCase):
    settings = LOCAL


# -- the other models -------------------------------------------------------------------------------------------------


def test_a_file_goes_back_to_its_points_and_is_published_once():
    model = RecoverableFileModel()
    model.write(b"ab")
    point = model.persist()
    model.write(b"cd")
    model.recover(point)
    model.write(b"x")
    model.commit()
    model.commit()
    assert model.published == b"abx"
    for call in (lambda: model.write(b"y"), model.persist):
        with pytest.raises(ClosedError):
            call()
    with pytest.raises(ConflictError):
        model.recover(point)


def test_points_after_a_recovery_are_gone():
    model = RecoverableFileModel()
    first = model.persist()
    model.write(b"a")
    second = model.persist()
    model.recover(first)
    with pytest.raises(IndexError):
        model.recover(second)


def test_state_goes_back_to_a_checkpoint():
    model = KeyedStateModel()
    model.put("k", 1)
    model.checkpoint(1)
    model.put("k", 2)
    model.put("l", 3)
    model.checkpoint(2)
    model.delete("l")
    model.restore(1)
    assert (model.get("k"), model.get("l"), model.get("m", 7)) == (1, None, 7)
    assert list(model.checkpoints) == [1]


def test_output_counts_each_batch_once():
    model = OutputModel()
    model.commit(0, ["a", "a", "b"])
    model.commit(0, ["a", "a", "b"])
    model.commit(1, ["c"])
    assert model.difference(["a", "b", "c", "c"]) == (Counter({"a": 1}), Counter({"c": 1}))
    assert model.difference(["a", "a", "b", "c"]) == (Counter(), Counter())


# -- strategies -------------------------------------------------------------------------------------------------------


@given(strategies.blob_names(), strategies.blob_bytes(600), strategies.parallelisms(), strategies.key_group_ranges())
def test_names_bytes_and_groups_are_valid(name, data, pair, owned):
    assert check_name(name) == name
    assert len(data) <= 600
    assert 1 <= pair[0] <= pair[1]
    assert owned.intersection(owned) == owned


@given(strategies.key_columns())
@settings(max_examples=40)
def test_key_columns_are_of_one_length_and_can_be_hashed(columns):
    assert len({len(column) for column in columns}) == 1
    for column in columns:
        check_key_type(column.type, "x")
    assert len(hash_columns(columns)) == len(columns[0])


@given(
    strategies.parts(), strategies.resume_points(), strategies.finished_files(), strategies.run_handles(),
    strategies.name_segments(), strategies.key_types(),
)  # fmt: skip
@settings(max_examples=40)
def test_handles_are_consistent(part, point, finished, run, segment, kind):
    assert check_name(part.name)
    assert point.length == sum(piece.length for piece in point.parts)
    assert finished.commit.length == sum(piece.length for piece in finished.commit.parts)
    assert len(run.key_groups) > 0
    assert "/" not in segment
    check_key_type(kind, "x")
