"""The format: what goes in comes out, sorted and stable; Arrow reads it; damage and hostility end in typed errors."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stateline.blob.checksum import crc32c
from stateline.changelog import StateChange, block, frame
from stateline.changelog.block import SCHEMA, Compression, decode_block, encode_block
from stateline.changelog.columns import ChangeColumns, batch_columns, joined_columns, sorted_columns
from stateline.changelog.frame import EncodedFrame, FrameHead, decode_head, encode_frame, encode_index
from stateline.changelog.reader import decode_blocks
from stateline.errors import CorruptDataError, InvalidInputError, UnsupportedVersionError
from stateline.key_groups import KeyGroupRange
from tests.unit.changelog.limits import bounded

GOLDEN = Path(__file__).parents[2] / "golden" / "changelog"
LOG = uuid.UUID("12345678-1234-4678-8234-567812345678")

changes_strategy = st.lists(
    st.tuples(st.integers(-1, 40), st.binary(max_size=40)).map(lambda pair: StateChange(*pair)), max_size=60
)


def encode(*chunks: Sequence[StateChange], compression: Compression = Compression.NONE) -> EncodedFrame:
    return encode_frame(LOG, 7, joined_columns([ChangeColumns.of(chunk) for chunk in chunks]), compression)


def joined(made: EncodedFrame) -> bytes:
    return b"".join(made.pieces)


def decode(data: bytes) -> tuple[FrameHead, list[StateChange]]:
    head = decode_head(data, "object at byte 0")
    if len(data) != head.length:
        raise CorruptDataError("trailing bytes or missing ones")
    columns = decode_blocks(memoryview(data), 0, head, head.blocks, "object", 0)
    return head, [
        StateChange(*pair) for groups, found in columns for pair in zip(groups.tolist(), found.to_pylist(), strict=True)
    ]


def stable(changes: Sequence[StateChange]) -> list[StateChange]:
    return sorted(changes, key=lambda change: change.key_group)


@settings(deadline=None)
@given(st.lists(changes_strategy, max_size=4), st.sampled_from(Compression))
@example([[StateChange(3, b"")] * 3], Compression.LZ4)
@example([], Compression.ZSTD)
def test_a_frame_gives_back_its_changes_sorted_and_stable(
    chunks: list[list[StateChange]], compression: Compression
) -> None:
    changes = [change for chunk in chunks for change in chunk]
    made = encode(*chunks, compression=compression)
    head, found = decode(joined(made))
    assert found == stable(changes)
    assert head == made.head
    assert (head.log_id, head.sequence_number) == (LOG, 7)
    assert (head.changes, head.size) == (len(changes), sum(len(change.value) for change in changes))
    assert head.length % 8 == 0


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("sizes", [[0], [3, 0, 5], [100] * 7, [70_000, 1], [300_000]])
def test_any_arrow_reader_opens_a_block(compression: Compression, sizes: list[int]) -> None:
    values = [bytes([65 + number % 26]) * size for number, size in enumerate(sizes)]
    offsets = np.cumsum([0, *sizes]).astype(np.int32)
    made = encode_block(np.arange(len(sizes), dtype=np.int16), offsets, pa.py_buffer(b"".join(values)), compression)
    stream = b"".join(made.pieces)
    table = pa.ipc.open_stream(stream).read_all()
    table.validate(full=True)
    assert table.schema == SCHEMA
    assert table["change"].to_pylist() == values
    assert made.length == len(stream)
    assert made.crc32c == crc32c(stream)


@pytest.mark.parametrize("sizes", [[0], [3, 0, 5], [100] * 7, [70_000, 1]])
def test_an_uncompressed_block_is_what_arrow_itself_writes(sizes: list[int]) -> None:
    values = [b"x" * size for size in sizes]
    groups = np.arange(len(sizes), dtype=np.int16)
    made = encode_block(
        groups, np.cumsum([0, *sizes]).astype(np.int32), pa.py_buffer(b"".join(values)), Compression.NONE
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(pa.record_batch([pa.array(groups), pa.array(values, pa.binary())], schema=SCHEMA))
    assert b"".join(made.pieces) == sink.getvalue().to_pybytes()


def test_one_sixteenth_of_the_key_groups_is_less_than_one_eighth_of_the_bytes() -> None:
    generator = np.random.default_rng(1)
    for count in (16, 32, 128, 256, 1000):
        groups = generator.integers(0, count, 20_000)
        chunks = batch_columns(groups, [b"x" * 100] * len(groups), KeyGroupRange(0, count - 1))
        head = encode_frame(LOG, 0, joined_columns(chunks), Compression.NONE).head
        for part in range(16):
            wanted = KeyGroupRange(part * count // 16, (part + 1) * count // 16 - 1)
            fetched = sum(found.length for found in head.blocks if found.overlaps(wanted))
            assert fetched + head.head_length < head.length / 8, (count, part)


def test_metadata_has_blocks_of_its_own_that_everybody_reads() -> None:
    made = encode([StateChange(0, b"a"), StateChange(-1, b"m"), StateChange(0, b"b"), StateChange(-1, b"n")])
    assert [found.key_groups for found in made.head.blocks] == [(-1, -1), (0, 0)]
    assert made.head.blocks[0].overlaps(KeyGroupRange(30, 40))
    assert not made.head.blocks[1].overlaps(KeyGroupRange(1, 40))
    assert made.head.key_groups == (-1, 0)
    assert encode([]).head.key_groups == (0, -1)
    assert encode([StateChange(-1, b"m")]).head.key_groups == (-1, -1)


def test_a_large_key_group_is_cut_and_a_large_change_is_alone() -> None:
    large = bytes(5 * 1024 * 1024)
    changes = [StateChange(0, b"first"), *[StateChange(1, bytes(1024 * 1024))] * 6, StateChange(1, large)]
    made = encode(changes)
    assert all(found.change_bytes <= 4 * 1024 * 1024 or found.rows == 1 for found in made.head.blocks)
    assert decode(joined(made))[1] == changes


def test_a_block_that_would_decompress_into_too_much_is_stored_as_it_is() -> None:
    huge = [StateChange(0, bytes(block.MAX_COMPRESSED_BLOCK_BYTES))]
    made = encode(huge, compression=Compression.ZSTD)
    assert made.head.length > block.MAX_COMPRESSED_BLOCK_BYTES
    assert made.head.blocks[0].raw_crc32c == 0
    assert decode(joined(made))[1] == huge


def test_many_empty_changes_are_cut_into_blocks_too() -> None:
    chunks = batch_columns(np.zeros(2_000_000, int), [b""] * 2_000_000, KeyGroupRange(0, 0))
    made = encode_frame(LOG, 0, joined_columns(chunks), Compression.NONE)
    assert len(made.head.blocks) > 1
    assert sum(found.rows for found in made.head.blocks) == 2_000_000


def test_sorted_columns_are_not_copied() -> None:
    [columns] = batch_columns([0, 1, 1], pa.array([b"a", b"b", b"c"], pa.large_binary()), KeyGroupRange(0, 1))
    assert sorted_columns(columns).data.address == columns.data.address


# -- what users give as batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        [b"a", b"bc", b""],
        [bytearray(b"a"), memoryview(b"bc"), b""],
        pa.array([b"a", b"bc", b""]),
        pa.array([b"a", b"bc", b""], pa.large_binary()),
        pa.array(["a", "bc", ""]),
        pa.array(["a", "bc", ""], pa.large_string()),
        pa.array([b"a", b"bc", b""], pa.binary_view()),
        pa.chunked_array([[b"a"], [], [b"bc", b""]], pa.binary()),
        pa.array([b"zz", b"a", b"bc", b"", b"zz"]).slice(1, 3),
        np.array([b"a", b"bc", b""]),
    ],
    ids=lambda value: f"{type(value).__name__}-{getattr(value, 'type', '')}",
)
@pytest.mark.parametrize(
    "groups",
    [[2, 0, 1], np.array([2, 0, 1], np.uint8), pa.array([2, 0, 1], pa.int32())],
    ids=lambda value: type(value).__name__,
)
def test_batches_come_in_many_forms(values: object, groups: object) -> None:
    made = batch_columns(groups, values, KeyGroupRange(0, 2))
    assert [change for part in made for change in part.changes()] == [
        StateChange(2, b"a"),
        StateChange(0, b"bc"),
        StateChange(1, b""),
    ]


def test_values_wider_than_a_byte_are_taken_as_bytes() -> None:
    [columns] = batch_columns([0], [memoryview(np.array([1, 2], np.int32))], KeyGroupRange(0, 0))
    assert columns.size == 8
    [fixed] = batch_columns([0, 0], pa.array([b"ab", b"cd"], pa.binary(2)), KeyGroupRange(0, 0))
    assert [change.value for change in fixed.changes()] == [b"ab", b"cd"]


@pytest.mark.parametrize(
    ("groups", "values"),
    [
        ([0], [b"a", b"b"]),
        ([0, 1], [b"a"]),
        ([3], [b"a"]),
        ([-1], [b"a"]),
        ([2**40], [b"a"]),
        ([0.5], [b"a"]),
        ([[0]], [b"a"]),
        (["0"], [b"a"]),
        (pa.array([None, 0]), [b"a", b"b"]),
        ([0, 0], pa.array([b"a", None])),
        ([0], ["text"]),
        ([0], [None]),
        ([0], [5]),
        ([0], 5),
        ([0], pa.array([5])),
        ([0], pa.array([[b"a"]])),
    ],
    ids=str,
)
def test_batches_that_are_wrong_are_refused(groups: object, values: object) -> None:
    with pytest.raises(InvalidInputError):
        batch_columns(groups, values, KeyGroupRange(0, 2))


def test_single_changes_that_are_wrong_are_refused() -> None:
    for bad in (StateChange(-2, b""), StateChange(32768, b""), StateChange(0, None), StateChange(0, "text")):
        with pytest.raises(InvalidInputError):
            ChangeColumns.of([bad])


@settings(deadline=None)
@given(changes_strategy, st.integers(1, 100))
def test_splitting_keeps_everything_in_order_and_within_the_bound(changes: list[StateChange], bound: int) -> None:
    pieces = list(ChangeColumns.of(changes).split(bound))
    assert [change for piece in pieces for change in piece.changes()] == changes
    assert all(piece.size <= bound or len(piece) == 1 for piece in pieces)


# -- damage ----------------------------------------------------------------------------------------------------------

SMALL = [StateChange(1, b"apple"), StateChange(-1, b"meta"), StateChange(0, b"pear"), StateChange(1, b"a" * 50)]


@pytest.mark.parametrize("compression", Compression)
def test_every_flipped_bit_of_a_frame_is_noticed(compression: Compression) -> None:
    data = joined(encode(SMALL, compression=compression))
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptDataError):
                decode(bytes(damaged))


def test_every_truncation_of_a_frame_is_noticed() -> None:
    data = joined(encode(SMALL))
    for length in range(len(data)):
        with pytest.raises(CorruptDataError):
            decode(data[:length])


def test_every_flipped_byte_and_truncation_of_an_index_is_noticed() -> None:
    head = encode(SMALL).head
    data = encode_index([(0, head), (head.length, head)])

    def read(index: bytes) -> None:
        offset = frame.decode_trailer(index[-frame.TRAILER_BYTES :], 2 * head.length + len(index), "object")
        frame.decode_index(index, offset, "object")

    read(data)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        with pytest.raises(CorruptDataError):
            read(bytes(damaged))
    for length in range(len(data)):
        with pytest.raises(CorruptDataError):
            read(data[:length])


def test_a_newer_version_says_upgrade() -> None:
    data = bytearray(joined(encode(SMALL)))
    struct.pack_into("<H", data, 4, 2)
    with pytest.raises(UnsupportedVersionError, match=r"object at byte 0.*Upgrade"):
        decode(bytes(data))
    trailer = bytearray(encode_index([])[-frame.TRAILER_BYTES :])
    struct.pack_into("<H", trailer, 12, 2)
    with pytest.raises(UnsupportedVersionError):
        frame.decode_trailer(bytes(trailer), 32, "object")


def reseal(data: bytearray) -> bytes:
    """Makes the checksum of a head match again: what a hostile writer would do."""
    head_length = 72 + 32 * struct.unpack_from("<I", data, 56)[0]
    struct.pack_into("<I", data, 68, crc32c(bytes(data[72:head_length]), crc32c(bytes(data[:68]))))
    return bytes(data)


HEADER_FIELDS = {"payload": (32, "Q"), "size": (40, "Q"), "changes": (48, "Q"), "blocks": (56, "I")}
ENTRY_FIELDS = {"low": (72, "h"), "high": (74, "h"), "rows": (76, "I"), "length": (80, "Q"), "bytes": (88, "Q")}


@pytest.mark.parametrize("field", [*HEADER_FIELDS, *ENTRY_FIELDS])
@pytest.mark.parametrize("change", ["+1", "-1", "zero", "max", "half"])
def test_numbers_that_contradict_each_other_are_refused_before_they_cost_anything(field: str, change: str) -> None:
    data = bytearray(joined(encode(SMALL, compression=Compression.ZSTD)))
    offset, kind = {**HEADER_FIELDS, **ENTRY_FIELDS}[field]
    width = 8 * struct.calcsize(f"<{kind}")
    old = struct.unpack_from(f"<{kind}", data, offset)[0] % 2**width
    new = {"+1": old + 1, "-1": old - 1, "zero": 0, "max": 2**width - 1, "half": 2 ** (width - 1)}[change] % 2**width
    if new == old:
        return
    struct.pack_into(f"<{kind.upper()}", data, offset, new)
    with bounded(), pytest.raises(CorruptDataError):
        decode(reseal(data) if field != "blocks" or new < 100 else bytes(data))


def hostile_frame(stored: bytes, *, rows: int, change_bytes: int, raw_crc: int, compression: Compression) -> bytes:
    """A frame of one block whose every checksum and sum is right."""
    entry = struct.pack("<hhIQQII", 0, 0, rows, len(stored), change_bytes, crc32c(stored), raw_crc)
    header = struct.pack(
        "<4sHBB16sqQQQIhhII", b"SLCF", 1, compression, 0, LOG.bytes, 0, len(stored), change_bytes, rows, 1, 0, 0, 0, 0
    )
    return reseal(bytearray(header + entry + stored))


def compressed_block(change_bytes: int, announced: int, packed: bytes, compression: Compression) -> bytes:
    """A block of one change whose data column announces what it likes."""
    columns = [struct.pack("<qh", -1, 0), struct.pack("<qii", -1, 0, change_bytes)]
    columns.append(struct.pack("<q", announced) + packed)
    front = block._front(compression, 1, [len(column) for column in columns])
    padded = b"".join(column + bytes(-len(column) % 8) for column in columns)
    return front + padded + block.END_OF_STREAM


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
@pytest.mark.parametrize("announced", [10, 15 * 1024 * 1024, 2**31 - 1, 2**62, -1, -5, 0])
def test_a_decompression_bomb_is_refused(compression: Compression, announced: int) -> None:
    codec = pa.Codec(compression.name.lower())
    bomb = codec.compress(bytes(512 * 1024 * 1024), asbytes=True)
    for change_bytes in (10, 2**31 - 1, 15 * 1024 * 1024):
        stored = compressed_block(min(change_bytes, 2**31 - 1), announced, bomb, compression)
        data = hostile_frame(stored, rows=1, change_bytes=change_bytes, raw_crc=0, compression=compression)
        with bounded(seconds=2), pytest.raises(CorruptDataError):
            decode(data)


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_a_compressed_column_that_is_too_short_does_not_become_other_memory(compression: Compression) -> None:
    packed = pa.Codec(compression.name.lower()).compress(b"short", asbytes=True)
    stored = compressed_block(5000, 5000, packed, compression)
    data = hostile_frame(stored, rows=1, change_bytes=5000, raw_crc=1, compression=compression)
    with pytest.raises(CorruptDataError):
        decode(data)


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
@pytest.mark.parametrize("announced", [4, 6, 0, -1, -2, 2**62])
def test_a_column_must_announce_its_length(compression: Compression, announced: int) -> None:
    packed = pa.Codec(compression.name.lower()).compress(b"short", asbytes=True)
    columns = struct.pack("<h", 0) + struct.pack("<ii", 0, 5) + b"short"
    for said, refused in ((5, False), (announced, True)):
        stored = compressed_block(5, said, packed, compression)
        data = hostile_frame(stored, rows=1, change_bytes=5, raw_crc=crc32c(columns), compression=compression)
        if refused:
            with pytest.raises(CorruptDataError):
                decode(data)
        else:
            assert decode(data)[1] == [StateChange(0, b"short")]


def test_offsets_and_key_groups_that_lie_are_refused() -> None:
    for groups, offsets, rows, size in [
        ([1, 0], [0, 1, 2], 2, 2),  # not sorted
        ([0, 0], [0, 5, 2], 2, 2),  # not ascending
        ([0, 0], [1, 1, 2], 2, 2),  # does not start at 0
        ([0, 0], [0, -1, 2], 2, 2),
        ([0, 0], [0, 1, 1], 2, 2),  # does not end at the end
    ]:
        columns = [np.array(groups, "<i2").tobytes(), np.array(offsets, "<i4").tobytes(), bytes(size)]
        front = block._front(Compression.NONE, rows, [len(column) for column in columns])
        stored = front + b"".join(column + bytes(-len(column) % 8) for column in columns) + block.END_OF_STREAM
        with pytest.raises(CorruptDataError):
            decode_block(
                memoryview(stored),
                rows=rows,
                change_bytes=size,
                raw_crc32c=0,
                compression=Compression.NONE,
                subject="object at byte 0",
            )


def test_a_block_with_other_key_groups_than_its_table_is_refused() -> None:
    data = bytearray(joined(encode([StateChange(3, b"x")])))
    struct.pack_into("<hh", data, 60, 4, 4)
    struct.pack_into("<hh", data, 72, 4, 4)
    with pytest.raises(CorruptDataError, match="other key groups"):
        decode(reseal(data))


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode(data)
    with pytest.raises(CorruptDataError):
        decode(b"SLCF\x01\x00" + data)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_mutated_frame_is_refused_or_equal(data: st.DataObject) -> None:
    """Bytes replaced anywhere, with checksums made to match again where the head still allows it."""
    original = joined(encode(SMALL, compression=data.draw(st.sampled_from(Compression))))
    mutated = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    if struct.unpack_from("<I", mutated, 56)[0] < 10:
        reseal(mutated)
    try:
        head, changes = decode(bytes(mutated))
    except CorruptDataError:
        return
    assert sorted(change.value for change in changes) == sorted(change.value for change in SMALL)
    assert head.changes == len(SMALL)


# -- golden files ----------------------------------------------------------------------------------------------------


def golden_object(compression: Compression) -> bytes:
    other = uuid.UUID("87654321-4321-4765-8321-876543218765")
    first = encode_frame(LOG, 0, ChangeColumns.of(SMALL), compression)
    second = encode_frame(other, 12, ChangeColumns.of([StateChange(9, b"x" * 300)]), compression)
    index = encode_index([(0, first.head), (first.head.length, second.head)])
    return joined(first) + joined(second) + index


@pytest.mark.parametrize("compression", Compression)
def test_golden_objects_are_read_for_ever(compression: Compression) -> None:
    data = (GOLDEN / f"object_{compression.name.lower()}_v1.bin").read_bytes()
    offset = frame.decode_trailer(data[-frame.TRAILER_BYTES :], len(data), "object")
    first, second = frame.decode_index(data[offset:], offset, "object")
    assert decode(data[first.offset : first.offset + first.length])[1] == stable(SMALL)
    head, changes = decode(data[second.offset : second.offset + second.length])
    assert changes == [StateChange(9, b"x" * 300)]
    assert (head.sequence_number, head.compression) == (12, compression)


def test_an_uncompressed_object_is_written_as_it_always_was() -> None:
    """Not so for the others: a codec may compress better tomorrow."""
    assert golden_object(Compression.NONE) == (GOLDEN / "object_none_v1.bin").read_bytes()
