"""The program that the demo kills: two keyed operators over one stream, one checkpoint for all state and all output.

The rows of each aircraft go into a Delta table, those of each route into Parquet files, and the newest row of each
route into a table of SQLite.

It is an ordinary driver, and runs by itself too::

    python -m examples.demo.pipeline --source IN --root STATE --output OUT --spark-checkpoint SPARK --parallelism 2
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading

from examples.demo.flights import SPARK_SCHEMA
from stateline.spark import KeyedStream, Pipeline, count, get_or_create_session, last, max, mean


def build(source: str, root: str, output: str, parallelism: int) -> Pipeline:
    """What is kept for each aircraft and for each route, and where it is written."""
    spark = get_or_create_session("stateline-demo", "local[2]", quiet=True)
    flights = spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", 1).parquet(source)
    aircraft = (
        KeyedStream(flights, key="tailnum", checkpoint=root, parallelism=parallelism, name="aircraft")
        .aggregate(
            flights=count(),
            mean_delay=mean("dep_delay"),
            worst_delay=max("dep_delay"),
            last_airport=last("dest", by="ts"),
            last_seen=max("ts"),
        )
        .write_table("delta", f"{output}/aircraft", options={"roll_bytes": "2MB"})
    )
    routes = KeyedStream(
        flights, key=["origin", "dest"], checkpoint=root, parallelism=parallelism, name="routes"
    ).aggregate(
        flights=count(),
        mean_delay=mean("dep_delay"),
        worst_delay=max("dep_delay"),
        last_seen=max("ts"),
    )
    files = routes.write_files(f"{output}/routes", partition_by=["origin"], roll_bytes="128KB")
    newest = routes.write_table(
        "sqlite", "routes", mode="upsert", key=["origin", "dest"], options={"uri": f"{output}/newest.db"}
    )
    return aircraft.alongside(files).alongside(newest)


def end_with_parent() -> None:
    """Ends this process when the other end of its standard input closes: the supervisor is gone."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(description="Two keyed operators over a stream of flights.")
    for option in ("--source", "--root", "--output", "--spark-checkpoint"):
        parser.add_argument(option, required=True)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--end-with-parent", action="store_true")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    if arguments.end_with_parent:
        end_with_parent()
    os.makedirs(arguments.output, exist_ok=True)
    pipeline = build(arguments.source, arguments.root, arguments.output, arguments.parallelism)
    query = pipeline.start(arguments.spark_checkpoint, trigger={"availableNow": True})
    query.awaitTermination()


if __name__ == "__main__":
    main()
