"""Streams of the file sink that a test kills, all in one process: one source, and one output for each stream.

Run as ``python -m tests.spark.sink_driver FOLDER [--to-the-end]``. ``FOLDER/streams.json`` says what to write: for each
name the options of ``stateline_files``. Without the option the streams run until they are killed.
"""

from __future__ import annotations

import argparse
import json
import pathlib

from stateline.spark import finish_files, get_or_create_session
from tests.spark.keyed_driver import SCHEMA, SHORT_LIVED


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--to-the-end", action="store_true")
    arguments = parser.parse_args()
    folder = arguments.folder
    conf = {"spark.driver.memory": "512m", "spark.ui.enabled": "false", "spark.driver.extraJavaOptions": SHORT_LIVED}
    spark = get_or_create_session("sink-driver", "local[2]", quiet=True, **conf)
    trigger = {"availableNow": True} if arguments.to_the_end else {"processingTime": "0 seconds"}
    streams = json.loads((folder / "streams.json").read_text())
    queries = []
    for name, options in streams.items():
        events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "source"))
        writer = events.writeStream.format("stateline_files").options(**options)
        writer = writer.option("checkpointLocation", str(folder / "spark" / name))
        queries.append(writer.trigger(**trigger).start())
    for query, options in zip(queries, streams.values(), strict=True):
        query.awaitTermination()
        places = {key: value for key, value in options.items() if key.startswith("store.")}
        finish_files(options["path"], **places)


if __name__ == "__main__":
    main()
