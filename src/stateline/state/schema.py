"""What a row of keyed state looks like: key columns and value columns.

Rules:
- Key types are fixed for the life of the state: the stored order is by the hash of the key, and the hash depends on its
  type.
- Names that start with ``__`` belong to Stateline.
- Every column is nullable; dictionaries are decoded, views and large strings are stored as plain ones.
- A default is what a value column has in rows that were stored before there was such a column. It is kept as one value
  in Arrow's IPC format, in base64, in the metadata of its field.
- Of a table that is only appended to, no key is ever written twice nor deleted. So nobody who merges or reads it has to
  look for newer versions of a row.
- A key may end in sub-keys. Rows then lie where their grouping key lies: ``subkeys`` says how they are hashed.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Final, Self

import pyarrow as pa

from stateline.arrow_bounds import check_stream
from stateline.errors import CorruptDataError, ErrorKind, InvalidInputError
from stateline.key_groups import check_key_type
from stateline.options import check_kind, check_known
from stateline.state.widths import declared_field

__all__ = [
    "DELETED_COLUMN",
    "HASH_COLUMN",
    "StateSchema",
    "is_kept_alike",
    "schema_mismatch",
    "stored_key_type",
    "stored_type",
]

HASH_COLUMN: Final = "__hash"
DELETED_COLUMN: Final = "__deleted"

_RESERVED_PREFIX: Final = "__"
_ROLE: Final = b"stateline.role"
_KEY: Final = b"key"
_VALUE: Final = b"value"
_DEFAULT: Final = b"stateline.default"
_APPEND_ONLY: Final = b"stateline.append_only"
_SUBKEYS: Final = b"stateline.subkeys"


@dataclasses.dataclass(frozen=True, slots=True)
class StateSchema:
    """Names and types of the key columns and of the value columns.

    Attributes:
        keys: One field or more, of types that can be keys.
        values: Any number of fields; none makes a set of keys.
        defaults: Value columns and their encoded defaults, ascending by name; :meth:`with_defaults` makes them.
        append_only: Whether each key is written once and stays as it is until its time is over. It saves work, and
            says nothing about what a row looks like: schemas that differ in it are equal.
        subkeys: How many of the last key columns tell rows of one grouping key apart. It says by what readers find a
            row, and nothing about what it looks like: schemas that differ in it are equal.

    Raises:
        InvalidInputError: No key, a duplicate or reserved name, a type that cannot be a key or cannot be stored, or
            only sub-keys.
    """

    keys: pa.Schema
    values: pa.Schema
    defaults: tuple[tuple[str, bytes], ...] = ()
    append_only: bool = dataclasses.field(default=False, compare=False)
    subkeys: int = dataclasses.field(default=0, compare=False)

    def __post_init__(self) -> None:
        keys = [pa.field(field.name, stored_key_type(field.type, field.name)) for field in self.keys]
        values = [pa.field(field.name, stored_type(field.type, field.name)) for field in self.values]
        names = [field.name for field in (*keys, *values)]
        if not keys:
            raise InvalidInputError("must have a key column", subject="state schema", hint="Name at least one")
        if not 0 <= self.subkeys < len(keys):
            raise InvalidInputError(
                f"must have fewer sub-keys than its {len(keys)} key columns, got {self.subkeys}",
                subject="state schema",
                hint="The first key columns are the grouping key",
            )
        for name in names:
            if name.startswith(_RESERVED_PREFIX):
                raise InvalidInputError(
                    "the name is reserved", subject=f"column {name!r}", hint="Names that start with __ are Stateline's"
                )
            if names.count(name) > 1:
                raise InvalidInputError("the name is used twice", subject=f"column {name!r}", hint="Rename one of them")
        object.__setattr__(self, "keys", pa.schema(keys))
        object.__setattr__(self, "values", pa.schema(values))

    def __hash__(self) -> int:
        return hash((len(self.keys), *self.values.names))  # Of all that is compared it takes ten times as long.

    @classmethod
    def of(cls, schema: pa.Schema, key_names: Sequence[str]) -> Self:
        """Splits one Arrow schema: the named columns, in the order named, are the key; the others are values.

        Raises:
            InvalidInputError: A name that the schema does not have; and as the class.
        """
        check_kind(schema, pa.Schema, "schema", "a pyarrow.Schema")
        check_kind(key_names, list | tuple, "key_names", "a list of column names")
        for name in key_names:
            if name not in schema.names:
                raise InvalidInputError(
                    "is not a column", subject=f"key {name!r}", hint=f"Columns: {', '.join(schema.names)}"
                )
        values = [field for field in schema if field.name not in key_names]
        return cls(pa.schema([schema.field(name) for name in key_names]), pa.schema(values))

    def with_defaults(self, defaults: Mapping[str, Any]) -> Self:
        """The same schema, with values for rows that were stored before a column was added.

        Args:
            defaults: By name of the value column. A column that is not named is null in such rows.

        Raises:
            InvalidInputError: A name that is not a value column, or a value that its type cannot hold.
        """
        check_known(defaults, self.values.names, "value column")
        encoded = []
        for name in sorted(name for name, value in defaults.items() if value is not None):
            value = defaults[name]
            kind = self.values.field(name).type
            try:
                column = pa.array([value], type=kind)
                _check_is_whole(value, column[0].as_py())
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise InvalidInputError(
                    f"expected a value of type {kind}, got {value!r}",
                    subject=f"default of column {name!r}",
                    hint=str(error),
                ) from error
            encoded.append((name, pa.record_batch([column], names=[name]).serialize().to_pybytes()))
        return dataclasses.replace(self, defaults=tuple(encoded))

    def has_default_of(self, stored: StateSchema, name: str) -> bool:
        """Whether rows without the column read as they did by ``stored``, whose column may be narrower."""
        default = stored.default(name)
        if default.is_valid:
            default = default.cast(self.values.field(name).type)
        kept = self.with_defaults({name: default if default.is_valid else None})
        return kept.defaults == tuple(item for item in self.defaults if item[0] == name)

    def default(self, name: str) -> pa.Scalar:
        """What a value column has in rows that were stored without it; null where nobody said."""
        field = self.values.field(name)
        encoded = dict(self.defaults).get(name)
        return pa.scalar(None, field.type) if encoded is None else _decoded_default(encoded, field)

    @property
    def grouping(self) -> StateSchema:
        """A set of the grouping keys: what the key is without its sub-keys."""
        return StateSchema(pa.schema(list(self.keys)[: len(self.keys) - self.subkeys]), pa.schema([]))

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
            CorruptDataError: It is not the schema of a run.
        """
        try:
            fields = [declared_field(field) for field in schema]
        except (ValueError, pa.ArrowException) as error:
            raise _corrupt(str(error)) from error
        if not fields or not fields.pop(0).equals(pa.field(HASH_COLUMN, pa.uint64(), nullable=False)):
            raise _corrupt(f"the first column of a run is {HASH_COLUMN}: uint64")
        if fields and fields[-1].equals(pa.field(DELETED_COLUMN, pa.bool_(), nullable=False)):
            fields.pop()
        return cls._by_role(fields)

    def encode(self) -> str:
        """The text that a checkpoint keeps: the Arrow schema as an IPC message in base64.

        Roles and defaults are in the metadata of the fields.
        """
        defaults = dict(self.defaults)
        fields = [
            field.with_metadata({**field.metadata, _DEFAULT: base64.b64encode(defaults[field.name])})
            if field.name in defaults
            else field
            for field in self._with_roles()
        ]
        facts = {_APPEND_ONLY: b"true"} if self.append_only else {}
        if self.subkeys:
            facts[_SUBKEYS] = str(self.subkeys).encode()
        schema = pa.schema(fields, facts or None)
        return base64.b64encode(schema.serialize()).decode("ascii")

    @classmethod
    def decode(cls, text: str) -> Self:
        """Reads what :meth:`encode` wrote.

        Raises:
            CorruptDataError: It is something else.
        """
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
            fields = list(schema)
            facts = schema.metadata or {}
            subkeys = int(facts.get(_SUBKEYS, b"0"))
        except (ValueError, pa.ArrowException, OSError, EOFError) as error:  # Of a type that pyarrow has not, too.
            raise _corrupt(str(error)) from error
        made = cls._by_role(fields)
        if not 0 <= subkeys < len(made.keys):
            raise _corrupt(f"{subkeys} of its {len(made.keys)} key columns are sub-keys")
        return dataclasses.replace(made, append_only=_APPEND_ONLY in facts, subkeys=subkeys)

    def check_same(self, stored: StateSchema, operator: str) -> None:
        """Checks that the program's schema is the stored one.

        Raises:
            InvalidInputError: Of kind ``SCHEMA_MISMATCH``; shows both.
        """
        if self != stored:
            raise schema_mismatch(stored, self, operator, "the program's schema must be the stored one")

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
            made = cls(pa.schema(fields[:keys]), pa.schema(fields[keys:]))
            for kind in made.values.types:
                _check_has_values(kind)
            texts = {field.name: field.metadata[_DEFAULT] for field in fields[keys:] if _DEFAULT in field.metadata}
            defaults = {name: base64.b64decode(text, validate=True) for name, text in texts.items()}
        except (ValueError, KeyError, pa.ArrowException) as error:  # A name that is no text, too.
            raise _corrupt(str(error)) from error
        return made.with_defaults(
            {name: _decoded_default(data, made.values.field(name)) for name, data in defaults.items()}
        )

    def __str__(self) -> str:
        keys = ", ".join(f"{field.name}: {field.type}" for field in self.keys)
        values = ", ".join(f"{field.name}: {field.type}{self._default_text(field.name)}" for field in self.values)
        return f"({keys}) -> ({values})"

    def _default_text(self, name: str) -> str:
        default = self.default(name)
        return f" = {default.as_py()!r}" if default.is_valid else ""


def _check_has_values(kind: pa.DataType) -> None:
    """Refuses, with some error, a type that Arrow knows and pyarrow has no values of, however deep it is."""
    pa.nulls(0, kind)
    for number in range(kind.num_fields):
        _check_has_values(kind.field(number).type)


def _check_is_whole(value: Any, kept: Any) -> None:
    """Refuses a fraction of which only the whole part was kept, however deep: pyarrow cuts it off without a word."""
    if isinstance(kept, int) and isinstance(value, Real) and value != kept:
        raise ValueError(f"It would be kept as {kept}")
    if isinstance(kept, list) and isinstance(value, Sequence):
        for one, kept_one in zip(value, kept, strict=False):
            _check_is_whole(one, kept_one)
    if isinstance(kept, dict) and isinstance(value, Mapping):
        for name, kept_one in kept.items():
            _check_is_whole(value.get(name), kept_one)


def _decoded_default(data: bytes, field: pa.Field) -> pa.Scalar:
    check_stream(memoryview(data), f"the default of {field.name!r}")
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), pa.schema([field.remove_metadata()]))
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise _corrupt(f"the default of {field.name!r}: {error}") from error
    if batch.num_rows != 1:
        raise _corrupt(f"{field.name!r} has {batch.num_rows} defaults")
    return batch.column(0)[0]


def stored_key_type(kind: pa.DataType, column: str) -> pa.DataType:
    """The type that a key column is kept as; an error where its values cannot be keys."""
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
    """The type that a value column is kept as; an error where its values cannot be stored."""
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


def is_kept_alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether values of both types are kept as the same type, so that one can be cast to the other."""
    try:
        return one == other or bool(stored_type(one, "") == stored_type(other, ""))
    except InvalidInputError:  # Nothing of that type can be kept.
        return False


def schema_mismatch(
    stored: StateSchema,
    wanted: StateSchema,
    operator: str,
    reason: str,
    hint: str = "Restore the old program, or start a new root and replay the source",
) -> InvalidInputError:
    """An error of kind ``SCHEMA_MISMATCH`` that shows both schemas."""
    return InvalidInputError(
        f"{reason}; stored: {stored}; got: {wanted}",
        operation="open",
        subject=f"operator {operator!r}",
        hint=hint,
        kind=ErrorKind.SCHEMA_MISMATCH,
    )


def _corrupt(reason: str) -> CorruptDataError:
    return CorruptDataError(
        f"the stored state schema cannot be read: {reason}",
        operation="decode",
        subject="state schema",
        hint="Go back to an older checkpoint",
    )
