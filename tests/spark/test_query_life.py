"""The life of a pipeline's query: from a start without a word about Spark's checkpoint to an end that nobody misses."""

from __future__ import annotations

import os
import stat
import time

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from stateline.checkpoint import CheckpointStore, sweep_root, verify_root
from stateline.environment import system_environment
from stateline.errors import InvalidInputError, NotFoundError, StorageFullError
from stateline.pipeline import end_of_stream as ending
from stateline.spark import KeyedStream, count, finish_files
from stateline.spark.query.spark_folder import spark_folder

FOLDERS = 40
AVAILABLE_NOW = {"availableNow": True}


class Flights:
    """A pipeline that counts by key into a folder for each key."""

    def __init__(self, spark, folder):
        self.spark, self.folder, self.files = spark, folder, 0
        self.root = f"{folder}/state"
        (folder / "source").mkdir()

    def add(self, keys):
        rows = pa.table({"k": [f"k{key:02}" for key in range(keys)], "v": list(range(keys))})
        pq.write_table(rows, self.folder / "source" / f"{self.files}.parquet")
        self.files += 1

    def start(self, *arguments, **options):
        events = self.spark.readStream.schema("k string, v long").parquet(f"{self.folder}/source")
        stage = KeyedStream(events, "k", self.root, parallelism=1).aggregate(n=count())
        return stage.write_files(f"{self.folder}/out", partition_by="k").start(*arguments, **options)

    def counted(self):
        if not (self.folder / "out").exists():
            return 0
        return ds.dataset(self.folder / "out", format="parquet").count_rows()


@pytest.fixture
def flights(spark, tmp_path):
    return Flights(spark, tmp_path)


def wait_until(condition):
    clock = system_environment().clock
    deadline = clock.monotonic() + 120
    while not condition():
        assert clock.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


def test_files_appear_however_the_program_waits_and_sparks_checkpoint_lies_below_the_root(flights, spark):
    flights.add(3)
    spark.streams.resetTerminated()
    flights.start(trigger=AVAILABLE_NOW)
    spark.streams.awaitAnyTermination()
    wait_until(lambda: flights.counted() == 3)
    flights.add(2)
    query = flights.start(trigger=AVAILABLE_NOW)
    wait_until(lambda: not query.isActive)
    assert flights.counted() == 5, "a query that is not active any more has finished its files"
    assert (flights.folder / "state" / "spark" / "commits" / "1").exists()
    assert stat.S_IMODE((flights.folder / "state").stat().st_mode) == 0o700, "made by the store, and not by Spark"
    checkpoints = CheckpointStore(flights.root)
    assert verify_root(checkpoints).is_sound
    sweep_root(checkpoints, min_age=0, delete=True)
    flights.add(1)
    flights.start(trigger={"once": True}).awaitTermination()
    assert flights.counted() == 6


def test_what_fails_in_the_end_is_raised_and_finish_files_goes_on_by_hand(flights, monkeypatch):
    flights.add(2)

    def full(*arguments):
        raise StorageFullError("no room", operation="stage", subject="out")

    encode = ending.encode_file
    monkeypatch.setattr(ending, "encode_file", full)
    query = flights.start(finish_on_stop=True)
    query.processAllAvailable()
    with pytest.raises(StorageFullError, match="no room"):
        query.stop()
    for _ in range(2):
        with pytest.raises(StorageFullError, match="no room"):
            query.awaitTermination()
    assert query.exception() is None, "Spark knows nothing of it"
    with pytest.raises(StorageFullError, match="no room"):
        flights.start(trigger=AVAILABLE_NOW)
    with pytest.raises(StorageFullError, match="no room"):
        finish_files(flights.root)
    assert flights.counted() == 0
    monkeypatch.setattr(ending, "encode_file", encode)
    with pytest.raises(NotFoundError, match="Of a keyed stream, give its checkpoint"):
        finish_files(f"{flights.folder}/out")
    for _ in range(2):
        finish_files(flights.root)
        assert flights.counted() == 2
    records = CheckpointStore(flights.root).list()
    assert [record.checkpoint_id for record in records] == [0, 1], "an end is one record, and by hand retires none"
    flights.add(2)
    flights.start(trigger=AVAILABLE_NOW).awaitTermination()
    assert flights.counted() == 4


def test_many_runs_in_one_process_leave_no_descriptors(flights):
    counts = []
    for number in range(4):
        flights.add(FOLDERS)
        if number < 3:
            flights.start(trigger=AVAILABLE_NOW).awaitTermination()
        else:
            query = flights.start(finish_on_stop=True)
            query.processAllAvailable()
            query.stop()
        assert flights.counted() == (number + 1) * FOLDERS
        counts.append(len(os.listdir("/proc/self/fd")))
    assert max(counts) - counts[0] < FOLDERS / 2, counts


def test_a_root_where_spark_cannot_write_needs_another_place(spark):
    with pytest.raises(InvalidInputError, match=r"spark_checkpoint: Spark has no file system for nosuch://b/r/spark"):
        spark_folder(spark, "nosuch://b/r")
