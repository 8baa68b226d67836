"""Two runs of one query in one program: the first one ends with an error, and not as if its work were done."""

from __future__ import annotations

import threading
import time

import pytest

from stateline.errors import FencedError
from stateline.spark import KeyedStream, count
from tests.spark.marked_processes import wait_until
from tests.spark.scripts import prepare

SCHEMA = "k long, part string"


def start(spark, kind, place, function):
    rows = spark.readStream.schema(SCHEMA).parquet(f"{place}/source").mapInArrow(function, SCHEMA)
    if kind == "files":
        writer = rows.writeStream.format("stateline_files").option("checkpointLocation", f"{place}/spark")
        return writer.start(f"{place}/out")
    stage = KeyedStream(rows, "part", f"{place}/state", parallelism=1).aggregate(n=count())
    return stage.write_files(f"{place}/out").start()


def waiting(place):
    """Rows that come when a file is there. Until then the batch runs."""

    def function(batches):
        from pathlib import Path

        Path(place, "begun").touch()
        while not Path(place, "go").exists():
            time.sleep(0.05)
        yield from batches

    return function


@pytest.mark.parametrize("is_busy", [False, True], ids=["between two batches", "in a batch"])
@pytest.mark.parametrize("kind", ["keyed", "files"])
def test_a_run_whose_place_is_taken_is_fenced(spark, tmp_path, capfd, kind, is_busy):
    place = str(prepare(tmp_path))
    if not is_busy:
        (tmp_path / "go").touch()
    first = start(spark, kind, place, waiting(place))
    wait_until((tmp_path / "begun").exists, 60, "the first batch")
    if not is_busy:
        first.processAllAvailable()
    threading.Timer(1.0 if is_busy else 0.0, (tmp_path / "go").touch).start()
    second = start(spark, kind, place, waiting(place))
    try:
        for _ in range(2):
            with pytest.raises(FencedError, match=f"another run of this query, {second.runId}, was started"):
                first.awaitTermination(60)
        assert first.exception() is None
        second.processAllAvailable()
        assert second.isActive
    finally:
        second.stop()
    assert second.awaitTermination(60) in (True, None)
    assert "StackOverflowError" not in capfd.readouterr().err


def test_a_run_that_has_ended_is_not_fenced_by_the_next_one(spark, tmp_path):
    place = str(prepare(tmp_path))
    (tmp_path / "go").touch()
    first = start(spark, "keyed", place, waiting(place))
    first.processAllAvailable()
    first.stop()
    second = start(spark, "keyed", place, waiting(place))
    second.stop()
    assert first.awaitTermination(60) in (True, None)
