"""Whole numbers of a run, in as few bits as its values need.

Owns the choice of the stored type, the note of the declared one, and the way back. Does not own the bytes of a run
(``run``).

Counts, sums, identifiers: most of what state holds is declared with 64 bits and needs 8 to 32. A column of signed whole
numbers is stored as the narrowest signed type that holds all values of the run; its field names the declared type in
the metadata ``stateline.type``. Any reader of Arrow sees the right numbers, in a smaller type.

Rows stay narrow in memory, where they are mapped, searched and merged in place. They get the declared types where they
leave a table: ``probe``, ``scan``, rows of sub-keys, changes (``docs/decisions/0023-narrow-numbers.md``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["concat", "declared_field", "is_narrowed", "narrowed_schema", "retyped"]

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


def retyped(columns: Iterable[pa.Array], kinds: Iterable[pa.DataType]) -> tuple[pa.Array, ...]:
    """Columns in the types of a schema, narrower or wider than they are; one that has its type is not copied.

    Raises:
        pa.ArrowInvalid: A value has no place in its type.
    """
    pairs = zip(columns, kinds, strict=True)
    return tuple(column if column.type == kind else column.cast(kind) for column, kind in pairs)


def concat(columns: Sequence[pa.Array]) -> pa.Array:
    """One column out of one or more, which may differ in how many bits their whole numbers have."""
    if len(columns) == 1:
        return columns[0]
    widest = max((column.type for column in columns), key=_bits)
    return pa.concat_arrays(list(retyped(columns, [widest] * len(columns))))


def _bits(kind: pa.DataType) -> int:
    return int(kind.bit_width) if kind in _SIGNED else 0


def _narrowed(field: pa.Field, columns: Sequence[pa.Array]) -> pa.Field:
    if field.type not in _SIGNED:
        return field
    bounds = [pc.min_max(column) for column in columns]
    values = [bound[side].as_py() for bound in bounds for side in ("min", "max") if bound[side].is_valid]
    low, high = min(values, default=0), max(values, default=0)
    kind = next(kind for kind in _SIGNED if -(1 << kind.bit_width - 1) <= low and high < 1 << kind.bit_width - 1)
    if not is_narrowed(kind, field.type):
        return field
    return field.with_type(kind).with_metadata({**(field.metadata or {}), _DECLARED: str(field.type).encode()})
