"""Joins of two streams: the answers of Spark's own stream-stream join on the same files, batch by batch."""

from __future__ import annotations

import collections
import datetime as dt
import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from stateline.errors import InvalidInputError
from stateline.spark import KeyedStream, count

pytestmark = pytest.mark.spark

START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
FILE_TIME = 1_700_000_000
TIME = pa.timestamp("us", tz="UTC")
SCHEMAS = {
    "left": pa.schema([("k", pa.string()), ("d", pa.int32()), ("at", TIME), ("v", pa.int64())]),
    "right": pa.schema([("then", TIME), ("key", pa.string()), ("v", pa.string()), ("e", pa.int32())]),
}
DDL = {"left": "k string, d int, at timestamp, v long", "right": "then timestamp, key string, v string, e int"}
DELAYS = {"left": "2 seconds", "right": "4 seconds"}
NAMES = ["k", "d", "at", "v", "then", "v_right"]


class JoinFiles:
    """Two source folders with a file in each for every batch, and the folders of one join over them."""

    def __init__(self, folder, spark, seed=0, *, null_keys=False):
        self.folder, self.spark = folder, spark
        self.random = random.Random(seed)
        self.null_keys = null_keys
        self.batches = 0
        for side in SCHEMAS:
            (folder / side).mkdir()

    def add(self, batches, rows=30, quiet=()):
        for _ in range(batches):
            for side, schema in SCHEMAS.items():
                made = [self.row(side) for _ in range(0 if side in quiet else rows)]
                path = self.folder / side / f"{self.batches:03}.parquet"
                pq.write_table(pa.Table.from_pylist(made, schema), path)
                os.utime(path, (FILE_TIME + self.batches, FILE_TIME + self.batches))
            self.batches += 1

    def row(self, side):
        """A row whose time is a whole number of quarters of a second, or a little later."""
        quarters = self.batches * 24 + self.random.randint(-40, 24)
        at = START + dt.timedelta(milliseconds=250 * quarters, microseconds=self.random.choice([0, 0, 0, 1, 999]))
        key = self.random.choice(["a", "b", "c", *([None] if self.null_keys else [])])
        number = self.random.randint(1, 2)
        value = self.random.randrange(1000)
        if side == "left":
            return {"k": key, "d": number, "at": at, "v": value}
        return {"then": at, "key": key, "v": f"v{value}", "e": number}

    def stream(self, side):
        reader = self.spark.readStream.schema(DDL[side]).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / side))

    def joined(self, how, within, *, parallelism=2, **options):
        left, right = (
            KeyedStream(
                self.stream(side),
                key=keys,
                checkpoint=f"file://{self.folder}/state",
                parallelism=parallelism,
                watermark=(time, DELAYS[side]),
                **options,
            )
            for side, keys, time in (("left", ["k", "d"], "at"), ("right", ["key", "e"], "then"))
        )
        return left.join(right, how, within=within)

    def ours(self, stage, found=None):
        """The rows by checkpoint."""
        found = collections.defaultdict(collections.Counter) if found is None else found

        def keep(rows, key):
            found[key.checkpoint_id].update(tuple(row) for row in rows.collect())

        query = stage.for_each_batch(keep).start(str(self.folder / "spark"), trigger={"availableNow": True})
        query.awaitTermination()
        return found

    def theirs(self, how, within, found=None):
        """The rows by batch of Spark's own join."""
        found = collections.defaultdict(collections.Counter) if found is None else found
        left = self.stream("left").withWatermark("at", DELAYS["left"])
        right = self.stream("right").withWatermark("then", DELAYS["right"]).withColumnRenamed("v", "v_right")
        near = [f"then {sign} at + INTERVAL '{bound}' SECOND" for sign, bound in zip((">=", "<="), within, strict=True)]
        joined = left.join(
            right, F.expr(f"k = key AND d = e AND {' AND '.join(near)}"), f"{how}_outer" if how == "full" else how
        )
        keys = [F.coalesce("k", "key").alias("k"), F.coalesce("d", "e").alias("d")]
        picked = joined if how == "left_semi" else joined.select(*keys, "at", "v", "then", "v_right")

        def keep(rows, batch_id):
            found[batch_id].update(tuple(row) for row in rows.collect())

        writer = picked.writeStream.outputMode("append").foreachBatch(keep).trigger(availableNow=True)
        writer.option("checkpointLocation", str(self.folder / "compared")).start().awaitTermination()
        return found


def without_empty(found):
    return {batch: rows for batch, rows in found.items() if rows}


@pytest.mark.parametrize(
    ("how", "within"),
    [
        ("inner", (-5, 10)),
        ("left", (0, 6)),
        ("left", (-12, -3)),
        ("right", (2.5, 8)),
        ("full", (-5, 5)),
        ("semi", (-3, 6)),
    ],
    ids=str,
)
def test_joins_answer_as_sparks_own_does_batch_by_batch(tmp_path, spark, how, within):
    files = JoinFiles(tmp_path, spark, seed=f"{how}{within}")
    files.add(4)
    files.add(2, quiet=["right"])
    files.add(4)
    stage = files.joined(how, tuple(f"{bound} seconds" for bound in within))
    ours = without_empty(files.ours(stage))
    assert ours == without_empty(files.theirs({"semi": "left_semi"}.get(how, how), within))
    assert sum(rows.total() for rows in ours.values()) > 100


def test_restarts_at_other_parallelisms_change_nothing(tmp_path, spark):
    files = JoinFiles(tmp_path, spark)
    ours = theirs = None
    for parallelism in (2, 3, 1):
        files.add(2)
        ours = files.ours(files.joined("full", ("-5 seconds", "5 seconds"), parallelism=parallelism), ours)
        theirs = files.theirs("full", (-5, 5), theirs)
    assert without_empty(ours) == without_empty(theirs)


def test_null_keys_have_no_partners_and_come_out_at_once(tmp_path, spark):
    files = JoinFiles(tmp_path, spark, null_keys=True)
    files.add(5)
    ours = files.ours(files.joined("left", ("0 seconds", "6 seconds")))
    expected = files.theirs("left", (0, 6))
    found, wanted = (
        [(batch, row) for batch in sorted(rows) for row in rows[batch].elements()] for rows in (ours, expected)
    )
    whole, whole_wanted = (
        collections.Counter(item for item in items if item[1][0] is not None) for items in (found, wanted)
    )
    assert whole == whole_wanted
    nulls, late_nulls = ({row: batch for batch, row in items if row[0] is None} for items in (found, wanted))
    assert late_nulls
    assert all(nulls[row] < batch for row, batch in late_nulls.items())
    assert all(row[4:] == (None, None) for row in nulls)


def test_streams_that_do_not_go_together_are_refused(tmp_path, spark):
    files = JoinFiles(tmp_path, spark)
    root = f"file://{tmp_path}/state"
    left = KeyedStream(files.stream("left"), "k", root, watermark=("at", "1 second"))
    right = KeyedStream(files.stream("right"), "key", root, watermark=("then", "1 second"))
    elsewhere = KeyedStream(files.stream("right"), "key", f"{root}2")
    refused = [
        (lambda: left.join(right, "outer"), "outer"),
        (lambda: left.join(files.stream("right")), "expected KeyedStream"),
        (lambda: left.join(KeyedStream(files.stream("right"), "e", root)), "keys of one type"),
        (lambda: left.join(elsewhere), "same root"),
        (lambda: left.join(right, "left"), "within"),
        (lambda: left.join(right, within=("1 hour", "1 minute")), "within"),
        (lambda: left.join(KeyedStream(files.stream("right"), "key", root), within=(0, 1)), "watermark"),
        (lambda: left.join(right, suffix=""), "taken"),
        (lambda: left.join(right, ttl="-1 second"), "ttl"),
        (lambda: left.join(right.aggregate(n=count()).key_by("key")), "replaces rows"),
    ]
    for call, said in refused:
        with pytest.raises(InvalidInputError, match=said) as caught:
            call()
        assert caught.value.hint
    joined = left.join(right, within=(0, 1))
    assert joined._program.output_schema.names == ["k", "d", "at", "v", "then", "v_right", "e"]
