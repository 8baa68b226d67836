"""Where rows lie within runs: against the key groups of the keys themselves."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from stateline.blob import InstrumentedStore, open_store
from stateline.checkpoint import CheckpointStore
from stateline.dashboard import run_indexes
from stateline.dashboard.run_indexes import RunIndexes
from stateline.dashboard.state_shape import state_shapes
from stateline.environment import system_environment
from stateline.key_groups import hash_columns, key_group_of
from stateline.state import KeyedStateBackend
from tests.unit.dashboard.dashboard_kit import SCHEMA

KEYS = 200_000


@pytest.fixture(scope="module")
def root():
    url = f"memory://{system_environment().ids.new_id()}"
    with KeyedStateBackend.open(url) as backend:
        flights = backend.state("flights", SCHEMA)
        flights.put(table(0, KEYS))
        backend.checkpoint()
        flights.put(table(0, 500))
        backend.checkpoint()
    return InstrumentedStore(open_store(url))


def table(first: int, last: int) -> pa.Table:
    names = [f"N{number}" for number in range(first, last)]
    columns = {"tailnum": names, "flights": [1] * len(names), "mean_delay": [0.5] * len(names)}
    return pa.table(columns, schema=SCHEMA.row)


def test_rows_lie_where_their_keys_belong(root):
    record = CheckpointStore(root).latest()
    (shape,) = state_shapes(record, RunIndexes(root).of(record))
    keys = [table(0, KEYS)["tailnum"], table(0, 500)["tailnum"]]
    wanted = sum(
        np.bincount(key_group_of(hash_columns([part]), record.max_parallelism), minlength=record.max_parallelism)
        for part in keys
    )
    assert shape.rows.sum() == pytest.approx(shape.stored_rows)
    assert shape.bytes.sum() == pytest.approx(shape.stored_bytes)
    assert np.abs(shape.rows - wanted).max() < 0.15 * wanted.mean()
    (even,) = state_shapes(record)
    assert np.abs(shape.rows - wanted).sum() < np.abs(even.rows - wanted).sum()


def test_an_index_is_read_once_and_by_its_end_alone(root):
    record = CheckpointStore(root).latest()
    indexes = RunIndexes(root)
    root.reset()
    first = indexes.of(record)
    assert len(first) == sum(len(subtask.runs) for operator in record.operators for subtask in operator.subtasks)
    assert root.bytes_read < 0.2 * sum(run.length for run in record.sections())
    root.reset()
    assert indexes.of(record) == first
    assert not root.calls


def test_a_look_reads_only_so_many_and_the_next_one_reads_on(root, monkeypatch):
    monkeypatch.setattr(run_indexes, "_READS_MAX", 1)
    record = CheckpointStore(root).latest()
    indexes = RunIndexes(root)
    found = [len(indexes.of(record)) for _ in range(3)]
    assert found == [1, 2, 2]


def test_a_run_whose_index_cannot_be_read_is_spread_evenly():
    url = f"memory://{system_environment().ids.new_id()}"
    with KeyedStateBackend.open(url) as backend:
        backend.state("flights", SCHEMA).put(table(0, 5000))
        backend.checkpoint()
    store = open_store(url)
    record = CheckpointStore(store).latest()
    for name in set(record.object_names()):
        store.delete([name])
    assert RunIndexes(store).of(record) == {}
    (shape,) = state_shapes(record, {})
    assert shape.rows.sum() == pytest.approx(5000)
