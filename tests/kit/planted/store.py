"""Bugs of the stores and of the rules for lost answers, planted at their real sites."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from stateline.blob import folders as folders_module
from stateline.blob import local as local_module
from stateline.blob.api import Buffer, ObjectInfo
from stateline.blob.checksum import crc32c
from stateline.blob.folders import Folders
from stateline.blob.local import LocalStore
from stateline.blob.memory import MemoryStore
from stateline.blob.outcome import Fingerprint
from stateline.errors import AlreadyExistsError, DataLossError, NotFoundError, UnavailableError
from stateline.handles import Part
from tests.kit.planted.bugs import Plant, PlantedBug, register_bug, replaced

__all__: list[str] = []

# A replacement has the arguments of what it replaces, wanted or not.

_LOCAL = ("create_race_local", "store_publish_local")
_PUBLISH = ("store_publish_local",)
_MEMORY = ("store_publish",)


def _os(module: ModuleType) -> Any:
    """What a module knows as ``os``: the real one, or what stands in for it."""
    return vars(module)["os"]


def _bug(name: str, description: str, site: str, plant: Plant, scenarios: tuple[str, ...], *suites: str) -> None:
    register_bug(
        PlantedBug(name=name, description=description, site=site, plant=plant, scenarios=scenarios, suites=suites)
    )


# -- durability ------------------------------------------------------------------------------------------------------


def _without_file_fsync(self: Folders, descriptor: int) -> None:
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        _os(folders_module).fsync(descriptor)


def _without_folder_fsync(self: Folders, descriptor: int) -> None:
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        _os(folders_module).fsync(descriptor)


def _with_a_second_try(self: Folders, descriptor: int) -> None:
    try:
        _os(folders_module).fsync(descriptor)
    except OSError:
        _os(folders_module).fsync(descriptor)


def _known_by_inode_alone() -> contextlib.AbstractContextManager[None]:
    def pin(self: Folders, folder: int) -> None:
        status = _os(folders_module).fstat(folder)
        self.__dict__.setdefault("_seen", set()).add((status.st_dev, status.st_ino))

    def is_known(self: Folders, folder: int) -> bool:
        status = _os(folders_module).fstat(folder)
        return (status.st_dev, status.st_ino) in self.__dict__.get("_seen", ())

    return _both(replaced(Folders, "_pin", pin), replaced(Folders, "_is_known", is_known))


def _unlink_without_sync(self: LocalStore, folders: tuple[str, ...], leaves: Sequence[str], removed: set[str]) -> None:
    with contextlib.suppress(FileNotFoundError), self._folder(folders) as folder:
        for leaf in leaves:
            with contextlib.suppress(FileNotFoundError):
                _os(local_module).unlink(leaf, dir_fd=folder)
                removed.add(leaf)
    self._remove_if_empty(folders)


_bug(
    "local_no_file_fsync",
    "a file is named before its bytes are durable",
    "blob.folders.Folders.fsync",
    lambda: replaced(Folders, "fsync", _without_file_fsync),
    _LOCAL,
    "powerloss",
)
_bug(
    "local_no_folder_fsync",
    "a name is acknowledged before its folder is synced",
    "blob.folders.Folders.fsync",
    lambda: replaced(Folders, "fsync", _without_folder_fsync),
    _LOCAL,
    "powerloss",
)
_bug(
    "local_no_parent_fsync",
    "a new folder's own name is never synced",
    "blob.folders.Folders._is_known",
    lambda: replaced(Folders, "_is_known", lambda self, folder: True),
    _LOCAL,
    "powerloss",
)
_bug(
    "local_folder_known_by_inode",
    "a folder counts as durable because one with its inode number was",
    "blob.folders.Folders._pin",
    _known_by_inode_alone,
    _LOCAL,
    "powerloss",
)
_bug(
    "local_fsync_retried",
    "an fsync that failed is called again, and its success believed",
    "blob.folders.Folders.fsync",
    lambda: replaced(Folders, "fsync", _with_a_second_try),
    _PUBLISH,
    "powerloss",
)
_bug(
    "local_delete_not_synced",
    "a deletion is acknowledged before the folder is synced",
    "blob.local.LocalStore._unlink",
    lambda: replaced(LocalStore, "_unlink", _unlink_without_sync),
    _PUBLISH,
    "powerloss",
)
_bug(
    "local_adopt_without_sync",
    "a name that somebody else made a moment ago is taken for durable",
    "blob.local.LocalStore._sync_entry",
    lambda: replaced(LocalStore, "_sync_entry", lambda self, folders: None),
    _PUBLISH,
    "powerloss",
)

# -- atomicity -------------------------------------------------------------------------------------------------------


def _rename_over(self: LocalStore, leaf: str) -> Any:
    def rename(source: str, staging: int, folder: int) -> None:
        _os(local_module).rename(source, leaf, src_dir_fd=staging, dst_dir_fd=folder)

    return rename


def _check_then_put(self: LocalStore, name: str, data: Buffer) -> ObjectInfo:
    try:
        self.head(name)
    except NotFoundError:
        return self.put(name, data)
    if self.get(name) != bytes(data):
        raise AlreadyExistsError("the name holds other bytes", operation="put_if_absent", subject=name)
    return self.head(name)


def _written_in_place(self: LocalStore, name: str, data: Buffer) -> ObjectInfo:
    *folders, leaf = name.split("/")
    try:
        with self._translated("put_if_absent", name), self._folder(tuple(folders), create=True) as folder:
            self._fill(folder, leaf, self._create(folder, leaf), [data[:1], data[1:]])
            self._fsync_entry(folder)
    except UnavailableError:
        if self.get(name) != bytes(data):
            raise AlreadyExistsError("the name holds other bytes", operation="put_if_absent", subject=name) from None
    return ObjectInfo(name=name, size=len(data), modified_at=0.0, crc32c=crc32c(data))


def _joined_beside_the_pieces(
    self: LocalStore, target: str, folders: tuple[str, ...], leaf: str, parts: Sequence[Part]
) -> None:
    chunks = (chunk for part in parts for chunk in self._piece_chunks(target, part))
    self._with_temporary(chunks, folders, self._link_to(leaf))


_bug(
    "local_rename_over",
    "a name is given by rename, which replaces what is there, instead of by link",
    "blob.local.LocalStore._link_to",
    lambda: replaced(LocalStore, "_link_to", _rename_over),
    _LOCAL,
    "zombies",
)
_bug(
    "local_check_then_put",
    "create-if-absent looks first and then puts",
    "blob.local.LocalStore.put_if_absent",
    lambda: replaced(LocalStore, "put_if_absent", _check_then_put),
    _LOCAL,
    "zombies",
)
_bug(
    "local_written_in_place",
    "an object is written under its final name",
    "blob.local.LocalStore.put_if_absent",
    lambda: replaced(LocalStore, "put_if_absent", _written_in_place),
    _LOCAL,
    "single",
    "powerloss",
)
_bug(
    "local_joined_beside_the_pieces",
    "several pieces are joined in a file that outlives their discard",
    "blob.local.LocalStore._join",
    lambda: replaced(LocalStore, "_join", _joined_beside_the_pieces),
    _PUBLISH,
    "zombies",
)

# -- outcomes --------------------------------------------------------------------------------------------------------


def _refused(operation: str, name: str, error: OSError) -> UnavailableError:
    return UnavailableError(error.strerror or "", operation=operation, subject=name)


@contextlib.contextmanager
def _both(
    first: contextlib.AbstractContextManager[None], second: contextlib.AbstractContextManager[None]
) -> Iterator[None]:
    with first, second:
        yield


def _by_length(self: Fingerprint, found: ObjectInfo | None) -> bool:
    return found is not None and found.size == self.length


def _by_existence(self: Fingerprint, found: ObjectInfo | None) -> bool:
    return found is not None


def _both_missing_is_success() -> contextlib.AbstractContextManager[None]:
    publish = MemoryStore.publish

    def careless(self: MemoryStore, target: str, parts: Sequence[Part], nonce: str) -> ObjectInfo:
        try:
            return publish(self, target, parts, nonce)
        except DataLossError:
            return ObjectInfo(name=target, size=0, modified_at=0.0)

    return replaced(MemoryStore, "publish", careless)


def _unverified_piece(self: MemoryStore, target: str, part: Part) -> bytes:
    found = self._objects.get(part.name)
    if found is None:
        raise DataLossError("a piece is gone", operation="publish", subject=target)
    return found.data


_bug(
    "local_half_done_is_refused",
    "a call that failed half-way says that it had no effect",
    "blob.local._perhaps_done",
    lambda: replaced(local_module, "_perhaps_done", _refused),
    _LOCAL,
    "single",
)
_bug(
    "local_all_errors_are_refusals",
    "an I/O error of link counts as proof that there is no link",
    "blob.local.SURELY_NOT_DONE",
    lambda: replaced(local_module, "SURELY_NOT_DONE", frozenset(errno.errorcode)),
    _LOCAL,
    "single",
)
_bug(
    "length_only_verify",
    "an object of the right length passes for ours",
    "blob.outcome.Fingerprint.matches",
    lambda: replaced(Fingerprint, "matches", _by_length),
    ("store_publish", "store_publish_local"),
    "single",
)
_bug(
    "trust_existence",
    "an object that is there passes for ours",
    "blob.outcome.Fingerprint.matches",
    lambda: replaced(Fingerprint, "matches", _by_existence),
    ("store_publish", "store_publish_local"),
    "single",
)
_bug(
    "both_missing_is_success",
    "a publication without pieces and without target succeeds",
    "blob.memory.MemoryStore.publish",
    _both_missing_is_success,
    ("store_publish", "micro_batch_reference"),
    "single",
    "sim",
)
_bug(
    "plain_put_instead_of_create",
    "create-if-absent overwrites",
    "blob.memory.MemoryStore.put_if_absent",
    lambda: replaced(MemoryStore, "put_if_absent", MemoryStore.put),
    ("create_race", "store_publish", "micro_batch_reference"),
    "zombies",
    "sim",
)
_bug(
    "piece_not_verified",
    "a piece is published without comparing its checksum",
    "blob.memory.MemoryStore._piece",
    lambda: replaced(MemoryStore, "_piece", _unverified_piece),
    _MEMORY,
    "single",
    "sim",
)
