"""Where the objects of a simulated world are: memory, local disk by system call, or anybody's own store.

A third party tests a store of its own with :class:`FactoryBackend`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final, Protocol

from stateline.blob.api import BlobStore
from stateline.blob.local import LocalStore, LocalStoreSettings
from stateline.blob.memory import MemoryStore
from stateline.environment import Clock, Environment
from stateline.testing.crashable import LOCAL_MODULES, scratch_folder
from stateline.testing.journal import Journal
from stateline.testing.system_calls import Gate, SystemCalls, intercepted

__all__ = [
    "Backend",
    "FactoryBackend",
    "LocalBackend",
    "MemoryBackend",
    "ScratchBackend",
]


_STORE_EPOCH: Final = 1_700_000_000.0
"""When the first object of a store was made."""

_TICK_SECONDS: Final = 0.001


class Backend(Protocol):
    """The objects of one world."""

    @property
    def position(self) -> int:
        """How many changes the disk has seen; 0 where nobody counts them."""
        ...

    @property
    def is_gated(self) -> bool:
        """Whether its system calls or requests go through the gate."""
        ...

    @property
    def is_struck(self) -> bool:
        """Whether faults strike below it alone, and so not at the calls on its stores."""
        ...

    def open(self, name: str, environment: Environment) -> BlobStore:
        """The store ``name``, opened anew by a process with ``environment``; all opens see the same objects."""
        ...

    def attached(self, gate: Gate) -> contextlib.AbstractContextManager[None]:
        """The time in which a world uses this backend; system calls go through ``gate``, if any can."""
        ...


class MemoryBackend:
    """Stores in memory, empty at the beginning of each world. One world at a time per ``label``."""

    def __init__(self, label: str = "world") -> None:
        self._label = label
        self._names: set[str] = set()
        self._made = count()

    @property
    def position(self) -> int:
        return 0

    @property
    def is_gated(self) -> bool:
        return False

    @property
    def is_struck(self) -> bool:
        return False

    def open(self, name: str, environment: Environment) -> BlobStore:
        full = f"{self._label}-{name}"
        if name not in self._names:
            self._names.add(name)
            MemoryStore.forget(full)
        clock = _StoreClock(environment.clock, self._made)
        return MemoryStore(full, Environment(clock=clock, ids=environment.ids, executors=environment.executors))

    @contextlib.contextmanager
    def attached(self, gate: Gate) -> Iterator[None]:
        yield
        for name in self._names:
            MemoryStore.forget(f"{self._label}-{name}")


class LocalBackend:
    """Stores on local disk, below one folder.

    Args:
        folder: An existing folder, whose content is the disk.
        by_system_call: Makes every system call a switch point that can fail, and records the changes.
        fsync: Whether the stores sync; off only where durability is not the question.
    """

    def __init__(self, folder: str, *, by_system_call: bool = True, fsync: bool = True) -> None:
        self.folder = folder
        self.journal = Journal(folder) if by_system_call else None
        self._settings = LocalStoreSettings(fsync=fsync)
        self._opened: list[LocalStore] = []

    @property
    def position(self) -> int:
        return len(self.journal.changes) if self.journal else 0

    @property
    def is_gated(self) -> bool:
        return self.journal is not None

    @property
    def is_struck(self) -> bool:
        return False

    def open(self, name: str, environment: Environment) -> BlobStore:
        store = LocalStore(f"{self.folder}/data/{name}", self._settings, environment)
        self._opened.append(store)
        return store

    @contextlib.contextmanager
    def attached(self, gate: Gate) -> Iterator[None]:
        calls = SystemCalls(gate, self.journal, self.folder)
        with intercepted(() if self.journal is None else LOCAL_MODULES, calls):
            yield
            for store in self._opened:
                store.close()


class ScratchBackend(LocalBackend):
    """As :class:`LocalBackend`, in a new folder that lives as long as one world."""

    def __init__(self, *, by_system_call: bool = True, fsync: bool = True) -> None:
        self._stack = contextlib.ExitStack()
        super().__init__(self._stack.enter_context(scratch_folder()), by_system_call=by_system_call, fsync=fsync)

    @contextlib.contextmanager
    def attached(self, gate: Gate) -> Iterator[None]:
        with self._stack, super().attached(gate):
            yield


class FactoryBackend:
    """Anybody's store.

    Args:
        factory: ``factory(name, environment)`` opens the store ``name``; every open sees the same objects.
        reset: Called before each world: removes all objects.
    """

    def __init__(self, factory: Callable[[str, Environment], BlobStore], reset: Callable[[], None]) -> None:
        self._factory = factory
        self._reset = reset

    @property
    def position(self) -> int:
        return 0

    @property
    def is_gated(self) -> bool:
        return False

    @property
    def is_struck(self) -> bool:
        return False

    def open(self, name: str, environment: Environment) -> BlobStore:
        return self._factory(name, environment)

    @contextlib.contextmanager
    def attached(self, gate: Gate) -> Iterator[None]:
        self._reset()
        yield


class _StoreClock:
    """What a service calls the present: no process's wrong clock reaches it, and it moves with each object made."""

    def __init__(self, clock: Clock, made: Iterator[int]) -> None:
        self._clock = clock
        self._made = made

    def now(self) -> float:
        return _STORE_EPOCH + self._clock.monotonic() + next(self._made) * _TICK_SECONDS

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)
