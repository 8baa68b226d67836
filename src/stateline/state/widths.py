"""Whole numbers of a run, in as few bits as its values need.

Counts, sums, identifiers: most of what state holds is declared with 64 bits and needs 8 to 32. A column of signed whole
numbers is stored as the narrowest signed type that holds all values of the run; its field names the declared type in
the metadata ``stateline.type``. Any reader of Arrow sees the right numbers, in a smaller type.

Rows stay narrow in memory, where they are mapped, searched and merged in place. They get the declared types where they
leave a table: ``probe``, ``scan``, rows of sub-keys, changes (``docs/decisions/0023-narrow-numbers.md``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateline.state.columns import fixed_words, from_words, words_of

__all__ = ["concat", "declared_field", "is_narrowed", "narrowed", "narrowed_schema", "retyped"]

_DECLARED: Final = b"stateline.type"
_SIGNED: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
"""Narrowest first."""


def narrowed_schema(declared: pa.Schema, parts: Sequence[Sequence[pa.Array]]) -> pa.Schema:
    """The schema by which columns are stored.

    Args:
        declared: One field per column.
        parts: The columns of each part of a run; they may be narrower than declared already.
    """
    columns = zip(*parts, strict=True)
    return pa.schema([_narrowed(field, column) for field, column in zip(declared, columns, strict=True)])


def declared_field(field: pa.Field) -> pa.Field:
    """A stored field as it was declared: the inverse of what :func:`narrowed_schema` does to one.

    Raises:
        ValueError: It names a type that it cannot have been narrowed from.
    """
    note = (field.metadata or {}).get(_DECLARED)
    if note is None:
        return field
    for kind in _SIGNED:
        if str(kind).encode() == note and is_narrowed(field.type, kind):
            rest = {key: value for key, value in field.metadata.items() if key != _DECLARED}
            return field.with_type(kind).with_metadata(rest)
    raise ValueError(f"column {field.name!r} of type {field.type} was never one of type {note!r}")


def is_narrowed(stored: pa.DataType, declared: pa.DataType) -> bool:
    """Whether values of one type are those of the other in fewer bits, to be read as they lie."""
    return stored in _SIGNED and declared in _SIGNED and stored.bit_width < declared.bit_width


def narrowed(columns: Iterable[pa.Array]) -> tuple[pa.Array, ...]:
    """Columns, each by itself in as few bits as it needs."""
    return tuple(column.cast(_narrowest([column])) if column.type in _SIGNED else column for column in columns)


def retyped(columns: Iterable[pa.Array], kinds: Iterable[pa.DataType]) -> tuple[pa.Array, ...]:
    """Columns in the types of a schema, narrower or wider than they are; one that has its type is not copied.

    Raises:
        pa.ArrowInvalid: A value has no place in its type.
    """
    pairs = zip(columns, kinds, strict=True)
    return tuple(column if column.type == kind else column.cast(kind) for column, kind in pairs)


def concat(columns: Sequence[pa.Array]) -> pa.Array:
    """One column out of one or more, which may differ in how many bits their whole numbers have."""
    kinds = {column.type for column in columns}
    if len(kinds) == 1 or not kinds.issubset(_SIGNED):
        return pa.concat_arrays(list(columns))
    widest = max(kinds, key=_SIGNED.index)
    if not any(column.null_count for column in columns):
        return from_words(np.concatenate([fixed_words(column) for column in columns]), widest)  # Widened by the copy.
    return pa.concat_arrays(list(retyped(columns, itertools.repeat(widest, len(columns)))))


def _narrowed(field: pa.Field, columns: Sequence[pa.Array]) -> pa.Field:
    if field.type not in _SIGNED:
        return field
    kind = _narrowest(columns)
    if not is_narrowed(kind, field.type):
        return field
    return field.with_type(kind).with_metadata({**(field.metadata or {}), _DECLARED: str(field.type).encode()})


def _narrowest(columns: Sequence[pa.Array]) -> pa.DataType:
    """The narrowest type that holds all values of some columns of signed whole numbers."""
    if all(column.type == _SIGNED[0] for column in columns):
        return _SIGNED[0]
    bounds = [bound for column in columns for bound in _bounds(column)]
    low, high = min(bounds, default=0), max(bounds, default=0)
    return next(kind for kind in _SIGNED if -(1 << kind.bit_width - 1) <= low and high < 1 << kind.bit_width - 1)


def _bounds(column: pa.Array) -> Sequence[int]:
    """The least and the greatest of the values, or none where there is no value."""
    if column.null_count:
        found = pc.min_max(column)
        return [found[side].as_py() for side in ("min", "max") if found[side].is_valid]
    words = words_of(column)
    return (int(words.min()), int(words.max())) if len(words) else ()
