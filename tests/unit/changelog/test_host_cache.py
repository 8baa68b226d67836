"""Copies on this host's disk: one bound for all processes, the least recently used go first, nothing is in the way."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from stateline.blob.memory import MemoryStore
from stateline.changelog import host_cache
from stateline.changelog.host_cache import Extent, HostCache
from stateline.changelog.section_reader import SectionReader
from stateline.environment import Environment, SystemClock
from stateline.errors import CorruptDataError, NotFoundError
from stateline.handles import SectionHandle

URL = "memory://host-cache"
WAIT = 120


class Clock(SystemClock):
    """Wall-clock time by hand."""

    time = 1_000_000.0

    def now(self) -> float:
        return self.time


def cache_in(folder: Path, max_bytes: int = 10**6, clock: Clock | None = None) -> HostCache:
    return HostCache(folder, max_bytes, copy_timeout=60, environment=Environment(clock=clock or Clock()))


def save(cache: HostCache, name: str, data: bytes, offset: int = 0) -> None:
    cache.save(URL, name, offset, len(data), [Extent(0, data)])


def found(cache: HostCache, name: str, offset: int, length: int, part: tuple[int, int] | None = None) -> list[bytes]:
    return [bytes(copy.buffer) for copy in cache.find(URL, name, offset, length, part)]


def child(program: str, *arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


# -- what is found ---------------------------------------------------------------------------------------------------


def test_a_section_is_found_in_the_copy_of_its_object_and_in_its_own(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    cache.put(URL, "object", [b"0123", memoryview(b"456789")])
    assert found(cache, "object", 2, 5) == [b"23456"]
    save(cache, "object", b"23456", offset=2)
    assert found(cache_in(tmp_path), "object", 2, 5) == [b"23456"] * 2
    for other in (("object", 2, 6), ("object", 3, 5), ("other", 2, 5)):
        assert len(found(cache, *other)) == (other[0] == "object")
    assert list(cache.find("memory://elsewhere", "object", 2, 5)) == []


def test_a_part_is_good_for_each_part_of_it_and_takes_no_more_disk_than_its_bytes(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    length = 4 << 20
    cache.save(URL, "run", 64, length, [Extent(1 << 20, b"x" * 100), Extent(length - 9, b"y" * 9)], (4, 9))
    for part, is_there in {(4, 9): True, (5, 6): True, (3, 5): False, (9, 10): False}.items():
        copies = found(cache, "run", 64, length, part)
        assert len(copies) == is_there
        assert all(copy[1 << 20 :][:100] == b"x" * 100 and copy[-9:] == b"y" * 9 for copy in copies)
    assert found(cache, "run", 64, length) == []
    assert found(cache, "run", 6, 4, (5, 6)) == []
    assert 0 < cache.size() < length / 16


def test_a_deleted_folder_is_made_again(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    save(cache, "a", b"abc")
    for path in cache.folder.iterdir():
        path.unlink()
    cache.folder.rmdir()
    assert found(cache, "a", 0, 3) == []
    save(cache, "a", b"abc")
    assert found(cache, "a", 0, 3) == [b"abc"]
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in cache.folder.iterdir()} == {0o600}


def test_nobody_else_may_write_to_the_folders_above_a_cache(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cache = HostCache(tmp_path / "a/b/cache", 1_000)
        cache.prepare()
    finally:
        os.umask(before)
    made = [path for path in (tmp_path / "a").rglob("*") if path.is_dir()]
    assert cache.folder in made
    assert [path for path in (tmp_path / "a", *made) if path.stat().st_mode & 0o022] == []


# -- the bound -------------------------------------------------------------------------------------------------------


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    clock = Clock()
    cache = cache_in(tmp_path, 300, clock)
    for name in ("a", "b", "c"):
        clock.time += 1
        save(cache, name, bytes(100))
    clock.time += 1
    assert found(cache, "a", 0, 100)  # A use, which makes it the newest.
    save(cache_in(tmp_path, 300, clock), "d", bytes(100))  # By another process.
    assert [bool(found(cache, name, 0, 100)) for name in "abcd"] == [True, False, True, True]
    assert cache.size() == 300


def test_what_can_never_fit_drives_nothing_out(tmp_path: Path) -> None:
    cache = cache_in(tmp_path, 300)
    save(cache, "a", bytes(200))
    save(cache, "b", bytes(301))
    assert found(cache, "a", 0, 200)
    assert cache.metrics.snapshot()["local_copies_skipped"] == 1


def test_what_somebody_reads_stays(tmp_path: Path) -> None:
    cache = cache_in(tmp_path, 300)
    save(cache, "a", bytes(200))
    reading = cache.find(URL, "a", 0, 200)
    assert next(reading)
    other = cache_in(tmp_path, 300)
    save(other, "b", bytes(200))
    assert not found(other, "b", 0, 200)
    reading.close()
    save(other, "b", bytes(200))
    assert found(other, "b", 0, 200)
    assert not found(other, "a", 0, 200)


def test_what_somebody_writes_stays_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, write = cache_in(tmp_path, 300), host_cache._write_at

    def meanwhile(descriptor: int, position: int, data: bytes) -> None:
        monkeypatch.setattr(host_cache, "_write_at", write)
        for name in ("b", "c"):  # As two other processes, which count the files.
            save(cache_in(tmp_path, 300), name, bytes(200))
        write(descriptor, position, data)

    monkeypatch.setattr(host_cache, "_write_at", meanwhile)
    save(cache, "a", bytes(200))
    assert [bool(found(cache, name, 0, 200)) for name in "abc"] == [True, False, False]
    assert cache.size() == 200


def test_the_number_of_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_cache, "_FILES_MAX", 20)
    clock = Clock()
    cache = cache_in(tmp_path, clock=clock)
    for number in range(50):
        clock.time += 1
        save(cache, f"{number}", b"x")
        assert len(list(cache.folder.glob("*.copy"))) <= 20
    assert [number for number in range(50) if found(cache, f"{number}", 0, 1)] == list(range(30, 50))


def test_half_of_what_the_disk_has_left_is_never_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cache_in(tmp_path)
    cache.prepare()
    real = os.statvfs

    def nearly_full(path: Path) -> object:
        fields = list(real(path))
        fields[1], fields[4] = 1, 1000 - cache.size()
        return os.statvfs_result(fields)

    monkeypatch.setattr(os, "statvfs", nearly_full)
    for number in range(20):
        save(cache, f"{number}", bytes(100))
        assert cache.size() <= 500
    assert cache.size() == 500


def test_an_old_ledger_is_not_believed(tmp_path: Path) -> None:
    """As after a loss of power: the files are there, and an older ledger, or none of its bytes."""
    for ledger in (bytes(16), b"", b"x"):
        cache = cache_in(tmp_path, 300)
        save(cache, f"a{ledger!r}", bytes(200))
        (cache.folder / "ledger").write_bytes(ledger)
        save(cache_in(tmp_path, 300), f"b{ledger!r}", bytes(200))
        assert cache.size() == 200


def test_processes_hold_the_bound_together(tmp_path: Path) -> None:
    program = """
        import random, sys
        from stateline.changelog.host_cache import Extent, HostCache
        cache, seed = HostCache(sys.argv[1], 200_000, copy_timeout=60), int(sys.argv[2])
        chance = random.Random(seed)
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(150):
            size = chance.randrange(1, 30_000)
            cache.save("memory://x", f"{seed}-{number}", 0, size, [Extent(0, bytes([seed]) * size)])
            other = f"{chance.randrange(4)}-{chance.randrange(number + 1)}"
            for path in cache.folder.glob("*.copy"):
                if chance.random() < 0.1:
                    path.unlink(missing_ok=True)
            assert all(len(set(bytes(found.buffer))) == 1 for found in cache.find("memory://x", other, 0, 1))
        print(cache.metrics.snapshot()["local_copies"], flush=True)
    """
    processes = [child(program, tmp_path, seed) for seed in range(4)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    folder = cache_in(tmp_path).folder
    measured = 0
    while any(process.poll() is None for process in processes):
        if not (folder / "ledger").exists():
            continue
        with (folder / "ledger").open() as ledger:
            fcntl.flock(ledger, fcntl.LOCK_EX)  # Nobody takes room meanwhile. Files may be renamed: count each once.
            sizes = {}
            for path in folder.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    sizes[status.st_ino] = status.st_size * (path.suffix in {".copy", ".tmp"})
            assert sum(sizes.values()) <= 200_000
            measured += 1
    for process in processes:
        out, _ = process.communicate(timeout=WAIT)
        assert process.returncode == 0
        assert float(out) >= 100, "few copies were skipped"
    assert measured > 3
    assert not list(folder.glob("*.tmp"))


# -- failures --------------------------------------------------------------------------------------------------------


def test_a_writer_that_is_killed_leaves_nothing_that_counts_or_is_found(tmp_path: Path) -> None:
    program = """
        import os, signal, sys
        from stateline.changelog import host_cache
        def killed(descriptor, position, data):
            os.pwrite(descriptor, data, position)
            os.kill(os.getpid(), signal.SIGKILL)
        host_cache._write_at = killed
        cache = host_cache.HostCache(sys.argv[1], 300, copy_timeout=60)
        extents = [host_cache.Extent(0, bytes(100)), host_cache.Extent(100, bytes(100))]
        cache.save("memory://host-cache", "a", 0, 200, extents)
    """
    with child(program, tmp_path) as process:
        assert process.wait(WAIT) == -signal.SIGKILL
    cache = cache_in(tmp_path, 300)
    assert len(list(cache.folder.glob("*.tmp"))) == 1
    assert found(cache, "a", 0, 200) == []
    save(cache, "b", bytes(300))
    assert found(cache, "b", 0, 300)
    assert not list(cache.folder.glob("*.tmp"))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("call", ["pwrite", "truncate", "rename", "open", "statvfs"])
def test_a_full_or_broken_disk_costs_the_copy_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    cache = cache_in(tmp_path)
    save(cache, "a", b"abc")

    def fails(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fails)
        save(cache, "b", b"abc")
        assert not cache.start(MemoryStore("host-cache"), "c", [b"abc"]).wait()
        found(cache, "a", 0, 3)
    assert cache.metrics.snapshot()["local_copies_skipped"] == 2
    assert not list(cache.folder.glob("*.tmp"))
    save(cache, "b", b"abc")
    assert [found(cache, name, 0, 3) for name in "abc"] == [[b"abc"], [b"abc"], []]


# -- sections --------------------------------------------------------------------------------------------------------


class Watched(MemoryStore):
    """Notes what is read."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.read: list[tuple[str, int, int]] = []

    def get_range(self, name: str, start: int, end: int) -> bytes:
        self.read.append((name, start, end))
        return super().get_range(name, start, end)


@pytest.fixture
def store():
    yield Watched("host-cache")
    MemoryStore.forget("host-cache")


def proved(expected: bytes):
    def read(buffer) -> bytes:
        if bytes(buffer) != expected:
            raise CorruptDataError("damaged", operation="read", subject="section")
        return bytes(buffer)

    return read


def test_inline_bytes_are_read_from_the_handle(store: Watched) -> None:
    section = SectionHandle(name="", offset=0, length=3, crc32c=0, data=b"abc")
    assert SectionReader(store).near(section, proved(b"abc")) == b"abc"


def test_a_section_that_is_nowhere_near_is_fetched_and_kept(store: Watched, tmp_path: Path) -> None:
    store.put("object", b"0123456789")
    section = SectionHandle(name="object", offset=2, length=5, crc32c=0)
    reader = SectionReader(store, cache_in(tmp_path))
    assert reader.near(section, proved(b"23456")) is None
    assert reader.fetch(section, [(0, 2), (3, 5)]) == [b"23", b"56"]
    assert store.read == [("object", 2, 4), ("object", 5, 7)]
    reader.keep(section, [Extent(0, b"23456")])
    assert SectionReader(store, cache_in(tmp_path)).near(section, proved(b"23456")) == b"23456"
    assert len(store.read) == 2


@pytest.mark.parametrize("bad", [b"", b"0", b"0123", b"01x3456789", b"foreign" * 9])
def test_a_damaged_copy_is_deleted_and_the_next_one_is_read(store: Watched, tmp_path: Path, bad: bytes) -> None:
    section = SectionHandle(name="object", offset=2, length=5, crc32c=0)
    cache = cache_in(tmp_path)
    cache.put(URL, "object", [b"0123456789"])
    (path,) = cache.folder.glob("*.copy")
    save(cache, "object", b"23456", offset=2)
    path.write_bytes(bad)
    assert SectionReader(store, cache).near(section, proved(b"23456")) == b"23456"
    assert not path.exists()
    counted = cache.metrics.snapshot()
    assert (counted["local_read_fallbacks"], counted["local_reads"]) == (1, 1)


def test_a_section_of_an_object_that_is_gone_is_not_downloaded(store: Watched, tmp_path: Path) -> None:
    section = SectionHandle(name="object", offset=2, length=5, crc32c=0)
    reader = SectionReader(store, downloaded=cache_in(tmp_path))
    assert reader.near(section, proved(b"23456")) is None
    with pytest.raises(NotFoundError):
        reader.fetch(section, [(0, 5)])


def test_a_disk_that_hangs_holds_up_nobody_who_keeps_a_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    cache = HostCache(tmp_path, 10**6, copy_timeout=0.01)
    write = HostCache._write

    def hanging(self: HostCache, *arguments: object) -> None:
        go_on.wait(60)
        write(self, *arguments)

    monkeypatch.setattr(HostCache, "_write", hanging)
    save(cache, "object", b"bytes")
    assert found(cache, "object", 0, 5) == []
    go_on.set()
    cache.copier._executor.close()  # Waits for the copy to land.
    assert found(cache, "object", 0, 5) == [b"bytes"]
