"""Tables through Spark itself: streams with and without state, batch jobs, and what finishes them later."""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore
from stateline.checkpoint.table_records import table_records
from stateline.errors import InvalidInputError, UnavailableError
from stateline.pipeline import table_commits
from stateline.spark import KeyedStream, count, finish_files, register
from stateline.tables.iceberg import IcebergCommits


@pytest.fixture
def place(tmp_path, spark):
    """A folder with a source of numbered files."""
    register(spark)
    (tmp_path / "source").mkdir()
    return tmp_path


def add_rows(place, number, keys):
    rows = pa.table({"k": pa.array(keys, pa.int64()), "part": [f"p {key % 2}" for key in keys]})
    path = place / "source" / f"{number:03}.parquet"
    pq.write_table(rows, path)
    os.utime(path, (number, number))  # Spark takes the oldest first.


def events(spark, place):
    source = spark.readStream.schema("k long, part string").option("maxFilesPerTrigger", 1)
    return source.parquet(str(place / "source"))


def counted(spark, place):
    return KeyedStream(events(spark, place), "k", str(place / "root"), parallelism=2, max_parallelism=4).aggregate(
        n=count()
    )


def run(pipeline):
    pipeline.start(trigger={"availableNow": True}).awaitTermination()


def catalog_options(place):
    (place / "warehouse").mkdir(exist_ok=True)
    return {
        "catalog.type": "sql",
        "catalog.uri": f"sqlite:///{place}/catalog.db",
        "catalog.warehouse": (place / "warehouse").as_uri(),
    }


@contextmanager
def iceberg_table(place, name):
    options = {key.removeprefix("catalog."): text for key, text in catalog_options(place).items()}
    with load_catalog("default", **options) as catalog:
        yield catalog.load_table(name)


def pairs(table):
    return sorted((row["k"], row["n"]) for row in table.to_pylist())


def test_one_stream_into_two_tables_over_restarts(spark, place):
    def pipeline():
        stream = events(spark, place)

        def keyed(name):
            return KeyedStream(stream, "k", str(place / "root"), parallelism=2, max_parallelism=4, name=name)

        database = {"uri": f"sqlite:///{place}/t.db"}
        return (
            keyed("lake")
            .aggregate(n=count())
            .write_table("delta", str(place / "delta table"))
            .alongside(keyed("rows").aggregate(n=count()).write_table("sqlite", "counts", options=database))
        )

    add_rows(place, 0, [1, 2, 2])
    add_rows(place, 1, [2, 3])
    run(pipeline())
    add_rows(place, 2, [3])
    run(pipeline())
    table = DeltaTable(str(place / "delta table"))
    wanted = [(1, 1), (2, 2), (2, 3), (3, 1), (3, 2)]
    assert pairs(table.to_pyarrow_table()) == wanted
    connection = sqlite3.connect(place / "t.db")
    assert connection.execute("SELECT k, n FROM counts ORDER BY k, n").fetchall() == wanted
    connection.close()
    newest = CheckpointStore(open_store(str(place / "root"))).latest()
    assert {name: table.format for name, table in table_records(newest).items()} == {"lake": "delta", "rows": "sqlite"}
    assert table_records(newest)["lake"].identity == table.metadata().id
    with pytest.raises(InvalidInputError):
        run(counted(spark, place).write_files(str(place / "plain")))


def test_rows_into_sqlite_by_key(spark, place):
    add_rows(place, 0, [1, 2, 2])
    add_rows(place, 1, [2, 3])
    options = {"uri": f"sqlite:///{place}/t.db"}

    def pipeline():
        return counted(spark, place).write_table("sqlite", "counts", mode="upsert", key="k", options=options)

    run(pipeline())
    run(pipeline())
    connection = sqlite3.connect(place / "t.db")
    assert connection.execute("SELECT k, n FROM counts ORDER BY k").fetchall() == [(1, 1), (2, 3), (3, 1)]
    connection.execute("UPDATE stateline_commits SET checkpoint_id = 0")
    connection.commit()
    connection.close()
    with pytest.raises(InvalidInputError, match="rolled back"):
        run(pipeline())


def test_keys_that_are_forgotten_leave_sqlite(spark, place):
    """A key of the second batch is the first of its window to be late for nothing: the others have closed."""
    options = {"uri": f"sqlite:///{place}/t.db"}
    for number, minute in enumerate((1, 25, 47)):
        rows = pa.table({"k": [minute], "at": pa.array([minute * 60_000_000], pa.timestamp("us", "UTC"))})
        path = place / "source" / f"{number:03}.parquet"
        pq.write_table(rows, path)
        os.utime(path, (number, number))
    source = spark.readStream.schema("k long, at timestamp").option("maxFilesPerTrigger", 1)
    stream = source.parquet(str(place / "source"))
    windows = KeyedStream(stream, "k", str(place / "root"), parallelism=2, watermark=("at", "0 minutes")).window(
        "at", "10 minutes"
    )
    run(
        windows.aggregate(n=count()).write_table(
            "sqlite", "counts", mode="upsert", key=["k", "window_start"], deletes=True, options=options
        )
    )
    connection = sqlite3.connect(place / "t.db")
    assert connection.execute("SELECT k FROM counts").fetchall() == [(47,)]
    connection.close()
    with pytest.raises(InvalidInputError, match="cannot delete what this operator forgets: a row of mode append"):
        windows.aggregate("append", n=count()).write_table(
            "sqlite", "counts", mode="upsert", key="k", deletes=True, options=options
        )


def test_rows_into_iceberg_by_partition(spark, place):
    add_rows(place, 0, [1, 2, 2])
    pipeline = counted(spark, place).write_table(
        "iceberg", "air.counts", partition_by="n", options={**catalog_options(place), "every_checkpoint": "true"}
    )
    run(pipeline)
    with iceberg_table(place, "air.counts") as table:
        assert table.name_mapping() is None, "its files carry the ids of its columns"
        assert pairs(table.scan().to_arrow()) == [(1, 1), (2, 2)]
        assert [field.name for field in table.spec().fields] == ["n"]


def test_a_table_that_cannot_be_made_is_closed(spark, place, monkeypatch):
    def fail(_):
        raise UnavailableError("cannot be reached", operation="create", subject="t", hint="wait")

    closed, real = [], IcebergCommits.close
    monkeypatch.setattr(IcebergCommits, "create", fail)
    monkeypatch.setattr(IcebergCommits, "close", lambda self: (closed.append(self), real(self)))
    with pytest.raises(UnavailableError):
        counted(spark, place).write_table("iceberg", "air.counts", options=catalog_options(place))
    assert len(closed) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"format": "csv"}, "format"),
        ({"format": "delta", "mode": "upsert"}, "must go with mode upsert"),
        ({"format": "delta", "partition_by": ["x"]}, "'x'"),
        ({"format": "sqlite"}, "option uri"),
        ({"format": "iceberg", "target": "t"}, r"namespace\.table"),
        ({"format": "delta", "options": {"colour": "red"}}, "'colour': unknown option"),
        ({"format": "delta", "options": {"roll_byte": "1MB"}}, "Did you mean 'roll_bytes'"),
        ({"format": "delta", "mode": "upsert", "key": "k", "options": {"roll_bytes": "1MB"}}, "'roll_bytes': unknown"),
        ({"format": "iceberg", "target": "a.b", "options": {"colour": "red"}}, "'colour': unknown option"),
        (
            {"format": "sqlite", "target": "t", "options": {"uri": "t", "busy_timeot": "1s"}},
            "Did you mean 'busy_timeout'",
        ),
    ],
)
def test_wrong_words_are_refused_by_the_call_that_has_them(spark, place, given, said):
    with pytest.raises(InvalidInputError, match=said):
        counted(spark, place).write_table(**{"target": str(place / "t"), **given})


def start(spark, place, folder="out", **options):
    writer = (
        events(spark, place).writeStream.format("stateline_files").option("checkpointLocation", str(place / "spark"))
    )
    return writer.options(**options).trigger(availableNow=True).start(str(place / folder))


def test_the_sink_into_delta(spark, place):
    add_rows(place, 0, [1, 2])
    add_rows(place, 1, [3])
    for number in range(2):
        start(spark, place, table="delta", partitionBy="part").awaitTermination()
        add_rows(place, 2 + number, [4 + number])
    start(spark, place, table="delta", partitionBy="part", finish="never").awaitTermination()
    table = DeltaTable(str(place / "out"))
    assert sorted(table.to_pyarrow_table()["k"].to_pylist()) == [1, 2, 3, 4]
    finish_files(str(place / "out"), table="delta", partition_by="part")
    rows = DeltaTable(str(place / "out")).to_pyarrow_table()
    assert sorted(rows["k"].to_pylist()) == [1, 2, 3, 4, 5]
    assert set(zip(rows["k"].to_pylist(), rows["part"].to_pylist(), strict=True)) == {
        (k, f"p {k % 2}") for k in range(1, 6)
    }


def test_the_sink_into_iceberg(spark, place):
    add_rows(place, 0, [1, 2])
    options = {f"table.{key}": text for key, text in catalog_options(place).items()}
    query = start(spark, place, "files", table="iceberg", **{"table.name": "air.events"}, **options)
    query.awaitTermination()
    with iceberg_table(place, "air.events") as table:
        assert sorted(table.scan().to_arrow()["k"].to_pylist()) == [1, 2]
        assert table.name_mapping() is None, "its files carry the ids of its columns"


def test_a_batch_job_into_delta(spark, place):
    rows = spark.range(100).select(F.col("id").alias("k"), (F.col("id") % 2).cast("string").alias("part"))
    for _ in range(2):
        rows.write.format("stateline_files").options(table="delta", partitionBy="part").mode("append").save(
            str(place / "out")
        )
    table = DeltaTable(str(place / "out"))
    assert sorted(table.to_pyarrow_table()["k"].to_pylist()) == sorted([*range(100)] * 2)
    assert table.version() == 2


def test_options_that_contradict_each_other_are_refused(spark, place):
    add_rows(place, 0, [1])
    for options, said in (
        ({"table": "delta", "format": "csv"}, "Parquet"),
        ({"table": "csv"}, "table"),
        ({"table.name": "x"}, "option table"),
        ({"table": "delta", "table.colour": "red"}, "'colour': unknown option"),
        ({"table": "delta", "table.storge.x": "1"}, "'storge.x': unknown option"),
    ):
        with pytest.raises((InvalidInputError, StreamingQueryException), match=said):
            start(spark, place, **options).awaitTermination()


def test_a_table_that_cannot_take_the_rows_fails_before_any_are_decided(spark, place):
    add_rows(place, 0, [1])
    connection = sqlite3.connect(place / "t.db")
    connection.execute("CREATE TABLE counts (k INTEGER)")
    connection.commit()
    connection.close()
    pipeline = counted(spark, place).write_table("sqlite", "counts", options={"uri": str(place / "t.db")})
    with pytest.raises(InvalidInputError, match="no column 'n'"):
        pipeline.start()
    assert CheckpointStore(open_store(str(place / "root"))).latest() is None


def test_a_driver_that_died_before_its_commit_is_finished_by_the_next(spark, place, monkeypatch):
    add_rows(place, 0, [1, 2])
    options = {"uri": f"sqlite:///{place}/t.db"}

    def pipeline():
        return counted(spark, place).write_table("sqlite", "counts", options=options)

    def die(*_):
        raise OSError("the power is gone")

    with monkeypatch.context() as patched:
        patched.setattr(table_commits, "commit_once", die)
        with pytest.raises(StreamingQueryException):
            run(pipeline())
    finish_files(str(place / "root"), **{"table.uri": options["uri"]})
    connection = sqlite3.connect(place / "t.db")
    assert connection.execute("SELECT k, n FROM counts ORDER BY k").fetchall() == [(1, 1), (2, 1)]
    run(pipeline())
    assert connection.execute("SELECT count(*) FROM counts").fetchall() == [(2,)]
    connection.close()
