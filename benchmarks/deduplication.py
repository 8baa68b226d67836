"""``drop_duplicates(within_watermark=True)`` beside Spark's ``dropDuplicatesWithinWatermark`` over RocksDB.

Each batch has rows of new keys and duplicates of keys that came shortly before, shuffled; event time goes on by one
minute from batch to batch. The delay of the watermark is chosen so that about ``--keys`` keys are remembered once the
state has filled, which the first batches of a round do; they are not counted. Both engines run in one session, in turn,
several rounds; each round starts every engine on an empty state.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import BesideSpark, Run, add_rounds, costs_of, finish, rate, use_rocksdb

ENGINES = ("rocksdb", "stateline")
SCHEMAS = {"long": "k long, at timestamp, v long", "string": "k string, at timestamp, v long"}
START_US = 1_700_000_000_000_000
MINUTE_US = 60_000_000


def make_source(folder: Path, *, batches: int, rows: int, fresh: int, remembered: int, kind: str, seed: int) -> None:
    """One Parquet file per micro-batch.

    Args:
        folder: Where it goes.
        batches: Files.
        rows: Rows of each.
        fresh: How many of them have a key that never came before.
        remembered: Batches for which a key is remembered at least: duplicates come within so many.
        kind: Of the key.
        seed: Of everything that is drawn.
    """
    generator = np.random.default_rng(seed)
    for batch in range(batches):
        oldest = max(batch - remembered + 1, 0) * fresh
        again = generator.integers(oldest, (batch + 1) * fresh, rows - fresh)
        numbers = generator.permutation(np.concatenate([np.arange(batch * fresh, (batch + 1) * fresh), again]))
        spread_out = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        longs = spread_out.view(np.int64)
        texts = (spread_out % np.uint64(10**16)).astype("U16")
        keys = pa.array(longs) if kind == "long" else pa.array(np.char.zfill(texts, 16))
        times = START_US + batch * MINUTE_US + generator.integers(0, MINUTE_US, rows)
        columns = {"k": keys, "at": pa.array(times, pa.timestamp("us", "UTC")), "v": np.arange(rows)}
        pq.write_table(pa.table(columns), folder / f"{batch:05}.parquet")


def run_spark(spark: Any, events: Any, delay: str, folder: Path, *, files: bool) -> list[dict[str, Any]]:
    use_rocksdb(spark)
    writer = events.withWatermark("at", delay).dropDuplicatesWithinWatermark(["k"]).writeStream.outputMode("append")
    writer = writer.format("parquet").option("path", str(folder / "out")) if files else writer.format("noop")
    return finish(writer.option("checkpointLocation", str(folder / "spark")).trigger(availableNow=True).start())


def run_stateline(events: Any, delay: str, folder: Path, parallelism: int, *, files: bool) -> list[dict[str, Any]]:
    from stateline.spark import KeyedStream

    stream = KeyedStream(
        events, key="k", checkpoint=f"file://{folder}/state", parallelism=parallelism, watermark=("at", delay)
    )
    stage = stream.drop_duplicates(within_watermark=True)
    pipeline = stage.write_files(f"file://{folder}/out") if files else stage.state_only()
    return finish(pipeline.start(str(folder / "spark"), trigger={"availableNow": True}))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks deduplication", description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000, help="rows per micro-batch")
    parser.add_argument("--fresh", type=int, default=250_000, help="rows of a batch whose key never came before")
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys remembered, about")
    parser.add_argument("--kind", choices=tuple(SCHEMAS), default="long", help="kind of key")
    parser.add_argument("--batches", type=int, default=14, help="micro-batches per round")
    parser.add_argument("--skip", type=int, default=6, help="first batches of a round that are not counted")
    add_rounds(parser, ENGINES)
    parser.add_argument("--files", action="store_true", help="both write what passes as Parquet files")
    arguments = parser.parse_args(argv)
    remembered = max(arguments.keys // arguments.fresh, 1)
    # A key is forgotten when the watermark, which stays behind by the delay, has come to its time and the delay.
    delay = f"{30 * (remembered - 1)} seconds"
    with BesideSpark("deduplication", arguments) as beside:
        make_source(
            beside.source,
            batches=arguments.batches,
            rows=arguments.rows,
            fresh=arguments.fresh,
            remembered=remembered,
            kind=arguments.kind,
            seed=1,
        )

        def run(session: Any, place: Path, engine: str) -> Run:
            reader = session.readStream.schema(SCHEMAS[arguments.kind]).option("maxFilesPerTrigger", 1)
            events = reader.parquet(str(beside.source))
            if engine == "rocksdb":
                done = run_spark(session, events, delay, place, files=arguments.files)
            else:
                done = run_stateline(events, delay, place, arguments.parallelism, files=arguments.files)
            return Run(rate(done, arguments.skip), costs_of(done))

        beside.run({engine: partial(run, engine=engine) for engine in arguments.engines.split(",")})
        beside.report()
    return 0
