"""Commits into tables: the step after a record is decided and its files are published.

Every commit is a pure function of the record: :mod:`stateline.checkpoint.table_records` says what it remembers, and
:mod:`stateline.tables` how a table takes it once. So it is repeated at each start until the record is marked, by
whichever driver comes. A checkpoint without rows for a table makes no commit.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

import pyarrow as pa
from msgspec.structs import replace

from stateline.blob import BlobStore
from stateline.changelog.host_cache import HostCache
from stateline.checkpoint import Checkpoint
from stateline.checkpoint.table_records import TableRecord, following_tables, table_properties, table_records
from stateline.environment import Environment
from stateline.errors import ErrorKind, InvalidInputError
from stateline.file_columns import changed_columns
from stateline.files.pending import load_rows
from stateline.handles import FinishedFile, RowsHandle
from stateline.pipeline.graph import Graph, OperatorPlan
from stateline.pipeline.messages import SubtaskResult
from stateline.pipeline.removals import rows_that_come, rows_that_go
from stateline.tables import (
    NewFile,
    Table,
    TableChange,
    TableState,
    TableTarget,
    TableToken,
    are_distinct,
    canonical_keys,
    check_kept,
    check_keys,
    check_token,
    commit_once,
    joined_rows,
)
from stateline.tables import open_table as _open_table

__all__ = ["TableCommits", "change_of", "check_tables", "new_file", "target_of"]

_SEVERAL: Final = 2
_OTHER: Final = "Start the program that made the checkpoint, or start a new query with a new root and a new table"


class TableCommits:
    """The tables of one driver. They are open while they are needed: nothing is held between two calls.

    Args:
        graph: The operators, with their tables.
        root: Store of the records, and of rows that wait.
        outputs: Stores of the outputs by operator.
        environment: Clock and ids.
        copies: The copies of this host; ``None`` for none.
    """

    def __init__(
        self,
        graph: Graph,
        root: BlobStore,
        outputs: Mapping[str, BlobStore],
        environment: Environment,
        copies: HostCache | None = None,
    ) -> None:
        self._operators = {each.name: each for each in graph.operators if each.table is not None}
        self._root = root
        self._outputs = outputs
        self._environment = environment
        self._copies = copies
        self._open: dict[str, Table] = {}
        self._seen: dict[str, TableState] = {}

    def takes_rows(self, operator: str) -> bool:
        """Whether the rows that an operator delivers go into a table."""
        table = self._operators[operator].table if operator in self._operators else None
        return table is not None and not table.takes_files

    def check(self, newest: Checkpoint | None) -> None:
        """Checks, before anything runs, that the tables can take the rows, and have those that they should have.

        Args:
            newest: The newest record, published.

        Raises:
            InvalidInputError: A table cannot, has not, or is another one.
            UnavailableError: It cannot be reached.
        """
        remembered = {} if newest is None else following_tables(newest)
        with closing(self):
            for name in self._operators:
                known = remembered.get(name)
                table = self._table(name)
                state = table.look("" if known is None else known.app)
                table.check(state)
                self._check_ids(name, state)
                if known is not None and not _is_ahead(state, known):
                    check_token(state, known.committed, known.identity, table.name)
                    self._seen[name] = check_kept(table, state, known.app, known.checked)

    def checked(self, record: Checkpoint, newest: Checkpoint | None, results: Sequence[SubtaskResult]) -> Checkpoint:
        """A record with what it remembers of its tables, before it decides that they get its rows.

        A table that is missing is made, and one that is new to the query, or gets other columns, is compared.

        Args:
            record: The record, with the rows where they will be.
            newest: The one before it.
            results: Those of all subtasks.

        Raises:
            InvalidInputError: A table cannot take the rows, or two subtasks have rows of one key for an upsert.
            UnavailableError: It cannot be reached.
        """
        self._check_keys(record, results)
        with closing(self):
            return replace(record, properties=record.properties | self._properties(newest))

    def _properties(self, newest: Checkpoint | None) -> dict[str, str]:
        remembered = {} if newest is None else following_tables(newest)
        made: dict[str, TableRecord] = {}
        for name, operator in self._operators.items():
            known = remembered.get(name)
            described = _described(operator)
            if known is None or known.columns != described["columns"]:
                self._prepare(name, known)
            if name in self._seen:
                self._check_ids(name, self._seen[name])
            if known is None:
                app = f"stateline-{self._environment.ids.new_id()}-{name}"
                known = TableRecord(format="", target="", app=app)
            made[name] = replace(self._recognised(name, known), **described)
        return table_properties(made)

    def _check_keys(self, record: Checkpoint, results: Sequence[SubtaskResult]) -> None:
        """Checks that no two subtasks have rows of one key for an upsert: each has checked its own.

        Their hashes are compared here, eight bytes for a row; where two are equal, or there are none, the keys
        themselves are.
        """
        for delivery in record.deliveries:
            plan = self._operators.get(delivery.operator)
            if plan is None or plan.table is None or not plan.table.key or len(delivery.rows) < _SEVERAL:
                continue
            hashes = [item.key_hashes for item in results if item.operator == delivery.operator and item.delivery]
            if not are_distinct(hashes):
                loaded = load_rows(self._root, delivery.rows, self._copies)
                keys = (
                    (rows_that_come(rows) if plan.table.deletes else rows).select(plan.table.key) for rows in loaded
                )
                check_keys(joined_rows(keys), plan.table.key, f"operator {delivery.operator}")

    def commit(self, record: Checkpoint) -> None:
        """Commits the rows of a record, whose files are published, into their tables. Idempotent.

        Raises:
            InvalidInputError: A table is another one, was rolled back, or cannot take the rows; or the plan has no such
                table.
            UnavailableError: A table cannot be reached.
        """
        remembered = table_records(record)
        with closing(self):
            for output in record.outputs:
                known = remembered.get(output.operator)
                if output.finished and known is not None and known.takes_files:
                    self._commit(record, output.operator, known, tuple(map(new_file, output.finished)), ())
            for delivery in record.deliveries:
                known = remembered.get(delivery.operator)
                if known is not None and not known.takes_files:
                    self._commit(record, delivery.operator, known, (), delivery.rows)
                elif self.takes_rows(delivery.operator):
                    raise _refused(delivery.operator, "the newest checkpoint has rows that wait for a function", _OTHER)

    def committed(self, record: Checkpoint) -> set[str]:
        """The operators whose tables of files have the rows of a record, or of a later one, already.

        Raises:
            UnavailableError: A table cannot be reached.
        """
        found = set()
        with closing(self):
            for operator, known in table_records(record).items():
                state = self._table(operator).look(known.app) if known.takes_files else None
                if state is None or state.committed is None or known.identity not in ("", state.identity):
                    continue
                if state.committed >= record.checkpoint_id:
                    found.add(operator)
        return found

    def close(self) -> None:
        """Gives connections back. Idempotent."""
        while self._open:
            self._open.popitem()[1].close()

    def _commit(
        self,
        record: Checkpoint,
        operator: str,
        known: TableRecord,
        files: tuple[NewFile, ...],
        rows: tuple[RowsHandle, ...],
    ) -> None:
        change = change_of(record, known, files, lambda: load_rows(self._root, rows, self._copies))
        self._seen[operator] = commit_once(self._table(operator), change, self._environment)

    def _table(self, operator: str) -> Table:
        if operator not in self._operators:
            raise _refused(operator, "the newest checkpoint has rows for a table, and the program names none", _OTHER)
        if operator not in self._open:
            plan = self._operators[operator]
            if plan.table is None:
                raise _refused(operator, "the program names no table", _OTHER)
            store = self._outputs.get(operator)
            self._open[operator] = _open_table(
                plan.table, schema=_rows_of(plan), store=store, environment=self._environment
            )
        return self._open[operator]

    def _prepare(self, operator: str, known: TableRecord | None) -> None:
        """Compares the table with the rows, before any are decided; the first time it is made, where it is missing."""
        table = self._table(operator)
        state = table.look("" if known is None else known.app)
        if known is None and state.identity is None:
            table.create()
            state = table.look("")
        table.check(state)

    def _check_ids(self, operator: str, state: TableState) -> None:
        """Refuses rows for columns that the table has dropped or renamed since the files were planned.

        Files carry the ids of the table's columns, so the rows would be in other columns, or in none.
        """
        plan = self._operators[operator]
        if plan.output is None or not state.file_columns:
            return
        names = [] if plan.output_schema is None else plan.output.named(plan.output_schema).names
        changed = changed_columns(names, plan.output.file_columns, state.file_columns)
        if changed:
            raise _refused(
                operator,
                f"the table has dropped or renamed the columns {changed} while the query ran",
                "Start the program again: it reads the columns of the table when it starts",
            )

    def _recognised(self, operator: str, known: TableRecord) -> TableRecord:
        """A table with the identity and the version that it was seen to have after its newest commit."""
        if known.committed is None:
            return known
        if operator not in self._seen and not known.identity:
            self._seen[operator] = self._table(operator).look(known.app)
        state = self._seen.get(operator)
        if state is None or state.committed != known.committed:
            return known
        return replace(known, identity=state.identity or "", version=state.version, checked=state.checked)


def check_tables(graph: Graph, newest: Checkpoint) -> None:
    """Checks that a program writes into the tables that the records are about: a pure rule.

    Raises:
        InvalidInputError: It names another table, none, or one where plain files were.
    """
    remembered = table_records(newest)
    for operator in graph.operators:
        known, wanted = remembered.get(operator.name), operator.table
        had_files = any(output.operator == operator.name for output in newest.outputs)
        if known is None:
            if wanted is not None and wanted.takes_files and had_files:
                reason = f"expected plain files as in the checkpoint, got a {wanted.format} table"
                raise _refused(
                    operator.name, reason, "The files that are there would not be in the table: use new places"
                )
            continue
        if wanted is None:
            reason = f"expected the {known.format} table {known.target} of the checkpoint, got none"
            raise _refused(operator.name, reason, _OTHER)
        ours = _described(operator)
        for name in ("format", "target"):
            if ours[name] != getattr(known, name):
                reason = f"expected the {name} {getattr(known, name)!r} of the checkpoint, got {ours[name]!r}"
                raise _refused(operator.name, reason, _OTHER)
        if wanted.takes_files != known.takes_files:
            raise _refused(
                operator.name, f"expected the mode {known.mode} of the checkpoint, got {wanted.mode}", _OTHER
            )
    for name in remembered.keys() - {operator.name for operator in graph.operators}:
        raise _refused(
            name, f"expected the {remembered[name].format} table of the checkpoint, got no such operator", _OTHER
        )


def change_of(
    record: Checkpoint,
    known: TableRecord,
    files: tuple[NewFile, ...],
    loaded: Callable[[], Iterator[pa.Table]],
) -> TableChange:
    """The commit of a record into one table: a pure function of the record.

    Args:
        record: The record.
        known: What it remembers of the table.
        files: Its files, for a table that takes files.
        loaded: Reads its rows, for a table that takes rows.
    """
    token = TableToken(
        app=known.app,
        checkpoint_id=record.checkpoint_id,
        previous=known.committed,
        identity=known.identity,
        checked=known.checked,
    )

    def canonical() -> Iterator[pa.Table]:
        # Records of earlier versions may have keys of both signs of zero.
        return (canonical_keys(each, known.key) for each in loaded())

    change = TableChange(token=token, created_at=record.created_at, files=files, rows=canonical)
    if not known.deletes:
        return change
    return dataclasses.replace(
        change,
        rows=lambda: map(rows_that_come, canonical()),
        gone=lambda: (rows_that_go(each, known.key) for each in canonical()),
    )


def target_of(known: TableRecord, url: str = "", options: Mapping[str, str] | None = None) -> TableTarget:
    """A table as a user would name it, from what a record remembers.

    Args:
        known: What the record remembers.
        url: URL of the output, where the table has no other name.
        options: How it is reached: no record has that.
    """
    return TableTarget(
        format=known.format,
        target=known.target or url or known.format,
        mode="upsert" if known.mode == "upsert" else "append",
        key=known.key,
        deletes=known.deletes,
        partition_by=known.partition_by,
        options=dict(options or {}),
    )


def _described(operator: OperatorPlan) -> dict[str, Any]:
    """What a record remembers of a table that a program names."""
    table = operator.table
    if table is None:
        return {}
    # Whose URL is that of the output moves with the output.
    is_output = operator.output is not None and table.format == "delta"
    target = "" if is_output else table.target
    return {
        "format": table.format,
        "target": target,
        "mode": table.mode,
        "key": table.key,
        "deletes": table.deletes,
        "partition_by": table.partition_by,
        "takes_files": table.takes_files,
        "columns": _digest(_rows_of(operator)),
    }


def _is_ahead(state: TableState, known: TableRecord) -> bool:
    """Whether another driver has gone on with the table: the record of this one will tell who may go on."""
    return state.committed is not None and (known.committed is None or state.committed > known.committed)


def _digest(schema: pa.Schema | None) -> str:
    return "" if schema is None else hashlib.sha256(schema.remove_metadata().serialize().to_pybytes()).hexdigest()[:16]


def _rows_of(operator: OperatorPlan) -> pa.Schema | None:
    schema = operator.output_schema
    return schema if schema is None or operator.output is None else operator.output.named(schema)


def new_file(file: FinishedFile) -> NewFile:
    """A file of a record, as a table takes it."""
    return NewFile(name=file.commit.target, length=file.commit.length, rows=file.rows)


def _refused(operator: str, reason: str, hint: str) -> InvalidInputError:
    return InvalidInputError(
        reason, operation="start", subject=f"operator {operator!r}", hint=hint, kind=ErrorKind.SCHEMA_MISMATCH
    )
