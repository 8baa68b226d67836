"""Files whose time has come while no rows come: rounds of the driver, and the commits that stand beside them."""

from __future__ import annotations

import logging
import threading

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from stateline.blob import open_store
from stateline.blob.instrumented import InstrumentedStore
from stateline.changelog.host_cache import HostCache
from stateline.changelog.segment_writer import Segments
from stateline.checkpoint import CheckpointStore
from stateline.environment import Environment
from stateline.errors import FencedError, UnavailableError
from stateline.files import FileOutput, RollingPolicy
from stateline.pipeline import files_decision
from stateline.pipeline.end_of_stream import file_finisher
from stateline.pipeline.files_decision import FilesDecision, files_plan
from stateline.pipeline.files_rounds import FilesRounds
from stateline.pipeline.plan import PLAIN
from stateline.testing import ManualClock
from tests.unit.pipeline.test_quiet_rounds import HeldTimers

ROWS = pa.schema([("id", pa.int64()), ("part", pa.string())])
QUIET = 1.0


class Stream:
    """A query of the sink, over a time that the test sets. Each call works as a process that knows nothing."""

    def __init__(self, place, **rolling):
        self.clock = ManualClock(1_000.0)
        self.environment = Environment(clock=self.clock)
        self.root, self.out = open_store(f"file://{place}/out/.stateline/stream"), open_store(f"file://{place}/out")
        self.folder = place / "out"
        self.output = FileOutput(url=self.out.url, rolling=RollingPolicy(**rolling))
        self.batches = 0

    @property
    def decision(self):
        plan = files_plan(self.root.url, self.output, PLAIN, schema=ROWS)
        return FilesDecision(plan, self.root, self.out, ROWS, self.environment)

    def batch(self, *ids, part="", run_id="run", decision=None):
        made = [self.decision.stage([pa.record_batch({"id": ids, "part": [part] * len(ids)}, schema=ROWS)])]
        report = (decision or self.decision).commit(
            made, batch_id=self.batches, offsets_digest=str(self.batches), query_id="query", run_id=run_id
        )
        self.batches += 1
        return report.checkpoint

    def roll(self, query_id="query", run_id="run", quiet_seconds=QUIET):
        return self.decision.roll(query_id=query_id, run_id=run_id, quiet_seconds=quiet_seconds)

    def finish(self):
        finish_files = file_finisher(Segments(self.root, self.environment), {"files": (self.output, self.out)})
        return self.decision.coordinator().finish(finish_files)

    @property
    def records(self):
        return [(record.checkpoint_id, record.batch_id) for record in CheckpointStore(self.root).list()]

    @property
    def ids(self):
        if not list(self.folder.rglob("part-*")):
            return []
        return sorted(ds.dataset(self.folder, format="parquet").to_table()["id"].to_pylist())


@pytest.mark.parametrize(
    ("rolling", "due"),
    [
        ({"roll_seconds": 60}, 1_060.0),
        ({"idle_seconds": 60}, 1_065.0),
        ({"roll_seconds": 60, "idle_seconds": 7}, 1_012.0),
    ],
)
def test_a_file_is_finished_when_its_time_has_come_though_no_rows_come(tmp_path, rolling, due):
    stream = Stream(tmp_path, **rolling)
    stream.batch(1)
    stream.clock.advance(5.0)
    stream.batch(2)
    assert stream.roll() == due, "it is too early for all"
    stream.clock.advance(due - stream.clock.now() - 0.5)
    assert (stream.roll(), stream.ids) == (due, [])
    stream.clock.advance(0.5)
    assert (stream.roll(), stream.ids) == (None, [1, 2])
    assert stream.records == [(0, 0), (1, 1), (2, 1)], "one more checkpoint of the newest batch"
    stream.batch(3)
    stream.clock.advance(60.0)
    assert (stream.roll(), stream.ids) == (None, [1, 2, 3])


def test_only_what_is_due_is_finished_and_the_rest_goes_on(tmp_path):
    stream = Stream(tmp_path, roll_seconds=60)
    stream.output = FileOutput(url=stream.out.url, partition_by=("part",), rolling=stream.output.rolling)
    stream.batch(1, part="a")
    stream.clock.advance(30.0)
    stream.batch(2, part="b")
    stream.clock.advance(31.0)
    assert (stream.roll(), stream.ids) == (1_090.0, [1])
    stream.clock.advance(29.0)
    assert (stream.roll(), stream.ids) == (None, [1, 2])


def test_a_pipeline_in_which_only_files_are_due_runs_no_operator_for_them(tmp_path):
    """Those of the complete mode would show all of their state again, and begin new files for ever."""
    stream = Stream(tmp_path, roll_seconds=60)
    stream.batch(1)
    coordinator = stream.decision.coordinator()
    coordinator.start()
    finish_files = file_finisher(Segments(stream.root, stream.environment), {"files": (stream.output, stream.out)})
    assert coordinator.due_at() == 1_060.0
    assert coordinator.act_on_time(pytest.fail, finish_files) is None
    stream.clock.advance(60.0)
    report = coordinator.act_on_time(pytest.fail, finish_files)
    assert (report.checkpoint.checkpoint_id, report.checkpoint.batch_id, stream.ids) == (1, 0, [1])
    assert (coordinator.due_at(), coordinator.act_on_time(pytest.fail, finish_files)) == (None, None)


def test_a_batch_goes_on_from_a_round_that_came_between(tmp_path):
    stream = Stream(tmp_path, roll_seconds=60)
    stream.batch(1)
    stream.clock.advance(60.0)
    stream.roll()
    assert stream.batch(2).checkpoint_id == 2
    stream.finish()
    assert stream.ids == [1, 2]


class Overtaken(FilesDecision):
    """A commit that somebody is faster than, after it has read the newest record."""

    def __init__(self, stream, *faster):
        inner = stream.decision
        super().__init__(inner._plan, inner._segments.store, inner._out, ROWS, stream.environment)
        self.faster = list(faster)

    def _context(self, now):
        context = super()._context(now)
        if self.faster:
            self.faster.pop(0)()
        return context


def test_a_commit_that_loses_its_slot_to_a_round_of_its_own_run_goes_on_from_it(tmp_path):
    stream = Stream(tmp_path, roll_seconds=60)
    stream.batch(1)
    stream.clock.advance(61.0)
    record = stream.batch(2, decision=Overtaken(stream, stream.roll))
    assert stream.records == [(0, 0), (1, 0), (2, 1)]
    assert [file.rows for output in record.outputs for file in output.open] == [1]
    stream.finish()
    assert stream.ids == [1, 2], "each row once"


@pytest.mark.parametrize("who", ["another run", "the end", "another batch", "nobody known"])
def test_the_fence_against_any_other_driver_is_as_it_was(tmp_path, who):
    stream = Stream(tmp_path, roll_seconds=60)
    stream.batch(1)
    stream.clock.advance(61.0)

    def faster():
        if who == "the end":
            stream.finish()
        elif who == "another batch":
            stream.batch(7)
        else:
            stream.roll(run_id="another" if who == "another run" else "")

    with pytest.raises(FencedError):
        stream.batch(2, run_id="" if who == "nobody known" else "run", decision=Overtaken(stream, faster))
    stream.finish()
    assert stream.ids == ([1, 7] if who == "another batch" else [1])


def test_the_end_of_a_stream_is_no_round_though_it_comes_after_one(tmp_path):
    stream = Stream(tmp_path, idle_seconds=60)
    stream.batch(1)
    stream.clock.advance(61.0)
    stream.roll()
    stream.batch(2)
    stream.clock.advance(61.0)
    stream.roll()
    stream.batch(3)
    with pytest.raises(FencedError):
        stream.batch(4, decision=Overtaken(stream, stream.finish))
    assert stream.ids == [1, 2, 3]


@pytest.mark.parametrize("batches", [1, 5])
def test_a_round_that_batches_were_faster_than_gives_up_also_when_its_rows_are_gone(tmp_path, monkeypatch, batches):
    stream = Stream(tmp_path, roll_seconds=60)
    stream.batch(1)
    stream.clock.advance(61.0)

    def slow_finisher(*arguments):
        finish_files = file_finisher(*arguments)

        def finish(operator, files):
            monkeypatch.undo()
            for batch in range(batches):
                stream.batch(batch + 2)
            return finish_files(operator, files)

        return finish

    monkeypatch.setattr(files_decision, "file_finisher", slow_finisher)
    assert stream.roll() == 1_062.0
    assert stream.decision.coordinator().start().batch_id == batches
    stream.finish()
    assert stream.ids == list(range(1, batches + 2))


def test_a_stream_with_rows_needs_no_rounds_and_a_foreign_root_gets_none(tmp_path):
    stream = Stream(tmp_path, roll_seconds=60)
    assert stream.roll() is None, "nothing was written yet"
    stream.batch(1)
    stream.clock.advance(60.5)
    stream.output = FileOutput(url=stream.out.url)
    stream.batch(2)
    stream.output = FileOutput(url=stream.out.url, rolling=RollingPolicy(roll_seconds=60))
    assert stream.roll() == 1_061.5, "a batch has just been there, and the next one may do it"
    assert stream.roll(query_id="another", quiet_seconds=0.0) is None
    assert stream.ids == []
    stream.clock.advance(1.0)
    assert (stream.roll(), stream.ids) == (None, [1, 2])


def test_files_that_a_round_decided_and_could_not_show_are_shown_by_the_next_one(tmp_path, monkeypatch):
    stream = Stream(tmp_path, roll_seconds=60)
    stream.batch(1)
    stream.clock.advance(61.0)

    def fails(store, *arguments):
        raise UnavailableError("slow down")

    with monkeypatch.context() as patch:
        patch.setattr(type(stream.out), "publish", fails)
        with pytest.raises(UnavailableError):
            stream.roll()
    assert (stream.records, stream.ids) == ([(0, 0), (1, 0)], [])
    stream.clock.advance(2.0)
    assert (stream.roll(), stream.ids) == (None, [1])
    assert stream.records == [(0, 0), (1, 0)]


class Bench:
    """The timer of a driver."""

    def __init__(self):
        self.timers, self.clock, self.is_active = HeldTimers(), ManualClock(100.0), True
        self.looks, self.answers = [], []
        environment = Environment(clock=self.clock, executors=self.timers)
        self.rounds = FilesRounds(environment, 10.0, 300.0, lambda: self.is_active, self.roll)
        self.rounds.start()

    def roll(self, quiet_seconds):
        self.looks.append((self.clock.now(), quiet_seconds))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def go_off(self):
        (delay,) = self.timers.delays
        self.clock.advance(delay)
        self.timers.go_off()


def test_a_driver_looks_when_a_file_is_due_and_else_when_one_may_be(caplog):
    bench = Bench()
    bench.answers = [None, 450.0, UnavailableError("slow down"), 460.0]
    for _ in range(3):
        bench.go_off()
    assert bench.looks == [(111.0, 11.0), (411.0, 11.0), (450.0, 11.0)]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    bench.go_off()
    assert bench.looks[-1] == (750.0, 11.0), "what fails is tried again"
    bench.is_active = False
    bench.go_off()
    assert (len(bench.looks), bench.timers.delays) == (4, []), "nobody asks for a query that has ended"
    bench.rounds.close()


@pytest.mark.parametrize("what", ["stage", "publish"])
def test_files_that_end_together_are_encoded_and_published_side_by_side(tmp_path, monkeypatch, what):
    stream = Stream(tmp_path, roll_seconds=60)
    stream.output = FileOutput(url=stream.out.url, partition_by=("part",), rolling=RollingPolicy(roll_seconds=60))
    for part in "abc":
        stream.batch(1, part=part)
    stream.clock.advance(61.0)
    barrier, call = threading.Barrier(3), getattr(type(stream.out), what)

    def together(store, *arguments, **more):
        barrier.wait(60)
        return call(store, *arguments, **more)

    monkeypatch.setattr(type(stream.out), what, together)
    stream.roll()
    assert stream.ids == [1, 1, 1]


def test_rows_of_open_files_are_read_from_the_copies_of_the_host(tmp_path):
    environment = Environment(clock=ManualClock(1_000.0))
    root, out = InstrumentedStore(open_store("memory://rows-from-copies")), open_store(f"file://{tmp_path}/out")
    output = FileOutput(url=out.url)
    plan = files_plan("memory://rows-from-copies", output, PLAIN, schema=ROWS)
    copies = HostCache(str(tmp_path / "copies"), 1_000_000)
    decision = FilesDecision(plan, root, out, ROWS, environment, copies=copies)
    made = [decision.stage([pa.record_batch({"id": [1], "part": [""]}, schema=ROWS)])]
    decision.commit(made, batch_id=0, offsets_digest="0", query_id="query")
    root.calls.clear()
    coordinator = decision.coordinator()
    coordinator.finish(file_finisher(Segments(root, environment, copies), {"files": (output, out)}))
    assert root.calls["get_range"] == 0
    assert ds.dataset(tmp_path / "out", format="parquet").to_table()["id"].to_pylist() == [1]
