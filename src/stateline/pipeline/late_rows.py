"""Which rows are late: those whose time a batch before has closed already. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateline.state.columns import contiguous

__all__ = ["rows_in_time"]


def rows_in_time(rows: pa.Table, column: str, closed_us: int | None) -> npt.NDArray[np.bool_] | None:
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
