"""What value, list and map state share: the schema of their tables, and rows as Python values.

A variable has one table. Its columns are the grouping key, the sub-key (of a list: ``position``; of a map: the fields
of its key), the fields of its value, and ``expires_at_ms`` where the variable has a time to live. A field whose name is
taken, or reserved, gets a prefix: ``key.`` in a sub-key, ``value.`` in a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

from stateline.errors import InvalidInputError
from stateline.state.schema import StateSchema
from stateline.state.time_to_live import EXPIRY_COLUMN

__all__ = ["RowCodec", "Values", "first_refused", "variable_schema"]

Values = tuple[Any, ...]
"""One row of a variable as Python values."""

_RESERVED_PREFIX: Final = "__"


class RowCodec(Protocol):
    """Rows as Python values, and as columns."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        ...

    def decode(self, columns: Sequence[pa.Array], rows: int) -> list[Values]:
        """One tuple per row; their number says it all where there are no columns."""
        ...

    def encode(self, rows: Sequence[Values | None]) -> list[pa.Array]:
        """One array per column; a row that is ``None`` becomes nulls.

        Raises:
            InvalidInputError: A row does not fit the schema.
        """
        ...


def first_refused(codec: RowCodec, rows: Iterable[tuple[int, Values]]) -> int | None:
    """The number beside the first row that a codec refuses; looked for once a whole batch was refused."""
    for number, row in rows:
        try:
            codec.encode([row])
        except InvalidInputError:
            return number
    return None


def variable_schema(grouping: pa.Schema, subkey: pa.Schema, value: pa.Schema, *, has_ttl: bool) -> StateSchema:
    """The schema of a variable's table; value state has no sub-key, and only rows with a time to live an expiry."""
    taken = {*grouping.names, *([EXPIRY_COLUMN] if has_ttl else [])}
    keys = [*grouping, *_renamed(subkey, taken, "key.")]
    values = _renamed(value, taken, "value.")
    if has_ttl:
        values.append(pa.field(EXPIRY_COLUMN, pa.int64()))
    return StateSchema(pa.schema(keys), pa.schema(values), subkeys=len(subkey))


def _renamed(schema: pa.Schema, taken: set[str], prefix: str) -> list[pa.Field]:
    fields = []
    for field in schema:
        name = field.name
        while name in taken or name.startswith(_RESERVED_PREFIX):
            name = prefix + name
        taken.add(name)
        fields.append(field.with_name(name))
    return fields
