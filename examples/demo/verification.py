"""Output, tables and state against the model, row by row, each read as anybody else would read it.

Files and state are read with pyarrow, the Delta table with deltalake, the table of SQLite with Python's own module.

State: the newest record names the runs of each operator, oldest first; a newer run wins; a row with ``__deleted`` ends
its key. A mean is kept as its sum and its count.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from examples.demo import model
from examples.demo.offsets import batch_of_files
from examples.demo.progress import bytes_of, newest_record

SHOWN_DIFFERENCES = 5
MISSING = "(no value)"


@dataclass(frozen=True)
class Comparison:
    """How something real compares with the model.

    Attributes:
        what: For people.
        rows: Rows of the model.
        differences: One sentence for each of the first few differences.
        count: All differences.
    """

    what: str
    rows: int
    differences: tuple[str, ...] = ()
    count: int = 0


def verify(source: Path, spark_checkpoint: Path, root: Path, output: Path) -> list[Comparison]:
    """Compares all outputs and both states with what pandas makes of the source."""
    flights = model.read_source(source, batch_of_files(spark_checkpoint))
    aircraft, routes = model.aircraft_updates(flights), model.route_updates(flights)
    by_aircraft, by_route = model.AIRCRAFT_KEY, model.ROUTE_KEY
    newest = model.newest_updates(routes, by_route)
    return [
        compare("Delta: aircraft", aircraft, read_delta(output / "aircraft"), [*by_aircraft, "checkpoint_id"]),
        compare("files: routes", routes, read_output(output / "routes"), [*by_route, "checkpoint_id"]),
        compare("SQLite: newest of each route", newest, read_sqlite(output / "newest.db", "routes"), by_route),
        compare("state: aircraft", model.final_state(aircraft, by_aircraft), read_state(root, "aircraft"), by_aircraft),
        compare("state: routes", newest.drop(columns="checkpoint_id"), read_state(root, "routes"), by_route),
    ]


def read_output(folder: Path) -> pd.DataFrame:
    """Every row of every Parquet file of a folder, partition columns included; hidden folders are skipped."""
    return ds.dataset(folder, format="parquet", partitioning="hive").to_table().to_pandas()


def read_delta(folder: Path) -> pd.DataFrame:
    """Every row of a Delta table."""
    return DeltaTable(str(folder)).to_pyarrow_table().to_pandas()


def read_sqlite(path: Path, table: str) -> pd.DataFrame:
    """Every row of a table of SQLite, which keeps moments as text."""
    with closing(sqlite3.connect(path)) as connection:
        rows = pd.read_sql_query(f"SELECT * FROM {table}", connection)
    return rows.assign(last_seen=pd.to_datetime(rows["last_seen"], format="ISO8601", utc=True))


def output_files(folder: Path) -> list[Path]:
    """The files that a reader of the folder sees."""
    visible = (path for path in folder.rglob("*.parquet") if not any(part[0] in "._" for part in path.parts[-3:]))
    return sorted(visible)


def read_state(root: Path, operator: str) -> pd.DataFrame:
    """The rows that the newest checkpoint keeps for an operator."""
    record = newest_record(root)
    if record is None:
        return pd.DataFrame()
    [found] = [entry for entry in record["operators"] if entry["name"] == operator]
    parts = [read_subtask(root, subtask["runs"]) for subtask in found["subtasks"] if subtask["runs"]]
    return pd.concat(parts, ignore_index=True)


def read_subtask(root: Path, runs: Sequence[dict]) -> pd.DataFrame:
    """The newest row of each key in a stack of runs."""
    tables = [pa.ipc.open_file(bytes_of(root, run)).read_all() for run in runs]
    schema = tables[0].schema
    keys = [field.name for field in schema if (field.metadata or {}).get(b"stateline.role") == b"key"]
    rows = pd.concat([table.to_pandas() for table in tables], ignore_index=True)
    rows = rows.drop_duplicates(keys, keep="last")
    if "__deleted" in rows:
        rows = rows[~rows["__deleted"].fillna(False).astype(bool)]
    return with_means(rows.drop(columns=[name for name in rows if name.startswith("__")]))


def with_means(rows: pd.DataFrame) -> pd.DataFrame:
    """Replaces the columns ``x.sum`` and ``x.count`` by their quotient ``x``."""
    for name in [column.removesuffix(".sum") for column in rows if column.endswith(".sum")]:
        count = rows[f"{name}.count"]
        rows = rows.assign(**{name: (rows[f"{name}.sum"] / count).where(count > 0)})
        rows = rows.drop(columns=[f"{name}.sum", f"{name}.count"])
    return rows


def compare(what: str, expected: pd.DataFrame, actual: pd.DataFrame, key: Sequence[str]) -> Comparison:
    """Compares two tables whose rows are identified by ``key``: same rows, each once, with equal values."""
    columns = [name for name in expected.columns if name not in key]
    lacking = sorted(set(expected.columns) - set(actual.columns))
    if lacking:
        return Comparison(what, len(expected), (f"columns are missing: {lacking}",), len(expected))
    expected, actual = indexed(expected, key), indexed(actual, key)
    found: list[str] = []
    found += [f"twice: {entry}" for entry in actual.index[actual.index.duplicated()]]
    found += [f"missing: {entry}" for entry in expected.index.difference(actual.index)]
    found += [f"not expected: {entry}" for entry in actual.index.difference(expected.index)]
    both = actual.index[~actual.index.duplicated()].intersection(expected.index)
    left, right = expected.loc[both], actual[~actual.index.duplicated()].loc[both]
    for column in columns:
        theirs = right[column].astype(left[column].dtype)
        unequal = ~((left[column] == theirs) | (left[column].isna() & theirs.isna()))
        values = zip(both[unequal], theirs[unequal].tolist(), left[column][unequal].tolist(), strict=True)
        found += [f"{entry}: {column} is {value!r}, expected {wanted!r}" for entry, value, wanted in values]
    return Comparison(what, len(expected), tuple(found[:SHOWN_DIFFERENCES]), len(found))


def indexed(table: pd.DataFrame, key: Sequence[str]) -> pd.DataFrame:
    """The table by the text of its key; a missing part of a key equals itself."""
    parts = [
        f"{column}=" + table[column].astype(object).where(table[column].notna(), MISSING).astype(str) for column in key
    ]
    text = parts[0].str.cat(parts[1:], sep=", ") if len(parts) > 1 else parts[0]
    return table.drop(columns=list(key)).set_index(pd.Index(text))
