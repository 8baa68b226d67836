"""Keyed count/sum/max over 500,000-row micro-batches: Stateline beside Spark's state stores and beside no state.

All engines run in one session, in turn, several rounds; each round starts every engine on an empty state. The first
batches of a round are not counted: code compiles, and the state is still small.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import ROCKSDB, BesideSpark, Run, add_rounds, costs_of, finish, rate

ENGINES = ("rocksdb", "memory", "stateless", "stateline")
IN_MEMORY = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


def make_source(folder: Path, *, batches: int, rows: int, keys: int, kind: str, seed: int, zipf: float | None) -> str:
    """One Parquet file per micro-batch; returns the Spark schema."""
    generator = np.random.default_rng(seed)
    names = generator.permutation(np.unique(generator.integers(-(2**62), 2**62, keys)))
    for batch in range(batches):
        if zipf is None:
            picks = generator.integers(0, len(names), rows)
        else:
            picks = generator.zipf(zipf, rows) % len(names)
        longs = names[picks]
        columns: dict[str, Any] = {}
        if kind == "string":
            columns["k"] = pa.array(np.char.zfill((longs % 10**16).astype("U16"), 16))
        elif kind == "composite":
            columns["k"] = pa.array(np.char.add("key-", (longs % 10**7).astype("U8")))
            columns["d"] = pa.array((longs % 365).astype(np.int32), pa.date32())
        else:
            columns["k"] = longs
        columns["v"] = generator.integers(0, 1000, rows)
        pq.write_table(pa.table(columns), folder / f"{batch:05}.parquet")
    types = {"long": "k long, v long", "string": "k string, v long", "composite": "k string, d date, v long"}
    return types[kind]


def run_spark(spark: Any, events: Any, keys: list[str], folder: Path, provider: str) -> list[dict[str, Any]]:
    from pyspark.sql import functions as F

    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    aggregated = events.groupBy(*keys).agg(F.count("*").alias("n"), F.sum("v").alias("s"), F.max("v").alias("m"))
    writer = aggregated.writeStream.outputMode("update").format("noop")
    return finish(writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start())


def run_stateless(events: Any, keys: list[str], folder: Path, parallelism: int) -> list[dict[str, Any]]:
    """The same pipeline without state: source, shuffle by key, Arrow to Python, one row back per task."""
    from pyspark.sql import functions as F

    from stateline.spark.job.batch_job import subtask_expression

    def count(batches: Any) -> Any:
        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})

    def handle(batch: Any, _: int) -> None:
        subtask = F.expr(subtask_expression(f"xxhash64({', '.join(keys)})", parallelism, 128))
        shuffled = batch.withColumn("__subtask", subtask).repartitionById(parallelism, "__subtask").drop("__subtask")
        shuffled.mapInArrow(count, "rows long").collect()

    writer = events.writeStream.foreachBatch(handle)
    return finish(writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start())


def run_stateline(events: Any, keys: list[str], folder: Path, parallelism: int) -> list[dict[str, Any]]:
    from stateline.spark import KeyedStream, count, max, sum

    pipeline = (
        KeyedStream(events, key=keys, checkpoint=f"file://{folder}/state", parallelism=parallelism)
        .aggregate(n=count(), s=sum("v"), m=max("v"))
        .state_only()
    )
    return finish(pipeline.start(str(folder / "spark"), trigger={"availableNow": True}))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks stateful", description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000, help="rows per micro-batch")
    parser.add_argument("--keys", type=int, default=1_000_000, help="distinct keys")
    parser.add_argument("--kind", choices=("long", "string", "composite"), default="long", help="kind of key")
    parser.add_argument("--zipf", type=float, help="skew of the keys, such as 1.2; uniform without it")
    parser.add_argument("--batches", type=int, default=12, help="micro-batches per round")
    parser.add_argument("--skip", type=int, default=4, help="first batches of a round that are not counted")
    add_rounds(parser, ENGINES)
    parser.add_argument(
        "--tuned-peers",
        action="store_true",
        help="Spark's engines get the settings that make Stateline's own session faster",
    )
    arguments = parser.parse_args(argv)
    keys = ["k", "d"] if arguments.kind == "composite" else ["k"]
    with BesideSpark("stateful", arguments) as beside:
        schema = make_source(
            beside.source,
            batches=arguments.batches,
            rows=arguments.rows,
            keys=arguments.keys,
            kind=arguments.kind,
            seed=1,
            zipf=arguments.zipf,
        )

        def run(session: Any, place: Path, engine: str) -> Run:
            events = session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(beside.source))
            if engine in ("rocksdb", "memory"):
                done = run_spark(session, events, keys, place, ROCKSDB if engine == "rocksdb" else IN_MEMORY)
            elif engine == "stateless":
                done = run_stateless(events, keys, place, arguments.parallelism)
            else:
                done = run_stateline(events, keys, place, arguments.parallelism)
            return Run(rate(done, arguments.skip), costs_of(done))

        beside.run({engine: partial(run, engine=engine) for engine in arguments.engines.split(",")})
        beside.report()
    return 0
