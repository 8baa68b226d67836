"""Bugs of commits into tables, planted in the real code, and where that is a library's, in the model of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from stateline.checkpoint import Checkpoint, CheckpointStore
from stateline.checkpoint import table_records as records_module
from stateline.checkpoint.table_records import TableRecord
from stateline.environment import Environment
from stateline.handles import RowsHandle
from stateline.pipeline import open_files as open_files_module
from stateline.pipeline import table_commits as commits_module
from stateline.pipeline.coordinator import MicroBatchCoordinator
from stateline.pipeline.table_commits import TableCommits
from stateline.tables import Attempt, NewFile, Outcome, Table, TableChange, TableState, TableToken
from stateline.tables import commit as rule_module
from stateline.tables import sqlite as sqlite_module
from stateline.tables.commit import CommitStep
from stateline.tables.sql import Session, SqlTable, quoted
from tests.kit.planted.bugs import PlantedBug, register_bug, replaced
from tests.kit.table_models import DeltaModel, IcebergModel, TableModel

__all__: list[str] = []

# A replacement has the arguments of what it replaces, wanted or not, and reaches what is private.


def _bug(
    name: str,
    description: str,
    owner: Any,
    attribute: str,
    wrong: Any,
    suite: str,
    *scenarios: str,
    site: str = "",
) -> None:
    real = f"{getattr(owner, '__module__', owner.__name__)}.{getattr(owner, '__qualname__', '')}.{attribute}"
    register_bug(
        PlantedBug(
            name=f"table_{name}",
            description=description,
            site=site or real,
            plant=lambda: replaced(owner, attribute, wrong),
            scenarios=tuple(f"table_{scenario}" for scenario in scenarios),
            suites=(suite,),
        )
    )


def _without_look(state: TableState, token: TableToken, name: str) -> CommitStep:
    return CommitStep.CREATE if state.identity is None else CommitStep.COMMIT


def _its_own_alone(state: TableState, token: TableToken, name: str) -> CommitStep:
    is_there = state.committed == token.checkpoint_id
    return CommitStep.NOTHING if is_there else _without_look(state, token, name)


_commit_once = rule_module.commit_once


def _believing(outcome: Outcome) -> Callable[[Table, TableChange, Environment], TableState]:
    def commit_once(table: Table, change: TableChange, environment: Environment) -> TableState:
        attempt = table.attempt

        def believed(change: TableChange, state: TableState) -> Attempt:
            made = attempt(change, state)
            return Attempt(outcome=Outcome.DONE) if made.outcome is outcome else made

        table.attempt = believed  # type: ignore[method-assign]
        return _commit_once(table, change, environment)

    return commit_once


_publish = MicroBatchCoordinator._publish
_commit = MicroBatchCoordinator._commit
_commit_table = TableCommits._commit


def _marked_first(self: MicroBatchCoordinator[Any], record: Checkpoint) -> None:
    self._checkpoints.mark_published(record.checkpoint_id)
    _publish(self, record)


def _committed_first(self: MicroBatchCoordinator[Any], record: Checkpoint) -> dict[str, float]:
    self._tables.commit(record)
    return _commit(self, record)


def _published_always(self: CheckpointStore, checkpoint: Checkpoint) -> bool:
    return True


def _as_before(record: Checkpoint) -> dict[str, TableRecord]:
    return records_module.table_records(record)


def _of_the_process(
    self: TableCommits,
    record: Checkpoint,
    operator: str,
    known: TableRecord,
    files: tuple[NewFile, ...],
    rows: tuple[RowsHandle, ...],
) -> None:
    app = f"{known.app}-{self._environment.ids.new_id()}"
    token = TableToken(app=app, checkpoint_id=record.checkpoint_id)
    change = TableChange(
        token=token,
        created_at=record.created_at,
        files=files,
        rows=lambda: commits_module.load_rows(self._root, rows, self._copies),
    )
    _commit_once(self._table(operator), change, self._environment)


def _first_alone(
    self: TableCommits,
    record: Checkpoint,
    operator: str,
    known: TableRecord,
    files: tuple[NewFile, ...],
    rows: tuple[RowsHandle, ...],
) -> None:
    _commit_table(self, record, operator, known, files[:1], rows[:1])


_move = SqlTable._move


def _token_by_itself(self: SqlTable, session: Session, token: TableToken) -> bool:
    moved = _move(self, session, token)
    session.commit()
    session.run("BEGIN")
    return moved


def _token_anyhow(self: SqlTable, session: Session, token: TableToken) -> bool:
    session.run(f"INSERT OR REPLACE INTO {self._tokens} VALUES (?, ?, 't')", token.app, token.checkpoint_id)
    return True


def _older_stays(key: Sequence[str], columns: Sequence[str]) -> str:
    return f" ON CONFLICT ({', '.join(map(quoted, key))}) DO NOTHING"


def _on_a_look_of_its_own(model: type[TableModel]) -> Callable[..., Attempt]:
    real = model.attempt

    def attempt(self: TableModel, change: TableChange, state: TableState) -> Attempt:
        return real(self, change, replace(state, snapshot=self.look("nobody").snapshot))

    return attempt


_delta_commit = DeltaModel._commit


def _without_a_token(
    self: DeltaModel, change: TableChange, state: TableState, added: list[tuple[str, list[list[Any]]]]
) -> Attempt:
    nobody = replace(change, token=replace(change.token, app="nobody"))
    return _delta_commit(self, nobody, state, added)


def _on_what_is_there(self: IcebergModel, looked: Any, now: Any, app: str) -> bool:
    return True


_bug(
    "never_looked_at",
    "whoever comes again commits again",
    rule_module,
    "next_commit_step",
    _without_look,
    "sim",
    "iceberg",
)
_bug(
    "knows_its_own_commit_alone",
    "a driver whose successors have gone on takes its commit for not made",
    rule_module,
    "next_commit_step",
    _its_own_alone,
    "zombies",
    "iceberg",
)
_bug(
    "unknown_is_done",
    "an attempt whose answer was lost counts as done",
    commits_module,
    "commit_once",
    _believing(Outcome.UNKNOWN),
    "sim",
    "delta",
)
_bug(
    "not_done_is_done",
    "an attempt that another writer was faster than counts as done",
    commits_module,
    "commit_once",
    _believing(Outcome.NOT_DONE),
    "sim",
    "iceberg",
)
_bug(
    "marked_first",
    "a checkpoint counts as published before its table has its rows",
    MicroBatchCoordinator,
    "_publish",
    _marked_first,
    "single",
    "database",
)
_bug(
    "committed_before_the_record",
    "rows are in the table before the record that decides them",
    MicroBatchCoordinator,
    "_commit",
    _committed_first,
    "single",
    "database",
)
_bug(
    "nothing_is_left_to_do_at_a_start",
    "who starts leaves the commit of the newest record to somebody else",
    CheckpointStore,
    "is_published",
    _published_always,
    "single",
    "database",
)
_bug(
    "newest_commit_forgotten",
    "a record remembers the commits before the one before it",
    commits_module,
    "following_tables",
    _as_before,
    "single",
    "database",
)
_bug(
    "newest_commit_forgotten_at_the_end",
    "the same of a record that finishes files",
    open_files_module,
    "following_tables",
    _as_before,
    "single",
    "delta",
)
_bug(
    "application_of_the_process",
    "each process commits under a name of its own",
    TableCommits,
    "_commit",
    _of_the_process,
    "single",
    "database",
)
_bug(
    "first_of_several",
    "of the files or rows of a checkpoint only the first are committed",
    TableCommits,
    "_commit",
    _first_alone,
    "single",
    "iceberg",
)
_bug(
    "token_without_rows",
    "the token of a database is committed before the rows",
    SqlTable,
    "_move",
    _token_by_itself,
    "single",
    "database_upsert",
)
_bug(
    "token_wherever_it_was",
    "the token of a database is set, whatever it was",
    SqlTable,
    "_move",
    _token_anyhow,
    "zombies",
    "database",
)
_bug(
    "upsert_keeps_older_rows",
    "a row whose key is there is left out",
    sqlite_module,
    "on_conflict",
    _older_stays,
    "single",
    "database_upsert",
)
_bug(
    "delta_commits_on_a_look_of_its_own",
    "an attempt begins from the newest log, not from the one that was looked at",
    DeltaModel,
    "attempt",
    _on_a_look_of_its_own(DeltaModel),
    "zombies",
    "delta",
    site="stateline.tables.delta.DeltaLog.attempt",
)
_bug(
    "delta_commits_without_token",
    "log entries do not say whose they are",
    DeltaModel,
    "_commit",
    _without_a_token,
    "single",
    "delta",
    site="stateline.tables.delta.DeltaLog.attempt",
)
_bug(
    "iceberg_requires_nothing",
    "a commit that was refused is made on the newest snapshot, as the library's own retry does",
    IcebergModel,
    "_holds",
    _on_what_is_there,
    "zombies",
    "iceberg",
    site="stateline.tables.iceberg.IcebergCommits.attempt",
)
