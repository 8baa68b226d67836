"""Every decoder of stored bytes, with the bytes it starts from and a way to make its checksums right again.

A changed byte alone shows that checksums are checked. So each input is tried twice: as it is, and *resealed*, with
checksums, and whatever a handle says of the bytes, computed anew. Then it meets the checks behind them.

A decoder may return, or raise one of the errors that say that bytes are bad. It may not raise anything else, and not
take more memory than :data:`MEMORY_MAX_BYTES` for it.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import msgspec
import pyarrow as pa

from stateline.blob.checksum import crc32c
from stateline.blob.memory import MemoryStore
from stateline.changelog import ChangelogHandle, ChangelogSettings, ChangelogStorage, SegmentHandle
from stateline.changelog.inspection import changes_of, inspect_segment, verify_section
from stateline.changelog.segment import Section, SectionKind, encode_segment
from stateline.checkpoint.api import HISTORY, Checkpoint, InlineState
from stateline.checkpoint.history import decode_block, summaries_in
from stateline.checkpoint.metadata import decode_claim, decode_record, decode_savepoint
from stateline.checkpoint.retention import reach_of
from stateline.cli.sections import batches_of
from stateline.errors import CorruptDataError, DataLossError, StatelineError, UnsupportedVersionError
from stateline.files.pending import decode_rows
from stateline.handles import RunHandle, SectionHandle
from stateline.key_groups import KeyGroupRange
from stateline.pipeline.offsets import offsets_digest
from stateline.recoverable.interchange import read_commit, read_resume
from stateline.recoverable.serializers import CommitPointSerializer, ResumePointSerializer
from stateline.state.run import check_whole, decode_batches, read_index
from stateline.state.schema import StateSchema

GOLDEN = Path(__file__).parents[1] / "golden"
MEMORY_MAX_BYTES = 256 * 1024 * 1024

Reseal = Callable[[bytes], bytes]


class Target(NamedTuple):
    """One decoder.

    Attributes:
        name: Its name.
        decode: Reads some bytes; the result is used, so that bad offsets are met.
        seeds: Valid inputs.
        reseal: Makes the checksums of some bytes right.
        allowed: What it may raise.
    """

    name: str
    decode: Callable[[bytes], object]
    seeds: Sequence[bytes]
    reseal: Reseal | None = None
    allowed: tuple[type[StatelineError], ...] = (CorruptDataError, UnsupportedVersionError)


class FindingError(Exception):
    """A decoder did what it may not do."""


def attempt(target: Target, data: bytes) -> int:
    """Tries one input; 1 for each form of it that was accepted.

    Raises:
        FindingError: The decoder raised something else, or took too much memory.
    """
    accepted = 0
    for form in (data,) if target.reseal is None else (data, target.reseal(data)):
        pool = pa.default_memory_pool()
        before = pool.max_memory()
        try:
            target.decode(form)
            accepted += 1
        except target.allowed:
            pass
        except Exception as error:
            raise FindingError(f"{target.name}: {type(error).__name__}: {error}; input {form.hex()}") from error
        if pool.max_memory() > max(before, MEMORY_MAX_BYTES):
            raise FindingError(f"{target.name}: it took {pool.max_memory():,} bytes; input {form.hex()}")
    return accepted


# -- one function for each format --------------------------------------------------------------------------------------

_stores = itertools.count()


@contextlib.contextmanager
def _holding(name: str, data: bytes):
    label = f"fuzz-{next(_stores)}"
    store = MemoryStore(label)
    store.put(name, data)
    try:
        yield store
    finally:
        MemoryStore.forget(label)


def _crc_at_the_end(data: bytes) -> bytes:
    return data[:-4] + struct.pack("<I", crc32c(data[:-4]))


def _framed_point(data: bytes) -> bytes:
    if len(data) < 14:
        return data
    body = data[10:-4]
    return _crc_at_the_end(data[:6] + struct.pack("<I", len(body)) + body + bytes(4))


def _handle_prefix(data: bytes) -> bytes:
    body = data[16:]
    return data[:8] + struct.pack("<II", len(body), crc32c(body)) + body


def _document(data: bytes) -> bytes:
    body = data[:-27]
    return body + b',\n  "crc32c": "%08x"\n}\n' % crc32c(body)


def _segment(data: bytes) -> bytes:
    """Checksums and sums of blocks, tables, sections and the directory, as far as the lengths lead."""
    out = bytearray(data)
    if len(out) < 24 or out[-4:] != b"SLSG":
        return data
    (directory,) = struct.unpack_from("<Q", out, len(out) - 24)
    for at, kind, offset, length, head_length in _entries_of(bytes(out[directory:-24])):
        end = offset + length
        if not 0 <= offset <= end <= directory or not 0 <= head_length <= length:
            continue
        if kind == "changes":
            checksum = _table(out, offset + 184, end - head_length, end)
        else:
            checksum = crc32c(bytes(out[offset:end]))
        struct.pack_into("<I", out, directory + at, checksum)
    struct.pack_into("<I", out, len(out) - 8, crc32c(bytes(out[-24:-8]), crc32c(bytes(out[directory:-24]))))
    return bytes(out)


def _entries_of(directory: bytes) -> list[tuple[int, str, int, int, int]]:
    """Where in a directory the checksum of each section is, and what tells where that section lies."""
    data = pa.py_buffer(directory)
    with contextlib.suppress(pa.ArrowException, OSError, ValueError, KeyError, StopIteration):
        batch = pa.ipc.open_stream(data).read_next_batch()
        batch.validate(full=True)
        place = batch.column("crc32c").buffers()[1].address - data.address
        columns = (batch.column(name).to_pylist() for name in ("kind", "offset", "length", "head_length"))
        if 0 <= place <= len(directory) - 4 * batch.num_rows:
            return [(place + 4 * row, *rest) for row, rest in enumerate(zip(*columns, strict=True)) if None not in rest]
    return []


def _table(out: bytearray, body: int, start: int, end: int) -> int:
    """Makes a table of changes true, as far as it goes; its checksum."""
    blocks = min((end - start - 72) // 32, 64)
    totals, groups = [0, 0, 0], (0, -1)
    for number in range(blocks):
        at = start + 72 + 32 * number
        low, high, rows, length, size = struct.unpack_from("<hhIQQ", out, at)
        struct.pack_into("<I", out, at + 24, crc32c(bytes(out[body : body + length])))
        body += length
        totals = [total + more for total, more in zip(totals, (length, size, rows), strict=True)]
        groups = (low if number == 0 else groups[0], high)
    if end - start < 72:
        return 0
    with contextlib.suppress(struct.error):  # Sums that no header can hold.
        struct.pack_into("<QQQ", out, start + 32, *totals)
    struct.pack_into("<hh", out, start + 60, *groups)
    checksum = crc32c(bytes(out[start + 72 : end]), crc32c(bytes(out[start : start + 68])))
    struct.pack_into("<I", out, start + 68, checksum)
    return checksum


def _read_segment(data: bytes) -> None:
    with _holding("object", data) as store:
        damage = None
        for section in inspect_segment(store, "object").sections:
            if verify_section(store, "object", section) is not None:
                continue
            for change in changes_of(store, "object", section):
                bytes(change.value)
            if section.entry.kind is not SectionKind.CHANGES:
                try:
                    for batch in batches_of(store, "object", section.entry):
                        batch.take(pa.array(range(batch.num_rows - 1, -1, -1), pa.int64()))
                except CorruptDataError as error:
                    damage = error
        if damage is not None:
            raise damage


def _state_segment() -> bytes:
    """A run and rows of an open file in one segment."""
    made = [(SectionKind.RUN, _golden("run/run.v2.arrow")), (SectionKind.ROWS, _golden("pending/rows.v1.arrows"))]
    sections = [Section(kind, "owner", 3, (data,), len(data), crc32c(data)) for kind, data in made]
    return b"".join(encode_segment(sections).pieces)


def _read_through_handle(data: bytes) -> None:
    """A handle that may say anything, over an object that is intact."""
    handle = ChangelogHandle.from_bytes(data)
    settings = ChangelogSettings(scheduler="direct", num_download_threads=1)
    with _holding("object", _OBJECT) as store, ChangelogStorage.open(store, settings) as storage:
        for change in storage.create_reader().read(handle):
            bytes(change.value)


def _record(data: bytes) -> None:
    found = decode_record(data, "fuzz")
    if isinstance(found, Checkpoint):
        reach_of(found)
        list(found.object_names())


def _run(handle: RunHandle) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        buffer = pa.py_buffer(data)
        told = msgspec.structs.replace(handle, length=len(data), crc32c=crc32c(data))
        check_whole(buffer, told)
        index = read_index(buffer, told)
        schema = StateSchema.of_run(pa.ipc.open_file(pa.BufferReader(buffer)).schema)
        for rows in decode_batches(buffer, told, schema, index, range(len(index.batches))):
            for column in (*rows.keys.columns, *rows.values):
                column.take(pa.array(range(len(column) - 1, -1, -1), pa.int64()))

    return read


def _pending_rows(data: bytes) -> None:
    table = decode_rows(SectionHandle(name="rows", offset=0, length=len(data), crc32c=crc32c(data)), data)
    table.take(pa.array(range(table.num_rows - 1, -1, -1), pa.int64()))


def _history_in_record(data: bytes) -> None:
    summaries_in(msgspec.structs.replace(_RECORD, states={HISTORY: InlineState(data=data)}))


def _schema(data: bytes) -> None:
    str(StateSchema.decode(data.decode("utf-8", "replace")))


def _schema_message(data: bytes) -> None:
    """What is in the text of a schema: an Arrow message."""
    str(StateSchema.decode(base64.b64encode(data).decode()))


def _default_value(data: bytes) -> None:
    """What a column of a schema may carry: an Arrow message of one row."""
    (key,), (number, *_) = _SCHEMA.keys, _SCHEMA.values
    fields = [
        key.with_metadata({"stateline.role": "key"}),
        number.with_metadata({"stateline.role": "value", "stateline.default": base64.b64encode(data)}),
    ]
    StateSchema.decode(base64.b64encode(pa.schema(fields).serialize()).decode()).default("n")


def _offset_log(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    offsets_digest(lambda name: text, "fuzz", 0)


def _golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def _handle_of(data: bytes) -> bytes:
    """The handle of every change set of the first writer in an object."""
    with _holding("object", data) as store:
        sections = inspect_segment(store, "object").sections
    segments = tuple(
        SegmentHandle(
            name="object",
            offset=entry.offset,
            length=entry.length,
            head_length=entry.head_length,
            size=table.size,
            crc32c=entry.crc32c,
            log_id=entry.owner,
            sequence_number=entry.number,
            first_key_group=table.key_groups[0],
            last_key_group=table.key_groups[1],
        )
        for entry, table in ((section.entry, section.table) for section in sections)
        if table is not None and entry.owner == sections[0].entry.owner
    )
    return ChangelogHandle(key_group_range=KeyGroupRange(0, 127), segments=segments).to_bytes()


_OBJECT = _golden("changelog/segment_none_v1.bin")
_FLINK_IDS = b"\0\0\0\2" + UUID(int=1).bytes + UUID(int=2).bytes
_FLINK_COMMIT = b"\0\6bucket\0\4a/\xce\xb1" + _FLINK_IDS
_FLINK_RESUME = b"\0\6bucket\0\3a/b" + _FLINK_IDS + struct.pack(">qB", 7, 0)
_OFFSETS = b'v1\n{"batchWatermarkMs":0}\n{"logOffset":3}\n{"batchId":3}'
_SCHEMA = StateSchema.of(
    pa.schema([("key", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us")), ("list", pa.list_(pa.int32()))]),
    ["key"],
)


_RECORD = decode_record(_golden("checkpoint/checkpoint.v1.json"), "fuzz")
_HISTORY = zlib.compress(b'{"checkpoint_ids":[7],"batch_ids":[6],"created_at":[1.5],"runs":[1],"figures":{"rows":[5]}}')
_DEFAULT = pa.record_batch({"n": pa.array([7], pa.int64())}).serialize().to_pybytes()


def _run_target(name: str) -> Target:
    handle = msgspec.json.decode(_golden(f"run/{name}.v2.json"), type=RunHandle)
    return Target(name, _run(handle), [_golden(f"run/{name}.v2.arrow")])


TARGETS = {
    target.name: target
    for target in (
        Target(
            "segment",
            _read_segment,
            [*(_golden(f"changelog/segment_{name}_v1.bin") for name in ("none", "lz4", "zstd")), _state_segment()],
            _segment,
        ),
        Target("changelog_handle", ChangelogHandle.from_bytes, [_golden("changelog/handle_v1.bin")], _handle_prefix),
        Target(
            "changelog_read",
            _read_through_handle,
            [_handle_of(_OBJECT)],
            _handle_prefix,
            (CorruptDataError, UnsupportedVersionError, DataLossError),
        ),
        Target(
            "record",
            _record,
            [_golden(f"checkpoint/{name}.v1.json") for name in ("checkpoint", "retired", "floor", "published")],
            _document,
        ),
        Target(
            "savepoint",
            lambda data: decode_savepoint(data, "fuzz"),
            [_golden("checkpoint/savepoint.v1.json")],
            _document,
        ),
        Target("claim", lambda data: decode_claim(data, "fuzz"), [_golden("checkpoint/claimed.v1.json")], _document),
        Target("history", lambda data: decode_block(data, "fuzz"), [_golden("checkpoint/history.v1.json")], _document),
        Target("history_in_record", _history_in_record, [_HISTORY]),
        _run_target("run"),
        _run_target("run_zstd"),
        Target("pending_rows", _pending_rows, [_golden("pending/rows.v1.arrows")]),
        Target(
            "commit_point",
            lambda data: CommitPointSerializer().deserialize(1, data),
            [_golden("recoverable/commit_point_v1.bin")],
            _framed_point,
        ),
        Target(
            "resume_point",
            lambda data: ResumePointSerializer().deserialize(1, data),
            [_golden(f"recoverable/resume_point{name}_v1.bin") for name in ("", "_empty")],
            _framed_point,
        ),
        Target("flink_commit", lambda data: read_commit(1, data), [_FLINK_COMMIT]),
        Target("flink_resume", lambda data: read_resume(1, data), [_FLINK_RESUME]),
        Target("state_schema", _schema, [_SCHEMA.encode().encode()]),
        Target("schema_message", _schema_message, [base64.b64decode(_SCHEMA.encode())]),
        Target("default_value", _default_value, [_DEFAULT]),
        Target("offset_log", _offset_log, [_OFFSETS]),
    )
}
"""All of them, by name."""
