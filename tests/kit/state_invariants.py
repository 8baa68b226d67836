"""What must hold for keyed state in every suite, read past every cache."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stateline.blob.api import BlobStore
from stateline.checkpoint import Checkpoint
from stateline.state.changes import CHANGE_COLUMN, ChangeType, changes_between
from stateline.state.open_runs import OpenRuns
from stateline.state.run_store import RunReader, RunReaderSettings
from stateline.state.stored import SliceReader, StoredState
from tests.kit.invariants import require

__all__ = ["check_appended", "check_feed", "check_feeds", "rows_at"]

Key = tuple[Any, ...]


def rows_at(stored: StoredState, opened: OpenRuns | None = None) -> dict[Key, Key]:
    """The live rows of a table, by key: raises E6 where a key occurs twice."""
    rows: dict[Key, Key] = {}
    width = len(stored.schema.keys)
    reader = _reader(stored, opened)
    for batch in reader.scan(stored.whole()):
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            key = _comparable(row[:width])
            require(key not in rows, "E6", f"checkpoint {stored.checkpoint_id} has {key} twice")
            rows[key] = row[width:]
    return rows


def check_appended(found: Iterable[Any], wanted: Iterable[Any], where: str) -> None:
    """Raises E6 unless the rows found are the rows wanted, each as often."""
    rows, model = Counter(found), Counter(wanted)
    require(rows == model, "E6", f"{where}: too many {dict(rows - model)}, missing {dict(model - rows)}")


def check_feeds(store: BlobStore, records: Sequence[Checkpoint]) -> None:
    """Raises E7 unless the change feed agrees with the state, for all tables and all pairs of records."""
    opened = OpenRuns()
    for name in {operator.name: None for record in records for operator in record.operators}:
        states = [StoredState.of(store, record, name) for record in records if record.operator(name) is not None]
        rows = [rows_at(stored, opened) for stored in states]
        for first, last in itertools.combinations(range(len(states)), 2):
            check_feed(states[first], states[last], rows[first], rows[last], opened)


def check_feed(
    before: StoredState,
    after: StoredState,
    rows: Mapping[Key, Key],
    wanted: Mapping[Key, Key],
    opened: OpenRuns | None = None,
) -> None:
    """Raises E7 unless the changes from one state to another lead there."""
    where = f"{after.operator.name}, checkpoint {before.checkpoint_id} to {after.checkpoint_id}"
    made = dict(rows)
    width = len(after.schema.keys)
    for batch in changes_between(_reader(after, opened), before.whole(), after.whole()):
        for kind, *row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            key, values = _comparable(row[:width]), tuple(row[width:])
            if kind in (ChangeType.DELETE.value, ChangeType.UPDATE_BEFORE.value):
                there = made.pop(key, None)
                require(there == values, "E7", f"{where}: {kind} of {key} has {values}, the state {there}")
            else:
                require(key not in made, "E7", f"{where}: {kind} of {key}, which the state has")
                made[key] = values
        require(batch.schema.names[0] == CHANGE_COLUMN, "E7", f"{where}: the first column is {batch.schema.names[0]}")
    require(made == dict(wanted), "E7", f"{where}: the changes lead to {made}, the state is {wanted}")


def _reader(stored: StoredState, opened: OpenRuns | None) -> SliceReader:
    """A reader of its own runs: simulated worlds use the same names for other bytes. One thread is enough for them."""
    reader = SliceReader(stored.store, stored.schema, stored.max_parallelism)
    settings = RunReaderSettings(fetch_threads=1)
    reader._runs = RunReader(
        stored.store, stored.schema, settings=settings, open_runs=OpenRuns() if opened is None else opened
    )
    return reader


def _comparable(key: Iterable[Any]) -> Key:
    return tuple(("nan" if math.isnan(part) else part + 0.0) if isinstance(part, float) else part for part in key)
