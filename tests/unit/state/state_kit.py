"""What the tests of keyed state share: small schemas, rows from Python values, hashes of few bits."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from stateline.changelog.segment_writer import Segments
from stateline.environment import system_environment
from stateline.handles import RunHandle
from stateline.key_groups import KeyGroupRange, hash_columns
from stateline.state import keys as keys_module
from stateline.state.keys import group_rows, key_rows
from stateline.state.merge import Expired, MergeSettings
from stateline.state.rows import StateRows
from stateline.state.run import EncodedRun
from stateline.state.run_store import RunWriter
from stateline.state.runs import Run
from stateline.state.schema import StateSchema
from stateline.state.snapshot import Layers, Snapshot
from stateline.state.snapshot import snapshot as added_snapshot
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


class StoredRuns:
    """Writes runs into a store, one segment for each call."""

    def __init__(
        self, store, schema, max_parallelism=MAX_PARALLELISM, *, settings=None, cache=None, segment_bytes=1 << 26
    ):
        self.segments = Segments(store, system_environment(), copies=cache, segment_bytes=segment_bytes)
        self.arguments = schema, max_parallelism
        self.settings = settings

    def into(self, segment):
        return RunWriter(segment, "state", *self.arguments, settings=self.settings)

    def write(self, run: Run, checkpoint_id: int) -> RunHandle:
        segment = self.segments.writer()
        handle = self.into(segment).add(run, checkpoint_id)
        return segment.finish().of(handle)


def snapshot(table, changes, writer: StoredRuns, checkpoint_id: int, **options) -> Snapshot:
    """A snapshot whose runs are durable."""
    segment = writer.segments.writer()
    made = added_snapshot(table, changes, writer.into(segment), checkpoint_id, **options)
    placed = segment.finish().of
    state = replace(made.state, runs=tuple(map(placed, made.state.runs)))
    return dataclasses.replace(made, state=state, written=tuple(map(placed, made.written)))


def handle_of(encoded: EncodedRun, name: str = "shared/run.arrow", key_groups: KeyGroupRange = ALL) -> RunHandle:
    return RunHandle(
        name=name,
        offset=0,
        length=len(encoded.data),
        crc32c=encoded.crc32c,
        rows=encoded.rows,
        tombstones=encoded.tombstones,
        first_key_group=key_groups.start,
        last_key_group=key_groups.end,
        checkpoint_id=0,
    )


def merge_once(
    table: StateTable, settings: MergeSettings | None = None, expired: Expired | None = None
) -> tuple[StateTable, int]:
    """Does in memory what a checkpoint would do whose changes are the newest run.

    Returns:
        The table with the same live rows, and how many runs took part in merges.
    """
    layers = Layers(table, max(len(table.runs) - 1, 0), settings or MergeSettings(), expired)
    runs = (*layers.kept(), *layers.made())
    return StateTable(table.schema, table.key_groups, table.max_parallelism, runs), layers.merged
