"""Nulls inside structures, lists and maps, where Arrow and Spark disagree on what "never null" means.

Facts:

- Spark says of a field that it is never null, and means: where its structure is there. ``when(x, struct(lit(1)))`` has
  such fields, and rows without the structure.
- Arrow keeps the fields of a structure that is not there, as nulls. pyarrow then refuses to cast the column, even to
  its own type, and to write it as Parquet. So in files everything inside a column may be null; Spark reads all columns
  so, whatever the files say.
- But Spark reads a variant only from fields that are never null. So these get empty values where the variant is null.
- Spark's ``void`` is Arrow's type of nothing but nulls, which pyarrow counts by the rows of a column: where ``cast``
  and ``view`` meet it inside of lists and maps, what they make is shorter than its offsets say.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from stateline.errors import ErrorKind, InvalidInputError

__all__ = ["broken_promise", "check_countable", "filled_variants", "with_nulls_inside"]

_MARK: Final = b"variant"
"""Key of the metadata by which Spark tells a variant from a structure."""


def with_nulls_inside(schema: pa.Schema) -> pa.Schema:
    """The schema, with everything inside columns allowed to be null."""
    return pa.schema([field.with_type(_relaxed(field.type)) for field in schema], metadata=schema.metadata)


def check_countable(schema: pa.Schema, operation: str) -> None:
    """Checks that nothing inside lists and maps has Spark's ``void`` type.

    Raises:
        InvalidInputError: Something has; names the column.
    """
    for field in schema:
        if _has_void(field.type, repeated=False):
            raise InvalidInputError(
                f"{field.type} has elements without a type, as array(null) has",
                operation=operation,
                subject=f"column {field.name!r}",
                hint='Give them one, such as F.col(...).cast("array<string>")',
                kind=ErrorKind.SCHEMA_MISMATCH,
            )


def _has_void(kind: pa.DataType, *, repeated: bool) -> bool:
    if pa.types.is_null(kind):
        return repeated
    repeated = repeated or (pa.types.is_nested(kind) and not pa.types.is_struct(kind))
    return any(_has_void(kind.field(index).type, repeated=repeated) for index in range(kind.num_fields))


def filled_variants(rows: pa.Table) -> pa.Table:
    """The rows, with empty fields in variants that are null, also inside other values."""
    for index, (field, column) in enumerate(zip(rows.schema, rows.columns, strict=True)):
        if _holds_variant(field.type):
            chunks = [_filled(chunk) for chunk in column.chunks]
            rows = rows.set_column(index, field, pa.chunked_array(chunks, field.type))
    return rows


def broken_promise(field: pa.Field, values: pa.Array, allowed: int = 0) -> str | None:
    """The field, dotted between levels, whose values have a null that it rules out; ``None`` if there is none.

    Args:
        field: What is promised of the values, and of what is inside them.
        values: The values.
        allowed: How many of the nulls belong to structures that are not there: nothing was promised of these.
    """
    if not field.nullable and values.null_count > allowed:
        return str(field.name)
    kind = field.type
    if pa.types.is_struct(kind):
        inside, allowed = zip(kind, values.flatten(), strict=True), values.null_count
    elif pa.types.is_map(kind):
        offsets, gone = pa.array(values.offsets.to_numpy()), values.is_null()  # A copy, as in _filled.
        lists = [pa.ListArray.from_arrays(offsets, each, mask=gone) for each in (values.keys, values.items)]
        inside, allowed = zip((kind.key_field, kind.item_field), (each.flatten() for each in lists), strict=True), 0
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inside, allowed = zip((kind.value_field,), (values.flatten(),), strict=True), 0
    else:
        return None
    found = (broken_promise(each, inner, allowed) for each, inner in inside)
    return next((f"{field.name}.{name}" for name in found if name is not None), None)


def _relaxed(kind: pa.DataType) -> pa.DataType:
    if _is_variant(kind):
        return kind
    if pa.types.is_struct(kind):
        return pa.struct([_nullable(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field.with_type(_relaxed(kind.key_type)), _nullable(kind.item_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(_nullable(kind.value_field))
    if pa.types.is_list(kind):
        return pa.list_(_nullable(kind.value_field))
    return kind


def _nullable(field: pa.Field) -> pa.Field:
    return field.with_type(_relaxed(field.type)).with_nullable(True)


def _is_variant(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind)) and any(_MARK in (field.metadata or {}) for field in kind)


def _holds_variant(kind: pa.DataType) -> bool:
    children = [kind.field(index).type for index in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return _is_variant(kind) or any(map(_holds_variant, children))


def _filled(values: pa.Array) -> pa.Array:
    kind = values.type
    if not _holds_variant(kind):
        return values
    if pa.types.is_struct(kind):
        inside = [values.field(index) for index in range(kind.num_fields)]
        fields = [each.fill_null(b"") if _is_variant(kind) else _filled(each) for each in inside]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=values.is_null())
    offsets = pa.array(values.offsets.to_numpy())  # A copy: with a mask, pyarrow takes no slice of offsets.
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(offsets, values.keys, _filled(values.items), type=kind, mask=values.is_null())
    lists = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return lists.from_arrays(offsets, _filled(values.values), type=kind, mask=values.is_null())
