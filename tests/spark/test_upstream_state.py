"""Spark's own stateful operators in front of keyed streams: once in each batch, also in one that is decided already."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import functions as F

import stateline.spark as st
from stateline.errors import UserCodeError

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's workers cannot find this module.

SCHEMA = "id long, value long, at timestamp"
STATE_STORE = "spark.sql.streaming.stateStore."
PROVIDERS = "org.apache.spark.sql.execution.streaming.state."


class Values:
    """A source of values, each twice, in a file for each batch; and what is made of them."""

    def __init__(self, folder, spark):
        self.folder, self.spark, self.files = folder, spark, 0
        (folder / "source").mkdir()

    def add(self, values):
        """At 101 seconds after the epoch for the value 1, and so on."""
        doubled = [*values, *values]
        table = pa.table(
            {
                "id": [self.files * 1000 + index for index in range(len(doubled))],
                "value": doubled,
                "at": pa.array([(100 + value) * 1_000_000 for value in doubled], pa.timestamp("us", tz="UTC")),
            }
        )
        pq.write_table(table, self.folder / "source" / f"{self.files:03}.parquet")
        self.files += 1

    def stream(self):
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / "source"))

    def keyed(self, rows, key, name):
        return st.KeyedStream(rows, key=key, checkpoint=f"file://{self.folder}/state", name=name, parallelism=2)

    def counted(self, rows, key, name):
        stage = self.keyed(rows, key, name).aggregate(n=st.count(), ids=st.sum("id"))
        return stage.write_files(f"file://{self.folder}/{name}", every_checkpoint=True)

    def run(self, pipeline):
        """What Spark says of its state at the end of each batch: rows that changed, rows in all."""
        query = pipeline.start(str(self.folder / "spark"), trigger={"availableNow": True})
        query.awaitTermination()
        states = [state for progress in query.recentProgress for state in progress["stateOperators"]]
        return [(state["numRowsUpdated"], state["numRowsTotal"]) for state in states]

    def forget(self, batch):
        """Spark's commit of a batch: as after a crash between our record and it."""
        (self.folder / "spark" / "commits" / str(batch)).unlink()
        (self.folder / "spark" / "commits" / f".{batch}.crc").unlink(missing_ok=True)

    def newest(self, name):
        """The newest output row of each key."""
        rows = ds.dataset(self.folder / name, format="parquet").to_table().to_pylist()
        return {row[next(iter(row))]: row for row in sorted(rows, key=lambda row: row["checkpoint_id"])}


@pytest.fixture
def values(tmp_path, spark):
    return Values(tmp_path, spark)


@pytest.fixture
def settings(spark):
    """``settings(name=value)`` sets what the name means below Spark's state store, for one test."""
    names = []

    def change(**pairs):
        for name, value in pairs.items():
            names.append(STATE_STORE + name)
            spark.conf.set(STATE_STORE + name, value)

    yield change
    for name in names:
        spark.conf.unset(name)


@pytest.mark.parametrize(
    ("provider", "form"),
    [("HDFSBackedStateStoreProvider", 1), ("RocksDBStateStoreProvider", 1), ("RocksDBStateStoreProvider", 2)],
)
def test_duplicates_are_dropped_once_for_all_operators_also_in_a_batch_that_is_decided(
    values, settings, provider, form
):
    settings(providerClass=PROVIDERS + provider, checkpointFormatVersion=form)

    def run():
        rows = values.stream().dropDuplicates(["value"]).withColumn("third", F.col("value") % 3)
        thirds, each = values.counted(rows, "third", "thirds"), values.counted(rows, "value", "each")
        return values.run(thirds.alongside(each))

    values.add(range(20))
    values.add(range(10, 30))
    assert run() == [(20, 20), (10, 30)]
    values.forget(1)
    values.add(range(20, 40))
    assert run() == [(10, 30), (10, 40)], "the first one is computed for its state"
    thirds, each = values.newest("thirds"), values.newest("each")
    assert {key: row["n"] for key, row in thirds.items()} == {0: 14, 1: 13, 2: 13}
    assert {key: row["n"] for key, row in each.items()} == dict.fromkeys(range(40), 1)
    chosen = [sum(row["ids"] for key, row in each.items() if key % 3 == third) for third in range(3)]
    assert [thirds[third]["ids"] for third in range(3)] == chosen, "of two equal values both have seen the same one"


def joined(rows):
    other = rows.select(F.col("value").alias("same"), F.col("at").alias("then"))
    return rows.join(other, F.expr("value = same AND at = then")).select("id", "value", "at")


def in_windows(rows):
    windows = rows.groupBy("value", F.window("at", "5 seconds")).agg(F.max("id").alias("id"))
    return windows.select("id", "value", F.col("window.start").alias("at"))


@pytest.mark.parametrize(("in_front", "expected"), [(joined, 4), (in_windows, 1)])
def test_a_decided_batch_goes_on_behind_any_operator_with_state(values, in_front, expected):
    def run():
        rows = in_front(values.stream().withWatermark("at", "1 second"))
        return values.run(values.counted(rows, "value", "each"))

    values.add(range(20))
    values.add(range(20, 40))
    states = run()
    newest = sum(1 for _ in (values.folder / "spark" / "commits").glob("[0-9]*")) - 1
    values.forget(newest)
    assert run()[0] == states[-1]
    values.add(range(40, 60))
    run()
    assert {row["n"] for row in values.newest("each").values()} == {expected}
    assert values.newest("each").keys() >= set(range(50))


def test_what_spark_kept_for_a_batch_that_failed_does_not_count(values):
    flag = values.folder / "fail"

    def kept(place):
        def total(events, state):
            if Path(place).exists():
                raise ValueError("not yet")
            return None, state

        return total

    def run():
        rows = values.stream().dropDuplicates(["value"])
        failing = values.keyed(rows, "value", "failing").apply_arrow(kept(str(flag)), "n long", "value long")
        return values.run(values.counted(rows, "value", "each").alongside(failing.state_only()))

    values.add(range(20))
    run()
    values.add(range(10, 30))
    flag.touch()
    with pytest.raises(UserCodeError, match="not yet"):
        run()
    assert not (values.folder / "spark" / "commits" / "1").exists()
    flag.unlink()
    assert run() == [(10, 30)]
    assert {key: row["n"] for key, row in values.newest("each").items()} == dict.fromkeys(range(30), 1)
