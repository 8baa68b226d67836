"""Late rows: those whose time a batch before has closed already. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateline.pipeline.operators.api import Reading, rows_counted
from stateline.state.columns import contiguous

__all__ = ["LateRows", "rows_in_time"]


def rows_in_time(rows: pa.Table | pa.RecordBatch, column: str, closed_us: int | None) -> npt.NDArray[np.bool_] | None:
    """Which rows are not late; ``None`` where all of them are in time. Rows without a time are never late.

    Args:
        rows: The rows.
        column: Their event time, or the start of their window: a timestamp.
        closed_us: What lies at or below this is closed, microseconds since the epoch; ``None`` for nothing.
    """
    if closed_us is None or rows.num_rows == 0:
        return None
    times = contiguous(rows.column(column)).cast(pa.int64())
    in_time: npt.NDArray[np.bool_] = times.fill_null(closed_us + 1).to_numpy() > closed_us
    return None if in_time.all() else in_time


class LateRows:
    """Takes the late rows out of what one reading of a subtask receives.

    Args:
        reading: What the operator reads, and when a row of it is late.
        late_watermark_us: See :class:`~stateline.pipeline.operators.api.BatchContext`.
        columns: The columns of late rows that are kept; none where nobody reads them.

    Attributes:
        count: How many there were.
        rows: They themselves, if they are kept.
    """

    def __init__(self, reading: Reading, late_watermark_us: int | None, columns: tuple[str, ...] = ()) -> None:
        self._column = reading.late_by
        self._closed_us = None if late_watermark_us is None else late_watermark_us - reading.late_after_us
        self._columns = list(columns)
        self._hidden = [column for column in columns if column not in reading.columns]
        self.count = 0
        self.rows: list[pa.RecordBatch] = []

    def taken_out(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that are in time, with the columns of the reading and those whose names are Stateline's."""
        for batch in batches:
            in_time = None if self._column is None else rows_in_time(batch, self._column, self._closed_us)
            kept = batch
            if in_time is not None:
                late = batch.filter(pa.array(~in_time))
                self.count += rows_counted(late)
                if self._columns:
                    self.rows.append(late.select(self._columns))
                kept = batch.filter(pa.array(in_time))
            yield kept.drop_columns(self._hidden) if self._hidden else kept
