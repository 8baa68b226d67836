"""Uploaders, registries and local copies: one write per object, counted, deleted by name, copied at best effort."""

from __future__ import annotations

import uuid
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stateline.changelog import (
    BlobUploader,
    ChangelogMetrics,
    ChangelogSettings,
    DuplicatingUploader,
    LocalChangelogRegistry,
    SequenceNumber,
    StateChangeSet,
    TaskChangelogRegistry,
    UploadTask,
)
from stateline.changelog.block import Compression
from stateline.changelog.columns import batch_columns
from stateline.changelog.copier import Copier
from stateline.changelog.host_cache import HostCache
from stateline.changelog.inspection import inspect_segment
from stateline.changelog.uploader import gather
from stateline.errors import ClosedError, InvalidInputError, OutcomeUnknownError, StorageFullError, UnavailableError
from stateline.key_groups import KeyGroupRange
from tests.unit.changelog.worlds import ManualWorld, ScriptedStore, memory_store, open_storage, task_of, values


class Handle:
    def __init__(self, name: str) -> None:
        self.name = name


# -- the plain uploader ----------------------------------------------------------------------------------------------


def uploader_on(store: ScriptedStore, world: ManualWorld, **more: Any) -> BlobUploader:
    return BlobUploader(store, job_id="job", environment=world.environment, **more)


def test_all_tasks_of_a_call_make_one_object_with_one_request() -> None:
    world = ManualWorld()
    store = memory_store(world)
    tasks = [task_of(3, 4), task_of(5, first=2)]
    result = uploader_on(store, world).upload(tasks)
    assert [call[0] for call in store.calls] == ["put_if_absent"]
    [name] = store.names()
    assert name.startswith("job/changelog/")
    found = inspect_segment(store, name)
    assert [(one.entry.offset, one.table.sequence_number, one.table.size) for one in found.sections] == [
        (one.offset, one.sequence_number.value, one.size) for task in tasks for one in result.successful[task]
    ]
    assert found.problems == ()
    assert result.failed == {}
    assert not any(task.finished for task in tasks)


def test_sets_of_a_task_are_sorted_by_writer_and_number() -> None:
    world = ManualWorld()
    sets = list(reversed(task_of(1, 1, 1).change_sets))
    task = UploadTask(sets, lambda _: None, lambda *_: None)
    result = uploader_on(memory_store(world), world).upload([task])
    assert [one.sequence_number for one in result.successful[task]] == [SequenceNumber(n) for n in range(3)]


def test_every_attempt_has_a_name_of_its_own() -> None:
    world = ManualWorld()
    store = memory_store(world)
    uploader = uploader_on(store, world)
    task = task_of(3)
    uploader.upload([task])
    uploader.upload([task])
    assert len({name for _, name in store.calls}) == 2
    first, second = store.names()
    assert store.get(first) == store.get(second)


def test_no_task_makes_no_object() -> None:
    world = ManualWorld()
    store = memory_store(world)
    assert uploader_on(store, world).upload([]).successful == {}
    assert store.calls == []


def test_an_error_fails_no_task_and_tracks_nothing() -> None:
    world = ManualWorld()
    store = memory_store(world)
    registry = TaskChangelogRegistry(store, environment=world.environment)
    uploader = uploader_on(store, world, registry=registry)
    store.script.append(UnavailableError("away"))
    task = task_of(1)
    with pytest.raises(UnavailableError):
        uploader.upload([task])
    assert not task.finished
    assert not registry.is_tracked(Handle(store.calls[0][1]))
    world.run()
    assert store.count("delete") == 0  # "Unavailable" means that nothing happened.


@pytest.mark.parametrize("error", [OutcomeUnknownError("lost"), OSError("of a store that has no errors of ours")])
def test_an_object_whose_fate_is_unknown_is_deleted_by_name(error: OSError) -> None:
    world = ManualWorld()
    store = memory_store(world)
    store.script.append((error,))
    with pytest.raises(type(error)):
        uploader_on(store, world).upload([task_of(1)])
    assert len(store.names()) == 1
    world.run()
    assert store.names() == []


def test_a_discarded_result_leaves_neither_object_nor_count() -> None:
    world = ManualWorld()
    store = memory_store(world)
    registry = TaskChangelogRegistry(store, environment=world.environment)
    uploader = uploader_on(store, world, registry=registry)
    result = uploader.upload([task_of(1, 2), task_of(3)])
    [name] = store.names()
    assert registry.is_tracked(Handle(name))
    uploader.discard(result)
    world.run()
    assert store.names() == []
    assert not registry.is_tracked(Handle(name))
    assert store.count("delete") == 1


def test_a_set_holds_its_columns_or_its_section_and_neither_once_it_is_durable() -> None:
    [columns] = batch_columns(np.array([1, 0]), [b"a", b"b"], KeyGroupRange(0, 1))
    group = weakref.ref(columns.key_groups)
    change_set = StateChangeSet.of_columns(uuid.UUID(int=1), SequenceNumber(0), [columns])
    del columns
    assert group() is not None
    encoded = change_set.encode(Compression.NONE)
    assert group() is None
    assert change_set.encode(Compression.NONE) is encoded
    assert values(change_set.changes) == [(0, b"b"), (1, b"a")]
    change_set.give_up()
    assert change_set.changes == ()
    assert (change_set.size, len(change_set)) == (2, 2)
    with pytest.raises(ClosedError):
        change_set.encode(Compression.NONE)


def test_compression_and_buffers_are_options() -> None:
    sizes = {}
    for compression in ("none", "lz4", "zstd"):
        world = ManualWorld()
        store = memory_store(world)
        uploader_on(store, world, settings=ChangelogSettings(compression=compression)).upload([task_of(100_000)])
        [name] = store.names()
        sizes[compression] = store.head(name).size
        assert inspect_segment(store, name).sections[0].table.compression.name.lower() == compression
    assert sizes["lz4"] < sizes["none"] / 10 > sizes["zstd"]


def test_small_pieces_are_gathered_and_large_ones_pass() -> None:
    large = bytes(100_000)
    pieces = [b"a" * 10, b"b" * 20, large, b"c" * 50, b"d" * 60]
    assert [len(piece) for piece in gather(pieces, 1_000_000)] == [30, 100_000, 110]
    assert any(piece is large for piece in gather(pieces, 1_000_000))
    assert [len(piece) for piece in gather(pieces, 100)] == [30, 100_000, 50, 60]
    for size in (0, 1, 30, 10**9):
        assert b"".join(gather(pieces, size)) == b"".join(pieces)


# -- registries ------------------------------------------------------------------------------------------------------


def registry_on(store: ScriptedStore, world: ManualWorld) -> tuple[TaskChangelogRegistry, ChangelogMetrics]:
    metrics = ChangelogMetrics()
    return TaskChangelogRegistry(store, metrics=metrics, environment=world.environment), metrics


def test_the_last_release_deletes_later_and_elsewhere() -> None:
    world = ManualWorld()
    store = memory_store(world)
    store.put("a", b"x")
    registry, metrics = registry_on(store, world)
    registry.start_tracking(Handle("a"), 2)
    registry.release(Handle("a"))
    world.run()
    assert store.names() == ["a"]
    registry.release(Handle("a"))
    assert store.names() == ["a"]  # Not in this thread.
    world.run()
    assert store.names() == []
    assert metrics.snapshot()["discarded_objects"] == 1


def test_what_is_retained_is_not_deleted() -> None:
    world = ManualWorld()
    store = memory_store(world)
    store.put("a", b"x")
    registry, _ = registry_on(store, world)
    registry.start_tracking(Handle("a"), 1)
    registry.retain(Handle("a"))
    registry.release(Handle("a"))
    world.run()
    assert store.names() == ["a"]
    registry.release(Handle("a"))
    world.run()
    assert store.names() == []


def test_what_was_given_away_is_never_deleted_and_nobody_complains(caplog: pytest.LogCaptureFixture) -> None:
    world = ManualWorld()
    store = memory_store(world)
    store.put("a", b"x")
    registry, _ = registry_on(store, world)
    registry.start_tracking(Handle("a"), 1)
    registry.stop_tracking(Handle("a"))
    for call in (registry.release, registry.retain, registry.release, registry.stop_tracking):
        call(Handle("a"))
    world.run()
    assert store.names() == ["a"]
    assert not caplog.records
    with pytest.raises(InvalidInputError):
        registry.start_tracking(Handle("a"), 0)


def test_a_delete_that_fails_is_counted_and_raises_nothing() -> None:
    world = ManualWorld()
    store = memory_store(world)
    registry, metrics = registry_on(store, world)

    def fail(names: Any) -> None:
        raise UnavailableError("away")

    store.delete = fail
    registry.discard(Handle("a"))
    world.run()
    snapshot = metrics.snapshot()
    assert (snapshot["discard_failures"], snapshot["orphaned_objects"], snapshot["discarded_objects"]) == (1, 1, 0)


def test_closing_finishes_deletes_and_counts_what_stays() -> None:
    world = ManualWorld()
    store = memory_store(world)
    registry, metrics = registry_on(store, world)
    for name in "abc":
        store.put(name, b"x")
        registry.start_tracking(Handle(name), 1)
    registry.release(Handle("a"))
    registry.close()
    assert store.names() == ["b", "c"]
    assert metrics.snapshot()["orphaned_objects"] == 2
    registry.discard(Handle("b"))  # Its threads are gone: in the caller's.
    assert store.names() == ["c"]


def test_local_copies_go_when_a_newer_checkpoint_no_longer_uses_them() -> None:
    world = ManualWorld()
    store = memory_store(world)
    registry = LocalChangelogRegistry(store, environment=world.environment)
    for name, checkpoints in {"a": [1], "b": [1, 2], "c": [2, 1]}.items():
        store.put(name, b"x")
        for checkpoint in checkpoints:
            registry.register(Handle(name), checkpoint)
    registry.discard_up_to(1)
    world.run()
    assert store.names() == ["a", "b", "c"]
    registry.discard_up_to(2)
    world.run()
    assert store.names() == ["b", "c"]
    registry.discard_up_to(3)
    registry.close()
    assert store.names() == []


# -- local copies ----------------------------------------------------------------------------------------------------


class Duplicating:
    def __init__(self) -> None:
        self.world = ManualWorld()
        self.remote = memory_store(self.world)
        self.local = memory_store(self.world)
        self.metrics = ChangelogMetrics()
        self.uploader = DuplicatingUploader(uploader_on(self.remote, self.world), self.local)
        self.uploader._copier = Copier(0.25, self.metrics, self.world.environment)
        self.uploader._registry = registry_on(self.local, self.world)[0]

    def upload(self, *sizes: int) -> Any:
        task = task_of(*sizes)
        return self.uploader.upload([task]).successful[task]


def test_a_copy_has_the_name_and_the_bytes_of_its_object() -> None:
    bench = Duplicating()
    [one, two] = bench.upload(10, 20)
    assert bench.local.names() == bench.remote.names() == [one.handle.name]
    assert bench.local.get(one.handle.name) == bench.remote.get(one.handle.name)
    assert (one.local_handle, two.local_handle) == (one.handle, two.handle)
    assert bench.metrics.snapshot()["local_copies"] == 1


def test_an_upload_is_copied_into_the_cache_of_the_host(tmp_path: Path) -> None:
    world = ManualWorld()
    remote, task = memory_store(world), task_of(10, 20)
    cache = HostCache(tmp_path, 10**6, environment=world.environment)
    uploader = DuplicatingUploader(uploader_on(remote, world), cache)
    [one, two] = uploader.upload([task]).successful[task]
    assert (one.local_handle, two.local_handle) == (one.handle, two.handle)
    [found] = cache.find(remote.url, two.handle.name, two.handle.offset, two.handle.length)
    assert bytes(found.buffer) == remote.get_range(two.handle.name, two.offset, two.offset + two.handle.length)


@pytest.mark.parametrize(
    "error", [StorageFullError("full"), OSError("broken"), InvalidInputError("in the way"), UnavailableError("x")]
)
def test_a_broken_disk_never_fails_an_upload(error: Exception) -> None:
    bench = Duplicating()
    bench.local.for_ever = error
    [one] = bench.upload(10)
    assert one.local_handle is None
    assert bench.remote.names() == [one.handle.name]
    assert bench.metrics.snapshot()["local_copies_skipped"] == 1


def test_a_failed_upload_takes_its_copy_along() -> None:
    bench = Duplicating()
    bench.remote.script.append(UnavailableError("away"))
    with pytest.raises(UnavailableError):
        bench.upload(10)
    bench.world.run()
    assert bench.local.names() == []


def test_a_discarded_upload_takes_its_copy_along() -> None:
    bench = Duplicating()
    task = task_of(10)
    bench.uploader.discard(bench.uploader.upload([task]))
    bench.world.run()
    assert bench.local.names() == bench.remote.names() == []


def test_the_disk_is_bounded_and_the_oldest_copies_go_first() -> None:
    bench = Duplicating()
    bench.upload(1000)
    size = bench.local.head(bench.local.names()[0]).size
    bench.uploader._place._max_bytes = 3 * size + 10
    names = [bench.local.names()[0]]
    for _ in range(5):
        bench.world.time += 1
        [one] = bench.upload(1000)
        names.append(one.handle.name)
        assert sum(info.size for info in bench.local.inner.list("")) <= 3 * size + 10
    assert bench.local.names() == sorted(names[-3:])
    [large] = bench.upload(3 * size)
    assert large.local_handle is None


def test_copies_do_not_queue_up_behind_a_slow_disk() -> None:
    bench = Duplicating()
    pieces = [b"x"]
    copies = [
        bench.uploader._copier.start(
            partial(bench.local.put_all_if_absent, f"name-{number}", pieces), lambda: pytest.fail("nobody gave it up")
        )
        for number in range(6)
    ]
    bench.world.run()
    assert [copy.wait() for copy in copies] == [True] * 4 + [False] * 2


def test_the_storage_keeps_and_discards_copies_with_the_checkpoints(tmp_path: Path) -> None:
    world = ManualWorld()
    store = memory_store(world)
    storage = open_storage(world, store, local_recovery_dir=str(tmp_path))
    writer = storage.create_writer("operator", KeyGroupRange(0, 9))
    start = writer.initial_sequence_number()

    def copies() -> int:
        world.run()
        return len(list(tmp_path.glob("*/*.copy")))

    for checkpoint in (1, 2, 3):
        writer.append(1, b"x")
        result = writer.persist(start, checkpoint).result()
        assert result.local is not None
        assert result.local.segments == result.remote.segments
        end = writer.next_sequence_number()
        writer.confirm(start, end, checkpoint)
    assert copies() == 3
    writer.truncate(end)
    start = end
    writer.append(1, b"x")
    writer.persist(start, 4).result()
    writer.confirm(start, writer.next_sequence_number(), 4)
    assert copies() == 1  # Only what checkpoint 4 uses.
    writer.append(1, b"y")
    aborted = writer.persist(start, 5).result()
    writer.reset(start, writer.next_sequence_number(), 5)
    again = writer.persist(start, 6).result()
    assert again.local is not None
    assert again.local.segments == aborted.remote.segments
    assert copies() == 2
    writer.truncate_and_close(start)
    storage.close()


def test_a_set_that_no_checkpoint_used_takes_its_copy_along(tmp_path: Path) -> None:
    world = ManualWorld()
    storage = open_storage(world, memory_store(world), local_recovery_dir=str(tmp_path), preemptive_persist_threshold=1)
    writer = storage.create_writer("operator", KeyGroupRange(0, 9))
    writer.append(1, b"x")
    world.advance(1)
    assert len(list(tmp_path.glob("*/*.copy"))) == 1
    writer.truncate(SequenceNumber(1))
    world.run()
    assert list(tmp_path.glob("*/*.copy")) == []
    storage.close()
