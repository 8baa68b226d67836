"""The bytes of points: held by committed files, and refused when anything about them is wrong."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.blob.checksum import crc32c
from stateline.errors import CorruptDataError, InvalidInputError, UnsupportedVersionError
from stateline.handles import CommitPoint, Part, ResumePoint
from stateline.recoverable.serializers import CommitPointSerializer, ResumePointSerializer

GOLDEN = Path(__file__).parents[2] / "golden" / "recoverable"

PARTS = (
    Part(name=".inprogress/0123456789abcdef0123456789abcdef", length=3, crc32c=0x364B3FB7),
    Part(
        name=".inprogress/b/o/ü", length=2**40, crc32c=0xFFFFFFFF, version="1700000000000001", container="temp-bucket"
    ),
)
COMMIT = CommitPoint(
    target="out/origin=São Paulo/part-0.csv", parts=PARTS, length=3 + 2**40, crc32c=0x01020304, nonce="n" * 32
)
RESUME = ResumePoint(
    target="out/part-0.csv", parts=PARTS[:1], length=3, crc32c=7, nonce="nonce", superseded=PARTS[1:], closed=True
)
EMPTY = ResumePoint(target="f", parts=(), length=0, crc32c=0, nonce="")
CASES = [
    ("commit_point_v1.bin", CommitPointSerializer(), COMMIT),
    ("resume_point_v1.bin", ResumePointSerializer(), RESUME),
    ("resume_point_empty_v1.bin", ResumePointSerializer(), EMPTY),
]
each_case = pytest.mark.parametrize(("file", "serializer", "point"), CASES, ids=[case[0] for case in CASES])


@each_case
def test_released_bytes_are_written_and_read_for_ever(file, serializer, point):
    golden = (GOLDEN / file).read_bytes()
    assert serializer.serialize(point) == golden
    assert serializer.deserialize(1, golden) == point


@each_case
def test_every_flipped_bit_is_refused(file, serializer, point):
    data = bytearray(serializer.serialize(point))
    for position in range(len(data)):
        for bit in range(8):
            data[position] ^= 1 << bit
            with pytest.raises(CorruptDataError):
                serializer.deserialize(1, bytes(data))
            data[position] ^= 1 << bit


@each_case
def test_every_truncation_and_anything_left_over_is_refused(file, serializer, point):
    data = serializer.serialize(point)
    for length in range(len(data)):
        with pytest.raises(CorruptDataError):
            serializer.deserialize(1, data[:length])
    with pytest.raises(CorruptDataError):
        serializer.deserialize(1, data + b"\0")


@each_case
def test_every_field_of_a_body_is_bounded_even_under_a_right_checksum(file, serializer, point):
    """Somebody who can recompute the checksum still gets an equal-looking point or a typed error, never a crash."""
    data = bytearray(serializer.serialize(point))
    body_start = 10
    for position in range(body_start, len(data) - 4):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            changed = bytearray(data)
            changed[position] = value
            changed[-4:] = crc32c(bytes(changed[:-4])).to_bytes(4, "little")
            try:
                read = serializer.deserialize(1, bytes(changed))
            except CorruptDataError:
                continue
            assert type(read) is type(point)
            assert serializer.deserialize(1, serializer.serialize(read)) == read


def reframed(body, *, magic=b"SLrp", version=1):
    framed = struct.pack("<4sHI", magic, version, len(body)) + body
    return framed + struct.pack("<I", crc32c(framed))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda body: body + b"\0", "left over"),
        (lambda body: body[:-5] + b"\2" + body[-4:], "not a flag"),
        (lambda body: body[:-4] + b"\xff\xff\xff\xff", "cannot fit"),
        (lambda body: body[:-1], "past the end"),
        (lambda body: b"\x01\x00\xff" + body[3:], "UTF-8"),
    ],
)
def test_a_wrong_field_under_a_right_checksum_is_named(change, complaint):
    body = ResumePointSerializer().serialize(EMPTY)[10:-4]
    assert ResumePointSerializer().deserialize(1, reframed(body)) == EMPTY
    with pytest.raises(CorruptDataError, match=complaint):
        ResumePointSerializer().deserialize(1, reframed(change(body)))
    with pytest.raises(CorruptDataError, match="their record says"):
        ResumePointSerializer().deserialize(1, reframed(body, version=0))


def test_a_newer_version_is_told_apart_from_damage():
    serializer = CommitPointSerializer()
    with pytest.raises(UnsupportedVersionError, match="newer than 1"):
        serializer.deserialize(2, serializer.serialize(COMMIT))
    newer = bytearray(serializer.serialize(COMMIT))
    newer[4] = 2
    with pytest.raises(UnsupportedVersionError):
        serializer.deserialize(1, bytes(newer))
    with pytest.raises(InvalidInputError):
        serializer.deserialize(0, serializer.serialize(COMMIT))


def test_what_is_neither_version_nor_bytes_is_refused():
    data = CommitPointSerializer().serialize(COMMIT)
    for version in ("1", None, 1.0, True, -1):
        with pytest.raises(InvalidInputError, match="not a version"):
            CommitPointSerializer().deserialize(version, data)
    for wrong in ("text", None, 5, [1]):
        with pytest.raises(InvalidInputError, match="not bytes"):
            ResumePointSerializer().deserialize(1, wrong)
    for view in (bytearray(data), memoryview(data)):
        assert CommitPointSerializer().deserialize(1, view) == COMMIT


def test_the_two_kinds_of_points_are_not_mixed_up():
    with pytest.raises(CorruptDataError):
        CommitPointSerializer().deserialize(1, ResumePointSerializer().serialize(RESUME))
    with pytest.raises(CorruptDataError):
        ResumePointSerializer().deserialize(1, CommitPointSerializer().serialize(COMMIT))


def test_a_resume_point_is_written_as_the_commit_point_inside_it():
    read = CommitPointSerializer().deserialize(1, CommitPointSerializer().serialize(RESUME))
    assert type(read) is CommitPoint
    assert (read.target, read.parts, read.nonce) == (RESUME.target, RESUME.parts, RESUME.nonce)


@pytest.mark.parametrize("target", ["../../etc/passwd", "/abs", "", "a//b"])
def test_a_stored_target_that_is_no_name_is_refused(target):
    point = CommitPoint(target=target, parts=(), length=0, crc32c=0, nonce="n")
    with pytest.raises(CorruptDataError):
        CommitPointSerializer().deserialize(1, CommitPointSerializer().serialize(point))


def test_pieces_that_do_not_add_up_are_refused():
    point = CommitPoint(target="f", parts=PARTS, length=5, crc32c=0, nonce="n")
    with pytest.raises(CorruptDataError, match="add up"):
        CommitPointSerializer().deserialize(1, CommitPointSerializer().serialize(point))


def test_a_text_too_long_for_the_format_is_refused_when_written():
    with pytest.raises(InvalidInputError):
        CommitPointSerializer().serialize(CommitPoint(target="f", parts=(), length=0, crc32c=0, nonce="n" * 65536))


texts = st.text(max_size=40)
parts = st.builds(
    Part,
    name=texts,
    length=st.integers(0, 2**50),
    crc32c=st.integers(0, 2**32 - 1),
    version=texts,
    container=texts,
)


@given(pieces=st.lists(parts, max_size=6), older=st.lists(parts, max_size=3), nonce=texts, closed=st.booleans())
def test_any_point_round_trips(pieces, older, nonce, closed):
    point = ResumePoint(
        target="a/b",
        parts=tuple(pieces),
        length=sum(part.length for part in pieces),
        crc32c=9,
        nonce=nonce,
        superseded=tuple(older),
        closed=closed,
    )
    serializer = ResumePointSerializer()
    assert serializer.deserialize(serializer.version, serializer.serialize(point)) == point


@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused(data):
    for serializer in (CommitPointSerializer(), ResumePointSerializer()):
        with pytest.raises(CorruptDataError):
            serializer.deserialize(1, data)


def test_something_else_than_a_point_is_refused():
    with pytest.raises(InvalidInputError, match="expected a ResumePoint, got CommitPoint"):
        ResumePointSerializer().serialize(COMMIT)
    with pytest.raises(InvalidInputError, match="expected a CommitPoint, got NoneType"):
        CommitPointSerializer().serialize(None)


def changed(point, **fields):
    return type(point)(**{name: getattr(point, name) for name in point.__struct_fields__} | fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"target": None},
        {"target": b"f"},
        {"target": "\ud800"},
        {"nonce": 7},
        {"length": -1},
        {"length": 2**64},
        {"length": "3"},
        {"length": 3.0},
        {"length": True},
        {"crc32c": 2**32},
        {"crc32c": None},
        {"parts": None},
        {"parts": 3},
        {"parts": ("name",)},
        {"parts": (changed(PARTS[0], name=None),)},
        {"parts": (changed(PARTS[0], length=-1),)},
        {"parts": (changed(PARTS[0], crc32c=-1),)},
        {"parts": (changed(PARTS[0], version="\udcff"),)},
        {"parts": (changed(PARTS[0], container=1),)},
        {"superseded": [None]},
        {"closed": 2},
        {"closed": "yes"},
    ],
    ids=str,
)
def test_a_point_built_by_hand_with_a_field_that_the_format_cannot_hold_is_refused(fields):
    with pytest.raises(InvalidInputError):
        ResumePointSerializer().serialize(changed(RESUME, **fields))
