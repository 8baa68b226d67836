"""Objects from several pieces: written without joining them, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stateline.blob import InstrumentedStore
from stateline.blob import local as local_module
from stateline.blob.api import BlobStore
from stateline.blob.local import LocalStore
from stateline.blob.memory import MemoryStore
from stateline.errors import AlreadyExistsError, CorruptDataError, StorageFullError

PIECES = [b"head", bytearray(b"x" * 100_000), memoryview(b"tail"), b"", memoryview(bytes(range(256)))]


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "memory":
        MemoryStore.forget("pieces")
        return MemoryStore("pieces")
    return LocalStore(tmp_path)


def test_pieces_become_one_object(store: BlobStore) -> None:
    info = store.put_all_if_absent("a/b", PIECES)
    assert store.get("a/b") == b"".join(PIECES)
    assert info.size == store.head("a/b").size == len(b"".join(PIECES))
    assert store.put_all_if_absent("a/empty", []).size == 0
    assert store.get("a/empty") == b""


def test_equal_bytes_in_other_pieces_are_the_same_object(store: BlobStore) -> None:
    store.put_all_if_absent("a", PIECES)
    store.put_all_if_absent("a", [b"".join(PIECES)])
    store.put_if_absent("a", b"".join(PIECES))
    with pytest.raises(AlreadyExistsError):
        store.put_all_if_absent("a", PIECES[1:])


def test_many_pieces_and_short_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [bytes([number % 256]) * (number % 7) for number in range(3000)]
    calls = []

    def short(descriptor: int, views: list[memoryview]) -> int:
        calls.append(len(views))
        return os.write(descriptor, b"".join(views)[:1001])

    monkeypatch.setattr(local_module.os, "writev", short)
    LocalStore(tmp_path).put_all_if_absent("a", pieces)
    assert LocalStore(tmp_path).get("a") == b"".join(pieces)
    assert max(calls) <= 1024


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, views: list[memoryview]) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(local_module.os, "writev", full)
    with pytest.raises(StorageFullError):
        LocalStore(tmp_path).put_all_if_absent("a", PIECES)
    assert list(LocalStore(tmp_path).list("")) == []


def test_pieces_are_counted_as_one_write() -> None:
    MemoryStore.forget("pieces")
    store = InstrumentedStore(MemoryStore("pieces"))
    store.put_all_if_absent("a", PIECES)
    assert dict(store.calls) == {"put_if_absent": 1}
    assert store.bytes_written == len(b"".join(PIECES))


def test_a_range_beyond_the_end_is_refused_before_anything_is_allocated(store: BlobStore) -> None:
    store.put("a", b"short")
    with pytest.raises(CorruptDataError):
        store.get_range("a", 0, 2**45)
