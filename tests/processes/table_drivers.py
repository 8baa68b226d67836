"""A driver of a table, as a process that does nothing else: no Spark, the real coordinator, the real table.

``table_kills`` kills it. Batches have rows that are drawn from their number, so whoever knows how many there were knows
what must be in the table.
"""

from __future__ import annotations

import random
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from stateline.blob import open_store
from stateline.errors import FencedError, NotFoundError
from tests.unit.pipeline.test_table_commits import FilesQuery, RowsQuery
from tests.unit.tables.table_kit import Place, PostgresqlPlace, places

TABLES = ("delta", "delta-upsert", "iceberg", "sqlite", "sqlite-upsert", "postgresql", "postgresql-upsert")


def keys_of(number: int) -> tuple[int, ...]:
    """The keys of a batch."""
    return tuple(sorted(random.Random(number).sample(range(20), 3)))


@dataclass(frozen=True)
class Setup:
    """What a driver's process is told.

    Attributes:
        kind: One of :data:`TABLES`.
        folder: Where the root is, and tables that need a folder.
        uri: Of a PostgreSQL server.
    """

    kind: str
    folder: Path
    uri: str = ""

    def place(self) -> Place:
        """The table."""
        if self.kind.startswith("postgresql"):
            mode = "upsert" if self.kind.endswith("upsert") else "append"
            return PostgresqlPlace(self.folder, mode, uri=self.uri)
        return places(self.folder)[self.kind]

    def query(self) -> FilesQuery | RowsQuery:
        """The query, as any process opens it."""
        place = self.place()
        query = FilesQuery(place) if place.target().takes_files else RowsQuery(place)
        query.root = open_store((self.folder / "root").as_uri(), {"fsync": "false"})
        return query

    @property
    def holds_locks(self) -> bool:
        """Whether nobody can go on while one is stopped inside SQLite's transaction: that of a table or a catalog."""
        return self.kind.startswith(("sqlite", "iceberg"))


def drive(setup: Setup, until: int, pipe: Connection) -> None:
    """What a driver's process does: it says that it begins, and what went wrong."""
    pipe.send("")
    try:
        query = setup.query()
        newest = query.newest()
        number = -1 if newest is None else newest.batch_id - 1
        with suppress(FencedError, NotFoundError):  # Overtaken: by one, or by so many that the record is gone.
            query.start()
            while number < until:
                number += 1
                query.run(max(number, 0), *keys_of(max(number, 0)))
    except Exception:
        pipe.send(traceback.format_exc())
