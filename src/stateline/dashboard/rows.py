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

_ROWS_MAX: Final = 100
"""Rows of one key in one checkpoint that are shown."""

_TEXT_MAX: Final = 500
"""Characters of a value that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMoment:
    """What one checkpoint says of a key.

    Attributes:
        checkpoint_id: The checkpoint.
        created_at: Its time, seconds since the epoch.
        rows: The texts of the columns of each of its rows: one, but for tables with several rows for a key.
        changed: Names of the columns that are not what they were in the checkpoint before, where there is one row.
        failure: Why it cannot be read; empty otherwise.
    """

    checkpoint_id: int
    created_at: float
    rows: tuple[dict[str, str], ...]
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


def key_fields(record: Checkpoint, operator: str) -> list[tuple[str, str, bool]]:
    """The key columns of an operator's state: names, types, and whether one may be left out.

    None where the schema cannot be read.
    """
    state = record.operator(operator)
    try:
        schema = None if state is None else StateSchema.decode(state.schema)
    except StatelineError:
        schema = None
    if schema is None:
        return []
    needed = set(schema.grouping.keys.names)
    return [(field.name, str(field.type), field.name not in needed) for field in schema.keys]


def key_history(store: BlobStore, records: Sequence[Checkpoint], operator: str, key: Sequence[str]) -> KeyHistory:
    """Looks one key up in every retained checkpoint.

    Args:
        store: The root.
        records: The retained checkpoints, oldest first; at least one.
        operator: Whose state.
        key: One text for each key column; those of sub-keys may be left out.

    Raises:
        InvalidInputError: No such operator, or a text that is not a value of its column.
    """
    newest = StoredState.of(store, records[-1], operator)
    wanted = key_columns(newest.schema, key)
    reader = newest.reader()
    found: list[tuple[Checkpoint, list[dict[str, Any]], str]] = []
    for record in records:
        try:
            rows = python_rows(reader.get(newest.in_record(store, record).whole(), wanted))
        except InvalidInputError:
            raise
        except StatelineError as error:
            found.append((record, [], str(error)))
        else:
            found.append((record, rows, ""))
    moments = [_moment(*found[0], [])]
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


def _moment(record: Checkpoint, rows: list[dict[str, Any]], failure: str, before: list[dict[str, Any]]) -> KeyMoment:
    values = tuple({name: _text(value) for name, value in row.items()} for row in rows[:_ROWS_MAX])
    earlier = {name: _text(value) for name, value in before[0].items()} if len(before) == 1 else {}
    one = values[0] if len(rows) == 1 else {}
    return KeyMoment(
        checkpoint_id=record.checkpoint_id,
        created_at=record.created_at,
        rows=values,
        changed=frozenset(name for name in one if earlier.get(name) != one[name]),
        failure=failure,
    )


def _text(value: object) -> str:
    text = value_text(value)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
