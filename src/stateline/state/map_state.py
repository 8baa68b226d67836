"""Map state: entries per key, for the keys of one batch.

An entry is one row of the table, and the fields of its map key are the sub-key. So a put logs one row and a removal one
tombstone.
"""

from __future__ import annotations

import numpy as np

from stateline.state.keys import KeyRows
from stateline.state.rows import StateRows
from stateline.state.subkeys import rows_of_keys, subkey_changes
from stateline.state.table import StateTable
from stateline.state.time_to_live import Lifetime
from stateline.state.variables import RowCodec, Values, first_refused

__all__ = ["MapState"]


class MapState:
    """The maps of many keys. All are read in one pass, when the first one is asked for.

    Args:
        table: The variable's table.
        keys: Distinct keys, ascending by hash; methods take the number of one.
        key_codec: Map keys as columns.
        value_codec: Values as columns.
        lifetime: The time of the batch, and the time to live of each entry.
    """

    __slots__ = ("_cleared", "_edits", "_key_codec", "_keys", "_lifetime", "_stored", "_table", "_value_codec")

    def __init__(
        self, table: StateTable, keys: KeyRows, key_codec: RowCodec, value_codec: RowCodec, lifetime: Lifetime
    ) -> None:
        self._table = table
        self._keys = keys
        self._key_codec = key_codec
        self._value_codec = value_codec
        self._lifetime = lifetime
        self._stored: list[dict[Values, Values]] | None = None
        self._edits: dict[int, dict[Values, Values | None]] = {}
        self._cleared: set[int] = set()

    def get(self, key: int, entry: Values) -> Values | None:
        """The value of one entry, or ``None``."""
        edits = self._edits.get(key)
        if edits is not None and entry in edits:
            return edits[entry]
        return None if key in self._cleared else self._load()[key].get(entry)

    def items(self, key: int) -> dict[Values, Values]:
        """All entries: a dict of the caller's own."""
        items: dict[Values, Values] = {} if key in self._cleared else dict(self._load()[key])
        for entry, value in self._edits.get(key, {}).items():
            if value is None:
                items.pop(entry, None)
            else:
                items[entry] = value
        return items

    def update(self, key: int, entry: Values, value: Values) -> None:
        """Sets one entry, and renews its time to live."""
        self._edits.setdefault(key, {})[entry] = value

    def remove(self, key: int, entry: Values) -> None:
        """Removes one entry."""
        self._edits.setdefault(key, {})[entry] = None

    def clear(self, key: int) -> None:
        """Removes all entries."""
        self._edits.pop(key, None)
        self._cleared.add(key)

    def changes(self) -> StateRows | None:
        """As :meth:`stateline.state.value_state.ValueState.changes`."""
        owners: list[int] = []
        entries: list[Values] = []
        values: list[Values | None] = []
        for key in self._cleared | self._edits.keys():
            edits = dict(self._edits.get(key, {}))
            if key in self._cleared:
                for entry in self._load()[key]:
                    edits.setdefault(entry, None)
            owners += [key] * len(edits)
            entries += edits.keys()
            values += edits.values()
        if not owners:
            return None
        deleted = np.fromiter((value is None for value in values), np.bool_, len(values))
        subkeys = self._key_codec.encode(entries)
        columns = self._lifetime.stamped(self._value_codec.encode(values), len(values))
        return subkey_changes(self._table, self._keys, owners, subkeys, columns, deleted)

    def refused_key(self) -> int | None:
        """The key of the entry that :meth:`changes` has refused."""
        edits = [(key, entry, value) for key, entries in self._edits.items() for entry, value in entries.items()]
        refused = first_refused(self._key_codec, ((key, entry) for key, entry, _ in edits))
        if refused is None:
            values = ((key, value) for key, _, value in edits if value is not None)
            refused = first_refused(self._value_codec, values)
        return refused

    def _load(self) -> list[dict[Values, Values]]:
        if self._stored is None:
            self._stored = self._read()
        return self._stored

    def _read(self) -> list[dict[Values, Values]]:
        maps: list[dict[Values, Values]] = [{} for _ in range(len(self._keys))]
        owned = rows_of_keys(self._table, self._keys)
        rows, owners = owned.rows, owned.owners
        live = self._lifetime.live(rows.values)
        if live is not None:
            kept = np.flatnonzero(live)
            rows, owners = rows.take(kept), owners[kept]
        if len(owners) == 0:
            return maps
        entries = self._key_codec.decode(rows.keys.columns[len(self._keys.columns) :], len(owners))
        values = self._value_codec.decode(rows.values[: len(self._value_codec.schema)], len(owners))
        for owner, entry, value in zip(owners.tolist(), entries, values, strict=True):
            maps[owner][entry] = value
        return maps
