"""The output of a query against its answer, row by row, by DuckDB: both are plain files for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from examples.nexmark.answers import ANSWERS, VIEWS, Answer

__all__ = ["Comparison", "compare"]

SHOWN = 5


@dataclass(frozen=True)
class Comparison:
    """How the output of a query compares with its answer.

    Attributes:
        columns: Names of the compared columns.
        rows: Rows that the answer has.
        first_rows: Some of the output, to be shown.
        missing: Rows, or keys, that the output lacks.
        unexpected: Rows that it should not have, and those that it has twice.
        differences: A few of both, as text.
    """

    columns: list[str]
    rows: int
    first_rows: list[tuple[Any, ...]]
    missing: int
    unexpected: int
    differences: list[str]

    @property
    def is_equal(self) -> bool:
        return self.missing == self.unexpected == 0


def compare(name: str, source: Path, output: Path) -> Comparison:
    """Compares what query ``name`` has written with the answer over all events.

    Args:
        name: The query.
        source: The events.
        output: Folder of its output, Parquet files.
    """
    answer = ANSWERS[name]
    with _opened(source, output) as database:
        database.execute(f"CREATE TEMP TABLE answer AS {answer.sql}")
        database.execute(f"CREATE TEMP TABLE output AS {_reading(answer, output)}")
        columns = [row[0] for row in database.execute("DESCRIBE answer").fetchall()]
        names = ", ".join(columns)
        missing, unexpected = _with_ties(answer, columns) if answer.has_ties else _exact(names)
        lacking, surplus = database.sql(missing), database.sql(unexpected)
        differences = [f"missing: {row}" for row in lacking.limit(SHOWN).fetchall()]
        differences += [f"not expected: {row}" for row in surplus.limit(SHOWN).fetchall()]
        order = "ALL" if not answer.key else ", ".join(column for column in answer.key if column in columns)
        return Comparison(
            columns=columns,
            rows=_count(database, "output"),
            first_rows=database.execute(f"SELECT {names} FROM output ORDER BY {order} LIMIT {SHOWN}").fetchall(),
            missing=len(lacking),
            unexpected=len(surplus),
            differences=differences,
        )


@contextmanager
def _opened(source: Path, output: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as database:
        database.execute(VIEWS.format(source=source))
        if _has_files(output):
            files = f"'{output}/**/part-*.parquet', hive_partitioning = true, hive_types_autocast = false"
            database.execute(f"CREATE VIEW written AS SELECT * FROM read_parquet({files})")
        yield database


def _has_files(output: Path) -> bool:
    """Whether there are any: a query without output writes none."""
    return next(output.rglob("part-*.parquet"), None) is not None


def _reading(answer: Answer, output: Path) -> str:
    return answer.reading.format(latest=_latest(answer)) if _has_files(output) else "FROM answer LIMIT 0"


def _latest(answer: Answer) -> str:
    """Of rows that replace each other, those of the newest checkpoint."""
    parts = [column for column in answer.key if column != answer.rank]
    if not parts:
        return ""
    return f"QUALIFY checkpoint_id = max(checkpoint_id) OVER (PARTITION BY {', '.join(parts)})"


def _exact(names: str) -> tuple[str, str]:
    ours, theirs = f"SELECT {names} FROM output", f"SELECT {names} FROM answer"
    return f"{theirs} EXCEPT ALL {ours}", f"{ours} EXCEPT ALL {theirs}"


def _with_ties(answer: Answer, columns: list[str]) -> tuple[str, str]:
    """Exactly one row for each key, one of those that could be it, and none twice."""
    key, names = ", ".join(answer.key), ", ".join(columns)
    rows = ", ".join(column for column in columns if column != answer.rank)
    missing = f"SELECT DISTINCT {key} FROM answer EXCEPT ALL SELECT {key} FROM output"
    unexpected = f"""
        (SELECT {names} FROM output EXCEPT ALL SELECT DISTINCT {names} FROM answer) UNION ALL
        (FROM output SELECT {names} QUALIFY row_number() OVER (PARTITION BY {rows}) > 1) UNION ALL
        (FROM output SELECT {names} QUALIFY row_number() OVER (PARTITION BY {key}) > 1)"""
    return missing, unexpected


def _count(database: duckdb.DuckDBPyConnection, table: str) -> int:
    [(rows,)] = database.execute(f"SELECT count(*) FROM {table}").fetchall()
    return rows
