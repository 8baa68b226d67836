"""Rows for a table that takes rows: what must hold before a record decides them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateline.errors import ErrorKind, InvalidInputError
from stateline.key_groups import hash_columns
from stateline.tables.targets import TableTarget

__all__ = ["are_distinct", "check_keys", "check_rows", "joined_rows", "key_hashes"]

_SHOWN: Final = 3
_HASH: Final = np.dtype("<u8")


def check_rows(rows: pa.Table, target: TableTarget, subject: str) -> None:
    """Checks the rows of one subtask.

    Args:
        rows: The rows.
        target: The table.
        subject: Whose they are, for the error.

    Raises:
        InvalidInputError: A key comes twice or is null, or the table cannot hold a value; says which.
    """
    check_keys(rows, target.key, subject)
    for column, name in zip(rows.columns, rows.column_names, strict=True):
        if target.format == "sqlite" and pa.types.is_floating(column.type) and _any(pc.is_nan(column)):
            raise _refused(f"column {name!r} has NaN, which SQLite keeps as null", subject, "Make it null, or a number")
        is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        if target.format == "postgresql" and is_text and _any(pc.match_substring(column, "\0")):
            reason = f"column {name!r} has a text with the character 0, which PostgreSQL has not"
            raise _refused(reason, subject, "Replace it")


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
        shown = [{name: each[name] for name in key} for each in twice.slice(0, _SHOWN).to_pylist()]
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


def _any(found: pa.ChunkedArray) -> bool:
    return bool(pc.any(found).as_py())


def _refused(reason: str, subject: str, hint: str) -> InvalidInputError:
    return InvalidInputError(
        reason, operation="write_table", subject=subject, hint=hint, kind=ErrorKind.SCHEMA_MISMATCH
    )
