"""What a driver adds to the history: with restarts, two drivers, failures of the store, and at what price."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from stateline.blob import InstrumentedStore
from stateline.blob.memory import MemoryStore
from stateline.checkpoint import CheckpointStore, InlineState
from stateline.checkpoint.api import HISTORY
from stateline.checkpoint.history import read_block, summaries_in
from stateline.checkpoint.layout import HISTORY_BLOCK, HISTORY_PREFIX, history_name
from stateline.environment import system_environment
from stateline.errors import FencedError, UnavailableError
from stateline.pipeline.history import HistoryRecorder, described
from stateline.pipeline.messages import Batch
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.sizes import sizes
from stateline.state.aggregate import count
from tests.unit.pipeline.engine import Engine
from tests.unit.pipeline.records import record

SCHEMA = pa.schema([("k", pa.int64())])
PROGRAM = AggregateProgram.bind(SCHEMA, ["k"], {"n": count()})


class FailingStore(InstrumentedStore):
    """A store that fails where the history is written, while it is told to."""

    def __init__(self):
        super().__init__(MemoryStore(system_environment().ids.new_id()))
        self.fails = False

    def put_if_absent(self, name, data, **more):
        if self.fails and name.startswith(HISTORY_PREFIX):
            raise UnavailableError("the store is away", operation="put")
        return super().put_if_absent(name, data, **more)


@pytest.fixture
def store():
    return FailingStore()


@pytest.fixture
def engine(store):
    return Engine(PROGRAM, SCHEMA, root=store)


def run(engine, batches: int = 1):
    for _ in range(batches):
        newest = engine.run([{"k": 1}, {"k": 2}])
    return newest


def test_a_record_tells_of_itself_and_of_those_before_it(engine):
    run(engine)
    found = summaries_in(run(engine))
    assert [(each.checkpoint_id, each.batch_id, each.run) for each in found] == [(0, 0, 1), (1, 1, 1)]
    first, second = (each.figures for each in found)
    assert first["rows"] == first["keys"] == second["rows"] == 2
    assert first["state_bytes"] == first["state_bytes_written"] > 0
    assert second["state_bytes"] > second["state_bytes_written"]
    (operator,) = engine.plan.graph.operators
    assert first[f"state_rows {operator.name}"] == first["state_rows"] == 2
    assert "record_seconds" in first
    assert "record_seconds" not in second
    assert "subtasks_seconds" in second


def test_a_restart_is_another_run_and_a_batch_that_comes_again_is_counted(engine):
    run(engine, 2)
    engine.restart()
    engine.report_batch([{"k": 1}], batch_id=1)
    found = summaries_in(run(engine))
    assert [each.run for each in found] == [1, 1, 2]
    assert [each.figures.get("batches_replayed") for each in found] == [None, None, 1]
    assert [each.run for each in summaries_in(run(engine))] == [1, 1, 2, 2]
    assert "batches_replayed" not in summaries_in(engine.coordinator.newest)[-1].figures


def test_a_block_becomes_an_object_and_leaves_the_record(engine, store):
    newest = run(engine, HISTORY_BLOCK)
    assert len(summaries_in(newest)) == HISTORY_BLOCK
    assert not list(store.list(HISTORY_PREFIX))
    newest = run(engine)
    assert len(summaries_in(newest)) == HISTORY_BLOCK + 1
    found = read_block(store, 0)
    assert found == summaries_in(newest)[:-1]
    assert [each.checkpoint_id for each in found] == list(range(HISTORY_BLOCK))
    assert all("retain_seconds" in each.figures for each in found)
    assert [each.checkpoint_id for each in summaries_in(run(engine))] == [HISTORY_BLOCK, HISTORY_BLOCK + 1]


def test_the_history_costs_one_request_in_a_block(engine, store):
    run(engine, 4)
    store.reset()
    run(engine)
    usual = dict(store.calls)
    run(engine, HISTORY_BLOCK - 6)
    for _ in range(2):
        store.reset()
        run(engine)
        calls = dict(store.calls)
        history = int(engine.coordinator.newest.checkpoint_id == HISTORY_BLOCK)
        assert calls["put_if_absent"] == usual["put_if_absent"] + history
        assert calls["get"] == usual["get"]


def test_whoever_comes_next_writes_what_a_crash_left_unwritten(engine, store):
    store.fails = True
    run(engine, HISTORY_BLOCK + 1)
    store.fails = False
    engine.restart()
    newest = run(engine)
    assert len(read_block(store, 0)) == HISTORY_BLOCK
    assert [each.checkpoint_id for each in summaries_in(newest)] == [HISTORY_BLOCK, HISTORY_BLOCK + 1]


def test_the_same_bytes_come_from_whoever_writes_a_block(engine, store):
    run(engine, HISTORY_BLOCK + 1)
    written = store.get(history_name(0))
    store.delete([history_name(0)])
    engine.restart()
    run(engine)
    assert store.get(history_name(0)) == written


def test_an_incomplete_block_is_left_alone_at_a_restart(engine, store):
    run(engine, HISTORY_BLOCK)  # The last id of the block is decided, and what its decision took is not known yet.
    engine.restart()
    newest = run(engine)
    assert read_block(store, 0) == summaries_in(newest)[:HISTORY_BLOCK]


def test_a_store_that_takes_no_history_stops_nothing(engine, store, caplog):
    store.fails = True
    carried = sizes().history_blocks_carried
    newest = run(engine, HISTORY_BLOCK * (carried + 2))
    found = summaries_in(newest)
    assert len(found) <= HISTORY_BLOCK * (carried + 1)
    assert found[-1].checkpoint_id == newest.checkpoint_id
    assert "waits for the next checkpoint" in caplog.text
    store.fails = False
    run(engine, 2)
    assert len(summaries_in(engine.coordinator.newest)) <= HISTORY_BLOCK


def test_a_damaged_history_begins_anew_and_stops_nothing(engine, caplog):
    damaged = record(checkpoint_id=2, states={HISTORY: InlineState(data=b"x")})
    recorder = HistoryRecorder(engine.root, engine.environment)
    made = recorder.summarised(damaged, record(checkpoint_id=3, nonce="1" * 32), {"rows": 1}, {})
    assert [each.checkpoint_id for each in summaries_in(made)] == [3]
    assert "begins anew" in caplog.text


def test_a_record_of_an_earlier_version_is_gone_on_from(engine):
    recorder = HistoryRecorder(engine.root, engine.environment)
    made = recorder.summarised(record(checkpoint_id=2), record(checkpoint_id=3, nonce="1" * 32), {"rows": 1}, {})
    (found,) = summaries_in(made)
    assert (found.run, found.figures["rows"]) == (1, 1)


def test_the_loser_of_a_race_adds_nothing_to_the_history(engine, store):
    run(engine, 2)
    overtaken, newest = engine.coordinator, engine.coordinator.newest
    engine.restart()
    run(engine)
    late = Batch(query_id=newest.query_id, batch_id=2, offsets_digest=f"{2:064}", data={})
    with pytest.raises(FencedError):
        overtaken.run_batch(late)
    assert [each.run for each in summaries_in(CheckpointStore(store).latest())] == [1, 1, 2]


def test_a_fenced_driver_leaves_a_mark_or_a_word(engine, store, caplog):
    recorder = HistoryRecorder(store, engine.environment)
    recorder.fenced(record(checkpoint_id=4), "query")
    recorder.fenced(None, "query")
    assert sorted(info.name.split("-")[1] for info in store.list(HISTORY_PREFIX)) == ["0", "5"]
    store.fails = True
    recorder.fenced(None, "query")
    assert "overtaken" in caplog.text


def test_a_run_that_is_no_start_keeps_the_number_of_the_run_before(engine):
    run(engine, 2)
    recorder = HistoryRecorder(engine.root, engine.environment, is_new_run=False)
    newest = engine.coordinator.newest
    made = recorder.summarised(newest, record(checkpoint_id=2, nonce="1" * 32), {}, {})
    assert [each.run for each in summaries_in(made)] == [1, 1, 1]


def test_a_checkpoint_without_subtasks_has_the_state_of_the_one_before(engine):
    newest = run(engine)
    recorder = HistoryRecorder(engine.root, engine.environment)
    made = recorder.summarised(newest, record(checkpoint_id=1, nonce="1" * 32), {"output_seconds": 1.0}, {})
    before, after = summaries_in(made)
    assert after.figures["state_bytes"] == before.figures["state_bytes"]
    assert "rows" not in after.figures
    assert "state_bytes_written" not in after.figures


def test_what_a_query_goes_on_from_is_one_line(engine, caplog):
    with caplog.at_level(logging.INFO):
        text = described(run(engine))
    assert text.startswith("checkpoint 0 (batch 0): 1 states of ")
    assert "\n" not in text
