"""Rows of state in memory, sorted by the hash of their key."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final, Self

import numpy as np
import pyarrow as pa

from stateline.state.columns import Mask, Rows, take
from stateline.state.keys import Hashes, KeyRows
from stateline.state.schema import StateSchema
from stateline.state.widths import concat, narrowed, retyped

__all__ = ["HASH_SPACE", "StateRows", "place_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class StateRows:
    """Rows of state, ascending by hash, each key once.

    Attributes:
        keys: Keys and hashes.
        values: One Arrow array per value column; as narrow as they are stored (``widths``).
        deleted: Which rows delete their key; ``None`` where none does. The values of such rows mean nothing.
    """

    keys: KeyRows
    values: tuple[pa.Array, ...]
    deleted: Mask | None = None

    def __len__(self) -> int:
        return len(self.keys.hashes)

    @property
    def tombstones(self) -> int:
        """Rows that delete their key."""
        return 0 if self.deleted is None else int(np.count_nonzero(self.deleted))

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        columns = (*self.keys.columns, *self.values)
        return self.keys.hashes.nbytes + sum(int(column.nbytes) for column in columns)

    def take(self, rows: Rows) -> StateRows:
        """The rows numbered, in that order."""
        deleted = None if self.deleted is None else self.deleted.take(rows)
        return StateRows(self.keys.take(rows), tuple(take(column, rows) for column in self.values), deleted)

    def slice(self, start: int, end: int) -> StateRows:
        """The rows of the half-open range, without a copy."""
        deleted = None if self.deleted is None else self.deleted[start:end]
        values = tuple(column.slice(start, end - start) for column in self.values)
        return StateRows(self.keys.slice(start, end), values, deleted)

    def between(self, low: int, high: int) -> StateRows:
        """The rows whose hash is in ``[low, high)``, without a copy; ``high`` may be 2**64."""
        start, end = (place_of(self.keys.hashes, bound) for bound in (low, high))
        return self if end - start == len(self) else self.slice(start, end)

    def declared(self, schema: StateSchema) -> StateRows:
        """The same rows with the types of the schema, as whoever reads a table expects them."""
        return StateRows(self.keys.declared(schema), retyped(self.values, schema.values.types), self.deleted)

    def narrowed(self) -> StateRows:
        """The same rows in as few bits as they need: a merge is as wide as the widest of what it merges."""
        keys = KeyRows(self.keys.hashes, narrowed(self.keys.columns))
        return StateRows(keys, narrowed(self.values), self.deleted)

    @classmethod
    def none(cls, schema: StateSchema) -> Self:
        """No rows at all."""
        keys, values = (tuple(pa.nulls(0, field.type) for field in part) for part in (schema.keys, schema.values))
        return cls(KeyRows(np.empty(0, dtype=np.uint64), keys), values)

    @classmethod
    def concat(cls, parts: Sequence[StateRows]) -> Self:
        """All rows of one or more parts, in order: the result may break the order of hashes."""
        deleted = None
        if any(part.deleted is not None for part in parts):
            marks = (np.zeros(len(part), np.bool_) if part.deleted is None else part.deleted for part in parts)
            deleted = np.concatenate(list(marks))
        values = zip(*(part.values for part in parts), strict=True)
        return cls(
            KeyRows.concat([part.keys for part in parts]),
            tuple(concat(column) for column in values),
            deleted,
        )


HASH_SPACE: Final = 1 << 64
"""The first number that is no hash."""


def place_of(hashes: Hashes, bound: int, side: str = "left") -> int:
    """Where ``bound`` goes among ascending hashes; it may be 2**64, which no hash reaches."""
    if bound >= HASH_SPACE:
        return len(hashes)
    return int(hashes.searchsorted(np.uint64(bound), side=side))  # type: ignore[call-overload]
