"""Tables that are only appended to hold each row once: merges with gaps, and state that early versions wrote."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections import Counter

import pyarrow as pa
import pytest

from stateline.state.changes import changes_of_stored
from stateline.state.snapshot import Layers
from stateline.state.stored import StoredState
from stateline.testing import KeyedStreamHarness
from tests.kit.early_versions import copying_merges, parts_across_gaps
from tests.kit.invariants import InvariantViolation
from tests.kit.planted.planting import replaced
from tests.kit.sizes import smaller
from tests.kit.state_invariants import rows_at

LEFT = pa.schema([("k", pa.int64()), ("l", pa.int64())])
RIGHT = pa.schema([("k", pa.int64()), ("r", pa.int64())])


@pytest.fixture
def small_slices():
    """As many slices as 1,200,000 rows have."""
    with smaller(slice_rows=16):
        yield


def joined(how="inner"):
    left, right = (
        KeyedStreamHarness(schema, "k", parallelism=1, name=name) for schema, name in ((LEFT, "l"), (RIGHT, "r"))
    )
    return left.join(right, how=how)


def stored_rows(stage, table):
    state = stage.checkpoint.operators[table]
    stored = StoredState.of(stage.root, stage.checkpoint, state.name)
    return Counter(row["k"] for batch in stored.reader().scan(stored.whole()) for row in batch.to_pylist())


def lives(stage, first, batches=40, rows=6):
    """One large batch of left rows, then small ones; the number of left rows."""
    stage.run_batch([{"k": key, "l": key} for key in range(first)], [])
    for key in range(first, first + batches * rows, rows):
        stage.run_batch([{"k": key + more, "l": key + more} for more in range(rows)], [])
    return first + batches * rows


@pytest.mark.parametrize("first", [20_000, 1_200_000])
def test_rows_between_merged_slices_are_joined_once(first, request):
    if first < 1_200_000:
        request.getfixturevalue("small_slices")
    stage = joined()
    left = lives(stage, first)
    found = stage.run_batch([], [{"k": key, "r": key} for key in range(left - 240, left)])
    assert len(found) == 240
    assert {row["k"] for row in found} == set(range(left - 240, left))


def test_both_sides_of_a_join_hold_each_row_once(small_slices):
    stage = joined()
    for batch, rows in enumerate([3000, *[6] * 40]):
        keys = range(10_000 * batch, 10_000 * batch + rows)
        stage.run_batch([{"k": key, "l": key} for key in keys], [{"k": key, "r": key} for key in keys])
    for table in (0, 1):
        assert set(stored_rows(stage, table).values()) == {1}
        assert stored_rows(stage, table).total() == 3000 + 40 * 6


def waiting_rows(first, batches):
    """A stream as-of joined to a side that never moves its watermark: all its rows wait."""
    rows, sides = (
        KeyedStreamHarness(
            pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC")), (name, pa.int64())]),
            "k",
            parallelism=1,
            name=name,
            watermark=("at", "0 seconds"),
        )
        for name in ("l", "r")
    )
    stage = rows.join_asof(sides, how="left", mode="wait")
    start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)

    def row(key):
        return {"k": key, "at": start + dt.timedelta(seconds=1), "l": key}

    stage.run_batch([row(key) for key in range(first)], [{"k": -1, "at": start, "r": 0}])
    for key in range(first, first + 6 * batches, 6):
        stage.run_batch([row(key + more) for more in range(6)], [])
    return stage, start, first + 6 * batches


@pytest.mark.parametrize("written_by", [contextlib.nullcontext, copying_merges])
def test_rows_that_wait_for_their_version_are_emitted_once(small_slices, written_by):
    with written_by():
        stage, start, rows = waiting_rows(3000, 40)
    stage.restart()
    later = start + dt.timedelta(hours=1)
    stage.run_batch([{"k": -2, "at": later, "l": -2}], [{"k": -1, "at": later, "r": 1}])
    found = stage.run_batch([], [])
    found += stage.finish()
    emitted = Counter(row["k"] for row in found)
    assert set(range(rows)) <= set(emitted)
    assert set(emitted.values()) == {1}


def stored_twice(how, batches):
    """State of a join, of which an early version stored rows twice; the number of left rows."""
    with copying_merges():
        stage = joined(how)
        rows = lives(stage, 3000, batches)
        runs = [run for subtask in stage.checkpoint.operators[0].subtasks for run in subtask.runs]
    stored = StoredState.of(stage.root, stage.checkpoint, stage.checkpoint.operators[0].name)
    reader = stored.reader()
    assert sum(len(batch) for run in reader.open_runs(runs) for batch in run.batches) > rows
    stage.restart()
    return stage, rows


@pytest.mark.parametrize("batches", [20, 40, 90])
def test_rows_that_an_early_version_stored_twice_are_joined_once(small_slices, batches):
    stage, rows = stored_twice("inner", batches)
    assert set(stored_rows(stage, 0).values()) == {1}
    found = stage.run_batch([], [{"k": key, "r": key} for key in range(rows)])
    assert Counter(row["k"] for row in found) == Counter(range(rows))


def test_rows_that_an_early_version_stored_twice_leave_alone_once(small_slices):
    stage, rows = stored_twice("semi", 40)
    found = stage.run_batch([], [{"k": key, "r": part} for key in range(rows) for part in (0, 1)])
    assert Counter(row["k"] for row in found) == Counter(range(rows))


def test_merges_drop_what_an_early_version_stored_twice(small_slices, monkeypatch):
    """Once no run of the early version is left, rows are searched as rows of an exact table again."""
    stage, rows = stored_twice("inner", 40)
    before = stage.checkpoint
    for key in range(rows, rows + 8 * 3000, 3000):
        stage.run_batch([{"k": key + more, "l": key + more} for more in range(3000)], [])
    rows += 8 * 3000
    state = stage.checkpoint.operators[0]
    stored = StoredState.of(stage.root, stage.checkpoint, state.name)
    table = stored.reader().table(stored.whole())
    assert min(run.checkpoint_id for run in state.subtasks[0].runs) > before.checkpoint_id
    assert table.is_append_only
    assert table.rows == rows
    assert set(stored_rows(stage, 0).values()) == {1}


def test_the_change_feed_leaves_rows_out_that_were_stored_twice(small_slices):
    stage, rows = stored_twice("inner", 40)
    name = stage.checkpoint.operators[0].name
    kept = [stage.checkpoints.get(number) for number in range(39, 41)]
    before, after = (StoredState.of(stage.root, record, name) for record in kept)
    found = [row for batch in changes_of_stored(before, after) for row in batch.to_pylist()]
    assert Counter(row["k"] for row in found) == Counter(range(rows - 6, rows))
    assert {row["__change"] for row in found} == {"insert"}


def test_the_invariant_sees_a_merge_that_copies_a_gap(small_slices):
    with replaced(Layers, "_parts", parts_across_gaps):
        stage = joined()
        lives(stage, 3000)
    record = stage.checkpoint
    with pytest.raises(InvariantViolation, match="E6"):
        rows_at(StoredState.of(stage.root, record, record.operators[0].name))
