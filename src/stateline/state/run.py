"""The bytes of a run: one Arrow IPC file that anybody can read, sorted by the hash of the key.

A run is a section of a segment (``stateline.changelog.segment``), and by itself a plain Arrow IPC *file*, which
``pyarrow.ipc.open_file`` reads. Format version 2::

    +---------------------+  head: magic "ARROW1", padding, the schema message
    | head                |    __hash: uint64, not null, ascending as unsigned numbers
    +---------------------+    key columns            field metadata stateline.role = key
    | record batch 0      |    value columns          field metadata stateline.role = value
    | record batch 1      |                           and stateline.type, where a whole number is narrower than declared
    | ...                 |    __deleted: bool        only where the run has tombstones
    +---------------------+  tail: end of stream, Arrow's footer, its length (int32), magic "ARROW1"
    | tail                |    the footer's custom metadata is the table below
    +---------------------+

    stateline.format            "run"
    stateline.version           "2"
    stateline.rows              rows, tombstones included
    stateline.tombstones        rows that delete their key
    stateline.max_parallelism   key groups of the state
    stateline.exact             "1"; only in runs of append-only tables, and not in those of early versions
    stateline.index             base64 of: CRC32C of the head (uint32), then per record batch
                                first hash (uint64), offset (uint64), length (uint64), rows (uint32),
                                CRC32C of the encapsulated message (uint32); all little-endian

Rules:
- Record batches lie end to end between head and tail. Rows of one hash are never split over two batches, and batches
  end at the border of a key group where one is near, so that a slice of key groups is few whole batches.
- **Whole**: size and CRC32C equal those of the handle. **Slice**: the CRC32C of head, batches and tail, combined, equal
  that of the handle, which proves the index; the index proves each batch. So a slice is as safe as the whole.
- Buffers are not compressed unless asked: a run is memory-mapped and searched in place. Arrow pads the body of a
  message to 8 bytes, which numpy needs; readers must not count on 64.
- Merges of early versions could store rows of an append-only table twice. So a run of such a table that is not
  marked as exact may repeat its own rows or those of older runs: readers compare whole keys until it is merged.
- A reader refuses a higher version than its own. Version 1 has no narrowed columns. A run names no other object.

Not defended: somebody who can write the run **and** the record that names its CRC32C.
"""

from __future__ import annotations

import dataclasses
import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from stateline.arrow_bounds import MAX_INFLATED_BYTES, ValueCheck, check_file, check_nested_values
from stateline.blob.checksum import combine_crc32c, crc32c
from stateline.errors import CorruptDataError, InvalidInputError, UnsupportedVersionError
from stateline.handles import RunHandle, SectionHandle
from stateline.key_groups import KeyGroupRange, hash_bounds, key_group_of
from stateline.options import normalise_settings, parse_choice, parse_int, parse_size, setting
from stateline.sizes import sizes
from stateline.state.evolution import apply_evolution, plan_evolution
from stateline.state.keys import Hashes, KeyRows, group_sorted
from stateline.state.rows import StateRows
from stateline.state.run_index import BatchEntry, RunIndex, corrupt_run, decode_entries, encode_index, inconsistency
from stateline.state.runs import Run
from stateline.state.schema import StateSchema
from stateline.state.widths import narrowed_schema, retyped

__all__ = [
    "RUN_VERSION",
    "EncodedRun",
    "RunSettings",
    "check_slice",
    "check_whole",
    "damaged_place",
    "decode_batches",
    "described",
    "encode_run",
    "ranged",
    "read_index",
    "tail_bytes",
]

RUN_VERSION: Final = 2

_MAGIC: Final = b"ARROW1"
_PREFIX: Final = b"stateline."
_FORMAT: Final = _PREFIX + b"format"
_INDEX: Final = _PREFIX + b"index"
_EXACT: Final = _PREFIX + b"exact"
_FOOTER_LENGTH: Final = struct.Struct("<i")
_END_OF_STREAM_BYTES: Final = 64
"""More than the end-of-stream marker and its padding take."""

_COMPRESSION_SLACK: Final = 64
"""LZ4 and zstd grow incompressible bytes by less than one part in this many."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How runs are written.

    Attributes:
        batch_rows: Rows of a record batch, at most about: what one search step looks at, and the grain of ranged
            reads. A run of fewer than 64 times as many rows has smaller ones, down to 8,192 rows, so that a look at
            one key reads a small part of any run.
        batch_bytes: Bytes of a record batch, about: wide rows make shorter batches.
        compression: ``none``, ``lz4`` or ``zstd``. Anything but ``none`` gives up memory-mapping without a copy.
    """

    batch_rows: int = setting(
        32_768, lambda value, name: parse_int(value, name, minimum=1, maximum=1 << 24), help="rows per record batch"
    )
    batch_bytes: int = setting("16MiB", parse_size, help="bytes per record batch, at most about")
    compression: str = setting(
        "none", lambda value, name: parse_choice(value, ("none", "lz4", "zstd"), name), help="none, lz4 or zstd"
    )

    def __post_init__(self) -> None:
        normalise_settings(self)


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedRun:
    """A run as bytes, with what its handle will say."""

    data: memoryview
    crc32c: int
    rows: int
    tombstones: int


# -- writing ----------------------------------------------------------------------------------------------------------


def encode_run(run: Run, schema: StateSchema, max_parallelism: int, settings: RunSettings | None = None) -> EncodedRun:
    """The bytes of a run of one row or more."""
    settings = settings or RunSettings()
    if not run.batches:
        raise InvalidInputError(
            "must have rows, got no rows", operation="encode", subject="run", hint="Write no run at all"
        )
    tombstones = run.tombstones
    declared = schema.run(tombstones=tombstones > 0)
    batch_rows = min(settings.batch_rows, max(len(run) // sizes().run_batches, sizes().run_batch_rows))
    parts = [_columns(rows, with_marks=tombstones > 0) for rows in run.batches]
    arrow_schema = narrowed_schema(declared, parts)
    batches = [
        piece
        for part in parts
        for piece in _cut(_record_batch(part, arrow_schema), max_parallelism, settings.batch_bytes, batch_rows)
    ]
    firsts = [int(batch.column(0)[0].as_py()) for batch in batches]
    numbers = {b"version": RUN_VERSION, b"rows": len(run), b"tombstones": tombstones}
    numbers[b"max_parallelism"] = max_parallelism
    metadata = {_FORMAT: b"run", **{_PREFIX + key: b"%d" % number for key, number in numbers.items()}}
    if schema.append_only:
        metadata[_EXACT] = b"1"
    fits = max(batch.nbytes for batch in batches) <= MAX_INFLATED_BYTES
    data, checksum = _write(batches, firsts, arrow_schema, metadata, settings.compression if fits else "none")
    return EncodedRun(data, checksum, len(run), tombstones)


def _write(
    batches: Sequence[pa.RecordBatch],
    firsts: Sequence[int],
    schema: pa.Schema,
    metadata: Mapping[bytes, bytes],
    compression: str,
) -> tuple[memoryview, int]:
    """The file in memory and its CRC32C, combined from those of its pieces, so that each byte is read once.

    The index, which only the finished batches tell, is put into its place at the end.
    """
    placeholder = encode_index(0, [BatchEntry(0, 0, 0, 0, 0)] * len(batches))
    size = sum(pa.ipc.get_record_batch_size(batch) for batch in batches)
    size += size // _COMPRESSION_SLACK + 4 * schema.serialize().size + 2 * len(placeholder) + 256 * len(batches) + 4096
    buffer = pa.allocate_buffer(size)
    sink = pa.FixedSizeBufferWriter(buffer)
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression, use_threads=False)
    offsets = []
    with pa.ipc.new_file(sink, schema, options=options, metadata={**metadata, _INDEX: placeholder}) as writer:
        for batch in batches:
            writer.write_batch(batch)
            offsets.append(sink.tell())
    end = sink.tell()
    view = memoryview(buffer).cast("B")[:end]
    # The schema message is written with the first batch: the magic, then a marker and the length of the message.
    offsets.insert(0, 16 + _FOOTER_LENGTH.unpack_from(view, 12)[0])
    head = checksum = crc32c(view[: offsets[0]])
    entries = []
    for first, (start, stop), batch in zip(firsts, itertools.pairwise(offsets), batches, strict=True):
        piece = crc32c(view[start:stop])
        entries.append(BatchEntry(first, start, stop - start, batch.num_rows, piece))
        checksum = combine_crc32c(checksum, piece, stop - start)
    index = encode_index(head, entries)
    place = offsets[-1] + bytes(view[offsets[-1] :]).rindex(placeholder)
    view[place : place + len(index)] = index
    tail = view[offsets[-1] :]
    return view, combine_crc32c(checksum, crc32c(tail), len(tail))


def _columns(rows: StateRows, *, with_marks: bool) -> list[pa.Array]:
    columns = [pa.array(rows.keys.hashes), *rows.keys.columns, *rows.values]
    if with_marks:
        columns.append(pa.array(np.zeros(len(rows), np.bool_) if rows.deleted is None else rows.deleted))
    return columns


def _record_batch(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_arrays(list(retyped(columns, schema.types)), schema=schema)
    try:
        check_nested_values(batch)  # What no reader would take must not become durable.
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"cannot hold text that is not UTF-8 ({error})",
            operation="write",
            subject=f"state of {schema.names[1:]}",
            hint="Spark makes text of any bytes: mend it with make_valid_utf8(), or keep it as binary",
        ) from error
    return batch


def _cut(batch: pa.RecordBatch, max_parallelism: int, batch_bytes: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Cuts rows into record batches of about the wanted size, at key groups where possible, never within a hash."""
    hashes: Hashes = batch.column(0).to_numpy()
    bytes_per_row = max(batch.nbytes // len(hashes), 1)
    wanted = max(min(batch_rows, batch_bytes // bytes_per_row), 1)
    borders = _key_group_borders(hashes, max_parallelism) if len(hashes) > wanted else np.empty(0, np.int64)
    start = 0
    while start < len(hashes):
        end = start + wanted
        if end >= len(hashes) or len(hashes) - start <= wanted + wanted // 4:
            end = len(hashes)
        else:
            near = int(borders.searchsorted(end, side="right")) - 1
            if near >= 0 and borders[near] >= start + max(wanted // 2, 1):
                end = int(borders[near])
            else:
                end = int(hashes.searchsorted(hashes[end - 1], side="right"))
        yield batch.slice(start, end - start)
        start = end


def _key_group_borders(hashes: Hashes, max_parallelism: int) -> Any:
    """The rows at which a new key group begins."""
    first, last = (key_group_of(int(hashes[row]), max_parallelism) for row in (0, -1))
    lows = [hash_bounds(KeyGroupRange(group, group), max_parallelism)[0] for group in range(first + 1, last + 1)]
    return hashes.searchsorted(np.array(lows, dtype=np.uint64))


# -- reading ----------------------------------------------------------------------------------------------------------


def check_whole(buffer: pa.Buffer, handle: RunHandle) -> None:
    """Proves that ``buffer`` is the object that ``handle`` names.

    Raises:
        CorruptDataError: Another size or CRC32C.
    """
    if buffer.size != handle.length:
        raise corrupt_run(handle.place, f"expected {handle.length} bytes, got {buffer.size}")
    if crc32c(memoryview(buffer)) != handle.crc32c:
        raise _damaged(buffer, handle)


def check_slice(buffer: pa.Buffer, handle: RunHandle, index: RunIndex, batches: Sequence[int]) -> None:
    """Proves that the tail and ``batches`` of ``buffer`` are those of the object that ``handle`` names.

    What is neither tail nor one of ``batches`` may hold anything. ``index`` was read from this buffer.

    Raises:
        CorruptDataError: Some byte is not what was written.
    """
    view = memoryview(buffer)
    if buffer.size != handle.length or not _is_proved(index, view, handle):
        raise _damaged(buffer, handle)
    for number in batches:
        entry = index.batches[number]
        if crc32c(view[entry.offset : entry.offset + entry.length]) != entry.crc32c:
            place = f"in bytes {entry.offset} to {entry.offset + entry.length}"
            raise corrupt_run(handle.place, f"record batch {number} fails its checksum: damaged {place}")


def _damaged(buffer: pa.Buffer, handle: RunHandle) -> CorruptDataError:
    reason = f"expected CRC32C {handle.crc32c:08x}: damaged {damaged_place(buffer, handle)}"
    return corrupt_run(handle.place, reason)


def _is_proved(index: RunIndex, view: memoryview, handle: RunHandle) -> bool:
    """Whether tail and index are those of the object: the checksums of all parts make that of the whole."""
    total = index.head_crc32c
    for entry in index.batches:
        total = combine_crc32c(total, entry.crc32c, entry.length)
    tail = view[index.tail_start :]
    return combine_crc32c(total, crc32c(tail), len(tail)) == handle.crc32c


def damaged_place(buffer: pa.Buffer, handle: RunHandle) -> str:
    """Where the bytes of a run are not those that were written, as text: the smallest part that a checksum covers."""
    if buffer.size != handle.length:
        return f"from byte {min(buffer.size, handle.length)}: it has {buffer.size} bytes instead of {handle.length}"
    try:
        index = read_index(buffer, handle)
    except CorruptDataError as error:
        return f"in its tail, which ends at byte {handle.length}: {error.message}"
    view, first = memoryview(buffer), index.batches[0].offset
    parts = [("its head", 0, first, index.head_crc32c)]
    parts += [
        (f"record batch {number}", entry.offset, entry.offset + entry.length, entry.crc32c)
        for number, entry in enumerate(index.batches)
    ]
    for name, start, end, checksum in parts if _is_proved(index, view, handle) else ():
        if crc32c(view[start:end]) != checksum:
            return f"in bytes {start} to {end} ({name})"
    return f"in its tail, bytes {index.tail_start} to {handle.length}"


def ranged(data: bytes, length: int, place: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a range of a run.

    Args:
        data: What the store answered.
        length: How many bytes the range has.
        place: The run, for errors.

    Raises:
        CorruptDataError: The answer is shorter or longer.
    """
    if len(data) != length:
        raise corrupt_run(place, f"expected {length} bytes of a range, got {len(data)}")
    return np.frombuffer(data, dtype=np.uint8)


def tail_bytes(end: bytes) -> int:
    """How long the tail of a run is, by its last bytes (10 or more): what :func:`read_index` needs, and a little more.

    Raises:
        CorruptDataError: It is not an Arrow file.
    """
    if end[-len(_MAGIC) :] != _MAGIC:
        raise corrupt_run("run", "does not end like an Arrow file")
    footer = _FOOTER_LENGTH.unpack_from(end, len(end) - len(_MAGIC) - _FOOTER_LENGTH.size)[0]
    if footer < 0:
        raise corrupt_run("run", "has a footer of negative length")
    return int(footer) + len(_MAGIC) + _FOOTER_LENGTH.size + _END_OF_STREAM_BYTES


def read_index(buffer: pa.Buffer, handle: RunHandle) -> RunIndex:
    """Reads the index from the tail of a run. Bytes before the tail are not looked at.

    Raises:
        CorruptDataError: It is not a run, or contradicts itself or the handle.
        UnsupportedVersionError: A newer format.
    """
    reader = _open(buffer, handle.place)
    metadata = dict(reader.metadata or {})
    if metadata.get(_FORMAT) != b"run":
        raise corrupt_run(handle.place, "is an Arrow file, but not a run")
    version, rows, tombstones, max_parallelism = (
        _number(metadata, key, handle.place) for key in (b"version", b"rows", b"tombstones", b"max_parallelism")
    )
    if version > RUN_VERSION:
        raise UnsupportedVersionError(
            f"has format version {version}, this program reads up to {RUN_VERSION}",
            operation="open",
            subject=handle.place,
            hint="Upgrade Stateline",
        )
    entries = decode_entries(metadata.get(_INDEX, b""), handle.place)
    index = RunIndex(max_parallelism, *entries, is_exact=_EXACT in metadata)
    wrong = inconsistency(index, handle, reader.num_record_batches, rows, tombstones)
    if wrong is not None:
        raise corrupt_run(handle.place, wrong)
    return index


def described(buffer: pa.Buffer, section: SectionHandle, checkpoint_id: int) -> RunHandle:
    """The handle of a run whose record nobody has at hand, from what its own tail says.

    Raises:
        CorruptDataError: It is not a run.
    """
    metadata = dict(_open(buffer, section.place).metadata or {})
    rows, tombstones, max_parallelism = (
        _number(metadata, key, section.place) for key in (b"rows", b"tombstones", b"max_parallelism")
    )
    return RunHandle(
        name=section.name,
        offset=section.offset,
        length=section.length,
        crc32c=section.crc32c,
        rows=rows,
        tombstones=tombstones,
        first_key_group=0,
        last_key_group=max_parallelism - 1,
        checkpoint_id=checkpoint_id,
    )


def decode_batches(
    buffer: pa.Buffer, handle: RunHandle, schema: StateSchema, index: RunIndex, batches: Sequence[int]
) -> list[StateRows]:
    """The rows of some record batches, in place: nothing is copied unless the run is compressed or its schema is older.

    Args:
        buffer: The file, proved by :func:`check_whole`, or by :func:`check_slice` for ``batches``.
        handle: Names the run in errors.
        schema: What the rows become; those of an older schema are evolved.
        index: Of this file.
        batches: By number.

    Raises:
        CorruptDataError: The file contradicts itself.
        InvalidInputError: Of kind ``SCHEMA_MISMATCH``: the stored rows cannot become rows of ``schema``.
    """
    reader = _open(buffer, handle.place)
    stored = StateSchema.of_run(reader.schema)
    steps = None if stored == schema else plan_evolution(stored, schema, handle.place)
    check_file(memoryview(buffer), batches, handle.place)
    check_values = ValueCheck(reader.schema)
    decoded = []
    for number in batches:
        try:
            batch = reader.get_batch(number)
            check_values(batch)
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise corrupt_run(handle.place, f"record batch {number}: {error}") from error
        rows = _state_rows(batch, stored, handle.place)
        _check_batch(rows, index, number, handle.place)
        if steps is not None:
            rows = StateRows(rows.keys, apply_evolution(steps, rows.values, len(rows)), rows.deleted)
        if schema.append_only and not index.is_exact:
            rows = _without_repeats(rows)
        decoded.append(rows)
    return decoded


def _open(buffer: pa.Buffer, name: str) -> Any:
    try:
        return pa.ipc.open_file(pa.BufferReader(buffer), options=pa.ipc.IpcReadOptions(use_threads=False))
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise corrupt_run(name, f"is not an Arrow file: {error}") from error


def _state_rows(batch: pa.RecordBatch, schema: StateSchema, name: str) -> StateRows:
    columns = batch.columns
    keys, values = len(schema.keys), len(schema.values)
    marks = columns[1 + keys + values :]
    if any(column.null_count for column in (columns[0], *marks)):
        raise corrupt_run(name, "a hash or a deletion mark is null")
    hashes: Hashes = columns[0].to_numpy()
    deleted = marks[0].to_numpy(zero_copy_only=False) if marks else None
    if deleted is not None and not deleted.any():
        deleted = None
    return StateRows(
        KeyRows(hashes, tuple(columns[1 : 1 + keys])), tuple(columns[1 + keys : 1 + keys + values]), deleted
    )


def _without_repeats(rows: StateRows) -> StateRows:
    """The rows without those whose key occurs before: rows of one hash are in one batch."""
    hashes = rows.keys.hashes
    if not (hashes[1:] == hashes[:-1]).any():
        return rows
    groups = group_sorted(rows.keys, np.arange(len(rows)), hashes)
    firsts = groups.order.take(groups.starts)
    return rows if len(firsts) == len(rows) else rows.take(firsts)


def _check_batch(rows: StateRows, index: RunIndex, number: int, name: str) -> None:
    entry, hashes = index.batches[number], rows.keys.hashes
    last = number + 1 == len(index.batches)
    if len(rows) != entry.rows or int(hashes[0]) != entry.first_hash:
        raise corrupt_run(name, f"record batch {number} is not the one of the index")
    if (hashes[1:] < hashes[:-1]).any() or not (last or int(hashes[-1]) < index.batches[number + 1].first_hash):
        raise corrupt_run(name, f"record batch {number} is not sorted by hash")


def _number(metadata: Mapping[bytes, bytes], key: bytes, name: str) -> int:
    text = metadata.get(_PREFIX + key, b"")
    if not text.isdigit() or len(text) > 18:
        raise corrupt_run(name, f"expected a number as its {key.decode()}, got {text!r}")
    return int(text)
