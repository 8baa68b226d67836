"""A segment: sections of every kind, each of which pyarrow opens by itself, and a directory that is proved."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline.blob.checksum import crc32c
from stateline.changelog import segment
from stateline.changelog.segment import (
    DirectoryEntry,
    EncodedSegment,
    Section,
    SectionKind,
    encode_segment,
    read_directory,
)
from stateline.errors import CorruptDataError, InvalidInputError, NotFoundError, UnsupportedVersionError
from tests.unit.changelog.limits import bounded
from tests.unit.changelog.worlds import memory_store

ROWS = pa.table({"n": [1, 2, 3], "text": ["a", "", None]})


def stream_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def file_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def section(kind: SectionKind, owner: str, number: int, *pieces: bytes, head_length: int = 0) -> Section:
    data = b"".join(pieces)
    return Section(kind, owner, number, pieces, len(data), crc32c(data), head_length)


SECTIONS = (
    section(SectionKind.CHANGES, "ab" * 16, 7, stream_of(ROWS), b"the table behind it", head_length=19),
    section(SectionKind.RUN, "flights: [Hugo's]", 12, file_of(ROWS)),
    section(SectionKind.ROWS, "out/\N{GREEK SMALL LETTER ALPHA}.parquet", 12, b"", stream_of(ROWS.slice(1))),
)


def joined(made: EncodedSegment) -> bytes:
    data = b"".join(made.pieces)
    assert len(data) == made.size
    return data


def read(data: bytes) -> tuple[DirectoryEntry, ...]:
    store = memory_store()
    store.put("object", data)
    return read_directory(store, "object").entries


def test_each_section_opens_with_pyarrow_alone_at_its_offset() -> None:
    made = encode_segment(SECTIONS)
    data = pa.py_buffer(joined(made))
    changes, run, rows = made.offsets
    assert pa.ipc.open_stream(data.slice(changes)).read_all() == ROWS
    assert pa.ipc.open_file(data.slice(run, SECTIONS[1].length)).read_all() == ROWS
    assert pa.ipc.open_stream(data.slice(rows)).read_all() == ROWS.slice(1)


def test_sections_begin_at_multiples_of_64_bytes_and_are_not_copied() -> None:
    made = encode_segment(SECTIONS)
    data = joined(made)
    assert all(offset % 64 == 0 for offset in made.offsets)
    for one, offset in zip(SECTIONS, made.offsets, strict=True):
        assert data[offset : offset + one.length] == b"".join(one.pieces)
        assert all(any(piece is given for given in made.pieces) for piece in one.pieces)


def test_the_directory_opens_with_pyarrow_alone_and_names_every_section() -> None:
    made = encode_segment(SECTIONS)
    data = joined(made)
    (offset,) = struct.unpack_from("<Q", data, len(data) - 24)
    table = pa.ipc.open_stream(data[offset:]).read_all()
    assert table["kind"].to_pylist() == ["changes", "run", "rows"]
    assert table["owner"].to_pylist() == [one.owner for one in SECTIONS]
    assert read(data) == tuple(
        DirectoryEntry(one.kind, one.owner, one.number, at, one.length, one.crc32c, one.head_length)
        for one, at in zip(SECTIONS, made.offsets, strict=True)
    )


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.builds(
            section,
            st.sampled_from(SectionKind),
            st.text(st.characters(exclude_categories=["Cs"])),
            st.integers(0, 2**63 - 1),
            st.binary(min_size=1, max_size=200),
        ),
        max_size=20,
    )
)
def test_a_directory_gives_back_what_was_laid_out(sections: list[Section]) -> None:
    made = encode_segment(sections)
    found = read(joined(made))
    assert [(one.kind, one.owner, one.number, one.length, one.crc32c) for one in found] == [
        (one.kind, one.owner, one.number, one.length, one.crc32c) for one in sections
    ]
    assert tuple(one.offset for one in found) == made.offsets


def test_a_directory_is_one_read_and_a_long_one_is_two() -> None:
    for count, reads in ((3, 1), (3000, 2)):
        store = memory_store()
        store.put("object", joined(encode_segment([SECTIONS[2]] * count)))
        assert len(read_directory(store, "object").entries) == count
        assert store.count("get_range") == reads


def test_an_object_that_is_not_there_is_not_found() -> None:
    with pytest.raises(NotFoundError):
        read_directory(memory_store(), "object")


def test_more_sections_than_a_directory_holds_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="65537 sections"):
        encode_segment([SECTIONS[2]] * 65_537)
    with pytest.raises(InvalidInputError, match="too many"):
        encode_segment([section(SectionKind.ROWS, "x" * 2**26, 0, b"x")])


# -- damage ----------------------------------------------------------------------------------------------------------


def test_every_flipped_bit_of_the_directory_is_noticed() -> None:
    made = encode_segment(SECTIONS)
    data = joined(made)
    (directory,) = struct.unpack_from("<Q", data, len(data) - 24)
    for position in range(directory, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(CorruptDataError):
            read(bytes(damaged))


def test_every_truncation_of_a_segment_is_noticed() -> None:
    data = joined(encode_segment(SECTIONS))
    for length in range(0, len(data), 7):
        with pytest.raises(CorruptDataError):
            read(data[:length])


@pytest.mark.parametrize("foreign", [b"", b"PAR1" * 30, bytes(64), file_of(ROWS), b"SLSG" * 100])
def test_an_object_that_is_no_segment_is_refused(foreign: bytes) -> None:
    with pytest.raises(CorruptDataError, match="object at byte"):
        read(foreign)


def with_directory(body: bytes, directory: bytes, offset: int | None = None, version: int = 1) -> bytes:
    """A segment whose checksum is right, whatever it says."""
    trailer = struct.pack("<QH6x", len(body) if offset is None else offset, version)
    return body + directory + trailer + struct.pack("<I", crc32c(trailer, crc32c(directory))) + b"SLSG"


def test_a_newer_version_says_upgrade() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"object at byte 0.*Upgrade"):
        read(with_directory(b"", b"", version=2))
    with pytest.raises(CorruptDataError):
        read(with_directory(b"", b"", version=0))


ROW = {"kind": "rows", "owner": "o", "number": 0, "offset": 0, "length": 64, "crc32c": 0, "head_length": 0}


def directory_of(**changed: object) -> bytes:
    """A directory of one row; its schema is right, its values need not be."""
    columns = [
        value if isinstance(value, pa.Array) else pa.array([value], segment._SCHEMA.field(name).type)
        for name, value in (ROW | changed).items()
    ]
    return stream_of(pa.Table.from_arrays(columns, schema=segment._SCHEMA))


def test_a_directory_that_says_the_truth_is_read() -> None:
    (found,) = read(with_directory(bytes(64), directory_of()))
    assert found == DirectoryEntry(SectionKind.ROWS, "o", 0, 0, 64, 0, 0)


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": "table"},
        {"number": -1},
        {"offset": 64},
        {"offset": -64},
        {"length": 0},
        {"length": -1},
        {"length": 65},
        {"length": 2**63 - 1},
        {"head_length": 1},
        {"kind": "changes", "head_length": 65},
        {"kind": "changes", "head_length": -1},
    ],
    ids=str,
)
def test_numbers_that_contradict_each_other_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(CorruptDataError):
        read(with_directory(bytes(64), directory_of(**changed)))


@pytest.mark.parametrize("body", [b"", bytes(128)])
def test_sections_must_fill_the_segment(body: bytes) -> None:
    with pytest.raises(CorruptDataError):
        read(with_directory(body, directory_of()))


@pytest.mark.parametrize("offset", [0, 63, 65, 2**40, 2**64 - 1])
def test_a_directory_somewhere_else_is_refused(offset: int) -> None:
    with pytest.raises(CorruptDataError):
        read(with_directory(bytes(64), directory_of(), offset))


def compressed(directory: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, directory.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(directory)
    return sink.getvalue().to_pybytes()


def many_rows(count: int) -> pa.Table:
    return pa.table({name: pa.repeat(value, count) for name, value in ROW.items()}).cast(segment._SCHEMA)


NO_TEXT = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(struct.pack("<ii", 0, 1)), pa.py_buffer(b"\xff")])


def beyond_its_buffer() -> bytes:
    """An owner whose offsets lead outside the directory."""
    before, _, after = directory_of(owner="x" * 1000).rpartition(struct.pack("<ii", 0, 1000))
    return before + struct.pack("<ii", 0, 1 << 30) + after


@pytest.mark.parametrize(
    "made",
    [
        lambda: b"",
        lambda: b"no Arrow at all " * 8,
        lambda: stream_of(ROWS),
        lambda: stream_of(pa.table({"kind": ["rows"]})),
        lambda: directory_of(owner=None),
        lambda: directory_of(owner=NO_TEXT),
        beyond_its_buffer,
        lambda: directory_of()[:-100],
        lambda: stream_of(segment._SCHEMA.empty_table()),
    ],
    ids=["empty", "foreign", "other", "fewer", "null", "no text", "beyond", "cut", "no batch"],
)
def test_a_directory_that_is_none_costs_little(made: Callable[[], bytes]) -> None:
    data = with_directory(bytes(64), made())
    with bounded(seconds=5), pytest.raises(CorruptDataError):
        read(data)


def test_a_directory_that_would_inflate_into_too_much_is_refused_before_it_does() -> None:
    data = with_directory(bytes(64), compressed(many_rows(8_000_000)))
    with bounded(seconds=5), pytest.raises(CorruptDataError, match="announces"):
        read(data)
