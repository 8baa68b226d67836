"""From the filters that Spark pushes down to the keys that a point read looks for. Pure.

Spark evaluates all filters again, so it is right to find more keys than a query asks for, and wrong to find fewer.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, In

__all__ = ["named_keys"]

_POINT_KEYS_MAX: Final = 10_000
"""More keys than this are read by a scan."""


def named_keys(keys: pa.Schema, filters: Sequence[Filter]) -> bytes | None:
    """The keys that filters leave, as an Arrow IPC stream; ``None`` where they do not name every key column."""
    named: dict[str, list[Any]] = {}
    for item in filters:
        if isinstance(item, EqualTo | EqualNullSafe | In) and len(item.attribute) == 1:
            values = list(item.value) if isinstance(item, In) else [item.value]
            if not isinstance(item, EqualNullSafe):
                values = [value for value in values if value is not None]  # Nothing equals null.
            (column,) = item.attribute
            if column not in named or len(values) < len(named[column]):
                named[column] = values
    if any(name not in named for name in keys.names):
        return None
    count = 1
    for name in keys.names:
        count *= len(named[name])
    if count > _POINT_KEYS_MAX:
        return None
    rows = list(itertools.product(*(named[name] for name in keys.names)))
    try:
        columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(keys)]
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None  # A literal that is no value of the column: Spark will compare it.
    sink = pa.BufferOutputStream()
    table = pa.table(columns, schema=keys)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data
