"""Rows in the windows of event time that they belong to, where Spark does not put them there."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from stateline.pipeline.event_time import WINDOW_START, WindowPlan
from stateline.state.columns import contiguous, from_words, take

__all__ = ["in_windows"]


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
