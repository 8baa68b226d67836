"""The promises of recoverable files, kept over the two backends that need nothing installed."""

import uuid

import pytest

from stateline.blob.local import LocalStore
from stateline.blob.memory import MemoryStore
from stateline.testing.recoverable_conformance import RecoverableConformance


class TestMemoryStore(RecoverableConformance):
    seen_by_other_processes = False

    @pytest.fixture
    def store(self):
        name = uuid.uuid4().hex
        yield MemoryStore(name)
        MemoryStore.forget(name)


class TestLocalStore(RecoverableConformance):
    keeps_nonces = False

    @pytest.fixture
    def store(self, tmp_path):
        return LocalStore(tmp_path / "root")
