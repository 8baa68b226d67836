"""What value, list and map state share: the schema of their tables, rows as Python values, and time to live.

A variable has one table. Its columns are the grouping key, the sub-key (of a list: ``position``; of a map: the fields
of its key), the fields of its value, and ``expires_at_ms`` where the variable has a time to live. A field whose name is
taken, or reserved, gets a prefix: ``key.`` in a sub-key, ``value.`` in a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateline.errors import InvalidInputError
from stateline.state.columns import Mask
from stateline.state.merge import Expired
from stateline.state.rows import StateRows
from stateline.state.schema import StateSchema

__all__ = ["EXPIRY_COLUMN", "Lifetime", "RowCodec", "Values", "expiry_test", "first_refused", "variable_schema"]

EXPIRY_COLUMN: Final = "expires_at_ms"
"""Milliseconds since the epoch from which on a row counts as absent; the last value column."""

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


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long the rows of a variable count.

    Attributes:
        now_ms: Processing time of the batch, milliseconds since the epoch.
        ttl_ms: Time to live after the last write; ``None`` for ever.
    """

    now_ms: int
    ttl_ms: int | None = None

    def live(self, values: Sequence[pa.Array]) -> Mask | None:
        """Which rows have not expired; ``None`` for all of them."""
        if self.ttl_ms is None or len(values[-1]) == 0:
            return None
        expiry = values[-1].fill_null(0).to_numpy(zero_copy_only=False)
        mask: Mask = expiry > self.now_ms
        return None if mask.all() else mask

    def stamped(self, values: list[pa.Array], rows: int) -> list[pa.Array]:
        """Value columns with the expiry of rows that are written now."""
        if self.ttl_ms is None:
            return values
        return [*values, pa.array(np.full(rows, self.now_ms + self.ttl_ms))]


def variable_schema(grouping: pa.Schema, subkey: pa.Schema, value: pa.Schema, *, has_ttl: bool) -> StateSchema:
    """The schema of a variable's table; value state has no sub-key, and only rows with a time to live an expiry."""
    taken = {*grouping.names, *([EXPIRY_COLUMN] if has_ttl else [])}
    keys = [*grouping, *_renamed(subkey, taken, "key.")]
    values = _renamed(value, taken, "value.")
    if has_ttl:
        values.append(pa.field(EXPIRY_COLUMN, pa.int64()))
    return StateSchema(pa.schema(keys), pa.schema(values))


def _renamed(schema: pa.Schema, taken: set[str], prefix: str) -> list[pa.Field]:
    fields = []
    for field in schema:
        name = field.name
        while name in taken or name.startswith(_RESERVED_PREFIX):
            name = prefix + name
        taken.add(name)
        fields.append(field.with_name(name))
    return fields


def expiry_test(now_ms: int) -> Expired:
    """A test for merges: which rows of a variable with a time to live have expired."""

    def expired(rows: StateRows) -> Mask:
        come = pc.less_equal(rows.values[-1], pa.scalar(now_ms, pa.int64())).fill_null(False)
        mask: Mask = come.to_numpy(zero_copy_only=False)
        return mask

    return expired
