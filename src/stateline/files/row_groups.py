"""Which rows become one row group (Parquet) or record batch (Arrow). Pure.

The rule: pieces of rows, as they wait, are gathered until the next one would make more rows than the output's
``row_group_rows``, or more than 32 MiB. So a short trigger interval does not make small row groups, long rows do not
make row groups that fill the memory, and what is in a full one does not depend on what comes later. A piece that is
longer by itself is written alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from stateline.handles import RowsHandle

__all__ = ["first_full_group", "joined", "row_groups"]

_BYTES_MAX: Final = 32 * 1024 * 1024


def row_groups(tables: Iterable[pa.Table], max_rows: int) -> Iterator[pa.Table]:
    """The row groups of a file whose rows are ``tables``, in order; those of one table that is longer are not split."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        if waiting and _is_over(rows + table.num_rows, size + table.nbytes, max_rows):
            yield joined(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(table)
        rows += table.num_rows
        size += table.nbytes
    if waiting:
        yield joined(waiting)


def first_full_group(handles: Sequence[RowsHandle], max_rows: int) -> tuple[RowsHandle, ...]:
    """The pieces of the first row group, if more pieces follow that do not belong to it; else none."""
    rows = size = 0
    for index, handle in enumerate(handles):
        rows += handle.rows
        size += handle.length
        if index and _is_over(rows, size, max_rows):
            return tuple(handles[:index])
    return ()


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables of one layout as one."""
    return pa.concat_tables(tables, promote_options="default")


def _is_over(rows: int, size: int, max_rows: int) -> bool:
    return rows > max_rows or size > _BYTES_MAX
