"""A pipeline over each store succeeds and fails: nothing that it leaves or says has a secret of its options."""

from __future__ import annotations

import base64
import dataclasses
import html
import json
import logging
import uuid
from contextlib import closing

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from emulators import AZURITE_ACCOUNT, AZURITE_KEY
from test_azure_conformance import CONTAINER, make_container
from test_s3_conformance import BUCKET, make_bucket

from stateline import progress
from stateline.blob import InstrumentedStore, open_store
from stateline.changelog.racing import raced
from stateline.checkpoint import CheckpointStore, create_savepoint, verify_root
from stateline.dashboard.roots import RootFollower
from stateline.dashboard.server import TABS, dashboard_app
from stateline.environment import system_environment
from stateline.errors import StatelineError
from stateline.files import FileOutput, RollingPolicy
from stateline.pipeline.driver_stores import DriverStores
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.pipeline.plan import SavepointStart
from stateline.pipeline.reporting import BatchReporter
from stateline.spark.sinks.files_options import FilesSinkOptions
from stateline.spark.sources.state_options import StateSourceOptions
from stateline.state.aggregate import count
from tests.kit.canaries import CANARY, Witness
from tests.kit.fault_proxy import Fault, FaultPlan, FaultProxy, answer, reset
from tests.kit.gcs_server import GcsServer
from tests.unit.pipeline.engine import Engine

pytestmark = pytest.mark.usefixtures("collected")

SCHEMA = pa.schema([("k", pa.int64())])
PROGRAM = AggregateProgram.bind(SCHEMA, ["k"], {"n": count()})
PATIENCE = {"attempts": "1", "connect_timeout": "2s", "read_timeout": "5s"}
ENVIRONMENT = system_environment()
TOKEN = answer(200, b'{"access_token": "Canary-token", "expires_in": 3600, "token_type": "Bearer"}')


@dataclasses.dataclass
class Service:
    """A store behind faults.

    Attributes:
        place: The URL of a folder of the test's own.
        options: With the secrets.
        secrets: What must show nowhere.
        faults: What its requests meet.
        token: What answers a request for a token, where the service gives out some.
    """

    place: str
    options: dict[str, str]
    secrets: list[str]
    faults: FaultPlan
    token: Fault | None = None

    def heal(self):
        """Ends all faults."""
        self.faults.clear()
        if self.token is not None:
            self.faults.add(self.token, path="/token$", times=10_000)

    def url(self, name):
        return f"{self.place}/{name}"

    def flags(self, flag="--option"):
        """The options on a command line."""
        return [part for name, text in self.options.items() for part in (flag, f"{name}={text}")]

    def store(self, name):
        return open_store(self.url(name), self.options)


def s3_service(endpoint, proxy, secret):
    make_bucket(endpoint)
    keys = {"access_key_id": "AKIA", "secret_access_key": secret, "region": "us-east-1"}
    options = {"endpoint": proxy.url, "path_style": "true", **PATIENCE, **keys}
    return Service(f"s3://{BUCKET}/{uuid.uuid4().hex}", options, [secret], proxy.faults)


@pytest.fixture(params=["s3", "azure", "gcs"])
def service(request, tmp_path, monkeypatch):
    name = request.param
    if name == "s3":
        endpoint = request.getfixturevalue("ministack_endpoint")
        with FaultProxy(endpoint) as proxy:
            yield s3_service(endpoint, proxy, CANARY)
    elif name == "azure":
        endpoint = request.getfixturevalue("azurite_endpoint")
        make_container(endpoint)
        with FaultProxy(endpoint.rpartition("/")[0]) as proxy:
            blobs = f"BlobEndpoint={proxy.url}/{AZURITE_ACCOUNT}"
            account = f"DefaultEndpointsProtocol=http;AccountName={AZURITE_ACCOUNT};AccountKey={AZURITE_KEY};{blobs}"
            options = {"connection_string": account, **PATIENCE}
            yield Service(f"az://{CONTAINER}/{uuid.uuid4().hex}", options, [AZURITE_KEY], proxy.faults)
    else:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
        with GcsServer() as server:
            account = {
                "type": "service_account",
                "project_id": "project",
                "private_key_id": "Canary-key",
                "private_key": pem,
                "client_email": "somebody@project.iam.gserviceaccount.com",
                "client_id": "1",
                "token_uri": f"{server.url}/token",
            }
            (tmp_path / "account.json").write_text(json.dumps(account))
            options = {"endpoint": server.url, "credentials_file": str(tmp_path / "account.json"), "attempts": "1"}
            made = Service(f"gs://bucket/{uuid.uuid4().hex}", options, pem.splitlines()[1:-1], server.faults, TOKEN)
            made.heal()
            yield made


class Pipeline:
    """Counts per key whose root and files are in the service, and all of whose parts a witness looks at."""

    def __init__(self, service, witness, log):
        self.service, self.witness = service, witness
        self.root = service.store("root")
        rolling = RollingPolicy(every_checkpoint=True)
        self.output = FileOutput(url=service.url("out"), rolling=rolling, store_options=service.options)
        self.reporter = BatchReporter(ENVIRONMENT.clock, log)
        self.engine = self.engine_of(self.root)

    def engine_of(self, root, start=None):
        engine = Engine(PROGRAM, SCHEMA, root=root, files=self.output)
        engine.plan = dataclasses.replace(engine.plan, root_options=self.service.options, start=start)
        engine.restart()
        self.witness.see_objects(engine, engine.plan, engine.plan.graph, engine.coordinator, engine.operator)
        return engine

    def run(self, number, engine=None):
        rows = [{"k": k} for k in range(number + 3)]
        report = (engine or self.engine).report_batch(rows, batch_id=number)
        self.reporter(report)
        self.witness.see_objects(report, report.checkpoint, *report.checkpoint.operators, *report.checkpoint.outputs)

    def move(self):
        """Saves the query, and starts a new one from the savepoint."""
        target = self.service.store("saved")
        saved = create_savepoint(CheckpointStore(self.root), target, label="before the move")
        start = SavepointStart(url=self.service.url(f"saved/{saved.folder}"), options=self.service.options)
        self.witness.see_objects(saved, saved.checkpoint, start)
        with closing(self.service.store("next")) as root:
            self.run(0, self.engine_of(root, start))
        target.close()

    def close(self):
        for store in (self.root, *self.engine._stores.values()):
            store.close()


def see_settings(service, witness):
    """What holds the options, or a store that was made of them."""
    store = service.store("root")
    plan = Engine(PROGRAM, SCHEMA).plan
    plan = dataclasses.replace(plan, root_url=service.url("root"), root_options=service.options)
    named = {f"root.{name}": text for name, text in service.options.items()}
    with (
        DriverStores.open(plan, ENVIRONMENT) as stores,
        closing(RootFollower(service.url("root"), service.options)) as f,
    ):
        witness.see_objects(
            store,
            store._settings,
            *(getattr(store._settings, field.name) for field in dataclasses.fields(store._settings)),
            InstrumentedStore(store),
            raced(store, plan.settings.retry_policy, ENVIRONMENT),
            CheckpointStore(store),
            stores,
            stores.root,
            f,
            FilesSinkOptions(path=service.url("out"), store_options=service.options, root_options=service.options),
            StateSourceOptions.from_spark({"path": service.url("root"), **named}),
        )
    store.close()


def see_commands(service, witness, folder):
    """Runs all commands that read a root; those that succeeded, and all."""
    given, outputs = service.flags(), service.flags("--output-option")
    root, saved = service.url("root"), service.url("saved")
    commands = [
        ["checkpoint", "ls", root],
        ["checkpoint", "show", root],
        ["checkpoint", "verify", root, "--objects"],
        ["checkpoint", "verify", root, "--outputs", *outputs],
        ["state", "ls", root],
        ["state", "get", root, "1"],
        ["state", "diff", f"{root}/chk-0", f"{root}/chk-1"],
        ["savepoint", "ls", saved],
        ["sweep", root, "--min-age", "0s"],
        ["table", "status", root],
        ["watch", root, "--once"],
    ]
    codes = {
        tuple(arguments + form): witness.command(*arguments, *form, *given)
        for arguments in commands
        for form in ([], ["--json"])
    }
    export = ["state", "export", root, service.url(f"exports/{uuid.uuid4().hex}.csv")]
    codes["state", "export"] = witness.command(*export, *given, *service.flags("--target-option"))
    codes["report",] = witness.command("report", root, "--html", str(folder / "report.html"), *given)
    return [arguments for arguments, code in codes.items() if code == 0], [*codes]


def see_pages(service, witness):
    with closing(RootFollower(service.url("root"), service.options)) as follower:
        client = dashboard_app([follower], token=None).test_client()
        for path in ("/", "/version", "/r/0/version", *(f"/r/0/{tab}" for tab in dict(TABS))):
            page = client.get(path)
            witness.see("page", path, page.data)
            witness.see("headers", path, str(page.headers))


@pytest.fixture
def witness(service, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG, logger="stateline")  # SDKs log what they send at this level.
    monkeypatch.setattr(progress, "_EVERY_SECONDS", -1.0)
    made = Witness(*service.secrets)
    yield made
    made.see_logs(caplog.records)
    assert made.found == []
    for kind in ("object", "command", "page"):
        assert made.looked[kind] > 0, kind


def test_a_pipeline_that_succeeds_shows_no_secret(service, witness, tmp_path, caplog):
    pipeline = Pipeline(service, witness, tmp_path / "metrics.log")
    for number in range(2):
        pipeline.run(number)
    pipeline.move()
    see_settings(service, witness)
    succeeded, commands = see_commands(service, witness, tmp_path)
    assert succeeded == commands
    see_pages(service, witness)
    findings = verify_root(CheckpointStore(pipeline.root))
    witness.see_objects(findings)
    assert findings.is_sound
    with closing(open_store(service.place, service.options)) as everything_there:
        witness.see_store(everything_there)
    for file in tmp_path.iterdir():
        if file.name != "account.json":
            witness.see("file", file.name, file.read_bytes())
    assert witness.looked["bytes"] > 10
    assert "copying savepoint" in caplog.text
    assert (tmp_path / "metrics.log").stat().st_size
    pipeline.close()


def faults_of(service):
    """A service that is unreachable, and one that refuses; the last one repeats what it knows of the secret."""
    repeated = html.escape(service.secrets[0]) if service.token is None else "nothing"
    said = f"<Error><Code>AccessDenied</Code><Message>the key {repeated} is not known</Message></Error>"
    return [reset, answer(403), answer(403, said.encode(), Content_Type="application/xml")]


def at_record(fault):
    """Fails the creation of a record, by which a batch commits."""

    def at(request, proceed):
        is_record = request.method != "GET" and b"_metadata" in request.target.encode() + request.body[:1000]
        return fault(request, proceed) if is_record else proceed()

    return at


def test_a_pipeline_that_fails_shows_no_secret(service, witness, tmp_path):
    pipeline = Pipeline(service, witness, tmp_path / "metrics.log")
    pipeline.run(0)
    pipeline.run(1)
    for fault in faults_of(service):
        service.faults.add(at_record(fault), times=10_000)
        assert isinstance(witness.failing(lambda: pipeline.run(2)), StatelineError)
        service.heal()
        pipeline.engine.restart()
        service.faults.add(fault, times=10_000)
        assert isinstance(witness.failing(lambda: pipeline.run(2)), StatelineError)
        assert isinstance(witness.failing(pipeline.move), StatelineError)
        witness.command("checkpoint", "ls", service.url("root"), *service.flags())
        see_pages(service, witness)
        service.heal()
    service.faults.add(fault, times=10_000)
    succeeded, _ = see_commands(service, witness, tmp_path)
    assert succeeded == []
    see_settings(service, witness)
    service.heal()
    pipeline.engine.restart()
    pipeline.run(2)
    with closing(open_store(service.place, service.options)) as everything_there:
        witness.see_store(everything_there)
    pipeline.close()


def test_the_witness_sees_a_secret_in_each_spelling():
    secret = CANARY
    for text in (secret, base64.b64encode(b"ab" + secret.encode()).decode(), secret.encode().hex(), "Hostile-A"):
        seen = Witness(secret)
        seen.see("text", "here", f"before {text} after")
        assert len(seen.found) == 1, text
    seen = Witness(secret)
    seen.see("text", "here", "a word that is harmless")
    assert seen.found == []
