"""``stateline report``: the dashboard of one root as a file."""

from __future__ import annotations

import os
import tempfile
from contextlib import closing
from pathlib import Path

import click

from stateline.cli.output import plain, store_option
from stateline.dashboard.roots import RootFollower
from stateline.dashboard.run_indexes import RunIndexes
from stateline.extras import extra_module

__all__ = ["report"]


@click.command()
@click.argument("root")
@click.option(
    "--html", "file", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The file; it is replaced."
)
@click.option("--last", type=click.IntRange(min=1), help="Only so many of the newest checkpoints.")
@store_option
def report(root: str, file: Path, last: int | None, options: dict[str, str]) -> None:
    """Write what a root holds into one HTML file, which needs no server and no network."""
    pages = extra_module("stateline.dashboard.pages", "ui", subject="stateline report")
    with closing(RootFollower(root, options)) as follower:
        view = follower.look()
        if view.failure:
            raise click.ClickException(plain(view.failure))
        indexes = {} if view.newest is None else RunIndexes(follower.store).of(view.newest)
    _replace(file, pages.report_page(view, last, indexes))
    click.echo(f"{len(view.summaries):,} checkpoints of {plain(view.url)} written to {plain(str(file))}")


def _replace(file: Path, text: str) -> None:
    """Writes a file that is there whole or not at all."""
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(name, 0o644)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise
