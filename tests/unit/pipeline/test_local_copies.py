"""Copies of runs on the hosts' disks: a pipeline on two hosts, which lose their subtasks, their disks and some bits."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace

import pyarrow as pa
import pytest

from stateline.blob.memory import MemoryStore
from stateline.changelog.host_cache import HostCache
from stateline.environment import system_environment
from stateline.errors import InvalidInputError
from stateline.files import FileOutput
from stateline.pipeline.driver_stores import DriverStores
from stateline.pipeline.graph import Graph, OperatorPlan
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.pipeline.plan import PLAIN, PipelinePlan
from stateline.state import aggregate
from stateline.state.stored import StoredState
from tests.unit.pipeline.engine import Engine

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])
BATCHES = [[{"key": f"k{i * (7 + number) % 500}", "value": number + i} for i in range(300)] for number in range(8)]
ROOMY = 1 << 30


def program():
    return AggregateProgram.bind(SCHEMA, ["key"], {"n": aggregate.count(), "total": aggregate.sum("value")})


class Hosts:
    """Hosts with a disk each, and which of them runs a subtask."""

    def __init__(self, folder, bytes_max=ROOMY):
        self.folders = [folder / name for name in ("one", "two")]
        self.copies = [HostCache(place, bytes_max, copy_timeout=60) for place in self.folders]
        self.turned = 0

    def __call__(self, subtask):
        return self.copies[(subtask + self.turned) % 2]

    def files(self):
        return sorted(path for folder in self.folders for path in folder.glob("*/*.copy"))


class WatchedStore(MemoryStore):
    """Notes what is read. Answers when as many readers as expected have come, if that is asked for."""

    meeting: threading.Barrier | None = None
    awaited: frozenset[str] = frozenset()

    def __init__(self, name):
        super().__init__(name)
        self.names = []

    def get_range(self, name, start, end):
        self.names.append(name)
        if self.meeting is not None and name in self.awaited:
            self.meeting.wait(timeout=60)
        return super().get_range(name, start, end)


@pytest.fixture
def store(request):
    name = f"copies-{request.node.name}"
    yield WatchedStore(name)
    MemoryStore.forget(name)


def engine(root, hosts=None, parallelism=2):
    return Engine(program(), SCHEMA, root=root, cache=hosts, parallelism=parallelism)


def state(running):
    """All live rows, and what the last batch put out."""
    newest = running.coordinator.newest
    stored = StoredState.of(running.root, newest)
    rows = [row for batch in stored.reader().scan(stored.whole()) for row in batch.to_pylist()]
    output = running.output.get(newest.checkpoint_id, [])
    return [sorted(part, key=repr) for part in (rows, output)]


def expected(batches, parallelisms):
    """The same without copies."""
    root = MemoryStore(system_environment().ids.new_id())
    for number, parallelism in enumerate(parallelisms):
        plain = engine(root, parallelism=parallelism)
        plain.run(batches[number])
    return state(plain)


def runs(running):
    """The names of all runs, by subtask."""
    (operator,) = running.coordinator.newest.operators
    return [[run.name for run in subtask.runs] for subtask in operator.subtasks]


def run_fetching(running, batch):
    """Runs one batch; returns which of the runs before it came from the store."""
    before = {name for names in runs(running) for name in names}
    running.root.names.clear()
    running.run(batch)
    return before.intersection(running.root.names)


def test_a_host_that_keeps_its_subtasks_fetches_no_run(store, tmp_path):
    running = engine(store, Hosts(tmp_path))
    running.run(BATCHES[0])
    for batch in BATCHES[1:6]:
        assert run_fetching(running, batch) == set()
    assert state(running) == expected(BATCHES, [2] * 6)


def test_another_host_fetches_what_it_lacks_all_runs_at_once(store, tmp_path):
    hosts = Hosts(tmp_path)
    running = engine(store, hosts)
    for batch in BATCHES[:3]:
        running.run(batch)
    before = runs(running)
    assert [len(names) for names in before] == [3, 3]
    hosts.turned = 1
    store.awaited, store.meeting = frozenset(name for names in before for name in names), threading.Barrier(3)
    assert run_fetching(running, BATCHES[3]) == store.awaited, "three readers met, once for each subtask"
    store.meeting = None
    assert run_fetching(running, BATCHES[4]) == set(), "now both hosts have them"
    assert state(running) == expected(BATCHES, [2] * 5)


@pytest.mark.parametrize("parallelism", [1, 2, 4])
@pytest.mark.parametrize("copies", [True, False])
def test_a_restart_gives_the_same_state_with_and_without_copies(store, tmp_path, copies, parallelism):
    hosts = Hosts(tmp_path) if copies else None
    running = engine(store, hosts)
    for batch in BATCHES[:4]:
        running.run(batch)
    restarted = engine(store, hosts, parallelism)
    restarted.coordinator.start()
    fetched = run_fetching(restarted, BATCHES[4])
    assert bool(fetched) is (not copies or parallelism != 2), "a host has whole copies of what it wrote itself"
    assert state(restarted) == expected(BATCHES, [2] * 4 + [parallelism])


def test_a_lost_disk_is_filled_again(store, tmp_path):
    hosts = Hosts(tmp_path)
    running = engine(store, hosts)
    for batch in BATCHES[:3]:
        running.run(batch)
    lost = set(runs(running)[0])
    shutil.rmtree(hosts.folders[0])
    assert run_fetching(running, BATCHES[3]) == lost
    assert run_fetching(running, BATCHES[4]) == set()
    assert state(running) == expected(BATCHES, [2] * 5)
    assert [copies.metrics.snapshot()["local_copies_skipped"] for copies in hosts.copies] == [0, 0]


def test_a_damaged_copy_is_fetched_again_and_replaced(store, tmp_path):
    hosts = Hosts(tmp_path)
    running = engine(store, hosts)
    for batch in BATCHES[:3]:
        running.run(batch)
    good = {path: path.read_bytes() for path in hosts.files()}
    for number, (path, data) in enumerate(sorted(good.items())):
        path.write_bytes(data[:98] if number % 3 == 0 else data[:99] + bytes([data[99] ^ 1]) + data[100:])
    named = {name for names in runs(running) for name in names}
    assert run_fetching(running, BATCHES[3]) == named
    assert sum(copies.metrics.snapshot()["local_read_fallbacks"] for copies in hosts.copies) == len(named)
    assert len(good.keys() - hosts.files()) == len(named), "what is damaged is deleted"
    assert run_fetching(running, BATCHES[4]) == set(), "and sections that were fetched take its place"
    assert state(running) == expected(BATCHES, [2] * 5)


def test_copies_stay_within_their_bound_and_what_was_dropped_is_fetched(store, tmp_path):
    unbounded = Hosts(tmp_path / "roomy")
    running = engine(MemoryStore(system_environment().ids.new_id()), unbounded)
    for batch in BATCHES[:3]:
        running.run(batch)
    bound = max(copies.size() for copies in unbounded.copies) // 2
    hosts = Hosts(tmp_path / "small", bound)
    running = engine(store, hosts)
    running.run(BATCHES[0])
    fetched = set()
    for batch in BATCHES[1:]:
        fetched |= run_fetching(running, batch)
        assert all(copies.size() <= bound for copies in hosts.copies)
    assert fetched
    assert state(running) == expected(BATCHES, [2] * len(BATCHES))


@pytest.mark.parametrize("overlapped", ["root", "out"])
def test_a_folder_of_copies_in_the_root_or_in_an_output_is_refused_before_anything_runs(tmp_path, overlapped):
    operator = OperatorPlan(name="sums", tables={}, definition="", output=FileOutput(url=str(tmp_path / "out")))
    plan = PipelinePlan(
        root_url=str(tmp_path / "root"),
        parallelism=1,
        max_parallelism=1,
        graph=Graph.of_one_input([operator]),
        settings=replace(PLAIN, local_copies=str(tmp_path / overlapped / "copies"), local_copies_bytes=ROOMY),
    )
    with pytest.raises(InvalidInputError, match=r"local_copies.* must be apart"):
        DriverStores.open(plan, system_environment())
    assert not list(tmp_path.iterdir())
