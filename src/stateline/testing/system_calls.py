"""A stand-in for the ``os`` module of a backend on local disk: each call is a switch point, can fail, is recorded.

:func:`intercepted` puts it in place: it replaces the name ``os`` in the modules under test. The real calls are made on
the real file system, so what runs is the backend itself.

Facts:
- ``close`` always goes through: a process that dies closes its descriptors.
- A failed ``fsync`` is recorded as such: the dirty pages may be lost, whatever a second ``fsync`` says.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, Final, Protocol

from stateline.testing.faults import FaultKind
from stateline.testing.journal import Journal

__all__ = ["Gate", "OpenGate", "SystemCalls", "intercepted"]

_ERRORS: Final = {
    FaultKind.IO_ERROR: errno.EIO,
    FaultKind.IO_ERROR_AFTER: errno.EIO,
    FaultKind.NO_SPACE: errno.ENOSPC,
    FaultKind.NO_ACCESS: errno.EACCES,
}


class Gate(Protocol):
    """What stands before each system call."""

    def enter(self, operation: str, subject: str) -> FaultKind | None:
        """Lets others run, and says which fault hits the call. Raises where the caller is dead, or dies of it."""
        ...

    def crash(self) -> None:
        """Kills the caller, after its call; raises."""
        ...


class OpenGate:
    """Lets every call through."""

    def enter(self, operation: str, subject: str) -> FaultKind | None:  # noqa: ARG002 - the protocol, not its use
        return None

    def crash(self) -> None:
        """Nothing: no fault of this gate kills."""


class SystemCalls:
    """What a module sees as ``os``.

    Args:
        gate: Asked before each call.
        journal: Where changes are recorded, if anywhere.
        disk: The folder that stands for the disk; left out where a path is told to the gate, so that the same run has
            the same trace wherever its disk is.
    """

    def __init__(self, gate: Gate | None = None, journal: Journal | None = None, disk: str = "") -> None:
        self._gate: Gate = gate or OpenGate()
        self._journal = journal
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        value = getattr(os, name)
        setattr(self, name, value)
        return value

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """See :func:`os.open`."""
        created = bool(flags & os.O_CREAT)
        with self._call("os.create" if created else "os.open", path):
            descriptor = os.open(path, flags, mode, dir_fd=dir_fd)
            if self._journal:
                self._journal.opened(descriptor, path, dir_fd, created=created)
        return descriptor

    def close(self, descriptor: int) -> None:
        """See :func:`os.close`."""
        if self._journal:
            self._journal.closed(descriptor)
        os.close(descriptor)

    def dup(self, descriptor: int) -> int:
        """See :func:`os.dup`."""
        copy = os.dup(descriptor)
        if self._journal:
            self._journal.duplicated(descriptor, copy)
        return copy

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """See :func:`os.write`."""
        with self._call("os.write", "") as kind:
            wanted = memoryview(data)
            if kind is FaultKind.SHORT_WRITE:
                wanted = wanted[: (len(wanted) + 1) // 2]
            written = os.write(descriptor, wanted)
            if self._journal:
                self._journal.wrote(descriptor, bytes(wanted[:written]))
        return written

    def writev(self, descriptor: int, buffers: Iterable[bytes | memoryview]) -> int:
        """See :func:`os.writev`: one write of all buffers."""
        return self.write(descriptor, b"".join(buffers))

    def fsync(self, descriptor: int) -> None:
        """See :func:`os.fsync`."""
        try:
            with self._call("os.fsync", ""):
                if self._journal is None:
                    os.fsync(descriptor)
                else:
                    self._journal.synced(descriptor, failed=False)
        except OSError:
            if self._journal:
                self._journal.synced(descriptor, failed=True)
            raise

    def link(
        self,
        source: str,
        target: str,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        """See :func:`os.link`."""
        with self._call("os.link", target):
            os.link(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=follow_symlinks)
            if self._journal:
                self._journal.linked(target, dst_dir_fd)

    def rename(self, source: str, target: str, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        """See :func:`os.rename`."""
        with self._call("os.rename", target):
            os.rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            if self._journal:
                self._journal.renamed(source, src_dir_fd, target, dst_dir_fd)

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        """See :func:`os.unlink`."""
        with self._call("os.unlink", path):
            change = self._journal.unlinking(path, dir_fd) if self._journal else None
            os.unlink(path, dir_fd=dir_fd)
            if self._journal:
                self._journal.removed(change)

    def rmdir(self, path: str, *, dir_fd: int | None = None) -> None:
        """See :func:`os.rmdir`."""
        with self._call("os.rmdir", path):
            change = self._journal.unlinking(path, dir_fd) if self._journal else None
            os.rmdir(path, dir_fd=dir_fd)
            if self._journal:
                self._journal.removed(change)

    def mkdir(self, path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        """See :func:`os.mkdir`."""
        with self._call("os.mkdir", path):
            os.mkdir(path, mode, dir_fd=dir_fd)
            if self._journal:
                self._journal.made_folder(path, dir_fd)

    def scandir(self, path: Any) -> Any:
        """See :func:`os.scandir`; in the order of names, which is one of those that are allowed."""
        with self._call("os.scandir", ""), os.scandir(path) as entries:
            return contextlib.nullcontext(sorted(entries, key=lambda entry: entry.name))

    def fstat(self, descriptor: int) -> os.stat_result:
        """See :func:`os.fstat`; inode numbers are reused at once, as some file systems do."""
        status = os.fstat(descriptor)
        if self._journal is None:
            return status
        fields = list(status)
        fields[1] = self._journal.virtual_inode(status)
        return os.stat_result(fields)

    @contextlib.contextmanager
    def _call(self, operation: str, subject: str) -> Iterator[FaultKind | None]:
        """One call: the gate before it, the fault before or after it."""
        subject = subject.removeprefix(self._disk) if self._disk else subject
        kind = self._gate.enter(operation, subject)
        number = None if kind is None else _ERRORS.get(kind)
        if number is not None and kind is not FaultKind.IO_ERROR_AFTER:
            raise OSError(number, f"{os.strerror(number)} (injected)", subject)
        yield kind
        if number is not None:
            raise OSError(number, f"{os.strerror(number)} (injected)", subject)
        if kind is FaultKind.CRASH_AFTER:
            self._gate.crash()


@contextlib.contextmanager
def intercepted(modules: Iterable[ModuleType], calls: SystemCalls) -> Iterator[SystemCalls]:
    """Makes ``calls`` what ``modules`` know as ``os``, for as long as the context lasts."""
    kept = [(module, module.__dict__["os"]) for module in modules]
    for module, _ in kept:
        module.__dict__["os"] = calls
    try:
        yield calls
    finally:
        for module, original in kept:
            module.__dict__["os"] = original
