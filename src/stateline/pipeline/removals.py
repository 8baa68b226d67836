"""Rows of a table that come and rows that go, in one section: for tables that delete what an operator takes back.

A row goes by its key in the table. Of what an operator says of one key in one batch, this holds: what it forgets goes,
also if the batch has a row of it; what it takes back goes, unless the batch has another row of that key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateline.pipeline.operators.api import WEIGHT_COLUMN, Processed
from stateline.tables import canonical_keys

__all__ = ["rows_that_come", "rows_that_go", "with_removals"]

_NUMBER: Final = "__number"


def with_removals(
    made: Processed, key: Sequence[str], checked: Callable[[pa.Table], pa.Table] = lambda come: come
) -> pa.Table | None:
    """What goes, then what comes, told apart by :data:`~stateline.pipeline.operators.api.WEIGHT_COLUMN`.

    Args:
        made: What an operator has made of a batch.
        key: The columns that tell rows of the table apart.
        checked: Checks the rows that come, and returns them as the table gets them.

    Returns:
        ``None`` for no rows.
    """
    come, gone = made.output, made.forgotten
    if come is not None and gone is not None:
        come = _without(come, gone, key)
    if made.retracted is not None:
        back = made.retracted if made.output is None else _without(made.retracted, made.output, key)
        gone = back if gone is None else pa.concat_tables([gone, back])
    come = None if come is None else checked(come)
    gone = None if gone is None else canonical_keys(gone, key, newest=False)
    parts = [_weighted(rows, weight) for rows, weight in ((gone, -1), (come, 1)) if rows is not None and rows.num_rows]
    return pa.concat_tables(parts) if parts else None


def rows_that_come(rows: pa.Table) -> pa.Table:
    """The rows that come, of what :func:`with_removals` made."""
    return rows.filter(pc.greater(rows[WEIGHT_COLUMN], 0)).drop_columns([WEIGHT_COLUMN])


def rows_that_go(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The keys of the rows that go: each once, and none with a null, of which no table has a row."""
    gone = rows.filter(pc.less(rows[WEIGHT_COLUMN], 0)).select(list(key))
    return gone.drop_null().group_by(list(key), use_threads=False).aggregate([])


def _without(rows: pa.Table, others: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows of whose key the others have none, in order."""
    if rows.num_rows == 0 or others.num_rows == 0:
        return rows
    columns = list(key)
    ours, theirs = (canonical_keys(each.select(columns), columns, newest=False) for each in (rows, others))
    numbered = ours.append_column(_NUMBER, pa.array(np.arange(rows.num_rows)))
    left = numbered.join(theirs, columns, join_type="left anti", use_threads=False)
    return rows.take(pa.array(np.sort(left[_NUMBER].to_numpy())))


def _weighted(rows: pa.Table, weight: int) -> pa.Table:
    return rows.append_column(WEIGHT_COLUMN, pa.array(np.full(rows.num_rows, weight, dtype=np.int8)))
