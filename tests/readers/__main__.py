"""``python -m tests.readers delta --seed 1 --cases 100``: draw cases, run them, print what was found as JSON.

A failing case is made smaller until nothing more can be left out, and printed as a program of a few lines.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

from tests.integration.tables.postgresql_server import PostgresqlServer
from tests.readers.cases import Case, Step
from tests.readers.drawing import SPARK_READS, TABLES, draw
from tests.readers.run import Outcome, run_case
from tests.readers.spark_client import SparkReader

TRIES: Final = 60
SECONDS_OF_TRIES: Final = 60
CASES_OF_A_SPARK: Final = 200


def main() -> int:
    """Run cases; 1 if one does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.readers", description=__doc__)
    parser.add_argument("table", choices=[*TABLES, "all"])
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--cases", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=10**9)
    parser.add_argument("--no-spark", action="store_true", help="leave out the other Spark")
    parser.add_argument("--keep-going", action="store_true", help="do not end at the first case that fails")
    given = parser.parse_args()
    tables = TABLES if given.table == "all" else (given.table,)
    found = explore(
        tables,
        given.seed,
        given.cases,
        given.seconds,
        with_spark=not given.no_spark,
        is_patient=given.keep_going,
    )
    sys.stdout.write(f"{json.dumps(found, indent=2)}\n")
    return 1 if found["failures"] else 0


def explore(
    tables: tuple[str, ...], seed: int, cases: int, seconds: float, *, with_spark: bool, is_patient: bool = False
) -> dict[str, Any]:
    """Run the cases of the seeds from ``seed`` on, of each table in turn, until one of the limits.

    Returns:
        How many ``cases`` and ``filters``, how the cases ended, and the stories of ``failures``.
    """
    ends_at, ended, failures, filters, notes = time.monotonic() + seconds, Counter[str](), [], 0, Counter[str]()
    reads_with_spark = with_spark and any(table.startswith(SPARK_READS) for table in tables)
    with ExitStack() as stack:
        uri = ""
        if any(table.startswith("postgresql") for table in tables):
            server = PostgresqlServer()
            stack.callback(server.close)
            uri = server.uri
        spark: SparkReader | None = None
        for number in range(cases):
            if time.monotonic() > ends_at:
                break
            if reads_with_spark and number % CASES_OF_A_SPARK == 0:
                if spark is not None:
                    spark.close()
                spark = stack.enter_context(SparkReader())
            table = tables[number % len(tables)]
            case = draw(table, seed + number // len(tables))
            outcome = run_case(case, spark, uri)
            ended[outcome.ended] += 1
            filters += outcome.filters
            notes.update(note.partition(":")[0][:60] for note in outcome.notes if note.startswith("Spark refuses"))
            if outcome.violations:
                failures.append(story(outcome, lambda one: run_case(one, spark, uri)))  # noqa: B023 - called at once
                if not is_patient:
                    break
        return {
            "cases": sum(ended.values()),
            "filters": filters,
            "ended": dict(ended),
            "notes": dict(notes),
            "failures": failures,
        }


def story(outcome: Outcome, run: Callable[[Case], Outcome]) -> str:
    """What a case shows, as a program of a few lines."""
    small = smaller(outcome, run)
    case, violation = small.case, small.violations[0]
    table = case.table + ("-upsert" if case.key else "")
    return "\n".join(
        [
            f"{violation[:1500]}",
            f"seed {case.seed}: python -m tests.readers {table} --seed {case.seed} --cases 1",
            program_of(case),
        ]
    )


def program_of(case: Case) -> str:
    """A program that runs a case."""
    return (
        "from tests.readers.cases import Case, Step\nfrom tests.readers.filters import Filter\n"
        "from tests.readers.kinds import *\nfrom tests.readers.run import run_case\n"
        "from tests.readers.spark_client import SparkReader\n"
        f"print(run_case({case!r}, SparkReader()).violations)"
    )


def smaller(outcome: Outcome, run: Callable[[Case], Outcome]) -> Outcome:
    """The smallest case found that fails in the same way."""
    kind, tries, ends_at = _kind(outcome), 0, time.monotonic() + SECONDS_OF_TRIES
    is_smaller = True
    while is_smaller and tries < TRIES:
        is_smaller = False
        for one in _parts(outcome.case):
            tries += 1
            if tries > TRIES or time.monotonic() > ends_at:
                break
            again = run(one)
            if again.violations and _kind(again) == kind:
                outcome, is_smaller = again, True
                break
    return outcome


def _kind(outcome: Outcome) -> str:
    """What fails, without the values: the reader, or the class of an error with the beginning of its message."""
    if not outcome.violations:
        return ""
    first = outcome.violations[0]
    return first[:70] if first.startswith(("untyped", "refused", "said")) else first.partition(":")[0]


def _parts(case: Case) -> Iterator[Case]:
    """The case with one thing left out."""
    for number in range(len(case.steps)):
        if len(case.steps) > 1:
            yield dataclasses.replace(case, steps=case.steps[:number] + case.steps[number + 1 :])
    for position, (name, _) in enumerate(case.columns, 1):
        used = {
            *case.key,
            *(step.column for step in case.steps),
            *(step.where.column for step in case.steps if step.where),
        }
        if len(case.columns) > 1 and name not in used and not any(name in part for part in case.partition_by):
            yield _without_column(case, position)
    for part in case.partition_by:
        yield dataclasses.replace(case, partition_by=tuple(each for each in case.partition_by if each != part))
    if case.parallelism > 1:
        yield dataclasses.replace(case, parallelism=1)
    if case.folder != "t":
        yield dataclasses.replace(case, folder="t")
    for number, step in enumerate(case.steps):
        for row in range(len(step.rows)):
            if len(step.rows) > 1:
                less = dataclasses.replace(step, rows=step.rows[:row] + step.rows[row + 1 :])
                yield dataclasses.replace(case, steps=(*case.steps[:number], less, *case.steps[number + 1 :]))


def _without_column(case: Case, position: int) -> Case:
    def cut(rows: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(row[:position] + row[position + 1 :] for row in rows)

    steps: list[Step] = [dataclasses.replace(step, rows=cut(step.rows), gone=cut(step.gone)) for step in case.steps]
    columns = case.columns[: position - 1] + case.columns[position:]
    return dataclasses.replace(case, steps=tuple(steps), columns=columns)


if __name__ == "__main__":
    sys.exit(main())
