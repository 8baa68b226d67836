"""``stateline checkpoint relocate``: outputs that lie elsewhere now.

Owns arguments and printing. Does not own what is checked and recorded (``stateline.checkpoint.relocation``).
"""

from __future__ import annotations

import click

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore, Relocation, relocate_outputs
from stateline.cli.output import json_option, map_options, plain, print_json, store_option

__all__ = ["relocate"]


@click.command("relocate")
@click.argument("root")
@click.option(
    "--output",
    "outputs",
    multiple=True,
    required=True,
    metavar="OPERATOR=URL",
    help="Where the output of an operator is now; may be repeated. That of stateline_files is called files.",
)
@click.option("--record", is_flag=True, help="Really record it; without it, only look whether all is there.")
@click.option(
    "--output-option", "output_options", multiple=True, metavar="NAME=VALUE", help="A setting of the outputs."
)
@json_option
@store_option
def relocate(
    root: str,
    outputs: tuple[str, ...],
    output_options: tuple[str, ...],
    options: tuple[str, ...],
    *,
    record: bool,
    as_json: bool,
) -> None:
    """Record that outputs of the query of ROOT were moved, so that it goes on there.

    Stop the query first, and move the whole folder, with what begins with a point. What the newest checkpoint needs is
    looked for in the new place. With --record one more checkpoint says where the outputs are: the same state, the same
    open files. Then start the program with the new place. A root that was moved itself needs no command.
    """
    settings = map_options(output_options)
    stores = {operator: open_store(url, settings) for operator, url in map_options(outputs, "--output").items()}
    found = relocate_outputs(CheckpointStore(open_store(root, map_options(options))), stores, dry_run=not record)
    places = _places(found)
    is_new = found.record is not found.before
    if as_json:
        print_json(
            {
                "checkpoint_id": found.record.checkpoint_id,
                "recorded": record and is_new,
                "bytes_read": found.bytes_read,
                "outputs": places,
            }
        )
        return
    for place in places:
        click.echo(
            plain(
                f"output of {place['operator']}: {place['old']} -> {place['new']}, {place['open']} open files, "
                f"{place['finished']} to be made visible"
            )
        )
    if not is_new:
        click.echo(f"Nothing to record: checkpoint {found.record.checkpoint_id} says so already")
    elif record:
        click.echo(f"Recorded as checkpoint {found.record.checkpoint_id}")
    else:
        click.echo("All that is needed is there. Nothing was recorded: add --record")


def _places(found: Relocation) -> list[dict[str, object]]:
    """The outputs that move."""
    return [
        {
            "operator": new.operator,
            "old": old.url,
            "new": new.url,
            "open": len(new.open),
            "finished": len(new.finished),
        }
        for old, new in zip(found.before.outputs, found.record.outputs, strict=True)
        if old.url != new.url
    ]
