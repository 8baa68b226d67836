"""Event time: what a stream asks of its watermark, and windows. Pure: plans, and the watcher of a task.

How watermarks advance is in :mod:`stateline.pipeline.watermarks`. Everything is as Spark 4 does it; the tests compare,
batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, Self, cast, get_args

import pyarrow as pa
import pyarrow.compute as pc

from stateline.errors import ErrorKind, InvalidInputError
from stateline.options import check_known, duration_microseconds, parse_choice

__all__ = [
    "EVENT_TIME_COLUMN",
    "LATE_DATA",
    "WINDOW_COLUMN",
    "WINDOW_END",
    "WINDOW_START",
    "Duration",
    "EventTimeWatch",
    "LateData",
    "SessionPlan",
    "WatermarkPlan",
    "WindowPlan",
]

EVENT_TIME_COLUMN: Final = "__event_time"
"""The event time of a row, where the operator itself does not read that column."""
WINDOW_COLUMN: Final = "__window"
"""Spark's window of a row, as a struct, on its way to :data:`WINDOW_START`."""
WINDOW_START: Final = "window_start"
"""Key column of a windowed operator: where the row's window begins (inclusive)."""
WINDOW_END: Final = "window_end"
"""Output column: where the window ends (exclusive)."""
LateData = Literal["drop", "keep"]
"""What becomes of late rows: they are left out and counted, or taken as all others."""
LATE_DATA: Final = get_args(LateData)

Duration = str | float | timedelta
"""What Spark takes as an interval, such as ``"1 hour 30 minutes"``; seconds; or a ``timedelta``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkPlan:
    """The watermark that a stream asks for.

    Attributes:
        column: Event time: a timestamp column.
        delay_us: How far the watermark stays behind the greatest event time, microseconds.
        late_data: ``drop`` or ``keep``.
    """

    column: str
    delay_us: int
    late_data: LateData = "drop"

    @classmethod
    def of(cls, schema: pa.Schema, column: str, delay: Duration, late_data: str = "drop") -> Self:
        """Checks what the user said against the columns of the stream.

        Raises:
            InvalidInputError: No such column, no timestamp, a negative delay, an unknown policy.
        """
        _check_timestamp(schema, column, "watermark")
        return cls(
            column=column,
            delay_us=_length(delay, "delay of the watermark"),
            late_data=cast("LateData", parse_choice(late_data, LATE_DATA, "late_data")),
        )

    @property
    def drops_late_rows(self) -> bool:
        """Whether late rows are left out."""
        return self.late_data == "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPlan:
    """Tumbling or sliding windows: ``[start + n * slide, start + n * slide + size)`` for every whole ``n``.

    Attributes:
        column: Event time: a timestamp column.
        size_us: Length of a window, microseconds.
        slide_us: From one start to the next, microseconds; equal to ``size_us`` for tumbling windows.
        start_us: Offset from the epoch, microseconds; 0 or more, and less than ``slide_us``.
        shift_us: What is added to a time before its windows are found: -1 where the times are ends of windows, which
            are exclusive, as for the time that Spark takes from a window.
    """

    column: str
    size_us: int
    slide_us: int
    start_us: int = 0
    shift_us: int = 0

    @classmethod
    def of(cls, schema: pa.Schema, column: str, size: Duration, slide: Duration | None, start: Duration) -> Self:
        """Checks what the user said against the columns of the stream.

        Raises:
            InvalidInputError: No such column, no timestamp, a slide of nothing or longer than the window, a column
                that has the name of an output column.
        """
        _check_timestamp(schema, column, "window")
        for name in (WINDOW_START, WINDOW_END):
            if name != column and name in map(str.lower, schema.names):
                raise InvalidInputError(
                    "is a name that the output of windows needs itself",
                    operation="window",
                    subject=f"column {name!r}",
                    hint="Rename the column of the stream",
                )
        size_us = _length(size, "size of the window")
        slide_us = size_us if slide is None else _length(slide, "slide of the window")
        start_us = duration_microseconds(start, "start of the windows")
        if not 0 < slide_us <= size_us or abs(start_us) >= slide_us:
            raise InvalidInputError(
                f"windows of {size!r} cannot slide by {slide!r} from {start!r}",
                operation="window",
                subject=f"column {column!r}",
                hint="Give 0 < slide <= size, and a start between -slide and slide; without a slide, windows tumble",
            )
        return cls(column=column, size_us=size_us, slide_us=slide_us, start_us=start_us % slide_us)

    @property
    def definition(self) -> dict[str, Any]:
        """What decides which window a row is in, for the text that a checkpoint keeps."""
        shift = {"shift_us": self.shift_us} if self.shift_us else {}
        lengths = {"size_us": self.size_us, "slide_us": self.slide_us, "start_us": self.start_us}
        return {"column": self.column, **lengths, **shift}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlan:
    """Sessions: rows of a key that follow upon each other with a gap of so long at most.

    Attributes:
        column: Event time: a timestamp column.
        gap_us: A row at ``t`` opens ``[t, t + gap)``, microseconds; 1 or more.
    """

    column: str
    gap_us: int

    @classmethod
    def of(cls, schema: pa.Schema, column: str, gap: Duration) -> Self:
        """Checks what the user said against the columns of the stream.

        Raises:
            InvalidInputError: No such column, no timestamp, a gap of nothing or less.
        """
        _check_timestamp(schema, column, "sessions")
        gap_us = _length(gap, "gap of the sessions")
        if gap_us == 0:
            raise InvalidInputError(
                f"must be longer than nothing, got {gap!r}",
                operation="sessions",
                subject="gap of the sessions",
                hint="Give the time without rows after which a session is over, such as '10 minutes'",
            )
        return cls(column=column, gap_us=gap_us)

    @property
    def definition(self) -> dict[str, Any]:
        """What decides which session a row is in, for the text that a checkpoint keeps."""
        return {"column": self.column, "gap_us": self.gap_us}


class EventTimeWatch:
    """Sees the rows of one subtask go by, and remembers their greatest event time.

    Args:
        plan: What the stream asks for; ``None`` to let everything pass unseen.
        columns: Columns that the operator reads. The event time is taken out again where it is not among them.
    """

    def __init__(self, plan: WatermarkPlan | None, columns: Iterable[str]) -> None:
        is_read = plan is not None and plan.column in set(columns)
        self._column = None if plan is None else plan.column if is_read else EVENT_TIME_COLUMN
        self.max_us: int | None = None

    @property
    def needs_column(self) -> bool:
        """Whether rows must carry :data:`EVENT_TIME_COLUMN`."""
        return self._column == EVENT_TIME_COLUMN

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same rows."""
        for batch in batches:
            if self._column is None:
                yield batch
                continue
            is_beside = EVENT_TIME_COLUMN in batch.schema.names  # In rows that stand for several, too.
            newest = pc.max(_column_of(batch, EVENT_TIME_COLUMN if is_beside else self._column)).value
            if newest is not None and (self.max_us is None or newest > self.max_us):
                self.max_us = newest
            yield batch.drop_columns([EVENT_TIME_COLUMN]) if is_beside else batch


def _column_of(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A column of the rows, which come packed in a struct where rows of another kind come with them."""
    if name in batch.schema.names:
        return batch.column(name)
    packed = next(column for column in batch.columns if pa.types.is_struct(column.type))
    return pc.struct_field(packed, name)


def _check_timestamp(schema: pa.Schema, column: str, what: str) -> None:
    check_known([column], schema.names, f"column of the {what}")
    kind = schema.field(column).type
    if not pa.types.is_timestamp(kind):
        raise InvalidInputError(
            f"event time must be a timestamp, got {kind}",
            operation=what,
            subject=f"column {column!r}",
            hint="Convert it: F.to_timestamp(...), F.timestamp_seconds(...) or .cast('timestamp')",
            kind=ErrorKind.SCHEMA_MISMATCH,
        )


def _length(duration: Duration, name: str) -> int:
    microseconds = duration_microseconds(duration, name)
    if microseconds < 0:
        raise InvalidInputError(
            f"must not be negative, got {duration!r}", subject=name, hint="Give a duration of 0 or more"
        )
    return microseconds
