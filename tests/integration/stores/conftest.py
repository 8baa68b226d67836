"""One emulator of each kind for the whole run, started when the first test asks for it."""

from __future__ import annotations

import gc
import warnings

import emulators
import pytest

from tests.kit.fault_proxy import FaultProxy
from tests.kit.gcs_server import GcsServer

pytest.register_assert_rewrite(
    "stateline.testing.blob_conformance",
    "stateline.testing.closing_conformance",
    "stateline.testing.recoverable_conformance",
)


@pytest.fixture(scope="session")
def ministack_endpoint():
    with emulators.ministack() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def moto_endpoint():
    with emulators.moto() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def azurite_endpoint():
    with emulators.azurite() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def fake_gcs_endpoint():
    with emulators.fake_gcs() as endpoint:
        yield endpoint


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    """What the SDKs' own chains find; the emulators accept anything."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def collected():
    """The SDK of Cloud Storage leaves the connection of a refused download to the collector, which then complains."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def s3_world(ministack_endpoint):
    import worlds  # Here, because it imports modules of tests, whose assertions pytest rewrites before.

    with FaultProxy(ministack_endpoint) as proxy:
        made = worlds.s3_world(ministack_endpoint, proxy)
        yield made
        made.store.close()


@pytest.fixture
def gcs_world(collected):
    import worlds

    with GcsServer() as server:
        made = worlds.gcs_world(server)
        yield made
        made.store.close()


@pytest.fixture
def azure_world(azurite_endpoint, monkeypatch):
    import worlds

    with FaultProxy(azurite_endpoint) as proxy:
        made = worlds.azure_world(azurite_endpoint, proxy, monkeypatch)
        yield made
        made.store.close()


@pytest.fixture(params=["s3", "gcs", "azure"])
def world(request):
    """Each cloud, behind a server that counts requests and fails on demand."""
    return request.getfixturevalue(f"{request.param}_world")
