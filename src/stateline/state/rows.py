"""State in memory: rows sorted by the hash of their key, and runs of them.

Owns the shape that search, merge and the writer share. Does not own bytes (``run``) nor stores (``run_store``).

Invariants:
- Rows ascend by unsigned hash; each key occurs once in a run.
- The batches of a run are not empty, ascend, and never split rows of one hash.
- A run in memory holds only rows within its key groups, whatever else its object holds: what a subtask does not own was
  sliced off, without a copy, when the run was opened.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Final, Self

import numpy as np
import pyarrow as pa

from stateline.handles import RunHandle
from stateline.key_groups import KeyGroupRange, hash_bounds
from stateline.state.columns import Mask, Rows, take
from stateline.state.keys import Hashes, KeyRows
from stateline.state.schema import StateSchema
from stateline.state.widths import concat, narrowed, retyped

__all__ = ["Run", "StateRows"]


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
        return len(self.keys)

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
        start, end = (_place(self.keys.hashes, bound) for bound in (low, high))
        return self if end - start == len(self) else self.slice(start, end)

    def declared(self, schema: StateSchema) -> StateRows:
        """The same rows with the types of the schema, as whoever reads a table expects them."""
        return StateRows(self.keys.declared(schema), retyped(self.values, schema.values.types), self.deleted)

    def narrowed(self) -> StateRows:
        """The same rows in as few bits as they need: a merge is as wide as the widest of what it merges."""
        keys = KeyRows(self.keys.hashes, narrowed(self.keys.columns))
        return StateRows(keys, narrowed(self.values), self.deleted)

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


class Run:
    """Rows of one age, in memory or memory-mapped.

    Args:
        batches: Ascending, as the invariants say; empty ones are left out.
        key_groups: What the run covers, inclusive. Rows outside are left out.
        max_parallelism: Number of key groups.
        handle: The durable object behind it; ``None`` while there is none.
    """

    __slots__ = ("batches", "first_hashes", "handle", "high", "key_groups", "low")

    def __init__(
        self,
        batches: Sequence[StateRows],
        key_groups: KeyGroupRange,
        max_parallelism: int,
        handle: RunHandle | None = None,
    ) -> None:
        self.key_groups = key_groups
        self.handle = handle
        self.low, self.high = hash_bounds(key_groups, max_parallelism)
        filled = [batch for batch in batches if len(batch)]
        firsts: Hashes = np.array([batch.keys.hashes[0] for batch in filled], dtype=np.uint64)
        self.batches = tuple(_between(filled, firsts, self.low, self.high))
        self.first_hashes: Hashes = np.array([batch.keys.hashes[0] for batch in self.batches], dtype=np.uint64)

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.batches)

    def __repr__(self) -> str:
        name = "in memory" if self.handle is None else self.handle.place
        return f"Run({name}, key groups {self.key_groups}, rows {len(self)}, tombstones {self.tombstones})"

    @property
    def tombstones(self) -> int:
        """Rows that delete their key."""
        return sum(batch.tombstones for batch in self.batches)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        return sum(batch.nbytes for batch in self.batches)

    def part(self, key_groups: KeyGroupRange, max_parallelism: int, handle: RunHandle | None) -> Run:
        """What lies within some of its key groups, without a copy; ``handle`` is the way to it."""
        low, high = hash_bounds(key_groups, max_parallelism)
        return Run(self.between(low, high), key_groups, max_parallelism, handle)

    def counts(self, borders: Sequence[int]) -> list[int]:
        """How many rows lie between neighbours of ascending hashes, the lower one included; they may end with 2**64."""
        first, end = bisect.bisect_right(borders, self.low), bisect.bisect_left(borders, self.high)
        total = len(self)
        ends = list(itertools.accumulate(map(len, self.batches), initial=0))
        places = [0] * first
        for border in borders[first:end]:
            batch = _place(self.first_hashes, border) - 1  # The one in which rows below the border end.
            places.append(0 if batch < 0 else ends[batch] + _place(self.batches[batch].keys.hashes, border))
        places += [total] * (len(borders) - end)
        return [after - before for before, after in itertools.pairwise(places)]

    def between(self, low: int, high: int) -> list[StateRows]:
        """The rows whose hash is in ``[low, high)``, without a copy."""
        return _between(self.batches, self.first_hashes, low, high)


def _between(batches: Sequence[StateRows], firsts: Hashes, low: int, high: int) -> list[StateRows]:
    """The rows of ascending batches whose hash is in ``[low, high)``; only the outer ones need a look inside."""
    first = max(_place(firsts, low, side="right") - 1, 0)
    end = _place(firsts, high)
    inside = list(batches[first:end])
    for outer in {0, len(inside) - 1} if inside else ():
        inside[outer] = inside[outer].between(low, high)
    return [batch for batch in inside if len(batch)]


_HASH_SPACE: Final = 1 << 64


def _place(hashes: Hashes, bound: int, side: str = "left") -> int:
    """Where ``bound`` goes among ascending hashes; it may be 2**64, which no hash reaches."""
    if bound >= _HASH_SPACE:
        return len(hashes)
    return int(hashes.searchsorted(np.uint64(bound), side=side))  # type: ignore[call-overload]
