"""``stateline watch``: what a root does, in the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Final

import click
import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stateline.checkpoint.history import CheckpointSummary
from stateline.cli.output import json_option, plain, print_json, store_option
from stateline.dashboard.roots import RootFollower, RootView
from stateline.dashboard.state_shape import state_shapes
from stateline.dashboard.timeline import Timeline
from stateline.environment import system_environment
from stateline.quantities import bytes_text, count_text, duration_text

__all__ = ["watch"]

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_LAST: Final = 500
_ROWS: Final = 10
_BARS: Final = 60
_NAME: Final = 40


@click.command()
@click.argument("root")
@click.option(
    "--interval", default=2.0, show_default=True, type=click.FloatRange(min=0.1), help="Seconds between looks."
)
@click.option("--once", is_flag=True, help="Look once and end; so it is where the output is not a terminal, too.")
@json_option
@store_option
@click.pass_context
def watch(
    context: click.Context, root: str, interval: float, options: dict[str, str], *, once: bool, as_json: bool
) -> None:
    """Follow a root: its checkpoints as they come, its state and its watermarks. Ends with Ctrl-C.

    With --json, one object for each checkpoint of the history, and then for each that comes.
    """
    console, clock = Console(), system_environment().clock
    with closing(RootFollower(root, options)) as follower:
        view = follower.look()
        once = once or not (console.is_terminal or as_json)
        if as_json:
            shown = _print_new(view, -1)
            while not once:
                clock.sleep(interval)
                view = follower.look()
                shown = _print_new(view, shown)
        elif once:
            console.print(_screen(view))
        else:
            with Live(_screen(view), console=console, screen=True, auto_refresh=False) as live:
                while True:
                    clock.sleep(interval)
                    view = follower.look()
                    live.update(_screen(view), refresh=True)
    if view.failure:
        context.exit(1)


def _print_new(view: RootView, shown: int) -> int:
    """Prints what comes after a checkpoint; returns the newest one that was printed."""
    for summary in view.summaries:
        if summary.checkpoint_id > shown:
            print_json(_facts(summary))
            shown = summary.checkpoint_id
    return shown


def _facts(summary: CheckpointSummary) -> dict[str, object]:
    return {
        "checkpoint_id": summary.checkpoint_id,
        "batch_id": summary.batch_id,
        "created_at": summary.created_at,
        "run": summary.run,
        **summary.figures,
    }


def _screen(view: RootView) -> RenderableType:
    """All that is shown of a root."""
    timeline = Timeline.of(view, _LAST)
    parts: list[RenderableType] = [_heading(view, timeline)]
    parts += [Text(plain(note), style="yellow") for note in (view.failure, *view.notes) if note]
    if timeline.summaries:
        parts += [_bars(timeline), _checkpoints(timeline)]
    parts += [table for table in (_state(view), _inputs(view), _outputs(view)) if table is not None]
    return Group(*parts)


def _heading(view: RootView, timeline: Timeline) -> RenderableType:
    newest = view.newest
    if newest is None:
        text = Text("no checkpoint yet" if not view.failure else "cannot be read")
    else:
        facts = [
            f"#{newest.checkpoint_id:,}, {duration_text(max(view.looked_at - newest.created_at, 0.0))} ago",
            f"{duration_text(timeline.median(timeline.seconds))} each",
            f"{count_text(timeline.rate('rows'))} rows/s",
            *(f"{name}: {timeline.count(kind)}" for kind, name in _COUNTED if timeline.count(kind)),
        ]
        text = Text("   ".join(facts))
    return Panel(text, title=Text(plain(view.url)), title_align="left", border_style="cyan")


_COUNTED: Final = (("restart", "restarts"), ("replay", "replays"), ("fenced", "fencings"))


def _bars(timeline: Timeline) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    lines = (
        ("duration", timeline.seconds, duration_text),
        ("rows", timeline.column("rows"), count_text),
        ("written", timeline.column("state_bytes_written"), bytes_text),
    )
    for name, values, number in lines:
        newest = values[-_BARS:]
        known = newest[~np.isnan(newest)]
        if len(known):
            bars = Text(_spark(newest.tolist()), style="cyan")
            table.add_row(name, bars, f"up to {number(float(known.max()))}")
    return table


def _spark(values: Sequence[float]) -> str:
    top = max((value for value in values if not math.isnan(value)), default=0.0) or 1.0
    last = len(_BLOCKS) - 1
    return "".join(" " if math.isnan(value) else _BLOCKS[max(round(last * value / top), 0)] for value in values)


def _checkpoints(timeline: Timeline) -> Table:
    kinds: dict[int, list[str]] = {}
    for event in timeline.events:
        kinds.setdefault(event.checkpoint_id, []).append(event.kind)
    seconds = timeline.seconds[-_ROWS:].tolist()
    rows = []
    for summary, took in reversed(list(zip(timeline.summaries[-_ROWS:], seconds, strict=True))):
        figures = summary.figures
        rows.append(
            (
                f"#{summary.checkpoint_id:,}",
                duration_text(took),
                count_text(figures.get("rows")),
                count_text(figures.get("keys")),
                bytes_text(figures.get("state_bytes_written")),
                count_text(figures.get("files_finished")),
                " ".join(kinds.get(summary.checkpoint_id, ())),
            )
        )
    return _table("checkpoint", ("took", "rows", "keys", "written", "files", ""), rows)


def _state(view: RootView) -> Table | None:
    shapes = [] if view.newest is None else state_shapes(view.newest)
    rows = [
        (
            _short(shape.name),
            count_text(shape.stored_rows),
            bytes_text(shape.stored_bytes),
            count_text(shape.runs),
            bytes_text(shape.debt_bytes),
            "" if shape.skew is None else f"{shape.skew:.2f}",
        )
        for shape in shapes
    ]
    return _table("state", ("rows", "bytes", "runs", "to be merged", "skew"), rows) if rows else None


def _inputs(view: RootView) -> Table | None:
    inputs = () if view.newest is None else view.newest.inputs
    rows = [
        (
            _short(each.name),
            "none yet" if each.watermark_us is None else duration_text(view.looked_at - each.watermark_us / 1e6),
        )
        for each in inputs
    ]
    return _table("input", ("watermark behind now",), rows) if rows else None


def _outputs(view: RootView) -> Table | None:
    outputs = () if view.newest is None else view.newest.outputs
    rows = [
        (
            _short(output.operator),
            count_text(len(output.open)),
            count_text(sum(file.rows for file in output.open)),
            count_text(len(output.finished)),
            "visible" if view.is_published else "not yet visible",
        )
        for output in outputs
    ]
    return _table("output", ("open files", "rows that wait", "finished", ""), rows) if rows else None


def _table(first: str, others: Iterable[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim", title_justify="left")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _short(name: str) -> str:
    text = plain(name)
    return text if len(text) <= _NAME else f"{text[: _NAME - 1]}…"
