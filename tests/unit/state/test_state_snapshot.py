"""What one subtask does for one checkpoint: one object, the right stack, nothing lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from state_kit import ALL, LONGS, MAX_PARALLELISM, StoredRuns, changes, contents, snapshot

from stateline.blob import InstrumentedStore
from stateline.blob.memory import MemoryStore
from stateline.checkpoint.api import OperatorState, SubtaskState
from stateline.errors import UnavailableError
from stateline.key_groups import KeyGroupRange
from stateline.state.merge import MergeSettings
from stateline.state.open_runs import OpenRuns
from stateline.state.rescale import state_of_range
from stateline.state.rows import StateRows
from stateline.state.run_store import RunReader
from stateline.state.table import StateTable

NEVER = MergeSettings(runs_max=100, tier_runs=100, small_rows=1000)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[InstrumentedStore]:
    name = f"snapshot-{request.node.name}"
    yield InstrumentedStore(MemoryStore(name))
    MemoryStore.forget(name)


def opened(store: InstrumentedStore, state: SubtaskState) -> StateTable:
    runs = RunReader(store, LONGS, open_runs=OpenRuns()).open_all(state.runs)
    return StateTable(LONGS, state.key_groups, MAX_PARALLELISM, runs)


def empty(key_groups: KeyGroupRange = ALL) -> StateTable:
    return StateTable(LONGS, key_groups, MAX_PARALLELISM)


def test_changes_become_one_run_that_is_appended(store: InstrumentedStore) -> None:
    writer = StoredRuns(store, LONGS, MAX_PARALLELISM)
    first = snapshot(empty(), changes(LONGS, {1: [1], 2: [2]}), writer, 0, settings=NEVER)
    second = snapshot(opened(store, first.state), changes(LONGS, {1: [10]}, deleted=[2]), writer, 1, settings=NEVER)
    assert store.calls["put_if_absent"] == 2
    assert second.state.runs == (*first.state.runs, *second.written)
    assert [(run.rows, run.tombstones, run.checkpoint_id) for run in second.state.runs] == [(2, 0, 0), (2, 1, 1)]
    assert (first.merged, second.merged) == (0, 0)
    assert contents(opened(store, second.state)) == {1: (10,)}


def test_a_merge_with_the_changes_writes_one_object_too(store: InstrumentedStore) -> None:
    writer = StoredRuns(store, LONGS, MAX_PARALLELISM)
    made = snapshot(empty(), changes(LONGS, {1: [1], 2: [2]}), writer, 0)
    store.reset()
    merged = snapshot(
        opened(store, made.state), changes(LONGS, {3: [3]}, deleted=[1]), writer, 1, settings=MergeSettings(runs_max=1)
    )
    assert store.calls["put_if_absent"] == 1
    assert merged.merged == 2
    assert merged.state.runs == merged.written
    assert contents(opened(store, merged.state)) == {2: (2,), 3: (3,)}
    store.get(made.state.runs[0].name)  # The old run is still there: the last checkpoint names it.


def test_a_large_merge_is_written_piece_by_piece(store: InstrumentedStore) -> None:
    writer = StoredRuns(store, LONGS, MAX_PARALLELISM, segment_bytes=1)
    small = MergeSettings(runs_max=1, piece_bytes=300)
    made = snapshot(empty(), changes(LONGS, {n: [n] for n in range(100)}), writer, 0, settings=small)
    more = changes(LONGS, {n: [n * 10] for n in range(100) if n != 4}, deleted=[4])
    merged = snapshot(opened(store, made.state), more, writer, 1, settings=small)
    assert merged.state.runs == merged.written
    assert len(merged.written) == store.calls["put_if_absent"] - len(made.written) > 3
    expected = {n: (n * 10,) for n in range(100) if n != 4}
    assert contents(opened(store, merged.state)) == expected
    again = snapshot(opened(store, merged.state), None, writer, 2, settings=small)
    assert again.state == merged.state, "pieces are no reason to merge"
    half = KeyGroupRange(0, len(ALL) // 2 - 1)
    operator = OperatorState(name="x", schema=LONGS.encode(), definition="", subtasks=(merged.state,))
    sliced = state_of_range(operator, half, MAX_PARALLELISM)
    assert len(sliced.runs) < len(merged.state.runs)
    assert contents(opened(store, sliced)) == contents(opened(store, merged.state), half)


def test_without_changes_nothing_is_written(store: InstrumentedStore) -> None:
    writer = StoredRuns(store, LONGS, MAX_PARALLELISM)
    made = snapshot(empty(), changes(LONGS, {1: [1]}), writer, 0)
    store.reset()
    for nothing in (None, changes(LONGS)):
        again = snapshot(opened(store, made.state), nothing, writer, 1)
        assert again.state == made.state
        assert again.written == ()
    assert store.calls["put_if_absent"] == 0
    assert snapshot(empty(KeyGroupRange(3, 4)), None, writer, 1).state == SubtaskState(
        first_key_group=3, last_key_group=4
    )


def test_deleting_everything_leaves_no_run(store: InstrumentedStore) -> None:
    writer = StoredRuns(store, LONGS, MAX_PARALLELISM)
    made = snapshot(empty(), changes(LONGS, {1: [1]}), writer, 0)
    gone = snapshot(
        opened(store, made.state), changes(LONGS, deleted=[1]), writer, 1, settings=MergeSettings(runs_max=1)
    )
    assert gone.state.runs == ()


def test_changes_kept_in_memory_before_are_written_too(store: InstrumentedStore) -> None:
    writer = StoredRuns(store, LONGS, MAX_PARALLELISM)
    table = empty().with_changes(changes(LONGS, {1: [1], 2: [2]})).with_changes(changes(LONGS, {2: [20]}))
    made = snapshot(table, None, writer, 3, settings=NEVER)
    assert len(made.written) == 1
    assert contents(opened(store, made.state)) == {1: (1,), 2: (20,)}


def test_expired_rows_leave_with_a_merge(store: InstrumentedStore) -> None:
    def expired(rows: StateRows) -> object:
        return rows.values[0].fill_null(0).to_numpy() < 5

    writer = StoredRuns(store, LONGS, MAX_PARALLELISM)
    made = snapshot(empty(), changes(LONGS, {n: [n] for n in range(10)}), writer, 0)
    merged = snapshot(
        opened(store, made.state),
        changes(LONGS, {0: [100]}),
        writer,
        1,
        settings=MergeSettings(runs_max=1),
        expired=expired,  # type: ignore[arg-type]
    )
    assert contents(opened(store, merged.state)) == {0: (100,)} | {n: (n,) for n in range(5, 10)}


def test_a_failed_write_leaves_the_old_state_as_it_was(store: InstrumentedStore) -> None:
    class Failing(InstrumentedStore):
        def put_all_if_absent(self, name: str, pieces: object, **more: object) -> object:  # type: ignore[override]
            raise UnavailableError("no", operation="put_all_if_absent", subject=name)

    made = snapshot(empty(), changes(LONGS, {1: [1]}), StoredRuns(store, LONGS, MAX_PARALLELISM), 0)
    failing = StoredRuns(Failing(store.inner), LONGS, MAX_PARALLELISM)
    with pytest.raises(UnavailableError):
        snapshot(opened(store, made.state), changes(LONGS, {1: [2]}), failing, 1)
    assert contents(opened(store, made.state)) == {1: (1,)}
