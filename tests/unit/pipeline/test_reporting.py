"""What a batch cost: as metrics, as lines of JSON, as a list."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from stateline.checkpoint import InputState
from stateline.pipeline.messages import BatchReport
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.pipeline.reporting import REPORTS_KEPT, BatchReporter
from stateline.state.aggregate import count
from stateline.testing import ManualClock
from tests.unit.pipeline.engine import Engine
from tests.unit.pipeline.records import record


def report(number: int, *, replayed: bool = False, watermark_us: int | None = None, **metrics: float) -> BatchReport:
    inputs = () if watermark_us is None else (InputState(name="op", column="at", watermark_us=watermark_us),)
    checkpoint = record(checkpoint_id=number, batch_id=number, inputs=inputs)
    return BatchReport(checkpoint=checkpoint, replayed=replayed, metrics=metrics)


def test_a_batch_is_a_line_of_json_and_an_entry(tmp_path):
    log = tmp_path / "metrics.jsonl"
    clock = ManualClock()
    reporter = BatchReporter(clock, log)
    reporter(report(0, rows=5, state_rows=3))
    reporter(report(1, rows=7, state_rows=4, watermark_us=int((clock.now() - 2.5) * 1_000_000)))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines == list(reporter.recent)
    assert [line["rows"] for line in lines] == [5, 7]
    assert lines[0]["batch_id"] == 0
    assert "lag_seconds" not in lines[0]
    assert lines[1]["lag_seconds"] == pytest.approx(2.5, abs=0.01)


def test_counts_add_up_and_sizes_are_the_newest():
    reporter = BatchReporter(ManualClock())
    reporter(report(0, rows=5, state_rows=3, record_seconds=0.5))
    reporter(report(1, replayed=True))
    reporter(report(2, rows=7, state_rows=4, record_seconds=1.5))
    found = reporter.metrics.snapshot()
    assert (found["rows"], found["state_rows"], found["checkpoint_id"]) == (12, 4, 2)
    assert (found["batches"], found["batches_replayed"]) == (3, 1)
    assert found["record_seconds"]["sum"] == 2.0


def test_a_log_that_cannot_be_written_fails_no_batch(tmp_path, caplog):
    reporter = BatchReporter(ManualClock(), tmp_path / "nowhere" / "metrics.jsonl")
    reporter(report(0, rows=5))
    reporter(report(1, rows=5))
    assert len(caplog.records) == 1
    assert len(reporter.recent) == 2


def test_the_list_is_bounded():
    reporter = BatchReporter(ManualClock())
    for number in range(REPORTS_KEPT + 5):
        reporter(report(number))
    assert reporter.recent[0]["batch_id"] == 5


def test_writing_and_merging_state_are_told_apart():
    schema = pa.schema([("key", pa.string())])
    engine = Engine(AggregateProgram.bind(schema, ["key"], {"n": count()}), schema, parallelism=1)
    merged = []
    for number in range(12):
        engine.run([{"key": f"k{number}-{row}"} for row in range(50)])
        found = engine.metrics
        assert found["write_seconds"] > 0
        assert (found["merge_seconds"] > 0) == (found["runs_merged"] > 0)
        assert found["write_seconds"] + found["merge_seconds"] <= found["state_seconds"]
        merged.append(found["runs_merged"])
    assert any(merged)
    assert not all(merged)
