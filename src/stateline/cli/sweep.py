"""``stateline sweep``: what crashed writers left in checkpoint roots and in the outputs of their queries."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import click

from stateline.blob import BlobStore, open_store
from stateline.blob.api import ObjectInfo
from stateline.blob.places import check_named
from stateline.blob.sweep import SweepResult, reachable_names
from stateline.blob.sweep import sweep as sweep_staged
from stateline.checkpoint import Checkpoint, CheckpointStore, RootSweep, sweep_root
from stateline.cli.jobs import jobs_beside, sweep_jobs
from stateline.cli.output import (
    delete_option,
    json_option,
    output_option,
    plain,
    print_json,
    progress,
    store_option,
    time_text,
)
from stateline.environment import system_environment
from stateline.errors import InvalidInputError
from stateline.options import parse_duration

__all__ = ["sweep"]

_LONGEST_BATCH: Final = 7 * 86_400.0
"""Seconds after which nobody will name a staged piece any more, whatever the newest checkpoint is."""

_SLACK_SECONDS: Final = 60.0
"""How exactly stores tell times, and how long it may take until one has told the present."""

_COUNTS: Final = ("examined", "reachable", "young", "leftovers", "leftover_bytes", "deleted")


@click.command("sweep")
@click.argument("roots", metavar="ROOT...", nargs=-1, required=True)
@delete_option
@click.option("--min-age", default="7d", show_default=True, help="What is younger stays, such as 36h or 7d.")
@click.option("--outputs", is_flag=True, help="Also sweep the outputs that the checkpoints name.")
@click.option("--also", multiple=True, metavar="OUTPUT", help="Also sweep an output that no checkpoint names.")
@output_option
@json_option
@store_option
def sweep(
    roots: tuple[str, ...],
    min_age: str,
    also: tuple[str, ...],
    output_options: dict[str, str],
    options: dict[str, str],
    *,
    delete: bool,
    outputs: bool,
    as_json: bool,
) -> None:
    """Find and delete what crashed writers left behind.

    A leftover is an object that no retained checkpoint reaches (no run, no pending rows, no state file, no piece of a
    finished file) and that is older than --min-age. Give more than the longest time between writing an object
    and recording it, which is one micro-batch with all its retries.

    With --outputs the hidden staging folders of the outputs are swept, too: of those that lie in the folder where ROOT
    lies, or below an --also. An output elsewhere is refused, so that a record cannot lead a sweep to it. Give every
    ROOT whose query writes to them: pieces of a query whose root is not given look like leftovers. What is younger than
    the newest checkpoint stays, even if --min-age is shorter, until it is 7 days old: the next checkpoint may name it.

    Where ROOT belongs to stateline_files, its batch jobs are looked at, too. If only batch jobs write to an output,
    there is no checkpoint: give the place where a stream's would be, OUTPUT/.stateline/stream, and --also OUTPUT.
    """
    grace = parse_duration(min_age, "--min-age")
    world = system_environment()
    clock = world.clock
    began = clock.monotonic()
    tell = _Teller(delete=delete, as_json=as_json)
    stores = [open_store(root, options) for root in roots]
    swept: list[RootSweep] = []
    checkpoints: list[Checkpoint] = []
    for store in stores:
        # All roots are read before anything is deleted from an output.
        jobs = jobs_beside(store, options)
        if jobs is not None:
            of_jobs = sweep_jobs(
                jobs, options, grace, delete=delete, on_leftover=partial(tell.leftover, jobs.url), world=world
            )
            checkpoints += of_jobs.checkpoints
            tell.result(jobs, of_jobs.result)
            if (also or of_jobs.result.examined) and CheckpointStore(store).latest() is None:
                continue
        with progress("sweeping", hidden=as_json) as told:
            swept.append(
                sweep_root(
                    CheckpointStore(store),
                    min_age=min_age,
                    delete=delete,
                    on_leftover=partial(tell.leftover, store.url),
                    progress=told,
                )
            )
        tell.result(store, swept[-1].result)
    checkpoints += [checkpoint for result in swept for checkpoint in result.checkpoints]
    targets = {store.url: store for store in stores}
    urls = {output.url for checkpoint in checkpoints for output in checkpoint.outputs} if outputs else set()
    for url in sorted(urls):
        _check_named(url, stores, also)
    for url in sorted(urls.union(also)):
        output = open_store(url, output_options)
        targets.setdefault(output.url, output)
    # Of all outputs: one place may have several URLs, such as a link to a moved folder. Names of pieces are unique.
    needed = reachable_names(
        file.commit for checkpoint in checkpoints for output in checkpoint.outputs for file in output.finished
    )
    newest_age = max((result.newest_age for result in swept), default=0.0) + _SLACK_SECONDS
    for store in targets.values():
        # Each target is swept at its own present: what was just younger than the newest record must be so there, too.
        since_newest = newest_age + clock.monotonic() - began
        staged_age = max(grace, min(since_newest, _LONGEST_BATCH))
        found = sweep_staged(
            store, needed, min_age=staged_age, delete=delete, on_leftover=partial(tell.leftover, store.url)
        )
        tell.result(store, found, what="staged pieces")
    if not delete and not as_json:
        click.echo("Nothing was deleted: add --delete")


def _check_named(url: str, roots: Sequence[BlobStore], also: Sequence[str]) -> None:
    """Refuses an output that a record names, unless it lies beside one of the roots or below an ``--also``.

    Raises:
        InvalidInputError: It lies elsewhere.
    """
    hint = f"Add --also {url} if it is yours: otherwise somebody has written to the root. Nothing was deleted there"
    *others, last = roots
    for root in others:
        with suppress(InvalidInputError):
            check_named(url, root.url, also, operation="sweep", hint=hint)
            return
    check_named(url, last.url, also, operation="sweep", hint=hint)


class _Teller:
    """Prints each leftover as it is found, and the sums."""

    def __init__(self, *, delete: bool, as_json: bool) -> None:
        self._verb = "deleting" if delete else "leftover"
        self._delete = delete
        self._as_json = as_json

    def leftover(self, url: str, info: ObjectInfo) -> None:
        modified = time_text(info.modified_at)
        if self._as_json:
            print_json({"store": url, "object": info.name, "bytes": info.size, "modified": modified})
        else:
            click.echo(f"{self._verb}  {plain(url)}/{plain(info.name)}  {info.size:,} bytes, modified {modified}")

    def result(self, store: BlobStore, result: SweepResult, what: str = "objects") -> None:
        if self._as_json:
            facts = {name: getattr(result, name) for name in _COUNTS}
            print_json({"store": store.url, "looked_at": what, **facts})
            return
        click.echo(
            f"{plain(store.url)}: {result.examined} {what}, {result.reachable} reachable, {result.young} too young, "
            f"{result.leftovers} leftovers of {result.leftover_bytes:,} bytes{' deleted' if self._delete else ''}"
        )
