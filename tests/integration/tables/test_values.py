"""PostgreSQL: a row is refused before a record stands, or the table shows it; and tables that cannot take rows."""

from __future__ import annotations

import random
from collections import Counter

import psycopg
import pyarrow as pa
import pytest

from stateline.environment import Environment
from stateline.errors import InvalidInputError
from stateline.tables import TableTarget, commit_once, open_table
from tests.unit.tables.drawn_values import drawn_rows, folder_of, held_by_rule
from tests.unit.tables.table_kit import APP, SCHEMA, PostgresqlPlace

WORLD = Environment()
SEEDS = 40
_AS_NUMBER = {
    "date": "({0} - date '1970-01-01')",
    "timestamp without time zone": "(extract(epoch from {0}) * 1000000)::numeric(30, 0)",
    "timestamp with time zone": "(extract(epoch from {0}) * 1000000)::numeric(30, 0)",
}


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_row_is_refused_before_the_record_or_it_is_shown(mode, uri, tmp_path):
    results = Counter()
    for seed in range(SEEDS):
        draw = random.Random(f"{mode} {seed}")
        place = PostgresqlPlace(folder_of(tmp_path, seed), mode, uri=uri, table=f"t{seed}")
        rows = drawn_rows(draw, upsert=mode == "upsert")

        def read(expected, place=place, rows=rows):
            """Moments as numbers: Python has no such years."""
            with psycopg.connect(place.uri) as connection:
                asked = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s"
                kinds = dict(connection.execute(asked, [place.table]).fetchall())
                shown = [_AS_NUMBER.get(kinds[name], "{0}").format(f'"{name}"') for name in rows.column_names]
                found = connection.execute(f"SELECT {', '.join(shown)} FROM {place.table}").fetchall()
            return {row[0]: dict(zip(rows.column_names, row, strict=True)) for row in found}

        with place:
            results[held_by_rule(place, place.target(), rows, read, moments_as_numbers=True)] += 1
    assert min(results["refused"], results["shown"]) >= SEEDS // 8, results


def target(uri, name, **more):
    return TableTarget(format="postgresql", target=name, options={"uri": uri}, **more)


def test_names_are_counted_in_bytes(uri):
    for name in ("t" * 64, "é" * 32, f"{'s' * 64}.t", f"public.{'t' * 64}"):
        with pytest.raises(InvalidInputError, match="at most 63 bytes, got 64"):
            open_table(target(uri, name), schema=SCHEMA)
    with pytest.raises(InvalidInputError, match=r"name of a column .* got 64"):
        open_table(target(uri, "t"), schema=pa.schema([("é" * 32, pa.int64())]))
    with pytest.raises(InvalidInputError, match="'v' and 'V' apart"):
        open_table(target(uri, "t"), schema=pa.schema([("v", pa.int64()), ("V", pa.int64())]))
    for name in ("é" * 31, "t" * 63):
        with open_table(target(uri, name), schema=SCHEMA) as table:
            table.create()
            assert table.look(APP).identity is not None


REFUSED: dict[str, tuple[str, str, str]] = {
    "a view": ("CREATE TABLE base (k bigint, v text); CREATE VIEW flights AS TABLE base", "is a view", "append"),
    "a materialized view": (
        "CREATE MATERIALIZED VIEW flights AS SELECT 1::bigint AS k, ''::text AS v",
        "is a materialized view",
        "append",
    ),
    "an unlogged table": ("CREATE UNLOGGED TABLE flights (k bigint, v text)", "is not logged", "append"),
    "partitions without a default": (
        (
            "CREATE TABLE flights (k bigint, v text) PARTITION BY LIST (k);"
            "CREATE TABLE one PARTITION OF flights FOR VALUES IN (1)"
        ),
        "no default one",
        "append",
    ),
    "rules": (
        "CREATE TABLE flights (k bigint PRIMARY KEY, v text);CREATE RULE r AS ON INSERT TO flights DO ALSO NOTHING",
        "has rules",
        "upsert",
    ),
    "short text": ("CREATE TABLE flights (k bigint, v varchar(3))", "may have longer text", "append"),
    "another collation": (
        # Debian's server has no ICU, which is where such collations come from.
        (
            'CREATE COLLATION loose FROM "C"; CREATE TABLE flights (k bigint, v text COLLATE loose PRIMARY KEY); '
            "UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'loose'"
        ),
        "no primary key or unique index",
        "by v",
    ),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_looks_like_a_table_and_cannot_take_every_row_is_refused(case, uri, tmp_path):
    statements, said, mode = REFUSED[case]
    place = PostgresqlPlace(tmp_path, "upsert" if mode == "upsert" else "append", uri=uri)
    for statement in statements.split(";"):
        place.run(statement)
    wanted = target(uri, "flights", mode="upsert", key=("v",)) if mode == "by v" else place.target()
    with place:
        table = place.open(target=wanted)
        with pytest.raises(InvalidInputError, match=said):
            table.check(table.look(APP))


def test_partitions_with_a_default_take_every_row(uri, tmp_path):
    place = PostgresqlPlace(tmp_path, uri=uri)
    place.run("CREATE TABLE flights (k bigint, v text) PARTITION BY LIST (k)")
    place.run("CREATE TABLE one PARTITION OF flights FOR VALUES IN (1)")
    place.run("CREATE TABLE rest PARTITION OF flights DEFAULT")
    with place:
        table = place.open()
        table.check(table.look(APP))
        commit_once(table, place.change(0, None, [1, 2]), WORLD)
    assert place.rows() == [(1, "c0"), (2, "c0")]


def test_a_database_without_every_character_is_refused(server, tmp_path):
    with psycopg.connect(server.uri, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS latin")
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    place = PostgresqlPlace(tmp_path, uri=f"{server.uri.rpartition('/')[0]}/latin")
    place.run("CREATE TABLE flights (k bigint, v text)")
    with place:
        table = place.open()
        with pytest.raises(InvalidInputError, match="encoding LATIN1"):
            table.check(table.look(APP))
