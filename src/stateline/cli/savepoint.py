"""``stateline savepoint``: copies of a checkpoint that stand by themselves."""

from __future__ import annotations

from typing import Final

import click

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore, create_savepoint, drop_savepoint, list_savepoints, open_savepoint
from stateline.checkpoint.layout import METADATA, SAVEPOINT_PREFIX
from stateline.checkpoint.position import SPARK_CHECKPOINT, has_position, position_problem
from stateline.cli.output import (
    CommandGroup,
    delete_option,
    json_option,
    plain,
    print_facts,
    print_json,
    progress,
    store_option,
    target_option,
    time_text,
)
from stateline.errors import CorruptDataError, InvalidInputError, NotFoundError
from stateline.options import parse_duration

__all__ = ["create", "drop", "ls", "savepoint"]

_COLUMNS: Final = {
    "folder": "folder",
    "state": "state",
    "checkpoint": "checkpoint_id",
    "created": "created",
    "source offsets": "position",
    "source": "source",
    "label": "label",
}


@click.group(cls=CommandGroup)
def savepoint() -> None:
    """Make, list and drop savepoints.

    A savepoint is a checkpoint that was copied, with all it needs, into one folder that may be moved.
    """


@savepoint.command("create")
@click.argument("root")
@click.argument("target")
@click.option("--checkpoint", "checkpoint_id", type=click.IntRange(min=0), help="Which one; the newest by default.")
@click.option(
    "--spark-checkpoint",
    metavar="URL",
    help="Where Spark keeps the query's checkpoint; by default where the record says.",
)
@click.option("--label", default="", help="Free text that is kept with it.")
@click.option("--wait", default="30s", show_default=True, help="Time that a running query has to publish its files.")
@target_option
@json_option
@store_option
def create(
    root: str,
    target: str,
    checkpoint_id: int | None,
    spark_checkpoint: str | None,
    label: str,
    wait: str,
    target_options: dict[str, str],
    options: dict[str, str],
    *,
    as_json: bool,
) -> None:
    """Copy a checkpoint of ROOT into a new folder below TARGET. Safe while the query runs.

    TARGET may be on another store. A query starts from the printed URL with KeyedStream(..., start_from=URL), and
    continues where the sources stand. Without access to Spark's checkpoint the savepoint holds the state alone.
    """
    patience = parse_duration(wait, "--wait")
    source = CheckpointStore(open_store(root, options))
    store = open_store(target, target_options)
    with progress("copying", hidden=as_json) as tell:
        made = create_savepoint(
            source,
            store,
            checkpoint_id=checkpoint_id,
            label=label,
            spark_checkpoint=spark_checkpoint,
            progress=tell,
            patience=patience,
        )
    reason = "" if has_position(made.checkpoint) else position_problem(made.checkpoint)
    if as_json:
        facts = {"url": made.url, "checkpoint_id": made.checkpoint.checkpoint_id}
        print_json(facts | {"source_offsets": not reason, "reason": reason})
        return
    click.echo(plain(made.url))
    if reason and SPARK_CHECKPOINT in made.checkpoint.properties:  # State of a plain Python program has no sources.
        click.echo(plain(f'It has no source offsets: {reason}. A query starts from it with source="new".'), err=True)


@savepoint.command("ls")
@click.argument("url")
@json_option
@store_option
@click.pass_context
def ls(context: click.Context, url: str, options: dict[str, str], *, as_json: bool) -> None:
    """List the savepoints directly below URL, and what an interrupted creation or removal left.

    Exits with 1 if the record of one cannot be read.
    """
    store = open_store(url, options)
    complete = set(list_savepoints(store))
    folders = {info.name.partition("/")[0] for info in store.list(SAVEPOINT_PREFIX) if "/" in info.name}
    facts = []
    damaged = False
    for folder in sorted(folders):
        fact: dict[str, object] = {"folder": folder, "state": "incomplete"}
        if folder in complete:
            try:
                found = open_savepoint(store, folder)
                owner = found.owner()
                source = found.checkpoint.properties
                fact |= {
                    "state": "free" if owner is None else f"owned by {owner}",
                    "checkpoint_id": found.checkpoint.checkpoint_id,
                    "created": time_text(found.checkpoint.created_at),
                    "position": "yes" if has_position(found.checkpoint) else "no",
                    "source": source.get("savepoint.source", ""),
                    "label": source.get("savepoint.label", ""),
                }
            except (CorruptDataError, InvalidInputError) as error:
                damaged = True
                fact |= {"state": f"DAMAGED {(error.subject or '').rpartition('/')[2]}: {error.message}"}
        facts.append(fact)
    print_facts(facts, _COLUMNS, as_json=as_json)
    context.exit(1 if damaged else 0)


@savepoint.command("drop")
@click.argument("url")
@delete_option
@click.option("--owned-by", metavar="QUERY", help="Also if this query has claimed it: where that is gone for good.")
@json_option
@store_option
def drop(url: str, owned_by: str | None, options: dict[str, str], *, delete: bool, as_json: bool) -> None:
    """Delete the savepoint whose folder is URL, or what an interrupted creation left there.

    Without --delete nothing is deleted. A savepoint that a query has claimed is that query's, and is refused. So is a
    copy of its folder, which looks the same: name the query with --owned-by.
    """
    parent, _, folder = url.rstrip("/").removesuffix(f"/{METADATA}").rpartition("/")
    store = open_store(parent or ".", options)
    if not folder or next(store.list(f"{folder}/"), None) is None:
        raise NotFoundError("there is no such folder", subject=url, hint="`stateline savepoint ls` names them")
    names = drop_savepoint(store, folder, dry_run=not delete, owned_by=owned_by)
    if as_json:
        print_json({"folder": folder, "deleted": delete, "objects": names})
        return
    for name in names:
        click.echo(f"{'deleted' if delete else 'would delete'}  {plain(name)}")
    if not delete:
        click.echo("Nothing was deleted: add --delete")
