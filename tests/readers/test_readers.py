"""Tables as others read them: cases that went wrong once, and cases that are drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from stateline.tables import delta
from tests.integration.tables.postgresql_server import PostgresqlServer
from tests.readers.__main__ import program_of, smaller
from tests.readers.cases import Case, Step
from tests.readers.drawing import TABLES, draw
from tests.readers.inputs import INPUTS
from tests.readers.run import run_case
from tests.readers.spark_client import SparkReader

# One process has the other Spark. The first test may have to make its environment.
pytestmark = [pytest.mark.xdist_group("readers"), pytest.mark.timeout(900)]

LAKES = ("delta", "delta-upsert", "iceberg", "files")
SEEDS = range(1000, 1010)
SEEDS_OF_SPARK = (2000,)
FILTERS_OF_SPARK = 12


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkReader]:
    with SparkReader() as reader:
        yield reader


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    server = PostgresqlServer()
    yield server.uri
    server.close()


@pytest.mark.parametrize("name", INPUTS)
def test_what_went_wrong_once(name: str, spark: SparkReader, uri: str) -> None:
    assert run_case(INPUTS[name], spark, uri, FILTERS_OF_SPARK).violations == []


@pytest.mark.parametrize("table", LAKES)
def test_drawn_cases_under_spark(table: str, spark: SparkReader) -> None:
    for seed in SEEDS_OF_SPARK:
        outcome = run_case(draw(table, seed), spark, filters_of_spark=FILTERS_OF_SPARK)
        assert outcome.violations == [], program_of(outcome.case)


@pytest.mark.parametrize("table", TABLES)
def test_drawn_cases(table: str, uri: str) -> None:
    outcomes = [run_case(draw(table, seed), None, uri) for seed in SEEDS]
    assert {program_of(each.case): each.violations for each in outcomes if each.violations} == {}
    assert sum(each.filters for each in outcomes) > 50


PLAIN = Case("delta", (("c", "int64"),), (Step("write", ((1, 5), (2, 7))), Step("write", ((3, 9),))))


def test_a_wrong_bound_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    real = delta.file_statistics

    def wrong(*given: Any) -> str:
        found = json.loads(real(*given))
        found["maxValues"]["c"] -= 1
        return json.dumps(found)

    monkeypatch.setattr(delta, "file_statistics", wrong)
    outcome = run_case(PLAIN)
    assert any("finds [], expected [3]" in each for each in outcome.violations)
    small = smaller(outcome, run_case).case
    assert sum(len(step.rows) for step in small.steps) == 1
    assert run_case(eval(program_of(small).partition("run_case(")[2].rpartition(", SparkReader")[0], _NAMES)).violations


_NAMES = {"Case": Case, "Step": Step}


def test_a_lost_and_a_doubled_row_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = delta.DeltaLog.attempt
    for times, expected in ((0, "2 rows, expected 3"), (2, "4 rows, expected 3")):

        def attempt(self: Any, change: Any, state: Any, times: int = times) -> Any:
            if change.token.checkpoint_id == 1 and times == 0:
                change = _without_files(change)
            done = real(self, change, state)
            if change.token.checkpoint_id == 1 and times == 2:
                self._table_again = real(self, _renamed(self, change), self.look("another"))
            return done

        monkeypatch.setattr(delta.DeltaLog, "attempt", attempt)
        assert any(expected in each for each in run_case(PLAIN).violations)


def _without_files(change: Any) -> Any:
    import dataclasses

    return dataclasses.replace(change, files=())


def _renamed(table: Any, change: Any) -> Any:
    import dataclasses

    made = []
    for file in change.files:
        name = f"again-{file.name}"
        table._store.put_if_absent(name, table._store.get(file.name))
        made.append(dataclasses.replace(file, name=name))
    token = dataclasses.replace(change.token, app="another")
    return dataclasses.replace(change, files=tuple(made), token=token)
