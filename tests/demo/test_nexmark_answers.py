"""The check of Nexmark's outputs notices every kind of difference. The outputs here are made from the answers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from examples.nexmark.answers import ANSWERS, VIEWS
from examples.nexmark.events import EventSettings
from examples.nexmark.source import prepare
from examples.nexmark.verification import compare

SETTINGS = EventSettings(events=2_500, rate=40)
EXACT = [name for name, answer in ANSWERS.items() if not answer.has_ties and name != "q12"]
WITH_TIES = [name for name, answer in ANSWERS.items() if answer.has_ties]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(SETTINGS, tmp_path_factory.mktemp("nexmark"))


@pytest.fixture
def database(source: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute(VIEWS.format(source=source))
        yield connection


def write(database: duckdb.DuckDBPyConnection, folder: Path, sql: str, number: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    database.execute(f"COPY ({sql}) TO '{folder}/part-{number}.parquet' (FORMAT parquet)")


def right_rows(name: str) -> str:
    """Rows that a pipeline might write for a query."""
    return f"SELECT *, 1 AS checkpoint_id FROM ({ANSWERS[name].sql})"


@pytest.mark.parametrize("name", EXACT)
def test_right_rows_are_equal_and_others_are_not(
    name: str, source: Path, tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    rows = right_rows(name)
    [(number,)] = database.sql(f"SELECT count(*) FROM ({rows})").fetchall()
    assert number > 0
    write(database, tmp_path / "right", rows)
    right = compare(name, source, tmp_path / "right")
    assert (right.is_equal, right.rows, len(right.first_rows)) == (True, number, min(number, 5))
    write(database, tmp_path / "short", f"FROM ({rows}) OFFSET 1")
    short = compare(name, source, tmp_path / "short")
    assert (short.missing, short.unexpected, len(short.differences)) == (1, 0, 1)
    write(database, tmp_path / "twice", rows)
    write(database, tmp_path / "twice", f"FROM ({rows}) LIMIT 1", 1)
    twice = compare(name, source, tmp_path / "twice")
    assert (twice.missing, twice.unexpected) == (0, 1)


def test_rows_of_older_checkpoints_are_replaced(
    source: Path, tmp_path: Path, database: duckdb.DuckDBPyConnection
) -> None:
    wrong = f"SELECT * REPLACE (-sum_price AS sum_price, {{checkpoint}} AS checkpoint_id) FROM ({right_rows('q17')})"
    write(database, tmp_path / "q17", wrong.format(checkpoint=0))
    write(database, tmp_path / "q17", right_rows("q17"), 1)
    assert compare("q17", source, tmp_path / "q17").is_equal
    write(database, tmp_path / "q17", wrong.format(checkpoint=2), 2)
    assert not compare("q17", source, tmp_path / "q17").is_equal


def test_a_query_without_output_is_compared_too(source: Path, tmp_path: Path) -> None:
    comparison = compare("q2", source, tmp_path / "nowhere")
    assert (comparison.is_equal, comparison.rows, comparison.missing > 0) == (False, 0, True)


@pytest.fixture
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three bids for one auction at one time: two of the same bidder, and two of the same price."""
    source = prepare(SETTINGS, tmp_path_factory.mktemp("tied"))
    bids = """(VALUES (1, 7, 50, 'a'), (1, 7, 90, 'b'), (1, 8, 50, 'c')) AS bids(auction, bidder, price, extra)"""
    time = "TIMESTAMPTZ '2026-01-01 00:00:00Z'"
    columns = f"auction, bidder, price, 'x' AS channel, 'y' AS url, {time} AS dateTime, extra"
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT {columns} FROM {bids}) TO '{source}/bids/00000.parquet' (FORMAT parquet)")
    return source


RANKED = "SELECT *, {rank} AS rank, 1 AS checkpoint_id FROM bids WHERE extra = '{extra}'"
ORDERS = {
    ("b", "a", "c"): True,
    ("b", "c", "a"): True,
    ("a", "b", "c"): False,
    ("b", "a", "a"): False,
    ("b", "a"): False,
    ("b", "a", "c", "c"): False,
}


@pytest.mark.parametrize("order", ORDERS)
def test_rows_of_equal_rank_may_come_in_any_order(order: tuple[str, ...], tied: Path, tmp_path: Path) -> None:
    with duckdb.connect() as connection:
        connection.execute(VIEWS.format(source=tied))
        for place, extra in enumerate(order, start=1):
            write(connection, tmp_path / "q19", RANKED.format(rank=place, extra=extra), place)
    assert compare("q19", tied, tmp_path / "q19").is_equal is ORDERS[order]


@pytest.mark.parametrize(
    ("chosen", "equal"), [("ac", True), ("bc", True), ("abc", False), ("ab", False), ("c", False), ("acc", False)]
)
def test_of_tied_rows_exactly_one_is_wanted(chosen: str, equal: bool, tied: Path, tmp_path: Path) -> None:
    with duckdb.connect() as connection:
        connection.execute(VIEWS.format(source=tied))
        for number, extra in enumerate(chosen):
            write(connection, tmp_path / "q18", RANKED.format(rank=1, extra=extra), number)
    assert compare("q18", tied, tmp_path / "q18").is_equal is equal


def test_every_query_has_its_answer_and_its_kind_of_check() -> None:
    from examples.nexmark.queries import QUERIES

    assert list(QUERIES) == list(ANSWERS)
    assert sorted(WITH_TIES) == ["q18", "q19", "q9"]
    assert SETTINGS.longest_auction > dt.timedelta()
