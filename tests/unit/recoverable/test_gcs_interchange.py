"""The bytes of Flink's Cloud Storage writer: golden ones are read and written, damaged ones refused."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.errors import CorruptDataError, InvalidInputError, UnsupportedVersionError
from stateline.handles import CommitPoint, Part, ResumePoint
from stateline.recoverable import gcs_interchange as flink

ID = uuid.UUID("f09c43e5-ea49-4537-a406-0586f8f09d47")
COMMIT = flink.FlinkCommit(bucket="foo", object="bar", components=(ID,))
RESUME = flink.FlinkResume(bucket="foo", object="bar", components=(ID,), position=1024, closed=False)
COMMIT_BYTES = bytes.fromhex("0003666f6f000362617200000001f09c43e5ea494537a4060586f8f09d47")
RESUME_BYTES = COMMIT_BYTES + bytes.fromhex("000000000000040000")


def test_the_bytes_that_flink_writes():
    assert flink.write_commit(COMMIT) == COMMIT_BYTES
    assert flink.write_resume(RESUME) == RESUME_BYTES
    assert flink.read_commit(1, COMMIT_BYTES) == COMMIT
    assert flink.read_resume(1, RESUME_BYTES) == RESUME


def test_java_modified_utf8():
    point = flink.FlinkCommit(bucket="b", object="bär\0😀", components=())
    assert flink.write_commit(point)[3:-4] == bytes.fromhex("000c62c3a472c080eda0bdedb880")
    assert flink.read_commit(1, flink.write_commit(point)) == point


@pytest.mark.parametrize("length", range(len(RESUME_BYTES)))
def test_truncated_bytes_are_refused(length):
    with pytest.raises(CorruptDataError):
        flink.read_resume(1, RESUME_BYTES[:length])


@pytest.mark.parametrize(
    "data",
    [
        COMMIT_BYTES + b"\0",
        bytes.fromhex("0003666f6f0003626172ffffffff"),
        bytes.fromhex("0003666f6f00036261727fffffff"),
        bytes.fromhex("0001ff000000000000"),
        bytes.fromhex("000100000000000000"),
        bytes.fromhex("0003eda0bd000000000000"),
        bytes.fromhex("0004f09f9880000000000000"),
    ],
)
def test_impossible_bytes_are_refused(data):
    with pytest.raises(CorruptDataError):
        flink.read_commit(1, data)


def test_impossible_positions_and_flags_are_refused():
    for tail in ("ffffffffffffffff00", "000000000000000002"):
        with pytest.raises(CorruptDataError):
            flink.read_resume(1, COMMIT_BYTES + bytes.fromhex(tail))


def test_versions():
    with pytest.raises(UnsupportedVersionError):
        flink.read_commit(2, COMMIT_BYTES)
    with pytest.raises(InvalidInputError):
        flink.read_resume(0, RESUME_BYTES)


def test_a_text_too_long_is_refused():
    with pytest.raises(InvalidInputError):
        flink.write_commit(flink.FlinkCommit(bucket="b", object="ä" * 32768, components=()))


@given(
    bucket=st.text(max_size=20),
    name=st.text(max_size=20),
    components=st.lists(st.uuids(), max_size=5),
    position=st.integers(0, 2**63 - 1),
    closed=st.booleans(),
)
def test_any_point_round_trips(bucket, name, components, position, closed):
    point = flink.FlinkResume(
        bucket=bucket, object=name, components=tuple(components), position=position, closed=closed
    )
    assert flink.read_resume(1, flink.write_resume(point)) == point


def test_names_of_components():
    assert flink.component_name(COMMIT, ID) == f".inprogress/foo/bar/{ID}"
    assert flink.component_name(COMMIT, ID, entropy=True) == f"{ID}.inprogress/foo/bar/{ID}"


class Pieces:
    url = "gs://foo"

    def staged_part(self, container, name):
        return Part(name=name, length=512, crc32c=7, version="3", container=container)


def test_points_are_translated_both_ways():
    twice = flink.FlinkResume(bucket="foo", object="bar", components=(ID, ID), position=1024, closed=True)
    ours = flink.import_point(twice, Pieces(), "nonce")
    assert type(ours) is ResumePoint
    assert (ours.target, ours.length, ours.closed, ours.nonce) == ("bar", 1024, True, "nonce")
    assert flink.export_point(ours, "gs://foo") == twice
    commit = flink.import_point(COMMIT, Pieces(), "nonce", temporary_bucket="temporary")
    assert type(commit) is CommitPoint
    assert commit.parts[0].container == "temporary"
    assert flink.export_point(commit, "gs://foo") == COMMIT


def test_pieces_that_do_not_make_the_position_are_refused():
    with pytest.raises(OSError, match="not 1024"):
        flink.import_point(RESUME, Pieces(), "nonce")


def test_pieces_that_flink_could_not_find_are_refused():
    part = Part(name=".inprogress/ab/foo/bar/x", length=1, crc32c=0)
    with pytest.raises(InvalidInputError, match="would not find"):
        flink.export_point(CommitPoint(target="bar", parts=(part,), length=1, crc32c=0, nonce="n"), "gs://foo")
    with pytest.raises(InvalidInputError):
        flink.import_point(flink.FlinkCommit(bucket="other", object="bar", components=()), Pieces(), "n")


def test_pieces_that_were_joined_when_the_file_ended_are_exported_as_they_were_staged():
    ids = [uuid.UUID(int=number) for number in range(1, 4)]
    names = [flink.component_name(flink.FlinkCommit(bucket="foo", object="bar", components=()), id_) for id_ in ids]
    beneath = tuple(Part(name=name, length=0, crc32c=0, version="1", container="foo") for name in names)
    whole = Part(name=".inprogress/foo/bar/nonce-1-0-3-0", length=3, crc32c=7, version="2", container="foo")
    point = CommitPoint(target="bar", parts=(whole, *beneath), length=3, crc32c=7, nonce="n")
    assert flink.export_point(point, "gs://foo").components == tuple(ids)
    with pytest.raises(InvalidInputError):
        flink.export_point(CommitPoint(target="bar", parts=(whole,), length=3, crc32c=7, nonce="n"), "gs://foo")
