"""A service that ignores the condition of create-if-absent is refused when a root is made there, and only then."""

from __future__ import annotations

import base64

import pytest
from checkpoint_kit import checkpoint

from stateline.blob import InstrumentedStore, open_store
from stateline.blob.api import BlobStore
from stateline.blob.conditions import check_create_if_absent
from stateline.blob.memory import MemoryStore
from stateline.blob.names import STAGING_PREFIX
from stateline.checkpoint import CheckpointStore
from stateline.environment import system_environment
from stateline.errors import InvalidInputError, OutcomeUnknownError, UnavailableError
from tests.kit.fault_proxy import answer, lose_answer
from tests.kit.gcs_server import GcsServer
from tests.kit.plain_server import PlainServer

PATIENCE = {"attempts": "1", "connect_timeout": "5s", "read_timeout": "20s"}
KEY = base64.b64encode(b"key").decode()


def served(kind, *, ignores_conditions):
    if kind == "gs":
        server = GcsServer(ignores_conditions=ignores_conditions)
        return server, open_store("gs://bucket/root", {"endpoint": server.url, "anonymous": "true", "attempts": "1"})
    server = PlainServer(ignores_conditions=ignores_conditions)
    if kind == "s3":
        keys = {"region": "us-east-1", "access_key_id": "key-of-nobody", "secret_access_key": "secret-of-nobody"}
        options = PATIENCE | keys | {"endpoint": server.url, "path_style": "true", "checksums": "false"}
        return server, open_store("s3://bucket/root", options)
    options = PATIENCE | {"endpoint": f"{server.url}/account", "account_key": KEY}
    return server, open_store("az://container@account/root", options)


@pytest.fixture(params=["s3", "gs", "az"])
def kind(request):
    return request.param


@pytest.fixture
def service(kind, request):
    """A server and a store on it."""
    made = []

    def make(*, ignores_conditions):
        made.append(served(kind, ignores_conditions=ignores_conditions))
        return made[-1]

    yield make
    for server, store in made:
        store.close()
        server.close()


def test_a_service_that_ignores_conditions_is_refused_before_a_record_is_there(service):
    _, store = service(ignores_conditions=True)
    root = CheckpointStore(store)
    with pytest.raises(InvalidInputError, match=r"created one object twice.*conditional writes"):
        root.publish(checkpoint(0))
    with pytest.raises(InvalidInputError, match="created one object twice"):
        root.publish(checkpoint(0))


def test_a_service_that_keeps_them_is_asked_once_for_each_root(service):
    _, store = service(ignores_conditions=False)
    counted = InstrumentedStore(store)
    root = CheckpointStore(counted)
    root.publish(checkpoint(0))
    assert (counted.calls["put_if_absent"], counted.calls["delete"]) == (3, 1)
    with pytest.raises(FileNotFoundError):
        store.get(f"{STAGING_PREFIX}{checkpoint(0).nonce}")
    counted.reset()
    root.publish(checkpoint(1))
    assert (counted.calls["put_if_absent"], counted.calls["delete"]) == (1, 0)


def test_a_lost_answer_says_nothing_against_a_service(service):
    server, store = service(ignores_conditions=False)
    server.faults.add(lose_answer)
    check_create_if_absent(store, "1" * 32)


def test_a_lost_answer_does_not_hide_that_conditions_are_ignored(service):
    server, store = service(ignores_conditions=True)
    server.faults.add(lose_answer)
    with pytest.raises(InvalidInputError, match="created one object twice"):
        check_create_if_absent(store, "2" * 32)


def test_a_service_that_cannot_be_asked_is_neither_refused_nor_trusted(service):
    server, store = service(ignores_conditions=False)
    server.faults.add(answer(503), times=1000)
    with pytest.raises((UnavailableError, OutcomeUnknownError)):
        CheckpointStore(store).publish(checkpoint(0))


class Probed(InstrumentedStore):
    """A store that says that it rests on conditions."""

    rests_on_conditions = True


def test_a_probe_that_cannot_be_deleted_stops_nothing():
    class Undeletable(Probed):
        def delete(self, names):
            raise UnavailableError("the store is away", operation="delete")

    check_create_if_absent(Undeletable(MemoryStore(system_environment().ids.new_id())), "3" * 32)


def test_what_an_earlier_probe_left_is_no_obstacle():
    store = Probed(MemoryStore(system_environment().ids.new_id()))
    nonce = "4" * 32
    store.put(f"{STAGING_PREFIX}{nonce}", f"first {nonce}".encode())
    check_create_if_absent(store, nonce)


def test_a_store_without_conditions_is_not_asked(tmp_path):
    for inner in (open_store(tmp_path), MemoryStore("probe")):
        store = InstrumentedStore(inner)
        check_create_if_absent(store, "5" * 32)
        assert store.calls.total() == 0
    assert BlobStore.rests_on_conditions.fget(store) is False
