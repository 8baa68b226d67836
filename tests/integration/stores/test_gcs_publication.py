"""What the store does on Cloud Storage that others do not: names, temporary buckets, the compose tree, generations."""

import re
import uuid

import pytest
import worlds
from test_gcs_conformance import open_gcs

from stateline.blob.gcs import GcsStoreSettings
from stateline.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptDataError,
    DataLossError,
    InvalidInputError,
    UnavailableError,
)
from stateline.recoverable import RecoverableWriter, RecoverableWriterSettings
from stateline.recoverable.interchange import FlinkPoint, import_point
from stateline.testing.blob_conformance import bytes_of
from tests.kit.fault_proxy import answer
from tests.kit.gcs_server import GcsServer

MIB = 1024 * 1024
UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr("google.api_core.retry.retry_unary.time.sleep", lambda seconds: None)


@pytest.fixture
def server():
    with GcsServer() as server:
        yield server


@pytest.fixture
def opened(server):
    stores = []

    def open_store(url="gs://foo", **options):
        stores.append(open_gcs(server.url, url, **{**worlds.PATIENCE, **options}))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def stage(store, count, length=50):
    return [store.stage("bar", bytes_of(length, seed)) for seed in range(count)]


def joined(count, length=50):
    return b"".join(bytes_of(length, seed) for seed in range(count))


def requests_of(server, pattern):
    return [seen for seen in server.faults.seen if re.search(pattern, seen)]


def test_pieces_are_named_after_their_target(opened):
    part = opened().stage("bar", b"x")
    assert re.fullmatch(rf"\.inprogress/foo/bar/{UUID}", part.name)
    assert part.container == "foo"
    part = opened("gs://foo/a/b").stage("c/bar", b"x")
    assert re.fullmatch(rf"\.inprogress/foo/a/b/c/bar/{UUID}", part.name)


def test_entropy_stands_where_a_listing_still_finds_it(opened):
    store = opened(entropy="true")
    parts = stage(store, 3)
    for part in parts:
        assert re.fullmatch(rf"\.inprogress/[0-9a-f]{{2}}/foo/bar/{UUID}", part.name)
    assert {info.name for info in store.list_staged()} == {part.name for part in parts}
    assert {info.name for info in opened().list_staged()} == {part.name for part in parts}


def test_pieces_live_in_the_temporary_bucket_until_they_are_published(server, opened):
    store = opened(temporary_bucket="temporary")
    parts = stage(store, 3)
    assert server.names("foo") == []
    assert len(server.names("temporary")) == 3
    store.publish("bar", parts, "nonce")
    store.discard(parts)
    assert server.names("foo") == ["bar"]
    assert server.names("temporary") == []
    assert store.get("bar") == joined(3)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"temporary_bucket": "temporary"}),
        ({"temporary_bucket": "temporary"}, {}),
        ({"temporary_bucket": "temporary"}, {"temporary_bucket": "another", "entropy": "true"}),
        ({"entropy": "true"}, {"upload_chunk_size": "256KiB"}),
    ],
)
def test_options_may_change_between_two_lives_of_a_file(server, opened, before, after):
    settings = RecoverableWriterSettings(chunk_size=1000, fold_size=500)
    stream = RecoverableWriter(opened(**before), settings).open("bar")
    stream.write(bytes_of(2300))
    point = stream.persist()
    writer = RecoverableWriter(opened(**after), RecoverableWriterSettings(chunk_size=700))
    stream = writer.recover(point)
    stream.write(bytes_of(40_000, 1))
    end = stream.close_for_commit().commit_point
    writer.recover_for_commit(end).commit_after_recovery()
    assert writer.store.get("bar") == bytes_of(2300) + bytes_of(40_000, 1)
    assert writer.cleanup(point, keep=end)
    assert server.names("foo") == ["bar"]
    assert server.names("temporary") + server.names("another") == []


@pytest.mark.parametrize("count", [1, 32, 33, 100])
def test_pieces_are_composed_in_a_balanced_tree(server, opened, count):
    store = opened()
    parts = stage(store, count)
    store.publish("bar", parts, "nonce")
    assert store.get("bar") == joined(count)
    assert server.components("foo", "bar") == count
    groups = 0 if count <= 32 else -(-count // 32)
    assert len(requests_of(server, "POST .*/compose")) == groups + 1
    store.discard(parts)
    assert server.names("foo") == ["bar"], "an intermediate object was left behind"


def test_a_publication_that_died_goes_on_with_the_same_intermediates(server, opened):
    store = opened()
    parts = stage(store, 100)
    server.faults.add(answer(503), method="POST", path="/o/bar/compose", times=1000)
    with pytest.raises(UnavailableError):
        store.publish("bar", parts, "nonce")
    left = set(server.names("foo")) - {part.name for part in parts}
    assert len(left) == 4
    server.faults.clear()
    again = opened()
    again.publish("bar", parts, "nonce")
    assert again.get("bar") == joined(100)
    again.discard(parts)
    assert server.names("foo") == ["bar"]


def test_every_creation_is_conditional(server, opened):
    """No write may replace anything: each says ifGenerationMatch=0."""
    store = opened(temporary_bucket="temporary")
    parts = stage(store, 40)
    store.publish("bar", parts, "nonce")
    store.publish("empty", [], "nonce")
    store.put_if_absent("object", b"x")
    writes = requests_of(server, "^POST ")
    assert len(writes) > 40
    assert [seen for seen in writes if "ifGenerationMatch=0" not in seen] == []


def test_a_source_is_the_generation_that_was_staged(server, opened):
    store = opened()
    parts = stage(store, 2)
    same_name = store._client.bucket("foo").blob(parts[0].name)
    same_name.upload_from_string(b"other bytes under the same name")
    with pytest.raises(DataLossError, match=re.escape(parts[0].name)):
        store.publish("bar", parts, "nonce")
    store.discard(parts)
    assert server.names("foo") == [parts[0].name], "what replaced our piece is not ours to delete"


@pytest.mark.parametrize("count", [1, 3, 40])
def test_a_result_with_another_checksum_does_not_stay(server, opened, count):
    store = opened()
    parts = stage(store, count)
    server.damage("foo", parts[-1].name)
    for _ in range(2):
        with pytest.raises(CorruptDataError):
            store.publish("bar", parts, "nonce")
        assert "bar" not in server.names("foo")


def test_equal_bytes_under_another_nonce_are_foreign(opened):
    store = opened()
    store.publish("bar", stage(store, 2), "theirs")
    with pytest.raises(ConflictError):
        store.publish("bar", stage(store, 2), "ours")


def test_a_rewrite_goes_on_until_it_is_done(server, opened):
    store = opened(temporary_bucket="temporary")
    parts = [store.stage("bar", bytes_of(3 * MIB, seed)) for seed in range(2)]
    store.publish("bar", parts, "nonce")
    assert len(requests_of(server, "/rewriteTo/")) == 6
    assert store.get("bar") == bytes_of(3 * MIB) + bytes_of(3 * MIB, 1)


def test_long_pieces_are_uploaded_in_chunks(server, opened):
    store = opened(upload_chunk_size="4MiB")
    part = store.stage("bar", bytes_of(9 * MIB))
    assert len(requests_of(server, "^PUT .*upload_id=")) == 3
    server.faults.add(answer(503), method="PUT", path="upload_id=", skip=1)
    again = store.stage("bar", bytes_of(9 * MIB))
    assert (part.length, part.crc32c) == (again.length, again.crc32c)


def test_an_object_of_usual_length_is_one_request(server, opened):
    store = opened()
    store.put_if_absent("bar", bytes_of(9 * MIB))
    assert len(server.faults.seen) == 1
    assert store.get("bar") == bytes_of(9 * MIB)
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("bar", bytes_of(9 * MIB, 1))


@pytest.mark.parametrize("wrong", [{"upload_chunk_size": "100KB"}, {"attempts": "0"}, {"entropi": "true"}])
def test_wrong_options_are_refused(opened, wrong):
    with pytest.raises(InvalidInputError):
        opened(**wrong)
    assert GcsStoreSettings(upload_chunk_size="512KiB").upload_chunk_size == 512 * 1024


def test_a_store_lists_only_the_leftovers_of_its_own_root(opened):
    outer, inner = opened("gs://foo/a"), opened("gs://foo/a/b")
    theirs, ours = inner.stage("bar", b"x"), outer.stage("bar", b"x")
    outer.stage("b/bar", b"x")
    assert theirs.name not in {info.name for info in outer.list_staged()}
    assert ours.name in {info.name for info in outer.list_staged()}
    assert {info.name for info in inner.list_staged()} == {theirs.name}


def test_names_too_long_to_be_repeated_are_digested(server, opened):
    store = opened("gs://foo/root", entropy="true")
    target = "/".join(["n" * 99] * 9)
    parts = [store.stage(target, bytes_of(10, seed)) for seed in range(40)]
    assert {info.name for info in store.list_staged()} == {part.name for part in parts}
    store.publish(target, parts, "nonce")
    store.discard(parts)
    assert server.names("foo") == [f"root/{target}"]


@pytest.mark.parametrize("entropy", ["false", "true"])
@pytest.mark.parametrize("target", ["bar", "/".join(["n" * 99] * 9)])
def test_a_point_of_another_root_is_refused_and_stays_good(opened, target, entropy):
    """A piece is found from anywhere in its bucket: here its rows would become another file, and leave theirs."""
    theirs = RecoverableWriter(opened("gs://foo/a", entropy=entropy))
    stream = theirs.open(target)
    stream.write(b"rows")
    resume = stream.persist()
    point = stream.close_for_commit().commit_point
    for root in ("gs://foo/b", "gs://foo", "gs://foo/a/b", "gs://other/a"):
        ours = RecoverableWriter(opened(root))
        with pytest.raises(InvalidInputError, match="another store"):
            ours.recover_for_commit(point).commit_after_recovery()
        with pytest.raises(InvalidInputError, match="another store"):
            ours.recover(resume).close_for_commit()
        if root != "gs://foo":
            with pytest.raises(InvalidInputError, match="another store"):
                ours.store.discard(point.parts)
            with pytest.raises(InvalidInputError, match="another store"):
                ours.store.read_staged(point.parts[0])
    theirs.recover_for_commit(point).commit_after_recovery()
    assert theirs.store.get(target) == b"rows"


def test_a_missing_bucket_is_named(opened):
    for call in (lambda store: store.put("bar", b"x"), lambda store: store.stage("bar", b"x")):
        with pytest.raises(InvalidInputError, match="bucket does not exist"):
            call(opened("gs://missing-bucket"))


def test_a_file_that_flink_began_is_finished_here(opened):
    """Its checkpoint knows ids only; lengths, checksums and generations come from the store."""
    store = opened("gs://foo/out")
    bucket = store._client.bucket("foo")
    ids = (uuid.uuid4(), uuid.uuid4())
    flink = FlinkPoint(bucket="foo", object="out/bar", components=ids, position=30, closed=False)
    for entropy in (False, True):
        for index, component in enumerate(ids):
            name = f"{component if entropy else ''}.inprogress/foo/out/bar/{component}"
            bucket.blob(name).upload_from_string(bytes_of(15, index))
        point = import_point(flink, store, uuid.uuid4().hex, entropy=entropy)
        stream = RecoverableWriter(store).recover(point)
        stream.write(b" and more")
        stream.close_for_commit().commit()
        assert store.get("bar") == bytes_of(15) + bytes_of(15, 1) + b" and more"
        store.delete(["bar"])
    with pytest.raises(DataLossError):
        import_point(flink, store, "nonce", temporary_bucket="elsewhere")


def test_an_independent_fake_sees_the_same_files(fake_gcs_endpoint):
    """It ignores preconditions, so this shows only that our requests are understood elsewhere, too."""
    store = open_gcs(fake_gcs_endpoint, "gs://smoke/root")
    store._client.create_bucket("smoke")
    writer = RecoverableWriter(store, RecoverableWriterSettings(chunk_size=100))
    stream = writer.open("bar")
    stream.write(bytes_of(4050))
    stream = writer.recover(stream.persist())
    stream.write(bytes_of(10, 1))
    stream.close_for_commit().commit()
    assert store.get("bar") == bytes_of(4050) + bytes_of(10, 1)
    assert [info.name for info in store.list("")] == ["bar"]
    store.close()
