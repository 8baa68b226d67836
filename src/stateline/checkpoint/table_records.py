"""What a record remembers of the tables that its rows go to, among its properties. Pure.

A commit into a table follows the record, so a record names the table as it was *before* its own commit: which one it
is, and the newest checkpoint that was committed into it. With the checkpoint id that is all that the commit needs,
whoever makes it, and how often.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from stateline.checkpoint.api import Checkpoint
from stateline.checkpoint.envelope import decode_value

__all__ = ["TableRecord", "following_tables", "table_properties", "table_records", "without_tables"]

_PREFIX: Final = "table of "
"""Begins the name of a property; the name of the operator follows."""


class TableRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One table of one operator.

    Attributes:
        format: Its format.
        target: Its name or URL, without credentials; empty for a table whose URL is that of the output.
        app: The application under which its commits are known there: one operator of one root.
        mode: ``append`` or ``upsert``.
        key: Columns of an upsert.
        deletes: Whether its rows are of both kinds, those that come and those that go.
        partition_by: Columns by which a table of files is partitioned.
        takes_files: Whether its rows go in as files, and not themselves.
        columns: Digest of the columns of the rows, with which they were last compared with the table's.
        committed: The newest checkpoint before this record that has a commit; ``None`` for none.
        identity: The table's own identity, as far as it is known.
        version: Its version after that commit, where it is known: for people.
        checked: The version at which all rows up to an earlier commit were last seen to be there, where it is known:
            what other writers did since is read from the table's history.
    """

    format: str
    target: str
    app: str
    mode: str = "append"
    key: tuple[str, ...] = ()
    deletes: bool = False
    partition_by: tuple[str, ...] = ()
    takes_files: bool = True
    columns: str = ""
    committed: int | None = None
    identity: str = ""
    version: str = ""
    checked: str = ""


def table_records(record: Checkpoint) -> dict[str, TableRecord]:
    """The tables of a record by operator.

    Raises:
        CorruptDataError: One cannot be read.
    """
    return {
        name.removeprefix(_PREFIX): decode_value(
            text, TableRecord, "the table", f"property {name!r} of checkpoint {record.checkpoint_id}"
        )
        for name, text in record.properties.items()
        if name.startswith(_PREFIX)
    }


def following_tables(record: Checkpoint) -> dict[str, TableRecord]:
    """The tables as the record after this one remembers them."""
    return {
        operator: replace(table, committed=record.checkpoint_id, version="")
        if _commits(record, operator, table)
        else table
        for operator, table in table_records(record).items()
    }


def table_properties(tables: dict[str, TableRecord]) -> dict[str, str]:
    """Tables as properties of a record."""
    return {_PREFIX + operator: msgspec.json.encode(table).decode() for operator, table in tables.items()}


def without_tables(properties: dict[str, str]) -> dict[str, str]:
    """Properties for a new root: its commits are known under other names."""
    return {name: text for name, text in properties.items() if not name.startswith(_PREFIX)}


def _commits(record: Checkpoint, operator: str, table: TableRecord) -> bool:
    """Whether a record has rows for the table of an operator."""
    if table.takes_files:
        return any(output.finished for output in record.outputs if output.operator == operator)
    return any(delivery.operator == operator for delivery in record.deliveries)
