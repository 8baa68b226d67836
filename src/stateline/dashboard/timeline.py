"""The history of a root as columns over time, cut into as many bins as a picture has room for. Pure.

Facts:
- The seconds of subtasks are sums over subtasks. In the stack of a checkpoint they stand as the mean subtask, and what
  the Spark job took beyond that is *spark*: reading the source, the shuffle, scheduling, the wait for the slowest.
- A figure that a checkpoint does not have is NaN, and in no sum or mean.
- Bins hold equally many ids, so a gap in the history is a gap in the picture.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stateline.checkpoint.history import CheckpointSummary
from stateline.dashboard.roots import RootView

__all__ = ["PARTS", "Bin", "Event", "Timeline", "binned"]

Values = NDArray[np.float64]

_SUBTASK_PARTS: Final = {
    "open": "open_seconds",
    "process": "process_seconds",
    "write state": "write_seconds",
    "merge": "merge_seconds",
    "output": "output_seconds",
    "upload": "upload_seconds",
}
_DRIVER_PARTS: Final = {
    "pack": "pack_seconds",
    "record": "record_seconds",
    "publish": "publish_seconds",
    "retain": "retain_seconds",
}
PARTS: Final = ("spark", *_SUBTASK_PARTS, *_DRIVER_PARTS)
"""The parts that a checkpoint's time is stacked from, from below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Neighbouring checkpoints that share a place in a picture.

    Attributes:
        first_id: The first one.
        last_id: The last one, inclusive.
        rows: Their places in the columns of the timeline; empty for a gap.
    """

    first_id: int
    last_id: int
    rows: slice

    @property
    def label(self) -> str:
        """Which checkpoints."""
        return f"#{self.first_id:,}" if self.first_id == self.last_id else f"#{self.first_id:,} to #{self.last_id:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened between checkpoints.

    Attributes:
        checkpoint_id: The checkpoint that was made next.
        kind: ``restart``, ``replay``, ``fenced``, ``rescale`` or ``gap``.
        text: What happened.
        at: When the checkpoint was made, seconds since the epoch; ``None`` where that is unknown.
    """

    checkpoint_id: int
    kind: str
    text: str
    at: float | None


@dataclass(frozen=True)
class Timeline:
    """Columns over the newest checkpoints of a root, oldest first.

    Attributes:
        summaries: Of which.
        fenced: Checkpoints that a driver lost to another one.
    """

    summaries: tuple[CheckpointSummary, ...]
    fenced: tuple[int, ...] = ()

    @classmethod
    def of(cls, view: RootView, last: int | None = None) -> Timeline:
        """The timeline of a root, or of its newest ``last`` checkpoints."""
        chosen = view.summaries if last is None else view.summaries[-last:]
        first_id = chosen[0].checkpoint_id if chosen else 0
        return cls(chosen, tuple(lost for lost in view.fenced if lost >= first_id))

    @cached_property
    def ids(self) -> NDArray[np.int64]:
        """The ids."""
        return np.array([summary.checkpoint_id for summary in self.summaries], np.int64)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all figures that any checkpoint has."""
        return frozenset(name for summary in self.summaries for name in summary.figures)

    def column(self, figure: str) -> Values:
        """A figure of each checkpoint."""
        return np.array([summary.figures.get(figure, math.nan) for summary in self.summaries], np.float64)

    def columns_of(self, figure: str) -> dict[str, Values]:
        """A figure of each operator or input, by its name."""
        found = sorted(name for name in self.names if name.startswith(f"{figure} "))
        return {name.partition(" ")[2]: self.column(name) for name in found}

    @cached_property
    def created_at(self) -> Values:
        """The time of each checkpoint."""
        return np.array([summary.created_at for summary in self.summaries], np.float64)

    @cached_property
    def parts(self) -> dict[str, Values]:
        """The seconds of each part of :data:`PARTS`, in their order; parts that are nowhere known are left out."""
        parallelism = np.maximum(np.nan_to_num(self.column("parallelism"), nan=1), 1)
        inner = {part: self.column(name) / parallelism for part, name in _SUBTASK_PARTS.items()}
        job = self.column("subtasks_seconds")
        within = _sum(inner.values(), len(self.summaries))
        inner_share = np.where(within > job, job / np.where(within > 0, within, 1), 1)  # A chain runs them one by one.
        parts = {"spark": np.maximum(job - within, 0)}
        parts |= {part: np.where(np.isnan(job), seconds, seconds * inner_share) for part, seconds in inner.items()}
        parts |= {part: self.column(name) for part, name in _DRIVER_PARTS.items()}
        return {part: seconds for part, seconds in parts.items() if np.nansum(seconds) > 0}

    @cached_property
    def seconds(self) -> Values:
        """What each checkpoint took; NaN where nothing is known."""
        known = np.any([~np.isnan(each) for each in self.parts.values()], axis=0) if self.parts else False
        return np.where(known, _sum(self.parts.values(), len(self.summaries)), math.nan)

    def lag_seconds(self) -> dict[str, Values]:
        """How far the watermark of each input lay behind the time of each checkpoint."""
        return {name: self.created_at - us / 1e6 for name, us in self.columns_of("watermark_us").items()}

    def bins(self, most: int) -> list[Bin]:
        """At most so many bins of equally many ids."""
        if not len(self.ids):
            return []
        first, last = int(self.ids[0]), int(self.ids[-1])
        step = -(-(last - first + 1) // most)
        starts = range(first, last + 1, step)
        edges = np.searchsorted(self.ids, [*starts, last + 1])
        return [
            Bin(first_id=start, last_id=min(start + step - 1, last), rows=slice(int(low), int(high)))
            for start, low, high in zip(starts, edges[:-1], edges[1:], strict=True)
        ]

    @cached_property
    def events(self) -> list[Event]:
        """What happened, oldest first."""
        found: list[Event] = []
        at_of = {summary.checkpoint_id: summary.created_at for summary in self.summaries}
        for before, after in zip(self.summaries, self.summaries[1:], strict=False):
            found += _between(before, after)
        for summary in self.summaries:
            replays = int(summary.figures.get("batches_replayed", 0))
            if replays:
                text = "a decided batch came again" if replays == 1 else f"decided batches came again, {replays} times"
                found.append(_event(summary, "replay", text))
        for lost in self.fenced:
            text = "another driver lost this checkpoint, and stopped"
            found.append(Event(checkpoint_id=lost, kind="fenced", text=text, at=at_of.get(lost)))
        return sorted(found, key=lambda event: event.checkpoint_id)

    def count(self, kind: str) -> int:
        """How often something happened."""
        return sum(event.kind == kind for event in self.events)

    def median(self, values: Values) -> float | None:
        """The middle one of those that are known; ``None`` for none."""
        known = values[~np.isnan(values)]
        return statistics.median(known.tolist()) if len(known) else None

    def rate(self, figure: str) -> float | None:
        """A figure in each second of the time that the checkpoints span; ``None`` where that is unknown."""
        if len(self.summaries) < 2:
            return None
        span = float(self.created_at[-1] - self.created_at[0])
        values = self.column(figure)[1:]
        return None if span <= 0 or np.all(np.isnan(values)) else float(np.nansum(values)) / span


def binned(values: Values, bins: Sequence[Bin], of: Callable[[Values], float]) -> list[float]:
    """One number for each bin; NaN where nothing is known."""
    found = []
    for each in bins:
        known = values[each.rows]
        known = known[~np.isnan(known)]
        found.append(float(of(known)) if len(known) else math.nan)
    return found


def _between(before: CheckpointSummary, after: CheckpointSummary) -> list[Event]:
    found = []
    missing = after.checkpoint_id - before.checkpoint_id - 1
    if missing:
        found.append(_event(after, "gap", f"the history has a gap of {missing:,} checkpoints before this one"))
    if after.run != before.run and before.run:
        found.append(_event(after, "restart", f"run {after.run} of the query began"))
    old, new = (int(summary.figures.get("parallelism", 0)) for summary in (before, after))
    if old and new and old != new:
        found.append(_event(after, "rescale", f"{old} subtasks became {new}"))
    return found


def _event(summary: CheckpointSummary, kind: str, text: str) -> Event:
    return Event(checkpoint_id=summary.checkpoint_id, kind=kind, text=text, at=summary.created_at)


def _sum(columns: Iterable[Values], rows: int) -> Values:
    total = np.zeros(rows, np.float64)
    for column in columns:
        total += np.nan_to_num(column)
    return total
