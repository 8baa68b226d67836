"""A table of PostgreSQL, by ADBC: rows go in as one binary COPY, which takes the types of Arrow as they are.

Facts (ADBC 1.13, PostgreSQL 15):
- A COPY does not compare types: a float for a bigint would arrive as its eight bytes. So the types of the table are
  read first, and columns are cast to them, only to wider ones.
- A COPY that nobody goes on with is not idle to the server. So the token moves last: a driver that froze inside it
  holds no lock that its successor needs, and one that froze later is idle, and ended by the server.
- Temporary tables end with their connection: each commit has one of its own.
- What takes long about a connection is that the library reads all types of the database, 40 ms. It does so
  once for each *database*, its own word for that, which holds no connection itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import adbc_driver_manager.dbapi
import adbc_driver_postgresql
import pyarrow as pa

from stateline.blob import BlobStore
from stateline.environment import Environment
from stateline.errors import InvalidInputError
from stateline.options import check_known, parse_duration, plain_options
from stateline.tables.api import Outcome
from stateline.tables.columns import refused_columns
from stateline.tables.sql import TOKENS, DatabaseError, Session, SqlColumn, SqlTable, fitting_names, on_conflict, quoted
from stateline.tables.targets import TableTarget

__all__ = ["PostgresqlTable", "open_table", "sent_type"]

_TYPES: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.time64("us"): "time without time zone",
    pa.timestamp("us"): "timestamp without time zone",
    pa.timestamp("us", "UTC"): "timestamp with time zone",
}
"""The types that a new table gets."""

_WIDER: Final[dict[str, tuple[pa.DataType, ...]]] = {
    "boolean": (pa.bool_(),),
    "smallint": (pa.int16(), pa.int8()),
    "integer": (pa.int32(), pa.int16(), pa.int8()),
    "bigint": (pa.int64(), pa.int32(), pa.int16(), pa.int8()),
    "real": (pa.float32(),),
    "double precision": (pa.float64(), pa.float32()),
    "text": (pa.string(),),
    "character varying": (pa.string(),),
    "bytea": (pa.binary(),),
    "date": (pa.date32(),),
    "time without time zone": (pa.time64("us"), pa.time32("ms"), pa.time32("s")),
    "timestamp without time zone": tuple(pa.timestamp(unit) for unit in ("us", "ms", "s")),
    "timestamp with time zone": tuple(pa.timestamp(unit, "UTC") for unit in ("us", "ms", "s")),
}
"""What each type of a table is sent as, and which types may become that."""

_KEYWORDS: Final = re.compile(r"\s*(?:\w+\s*=\s*(?:'(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)*)(?:\s+|\Z))+")
"""A connection string of libpq: ``host=... user=...``."""

_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})|%00|\s")
_SLASH_BEFORE_HOST: Final = re.compile(r"[^@/?]*:[^@?]*/[^?]*@")
_NUMERIC: Final = re.compile(r"numeric(?:\((\d+),(\d+)\))?\Z")
_INT_DIGITS: Final = 19
_MARK: Final = re.compile(r'"[^"]*"|\?')
_STAGING: Final = "stateline_rows"
_GONE: Final = "stateline_gone"
_DENIED: Final = ("42501", "28")
_PASSING: Final = ("08", "40", "53", "55P03", "57", "25P03", "42P07")
"""What ends a transaction by no fault of the rows; the last is a table that somebody else has just created."""
_CREATED_AT_ONCE: Final = ("pg_type_typname_nsp_index", "pg_class_relname_nsp_index")
_COLUMNS: Final = (
    "SELECT attname, format_type(atttypid, atttypmod), attnotnull, atthasdef OR attidentity <> '', "
    "attgenerated <> '' OR attidentity = 'a' FROM pg_attribute "
    "WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)
_RELATION: Final = (
    "SELECT c.relkind::text, c.relpersistence::text, c.relhasrules, "
    # A table that is partitioned, at any depth, by lists or ranges. Those by hashes have a partition for every row.
    "c.relkind = 'p' AND EXISTS (SELECT FROM pg_partition_tree(c.oid) t JOIN pg_partitioned_table p "
    "ON p.partrelid = t.relid WHERE p.partstrat IN ('l', 'r') AND p.partdefid = 0), "
    "current_setting('server_encoding') FROM pg_class c WHERE c.oid = to_regclass(?)"
)
_TABLES: Final = ("r", "p")
_PERMANENT: Final = "p"
_RELATIONS: Final = {"v": "view", "m": "materialized view", "f": "foreign table", "S": "sequence"}
_ENCODINGS: Final = ("UTF8", "SQL_ASCII")
_NAME_BYTES: Final = 63
_UNIQUE: Final = (
    "SELECT array_agg(a.attname::text ORDER BY a.attname) FROM pg_index i "
    "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) "
    "WHERE i.indrelid = to_regclass(?) AND i.indisunique AND i.indisvalid AND i.indpred IS NULL "
    "AND i.indexprs IS NULL "
    # Where a collation calls two texts equal, an upsert of both is refused.
    "AND NOT EXISTS (SELECT FROM pg_collation c WHERE c.oid = ANY (i.indcollation) AND NOT c.collisdeterministic) "
    "GROUP BY i.indexrelid"
)


def open_table(
    target: TableTarget,
    schema: pa.Schema | None,
    store: BlobStore | None,  # noqa: ARG001 - a database has no files of ours
    environment: Environment | None,  # noqa: ARG001
) -> PostgresqlTable:
    """The table of a target; see :func:`stateline.tables.open_table`."""
    return PostgresqlTable(target, schema)


class PostgresqlTable(SqlTable):
    """A table of a PostgreSQL database."""

    token_first = False

    def __init__(self, target: TableTarget, schema: pa.Schema | None) -> None:
        super().__init__(target, schema)
        options = plain_options(target.options)
        self._uri = options.pop("uri", "")
        check_known(options, ("lock_timeout", "idle_timeout"))
        self._lock_seconds = parse_duration(options.pop("lock_timeout", "10s"), "lock_timeout")
        self._idle_seconds = parse_duration(options.pop("idle_timeout", "60s"), "idle_timeout")
        if not self._uri:
            raise InvalidInputError(
                'write_table postgresql needs options={"uri": "postgresql://user@host:5432/database"}, got no uri',
                operation="write_table",
                subject=self.name,
                hint="Give the option uri; lock_timeout and idle_timeout have defaults",
            )
        _check_uri(self._uri, self.name)
        self._database: adbc_driver_manager.AdbcDatabase | None = None
        folder, _, table = target.target.rpartition(".")
        self._schema_name = folder
        self._table_name = table
        for part, what in ((folder, "schema"), (table, "table"), *((each, "column") for each in self._names())):
            if len(part.encode()) > _NAME_BYTES:
                raise InvalidInputError(
                    f"the name of a {what} must have at most {_NAME_BYTES} bytes, got {len(part.encode())}: {part!r}",
                    operation="write_table",
                    subject=f"postgresql {what}",
                    hint="Choose a shorter name: PostgreSQL cuts longer ones, and two may then be one",
                )
        for column in self._schema or ():
            if _new_type(column.type) is None:
                reason = f"column {column.name!r} is {column.type}, and PostgreSQL has no such type"
                raise refused_columns(reason, self.name, "Cast the column, or leave it out")

    def _open(self, *, may_create: bool) -> Session | None:  # noqa: ARG002 - a database is not created here
        try:
            if self._database is None:
                self._database = adbc_driver_postgresql.connect(self._uri)
            opened = adbc_driver_manager.AdbcConnection(self._database)
            try:
                connection = adbc_driver_manager.dbapi.Connection(_Shared(), opened)
            except BaseException:
                opened.close()
                raise
        except adbc_driver_manager.Error as error:
            raise _translated(error) from error
        return _PostgresqlSession(
            connection, self._lock_seconds, self._idle_seconds, self._schema_name, self._table_name, self._target.key
        )

    def close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            _close(database)

    def _names(self) -> list[str]:
        return [] if self._schema is None else list(self._schema.names)

    @property
    def _quoted(self) -> str:
        return _qualified(self._schema_name, self._table_name)

    def _columns(self, session: Session) -> list[SqlColumn]:
        return [SqlColumn(*found) for found in session.run(_COLUMNS, self._quoted)]

    def _creation(self, schema: pa.Schema) -> str:
        columns = [
            f"{quoted(column.name)} {_new_type(column.type)}{'' if column.nullable else ' NOT NULL'}"
            for column in schema
        ]
        if self._target.key:
            columns.append(f"PRIMARY KEY ({', '.join(map(quoted, self._target.key))})")
        return f"CREATE TABLE IF NOT EXISTS {self._quoted} ({', '.join(columns)})"

    def _fitting(self, session: Session, schema: pa.Schema, *, decided: bool) -> list[str]:
        there = self._columns(session)
        if not decided:
            self._check_relation(session)
        names = fitting_names(there, schema, self.name, self._target.key, decided=decided)
        kinds = {column.name: column.kind for column in there}
        for column, name in zip(schema, names, strict=True):
            if sent_type(column.type, kinds[name]) is None:
                reason = f"column {name!r} is {kinds[name]}, and {column.type} in the rows"
                raise refused_columns(reason, self.name, "Cast the column, or change the table")
            if kinds[name].startswith("character varying(") and not decided:
                reason = f"column {name!r} is {kinds[name]}, and the rows may have longer text"
                raise refused_columns(reason, self.name, f"ALTER TABLE {self._quoted} ALTER {quoted(name)} TYPE text")
        if self._target.key:
            wanted = sorted(name for name in names if name.lower() in {each.lower() for each in self._target.key})
            if not any(sorted(found) == wanted for (found,) in session.run(_UNIQUE, self._quoted)):
                reason = f"has no primary key or unique index on {wanted}"
                raise refused_columns(reason, self.name, f"CREATE UNIQUE INDEX ON {self._quoted} (...)")
        return names

    def _check_relation(self, session: Session) -> None:
        """Refuse what looks like a table and cannot take every row in the transaction of the token."""
        found = session.run(_RELATION, self._quoted)
        if not found:
            return
        kind, persistence, has_rules, lacks_default, encoding = found[0]
        if kind not in _TABLES:
            reason = f"is a {_RELATIONS.get(kind, 'relation that takes no rows')}, and rows go into tables"
            hint = "Name a table, or a name that is free"
        elif persistence != _PERMANENT:
            reason = "is not logged: after a crash of the server it is empty, and the token says that it has its rows"
            hint = f"ALTER TABLE {self._quoted} SET LOGGED"
        elif has_rules and self._target.key:
            reason, hint = "has rules, with which PostgreSQL takes no upserts", "Drop the rules, or append"
        elif lacks_default:
            reason = "has partitions and no default one: a row that belongs to none would be refused"
            hint = f"CREATE TABLE ... PARTITION OF {self._quoted} DEFAULT"
        elif encoding not in _ENCODINGS:
            reason = f"is in a database of the encoding {encoding}, which has not every character"
            hint = "Use a database with ENCODING 'UTF8'"
        else:
            return
        raise refused_columns(reason, self.name, hint)

    @property
    def _tokens(self) -> str:
        return _qualified(self._schema_name, TOKENS)

    def _has_tokens(self, session: Session) -> bool:
        return session.run("SELECT to_regclass(?)::text", self._tokens)[0][0] is not None


class _Shared:
    """What a connection closes in place of the library's database, which others share and their table closes."""

    def close(self) -> None:
        """Nothing is closed."""


class _PostgresqlSession:
    """One connection with one transaction."""

    def __init__(
        self,
        connection: adbc_driver_manager.dbapi.Connection,
        lock_seconds: float,
        idle_seconds: float,
        schema: str,
        table: str,
        key: Sequence[str],
    ) -> None:
        self._connection = connection
        self._schema = schema
        self._table = table
        self._key = tuple(key)
        try:
            self._cursor = self._connection.cursor()
            self.run(f"SET lock_timeout = {int(lock_seconds * 1000)}")
            self.run(f"SET idle_in_transaction_session_timeout = {int(idle_seconds * 1000)}")
        except BaseException:
            _close(self._connection)
            raise

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        numbers = iter(range(1, len(values) + 1))
        text = _MARK.sub(lambda found: f"${next(numbers)}" if found[0] == "?" else found[0], statement)
        try:
            self._cursor.execute(text, values or None)
            return self._cursor.fetchall() if self._cursor.description else []
        except adbc_driver_manager.Error as error:
            raise _translated(error) from error

    def load(self, rows: pa.Table, columns: Sequence[str]) -> None:
        self._ingest(self._sent(rows, columns), self._table, temporary=False)

    def merge(self, rows: pa.Table, columns: Sequence[str]) -> None:
        # In the order of keys, so that two such transactions never wait for each other.
        self._ingest(self._sent(rows, columns), _STAGING, temporary=True)
        names, key = ", ".join(map(quoted, columns)), ", ".join(map(quoted, self._key))
        self.run(
            f"INSERT INTO {_qualified(self._schema, self._table)} ({names}) SELECT {names} "  # noqa: S608  # nosec B608
            f"FROM pg_temp.{_STAGING} ORDER BY {key}{on_conflict(self._key, columns)}"
        )

    def remove(self, keys: pa.Table, columns: Sequence[str]) -> None:
        self._ingest(self._sent(keys, columns), _GONE, temporary=True)
        same = " AND ".join(f"t.{quoted(column)} = g.{quoted(column)}" for column in columns)
        table = _qualified(self._schema, self._table)
        self.run(f"DELETE FROM {table} t USING pg_temp.{_GONE} g WHERE {same}")  # noqa: S608  # nosec B608

    def commit(self) -> None:
        try:
            self._connection.commit()
        except adbc_driver_manager.Error as error:
            raise _translated(error) from error

    def close(self) -> None:
        """Ends the transaction and the connection; whatever fails here, the server does it in the end."""
        _close(self._cursor)
        _close(self._connection)

    def _ingest(self, rows: pa.Table, table: str, *, temporary: bool) -> None:
        try:
            if temporary:
                self._cursor.adbc_ingest(table, rows, mode="create", temporary=True)
            else:
                self._cursor.adbc_ingest(table, rows, mode="append", db_schema_name=self._schema or None)
        except adbc_driver_manager.Error as error:
            raise _translated(error) from error

    def _sent(self, rows: pa.Table, columns: Sequence[str]) -> pa.Table:
        """The rows in the types of the table."""
        kinds = {name: kind for name, kind, *_ in self.run(_COLUMNS, _qualified(self._schema, self._table))}
        fields = [
            pa.field(name, sent_type(column.type, kinds[name]) or column.type)
            for name, column in zip(columns, rows.schema, strict=True)
        ]
        return rows.rename_columns(list(columns)).cast(pa.schema(fields))


def _check_uri(uri: str, subject: str) -> None:
    """Refuses what libpq would not understand: it quotes parts of such text, and so of a password."""
    if "://" not in uri:
        if "=" in uri and _KEYWORDS.fullmatch(uri):
            return
        reason = "must begin with postgresql://"
    else:
        scheme, _, rest = uri.partition("://")
        if scheme not in ("postgresql", "postgres"):
            reason = "must begin with postgresql://"
        elif _BAD_ESCAPE.search(rest):
            reason = "has a % that begins no escape such as %25, or a space"
        elif "@" in rest.partition("?")[0].partition("@")[2] or _SLASH_BEFORE_HOST.match(rest):
            reason = "has a user name or a password with @ or / in it"
        else:
            return
    raise InvalidInputError(
        reason,
        operation="write_table",
        subject=f"option 'uri' of {subject}",
        hint='Give "postgresql://user:password@host:5432/database", with urllib.parse.quote(password, safe="") as the '
        "password",
    )


def sent_type(ours: pa.DataType, theirs: str) -> pa.DataType | None:
    """The type of Arrow in which values go into a column; ``None`` where that would change a value, or none is."""
    if theirs.endswith("[]"):
        element = sent_type(ours.value_type, theirs.removesuffix("[]")) if pa.types.is_list(ours) else None
        return None if element is None else pa.list_(element)
    numeric = _NUMERIC.match(theirs)
    if numeric is not None:
        return _sent_decimal(ours, numeric[1], numeric[2])
    chosen = _WIDER.get(theirs.partition("(")[0], ())
    return chosen[0] if ours in chosen else None


def _sent_decimal(ours: pa.DataType, precision: str | None, scale: str | None) -> pa.DataType | None:
    if pa.types.is_signed_integer(ours):
        ours = pa.decimal128(_INT_DIGITS, 0)
    if not pa.types.is_decimal128(ours):
        return None
    if precision is None or scale is None:
        return ours
    fits = ours.scale <= int(scale) and ours.precision - ours.scale <= int(precision) - int(scale)
    return ours if fits else None


def _new_type(kind: pa.DataType) -> str | None:
    if pa.types.is_decimal128(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        element = None if pa.types.is_nested(kind.value_type) else _new_type(kind.value_type)
        return None if element is None else f"{element}[]"
    if pa.types.is_timestamp(kind):
        kind = pa.timestamp("us", kind.tz)
    return _TYPES.get(kind)


def _qualified(schema: str, table: str) -> str:
    return f"{quoted(schema)}.{quoted(table)}" if schema else quoted(table)


def _close(closable: Any) -> None:
    try:
        closable.close()
    except (adbc_driver_manager.Error, RuntimeError):
        return  # The server ends it; or it is a database, and an interrupt has left a connection of it open.


def _translated(error: adbc_driver_manager.Error) -> DatabaseError:
    """What an error means: before the COMMIT nothing counts, so it may be done again, or never can."""
    state = error.sqlstate or ""
    if not state or state.startswith(_PASSING) or any(name in str(error) for name in _CREATED_AT_ONCE):
        return DatabaseError(str(error), Outcome.NOT_DONE)
    return DatabaseError(str(error), None, denied=state.startswith(_DENIED))
