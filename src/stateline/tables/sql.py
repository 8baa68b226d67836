"""Tables of databases: rows and token in one transaction. What SQLite and PostgreSQL share.

The token of an application is one row of :data:`TOKENS`, a table of ours beside the user's: so it is bounded by the
number of operators that ever wrote there. The row moves from the checkpoint before to this one, in the transaction of
the rows: a driver that comes late finds another number there, changes nothing, and rolls back.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa

from stateline.errors import AccessDeniedError, InvalidInputError, UnavailableError
from stateline.redaction import redacted
from stateline.tables.api import Attempt, Outcome, Table, TableChange, TableState, TableToken
from stateline.tables.columns import plain_schema, refused_columns
from stateline.tables.rows import check_keys, joined_rows
from stateline.tables.targets import TableTarget

__all__ = [
    "TOKENS",
    "DatabaseError",
    "Session",
    "SqlColumn",
    "SqlTable",
    "fitting_names",
    "on_conflict",
    "quoted",
]

T = TypeVar("T")

TOKENS: Final = "stateline_commits"
"""Columns: ``app`` (primary key), ``checkpoint_id``, ``target``."""


@dataclass(frozen=True, slots=True)
class SqlColumn:
    """A column of a table in a database.

    Attributes:
        name: As the database spells it.
        kind: The database's own type, in lower case.
        strict: Whether it takes no nulls.
        filled: Whether the database fills it in where a row is without it.
        computed: Whether nobody can write it.
    """

    name: str
    kind: str
    strict: bool = False
    filled: bool = False
    computed: bool = False


class DatabaseError(Exception):
    """What a database said.

    Attributes:
        outcome: What is known of the transaction; ``None`` if the rows or the rights are at fault, for good.
        denied: Whether rights are missing.
    """

    def __init__(self, message: str, outcome: Outcome | None, *, denied: bool = False) -> None:
        super().__init__(redacted(message))
        self.outcome = outcome
        self.denied = denied


class Session(Protocol):
    """One connection with one transaction. Its methods raise :class:`DatabaseError`."""

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Runs one statement, and returns its rows. ``?`` stands for a value."""
        ...

    def load(self, rows: pa.Table, columns: Sequence[str]) -> None:
        """Adds rows to the table."""
        ...

    def merge(self, rows: pa.Table, columns: Sequence[str]) -> None:
        """Adds rows, or replaces those of the same key."""
        ...

    def remove(self, keys: pa.Table, columns: Sequence[str]) -> None:
        """Removes the rows of these keys."""
        ...

    def commit(self) -> None:
        """Ends the transaction, with all that it did."""
        ...

    def close(self) -> None:
        """Ends the transaction, if it has not, without anything that it did."""
        ...


class SqlTable(Table):
    """A table of a database.

    Args:
        target: Which one.
        schema: Columns of the rows; ``None`` if unknown.
    """

    token_first: bool = True
    """Whether the token moves before the rows go in: then a late driver does no work, and holds the token meanwhile."""

    def __init__(self, target: TableTarget, schema: pa.Schema | None) -> None:
        self._target = target
        self._schema = None if schema is None else plain_schema(schema)
        if self._schema is not None:
            missing = [column for column in target.key if column not in self._schema.names]
            if missing:
                raise refused_columns(f"has no key {missing} in its rows", self.name, f"Choose of {self._schema.names}")
            _check_names(self._schema.names, self.name)

    @property
    def name(self) -> str:
        return f"{self._target.format} {self._target.target}"

    def look(self, app: str) -> TableState:
        def asked(session: Session | None) -> TableState:
            if session is None:
                return TableState(identity=None, committed=None)
            return TableState(identity="" if self._columns(session) else None, committed=self._committed(session, app))

        return self._ask(asked)

    def create(self) -> None:
        if self._schema is None:
            raise refused_columns(
                "is not there, and nobody knows its columns", self.name, "Start the program, which knows them"
            )
        try:
            with self._session(may_create=True) as session:
                if session is not None:
                    session.run(self._creation(self._schema))
                    session.commit()
        except DatabaseError as error:
            if error.outcome is None:
                raise self._refused(error) from error
            # Somebody was faster, or the database was busy: look again.

    def check(self, state: TableState) -> None:
        schema = self._schema
        if state.identity is not None and schema is not None:
            self._ask(lambda session: None if session is None else self._fitting(session, schema, decided=False))

    def attempt(self, change: TableChange, state: TableState) -> Attempt:  # noqa: ARG002 - the token row is the tie
        rows = joined_rows(change.rows(), self._schema)
        rows = rows.cast(plain_schema(rows.schema))
        check_keys(rows, self._target.key, self.name)
        gone = joined_rows(change.gone())
        is_committing = False
        try:
            with self._session(may_create=True) as session:
                if session is None:
                    return Attempt(outcome=Outcome.NOT_DONE)
                columns = self._fitting(session, rows.schema, decided=True)
                if not self._has_tokens(session):  # Who may write into it need not have the right to create it.
                    session.run(f"CREATE TABLE IF NOT EXISTS {self._tokens} ({_COLUMNS_OF_TOKENS})")
                if self.token_first and not self._move(session, change.token):
                    return Attempt(outcome=Outcome.NOT_DONE)
                if gone.num_rows:
                    names = dict(zip(rows.column_names, columns, strict=True))
                    session.remove(
                        gone.cast(plain_schema(gone.schema)), [names[column] for column in gone.column_names]
                    )
                if self._target.key:
                    session.merge(rows, columns)
                else:
                    session.load(rows, columns)
                if not self.token_first and not self._move(session, change.token):
                    return Attempt(outcome=Outcome.NOT_DONE)
                is_committing = True
                session.commit()
        except DatabaseError as error:
            if error.outcome is None:
                raise self._refused(error) from error
            return Attempt(outcome=Outcome.UNKNOWN if is_committing else error.outcome, cause=error)
        return Attempt(outcome=Outcome.DONE)

    def set_token(self, app: str, checkpoint_id: int | None, state: TableState) -> Attempt:
        is_committing = False
        try:
            with self._session(may_create=False) as session:
                if session is None:
                    return Attempt(outcome=Outcome.NOT_DONE)
                if not self._has_tokens(session):
                    session.run(f"CREATE TABLE IF NOT EXISTS {self._tokens} ({_COLUMNS_OF_TOKENS})")
                if checkpoint_id is None:
                    is_moved = state.committed is None or self._remove_token(session, app, state.committed)
                else:
                    token = TableToken(app=app, checkpoint_id=checkpoint_id, previous=state.committed)
                    is_moved = self._move(session, token)
                if not is_moved:
                    return Attempt(outcome=Outcome.NOT_DONE)
                is_committing = True
                session.commit()
        except DatabaseError as error:
            if error.outcome is None:
                raise self._refused(error) from error
            return Attempt(outcome=Outcome.UNKNOWN if is_committing else error.outcome, cause=error)
        return Attempt(outcome=Outcome.DONE)

    def close(self) -> None:
        """Nothing is held open."""

    # -- what differs -------------------------------------------------------------------------------------------------

    @abstractmethod
    def _open(self, *, may_create: bool) -> Session | None:
        """A connection; ``None`` where there is no database, and none may be made."""

    @abstractmethod
    def _columns(self, session: Session) -> list[SqlColumn]:
        """The columns of the table; none where there is no table."""

    @abstractmethod
    def _creation(self, schema: pa.Schema) -> str:
        """The statement that creates the table."""

    @abstractmethod
    def _fitting(self, session: Session, schema: pa.Schema, *, decided: bool) -> list[str]:
        """The table's names of the rows' columns.

        Args:
            session: A session.
            schema: Columns of the rows.
            decided: Whether the rows are: then the database itself looks for nulls.

        Raises:
            InvalidInputError: The table cannot take them.
        """

    @property
    @abstractmethod
    def _tokens(self) -> str:
        """The token table, quoted."""

    @abstractmethod
    def _has_tokens(self, session: Session) -> bool:
        """Whether there is a token table."""

    # -- tokens -------------------------------------------------------------------------------------------------------

    def _committed(self, session: Session, app: str) -> int | None:
        if not self._has_tokens(session):
            return None
        found = session.run(f"SELECT checkpoint_id FROM {self._tokens} WHERE app = ?", app)  # noqa: S608 - our name  # nosec B608
        return int(found[0][0]) if found else None

    def _move(self, session: Session, token: TableToken) -> bool:
        """Moves the token of an application to this checkpoint; whether it was where this driver believed it to be."""
        if token.previous is None:
            statement = (
                f"INSERT INTO {self._tokens} (app, checkpoint_id, target) VALUES (?, ?, ?) "  # noqa: S608  # nosec B608
                "ON CONFLICT (app) DO NOTHING RETURNING checkpoint_id"
            )
            return bool(session.run(statement, token.app, token.checkpoint_id, self._target.target))
        statement = (
            f"UPDATE {self._tokens} SET checkpoint_id = ? "  # noqa: S608  # nosec B608
            "WHERE app = ? AND checkpoint_id = ? RETURNING checkpoint_id"
        )
        return bool(session.run(statement, token.checkpoint_id, token.app, token.previous))

    def _remove_token(self, session: Session, app: str, previous: int) -> bool:
        statement = f"DELETE FROM {self._tokens} WHERE app = ? AND checkpoint_id = ? RETURNING checkpoint_id"  # noqa: S608  # nosec B608
        return bool(session.run(statement, app, previous))

    def _ask(self, question: Callable[[Session | None], T]) -> T:
        """An answer that nothing is committed for; on a second connection where the first one was lost.

        A server ends the connection of a driver that was frozen while it asked.
        """
        may_ask_again = True
        while True:
            try:
                with self._session(may_create=False) as session:
                    return question(session)
            except DatabaseError as error:
                if error.outcome is None:
                    raise self._refused(error) from error
                if not may_ask_again:
                    raise self._unavailable(error) from error
                may_ask_again = False

    @contextmanager
    def _session(self, *, may_create: bool) -> Iterator[Session | None]:
        session = self._open(may_create=may_create)
        try:
            yield session
        finally:
            if session is not None:
                session.close()

    def _refused(self, error: DatabaseError) -> InvalidInputError | AccessDeniedError:
        hint = "Mend the table, its rights or its constraints: the checkpoint stands, and the next start goes on"
        kind = AccessDeniedError if error.denied else InvalidInputError
        return kind(f"the database refuses ({error})", operation="commit", subject=self.name, hint=hint)

    def _unavailable(self, error: DatabaseError) -> UnavailableError:
        hint = "Check the place and its options; no row is lost, and the next start goes on"
        return UnavailableError(f"cannot be reached ({error})", operation="commit", subject=self.name, hint=hint)


_COLUMNS_OF_TOKENS: Final = "app TEXT PRIMARY KEY, checkpoint_id BIGINT NOT NULL, target TEXT NOT NULL"


def _check_names(names: Sequence[str], name: str) -> None:
    """Refuse columns that a database cannot tell apart."""
    seen: dict[str, str] = {}
    for column in names:
        other = seen.setdefault(column.lower(), column)
        if other is not column:
            reason = f"cannot tell columns {other!r} and {column!r} apart: databases ignore case"
            raise refused_columns(reason, name, "Rename one of them")


def quoted(name: str) -> str:
    """A name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def on_conflict(key: Sequence[str], columns: Sequence[str]) -> str:
    """What an insert does with a row whose key is there."""
    ours = {column.lower() for column in key}
    rest = [f"{quoted(name)} = excluded.{quoted(name)}" for name in columns if name.lower() not in ours]
    action = f"UPDATE SET {', '.join(rest)}" if rest else "NOTHING"  # nosec B608 - names are quoted
    return f" ON CONFLICT ({', '.join(map(quoted, key))}) DO {action}"


def fitting_names(
    there: Sequence[SqlColumn], schema: pa.Schema, name: str, key: Sequence[str] = (), *, decided: bool
) -> list[str]:
    """The names by which a table has the columns of the rows; case does not matter to databases.

    Args:
        there: The columns of the table.
        schema: Those of the rows.
        name: What errors call the table.
        key: Columns of the rows that have no nulls, whatever their schema says: see ``check_keys``.
        decided: Whether the rows are decided already, so that only the table may say no.

    Raises:
        InvalidInputError: A column is not there, or cannot be written, or needs a value that the rows have not.
    """
    found = {column.name.lower(): column for column in there}
    for column in schema.names:
        other = found.get(column.lower())
        if other is None or other.computed:
            reason = f"has no column {column!r}" if other is None else f"computes column {column!r} itself"
            raise refused_columns(f"{reason}: it has {[each.name for each in there]}", name, "Change the table")
        if other.strict and schema.field(column).nullable and column not in key and not decided:
            reason = f"takes no nulls in column {column!r}, and the rows may have some"
            raise refused_columns(
                reason, name, "Let the table take nulls there, or make the column NOT NULL in the rows"
            )
    given = {column.lower() for column in schema.names}
    missing = [each.name for each in there if each.strict and not each.filled and each.name.lower() not in given]
    if missing:
        raise refused_columns(f"needs values for {missing}, and the rows do not give any", name, "Add them to the rows")
    return [found[column.lower()].name for column in schema.names]
