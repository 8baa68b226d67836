"""Rows that are handed to a function after their checkpoint exists: what the record says of them. No Spark in here.

Owns the names in the record, and the key under which rows are delivered. Does not own the rows (``files.pending``),
when they are delivered (``coordinator``), nor the call (``for_each_batch``).

The output rows of a subtask are one object in the root, durable before the record that names it: ``states`` holds it as
``delivery/<operator>/<subtask>``. So whoever comes after a crash delivers the same rows under the same key. Retention
keeps the object as long as the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from stateline.checkpoint import DELIVERY_PREFIX, Checkpoint, FileState, InlineState
from stateline.handles import RowsHandle

__all__ = ["BatchKey", "Delivery", "deliveries_of", "delivery_states"]


@dataclass(frozen=True, slots=True)
class BatchKey:
    """What identifies the rows of one delivery, for ever: the same key comes with the same rows.

    ``str(key)`` is ``<query_id>/<operator>/<checkpoint_id>``.

    Attributes:
        query_id: The streaming query, constant over restarts.
        operator: The keyed stream whose output it is.
        checkpoint_id: The checkpoint that made the rows: ascending, with gaps where there were no rows.
    """

    query_id: str
    operator: str
    checkpoint_id: int

    def __str__(self) -> str:
        return f"{self.query_id}/{self.operator}/{self.checkpoint_id}"


@dataclass(frozen=True, slots=True)
class Delivery:
    """The output of one operator in one checkpoint.

    Attributes:
        key: Its key.
        rows: One handle for each subtask that had rows.
    """

    key: BatchKey
    rows: tuple[RowsHandle, ...]


class _Delivering(Protocol):
    @property
    def operator(self) -> str: ...
    @property
    def subtask(self) -> int: ...
    @property
    def delivery(self) -> FileState | None: ...


def delivery_states(results: Iterable[_Delivering]) -> dict[str, InlineState | FileState]:
    """What a record says of the rows that its subtasks made."""
    return {
        f"{DELIVERY_PREFIX}{result.operator}/{result.subtask:05}": result.delivery
        for result in results
        if result.delivery is not None
    }


def deliveries_of(record: Checkpoint) -> Sequence[Delivery]:
    """What a checkpoint delivers, by operator; subtasks in order."""
    found: dict[str, list[RowsHandle]] = {}
    for name, state in sorted(record.states.items()):
        if name.startswith(DELIVERY_PREFIX) and isinstance(state, FileState):
            operator = name.removeprefix(DELIVERY_PREFIX).rpartition("/")[0]
            handle = RowsHandle(name=state.name, offset=0, length=state.size, crc32c=state.crc32c, rows=None)
            found.setdefault(operator, []).append(handle)
    return [
        Delivery(BatchKey(record.query_id, operator, record.checkpoint_id), tuple(rows))
        for operator, rows in found.items()
    ]
