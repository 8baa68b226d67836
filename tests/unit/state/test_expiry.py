"""Keys whose time is over: against a plain model, over any stack of runs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline.key_groups import KeyGroupRange
from stateline.state.expiry import expire_keys
from stateline.state.keys import group_rows, key_rows
from stateline.state.rows import StateRows
from stateline.state.schema import StateSchema
from stateline.state.table import StateTable

SCHEMA = StateSchema.of(
    pa.schema([("key", pa.int32()), ("time", pa.timestamp("us")), ("n", pa.int64())]), ["key", "time"]
)
EMPTY = StateTable(SCHEMA, KeyGroupRange(0, 7), 8)

KEYS = st.tuples(st.integers(0, 3), st.integers(0, 6))
CHANGES = st.dictionaries(KEYS, st.integers(0, 99) | st.none(), max_size=8)
"""``None`` deletes."""


def state_rows(values):
    ordered = list(values.items())
    keys = key_rows(
        SCHEMA,
        [
            pa.array([key for (key, _), _ in ordered], pa.int32()),
            pa.array([time for (_, time), _ in ordered], pa.timestamp("us")),
        ],
    )
    groups = group_rows(keys)
    deleted = np.array([value is None for _, value in ordered], dtype=np.bool_)
    rows = StateRows(keys, (pa.array([value for _, value in ordered], pa.int64()),), deleted if deleted.any() else None)
    return rows.take(groups.order)


def pairs(table):
    return {(row["key"], row["time"]): row["n"] for batch in table.scan() for row in batch.cast(PLAIN).to_pylist()}


PLAIN = pa.schema([("key", pa.int32()), ("time", pa.int64()), ("n", pa.int64())])


@settings(max_examples=150)
@given(st.lists(CHANGES, max_size=4), CHANGES, st.none() | st.integers(-1, 6), st.integers(0, 6))
def test_closing_equals_the_model(stored, newest, after, until):
    newest = {key: value for key, value in newest.items() if value is not None}
    table, model = EMPTY, {}
    for changes in stored:
        # What lies at or below ``after`` was taken out before, as the contract says.
        kept = {key: None if after is not None and key[1] <= after else value for key, value in changes.items()}
        table = table.with_changes(state_rows(kept))
        model |= kept
    model = {key: value for key, value in (model | newest).items() if value is not None}
    over = {key: value for key, value in model.items() if key[1] <= until}
    closed = expire_keys(table, state_rows(newest), 1, after=after, until=until)
    assert pairs(EMPTY.with_changes(closed.rows)) == over
    assert (np.diff(closed.changes.keys.hashes.astype(object)) > 0).all(), "ascending, each key once"
    assert pairs(table.with_changes(closed.changes)) == {key: model[key] for key in model.keys() - over.keys()}
    only_new = len(set(newest) & set(over) - set(pairs(table)))
    assert closed.changes.tombstones == len(over) - only_new, "nothing is deleted that was never stored"
