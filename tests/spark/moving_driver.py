"""A driver that tests kill while its query is saved and moved: counts per key of a folder of files, or of two.

Run as ``python -m tests.spark.moving_driver MASTER FOLDER STAGE [options]``. Stage ``n`` has its root in
``FOLDER/n/state`` and Spark's checkpoint in ``FOLDER/n/spark``. All stages write to ``FOLDER/out``. ``--kill`` takes
the steps of :mod:`tests.spark.keyed_driver`, with a number where not the first call kills: ``record:before:2``. At
``lay:WHEN:NUMBER`` it dies before or after that file is created in Spark's new checkpoint.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession

from stateline.checkpoint.spark_files import StoreFiles
from stateline.spark import KeyedStream, count, get_or_create_session, max, sum
from tests.spark.class_archive import SHORT_LIVED
from tests.spark.keyed_driver import POINTS, SCHEMA, die, plant

FOLDERS = ("source", "more")
"""Where the files are; a query without ``--union`` reads the first one only."""

LAY = "lay"
COPY = "copy"

POINTS[COPY] = ("put_if_absent", "shared/")
"""An object that is copied into the new root."""


def plant_in_restore(when: str, number: int) -> None:
    create = StoreFiles.create
    left = number

    def create_or_die(self, name, data):
        nonlocal left
        left -= 1
        if not left and when == "before":
            die()
        create(self, name, data)
        if not left:
            die()

    StoreFiles.create = create_or_die


def read(spark: SparkSession, folder: str, names: tuple[str, ...]) -> DataFrame:
    """All rows of some folders."""
    first, *others = (
        spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"{folder}/{name}") for name in names
    )
    for other in others:
        first = first.union(other)
    return first


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("master")
    parser.add_argument("folder")
    parser.add_argument("stage", type=int)
    parser.add_argument("--union", action="store_true", help="read both folders")
    parser.add_argument("--start-from", default="", help="the URL of a savepoint")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--inline-bytes", default="64KiB", help="of a subtask, that make no object")
    parser.add_argument("--kill", help="POINT:WHEN or POINT:WHEN:NUMBER")
    arguments = parser.parse_args()
    if arguments.kill:
        point, when, number = f"{arguments.kill}:1".split(":")[:3]
        if point == LAY:
            plant_in_restore(when, int(number))
        else:
            plant(point, when, int(number))
    conf = {"spark.driver.memory": "512m", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    conf |= {f"spark.{side}.extraJavaOptions": SHORT_LIVED for side in ("driver", "executor")}
    spark = get_or_create_session("moving-driver", arguments.master, quiet=True, **conf)
    folder, place = arguments.folder, f"{arguments.folder}/{arguments.stage}"
    more = {"start_from": arguments.start_from} if arguments.start_from else {}
    stream = KeyedStream(
        read(spark, folder, FOLDERS if arguments.union else FOLDERS[:1]),
        "key",
        f"file://{place}/state",
        parallelism=arguments.parallelism,
        options={"inline_bytes": arguments.inline_bytes},
        **more,
    )
    totals = stream.aggregate(n=count(), total=sum("value"), largest=max("value"))
    pipeline = totals.write_files(f"file://{folder}/out", roll_bytes="600B")
    pipeline.start(f"{place}/spark", trigger={"availableNow": True}).awaitTermination()


if __name__ == "__main__":
    main()
