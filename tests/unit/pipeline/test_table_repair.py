"""Tables that lost rows while their query slept: refused, and continued in the way that the user chose."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from deltalake import DeltaTable, Schema

from stateline.checkpoint import CheckpointStore
from stateline.checkpoint.table_records import table_records
from stateline.environment import system_environment
from stateline.errors import DataLossError, FencedError, InvalidInputError, NotFoundError
from stateline.pipeline import table_repair
from stateline.pipeline.table_repair import Repair, repair_tables
from stateline.pipeline.table_status import Verdict, table_statuses
from stateline.tables import move_token
from stateline.tables.delta import DeltaLog
from tests.unit.pipeline.test_table_commits import FilesQuery, Killed, query_of
from tests.unit.tables.table_kit import SCHEMA

BATCHES = {0: (1, 2), 1: (2, 3), 2: (1, 4), 3: (7,)}
WAYS = ("delta", "delta-upsert")


def run(query, *numbers):
    for number in numbers:
        query.run(number, *BATCHES[number])


def check(query):
    """What a start checks before anything runs."""
    coordinator = query.decision.coordinator() if isinstance(query, FilesQuery) else query.engine().coordinator
    coordinator.start()
    coordinator.check_tables()


def repair(query, way, *, dry_run=False):
    (found,) = repair_tables(CheckpointStore(query.root), options_of(query), way, dry_run=dry_run)
    return found


def options_of(query):
    return {"fsync": "false"} if isinstance(query, FilesQuery) else {}


def verdict(query):
    (found,) = table_statuses(CheckpointStore(query.root), options_of(query))
    return found.verdict


def rolled_back(kind, folder, version=2):
    """A query of three batches whose table was restored to the second version: only batch 0 is left, or more."""
    query = query_of(kind, folder)
    run(query, 0, 1, 2)
    query.place.table().restore(version)
    return query


def refused(query):
    for call in (lambda: check(query), lambda: run(query, 3)):
        with pytest.raises(InvalidInputError, match=r"rolled back|made anew|is missing"):
            call()


@pytest.mark.parametrize("kind", WAYS)
def test_missing_checkpoints_are_written_again(kind, tmp_path):
    query = rolled_back(kind, tmp_path, 1)
    before = query.place.rows()
    refused(query)
    assert verdict(query) is Verdict.ROLLED_BACK
    assert repair(query, Repair.REWRITE, dry_run=True).rewritten == (1, 2)
    assert query.place.rows() == before
    assert repair(query, Repair.REWRITE).rewritten == (1, 2)
    assert query.place.rows() == query.expected({number: BATCHES[number] for number in (0, 1, 2)})
    assert repair(query, Repair.REWRITE).reason == ""
    check(query)
    run(query, 3)
    assert query.place.rows() == query.expected(BATCHES)
    assert verdict(query) is Verdict.IN_STEP


@pytest.mark.parametrize("kind", WAYS)
def test_the_loss_is_accepted(kind, tmp_path):
    query = rolled_back(kind, tmp_path)
    before = query.place.rows()
    refused(query)
    assert repair(query, Repair.ACCEPT).rewritten == ()
    assert query.place.rows() == before
    check(query)
    run(query, 3)
    assert {row for row in query.place.rows() if row not in before} == {
        row for row in query.expected(BATCHES) if row[0] == 7
    }
    assert verdict(query) is Verdict.IN_STEP


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("way", Repair)
def test_a_table_that_was_replaced(kind, way, tmp_path):
    query = query_of(kind, tmp_path)
    run(query, 0, 1, 2)
    old = query.place.table()
    columns = Schema.from_arrow(SCHEMA) if kind == "delta" else old.schema()
    DeltaTable.create(old.table_uri, columns, mode="overwrite")
    refused(query)
    assert repair(query, way).recorded
    assert query.place.rows() == (query.expected({n: BATCHES[n] for n in range(3)}) if way is Repair.REWRITE else [])
    check(query)
    (known,) = table_records(CheckpointStore(query.root).latest()).values()
    assert known.identity == query.place.table().metadata().id != old.metadata().id


def test_a_token_that_is_gone_is_set_again(tmp_path):
    for number, kind in enumerate(("delta", "delta-upsert", "sqlite", "sqlite-upsert")):
        query = query_of(kind, tmp_path / str(number))
        run(query, 0, 1, 2)
        (known,) = table_records(query.newest()).values()
        with query.place.open() as table:
            move_token(table, known.app, None, system_environment())
        refused(query)
        options = options_of(query) | dict(query.table.options)
        assert table_statuses(CheckpointStore(query.root), options)[0].verdict is Verdict.BEHIND
        repair_tables(CheckpointStore(query.root), options, Repair.ACCEPT, dry_run=False)
        run(query, 3)
        assert query.place.rows() == query.expected(BATCHES)


def test_what_is_not_there_any_more_is_not_written_again_and_nothing_changes(tmp_path):
    query = rolled_back("delta", tmp_path, 1)
    version = query.place.table().version()
    (file,) = CheckpointStore(query.root).get(2).outputs[0].finished
    path = tmp_path / "t" / file.commit.target
    path.rename(tmp_path / "aside")
    with pytest.raises(DataLossError, match="was deleted or changed"):
        repair(query, Repair.REWRITE)
    (tmp_path / "aside").rename(path)
    CheckpointStore(query.root).retain(1)
    with pytest.raises(InvalidInputError, match="checkpoint 1 is not retained any more"):
        repair(query, Repair.REWRITE)
    assert query.place.table().version() == version
    assert repair(query, Repair.ACCEPT).kept == 0
    run(query, 3)


@pytest.mark.parametrize("kind", WAYS)
def test_a_record_that_is_not_published_is_committed_after_the_repair(kind, tmp_path, monkeypatch):
    query = query_of(kind, tmp_path)
    run(query, 0, 1)
    with monkeypatch.context() as patched:
        patched.setattr(CheckpointStore, "mark_published", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            run(query, 2)
    query.place.table().restore(1)
    for way in (Repair.REWRITE, Repair.REWRITE):
        repair(query, way)
    run(query, 2, 3)
    assert query.place.rows() == query.expected(BATCHES)


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("way", Repair)
def test_a_repair_that_is_killed_at_each_step_is_repeated(kind, way, tmp_path, monkeypatch):
    for at in range(1, 30):
        query = rolled_back(kind, tmp_path / str(at), 1)
        before = query.place.rows()
        steps = iter(range(1, 1000))

        def killed(real: Callable, steps=steps, at=at):
            def step(*args, **more):
                if next(steps) == at:
                    raise Killed
                result = real(*args, **more)
                if next(steps) == at:
                    raise Killed
                return result

            return step

        with monkeypatch.context() as patched:
            for name in ("look", "attempt", "set_token"):
                patched.setattr(DeltaLog, name, killed(getattr(DeltaLog, name)))
            try:
                repair(query, way)
                break
            except Killed:
                pass
        if verdict(query) is not Verdict.IN_STEP:
            with pytest.raises(InvalidInputError, match="rolled back"):
                check(query)
        repair(query, way)
        expected = query.expected({number: BATCHES[number] for number in (0, 1, 2)})
        assert query.place.rows() == (expected if way is Repair.REWRITE else before), f"killed at {at}"
        check(query)
    assert 4 < at < 29


def test_a_driver_that_is_still_at_work_stops(tmp_path):
    query = query_of("delta", tmp_path)
    run(query, 0, 1, 2)
    decision = query.decision
    decision.coordinator().start()
    DeltaTable.create(query.place.table().table_uri, Schema.from_arrow(SCHEMA), mode="overwrite")
    repair(query, Repair.ACCEPT)
    late = CheckpointStore(query.root)
    record = late.get(2)
    with pytest.raises(FencedError):
        late.publish(table_repair.replace(record, checkpoint_id=3, nonce="late"))


def test_operators_and_tables_that_are_not_there(tmp_path):
    query = query_of("delta", tmp_path)
    run(query, 0)
    with pytest.raises(NotFoundError, match=r"expected an operator with a table, \['files'\], got 'others'"):
        repair_tables(CheckpointStore(query.root), {}, Repair.ACCEPT, operator="others")
    query.place.drop()
    with pytest.raises(InvalidInputError, match="the table is missing"):
        repair(query, Repair.ACCEPT)


def test_a_log_whose_entries_expired_is_not_a_rollback(tmp_path):
    query = query_of("delta", tmp_path)
    run(query, 0, 1, 2)
    query.place.append_foreign(9)
    query.place.compact()
    query.place.vacuum()
    table = query.place.table()
    table.create_checkpoint()
    for entry in (tmp_path / "t" / "_delta_log").glob("0*.json"):
        if int(entry.stem) < table.version():
            entry.unlink()
    check(query)
    run(query, 3)
    assert len(query.place.rows()) == 8


def test_records_say_up_to_which_version_all_rows_were_seen(tmp_path):
    query = query_of("delta-upsert", tmp_path)
    engine = query.engine()
    for number in range(3):
        engine.run([{"k": number}], batch_id=number)
    (known,) = table_records(query.newest()).values()
    assert (known.committed, known.checked) == (1, "1"), "what the look before commit 1 saw"
