"""Streams into Delta tables: Stateline beside Spark's own Delta sink, in one session.

``append``: rows as they are read, by ``stateline_files`` and by ``writeStream.format("delta")``. ``upsert``: counts by
key, by ``write_table`` and by ``foreachBatch`` with ``MERGE``, both with state in their checkpoint. Delta Lake's jars
exist for one version of Spark, so all of it runs in the environment of :mod:`tests.readers.spark_environment`, which is
made where it does not exist. Engines alternate; the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import BesideSpark, Run, add_rounds, costs_of, finish, rate, use_rocksdb

ENGINES = ("append delta", "append stateline", "upsert delta", "upsert stateline")
_INSIDE = "STATELINE_BENCHMARK_JARS"
"""Set in the process that runs in the other environment: the jars."""


def make_source(folder: Path, *, batches: int, rows: int, keys: int) -> str:
    """One Parquet file per micro-batch; returns the Spark schema."""
    generator = np.random.default_rng(1)
    names = generator.permutation(np.unique(generator.integers(-(2**62), 2**62, keys)))
    for batch in range(batches):
        picks = generator.integers(0, len(names), rows)
        columns = {
            "k": names[picks],
            "v": generator.integers(0, 1000, rows),
            "at": pa.array(1_700_000_000_000_000 + generator.integers(0, 10**12, rows), pa.timestamp("us", "UTC")),
        }
        pq.write_table(pa.table(columns), folder / f"{batch:05}.parquet")
    return "k long, v long, at timestamp"


def append(events: Any, place: Path, sink: str) -> list[dict[str, Any]]:
    """A stream that appends to a new table."""
    writer = events.writeStream.format(sink).option("checkpointLocation", str(place / "spark"))
    if sink == "stateline_files":
        writer = writer.option("table", "delta").option("every_checkpoint", "true")
    return finish(writer.trigger(availableNow=True).start(str(place / "table")))


def upsert_by_merge(session: Any, events: Any, place: Path) -> list[dict[str, Any]]:
    """Spark's aggregation, merged into a Delta table by the program."""
    from pyspark.sql import functions as F

    use_rocksdb(session)
    target = f"delta.`{place / 'table'}`"
    session.sql(f"CREATE TABLE {target} (k BIGINT, n BIGINT, s BIGINT, m BIGINT) USING delta")
    counts = events.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"), F.max("v").alias("m"))

    def merge(rows: Any, _: int) -> None:
        rows.createOrReplaceTempView("changes")
        rows.sparkSession.sql(
            f"MERGE INTO {target} t USING changes c ON t.k = c.k "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    writer = counts.writeStream.outputMode("update").foreachBatch(merge)
    return finish(writer.option("checkpointLocation", str(place / "spark")).trigger(availableNow=True).start())


def upsert_by_stateline(events: Any, place: Path, parallelism: int) -> list[dict[str, Any]]:
    """The same rows by ``write_table``."""
    from stateline.spark import KeyedStream, count, max, sum

    counts = KeyedStream(events, key="k", checkpoint=f"file://{place}/state", parallelism=parallelism).aggregate(
        n=count(), s=sum("v"), m=max("v")
    )
    pipeline = counts.write_table("delta", str(place / "table"), mode="upsert", key="k")
    return finish(pipeline.start(str(place / "spark"), trigger={"availableNow": True}))


def check(session: Any, place: Path, expected: int, engine: str) -> None:
    """Compare the number of rows in the table, as Spark reads it."""
    found = session.read.format("delta").load(str(place / "table")).count()
    if found != expected:
        raise SystemExit(f"{engine}: expected {expected:,} rows in the table, got {found:,}")


def run_all(arguments: argparse.Namespace) -> None:
    """All rounds, in the environment that has the jars."""
    settings = {
        "spark.jars": os.environ[_INSIDE],
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    with BesideSpark("tables_in_spark", arguments, settings) as beside:
        shape = {"batches": arguments.batches, "rows": arguments.rows, "keys": arguments.keys}
        schema = make_source(beside.source, **shape)
        keys = len(np.unique(pq.ParquetDataset(str(beside.source)).read(["k"])["k"].to_numpy()))

        def run(session: Any, place: Path, engine: str) -> Run:
            events = session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(beside.source))
            kind, who = engine.split()
            if kind == "append":
                done = append(events, place, "delta" if who == "delta" else "stateline_files")
            elif who == "delta":
                done = upsert_by_merge(session, events, place)
            else:
                done = upsert_by_stateline(events, place, arguments.parallelism)
            check(session, place, arguments.batches * arguments.rows if kind == "append" else keys, engine)
            return Run(rate(done, arguments.skip), costs_of(done))

        beside.run({engine: partial(run, engine=engine) for engine in arguments.engines.split(",")}, warm_up=True)
        beside.report()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks tables_in_spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="rows per micro-batch")
    parser.add_argument("--keys", type=int, default=100_000, help="distinct keys")
    parser.add_argument("--batches", type=int, default=12, help="micro-batches per round")
    parser.add_argument("--skip", type=int, default=2, help="first batches of a round that are not counted")
    add_rounds(parser, ENGINES)
    arguments = parser.parse_args(argv)
    if _INSIDE in os.environ:
        run_all(arguments)
        return 0
    from tests.readers.spark_environment import ROOT, spark_environment

    other = spark_environment()
    with tempfile.TemporaryDirectory(prefix="stateline-bench-") as overlay:
        # Behind its own packages, so that PySpark is the other one, and everything else ours.
        packages = sysconfig.get_path("purelib")
        Path(overlay, "sitecustomize.py").write_text(f"import site\nsite.addsitedir({packages!r})\n")
        variables = {
            **other.variables(),
            "PYTHONPATH": f"{overlay}{os.pathsep}{ROOT}",
            _INSIDE: ",".join(map(str, other.jars)),
        }
        command = [str(other.python), "-m", "benchmarks", "tables_in_spark", *argv]
        return subprocess.run(command, env=variables, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
