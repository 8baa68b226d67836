"""Rows for a table that takes rows: what must hold before a record decides them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateline.errors import ErrorKind, InvalidInputError
from stateline.floats import canonical_floats
from stateline.key_groups import hash_columns
from stateline.tables.targets import TableTarget
from stateline.tables.values import check_values, shown_values

__all__ = ["are_distinct", "canonical_keys", "check_keys", "check_rows", "joined_rows", "key_hashes"]

_SHOWN: Final = 3
_NUMBER: Final = "__number"
_HASH: Final = np.dtype("<u8")


def check_rows(rows: pa.Table, target: TableTarget, subject: str) -> pa.Table:
    """Check the rows of one subtask.

    Args:
        rows: The rows.
        target: The table.
        subject: Whose they are, for the error.

    Returns:
        The rows as the table gets them: see :func:`canonical_keys`.

    Raises:
        InvalidInputError: A key comes twice or is null, or the table cannot hold a value; says which.
    """
    check_values(rows, target, subject)
    check_keys(rows, target.key, subject)
    return canonical_keys(rows, target.key)


def canonical_keys(rows: pa.Table, key: Sequence[str], *, newest: bool = True) -> pa.Table:
    """Rows whose keys are equal exactly if a table calls them equal: -0.0 becomes 0.0, and NaN has one form.

    Args:
        rows: Rows in the order of an operator, the newest last.
        key: The columns of the key.
        newest: Whether only the newest is kept of rows that -0.0 and 0.0, or forms of NaN, told apart.
    """
    floats = [name for name in key if name in rows.column_names and pa.types.is_floating(rows[name].type)]
    if not floats or rows.num_rows == 0:
        return rows
    made = rows
    for name in floats:
        at = rows.schema.get_field_index(name)
        column = pa.chunked_array([canonical_floats(each) for each in rows[name].chunks], rows[name].type)
        made = made.set_column(at, rows.schema.field(at), column)
    if not newest:
        return made
    numbered = made.select(list(key)).append_column(_NUMBER, pa.array(np.arange(made.num_rows)))
    last = numbered.group_by(list(key), use_threads=False).aggregate([(_NUMBER, "max")])[f"{_NUMBER}_max"]
    return made if len(last) == made.num_rows else made.take(pa.array(np.sort(last.to_numpy())))


def check_keys(rows: pa.Table, key: Sequence[str], subject: str) -> None:
    """Checks that an upsert has one row at most for each key, and no null in a key.

    Raises:
        InvalidInputError: It has not; shows some of the keys.
    """
    if not key or rows.num_rows == 0:
        return
    nulls = [column for column in key if rows[column].null_count]
    if nulls:
        raise _refused(f"cannot upsert rows whose key is null: {nulls}", subject, "Fill the column")
    counted = rows.select(list(key)).group_by(list(key)).aggregate([([], "count_all")])
    twice = counted.filter(pc.greater(counted["count_all"], 1))
    if twice.num_rows:
        shown = [shown_values(twice, row, key) for row in range(min(_SHOWN, twice.num_rows))]
        reason = f"expected one row of each key, got several of {twice.num_rows} keys, such as {shown}"
        raise _refused(reason, subject, "Name all columns that tell the rows apart as key, or append")


def key_hashes(rows: pa.Table, key: Sequence[str]) -> bytes | None:
    """The hashes of the keys of rows, eight bytes each, ascending; ``None`` where a type of theirs has no hash."""
    try:
        hashes = hash_columns([rows[column] for column in key])
    except InvalidInputError:
        return None
    return np.sort(hashes).astype(_HASH).tobytes()


def are_distinct(hashes: Sequence[bytes | None]) -> bool:
    """Whether no hash is there twice, so that no key is. ``False`` also where somebody has none to give."""
    known = [each for each in hashes if each is not None]
    found = np.frombuffer(b"".join(known), dtype=_HASH)
    return len(known) == len(hashes) and len(np.unique(found)) == len(found)


def joined_rows(tables: Iterable[pa.Table], schema: pa.Schema | None = None) -> pa.Table:
    """All rows as one table; with the columns of ``schema``, where there are none."""
    found = list(tables)
    if not found:
        return (schema or pa.schema([])).empty_table()
    return pa.concat_tables(found, promote_options="default")


def _refused(reason: str, subject: str, hint: str) -> InvalidInputError:
    return InvalidInputError(
        reason, operation="write_table", subject=subject, hint=hint, kind=ErrorKind.SCHEMA_MISMATCH
    )
