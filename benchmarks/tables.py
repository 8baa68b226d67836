"""Rows into tables beside the same rows without one: Delta and Iceberg beside plain files, databases beside a loader.

Files: the file sink without Spark, in one process, so that the table's part is not lost in Spark's; micro-batches of
``--rows`` rows, each file spans ``--batches-per-file`` of them. PostgreSQL (``--postgresql URI``) is beside one binary
COPY of the same rows, SQLite beside one transaction of inserts. Rounds alternate; the median of the ratios of each
round counts. ``--commits``: how long one commit takes, in each hundred of ours. ``--spark``: streams into Delta beside
Spark's own Delta sink as well; see :mod:`benchmarks.tables_in_spark`.
"""

import argparse
import datetime as dt
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import tables_in_spark
from benchmarks.harness import median, spread, table, write_results

_HUNDRED = 100
Engine = Callable[[Path, pa.Table, Any], float]

SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64()), ("at", pa.timestamp("us", "UTC"))]
)


def make_rows(count: int, seed: int) -> pa.Table:
    """Rows as a stream of purchases has them."""
    generator = np.random.default_rng(seed)
    names = pa.array([f"customer-{number:06}" for number in range(50_000)])
    return pa.table(
        {
            "id": np.arange(count),
            "name": names.take(pa.array(generator.integers(0, len(names), count))),
            "amount": generator.random(count),
            "at": pa.array(1_700_000_000_000_000 + generator.integers(0, 10**12, count), pa.timestamp("us", "UTC")),
        },
        schema=SCHEMA,
    )


def target_in(form: str, place: Path) -> Any:
    """The table of a format; ``None`` for plain files."""
    from stateline.tables import TableTarget

    if form == "delta":
        return TableTarget(format="delta", target=(place / "out").as_uri())
    if form == "iceberg":
        (place / "warehouse").mkdir()
        return TableTarget(
            format="iceberg",
            target="bench.rows",
            options={
                "catalog.type": "sql",
                "catalog.uri": f"sqlite:///{place}/catalog.db",
                "catalog.warehouse": (place / "warehouse").as_uri(),
            },
        )
    return None


def run_files(form: str, place: Path, rows: pa.Table, arguments: Any) -> float:
    """Seconds of a stream into files, from the first batch to the last commit."""
    from stateline.blob import open_store
    from stateline.environment import system_environment
    from stateline.files import FileOutput, RollingPolicy
    from stateline.pipeline.files_decision import FilesDecision, files_plan
    from stateline.pipeline.plan import StorageSettings

    place.mkdir()
    world, target = system_environment(), target_in(form, place)
    out, root = open_store(str(place / "out")), open_store(str(place / "root"))
    whole = RollingPolicy(every_checkpoint=True)
    growing = RollingPolicy(roll_bytes="1GB")  # type: ignore[arg-type]

    def decision(number: int) -> FilesDecision:
        rolls = (number + 1) % arguments.batches_per_file == 0
        output = FileOutput(url=out.url, rolling=whole if rolls else growing)
        plan = files_plan(root.url, output, StorageSettings(local_copies="none"), schema=SCHEMA, table=target)
        return FilesDecision(plan, root, out, SCHEMA, world)

    batches = rows.to_batches(max_chunksize=arguments.rows)
    began = time.perf_counter()
    for number, batch in enumerate(batches):
        sink = decision(number)
        sink.commit([sink.stage([batch])], batch_id=number, offsets_digest=str(number), query_id="q")
    took = time.perf_counter() - began
    shutil.rmtree(place)
    return took


def run_database(target: Any, rows: pa.Table) -> float:
    """Seconds of one commit of rows, into a table that is there and not open, as it is between checkpoints."""
    from stateline.environment import system_environment
    from stateline.tables import TableChange, TableToken, commit_once, open_table

    opened = open_table(target, schema=SCHEMA)
    opened.create()
    opened.close()
    token = TableToken(app=f"bench-{time.time_ns()}", checkpoint_id=0)
    began = time.perf_counter()
    commit_once(opened, TableChange(token=token, created_at=0.0, rows=lambda: iter([rows])), system_environment())
    took = time.perf_counter() - began
    opened.close()
    return took


def run_sqlite(place: Path, rows: pa.Table, _: Any) -> float:
    """Through our table."""
    from stateline.tables import TableTarget

    place.mkdir()
    took = run_database(TableTarget(format="sqlite", target="rows", options={"uri": str(place / "t.db")}), rows)
    shutil.rmtree(place)
    return took


def load_sqlite(place: Path, rows: pa.Table, _: Any) -> float:
    """As a program does it by hand."""
    place.mkdir()
    connection = sqlite3.connect(place / "t.db", isolation_level=None)
    connection.execute("CREATE TABLE rows (id INTEGER, name TEXT, amount REAL, at TEXT)")
    began = time.perf_counter()
    connection.execute("BEGIN IMMEDIATE")
    for batch in rows.to_batches(max_chunksize=65_536):
        columns = [batch.column(index) for index in range(3)] + [batch.column(3).cast(pa.string())]
        values = zip(*(column.to_pylist() for column in columns), strict=True)
        connection.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", values)
    connection.execute("COMMIT")
    took = time.perf_counter() - began
    connection.close()
    shutil.rmtree(place)
    return took


def run_postgresql(_: Path, rows: pa.Table, arguments: Any) -> float:
    """Through our table."""
    from stateline.tables import TableTarget

    drop_postgresql(arguments.postgresql)
    target = TableTarget(format="postgresql", target="stateline_bench", options={"uri": arguments.postgresql})
    return run_database(target, rows)


def load_postgresql(_: Path, rows: pa.Table, arguments: Any) -> float:
    """One binary COPY in one transaction."""
    import adbc_driver_postgresql.dbapi

    drop_postgresql(arguments.postgresql)
    with adbc_driver_postgresql.dbapi.connect(arguments.postgresql) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE stateline_bench (id bigint, name text, amount float8, at timestamptz)")
        connection.commit()
        began = time.perf_counter()
        cursor.adbc_ingest("stateline_bench", rows, mode="append")
        connection.commit()
        return time.perf_counter() - began


def drop_postgresql(uri: str) -> None:
    import psycopg

    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS stateline_bench")


def time_commits(folder: Path, count: int) -> list[tuple[str, ...]]:
    """How long a commit of one small file takes in each hundred, in milliseconds, beside the library's own append.

    The library writes the rows into a file, too. Where snapshots of Iceberg expire, they do so once in a hundred
    commits, outside of what is timed.
    """
    import pyarrow.parquet as pq

    from stateline.blob import open_store
    from stateline.environment import system_environment
    from stateline.tables import NewFile, TableChange, TableToken, commit_once, open_table

    rows, sink = make_rows(10, 1), pa.BufferOutputStream()
    pq.write_table(rows, sink)
    data = sink.getvalue().to_pybytes()
    found = []
    for form, expires in (("delta", False), ("iceberg", False), ("iceberg", True)):
        place = folder / f"commits-{form}-{expires}"
        place.mkdir()
        store = open_store(str(place / "out"), {"fsync": "false"})
        opened = open_table(target_in(form, place), schema=SCHEMA, store=store)
        append = library_append(form, place / "library")
        ours, theirs = [], []
        for number in range(count):
            store.put_if_absent(f"part-{number}.parquet", data)
            token = TableToken(app="bench", checkpoint_id=number, previous=number - 1 if number else None)
            file = NewFile(name=f"part-{number}.parquet", length=len(data), rows=10)
            began = time.perf_counter()
            commit_once(opened, TableChange(token=token, created_at=0.0, files=(file,)), system_environment())
            ours.append(time.perf_counter() - began)
            began = time.perf_counter()
            append(rows)
            theirs.append(time.perf_counter() - began)
            if expires and number % _HUNDRED == _HUNDRED - 1:
                expire_snapshots(place)
        opened.close()
        name = f"{form}, old snapshots expired" if expires else form
        for title, seconds in ((name, ours), (f"{form}, append of its library", theirs))[: 1 if expires else 2]:
            parts = [seconds[at : at + _HUNDRED] for at in range(0, count, _HUNDRED)]
            found.append((title, *(f"{median(part) * 1e3:.1f}" for part in parts)))
    return found


def library_append(form: str, place: Path) -> Callable[[pa.Table], object]:
    """How somebody appends rows to a table of a format by its library alone; the table is made."""
    place.mkdir()
    target = target_in(form, place)
    if form == "delta":
        import deltalake

        deltalake.DeltaTable.create(place, deltalake.Schema.from_arrow(SCHEMA))
        return partial(deltalake.write_deltalake, place, mode="append")
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("default", **target.own_options)
    catalog.create_namespace("bench")
    catalog.create_table(target.target, SCHEMA, properties={"commit.manifest-merge.enabled": "true"})
    return lambda rows: catalog.load_table(target.target).append(rows)


def expire_snapshots(place: Path) -> None:
    """What whoever keeps an Iceberg table does now and then: only the newest snapshot and those with a name stay."""
    from pyiceberg.catalog import load_catalog

    options = {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": (place / "warehouse").as_uri()}
    catalog = load_catalog("default", **options)
    catalog.load_table("bench.rows").maintenance.expire_snapshots().older_than(dt.datetime.now()).commit()
    catalog.close()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks tables", description=__doc__)
    parser.add_argument("--rows", type=int, default=250_000, help="rows per micro-batch")
    parser.add_argument("--batches", type=int, default=16, help="micro-batches")
    parser.add_argument("--batches-per-file", type=int, default=8, help="micro-batches that a file spans")
    parser.add_argument("--rounds", type=int, default=5, help="rounds; the median counts")
    parser.add_argument("--database-rows", type=int, default=500_000, help="rows of one commit into a database")
    parser.add_argument("--postgresql", default="", help="URI of a server; none by default")
    parser.add_argument("--commits", type=int, default=400, help="commits one after the other; 0 for none")
    parser.add_argument("--spark", action="store_true", help="beside Spark's own Delta sink, too")
    arguments = parser.parse_args(argv)
    rows = make_rows(arguments.rows * arguments.batches, 1)
    some = rows.slice(0, arguments.database_rows)
    pairs: list[tuple[str, Engine, Engine, pa.Table]] = [
        ("delta", partial(run_files, "delta"), partial(run_files, ""), rows),
        ("iceberg", partial(run_files, "iceberg"), partial(run_files, ""), rows),
        ("sqlite", run_sqlite, load_sqlite, some),
    ]
    if arguments.postgresql:
        pairs.append(("postgresql", run_postgresql, load_postgresql, some))
    ours: dict[str, list[float]] = {name: [] for name, *_ in pairs}
    ratios: dict[str, list[float]] = {name: [] for name, *_ in pairs}
    with tempfile.TemporaryDirectory(prefix="stateline-bench-") as folder:
        for round_ in range(arguments.rounds + 1):
            for name, engine, plain, data in pairs:
                places = (Path(folder, f"{name}-{round_}"), Path(folder, f"plain-{name}-{round_}"))
                took, alone = engine(places[0], data, arguments), plain(places[1], data, arguments)
                if round_:  # The first one loads libraries.
                    ours[name].append(data.num_rows / took)
                    ratios[name].append(alone / took)
        commits = time_commits(Path(folder), arguments.commits) if arguments.commits else []
    shown = [
        (name, f"{median(speeds):,.0f}", spread(speeds), f"{median(ratios[name]):.2f}x")
        for name, speeds in ours.items()
    ]
    print(table(("table", "rows/s (median)", "lowest .. highest", "of the same without it"), shown))
    if commits:
        titles = [f"{at + 1} to {at + _HUNDRED}" for at in range(0, arguments.commits, _HUNDRED)]
        print("\n" + table(("ms of one commit", *titles), commits))
    figures = {"settings": vars(arguments), "rows_per_second": ours, "ratios": ratios, "commits": commits}
    print(f"\nEvery figure: {write_results('tables', figures)}")
    return tables_in_spark.main([]) if arguments.spark else 0
