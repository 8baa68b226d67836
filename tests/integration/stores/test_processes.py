"""Clients do not survive a fork, and stores do: each process connects for itself."""

import os
import signal
import uuid
import warnings

import pytest
from test_azure_conformance import CONTAINER, connection_string, make_container
from test_gcs_conformance import open_gcs
from test_s3_conformance import open_s3

from stateline.blob.azure import AzureStore
from stateline.blob.sweep import sweep
from tests.kit.gcs_server import GcsServer


@pytest.fixture(scope="module")
def gcs_endpoint():
    with GcsServer() as server:
        yield server.url


def of_s3(request):
    return open_s3(request.getfixturevalue("ministack_endpoint"))


def of_gcs(request):
    return open_gcs(request.getfixturevalue("gcs_endpoint"))


def of_azure(request):
    endpoint = request.getfixturevalue("azurite_endpoint")
    make_container(endpoint)
    options = {"connection_string": connection_string(endpoint)}
    return AzureStore.open(f"az://{CONTAINER}/{uuid.uuid4().hex}", options, None)


@pytest.fixture(params=[of_s3, of_gcs, of_azure])
def store(request):
    made = request.param(request)
    yield made
    made.close()


def in_a_fork(function):
    """Exit status of a forked child that runs ``function``; it is killed if it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            function()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_uses_connections_of_its_own(store):
    store.put("object", b"from the parent")
    parts = [store.stage("target", bytes([index])) for index in range(4)]

    def child():
        assert store.get("object") == b"from the parent"
        store.publish("target", parts, "nonce")
        store.delete(["object", "other", "third"])

    assert in_a_fork(child) == 0
    assert store.get("target") == bytes(range(4))
    assert [info.name for info in store.list("o")] == []


def test_a_sweep_finds_what_a_dead_writer_left_and_keeps_what_is_reachable(store):
    parts = [store.stage("target", bytes([index]) * 10) for index in range(3)]
    kept = {parts[0].name}
    assert sweep(store, kept).leftovers == 0, "they are young"
    result = sweep(store, kept, min_age=0, delete=True)
    assert (result.reachable, result.young, result.leftovers) == (1, 0, 2)
    assert {info.name for info in store.list_staged()} == kept
    store.discard(parts)
