"""What each page shows, as values: from a root's records to tables, figures and plots. Pure.

The rows of state on the pages of a key and of differences are read by :mod:`stateline.dashboard.rows`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from stateline.checkpoint import Checkpoint
from stateline.checkpoint.history import CheckpointSummary
from stateline.checkpoint.table_records import table_records
from stateline.dashboard.plots import Mark, Plot, heat_strip, line_plot, sparkline, stacked_plot
from stateline.dashboard.roots import RootView
from stateline.dashboard.state_shape import StateShape, folded, state_shapes
from stateline.dashboard.timeline import PARTS, Bin, Event, Timeline, Values, binned
from stateline.dashboard.view_models import (
    CheckpointRow,
    CheckpointsView,
    FigureDifference,
    HeatMap,
    InputRow,
    OutputRow,
    OutputsView,
    OverviewCard,
    StateRow,
    StateView,
    TableRow,
    Tile,
    TimeView,
)
from stateline.errors import StatelineError
from stateline.handles import SectionIdentity
from stateline.quantities import UNKNOWN, bytes_text, count_text, duration_text, share_text
from stateline.state.plain_values import time_text
from stateline.state.run_index import RunIndex

__all__ = [
    "checkpoints_view",
    "figure_differences",
    "outputs_view",
    "overview_card",
    "state_view",
    "time_view",
]

_BINS: Final = 160
_CELLS: Final = 256
_ROWS: Final = 30
_EVENTS: Final = 50
_SPARKS: Final = 60
_SKEWED: Final = 1.5
_EVEN_SHADE: Final = 2.0
"""The darkest shade stands for so many times the mean at least: what is even has a shade in the middle."""

_MARKED: Final = ("restart", "replay", "fenced", "rescale")

Number = Callable[[float | None], str]


def overview_card(view: RootView) -> OverviewCard:
    """A root in short."""
    newest = view.newest
    timeline = Timeline.of(view, _SPARKS)
    tiles: list[Tile] = []
    if newest is not None:
        tiles = [
            Tile(label="checkpoint", value=f"{newest.checkpoint_id:,}", hint=_ago(view, newest)),
            Tile(label="duration", value=duration_text(timeline.median(timeline.seconds)), hint="median"),
            Tile(label="rows/s", value=count_text(timeline.rate("rows"))),
            Tile(label="state", value=bytes_text(sum(shape.stored_bytes for shape in state_shapes(newest)))),
        ]
    return OverviewCard(
        url=view.url,
        failure=view.failure,
        notes=len(view.notes),
        tiles=tuple(tiles),
        spark=sparkline(timeline.seconds.tolist()),
    )


def checkpoints_view(view: RootView, last: int | None) -> CheckpointsView:
    """The page of the newest ``last`` checkpoints; ``None`` for all."""
    timeline = Timeline.of(view, last)
    bins = timeline.bins(_BINS)
    marks = _marks(timeline.events, bins)
    labels = _labels(timeline, bins)
    draw = _Drawing(timeline, bins, labels, marks)
    written, state = timeline.column("state_bytes_written"), timeline.column("state_bytes")
    inherited = np.where(np.isnan(state), written, np.maximum(state - np.nan_to_num(written), 0))
    plots = [
        draw.stack(
            "Duration",
            timeline.parts,
            duration_text,
            colours={part: at for at, part in enumerate(PARTS)},
        ),
        draw.stack("Rows", {"on time": _less(timeline, "rows", "rows_late"), "late": timeline.column("rows_late")}),
        draw.stack("Changed keys", {"keys": timeline.column("keys")}),
        draw.stack("State written", {"bytes": written}, bytes_text),
        draw.stack("State of each checkpoint", {"inherited": inherited, "written": written}, bytes_text),
        draw.stack("Fetched by subtasks", {"bytes": timeline.column("bytes_fetched")}, bytes_text),
        draw.stack("Requests of subtasks", {"requests": timeline.column("requests")}),
        draw.stack(
            "Output files",
            {"finished": timeline.column("files_finished"), "opened": timeline.column("files_opened")},
        ),
        draw.stack("Runs merged", {"runs": timeline.column("runs_merged")}),
        draw.lines("Runs in all stacks", {"runs": timeline.column("runs")}),
    ]
    retained = {record.checkpoint_id for record in view.records}
    return CheckpointsView(
        tiles=_checkpoint_tiles(view, timeline, written, inherited),
        plots=tuple(plot for plot in plots if plot is not None),
        events=tuple(timeline.events[: -_EVENTS - 1 : -1]),
        rows=tuple(_rows(timeline, retained)),
        shown=len(timeline.summaries),
        total=len(view.summaries),
    )


def state_view(
    view: RootView, last: int | None, indexes: Mapping[SectionIdentity, RunIndex] | None = None
) -> StateView:
    """The page of state: the newest checkpoint in detail, and its growth.

    Args:
        view: The root.
        last: Of the newest checkpoints, how many; ``None`` for all.
        indexes: Those of the runs of the newest checkpoint that are known.
    """
    timeline = Timeline.of(view, last)
    draw = _Drawing.of(timeline)
    newest = view.newest
    shapes = [] if newest is None else state_shapes(newest, indexes)
    stored, debt = sum(shape.stored_bytes for shape in shapes), sum(shape.debt_bytes for shape in shapes)
    tiles = (
        Tile(
            label="stored rows", value=count_text(sum(shape.stored_rows for shape in shapes)), hint="old versions too"
        ),
        Tile(label="bytes", value=bytes_text(stored)),
        Tile(label="runs", value=count_text(sum(shape.runs for shape in shapes))),
        Tile(label="to be merged", value=bytes_text(debt), hint=f"{share_text(debt, stored)} of all bytes"),
    )
    plots = [
        draw.stack("Bytes of each operator", timeline.columns_of("state_bytes"), bytes_text),
        draw.stack("Stored rows of each operator", timeline.columns_of("state_rows")),
        draw.lines("Runs of each operator", timeline.columns_of("runs")),
    ]
    return StateView(
        checkpoint_id=None if newest is None else newest.checkpoint_id,
        tiles=tiles if shapes else (),
        rows=tuple(map(_state_row, shapes)),
        plots=tuple(plot for plot in plots if plot is not None),
    )


def time_view(view: RootView, last: int | None) -> TimeView:
    """The page of event time."""
    timeline = Timeline.of(view, last)
    draw = _Drawing.of(timeline)
    newest = view.newest
    rows = []
    for each in () if newest is None else newest.inputs:
        known = each.watermark_us is not None
        at = (each.watermark_us or 0) / 1e6
        rows.append(
            InputRow(
                name=each.name,
                column=each.column,
                watermark=time_text(at) if known else "none yet",
                late="none yet" if each.late_watermark_us is None else time_text(each.late_watermark_us / 1e6),
                lag=duration_text(newest.created_at - at) if known and newest is not None else UNKNOWN,
                lag_now=duration_text(view.looked_at - at) if known else UNKNOWN,
            )
        )
    plots = [draw.lines("Lag of the watermark behind the checkpoint", timeline.lag_seconds(), duration_text)]
    late = draw.stack("Late rows", {"late": timeline.column("rows_late")})
    return TimeView(inputs=tuple(rows), plots=tuple(plot for plot in (*plots, late) if plot is not None))


def outputs_view(view: RootView, last: int | None) -> OutputsView:
    """The page of outputs and tables."""
    timeline = Timeline.of(view, last)
    draw = _Drawing.of(timeline)
    newest = view.newest
    failure, tables = "", []
    try:
        tables = [] if newest is None else sorted(table_records(newest).items())
    except StatelineError as error:
        failure = str(error)
    plots = [
        draw.lines("Rows that wait in open files", {"rows": timeline.column("rows_pending")}),
        draw.lines("Bytes that wait in open files", {"bytes": timeline.column("bytes_pending")}, bytes_text),
        draw.stack("Rows of finished files", {"rows": timeline.column("rows_finished")}),
        draw.stack("Bytes of finished files", {"bytes": timeline.column("bytes_finished")}, bytes_text),
        draw.stack("Rows handed over", {"rows": timeline.column("rows_delivered")}),
        draw.lines("Version of each table", timeline.columns_of("table_version")),
    ]
    delivered = 0 if newest is None else sum(rows.rows for each in newest.deliveries for rows in each.rows)
    return OutputsView(
        outputs=() if newest is None else tuple(_output_rows(view, newest)),
        tables=tuple(
            TableRow(
                operator=operator,
                format=table.format,
                target=table.target or "where the output is",
                mode=table.mode + (f" by {', '.join(table.key)}" if table.key else ""),
                version=table.version or UNKNOWN,
                committed="none yet" if table.committed is None else f"#{table.committed:,}",
            )
            for operator, table in tables
        ),
        delivered_rows=count_text(delivered) if delivered else "",
        plots=tuple(plot for plot in plots if plot is not None),
        failure=failure,
    )


def figure_differences(before: CheckpointSummary, after: CheckpointSummary) -> list[FigureDifference]:
    """Every figure of two checkpoints that is not the same in both."""
    found = []
    for name in sorted(before.figures.keys() | after.figures.keys()):
        old, new = before.figures.get(name), after.figures.get(name)
        if old == new:
            continue
        number = _number_of(name)
        change = "" if old is None or new is None else _signed(new - old, _change_of(name))
        found.append(
            FigureDifference(
                name=name,
                before=UNKNOWN if old is None else number(old),
                after=UNKNOWN if new is None else number(new),
                change=change,
            )
        )
    return found


class _Drawing:
    """Draws columns of one timeline, all over the same bins."""

    def __init__(self, timeline: Timeline, bins: list[Bin], labels: list[str], marks: Sequence[Mark]) -> None:
        self._timeline, self._bins, self._labels, self._marks = timeline, bins, labels, marks

    @classmethod
    def of(cls, timeline: Timeline) -> _Drawing:
        """Over the bins of a timeline."""
        bins = timeline.bins(_BINS)
        return cls(timeline, bins, _labels(timeline, bins), _marks(timeline.events, bins))

    def stack(
        self,
        title: str,
        columns: dict[str, Values],
        number: Number = count_text,
        colours: dict[str, int] | None = None,
    ) -> Plot | None:
        """Means of each bin, stacked; ``None`` where there is nothing."""
        if not any(np.nansum(column) > 0 for column in columns.values()):
            return None
        series = {name: binned(column, self._bins, np.mean) for name, column in columns.items()}
        plot = stacked_plot(title, series, self._labels, number, marks=self._marks, colours=colours)
        return replace(plot, note=self._note("mean"))

    def lines(self, title: str, columns: dict[str, Values], number: Number = count_text) -> Plot | None:
        """The greatest of each bin; ``None`` where nothing is known."""
        known = {name: column for name, column in columns.items() if np.any(~np.isnan(column))}
        if not known:
            return None
        series = {name: binned(column, self._bins, np.max) for name, column in known.items()}
        plot = line_plot(title, series, self._labels, number, marks=self._marks)
        return replace(plot, note=self._note("greatest"))

    def _note(self, of: str) -> str:
        """What one place of a plot stands for, where that is not one checkpoint."""
        size = self._bins[0].last_id - self._bins[0].first_id + 1
        return f"{of} of {size}" if size > 1 else ""


def _labels(timeline: Timeline, bins: Sequence[Bin]) -> list[str]:
    labels = []
    for each in bins:
        at = timeline.created_at[each.rows]
        labels.append(f"{each.label} · {time_text(float(at[-1]))}" if len(at) else each.label)
    return labels


def _marks(events: Sequence[Event], bins: Sequence[Bin]) -> list[Mark]:
    """One mark of a kind for each bin."""
    if not bins:
        return []
    first, step = bins[0].first_id, bins[0].last_id - bins[0].first_id + 1
    found = {
        (min((event.checkpoint_id - first) // step, len(bins) - 1), event.kind): None
        for event in events
        if event.kind in _MARKED
    }
    return [Mark(bin=at, kind=kind) for at, kind in found]


def _less(timeline: Timeline, figure: str, part: str) -> Values:
    return timeline.column(figure) - np.nan_to_num(timeline.column(part))


def _checkpoint_tiles(view: RootView, timeline: Timeline, written: Values, inherited: Values) -> tuple[Tile, ...]:
    newest = view.newest
    if newest is None:
        return ()
    total_written, total = float(np.nansum(written)), float(np.nansum(written) + np.nansum(inherited))
    tiles = [
        Tile(label="newest", value=f"#{newest.checkpoint_id:,}", hint=_ago(view, newest)),
        Tile(label="duration", value=duration_text(timeline.median(timeline.seconds)), hint="median"),
        Tile(label="rows/s", value=count_text(timeline.rate("rows"))),
    ]
    if total:
        tiles += [
            Tile(label="written", value=bytes_text(timeline.median(written)), hint="of state, median"),
            Tile(label="inherited", value=share_text(total - total_written, total), hint="of the state"),
        ]
    fenced = timeline.count("fenced")
    return (
        *tiles,
        Tile(label="restarts", value=count_text(timeline.count("restart"))),
        Tile(label="replays", value=count_text(timeline.count("replay"))),
        Tile(label="fencings", value=count_text(fenced), hint="drivers overtaken", is_bad=fenced > 0),
    )


def _rows(timeline: Timeline, retained: set[int]) -> list[CheckpointRow]:
    kinds: dict[int, list[str]] = {}
    for event in timeline.events:
        kinds.setdefault(event.checkpoint_id, []).append(event.kind)
    seconds = timeline.seconds
    found = []
    for at in range(len(timeline.summaries) - 1, max(len(timeline.summaries) - _ROWS, 0) - 1, -1):
        summary = timeline.summaries[at]
        figures = summary.figures
        written, state = figures.get("state_bytes_written"), figures.get("state_bytes")
        finished = figures.get("files_finished")
        found.append(
            CheckpointRow(
                checkpoint_id=summary.checkpoint_id,
                batch_id=summary.batch_id,
                time=time_text(summary.created_at),
                run=summary.run,
                seconds=duration_text(float(seconds[at])),
                rows=count_text(figures.get("rows")),
                keys=count_text(figures.get("keys")),
                written=bytes_text(written),
                inherited=bytes_text(None if state is None else max(state - (written or 0), 0)),
                requests=count_text(figures.get("requests")),
                files=UNKNOWN
                if finished is None
                else f"{count_text(finished)} / {count_text(figures.get('files_open'))}",
                is_retained=summary.checkpoint_id in retained,
                kinds=tuple(kinds.get(summary.checkpoint_id, ())),
            )
        )
    return found


def _state_row(shape: StateShape) -> StateRow:
    skew = shape.skew
    maps = (
        _heat_map("rows", shape.rows.tolist(), count_text),
        _heat_map("bytes", shape.bytes.tolist(), bytes_text),
    )
    return StateRow(
        name=shape.name,
        schema=shape.schema,
        rows=count_text(shape.stored_rows),
        bytes=bytes_text(shape.stored_bytes),
        runs=f"{shape.runs:,}" + (f" ({shape.inline_runs:,} in the record)" if shape.inline_runs else ""),
        deepest=shape.deepest,
        debt=bytes_text(shape.debt_bytes),
        debt_share=share_text(shape.debt_bytes, shape.stored_bytes),
        skew=UNKNOWN if skew is None else f"{skew:.2f} x",
        is_skewed=skew is not None and skew > _SKEWED,
        subtasks=len(shape.subtasks),
        maps=maps if shape.stored_rows else (),
    )


def _heat_map(what: str, values: list[float], number: Number) -> HeatMap:
    cells = folded(values, _CELLS)
    step = -(-len(values) // max(len(cells), 1))
    tips = []
    for at, value in enumerate(cells):
        first, last = at * step, min((at + 1) * step, len(values)) - 1
        groups = f"key group {first}" if first == last else f"key groups {first} to {last}"
        tips.append(f"{groups}\n{what}: {number(value)}")
    return HeatMap(
        title=what,
        strip=heat_strip(cells, max([*cells, _EVEN_SHADE * sum(cells) / max(len(cells), 1)]), tips),
        top=number(max(cells, default=0.0)),
        key_groups=len(values),
    )


def _output_rows(view: RootView, newest: Checkpoint) -> list[OutputRow]:
    rows = []
    for output in newest.outputs:
        oldest = min((file.opened_at for file in output.open), default=None)
        finished = sum(file.rows for file in output.finished)
        rows.append(
            OutputRow(
                operator=output.operator,
                url=output.url,
                open_files=count_text(len(output.open)),
                pending_rows=count_text(sum(file.rows for file in output.open)),
                pending_bytes=bytes_text(sum(file.bytes for file in output.open)),
                oldest=UNKNOWN if oldest is None else f"{duration_text(max(view.looked_at - oldest, 0.0))} ago",
                finished=f"{len(output.finished):,} files, {count_text(finished)} rows" if output.finished else "none",
                visible="visible" if view.is_published else "not yet visible",
                is_visible=view.is_published,
            )
        )
    return rows


def _ago(view: RootView, record: Checkpoint) -> str:
    return f"{duration_text(max(view.looked_at - record.created_at, 0.0))} ago"


def _number_of(figure: str) -> Number:
    name = figure.partition(" ")[0]
    if name == "watermark_us":
        return lambda us: time_text((us or 0) / 1e6)
    if name.endswith("_seconds"):
        return duration_text
    return bytes_text if "bytes" in name else count_text


def _change_of(figure: str) -> Number:
    if figure.startswith("watermark_us"):
        return lambda us: duration_text((us or 0) / 1e6)
    return _number_of(figure)


def _signed(value: float, number: Number) -> str:
    return number(value) if value < 0 or math.isnan(value) else f"+{number(value)}"
