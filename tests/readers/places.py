"""Tables of every format in one shape: how a query reaches them, how other writers change them, and who reads them.

Each format is read by its own library: all rows, and those that a filter finds. What a filter should find is asked of
the same library over rows that nothing can be skipped of.
"""

from __future__ import annotations

import contextlib
import sqlite3
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from stateline.blob.urls import split_local_url
from tests.readers.cases import Case, Model, Step
from tests.readers.filters import Filter, is_nan
from tests.readers.kinds import KINDS, array_of, texts_of
from tests.readers.queries import ID

__all__ = ["PLACES", "Finding", "Place"]

Finding = tuple[str, Filter, list[int], list[int]]
"""A reader, a filter, the ids that it finds, and those that it should find."""
Texts = tuple[list[str], list[list[str | None]]]
"""The names of the columns, and the rows as sorted texts."""
_EVERY: Final = {"every_checkpoint": "true"}


class Place(ABC):
    """One table.

    Args:
        case: What is tried.
        folder: A folder of the case's own.
        uri: Of a PostgreSQL server.
    """

    small: pa.DataType | None = None
    """What columns of less than 32 bits become."""
    spark_format: str = ""
    """How Spark reads it; empty where it does not."""

    def __init__(self, case: Case, folder: Path, uri: str = "") -> None:
        self.case = case
        self.folder = folder / case.folder
        self.scratch = folder
        self.uri = uri
        self.folder.mkdir(exist_ok=True)

    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``write_table``, or of ``write_files``."""

    @abstractmethod
    def texts(self) -> Texts:
        """All rows, by the table's own library."""

    @abstractmethod
    def find(self, filters: Sequence[Filter], model: Model) -> Iterator[Finding]:
        """What each filter finds, by the table's own library."""

    def change(self, step: Step, model: Model) -> None:
        """What another writer does with the table's own library.

        Raises:
            ValueError: It cannot.
        """
        raise ValueError(f"{self.case.table} has no {step.do} by its library")

    def spark_settings(self) -> dict[str, str]:
        """Settings of a session of Spark that reads it."""
        return {}

    def spark_name(self) -> str:
        """What Spark calls the table; empty for one that Spark does not read."""
        return ""

    def _common(self) -> dict[str, Any]:
        case = self.case
        mode = {"mode": "upsert", "key": case.key, "deletes": case.deletes} if case.key else {}
        return {"partition_by": case.partition_by, **mode}


def _texts(found: pa.Table) -> Texts:
    columns = [texts_of(column) for column in found.columns]
    return found.column_names, sorted([list(row) for row in zip(*columns, strict=True)], key=repr)


def _ids(found: pa.Table) -> list[int]:
    return sorted(found[ID].to_pylist())


def _by_arrow(name: str, table: Any, filters: Sequence[Filter], model: Model) -> Iterator[Finding]:
    whole = ds.dataset(model.table())
    for each in filters:
        condition = each.arrow(model.schema)
        expected = _ids(whole.to_table(columns=[ID], filter=condition))
        try:
            found = _ids(table.to_table(columns=[ID], filter=condition))
        except pa.ArrowNotImplementedError as error:
            if "_view)" in str(error):  # Arrow cannot filter text in files of deltalake: they have views.
                continue
            raise
        yield name, each, found, expected


class DeltaPlace(Place):
    """A Delta table in a folder."""

    spark_format = "delta"

    def arguments(self) -> dict[str, Any]:
        return {
            "format": "delta",
            "target": self.folder.as_uri(),
            "options": {} if self.case.key else _EVERY,
            **self._common(),
        }

    def _table(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(str(self.folder))

    def texts(self) -> Texts:
        if self._has_decimal_partitions:
            from deltalake import QueryBuilder

            query = QueryBuilder().register("t", self._table())
            return _texts(pa.table(query.execute("SELECT * FROM t").read_all()))
        return _texts(self._table().to_pyarrow_table())

    @property
    def _has_decimal_partitions(self) -> bool:
        """Whether deltalake's way to Arrow fails: it writes a decimal below zero as ``0.-1`` in its partitions."""
        kinds = dict(self.case.columns)
        return any("decimal" in kinds.get(name, "") for name in self.case.partition_by)

    def find(self, filters: Sequence[Filter], model: Model) -> Iterator[Finding]:
        table = self._table()
        if not self._has_decimal_partitions:
            yield from _by_arrow("deltalake, pyarrow", table.to_pyarrow_dataset(), filters, model)
        yield from self._by_datafusion(table, filters, model)

    def _by_datafusion(self, table: Any, filters: Sequence[Filter], model: Model) -> Iterator[Finding]:
        from deltalake import ColumnProperties, DeltaTable, QueryBuilder, WriterProperties, write_deltalake

        copy = self.scratch / "copy"
        plain = ColumnProperties(statistics_enabled="NONE", dictionary_enabled=False)
        without = WriterProperties(default_column_properties=plain)
        settings = {"delta.dataSkippingNumIndexedCols": "0"}
        write_deltalake(str(copy), model.table(), mode="overwrite", writer_properties=without, configuration=settings)
        query = QueryBuilder().register("t", table).register("u", DeltaTable(str(copy)))
        for each in filters:
            condition = each.sql(model.schema)
            found, expected = (
                sorted(pa.table(query.execute(f"SELECT {ID} FROM {name} WHERE {condition}").read_all())[ID].to_pylist())
                for name in ("t", "u")
            )
            yield "deltalake, DataFusion", each, found, expected

    def change(self, step: Step, model: Model) -> None:
        table = self._table()
        if step.do == "compact":
            table.optimize.compact()
        elif step.do == "vacuum":
            table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        elif step.do == "insert":
            from deltalake import write_deltalake

            write_deltalake(table, _rows_of(step, model), mode="append")
            model.insert(step.rows)
        elif step.do == "delete":
            ids = ", ".join(str(row[0]) for row in step.rows)
            table.delete(f"{ID} IN ({ids})")
            model.delete({row[0] for row in step.rows})
        else:
            super().change(step, model)

    def spark_name(self) -> str:
        return f"delta.`{self.folder}`"


class IcebergPlace(Place):
    """A table of a catalog in a SQLite file."""

    small = pa.int32()
    spark_format = "iceberg"

    def __init__(self, case: Case, folder: Path, uri: str = "") -> None:
        super().__init__(case, folder, uri)
        self._properties = {
            "name": "ice",
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{self.folder}",
        }

    def arguments(self) -> dict[str, Any]:
        options = {f"catalog.{name}": text for name, text in self._properties.items()}
        return {"format": "iceberg", "target": "air.flights", "options": {**options, **_EVERY}, **self._common()}

    @contextlib.contextmanager
    def _table(self) -> Iterator[Any]:
        from pyiceberg.catalog import load_catalog

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with load_catalog(**self._properties) as catalog:
                yield catalog.load_table("air.flights")

    def texts(self) -> Texts:
        with self._table() as table:
            return _texts(table.scan().to_arrow())

    def find(self, filters: Sequence[Filter], model: Model) -> Iterator[Finding]:
        from pyiceberg.expressions.visitors import bind
        from pyiceberg.io.pyarrow import expression_to_pyarrow

        rows = ds.dataset(model.table())
        with self._table() as table:
            for each in filters:
                if pa.types.is_list(each.kind(model.schema)) or any(is_nan(value) for value in each.values):
                    continue  # pyiceberg has no filters on lists, and compares with NaN by IsNaN alone.
                condition = each.iceberg(model.schema)
                if "." in each.column:  # The library reads it as a path, but in files, where it knows ids.
                    plain = each.arrow(model.schema)
                else:
                    bound = bind(table.schema(), condition, case_sensitive=True)
                    plain = expression_to_pyarrow(bound, table.schema())
                expected = _ids(rows.to_table(columns=[ID], filter=plain))
                found = _ids(table.scan(row_filter=condition, selected_fields=(ID,)).to_arrow())
                yield "pyiceberg", each, found, expected

    def change(self, step: Step, model: Model) -> None:
        with self._table() as table:
            if step.do == "insert":
                rows = _rows_of(step, model)
                table.append(rows.cast(pa.schema([f.with_nullable(f.name != ID) for f in rows.schema])))
                model.insert(step.rows)
            elif step.do == "compact":
                table.overwrite(table.scan().to_arrow())
            elif step.do == "rename":
                with table.update_schema() as schema:
                    schema.rename_column((step.column,), step.value)
                model.rename(step.column, step.value)
            elif step.do == "add":
                from pyiceberg.io.pyarrow import _ConvertToIceberg, visit_pyarrow

                made = visit_pyarrow(model.stored(KINDS[step.value].arrow), _ConvertToIceberg())
                with table.update_schema() as schema:
                    schema.add_column((step.column,), made)
                model.add(step.column, step.value)
            elif step.do == "drop":
                with table.update_schema() as schema:
                    schema.delete_column((step.column,))
                model.drop(step.column)
            else:
                super().change(step, model)

    def spark_settings(self) -> dict[str, str]:
        return {
            "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.ice.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "spark.sql.catalog.ice.uri": f"jdbc:sqlite:{self.scratch}/catalog.db",
            "spark.sql.catalog.ice.warehouse": f"file://{self.folder}",
            "spark.sql.catalog.ice.jdbc.schema-version": "V1",
            "spark.sql.catalog.ice.cache-enabled": "false",
        }

    def spark_name(self) -> str:
        return "ice.air.flights"


class FilesPlace(Place):
    """Plain Parquet files."""

    spark_format = "parquet"

    def arguments(self) -> dict[str, Any]:
        return {
            "path": self.folder.as_uri(),
            "partition_by": self.case.partition_by,
            "every_checkpoint": True,
        }

    def _dataset(self) -> ds.Dataset:
        return ds.dataset(str(self.folder), format="parquet", exclude_invalid_files=False)

    def texts(self) -> Texts:
        return _texts(self._dataset().to_table())

    def find(self, filters: Sequence[Filter], model: Model) -> Iterator[Finding]:
        yield from _by_arrow("pyarrow", self._dataset(), filters, model)

    def spark_name(self) -> str:
        return "files"


class SqlitePlace(Place):
    """A table of SQLite."""

    def arguments(self) -> dict[str, Any]:
        options = {"uri": f"sqlite:///{self.scratch}/t.db"}
        return {"format": "sqlite", "target": self.case.target, "options": options, **self._common()}

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.scratch / "t.db", isolation_level=None)
        connection.text_factory = bytes
        try:
            yield connection
        finally:
            connection.close()

    def texts(self) -> Texts:
        with self._connected() as connection:
            name = _name(self.case.target)
            found = connection.execute(f"SELECT * FROM {name}")
            names = [column[0] for column in found.description]
            rows = [[_shown(value) for value in row] for row in found]
        return names, sorted(rows, key=repr)

    def expected(self, model: Model) -> list[list[str | None]]:
        """The rows as SQLite keeps them: it has no types for dates and times."""
        columns = []
        for column in model.table().columns:
            kind = column.type
            if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
                column = column.cast(pa.string())  # noqa: PLW2901
            elif pa.types.is_boolean(kind):
                column = column.cast(pa.int8())  # noqa: PLW2901
            if pa.types.is_string(column.type):
                columns.append([_shown(each) for each in column.cast(pa.binary()).to_pylist()])
            else:
                columns.append([_shown(each) for each in column.to_pylist()])
        return sorted([list(row) for row in zip(*columns, strict=True)], key=repr)

    def find(self, filters: Sequence[Filter], model: Model) -> Iterator[Finding]:
        with self._connected() as connection:
            name = _name(self.case.target)
            connection.execute(f"CREATE TEMP TABLE u AS SELECT * FROM {name}")
            for each in filters:
                given = _given(each, model)
                if given is None:
                    continue
                condition, values = given
                found, expected = (
                    sorted(row[0] for row in connection.execute(f"SELECT {ID} FROM {t} WHERE {condition}", values))
                    for t in (name, "u")
                )
                yield "sqlite", each, found, expected

    def change(self, step: Step, model: Model) -> None:
        with self._connected() as connection:
            name = _name(self.case.target)
            if step.do in ("compact", "vacuum"):
                connection.execute("VACUUM")
            elif step.do == "delete":
                connection.executemany(f"DELETE FROM {name} WHERE {ID} = ?", [(row[0],) for row in step.rows])
                model.delete({row[0] for row in step.rows})
            elif step.do == "add":
                connection.execute(f"ALTER TABLE {name} ADD COLUMN {_name(step.column)} TEXT")
                model.add(step.column, step.value)
            else:
                super().change(step, model)


class PostgresqlPlace(Place):
    """A table of PostgreSQL, in a schema of its own."""

    small = None

    def arguments(self) -> dict[str, Any]:
        target = f"{self._schema}.{self.case.target}"
        return {"format": "postgresql", "target": target, "options": {"uri": self.uri}, **self._common()}

    @property
    def _schema(self) -> str:
        return "case_" + self.scratch.name.replace("-", "_").lower()[-24:]

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        import psycopg

        with psycopg.connect(self.uri, autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{self._schema}"')
            yield connection

    def prepare(self) -> None:
        """Make the schema."""
        with self._connected():
            pass

    def texts(self) -> Texts:
        with self._connected() as connection:
            there = connection.execute(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute a "
                "JOIN pg_class c ON c.oid = attrelid JOIN pg_namespace n ON n.oid = relnamespace "
                "WHERE nspname = %s AND relname::text = %s AND attnum > 0 "
                "AND NOT attisdropped ORDER BY attnum",
                (self._schema, self.case.target),
            ).fetchall()
            if not there:
                return [], []
            shown = [_postgresql_text(_name(name), kind) for name, kind in there]
            found = connection.execute(f"SELECT {', '.join(shown)} FROM {self._name}".encode()).fetchall()
        return [name for name, _ in there], sorted([list(row) for row in found], key=repr)

    @property
    def _name(self) -> str:
        return f'"{self._schema}".{_name(self.case.target)}'

    def find(self, filters: Sequence[Filter], model: Model) -> Iterator[Finding]:
        with self._connected() as connection:
            connection.execute(f"CREATE TEMP TABLE u AS SELECT * FROM {self._name}".encode())
            for each in filters:
                given = _given(each, model)
                if given is None:
                    continue
                condition, values = given
                condition = condition.replace("%", "%%").replace("?", "%s")
                found, expected = (
                    sorted(
                        row[0] for row in connection.execute(f"SELECT {ID} FROM {t} WHERE {condition}".encode(), values)
                    )
                    for t in (self._name.replace("%", "%%"), "u")
                )
                yield "postgresql", each, found, expected

    def change(self, step: Step, model: Model) -> None:
        with self._connected() as connection:
            if step.do in ("compact", "vacuum"):
                connection.execute(f"VACUUM FULL {self._name}".encode())
            elif step.do == "delete":
                connection.execute(
                    f"DELETE FROM {self._name} WHERE {ID} = ANY(%s)".encode(), ([r[0] for r in step.rows],)
                )
                model.delete({row[0] for row in step.rows})
            elif step.do == "add":
                connection.execute(f"ALTER TABLE {self._name} ADD COLUMN {_name(step.column)} text".encode())
                model.add(step.column, step.value)
            else:
                super().change(step, model)


PLACES: Final[dict[str, type[Place]]] = {
    "delta": DeltaPlace,
    "iceberg": IcebergPlace,
    "files": FilesPlace,
    "sqlite": SqlitePlace,
    "postgresql": PostgresqlPlace,
}
"""By the name that a case gives."""


def copy_without_statistics(model: Model, path: Path) -> None:
    """Write the rows as one Parquet file of which no reader can skip anything."""
    path.mkdir(exist_ok=True)
    pq.write_table(model.table(), path / "rows.parquet", use_dictionary=False, write_statistics=False)


def local_path(url: str) -> str:
    """The path of a local URL."""
    return split_local_url(url)


def _rows_of(step: Step, model: Model) -> pa.Table:
    columns = [array_of(kind, [row[n] for row in step.rows]) for n, kind in enumerate(model.kinds.values())]
    return pa.Table.from_arrays(columns, schema=model.schema)


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _shown(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.hex()
    return repr(value + 0.0) if isinstance(value, float) else str(value)


def _given(each: Filter, model: Model) -> tuple[str, list[Any]] | None:
    """A filter for a database, with its values; ``None`` where both would write the value in different ways."""
    kind, column = each.kind(model.schema), _name(each.column).replace("?", "??")
    if (
        "?" in each.column
        or each.field
        or not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind))
    ):
        return None
    if each.op in ("null", "not null"):
        return f"{column} IS {each.op.upper()}", []
    if each.op == "in":
        return f"{column} IN ({', '.join('?' * len(each.values))})", list(each.values)
    return f"{column} {each.op} ?", list(each.values)


def _postgresql_text(name: str, kind: str) -> str:
    """SQL of the text that ``kinds.as_text`` has for a value."""
    if kind == "text":
        return f"encode(convert_to({name}, 'UTF8'), 'hex')"
    if kind == "bytea":
        return f"encode({name}, 'hex')"
    if kind == "date":
        return f"({name} - date '1970-01-01')::text"
    if kind.startswith("timestamp"):
        return f"trim_scale(extract(epoch FROM {name}) * 1000000)::text"
    if kind == "boolean":
        return f"initcap({name}::text)"
    if kind == "real":
        return f"{name}::float8::text"
    return f"{name}::text"
