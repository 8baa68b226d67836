"""What a changelog may delete on a disk: what it made, in a folder of its own, apart from everything else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stateline.blob import InstrumentedStore
from stateline.blob.local import LocalStore
from stateline.blob.memory import MemoryStore
from stateline.changelog import (
    BlobUploader,
    ChangelogSettings,
    ChangelogStorage,
    DuplicatingUploader,
    SequenceNumber,
)
from stateline.changelog.host_cache import OWN_FOLDER, HostCache
from stateline.checkpoint import layout
from stateline.errors import InvalidInputError
from stateline.key_groups import KeyGroupRange
from tests.unit.changelog.worlds import ManualWorld, memory_store, task_of, values


def settings(local: Path, **more: object) -> ChangelogSettings:
    return ChangelogSettings(persist_delay=0, local_recovery_dir=str(local), **more)


def persist(storage: ChangelogStorage, checkpoint: int, size: int = 1000) -> object:
    writer = storage.create_writer("operator", KeyGroupRange(0, 9))
    writer.append(1, bytes(size))
    handle = writer.persist(SequenceNumber(0), checkpoint).result(30).remote
    writer.confirm(SequenceNumber(0), writer.next_sequence_number(), checkpoint)
    return handle


def test_files_of_others_in_the_folder_of_local_copies_stay(tmp_path: Path) -> None:
    local = tmp_path / "local"
    own = local / OWN_FOLDER
    foreign = [local / "thesis.tex", local / "photos" / "changelog" / "a.jpg", own / "notes", own / "job" / "a.bin"]
    foreign.append(local / "other" / "changelog" / ("0" * 32))
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(5000))
        os.utime(path, (1, 1))
    with ChangelogStorage.open(
        MemoryStore("folders-foreign"), settings(local, local_recovery_max_bytes=4000), job_id="job"
    ) as storage:
        handles = [persist(storage, checkpoint) for checkpoint in range(1, 9)]
        assert all(values(storage.create_reader().read(handle)) for handle in handles)
        copies = list(own.glob("*.copy"))
    assert all(path.read_bytes() == bytes(5000) for path in foreign)
    assert 1 <= len(copies) <= 4000 // 1000
    MemoryStore.forget("folders-foreign")


OVERLAPS: dict[str, Callable[[Path], Path]] = {
    "is": lambda root: root,
    "contains": lambda root: root.parent,
    "lies in": lambda root: root / "local",
    "lies in, behind a link": lambda root: linked(root.parent.parent / "link", root / "deep"),
    "is reached by dots": lambda root: root / ".." / "root",
}


def linked(link: Path, to: Path) -> Path:
    to.mkdir(parents=True, exist_ok=True)
    link.symlink_to(to)
    return link


@pytest.mark.parametrize("place", OVERLAPS.values(), ids=OVERLAPS)
@pytest.mark.parametrize("exists", [False, True])
def test_a_folder_of_local_copies_that_overlaps_the_root_is_refused(
    tmp_path: Path, place: Callable[[Path], Path], exists: bool
) -> None:
    root = tmp_path / "data" / "root"
    root.parent.mkdir()
    if exists:
        root.mkdir()
    with pytest.raises(InvalidInputError, match=r"local_recovery_dir.*must be apart"):
        ChangelogStorage.open(root, settings(place(root)))
    with pytest.raises(InvalidInputError, match="must be apart"):
        DuplicatingUploader(BlobUploader(str(root)), str(place(root) if not (tmp_path / "link").exists() else root))


def test_the_own_folder_may_be_no_link_into_the_root(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    linked(tmp_path / "local" / OWN_FOLDER, tmp_path / "root" / "shared")
    with pytest.raises(InvalidInputError, match="must be apart"):
        ChangelogStorage.open(tmp_path / "root", settings(tmp_path / "local"))


def test_a_folder_beside_the_root_is_taken(tmp_path: Path) -> None:
    (tmp_path / "roo").mkdir()
    for local in ("local", "root2", "roo"):
        with ChangelogStorage.open(tmp_path / "root", settings(tmp_path / local)) as storage:
            assert storage.availability.available


def test_a_second_name_of_the_root_is_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the root is mounted twice: no path tells it."""
    (tmp_path / "root").mkdir()
    linked(tmp_path / "mounted", tmp_path / "root")
    monkeypatch.setattr(os.path, "realpath", os.path.abspath)
    for local in (tmp_path / "mounted", tmp_path / "mounted" / "not" / "yet"):
        with pytest.raises(InvalidInputError, match="must be apart"):
            ChangelogStorage.open(tmp_path / "root", settings(local))


def test_copies_beside_the_objects_of_the_same_store_are_refused() -> None:
    store = memory_store()
    with pytest.raises(InvalidInputError, match="must be apart"):
        DuplicatingUploader(BlobUploader(store), store)
    with pytest.raises(InvalidInputError, match="must be apart"):
        DuplicatingUploader(BlobUploader("memory://folders/a"), "memory://folders")


def test_files_of_others_in_the_cache_of_downloads_stay(tmp_path: Path) -> None:
    world, store = ManualWorld(), memory_store()
    cache = HostCache(tmp_path, 1000, idle_seconds=10, environment=world.environment)
    cache.prepare()
    foreign = [cache.folder / name for name in ("notes", "a.copy", "a.lock", f"{0:033x}.copy", f"{0:032x}.tmp")]
    foreign.append(tmp_path / f"{0:032x}.copy")
    for path in foreign:
        path.write_bytes(bytes(5000))
        os.utime(path, (1, 1))
    for name in ("x", "y"):
        store.put(name, bytes(900))
        cache.download(store, name)
        assert [found.buffer.size for found in cache.find(store.url, name, 0, 900)] == [900]
    world.advance(10_000)
    cache.sweep()
    assert all(path.read_bytes() == bytes(5000) for path in foreign)
    assert cache.size() == 0


SWEPT = [
    ".inprogress", ".hidden", "..x", layout.SHARED_PREFIX[:-1], layout.TASKOWNED_PREFIX[:-1], layout.FLOOR_PREFIX[:-1],
    layout.RECORD_PREFIX + "7", layout.SAVEPOINT_PREFIX + "x", "Shared", "a/b", "/a", "a/", ".", "..", "", "a\\b",
]  # fmt: skip


@pytest.mark.parametrize("job_id", SWEPT)
def test_a_job_id_that_is_a_folder_where_something_else_deletes_is_refused(tmp_path: Path, job_id: str) -> None:
    with pytest.raises(InvalidInputError):
        ChangelogStorage.open(tmp_path, job_id=job_id)
    with pytest.raises(InvalidInputError):
        BlobUploader(str(tmp_path), job_id=job_id)


@pytest.mark.parametrize("job_id", ["job", "my job", "a.b", "sharedness", "chk", "2026-01", "_x", "café"])
def test_any_other_job_id_is_taken(job_id: str) -> None:
    uploader = BlobUploader(memory_store(), job_id=job_id)
    task = task_of(1)
    [result] = uploader.upload([task]).successful[task]
    assert result.handle.name.startswith(f"{job_id}/changelog/")
    uploader.close()


def test_a_store_below_a_local_root_is_found_through_decorators(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="must be apart"):
        ChangelogStorage.open(InstrumentedStore(LocalStore(tmp_path / "root")), settings(tmp_path))
