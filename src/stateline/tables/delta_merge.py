"""The merge of an upsert into a Delta table, and the bounds of columns that it may write and use.

Facts (delta-rs 1.6):
- Its writer leaves NaN out of bounds, writes null for infinity, and rounds those of decimals to a double. Spark and
  others then skip files that have matching rows. So a table that takes upserts has no bounds of such columns:
  ``delta.dataSkippingStatsColumns`` names the others. Files have no Parquet statistics of floats either.
- A bound that is left out without that property makes its own reader of Arrow datasets skip the file.
- ``streamed_exec=False`` skips files of the target by the bounds of the keys. With NaN, infinities or long decimals
  among the keys of the rows, it skips too many.
- ``=`` distinguishes NaN values with different bits, so keys must be in canonical form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import ColumnProperties, CommitProperties, DeltaTable, PostCommitHookProperties, WriterProperties
from deltalake.exceptions import DeltaError

from stateline.tables.columns import leaves_of, plain_schema

__all__ = ["limit_bounds", "merge_rows", "properties_for_bounds"]

_GONE: Final = "stateline_gone"
"""A column of the rows of a merge that no table has: whether the row must be deleted."""

_BOUNDED: Final = "delta.dataSkippingStatsColumns"
_BOUNDED_COUNT: Final = "delta.dataSkippingNumIndexedCols"
_BOUNDED_MAX: Final = 32
"""Leaf columns that have bounds where no property says so."""

_DOUBLE_DIGITS: Final = 15
_PLAIN: Final = re.compile("[A-Za-z0-9_.]+")


def properties_for_bounds(schema: pa.Schema) -> dict[str, str]:
    """The properties of a table of these columns that takes upserts; empty where all bounds are right."""
    leaves = [(path, kind) for path, kind in _leaves(schema) if not _has_no_order(kind)]
    if all(_is_exact(kind) for _, kind in leaves[:_BOUNDED_MAX]):
        return {}
    exact = [".".join(path) for path, kind in leaves[:_BOUNDED_MAX] if _is_exact(kind) and _is_plain(path)]
    return _only(exact)


def limit_bounds(table: DeltaTable, schema: pa.Schema) -> bool:
    """Keep the writer from adding wrong bounds to a table that another program or an earlier version created.

    Returns:
        Whether the table was changed, so that it must be looked at again.
    """
    configuration = table.metadata().configuration
    if configuration.get(_BOUNDED_COUNT) == "0":
        return False
    wanted = properties_for_bounds(schema)
    named = configuration.get(_BOUNDED)
    if named is not None and wanted:
        inexact = {".".join(path) for path, kind in _leaves(schema) if not _is_exact(kind)}
        names = [name.strip() for name in named.split(",") if name.strip()]
        exact = [name for name in names if not any(f"{path}.".startswith(f"{name}.") for path in inexact)]
        wanted = {} if exact == names else _only(exact)
    if not wanted:
        return False
    try:
        table.alter.set_table_properties(wanted)
    except DeltaError:
        return False  # Others may keep the properties from being changed: the rows go in all the same.
    return True


def merge_rows(
    table: DeltaTable,
    rows: pa.Table,
    gone: pa.Table,
    key: Sequence[str],
    properties: CommitProperties,
    hooks: PostCommitHookProperties,
) -> None:
    """Replace, add and remove rows in one commit. A key that is removed and added is there afterwards.

    Args:
        table: The table.
        rows: Those that are added, or replace those of the same key.
        gone: Keys that are removed.
        key: Columns of the key.
        properties: Those of the commit.
        hooks: What follows the commit.
    """
    given = _marked(rows, gone, key) if gone.num_rows else rows
    merge = table.merge(
        given,
        " AND ".join(f"ours.{_quoted(column)} = theirs.{_quoted(column)}" for column in key),
        source_alias="ours",
        target_alias="theirs",
        commit_properties=properties,
        post_commithook_properties=hooks,
        writer_properties=_writer_properties(plain_schema(pa.schema(table.schema().to_arrow()))),
        streamed_exec=not all(_may_skip(given[column]) for column in key),
    )
    if gone.num_rows:
        goes = f"ours.{_quoted(_GONE)}"
        merge = merge.when_matched_delete(predicate=goes).when_matched_update_all(except_cols=[_GONE])
        merge.when_not_matched_insert_all(predicate=f"NOT {goes}", except_cols=[_GONE]).execute()
    else:
        merge.when_matched_update_all().when_not_matched_insert_all().execute()


def _marked(rows: pa.Table, gone: pa.Table, key: Sequence[str]) -> pa.Table:
    """Rows that are added and keys that are removed, each key once, with the column that tells which is which."""
    keys = gone.cast(plain_schema(gone.schema))
    keys = keys.join(rows.select(list(key)), list(key), join_type="left anti")
    parts = [(rows, False), (keys, True)]
    marked = [each.append_column(_GONE, pa.array([is_gone] * each.num_rows, pa.bool_())) for each, is_gone in parts]
    made = pa.concat_tables(marked, promote_options="default")
    # Removed rows are null but for their key, whatever the schema of the added ones says.
    return made.cast(pa.schema([field.with_nullable(True) for field in made.schema]))


def _may_skip(keys: pa.ChunkedArray) -> bool:
    """Whether the library may skip files of the target by the bounds of these keys."""
    if pa.types.is_floating(keys.type):
        return bool(pc.all(pc.is_finite(keys)).as_py() is not False)
    return _is_exact(keys.type)


def _writer_properties(schema: pa.Schema) -> WriterProperties | None:
    """How files are written: without statistics of floats, however their columns are called."""
    leaves = list(_leaves(schema))
    ordered = [".".join(path) for path, kind in leaves if not pa.types.is_floating(kind)]
    if len(ordered) == len(leaves):
        return None
    # A path in whose names are points is not found: so statistics are switched on by path, and not off.
    with_statistics: Any = ColumnProperties(statistics_enabled="PAGE")
    return WriterProperties(
        compression="SNAPPY",
        default_column_properties=ColumnProperties(statistics_enabled="NONE"),
        column_properties=dict.fromkeys(ordered, with_statistics),
    )


def _leaves(schema: pa.Schema) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    """The leaf columns that have one value for each row."""
    for column in schema:
        for path, kind in leaves_of(column.type, (column.name,)):
            if path is not None:
                yield path, kind


def _only(columns: Sequence[str]) -> dict[str, str]:
    """The property by which only some columns have bounds."""
    return {_BOUNDED: ",".join(columns)} if columns else {_BOUNDED_COUNT: "0"}


def _is_exact(kind: pa.DataType) -> bool:
    """Whether the bounds that the library writes hold for all values of a type."""
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= _DOUBLE_DIGITS)
    return not pa.types.is_floating(kind)


def _has_no_order(kind: pa.DataType) -> bool:
    """Whether Delta has no bounds of a type: its name must not be in the property."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_boolean(kind))


def _is_plain(path: Sequence[str]) -> bool:
    """Whether the property can name a column without quotes, whatever reads it."""
    return all(_PLAIN.fullmatch(name) and "." not in name for name in path)


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'
