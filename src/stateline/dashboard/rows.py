"""Rows of state: one key over the retained checkpoints, and what happened to all keys between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Final

from stateline.blob import BlobStore
from stateline.checkpoint import Checkpoint
from stateline.errors import InvalidInputError, StatelineError
from stateline.state.changes import CHANGE_COLUMN, changes_of_stored
from stateline.state.plain_values import key_columns, python_rows, value_text
from stateline.state.schema import StateSchema
from stateline.state.stored import StoredState

__all__ = ["KeyHistory", "KeyMoment", "RowChange", "key_fields", "key_history", "row_changes"]

_TEXT_MAX: Final = 500
"""Characters of a value that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMoment:
    """What one checkpoint says of a key.

    Attributes:
        checkpoint_id: The checkpoint.
        created_at: Its time, seconds since the epoch.
        values: The texts of its columns; empty where the key is not there, or cannot be read.
        changed: Names of the columns that are not what they were in the checkpoint before.
        failure: Why it cannot be read; empty otherwise.
    """

    checkpoint_id: int
    created_at: float
    values: dict[str, str]
    changed: frozenset[str]
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyHistory:
    """One key over the retained checkpoints.

    Attributes:
        columns: Names of the columns of the newest checkpoint.
        moments: Newest first.
    """

    columns: tuple[str, ...]
    moments: tuple[KeyMoment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """What happened to one row.

    Attributes:
        kind: ``insert``, ``update_before``, ``update_after`` or ``delete``.
        values: The texts of its columns.
    """

    kind: str
    values: dict[str, str]


def key_fields(record: Checkpoint, operator: str) -> list[tuple[str, str]]:
    """The names and types of the key columns of an operator's state; none where its schema cannot be read."""
    state = record.operator(operator)
    try:
        schema = None if state is None else StateSchema.decode(state.schema)
    except StatelineError:
        schema = None
    return [] if schema is None else [(field.name, str(field.type)) for field in schema.keys]


def key_history(store: BlobStore, records: Sequence[Checkpoint], operator: str, key: Sequence[str]) -> KeyHistory:
    """Looks one key up in every retained checkpoint.

    Args:
        store: The root.
        records: The retained checkpoints, oldest first; at least one.
        operator: Whose state.
        key: One text for each key column.

    Raises:
        InvalidInputError: No such operator, or a text that is not a value of its column.
    """
    newest = StoredState.of(store, records[-1], operator)
    wanted = key_columns(newest.schema, key)
    reader = newest.reader()
    found: list[tuple[Checkpoint, dict[str, Any] | None, str]] = []
    for record in records:
        try:
            rows = python_rows(reader.get(newest.in_record(store, record).whole(), wanted))
        except InvalidInputError:
            raise
        except StatelineError as error:
            found.append((record, None, str(error)))
        else:
            found.append((record, rows[0] if rows else None, ""))
    moments = [_moment(*found[0], None)]
    moments += [_moment(*now, before[1]) for before, now in pairwise(found)]
    return KeyHistory(columns=tuple(newest.schema.row.names), moments=tuple(reversed(moments)))


def row_changes(
    store: BlobStore, before: Checkpoint, after: Checkpoint, operator: str, most: int
) -> tuple[list[RowChange], bool]:
    """What happened to the rows of an operator between two checkpoints of a root.

    Args:
        store: The root.
        before: The older one.
        after: The newer one.
        operator: Whose state.
        most: How many changes are wanted.

    Returns:
        The first of them, and whether there are more.

    Raises:
        DataLossError: One of the checkpoints was retired meanwhile, and its state is gone.
        StatelineError: It cannot be read.
    """
    new = StoredState.of(store, after, operator)
    old = new.in_record(store, before)
    rows = (row for batch in changes_of_stored(old, new) for row in python_rows(batch))
    some = list(islice(rows, most + 1))
    changes = [
        RowChange(
            kind=str(row[CHANGE_COLUMN]),
            values={name: _text(value) for name, value in row.items() if name != CHANGE_COLUMN},
        )
        for row in some[:most]
    ]
    return changes, len(some) > most


def _moment(record: Checkpoint, row: dict[str, Any] | None, failure: str, before: dict[str, Any] | None) -> KeyMoment:
    values = {} if row is None else {name: _text(value) for name, value in row.items()}
    earlier = {} if before is None else {name: _text(value) for name, value in before.items()}
    return KeyMoment(
        checkpoint_id=record.checkpoint_id,
        created_at=record.created_at,
        values=values,
        changed=frozenset(name for name in values if earlier.get(name) != values[name]),
        failure=failure,
    )


def _text(value: object) -> str:
    text = value_text(value)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
