"""What the pages show, as frozen values: texts, tables and plots, ready for a template."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from stateline.dashboard.plots import Plot
from stateline.dashboard.timeline import Event

__all__ = [
    "CheckpointRow",
    "CheckpointsView",
    "FigureDifference",
    "HeatMap",
    "InputRow",
    "OutputRow",
    "OutputsView",
    "OverviewCard",
    "StateRow",
    "StateView",
    "TableRow",
    "Tile",
    "TimeView",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One figure in large.

    Attributes:
        label: What it is.
        value: How much.
        hint: A word on it.
        is_bad: Whether somebody should look.
    """

    label: str
    value: str
    hint: str = ""
    is_bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewCard:
    """A root in short; ``failure`` says why it cannot be read."""

    url: str
    failure: str
    notes: int
    tiles: tuple[Tile, ...]
    spark: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """A line of the table of checkpoints."""

    checkpoint_id: int
    batch_id: int
    time: str
    run: int
    seconds: str
    rows: str
    keys: str
    written: str
    inherited: str
    requests: str
    files: str
    is_retained: bool
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsView:
    """The page of checkpoints."""

    tiles: tuple[Tile, ...]
    plots: tuple[Plot, ...]
    events: tuple[Event, ...]
    rows: tuple[CheckpointRow, ...]
    shown: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Rows or bytes of one operator by key group."""

    title: str
    strip: Markup
    top: str
    key_groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRow:
    """A line of the table of state: one operator, or one of its tables."""

    name: str
    schema: str
    rows: str
    bytes: str
    runs: str
    deepest: int
    debt: str
    debt_share: str
    skew: str
    is_skewed: bool
    subtasks: int
    maps: tuple[HeatMap, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateView:
    """The page of state."""

    checkpoint_id: int | None
    tiles: tuple[Tile, ...]
    rows: tuple[StateRow, ...]
    plots: tuple[Plot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRow:
    """A line of the table of inputs."""

    name: str
    column: str
    watermark: str
    late: str
    lag: str
    lag_now: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeView:
    """The page of event time."""

    inputs: tuple[InputRow, ...]
    plots: tuple[Plot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRow:
    """A line of the table of outputs."""

    operator: str
    url: str
    open_files: str
    pending_rows: str
    pending_bytes: str
    oldest: str
    finished: str
    visible: str
    is_visible: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A line of the table of tables."""

    operator: str
    format: str
    target: str
    mode: str
    version: str
    committed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputsView:
    """The page of outputs and tables; ``failure`` says why tables cannot be read."""

    outputs: tuple[OutputRow, ...]
    tables: tuple[TableRow, ...]
    delivered_rows: str
    plots: tuple[Plot, ...]
    failure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureDifference:
    """One figure in two checkpoints."""

    name: str
    before: str
    after: str
    change: str
