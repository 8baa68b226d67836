"""Services that accept a request and never answer it, or stop in the middle: every call ends, with a typed error."""

import threading
import types

import botocore.endpoint
import pytest
import urllib3.connectionpool

from stateline.blob import open_store
from stateline.errors import OutcomeUnknownError, UnavailableError
from tests.kit.fault_proxy import FaultProxy
from tests.kit.loopback_http import Reply

ACCOUNT = "devstoreaccount1"
OPTIONS = {
    "s3": {"path_style": "true", "access_key_id": "id", "secret_access_key": "key", "region": "us-east-1"},
    "gs": {"anonymous": "true"},
    "az": {"account_key": "a2V5"},
}
ATTEMPTS = 6
HEADERS = {
    "ETag": '"x"',
    "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT",
    "Content-Range": "bytes 0-999/1000",
    "x-ms-blob-type": "BlockBlob",
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """The SDKs' delays between tries, without the waiting."""
    monkeypatch.setattr(botocore.endpoint, "time", types.SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr("google.api_core.retry.retry_unary.time.sleep", lambda seconds: None)
    monkeypatch.setattr("azure.core.pipeline.transport._requests_basic.RequestsTransport.sleep", lambda self, _: None)
    monkeypatch.setattr("azure.storage.blob._download.time", types.SimpleNamespace(sleep=lambda seconds: None))


@pytest.fixture
def proxy():
    with FaultProxy("http://127.0.0.1:1") as made:
        yield made


def opened(scheme, url, **more):
    endpoint = f"{url}/{ACCOUNT}" if scheme == "az" else url
    return open_store(f"{scheme}://bucket/root", {"endpoint": endpoint, **OPTIONS[scheme], **more})


@pytest.mark.parametrize("scheme", OPTIONS)
def test_a_service_that_never_answers_ends_every_call(scheme, proxy):
    released = threading.Event()

    def never(request, proceed):
        released.wait(60)

    proxy.faults.add(never, times=10_000)
    try:
        with opened(scheme, proxy.url, read_timeout="100ms") as store:
            for read in (
                lambda: store.get("x"),
                lambda: store.head("x"),
                lambda: list(store.list("")),
            ):
                before = len(proxy.faults.seen)
                with pytest.raises(UnavailableError):
                    read()
                assert len(proxy.faults.seen) - before == ATTEMPTS
            for change in (lambda: store.put_if_absent("x", b"1"), lambda: store.delete(["x"])):
                with pytest.raises(OutcomeUnknownError):
                    change()
    finally:
        released.set()


@pytest.mark.parametrize("scheme", OPTIONS)
def test_a_body_that_never_ends_ends_the_read(scheme, proxy):
    proxy.faults.add(lambda request, proceed: Reply(200, b"begun", HEADERS, length=1000), times=10_000)
    with (
        opened(scheme, proxy.url, read_timeout="100ms") as store,
        pytest.raises(UnavailableError, match=r"(?i)read time"),
    ):
        store.get("x")
    assert len(proxy.faults.seen) <= ATTEMPTS


def test_the_credentials_of_azure_are_asked_for_with_the_same_patience(monkeypatch):
    given = {}
    monkeypatch.setattr("stateline.blob.azure.DefaultAzureCredential", lambda **patience: given.update(patience) or "k")
    for name in ("AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with open_store("az://bucket@account/root", {"read_timeout": "7s"}) as store:
        store._connected()
    assert given == {"connection_timeout": 10.0, "read_timeout": 7.0, "retry_total": ATTEMPTS - 1}


@pytest.mark.parametrize("scheme", OPTIONS)
def test_every_request_has_a_timeout_by_default(scheme, proxy, monkeypatch):
    asked, send = [], urllib3.connectionpool.HTTPConnectionPool._make_request

    def noted(pool, connection, method, url, timeout, *arguments, **more):
        effective = pool._get_timeout(timeout)
        asked.append((effective.connect_timeout, effective.read_timeout))
        return send(pool, connection, method, url, *arguments, timeout=timeout, **more)

    monkeypatch.setattr(urllib3.connectionpool.HTTPConnectionPool, "_make_request", noted)
    proxy.faults.add(lambda request, proceed: Reply(403), times=10_000)
    with opened(scheme, proxy.url) as store:
        for call in (
            lambda: store.get("x"),
            lambda: store.get_range("x", 0, 1),
            lambda: store.head("x"),
            lambda: list(store.list("")),
            lambda: store.put("x", b"1"),
            lambda: store.put_if_absent("x", b"1"),
            lambda: store.delete(["x"]),
            lambda: store.stage("x", bytes(9 * 1024 * 1024)),
        ):
            with pytest.raises(PermissionError):
                call()
    assert len(asked) >= 8
    assert set(asked) == {(10.0, 60.0)}
