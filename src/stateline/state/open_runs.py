"""The runs that this process has open: proved, mapped or in memory."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from stateline.handles import SectionIdentity
from stateline.key_groups import KeyGroupRange
from stateline.state.runs import Run
from stateline.state.schema import StateSchema
from stateline.threads import new_lock

__all__ = ["OpenRun", "OpenRuns", "StackKey"]

_IDLE_SECONDS: Final = 600.0
"""A stack that nobody has opened for so long belongs to a query that has ended, or to another process by now."""


@dataclasses.dataclass(frozen=True, slots=True)
class OpenRun:
    """A proved run, or a part of one.

    Attributes:
        size: Bytes that it pins, mapped or in memory.
        max_parallelism: Number of key groups that it was written for.
        run: The rows, in place; its key groups say how much of the run they are.
    """

    size: int
    max_parallelism: int
    run: Run


OpenKey = tuple[str, SectionIdentity, int, int, StateSchema]
"""Store URL, identity of the section, length, CRC32C, schema."""

StackKey = tuple[str, str, int, int]
"""Whose runs a stack has: operator, table, first and last key group."""


class OpenRuns:
    """The runs that this process has proved and mapped: the least recently used go first. Safe from any thread.

    A mapped file keeps its room on the disk after its deletion. So what a stack has lost to a merge is let go when the
    stack is opened again, and so is all of a stack that nobody has opened for long, or that an earlier parallelism had.
    The bounds are for all the rest.

    Args:
        bytes_max: Bytes of all runs together; a mapped one costs page cache, not memory of the process.
        runs_max: Number of runs.
    """

    def __init__(self, bytes_max: int = 4 << 30, runs_max: int = 1024) -> None:
        self._bytes_max = bytes_max
        self._runs_max = runs_max
        self._lock = new_lock()
        self._runs: OrderedDict[OpenKey, tuple[OpenRun, ...]] = OrderedDict()
        self._stacks: OrderedDict[tuple[str, StackKey], tuple[float, frozenset[OpenKey]]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, key: OpenKey, key_groups: KeyGroupRange) -> OpenRun | None:
        """The run, if so much of it is open."""
        with self._lock:
            parts = self._runs.get(key, ())
            if parts:
                self._runs.move_to_end(key)
            return next((part for part in parts if _covers(part, key_groups)), None)

    def put(self, key: OpenKey, run: OpenRun) -> None:
        """Keeps a run, or a part of it, open, and lets others go until the bounds hold.

        One that is still in use stays readable.
        """
        with self._lock:
            before = self._runs.pop(key, ())
            parts = (*(part for part in before if not _covers(run, part.run.key_groups)), run)
            self._runs[key] = parts
            self._bytes += _bytes_of(parts) - _bytes_of(before)
            while self._runs and (self._bytes > self._bytes_max or len(self._runs) > self._runs_max):
                _, dropped = self._runs.popitem(last=False)
                self._bytes -= _bytes_of(dropped)

    def keep_only(self, store_url: str, stack: StackKey, keys: Iterable[OpenKey], now: float) -> None:
        """Says which runs a stack has at a time of the monotonic clock; those that no stack has any longer are let go.

        Other stacks of the same table whose key groups overlap with these are those of an earlier parallelism.
        """
        operator, table, first, last = stack
        opened = frozenset(keys)
        with self._lock:
            ended = [
                (url, other)
                for (url, other), (opened_at, _) in self._stacks.items()
                if opened_at < now - _IDLE_SECONDS
                or ((url, *other[:2]) == (store_url, operator, table) and other[2] <= last and first <= other[3])
            ]
            lost = frozenset[OpenKey]().union(*(self._stacks.pop(other)[1] for other in ended)) - opened
            for key in lost.difference(*(has for _, has in self._stacks.values())):
                self._bytes -= _bytes_of(self._runs.pop(key, ()))
            self._stacks[store_url, stack] = now, opened
            if len(self._stacks) > self._runs_max:
                self._stacks.popitem(last=False)

    def clear(self) -> None:
        """Lets all go."""
        with self._lock:
            self._runs.clear()
            self._stacks.clear()
            self._bytes = 0


def _covers(opened: OpenRun, key_groups: KeyGroupRange) -> bool:
    return opened.run.key_groups.intersection(key_groups) == key_groups


def _bytes_of(parts: Iterable[OpenRun]) -> int:
    return sum(part.size for part in parts)
