"""Bugs planted where they would be, each of which a test of this suite must find."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake.transaction import CommitProperties

from stateline.checkpoint import CheckpointStore, table_records
from stateline.errors import StatelineError
from stateline.pipeline import open_files, table_commits
from stateline.pipeline.coordinator import MicroBatchCoordinator
from stateline.pipeline.table_commits import TableCommits
from stateline.tables import Attempt, Outcome, commit, delta, iceberg, rows, sql, sqlite
from stateline.tables.commit import CommitStep
from tests.unit.pipeline import test_table_commits as lives
from tests.unit.pipeline.test_table_commits import Effects
from tests.unit.tables import test_sql_tables as databases
from tests.unit.tables import test_table_protocol as promises
from tests.unit.tables.table_kit import places

Patch = pytest.MonkeyPatch


def never_looks(patch: Patch) -> None:
    patch.setattr(commit, "next_commit_step", lambda state, *_: without_look(state))


def without_look(state):
    return CommitStep.CREATE if state.identity is None else CommitStep.COMMIT


def fills_again_what_was_lost(patch: Patch) -> None:
    patch.setattr(commit, "check_token", lambda *_: None)


def knows_its_own_commit_only_while_nobody_has_gone_on(patch: Patch) -> None:
    def step(state, token, _):
        return CommitStep.NOTHING if state.committed == token.checkpoint_id else without_look(state)

    patch.setattr(commit, "next_commit_step", step)


def takes_for_done(outcome: Outcome) -> Callable[[Patch], None]:
    """A bug that takes an outcome for done."""

    def plant(patch: Patch) -> None:
        real = commit.commit_once

        def commit_once(table, change, environment):
            attempt = table.attempt

            def believing(*args):
                made = attempt(*args)
                return Attempt(outcome=Outcome.DONE) if made.outcome is outcome else made

            table.attempt = believing
            return real(table, change, environment)

        patch.setattr(table_commits, "commit_once", commit_once)

    plant.__name__ = f"takes_{outcome.name.lower()}_for_done"
    return plant


def marks_before_it_commits(patch: Patch) -> None:
    real, made = TableCommits.commit, MicroBatchCoordinator.__init__

    def init(self, plan, checkpoints, *args, **more):
        made(self, plan, checkpoints, *args, **more)
        self._tables.checkpoints = checkpoints

    def commit_late(self, record):
        self.checkpoints.mark_published(record.checkpoint_id)
        real(self, record)

    patch.setattr(MicroBatchCoordinator, "__init__", init)
    patch.setattr(TableCommits, "commit", commit_late)


def forgets_the_commit_of_the_newest_record(patch: Patch) -> None:
    for module in (table_commits, open_files):
        patch.setattr(module, "following_tables", table_records.table_records)


def takes_what_was_cleaned_up_for_lost(patch: Patch) -> None:
    patch.setattr(TableCommits, "committed", lambda *_: set())


def finishes_nothing_at_a_start(patch: Patch) -> None:
    patch.setattr(CheckpointStore, "is_published", lambda *_: True)


def commits_without_the_token(patch: Patch) -> None:
    patch.setattr(delta, "CommitProperties", lambda **_: CommitProperties())


def moves_another_tag(patch: Patch) -> None:
    real = iceberg.SetSnapshotRefUpdate
    patch.setattr(iceberg, "SetSnapshotRefUpdate", lambda ref_name, **more: real(ref_name=f"{ref_name}-2", **more))


def commits_on_a_look_of_its_own(patch: Patch) -> None:
    for owner in (delta.DeltaLog, iceberg.IcebergCommits):
        real = owner.attempt

        def attempt(self, change, state, real=real):
            return real(self, change, dataclasses.replace(state, snapshot=self.look("nobody").snapshot))

        patch.setattr(owner, "attempt", attempt)


def commits_the_token_before_the_rows(patch: Patch) -> None:
    real = sql.SqlTable._move

    def move(self, session, token):
        moved = real(self, session, token)
        session.commit()
        session.run("BEGIN IMMEDIATE")
        return moved

    patch.setattr(sql.SqlTable, "_move", move)


def commits_every_statement(patch: Patch) -> None:
    real = sqlite._SqliteSession._do

    def do(self, statement, values=()):
        return [] if statement.startswith(("BEGIN", "COMMIT")) else real(self, statement, values)

    patch.setattr(sqlite._SqliteSession, "_do", do)


def sets_the_token_wherever_it_was(patch: Patch) -> None:
    def move(self, session, token):
        statement = f"INSERT OR REPLACE INTO {self._tokens} VALUES (?, ?, 't')"
        session.run(statement, token.app, token.checkpoint_id)
        return True

    patch.setattr(sql.SqlTable, "_move", move)


def leaves_rows_where_it_should_replace_them(patch: Patch) -> None:
    patch.setattr(sqlite, "on_conflict", lambda key, _: f" ON CONFLICT ({', '.join(map(sql.quoted, key))}) DO NOTHING")


def takes_several_rows_of_a_key(patch: Patch) -> None:
    for module in (rows, delta, sql):
        patch.setattr(module, "check_keys", lambda *_: None)


def killed(kind: str, folder: Path, patch: Patch) -> None:
    lives.test_a_driver_is_killed_at_each_step(kind, folder, Effects(patch))


def overtaken(kind: str, folder: Path, patch: Patch) -> None:
    lives.test_a_frozen_driver_is_overtaken_at_each_step_and_loses(kind, folder, Effects(patch))


def disturbed(kind: str, folder: Path, patch: Patch) -> None:
    lives.test_others_write_at_each_step(kind, folder, Effects(patch))


def unanswered(kind: str, folder: Path, patch: Patch) -> None:
    lives.test_lost_answers_are_looked_up(kind, folder, patch)


def cut_off(kind: str, folder: Path, patch: Patch) -> None:
    databases.test_a_driver_is_killed_inside_its_transaction(folder, patch)


def keeps(promise: Callable[..., None]) -> Callable[[str, Path, Patch], None]:
    def suite(kind: str, folder: Path, _: Patch) -> None:
        with places(folder)[kind] as place:
            promise(place)

    return suite


def keeps_upserts(kind: str, folder: Path, patch: Patch) -> None:
    promises.test_an_upsert_replaces_rows_of_its_keys(folder)


BUGS = [
    (never_looks, "delta", killed),
    (fills_again_what_was_lost, "sqlite", keeps(promises.test_a_table_that_lost_commits_is_not_filled_anew)),
    (fills_again_what_was_lost, "iceberg", keeps(promises.test_a_commit_that_was_lost_in_between_is_refused)),
    (knows_its_own_commit_only_while_nobody_has_gone_on, "delta", overtaken),
    (takes_for_done(Outcome.UNKNOWN), "delta", unanswered),
    (takes_for_done(Outcome.UNKNOWN), "sqlite", unanswered),
    (takes_for_done(Outcome.NOT_DONE), "iceberg", disturbed),
    (marks_before_it_commits, "sqlite", killed),
    (marks_before_it_commits, "delta", killed),
    (forgets_the_commit_of_the_newest_record, "delta", killed),
    (takes_what_was_cleaned_up_for_lost, "delta", killed),
    (finishes_nothing_at_a_start, "sqlite", killed),
    (commits_without_the_token, "delta", killed),
    (commits_without_the_token, "delta-upsert", overtaken),
    (moves_another_tag, "iceberg", killed),
    (commits_on_a_look_of_its_own, "delta", keeps(promises.test_a_driver_that_slept_since_its_look_loses)),
    (commits_on_a_look_of_its_own, "iceberg", keeps(promises.test_a_driver_that_slept_since_its_look_loses)),
    (commits_the_token_before_the_rows, "sqlite", cut_off),
    (commits_every_statement, "sqlite", cut_off),
    (sets_the_token_wherever_it_was, "sqlite", keeps(promises.test_a_second_driver_at_the_same_moment_adds_nothing)),
    (leaves_rows_where_it_should_replace_them, "sqlite-upsert", keeps_upserts),
    (takes_several_rows_of_a_key, "sqlite-upsert", keeps_upserts),
]


@pytest.mark.parametrize(("bug", "kind", "suite"), BUGS, ids=[f"{bug.__name__}-{kind}" for bug, kind, _ in BUGS])
def test_the_bug_is_found(bug, kind, suite, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        bug(patch)
        found = (AssertionError, StatelineError, sqlite3.Error, pytest.fail.Exception)
        with pytest.raises(found):
            suite(kind, tmp_path, patch)
