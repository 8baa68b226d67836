"""List state: rows of values per key, in order, for the keys of one batch.

An element is one row of the table, with a ``position`` as sub-key. Positions ascend, with gaps: those of the batch with
number ``c`` begin at ``c * 2**32``. So an append needs to know nothing of the elements before it, reads nothing, and
logs only what it appends. The numbers of batches ascend over the whole life of the state, also where it moves to
another root and checkpoints count from 0 again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from stateline.state.keys import KeyRows
from stateline.state.rows import StateRows
from stateline.state.subkeys import rows_of_keys, subkey_changes
from stateline.state.table import StateTable
from stateline.state.time_to_live import Lifetime
from stateline.state.variables import RowCodec, Values, first_refused

__all__ = ["POSITION", "ListState"]

POSITION: Final = pa.schema([pa.field("position", pa.int64())])
"""The sub-key of list state."""

_POSITIONS_PER_BATCH: Final = 1 << 32

_EQUAL_IS_SAME: Final = (
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date,
    pa.types.is_decimal,
)
"""Types whose equal values in Python are the same value. 0.0 equals -0.0, and a local time that of an hour later when
clocks are put back; both may be inside of other values."""

_Item = TypeVar("_Item")


@dataclass(slots=True)
class _Edit:
    """What a batch does to one list: new elements, after the stored ones or instead of them."""

    replaces: bool = False
    rows: list[Values] = field(default_factory=list)


@dataclass(slots=True)
class _Stored:
    positions: list[list[int]]
    rows: list[list[Values]]


class ListState:
    """The lists of many keys. All are read in one pass, when the first one is asked for.

    Args:
        table: The variable's table.
        keys: Distinct keys, ascending by hash; methods take the number of one.
        codec: Python values as columns.
        lifetime: The time of the batch, and the time to live of each element.
        sequence: Number of the batch in the life of the state: greater than those of all batches before.
    """

    __slots__ = ("_codec", "_edits", "_equal_is_same", "_first_position", "_keys", "_lifetime", "_stored", "_table")

    def __init__(self, table: StateTable, keys: KeyRows, codec: RowCodec, lifetime: Lifetime, sequence: int) -> None:
        self._table = table
        self._keys = keys
        self._codec = codec
        self._equal_is_same = all(any(test(field.type) for test in _EQUAL_IS_SAME) for field in codec.schema)
        self._lifetime = lifetime
        self._first_position = sequence * _POSITIONS_PER_BATCH
        self._stored: _Stored | None = None
        self._edits: dict[int, _Edit] = {}

    def get(self, key: int) -> list[Values]:
        """The elements in order: a list of the caller's own."""
        edit = self._edits.get(key)
        if edit is None:
            return list(self._load().rows[key])
        return list(edit.rows) if edit.replaces else self._load().rows[key] + edit.rows

    def exists(self, key: int) -> bool:
        """Whether there is any element."""
        edit = self._edits.get(key)
        if edit is not None and (edit.rows or edit.replaces):
            return bool(edit.rows)
        return bool(self._load().rows[key])

    def append(self, key: int, rows: Iterable[Values]) -> None:
        """Adds elements at the end."""
        edit = self._edits.get(key)
        if edit is None:
            edit = self._edits[key] = _Edit()
        edit.rows.extend(rows)

    def put(self, key: int, rows: Iterable[Values]) -> None:
        """Replaces all elements. Those that stay as they are, at their place, are not logged again."""
        self._edits[key] = _Edit(replaces=True, rows=list(rows))

    def changes(self) -> StateRows | None:
        """As :meth:`stateline.state.value_state.ValueState.changes`."""
        owners: list[int] = []
        positions: list[int] = []
        rows: list[Values | None] = []
        for key, edit in self._edits.items():
            for position, row in self._changed_rows(key, edit):
                owners.append(key)
                positions.append(position)
                rows.append(row)
        if not rows:
            return None
        deleted = np.fromiter((row is None for row in rows), np.bool_, len(rows))
        values = self._lifetime.stamped(self._codec.encode(rows), len(rows))
        subkeys = [pa.array(positions, pa.int64())]
        return subkey_changes(self._table, self._keys, owners, subkeys, values, deleted)

    def refused_key(self) -> int | None:
        """The key of the element that :meth:`changes` has refused."""
        return first_refused(self._codec, ((key, row) for key, edit in self._edits.items() for row in edit.rows))

    def _changed_rows(self, key: int, edit: _Edit) -> list[tuple[int, Values | None]]:
        """Positions and their new elements; ``None`` for one that goes."""
        first = self._first_position
        if not edit.replaces:
            return [(first + number, row) for number, row in enumerate(edit.rows)]
        stored = self._load()
        old_positions, old_rows = stored.positions[key], stored.rows[key]
        renews = self._lifetime.ttl_ms is not None
        kept = min(len(old_positions), len(edit.rows))
        changed: list[tuple[int, Values | None]] = [
            (old_positions[number], edit.rows[number])
            for number in range(kept)
            if renews or not self._is_same(edit.rows[number], old_rows[number])
        ]
        changed += [(first + number, row) for number, row in enumerate(edit.rows[kept:])]
        changed += [(position, None) for position in old_positions[kept:]]
        return changed

    def _is_same(self, row: Values, stored: Values) -> bool:
        return row == stored and (self._equal_is_same or repr(row) == repr(stored))

    def _load(self) -> _Stored:
        if self._stored is None:
            self._stored = self._read()
        return self._stored

    def _read(self) -> _Stored:
        count = len(self._keys)
        owned = rows_of_keys(self._table, self._keys)
        live = self._lifetime.live(owned.rows.values)
        positions = owned.rows.keys.columns[-1].to_numpy()
        order = np.lexsort((positions, owned.owners))
        if live is not None:
            order = order[live[order]]
        if len(order) == 0:
            return _Stored([[] for _ in range(count)], [[] for _ in range(count)])
        sorted_rows = owned.rows.take(order)
        rows = self._codec.decode(sorted_rows.values[: len(self._codec.schema)], len(order))
        ends = owned.owners[order].searchsorted(np.arange(count), side="right").tolist()
        return _Stored(_pieces(positions[order].tolist(), ends), _pieces(rows, ends))


def _pieces(items: Sequence[_Item], ends: Sequence[int]) -> list[list[_Item]]:
    return [list(items[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
