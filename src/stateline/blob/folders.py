"""Folders of a local store: reached by descriptor without following links, and durable before anything is in them.

Facts:
- A new folder's name is durable only after an ``fsync`` of its parent, and whoever made the folder may have died before
  that. So each process syncs the parent once for each folder it writes into, whoever made it.
- Inode numbers are reused, on ext4 at once: a folder that was removed and made again may look like the old one, whose
  name was durable. So a folder counts as known only while a descriptor of it is held open, which pins its inode.
- The root and its ancestors are made from the top down, each synced before the next is made. So of a root that exists,
  only its own name can still be unsynced.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from stateline.blob.api import closed_store
from stateline.errors import UnavailableError
from stateline.threads import new_lock

__all__ = ["CREATION_ATTEMPTS", "Folders", "make_private_folder", "opened_below", "vanishing"]

CREATION_ATTEMPTS: Final = 16
"""How often a folder that somebody removes under us is made again before we give up."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ANCESTOR_MODE: Final = 0o755
"""Of folders made above a private one. Only this user writes to them, whatever the umask: whoever may write to a folder
may replace what is in it."""

_MAX_PINNED: Final = 64
"""Folders known to be durable; for one that was forgotten, its parent is synced once more."""

Identity = tuple[int, int]


class Folders:
    """The folders below one root, an absolute path without links. Safe from any thread.

    Args:
        root: Made on the first write.
        sync: Whether names must survive power loss.
        private: Whether folders are for this user only; those whose name starts with a dot always are.
    """

    def __init__(self, root: str, *, sync: bool, private: bool) -> None:
        self._root = root
        self._sync = sync
        self._private = private
        self._lock = new_lock()
        self._closed = False
        self._pinned: OrderedDict[Identity, int] = OrderedDict()
        self._finalizer = weakref.finalize(self, _close_all, self._pinned)

    @contextlib.contextmanager
    def opened(self, folders: tuple[str, ...], *, create: bool = False) -> Iterator[int]:
        """A descriptor of a folder below the root.

        Raises:
            ClosedError: After :meth:`close`.
            FileNotFoundError: It does not exist, and ``create`` was not asked for.
            NotADirectoryError: A file or a link is in the way.
        """
        self.check_open()
        descriptor = self._reach(folders) if create else self._walk(folders, create=False)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def fsync(self, descriptor: int) -> None:
        """Makes a file or a folder durable, if this store is."""
        if self._sync:
            os.fsync(descriptor)

    def check_open(self) -> None:
        """Raises :class:`ClosedError` after :meth:`close`."""
        if self._closed:
            raise closed_store(Path(self._root).as_uri())

    def close(self) -> None:
        """Gives the descriptors back. Idempotent."""
        with self._lock:
            self._closed = True
            _close_all(self._pinned)

    def _reach(self, folders: tuple[str, ...]) -> int:
        """Walks down and makes what is missing, from the root again whenever an empty folder is removed under us."""
        for _ in range(CREATION_ATTEMPTS):
            with contextlib.suppress(FileNotFoundError):
                return self._walk(folders, create=True)
        raise vanishing("/".join(folders) or self._root)

    def _walk(self, folders: tuple[str, ...], *, create: bool) -> int:
        descriptor = self._open_root(create)
        try:
            for segment in folders:
                inner = self._open_folder(descriptor, segment, create)
                os.close(descriptor)
                descriptor = inner
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _open_root(self, create: bool) -> int:
        try:
            descriptor = os.open(self._root, _FOLDER)
        except FileNotFoundError:
            if not create:
                raise
            self._make_root(self._root)
            descriptor = os.open(self._root, _FOLDER)
        if create and self._sync and not self._is_known(descriptor):
            self._sync_folder(os.path.dirname(self._root))
            self._pin(descriptor)
        return descriptor

    def _make_root(self, path: str) -> None:
        """Makes ``path`` and the ancestors that are missing; the name of ``path`` itself is not synced."""
        parent = os.path.dirname(path)
        if not os.path.isdir(parent):
            self._make_root(parent)
        self._sync_folder(os.path.dirname(parent))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, self._mode(os.path.basename(path)) if path == self._root else self._ancestor_mode)

    def _open_folder(self, parent: int, segment: str, create: bool) -> int:
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(segment, self._mode(segment), dir_fd=parent)
        descriptor = os.open(segment, _FOLDER, dir_fd=parent)
        if create and self._sync and not self._is_known(descriptor):
            self.fsync(parent)
            self._pin(descriptor)
        return descriptor

    def _is_known(self, folder: int) -> bool:
        identity = _identity(folder)
        with self._lock:
            if identity not in self._pinned:
                return False
            self._pinned.move_to_end(identity)
            return True

    def _pin(self, folder: int) -> None:
        identity = _identity(folder)
        with self._lock:
            if self._closed or identity in self._pinned:
                return
            self._forget_removed()
            self._pinned[identity] = os.dup(folder)
            if len(self._pinned) > _MAX_PINNED:
                os.close(self._pinned.popitem(last=False)[1])

    def _forget_removed(self) -> None:
        """Gives back descriptors of folders that were removed: nobody reaches those again, and they would pile up."""
        for identity, descriptor in list(self._pinned.items()):
            if os.fstat(descriptor).st_nlink == 0:
                del self._pinned[identity]
                os.close(descriptor)

    def _sync_folder(self, path: str) -> None:
        """Syncs an ancestor; one that we may not open is not ours, and was there before us."""
        if not self._sync:
            return
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:
            return
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @property
    def _ancestor_mode(self) -> int:
        return _ANCESTOR_MODE if self._private else 0o777

    def _mode(self, segment: str) -> int:
        return 0o700 if self._private or segment.startswith(".") else 0o777


def make_private_folder(path: str | os.PathLike[str]) -> None:
    """Makes a folder for this user only, and the folders above it that are missing, to which only this user can write.

    A folder that exists stays as it is.
    """
    path = os.path.abspath(path)
    missing = [path]
    while not os.path.isdir(parent := os.path.dirname(missing[-1])):
        missing.append(parent)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700 if folder == path else _ANCESTOR_MODE)


@contextlib.contextmanager
def opened_below(root: str, name: str) -> Iterator[int]:
    """A descriptor of a file below a folder, reached without following a link.

    Args:
        root: An absolute path without links.
        name: Segments with ``/`` between them.
    """
    *folders, leaf = name.split("/")
    descriptor = os.open(root, _FOLDER)
    try:
        for segment, flags in (*((each, _FOLDER) for each in folders), (leaf, _FILE)):
            inner = os.open(segment, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def vanishing(segment: str) -> UnavailableError:
    """The error of a folder that is removed whenever it is made."""
    return UnavailableError(
        "the folder is removed as fast as it is made",
        operation="mkdir",
        subject=segment,
        hint="Stop what removes it",
    )


def _identity(descriptor: int) -> Identity:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _close_all(pinned: OrderedDict[Identity, int]) -> None:
    while pinned:
        os.close(pinned.popitem()[1])
