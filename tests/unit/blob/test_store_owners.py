"""Who opens a store closes it; who is given one leaves it open."""

import pytest

from stateline.blob import InstrumentedStore, open_store
from stateline.changelog import ChangelogStorage
from stateline.checkpoint import CheckpointStore
from stateline.errors import ClosedError
from stateline.recoverable import RecoverableWriter
from stateline.state.backend import KeyedStateBackend

OWNERS = pytest.mark.parametrize("open_owner", [CheckpointStore, ChangelogStorage.open, KeyedStateBackend.open])


def store_in(owner):
    return owner._store if isinstance(owner, KeyedStateBackend) else owner.store


@OWNERS
def test_what_opened_a_store_closes_it(open_owner, tmp_path):
    owner = open_owner(str(tmp_path))
    for _ in range(2):
        owner.close()
    with pytest.raises(ClosedError, match=f"file://{tmp_path}: the store is closed"):
        store_in(owner).get("x")


@OWNERS
def test_what_was_given_a_store_leaves_it_open(open_owner, tmp_path):
    with open_store(str(tmp_path)) as store:
        store.put("x", b"1")
        open_owner(store).close()
        assert store.get("x") == b"1"


def test_a_decorator_closes_what_it_wraps(tmp_path):
    store = open_store(str(tmp_path))
    with InstrumentedStore(store) as outer:
        outer.put("x", b"1")
    with pytest.raises(ClosedError):
        store.get("x")


def test_a_stream_of_a_closed_store_says_so_and_loses_nothing(tmp_path):
    store = open_store(str(tmp_path))
    stream = RecoverableWriter(store).open("f")
    stream.write(b"12")
    store.close()
    with pytest.raises(ClosedError, match="the store is closed"):
        stream.persist()
    assert stream.position == 2
