"""A relative path means the folder that the program is in, at every place where one can be given, or it is refused."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore, create_savepoint
from stateline.errors import InvalidInputError
from stateline.spark import KeyedStream, count, finish_files
from stateline.spark.places import refuse_relative, resolved, watch_places

ROWS = 20
NOW = {"availableNow": True}


@pytest.fixture
def here(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a program that has changed it since Spark was started. Spark's own gets nothing."""
    spark.range(ROWS).selectExpr("id", "id % 3 AS k").write.parquet(str(tmp_path / "in"))
    theirs = Path(str(spark.sparkContext._jvm.System.getProperty("user.dir")))
    before = set(os.listdir(theirs))
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert folder != theirs
    yield folder
    made = {path.name for path in folder.iterdir()}
    assert made.isdisjoint(set(os.listdir(theirs)) - before), "nothing lies in the folder that Spark was started in"


def events(spark: SparkSession, here: Path):
    return spark.readStream.schema("id long, k long").parquet(str(here.parent / "in"))


def keyed(spark: SparkSession, here: Path, **more):
    return KeyedStream(events(spark, here), "k", "state", **more).aggregate(n=count())


def rows_in(folder: Path) -> int:
    return int(ds.dataset(folder, format="parquet").count_rows())


def test_the_file_sink_and_what_finishes_its_files(spark: SparkSession, here: Path) -> None:
    writer = events(spark, here).writeStream.format("stateline_files").option("checkpointLocation", "spark")
    writer = writer.options(checkpoint="records").option("finish", "never").trigger(availableNow=True)
    writer.start("out").awaitTermination()
    assert sorted(path.name for path in here.iterdir()) == ["records", "spark"], "its rows wait in open files"
    finish_files("out", checkpoint="records")
    assert rows_in(here / "out") == ROWS
    writer = events(spark, here).writeStream.trigger(availableNow=True)
    writer.start(path="second", format="stateline_files", checkpointLocation="spark2").awaitTermination()
    finish_files("second")
    assert rows_in(here / "second") == ROWS


def test_a_batch_job_and_a_table_of_it(spark: SparkSession, here: Path) -> None:
    spark.range(ROWS).write.format("stateline_files").option("path", "out").mode("append").save()
    assert rows_in(here / "out") == ROWS
    spark.range(ROWS).write.save("lake", "stateline_files", "append", table="delta")
    assert (here / "lake" / "_delta_log").is_dir()
    writer = spark.range(ROWS).write.format("STATELINE_FILES").option("table", "iceberg").mode("append")
    writer = writer.option("table.name", "a.b").option("table.catalog.uri", "sqlite:///catalog.db")
    writer.option("table.catalog.warehouse", "warehouse").save("warehouse/a/b/data")
    assert rows_in(here / "warehouse" / "a" / "b" / "data") == ROWS
    assert (here / "catalog.db").is_file()


def test_a_keyed_stream_its_state_and_what_starts_from_it(spark: SparkSession, here: Path) -> None:
    pipeline = keyed(spark, here, options={"metrics_log": "metrics.jsonl"}).write_files("out")
    pipeline.start("spark", trigger=NOW).awaitTermination()
    assert sorted(path.name for path in here.iterdir()) == ["metrics.jsonl", "out", "spark", "state"]
    expected = [(0, 7), (1, 7), (2, 6)]
    assert sorted(map(tuple, spark.read.format("stateline").load("state").collect())) == expected
    assert sorted(map(tuple, spark.read.load("state", format="stateline").collect())) == expected
    changes = spark.readStream.format("stateline").option("mode", "changes").load("state")
    assert changes.columns == ["__change", "k", "n"]
    create_savepoint(CheckpointStore(open_store("state")), "kept")
    looked = KeyedStream(events(spark, here), "k", "other", start_from="kept").lookup("state")
    assert looked._pipeline.plan.start.url == str(here / "kept")
    (program,) = looked._pipeline._programs.values()
    assert [lookup.root for lookup in program.lookups.values()] == [str(here / "state")]


def test_tables(spark: SparkSession, here: Path) -> None:
    stage = keyed(spark, here)
    stage.write_table("sqlite", "t", options={"uri": "sqlite:///t.db"}).start(trigger=NOW).awaitTermination()
    connection = sqlite3.connect(here / "t.db")
    assert connection.execute("SELECT count(*) FROM t").fetchall() == [(3,)]
    connection.close()

    def options(form: str, target: str, **given: str) -> dict[str, str]:
        pipeline = stage.write_table(
            form, target, options={name.replace("_", "."): each for name, each in given.items()}
        )
        (operator,) = pipeline.plan.graph.operators
        assert operator.table is not None
        return {"target": operator.table.target, **operator.table.options}

    assert options("sqlite", "t", uri="t.db")["uri"] == str(here / "t.db")
    assert options("sqlite", "t", uri="file:t.db")["uri"] == str(here / "t.db")
    assert options("delta", "lake")["target"] == str(here / "lake")
    made = options("iceberg", "a.b", catalog_uri="sqlite:///c.db?x=1", catalog_warehouse="house")
    assert made["catalog.uri"] == f"sqlite:///{here}/c.db?x=1"
    assert made["catalog.warehouse"] == str(here / "house")


@pytest.mark.parametrize(
    "place", ["/a", "file:///a", "file:/a", "s3://b/x", "dbfs:/a", "hdfs://h/a", "memory://x", "C:/a"]
)
def test_what_is_absolute_stays_as_it_is(spark: SparkSession, place: str) -> None:
    assert resolved(place, "path", spark) == place
    refuse_relative("stateline_files", {"path": place, "checkpoint": place, "checkpointLocation": place})


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ("stateline", {"path": "state"}, "path: must be an absolute path or a URL, got 'state'"),
        ("stateline", {"path": "file:state"}, "got 'file:state'"),
        ("stateline_files", {"path": "./out"}, "path"),
        ("stateline_files", {"path": "/a", "checkpoint": "records"}, "checkpoint: must be"),
        ("stateline_files", {"path": "/a", "checkpointlocation": "spark"}, "checkpointlocation: must be"),
        ("stateline_files", {"path": "/a", "localCopies": "copies"}, "localCopies: must be"),
        ("stateline_files", {"path": "/a", "table.catalog.uri": "sqlite:///c.db"}, "catalog.uri: must be"),
        (
            "stateline_files",
            {"path": "/a", "table.catalog.type": "sql", "table.catalog.warehouse": "house"},
            "catalog.warehouse: must be",
        ),
    ],
)
def test_a_worker_refuses_what_it_cannot_resolve(source: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        refuse_relative(source, options)


def test_what_names_no_place_of_ours_stays_as_it_is(spark: SparkSession, here: Path) -> None:
    refuse_relative("stateline", {"path": "/a", "checkpoint": "3"})
    refuse_relative("stateline_files", {"path": "/a", "localcopies": "none"})
    refuse_relative("stateline_files", {"path": "/a", "table.catalog.uri": "http://x", "table.catalog.warehouse": "w"})
    watch_places()  # Idempotent.
    spark.range(3).write.format("csv").mode("overwrite").save(str(here / "plain"))
    assert spark.read.format("csv").load(str(here / "plain")).count() == 3
