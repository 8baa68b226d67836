"""A local store on a disk that may lose its power: for tests that want to look at every state it may leave behind.

Example::

    with CrashableStore() as store:
        store.put("a/b", b"data")
        for recovered in store.after_power_loss():      # a fresh store on each allowed state of the disk
            assert recovered.get("a/b") == b"data"      # put had returned, so it must be there
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from stateline.blob import file_bytes as file_bytes_module
from stateline.blob import folders as folders_module
from stateline.blob import local as local_module
from stateline.blob.instrumented import StoreDecorator
from stateline.blob.local import LocalStore, LocalStoreSettings
from stateline.environment import Environment, system_environment
from stateline.errors import InvalidInputError
from stateline.testing.disk_model import DiskModel, DiskState
from stateline.testing.ids import SeededIds
from stateline.testing.journal import Journal
from stateline.testing.seeds import Dice
from stateline.testing.system_calls import Gate, SystemCalls, intercepted

__all__ = ["LOCAL_MODULES", "CrashableStore", "scratch_folder"]

LOCAL_MODULES: Final = (local_module, folders_module, file_bytes_module)
"""The modules whose system calls are a local store's."""

_MEMORY_DISK: Final = "/dev/shm"  # noqa: S108 - a unique folder is made below it


class CrashableStore(StoreDecorator):
    """A :class:`LocalStore` whose disk can be looked at as if the power went. Use it as a context manager.

    One at a time: its system calls are seen because it replaces what the modules of the local store know as ``os``.

    Args:
        gate: Asked before each system call; see :mod:`stateline.testing.system_calls`.
        environment: The store's; ids are seeded by default.
    """

    def __init__(self, gate: Gate | None = None, environment: Environment | None = None) -> None:
        self._environment = environment or Environment(ids=SeededIds(0, "crashable"))
        self._gate = gate
        self._stack = contextlib.ExitStack()
        self._disk = ""
        self._journal: Journal | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise InvalidInputError(
                "cannot be used outside of its with block",
                subject="CrashableStore",
                hint="Write: with CrashableStore() as store",
            )
        raise AttributeError(name)

    def __enter__(self) -> Self:
        self._disk = self._stack.enter_context(scratch_folder())
        self._journal = Journal(self._disk)
        self._stack.enter_context(intercepted(LOCAL_MODULES, SystemCalls(self._gate, self._journal)))
        super().__init__(LocalStore(f"{self._disk}/data", None, self._environment))
        self._stack.callback(self.inner.close)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def changes(self) -> int:
        """How many changes the disk has seen: the moments at which power can be lost."""
        return len(self._journal.changes) if self._journal else 0

    def disk_states(self, moment: int | None = None, *, limit: int = 4096) -> list[DiskState]:
        """What the disk may hold if the power goes after its first ``moment`` changes; now by default."""
        model = DiskModel()
        changes = self._journal.changes if self._journal else []
        for change in changes[:moment]:
            model.apply(change)
        return list(model.states(limit, Dice(moment or 0, "states")))

    def after_power_loss(self, moment: int | None = None, *, limit: int = 4096) -> Iterator[LocalStore]:
        """A fresh store on each state of :meth:`disk_states`; each lives until the next is asked for."""
        for state in self.disk_states(moment, limit=limit):
            with scratch_folder() as folder:
                state.restore(folder)
                recovered = LocalStore(f"{folder}/data", LocalStoreSettings(fsync=False), system_environment())
                yield recovered
                recovered.close()


@contextlib.contextmanager
def scratch_folder() -> Iterator[str]:
    """A new folder, on a memory disk where there is one; removed at the end."""
    where = _MEMORY_DISK if os.access(_MEMORY_DISK, os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="stateline-", dir=where)
    try:
        yield str(Path(folder).resolve())
    finally:
        shutil.rmtree(folder)
