"""Columns of files as a table knows them: by an id that survives renames, under a name that every reader accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import pyarrow as pa

__all__ = ["FIELD_ID", "FileColumn", "as_in_file", "changed_columns", "file_schema"]

FIELD_ID: Final = b"PARQUET:field_id"
"""Key of the metadata of an Arrow field that pyarrow reads from and writes to Parquet files as the id."""

_UNKNOWN_IDS: Final = 2_000_000_000
"""Ids from here on belong to columns that the table does not have. Readers ignore them; tables count from 1."""


@dataclass(frozen=True, slots=True)
class FileColumn:
    """One column of a table, at any depth.

    Attributes:
        path: Its name in the rows, behind the names of the columns around it. ``element`` is the element of a list,
            ``key`` and ``value`` are the two sides of a map.
        field_id: Its id.
        name: Its name in files.
    """

    path: tuple[str, ...]
    field_id: int
    name: str


def file_schema(rows: pa.Schema, columns: Sequence[FileColumn]) -> pa.Schema:
    """The schema of a file for rows of this schema, with ids and names as the table has them.

    Args:
        rows: Columns of the rows.
        columns: Those of the table; empty for files without ids. A column that is not in the table gets an id that no
            table uses: rows that were decided before somebody dropped their column are still written.
    """
    if not columns:
        return rows
    known = {column.path: column for column in columns}
    unknown = count(_UNKNOWN_IDS)

    def named(field: pa.Field, path: tuple[str, ...]) -> pa.Field:
        found = known.get(path)
        number = next(unknown) if found is None else found.field_id
        name = path[-1] if found is None else found.name
        metadata = {**(field.metadata or {}), FIELD_ID: str(number)}
        return pa.field(name, typed(field.type, path), field.nullable, metadata)

    def typed(kind: pa.DataType, path: tuple[str, ...]) -> pa.DataType:
        if pa.types.is_struct(kind):
            return pa.struct([named(each, (*path, each.name)) for each in kind])
        if pa.types.is_map(kind):
            key, value = named(kind.key_field, (*path, "key")), named(kind.item_field, (*path, "value"))
            return pa.map_(key, value, kind.keys_sorted)
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(named(kind.value_field, (*path, "element")), kind.list_size)
        if pa.types.is_large_list(kind):
            return pa.large_list(named(kind.value_field, (*path, "element")))
        return pa.list_(named(kind.value_field, (*path, "element"))) if pa.types.is_list(kind) else kind

    return pa.schema([named(field, (field.name,)) for field in rows])


def as_in_file(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same rows under the names and ids of a :func:`file_schema`, without a copy."""
    if rows.schema.equals(schema, check_metadata=True):
        return rows
    kind: Any = pa.RecordBatch  # Its import takes any schema of the same layout; a cast cannot rename nested fields.
    named = [
        kind._import_from_c_capsule(schema.__arrow_c_schema__(), each.__arrow_c_array__()[1])  # noqa: SLF001
        for each in rows.to_batches()
    ]
    return pa.Table.from_batches(named, schema)


def changed_columns(rows: Sequence[str], planned: Sequence[FileColumn], found: Sequence[FileColumn]) -> list[str]:
    """The columns of the rows whose ids in the table are no longer the ones that files get.

    Args:
        rows: Names of the columns of the rows.
        planned: Columns of the table when the files were planned.
        found: Columns of the table now.
    """
    before, now = ({each.path: each.field_id for each in columns} for columns in (planned, found))
    before = {path: field_id for path, field_id in before.items() if path[0] in rows}
    return sorted({path[0] for path, field_id in before.items() if now.get(path) != field_id})
