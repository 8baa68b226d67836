"""Copies within a cloud: made by the service where it can, of exactly the version that was looked at."""

import boto3
import pytest
from test_s3_conformance import BUCKET

from stateline.checkpoint import CheckpointedStateScope, CheckpointStreamFactory
from stateline.errors import AlreadyExistsError, NotFoundError
from stateline.testing.blob_conformance import bytes_of

MIB = 1024 * 1024
DATA = bytes_of(12 * MIB)


@pytest.fixture(params=["s3", "gcs"])
def world(request):
    return request.getfixturevalue(f"{request.param}_world")


def uploads_left(store):
    client = boto3.client("s3", endpoint_url=store._settings.endpoint)
    found = client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
    client.close()
    return [upload["Key"] for upload in found if upload["Key"].startswith(store._prefix)]


def test_the_bytes_do_not_come_by(world):
    assert world.store.copies_cheaply
    world.store.put("object", DATA)
    del world.faults.seen[:]
    made = world.store.copy("object", "target")
    seen = list(world.faults.seen)
    assert not [line for line in seen if "/download/" in line or "/upload/" in line]
    assert not [line for line in seen if line.startswith("PUT") and "partNumber" not in line]
    assert not [line for line in seen if line.startswith("GET") and line.endswith("/object")]
    assert (made.name, made.size, made.crc32c) == ("target", len(DATA), world.store.head("object").crc32c)
    assert world.store.get("target") == DATA


def test_a_long_object_is_copied_in_ranges(s3_world, monkeypatch):
    monkeypatch.setattr("stateline.blob.s3_uploads._COPIED_BYTES_MAX", 5 * MIB)
    s3_world.store.put("object", DATA)
    s3_world.store.copy("object", "target")
    assert sum("/target?" in line and "partNumber" in line for line in s3_world.faults.seen) == 3
    assert s3_world.store.get("target") == DATA


CHANGES = {
    "replaced": lambda store: store.put("object", b"x" * 2000),
    "deleted": lambda store: store.delete(["object"]),
}


@pytest.mark.parametrize("meanwhile", CHANGES.values(), ids=CHANGES.keys())
def test_a_source_that_changes_meanwhile_is_not_copied(world, monkeypatch, meanwhile):
    store = world.store
    store.put("object", bytes_of(2000))
    duplicate = store._duplicate

    def late(*arguments):
        meanwhile(store)
        return duplicate(*arguments)

    monkeypatch.setattr(store, "_duplicate", late)
    with pytest.raises(NotFoundError, match="while it was copied"):
        store.copy("object", "target")
    with pytest.raises(NotFoundError):
        store.head("target")
    if world.name == "s3":
        assert uploads_left(store) == []


def test_nothing_else_is_overwritten_and_no_upload_stays(world):
    store = world.store
    store.put("object", bytes_of(2000))
    store.put("target", b"other")
    with pytest.raises(AlreadyExistsError):
        store.copy("object", "target")
    assert store.get("target") == b"other"
    if world.name == "s3":
        assert uploads_left(store) == []


def test_an_empty_object_is_copied(world):
    world.store.put("object", b"")
    assert world.store.copy("object", "target").size == 0
    assert world.store.get("target") == b""


def test_an_object_without_a_checksum_is_copied(s3_world):
    store = s3_world.store
    client = boto3.client("s3", endpoint_url=store._settings.endpoint)
    client.put_object(Bucket=BUCKET, Key=f"{store._prefix}/object", Body=b"foreign", ChecksumAlgorithm="SHA256")
    client.close()
    store.copy("object", "target")
    assert store.get("target") == b"foreign"


def test_state_files_are_duplicated_by_the_service(world):
    factory = CheckpointStreamFactory(world.store, "chk-7", "shared", 0)
    with factory.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED) as stream:
        stream.write(b"state")
        handle = stream.close_and_get_handle()
    assert factory.can_fast_duplicate(handle, CheckpointedStateScope.EXCLUSIVE)
    (copy,) = factory.duplicate([handle], CheckpointedStateScope.EXCLUSIVE)
    handle.discard()
    assert (world.store.get(copy.name), copy.size) == (b"state", 5)
