"""Pending rows as bytes: what was stored is still read, and nothing else is ever taken for it."""

from pathlib import Path

import pyarrow as pa
import pytest
from files_kit import store_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline.blob.checksum import crc32c
from stateline.blob.local import LocalStore
from stateline.blob.memory import MemoryStore
from stateline.errors import CorruptDataError, DataLossError, InvalidInputError
from stateline.files.pending import encoded_rows, load_rows
from stateline.handles import RowsHandle

GOLDEN = Path(__file__).parents[2] / "golden" / "pending" / "rows.v1.arrows"
NAME = "shared/rows-golden.arrows"
TABLES = [
    pa.table({"number": pa.array([1, None], pa.int64()), "key": pa.array(["a", "ü"], pa.string())}),
    pa.table({"number": pa.array([3], pa.int64()), "key": pa.array([None], pa.string())}),
]
HANDLES = [
    RowsHandle(name=NAME, offset=0, length=440, crc32c=0x40801918, rows=2),
    RowsHandle(name=NAME, offset=440, length=416, crc32c=0x9E052C7D, rows=1),
]
"""As they were when the golden file was written."""


@pytest.fixture
def store():
    yield MemoryStore("pending-format")
    MemoryStore.forget("pending-format")


def test_golden_rows_are_still_read(store):
    store.put(NAME, GOLDEN.read_bytes())
    assert [table.to_pydict() for table in load_rows(store, HANDLES)] == [table.to_pydict() for table in TABLES]


def test_rows_are_still_written_so():
    assert b"".join(b"".join(encoded_rows(table)) for table in TABLES) == GOLDEN.read_bytes()


def test_text_that_is_not_utf_8_is_read_as_it_was_stored(store):
    """Spark makes text of any bytes. Rows that a record names must be delivered, not refused at every start."""
    texts = pa.array([b"\xff", b"a", None], pa.binary()).view(pa.string())
    inside = pa.MapArray.from_arrays([0, 1, 2, 2], texts[:2], pa.StructArray.from_arrays([texts[:2]], ["x"]))
    stored = pa.table({"text": texts, "map": inside, "list": pa.ListArray.from_arrays([0, 2, 2, 3], texts)})
    data = b"".join(encoded_rows(stored))
    store.put(NAME, data)
    handle = RowsHandle(name=NAME, offset=0, length=len(data), crc32c=crc32c(data), rows=3)
    (found,) = load_rows(store, [handle])
    assert found.equals(stored)


def test_every_flipped_byte_is_corrupt(store):
    golden = GOLDEN.read_bytes()
    for position in range(len(golden)):
        damaged = bytearray(golden)
        damaged[position] ^= 0x41
        store.put(NAME, bytes(damaged))
        with pytest.raises(CorruptDataError):
            list(load_rows(store, HANDLES))


def test_every_truncation_is_an_error(store):
    golden = GOLDEN.read_bytes()
    for length in range(len(golden)):
        store.put(NAME, golden[:length])
        with pytest.raises((CorruptDataError, DataLossError)):
            list(load_rows(store, HANDLES))


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize(("offset", "length"), [(0, 2**62), (2**62, 1), (2**40, 2**50), (856, 1)])
def test_a_hostile_range_is_refused_without_taking_memory(store, tmp_path, offset, length, local):
    chosen = LocalStore(tmp_path / "root") if local else store
    chosen.put(NAME, GOLDEN.read_bytes())
    with pytest.raises((CorruptDataError, InvalidInputError)):
        list(load_rows(chosen, [RowsHandle(name=NAME, offset=offset, length=length, crc32c=0, rows=1)]))


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=200), position=st.integers(0, 855), patch=st.binary(min_size=1, max_size=8))
def test_bytes_whose_checksum_is_right_are_rows_or_a_typed_error(data, position, patch):
    golden = GOLDEN.read_bytes()
    for forged in (data, golden[:position] + patch + golden[position + len(patch) :]):
        store = MemoryStore("pending-forged")
        store.put(NAME, forged)
        handle = RowsHandle(name=NAME, offset=0, length=len(forged), crc32c=crc32c(forged), rows=2)
        try:
            assert [table.num_rows for table in load_rows(store, [handle])] == [2]
        except CorruptDataError:
            pass
        finally:
            MemoryStore.forget("pending-forged")


def test_short_batches_are_joined_and_long_ones_stay_as_they_are(store):
    short = pa.concat_tables([pa.table({"x": range(10)})] * 100)
    long = pa.concat_tables([pa.table({"x": range(40_000), "y": [None, "text"] * 20_000})] * 3)
    for table, expected in ((short, 1), (long, 3)):
        pieces = encoded_rows(table)
        stored = pa.ipc.open_stream(b"".join(pieces))
        assert len(list(stored)) == expected
    (values,) = (chunk.buffers()[1] for chunk in long["x"].chunks[:1])
    assert any(pa.py_buffer(piece).address == values.address for piece in pieces), "rows are not copied"
    handles = store_rows(store, short, long, long.slice(39_999, 2))
    assert [table.to_pydict() for table in load_rows(store, handles)] == [
        table.to_pydict() for table in (short, long, long.slice(39_999, 2))
    ]
