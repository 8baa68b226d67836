"""Runs in stores: fresh names, proved once, fetched whole or in slices, kept on disk within bounds."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from state_kit import ALL, LONGS, MAX_PARALLELISM, StoredRuns, changes, run_of

from stateline.blob import BlobStore, InstrumentedStore, StoreDecorator, open_store
from stateline.blob.memory import MemoryStore
from stateline.changelog.host_cache import OWN_FOLDER, HostCache
from stateline.environment import Environment, SystemClock
from stateline.errors import CorruptDataError, DataLossError, InvalidInputError
from stateline.handles import RunHandle
from stateline.key_groups import KeyGroupRange
from stateline.sizes import Sizes
from stateline.state.backend import KeyedStateBackend
from stateline.state.open_runs import OpenRun, OpenRuns
from stateline.state.rescale import narrowed
from stateline.state.run import RunSettings
from stateline.state.run_index import HashRanges
from stateline.state.run_store import RunReader, RunReaderSettings
from stateline.state.runs import Run

BIG = RunReaderSettings(whole_bytes=0, range_bytes=4096)
SMALL_BATCHES = RunSettings(batch_rows=64)


@pytest.fixture
def remote(request: pytest.FixtureRequest) -> Iterator[InstrumentedStore]:
    name = f"runs-{request.node.name}"
    yield InstrumentedStore(MemoryStore(name))
    MemoryStore.forget(name)


def written(store: InstrumentedStore | object, rows: int = 3000, cache: HostCache | None = None) -> RunHandle:
    run = run_of(changes(LONGS, {number: [number * 10] for number in range(rows)}), batch_rows=10_000)
    writer = StoredRuns(store, LONGS, MAX_PARALLELISM, settings=SMALL_BATCHES, cache=cache)  # type: ignore[arg-type]
    return writer.write(run, checkpoint_id=5)


def reader(store: object, cache: HostCache | None = None, settings: RunReaderSettings = BIG) -> RunReader:
    return RunReader(store, LONGS, settings=settings, cache=cache, open_runs=OpenRuns())  # type: ignore[arg-type]


def keys(run: Run) -> list[int]:
    return sorted(key for batch in run.batches for key in batch.keys.columns[0].to_pylist())


def part_of(handle: RunHandle, first: int, last: int) -> RunHandle:
    part = narrowed(handle, KeyGroupRange(first, last))
    assert part is not None
    return part


def test_a_run_is_one_new_object_and_its_handle_says_what_it_is(remote: InstrumentedStore) -> None:
    handle, again = written(remote), written(remote)
    assert remote.calls == {"put_if_absent": 2}
    assert handle.name != again.name
    assert handle.name.startswith("shared/")
    assert handle.name.endswith(".segment")
    assert (handle.rows, handle.tombstones, handle.key_groups, handle.checkpoint_id) == (3000, 0, ALL, 5)
    data = remote.get(handle.name)[handle.offset : handle.end]
    assert pa.ipc.open_file(data).read_all().num_rows == 3000


@pytest.mark.parametrize("settings", [BIG, RunReaderSettings()])
def test_a_run_is_fetched_whole(remote: InstrumentedStore, settings: RunReaderSettings) -> None:
    handle = written(remote)
    assert keys(reader(remote, settings=settings).open(handle)) == list(range(3000))


def test_opening_twice_reads_once(remote: InstrumentedStore) -> None:
    handle = written(remote)
    opener = reader(remote)
    opener.open(handle)
    remote.reset()
    assert keys(opener.open(handle)) == list(range(3000))
    assert keys(opener.open(part_of(handle, 2, 3))) == keys(reader(remote).open(part_of(handle, 2, 3)))
    assert set(remote.calls) <= {"get_range"}


def test_a_slice_fetches_only_its_bytes(remote: InstrumentedStore) -> None:
    handle = written(remote, rows=60_000)
    remote.reset()
    run = reader(remote).open(part_of(handle, 0, 0))
    assert 0 < remote.bytes_read < handle.length / 8 + 70_000
    assert remote.calls["get"] == 0
    whole = reader(remote).open(handle)
    assert keys(run) == sorted(
        key for batch in whole.between(run.low, run.high) for key in batch.keys.columns[0].to_pylist()
    )


def test_slices_partition_the_rows(remote: InstrumentedStore) -> None:
    handle = written(remote)
    parts = [keys(reader(remote).open(part_of(handle, first, first + 3))) for first in range(0, 16, 4)]
    assert sorted(functools.reduce(operator.iadd, parts, [])) == list(range(3000))


def test_a_tail_longer_than_the_guess_is_fetched_again(
    remote: InstrumentedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateline.state.run_store.sizes", lambda: Sizes(run_tail_bytes=64))
    handle = written(remote)
    assert keys(reader(remote).open(part_of(handle, 0, 7)))


def test_many_runs_come_in_the_order_asked(remote: InstrumentedStore) -> None:
    handles = [written(remote, rows=10 + number) for number in range(12)]
    assert [len(run) for run in reader(remote).open_all(handles)] == [10 + number for number in range(12)]
    assert reader(remote).open_all([]) == []


def test_one_failing_run_fails_the_stack(remote: InstrumentedStore) -> None:
    handles = [written(remote, rows=10) for _ in range(3)]
    remote.delete([handles[1].name])
    with pytest.raises(DataLossError, match="is gone"):
        reader(remote).open_all(handles)


@pytest.mark.parametrize("settings", [BIG, RunReaderSettings()])
@pytest.mark.parametrize("part", [ALL, KeyGroupRange(0, 3)])
def test_damage_in_the_store_is_an_error(
    remote: InstrumentedStore, settings: RunReaderSettings, part: KeyGroupRange
) -> None:
    handle = written(remote)
    damaged = bytearray(remote.get(handle.name))
    damaged[1500] ^= 1
    remote.put(handle.name, bytes(damaged))
    with pytest.raises(CorruptDataError):
        reader(remote, settings=settings).open(part_of(handle, part.start, part.end))


def test_a_truncated_object_is_an_error(remote: InstrumentedStore) -> None:
    handle = written(remote)
    remote.put(handle.name, remote.get(handle.name)[: handle.end - 100])
    for settings in (BIG, RunReaderSettings()):
        with pytest.raises(CorruptDataError):
            reader(remote, settings=settings).open(handle)


def test_a_record_that_asks_for_more_memory_than_its_object_has_bytes_gets_none(remote: InstrumentedStore) -> None:
    handle = msgspec.structs.replace(written(remote), length=2**63 - 1)
    with pytest.raises(CorruptDataError):
        reader(remote, settings=BIG).open(handle)
    with pytest.raises(CorruptDataError):
        reader(remote).open_at(handle, HashRanges.of(np.zeros(1, np.uint64)))


def test_an_unknown_or_senseless_setting_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        RunReaderSettings(range_bytes=0)


# -- this host's disk as the store
# --------------------------------------------------------------------------------------


def test_a_local_store_is_mapped_where_it_lies(tmp_path: Path) -> None:
    store = InstrumentedStore(open_store(tmp_path.as_uri()))
    handle = written(store)
    store.reset()
    assert keys(reader(store).open(handle)) == list(range(3000))
    assert not store.calls


def test_a_damaged_or_missing_local_run_is_an_error(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    handle = written(store)
    path = tmp_path / handle.name
    good = path.read_bytes()
    path.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
    with pytest.raises(CorruptDataError):
        reader(store).open(handle)
    path.write_bytes(b"")
    with pytest.raises(CorruptDataError):
        reader(store).open(handle)
    path.unlink()
    with pytest.raises(DataLossError):
        reader(store).open(handle)


# -- the disk cache ---------------------------------------------------------------------------------


class Clock(SystemClock):
    """Time by hand."""

    def __init__(self) -> None:
        self.time = self.began = SystemClock().now()

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


def cache_in(folder: Path, clock: Clock, bytes_max: int = 1 << 30) -> HostCache:
    return HostCache(folder / "runs", bytes_max, copy_timeout=60, environment=Environment(clock=clock))


def copies(folder: Path) -> list[Path]:
    return sorted((folder / "runs" / OWN_FOLDER).glob("*.copy"))


@pytest.mark.parametrize("part", [ALL, KeyGroupRange(4, 9)])
def test_a_fetched_run_is_kept_for_other_processes(
    remote: InstrumentedStore, tmp_path: Path, clock: Clock, part: KeyGroupRange
) -> None:
    handle = part_of(written(remote), part.start, part.end)
    expected = keys(reader(remote, cache_in(tmp_path, clock)).open(handle))
    remote.reset()
    assert keys(reader(remote, cache_in(tmp_path, clock)).open(handle)) == expected
    assert not remote.calls


def test_the_writer_seeds_the_cache(remote: InstrumentedStore, tmp_path: Path, clock: Clock) -> None:
    handle = written(remote, cache=cache_in(tmp_path, clock))
    remote.reset()
    assert keys(reader(remote, cache_in(tmp_path, clock)).open(part_of(handle, 1, 1)))
    assert not remote.calls


@pytest.mark.parametrize("part", [ALL, KeyGroupRange(4, 9)])
def test_a_damaged_copy_is_fetched_anew_and_replaced(
    remote: InstrumentedStore, tmp_path: Path, clock: Clock, part: KeyGroupRange
) -> None:
    handle = part_of(written(remote), part.start, part.end)
    expected = keys(reader(remote, cache_in(tmp_path, clock)).open(handle))
    (path,) = copies(tmp_path)
    good = path.read_bytes()
    for bad in (b"", good[:-1], good[:-700] + bytes([good[-700] ^ 1]) + good[-699:]):
        path.write_bytes(bad)
        cache = cache_in(tmp_path, clock)
        assert keys(reader(remote, cache).open(handle)) == expected
        assert path.read_bytes() == good
        assert cache.metrics.snapshot()["local_read_fallbacks"] == 1


def test_a_slice_takes_no_more_disk_than_its_bytes(remote: InstrumentedStore, tmp_path: Path, clock: Clock) -> None:
    handle = written(remote, rows=100_000)
    cache = cache_in(tmp_path, clock)
    reader(remote, cache).open(part_of(handle, 3, 3))
    (path,) = copies(tmp_path)
    assert path.stat().st_size == handle.length
    assert cache.size() < handle.length / 4


def test_a_mapped_copy_stays_readable_after_it_was_deleted(
    remote: InstrumentedStore, tmp_path: Path, clock: Clock
) -> None:
    handle = written(remote)
    cache = cache_in(tmp_path, clock)
    reader(remote, cache).open(handle)
    run = reader(remote, cache).open(handle)
    for path in copies(tmp_path):
        path.unlink()
    assert keys(run) == list(range(3000))


@pytest.mark.parametrize("place", [".", "..", "runs", "link"])
def test_a_folder_of_copies_that_overlaps_the_root_is_refused(tmp_path: Path, place: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(root / "runs")
    cache = HostCache(root / place, 1000)
    with pytest.raises(InvalidInputError, match="must be apart"):
        KeyedStateBackend.open(root, cache=cache)
    with KeyedStateBackend.open(root, cache=HostCache(tmp_path / "copies", 1000)):
        pass


def test_a_broken_cache_disk_fails_nothing(remote: InstrumentedStore, tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "runs").write_bytes(b"a file where the folder should be")
    cache = cache_in(tmp_path, clock)
    handle = written(remote, cache=cache)
    assert keys(reader(remote, cache).open(handle)) == list(range(3000))
    assert cache.metrics.snapshot()["local_copies_skipped"] == 2


def test_copies_are_private(remote: InstrumentedStore, tmp_path: Path, clock: Clock) -> None:
    written(remote, cache=cache_in(tmp_path, clock))
    (path,) = copies(tmp_path)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_open_runs_are_bounded_by_bytes_and_by_number() -> None:
    opened = OpenRuns(bytes_max=100, runs_max=3)

    def key(number: int) -> tuple:
        return ("memory://x", str(number), 0, LONGS)

    def sized(size: int) -> OpenRun:
        return OpenRun(size, 16, Run((), ALL, MAX_PARALLELISM))

    for number in range(3):
        opened.put(key(number), sized(30))
    assert opened.get(key(0), ALL) is not None
    opened.put(key(3), sized(30))
    assert opened.get(key(1), ALL) is None
    assert opened.get(key(0), ALL) is not None
    opened.put(key(4), sized(100))
    assert len(opened) == 1
    opened.put(key(4), sized(10))
    opened.put(key(5), sized(90))
    assert len(opened) == 2


def test_what_a_stack_has_lost_is_let_go_and_what_others_have_is_not(remote: InstrumentedStore) -> None:
    first, second, merged, other = (written(remote, rows=rows) for rows in (10, 20, 30, 40))
    shared = OpenRuns()
    opener = RunReader(remote, LONGS, open_runs=shared)
    stack, neighbour = ("counts", "state", 0, 7), ("counts", "state", 8, 15)
    opener.open_stack(neighbour, [part_of(other, 8, 15)])
    assert [run.handle for run in opener.open_stack(stack, [first, second])] == [first, second]
    assert len(shared) == 3
    opener.open_stack(stack, [second, merged])
    assert len(shared) == 3
    opener.open_stack(stack, [merged])
    assert len(shared) == 2
    remote.reset()
    opener.open_stack(stack, [merged])
    opener.open_stack(neighbour, [part_of(other, 8, 15)])
    assert remote.bytes_read == 0
    opener.open_stack(stack, [])
    opener.open_stack(neighbour, [])
    assert len(shared) == 0


def test_runs_of_an_earlier_parallelism_are_let_go(remote: InstrumentedStore) -> None:
    before, first, second = (written(remote, rows=rows) for rows in (10, 20, 30))
    shared = OpenRuns()
    opener = RunReader(remote, LONGS, open_runs=shared)
    opener.open_stack(("counts", "state", 0, 15), [before])
    opener.open_stack(("counts", "other", 0, 15), [first])
    opener.open_stack(("counts", "state", 0, 7), [part_of(second, 0, 7)])
    opener.open_stack(("counts", "state", 8, 15), [part_of(second, 8, 15)])
    assert len(shared) == 2
    remote.reset()
    opener.open(first)
    opener.open(part_of(second, 0, 7))
    assert remote.bytes_read == 0


def test_a_stack_that_nobody_opens_any_longer_is_let_go(remote: InstrumentedStore, clock: Clock) -> None:
    ended, going_on = written(remote, rows=10), written(remote, rows=20)
    shared = OpenRuns()
    opener = RunReader(remote, LONGS, open_runs=shared, environment=Environment(clock=clock))
    opener.open_stack(("ended", "state", 0, 15), [ended])
    for _ in range(3):
        clock.time += 400
        opener.open_stack(("goes on", "state", 0, 15), [going_on])
        assert len(shared) == (2 if clock.time < clock.began + 600 else 1)


@pytest.mark.parametrize("where", ["in this process", "on the disk"])
def test_a_part_of_what_was_fetched_is_not_fetched_again(
    remote: InstrumentedStore, tmp_path: Path, clock: Clock, where: str
) -> None:
    """A merge of some slices leaves less and less of a run."""
    handle = written(remote, rows=3000)
    cache = cache_in(tmp_path, clock) if where == "on the disk" else None
    shared, settings = OpenRuns(), RunReaderSettings(whole_bytes=0)

    def opener() -> RunReader:
        runs = shared if cache is None else OpenRuns()
        return RunReader(remote, LONGS, settings=settings, cache=cache, open_runs=runs)

    half = opener().open(part_of(handle, 0, 7))
    remote.reset()
    narrow = opener().open(part_of(handle, 2, 5))
    assert remote.bytes_read == 0
    assert 0 < len(narrow) < len(half)
    opener().open(part_of(handle, 6, 9))
    assert remote.bytes_read > 0


def test_a_run_that_was_let_go_stays_readable(remote: InstrumentedStore) -> None:
    handle = written(remote)
    shared = OpenRuns()
    opener = RunReader(remote, LONGS, open_runs=shared)
    (run,) = opener.open_stack(("counts", "state", 0, 15), [handle])
    opener.open_stack(("counts", "state", 0, 15), [])
    assert keys(run) == list(range(3000))


def test_readers_of_another_schema_do_not_share_rows(remote: InstrumentedStore) -> None:
    from stateline.state.schema import StateSchema

    handle = written(remote)
    shared = OpenRuns()
    RunReader(remote, LONGS, open_runs=shared).open(handle)
    wider = StateSchema(LONGS.keys, pa.schema([("v", pa.int64()), ("w", pa.string())]))
    run = RunReader(remote, wider, open_runs=shared).open(handle)
    assert run.batches[0].declared(wider).values[1].type == pa.string()


def test_a_name_that_returns_with_other_bytes_is_not_taken_for_the_old_run(remote: InstrumentedStore) -> None:
    handle, other = written(remote, rows=10), written(remote, rows=20)
    opener = reader(remote)
    opener.open(handle)
    moved = msgspec.structs.replace(other, name=handle.name)
    with pytest.raises(CorruptDataError):
        opener.open(moved)


class CutOff(StoreDecorator):
    """The answer to the range of a given number is cut off."""

    def __init__(self, inner: BlobStore, number: int) -> None:
        super().__init__(inner)
        self.left = number

    def get_range(self, name: str, start: int, end: int) -> bytes:
        data = self.inner.get_range(name, start, end)
        self.left -= 1
        return data[: len(data) // 2] if self.left == -1 else data

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.get_range(name, *each) for each in ranges]


@pytest.mark.parametrize(
    ("look", "number"), [("index", 0), ("open_at", 0), ("open_at", 1), ("open", 0), ("open", 1), ("open", 3)]
)
def test_an_answer_that_is_cut_off_is_corrupt(remote: InstrumentedStore, look: str, number: int) -> None:
    handle = written(remote)
    store = CutOff(remote, number)
    everywhere = HashRanges(np.array([0], np.uint64), np.array([2**64 - 1], np.uint64))
    arguments = [handle, everywhere] if look == "open_at" else [handle]
    with pytest.raises(CorruptDataError, match=r"expected \d+ bytes of a range"):
        getattr(reader(store), look)(*arguments)
    assert store.left < 0
