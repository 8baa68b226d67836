"""What a record batch would take is known before it is taken."""

import struct

import numpy as np
import pyarrow as pa
import pytest

from stateline.arrow_bounds import MAX_INFLATED_BYTES, ValueCheck, check_file, check_stream
from stateline.errors import CorruptDataError

TEXT = "same " * 2000
BATCH = pa.record_batch({"number": pa.array(range(500)), "text": pa.array([TEXT] * 500)})
TOO_MUCH = struct.pack("<q", MAX_INFLATED_BYTES)


def encoded(make, compression):
    sink = pa.BufferOutputStream()
    with make(sink, BATCH.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(BATCH)
        writer.write_batch(BATCH)
    return bytearray(sink.getvalue())


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_honest_bytes_pass(compression):
    file, stream = encoded(pa.ipc.new_file, compression), encoded(pa.ipc.new_stream, compression)
    check_file(memoryview(file), [0, 1], "object")
    check_stream(memoryview(stream), "object")
    assert pa.ipc.open_file(file).read_all() == pa.ipc.open_stream(stream).read_all()


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_length_that_is_too_large_is_refused(compression):
    length = struct.pack("<q", 500 * len(TEXT))
    for make, check in (
        (pa.ipc.new_file, lambda data: check_file(memoryview(data), [0, 1], "object")),
        (pa.ipc.new_stream, lambda data: check_stream(memoryview(data), "object")),
    ):
        data = encoded(make, compression)
        data = data.replace(length, TOO_MUCH)
        with pytest.raises(CorruptDataError, match="announces"):
            check(data)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_batches_of_a_stream_are_bounded_together(compression):
    half = struct.pack("<q", MAX_INFLATED_BYTES // 2 + 1)
    data = encoded(pa.ipc.new_stream, compression).replace(struct.pack("<q", 500 * len(TEXT)), half)
    with pytest.raises(CorruptDataError, match="announces"):
        check_stream(memoryview(data), "object")


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_dictionaries_of_a_stream_are_bounded(compression):
    batch = pa.record_batch({"text": pa.array([TEXT] * 500).dictionary_encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    stream = bytearray(sink.getvalue())
    check_stream(memoryview(stream), "object")
    with pytest.raises(CorruptDataError, match="announces"):
        check_stream(memoryview(stream.replace(struct.pack("<q", len(TEXT)), TOO_MUCH)), "object")


def test_other_bytes_are_refused():
    for data in (b"", b"ARROW1", bytes(40), b"\xff" * 40):
        with pytest.raises(CorruptDataError):
            check_file(memoryview(data), [0], "object")
    with pytest.raises(CorruptDataError, match="got 2 batches"):
        check_file(memoryview(encoded(pa.ipc.new_file, None)), [2], "object")
    with pytest.raises(CorruptDataError):
        check_stream(memoryview(b"\xff\xff\xff\xff\x10\0\0\0\xff\xff\xff\x7f"), "object")


def check_values(batch):
    ValueCheck(batch.schema)(batch)


def text_of(kind, offsets):
    width = np.int64 if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) else np.int32
    buffers = [None, pa.py_buffer(np.array(offsets, width)), pa.py_buffer(b"hello")]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()])
def test_text_that_lies_outside_of_its_buffer_is_refused(kind):
    check_values(pa.record_batch([text_of(kind, [0, 2, 2, 5])], names=["a"]))
    with pytest.raises(pa.ArrowInvalid, match="ascend"):
        check_values(pa.record_batch([text_of(kind, [0, 4000, 1, 5])], names=["a"]))


def test_a_code_without_a_word_is_refused():
    def batch(codes):
        buffers = [None, pa.py_buffer(np.array(codes, np.int32))]
        words = pa.dictionary(pa.int32(), pa.string())
        return pa.record_batch(
            [pa.DictionaryArray.from_buffers(words, len(codes), buffers, pa.array(["x"]))], names=["a"]
        )

    check_values(batch([0, 0]))
    with pytest.raises(pa.ArrowInvalid, match="out of bounds"):
        check_values(batch([0, 99]))
