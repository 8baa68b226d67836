"""The bytes of a run: plain Arrow, cut well, proved before use, and never other data when they are damaged."""

from __future__ import annotations

import base64
import itertools
import random
import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from state_kit import ALL, LONGS, MAX_PARALLELISM, STRINGS, changes, handle_of, run_of

from stateline.blob.checksum import crc32c
from stateline.errors import CorruptDataError, ErrorKind, InvalidInputError, StatelineError, UnsupportedVersionError
from stateline.handles import RunHandle
from stateline.key_groups import KeyGroupRange, key_group_of
from stateline.state.rows import StateRows
from stateline.state.run import (
    EncodedRun,
    RunSettings,
    check_slice,
    check_whole,
    decode_batches,
    encode_run,
    read_index,
    tail_bytes,
)
from stateline.state.runs import Run
from stateline.state.schema import StateSchema

SMALL = RunSettings(batch_rows=8)


def many(rows: int = 200, schema: StateSchema = LONGS) -> Run:
    live = {number: [number * 10] for number in range(rows)}
    return run_of(changes(schema, live), batch_rows=10_000)


def opened(data: bytes | memoryview, handle: RunHandle, schema: StateSchema = LONGS) -> list[StateRows]:
    buffer = pa.py_buffer(data)
    check_whole(buffer, handle)
    index = read_index(buffer, handle)
    return decode_batches(buffer, handle, schema, index, range(len(index.batches)))


def as_dict(batches: list[StateRows]) -> dict[int, tuple[object, ...]]:
    return {
        key: (*values, bool(batch.deleted[row]) if batch.deleted is not None else False)
        for batch in batches
        for row, (key, *values) in enumerate(
            zip(batch.keys.columns[0].to_pylist(), *(column.to_pylist() for column in batch.values), strict=True)
        )
    }


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_what_was_written_is_read(compression: str) -> None:
    rows = changes(STRINGS, {"a": ["x", 1.5], None: [None, None], "": ["", float("inf")]}, deleted=["gone"])
    encoded = encode_run(run_of(rows), STRINGS, MAX_PARALLELISM, RunSettings(compression=compression))
    batches = opened(encoded.data, handle_of(encoded), STRINGS)
    assert (encoded.rows, encoded.tombstones) == (4, 1)
    assert as_dict(batches) == {
        "a": ("x", 1.5, False),
        None: (None, None, False),
        "": ("", float("inf"), False),
        "gone": (None, None, True),
    }


def test_anybody_can_read_a_run_with_arrow() -> None:
    encoded = encode_run(run_of(changes(LONGS, {7: [70]}, deleted=[8])), LONGS, MAX_PARALLELISM)
    reader = pa.ipc.open_file(encoded.data)
    table = reader.read_all()
    assert table.schema.names == ["__hash", "k", "v", "__deleted"]
    assert [field.metadata for field in table.schema][1:3] == [
        {b"stateline.role": b"key", b"stateline.type": b"int64"},
        {b"stateline.role": b"value", b"stateline.type": b"int64"},
    ]
    assert table.schema.types[1:3] == [pa.int8(), pa.int8()]
    assert sorted(table["k"].to_pylist()) == [7, 8]
    assert {key: value for key, value in reader.metadata.items() if key != b"stateline.index"} == {
        b"stateline.format": b"run",
        b"stateline.version": b"2",
        b"stateline.rows": b"2",
        b"stateline.tombstones": b"1",
        b"stateline.max_parallelism": b"16",
    }


def test_a_run_without_tombstones_has_no_deletion_column() -> None:
    encoded = encode_run(many(3), LONGS, MAX_PARALLELISM)
    assert pa.ipc.open_file(encoded.data).schema.names == ["__hash", "k", "v"]


def test_batches_end_at_key_groups_and_never_split_a_hash() -> None:
    encoded = encode_run(many(1000), LONGS, MAX_PARALLELISM, RunSettings(batch_rows=150))
    handle = handle_of(encoded)
    batches = opened(encoded.data, handle)
    assert sum(map(len, batches)) == 1000
    assert all(40 <= len(batch) <= 190 for batch in batches)
    groups = [{int(group) for group in key_group_of(batch.keys.hashes, MAX_PARALLELISM)} for batch in batches]
    assert all(before.isdisjoint(after) for before, after in itertools.pairwise(groups))
    same = np.full(20, 1 << 40, dtype=np.uint64)
    rows = StateRows(changes(LONGS, {n: [n] for n in range(20)}).keys, (pa.array(range(20)),))
    one_hash = StateRows(type(rows.keys)(same, rows.keys.columns), rows.values)
    assert len(opened_batches(Run([one_hash], ALL, MAX_PARALLELISM))) == 1


def opened_batches(run: Run) -> list[StateRows]:
    encoded = encode_run(run, LONGS, MAX_PARALLELISM, SMALL)
    return opened(encoded.data, handle_of(encoded))


def test_wide_rows_make_short_batches() -> None:
    rows = changes(STRINGS, {str(n): ["x" * 1000, 0.0] for n in range(100)})
    encoded = encode_run(run_of(rows, batch_rows=1000), STRINGS, MAX_PARALLELISM, RunSettings(batch_bytes="20KiB"))
    assert len(opened(encoded.data, handle_of(encoded), STRINGS)) > 3


def test_an_empty_run_is_not_written() -> None:
    with pytest.raises(InvalidInputError, match="no rows"):
        encode_run(Run([], ALL, MAX_PARALLELISM), LONGS, MAX_PARALLELISM)


def test_reading_copies_nothing() -> None:
    encoded = encode_run(many(), LONGS, MAX_PARALLELISM)
    start = pa.py_buffer(encoded.data).address
    (rows,) = opened(encoded.data, handle_of(encoded))
    for buffer in (rows.values[0].buffers()[1], pa.py_buffer(rows.keys.hashes)):
        assert start <= buffer.address < start + len(encoded.data)


def test_an_older_schema_is_evolved_on_the_way() -> None:
    encoded = encode_run(many(5), LONGS, MAX_PARALLELISM)
    wanted = StateSchema(LONGS.keys, pa.schema([("new", pa.string()), ("v", pa.int64())]))
    assert as_dict(opened(encoded.data, handle_of(encoded), wanted))[3] == (None, 30, False)
    with pytest.raises(InvalidInputError) as caught:
        opened(encoded.data, handle_of(encoded), StateSchema(LONGS.keys, pa.schema([("v", pa.string())])))
    assert caught.value.kind is ErrorKind.SCHEMA_MISMATCH


# -- slices -----------------------------------------------------------------------------------------------------------


def sliced(encoded: EncodedRun, wanted: KeyGroupRange) -> tuple[bytearray, RunHandle]:
    """The run with every byte outside the tail and the wanted batches destroyed."""
    handle = handle_of(encoded)
    index = read_index(pa.py_buffer(encoded.data), handle)
    data = bytearray(len(encoded.data))
    data[index.tail_start :] = encoded.data[index.tail_start :]
    for number in index.covering(wanted):
        entry = index.batches[number]
        data[entry.offset : entry.offset + entry.length] = encoded.data[entry.offset : entry.offset + entry.length]
    return data, handle


def test_a_slice_needs_only_tail_and_its_batches() -> None:
    encoded = encode_run(many(500), LONGS, MAX_PARALLELISM, SMALL)
    wanted = KeyGroupRange(3, 5)
    data, handle = sliced(encoded, wanted)
    buffer = pa.py_buffer(bytes(data))
    index = read_index(buffer, handle)
    batches = index.covering(wanted)
    assert 0 < len(batches) < len(index.batches) // 2
    check_slice(buffer, handle, index, batches)
    found = Run(decode_batches(buffer, handle, LONGS, index, batches), wanted, MAX_PARALLELISM)
    expected = [n for n in range(500) if group_of(n) in wanted]
    assert sorted(key for batch in found.batches for key in batch.keys.columns[0].to_pylist()) == expected


def group_of(key: int) -> int:
    from stateline.key_groups import stable_hash

    return key_group_of(stable_hash(key), MAX_PARALLELISM)


def test_every_key_group_is_covered_by_the_batches_that_hold_it() -> None:
    encoded = encode_run(many(300), LONGS, MAX_PARALLELISM, SMALL)
    index = read_index(pa.py_buffer(encoded.data), handle_of(encoded))
    batches = opened(encoded.data, handle_of(encoded))
    for group in range(MAX_PARALLELISM):
        covering = index.covering(KeyGroupRange(group, group))
        for number, batch in enumerate(batches):
            holds = group in key_group_of(batch.keys.hashes, MAX_PARALLELISM)
            assert not holds or number in covering


def test_every_byte_of_a_slice_is_proved() -> None:
    encoded = encode_run(many(40), LONGS, MAX_PARALLELISM, SMALL)
    wanted = KeyGroupRange(0, 3)
    data, handle = sliced(encoded, wanted)
    index = read_index(pa.py_buffer(bytes(data)), handle)
    batches = index.covering(wanted)
    first, last = index.batches[batches[0]], index.batches[batches[-1]]
    for place in (*range(first.offset, last.offset + last.length), *range(index.tail_start, len(data))):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        buffer = pa.py_buffer(bytes(damaged))
        with pytest.raises(CorruptDataError):
            check_slice(buffer, handle, read_index(buffer, handle), batches)


def test_the_tail_is_found_from_the_last_bytes() -> None:
    encoded = encode_run(many(500), LONGS, MAX_PARALLELISM, SMALL)
    index = read_index(pa.py_buffer(encoded.data), handle_of(encoded))
    tail = tail_bytes(bytes(encoded.data[-10:]))
    assert len(encoded.data) - index.tail_start <= tail <= len(encoded.data) - index.tail_start + 64
    for wrong in (b"0123456789", b"\xff\xff\xff\xffARROW1"):
        with pytest.raises(CorruptDataError):
            tail_bytes(wrong)


# -- damage -----------------------------------------------------------------------------------------------------------


def test_every_flipped_byte_and_every_truncation_is_refused() -> None:
    encoded = encode_run(run_of(changes(LONGS, {1: [10], 2: [20]}, deleted=[3])), LONGS, MAX_PARALLELISM)
    data, handle = bytes(encoded.data), handle_of(encoded)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << (place % 8)
        with pytest.raises(CorruptDataError, match="damaged in ") as caught:
            opened(bytes(damaged), handle)
        told = re.search(r"in bytes (\d+) to (\d+) ", caught.value.message)
        assert told is None or int(told[1]) <= place < int(told[2])
        assert (told is None) == ("in its tail" in caught.value.message)
        with pytest.raises(CorruptDataError):
            opened(data[:place], handle)
    with pytest.raises(CorruptDataError):
        opened(data + b"\0", handle)


def forged(data: bytes, handle: RunHandle) -> RunHandle:
    """The handle of hostile bytes: somebody wrote the run and the record."""
    import msgspec

    return msgspec.structs.replace(handle, length=len(data), crc32c=crc32c(data))


def test_hostile_bytes_under_a_matching_handle_end_in_typed_errors() -> None:
    encoded = encode_run(
        run_of(changes(STRINGS, {str(n): ["x" * n, 1.0] for n in range(20)})), STRINGS, MAX_PARALLELISM
    )
    data, handle = bytes(encoded.data), handle_of(encoded)
    dice = random.Random(20260101)
    refused = 0
    for _ in range(4000):
        damaged = bytearray(data)
        for _ in range(dice.randint(1, 3)):
            place = dice.randrange(len(damaged))
            damaged[place] = dice.choice([0, 1, 0x7F, 0x80, 0xFF, damaged[place] ^ (1 << dice.randrange(8))])
        try:
            opened(bytes(damaged), forged(bytes(damaged), handle), STRINGS)
        except StatelineError:
            refused += 1
    assert refused > 1000


def rewritten(change: Callable[[dict[bytes, bytes]], None]) -> tuple[bytes, RunHandle]:
    """A run whose footer says something else, under a handle that matches its bytes."""
    encoded = encode_run(many(20), LONGS, MAX_PARALLELISM, SMALL)
    reader = pa.ipc.open_file(encoded.data)
    metadata = dict(reader.metadata)
    change(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, reader.schema, metadata=metadata) as writer:
        for number in range(reader.num_record_batches):
            writer.write_batch(reader.get_batch(number))
    data = sink.getvalue().to_pybytes()
    return data, forged(data, handle_of(encoded))


def entries(index: bytes) -> np.ndarray:
    kind = np.dtype([("first", "<u8"), ("offset", "<u8"), ("length", "<u8"), ("rows", "<u4"), ("crc", "<u4")])
    return np.frombuffer(bytearray(base64.b64decode(index)[4:]), dtype=kind)


def with_entries(metadata: dict[bytes, bytes], change: Callable[[np.ndarray], np.ndarray | None]) -> None:
    table = entries(metadata[b"stateline.index"])
    made = change(table)
    metadata[b"stateline.index"] = base64.b64encode(bytes(4) + (table if made is None else made).tobytes())


def set_field(name: str, row: int, value: int) -> Callable[[np.ndarray], None]:
    def change(table: np.ndarray) -> None:
        table[name][row] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda metadata: metadata.pop(b"stateline.format"),
        lambda metadata: metadata.update({b"stateline.rows": b"-1"}),
        lambda metadata: metadata.update({b"stateline.rows": b"21"}),
        lambda metadata: metadata.update({b"stateline.tombstones": b"1"}),
        lambda metadata: metadata.update({b"stateline.index": b"AAAA"}),
        lambda metadata: metadata.update({b"stateline.index": b"***"}),
        lambda metadata: metadata.update({b"stateline.max_parallelism": b"9" * 30}),
        lambda metadata: with_entries(metadata, set_field("first", 1, 0)),
        lambda metadata: with_entries(metadata, set_field("offset", 1, 2**63)),
        lambda metadata: with_entries(metadata, set_field("length", 0, 2**63)),
        lambda metadata: with_entries(metadata, set_field("rows", 0, 0)),
        lambda metadata: with_entries(metadata, lambda table: table[:-1]),
        lambda metadata: with_entries(metadata, lambda table: table[:0]),
    ],
)
def test_an_index_that_contradicts_the_file_is_refused(change: Callable[[dict[bytes, bytes]], None]) -> None:
    data, handle = rewritten(change)
    with pytest.raises(CorruptDataError):
        opened(data, handle)


def test_a_newer_version_is_refused_as_such() -> None:
    data, handle = rewritten(lambda metadata: metadata.update({b"stateline.version": b"3"}))
    with pytest.raises(UnsupportedVersionError, match="format version 3"):
        opened(data, handle)


def test_rows_out_of_order_are_refused() -> None:
    rows = changes(LONGS, {1: [1], 2: [2], 3: [3]})
    shuffled = rows.take(np.array([1, 0, 2]))
    run = Run([], ALL, MAX_PARALLELISM)
    run.batches, run._span = (shuffled,), (0, 3)
    encoded = encode_run(run, LONGS, MAX_PARALLELISM)
    with pytest.raises(CorruptDataError, match=r"not sorted|not the one"):
        opened(encoded.data, handle_of(encoded))


def test_an_arrow_file_of_another_kind_is_refused() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema([("k", pa.int64())])) as writer:
        writer.write_table(pa.table({"k": [1]}))
    data = sink.getvalue().to_pybytes()
    with pytest.raises(CorruptDataError, match="not a run"):
        opened(data, forged(data, handle_of(encode_run(many(1), LONGS, MAX_PARALLELISM))))


def test_text_in_a_list_that_no_reader_would_take_is_not_written() -> None:
    schema = StateSchema(LONGS.keys, pa.schema([("tags", pa.list_(pa.string()))]))
    wrong = pa.array([[b"good"], [b"bad \xff"]], pa.list_(pa.binary()))
    keys = changes(LONGS, {1: [1], 2: [2]}).keys
    tags = pa.ListArray.from_arrays(wrong.offsets, wrong.values.view(pa.string()))
    with pytest.raises(InvalidInputError, match=r"tags.*not UTF-8.*make_valid_utf8"):
        encode_run(run_of(StateRows(keys, (tags,))), schema, MAX_PARALLELISM)
    good = pa.array([["good"], []], pa.list_(pa.string()))
    encoded = encode_run(run_of(StateRows(keys, (good,))), schema, MAX_PARALLELISM)
    assert [row.values[0].to_pylist() for row in opened(encoded.data, handle_of(encoded), schema)] == [[["good"], []]]
