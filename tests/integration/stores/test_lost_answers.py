"""What each store makes of servers that lose answers, refuse, or answer half: through the real SDKs, retries on."""

import contextlib
import types

import botocore.endpoint
import pytest
import worlds

from stateline.errors import ConflictError, NotFoundError, OutcomeUnknownError, StatelineError, UnavailableError
from stateline.recoverable import RecoverableWriter, RecoverableWriterSettings
from stateline.testing.blob_conformance import bytes_of
from tests.kit.fault_proxy import (
    FaultProxy,
    answer,
    answer_after_effect,
    cut_body,
    deliver_twice,
    lose_answer,
    reset,
)
from tests.kit.gcs_server import GcsServer

FAILURES = (UnavailableError, OutcomeUnknownError)
MUTATIONS = ("put", "put_if_absent", "copy", "delete", "stage", "publish")
READS = ("get", "get_range", "head", "list")
BEFORE = {"reset": reset, "503": answer(503), "500": answer(500), "429": answer(429, Retry_After="0")}
AFTER = {"lost": lose_answer, "503 after effect": answer_after_effect(503), "twice": deliver_twice}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """The SDKs' delays between tries, without the waiting."""
    now = types.SimpleNamespace(sleep=lambda seconds: None)
    monkeypatch.setattr(botocore.endpoint, "time", now)
    monkeypatch.setattr("google.api_core.retry.retry_unary.time.sleep", lambda seconds: None)
    monkeypatch.setattr("azure.core.pipeline.transport._requests_basic.RequestsTransport.sleep", lambda self, _: None)


@pytest.fixture(scope="module")
def s3_proxy(ministack_endpoint):
    with FaultProxy(ministack_endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def azure_proxy(azurite_endpoint):
    with FaultProxy(azurite_endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def failing_gcs():
    with GcsServer() as server:
        yield server


@pytest.fixture(params=["s3", "gcs", "azure"])
def world(request, monkeypatch):
    if request.param == "s3":
        made = worlds.s3_world(request.getfixturevalue("ministack_endpoint"), request.getfixturevalue("s3_proxy"))
    elif request.param == "gcs":
        request.getfixturevalue("collected")
        made = worlds.gcs_world(request.getfixturevalue("failing_gcs"))
    else:
        endpoint = request.getfixturevalue("azurite_endpoint")
        made = worlds.azure_world(endpoint, request.getfixturevalue("azure_proxy"), monkeypatch)
    yield made
    made.faults.clear()
    made.store.close()


class Operation:
    """One call, what it needs beforehand, and what must be there once it succeeded."""

    def __init__(self, world, name):
        self.world, self.name, self.store = world, name, world.store
        self.data = bytes_of(2000)
        self.pieces = [bytes_of(world.piece_bytes, seed) for seed in range(2)]
        if name in (*READS, "copy", "delete"):
            self.store.put("object", self.data)
        if name == "publish":
            self.parts = [self.store.stage("target", piece) for piece in self.pieces]

    def __call__(self):
        store = self.store
        return {
            "put": lambda: store.put("object", self.data),
            "put_if_absent": lambda: store.put_if_absent("object", self.data),
            "get": lambda: store.get("object"),
            "get_range": lambda: store.get_range("object", 100, 1900),
            "head": lambda: store.head("object").size,
            "list": lambda: [info.name for info in store.list("")],
            "copy": lambda: store.copy("object", "target"),
            "delete": lambda: store.delete(["object"]),
            "stage": lambda: store.stage("target", self.pieces[0]),
            "publish": lambda: store.publish("target", self.parts, "nonce"),
        }[self.name]()

    def check(self, result):
        """The call succeeded: its effect is there, exactly."""
        if self.name in ("put", "put_if_absent"):
            assert self.store.get("object") == self.data
        elif self.name == "copy":
            assert (result.size, self.store.get("target")) == (2000, self.data)
        elif self.name in READS:
            expected = {"get": self.data, "get_range": self.data[100:1900], "head": 2000, "list": ["object"]}
            assert result == expected[self.name]
        elif self.name == "delete":
            with pytest.raises(NotFoundError):
                self.store.head("object")
        elif self.name == "stage":
            self.store.publish("target", [result], "nonce")
            assert self.store.get("target") == self.pieces[0]
        else:
            assert self.store.get("target") == b"".join(self.pieces)

    def fail(self, fault, **when):
        method, path = self.world.requests[self.name]
        self.world.faults.add(fault, method=method, path=path, **when)


def expect(world, count):
    assert world.faults.fired - world.fired >= count, "the fault never happened: the pattern of the request is wrong"


@pytest.fixture(autouse=True)
def counted(world):
    world.fired = world.faults.fired


@pytest.mark.parametrize("fault", [*BEFORE, *AFTER])
@pytest.mark.parametrize("name", MUTATIONS)
def test_one_failure_of_a_mutation_is_survived(world, name, fault):
    operation = Operation(world, name)
    operation.fail({**BEFORE, **AFTER}[fault])
    try:
        result = operation()
    except UnavailableError:
        assert fault == "429"
        assert not world.retries_429
        result = operation()
    operation.check(result)
    expect(world, 1)


@pytest.mark.parametrize("fault", ["reset", "503", "429"])
@pytest.mark.parametrize("name", READS)
def test_one_failure_of_a_read_is_survived(world, name, fault):
    operation = Operation(world, name)
    operation.fail(BEFORE[fault])
    try:
        result = operation()
    except UnavailableError:
        assert fault == "429"
        assert not world.retries_429
        result = operation()
    operation.check(result)
    expect(world, 1)


@pytest.mark.parametrize("name", ["get", "get_range", "list"])
def test_a_body_cut_short_is_read_again(world, name):
    operation = Operation(world, name)
    operation.fail(cut_body(150), times=2)
    operation.check(operation())
    expect(world, 2)


@pytest.mark.parametrize("name", ["get", "get_range"])
def test_a_body_always_cut_short_is_no_data(world, name):
    operation = Operation(world, name)
    operation.fail(cut_body(150), times=1000)
    with pytest.raises(UnavailableError):
        operation()


@pytest.mark.parametrize("fault", ["lost", "reset", "503", "503 after effect"])
def test_a_file_goes_on_after_a_fault_that_was_cured(world, fault):
    stream = RecoverableWriter(world.store, RecoverableWriterSettings(chunk_size=3000, fold_size=2000)).open("target")
    path, expected = r"\.inprogress|/target|/upload/", b""
    for number, length in enumerate((500, 700, 3000, 1100, 2500, 10)):
        world.faults.add({**BEFORE, **AFTER}[fault], path=path)
        data = bytearray(bytes_of(length, number))
        expected += data
        stream.write(data)
        data.clear()  # The caller's again, whatever keeps a view of it.
        stream.persist()
    expect(world, 6)
    world.faults.clear()
    stream.close_for_commit().commit()
    assert world.store.get("target") == expected


@pytest.mark.parametrize("name", ["put_if_absent", "publish"])
def test_creations_whose_every_answer_is_lost_are_found_by_reading_back(world, name):
    operation = Operation(world, name)
    operation.fail(lose_answer, times=1000)
    operation.check(operation())
    expect(world, 1)


@pytest.mark.parametrize("name", ["put_if_absent", "publish"])
def test_a_lost_answer_without_a_read_back_is_unknown_and_may_be_repeated(world, name):
    operation = Operation(world, name)
    operation.fail(lose_answer, times=1000)
    world.faults.add(answer(503), method=world.requests["head"][0], path="object|target", times=1000)
    with pytest.raises(OutcomeUnknownError):
        operation()
    world.faults.clear()
    operation.check(operation())


@pytest.mark.parametrize("refusal", [503, 403])
def test_a_refusal_after_a_try_without_an_answer_proves_nothing(world, refusal):
    """The first try takes effect, its answer is lost, and the SDK's next tries are refused."""
    operation = Operation(world, "delete")
    operation.fail(lose_answer)
    operation.fail(answer(refusal), times=1000)
    with pytest.raises(OutcomeUnknownError):
        operation()
    world.faults.clear()
    with pytest.raises(NotFoundError):
        world.store.get("object")


@pytest.mark.parametrize("name", [*MUTATIONS, *READS])
@pytest.mark.parametrize("body", [b"<html>Log in first</html>", b"{}", b"<a/>"])
def test_an_answer_of_some_other_server_is_a_typed_error(world, name, body):
    """What stands between us and the service answers everything with 200: nothing that the SDK expects is in it."""
    operation = Operation(world, name)
    world.faults.add(answer(200, body), times=1000)
    if name in ("get", "delete", "list"):
        with contextlib.suppress(StatelineError):  # Here an answer without anything in it may be as good as any.
            operation()
    else:
        with pytest.raises(StatelineError):
            operation()
    expect(world, 1)
    world.faults.clear()
    operation.check(operation())


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_server_that_always_refuses_changes_nothing(world, name):
    operation = Operation(world, name)
    operation.fail(answer(503), times=1000)
    with pytest.raises(UnavailableError) as caught:
        operation()
    assert caught.value.operation
    world.faults.clear()
    visible = [info.name for info in world.store.list("") if not info.name.startswith(".")]
    assert visible == (["object"] if name in ("copy", "delete") else [])
    operation.check(operation())


@pytest.mark.parametrize("name", ["put_if_absent", "publish"])
def test_a_foreign_winner_is_told_apart_from_a_lost_answer(world, name):
    """The first try is refused, somebody else creates the object, the retry meets it: that is not our success."""
    operation = Operation(world, name)
    place = "target" if name == "publish" else "object"

    def somebody_else_wins(request, proceed):
        world.store.put(place, b"foreign")
        return proceed()

    operation.fail(somebody_else_wins)
    with pytest.raises((ConflictError, FileExistsError)):
        operation()
    assert world.store.get(place) == b"foreign"
    expect(world, 1)


def test_a_store_that_is_not_there_is_a_typed_error(world, monkeypatch):
    world.faults.add(reset, times=10_000)
    for call in (lambda: world.store.get("object"), lambda: list(world.store.list("")), lambda: world.store.head("x")):
        with pytest.raises(UnavailableError) if call.__name__ != "x" else pytest.raises(FAILURES):
            call()
    with pytest.raises(OutcomeUnknownError):
        world.store.put_if_absent("object", b"x")
