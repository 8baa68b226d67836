"""One emulator of each kind for the whole run, started when the first test asks for it."""

from __future__ import annotations

import gc
import warnings

import emulators
import pytest

pytest.register_assert_rewrite("stateline.testing.blob_conformance", "stateline.testing.recoverable_conformance")


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
