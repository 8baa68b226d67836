"""The promises of stores and files, kept on Cloud Storage through the real SDK, on a fake that enforces generations."""

import uuid
from typing import ClassVar

import pytest

from stateline.blob.gcs import GcsStore
from stateline.testing.blob_conformance import BlobStoreConformance
from stateline.testing.recoverable_conformance import RecoverableConformance
from tests.kit.gcs_server import GcsServer


@pytest.fixture(scope="session")
def gcs_server():
    with GcsServer() as server:
        yield server


def open_gcs(endpoint, url=None, **options):
    url = url or f"gs://bucket-{uuid.uuid4().hex[:12]}/root"
    return GcsStore.open(url, {"endpoint": endpoint, "anonymous": "true", "page_size": "10", **options}, None)


class OnOurFake:
    options: ClassVar[dict] = {}

    @pytest.fixture
    def store(self, gcs_server):
        store = open_gcs(gcs_server.url, **self.options)
        self.server = gcs_server
        yield store
        store.close()

    def damage(self, store, part):
        self.server.damage(part.container, part.name)
        return part


class TestGcsStore(OnOurFake, BlobStoreConformance):
    pass


class TestGcsFiles(OnOurFake, RecoverableConformance):
    pass


class TestGcsStoreWithTemporaryBucketAndEntropy(OnOurFake, BlobStoreConformance):
    options: ClassVar[dict] = {"temporary_bucket": "temporary-bucket", "entropy": "true"}
