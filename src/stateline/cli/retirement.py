"""``stateline checkpoint retire``: lets go of old checkpoints, also of those whose records are gone.

Owns arguments and printing. Does not own what is deleted, nor in which order (``stateline.checkpoint.retention``).
"""

from __future__ import annotations

import click

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore, CheckpointStoreSettings
from stateline.cli.output import json_option, map_options, plain, print_json, store_option

__all__ = ["retire"]


@click.command("retire")
@click.argument("root")
@click.option(
    "--keep", required=True, type=click.IntRange(min=1), metavar="N", help="How many of the newest checkpoints stay."
)
@click.option("--delete", is_flag=True, help="Really delete; without it, only say what would be retired.")
@json_option
@store_option
def retire(root: str, keep: int, options: tuple[str, ...], *, delete: bool, as_json: bool) -> None:
    """Retire all but the newest checkpoints of ROOT, also those whose records cannot be read or are gone.

    A query does it by itself, but never to a checkpoint that is damaged, because that may be restored from a copy. This
    is how to let go of it: what only it needed becomes a leftover for `stateline sweep`. Tombstones and markers of
    checkpoints that were retired before are written anew where they are gone. Safe while the query runs.
    """
    store = open_store(root, map_options(options))
    checkpoints = CheckpointStore(store, settings=CheckpointStoreSettings(retire_unreadable=True))
    ids = checkpoints.retirable(keep)
    if delete:
        checkpoints.retain(keep)
    if as_json:
        print_json({"root": store.url, "checkpoints": ids, "deleted": delete})
        return
    for checkpoint_id in ids:
        click.echo(f"{'retired' if delete else 'would retire'}  checkpoint {checkpoint_id}")
    click.echo(f"{plain(store.url)}: {len(ids)} checkpoints{' retired' if delete else ' to retire'}")
    if not delete:
        click.echo("Nothing was deleted: add --delete")
