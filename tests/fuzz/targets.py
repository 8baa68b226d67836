"""Every decoder of stored bytes, with the bytes it starts from and a way to make its checksums right again.

A changed byte alone shows that checksums are checked. So each input is tried twice: as it is, and *resealed*, with
checksums, and whatever a handle says of the bytes, computed anew. Then it meets the checks behind them.

A decoder may return, or raise one of the errors that say that bytes are bad. It may not raise anything else, and not
take more memory than :data:`MEMORY_MAX_BYTES` for it.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import msgspec
import pyarrow as pa

from stateline.blob.checksum import crc32c
from stateline.blob.memory import MemoryStore
from stateline.changelog import ChangelogHandle, ChangelogSettings, ChangelogStorage, SegmentHandle
from stateline.changelog.inspection import changes_of, inspect_object, verify_frame
from stateline.checkpoint.api import Checkpoint
from stateline.checkpoint.metadata import decode_claim, decode_record, decode_savepoint
from stateline.checkpoint.retention import reach_of
from stateline.errors import CorruptDataError, DataLossError, StatelineError, UnsupportedVersionError
from stateline.files.pending import load_rows
from stateline.handles import RowsHandle, RunHandle
from stateline.key_groups import KeyGroupRange
from stateline.recoverable.gcs_interchange import (
    FlinkCommit,
    FlinkResume,
    read_commit,
    read_resume,
    write_commit,
    write_resume,
)
from stateline.recoverable.serializers import CommitPointSerializer, ResumePointSerializer
from stateline.spark.offsets import offsets_digest
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


def _changelog_object(data: bytes) -> bytes:
    """Checksums and sums of blocks, heads and index, as far as the lengths lead."""
    out = bytearray(data)
    position = 0
    heads = {}
    while out[position : position + 4] == b"SLCF" and len(out) >= position + 72:
        (blocks,) = struct.unpack_from("<I", out, position + 56)
        start = position + 72 + 32 * blocks
        if blocks > 64 or start > len(out):
            break
        body, totals, groups = start, [0, 0, 0], (0, -1)
        for number in range(blocks):
            at = position + 72 + 32 * number
            low, high, rows, length, size = struct.unpack_from("<hhIQQ", out, at)
            struct.pack_into("<I", out, at + 24, crc32c(bytes(out[body : body + length])))
            body += length
            totals = [total + more for total, more in zip(totals, (length, size, rows), strict=True)]
            groups = (low if number == 0 else groups[0], high)
        with contextlib.suppress(struct.error):  # Sums that no header can hold.
            struct.pack_into("<QQQ", out, position + 32, *totals)
        struct.pack_into("<hh", out, position + 60, *groups)
        checksum = crc32c(bytes(out[position + 72 : start]), crc32c(bytes(out[position : position + 68])))
        struct.pack_into("<I", out, position + 68, checksum)
        heads[position] = checksum
        if body <= position or body > len(out):
            break
        position = body
    if len(out) >= 24 and out[-4:] == b"SLCX":
        (offset,) = struct.unpack_from("<Q", out, len(out) - 24)
        for at in range(offset + 8, len(out) - 24 - 47, 48):
            (frame,) = struct.unpack_from("<Q", out, at + 24)
            if frame in heads:
                struct.pack_into("<I", out, at + 44, heads[frame])
        index = bytes(out[offset:-24])
        struct.pack_into("<I", out, len(out) - 8, crc32c(bytes(out[-24:-8]), crc32c(index)))
    return bytes(out)


def _read_changelog_object(data: bytes) -> None:
    with _holding("object", data) as store:
        for frame in inspect_object(store, "object").frames:
            if verify_frame(store, "object", frame) is None:
                for change in changes_of(store, "object", frame):
                    bytes(change.value)


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
        told = msgspec.structs.replace(handle, size=len(data), crc32c=crc32c(data))
        check_whole(buffer, told)
        index = read_index(buffer, told)
        schema = StateSchema.of_run(pa.ipc.open_file(pa.BufferReader(buffer)).schema)
        for rows in decode_batches(buffer, told, schema, index, range(len(index.batches))):
            for column in (*rows.keys.columns, *rows.values):
                column.take(pa.array(range(len(column) - 1, -1, -1), pa.int64()))

    return read


def _pending_rows(data: bytes) -> None:
    with _holding("rows", data) as store:
        handle = RowsHandle(name="rows", offset=0, length=len(data), crc32c=crc32c(data), rows=None)
        for table in load_rows(store, [handle]):
            table.take(pa.array(range(table.num_rows - 1, -1, -1), pa.int64()))


def _schema(data: bytes) -> None:
    str(StateSchema.decode(data.decode("utf-8", "replace")))


def _offset_log(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    offsets_digest(lambda name: text, "fuzz", 0)


def _golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def _handle_of(data: bytes) -> bytes:
    """The handle of every frame of the first writer in an object."""
    with _holding("object", data) as store:
        frames = inspect_object(store, "object").frames
    mine = [frame for frame in frames if frame.head.log_id == frames[0].head.log_id]
    segments = tuple(
        SegmentHandle(
            name="object",
            offset=frame.offset,
            length=frame.head.length,
            head_length=frame.head.head_length,
            size=frame.head.size,
            crc32c=frame.head.crc32c,
            log_id=frame.head.log_id.hex,
            sequence_number=frame.head.sequence_number,
            first_key_group=frame.head.key_groups[0],
            last_key_group=frame.head.key_groups[1],
        )
        for frame in mine
    )
    return ChangelogHandle(key_group_range=KeyGroupRange(0, 127), segments=segments).to_bytes()


_OBJECT = _golden("changelog/object_none_v1.bin")
_IDS = (UUID(int=1), UUID(int=2))
_FLINK_COMMIT = FlinkCommit(bucket="bucket", object="a/\N{GREEK SMALL LETTER ALPHA}", components=_IDS)
_FLINK_RESUME = FlinkResume(bucket="bucket", object="a/b", components=_IDS, position=7, closed=False)
_OFFSETS = b'v1\n{"batchWatermarkMs":0}\n{"logOffset":3}\n{"batchId":3}'
_SCHEMA = StateSchema.of(
    pa.schema([("key", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us")), ("list", pa.list_(pa.int32()))]),
    ["key"],
)


def _run_target(name: str) -> Target:
    handle = msgspec.json.decode(_golden(f"run/{name}.v1.json"), type=RunHandle)
    return Target(name, _run(handle), [_golden(f"run/{name}.v1.arrow")])


TARGETS = {
    target.name: target
    for target in (
        Target(
            "changelog_object",
            _read_changelog_object,
            [_golden(f"changelog/object_{name}_v1.bin") for name in ("none", "lz4", "zstd")],
            _changelog_object,
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
        Target("flink_commit", lambda data: read_commit(1, data), [write_commit(_FLINK_COMMIT)]),
        Target("flink_resume", lambda data: read_resume(1, data), [write_resume(_FLINK_RESUME)]),
        Target("state_schema", _schema, [_SCHEMA.encode().encode()]),
        Target("offset_log", _offset_log, [_OFFSETS]),
    )
}
"""All of them, by name."""
