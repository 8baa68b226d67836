"""Value state: at most one row of values per key, for the keys of one batch."""

from __future__ import annotations

import numpy as np

from stateline.state.keys import KeyRows
from stateline.state.rows import StateRows
from stateline.state.table import StateTable
from stateline.state.time_to_live import Lifetime
from stateline.state.variables import RowCodec, Values, first_refused

__all__ = ["ValueState"]


class ValueState:
    """The values of many keys. All are read in one probe, when the first one is asked for.

    Args:
        table: The variable's table.
        keys: Distinct keys, ascending by hash; methods take the number of one.
        codec: Python values as columns.
        lifetime: The time of the batch, and the variable's time to live.
    """

    __slots__ = ("_changed", "_codec", "_keys", "_lifetime", "_stored", "_table")

    def __init__(self, table: StateTable, keys: KeyRows, codec: RowCodec, lifetime: Lifetime) -> None:
        self._table = table
        self._keys = keys
        self._codec = codec
        self._lifetime = lifetime
        self._stored: list[Values | None] | None = None
        self._changed: dict[int, Values | None] = {}

    def get(self, key: int) -> Values | None:
        """The value, or ``None``."""
        changed = self._changed
        if key in changed:
            return changed[key]
        stored = self._stored
        if stored is None:
            stored = self._load()
        return stored[key]

    def update(self, key: int, value: Values) -> None:
        """Sets the value, and renews its time to live."""
        self._changed[key] = value

    def clear(self, key: int) -> None:
        """Removes the value."""
        if self._stored is not None and self._stored[key] is None:
            self._changed.pop(key, None)
        else:
            self._changed[key] = None

    def changes(self) -> StateRows | None:
        """New rows and tombstones, ascending by hash; ``None`` if nothing changed.

        Raises:
            InvalidInputError: A value does not fit the schema.
        """
        if not self._changed:
            return None
        touched = sorted(self._changed)
        rows = [self._changed[key] for key in touched]
        deleted = np.fromiter((row is None for row in rows), np.bool_, len(rows))
        values = self._lifetime.stamped(self._codec.encode(rows), len(rows))
        keys = self._keys.take(np.array(touched, dtype=np.int64))
        return StateRows(keys, tuple(values), deleted if deleted.any() else None)

    def refused_key(self) -> int | None:
        """The key of the value that :meth:`changes` has refused."""
        return first_refused(self._codec, ((key, row) for key, row in self._changed.items() if row is not None))

    def _load(self) -> list[Values | None]:
        found = self._table.probe(self._keys)
        mask = found.mask
        live = self._lifetime.live(found.values)
        if live is not None:
            mask = mask & live
        if not mask.any():
            self._stored = [None] * len(self._keys)
            return self._stored
        columns = found.values[: len(self._codec.schema)]
        rows: list[Values | None] = list(self._codec.decode(columns, len(mask)))
        if not mask.all():
            for key in np.flatnonzero(~mask).tolist():
                rows[key] = None
        self._stored = rows
        return rows
