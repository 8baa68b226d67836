"""Reading: order, key groups, bytes fetched, damage, copies, the shared cache, and objects without handles."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from stateline.blob.checksum import crc32c
from stateline.blob.local import LocalStore
from stateline.changelog import (
    ChangelogHandle,
    ChangelogMetrics,
    ChangelogReader,
    ChangelogSettings,
    ChangelogStorage,
    SegmentHandle,
    SequenceNumber,
)
from stateline.changelog.host_cache import Extent, HostCache
from stateline.changelog.inspection import changes_of, inspect_segment, verify_section
from stateline.changelog.segment import Section, SectionKind, encode_segment
from stateline.errors import AccessDeniedError, CorruptDataError, DataLossError, InvalidInputError, NotFoundError
from stateline.key_groups import KeyGroupRange, range_for_subtask
from tests.unit.changelog.limits import bounded
from tests.unit.changelog.worlds import ManualExecutor, ManualWorld, ScriptedStore, memory_store, open_storage, values

ALL = KeyGroupRange(0, 127)


class Written:
    """A handle over several sets, and what it should give."""

    def __init__(self, store: ScriptedStore | None = None, sets: int = 3, changes: int = 200, **settings: Any) -> None:
        self.world = ManualWorld()
        self.store = store or memory_store(self.world)
        self.storage = open_storage(self.world, self.store, **settings)
        writer = self.storage.create_writer("operator", ALL)
        generator = np.random.default_rng(5)
        self.expected: list[tuple[int, bytes]] = []
        for number in range(sets):
            added = [(-1, b"meta-%d" % number)]
            added += [(int(group), os.urandom(60)) for group in generator.integers(0, 128, changes)]
            for key_group, value in added:
                writer.append_meta(value) if key_group < 0 else writer.append(key_group, value)
            writer.next_sequence_number()
            self.expected += sorted(added, key=lambda change: change[0])
        self.handle: ChangelogHandle = writer.persist(SequenceNumber(0), 1).result().remote

    def reader(self, **more: Any) -> ChangelogReader:
        return ChangelogReader(self.store, environment=self.world.environment, **more)

    def of(self, wanted: KeyGroupRange) -> list[tuple[int, bytes]]:
        return [change for change in self.expected if change[0] < 0 or change[0] in wanted]


# -- what comes out --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_changes_come_out_in_order(compression: str) -> None:
    written = Written(compression=compression)
    assert values(written.reader().read(written.handle)) == written.expected


def test_only_the_wanted_key_groups_come_out_and_metadata_always() -> None:
    written = Written()
    for wanted in (KeyGroupRange(0, 0), KeyGroupRange(5, 63), KeyGroupRange(127, 500), ALL):
        assert values(written.reader().read(written.handle, wanted)) == written.of(wanted)
        part = written.handle.intersection(wanted)
        assert part is not None
        assert values(written.reader().read(part)) == written.of(wanted)
    assert values(written.reader().read(written.handle, KeyGroupRange.EMPTY)) == []
    assert values(written.reader().read(written.handle, KeyGroupRange(200, 300))) == []


@pytest.mark.parametrize("parallelism", [1, 3, 16, 128])
def test_after_a_rescale_every_change_is_read_by_exactly_one(parallelism: int) -> None:
    written = Written(sets=2)
    read: list[tuple[int, bytes]] = []
    for index in range(parallelism):
        part = values(written.reader().read(written.handle, range_for_subtask(index, parallelism, 128)))
        assert [change for change in part if change[0] < 0] == [(-1, b"meta-0"), (-1, b"meta-1")]
        read += [change for change in part if change[0] >= 0]
    assert sorted(read) == sorted(change for change in written.expected if change[0] >= 0)


def test_batches_hold_the_same() -> None:
    written = Written()
    batches = list(written.reader().read_batches(written.handle, KeyGroupRange(3, 9)))
    assert [
        pair
        for batch in batches
        for pair in zip(batch["key_group"].to_pylist(), batch["change"].to_pylist(), strict=True)
    ] == written.of(KeyGroupRange(3, 9))
    for batch in batches:
        batch.validate(full=True)


def test_a_writer_of_some_key_groups_gives_only_those() -> None:
    world = ManualWorld()
    storage = open_storage(world, memory_store(world))
    writer = storage.create_writer("operator", KeyGroupRange(10, 20))
    writer.append(10, b"a")
    writer.append(20, b"b")
    handle = writer.persist(SequenceNumber(0), 1).result().remote
    assert values(storage.create_reader().read(handle, KeyGroupRange(0, 15))) == [(10, b"a")]


def test_a_reader_may_stop_early_and_read_again() -> None:
    written = Written(sets=20, changes=5)
    reader = written.reader()
    for _ in range(3):
        iterator = reader.read(written.handle)
        assert next(iterator).value == b"meta-0"
        iterator.close()
    assert values(reader.read(written.handle)) == written.expected
    reader.close()
    assert values(reader.read(written.handle)) == written.expected


# -- what is fetched -------------------------------------------------------------------------------------------------


def test_a_whole_read_is_one_request_per_segment() -> None:
    written = Written(sets=4)
    written.store.calls.clear()
    list(written.reader().read(written.handle))
    assert written.store.count("get_range") == len(written.store.calls) == 4


def test_one_sixteenth_of_the_key_groups_fetches_less_than_one_eighth_of_the_bytes() -> None:
    written = Written(sets=2, changes=20_000)
    whole = sum(segment.length for segment in written.handle.segments)
    for part in range(16):
        wanted = range_for_subtask(part, 16, 128)
        written.store.fetched = 0
        metrics = ChangelogMetrics()
        assert values(written.reader(metrics=metrics).read(written.handle, wanted)) == written.of(wanted)
        assert written.store.fetched < whole / 8
        assert metrics.snapshot()["read_bytes"] == written.store.fetched


def test_large_segments_are_fetched_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateline.changelog.reader.RUN_BYTES", 100_000)
    written = Written(sets=2, changes=5000)
    sizes: list[int] = []
    fetch = written.store.inner.get_range
    written.store.inner.get_range = lambda name, start, end: sizes.append(end - start) or fetch(name, start, end)
    try:
        assert values(written.reader().read(written.handle)) == written.expected
    finally:
        del written.store.inner.get_range
    assert max(sizes) <= 100_000
    assert len(sizes) > 8


def test_a_few_segments_are_fetched_ahead_and_no_more() -> None:
    written = Written(sets=12, changes=5)
    written.store.calls.clear()
    iterator = written.reader(num_threads=3).read(written.handle)
    next(iterator)
    written.world.run()
    assert written.store.count("get_range") == 3


# -- damage ----------------------------------------------------------------------------------------------------------


def damage(store: Any, name: str, change: Callable[[bytearray], Any]) -> None:
    data = bytearray(store.get(name))
    changed = change(data)
    store.put(name, bytes(data if changed is None else changed))


def test_a_lost_object_is_data_loss() -> None:
    written = Written()
    written.store.inner.delete([written.handle.segments[0].name])
    with pytest.raises(DataLossError, match=written.handle.segments[0].name):
        list(written.reader().read(written.handle))


def test_every_flipped_byte_of_a_section_is_noticed_by_a_reader() -> None:
    written = Written(sets=2, changes=3)
    name = written.handle.segments[0].name
    original = written.store.get(name)
    for position in (at for one in written.handle.segments for at in range(one.offset, one.offset + one.length)):
        data = bytearray(original)
        data[position] ^= 0x20
        written.store.inner.put(name, bytes(data))
        with pytest.raises(CorruptDataError, match=rf"{name} at byte \d+"):
            list(written.reader().read(written.handle))


def test_a_truncated_object_is_noticed() -> None:
    written = Written(sets=2, changes=3)
    name = written.handle.segments[0].name
    original = written.store.get(name)
    end = max(segment.offset + segment.length for segment in written.handle.segments)
    for length in range(0, end, 7):
        written.store.inner.put(name, original[:length])
        with pytest.raises(CorruptDataError, match=name):
            list(written.reader().read(written.handle))


def test_an_exchanged_object_is_noticed() -> None:
    store = memory_store()
    one, other = Written(store, sets=1, changes=3), Written(store, sets=1, changes=3)
    data = store.get(other.handle.segments[0].name)
    store.inner.put(one.handle.segments[0].name, data)
    with pytest.raises(CorruptDataError, match="not the one that the handle names"):
        list(one.reader().read(one.handle))


@pytest.mark.parametrize("field", ["offset", "length", "head_length", "crc32c", "sequence_number", "size"])
def test_a_handle_that_lies_is_noticed(field: str) -> None:
    written = Written(sets=1, changes=2000)
    segment = written.handle.segments[0]
    for value in (0, 1, getattr(segment, field) + 8, 2**40):
        lying: SegmentHandle = msgspec.structs.replace(segment, **{field: value})
        handle = msgspec.structs.replace(written.handle, segments=(lying,))
        if lying == segment:
            continue
        with bounded(), pytest.raises(CorruptDataError):
            list(written.reader().read(handle))


def test_a_hostile_length_on_a_real_disk_costs_nothing(tmp_path: Path) -> None:
    world = ManualWorld()
    storage = open_storage(world, LocalStore(tmp_path))
    writer = storage.create_writer("operator", ALL)
    writer.append(1, b"x")
    handle = writer.persist(SequenceNumber(0), 1).result().remote
    lying = msgspec.structs.replace(handle.segments[0], length=2**45)
    with bounded(), pytest.raises(CorruptDataError):
        list(storage.create_reader().read(msgspec.structs.replace(handle, segments=(lying,))))


# -- copies ----------------------------------------------------------------------------------------------------------


class WithCopies(Written):
    def __init__(self, tmp_path: Path) -> None:
        super().__init__(local_recovery_dir=str(tmp_path))
        self.store.calls.clear()
        self.name = self.handle.segments[0].name
        [self.copy] = tmp_path.glob("*/*.copy")

    def read(self) -> list[tuple[int, bytes]]:
        return values(self.storage.create_reader().read(self.handle))

    def metric(self, name: str) -> Any:
        return self.storage.metrics.snapshot()[name]


def test_local_copies_are_read_first(tmp_path: Path) -> None:
    written = WithCopies(tmp_path)
    assert written.read() == written.expected
    assert written.store.calls == []
    assert written.metric("local_reads") == 3


def test_a_missing_copy_is_replaced_by_a_remote_read(tmp_path: Path) -> None:
    written = WithCopies(tmp_path)
    written.copy.unlink()
    assert written.read() == written.expected
    assert written.store.count("get_range") == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.__setitem__(300, data[300] ^ 1),
        lambda data: data[:-2000],
        lambda data: b"",
        lambda data: b"foreign" * 1000,
    ],
)
def test_a_damaged_copy_is_deleted_and_replaced_by_a_remote_read(tmp_path: Path, change: Any) -> None:
    written = WithCopies(tmp_path)
    damage_file(written.copy, change)
    assert written.read() == written.expected
    assert written.metric("local_read_fallbacks") >= 1
    assert not written.copy.exists()


def test_damage_on_both_sides_is_an_error(tmp_path: Path) -> None:
    written = WithCopies(tmp_path)
    damage_file(written.copy, lambda data: b"")
    damage(written.store.inner, written.name, lambda data: data.__setitem__(300, data[300] ^ 1))
    with pytest.raises(CorruptDataError):
        written.read()


def damage_file(path: Path, change: Any) -> None:
    data = bytearray(path.read_bytes())
    changed = change(data)
    path.write_bytes(data if changed is None else changed)


# -- the shared cache ------------------------------------------------------------------------------------------------


class WithCache(Written):
    def __init__(self, folder: Path, *, max_bytes: int = 10**9, **more: Any) -> None:
        super().__init__(**more)
        self.metrics = ChangelogMetrics()
        self.folder = folder
        self.cache = self.new_cache(max_bytes)
        self.store.calls.clear()
        self.name = self.handle.segments[0].name

    def new_cache(self, max_bytes: int = 10**9) -> HostCache:
        return HostCache(
            self.folder, max_bytes, idle_seconds=600, metrics=self.metrics, environment=self.world.environment
        )

    def read(self, cache: HostCache | None = None, wanted: KeyGroupRange = ALL) -> list[tuple[int, bytes]]:
        return values(self.reader(downloaded=cache or self.cache, metrics=self.metrics).read(self.handle, wanted))

    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*/*.copy"))

    def held(self, name: str | None = None) -> Any:
        """The download of an object, open."""
        name = name or self.name
        self.cache.download(self.store, name)
        return self.cache.find(self.store.url, name, 0, self.store.head(name).size)

    def metric(self, name: str) -> Any:
        return self.metrics.snapshot()[name]


def test_an_object_is_downloaded_once_per_host(tmp_path: Path) -> None:
    written = WithCache(tmp_path)
    for part in range(4):
        wanted = range_for_subtask(part, 4, 128)
        assert written.read(wanted=wanted) == written.of(wanted)
    assert written.read(written.new_cache()) == written.expected  # As another process would.
    assert written.metric("cache_downloads") == 1
    assert written.store.count("head") == 1
    assert sum(call[0] == "get_range" for call in written.store.calls) == 1


def test_a_damaged_download_is_replaced(tmp_path: Path) -> None:
    written = WithCache(tmp_path)
    written.read()
    [file] = written.files()
    file.write_bytes(file.read_bytes()[:-3000] + b"x" * 3000)
    assert written.read() == written.expected
    assert written.metric("local_read_fallbacks") >= 1
    assert written.read() == written.expected


def test_a_thread_that_cannot_be_started_costs_no_read_and_the_cache_is_swept_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: ManualExecutor, delay: float, function: Any) -> Any:
        raise RuntimeError("can't start new thread")

    written = WithCache(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(ManualExecutor, "call_later", refused)
        assert written.read() == written.expected
    assert written.metric("local_read_fallbacks") == 0
    assert written.read() == written.expected
    written.world.advance(1300)
    assert written.files() == []


def test_idle_downloads_are_deleted_and_used_ones_stay(tmp_path: Path) -> None:
    written = WithCache(tmp_path)
    written.read()
    held = written.held()
    assert next(held)
    written.world.advance(2000)
    assert len(written.files()) == 1  # Somebody holds it.
    held.close()
    written.read()
    written.world.advance(599)
    assert len(written.files()) == 1
    written.world.advance(1200)
    assert written.files() == []
    assert written.metric("cache_evictions") == 1


def test_what_a_dead_process_left_is_swept(tmp_path: Path) -> None:
    written = WithCache(tmp_path)
    written.read()
    written.cache.close()
    written.world.time += 10_000
    written.new_cache().sweep()
    assert written.files() == []


def test_a_deleted_file_stays_readable_for_whoever_holds_it(tmp_path: Path) -> None:
    written = WithCache(tmp_path)
    found = next(written.held())
    written.cache.drop(found)
    assert written.files() == []
    assert bytes(found.buffer) == written.store.get(written.name)


def test_the_cache_is_bounded_and_the_longest_unused_goes_first(tmp_path: Path) -> None:
    first = WithCache(tmp_path / "x", sets=1)
    size = first.store.head(first.name).size
    for name in ("a", "b", "c", "d"):
        first.store.inner.put(name, bytes(size))
    first.cache = first.new_cache(2 * size)
    for name in ("a", "b", "a", "c"):
        first.world.time += 1
        assert len(list(first.held(name))) == 1
    assert first.metric("cache_downloads") == 3
    assert sum(file.stat().st_size for file in first.files()) == 2 * size
    assert len(list(first.held("a"))) == 1
    assert first.metric("cache_downloads") == 3
    held = [first.held("a"), first.held("c")]
    assert all(next(one) for one in held)
    assert list(first.held("b")) == []  # Nothing can go.
    for one in held:
        one.close()
    first.cache = first.new_cache(size - 1)
    assert len(list(first.held("a"))) == 1  # It is there.
    assert list(first.held("b")) == []  # It can never fit.


def test_downloads_on_their_way_count_for_the_bound(tmp_path: Path) -> None:
    first = WithCache(tmp_path / "x", sets=1)
    size = first.store.head(first.name).size
    first.store.inner.put("b", bytes(size))
    fetch = first.store.inner.get_range
    sizes = []

    def busy(name: str, start: int, end: int) -> bytes:
        other = first.new_cache(2 * size - 1)  # As another process, or another thread.
        if name == first.name:
            other.download(first.store, "b")
        assert len(first.files()) == 0
        sizes.append(sum(path.stat().st_size for path in tmp_path.glob("*/*/*.tmp")))
        return fetch(name, start, end)

    first.store.inner.get_range = busy
    first.cache.download(first.store, first.name)
    first.store.inner.get_range = fetch
    assert sizes == [size]
    first.new_cache(2 * size - 1).download(first.store, "b")  # Now the first one can go.
    assert sum(path.stat().st_size for path in first.files()) == size


def test_what_a_dead_download_left_takes_no_room(tmp_path: Path) -> None:
    written = WithCache(tmp_path)
    size = written.store.head(written.name).size
    written.cache.prepare()
    left = written.cache.folder / f"0123456789abcdef0123456789abcdef-{size}.tmp"
    left.write_bytes(bytes(size))
    assert written.read(written.new_cache(size)) == written.expected
    assert written.metric("cache_downloads") == 1
    assert not left.exists()


@pytest.mark.parametrize("lock", ["ledger", "download"])
def test_a_stopped_process_that_holds_a_lock_costs_the_cache_and_never_the_reader(tmp_path: Path, lock: str) -> None:
    written = WithCache(tmp_path)
    written.cache.prepare()
    for name in ["ledger"] if lock == "ledger" else [f"{byte:02x}.lock" for byte in range(256)]:
        (written.cache.folder / name).touch()
    locks = [path for path in written.cache.folder.iterdir() if path.suffix == (".lock" if lock == "download" else "")]
    with ExitStack() as stack:
        for path in locks:
            fcntl.flock(stack.enter_context(path.open("w")), fcntl.LOCK_EX)
        assert written.read() == written.expected
    assert written.metric("cache_downloads") == 0
    assert written.read() == written.expected
    assert written.metric("cache_downloads") == 1


def test_a_failed_download_leaves_nothing_behind(tmp_path: Path) -> None:
    written = WithCache(tmp_path)
    fetch = written.store.inner.get_range
    written.store.inner.get_range = lambda *_: (_ for _ in ()).throw(OSError("reset"))
    try:
        with pytest.raises(OSError, match="reset"):
            written.cache.download(written.store, written.name)
    finally:
        written.store.inner.get_range = fetch
    assert [path.name for path in tmp_path.glob("*/*") if path.suffix in {".tmp", ".copy"}] == []
    with pytest.raises(NotFoundError):
        written.cache.download(written.store, "no/such")
    assert written.read() == written.expected


def test_the_cache_refuses_a_folder_that_others_can_write_to(tmp_path: Path) -> None:
    written = WithCache(tmp_path)
    written.cache.prepare()
    folder = written.cache.folder
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(AccessDeniedError):
        written.new_cache().prepare()
    other = written.new_cache()
    other.save("memory://x", "object", 0, 3, [Extent(0, b"abc")])
    assert list(other.find("memory://x", "object", 0, 3)) == []
    assert other.size() == 0
    folder.chmod(0o700)
    written.new_cache().prepare()


def test_the_storage_uses_the_cache_only_where_reading_means_a_request(tmp_path: Path) -> None:
    world = ManualWorld()
    assert open_storage(world, memory_store(world), cache_dir=str(tmp_path / "c"))._cache is not None
    assert open_storage(world, LocalStore(tmp_path / "d"), cache_dir=str(tmp_path / "c"))._cache is None
    assert open_storage(world, memory_store(world))._cache is None


# -- objects without handles -----------------------------------------------------------------------------------------


def test_an_object_explains_itself() -> None:
    written = Written()
    name = written.handle.segments[0].name
    found = inspect_segment(written.store, name)
    assert found.problems == ()
    assert [section.table.sequence_number for section in found.sections] == [0, 1, 2]
    assert all(verify_section(written.store, name, section) is None for section in found.sections)
    read = [change for section in found.sections for change in changes_of(written.store, name, section)]
    assert values(read) == written.expected
    wanted = KeyGroupRange(3, 7)
    some = [change for section in found.sections for change in changes_of(written.store, name, section, wanted)]
    assert values(some) == written.of(wanted)


def test_an_object_that_was_cut_off_has_no_directory() -> None:
    written = Written(sets=3, changes=10)
    name = written.handle.segments[0].name
    original = written.store.get(name)
    for length in range(0, len(original), 11):
        written.store.inner.put(name, original[:length])
        found = inspect_segment(written.store, name)
        assert found.sections == ()
        assert found.problems


def test_damage_in_one_table_does_not_hide_the_other_sections() -> None:
    written = Written(sets=3, changes=10)
    name = written.handle.segments[0].name
    second = written.handle.segments[1]
    table = second.offset + second.length - second.head_length
    damage(written.store.inner, name, lambda data: data.__setitem__(table + 30, 0xFF))
    found = inspect_segment(written.store, name)
    assert [section.entry.number for section in found.sections] == [0, 2]
    assert [problem.offset for problem in found.problems] == [table]


def test_a_directory_that_contradicts_its_tables_is_reported() -> None:
    written = Written(sets=2, changes=3)
    name = written.handle.segments[0].name
    data = written.store.get(name)
    lying = [
        Section(
            SectionKind.CHANGES,
            one.log_id,
            one.sequence_number + (one.offset == 0) * 9,
            (data[one.offset : one.offset + one.length],),
            one.length,
            one.crc32c,
            one.head_length,
        )
        for one in written.handle.segments
    ]
    written.store.inner.put(name, b"".join(encode_segment(lying).pieces))
    found = inspect_segment(written.store, name)
    first = written.handle.segments[0]
    assert [problem.offset for problem in found.problems] == [first.length - first.head_length]
    assert [section.entry.number for section in found.sections] == [1]


@pytest.mark.parametrize("whole", [True, False], ids=["short", "long"])
def test_damage_in_a_block_is_reported_with_its_offset(monkeypatch: pytest.MonkeyPatch, *, whole: bool) -> None:
    if not whole:
        monkeypatch.setattr("stateline.changelog.inspection.RUN_BYTES", 100)
    written = Written(sets=2, changes=10)
    name = written.handle.segments[0].name
    second = written.handle.segments[1]
    position = second.offset + second.length - second.head_length - 9
    damage(written.store.inner, name, lambda data: data.__setitem__(position, data[position] ^ 0xEE))
    found = inspect_segment(written.store, name)
    assert found.problems == ()
    first_problem, second_problem = [verify_section(written.store, name, section) for section in found.sections]
    assert first_problem is None
    assert second.offset < second_problem.offset <= position
    with pytest.raises(CorruptDataError):
        list(changes_of(written.store, name, found.sections[1]))


@pytest.mark.parametrize("kind", SectionKind)
def test_every_flipped_byte_of_an_object_is_found_by_an_inspection(kind: SectionKind) -> None:
    written = Written(sets=2, changes=3)
    name = written.handle.segments[0].name
    if kind is not SectionKind.CHANGES:
        data = b"anything, its meaning is checked elsewhere"
        section = Section(kind, "owner", 1, (data,), len(data), crc32c(data))
        written.store.inner.put(name, b"".join(encode_segment([section, section]).pieces))
    original = written.store.get(name)
    assert not _has_problems(written, name)
    for position in range(len(original)):
        data = bytearray(original)
        data[position] ^= 0x04
        written.store.inner.put(name, bytes(data))
        assert _has_problems(written, name), position


def _has_problems(written: Written, name: str) -> bool:
    found = inspect_segment(written.store, name)
    return bool(found.problems) or any(verify_section(written.store, name, one) for one in found.sections)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"x" * 24,
        os.urandom(5000),
        bytes(100) + struct.pack("<QH6xI4s", 0, 1, 0, b"SLSG"),
        bytes(100) + struct.pack("<QH6xI4s", 2**64 - 1, 1, 0, b"SLSG"),
        bytes(100) + struct.pack("<QH6xI4s", 0, 9, 0, b"SLSG"),
    ],
    ids=range(7),
)
def test_foreign_and_hostile_objects_are_reported_cheaply(data: bytes) -> None:
    store = memory_store()
    store.put("object", data)
    with bounded():
        found = inspect_segment(store, "object")
    assert found.sections == ()
    assert found.problems


# -- closing while others read ---------------------------------------------------------------------------------------


def test_closing_a_reader_ends_no_reading() -> None:
    written = Written(sets=8)
    reader = written.reader()
    readings = [reader.read(written.handle) for _ in range(3)]
    begun = [next(reading) for reading in readings]  # Each has fetches in the queue of the executor.
    reader.close()
    for first, reading in zip(begun, readings, strict=True):
        assert values([first, *reading]) == written.expected


def test_a_file_where_the_copies_should_be_costs_only_the_copies(tmp_path: Path) -> None:
    written = Written()
    (tmp_path / "file").write_bytes(b"")
    reader = written.reader(cache=HostCache(tmp_path / "file", 1000))
    assert values(reader.read(written.handle)) == written.expected


def test_a_cache_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidInputError, match="cannot be created"):
        ChangelogStorage.open(memory_store(), ChangelogSettings(cache_dir=str(tmp_path / "file")))


@pytest.mark.parametrize("wrong", [None, b"SLCH", "handle"])
def test_what_is_no_handle_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="expected a ChangelogHandle"):
        list(ChangelogReader(memory_store()).read(wrong))


@pytest.mark.parametrize("wrong", [(0, 1), 5, "0-63"])
def test_key_groups_that_are_no_range_are_refused(wrong: Any) -> None:
    store = memory_store()
    with pytest.raises(InvalidInputError, match="must be a KeyGroupRange"):
        list(ChangelogReader(store).read(ChangelogHandle(key_group_range=KeyGroupRange(0, 3), segments=()), wrong))


def test_what_dead_writers_left_behind_is_swept_and_who_is_at_work_goes_on(tmp_path: Path) -> None:
    cache = HostCache(tmp_path, 10**6, idle_seconds=600)
    cache.prepare()
    dead, at_work = (cache.folder / f"{digit * 32}-10.tmp" for digit in "01")
    dead.touch()
    with at_work.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        cache.sweep()
    assert [path for path in (dead, at_work) if path.exists()] == [at_work]
