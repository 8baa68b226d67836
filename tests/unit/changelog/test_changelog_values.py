"""Numbers, ranges, handles: what they refuse, and that their bytes are a promise."""

from __future__ import annotations

import struct
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline.blob.checksum import crc32c
from stateline.changelog import (
    ChangelogHandle,
    SegmentHandle,
    SequenceNumber,
    StateChange,
    StateChangeSet,
)
from stateline.errors import CorruptDataError, InvalidInputError, UnsupportedVersionError
from stateline.key_groups import KeyGroupRange
from tests.unit.changelog.limits import bounded

GOLDEN = Path(__file__).parents[2] / "golden" / "changelog" / "handle_v1.bin"

numbers = st.integers(0, 2**62)
segments = st.builds(
    SegmentHandle,
    name=st.from_regex(r"[a-z0-9]{1,10}/changelog/[0-9a-f]{32}", fullmatch=True),
    offset=numbers,
    length=st.integers(1000, 2**40),
    head_length=st.integers(72, 1000),
    crc32c=st.integers(0, 2**32 - 1),
    log_id=st.uuids().map(lambda value: value.hex),
    sequence_number=numbers,
    size=numbers,
    first_key_group=st.integers(-1, 32767),
    last_key_group=st.integers(-1, 32767),
)
handles = st.builds(
    ChangelogHandle,
    key_group_range=st.tuples(st.integers(0, 32767), st.integers(0, 32767)).map(
        lambda pair: KeyGroupRange(min(pair), max(pair))
    ),
    segments=st.lists(segments, max_size=5).map(
        lambda found: tuple(
            msgspec.structs.replace(segment, sequence_number=number) for number, segment in enumerate(found)
        )
    ),
    state_size=numbers,
    checkpointed_size=numbers,
)


def segment(number: int = 0, **changes: object) -> SegmentHandle:
    made = SegmentHandle(
        name="job/changelog/0123",
        offset=0,
        length=500,
        head_length=104,
        crc32c=1,
        log_id="0" * 32,
        sequence_number=number,
        size=10,
        first_key_group=0,
        last_key_group=9,
    )
    return msgspec.structs.replace(made, **changes)


def handle(*found: SegmentHandle) -> ChangelogHandle:
    return ChangelogHandle(
        key_group_range=KeyGroupRange(0, 9), segments=found, state_size=10 * len(found), checkpointed_size=10
    )


def test_sequence_numbers_are_ordered_and_end_somewhere() -> None:
    assert SequenceNumber.of(3) == SequenceNumber(3) < SequenceNumber(4) == SequenceNumber(3).next()
    assert max(SequenceNumber(2), SequenceNumber(10)).value == 10
    with pytest.raises(InvalidInputError):
        SequenceNumber(2**63 - 1).next()
    with pytest.raises(InvalidInputError):
        SequenceNumber(-1)


def test_metadata_has_key_group_minus_one() -> None:
    assert StateChange.META == -1
    assert StateChange(5, b"x") == StateChange(5, b"x") != StateChange(6, b"x")


@settings(deadline=None)
@given(handles)
def test_a_handle_survives_its_encoding(made: ChangelogHandle) -> None:
    assert ChangelogHandle.from_bytes(made.to_bytes()) == made


def test_an_intersection_narrows_the_range_and_keeps_the_segments() -> None:
    made = handle(segment(0), segment(1))
    part = made.intersection(KeyGroupRange(5, 20))
    assert part is not None
    assert part.key_group_range == KeyGroupRange(5, 9)
    assert part.segments == made.segments
    assert part.state_size == made.state_size
    assert part.checkpointed_size == 0
    assert made.intersection(KeyGroupRange(10, 20)) is None


def test_objects_are_named_once() -> None:
    made = handle(segment(0), segment(1), segment(2, name="job/changelog/4567"))
    assert made.object_names() == ("job/changelog/0123", "job/changelog/4567")


def test_every_flipped_byte_is_noticed() -> None:
    data = handle(segment(0), segment(1)).to_bytes()
    for position in range(len(data)):
        for bit in (0, 3, 7):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptDataError, match="changelog handle at byte"):
                ChangelogHandle.from_bytes(damaged)


def test_truncated_and_followed_handles_are_refused() -> None:
    data = handle(segment(0)).to_bytes()
    for length in range(len(data)):
        with pytest.raises(CorruptDataError):
            ChangelogHandle.from_bytes(data[:length])
    with pytest.raises(CorruptDataError):
        ChangelogHandle.from_bytes(data + b"\0")


def test_a_newer_version_says_upgrade() -> None:
    data = bytearray(handle(segment(0)).to_bytes())
    struct.pack_into("<H", data, 4, 2)
    with pytest.raises(UnsupportedVersionError, match="Upgrade"):
        ChangelogHandle.from_bytes(data)


@pytest.mark.parametrize(
    "bad",
    [
        segment(name="../../etc/passwd"),
        segment(name="/etc/passwd"),
        segment(name="s3:\\bucket"),
        segment(name=""),
        segment(offset=-1),
        segment(length=-1),
        segment(head_length=501),
        segment(crc32c=2**32),
        segment(size=-1),
        segment(log_id="x" * 32),
        segment(log_id=""),
        segment(offset=2**63 - 1, length=500),
        segment(first_key_group=-2),
        segment(last_key_group=32768),
        segment(sequence_number=-1),
    ],
    ids=str,
)
def test_a_handle_with_an_impossible_segment_is_refused(bad: SegmentHandle) -> None:
    with pytest.raises(CorruptDataError):
        ChangelogHandle.from_bytes(handle(bad).to_bytes())


def test_segments_must_ascend() -> None:
    with pytest.raises(CorruptDataError):
        ChangelogHandle.from_bytes(handle(segment(1), segment(1)).to_bytes())


def encoded(body: bytes) -> bytes:
    return struct.pack("<4sHHII", b"SLCH", 1, 0, len(body), crc32c(body)) + body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\x91" * 100_000,
        msgspec.msgpack.encode({"key_group_range": {"start": 0, "end": 9}, "surprise": 1}),
        msgspec.msgpack.encode({"key_group_range": {"start": 5, "end": 1}}),
        msgspec.msgpack.encode({"key_group_range": {"start": 0, "end": 2**40}}),
        msgspec.msgpack.encode({"segments": []}),
    ],
    ids=range(10),
)
def test_hostile_bodies_cost_neither_time_nor_memory(body: bytes) -> None:
    with bounded(), pytest.raises(CorruptDataError):
        ChangelogHandle.from_bytes(encoded(body))


def test_the_golden_handle_is_read_and_written_for_ever() -> None:
    made = handle(segment(0), segment(4, name="job/changelog/4567", first_key_group=-1, last_key_group=-1))
    assert ChangelogHandle.from_bytes(GOLDEN.read_bytes()) == made
    assert made.to_bytes() == GOLDEN.read_bytes()


@pytest.mark.parametrize("value", [1.5, "1", None, True])
def test_a_sequence_number_is_an_integer(value: object) -> None:
    with pytest.raises(InvalidInputError):
        SequenceNumber.of(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [None, 10**13, "SLCH"])
def test_what_is_not_bytes_is_no_handle(data: object) -> None:
    with pytest.raises(InvalidInputError):
        ChangelogHandle.from_bytes(data)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [StateChange(1.5, b"x"), StateChange(-2, b"x"), StateChange(0, None), 7])  # type: ignore[arg-type]
def test_a_set_holds_changes_alone(wrong: object) -> None:
    with pytest.raises(InvalidInputError, match="StateChange"):
        StateChangeSet(UUID(int=1), SequenceNumber(0), [wrong])  # type: ignore[list-item]
