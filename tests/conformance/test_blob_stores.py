"""The promises of a blob store, kept by the two backends that need nothing installed."""

import uuid

import pytest

from stateline.blob.local import LocalStore, LocalStoreSettings
from stateline.blob.memory import MemoryStore
from stateline.testing.blob_conformance import BlobStoreConformance


class TestMemoryStore(BlobStoreConformance):
    seen_by_other_processes = False

    @pytest.fixture
    def store(self):
        name = uuid.uuid4().hex
        yield MemoryStore(name)
        MemoryStore.forget(name)


class TestLocalStore(BlobStoreConformance):
    keeps_nonces = False

    @pytest.fixture
    def store(self, tmp_path):
        return LocalStore(tmp_path / "root")


class TestLocalStoreWithoutFsync(TestLocalStore):
    @pytest.fixture
    def store(self, tmp_path):
        return LocalStore(tmp_path / "root", LocalStoreSettings(fsync=False))
