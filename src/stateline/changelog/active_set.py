"""The set that is still growing: what was appended since the last one was closed.

An interrupt (Ctrl-C, any handler of a signal that raises) may come between any two steps of Python. Therefore:

- A change is there from one step on: the ``append`` to ``ends`` that follows its bytes. What lies beyond ``ends`` is
  a part of a change that was never finished, and nobody looks there.
- Buffers that hold such a part are not mended but left behind, by :meth:`ActiveSet.sealed`: whatever was interrupted
  may still have views of them.
- Everything else is a new :class:`ActiveSet`, made aside and put in place of the old one by a single assignment.
"""

from __future__ import annotations

from array import array
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from stateline.changelog.columns import ChangeColumns

__all__ = ["ActiveSet"]

_Columns: TypeAlias = "tuple[_Columns, ChangeColumns] | None"
"""Columns in their order, the newest outside: one more costs the same, however many there are."""


class ActiveSet:
    """See the module docstring. The writer appends to the buffers itself: a call for each change would cost too much.

    Attributes:
        number: Of the set.
        key_groups: Of each change that came alone, since the last columns.
        ends: Where each of them ends in ``data``, after a 0.
        data: Their bytes.
        room: How far ``data`` may grow until the set is full.
    """

    __slots__ = ("_sealed", "data", "ends", "key_groups", "number", "room")

    def __init__(self, number: int, room: int, sealed: _Columns = None) -> None:
        self.number = number
        self.room = room
        self._sealed = sealed
        self.key_groups = array("h")
        self.ends = array("q", [0])
        self.data = bytearray()

    def sealed(self) -> ActiveSet:
        """The same changes with new buffers: those that came alone are columns, in their place in the order."""
        count = len(self.ends) - 1
        if count == 0:
            return ActiveSet(self.number, self.room, self._sealed)
        columns = ChangeColumns(
            np.frombuffer(self.key_groups, np.int16, count), np.frombuffer(self.ends, np.int64), pa.py_buffer(self.data)
        )
        return ActiveSet(self.number, self.room - columns.weight, (self._sealed, columns))

    def with_columns(self, columns: ChangeColumns) -> ActiveSet:
        """The changes that are columns already, and then these. With the same buffers, which must be as new."""
        made = ActiveSet.__new__(ActiveSet)
        made.number, made.room = self.number, self.room - columns.weight
        made._sealed = (self._sealed, columns)  # noqa: SLF001 - a second constructor
        made.key_groups, made.ends, made.data = self.key_groups, self.ends, self.data
        return made

    def columns(self) -> list[ChangeColumns]:
        """The changes that are columns already, in order."""
        found = []
        rest = self._sealed
        while rest is not None:
            rest, columns = rest
            found.append(columns)
        return found[::-1]
