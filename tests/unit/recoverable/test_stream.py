"""What a stream holds in memory, and how it behaves over stores that cannot read pieces back."""

import contextlib
import random
import tracemalloc
import uuid

import msgspec
import numpy as np
import pytest

from stateline.blob import StoreDecorator
from stateline.blob.local import LocalStore
from stateline.blob.memory import MemoryStore
from stateline.errors import CorruptDataError, InvalidInputError, OutcomeUnknownError, UnavailableError
from stateline.handles import Part
from stateline.recoverable import RecoverableWriter, RecoverableWriterSettings


class Sink(StoreDecorator):
    """Forgets the bytes of pieces, so that only the stream's own memory counts."""

    def stage(self, target, data):
        part = self.inner.stage(target, b"")
        return type(part)(name=part.name, length=len(data), crc32c=0)


class Blind(StoreDecorator):
    """A store that cannot read pieces back before they are published."""

    def read_staged(self, part):
        return None


class PreparedOnce(StoreDecorator):
    """A store whose publication is prepared, at the second try, and names it by a part without bytes."""

    def __init__(self, inner):
        super().__init__(inner)
        self.tries = 0

    def prepare(self, target, parts, nonce):
        self.tries += 1
        if self.tries == 1:
            raise UnavailableError("not now", operation="prepare", subject=target)
        return (*parts, Part(name=f".inprogress/step-{self.tries}", length=0, crc32c=0))

    def publish(self, target, parts, nonce):
        return self.inner.publish(target, [part for part in parts if part.length], nonce)


class FailingStage(StoreDecorator):
    """Fails the next calls of ``stage``, before or after they took effect; holds views, as tracebacks do."""

    failures = ()
    after_effect = False
    held = None

    def stage(self, target, data):
        if self.failures:
            self.held = memoryview(data)[1:]
            if self.after_effect:
                self.inner.stage(target, data)
            raise self.failures.pop()
        return self.inner.stage(target, data)


class Keeping(StoreDecorator):
    """Keeps every view that it was given, and errors that it has cured, with the frames of all callers, for ever."""

    def __init__(self, inner):
        super().__init__(inner)
        self.kept = []

    def stage(self, target, data):
        self.kept += [memoryview(data)[1:], np.frombuffer(data, np.uint8)]
        try:
            raise UnavailableError("busy", operation="stage", subject=target)
        except UnavailableError as error:
            self.kept.append(error)
        return self.inner.stage(target, data)


@pytest.fixture
def store():
    return MemoryStore(uuid.uuid4().hex)


def test_a_stream_needs_no_more_memory_than_a_chunk(store):
    chunk = 1024 * 1024
    stream = RecoverableWriter(Sink(store), RecoverableWriterSettings(chunk_size=chunk)).open("file")
    record = b"r" * 5000
    big = b"b" * (20 * chunk)
    tracemalloc.start()
    for index in range(2000):
        stream.write(record)
        if index % 100 == 0:
            stream.persist()
    stream.write(big)
    stream.write(memoryview(big)[: 3 * chunk])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert stream.position == 2000 * 5000 + 23 * chunk
    assert peak < 2.6 * chunk  # The buffer, its growth by doubling, and a piece on its way.


def test_a_big_file_has_one_piece_per_chunk(store):
    stream = RecoverableWriter(Sink(store), RecoverableWriterSettings(chunk_size="64KiB")).open("file")
    for _ in range(300):
        stream.write(b"x" * 30_000)
    point = stream.persist()
    assert len(point.parts) == -(-point.length // 65536)


def test_pieces_that_cannot_be_read_back_stay_as_they_are(store):
    settings = RecoverableWriterSettings(chunk_size=1000, fold_size=500)
    writer, expected = RecoverableWriter(Blind(store), settings), b""
    stream = writer.open("file")
    for index in range(30):
        data = bytes([index]) * (37 * index % 400 + 1)
        stream.write(data)
        expected += data
        stream = writer.recover(stream.persist())
    stream.close_for_commit().commit()
    assert store.get("file") == expected


def test_a_damaged_piece_is_never_merged(store):
    settings = RecoverableWriterSettings(chunk_size=1000, fold_size=500)
    writer = RecoverableWriter(store, settings)
    stream = writer.open("file")
    stream.write(b"a" * 100)
    point = stream.persist()
    store.put(point.parts[0].name, b"b" * 100)
    resumed = writer.recover(point)
    with pytest.raises(CorruptDataError):
        resumed.write(b"c" * 1000)
    assert resumed.position == 100


def test_options_of_writer_and_store_are_told_apart(tmp_path):
    writer = RecoverableWriter.for_url(str(tmp_path / "x"), {"chunk_size": "1MiB", "fsync": "false"})
    assert writer.store.url.endswith("/x")
    for wrong in ({"chunk_sise": "1"}, {"chunk_size": "many"}, {"chunk_size": "0"}, {"fsink": "no"}):
        with pytest.raises(InvalidInputError):
            RecoverableWriter.for_url(str(tmp_path), wrong)


def test_paths_of_a_local_root_are_accepted_in_every_spelling(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    writer = RecoverableWriter.for_url(f"file://{tmp_path}/link/root")
    for spelling in (f"{tmp_path}/real/root/a b", f"file://{tmp_path}/link/root/a%20b", "a b"):
        assert writer.open(spelling).target == "a b"
    with pytest.raises(InvalidInputError):
        writer.open(f"{tmp_path}/real/rootless/x")


@pytest.mark.parametrize("after_effect", [False, True])
def test_a_call_that_failed_changed_nothing_and_may_be_repeated(store, after_effect):
    failing = FailingStage(store)
    failing.after_effect = after_effect
    writer = RecoverableWriter(failing, RecoverableWriterSettings(chunk_size=1000, fold_size=500))
    stream, data, at = writer.open("file"), random.Random(1).randbytes(20_000), 0

    def repeatedly(call, *arguments):
        while True:
            try:
                return call(*arguments)
            except (UnavailableError, OutcomeUnknownError):
                assert stream.position == at

    for length in (400, 700, 1, 999, 2500, 3, 4000, 1000, 10):
        failing.failures = [UnavailableError("busy"), OutcomeUnknownError("timeout")]
        at += repeatedly(stream.write, data[at : at + length])
        failing.failures = [UnavailableError("busy")]
        point = repeatedly(stream.persist)
        failing.failures = []
        stream = writer.recover(point, verify=False) if length % 2 else stream
        assert stream.position == at
    stream.close_for_commit().commit()
    assert store.get("file") == data[:at]


def test_a_stream_goes_on_over_a_store_that_keeps_every_view(store):
    writer = RecoverableWriter(Keeping(store), RecoverableWriterSettings(chunk_size=1000, fold_size=500))
    stream, data, at = writer.open("file"), random.Random(2).randbytes(20_000), 0
    for length in (400, 3, 700, 1, 999, 2500, 4, 1000, 10, 3000):
        given = bytearray(data[at : at + length])
        at += stream.write(given)
        given.clear()  # The caller's again, whatever the store keeps.
        if length % 2:
            point = stream.persist()
    stream = writer.recover(point)
    at = point.length
    at += stream.write(data[at : at + 5])
    stream.persist()
    at += stream.write(data[at : at + 2000])
    stream.close_for_commit().commit()
    assert store.get("file") == data[:at]


@pytest.mark.parametrize("fails", [False, True])
def test_a_view_that_a_store_keeps_never_changes(store, fails):
    keeping = Keeping(FailingStage(store))
    stream = RecoverableWriter(keeping, RecoverableWriterSettings(chunk_size=1000, fold_size=500)).open("file")
    expected = b""
    for number in range(1, 30):
        stream.write(bytes([number]) * (37 * number % 400 + 1))
        keeping.inner.failures = [UnavailableError("busy")] if fails else []
        with contextlib.suppress(UnavailableError):
            stream.sync()
        expected += bytes([number]) * (37 * number % 400 + 1)
    keeping.inner.failures = []
    kept = [bytes(view) for view in keeping.kept if isinstance(view, memoryview)]
    stream.close_for_commit().commit()
    assert store.get("file") == expected
    assert kept == [bytes(view) for view in keeping.kept if isinstance(view, memoryview)][: len(kept)]


def test_a_file_that_ends_is_prepared_once_however_often_it_is_closed(store):
    prepared = PreparedOnce(store)
    stream = RecoverableWriter(prepared).open("file")
    stream.write(b"abc")
    with pytest.raises(UnavailableError):
        stream.close_for_commit()
    points = [stream.close_for_commit().commit_point for _ in range(3)]
    assert [part.length for part in points[0].parts] == [3, 0]
    assert points[1:] == points[:1] * 2
    assert prepared.tries == 2
    assert [part.length for part in stream.persist().parts] == [3]
    stream.close_for_commit().commit()
    assert store.get("file") == b"abc"


def test_cleanup_keeps_pieces_that_the_kept_point_names_without_bytes(store):
    writer = RecoverableWriter(store)
    stream = writer.open("file")
    stream.write(b"abc")
    point = stream.persist()
    kept = msgspec.structs.replace(
        point, parts=tuple(msgspec.structs.replace(part, length=0, crc32c=0) for part in point.parts)
    )
    assert not writer.cleanup(point, keep=kept)
    assert store.get(point.parts[0].name) == b"abc"


@pytest.fixture(params=["memory", "local"])
def rooted(request, tmp_path):
    return MemoryStore(uuid.uuid4().hex) if request.param == "memory" else LocalStore(tmp_path / "root")


def test_a_point_that_names_a_visible_file_as_its_piece_touches_nothing(rooted):
    """It was put together by hand, or belongs to another store. Discarding its pieces would delete the file."""
    rooted.put("visible", b"rows")
    stream = RecoverableWriter(rooted).open("target")
    stream.write(b"rows")
    point = stream.persist()
    wrong = msgspec.structs.replace(point.parts[0], name="visible")
    writer = RecoverableWriter(rooted)
    for damaged in (
        msgspec.structs.replace(point, parts=(wrong,)),
        msgspec.structs.replace(point, superseded=(wrong,)),
    ):
        with contextlib.suppress(InvalidInputError):
            writer.recover_for_commit(damaged).commit_after_recovery()
        with contextlib.suppress(InvalidInputError):
            writer.cleanup(damaged)
        assert rooted.get("visible") == b"rows"
    with pytest.raises(InvalidInputError, match="not the name of a staged piece"):
        writer.recover_for_commit(msgspec.structs.replace(point, target="other", parts=(wrong,))).commit()


@pytest.mark.parametrize("data", ["text", None, 5, [1], memoryview(b"abcd")[::2]])
def test_what_is_not_contiguous_bytes_is_refused_and_nothing_is_accepted(data):
    stream = RecoverableWriter(MemoryStore(uuid.uuid4().hex)).open("file")
    with pytest.raises(InvalidInputError, match="not contiguous bytes"):
        stream.write(data)
    assert stream.position == 0


def test_bytes_of_any_shape_are_accepted():
    stream = RecoverableWriter(MemoryStore(uuid.uuid4().hex)).open("file")
    assert stream.write(np.array([], dtype="int64")) == 0
    assert stream.write(np.zeros((0, 3), dtype="int32")) == 0
    assert stream.write(np.arange(6, dtype="int16").reshape(2, 3)) == 12
    assert stream.position == 12


@pytest.mark.parametrize("target", [None, 5, b"file"])
def test_a_target_that_is_no_text_is_refused(target):
    with pytest.raises(InvalidInputError, match="must be text"):
        RecoverableWriter(MemoryStore(uuid.uuid4().hex)).open(target)
