"""Tables behind the real coordinator: killed at every step, overtaken at every step, and each row is there once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa
import pytest

from stateline.blob import open_store
from stateline.checkpoint import (
    CheckpointStore,
    create_savepoint,
    open_savepoint,
    relocate_outputs,
    start_from_savepoint,
)
from stateline.checkpoint.table_records import table_records
from stateline.environment import Environment
from stateline.errors import FencedError, InvalidInputError, UnavailableError
from stateline.files import FileOutput, RollingPolicy
from stateline.pipeline import publishing, table_commits
from stateline.pipeline.files_decision import FilesDecision, files_plan
from stateline.pipeline.graph import Graph
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.pipeline.plan import PLAIN
from stateline.state.aggregate import count
from stateline.tables import Attempt, Outcome, Table
from stateline.tables.iceberg import IcebergCommits
from stateline.testing import ManualClock
from tests.unit.pipeline.engine import Engine
from tests.unit.tables.table_kit import KINDS, SCHEMA, Place, places

PROGRAM = AggregateProgram.bind(pa.schema([("k", pa.int64())]), ["k"], {"n": count()})


class Killed(BaseException):
    """The process is gone."""


class Effects:
    """Counts the steps of a driver that others can see, and does something before or after one of them."""

    def __init__(self, monkeypatch):
        self.count, self.at, self.act = 0, -1, None
        for owner, name in (
            (CheckpointStore, "publish"),
            (CheckpointStore, "mark_published"),
            (publishing, "make_visible"),
        ):
            monkeypatch.setattr(owner, name, self.wrapped(getattr(owner, name)))
        self._open = table_commits._open_table
        monkeypatch.setattr(table_commits, "_open_table", self.opened)

    def opened(self, *args, **more):
        table = self._open(*args, **more)
        for name in ("look", "create", "attempt"):
            setattr(table, name, self.wrapped(getattr(table, name)))
        return table

    def wrapped(self, function: Callable):
        def step(*args, **more):
            self.meet()
            result = function(*args, **more)
            self.meet()
            return result

        return step

    def meet(self):
        self.count += 1
        if self.count == self.at and self.act is not None:
            act, self.act = self.act, None
            act()

    def plan(self, at: int, act: Callable[[], None] | None):
        self.count, self.at, self.act = 0, at, act


def kill():
    raise Killed


class FilesQuery:
    """A query of the file sink into a table of files; every call works as a new process."""

    def __init__(self, place: Place, environment=None):
        self.place = place
        target = place.target()
        self.clock = ManualClock(1000.0)
        self.environment = environment or Environment(clock=self.clock)
        store = place.store()
        assert store is not None
        self.out = store
        self.root = open_store(f"memory://{place.folder}")
        self.output = FileOutput(url=self.out.url, rolling=RollingPolicy(every_checkpoint=True))
        self.table = target
        if target.format == "iceberg":
            with place.open() as table:
                table.create()

    @property
    def decision(self):
        plan = files_plan(self.root.url, self.output, PLAIN, schema=SCHEMA, table=self.table)
        return FilesDecision(plan, self.root, self.out, SCHEMA, self.environment)

    def run(self, number: int, *keys: int):
        made = [self.decision.stage([pa.record_batch({"k": keys, "v": [f"b{number}"] * len(keys)}, schema=SCHEMA)])]
        return self.decision.commit(made, batch_id=number, offsets_digest=str(number), query_id="q").checkpoint

    def start(self):
        self.decision.coordinator().start()

    def expected(self, batches):
        return sorted((k, f"b{number}") for number, keys in batches.items() for k in keys)

    def newest(self):
        return CheckpointStore(self.root).latest()


class RowsQuery:
    """A keyed query whose rows go into a table that takes rows."""

    def __init__(self, place: Place):
        self.place = place
        target = place.target()
        key = ("k",) if target.mode == "upsert" else ()
        self.table = dataclasses.replace(target, key=key)
        self.root = open_store(f"memory://{place.folder}")
        self.environment = Environment(clock=ManualClock(1000.0))

    def engine(self, table=None):
        engine = Engine(PROGRAM, pa.schema([("k", pa.int64())]), root=self.root, environment=self.environment)
        engine.operator = dataclasses.replace(engine.operator, table=table or self.table)
        engine.plan = dataclasses.replace(engine.plan, graph=Graph.of_one_input([engine.operator], None))
        engine.restart()
        return engine

    def run(self, number: int, *keys: int):
        return self.engine().run([{"k": k} for k in keys], batch_id=number)

    def start(self):
        self.engine().coordinator.start()

    def expected(self, batches):
        rows, counts, newest = [], {}, {}
        for number, keys in sorted(batches.items()):
            for k in keys:
                counts[k] = counts.get(k, 0) + 1
            for k in dict.fromkeys(keys):
                rows.append((k, counts[k], number))
                newest[k] = (k, counts[k], number)
        return sorted(newest.values()) if self.table.mode == "upsert" else sorted(rows)

    newest = FilesQuery.newest


def query_of(kind, folder):
    folder.mkdir(exist_ok=True)
    place = places(folder)[kind]
    return FilesQuery(place) if place.target().takes_files else RowsQuery(place)


BATCHES = {0: (1, 2), 1: (2, 3), 2: (1, 4)}


@pytest.fixture
def effects(monkeypatch):
    return Effects(monkeypatch)


def run_to_the_end(query):
    for number, keys in BATCHES.items():
        query.run(number, *keys)


def steps_of(kind, folder, effects):
    """How many steps the second batch has."""
    query = query_of(kind, folder / "whole")
    query.run(0, *BATCHES[0])
    effects.plan(-1, None)
    query.run(1, *BATCHES[1])
    assert effects.count >= 8, "record, files or rows, look, attempt, mark"
    return effects.count


@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_is_killed_at_each_step(kind, tmp_path, effects):
    for at in range(1, steps_of(kind, tmp_path, effects) + 1):
        query = query_of(kind, tmp_path / str(at))
        query.run(0, *BATCHES[0])
        effects.plan(at, kill)
        with pytest.raises(Killed):
            query.run(1, *BATCHES[1])
        effects.plan(-1, None)
        query.place.compact()
        query.place.vacuum()
        if at % 2:
            query.start()
        run_to_the_end(query)
        query.start()
        assert query.place.rows() == query.expected(BATCHES), f"killed at step {at}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_driver_is_overtaken_at_each_step_and_loses(kind, tmp_path, effects):
    for at in range(1, steps_of(kind, tmp_path, effects) + 1):
        query = query_of(kind, tmp_path / str(at))
        query.run(0, *BATCHES[0])

        def overtake(query=query):
            run_to_the_end(query)
            query.place.compact()

        effects.plan(at, overtake)
        with suppress(FencedError, UnavailableError):
            query.run(1, *BATCHES[1])
        assert query.place.rows() == query.expected(BATCHES), f"frozen at step {at}"
        query.start()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_others_write_at_each_step(kind, tmp_path, effects):
    for at in range(1, steps_of(kind, tmp_path, effects) + 1):
        query = query_of(kind, tmp_path / str(at))
        query.run(0, *BATCHES[0])

        def write(query=query):
            query.place.append_foreign(99)
            query.place.compact()

        effects.plan(at, write)
        query.run(1, *BATCHES[1])
        run_to_the_end(query)
        assert query.place.rows() == [*query.expected(BATCHES), (99, "foreign")], f"at step {at}"


@pytest.mark.parametrize("kind", KINDS)
def test_lost_answers_are_looked_up(kind, tmp_path, monkeypatch):
    opened = table_commits._open_table
    state = {"lost": 0}

    def lossy(*args, **more) -> Table:
        table = opened(*args, **more)
        real = table.attempt

        def attempt(change, look):
            state["lost"] += 1
            if state["lost"] % 2:
                return (
                    Attempt(outcome=Outcome.UNKNOWN, cause=OSError("no answer"))
                    if state["lost"] % 4 == 1
                    else (
                        real(change, look),
                        Attempt(outcome=Outcome.UNKNOWN, cause=OSError("no answer")),
                    )[1]
                )
            return real(change, look)

        table.attempt = attempt  # type: ignore[method-assign]
        return table

    monkeypatch.setattr(table_commits, "_open_table", lossy)
    query = query_of(kind, tmp_path)
    run_to_the_end(query)
    assert state["lost"] > 3
    assert query.place.rows() == query.expected(BATCHES)


@pytest.mark.parametrize("kind", ["delta", "iceberg", "sqlite"])
def test_records_name_their_table(kind, tmp_path):
    query = query_of(kind, tmp_path)
    records = [query.run(number, *keys) for number, keys in BATCHES.items()]
    (first,), (second,), (third,) = (table_records(record).values() for record in records)
    assert (first.committed, second.committed, third.committed) == (None, 0, 1)
    assert first.app == second.app == third.app
    assert first.identity == ""
    with query.place.open() as table:
        state = table.look(first.app)
    assert state.committed == 2
    assert second.identity == third.identity == (state.identity or "")


@pytest.mark.parametrize("kind", ["delta", "iceberg", "sqlite"])
def test_a_batch_without_rows_makes_no_commit(kind, tmp_path):
    query = query_of(kind, tmp_path)
    query.run(0, 1)
    app = next(iter(table_records(CheckpointStore(query.root).latest()).values())).app
    with query.place.open() as table:
        before = table.look(app)
        query.run(1)
        after = table.look(app)
        assert (before.committed, before.version) == (after.committed, after.version)
        query.run(2, 3)
        assert table.look(app).committed == 2


@pytest.mark.parametrize("kind", ["delta", "iceberg", "sqlite"])
def test_a_table_that_was_made_anew_is_refused_and_nothing_is_lost(kind, tmp_path):
    query = query_of(kind, tmp_path)
    run_to_the_end(query)
    query.place.drop()
    if kind != "sqlite":
        with query.place.open() as table:
            table.create()
    for _ in range(2):
        with pytest.raises(InvalidInputError, match=r"made anew|is missing"):
            query.run(3, 7)


def test_a_driver_that_fails_closes_its_tables(tmp_path, effects, monkeypatch):
    tables, opened = [], table_commits._open_table

    def counted(*args, **more):
        table = opened(*args, **more)
        tables.append(table)
        return table

    monkeypatch.setattr(table_commits, "_open_table", counted)
    closed, real = [], IcebergCommits.close
    monkeypatch.setattr(IcebergCommits, "close", lambda self: (closed.append(self), real(self)))
    for at in range(1, steps_of("iceberg", tmp_path, effects) + 1):
        query = query_of("iceberg", tmp_path / str(at))
        query.run(0, *BATCHES[0])
        for call in (lambda query=query: query.run(1, *BATCHES[1]), query.start):
            effects.plan(at, kill)
            with suppress(Killed):
                call()
        effects.plan(-1, None)
    assert {*map(id, tables)} <= {*map(id, closed)}, "killed in the middle of a call"


def test_another_table_or_none_is_refused(tmp_path):
    query = query_of("sqlite", tmp_path)
    query.run(0, 1)
    other = dataclasses.replace(query.table, target="others")
    with pytest.raises(InvalidInputError, match="target 'flights' of the checkpoint, got 'others'"):
        query.engine(other).coordinator.start()
    plain = Engine(PROGRAM, pa.schema([("k", pa.int64())]), root=query.root, environment=query.environment)
    with pytest.raises(InvalidInputError, match="got none"):
        plain.coordinator.start()


def test_a_table_where_plain_files_were_is_refused(tmp_path):
    query = query_of("delta", tmp_path)
    assert isinstance(query, FilesQuery)
    table, query.table = query.table, None
    query.run(0, 1)
    query.table = table
    with pytest.raises(InvalidInputError, match="would not be in the table"):
        query.run(1, 2)


def test_files_that_span_checkpoints_are_one_commit(tmp_path):
    query = query_of("delta", tmp_path)
    assert isinstance(query, FilesQuery)
    query.output = FileOutput(url=query.out.url, rolling=RollingPolicy(roll_seconds=100))
    for number in range(4):
        query.run(number, number)
        query.clock.advance(30)
    query.clock.advance(100)
    assert query.decision.roll(query_id="q", run_id="", quiet_seconds=1.0) is None
    assert query.place.rows() == [(number, f"b{number}") for number in range(4)]
    assert query.place.table().version() == 1, "created, and one commit"
    query.run(4, 4)
    (table,) = table_records(CheckpointStore(query.root).latest()).values()
    assert (table.committed, table.identity) == (4, query.place.table().metadata().id)


def test_a_query_from_a_savepoint_commits_under_a_name_of_its_own(tmp_path):
    query = query_of("sqlite", tmp_path)
    query.run(0, 1)
    old = CheckpointStore(query.root)
    savepoint = create_savepoint(old, "memory://savepoints-of-tables")
    root = CheckpointStore(open_store("memory://forked-tables"))
    first = start_from_savepoint(open_savepoint(savepoint.store, savepoint.folder), root, query_id="q")
    assert table_records(first) == {}
    root.publish(first)
    query.root = root.store
    query.run(0, 1)
    assert query.place.rows() == [(1, 1, 0), (1, 2, 1)]


def test_an_output_that_moves_takes_its_table_along(tmp_path):
    query = query_of("delta", tmp_path / "old")
    assert isinstance(query, FilesQuery)
    run_to_the_end(query)
    (tmp_path / "new").mkdir()
    (tmp_path / "old" / "t").rename(tmp_path / "new" / "t")
    place = places(tmp_path / "new")["delta"]
    moved = FilesQuery(place)
    moved.root = query.root
    relocate_outputs(CheckpointStore(query.root), {"files": moved.out})
    moved.run(3, 7)
    assert place.rows() == query.expected({**BATCHES, 3: (7,)})
