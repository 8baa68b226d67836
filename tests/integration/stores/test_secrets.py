"""A credential that is given to a store shows nowhere: not in texts, logs, pickles or stored bytes."""

import base64
import logging
import pickle
import traceback

import pytest
import worlds
from emulators import AZURITE_ACCOUNT, AZURITE_KEY
from test_azure_conformance import CONTAINER, make_container
from test_gcs_conformance import open_gcs
from test_s3_conformance import BUCKET

from stateline.blob import open_store
from stateline.blob.azure import AzureStore
from stateline.errors import AccessDeniedError, InvalidInputError, StatelineError
from stateline.options import Secret
from stateline.recoverable import RecoverableWriter
from stateline.testing.fault_proxy import FaultProxy, answer, reset
from stateline.testing.gcs_server import GcsServer

pytestmark = pytest.mark.usefixtures("collected")

CANARY = "CaNaRy7391"
CANARY_KEY = base64.b64encode(CANARY.encode() * 4).decode()


def everything_said(store, caplog):
    """All texts that a failing store produces: errors with their causes, logs, representations."""
    said = [repr(store), str(store), store.url, repr(store._settings), f"{store._settings}"]
    for call in (lambda: store.get("object"), lambda: store.put("object", b"x"), lambda: list(store.list(""))):
        try:
            call()
        except StatelineError as error:
            said.append("".join(traceback.format_exception(error)))
            said.append(repr(error))
    assert len(said) > 5, "the store was meant to fail"
    return "\n".join([*said, *(record.getMessage() for record in caplog.records)])


@pytest.fixture
def proxy(azurite_endpoint):
    with FaultProxy(azurite_endpoint) as proxy:
        yield proxy


@pytest.mark.parametrize("fault", [reset, answer(403), answer(400, b"<Error/>")])
@pytest.mark.parametrize(
    "given",
    [
        {"sas_token": f"sv=2024-01-01&sp=rw&sig={CANARY}"},
        {"account_key": CANARY_KEY},
        {"connection_string": "{prefix};AccountKey=" + CANARY_KEY},
    ],
    ids=["sas", "key", "connection string"],
)
def test_azure_keeps_its_secrets(proxy, caplog, given, fault, monkeypatch):
    caplog.set_level(logging.INFO)
    endpoint = f"{proxy.url}/{AZURITE_ACCOUNT}"
    options = {**worlds.PATIENCE, "attempts": "1", **given}
    if "connection_string" in given:
        prefix = f"DefaultEndpointsProtocol=http;AccountName={AZURITE_ACCOUNT};BlobEndpoint={endpoint}"
        options["connection_string"] = given["connection_string"].format(prefix=prefix)
    else:
        options["endpoint"] = endpoint
    store = AzureStore.open(f"az://{CONTAINER}/root", options, None)
    proxy.faults.add(fault, times=1000)
    said = everything_said(store, caplog)
    assert CANARY not in said
    assert CANARY_KEY not in said
    with pytest.raises(InvalidInputError, match="cannot be pickled"):
        pickle.dumps(store)
    store.close()


@pytest.mark.parametrize("fault", [reset, answer(403)])
def test_s3_keeps_its_secrets(ministack_endpoint, caplog, fault):
    with FaultProxy(ministack_endpoint) as proxy:
        given = {"access_key_id": "AKIAEXAMPLE", "secret_access_key": CANARY, "session_token": CANARY_KEY}
        options = {"endpoint": proxy.url, "path_style": "true", **worlds.PATIENCE, "attempts": "1", **given}
        store = open_store(f"s3://{BUCKET}/secrets", options)
        proxy.faults.add(fault, times=1000)
        caplog.set_level(logging.INFO)
        said = everything_said(store, caplog)
        assert CANARY not in said
        assert CANARY_KEY not in said
        with pytest.raises(InvalidInputError, match="cannot be pickled"):
            pickle.dumps(RecoverableWriter(store))
        store.close()


def test_what_is_stored_and_sent_to_other_processes_holds_no_secret(azurite_endpoint, monkeypatch):
    """The key comes from the environment: pickles, points, metadata and objects do not have it."""
    make_container(azurite_endpoint)
    monkeypatch.setenv("AZURE_STORAGE_KEY", AZURITE_KEY)
    store = AzureStore.open(f"az://{CONTAINER}/secrets", {"endpoint": azurite_endpoint}, None)
    writer = RecoverableWriter(store)
    stream = writer.open("file")
    stream.write(b"bytes")
    point = stream.persist()
    kept = [pickle.dumps(writer), pickle.dumps(store), pickle.dumps(point), writer.resume_serializer.serialize(point)]
    writer.recover_for_commit(point).commit()
    properties = store._client.get_blob_client(store._key("file")).get_blob_properties()
    kept.append(repr(dict(properties.metadata)).encode())
    assert all(AZURITE_KEY.encode() not in data for data in kept)
    again = pickle.loads(kept[0])
    assert again.store.get("file") == b"bytes"
    again.store.close()
    store.close()


def test_a_secret_shows_only_when_asked():
    secret = Secret(CANARY)
    assert CANARY not in f"{secret} {secret!r} {secret:>10}"
    assert secret.reveal() == CANARY


def test_wrong_credentials_are_access_denied(azurite_endpoint):
    make_container(azurite_endpoint)
    store = AzureStore.open(f"az://{CONTAINER}/x", {"endpoint": azurite_endpoint, "account_key": CANARY_KEY}, None)
    with pytest.raises(AccessDeniedError):
        store.get("object")
    store.close()


def test_missing_credentials_are_access_denied(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    store = open_store("s3://bucket/root", {"endpoint": "http://127.0.0.1:9"})
    with pytest.raises(AccessDeniedError, match="credentials"):
        store.get("object")
    store.close()


def test_an_expired_login_of_cloud_storage_is_access_denied():
    with GcsServer() as server:
        store = open_gcs(server.url)
        server.faults.add(answer(401, b"{}"), times=100)
        with pytest.raises(AccessDeniedError):
            store.get("object")
        store.close()
