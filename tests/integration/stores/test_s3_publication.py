"""What S3 may answer to a multipart publication, one test per answer, and what is left behind (nothing)."""

import boto3
import pytest
import worlds
from test_s3_conformance import BUCKET, open_s3

from stateline.errors import (
    AccessDeniedError,
    ConflictError,
    CorruptDataError,
    DataLossError,
    InvalidInputError,
    UnavailableError,
)
from stateline.testing.blob_conformance import bytes_of
from tests.kit.fault_proxy import FaultProxy, answer, answer_after_effect, lose_answer

MIB = 1024 * 1024
COMPLETE = {"method": "POST", "path": r"/target\?.*uploadId="}
COPY = {"method": "PUT", "path": r"/target\?.*partNumber="}
BEGIN = {"method": "POST", "path": r"/target\?uploads$"}
ABORT = {"method": "DELETE", "path": r"/target\?.*uploadId="}


def error(code):
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr("stateline.environment.time.sleep", lambda seconds: None)


@pytest.fixture(scope="module")
def proxy(ministack_endpoint):
    with FaultProxy(ministack_endpoint) as proxy:
        yield proxy


@pytest.fixture
def world(ministack_endpoint, proxy):
    made = worlds.s3_world(ministack_endpoint, proxy)
    yield made
    proxy.faults.clear()
    assert uploads(ministack_endpoint, made.store) == [], "an upload was left behind"
    made.store.close()


def uploads(endpoint, store):
    client = boto3.client("s3", endpoint_url=endpoint)
    found = client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
    client.close()
    return [upload["Key"] for upload in found if upload["Key"].startswith(store._prefix)]


@pytest.fixture
def parts(world):
    return [world.store.stage("target", bytes_of(5 * MIB, 1)), world.store.stage("target", bytes_of(1000, 2))]


DATA = bytes_of(5 * MIB, 1) + bytes_of(1000, 2)


def begun(world):
    return sum("target?uploads" in seen for seen in world.faults.seen)


@pytest.mark.parametrize("effect", [answer, answer_after_effect])
def test_an_error_inside_status_200_is_not_success(world, parts, effect):
    world.faults.add(effect(200, error("InternalError")), **COMPLETE)
    world.store.publish("target", parts, "nonce")
    assert world.store.get("target") == DATA


def test_an_error_inside_status_200_for_ever_is_a_failure(world, parts):
    world.faults.add(answer(200, error("InternalError")), **COMPLETE, times=1000)
    with pytest.raises(UnavailableError):
        world.store.publish("target", parts, "nonce")
    assert [info.name for info in world.store.list("t")] == []


def test_an_error_inside_status_200_of_a_copied_part_is_not_success(world, parts):
    world.faults.add(answer(200, error("InternalError")), **COPY)
    world.store.publish("target", parts, "nonce")
    assert world.store.get("target") == DATA


def test_no_such_upload_after_our_own_success_is_success(world, parts):
    """The answer to Complete is lost; the SDK repeats it; the upload is gone, because it was completed."""
    world.faults.add(lose_answer, **COMPLETE)
    world.faults.add(answer(404, error("NoSuchUpload")), **COMPLETE)
    before = begun(world)
    world.store.publish("target", parts, "nonce")
    assert world.store.get("target") == DATA
    assert begun(world) == before + 1


def test_completing_twice_with_success_both_times_is_success(world, parts):
    """The other answer that services give to a repeated Complete."""
    world.faults.add(lose_answer, **COMPLETE)
    world.store.publish("target", parts, "nonce")
    assert world.store.get("target") == DATA


def test_no_such_upload_without_a_target_starts_anew(world, parts):
    world.faults.add(answer(404, error("NoSuchUpload")), **COMPLETE)
    before = begun(world)
    world.store.publish("target", parts, "nonce")
    assert world.store.get("target") == DATA
    assert begun(world) == before + 2


def test_a_conditional_request_conflict_starts_anew_with_the_pieces_still_there(world, parts):
    world.faults.add(answer(409, error("ConditionalRequestConflict")), **COMPLETE, times=2)
    before = begun(world)
    world.store.publish("target", parts, "nonce")
    assert world.store.get("target") == DATA
    assert begun(world) == before + 3


def test_an_endless_conflict_is_unavailable(world, parts):
    world.faults.add(answer(409, error("ConditionalRequestConflict")), **COMPLETE, times=1000)
    with pytest.raises(UnavailableError):
        world.store.publish("target", parts, "nonce")


def test_a_precondition_that_fails_is_read_back_and_compared(world, parts):
    world.store.publish("target", parts, "nonce")
    assert world.store.publish("target", parts, "nonce").size == len(DATA)
    with pytest.raises(ConflictError):
        world.store.publish("target", parts, "another nonce")
    assert world.store.head("target").nonce == "nonce"


def test_a_lost_completion_whose_upload_was_aborted_had_no_effect(world, parts):
    """No answer came, but the abort was confirmed: so nothing can happen any more, and the outcome is known."""

    def vanish(request, proceed):
        return None

    world.faults.add(vanish, **COMPLETE, times=1000)
    with pytest.raises(UnavailableError):
        world.store.publish("target", parts, "nonce")


def test_a_large_piece_that_changed_is_never_published(world, parts):
    world.store.put(parts[0].name, bytes_of(5 * MIB, 9))
    with pytest.raises(CorruptDataError):
        world.store.publish("target", parts, "nonce")


def test_a_large_piece_that_is_gone_is_data_loss(world, parts):
    world.store.discard(parts[:1])
    with pytest.raises(DataLossError, match="is gone"):
        world.store.publish("target", parts, "nonce")


def test_a_part_of_a_piece_that_changed_is_never_joined(world):
    """The first bytes of a long piece after a short one are read, and pinned by ETag."""
    parts = [world.store.stage("target", b"short"), world.store.stage("target", bytes_of(11 * MIB, 1))]
    world.store.publish("elsewhere", parts, "nonce")
    assert world.store.get("elsewhere") == b"short" + bytes_of(11 * MIB, 1)
    world.store.put(parts[1].name, bytes_of(11 * MIB, 2))
    with pytest.raises(CorruptDataError):
        world.store.publish("target", parts, "nonce")


def test_more_pieces_than_an_upload_may_have_parts_are_gathered_first(world, monkeypatch):
    monkeypatch.setattr("stateline.blob.s3_uploads.PARTS_MAX", 2)
    monkeypatch.setattr("stateline.blob.s3_uploads._COPIED_BYTES_MAX", 12 * MIB)
    pieces = [bytes_of(5 * MIB + index, index) for index in range(4)]
    parts = [world.store.stage("target", piece) for piece in pieces]
    world.store.publish("target", parts, "nonce")
    assert world.store.get("target") == b"".join(pieces)
    world.store.discard(parts)
    assert list(world.store.list_staged()) == []


def test_credentials_without_rights_are_a_typed_error(world, parts):
    world.faults.add(answer(403, error("AccessDenied")), **BEGIN)
    with pytest.raises(AccessDeniedError) as caught:
        world.store.publish("target", parts, "nonce")
    assert isinstance(caught.value, PermissionError)
    world.faults.add(answer(400, error("ExpiredToken")), method="GET", path="object")
    with pytest.raises(AccessDeniedError):
        world.store.get("object")


def test_a_failed_deletion_names_what_is_left(world):
    world.store.put("object", b"x")
    body = (
        b"<?xml version='1.0'?><DeleteResult><Error><Key>object</Key><Code>AccessDenied</Code></Error></DeleteResult>"
    )
    world.faults.add(answer(200, body), method="POST", path=r"\?delete$")
    with pytest.raises(AccessDeniedError, match="object"):
        world.store.delete(["object"])


def test_a_bucket_that_does_not_exist_is_named(ministack_endpoint):
    store = open_s3(ministack_endpoint, "s3://no-such-bucket/root")
    with pytest.raises(InvalidInputError, match="no-such-bucket"):
        store.put("object", b"x")
    with pytest.raises(InvalidInputError, match="no-such-bucket"):
        store.publish("object", [], "nonce")
    store.close()


def test_a_service_without_checksums_is_served_too(moto_endpoint):
    store = open_s3(moto_endpoint, checksums="false")
    parts = [store.stage("target", bytes_of(5 * MIB)), store.stage("target", b"tail")]
    store.publish("target", parts, "nonce")
    assert store.publish("target", parts, "nonce").nonce == "nonce"
    assert store.get("target") == bytes_of(5 * MIB) + b"tail"
    store.put(parts[0].name, bytes_of(5 * MIB, 3))
    with pytest.raises(CorruptDataError):
        store.publish("other", parts, "nonce")
    store.close()
