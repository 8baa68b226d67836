"""Events in numbered files, one micro-batch each, for tests that compare a pipeline with Spark's own stateful query."""

from __future__ import annotations

import collections
import datetime as dt
import os

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore
from stateline.spark import KeyedStream

START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
FILE_TIME = 1_700_000_000
SCHEMA = "key string, value long, at timestamp"
ARROW = pa.schema([("key", pa.string()), ("value", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])

LATE_AND_EARLY = [
    [("a", 1), ("a", 2), ("b", 4), ("a", 31)],
    [("a", 3), ("b", 12), ("a", 13), ("c", 33)],
    [("a", 4), ("b", 14), ("c", 60), ("a", None)],
    [("a", 5), ("b", 32), ("a", 33), (None, 52)],
    [("b", 49.9999999), ("a", 52), ("b", 75.5)],
]
"""Keys and minutes since START, by batch: rows in order, rows that are late and rows that are only nearly so."""


def minutes(number):
    return None if number is None else START + dt.timedelta(minutes=number)


class EventFiles:
    """A source folder and the folders of one pipeline over it."""

    def __init__(self, folder, spark):
        self.folder, self.spark = folder, spark
        self.batches = 0
        (folder / "source").mkdir()

    def add(self, *batches):
        for batch in batches:
            rows = [
                {"key": key, "value": len(str(key)) + index, "at": minutes(at)} for index, (key, at) in enumerate(batch)
            ]
            path = self.folder / "source" / f"{self.batches:03}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, ARROW), path)
            # Spark takes files in the order of their times, and these are written within one of its ticks.
            os.utime(path, (FILE_TIME + self.batches, FILE_TIME + self.batches))
            self.batches += 1
        return self

    def events(self):
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / "source"))

    def keyed(self, events=None, key="key", **options):
        return KeyedStream(events or self.events(), key=key, checkpoint=f"file://{self.folder}/state", **options)

    def run(self, stage):
        """The output rows by checkpoint, of everything the pipeline has written so far."""
        pipeline = stage.write_files(f"file://{self.folder}/out", every_checkpoint=True)
        pipeline.start(str(self.folder / "spark"), trigger={"availableNow": True}).awaitTermination()
        return self.output()

    def output(self):
        found = collections.defaultdict(list)
        if (self.folder / "out").exists():
            for row in ds.dataset(self.folder / "out", format="parquet").to_table().to_pylist():
                found[row.pop("checkpoint_id", None)].append(row)
        return dict(found)

    def newest(self):
        return CheckpointStore(open_store(f"file://{self.folder}/state")).latest()

    def spark_answer(self, aggregated, mode):
        """The rows by batch of Spark's own stateful query, with the struct ``window`` as our two columns."""
        found = collections.defaultdict(list)

        def keep(rows, batch_id):
            for row in rows.toArrow().to_pylist():
                window = row.pop("window", None)
                if window is not None:
                    row |= {"window_start": window["start"], "window_end": window["end"]}
                found[batch_id].append(row)

        query = aggregated.writeStream.outputMode(mode).foreachBatch(keep).trigger(availableNow=True)
        query.option("checkpointLocation", str(self.folder / "compared")).start().awaitTermination()
        return dict(found)


def same(rows):
    """Rows by batch in a form that does not depend on their order, nor on that of their columns."""
    return {
        batch: collections.Counter(tuple(sorted((name, str(value)) for name, value in row.items())) for row in found)
        for batch, found in rows.items()
        if found
    }
