"""What Cloud Storage says of objects and of requests, and what a caller is told of it."""

import json

import pytest

from stateline.blob import open_store
from stateline.errors import AccessDeniedError, InvalidInputError, OutcomeUnknownError, UnavailableError
from stateline.recoverable import RecoverableWriter
from tests.kit.fault_proxy import answer, reset
from tests.kit.gcs_server import GcsServer

IMPATIENT = {"anonymous": "true", "attempts": "1", "retry_deadline": "1s"}


@pytest.fixture
def server():
    with GcsServer() as made:
        yield made


@pytest.fixture
def store(server):
    with open_store("gs://bucket/root", {"endpoint": server.url, **IMPATIENT}) as opened:
        yield opened


@pytest.mark.parametrize("omitted", [("size",), ("size", "crc32c")])
def test_an_object_without_a_size_is_empty(omitted):
    with (
        GcsServer(omitted=omitted) as server,
        open_store("gs://bucket/root", {"endpoint": server.url, **IMPATIENT}) as store,
    ):
        assert store.put("put", b"").size == 0
        assert store.put_if_absent("created", b"") == store.head("created")
        assert store.put_if_absent("created", b"").size == 0
        part = store.stage("published", b"")
        assert store.publish("published", [part], "nonce").size == 0
        assert store.publish("published", [part], "nonce").nonce == "nonce"
        assert store.copy("put", "copied").size == 0
        RecoverableWriter(store).open("file").close_for_commit().commit()
        infos = {info.name: (info.size, info.crc32c) for info in store.list("")}
        assert infos == dict.fromkeys(["put", "created", "published", "copied", "file"], (0, 0))
        assert [store.get(name) for name in infos] == [b""] * 5
        assert [info.size for info in store.list_staged()] == [0]
        store.discard([part])


def test_an_object_with_bytes_and_without_a_size_is_not_taken_for_an_empty_one(server, store):
    store.put("object", b"123")
    told = {"name": "root/object", "bucket": "bucket", "generation": "1", "updated": "2026-01-01T00:00:00Z"}
    server.faults.add(answer(200, json.dumps(told | {"crc32c": "EHsvsg=="}).encode()), times=100)
    with pytest.raises(UnavailableError, match="bytes without a size"):
        store.head("object")


@pytest.mark.parametrize("page", [0, 1, 2])
def test_a_page_of_a_listing_that_is_not_understood_is_asked_for_again(server, page):
    """The SDK's iterator ends after an error, as if there were no more pages."""
    options = {"endpoint": server.url, **IMPATIENT, "attempts": "3", "page_size": "2"}
    with open_store("gs://bucket/root", options) as store:
        for name in "abcde":
            store.put(name, b"")
        listing = store.list("")
        found = [next(listing).name for _ in range(2 * page)]
        server.faults.add(answer(200, b"[]"), method="GET")
        assert [*found, *(info.name for info in listing)] == [*"abcde"]


ERROR = json.dumps({"error": {"code": 400, "message": "Bad thing"}}, indent=2).encode()


def every_call(store):
    (staged,) = store.list_staged()
    return {
        "gs://bucket/root/x": [
            lambda: store.get("x"),
            lambda: store.get_range("x", 0, 1),
            lambda: store.head("x"),
            lambda: store.put("x", b"1"),
            lambda: store.put_if_absent("x", b"1"),
        ],
        "gs://bucket/root/x/": [lambda: list(store.list("x/"))],
        "gs://bucket/.inprogress/bucket/root/t/": [lambda: store.stage("t", b"1")],
        "gs://bucket/.inprogress/": [lambda: list(store.list_staged())],
        f"gs://bucket/{staged.name}": [lambda: store.read_staged(store.staged_part("bucket", staged.name))],
    }


@pytest.mark.parametrize(
    ("fault", "expected", "said"),
    [
        (answer(400, ERROR), InvalidInputError, "the store answered '400 Bad Request: Bad thing'"),
        (answer(403, b"<html>\nNo.</html>"), AccessDeniedError, "the store answered '403 Forbidden: <html>'"),
        (answer(503), (UnavailableError, OutcomeUnknownError), "the store answered '503 Service Unavailable'"),
        (reset, (UnavailableError, OutcomeUnknownError), "Connection aborted"),
    ],
)
def test_errors_name_the_place_and_what_was_said_once(server, store, fault, expected, said):
    store.stage("t", b"1")
    calls = every_call(store)
    server.faults.add(fault, times=1000)
    for place, some in calls.items():
        for call in some:
            with pytest.raises(expected) as caught:
                call()
            text = str(caught.value)
            assert caught.value.subject.startswith(place)
            assert "root/root" not in text
            assert said in text
            assert "Request failed with status code" not in text
            assert "http://" not in text
            assert "\n" not in text
