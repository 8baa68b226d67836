"""A credential that is given to a store shows nowhere: not in texts, logs, pickles or stored bytes."""

import base64
import json
import logging
import pickle
import traceback

import pytest
import worlds
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from emulators import AZURITE_ACCOUNT, AZURITE_KEY
from test_azure_conformance import CONTAINER, make_container
from test_gcs_conformance import open_gcs
from test_s3_conformance import BUCKET, make_bucket

from stateline.blob import open_store
from stateline.blob.azure import AzureStore
from stateline.checkpoint import Checkpoint, CheckpointStore, OutputState
from stateline.cli.commands import stateline
from stateline.errors import AccessDeniedError, InvalidInputError, StatelineError
from stateline.handles import FinishedFile
from stateline.options import Secret
from stateline.recoverable import RecoverableWriter
from tests.kit.fault_proxy import FaultProxy, answer, reset
from tests.kit.gcs_server import GcsServer

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
    blob = store._client.get_blob_client(store._key("file"))
    assert_nothing_kept(store, lambda: dict(blob.get_blob_properties().metadata), AZURITE_KEY)
    store.close()


def assert_nothing_kept(store, properties, secret=CANARY):
    """Neither pickles nor points, records, objects and their properties hold the secret; and a pickle still works."""
    writer = RecoverableWriter(store)
    stream = writer.open("file")
    stream.write(b"bytes")
    point = stream.persist()
    kept = [pickle.dumps(writer), pickle.dumps(store), pickle.dumps(point), writer.resume_serializer.serialize(point)]
    commit = stream.close_for_commit().commit_point
    writer.recover_for_commit(commit).commit()
    output = OutputState(operator="o", url=store.url, finished=(FinishedFile(commit=commit, rows=1),))
    record = Checkpoint(
        checkpoint_id=0,
        batch_id=0,
        query_id="query",
        offsets_digest="digest",
        max_parallelism=1,
        parallelism=1,
        nonce="nonce",
        created_at=0.0,
        outputs=(output,),
    )
    CheckpointStore(store).publish(record)
    kept += [store.get(info.name) for info in store.list("")]
    kept.append(repr(properties()).encode())
    assert len(kept) > 6
    assert all(secret.encode() not in data for data in kept)
    again = pickle.loads(kept[0])
    assert again.store.get("file") == b"bytes"
    again.store.close()
    store.delete([info.name for info in store.list("")])


def test_what_s3_stores_and_sends_holds_no_secret(ministack_endpoint, monkeypatch):
    make_bucket(ministack_endpoint)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    store = open_store(f"s3://{BUCKET}/secrets", {"endpoint": ministack_endpoint, "path_style": "true"})
    assert_nothing_kept(store, lambda: store._client.head_object(Bucket=BUCKET, Key=store._key("file")))
    store.close()


@pytest.fixture
def service_account(tmp_path):
    """A key file whose key is the canary, and the service that trades it for a token, which is one too."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    with GcsServer() as server:
        path = tmp_path / "account.json"
        account = {
            "type": "service_account",
            "project_id": "project",
            "private_key_id": CANARY,
            "private_key": pem,
            "client_email": "somebody@project.iam.gserviceaccount.com",
            "client_id": "1",
            "token_uri": f"{server.url}/token",
        }
        path.write_text(json.dumps(account))
        yield server, str(path), [CANARY, *pem.splitlines()[1:-1]]


@pytest.mark.parametrize("fault", [reset, answer(403), answer(400, b"<Error/>"), answer(401, b"{}")])
def test_gcs_keeps_its_secrets(service_account, caplog, fault):
    server, path, secrets = service_account
    caplog.set_level(logging.INFO)
    options = {"endpoint": server.url, "credentials_file": path, "attempts": "1", "retry_deadline": "1s"}
    store = open_store("gs://bucket/secrets", options)
    server.faults.add(fault, times=1000)
    said = everything_said(store, caplog)
    kept = pickle.dumps(RecoverableWriter(store))
    for secret in secrets:
        assert secret not in said
        assert secret.encode() not in kept
    store.close()


def test_a_token_of_cloud_storage_shows_nowhere(caplog):
    """The token that the SDK holds, in a client that fails after it was given one."""
    with GcsServer() as server:
        store = open_gcs(server.url)
        store._client._credentials.token = CANARY
        caplog.set_level(logging.INFO)
        server.faults.add(answer(401, b"{}"), times=1000)
        assert CANARY not in everything_said(store, caplog)
        store.close()


@pytest.mark.parametrize(
    ("url", "options"),
    [
        (f"s3://AKIAEXAMPLE:{CANARY}@bucket/root", {}),
        (f"gs://bucket/root?token={CANARY}", {}),
        (f"az://container@account/root?sv=1&sig={CANARY}", {}),
        (f"https://account.blob.core.windows.net/c?sig={CANARY}", {}),
        ("s3://bucket/root", {"endpoint": f"http://user:{CANARY}@127.0.0.1:9"}),
        ("gs://bucket/root", {"endpoint": f"http://user:{CANARY}@127.0.0.1:9"}),
        ("az://container@account/root", {"endpoint": f"http://127.0.0.1:9/account?sig={CANARY}"}),
        ("s3://bucket/root", {"secret_acess_key": CANARY}),
        ("az://container@account/root", {"acount_key": CANARY}),
    ],
)
def test_a_credential_where_none_belongs_is_refused_and_not_shown(url, options):
    """What is in a URL would be in every record and in every error."""
    with pytest.raises(InvalidInputError) as caught:
        open_store(url, options)
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    assert CANARY not in repr(caught.value)


def test_the_command_line_does_not_show_what_it_was_given():
    arguments = ["checkpoint", "list", f"s3://AKIAEXAMPLE:{CANARY}@bucket/root"]
    assert CANARY not in CliRunner().invoke(stateline, arguments).output
    given = ["checkpoint", "list", "s3://bucket/root", "--store-option", f"secret_access_key={CANARY}"]
    more = ["--store-option", "access_key_id=A", "--store-option", "endpoint=http://127.0.0.1:9"]
    result = CliRunner().invoke(stateline, [*given, *more, "--store-option", "attempts=1"])
    assert result.exit_code != 0
    assert CANARY not in result.output


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
