"""What a row of keyed state looks like: key columns and value columns, and how a stored schema becomes a newer one.

Owns the types that state may have, their text form in a checkpoint, and schema evolution as a pure plan. Does not own
rows (``keys``, ``run``) nor what the values mean (``aggregate``).

Rules:
- Key types are fixed for the life of the state: the stored order is by the hash of the key, and the hash depends on its
  type.
- Names that start with ``__`` belong to Stateline.
- Every column is nullable; dictionaries are decoded, views and large strings are stored as plain ones.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Sequence
from typing import Any, Final, Self

import pyarrow as pa

from stateline.errors import CorruptDataError, ErrorKind, InvalidInputError
from stateline.key_groups import check_key_type

__all__ = [
    "DELETED_COLUMN",
    "HASH_COLUMN",
    "ColumnStep",
    "StateSchema",
    "apply_evolution",
    "plan_evolution",
    "stored_key_type",
    "stored_type",
]

HASH_COLUMN: Final = "__hash"
DELETED_COLUMN: Final = "__deleted"

_RESERVED_PREFIX: Final = "__"
_ROLE: Final = b"stateline.role"
_KEY: Final = b"key"
_VALUE: Final = b"value"


@dataclasses.dataclass(frozen=True, slots=True)
class StateSchema:
    """Names and types of the key columns and of the value columns.

    Attributes:
        keys: One field or more, of types that can be keys.
        values: Any number of fields; none makes a set of keys.

    Raises:
        InvalidInputError: No key, a duplicate or reserved name, a type that cannot be a key or cannot be stored.
    """

    keys: pa.Schema
    values: pa.Schema

    def __post_init__(self) -> None:
        keys = [pa.field(field.name, stored_key_type(field.type, field.name)) for field in self.keys]
        values = [pa.field(field.name, stored_type(field.type, field.name)) for field in self.values]
        names = [field.name for field in (*keys, *values)]
        if not keys:
            raise InvalidInputError("there is no key column", subject="state schema", hint="Name at least one")
        for name in names:
            if name.startswith(_RESERVED_PREFIX):
                raise InvalidInputError(
                    "the name is reserved", subject=f"column {name!r}", hint="Names that start with __ are Stateline's"
                )
            if names.count(name) > 1:
                raise InvalidInputError("the name is used twice", subject=f"column {name!r}", hint="Rename one of them")
        object.__setattr__(self, "keys", pa.schema(keys))
        object.__setattr__(self, "values", pa.schema(values))

    @classmethod
    def of(cls, schema: pa.Schema, key_names: Sequence[str]) -> Self:
        """Splits one Arrow schema: the named columns, in the order named, are the key; the others are values.

        Raises:
            InvalidInputError: A name that the schema does not have; and as the class.
        """
        for name in key_names:
            if name not in schema.names:
                raise InvalidInputError(
                    "there is no such column", subject=f"key {name!r}", hint=f"Columns: {', '.join(schema.names)}"
                )
        values = [field for field in schema if field.name not in key_names]
        return cls(pa.schema([schema.field(name) for name in key_names]), pa.schema(values))

    @property
    def row(self) -> pa.Schema:
        """Key columns, then value columns: what a user sees."""
        return pa.schema([*self.keys, *self.values])

    def run(self, *, tombstones: bool) -> pa.Schema:
        """The columns of a run: hash, keys, values, and the deletion mark where there is one."""
        marks = [pa.field(DELETED_COLUMN, pa.bool_(), nullable=False)] if tombstones else []
        return pa.schema([pa.field(HASH_COLUMN, pa.uint64(), nullable=False), *self._with_roles(), *marks])

    @classmethod
    def of_run(cls, schema: pa.Schema) -> Self:
        """The state that a run of this Arrow schema holds: the inverse of :meth:`run`.

        Raises:
            CorruptDataError: It is no run's schema.
        """
        fields = list(schema)
        if not fields or not fields.pop(0).equals(pa.field(HASH_COLUMN, pa.uint64(), nullable=False)):
            raise _corrupt(f"the first column of a run is {HASH_COLUMN}: uint64")
        if fields and fields[-1].equals(pa.field(DELETED_COLUMN, pa.bool_(), nullable=False)):
            fields.pop()
        return cls._by_role(fields)

    def encode(self) -> str:
        """The text that a checkpoint keeps: the Arrow schema as an IPC message in base64, roles as field metadata."""
        return base64.b64encode(pa.schema(self._with_roles()).serialize()).decode("ascii")

    @classmethod
    def decode(cls, text: str) -> Self:
        """Reads what :meth:`encode` wrote.

        Raises:
            CorruptDataError: It is something else.
        """
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
        except (ValueError, pa.ArrowException, OSError) as error:
            raise _corrupt(str(error)) from error
        return cls._by_role(list(schema))

    def check_same(self, stored: StateSchema, operator: str) -> None:
        """Checks that the program's schema is the stored one.

        Raises:
            InvalidInputError: Of kind ``SCHEMA_MISMATCH``; shows both.
        """
        if self != stored:
            raise _mismatch(stored, self, operator, "the program's state is not the stored state")

    def _with_roles(self) -> list[pa.Field]:
        return [
            field.with_metadata({_ROLE: role})
            for part, role in ((self.keys, _KEY), (self.values, _VALUE))
            for field in part
        ]

    @classmethod
    def _by_role(cls, fields: Sequence[pa.Field]) -> Self:
        roles = [(field.metadata or {}).get(_ROLE) for field in fields]
        if any(role not in (_KEY, _VALUE) for role in roles) or _KEY in roles[roles.count(_KEY) :]:
            raise _corrupt("every column is a key or a value, keys first")
        keys = roles.count(_KEY)
        try:
            return cls(pa.schema(fields[:keys]), pa.schema(fields[keys:]))
        except (ValueError, pa.ArrowException) as error:  # A name that is no text, too.
            raise _corrupt(str(error)) from error

    def __str__(self) -> str:
        keys, values = (", ".join(f"{field.name}: {field.type}" for field in part) for part in (self.keys, self.values))
        return f"({keys}) -> ({values})"


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnStep:
    """How one wanted value column comes from a stored row.

    Attributes:
        name: The wanted column.
        type: Its type.
        source: Index of the stored value column; ``None`` where the column was added: all null.
    """

    name: str
    type: pa.DataType
    source: int | None


def plan_evolution(stored: StateSchema, wanted: StateSchema, operator: str = "state") -> tuple[ColumnStep, ...]:
    """How rows of ``stored`` are read as rows of ``wanted``: a pure plan, one step per wanted value column.

    Allowed: value columns added (null in old rows), dropped, reordered, and widened without loss (more bits of the same
    kind, ``int8..int32`` to ``float64``, more digits of a decimal of equal scale).

    Raises:
        InvalidInputError: Of kind ``SCHEMA_MISMATCH``: another key, or a change of type that could lose values.
    """
    if stored.keys != wanted.keys:
        raise _mismatch(stored, wanted, operator, "the key columns differ, and stored rows are ordered by their hash")
    steps = []
    for field in wanted.values:
        index = stored.values.get_field_index(field.name)
        if index >= 0 and not _widens(stored.values.field(index).type, field.type):
            raise _mismatch(stored, wanted, operator, f"column {field.name!r} cannot change its type this way")
        steps.append(ColumnStep(field.name, field.type, index if index >= 0 else None))
    return tuple(steps)


def apply_evolution(steps: Sequence[ColumnStep], values: Sequence[pa.Array], rows: int) -> tuple[pa.Array, ...]:
    """The wanted value columns from stored ones, by a plan. Unchanged columns are not copied."""
    made = []
    for step in steps:
        if step.source is None:
            made.append(pa.nulls(rows, step.type))
        else:
            column = values[step.source]
            made.append(column if column.type == step.type else column.cast(step.type))
    return tuple(made)


def _widens(old: pa.DataType, new: pa.DataType) -> bool:
    if old == new or pa.types.is_null(old):
        return True
    if pa.types.is_signed_integer(old):
        if pa.types.is_float64(new):
            return bool(old.bit_width <= 32)
        return bool(pa.types.is_signed_integer(new) and new.bit_width > old.bit_width)
    if pa.types.is_float32(old):
        return bool(pa.types.is_float64(new))
    if pa.types.is_decimal128(old) and pa.types.is_decimal128(new):
        return bool(new.scale == old.scale and new.precision >= old.precision)
    return False


def stored_key_type(kind: pa.DataType, column: str) -> pa.DataType:
    """The type that a key column of ``kind`` is kept as.

    Raises:
        InvalidInputError: Values of that type cannot be keys.
    """
    check_key_type(kind, column)
    kind = stored_type(kind, column)
    return pa.timestamp("us", tz=kind.tz) if pa.types.is_timestamp(kind) else kind


_PLAIN: Final[tuple[tuple[Any, Any], ...]] = (
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
)


def stored_type(kind: pa.DataType, column: str) -> pa.DataType:
    """The type that a value column of ``kind`` is kept as.

    Raises:
        InvalidInputError: Values of that type cannot be stored.
    """
    if pa.types.is_dictionary(kind):
        return stored_type(kind.value_type, column)
    for test, plain in _PLAIN:
        if test(kind):
            return plain
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", stored_type(kind.value_type, column)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, stored_type(field.type, column)) for field in kind.fields])
    if pa.types.is_map(kind):
        return pa.map_(stored_type(kind.key_type, column), stored_type(kind.item_type, column))
    if pa.types.is_nested(kind) or pa.types.is_run_end_encoded(kind) or isinstance(kind, pa.BaseExtensionType):
        raise InvalidInputError(
            f"a value of type {kind} cannot be stored",
            subject=f"column {column!r}",
            hint="Use numbers, strings, binary, dates, timestamps, decimals, lists, structs or maps",
        )
    return kind


def _mismatch(stored: StateSchema, wanted: StateSchema, operator: str, reason: str) -> InvalidInputError:
    return InvalidInputError(
        f"{reason}; stored: {stored}; wanted: {wanted}",
        operation="open",
        subject=f"operator {operator!r}",
        hint="Restore the old program, or start a new root and replay the source",
        kind=ErrorKind.SCHEMA_MISMATCH,
    )


def _corrupt(reason: str) -> CorruptDataError:
    return CorruptDataError(
        f"the stored state schema cannot be read: {reason}",
        operation="decode",
        subject="state schema",
        hint="Go back to an older checkpoint",
    )
