"""What a program asked of a file system, in order, by inode: the input of the model of power loss.

Facts:
- A name says nothing about identity: a file keeps its bytes through ``link`` and ``rename``, and a name may come to
  mean another file. So changes speak of nodes, numbered as they are made; node 0 is the disk.
- Inode numbers are reused as soon as a file has neither names nor open descriptors, on many file systems at once. The
  numbers that the program sees through ``fstat`` are therefore virtual: always the smallest that is free.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["Action", "Change", "Journal"]

_NOWHERE: Final = -1
"""The node of everything outside of the disk."""


class Action(StrEnum):
    """What a change does."""

    MAKE_FILE = "make_file"
    MAKE_FOLDER = "make_folder"
    WRITE = "write"
    SYNC = "sync"
    SYNC_FAILED = "sync_failed"
    LINK = "link"
    UNLINK = "unlink"
    RENAME = "rename"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One system call that changed something, or made something durable.

    Attributes:
        action: What it did.
        node: The file or folder that was made, written, synced, linked, renamed or unlinked.
        folder: The folder whose entry changed.
        name: The entry that changed.
        data: The bytes appended.
        old_folder: Of a rename: the folder of the entry that went away.
        old_name: Of a rename: the entry that went away.
    """

    action: Action
    node: int
    folder: int = _NOWHERE
    name: str = ""
    data: bytes = b""
    old_folder: int = _NOWHERE
    old_name: str = ""


class Journal:
    """Records the changes below one folder, the disk.

    Args:
        disk: An existing folder; what is in it already is not seen.
    """

    def __init__(self, disk: str) -> None:
        self.changes: list[Change] = []
        self._nodes: dict[tuple[int, int], int] = {}
        self._descriptors: dict[int, int] = {}
        self._names: Counter[int] = Counter()
        self._open: Counter[int] = Counter()
        self._virtual: dict[int, int] = {}
        self._free: list[int] = []
        status = os.stat(disk)
        self._next = 0
        self._new_node(status)
        self._names[0] = 1

    def opened(self, descriptor: int, path: str, folder_descriptor: int | None, *, created: bool) -> None:
        """``open`` returned ``descriptor``."""
        status = os.fstat(descriptor)
        if created:
            folder, name = self._entry(path, folder_descriptor)
            node = self._new_node(status)
            self._names[node] += 1
            self._add(Change(action=Action.MAKE_FILE, node=node, folder=folder, name=name))
        else:
            node = self._nodes.get((status.st_dev, status.st_ino), _NOWHERE)
        self._descriptors[descriptor] = node
        self._open[node] += 1

    def duplicated(self, descriptor: int, copy: int) -> None:
        """``copy`` means what ``descriptor`` means."""
        node = self._descriptors[copy] = self._node(descriptor)
        self._open[node] += 1

    def closed(self, descriptor: int) -> None:
        """``descriptor`` is about to be closed."""
        node = self._descriptors.pop(descriptor, _NOWHERE)
        self._open[node] -= 1
        self._release(node)

    def wrote(self, descriptor: int, data: bytes) -> None:
        """``data`` was appended."""
        self._add(Change(action=Action.WRITE, node=self._node(descriptor), data=data))

    def synced(self, descriptor: int, *, failed: bool) -> None:
        """``fsync`` returned, or failed: then nothing says what became of the dirty pages."""
        self._add(Change(action=Action.SYNC_FAILED if failed else Action.SYNC, node=self._node(descriptor)))

    def linked(self, path: str, folder_descriptor: int | None) -> None:
        """The file has one more name."""
        folder, name = self._entry(path, folder_descriptor)
        node = self._nodes[_identity(path, folder_descriptor)]
        self._names[node] += 1
        self._add(Change(action=Action.LINK, node=node, folder=folder, name=name))

    def renamed(self, old_path: str, old_descriptor: int | None, path: str, folder_descriptor: int | None) -> None:
        """The file has another name; call it after the rename."""
        old_folder, old_name = self._entry(old_path, old_descriptor)
        folder, name = self._entry(path, folder_descriptor)
        node = self._nodes[_identity(path, folder_descriptor)]
        self._add(
            Change(action=Action.RENAME, node=node, folder=folder, name=name, old_folder=old_folder, old_name=old_name)
        )

    def unlinking(self, path: str, folder_descriptor: int | None) -> Change | None:
        """What an ``unlink`` or ``rmdir`` would change; call it before, and :meth:`removed` after."""
        try:
            node = self._nodes.get(_identity(path, folder_descriptor), _NOWHERE)
        except OSError:
            return None
        folder, name = self._entry(path, folder_descriptor)
        return Change(action=Action.UNLINK, node=node, folder=folder, name=name)

    def removed(self, change: Change | None) -> None:
        """The entry is gone."""
        if change is not None:
            self._add(change)
            self._names[change.node] -= 1
            self._release(change.node)

    def made_folder(self, path: str, folder_descriptor: int | None) -> None:
        """A folder was made."""
        folder, name = self._entry(path, folder_descriptor)
        node = self._new_node(os.stat(path, dir_fd=folder_descriptor, follow_symlinks=False))
        self._names[node] += 1
        self._add(Change(action=Action.MAKE_FOLDER, node=node, folder=folder, name=name))

    def virtual_inode(self, status: os.stat_result) -> int:
        """The inode number that the program shall see."""
        node = self._nodes.get((status.st_dev, status.st_ino), _NOWHERE)
        return self._virtual.get(node, status.st_ino)

    def _add(self, change: Change) -> None:
        if change.node != _NOWHERE:
            self.changes.append(change)

    def _node(self, descriptor: int) -> int:
        return self._descriptors.get(descriptor, _NOWHERE)

    def _entry(self, path: str, folder_descriptor: int | None) -> tuple[int, str]:
        if folder_descriptor is not None:
            return self._node(folder_descriptor), path
        folder, name = os.path.split(path)
        return self._nodes.get(_identity(folder, None), _NOWHERE), name

    def _new_node(self, status: os.stat_result) -> int:
        node = self._next
        self._next += 1
        self._nodes[status.st_dev, status.st_ino] = node
        self._virtual[node] = heapq.heappop(self._free) if self._free else 1000 + node
        return node

    def _release(self, node: int) -> None:
        if node != _NOWHERE and self._names[node] <= 0 and self._open[node] <= 0 and node in self._virtual:
            heapq.heappush(self._free, self._virtual.pop(node))
            self._nodes = {identity: found for identity, found in self._nodes.items() if found != node}


def _identity(path: str, folder_descriptor: int | None) -> tuple[int, int]:
    status = os.stat(path, dir_fd=folder_descriptor, follow_symlinks=False)
    return status.st_dev, status.st_ino
