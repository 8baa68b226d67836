"""The bytes of Flink's Cloud Storage writer: golden ones are read, damaged ones refused."""

import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.errors import CorruptDataError, InvalidInputError, UnsupportedVersionError
from stateline.handles import CommitPoint, Part, ResumePoint
from stateline.recoverable.interchange import FlinkPoint, import_point, read_commit, read_resume

ID = uuid.UUID("f09c43e5-ea49-4537-a406-0586f8f09d47")
COMMIT = FlinkPoint(bucket="foo", object="bar", components=(ID,))
RESUME = FlinkPoint(bucket="foo", object="bar", components=(ID,), position=1024, closed=False)
COMMIT_BYTES = bytes.fromhex("0003666f6f000362617200000001f09c43e5ea494537a4060586f8f09d47")
RESUME_BYTES = COMMIT_BYTES + bytes.fromhex("000000000000040000")


def utf(text):
    """What Java writes."""
    units = struct.iter_unpack(">H", text.encode("utf-16-be"))
    data = b"".join(chr(unit).encode("utf-8", "surrogatepass") if unit else b"\xc0\x80" for (unit,) in units)
    return struct.pack(">H", len(data)) + data


def test_the_bytes_that_flink_writes():
    assert read_commit(1, COMMIT_BYTES) == COMMIT
    assert read_resume(1, RESUME_BYTES) == RESUME


def test_java_modified_utf8():
    name = bytes.fromhex("000c62c3a472c080eda0bdedb880")
    assert utf("bär\0😀") == name
    assert read_commit(1, b"\0\1b" + name + bytes(4)).object == "bär\0😀"


@pytest.mark.parametrize("length", range(len(RESUME_BYTES)))
def test_truncated_bytes_are_refused(length):
    with pytest.raises(CorruptDataError):
        read_resume(1, RESUME_BYTES[:length])


@pytest.mark.parametrize(
    "data",
    [
        COMMIT_BYTES + b"\0",
        bytes.fromhex("0003666f6f0003626172ffffffff"),
        bytes.fromhex("0003666f6f00036261727fffffff"),
        bytes.fromhex("0001ff000000000000"),
        bytes.fromhex("0002c0af000000000000"),
        bytes.fromhex("000100000000000000"),
        bytes.fromhex("0003eda0bd000000000000"),
        bytes.fromhex("0004f09f9880000000000000"),
    ],
)
def test_impossible_bytes_are_refused(data):
    with pytest.raises(CorruptDataError):
        read_commit(1, data)


def test_impossible_positions_and_flags_are_refused():
    for tail in ("ffffffffffffffff00", "000000000000000002"):
        with pytest.raises(CorruptDataError):
            read_resume(1, COMMIT_BYTES + bytes.fromhex(tail))


def test_versions():
    with pytest.raises(UnsupportedVersionError):
        read_commit(2, COMMIT_BYTES)
    with pytest.raises(InvalidInputError):
        read_resume(0, RESUME_BYTES)


@given(
    bucket=st.text(max_size=20),
    name=st.text(max_size=20),
    components=st.lists(st.uuids(), max_size=5),
    position=st.integers(0, 2**63 - 1),
    closed=st.booleans(),
)
def test_any_point_is_read(bucket, name, components, position, closed):
    ids = struct.pack(">i", len(components)) + b"".join(component.bytes for component in components)
    data = utf(bucket) + utf(name) + ids + struct.pack(">q?", position, closed)
    assert read_resume(1, data) == FlinkPoint(
        bucket=bucket, object=name, components=tuple(components), position=position, closed=closed
    )


class Pieces:
    url = "gs://foo"

    def staged_part(self, container, name):
        return Part(name=name, length=512, crc32c=7, version="3", container=container)


def test_points_are_translated():
    twice = FlinkPoint(bucket="foo", object="bar", components=(ID, ID), position=1024, closed=True)
    ours = import_point(twice, Pieces(), "nonce")
    assert type(ours) is ResumePoint
    assert (ours.target, ours.length, ours.closed, ours.nonce) == ("bar", 1024, True, "nonce")
    commit = import_point(COMMIT, Pieces(), "nonce", temporary_bucket="temporary")
    assert type(commit) is CommitPoint
    assert [(part.container, part.name) for part in commit.parts] == [("temporary", f".inprogress/foo/bar/{ID}")]
    (part,) = import_point(COMMIT, Pieces(), "nonce", entropy=True).parts
    assert (part.container, part.name) == ("foo", f"{ID}.inprogress/foo/bar/{ID}")


def test_pieces_that_do_not_make_the_position_are_refused():
    with pytest.raises(OSError, match="1024 bytes, got 512"):
        import_point(RESUME, Pieces(), "nonce")


def test_a_file_outside_the_root_is_refused():
    with pytest.raises(InvalidInputError):
        import_point(FlinkPoint(bucket="other", object="bar", components=()), Pieces(), "n")
