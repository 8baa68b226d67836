"""SQLite: values in their forms, tables that others made, and what is refused."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import sqlite3

import pyarrow as pa
import pytest

from stateline.environment import Environment
from stateline.errors import AccessDeniedError, InvalidInputError, UnavailableError
from stateline.tables import Outcome, TableTarget, check_rows, commit_once, open_table, sqlite
from stateline.tables.sql import DatabaseError
from tests.unit.tables.table_kit import APP, SCHEMA, SqlitePlace

WORLD = Environment()


def run(place, statement):
    connection = sqlite3.connect(place.folder / "t.db", isolation_level=None)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def test_values_of_all_types_have_one_form(tmp_path):
    place = SqlitePlace(tmp_path)
    moment = dt.datetime(2024, 3, 31, 1, 2, 3, 456789)
    rows = pa.table(
        {
            "b": [True, None],
            "i": pa.array([2**63 - 1, None], pa.int64()),
            "f": [math.inf, None],
            "s": ["é\0x", None],
            "bin": [b"\xff\x00", None],
            "d": pa.array([decimal.Decimal("-1.25"), None], pa.decimal128(20, 2)),
            "day": [dt.date(1, 1, 1), None],
            "at": pa.array([moment.replace(tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")),
            "local": pa.array([moment, None], pa.timestamp("us")),
            "odd name \"'": ["x", None],
        }
    )
    table = place.open(rows.schema)
    commit_once(table, place.change(0, None, [], rows=rows), WORLD)
    full = (
        1,
        2**63 - 1,
        math.inf,
        "é\0x",
        b"\xff\x00",
        "-1.25",
        "0001-01-01",
        "2024-03-31 01:02:03.456789Z",
        "2024-03-31 01:02:03.456789",
        "x",
    )
    assert run(place, "SELECT * FROM flights") == [full, (None,) * 10]
    assert run(place, "SELECT unixepoch(at), date(day) FROM flights LIMIT 1") == [(1711846923, "0001-01-01")]


def test_nested_values_and_nan_are_refused(tmp_path):
    place = SqlitePlace(tmp_path)
    for kind in (pa.list_(pa.int64()), pa.struct([("x", pa.int64())]), pa.uint64(), pa.duration("s")):
        with pytest.raises(InvalidInputError, match="column 'odd'"):
            place.open(pa.schema([("odd", kind)]))
    with pytest.raises(InvalidInputError, match="NaN"):
        check_rows(pa.table({"f": [1.0, math.nan]}), place.target(), "operator x")
    upsert = SqlitePlace(tmp_path, "upsert").target()
    for rows, said in (({"k": [1, None]}, "null"), ({"k": [1, 1]}, r"\{'k': 1\}")):
        with pytest.raises(InvalidInputError, match=said):
            check_rows(pa.table(rows), upsert, "operator x")
    check_rows(pa.table({"k": [1, 2]}), upsert, "operator x")


def test_a_table_of_somebody_else_is_used_as_it_is(tmp_path):
    place = SqlitePlace(tmp_path, "upsert")
    run(
        place,
        "CREATE TABLE flights (id INTEGER PRIMARY KEY, V TEXT DEFAULT 'd', K INTEGER, more TEXT NOT NULL DEFAULT 'm')",
    )
    with pytest.raises(InvalidInputError, match="unique index"):
        commit_once(place.open(), place.change(0, None, [1]), WORLD)
    run(place, "CREATE UNIQUE INDEX by_k ON flights (k)")
    commit_once(place.open(), place.change(0, None, [1, 2]), WORLD)
    commit_once(place.open(), place.change(1, 0, [2]), WORLD)
    assert run(place, "SELECT k, v, more FROM flights ORDER BY k") == [(1, "c0", "m"), (2, "c1", "m")]


def test_a_column_that_the_database_computes_is_refused(tmp_path):
    place = SqlitePlace(tmp_path)
    run(place, "CREATE TABLE flights (k INTEGER, v TEXT GENERATED ALWAYS AS ('x'))")
    table = place.open()
    with pytest.raises(InvalidInputError, match="computes column 'v' itself"):
        table.check(table.look(APP))


def test_rows_that_break_a_constraint_stay_for_later(tmp_path):
    place = SqlitePlace(tmp_path)
    run(place, "CREATE TABLE flights (k INTEGER CHECK (k < 5), v TEXT)")
    change = place.change(0, None, [1, 7])
    for _ in range(2):
        with pytest.raises(InvalidInputError, match="CHECK constraint"):
            commit_once(place.open(), change, WORLD)
    assert place.rows() == []
    assert place.open().look(APP).committed is None
    run(place, "DROP TABLE flights")
    run(place, "CREATE TABLE flights (k INTEGER, v TEXT)")
    commit_once(place.open(), change, WORLD)
    assert len(place.rows()) == 2


def test_a_writer_that_holds_the_lock_is_waited_for(tmp_path):
    place = SqlitePlace(tmp_path)
    commit_once(place.open(), place.change(0, None, [1]), WORLD)
    holder = sqlite3.connect(tmp_path / "t.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    table, change = place.open(), place.change(1, 0, [2])
    state = table.look(APP)
    assert table.attempt(change, state).outcome is Outcome.NOT_DONE
    holder.execute("ROLLBACK")
    holder.close()
    assert table.attempt(change, state).outcome is Outcome.DONE
    assert run(place, "SELECT app, checkpoint_id, target FROM stateline_commits") == [(APP, 1, "flights")]


@pytest.mark.parametrize("lost", [1, 3])
def test_a_connection_that_is_lost_while_it_asks_is_made_again(tmp_path, monkeypatch, lost):
    place = SqlitePlace(tmp_path)
    commit_once(place.open(), place.change(0, None, [1]), WORLD)
    table = place.open()
    opened, real = [], table._open

    def open_once_more(*, may_create):
        opened.append(may_create)
        if len(opened) <= lost:
            raise DatabaseError("terminating connection", Outcome.NOT_DONE)
        return real(may_create=may_create)

    monkeypatch.setattr(table, "_open", open_once_more)
    if lost == 1:
        assert table.look(APP).committed == 0
    else:
        with pytest.raises(UnavailableError, match="terminating connection"):
            table.look(APP)
        opened.clear()
    assert commit_once(table, place.change(1, 0, [2]), WORLD).committed == 1
    assert place.rows() == [(1, "c0"), (2, "c1")]


class PowerFailure(BaseException):
    """Nothing runs after it."""


def test_a_driver_is_killed_inside_its_transaction(tmp_path, monkeypatch):
    place = SqlitePlace(tmp_path)
    commit_once(place.open(), place.change(0, None, [1]), WORLD)

    def fail(*_):
        raise PowerFailure

    def load_and_fail(*args, load=sqlite._SqliteSession.load):
        load(*args)
        fail()

    change = place.change(1, 0, [2, 3])
    for name, step in (("load", fail), ("load", load_and_fail), ("commit", fail)):
        with monkeypatch.context() as patch:
            patch.setattr(sqlite._SqliteSession, name, step)
            with pytest.raises(PowerFailure):
                commit_once(place.open(), change, WORLD)
        assert place.rows() == [(1, "c0")]
        assert place.open().look(APP).committed == 0
    commit_once(place.open(), change, WORLD)
    assert place.rows() == [(1, "c0"), (2, "c1"), (3, "c1")]


def test_places_that_cannot_be(tmp_path):
    for options, said in (({}, "option uri"), ({"uri": "x", "speed": "1"}, "speed")):
        with pytest.raises(InvalidInputError, match=said):
            open_table(TableTarget(format="sqlite", target="t", options=options), schema=SCHEMA)
    gone = TableTarget(format="sqlite", target="t", options={"uri": str(tmp_path / "none" / "t.db")})
    table = open_table(gone, schema=SCHEMA)
    assert table.look(APP).identity is None
    with pytest.raises(AccessDeniedError, match="unable to open"):
        table.create()
    (tmp_path / "text.db").write_text("this is no database, " * 100)
    text = TableTarget(format="sqlite", target="t", options={"uri": str(tmp_path / "text.db")})
    with pytest.raises(InvalidInputError, match="not a database"):
        open_table(text, schema=SCHEMA).look(APP)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"format": "csv"}, "format"),
        ({"target": " "}, "empty"),
        ({"mode": "overwrite"}, "mode"),
        ({"mode": "upsert"}, "must go with mode upsert"),
        ({"key": ("k",)}, "must go with mode upsert"),
        ({"partition_by": ("k",)}, "partition"),
        ({"mode": "upsert", "key": ("k", "K")}, "twice"),
    ],
)
def test_targets_that_cannot_be(given, said):
    with pytest.raises(InvalidInputError, match=said):
        TableTarget(**{"format": "sqlite", "target": "t", **given})


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("CREATE TABLE flights (k INTEGER, v INTEGER)", "column 'v' of type integer, and the rows have string"),
        ("CREATE TABLE flights (k REAL, v TEXT)", "column 'k' of type real, and the rows have int64"),
        ("CREATE TABLE flights (k TEXT, v TEXT)", "column 'k' of type text"),
        ("CREATE TABLE flights (k INTEGER, v DECIMAL(5, 2))", "column 'v' of type decimal"),
        ("CREATE TABLE flights (k INTEGER, v BLOB)", "column 'v' of type blob"),
        ("CREATE TABLE flights (k INT, v BLOB) STRICT", "column 'v' of type blob"),
        ("CREATE VIEW flights AS SELECT 1 AS k, 'x' AS v", "is a view"),
        ("CREATE VIRTUAL TABLE flights USING fts5(k, v)", "is a virtual table"),
    ],
)
def test_tables_that_would_change_rows_or_refuse_them_are_refused(tmp_path, statement, said):
    place = SqlitePlace(tmp_path)
    run(place, statement)
    table = place.open()
    with pytest.raises(InvalidInputError, match=said):
        table.check(table.look(APP))


def test_every_type_goes_into_a_column_that_keeps_it_unchanged(tmp_path):
    """What SQLite makes of a value is asked of SQLite: a column is taken if, and only if, it keeps the value."""
    moment = dt.datetime(2024, 3, 31, 1, 2, 3)
    values = {
        "i": pa.array([10]),
        "b": pa.array([True]),
        "f": pa.array([10.0]),
        "s": pa.array(["10"]),
        "x": pa.array([b"10"]),
        "d": pa.array([decimal.Decimal("1.50")]),
        "day": pa.array([moment.date()]),
        "at": pa.array([moment], pa.timestamp("us", "UTC")),
    }
    declared = ["", "INTEGER", "TINYINT", "TEXT", "VARCHAR(9)", "REAL", "DOUBLE", "NUMERIC", "DATE", "BOOLEAN", "BLOB"]
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for number, (name, kind, strict) in enumerate(
        (name, kind, strict)
        for name in values
        for strict, kinds in (("", declared), (" STRICT", ["INT", "INTEGER", "REAL", "TEXT", "BLOB", "ANY"]))
        for kind in kinds
    ):
        sent = sqlite._plain(values[name]).to_pylist()[0]
        place = SqlitePlace(tmp_path)
        place.folder = tmp_path / str(number)
        place.folder.mkdir()
        run(place, f"CREATE TABLE flights ({name} {kind}){strict}")
        connection.execute("DROP TABLE IF EXISTS t")
        connection.execute(f"CREATE TABLE t (c {kind}){strict}")
        try:
            connection.execute("INSERT INTO t VALUES (?)", (sent,))
            ((found, storage),) = connection.execute("SELECT c, typeof(c) FROM t").fetchall()
            is_kept = (found, type(found)) == (sent, type(sent))
        except sqlite3.Error:
            is_kept = False
        table = place.open(pa.schema([(name, values[name].type)]))
        try:
            table.check(table.look(APP))
            is_taken = True
        except InvalidInputError:
            is_taken = False
        assert not is_taken or is_kept, f"{name} into {kind}{strict}: {sent!r} became {found!r}, {storage}"
        if not kind or kind == "ANY" or kind == sqlite._type_of(values[name].type):
            assert is_taken, f"{name} into {kind}{strict}"
    connection.close()
