"""Which names the columns of a Delta table may have. Pure.

Without column mapping, a column of the files has the name of the table's column. Delta then excludes the characters
that Parquet files could once not have in names: the library writes such a table, and other engines refuse to read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from stateline.tables.columns import refused_columns

__all__ = ["check_names"]

_REFUSED: Final = " ,;{}()\n\t="


def check_names(fields: Iterable[pa.Field], table: str, *, is_merged: bool) -> None:
    """Check that every engine finds each column by its name, at any depth.

    Args:
        fields: The columns.
        table: The table, for the error.
        is_merged: Whether rows are merged: the library parses names then, and fails at a backtick.

    Raises:
        InvalidInputError: A name is empty, has a character that Delta excludes, or differs from another one in case
            only.
    """
    seen: dict[str, str] = {}
    for field in fields:
        name = field.name
        found = [character for character in _REFUSED + ("`" if is_merged else "") if character in name]
        if not name:
            raise refused_columns("cannot have a column without a name", table, "Name the column")
        if found:
            listed = ", ".join(map(repr, found))
            by = "merges of Delta exclude" if found == ["`"] else "Delta excludes"
            reason = f"cannot have column {name!r}: {by} the characters {listed} from names"
            raise refused_columns(reason, table, "Rename the column")
        if name.lower() in seen:
            reason = f"cannot have both {seen[name.lower()]!r} and {name!r}: engines ignore the case of names"
            raise refused_columns(reason, table, "Rename one of them")
        seen[name.lower()] = name
        check_names(_inside(field.type), table, is_merged=is_merged)


def _inside(kind: pa.DataType) -> list[pa.Field]:
    """The named fields inside a type: those of structures, also in lists and maps."""
    if pa.types.is_struct(kind):
        return [kind.field(index) for index in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [pa.field("key", kind.key_type), pa.field("value", kind.item_type)]
    return [pa.field("element", kind.value_type)] if pa.types.is_nested(kind) else []
