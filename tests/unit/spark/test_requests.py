"""What a micro-batch asks of its store, counted: writes for each subtask and one record, no LIST, no HEAD."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from stateline.blob import InstrumentedStore, open_store
from stateline.blob.memory import MemoryStore
from stateline.checkpoint import CheckpointStore
from stateline.environment import system_environment
from stateline.files import FileOutput, RollingPolicy
from stateline.key_groups import key_group_of, stable_hash, subtask_for_key_group
from stateline.pipeline.coordinator import MicroBatchCoordinator
from stateline.pipeline.graph import Graph, OperatorPlan
from stateline.pipeline.messages import Batch
from stateline.pipeline.plan import PLAIN, PipelinePlan
from stateline.pipeline.subtask import TaskResources, run_subtask
from stateline.spark.sinks import files as files_sink
from stateline.spark.sinks import files_stores
from stateline.spark.sinks.files import FilesSink
from stateline.state.open_runs import OpenRuns
from tests.kit.scenarios.pipeline import CountingProgram

PARALLELISM, KEY_GROUPS = 3, 12
NOT_ON_THE_WAY = {"list", "head", "exists", "list_staged", "copy"}


class Engine:
    """A whole pipeline in this thread, with every request counted."""

    def __init__(self, rolling: RollingPolicy | None) -> None:
        self.root = InstrumentedStore(MemoryStore(system_environment().ids.new_id()))
        self.out = InstrumentedStore(MemoryStore(system_environment().ids.new_id()))
        self.program = CountingProgram("one")
        self.open_runs = OpenRuns()
        output = None if rolling is None else FileOutput(url="memory://out", format="arrow", rolling=rolling)
        operator = replace(OperatorPlan.of("counts", self.program), output=output)
        self.plan = plan = PipelinePlan(
            root_url="memory://root",
            parallelism=PARALLELISM,
            max_parallelism=KEY_GROUPS,
            graph=Graph.of_one_input([operator]),
            settings=replace(PLAIN, retained_checkpoints=50),
        )
        self.coordinator = MicroBatchCoordinator(
            plan,
            CheckpointStore(self.root),
            {} if output is None else {"counts": self.out},
            self.run_subtasks,
            system_environment(),
        )

    def run_subtasks(self, batch, tasks):
        context = TaskResources(
            root=self.root, output=self.out, environment=system_environment(), open_runs=self.open_runs
        )
        return [run_subtask(context, self.plan, self.program, task, batch.data[task.subtask]) for task in tasks]

    def run(self, batch_id: int) -> tuple[Counter[str], Counter[str]]:
        """The requests of one batch that touches every subtask."""
        self.root.reset()
        self.out.reset()
        rows: list[list[pa.RecordBatch]] = [[] for _ in range(PARALLELISM)]
        for number in range(40):
            key = f"key {number}"
            subtask = subtask_for_key_group(key_group_of(stable_hash(key), KEY_GROUPS), PARALLELISM, KEY_GROUPS)
            row = {"batch": batch_id, "number": number, "key": key, "attempt": ""}
            rows[subtask].append(pa.RecordBatch.from_pylist([row]))
        self.coordinator.run_batch(Batch(query_id="q", batch_id=batch_id, offsets_digest=str(batch_id), data=rows))
        return Counter(self.root.calls), Counter(self.out.calls)


def requests_of_later_batches(rolling):
    engine = Engine(rolling)
    engine.run(0)
    return [engine.run(batch) for batch in range(1, 4)]


def test_state_costs_a_write_for_each_subtask_and_one_record():
    for root, out in requests_of_later_batches(None):
        assert root["put_if_absent"] == PARALLELISM + 1
        assert not NOT_ON_THE_WAY & root.keys()
        assert not out


def test_files_that_grow_cost_no_more_writes():
    for root, out in requests_of_later_batches(RollingPolicy()):
        assert root["put_if_absent"] == PARALLELISM + 1
        assert not NOT_ON_THE_WAY & root.keys()
        assert not out


def test_files_that_end_are_staged_prepared_published_and_discarded_once_each():
    for root, out in requests_of_later_batches(RollingPolicy(every_checkpoint=True)):
        assert root["put_if_absent"] == PARALLELISM + 1 + 1, "runs, the record, and the mark that files were visible"
        assert {out[call] for call in ("stage", "prepare", "publish", "discard")} == {PARALLELISM}
        assert not NOT_ON_THE_WAY & (root.keys() | out.keys())


@pytest.mark.parametrize("rolling", [None, RollingPolicy()])
def test_the_number_of_requests_does_not_grow_with_the_state(rolling):
    totals = [sum(root.values()) for root, _ in requests_of_later_batches(rolling)]
    assert max(totals) - min(totals) <= PARALLELISM, "a merge more or less"


@pytest.mark.parametrize("every_checkpoint", ["false", "true"])
def test_the_sink_of_any_stream_neither_lists_nor_asks_for_heads(tmp_path, monkeypatch, every_checkpoint):
    stores: list[InstrumentedStore] = []

    def counted(url, options, environment):
        stores.append(InstrumentedStore(open_store(url, options, environment)))
        return stores[-1]

    monkeypatch.setattr(files_stores, "open_store", counted)
    monkeypatch.setattr(files_sink, "_KNOWN", {})
    options = {"path": str(tmp_path / "out"), "every_checkpoint": every_checkpoint}
    schema = StructType([StructField("id", LongType())])
    for batch in range(8):
        for store in stores:
            store.reset()
        writer = FilesSink(options).streamWriter(schema, overwrite=False)
        staged = [writer.write(iter([pa.RecordBatch.from_pydict({"id": [task]})])) for task in range(PARALLELISM)]
        writer.commit(staged, batch)
        calls = {call for store in stores for call, times in store.calls.items() if times}
        assert "put_if_absent" in calls
        assert batch == 0 or not NOT_ON_THE_WAY & calls


@pytest.mark.parametrize(
    ("given", "records", "spark"),
    [
        ({}, {"fsync": "false"}, {"fsync": "false"}),
        ({"root.permissions": "umask"}, {"fsync": "false", "permissions": "umask"}, {"fsync": "false"}),
        ({"checkpoint": "CHECKPOINT"}, {}, {"fsync": "false"}),
        ({"checkpoint": "CHECKPOINT", "root.permissions": "umask"}, {"permissions": "umask"}, {"fsync": "false"}),
    ],
)
def test_records_below_the_output_use_the_options_of_its_store(tmp_path, monkeypatch, given, records, spark):
    """A service that is told once must not be looked for in the cloud when the records are written."""
    opened = {}

    def noted(url, options, environment):
        opened[url.removeprefix(str(tmp_path))] = dict(options)
        return open_store(url, options, environment)

    monkeypatch.setattr(files_stores, "open_store", noted)
    monkeypatch.setattr(files_sink, "open_store", noted)
    monkeypatch.setattr(files_sink, "_KNOWN", {})
    given = {key: value.replace("CHECKPOINT", str(tmp_path / "records")) for key, value in given.items()}
    places = {"path": str(tmp_path / "out"), "checkpointLocation": str(tmp_path / "spark")}
    writer = FilesSink({**places, "store.fsync": "false", **given}).streamWriter(
        StructType([StructField("id", LongType())]), overwrite=False
    )
    writer.commit([writer.write(iter([]))], 0)
    root = "/records/stream" if "checkpoint" in given else "/out/.stateline/stream"
    assert opened == {"/out": {"fsync": "false"}, root: records, "/spark": spark}
