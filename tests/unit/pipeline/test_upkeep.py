"""Letting old checkpoints go takes no time of a batch, and what fails there is told by the next one."""

from __future__ import annotations

import threading
from dataclasses import replace

import pyarrow as pa
import pytest

from stateline.blob import InstrumentedStore
from stateline.blob.memory import MemoryStore
from stateline.checkpoint import CheckpointStore
from stateline.environment import system_environment
from stateline.errors import UnavailableError
from stateline.pipeline.coordinator import MicroBatchCoordinator
from stateline.pipeline.graph import Graph, OperatorPlan
from stateline.pipeline.messages import Batch
from stateline.pipeline.plan import PLAIN, PipelinePlan
from stateline.pipeline.subtask import TaskResources, run_subtask
from stateline.pipeline.upkeep import Upkeep
from stateline.state.open_runs import OpenRuns
from tests.kit.scenarios.pipeline import CountingProgram

PATIENCE = 30.0


class HeldStore(InstrumentedStore):
    """A store in which records are let go only when they may be, or not at all."""

    def __init__(self):
        super().__init__(MemoryStore(system_environment().ids.new_id()))
        self.open = threading.Event()
        self.error = None

    def put(self, name, data):
        assert self.open.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return super().put(name, data)


class Driver:
    """A pipeline with one subtask, whose upkeep is beside its batches."""

    def __init__(self, store):
        self.store, self.program = store, CountingProgram("one")
        self.plan = PipelinePlan(
            root_url="memory://root",
            parallelism=1,
            max_parallelism=1,
            graph=Graph.of_one_input([OperatorPlan.of("counts", self.program)]),
            settings=replace(PLAIN, retained_checkpoints=2),
        )
        self.upkeep = Upkeep(system_environment())
        self.checkpoints = CheckpointStore(store)
        self.coordinator = MicroBatchCoordinator(
            self.plan, self.checkpoints, {}, self.run_subtasks, system_environment(), upkeep=self.upkeep
        )

    def run_subtasks(self, batch, tasks):
        context = TaskResources(root=self.store, output=None, environment=system_environment(), open_runs=OpenRuns())
        return [run_subtask(context, self.plan, self.program, task, batch.data) for task in tasks]

    def run(self, number):
        rows = [pa.RecordBatch.from_pylist([{"batch": number, "number": 0, "key": f"k{number}", "attempt": ""}])]
        self.coordinator.run_batch(Batch(query_id="q", batch_id=number, offsets_digest=str(number), data=rows))


@pytest.fixture
def driver():
    made = Driver(HeldStore())
    yield made
    made.store.open.set()
    made.upkeep.close()


def retained(driver):
    return [one.checkpoint_id for one in CheckpointStore(driver.store.inner).list()]


def test_a_batch_does_not_wait_for_what_it_lets_go(driver):
    for number in range(3):
        driver.run(number)
    assert retained(driver) == [0, 1, 2], "the oldest one is held back"
    assert driver.coordinator.newest.checkpoint_id == 2
    driver.store.open.set()
    driver.upkeep.settle()
    assert retained(driver) == [1, 2]


def test_the_next_batch_is_decided_when_the_last_one_has_let_go(driver):
    for number in range(3):
        driver.run(number)
    ended = threading.Event()

    def next_batch():
        driver.run(3)
        ended.set()

    thread = threading.Thread(target=next_batch, daemon=True)
    thread.start()
    assert not ended.wait(0.2)
    assert driver.coordinator.newest.checkpoint_id == 2, "retention is never at work for two records at once"
    driver.store.open.set()
    assert ended.wait(PATIENCE)
    driver.upkeep.settle()
    assert retained(driver) == [2, 3]


def test_what_failed_is_raised_before_the_next_record_and_is_done_then(driver):
    driver.store.open.set()
    driver.store.error = UnavailableError("not today")
    for number in range(3):
        driver.run(number)
    with pytest.raises(UnavailableError):
        driver.run(3)
    assert driver.coordinator.newest.checkpoint_id == 2, "nothing was decided"
    driver.store.error = None
    driver.run(3)
    driver.upkeep.settle()
    assert retained(driver) == [2, 3]


def test_what_failed_last_is_logged_when_the_query_ends(driver, caplog):
    driver.store.open.set()
    driver.store.error = UnavailableError("not today")
    for number in range(3):
        driver.run(number)
    driver.upkeep.close()
    assert "not today" in caplog.text
    driver.upkeep.close()


def test_without_upkeep_a_batch_lets_go_by_itself(driver):
    driver.store.open.set()
    driver.coordinator._upkeep = None
    for number in range(4):
        driver.run(number)
    assert retained(driver) == [2, 3]


def test_without_a_thread_the_driver_does_its_upkeep_itself(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    def fail():
        raise OSError("away")

    monkeypatch.setattr(threading.Thread, "start", start)
    upkeep, done = Upkeep(system_environment()), []
    upkeep.begin(lambda: done.append(1))
    assert done == [1]
    upkeep.begin(fail)
    with pytest.raises(OSError, match="away"):
        upkeep.begin(lambda: done.append(2))
    assert done == [1]
    upkeep.close()
