"""``stateline table``: the tables that the rows of a root go to."""

from __future__ import annotations

from typing import Final

import click

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore
from stateline.cli.output import CommandGroup, json_option, print_facts, store_option, table_option
from stateline.pipeline.table_status import TableStatus, table_statuses

__all__ = ["status", "table"]

_COLUMNS: Final = {
    "operator": "operator",
    "table": "table",
    "state": "state",
    "due": "due",
    "committed": "committed",
    "version": "version",
    "mode": "mode",
}


@click.group(cls=CommandGroup)
def table() -> None:
    """Look at the tables that the rows of a root go to."""


@table.command("status")
@click.argument("root")
@table_option
@json_option
@store_option
@click.pass_context
def status(
    context: click.Context, root: str, table_options: dict[str, str], options: dict[str, str], *, as_json: bool
) -> None:
    """Compare the tables of ROOT with its newest record. Nothing is changed.

    `due` is the newest checkpoint whose rows are to be in the table, `committed` the newest one whose rows are.
    A commit that is pending is made when the query starts. Exits with 1 if a table has lost rows, is another one, or
    cannot be reached. --table-option says how it is: the options that write_table was given.
    """
    found = table_statuses(CheckpointStore(open_store(root, options)), table_options)
    print_facts([_facts(each) for each in found], _COLUMNS, as_json=as_json)
    context.exit(0 if all(each.verdict.is_sound for each in found) else 1)


def _facts(status: TableStatus) -> dict[str, object]:
    detail = f": {status.detail}" if status.detail else ""
    return {
        "operator": status.operator,
        "table": status.target,
        "state": f"{status.verdict}{detail}",
        "due": status.due,
        "committed": status.committed,
        "version": status.version,
        "mode": status.record.mode,
        "application": status.record.app,
        "identity": status.record.identity,
    }
