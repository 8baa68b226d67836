"""A driver that tests kill: two streams into exactly-once files on any store, one of Parquet and one of lines.

Run as ``python -m tests.spark.files_driver FOLDER URL [--store NAME=VALUE ...]``. The source and Spark's own
checkpoints are on the local disk, in ``FOLDER``; the files and the sink's records are below ``URL``.
"""

from __future__ import annotations

import argparse

from pyspark.sql import functions as F

from stateline.spark import finish_files, get_or_create_session
from tests.spark.class_archive import SHORT_LIVED
from tests.spark.keyed_driver import SCHEMA

FORMATS = {"parquet": "1500B", "jsonl": "2500B"}
"""Each format with its ``roll_bytes``: two or three micro-batches make a file, at other times in each stream."""

FOLDERS = 2
"""Folders of each output: at any time some files roll and others stay open."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("url")
    parser.add_argument("--store", action="append", default=[], help="an option of the store, NAME=VALUE")
    arguments = parser.parse_args()
    folder = arguments.folder
    options = {f"store.{name}": value for name, value in (option.split("=", 1) for option in arguments.store)}
    conf = {"spark.driver.memory": "512m", "spark.ui.enabled": "false"}
    conf |= {"spark.driver.extraJavaOptions": SHORT_LIVED, "spark.sql.shuffle.partitions": "2"}
    spark = get_or_create_session("files-driver", "local[2]", quiet=True, **conf)
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"{folder}/source")
    # Two tasks for each batch: what they made apart becomes one file for each folder.
    rows = events.withColumn("part", F.col("key") % FOLDERS).repartition(2)
    # Rows that wait travel with results, and tasks of one of the streams store theirs all the same.
    inline = dict(zip(FORMATS, ("0", "64KiB"), strict=True))
    queries = [
        rows.writeStream.format("stateline_files")
        .options(format=name, roll_bytes=roll_bytes, partition_by="part", finish="never", **options)
        .option("inline_bytes", inline[name])
        .option("checkpointLocation", f"{folder}/spark-{name}")
        .trigger(availableNow=True)
        .start(f"{arguments.url}/{name}")
        for name, roll_bytes in FORMATS.items()
    ]
    for query in queries:
        query.awaitTermination()
    # Not by the listener, too: the pieces of the slower one would be younger than the newest record, and stay.
    for name in FORMATS:
        finish_files(f"{arguments.url}/{name}", **options)


if __name__ == "__main__":
    main()
