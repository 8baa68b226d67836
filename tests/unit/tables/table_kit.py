"""Tables of every format in one shape: made, written by commits, and read by somebody else's reader."""

from __future__ import annotations

import sqlite3
import uuid
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stateline.blob import BlobStore, open_store
from stateline.environment import Closable
from stateline.tables import NewFile, Table, TableChange, TableTarget, TableToken, open_table

APP = "root/operator"
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])


@dataclass
class Place(Closable):
    """Where a table is, and how it is read. It closes what was opened here, and nobody else has closed."""

    folder: Path
    mode: str = "append"
    names: Iterator[str] = field(default_factory=lambda: iter(uuid.uuid4().hex for _ in range(10**6)))
    opened: list[Any] = field(default_factory=list)

    @abstractmethod
    def target(self) -> TableTarget: ...

    @abstractmethod
    def rows(self) -> list[tuple[Any, ...]]:
        """All rows, sorted, as another reader sees them."""

    @abstractmethod
    def append_foreign(self, k: int) -> None:
        """Another writer appends a row."""

    @abstractmethod
    def drop(self) -> None:
        """Somebody removes the table."""

    @abstractmethod
    def compact(self) -> None:
        """Another writer rewrites the table."""

    def vacuum(self) -> None:
        """Another writer deletes the files that are not in the table any more, where they are files."""

    def store(self) -> BlobStore | None:
        return None

    def open(self, schema: pa.Schema | None = SCHEMA, target: TableTarget | None = None) -> Table:
        table = open_table(target or self.target(), schema=schema, store=self.store())
        self.opened.append(table)
        return table

    def close(self) -> None:
        while self.opened:
            self.opened.pop().close()

    @property
    def key(self) -> tuple[str, ...]:
        return ("k",) if self.mode == "upsert" else ()

    def change(
        self,
        number: int,
        previous: int | None,
        keys: Sequence[int],
        identity: str = "",
        app: str = APP,
        rows: pa.Table | None = None,
    ) -> TableChange:
        """The commit of one checkpoint, whose rows say which one it is."""
        if rows is None:
            rows = pa.table({"k": list(keys), "v": [f"c{number}"] * len(keys)}, schema=SCHEMA)
        token = TableToken(app=app, checkpoint_id=number, previous=previous, identity=identity)
        files = self.publish(rows) if self.target().takes_files else ()
        return TableChange(token=token, created_at=1.7e9, files=files, rows=lambda: iter([rows]))

    def publish(self, rows: pa.Table) -> tuple[NewFile, ...]:
        """One file of the rows, as the coordinator has published it."""
        store = self.store()
        assert store is not None
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink)
        data = sink.getvalue().to_pybytes()
        name = f"part-{next(self.names)}.parquet"
        store.put_if_absent(name, data)
        return (NewFile(name=name, length=len(data), rows=rows.num_rows),)


@dataclass
class DeltaPlace(Place):
    def target(self) -> TableTarget:
        return TableTarget(format="delta", target=(self.folder / "t").as_uri(), mode=self.mode, key=self.key)  # type: ignore[arg-type]

    def store(self) -> BlobStore:
        return open_store((self.folder / "t").as_uri(), {"fsync": "false"})

    def table(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(str(self.folder / "t"))

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in self.table().to_pyarrow_table().to_pylist())

    def append_foreign(self, k: int) -> None:
        from deltalake import write_deltalake

        write_deltalake(str(self.folder / "t"), pa.table({"k": [k], "v": ["foreign"]}, schema=SCHEMA), mode="append")

    def compact(self) -> None:
        self.table().optimize.compact()

    def vacuum(self) -> None:
        self.table().vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    def drop(self) -> None:
        import shutil

        shutil.rmtree(self.folder / "t")


@dataclass
class SqlitePlace(Place):
    def target(self) -> TableTarget:
        return TableTarget(
            format="sqlite",
            target="flights",
            mode=self.mode,  # type: ignore[arg-type]
            key=self.key,
            options={"uri": f"sqlite:///{self.folder}/t.db", "busy_timeout": "200ms"},
        )

    def connection(self) -> sqlite3.Connection:
        return sqlite3.connect(self.folder / "t.db")

    def rows(self) -> list[tuple[Any, ...]]:
        connection = self.connection()
        try:
            return sorted(connection.execute("SELECT * FROM flights"))
        finally:
            connection.close()

    def append_foreign(self, k: int) -> None:
        self._run("INSERT INTO flights VALUES (?, 'foreign')", k)

    def compact(self) -> None:
        self._run("VACUUM")

    def drop(self) -> None:
        self._run("DROP TABLE flights")

    def _run(self, statement: str, *values: object) -> None:
        connection = sqlite3.connect(self.folder / "t.db", isolation_level=None)
        connection.execute(statement, values)
        connection.close()


@dataclass
class IcebergPlace(Place):
    def target(self) -> TableTarget:
        return TableTarget(
            format="iceberg",
            target="air.flights",
            options={
                "catalog.type": "sql",
                "catalog.uri": f"sqlite:///{self.folder}/catalog.db",
                "catalog.warehouse": (self.folder / "warehouse").as_uri(),
            },
        )

    def store(self) -> BlobStore:
        return open_store((self.folder / "warehouse" / "air" / "flights" / "data").as_uri(), {"fsync": "false"})

    def catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        options = self.target().options
        return load_catalog("default", **{key.removeprefix("catalog."): text for key, text in options.items()})

    def table(self) -> Any:
        catalog = self.catalog()
        self.opened.append(catalog)
        return catalog.load_table("air.flights")

    def rows(self) -> list[tuple[Any, ...]]:
        with self.catalog() as catalog:
            found = catalog.load_table("air.flights").scan().to_arrow()
        return sorted(tuple(row.values()) for row in found.to_pylist())

    def append_foreign(self, k: int) -> None:
        with self.catalog() as catalog:
            catalog.load_table("air.flights").append(pa.table({"k": [k], "v": ["foreign"]}, schema=SCHEMA))

    def compact(self) -> None:
        with self.catalog() as catalog:
            table = catalog.load_table("air.flights")
            table.overwrite(table.scan().to_arrow())

    def drop(self) -> None:
        with self.catalog() as catalog:
            catalog.drop_table("air.flights")


@dataclass
class PostgresqlPlace(Place):
    uri: str = ""
    table: str = "flights"

    def target(self) -> TableTarget:
        return TableTarget(
            format="postgresql",
            target=self.table,
            mode=self.mode,  # type: ignore[arg-type]
            key=self.key,
            options={"uri": self.uri, "lock_timeout": "200ms", "idle_timeout": "500ms"},
        )

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(self.run(f"SELECT * FROM {self.table}"))

    def append_foreign(self, k: int) -> None:
        self.run(f"INSERT INTO {self.table} VALUES ({k}, 'foreign')")

    def compact(self) -> None:
        from psycopg.errors import LockNotAvailable

        # A driver that froze inside its COPY holds the table for as long as it is frozen: who compacts gives up then.
        with suppress(LockNotAvailable):
            self.run(f"VACUUM FULL {self.table}", "-c lock_timeout=5s")

    def drop(self) -> None:
        self.run(f"DROP TABLE {self.table}")

    def run(self, statement: str, options: str = "") -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.uri, autocommit=True, options=options) as connection:
            found = connection.execute(statement)
            return found.fetchall() if found.description else []


def places(folder: Path) -> dict[str, Place]:
    """One of each kind, by name."""
    return {
        "delta": DeltaPlace(folder),
        "delta-upsert": DeltaPlace(folder, "upsert"),
        "iceberg": IcebergPlace(folder),
        "sqlite": SqlitePlace(folder),
        "sqlite-upsert": SqlitePlace(folder, "upsert"),
    }


KINDS = ("delta", "delta-upsert", "iceberg", "sqlite", "sqlite-upsert")
