"""Objects from several pieces: written without joining them, whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from stateline.blob import InstrumentedStore, file_bytes
from stateline.blob.api import BlobStore
from stateline.blob.local import LocalStore
from stateline.blob.memory import MemoryStore
from stateline.errors import AlreadyExistsError, CorruptDataError, NotFoundError, StorageFullError

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

    monkeypatch.setattr(file_bytes.os, "writev", short)
    LocalStore(tmp_path).put_all_if_absent("a", pieces)
    assert LocalStore(tmp_path).get("a") == b"".join(pieces)
    assert max(calls) <= 1024


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, views: list[memoryview]) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file_bytes.os, "writev", full)
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


LONG = [os.urandom(number) for number in (1, 4095, 4096, 4097, 700_000, 1_048_576, 0, 2_000_000, 5)]


def is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)


@pytest.mark.parametrize("extra", [0, 1, 4095, 4096, 4097])
def test_long_pieces_are_written_whole_whatever_their_lengths(tmp_path: Path, extra: int) -> None:
    pieces = [*LONG, b"e" * extra]
    LocalStore(tmp_path).put_all_if_absent("a", pieces)
    assert LocalStore(tmp_path).get("a") == b"".join(pieces)


def test_long_pieces_go_past_the_page_cache_in_whole_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    direct: list[int] = []
    rest: list[int] = []

    def write(descriptor: int, view: memoryview) -> int:
        (direct if is_direct(descriptor) else rest).append(len(view))
        return os_write(descriptor, view)

    os_write = os.write
    monkeypatch.setattr(file_bytes.os, "write", write)
    LocalStore(tmp_path).put_all_if_absent("a", LONG)
    length = sum(map(len, LONG))
    assert sum(direct) == length - length % 4096
    assert all(size % 4096 == 0 for size in direct)
    assert sum(rest) == length % 4096


def test_what_is_read_soon_goes_through_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = []

    def write(descriptor: int, view: memoryview) -> int:
        ways.append(is_direct(descriptor))
        return os_write(descriptor, view)

    os_write = os.write
    monkeypatch.setattr(file_bytes.os, "write", write)
    LocalStore(tmp_path).put_all_if_absent("a", LONG, read_soon=True)
    assert set(ways) == {False}
    assert LocalStore(tmp_path).get("a") == b"".join(LONG)


@pytest.mark.parametrize("refusal", ["flag", "first write", "later write"])
def test_where_the_cache_cannot_be_passed_all_is_written_as_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    refused = []

    def control(descriptor: int, command: int, flags: int = 0) -> int:
        if refusal == "flag" and flags & os.O_DIRECT:
            refused.append(refusal)
            raise OSError(errno.EINVAL, "Invalid argument")
        return int(real_control(descriptor, command, flags))

    def write(descriptor: int, view: memoryview) -> int:
        if is_direct(descriptor):
            if refusal == "first write" or real_position(descriptor) > 0:
                refused.append(refusal)
                raise OSError(errno.EINVAL, "Invalid argument")
            return os_write(descriptor, view[:8192])
        return os_write(descriptor, view)

    def real_position(descriptor: int) -> int:
        return os.lseek(descriptor, 0, os.SEEK_CUR)

    real_control, os_write = fcntl.fcntl, os.write
    if refusal == "flag":
        monkeypatch.setattr(file_bytes.fcntl, "fcntl", control)
    else:
        monkeypatch.setattr(file_bytes.os, "write", write)
    LocalStore(tmp_path).put_all_if_absent("a", LONG)
    monkeypatch.undo()
    assert LocalStore(tmp_path).get("a") == b"".join(LONG)
    assert refused


def test_a_full_disk_is_told_also_past_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, view: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(file_bytes.os, "write", full)
    with pytest.raises(StorageFullError):
        LocalStore(tmp_path).put_all_if_absent("a", LONG)
    assert list(LocalStore(tmp_path).list("")) == []


@pytest.mark.parametrize("refusal", ["nothing", "flag", "first read", "later read"])
def test_long_staged_pieces_are_joined_whole_also_where_the_cache_cannot_be_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    reads: list[bool] = []

    def control(descriptor: int, command: int, flags: int = 0) -> int:
        if refusal == "flag" and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return int(real_control(descriptor, command, flags))

    def readv(descriptor: int, buffers: list[memoryview]) -> int:
        reads.append(is_direct(descriptor))
        if reads[-1] and (refusal == "first read" or (refusal == "later read" and len(reads) > 2)):
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_readv(descriptor, buffers)

    real_control, real_readv = fcntl.fcntl, os.readv
    monkeypatch.setattr(file_bytes.fcntl, "fcntl", control)
    monkeypatch.setattr(file_bytes.os, "readv", readv)
    pieces = [os.urandom(number) for number in (3_000_001, 17, 2_097_152, 4_194_304)]
    store = LocalStore(tmp_path)
    parts = [store.stage("a/b", piece) for piece in pieces]
    info = store.publish("a/b", store.prepare("a/b", parts, "n"), "n")
    assert store.get("a/b") == b"".join(pieces)
    assert info.crc32c == store.publish("a/b", parts, "n").crc32c
    assert any(reads) == (refusal != "flag")
    assert not all(reads)  # The short piece goes through the cache.


def test_a_long_piece_that_was_damaged_is_not_published(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    part = store.stage("a", os.urandom(3_000_000))
    path = store.local_path(part.name)
    assert path is not None
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for parts in ([part], [part, store.stage("a", b"end")]):
        with pytest.raises(CorruptDataError):
            store.publish("a", parts, "n")
    with pytest.raises(NotFoundError):
        store.head("a")
