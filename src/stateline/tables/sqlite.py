"""A table of SQLite, by the module of the standard library.

Facts:
- ``BEGIN IMMEDIATE`` takes the only lock of writers; who waits for it longer than the busy timeout has done nothing.
- Types are not enforced, so each type of Arrow has one form: booleans are 0 and 1; decimals, dates, times and
  timestamps are texts that SQLite's own functions read, with ``Z`` where they have a zone; nested values have none.
- NaN would become null. It is refused before the checkpoint is decided.
- Not for network file systems: their locks are none.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from stateline.blob import BlobStore
from stateline.blob.urls import split_local_url
from stateline.environment import Environment
from stateline.errors import InvalidInputError
from stateline.options import check_known, parse_duration, plain_options
from stateline.tables.api import Outcome
from stateline.tables.columns import check_kinds, plain_type, refused_columns
from stateline.tables.sql import (
    TOKENS,
    DatabaseError,
    Session,
    SqlColumn,
    SqlTable,
    fitting_names,
    on_conflict,
    quoted,
)
from stateline.tables.targets import TableTarget

__all__ = ["SqliteTable", "open_table", "sqlite_path"]

_OPTIONS: Final = ("uri", "busy_timeout")
_AFFINITIES: Final = (
    (("int",), "INTEGER"),
    (("char", "clob", "text"), "TEXT"),
    (("blob",), "BLOB"),
    (("real", "floa", "doub"), "REAL"),
)
"""What SQLite makes of the type that a column was declared with, by what occurs in its name; else NUMERIC."""

_KEPT_BY: Final = {"INTEGER": ("INTEGER", "NUMERIC"), "REAL": ("REAL",), "TEXT": ("TEXT",), "BLOB": ("BLOB",)}
"""By the type of a value: the affinities that keep it. A column without a type keeps every value."""

_SCHEME: Final = re.compile(r"\w+://")
_IS_STRICT: Final = re.compile(r"\)[^)]*\bstrict\b[^)]*\Z", re.IGNORECASE)
_TYPES: Final[Sequence[tuple[Callable[[pa.DataType], bool], str]]] = (
    (pa.types.is_boolean, "INTEGER"),
    (pa.types.is_signed_integer, "INTEGER"),
    (lambda kind: bool(pa.types.is_float32(kind) or pa.types.is_float64(kind)), "REAL"),
    (pa.types.is_string, "TEXT"),
    (pa.types.is_binary, "BLOB"),
    (pa.types.is_decimal128, "TEXT"),
    (pa.types.is_date32, "TEXT"),
    (pa.types.is_time, "TEXT"),
    (pa.types.is_timestamp, "TEXT"),
)
_AS_TEXT: Final = (pa.types.is_decimal, pa.types.is_date, pa.types.is_time, pa.types.is_timestamp)
_CHUNK_ROWS: Final = 65_536


def open_table(
    target: TableTarget,
    schema: pa.Schema | None,
    store: BlobStore | None,  # noqa: ARG001 - a database has no files of ours
    environment: Environment | None,  # noqa: ARG001
) -> SqliteTable:
    """The table of a target; see :func:`stateline.tables.open_table`."""
    return SqliteTable(target, schema)


def sqlite_path(uri: str) -> str:
    """The absolute path of a SQLite database, from the option ``uri`` of a table.

    Raises:
        InvalidInputError: It is missing, or has options of SQLite's own behind the path.
    """
    path = split_local_url(uri) if uri.startswith("file:") else uri.removeprefix("sqlite:///")
    if not path.strip() or path == ":memory:" or _SCHEME.match(path):
        raise InvalidInputError(
            f'write_table sqlite needs options={{"uri": "sqlite:////folder/file.db"}}, got {uri!r}',
            operation="write_table",
            subject="option uri",
            hint="Give sqlite:/// and the absolute path of a file, or the path itself",
        )
    return os.path.abspath(path)


class SqliteTable(SqlTable):
    """A table of a SQLite file."""

    def __init__(self, target: TableTarget, schema: pa.Schema | None) -> None:
        super().__init__(target, schema)
        options = plain_options(target.options)
        check_known(options, _OPTIONS)
        self._busy_seconds = parse_duration(options.pop("busy_timeout", "30s"), "busy_timeout")
        self._path = Path(sqlite_path(options.pop("uri", "")))
        if self._target.target.lower().startswith("sqlite_") or self._target.target.lower() == TOKENS:
            raise InvalidInputError(
                f"cannot be a table of yours, got {self._target.target!r}",
                operation="write_table",
                subject="target",
                hint="Choose a name that does not begin with sqlite_, and is not the table of Stateline's own",
            )
        if self._schema is not None:
            check_kinds(self._schema, _holds, "table of SQLite", self.name, nested=False)

    def _open(self, *, may_create: bool) -> Session | None:
        if not may_create and not self._path.exists():
            return None
        return _SqliteSession(
            self._path, self._busy_seconds, self._target, "BEGIN IMMEDIATE" if may_create else "BEGIN"
        )

    def _columns(self, session: Session) -> list[SqlColumn]:
        found = session.run(f"PRAGMA table_xinfo({quoted(self._target.target)})")
        return [
            SqlColumn(name, kind.lower(), bool(not_null), filled=default is not None, computed=hidden > 1)
            for _, name, kind, not_null, default, _, hidden in found
        ]

    def _creation(self, schema: pa.Schema) -> str:
        columns = [
            f"{quoted(column.name)} {_type_of(column.type)}{'' if column.nullable else ' NOT NULL'}"
            for column in schema
        ]
        if self._target.key:
            columns.append(f"PRIMARY KEY ({', '.join(map(quoted, self._target.key))})")
        return f"CREATE TABLE IF NOT EXISTS {quoted(self._target.target)} ({', '.join(columns)})"

    def _fitting(self, session: Session, schema: pa.Schema, *, decided: bool) -> list[str]:
        check_kinds(schema, _holds, "table of SQLite", self.name, nested=False)
        there = self._columns(session)
        if not decided:
            self._check_kept(session, schema, {column.name.lower(): column.kind for column in there})
        names = fitting_names(there, schema, self.name, self._target.key, decided=decided)
        if self._target.key and not self._is_unique(session, self._target.key):
            reason = f"has no primary key or unique index on {list(self._target.key)}"
            raise refused_columns(reason, self.name, f"CREATE UNIQUE INDEX ... ON {self._target.target} (...)")
        return names

    def _check_kept(self, session: Session, schema: pa.Schema, kinds: Mapping[str, str]) -> None:
        """Refuse a view or a virtual table, and columns that would change values or refuse them.

        SQLite converts a value to the affinity of its column, and a STRICT table refuses other types.
        """
        asked = "SELECT type, sql FROM sqlite_master WHERE name = ? COLLATE NOCASE AND type IN ('table', 'view')"
        found = session.run(asked, self._target.target)
        what, statement = found[0] if found else ("table", "")
        if what == "view" or statement.lower().startswith("create virtual"):
            is_a = "a view" if what == "view" else "a virtual table"
            raise refused_columns(f"is {is_a}, and rows go into tables", self.name, "Name a table, or a new name")
        is_strict = _IS_STRICT.search(statement) is not None
        for column in schema:
            if column.name.lower() not in kinds:
                continue
            kind, ours = kinds[column.name.lower()], _type_of(plain_type(column.type))
            if is_strict:
                is_kept = kind in ("any", ours.lower()) or (ours, kind) == ("INTEGER", "int")
            else:
                # A date in a column that is declared as DATE stays text, since it looks like no number.
                is_date = pa.types.is_temporal(plain_type(column.type))
                is_kept = not kind or _affinity(kind) in (*_KEPT_BY[ours], *(("NUMERIC",) if is_date else ()))
            if not is_kept:
                reason = f"has column {column.name!r} of type {kind}, and the rows have {column.type}, kept as {ours}"
                raise refused_columns(reason, self.name, "Cast the column, or change the table")

    def _is_unique(self, session: Session, key: Sequence[str]) -> bool:
        wanted, table = sorted(column.lower() for column in key), quoted(self._target.target)
        primary = [name for _, name, _, _, _, pk, _ in session.run(f"PRAGMA table_xinfo({table})") if pk]
        indexes = [primary]
        for _, name, is_unique, _, is_partial in session.run(f"PRAGMA index_list({table})"):
            if is_unique and not is_partial:
                indexes.append([str(row[2]) for row in session.run(f"PRAGMA index_info({quoted(name)})")])
        return any(sorted(each.lower() for each in index) == wanted for index in indexes)

    @property
    def _tokens(self) -> str:
        return quoted(TOKENS)

    def _has_tokens(self, session: Session) -> bool:
        return bool(session.run("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", TOKENS))


class _SqliteSession:
    """One connection with one transaction, which begins with its first statement."""

    def __init__(self, path: Path, busy_seconds: float, target: TableTarget, begin: str) -> None:
        self._target = target
        try:
            self._connection = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None)
        except sqlite3.Error as error:
            raise DatabaseError(f"{path}: {error}", None, denied=True) from error
        try:
            self._cursor = self._connection.cursor()
            self._do(begin)
        except DatabaseError:
            self._connection.close()
            raise

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return self._do(statement, values)

    def load(self, rows: pa.Table, columns: Sequence[str]) -> None:
        self._insert(rows, columns, "")

    def merge(self, rows: pa.Table, columns: Sequence[str]) -> None:
        self._insert(rows, columns, on_conflict(self._target.key, columns))

    def remove(self, keys: pa.Table, columns: Sequence[str]) -> None:
        same = " AND ".join(f"{quoted(column)} = ?" for column in columns)
        self._run_for_each(keys, f"DELETE FROM {quoted(self._target.target)} WHERE {same}")  # noqa: S608  # nosec B608

    def commit(self) -> None:
        self._do("COMMIT")

    def close(self) -> None:
        self._connection.close()  # What was not committed is rolled back.

    def _insert(self, rows: pa.Table, columns: Sequence[str], rest: str) -> None:
        names, marks = ", ".join(map(quoted, columns)), ", ".join("?" * len(columns))
        statement = f"INSERT INTO {quoted(self._target.target)} ({names}) VALUES ({marks}){rest}"  # noqa: S608  # nosec B608
        self._run_for_each(rows, statement)

    def _run_for_each(self, rows: pa.Table, statement: str) -> None:
        for batch in rows.to_batches(max_chunksize=_CHUNK_ROWS):
            values = zip(*(_plain(column).to_pylist() for column in batch.columns), strict=True)
            try:
                self._cursor.executemany(statement, values)
            except sqlite3.Error as error:
                raise _translated(error) from error

    def _do(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._cursor.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise _translated(error) from error


def _plain(column: pa.Array) -> pa.Array:
    """A column as SQLite keeps it."""
    if pa.types.is_boolean(column.type):
        return column.cast(pa.int8())
    return column.cast(pa.string()) if any(is_one(column.type) for is_one in _AS_TEXT) else column


def _affinity(declared: str) -> str:
    """How SQLite converts values of a column, by the type that it was declared with."""
    return next((affinity for parts, affinity in _AFFINITIES if any(part in declared for part in parts)), "NUMERIC")


def _holds(kind: pa.DataType) -> bool:
    return any(is_one(kind) for is_one, _ in _TYPES)


def _type_of(kind: pa.DataType) -> str:
    return next(text for is_one, text in _TYPES if is_one(kind))


def _translated(error: sqlite3.Error) -> DatabaseError:
    """What an error of SQLite means: it is raised before anything of the transaction counts."""
    code = getattr(error, "sqlite_errorname", "") or ""
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_NOMEM")):
        return DatabaseError(str(error), Outcome.NOT_DONE)
    is_denied = code.startswith(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_CANTOPEN", "SQLITE_AUTH"))
    return DatabaseError(str(error), None, denied=is_denied)
