"""Runs a case, and says what does not hold.

A case may end in three ways that are right: ``write_table`` refuses it; a batch is refused before its record exists,
and the table has what it had; or every reader finds every row, by every filter.
"""

from __future__ import annotations

import math
import sqlite3
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow as pa
from pyiceberg.exceptions import NotInstalledError

from stateline.errors import StatelineError, UnavailableError
from tests.readers.cases import Case, Model, Step
from tests.readers.filters import Filter, filters_for, is_nan, is_zero
from tests.readers.kinds import array_of, spark_of
from tests.readers.places import PLACES, Place, PostgresqlPlace, SqlitePlace, copy_without_statistics
from tests.readers.queries import ID, Query
from tests.readers.spark_client import SparkReader, SparkRefusedError

__all__ = ["Outcome", "run_case"]

FILTERS_OF_SPARK: Final = 30
_INFINITE: Final = (math.inf, -math.inf)
_REFUSALS: Final = (ValueError, sqlite3.Error, psycopg.Error, NotInstalledError)
"""What a library says of a change that a table cannot have."""


@dataclass
class Outcome:
    """How a case ended.

    Attributes:
        case: What was tried.
        ended: ``found``, ``refused`` (by ``write_table``), ``refused later`` (before a record).
        filters: How many filters were compared.
        violations: What does not hold; empty for a good end.
        notes: Steps that the other Spark refused, and other things that are no fault of ours.
    """

    case: Case
    ended: str = "found"
    filters: int = 0
    violations: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _EndedError(Exception):
    """The case has ended early, as it may."""


def run_case(
    case: Case, spark: SparkReader | None = None, uri: str = "", filters_of_spark: int = FILTERS_OF_SPARK
) -> Outcome:
    """Run a case.

    Args:
        case: What is tried.
        spark: The other Spark; ``None`` leaves out what it would do and read.
        uri: Of a PostgreSQL server, for its tables.
        filters_of_spark: How many filters the other Spark runs at most.
    """
    outcome = Outcome(case)
    with tempfile.TemporaryDirectory(prefix="stateline-case-") as folder:
        run = _Run(case, Path(folder), spark, uri, outcome)
        run.filters_of_spark = filters_of_spark
        try:
            run.everything()
        except _EndedError:
            pass
        except Exception as error:
            what = f"untyped error: {type(error).__name__}: {str(error)[:600]}"
            outcome.violations.append(f"{what}\n{traceback.format_exc()[-3000:]}")
        finally:
            run.close()
    return outcome


class _Run:
    """One case on its way."""

    def __init__(self, case: Case, folder: Path, spark: SparkReader | None, uri: str, outcome: Outcome) -> None:
        self.case, self.spark, self.outcome = case, spark, outcome
        self.place: Place = PLACES[case.table](case, folder, uri)
        self.model = Model(case, self.place.small)
        self.query: Query | None = None
        self.folder = folder
        self.is_open_in_spark = False
        self.is_changed = False
        self.filters_of_spark = FILTERS_OF_SPARK

    def close(self) -> None:
        if self.query is not None:
            self.query.close()

    def everything(self) -> None:
        if isinstance(self.place, PostgresqlPlace):
            self.place.prepare()
        self._begin("refused")
        self._check_names()
        for number, step in enumerate(self.case.steps):
            if step.do == "write":
                if number % 2 or self.is_changed:
                    self._begin("refused later")
                self._write(step)
            else:
                self._change(step)
            self._compare_rows(f"after step {number} ({step.do})")
        self._compare_filters()
        self._begin("refused later")
        self._compare_rows("after another start")

    def _begin(self, ended: str) -> None:
        """A program that begins, or begins again where the records end."""
        kind = "files" if self.case.table == "files" else "table"
        if self.query is not None:
            self.query.close()
        given: Any = {kind: self.place.arguments()}
        try:
            self.query = Query(self.case.schema, f"memory://{self.folder}", parallelism=self.case.parallelism, **given)
            self.query.start()
        except StatelineError as error:
            if ended == "refused later" and not self.is_changed:
                self._violation(f"the next start is refused: {error}")
            self._refused(ended, error)

    def _check_names(self) -> None:
        """Delta Lake's own ``CREATE TABLE`` refuses some names, and its readers take them."""
        refused = [name for name, _ in self.case.columns if set(name) & set(" ,;{}()\n\t=")]
        if self.case.table == "delta" and refused:
            self._violation(f"write_table takes columns {refused}, which Delta Lake refuses")

    def _refused(self, ended: str, error: Exception) -> None:
        self.outcome.ended = ended
        self.outcome.notes.append(str(error)[:300])
        raise _EndedError

    def _query(self) -> Query:
        assert self.query is not None
        return self.query

    def _write(self, step: Step) -> None:
        query, schema = self._query(), self.case.schema
        before = query.newest
        try:
            query.run(_table(step.rows, schema), _table(step.gone, schema))
        except StatelineError as error:
            if query.newest != before:
                self._violation(f"refused after the record: {error}")
                raise _EndedError from error
            if isinstance(error, UnavailableError):
                self._violation(f"said to be unavailable: {error}")
                raise _EndedError from error
            self._compare_rows("after a refusal")
            self._refused("refused later", error)
        self.model.write(step)

    def _change(self, step: Step) -> None:
        if not step.spark:
            try:
                self.place.change(step, self.model)
                if step.do in ("rename", "add", "drop"):
                    self.is_changed = True
            except _REFUSALS as error:
                self.outcome.notes.append(f"{self.case.table} refuses {step.do}: {str(error)[:300]}")
            return
        if self.spark is None:
            return
        try:
            _SPARK[step.do](self, step)
        except SparkRefusedError as error:
            self.outcome.notes.append(f"Spark refuses {step.do}: {str(error)[:300]}")

    # -- what is compared ---------------------------------------------------------------------------------------------

    def _compare_rows(self, when: str) -> None:
        if not self.model.rows and self.case.table != "files" and self.query is not None and self.query.newest is None:
            return
        if self.case.table == "files" and (self.case.partition_by or not self.model.rows):
            return  # Values of partitions are in the folders, of which only Spark makes columns again.
        names, rows = self.place.texts()
        expected = self.place.expected(self.model) if isinstance(self.place, SqlitePlace) else self.model.texts()
        if isinstance(self.place, PostgresqlPlace):
            expected, rows = _numbers_of(expected), _numbers_of(rows)
        if names != list(self.model.kinds):
            self._violation(f"{when}: columns {names}, expected {list(self.model.kinds)}")
        elif rows != expected:
            self._violation(f"{when}: rows differ: {_difference(rows, expected)}")

    def _filters(self) -> list[Filter]:
        found = []
        for name, kind in self.model.kinds.items():
            if name != ID:
                found += filters_for(name, kind, [row.get(name) for row in self.model.rows])
        return found

    def _compare_filters(self) -> None:
        filters = self._filters()
        if self.case.table != "files" or not self.case.partition_by:
            for reader, each, found, expected in self.place.find(filters, self.model):
                self.outcome.filters += 1
                if found != expected and not _is_of_library(reader, each, self.case):
                    self._violation(f"{reader}: {each} finds {found}, expected {expected}")
        if self.spark is not None and self.place.spark_format and self.model.rows:
            self._compare_in_spark([each for each in filters if not _is_of_spark(each, self.case)])

    def _compare_in_spark(self, filters: list[Filter]) -> None:
        spark, name = self._opened(), self.place.spark_name()
        try:
            spark.view("expected", "parquet", f"{self._copied()}")
            if self.case.table == "files":
                spark.view("files", "parquet", str(self.place.folder))
            chosen = filters[:: max(1, -(-len(filters) // self.filters_of_spark))]
            conditions = [each.spark(self.model.schema) for each in chosen]
            expected, found = spark.find("expected", conditions), spark.find(name, conditions)
            for each, mine, theirs in zip(chosen, found, expected, strict=True):
                self.outcome.filters += 1
                if mine != theirs:
                    self._violation(f"Spark: {each} finds {mine}, expected {theirs}")
            if self.case.table != "files":
                there, whole = spark.rows(name), spark.rows("expected")
                if there != whole:
                    difference = _difference(there["rows"], whole["rows"])
                    self._violation(f"Spark: {there['columns']}, expected {whole['columns']}: {difference}")
        except SparkRefusedError as error:
            self._violation(f"Spark cannot read it: {error}")

    def _copied(self) -> Path:
        copy = self.folder / "spark-copy"
        copy_without_statistics(self.model, copy)
        return copy

    def _opened(self) -> SparkReader:
        assert self.spark is not None
        if not self.is_open_in_spark:
            self.spark.session(**self.place.spark_settings())
            self.is_open_in_spark = True
        return self.spark

    def _violation(self, what: str) -> None:
        self.outcome.violations.append(what)

    # -- what Spark does in between -----------------------------------------------------------------------------------

    def _ids_of(self, where: Filter) -> set[int]:
        self._opened().view("expected", "parquet", str(self._copied()))
        (found,) = self._opened().find("expected", [where.spark(self.model.schema)])
        return set(found)

    def spark_delete(self, step: Step) -> None:
        ids = self._ids_of(step.where)
        self._opened().sql(f"DELETE FROM {self.place.spark_name()} WHERE {step.where.spark(self.model.schema)}")
        self.model.delete(ids)

    def spark_update(self, step: Step) -> None:
        ids, schema = self._ids_of(step.where), self.model.schema
        value = "NULL" if step.value is None else spark_of(step.value, schema.field(step.column).type)
        column = "`" + step.column.replace("`", "``") + "`"
        condition = step.where.spark(schema)
        self._opened().sql(f"UPDATE {self.place.spark_name()} SET {column} = {value} WHERE {condition}")
        self.model.update(ids, step.column, step.value)

    def spark_merge(self, step: Step) -> None:
        self._source(step)
        self._opened().sql(
            f"MERGE INTO {self.place.spark_name()} t USING source s ON t.{ID} = s.{ID} "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        self.model.merge(step.rows)

    def spark_insert(self, step: Step) -> None:
        self._source(step)
        self._opened().sql(f"INSERT INTO {self.place.spark_name()} SELECT * FROM source")
        self.model.insert(step.rows)

    def _source(self, step: Step) -> None:
        other = Model(self.case, self.place.small)
        other.kinds = dict(self.model.kinds)
        other.insert(step.rows)
        path = self.folder / "source"
        copy_without_statistics(other, path)
        self._opened().view("source", "parquet", str(path))

    def spark_compact(self, step: Step) -> None:
        if self.case.table == "delta":
            self._opened().sql(f"OPTIMIZE {self.place.spark_name()}")
        else:
            self._call("rewrite_data_files", "options => map('rewrite-all', 'true', 'min-input-files', '1')")

    def spark_vacuum(self, step: Step) -> None:
        if self.case.table == "delta":
            self._opened().sql(f"VACUUM {self.place.spark_name()} RETAIN 0 HOURS")
        else:
            self._call("expire_snapshots", "older_than => now(), retain_last => 1")

    def spark_manifests(self, step: Step) -> None:
        self._call("rewrite_manifests")

    def _call(self, procedure: str, *more: str) -> None:
        given = ", ".join(["table => 'air.flights'", *more])
        self._opened().sql(f"CALL ice.system.{procedure}({given})")


_SPARK: Final[dict[str, Callable[[_Run, Step], None]]] = {
    "delete": _Run.spark_delete,
    "update": _Run.spark_update,
    "merge": _Run.spark_merge,
    "insert": _Run.spark_insert,
    "compact": _Run.spark_compact,
    "vacuum": _Run.spark_vacuum,
    "manifests": _Run.spark_manifests,
}


def _table(rows: tuple[tuple[Any, ...], ...], schema: pa.Schema) -> pa.Table:
    columns = [array_of(each.type, [row[number] for row in rows]) for number, each in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def _difference(found: list[Any], expected: list[Any]) -> str:
    extra = [row for row in found if row not in expected][:3]
    missing = [row for row in expected if row not in found][:3]
    return f"{len(found)} rows, expected {len(expected)}; only found: {extra}; only expected: {missing}"[:1500]


def _numbers_of(rows: list[list[str | None]]) -> list[list[str | None]]:
    """Rows with numbers in one form: PostgreSQL writes 1.0 as 1."""
    return sorted([[_number(value) for value in row] for row in rows], key=repr)


def _number(value: str | None) -> str | None:
    try:
        return value if value is None or len(value) > 350 else repr(float(value) + 0.0)
    except ValueError:
        return value


def _is_of_spark(each: Filter, case: Case) -> bool:
    """Whether Spark's own tables lose rows by a filter.

    - Delta: a field of a structure compared with a zero, whose statistics have the other zero.
    - Iceberg: a comparison of floats, in files that Spark wrote. Their bounds leave NaN out, which Spark orders last.
    """
    kind = each.kind(case.schema) if each.column in case.schema.names else pa.null()
    if case.table == "iceberg" and pa.types.is_floating(kind) and any(step.spark for step in case.steps):
        return True
    return case.table == "delta" and bool(each.field) and any(is_zero(value) for value in each.values)


def _is_of_library(reader: str, each: Filter, case: Case) -> bool:
    """Whether a library finds other rows than it should in files and tables that it wrote itself.

    - Arrow: ``is_in`` with a zero finds nothing in a file whose bounds are both zeros, and a comparison with NaN is
      simplified by bounds as if NaN were above all numbers.
    - deltalake: bounds of files of its own are wrong where values are infinite or have 38 digits, and bounds of a
      structure that is null everywhere, or of booleans in files of Spark, which have none, never hold.
    - pyiceberg: ``In`` with an infinity, for a column of 32 bits, finds nothing at all, and ``NotEqualTo`` finds the
      rows of files that were written before the column was added.
    """
    kind = each.kind(case.schema) if each.column in case.schema.names else pa.null()
    if reader.endswith("pyarrow"):
        if each.op == "in" and any(is_zero(value) for value in each.values):
            return True
        if any(is_nan(value) for value in each.values):
            return True
        is_rewritten = bool(case.key) or any(not step.spark and step.do != "write" for step in case.steps)
        is_wide = pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        is_bool_of_spark = pa.types.is_boolean(kind) and any(step.spark for step in case.steps)
        return pa.types.is_struct(kind) or is_bool_of_spark or (is_rewritten and is_wide)
    if reader == "pyiceberg" and each.op == "!=" and any(step.do in ("add", "rename") for step in case.steps):
        return True
    is_infinite = any(value in _INFINITE for value in each.values)
    return reader == "pyiceberg" and each.op == "in" and kind == pa.float32() and is_infinite
