"""What the tests of keyed state share: small schemas, rows from Python values, hashes of few bits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stateline.handles import RunHandle
from stateline.key_groups import KeyGroupRange, hash_columns
from stateline.state import keys as keys_module
from stateline.state.keys import group_rows, key_rows
from stateline.state.rows import Run, StateRows
from stateline.state.run import EncodedRun
from stateline.state.schema import StateSchema
from stateline.state.table import StateTable

MAX_PARALLELISM = 16
ALL = KeyGroupRange(0, MAX_PARALLELISM - 1)
LONGS = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64())]))
STRINGS = StateSchema(pa.schema([("k", pa.string())]), pa.schema([("v", pa.string()), ("w", pa.float64())]))


def collide(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    """Leaves only the upper ``bits`` of every hash, so that different keys share one."""
    mask = np.uint64(((1 << bits) - 1) << (64 - bits))
    monkeypatch.setattr(keys_module, "hash_columns", lambda columns: hash_columns(columns) & mask)


def columns(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> list[pa.Array]:
    return [pa.array([row[i] for row in rows], type=field.type, from_pandas=False) for i, field in enumerate(schema)]


def changes(
    schema: StateSchema, live: Mapping[Any, Sequence[Any]] | None = None, deleted: Sequence[Any] = ()
) -> StateRows:
    """Sorted rows from ``{key: values}`` and deleted keys; a key is a value or a tuple."""
    live = live or {}
    as_tuples = [key if isinstance(key, tuple) else (key,) for key in (*live, *deleted)]
    nothing = [None] * len(schema.values)
    values = [*live.values(), *([nothing] * len(deleted))]
    groups = group_rows(key_rows(schema, columns(schema.keys, as_tuples)))
    assert len(groups) == len(as_tuples), "a key came twice"
    order = pa.array(groups.order)
    marks = np.array([False] * len(live) + [True] * len(deleted))
    return StateRows(
        groups.keys,
        tuple(column.take(order) for column in columns(schema.values, values)),
        marks[groups.order] if deleted else None,
    )


def run_of(rows: StateRows, key_groups: KeyGroupRange = ALL, batch_rows: int = 3) -> Run:
    """A run in memory, of several batches that never split a hash."""
    hashes = rows.keys.hashes
    cuts = [0]
    while cuts[-1] < len(rows):
        end = min(cuts[-1] + batch_rows, len(rows))
        cuts.append(int(hashes.searchsorted(hashes[end - 1], side="right")))
    batches = [rows.slice(start, end) for start, end in itertools.pairwise(cuts)]
    return Run(batches, key_groups, MAX_PARALLELISM)


def table_of(schema: StateSchema, *layers: StateRows, key_groups: KeyGroupRange = ALL) -> StateTable:
    return StateTable(schema, key_groups, MAX_PARALLELISM, [run_of(layer, key_groups) for layer in layers])


def contents(table: StateTable, key_groups: KeyGroupRange | None = None) -> dict[Any, tuple[Any, ...]]:
    """Every live row, by key."""
    found: dict[Any, tuple[Any, ...]] = {}
    width = len(table.schema.keys)
    for batch in table.scan(key_groups):
        assert batch.num_rows, "an empty batch"
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            key = row[0] if width == 1 else row[:width]
            assert key not in found, "a key came twice"
            found[key] = row[width:]
    return found


def handle_of(encoded: EncodedRun, name: str = "shared/run.arrow", key_groups: KeyGroupRange = ALL) -> RunHandle:
    return RunHandle(
        name=name,
        size=len(encoded.data),
        crc32c=encoded.crc32c,
        rows=encoded.rows,
        tombstones=encoded.tombstones,
        first_key_group=key_groups.start,
        last_key_group=key_groups.end,
        checkpoint_id=0,
    )
