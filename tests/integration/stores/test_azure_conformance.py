"""The promises of stores and files, kept on Azure Blob Storage through the real SDK, on Azurite."""

import uuid
from functools import cache

import msgspec
import pytest
from azure.storage.blob import BlobServiceClient
from emulators import AZURITE_ACCOUNT, AZURITE_KEY

from stateline.blob.azure import AzureStore
from stateline.testing.blob_conformance import BlobStoreConformance
from stateline.testing.recoverable_conformance import RecoverableConformance

CONTAINER = "stateline-tests"
MIB = 1024 * 1024


def connection_string(endpoint):
    return (
        f"DefaultEndpointsProtocol=http;AccountName={AZURITE_ACCOUNT};AccountKey={AZURITE_KEY};BlobEndpoint={endpoint};"
    )


@cache
def make_container(endpoint):
    with BlobServiceClient.from_connection_string(connection_string(endpoint)) as service:
        service.create_container(CONTAINER).close()


@pytest.fixture
def azure(azurite_endpoint, monkeypatch):
    """What the chain of credentials finds, here and in other processes."""
    make_container(azurite_endpoint)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection_string(azurite_endpoint))
    return lambda url=None, **options: AzureStore.open(
        url or f"az://{CONTAINER}/{uuid.uuid4().hex}/root", {"page_size": "10", **options}, None
    )


class OnAzurite:
    natural_piece_bytes = 5 * MIB

    @pytest.fixture
    def store(self, azure):
        store = azure()
        yield store
        store.close()


class TestAzureStore(OnAzurite, BlobStoreConformance):
    pass


class TestAzureFiles(OnAzurite, RecoverableConformance):
    def lose(self, store, point, index):
        """Short pieces of a file that ended are in one block, and in blobs beside it: all of them have expired."""
        store.discard(point.parts)
        block, *blobs = point.parts
        return msgspec.structs.replace(point, parts=(msgspec.structs.replace(block, name=uuid.uuid4().hex), *blobs))


class TestAzureStoreOfBlocks(OnAzurite, BlobStoreConformance):
    """Every piece a block, however short: blocks cannot be read back, and a foreign blob takes them along."""

    foreign_writes_keep_pieces = False

    @pytest.fixture
    def store(self, azure):
        store = azure(block_size_min="0")
        yield store
        store.close()

    def lose(self, store, part):
        """A piece that has expired: its id names nothing."""
        return msgspec.structs.replace(part, name=uuid.uuid4().hex)

    def damage(self, store, part):
        with store._client.get_blob_client(store._key("target")) as blob:
            blob.stage_block(part.name, b"another length")
        return part
