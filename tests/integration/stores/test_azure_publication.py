"""What the store does on Azure that others do not: blocks of the target, and short pieces beside them."""

import re

import msgspec
import pytest
import worlds
from test_azure_conformance import CONTAINER

from stateline.blob.azure import AzureStore
from stateline.checkpoint import CheckpointedStateScope, CheckpointStreamFactory, stream_factory
from stateline.errors import ConflictError, CorruptDataError, DataLossError, InvalidInputError
from stateline.recoverable import RecoverableWriter, RecoverableWriterSettings
from stateline.testing.blob_conformance import bytes_of
from tests.kit.fault_proxy import FaultProxy, answer

BLOCK_LIST = {"method": "PUT", "path": "comp=blocklist"}


@pytest.fixture(scope="module")
def proxy(azurite_endpoint):
    with FaultProxy(azurite_endpoint) as proxy:
        yield proxy


@pytest.fixture
def world(azurite_endpoint, proxy, monkeypatch):
    made = worlds.azure_world(azurite_endpoint, proxy, monkeypatch)
    yield made
    proxy.faults.clear()
    made.store.close()


@pytest.fixture
def store(world):
    return world.store


def test_long_pieces_are_blocks_with_ids_of_one_width(store):
    parts = [store.stage("target", bytes_of(1000, seed)) for seed in range(5)]
    assert all(re.fullmatch("[0-9a-f]{32}", part.name) for part in parts)
    assert list(store.list_staged()) == []
    assert [store.read_staged(part) for part in parts] == [None] * 5


def test_short_pieces_are_blobs_that_can_be_read_back(store):
    part = store.stage("target", b"short")
    assert part.name.startswith(".inprogress/")
    assert store.read_staged(part) == b"short"


def test_only_short_pieces_are_sent_again(world, store):
    lengths = (1000, 3, 4, 2000, 5)
    parts = [store.stage("target", bytes_of(length, seed)) for seed, length in enumerate(lengths)]
    world.faults.seen.clear()
    store.publish("target", parts, "nonce")
    blocks = [seen for seen in world.faults.seen if "comp=block&" in seen or seen.endswith("comp=block")]
    assert len(blocks) == 2
    assert store.get("target") == b"".join(bytes_of(length, seed) for seed, length in enumerate(lengths))
    assert store.head("target").nonce == "nonce"


def test_large_state_is_published_from_blocks_of_its_own_blob(store, monkeypatch):
    monkeypatch.setattr(stream_factory, "PIECE_BYTES", 3000)
    factory = CheckpointStreamFactory(store, "chk-1", "shared", 100)
    stream = factory.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED)
    for seed in range(10):
        stream.write(bytes_of(2000, seed))
    with stream.close_and_get_handle().open() as file:
        assert file.read() == b"".join(bytes_of(2000, seed) for seed in range(10))


def test_a_file_of_many_lives_keeps_its_short_end_mergeable(store):
    writer = RecoverableWriter(store, RecoverableWriterSettings(chunk_size=3000, fold_size=1000))
    stream, data = writer.open("target"), bytes_of(9000)
    for start in range(0, 9000, 300):
        stream.write(data[start : start + 300])
        point = stream.persist()
        stream = writer.recover(point, verify=False)
        assert len(point.parts) <= point.length // 1000 + 3
    writer.recover_for_commit(stream.close_for_commit().commit_point).commit()
    assert store.get("target") == data


def test_blocks_side_by_side_are_not_taken_from_each_other(store):
    ours = [store.stage("target", bytes_of(1000, seed)) for seed in range(2)]
    theirs = [store.stage("target", bytes_of(1500, seed)) for seed in range(2)]
    store.publish("target", ours, "ours")
    assert store.get("target") == bytes_of(1000) + bytes_of(1000, 1)
    with pytest.raises(ConflictError):
        store.publish("target", theirs, "theirs")


@pytest.mark.parametrize("data", [b"", b"short"])
def test_a_short_file_is_created_beside_blocks_that_a_dead_writer_left(store, data):
    """Azurite takes blocks that were never committed for a blob, and would refuse to create one for ever."""
    store.stage("target", bytes_of(1000))
    parts = [store.stage("target", data)] if data else []
    assert store.publish("target", parts, "nonce").nonce == "nonce"
    assert store.get("target") == data
    store.publish("target", parts, "nonce")
    with pytest.raises(ConflictError):
        store.publish("target", parts, "other")
    store.stage("target", bytes_of(1000))
    with pytest.raises(ConflictError):
        store.publish("target", [store.stage("target", b"other")], "other")
    assert store.get("target") == data


def test_a_block_that_vanished_between_check_and_commit_is_data_loss(world, store):
    parts = [store.stage("target", bytes_of(1000))]
    body = b"<?xml version='1.0'?><Error><Code>InvalidBlockList</Code><Message>m</Message></Error>"
    world.faults.add(answer(400, body, x_ms_error_code="InvalidBlockList"), **BLOCK_LIST)
    with pytest.raises(DataLossError):
        store.publish("target", parts, "nonce")
    store.publish("target", parts, "nonce")


def test_an_expired_block_is_data_loss_and_one_of_another_length_is_corrupt(store):
    part = store.stage("target", bytes_of(1000))
    with pytest.raises(DataLossError):
        store.publish("target", [part, msgspec.structs.replace(part, name="0" * 32)], "nonce")
    with pytest.raises(CorruptDataError):
        store.publish("target", [msgspec.structs.replace(part, length=999)], "nonce")
    with pytest.raises(DataLossError):
        store.publish("never-written", [part], "nonce")


def test_more_blocks_than_a_blob_may_have_are_refused(store, monkeypatch):
    monkeypatch.setattr("stateline.blob.azure_blocks._BLOCKS_MAX", 2)
    parts = [store.stage("target", bytes_of(1000, seed)) for seed in range(3)]
    with pytest.raises(InvalidInputError, match="3 blocks"):
        store.publish("target", parts, "nonce")


def test_short_pieces_are_joined_into_blocks_of_bounded_length(store, monkeypatch):
    monkeypatch.setattr("stateline.blob.azure_blocks._JOINED_BYTES_MAX", 1200)
    parts = [store.stage("target", bytes_of(500, seed)) for seed in range(7)]
    store.publish("target", parts, "nonce")
    assert store.get("target") == b"".join(bytes_of(500, seed) for seed in range(7))


def test_folder_marks_of_hierarchical_accounts_are_not_objects(store):
    store.put("folder/object", b"x")
    with store._client.get_blob_client(store._key("folder")) as mark:
        mark.upload_blob(b"", metadata={"hdi_isfolder": "true"})
    assert [info.name for info in store.list("")] == ["folder/object"]


def test_a_container_that_does_not_exist_is_named(world):
    store = AzureStore.open("az://no-such-container/root", {}, None)
    with pytest.raises(InvalidInputError, match="no-such-container"):
        store.put("object", b"x")
    store.close()


@pytest.mark.parametrize(
    ("url", "options", "account_url", "canonical"),
    [
        ("az://c/p", {"account": "acc"}, "https://acc.blob.core.windows.net", "az://c/p"),
        (
            "abfss://c@acc.dfs.core.windows.net/p",
            {},
            "https://acc.blob.core.windows.net",
            "az://c@acc.blob.core.windows.net/p",
        ),
        ("az://c@acc/p", {}, "https://acc.blob.core.windows.net", "az://c/p"),
        ("az://c/p", {"endpoint": "https://host/x"}, "https://host/x", "az://c/p"),
    ],
)
def test_accounts_come_from_the_url_or_an_option(url, options, account_url, canonical):
    store = AzureStore.open(url, options, None)
    assert store._account_url() == account_url
    assert store.url == canonical


def test_an_account_is_needed(monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT", raising=False)
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    with pytest.raises(InvalidInputError, match="no storage account"):
        AzureStore.open(f"az://{CONTAINER}/p", {}, None).head("object")
