"""Streams for state and savepoints on the clouds: what they promise on every store."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stateline.blob import InstrumentedStore
from stateline.blob.memory import MemoryStore
from stateline.checkpoint import (
    CheckpointedStateScope,
    CheckpointStore,
    CheckpointStreamFactory,
    FileHandle,
    InlineHandle,
    create_savepoint,
    drop_savepoint,
    open_savepoint,
    start_from_savepoint,
    verify_root,
    verify_savepoint,
)
from stateline.checkpoint import stream_factory as module
from stateline.environment import SystemIds
from stateline.errors import ClosedError
from stateline.state import KeyedStateBackend, StateSchema
from stateline.testing.blob_conformance import bytes_of

EXCLUSIVE, SHARED = CheckpointedStateScope.EXCLUSIVE, CheckpointedStateScope.SHARED
MIB = 1024 * 1024


@pytest.fixture
def store(world):
    return world.store


def opened(store, scope):
    return CheckpointStreamFactory(store, "chk-7", "shared", 100).create_checkpoint_state_output_stream(scope)


def names(store):
    return [info.name for info in [*store.list(""), *store.list_staged()]]


@pytest.mark.parametrize("scope", CheckpointedStateScope)
def test_size_alone_decides_and_nothing_is_listed_or_headed(world, store, scope):
    counted = InstrumentedStore(store)
    world.faults.seen.clear()
    for size, kind, calls in ((0, type(None), {}), (100, InlineHandle, {}), (101, FileHandle, {"put_if_absent": 1})):
        out = opened(counted, scope)
        for start in range(0, size, 30):
            out.write(b"x" * min(30, size - start))
        handle = out.close_and_get_handle()
        out.close()
        assert (type(handle), counted.calls, out.position) == (kind, calls, size)
    assert len(world.faults.seen) == 1, "one request makes the file"
    assert names(store) == [handle.name]
    assert handle.name.startswith("chk-7/" if scope is EXCLUSIVE else "shared/")
    assert handle.relative is (scope is EXCLUSIVE)
    assert handle.open().read() == b"x" * 101
    handle.discard()
    handle.discard()
    assert names(store) == []


def test_a_large_stream_goes_through_pieces_and_leaves_none(store, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 5 * MIB)
    counted = InstrumentedStore(store)
    data = bytes_of(12 * MIB)
    out = opened(counted, SHARED)
    for start in range(0, len(data), MIB):
        out.write(data[start : start + MIB])
    handle = out.close_and_get_handle()
    assert not {"list", "head", "list_staged"} & counted.calls.keys()
    assert handle.open().read() == data
    assert names(store) == [handle.name]


def test_a_stream_that_is_given_up_leaves_nothing(store, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 1000)
    out = opened(store, EXCLUSIVE)
    out.write(bytes(3500))
    out.flush()
    out.close()
    out.close()
    assert names(store) == []
    with pytest.raises(ClosedError):
        out.write(b"x")


def test_a_savepoint_moves_between_stores_and_starts_a_query_there(store):
    schema = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())]))
    rows = pa.table({"k": range(500), "n": range(500)})
    old = MemoryStore(SystemIds().new_id())
    with KeyedStateBackend.open(old) as backend:
        backend.state("o", schema).put(rows)
        backend.checkpoint()
    made = create_savepoint(CheckpointStore(old), store)
    assert verify_savepoint(made).is_sound
    root = CheckpointStore(MemoryStore(SystemIds().new_id()))
    root.publish(start_from_savepoint(open_savepoint(store, made.folder), root, query_id="new"))
    assert verify_root(root).is_sound
    with KeyedStateBackend.open(root.store) as backend:
        assert backend.state("o").get(rows.select(["k"])).rows.column("n").to_pylist() == list(range(500))
    drop_savepoint(store, made.folder)
    assert names(store) == []
