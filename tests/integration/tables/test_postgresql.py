"""PostgreSQL: the promises of every table, values in its types, and drivers that freeze."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import math
import threading
import time

import psycopg
import pyarrow as pa
import pytest

from stateline.environment import Environment
from stateline.errors import AccessDeniedError, InvalidInputError, UnavailableError
from stateline.tables import Outcome, TableTarget, check_rows, commit_once, open_table, postgresql
from stateline.tables.postgresql import PostgresqlTable, sent_type
from tests.unit.pipeline import test_table_commits as drivers
from tests.unit.tables import test_table_protocol as protocol
from tests.unit.tables.table_kit import APP, SCHEMA, IcebergPlace, PostgresqlPlace

WORLD = Environment()
PROMISES = [*protocol.PROMISES, protocol.test_without_columns_nothing_is_created]


@pytest.fixture
def place(uri, tmp_path):
    return PostgresqlPlace(tmp_path, uri=uri)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda each: each.__name__)
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_it_keeps_what_every_table_promises(promise, mode, uri, tmp_path):
    promise(PostgresqlPlace(tmp_path, mode, uri=uri))


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize(
    "life",
    [drivers.test_a_driver_is_killed_at_each_step, drivers.test_a_frozen_driver_is_overtaken_at_each_step_and_loses],
    ids=lambda each: each.__name__,
)
def test_drivers_are_killed_and_overtaken_at_each_step(life, mode, uri, tmp_path, monkeypatch):
    numbers = iter(range(1000))

    def place_of(folder):
        name = f"life_{next(numbers)}"
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return {mode: PostgresqlPlace(folder, mode, uri=uri, table=f"{name}.flights")}

    monkeypatch.setattr(drivers, "places", place_of)
    life(mode, tmp_path, drivers.Effects(monkeypatch))


def test_rows_go_in_the_transaction_in_which_others_come(uri, tmp_path):
    protocol.loses_rows_in_the_same_step(PostgresqlPlace(tmp_path, "upsert", uri=uri))


def test_values_of_all_types_come_back(place):
    moment = dt.datetime(2024, 3, 31, 1, 2, 3, 456789)
    rows = pa.table(
        {
            "b": [True, None],
            "i8": pa.array([-1, None], pa.int8()),
            "i16": pa.array([2, None], pa.int16()),
            "i32": pa.array([3, None], pa.int32()),
            "i64": pa.array([2**62, None], pa.int64()),
            "f32": pa.array([1.5, None], pa.float32()),
            "f64": [math.inf, None],
            "s": ["é" * 40, None],
            "bin": [b"\xff\x00", None],
            "d": pa.array([decimal.Decimal("-1.25"), None], pa.decimal128(20, 2)),
            "day": [dt.date(1, 1, 1), None],
            "at": pa.array([moment.replace(tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")),
            "local": pa.array([moment, None], pa.timestamp("us")),
            "seconds": pa.array([moment.replace(microsecond=0), None], pa.timestamp("s")),
            "list": [[1, None], None],
            'odd "name"?': ["x", None],
        }
    )
    commit_once(place.open(rows.schema), place.change(0, None, [], rows=rows), WORLD)
    full, empty = place.run("SELECT * FROM flights")
    assert list(full) == [*rows.slice(0, 1).to_pylist()[0].values()]
    assert set(empty) == {None}
    upsert = PostgresqlPlace(place.folder, "upsert", uri=place.uri, table="others")
    target = TableTarget(format="postgresql", target="others", mode="upsert", key=("i64",), options={"uri": place.uri})
    table = open_table(target, schema=rows.schema.set(4, rows.schema.field(4).with_nullable(False)))
    first = rows.slice(0, 1)
    for number in range(2):
        commit_once(table, upsert.change(number, number - 1 if number else None, [], app="b", rows=first), WORLD)
    assert upsert.run("SELECT count(*), max(d) FROM others") == [(1, decimal.Decimal("-1.25"))]


@pytest.mark.parametrize(
    ("ours", "theirs", "sent"),
    [
        (pa.int32(), "bigint", pa.int64()),
        (pa.int64(), "integer", None),
        (pa.float64(), "bigint", None),
        (pa.int64(), "double precision", None),
        (pa.float32(), "double precision", pa.float64()),
        (pa.float64(), "real", None),
        (pa.int64(), "timestamp with time zone", None),
        (pa.timestamp("us"), "timestamp with time zone", None),
        (pa.timestamp("ms", "UTC"), "timestamp with time zone", pa.timestamp("us", "UTC")),
        (pa.string(), "character varying(10)", pa.string()),
        (pa.string(), "jsonb", None),
        (pa.decimal128(10, 2), "numeric", pa.decimal128(10, 2)),
        (pa.decimal128(10, 2), "numeric(9,1)", None),
        (pa.decimal128(10, 2), "numeric(12,3)", pa.decimal128(10, 2)),
        (pa.decimal128(10, 2), "numeric(10,3)", None),
        (pa.int64(), "numeric(20,0)", pa.decimal128(19, 0)),
        (pa.list_(pa.int32()), "bigint[]", pa.list_(pa.int64())),
        (pa.list_(pa.string()), "bigint[]", None),
        (pa.uint64(), "bigint", None),
    ],
)
def test_a_value_is_never_sent_as_another(ours, theirs, sent):
    assert sent_type(ours, theirs) == sent


def test_tables_of_others_are_compared_before_rows_are_decided(place):
    place.run("CREATE TABLE flights (k integer, v text)")
    table = place.open()
    with pytest.raises(InvalidInputError, match="'k' is integer, and int64 in the rows"):
        table.check(table.look(APP))
    place.run("ALTER TABLE flights ALTER k TYPE numeric, ADD more text NOT NULL DEFAULT 'm'")
    commit_once(place.open(), place.change(0, None, [1]), WORLD)
    assert place.run("SELECT * FROM flights") == [(decimal.Decimal(1), "c0", "m")]
    for kind in (pa.uint64(), pa.struct([("x", pa.int64())]), pa.map_(pa.string(), pa.string())):
        with pytest.raises(InvalidInputError, match="'odd'"):
            place.open(pa.schema([("odd", kind)]))
    with pytest.raises(InvalidInputError, match="character 0"):
        check_rows(pa.table({"s": ["a\0b"]}), place.target(), "operator x")


def test_rows_that_break_a_constraint_stay_for_later(place):
    place.run("CREATE TABLE flights (k bigint CHECK (k < 5), v text)")
    change = place.change(0, None, [1, 7])
    for _ in range(2):
        with pytest.raises(InvalidInputError, match="check constraint"):
            commit_once(place.open(), change, WORLD)
    assert place.rows() == []
    place.run("ALTER TABLE flights DROP CONSTRAINT flights_k_check")
    commit_once(place.open(), change, WORLD)
    assert len(place.rows()) == 2


def test_missing_rights_and_a_server_that_is_away(place):
    place.run("DROP ROLE IF EXISTS guest")
    place.run("CREATE ROLE guest LOGIN")
    place.run("CREATE TABLE flights (k bigint NOT NULL, v text)")
    guest = PostgresqlPlace(place.folder, uri=place.uri.replace("tester@", "guest@"))
    with pytest.raises(AccessDeniedError, match="permission denied"):
        commit_once(guest.open(), guest.change(0, None, [1]), WORLD)
    place.run("GRANT INSERT, SELECT ON flights TO guest")
    commit_once(place.open(), place.change(0, None, [9], app="other"), WORLD)
    place.run("GRANT INSERT, UPDATE, SELECT ON stateline_commits TO guest")
    commit_once(guest.open(), guest.change(0, None, [1]), WORLD)
    assert place.rows() == [(1, "c0"), (9, "c0")]
    away = PostgresqlPlace(place.folder, uri="postgresql://tester@127.0.0.1:9/none")
    with pytest.raises(UnavailableError, match="no row is lost"):
        away.open().look(APP)


@dataclasses.dataclass
class CataloguedPlace(IcebergPlace):
    """An Iceberg table whose catalog is in PostgreSQL."""

    uri: str = ""

    def target(self):
        target = super().target()
        return dataclasses.replace(target, options={**target.options, "catalog.uri": self.uri})


class Frozen(PostgresqlTable):
    """A driver that freezes at one step of its transaction, until it is woken."""

    def __init__(self, target, schema, step):
        super().__init__(target, schema)
        self.step, self.reached, self.wake = step, threading.Event(), threading.Event()

    def _open(self, *, may_create):
        session = super()._open(may_create=may_create)
        real = getattr(session, self.step)

        def freeze(*args):
            if self.step == "load":
                real(*args)
            self.reached.set()
            self.wake.wait(60)
            if self.step != "load":
                real(*args)

        if may_create:
            setattr(session, self.step, freeze)
        return session


@pytest.mark.parametrize("step", ["load", "commit"])
def test_a_driver_that_froze_inside_its_transaction_loses(place, step):
    commit_once(place.open(), place.change(0, None, [1]), WORLD)
    options = {"uri": place.uri, "idle_timeout": "300ms", "lock_timeout": "5s"}
    target = TableTarget(format="postgresql", target="flights", options=options)
    frozen = Frozen(target, SCHEMA, step)
    change, outcomes = place.change(1, 0, [2]), []
    state = frozen.look(APP)
    thread = threading.Thread(target=lambda: outcomes.append(frozen.attempt(change, state)))
    thread.start()
    assert frozen.reached.wait(30)
    commit_once(open_table(target, schema=SCHEMA), change, WORLD)
    commit_once(place.open(), place.change(2, 1, [3]), WORLD)
    frozen.wake.set()
    thread.join(30)
    assert outcomes[0].outcome is not Outcome.DONE
    assert place.rows() == [(1, "c0"), (2, "c1"), (3, "c2")]


def race(place, change, drivers):
    """Several drivers commit the same change at the same moment."""
    barrier, failures = threading.Barrier(drivers), []

    def drive():
        barrier.wait(30)
        try:
            commit_once(place.open(), change, WORLD)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=drive) for _ in range(drivers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_drivers_that_commit_at_once_add_each_row_once(place):
    for number in range(8):
        race(place, place.change(number, number - 1 if number else None, [number]), drivers=3)
    assert place.rows() == [(number, f"c{number}") for number in range(8)]


def test_an_iceberg_catalog_in_postgresql(uri, tmp_path):
    """Two drivers of one table whose catalog is a database: the swap is a row of it."""
    with CataloguedPlace(tmp_path, uri=uri.replace("postgresql://", "postgresql+psycopg://")) as place:
        protocol.test_a_second_driver_at_the_same_moment_adds_nothing(place)
        for number in range(2, 6):
            race(place, place.change(number, number - 1, [number]), drivers=2)
        assert [row[0] for row in place.rows()] == [1, 2, 2, 3, 4, 5]


def test_a_table_that_is_open_holds_no_connection(place, uri):
    def connections():
        # The server notices the end of a connection a moment later than the client.
        asked = (
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        with psycopg.connect(uri, autocommit=True) as connection:
            return connection.execute(asked).fetchone()[0]

    before = connections()
    table = place.open()
    for number in range(2):
        commit_once(table, place.change(number, number - 1 if number else None, [number]), WORLD)
    for _ in range(1200):
        if connections() <= before:
            break
        time.sleep(0.05)
    assert connections() <= before
    table.close()
    commit_once(table, place.change(2, 1, [2]), WORLD)
    assert len(place.rows()) == 3


def test_an_interrupt_that_leaves_a_connection_open_is_not_hidden_by_closing(place):
    table = place.open()
    session = table._open(may_create=False)
    with pytest.raises(KeyboardInterrupt), table:
        raise KeyboardInterrupt
    session.close()
    commit_once(table, place.change(0, None, [1]), WORLD)
    assert place.rows() == [(1, "c0")]


def test_an_interrupt_while_a_connection_is_set_up_closes_it(place, monkeypatch):
    found = []

    def interrupted(session, statement, *values):
        found.append(session)
        raise KeyboardInterrupt

    monkeypatch.setattr(postgresql._PostgresqlSession, "run", interrupted)
    with place.open() as table, pytest.raises(KeyboardInterrupt):
        table.look(APP)
    assert found[0]._connection._closed
