"""Rows that are handed to a function after their checkpoint exists.

The output rows of a subtask are a section, durable before the record that names it. So whoever comes after a crash
delivers the same rows under the same key. Retention keeps them as long as the checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stateline.checkpoint import Checkpoint
from stateline.errors import ErrorKind, InvalidInputError
from stateline.handles import RowsHandle

__all__ = ["BatchKey", "Delivery", "deliveries_of", "rows_without_function"]


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


def deliveries_of(record: Checkpoint) -> Sequence[Delivery]:
    """What a checkpoint delivers, by operator; subtasks in order."""
    return [
        Delivery(BatchKey(record.query_id, each.operator, record.checkpoint_id), each.rows)
        for each in record.deliveries
    ]


def rows_without_function(delivery: Delivery, operation: str) -> InvalidInputError:
    """The error of a program that has no function for rows that must be delivered."""
    return InvalidInputError(
        "the newest checkpoint has rows that wait for their function",
        operation=operation,
        subject=f"operator {delivery.key.operator}",
        hint="Start the program with .for_each_batch(fn) once more, so that they are delivered",
        kind=ErrorKind.SCHEMA_MISMATCH,
    )
