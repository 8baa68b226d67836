"""What is particular to the store in memory. What all stores promise is in the conformance suite."""

import pickle
import threading

import pytest

from stateline.blob import open_store
from stateline.blob.memory import MemoryStore
from stateline.environment import Environment
from stateline.errors import AlreadyExistsError, ConflictError, NotFoundError
from stateline.testing import ManualClock, SeededIds


@pytest.fixture
def store(request):
    name = f"memory-{request.node.name}"
    yield MemoryStore(name, Environment(clock=ManualClock(1000.0), ids=SeededIds()))
    MemoryStore.forget(name)


def test_stores_of_one_name_share_their_objects(store):
    store.put("a", b"1")
    assert MemoryStore(store.url.removeprefix("memory://")).get("a") == b"1"
    assert pickle.loads(pickle.dumps(store)).get("a") == b"1"


def test_a_forgotten_name_starts_empty_and_open_stores_keep_theirs(store):
    store.put("a", b"1")
    name = store.url.removeprefix("memory://")
    MemoryStore.forget(name)
    assert store.get("a") == b"1"
    with pytest.raises(NotFoundError):
        MemoryStore(name).get("a")


def test_a_url_below_a_store_opens_a_folder_of_it(store):
    folder = open_store(f"{store.url}/a/b/")
    assert folder.url == f"{store.url}/a/b"
    folder.put("c", b"1")
    store.put("a/b/d", b"2")
    store.put("a/bc", b"3")
    assert sorted(info.name for info in folder.list("")) == ["c", "d"]
    assert sorted(info.name for info in store.list("a/")) == ["a/b/c", "a/b/d", "a/bc"]
    assert (folder.get("d"), folder.head("d").name, store.head("a/b/c").name) == (b"2", "d", "a/b/c")
    assert folder.publish("e", [folder.stage("e", b"x")], "n").name == "e"
    assert [info.name for info in store.list("a/b/e")] == ["a/b/e"]
    assert folder.put_if_absent("d", b"2").name == "d"
    store.delete(["a/b/d"])
    with pytest.raises(NotFoundError, match=f"{folder.url}/d"):
        pickle.loads(pickle.dumps(folder)).get("d")


def test_times_and_ids_come_from_the_environment(store):
    assert store.put("a", b"").modified_at == 1000.0
    assert store.stage("t", b"x").name == ".inprogress/" + SeededIds().new_id()


def test_mutable_buffers_are_copied(store):
    buffer = bytearray(b"before")
    store.put("a", buffer)
    part = store.stage("t", memoryview(buffer))
    buffer[:] = b"after!"
    assert store.get("a") == b"before"
    store.publish("t", [part], "n")
    assert store.get("t") == b"before"


def test_nonces_are_kept_and_compared(store):
    store.publish("t", [store.stage("t", b"x")], "mine")
    assert store.head("t").nonce == "mine"
    with pytest.raises(ConflictError):
        store.publish("t", [store.stage("t", b"x")], "other")


def test_one_thread_of_many_wins_a_creation(store):
    barrier = threading.Barrier(8)
    won: list[int] = []

    def create(number: int) -> None:
        barrier.wait()
        try:
            store.put_if_absent("slot", b"%d" % number)
        except AlreadyExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [store.get("slot")] == [b"%d" % number for number in won]
