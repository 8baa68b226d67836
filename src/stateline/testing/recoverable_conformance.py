"""The promises of ``stateline.recoverable`` as tests that every backend runs, third-party ones too.

Subclass in a test module; a backend that passes ``BlobStoreConformance`` needs only its store::

    class TestMyStore(RecoverableConformance):
        @pytest.fixture
        def store(self, tmp_path):
            return MyStore(tmp_path)
"""

# ruff: noqa: PT012 - the name of a test says what it checks; a refusal may come from any of several calls
from __future__ import annotations

import array
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec
import pytest

from stateline.blob import BlobStore, InstrumentedStore
from stateline.blob.checksum import crc32c
from stateline.errors import (
    AlreadyExistsError,
    ClosedError,
    ConflictError,
    DataLossError,
    InvalidInputError,
    StatelineError,
)
from stateline.handles import CommitPoint, Part, ResumePoint
from stateline.recoverable import Committer, RecoverableStream, RecoverableWriter, RecoverableWriterSettings
from stateline.recoverable.folding import PIECES_PER_TIER, tier_count
from stateline.testing.blob_conformance import bytes_of, visible
from stateline.testing.races import Call, at_once, elsewhere

__all__ = ["RecoverableConformance", "commit_once", "write_all_on", "write_on"]

CHUNK = 1000
FOLD = 500
SETTINGS = RecoverableWriterSettings(chunk_size=CHUNK, fold_size=FOLD)
EDGES = (0, 1, FOLD - 1, FOLD, FOLD + 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 1, 2600)
"""Offsets at which a piece ends, begins, or does neither."""


def write_on(store: BlobStore, point: ResumePoint, data: bytes) -> CommitPoint:
    """One life of a file: resumes it, writes, and ends it. Runs in any process."""
    stream = RecoverableWriter(store, SETTINGS).recover(point)
    stream.write(data)
    return stream.close_for_commit().commit_point


def write_all_on(store: BlobStore, points: Sequence[ResumePoint], data: bytes) -> list[str]:
    """The rest of several files, and their commits."""
    ends = [write_on(store, point, data[point.length :]) for point in points]
    return [commit_once(store, end) for end in ends]


def commit_once(store: BlobStore, point: CommitPoint, method: str = "commit_after_recovery") -> str:
    """Commits; returns the name of the error's class, or ``"done"``."""
    try:
        getattr(RecoverableWriter(store, SETTINGS).recover_for_commit(point), method)()
    except StatelineError as error:
        return type(error).__name__
    return "done"


class RecoverableConformance:
    """One test per promise. Override :meth:`store`.

    Attributes:
        seen_by_other_processes: Whether a pickled copy of the store in another process sees the same objects.
        keeps_nonces: Whether equal bytes under another nonce are told apart.
        foreign_writes_keep_pieces: Whether pieces outlive a foreign object at their target.
        pieces_readable: Whether pieces can be read back, and so be merged after a resume.
    """

    seen_by_other_processes: ClassVar[bool] = True
    keeps_nonces: ClassVar[bool] = True
    foreign_writes_keep_pieces: ClassVar[bool] = True
    pieces_readable: ClassVar[bool] = True

    @pytest.fixture
    def store(self) -> BlobStore:
        """A store over an empty root of its own."""
        raise InvalidInputError("a subclass must override it", subject="store", hint="Let the fixture give a new store")

    @pytest.fixture
    def writer(self, store: BlobStore) -> RecoverableWriter:
        """A writer with pieces so small that a few thousand bytes show every edge."""
        return RecoverableWriter(store, SETTINGS)

    def lose(self, store: BlobStore, point: CommitPoint, index: int) -> CommitPoint:
        """Makes the piece at ``index`` disappear, as a lifecycle rule would; returns the point that names it."""
        store.discard([point.parts[index]])
        return point

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Runs calls in parallel, in other processes where they can see the store."""
        return elsewhere(calls) if self.seen_by_other_processes else at_once(calls)

    # -- writing --------------------------------------------------------------------------------------------------

    def test_a_file_appears_whole_at_its_commit_and_not_before(self, writer: RecoverableWriter) -> None:
        stream = writer.open("out/file")
        data = bytes_of(3 * CHUNK + 17)
        for start in range(0, len(data), 700):
            stream.write(data[start : start + 700])
            stream.flush()
            stream.sync()
            stream.persist()
            assert visible(writer.store) == []
        committer = stream.close_for_commit()
        assert visible(writer.store) == []
        committer.commit()
        assert writer.store.get("out/file") == data
        assert visible(writer.store) == ["out/file"]

    def test_write_takes_every_kind_of_bytes_and_counts_them(self, writer: RecoverableWriter) -> None:
        stream, mutable = writer.open("file"), bytearray(b"cd")
        assert stream.write(b"ab") == 2
        assert stream.write(mutable) == 2
        mutable[:] = b"xx"
        assert stream.write(memoryview(b"xefx")[1:3]) == 2
        assert stream.write(memoryview(array.array("H", [0x6867, 0x6A69]))) == 4
        assert stream.write(b"") == 0
        assert stream.position == 10
        stream.close_for_commit().commit()
        assert writer.store.get("file") == b"abcdefghij"

    @pytest.mark.parametrize("length", [0, 1, CHUNK, 7 * CHUNK + 3])
    def test_one_write_of_any_length(self, writer: RecoverableWriter, length: int) -> None:
        stream = writer.open("file")
        assert stream.write(bytes_of(length)) == stream.position == length
        assert max([part.length for part in stream.persist().parts], default=0) <= CHUNK
        point = stream.close_for_commit().commit_point
        writer.recover_for_commit(point).commit()
        assert writer.store.get("file") == bytes_of(length)

    def test_an_empty_file_is_published_as_an_empty_object(self, writer: RecoverableWriter) -> None:
        point = writer.open("empty").persist()
        assert not point.parts
        writer.recover(point).close_for_commit().commit()
        assert writer.store.get("empty") == b""
        assert commit_once(writer.store, point) == "done"

    def test_urls_below_the_root_and_relative_names_mean_the_same(self, writer: RecoverableWriter) -> None:
        url = f"{writer.store.url}/out/part-0.csv"
        assert writer.open(url).target == writer.open("out/part-0.csv").target == "out/part-0.csv"

    @pytest.mark.parametrize(
        "name", ["", ".", "../x", "a/../../x", "a//b", "ftp://host/x", "s3://elsewhere-1/x", "a\0b"]
    )
    def test_what_lies_outside_the_root_is_refused(self, writer: RecoverableWriter, name: str) -> None:
        with pytest.raises(InvalidInputError):
            writer.open(name)

    # -- persist --------------------------------------------------------------------------------------------------

    def test_a_persist_without_news_costs_nothing(self, store: BlobStore) -> None:
        counted = InstrumentedStore(store)
        writer = RecoverableWriter(counted, SETTINGS)
        stream = writer.open("file")
        assert stream.persist() == stream.persist()
        stream.write(bytes_of(999))
        stream.flush()
        assert not counted.calls
        stream.write(bytes_of(201))
        point = stream.persist()
        counted.reset()
        assert stream.persist() == point
        resumed = writer.recover(point, verify=False)
        assert resumed.persist() == point
        stream.sync()
        assert not counted.calls

    def test_a_resume_costs_no_request_but_the_check(self, store: BlobStore, writer: RecoverableWriter) -> None:
        stream = writer.open("file")
        stream.write(bytes_of(5 * CHUNK + 30))
        point = stream.persist()
        counted = InstrumentedStore(store)
        RecoverableWriter(counted, SETTINGS).recover(point, verify=False)
        assert not counted.calls
        RecoverableWriter(counted, SETTINGS).recover(point)
        assert dict(counted.calls) == {"head": 1}

    @pytest.mark.parametrize("resume", [False, True])
    @pytest.mark.parametrize("size", [7, 90, 130])
    def test_pieces_and_rewriting_stay_bounded(self, store: BlobStore, resume: bool, size: int) -> None:
        if resume and not self.pieces_readable:
            return
        counted = InstrumentedStore(store)
        writer = RecoverableWriter(counted, SETTINGS)
        stream = writer.open("file")
        most_small = (PIECES_PER_TIER - 1) * tier_count(FOLD)
        data = bytes_of(40 * size)
        for index in range(40):
            stream.write(data[index * size : (index + 1) * size])
            point = stream.persist()
            assert len(point.parts) <= point.length // FOLD + most_small
            assert len(point.superseded) <= PIECES_PER_TIER + most_small
            if resume:
                stream = writer.recover(point, verify=False)
        assert counted.calls["stage"] == 40
        assert counted.bytes_written <= len(data) * (2 + FOLD // size)
        stream.close_for_commit().commit()
        assert store.get("file") == data

    # -- resume ---------------------------------------------------------------------------------------------------

    def test_a_file_goes_on_in_another_process_at_every_offset(
        self, store: BlobStore, writer: RecoverableWriter
    ) -> None:
        data = bytes_of(4 * CHUNK)
        points = []
        for offset in EDGES:
            stream = writer.open(f"file-{offset}")
            stream.write(data[: offset // 2])
            stream.persist()
            stream.write(data[offset // 2 : offset])
            points.append(stream.persist())
            stream.write(b"never persisted")
        halves = self.run([(write_all_on, (store, half, data)) for half in (points[::2], points[1::2])])
        assert halves == [["done"] * (len(EDGES) // 2)] * 2
        for offset in EDGES:
            assert store.get(f"file-{offset}") == data

    def test_every_point_of_a_file_can_be_committed_without_resuming(self, writer: RecoverableWriter) -> None:
        """Points of one file do not disturb each other: each copy of the file is made from another point of it."""
        for chosen in range(4):
            stream, points = writer.open(f"file-{chosen}"), []
            for index in range(4):
                stream.write(bytes_of(400, index))
                points.append(stream.persist())
            committer = writer.recover_for_commit(points[chosen])
            assert type(committer.commit_point) is CommitPoint
            committer.commit_after_recovery()
            expected = b"".join(bytes_of(400, index) for index in range(chosen + 1))
            assert writer.store.get(f"file-{chosen}") == expected
            assert points[chosen].crc32c == crc32c(expected)
            freed = {part.name for part in (*points[chosen].parts, *points[chosen].superseded)}
            assert not freed & {info.name for info in writer.store.list_staged()}

    def test_an_older_point_can_be_resumed_after_a_newer_persist(self, writer: RecoverableWriter) -> None:
        stream = writer.open("file")
        stream.write(b"a" * 300)
        older = stream.persist()
        stream.write(b"b" * 300)
        stream.persist()
        for _ in range(2):
            again = writer.recover(older)
            assert again.position == 300
            again.write(b"c" * 900)
            newest = again.persist()
        writer.recover_for_commit(newest).commit_after_recovery()
        assert writer.store.get("file") == b"a" * 300 + b"c" * 900

    def test_a_zombie_that_writes_on_does_not_disturb_its_successor(self, writer: RecoverableWriter) -> None:
        zombie = writer.open("file")
        zombie.write(bytes_of(700))
        successor = writer.recover(zombie.persist())
        for index in range(4):
            zombie.write(b"z" * 450)
            zombie.persist()
            successor.write(bytes_of(300, index))
            successor.persist()
        successor.close_for_commit().commit()
        expected = bytes_of(700) + b"".join(bytes_of(300, index) for index in range(4))
        assert writer.store.get("file") == expected
        zombie.write(b"still alive")
        for method in ("commit", "commit_after_recovery"):
            with pytest.raises((ConflictError, DataLossError)):
                getattr(zombie.close_for_commit(), method)()
        assert writer.store.get("file") == expected

    def test_two_attempts_that_wrote_equal_bytes_made_one_file(self, writer: RecoverableWriter) -> None:
        stream = writer.open("file")
        stream.write(bytes_of(700))
        point = stream.persist()
        attempts = [write_on(writer.store, point, bytes_of(600, seed=1)) for _ in range(2)]
        assert [commit_once(writer.store, attempt) for attempt in attempts] == ["done", "done"]

    @pytest.mark.parametrize("chunk", [64, 400, 5000])
    def test_another_chunk_size_may_be_used_after_a_restart(self, store: BlobStore, chunk: int) -> None:
        data = bytes_of(9000)
        stream = RecoverableWriter(store, SETTINGS).open("file")
        for start in range(0, 3000, 430):
            stream.write(data[start : min(start + 430, 3000)])
            point = stream.persist()
        other = RecoverableWriter(store, RecoverableWriterSettings(chunk_size=chunk)).recover(point)
        for start in range(3000, 9000, 1000):
            other.write(data[start : start + 1000])
            other.persist()
        other.close_for_commit().commit()
        assert store.get("file") == data

    def test_points_survive_their_bytes(self, writer: RecoverableWriter) -> None:
        stream = writer.open("file")
        for index in range(5):
            stream.write(bytes_of(330, index))
            point = stream.persist()
        resume, commit = writer.resume_serializer, writer.commit_serializer
        assert resume.deserialize(resume.version, resume.serialize(point)) == point
        stream = writer.recover(resume.deserialize(resume.version, resume.serialize(point)))
        end = stream.close_for_commit().commit_point
        assert commit.deserialize(commit.version, commit.serialize(end)) == end
        writer.recover_for_commit(commit.deserialize(commit.version, commit.serialize(end))).commit()
        assert writer.store.head("file").size == 1650

    # -- ends -----------------------------------------------------------------------------------------------------

    def test_a_closed_stream_takes_no_more_bytes(self, writer: RecoverableWriter) -> None:
        ends: list[Callable[[RecoverableStream], object]] = [
            RecoverableStream.close,
            RecoverableStream.close_for_commit,
        ]
        for end in ends:
            stream = writer.open("file")
            stream.write(b"bytes")
            assert not stream.persist().closed
            for _ in range(2):
                end(stream)
            with pytest.raises(ClosedError):
                stream.write(b"more")
            assert (stream.position, stream.closed, stream.persist().closed) == (5, True, True)
            assert visible(writer.store) == []
            assert stream.close_for_commit().commit_point == stream.close_for_commit().commit_point

    def test_a_closed_stream_still_gives_its_last_point(self, writer: RecoverableWriter) -> None:
        with writer.open("file") as stream:
            stream.write(b"bytes")
        point = stream.persist()
        assert (point.length, point.closed) == (5, True)
        resumed = writer.recover(point)
        with pytest.raises(ClosedError):
            resumed.write(b"more")
        assert resumed.persist() == point
        resumed.close_for_commit().commit()
        assert writer.store.get("file") == b"bytes"

    def test_a_block_that_fails_sends_nothing_more(self, store: BlobStore) -> None:
        counted = InstrumentedStore(store)
        with pytest.raises(ZeroDivisionError), RecoverableWriter(counted, SETTINGS).open("file") as stream:
            stream.write(b"bytes")
            _ = 1 / 0
        assert stream.closed
        assert not counted.calls

    # -- commit ---------------------------------------------------------------------------------------------------

    def test_a_commit_leaves_no_piece_behind(self, writer: RecoverableWriter) -> None:
        stream = writer.open("file")
        for index in range(4):
            stream.write(bytes_of(170, index))
            assert writer.cleanup(stream.persist()) in (True, False)
        stream.close_for_commit().commit()
        assert list(writer.store.list_staged()) == []
        assert [info.name for info in writer.store.list("")] == ["file"]

    def test_a_commit_may_be_repeated(self, writer: RecoverableWriter) -> None:
        committer = self._written(writer)
        for _ in range(2):
            committer.commit()
        for _ in range(2):
            committer.commit_after_recovery()
            writer.recover_for_commit(committer.commit_point).commit_after_recovery()
        assert writer.store.get("file") == bytes_of(2500)

    def test_a_clean_commit_of_what_somebody_else_published_fails_loudly(self, writer: RecoverableWriter) -> None:
        committer = self._written(writer)
        committer.commit_after_recovery()
        late = writer.recover_for_commit(committer.commit_point)
        for _ in range(2):
            with pytest.raises(AlreadyExistsError):
                late.commit()
        assert writer.store.get("file") == bytes_of(2500)

    def test_commits_at_once_from_several_processes_all_succeed(self, writer: RecoverableWriter) -> None:
        point = self._written(writer).commit_point
        assert self.run([(commit_once, (writer.store, point))] * 4) == ["done"] * 4
        assert writer.store.get("file") == bytes_of(2500)

    @pytest.mark.parametrize("foreign", [b"foreign", bytes_of(2500, seed=9), b""])
    def test_a_foreign_object_at_the_target_is_a_conflict_and_stays(
        self, writer: RecoverableWriter, foreign: bytes
    ) -> None:
        point = self._written(writer).commit_point
        writer.store.put("file", foreign)
        for method in ("commit", "commit_after_recovery") * 2:
            assert commit_once(writer.store, point, method) == "ConflictError"
        assert writer.store.get("file") == foreign
        writer.store.delete(["file"])
        expected = "done" if self.foreign_writes_keep_pieces else "DataLossError"
        assert commit_once(writer.store, point) == expected

    def test_another_file_with_equal_bytes_is_not_ours(self, writer: RecoverableWriter) -> None:
        theirs, ours = self._written(writer), self._written(writer)
        theirs.commit()
        expected = "ConflictError" if self.keeps_nonces else "done"
        assert commit_once(writer.store, ours.commit_point) == expected

    def test_a_missing_piece_is_data_loss(self, writer: RecoverableWriter) -> None:
        for index in range(3):
            point = self.lose(writer.store, self._written(writer).commit_point, index)
            for method in ("commit", "commit_after_recovery"):
                assert commit_once(writer.store, point, method) == "DataLossError"
            assert visible(writer.store) == []

    def test_file_and_pieces_both_missing_is_data_loss(self, writer: RecoverableWriter) -> None:
        committer = self._written(writer)
        committer.commit()
        writer.store.delete(["file"])
        for method in ("commit", "commit_after_recovery"):
            assert commit_once(writer.store, committer.commit_point, method) == "DataLossError"

    # -- resume points that are no longer good --------------------------------------------------------------------

    def test_an_older_point_is_refused_after_the_commit(self, writer: RecoverableWriter) -> None:
        stream = writer.open("file")
        stream.write(bytes_of(800))
        older = stream.persist()
        stream.write(b"more")
        stream.close_for_commit().commit()
        with pytest.raises(ConflictError):
            writer.recover(older)
        unchecked = writer.recover(older, verify=False)
        with pytest.raises((ConflictError, DataLossError)):
            unchecked.write(b"x" * 300)
            unchecked.close_for_commit().commit_after_recovery()
        assert writer.store.get("file") == bytes_of(800) + b"more"

    def test_an_expired_piece_is_data_loss_when_it_is_merged(self, store: BlobStore, writer: RecoverableWriter) -> None:
        stream = writer.open("file")
        stream.write(b"a" * 100)
        point = stream.persist()
        expired = self.lose(store, point, 0)
        resumed = writer.recover(point if expired is point else self._with_parts(point, expired.parts))
        with pytest.raises(DataLossError):
            resumed.write(b"b" * CHUNK)
            resumed.close_for_commit().commit_after_recovery()
        assert visible(store) == []

    # -- clean-up -------------------------------------------------------------------------------------------------

    def test_cleanup_frees_what_a_point_superseded_and_keeps_the_point(self, writer: RecoverableWriter) -> None:
        assert (writer.requires_cleanup, writer.supports_resume) == (True, True)
        stream = writer.open("file")
        assert writer.cleanup(stream.persist()) is False
        for index in range(12):
            stream.write(bytes_of(60, index))
            point = stream.persist()
            for _ in range(2):
                assert writer.cleanup(point) is bool(point.superseded)
        assert {info.name for info in writer.store.list_staged()} <= {part.name for part in point.parts}
        writer.recover_for_commit(point).commit_after_recovery()
        assert writer.store.get("file") == b"".join(bytes_of(60, index) for index in range(12))

    def test_cleanup_of_a_given_up_point_keeps_what_a_later_one_names(self, writer: RecoverableWriter) -> None:
        stream, points = writer.open("file"), []
        for index in range(9):
            stream.write(bytes_of(170, index))
            points.append(stream.persist())
        end = stream.close_for_commit().commit_point
        for older, newer in zip(points, [*points[1:], end], strict=True):
            writer.cleanup(older, keep=newer)
        assert {info.name for info in writer.store.list_staged()} <= {part.name for part in end.parts}
        writer.recover_for_commit(end).commit()
        assert list(writer.store.list_staged()) == []
        with pytest.raises(InvalidInputError):
            writer.cleanup(points[0], keep=writer.open("file").persist())

    def test_a_writer_refuses_points_that_are_none(self, writer: RecoverableWriter) -> None:
        committed = self._written(writer).commit_point
        point: Any = committed
        with pytest.raises(InvalidInputError):
            writer.recover(point)
        with pytest.raises(InvalidInputError):
            writer.cleanup(point)
        point = b"bytes"
        with pytest.raises(InvalidInputError):
            writer.recover_for_commit(point)
        with pytest.raises(InvalidInputError):
            writer.recover_for_commit(self._with_target(committed, "../../etc/passwd"))

    # -- building blocks ------------------------------------------------------------------------------------------

    def _written(self, writer: RecoverableWriter) -> Committer:  # Of three pieces, 2500 bytes long.
        stream = writer.open("file")
        stream.write(bytes_of(2500))
        return stream.close_for_commit()

    def _with_parts(self, point: ResumePoint, parts: tuple[Part, ...]) -> ResumePoint:
        return msgspec.structs.replace(point, parts=parts)

    def _with_target(self, point: CommitPoint, target: str) -> CommitPoint:
        return msgspec.structs.replace(point, target=target)
