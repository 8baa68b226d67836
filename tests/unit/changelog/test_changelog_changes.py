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
from stateline.changelog import StateChange, block
from stateline.changelog.block import END_OF_STREAM, SCHEMA, SCHEMA_MESSAGE, Compression, decode_block, encode_block
from stateline.changelog.changes import ChangesTable, EncodedChanges, decode_table, encode_changes
from stateline.changelog.columns import ChangeColumns, batch_columns, joined_columns, sorted_columns
from stateline.changelog.reader import decode_blocks
from stateline.changelog.segment import encode_segment, read_directory
from stateline.errors import CorruptDataError, InvalidInputError, UnsupportedVersionError
from stateline.key_groups import KeyGroupRange
from tests.unit.changelog.limits import bounded
from tests.unit.changelog.worlds import memory_store

GOLDEN = Path(__file__).parents[2] / "golden" / "changelog"
LOG = uuid.UUID("12345678-1234-4678-8234-567812345678")

changes_strategy = st.lists(
    st.tuples(st.integers(-1, 40), st.binary(max_size=40)).map(lambda pair: StateChange(*pair)), max_size=60
)


def encode(*chunks: Sequence[StateChange], compression: Compression = Compression.NONE) -> EncodedChanges:
    return encode_changes(LOG, 7, joined_columns([ChangeColumns.of(chunk) for chunk in chunks]), compression)


def joined(made: EncodedChanges) -> bytes:
    return b"".join(made.section.pieces)


def decode(data: bytes, head_length: int) -> tuple[ChangesTable, list[StateChange]]:
    table = decode_table(data[len(data) - head_length :], "object at byte 0")
    if len(data) != table.length:
        raise CorruptDataError("trailing bytes or missing ones")
    columns = decode_blocks(memoryview(data), 0, table, table.blocks, "object", 0)
    return table, [
        StateChange(*pair) for groups, found in columns for pair in zip(groups.tolist(), found.to_pylist(), strict=True)
    ]


def decoded(made: EncodedChanges) -> tuple[ChangesTable, list[StateChange]]:
    return decode(joined(made), made.table.head_length)


def stable(changes: Sequence[StateChange]) -> list[StateChange]:
    return sorted(changes, key=lambda change: change.key_group)


@settings(deadline=None)
@given(st.lists(changes_strategy, max_size=4), st.sampled_from(Compression))
@example([[StateChange(3, b"")] * 3], Compression.LZ4)
@example([], Compression.ZSTD)
def test_a_change_set_gives_back_its_changes_sorted_and_stable(
    chunks: list[list[StateChange]], compression: Compression
) -> None:
    changes = [change for chunk in chunks for change in chunk]
    made = encode(*chunks, compression=compression)
    table, found = decoded(made)
    assert found == stable(changes)
    assert table == made.table
    assert (table.log_id, table.sequence_number) == (LOG, 7)
    assert (table.changes, table.size) == (len(changes), sum(len(change.value) for change in changes))
    assert table.length % 8 == 0
    assert (table.length, table.crc32c, table.head_length) == (
        made.section.length,
        made.section.crc32c,
        made.section.head_length,
    )


@settings(deadline=None)
@given(changes_strategy, st.sampled_from(Compression))
def test_any_arrow_reader_opens_a_change_set_as_one_stream(
    changes: list[StateChange], compression: Compression
) -> None:
    made = encode(changes, compression=compression)
    with pa.ipc.open_stream(joined(made)) as reader:
        batches = list(reader)
        assert reader.schema == SCHEMA
    assert len(batches) == len(made.table.blocks)
    table = pa.Table.from_batches(batches, SCHEMA)
    table.validate(full=True)
    assert list(map(StateChange, table["key_group"].to_pylist(), table["change"].to_pylist())) == stable(changes)


def test_blocks_with_and_without_compression_are_one_stream() -> None:
    changes = [StateChange(0, b"a" * 1000), StateChange(1, bytes(block.MAX_COMPRESSED_BLOCK_BYTES))]
    made = encode(changes, compression=Compression.LZ4)
    assert [bool(found.raw_crc32c) for found in made.table.blocks] == [True, False]
    assert pa.ipc.open_stream(joined(made)).read_all()["change"].to_pylist() == [change.value for change in changes]


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("sizes", [[0], [3, 0, 5], [100] * 7, [70_000, 1], [300_000]])
def test_any_arrow_reader_opens_a_block(compression: Compression, sizes: list[int]) -> None:
    values = [bytes([65 + number % 26]) * size for number, size in enumerate(sizes)]
    offsets = np.cumsum([0, *sizes]).astype(np.int32)
    made = encode_block(np.arange(len(sizes), dtype=np.int16), offsets, pa.py_buffer(b"".join(values)), compression)
    message = b"".join(made.pieces)
    table = pa.ipc.open_stream(SCHEMA_MESSAGE + message + END_OF_STREAM).read_all()
    table.validate(full=True)
    assert table.schema == SCHEMA
    assert table["change"].to_pylist() == values
    assert made.length == len(message)
    assert made.crc32c == crc32c(message)


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
    assert SCHEMA_MESSAGE + b"".join(made.pieces) + END_OF_STREAM == sink.getvalue().to_pybytes()


def test_one_sixteenth_of_the_key_groups_is_less_than_one_eighth_of_the_bytes() -> None:
    generator = np.random.default_rng(1)
    for count in (16, 32, 128, 256, 1000):
        groups = generator.integers(0, count, 20_000)
        chunks = batch_columns(groups, [b"x" * 100] * len(groups), KeyGroupRange(0, count - 1))
        table = encode_changes(LOG, 0, joined_columns(chunks), Compression.NONE).table
        for part in range(16):
            wanted = KeyGroupRange(part * count // 16, (part + 1) * count // 16 - 1)
            fetched = sum(found.length for found in table.blocks if found.overlaps(wanted))
            assert fetched + table.head_length < table.length / 8, (count, part)


def test_metadata_has_blocks_of_its_own_that_everybody_reads() -> None:
    made = encode([StateChange(0, b"a"), StateChange(-1, b"m"), StateChange(0, b"b"), StateChange(-1, b"n")])
    assert [found.key_groups for found in made.table.blocks] == [(-1, -1), (0, 0)]
    assert made.table.blocks[0].overlaps(KeyGroupRange(30, 40))
    assert not made.table.blocks[1].overlaps(KeyGroupRange(1, 40))
    assert made.table.key_groups == (-1, 0)
    assert encode([]).table.key_groups == (0, -1)
    assert encode([StateChange(-1, b"m")]).table.key_groups == (-1, -1)


def test_a_large_key_group_is_cut_and_a_large_change_is_alone() -> None:
    large = bytes(5 * 1024 * 1024)
    changes = [StateChange(0, b"first"), *[StateChange(1, bytes(1024 * 1024))] * 6, StateChange(1, large)]
    made = encode(changes)
    assert all(found.change_bytes <= 4 * 1024 * 1024 or found.rows == 1 for found in made.table.blocks)
    assert decoded(made)[1] == changes


def test_a_block_that_would_decompress_into_too_much_is_stored_as_it_is() -> None:
    huge = [StateChange(0, bytes(block.MAX_COMPRESSED_BLOCK_BYTES))]
    made = encode(huge, compression=Compression.ZSTD)
    assert made.table.length > block.MAX_COMPRESSED_BLOCK_BYTES
    assert made.table.blocks[0].raw_crc32c == 0
    assert decoded(made)[1] == huge


def test_many_empty_changes_are_cut_into_blocks_too() -> None:
    chunks = batch_columns(np.zeros(2_000_000, int), [b""] * 2_000_000, KeyGroupRange(0, 0))
    made = encode_changes(LOG, 0, joined_columns(chunks), Compression.NONE)
    assert len(made.table.blocks) > 1
    assert sum(found.rows for found in made.table.blocks) == 2_000_000


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
def test_every_flipped_bit_of_a_block_or_the_table_is_noticed(compression: Compression) -> None:
    made = encode(SMALL, compression=compression)
    data = joined(made)
    table = len(data) - made.table.head_length
    for position in (*range(len(SCHEMA_MESSAGE), table - len(END_OF_STREAM)), *range(table, len(data))):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptDataError):
                decode(bytes(damaged), made.table.head_length)


def test_every_truncation_of_a_change_set_is_noticed() -> None:
    made = encode(SMALL)
    data = joined(made)
    for length in range(len(data)):
        with pytest.raises(CorruptDataError):
            decode(data[:length], made.table.head_length)
        with pytest.raises(CorruptDataError):
            decode(data[len(data) - length :], made.table.head_length)


def test_a_table_is_exactly_as_long_as_its_handle_says() -> None:
    made = encode(SMALL)
    for wrong in (0, 8, 71, made.table.head_length - 32, made.table.head_length + 8):
        with pytest.raises(CorruptDataError):
            decode(joined(made), wrong)


def test_a_newer_version_says_upgrade() -> None:
    made = encode(SMALL)
    data = bytearray(joined(made))
    struct.pack_into("<H", data, len(data) - made.table.head_length + 4, 2)
    with pytest.raises(UnsupportedVersionError, match=r"object at byte 0.*Upgrade"):
        decode(bytes(data), made.table.head_length)


def reseal(data: bytearray, head_length: int) -> bytes:
    """Makes the checksum of a table match again: what a hostile writer would do."""
    start = len(data) - head_length
    struct.pack_into("<I", data, start + 68, crc32c(bytes(data[start + 72 :]), crc32c(bytes(data[start : start + 68]))))
    return bytes(data)


HEADER_FIELDS = {"payload": (32, "Q"), "size": (40, "Q"), "changes": (48, "Q"), "blocks": (56, "I")}
ENTRY_FIELDS = {"low": (72, "h"), "high": (74, "h"), "rows": (76, "I"), "length": (80, "Q"), "bytes": (88, "Q")}


@pytest.mark.parametrize("field", [*HEADER_FIELDS, *ENTRY_FIELDS])
@pytest.mark.parametrize("change", ["+1", "-1", "zero", "max", "half"])
def test_numbers_that_contradict_each_other_are_refused_before_they_cost_anything(field: str, change: str) -> None:
    made = encode(SMALL, compression=Compression.ZSTD)
    data, head_length = bytearray(joined(made)), made.table.head_length
    offset, kind = {**HEADER_FIELDS, **ENTRY_FIELDS}[field]
    offset += len(data) - head_length
    width = 8 * struct.calcsize(f"<{kind}")
    old = struct.unpack_from(f"<{kind}", data, offset)[0] % 2**width
    new = {"+1": old + 1, "-1": old - 1, "zero": 0, "max": 2**width - 1, "half": 2 ** (width - 1)}[change] % 2**width
    if new == old:
        return
    struct.pack_into(f"<{kind.upper()}", data, offset, new)
    with bounded(), pytest.raises(CorruptDataError):
        decode(reseal(data, head_length), head_length)


def hostile_changes(stored: bytes, *, rows: int, change_bytes: int, raw_crc: int, compression: Compression) -> bytes:
    """A change set of one block whose every checksum and sum is right."""
    entry = struct.pack("<hhIQQII", 0, 0, rows, len(stored), change_bytes, crc32c(stored), raw_crc)
    header = struct.pack(
        "<4sHBB16sqQQQIhhII", b"SLCT", 1, compression, 0, LOG.bytes, 0, len(stored), change_bytes, rows, 1, 0, 0, 0, 0
    )
    return reseal(bytearray(SCHEMA_MESSAGE + stored + END_OF_STREAM + header + entry), 104)


def compressed_block(change_bytes: int, announced: int, packed: bytes, compression: Compression) -> bytes:
    """A block of one change whose data column announces what it likes."""
    columns = [struct.pack("<qh", -1, 0), struct.pack("<qii", -1, 0, change_bytes)]
    columns.append(struct.pack("<q", announced) + packed)
    front = block._front(compression, 1, [len(column) for column in columns])
    padded = b"".join(column + bytes(-len(column) % 8) for column in columns)
    return front + padded


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
@pytest.mark.parametrize("announced", [10, 15 * 1024 * 1024, 2**31 - 1, 2**62, -1, -5, 0])
def test_a_decompression_bomb_is_refused(compression: Compression, announced: int) -> None:
    codec = pa.Codec(compression.name.lower())
    bomb = codec.compress(bytes(512 * 1024 * 1024), asbytes=True)
    for change_bytes in (10, 2**31 - 1, 15 * 1024 * 1024):
        stored = compressed_block(min(change_bytes, 2**31 - 1), announced, bomb, compression)
        data = hostile_changes(stored, rows=1, change_bytes=change_bytes, raw_crc=0, compression=compression)
        with bounded(seconds=2), pytest.raises(CorruptDataError):
            decode(data, 104)


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_a_compressed_column_that_is_too_short_does_not_become_other_memory(compression: Compression) -> None:
    packed = pa.Codec(compression.name.lower()).compress(b"short", asbytes=True)
    stored = compressed_block(5000, 5000, packed, compression)
    data = hostile_changes(stored, rows=1, change_bytes=5000, raw_crc=1, compression=compression)
    with pytest.raises(CorruptDataError):
        decode(data, 104)


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
@pytest.mark.parametrize("announced", [4, 6, 0, -1, -2, 2**62])
def test_a_column_must_announce_its_length(compression: Compression, announced: int) -> None:
    packed = pa.Codec(compression.name.lower()).compress(b"short", asbytes=True)
    columns = struct.pack("<h", 0) + struct.pack("<ii", 0, 5) + b"short"
    for said, refused in ((5, False), (announced, True)):
        stored = compressed_block(5, said, packed, compression)
        data = hostile_changes(stored, rows=1, change_bytes=5, raw_crc=crc32c(columns), compression=compression)
        if refused:
            with pytest.raises(CorruptDataError):
                decode(data, 104)
        else:
            assert decode(data, 104)[1] == [StateChange(0, b"short")]


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
        stored = front + b"".join(column + bytes(-len(column) % 8) for column in columns)
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
    struct.pack_into("<hh", data, len(data) - 104 + 60, 4, 4)
    struct.pack_into("<hh", data, len(data) - 104 + 72, 4, 4)
    with pytest.raises(CorruptDataError, match="other key groups"):
        decode(reseal(data, 104), 104)


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode(data, len(data))
    with pytest.raises(CorruptDataError):
        decode(b"SLCT\x01\x00" + data, 6 + len(data))


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_mutated_change_set_is_refused_or_equal(data: st.DataObject) -> None:
    """Bytes replaced anywhere, with the checksum of the table made to match again."""
    made = encode(SMALL, compression=data.draw(st.sampled_from(Compression)))
    mutated = bytearray(joined(made))
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    try:
        table, changes = decode(reseal(mutated, made.table.head_length), made.table.head_length)
    except CorruptDataError:
        return
    assert sorted(change.value for change in changes) == sorted(change.value for change in SMALL)
    assert table.changes == len(SMALL)


# -- golden files ----------------------------------------------------------------------------------------------------


def golden_segment(compression: Compression) -> bytes:
    other = uuid.UUID("87654321-4321-4765-8321-876543218765")
    first = encode_changes(LOG, 0, ChangeColumns.of(SMALL), compression)
    second = encode_changes(other, 12, ChangeColumns.of([StateChange(9, b"x" * 300)]), compression)
    return b"".join(encode_segment([first.section, second.section]).pieces)


@pytest.mark.parametrize("compression", Compression)
def test_golden_segments_are_read_for_ever(compression: Compression) -> None:
    data = (GOLDEN / f"segment_{compression.name.lower()}_v1.bin").read_bytes()
    store = memory_store()
    store.put("object", data)
    first, second = read_directory(store, "object").entries
    assert decode(data[first.offset : first.offset + first.length], first.head_length)[1] == stable(SMALL)
    table, changes = decode(data[second.offset : second.offset + second.length], second.head_length)
    assert changes == [StateChange(9, b"x" * 300)]
    assert (table.sequence_number, table.compression) == (12, compression)


def test_an_uncompressed_segment_is_written_as_it_always_was() -> None:
    """Not so for the others: a codec may compress better tomorrow."""
    assert golden_segment(Compression.NONE) == (GOLDEN / "segment_none_v1.bin").read_bytes()
