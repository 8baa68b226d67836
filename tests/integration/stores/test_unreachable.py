"""A service that is not there, and a process without credentials: typed errors that say what to do, from every call."""

from __future__ import annotations

import pytest
from emulators import AZURITE_ACCOUNT, AZURITE_KEY, free_port

from stateline.blob import open_store
from stateline.errors import AccessDeniedError, OutcomeUnknownError, UnavailableError

PATIENCE = {"attempts": "1", "connect_timeout": "1s", "read_timeout": "1s"}


def nowhere(scheme):
    address = f"http://127.0.0.1:{free_port()}"
    if scheme == "s3":
        return open_store("s3://bucket/root", {"endpoint": address, "path_style": "true", **PATIENCE})
    if scheme == "gs":
        more = {"endpoint": address, "anonymous": "true", "retry_deadline": "1s"}
        return open_store("gs://bucket/root", {**more, **PATIENCE})
    more = {"endpoint": f"{address}/{AZURITE_ACCOUNT}", "account_key": AZURITE_KEY}
    return open_store("az://bucket/root", {**more, **PATIENCE})


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_service_that_cannot_be_reached_may_be_tried_again(scheme, collected):
    store = nowhere(scheme)
    for read in (
        lambda: store.get("name"),
        lambda: store.get_range("name", 0, 1),
        lambda: store.head("name"),
        lambda: list(store.list("")),
        lambda: list(store.list_staged()),
    ):
        with pytest.raises(UnavailableError, match="Try again later"):
            read()
    for change in (
        lambda: store.put_if_absent("name", b"data"),
        lambda: store.stage("name", b"data"),
        lambda: store.delete(["name"]),
    ):
        with pytest.raises((UnavailableError, OutcomeUnknownError)):
            change()
    store.close()


def test_cloud_storage_without_credentials_is_a_denial_from_every_call(tmp_path, monkeypatch):
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    store = open_store("gs://bucket/root", PATIENCE)
    for call in (
        lambda: list(store.list("")),
        lambda: list(store.list_staged()),
        lambda: store.get("name"),
        lambda: store.put_if_absent("name", b"data"),
        lambda: store.delete(["name", "other"]),
    ):
        with pytest.raises(AccessDeniedError, match="Check the credentials"):
            call()


def test_a_missing_azure_account_is_told_once(monkeypatch):
    for name in ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_CONNECTION_STRING"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="no storage account is given") as caught:
        list(open_store("az://bucket/root").list(""))
    assert str(caught.value).count("connect") == 1
