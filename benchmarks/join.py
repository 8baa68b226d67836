"""Joins of two streams within an interval of event time: Stateline beside Spark's own stream-stream join over RocksDB.

Ads are shown, some are clicked a little later. Each micro-batch has a minute of both streams. All engines run in one
session, in turn, several rounds; each round starts every engine on an empty state, and the first batches, until rows
leave as fast as they come, are not counted.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import BesideSpark, Run, add_rounds, costs_of, finish, median, rate, table, use_rocksdb

ENGINES = ("spark", "stateline")
SCHEMAS = {"shown": "k long, shown_at timestamp, page int", "clicked": "k long, clicked_at timestamp, spot int"}
MINUTE_US = 60_000_000
START_US = 1_704_067_200_000_000
DELAY = "1 minute"


def make_sources(folder: Path, *, batches: int, rows: int, keys: int, minutes: int, seed: int) -> None:
    """A Parquet file for each stream and micro-batch. Three of four clicks follow an ad that can still match."""
    generator = np.random.default_rng(seed)
    names = generator.permutation(np.unique(generator.integers(-(2**62), 2**62, keys)))
    shown: list[tuple[Any, Any]] = []
    for batch in range(batches):
        begin = START_US + batch * MINUTE_US
        shown.append((generator.choice(names, rows), begin + generator.integers(0, MINUTE_US, rows)))
        of_batch = generator.integers(max(len(shown) - minutes + 1, 0), len(shown), rows)
        picks = generator.integers(0, rows, rows)
        recent_keys = np.stack([each[0] for each in shown])[of_batch, picks]
        clicked = np.where(generator.random(rows) < 0.75, recent_keys, generator.choice(names, rows))
        for stream, keyed, times, number in (
            ("shown", *shown[-1], "page"),
            ("clicked", clicked, begin + generator.integers(0, MINUTE_US, rows), "spot"),
        ):
            columns = {
                "k": keyed,
                f"{stream}_at": pa.array(times, pa.timestamp("us", tz="UTC")),
                number: generator.integers(0, 100, rows, dtype=np.int32),
            }
            (folder / stream).mkdir(exist_ok=True)
            pq.write_table(pa.table(columns), folder / stream / f"{batch:05}.parquet")


def streams(session: Any, folder: Path) -> list[Any]:
    return [
        session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / name))
        for name, schema in SCHEMAS.items()
    ]


def run_spark(session: Any, source: Path, place: Path, how: str, minutes: int) -> tuple[list[dict[str, Any]], int]:
    from pyspark.sql import functions as F

    use_rocksdb(session)
    shown, clicked = streams(session, source)
    shown = shown.withWatermark("shown_at", DELAY)
    clicked = clicked.withColumnRenamed("k", "c").withWatermark("clicked_at", DELAY)
    near = F.expr(f"k = c AND clicked_at >= shown_at AND clicked_at <= shown_at + INTERVAL {minutes} MINUTES")
    writer = shown.join(clicked, near, how).drop("c").writeStream.format("parquet").option("path", str(place / "out"))
    done = finish(writer.option("checkpointLocation", str(place / "spark")).trigger(availableNow=True).start())
    return done, rows_in(place)


def run_stateline(
    session: Any, source: Path, place: Path, how: str, minutes: int, parallelism: int
) -> tuple[list[dict[str, Any]], int, list[Any]]:
    from stateline.spark import KeyedStream

    shown, clicked = (
        KeyedStream(
            stream, key="k", checkpoint=f"file://{place}/state", parallelism=parallelism, watermark=(time, DELAY)
        )
        for stream, time in zip(streams(session, source), ("shown_at", "clicked_at"), strict=True)
    )
    stage = shown.join(clicked, how, within=("0 seconds", f"{minutes} minutes"))
    pipeline = stage.write_files(f"file://{place}/out", every_checkpoint=True)
    query = pipeline.start(str(place / "spark"), trigger={"availableNow": True})
    return finish(query), rows_in(place), list(query.recent_reports)


def rows_in(place: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in (place / "out").glob("*.parquet"))


def bytes_table(reports: list[Any], skip: int) -> str:
    """What the counted checkpoints wrote, beside what the rows that came take when they are stored."""
    counted = [report for report in reports[skip:] if report["rows"]]
    of_a_row = median([report["state_bytes"] / report["state_rows"] for report in counted])
    rows, written, stored = (
        median([report[name] for report in counted]) for name in ("rows", "state_bytes_written", "state_bytes")
    )
    return table(
        ("state bytes of a checkpoint", "of the rows that came", "with merges, times", "all state"),
        [(f"{written:,.0f}", f"{of_a_row * rows:,.0f}", f"{written / (of_a_row * rows):.1f}", f"{stored:,.0f}")],
    )


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks join", description=__doc__)
    parser.add_argument("--rows", type=int, default=125_000, help="rows of each stream per micro-batch")
    parser.add_argument("--keys", type=int, default=1_000_000, help="distinct keys")
    parser.add_argument("--minutes", type=int, default=8, help="the interval, of which each micro-batch has one")
    parser.add_argument("--batches", type=int, default=18, help="micro-batches per round")
    parser.add_argument("--skip", type=int, default=11, help="first batches of a round that are not counted")
    parser.add_argument("--how", default="inner,left", help="kinds of join")
    add_rounds(parser, ENGINES)
    arguments = parser.parse_args(argv)
    all_reports: dict[str, list[Any]] = {}
    with BesideSpark("join", arguments) as beside:
        make_sources(
            beside.source,
            batches=arguments.batches,
            rows=arguments.rows,
            keys=arguments.keys,
            minutes=arguments.minutes,
            seed=1,
        )

        def run(session: Any, place: Path, how: str, engine: str) -> Run:
            below = ""
            if engine == "spark":
                done, rows = run_spark(session, beside.source, place, how, arguments.minutes)
            else:
                done, rows, reports = run_stateline(
                    session, beside.source, place, how, arguments.minutes, arguments.parallelism
                )
                all_reports[f"{how} {engine}"] = reports
                below = f"\n{bytes_table(reports, arguments.skip)}"
            return Run(rate(done, arguments.skip), costs_of(done), f" {rows:12,} rows out{below}")

        beside.run(
            {
                f"{how} {engine}": partial(run, how=how, engine=engine)
                for how in arguments.how.split(",")
                for engine in arguments.engines.split(",")
            }
        )
        beside.report(reports=all_reports)
    return 0
