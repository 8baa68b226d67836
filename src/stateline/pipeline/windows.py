"""Rows in the windows of event time that they belong to, where Spark does not put them there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from stateline.pipeline.event_time import WINDOW_END, WINDOW_START, Duration, WindowPlan
from stateline.state.columns import contiguous, from_words, take

__all__ = ["in_windows", "windows_over"]


def windows_over(
    schema: pa.Schema, column: str, size: Duration, slide: Duration | None, start: Duration, *, behind: bool
) -> WindowPlan:
    """The windows that a user asks for.

    Args:
        schema: The columns of the rows.
        column: Their event time.
        size: Length of a window.
        slide: From one start to the next; ``size`` by default.
        start: Offset of the windows from the epoch.
        behind: Whether the rows come from another operator. Then the ends of its windows give way to the new ones; and
            where they are the event time, the last instant of a window counts: its end is in the next one, too.

    Raises:
        InvalidInputError: See :meth:`~stateline.pipeline.event_time.WindowPlan.of`.
    """
    if not behind:
        return WindowPlan.of(schema, column, size, slide, start)
    others = pa.schema([field for field in schema if field.name not in ({WINDOW_START, WINDOW_END} - {column})])
    plan = WindowPlan.of(others, column, size, slide, start)
    return replace(plan, shift_us=-1) if column == WINDOW_END else plan


def in_windows(rows: pa.RecordBatch, window: WindowPlan) -> pa.RecordBatch:
    """Each row once for every window that its time is in, beside the window's start; rows without a time are in none.

    The windows are those of Spark's ``window``. A column that has the name of the window's start is replaced.
    """
    column = contiguous(rows.column(window.column))
    present = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    unit = pa.timestamp("us", tz=column.type.tz)
    times = take(column, present).cast(unit).cast(pa.int64()).to_numpy() + window.shift_us
    newest = (times - window.start_us) // window.slide_us * window.slide_us + window.start_us
    back = np.arange(-(-window.size_us // window.slide_us)) * window.slide_us
    starts = newest[:, np.newaxis] - back
    inside = starts > times[:, np.newaxis] - window.size_us
    numbers = np.broadcast_to(present[:, np.newaxis], starts.shape)[inside]
    kept = [name for name in rows.schema.names if name != WINDOW_START]
    columns = [take(contiguous(rows.column(name)), numbers) for name in kept]
    names = [*kept, WINDOW_START]
    return pa.RecordBatch.from_arrays([*columns, from_words(starts[inside], unit)], names=names)
