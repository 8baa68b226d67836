"""Scripts as users write them: each starts one stream, waits for its end, and reads its output on the next line.

``PLACE`` stands for a folder with Parquet files in ``source``. A script leaves what it read in ``found``.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROWS, PARTS = 10, 2

_SINK = """
from stateline.spark import get_or_create_session
spark = get_or_create_session()
rows = spark.readStream.schema("k long, part string").parquet("PLACE/source")
writer = rows.writeStream.format("stateline_files").option("checkpointLocation", "PLACE/spark")
"""
_KEYED = """
from stateline.spark import KeyedStream, count, get_or_create_session
spark = get_or_create_session()
rows = spark.readStream.schema("k long, part string").parquet("PLACE/source")
counts = KeyedStream(rows, "part", "PLACE/state", parallelism=1).aggregate(n=count())
"""
_CATALOG = """{
    "catalog.type": "sql", "catalog.uri": "sqlite:///PLACE/catalog.db", "catalog.warehouse": "file://PLACE/warehouse"
}"""
_WAIT_SINK = '.trigger(availableNow=True).start("PLACE/out").awaitTermination()\n'
_WAIT_KEYED = '.start(trigger={"availableNow": True}).awaitTermination()\n'
_PARQUET = 'found = spark.read.parquet("PLACE/out").count()\n'
_DELTA = 'from deltalake import DeltaTable\nfound = DeltaTable("PLACE/out").to_pyarrow_table().num_rows\n'
_SQLITE = """
import sqlite3
with sqlite3.connect("PLACE/t.db") as database:
    found = database.execute("SELECT count(*) FROM counts").fetchone()[0]
"""
_ICEBERG = f"""
from pyiceberg.catalog import load_catalog
options = {_CATALOG}
with load_catalog("default", **{{name.removeprefix("catalog."): text for name, text in options.items()}}) as catalog:
    found = catalog.load_table("air.t").scan().to_arrow().num_rows
"""

SCRIPTS = {
    "files": _SINK + "writer" + _WAIT_SINK + _PARQUET,
    "files, once": _SINK + 'writer.trigger(once=True).start("PLACE/out").awaitTermination()\n' + _PARQUET,
    "files, any": _SINK
    + 'spark.streams.resetTerminated()\nwriter.trigger(availableNow=True).start("PLACE/out")\n'
    + "spark.streams.awaitAnyTermination()\n"
    + _PARQUET,
    "files, by Spark's handle": _SINK
    + 'query = writer.trigger(availableNow=True).start("PLACE/out")\n'
    + "found = spark.streams.get(query.id)\nfound is None or found.awaitTermination()\n"
    + _PARQUET,
    "files, rolled by time": _SINK + 'writer.option("roll_seconds", "1h")' + _WAIT_SINK + _PARQUET,
    "files in folders": _SINK + 'writer.option("partition_by", "part")' + _WAIT_SINK + _PARQUET,
    "files of CSV": _SINK
    + 'writer.option("format", "csv")'
    + _WAIT_SINK
    + 'found = spark.read.csv("PLACE/out", header=True).count()\n',
    "Delta": _SINK + 'writer.option("table", "delta")' + _WAIT_SINK + _DELTA,
    "Iceberg": _SINK
    + f"""options = {{f"table.{{name}}": text for name, text in {_CATALOG}.items()}}
writer.options(table="iceberg", **{{"table.name": "air.t"}}, **options)"""
    + _WAIT_SINK
    + _ICEBERG,
    "keyed files": _KEYED + 'counts.write_files("PLACE/out")' + _WAIT_KEYED + _PARQUET,
    "keyed files, once": _KEYED
    + 'counts.write_files("PLACE/out").start(trigger={"once": True}).awaitTermination()\n'
    + _PARQUET,
    "keyed files, any": _KEYED
    + 'spark.streams.resetTerminated()\ncounts.write_files("PLACE/out").start(trigger={"availableNow": True})\n'
    + "spark.streams.awaitAnyTermination()\n"
    + _PARQUET,
    "keyed files, by Spark's handle": _KEYED
    + 'query = counts.write_files("PLACE/out").start(trigger={"availableNow": True})\n'
    + "found = spark.streams.get(query.id)\nfound is None or found.awaitTermination()\n"
    + _PARQUET,
    "keyed Delta": _KEYED + 'counts.write_table("delta", "PLACE/out")' + _WAIT_KEYED + _DELTA,
    "keyed Iceberg": _KEYED + f'counts.write_table("iceberg", "air.t", options={_CATALOG})' + _WAIT_KEYED + _ICEBERG,
    "keyed SQLite": _KEYED
    + 'counts.write_table("sqlite", "counts", options={"uri": "sqlite:///PLACE/t.db"})'
    + _WAIT_KEYED
    + _SQLITE,
}

KILLED = ("files", "Delta", "keyed files", "keyed Delta", "keyed SQLite")
"""Scripts that find no new rows after an earlier run without an end was killed."""

ON_CONNECT = ("files, rolled by time", "Delta", "keyed files, any", "keyed SQLite")


def expected(name: str) -> int:
    """What a script reads."""
    return PARTS if name.startswith("keyed") else ROWS


def prepare(place: Path) -> Path:
    """The folder of a script, with rows to begin with."""
    (place / "source").mkdir(parents=True)
    (place / "warehouse").mkdir()
    rows = pa.table({"k": range(ROWS), "part": [f"p{number % PARTS}" for number in range(ROWS)]})
    pq.write_table(rows, place / "source" / "0.parquet")
    return place


def endless(name: str) -> str:
    """A script whose stream does not end: it has read everything, and its files are open."""
    is_keyed = name.startswith("keyed")
    begin, _, _ = SCRIPTS[name].partition(_WAIT_KEYED if is_keyed else _WAIT_SINK)
    return f"{begin}.start({'' if is_keyed else repr('PLACE/out')}).processAllAvailable()\n"


def run(script: str, place: Path) -> Any:
    """Runs a script as its own program; what it found."""
    path = place / f"script{len(list(place.glob('script*')))}.py"
    path.write_text(script.replace("PLACE", str(place)))
    return runpy.run_path(str(path)).get("found")
