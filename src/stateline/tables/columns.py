"""Columns of rows against columns of a table: which types are the same to readers, and what is refused. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from stateline.errors import ErrorKind, InvalidInputError

__all__ = ["check_fit", "check_kinds", "leaves_of", "plain_schema", "plain_type", "refused_columns", "with_promises"]


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that readers of a table see: without the layouts that only Arrow tells apart."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, plain_type(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", plain_type(kind.value_type)))
    return kind


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The columns as readers of a table see them."""
    return pa.schema([pa.field(each.name, plain_type(each.type), each.nullable) for each in schema])


def leaves_of(kind: pa.DataType, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...] | None, pa.DataType]]:
    """The leaf columns that a column has in a Parquet file, in order: their path, and their type.

    Returns:
        The path is ``None`` inside lists and maps, where a leaf has any number of values for a row.
    """
    if pa.types.is_struct(kind):
        for each in kind:
            yield from leaves_of(each.type, (*path, each.name))
    elif pa.types.is_map(kind):
        yield from ((None, leaf) for part in (kind.key_type, kind.item_type) for _, leaf in leaves_of(part))
    elif pa.types.is_nested(kind):
        yield from ((None, leaf) for _, leaf in leaves_of(kind.value_type))
    else:
        yield path, kind


def check_kinds(
    schema: pa.Schema, holds: Callable[[pa.DataType], bool], table: str, name: str, *, nested: bool = True
) -> None:
    """Checks that a kind of table can hold the columns.

    Args:
        schema: The columns of the rows.
        holds: Whether it can hold values of a type that is not nested.
        table: The kind of table, for the error.
        name: The table.
        nested: Whether it can hold lists, maps and structures.

    Raises:
        InvalidInputError: It cannot; names the first such column.
    """
    for column in schema:
        kind = plain_type(column.type)
        inside = (leaf for _, leaf in leaves_of(kind)) if nested or not pa.types.is_nested(kind) else (kind,)
        for leaf in inside:
            if not holds(leaf):
                reason = f"column {column.name!r} is {column.type}, and a {table} cannot hold {leaf}"
                raise refused_columns(reason, name, "Cast the column, or leave it out")


def check_fit(rows: pa.Schema, table: pa.Schema, name: str, *, optional: Sequence[str] = ()) -> None:
    """Checks that rows of one schema may go into a table of another.

    Every column of the rows must be in the table, with the same type and case; what the table has besides must take
    nulls, and a column that takes none must get none.

    Args:
        rows: Columns of the rows.
        table: Columns of the table.
        name: The table.
        optional: Columns of the table that come from elsewhere.

    Raises:
        InvalidInputError: They may not; says which column, and how to mend it.
    """
    there = {column.name: column for column in table}
    for column in rows:
        other = there.get(column.name)
        if other is None:
            similar = [each for each in there if each.lower() == column.name.lower()]
            found = f"{similar[0]!r}" if similar else f"the columns {list(there)}"
            hint = "Add the column to the table first, or leave it out of the rows"
            raise refused_columns(f"has no column {column.name!r}: it has {found}", name, hint)
        ours, theirs = plain_type(column.type), plain_type(other.type)
        if ours != theirs:
            reason = f"column {column.name!r} is {theirs} there, and {ours} in the rows"
            raise refused_columns(reason, name, "Cast the column, or change the table")
        if column.nullable and not other.nullable:
            reason = f"column {column.name!r} takes no nulls, and the rows may have some"
            raise refused_columns(
                reason, name, "Let the table take nulls there, or make the column NOT NULL in the rows"
            )
    given = {column.name for column in rows} | set(optional)
    missing = [column.name for column in table if not column.nullable and column.name not in given]
    if missing:
        raise refused_columns(
            f"needs values for {missing}, and the rows do not give any", name, "Add the columns to the rows"
        )


def with_promises(columns: pa.Schema, there: pa.Schema) -> pa.Schema:
    """Columns of rows that are decided, which may go where no nulls are taken.

    Rows are kept, and files written, with nulls allowed everywhere. Whether there may be some was compared before any
    were written, and none was.
    """
    strict = {column.name for column in there if not column.nullable}
    return pa.schema([column.with_nullable(False) if column.name in strict else column for column in columns])


def refused_columns(reason: str, name: str, hint: str) -> InvalidInputError:
    """The error of rows that a table cannot take."""
    return InvalidInputError(
        f"the table {reason}", operation="write_table", subject=name, hint=hint, kind=ErrorKind.SCHEMA_MISMATCH
    )
