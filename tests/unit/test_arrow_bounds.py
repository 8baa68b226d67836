"""What a record batch would take is known before it is taken."""

import struct

import pyarrow as pa
import pytest

from stateline.arrow_bounds import MAX_INFLATED_BYTES, check_file, check_stream
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


def test_other_bytes_are_refused():
    for data in (b"", b"ARROW1", bytes(40), b"\xff" * 40):
        with pytest.raises(CorruptDataError):
            check_file(memoryview(data), [0], "object")
    with pytest.raises(CorruptDataError, match="2 record batches"):
        check_file(memoryview(encoded(pa.ipc.new_file, None)), [2], "object")
    with pytest.raises(CorruptDataError):
        check_stream(memoryview(b"\xff\xff\xff\xff\x10\0\0\0\xff\xff\xff\x7f"), "object")
