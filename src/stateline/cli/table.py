"""``stateline table``: the tables that the rows of a root go to."""

from __future__ import annotations

from typing import Final

import click

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore
from stateline.cli.output import CommandGroup, json_option, plain, print_facts, print_json, store_option, table_option
from stateline.pipeline.table_repair import Repair, TableRepair, repair_tables
from stateline.pipeline.table_status import TableStatus, table_statuses

__all__ = ["accept", "rewrite", "status", "table"]

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
    """Compare the tables of a root with its records, and repair them after a rollback."""


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


_operator_option: Final = click.option("--operator", help="The operator of the table; all tables by default.")
_apply_option: Final = click.option("--apply", is_flag=True, help="Do it; without it, only show what would be done.")


@table.command("rewrite")
@click.argument("root")
@_operator_option
@_apply_option
@table_option
@json_option
@store_option
def rewrite(
    root: str,
    operator: str | None,
    table_options: dict[str, str],
    options: dict[str, str],
    *,
    apply: bool,
    as_json: bool,
) -> None:
    """Commit again the checkpoints of ROOT that its tables have lost, as far as the records still hold them.

    A table loses rows when it is restored to an older version, replaced, or restored from a backup. Stop the query
    first. With --apply the missing checkpoints are committed in order, then the query continues. Without the records
    or files of one of them nothing is changed: see `stateline table accept`.
    """
    _repair(root, operator, Repair.REWRITE, table_options, options, apply=apply, as_json=as_json)


@table.command("accept")
@click.argument("root")
@_operator_option
@_apply_option
@table_option
@json_option
@store_option
def accept(
    root: str,
    operator: str | None,
    table_options: dict[str, str],
    options: dict[str, str],
    *,
    apply: bool,
    as_json: bool,
) -> None:
    """Accept the tables of ROOT without the rows that they have lost. These rows are never written again.

    Use it after a rollback that was meant, and where only the token of the query was lost. Look at the table first:
    the query continues behind its newest checkpoint. Stop the query first. With --apply the token is set.
    """
    _repair(root, operator, Repair.ACCEPT, table_options, options, apply=apply, as_json=as_json)


def _repair(
    root: str,
    operator: str | None,
    way: Repair,
    table_options: dict[str, str],
    options: dict[str, str],
    *,
    apply: bool,
    as_json: bool,
) -> None:
    store = CheckpointStore(open_store(root, options))
    for found in repair_tables(store, table_options, way, operator=operator, dry_run=not apply):
        if as_json:
            print_json(_repair_facts(found, applied=apply))
        else:
            click.echo(plain(_repair_text(found, way, applied=apply)))


def _repair_facts(found: TableRepair, *, applied: bool) -> dict[str, object]:
    return {
        "operator": found.operator,
        "table": found.target,
        "reason": found.reason,
        "due": found.due,
        "kept": found.kept,
        "rewritten": list(found.rewritten),
        "recorded": found.recorded,
        "applied": applied and bool(found.reason),
    }


def _repair_text(found: TableRepair, way: Repair, *, applied: bool) -> str:
    name = f"{found.operator}: {found.target}"
    if not found.reason:
        return f"{name}: no rows are missing"
    checkpoints = ", ".join(map(str, found.rewritten)) or "none"
    done = (
        f"checkpoints {'' if applied else 'to be '}committed again: {checkpoints}"
        if way is Repair.REWRITE
        else f"{'accepted' if applied else 'would be accepted'} as it is, up to checkpoint {found.due}"
    )
    return f"{name}: {found.reason}; {done}{'' if applied else '. Nothing was changed: add --apply'}"


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
