"""A case: a table, its columns, and what happens to it. Its ``repr`` is the program that repeats it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stateline.tables.columns import plain_type
from tests.readers.filters import Filter
from tests.readers.kinds import KINDS, array_of, as_text
from tests.readers.queries import ID

__all__ = ["Case", "Model", "Step"]

Row = tuple[Any, ...]
"""The id, then the value of each column."""


@dataclass(frozen=True)
class Step:
    """One thing that happens to a table.

    Attributes:
        do: ``write`` is a batch of the query; the others are what other writers do: ``insert``, ``delete``, ``update``,
            ``merge``, ``compact``, ``vacuum``, ``expire``, ``manifests``, ``rename``, ``add``, ``drop``.
        rows: The rows that come; of a ``merge``, those that are inserted or replaced by id.
        gone: The rows that go, by key.
        where: The rows that are deleted or updated.
        column: The one that is changed.
        value: What it is updated to; the new name of ``rename``; the type of ``add``.
        spark: Whether Spark does it; else the library of the table.
    """

    do: str
    rows: tuple[Row, ...] = ()
    gone: tuple[Row, ...] = ()
    where: Filter | None = None
    column: str = ""
    value: Any = None
    spark: bool = False


@dataclass(frozen=True)
class Case:
    """What is tried.

    Attributes:
        table: ``delta``, ``iceberg``, ``postgresql``, ``sqlite``, or ``files`` for plain Parquet files.
        columns: Name and type, of ``kinds.KINDS``; the column of ids comes first and is not among them.
        steps: What happens.
        partition_by: As ``write_table`` takes it.
        key: Of an upsert; empty for appends.
        deletes: Whether the upsert deletes.
        parallelism: Subtasks.
        folder: The folder that the table is in.
        target: The name of a database's table.
        seed: What it was drawn from.
    """

    table: str
    columns: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]
    partition_by: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    deletes: bool = False
    parallelism: int = 1
    folder: str = "t"
    target: str = "flights"
    seed: int = -1

    @property
    def schema(self) -> pa.Schema:
        """Of the rows of the query."""
        fields = [pa.field(name, KINDS[kind].arrow) for name, kind in self.columns]
        return pa.schema([pa.field(ID, pa.int64(), nullable=False), *fields])


class Model:
    """What must be in a table."""

    def __init__(self, case: Case, small: pa.DataType | None = None) -> None:
        self._case = case
        self._small = small
        self.kinds: dict[str, pa.DataType] = {name: self.stored(KINDS[kind].arrow) for name, kind in case.columns}
        self.kinds = {ID: pa.int64(), **self.kinds}
        self.rows: list[dict[str, Any]] = []

    def stored(self, kind: pa.DataType) -> pa.DataType:
        """The type that the table has: some know no small numbers."""
        is_small = self._small is not None and kind in (pa.int8(), pa.int16())
        return self._small if is_small and self._small is not None else plain_type(kind)

    @property
    def schema(self) -> pa.Schema:
        """Of the table."""
        return pa.schema([pa.field(name, kind) for name, kind in self.kinds.items()])

    def table(self) -> pa.Table:
        """The rows."""
        columns = [array_of(kind, [row.get(name) for row in self.rows]) for name, kind in self.kinds.items()]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def texts(self) -> list[list[str | None]]:
        """The rows as texts, sorted."""
        shown = [[as_text(row.get(name), kind) for name, kind in self.kinds.items()] for row in self.rows]
        return sorted(shown, key=repr)

    def write(self, step: Step) -> None:
        """A batch of the query."""
        names = [ID, *(name for name, _ in self._case.columns)]
        rows = [dict(zip(names, row, strict=True)) for row in step.rows]
        if not self._case.key:
            self.rows += rows
            return
        come: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in rows:
            row |= {name: _canonical(row[name]) for name in self._case.key}
            come[self._key(row)] = row
        gone = {self._key(dict(zip(names, row, strict=True))) for row in step.gone}
        replaced = gone | come.keys()
        self.rows = [row for row in self.rows if self._key(row) not in replaced] + list(come.values())

    def insert(self, rows: Sequence[Row]) -> None:
        """Rows of another writer, with all columns."""
        self.rows += [dict(zip(self.kinds, row, strict=True)) for row in rows]

    def merge(self, rows: Sequence[Row]) -> None:
        """Rows of another writer that replace those of the same id."""
        ids = {row[0] for row in rows}
        self.rows = [row for row in self.rows if row[ID] not in ids]
        self.insert(rows)

    def delete(self, ids: set[int]) -> None:
        """Another writer deletes rows."""
        self.rows = [row for row in self.rows if row[ID] not in ids]

    def update(self, ids: set[int], column: str, value: Any) -> None:
        """Another writer changes a column."""
        for row in self.rows:
            if row[ID] in ids:
                row[column] = value

    def rename(self, old: str, new: str) -> None:
        """Another writer renames a column."""
        self.kinds = {new if name == old else name: kind for name, kind in self.kinds.items()}
        for row in self.rows:
            if old in row:
                row[new] = row.pop(old)

    def add(self, column: str, kind: str) -> None:
        """Another writer adds a column."""
        self.kinds[column] = self.stored(KINDS[kind].arrow)

    def drop(self, column: str) -> None:
        """Another writer drops a column."""
        del self.kinds[column]
        for row in self.rows:
            row.pop(column, None)

    def _key(self, row: dict[str, Any]) -> tuple[str, ...]:
        return tuple(repr(_canonical(row[name])) for name in self._case.key)


def _canonical(value: Any) -> Any:
    return 0.0 if isinstance(value, float) and value == 0 else value
