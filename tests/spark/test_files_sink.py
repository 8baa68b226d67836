"""``format("stateline_files")`` through Spark itself: every row once, whatever happens to the query."""

from __future__ import annotations

import contextlib
import inspect
import json
import shutil

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as F

from stateline.checkpoint import CheckpointStore
from stateline.errors import FencedError, InvalidInputError, NotFoundError
from stateline.pipeline.coordinator import MicroBatchCoordinator
from stateline.spark import finish_files, register
from stateline.spark.sinks.files_options import FilesSinkOptions


@pytest.fixture
def place(tmp_path, spark):
    """A folder with a source of numbered files, an output and a Spark checkpoint."""
    register(spark)
    (tmp_path / "source").mkdir()
    return tmp_path


def add_rows(place, number, start, count):
    rows = pa.table({"id": range(start, start + count), "part": [f"p{i % 3}" for i in range(start, start + count)]})
    pq.write_table(rows, place / "source" / f"{number:03}.parquet")


def start(spark, place, *, schema="id long, part string", trigger=None, **options):
    events = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(place / "source"))
    writer = events.writeStream.format("stateline_files").option("checkpointLocation", str(place / "spark"))
    return writer.options(**options).trigger(**(trigger or {"availableNow": True})).start(str(place / "out"))


def run(spark, place, **options):
    """Runs everything there is, to the end."""
    query = start(spark, place, **options)
    query.awaitTermination()
    return query


def ids(place, **options):
    folder = place / "out"
    table = ds.dataset(folder, **{"format": "parquet", **options}).to_table()
    if table.num_rows == 0:
        return []
    return sorted(table["id"].to_pylist())


def visible_files(place):
    return sorted(path.name for path in (place / "out").rglob("part-*"))


def test_files_of_an_endless_stream_span_micro_batches_and_hold_every_row_once(spark, place):
    for batch in range(4):
        add_rows(place, batch, batch * 100, 100)
    query = start(spark, place, trigger={"processingTime": "0 seconds"})
    query.processAllAvailable()
    query.stop()
    assert visible_files(place) == []
    finish_files(str(place / "out"))
    assert ids(place) == list(range(400))
    assert len(visible_files(place)) == 1, "four micro-batches, one file"


def test_filters_find_nan_and_what_is_beside_it(spark, place):
    rows = [(1, 1.0, (1.0, 2)), (2, float("nan"), (float("nan"), 3)), (3, None, None), (4, -0.0, (-0.0, 4))]
    schema = "id long, x double, s struct<f float, n int>"
    spark.createDataFrame(rows, schema).coalesce(1).write.parquet(str(place / "source"), mode="overwrite")
    run(spark, place, schema=schema)
    assert len(visible_files(place)) == 1
    found = spark.read.parquet(str(place / "out"))
    for condition, expected in (
        ("x > 5", [2]),
        ("x >= 1.5", [2]),
        ("x = double('NaN')", [2]),
        ("x = 1", [1]),
        ("x < 1", [4]),
        ("x = 0.0D", [4]),
        ("x is null", [3]),
        ("s.f > 5", [2]),
        ("s.f = 1", [1]),
        ("s.n = 3", [2]),
    ):
        assert sorted(row.id for row in found.where(condition).collect()) == expected, condition


def test_each_micro_batch_of_a_stream_that_ends_publishes_its_rows(spark, place):
    for batch in range(3):
        add_rows(place, batch, batch * 100, 100)
    start(spark, place, roll_seconds="1h").awaitTermination()
    assert ids(place) == list(range(300))
    records = CheckpointStore(f"file://{place}/out/.stateline/stream").list()
    assert [record.batch_id for record in records] == [0, 1, 2], "nothing comes after the last batch"
    assert not any(output.open for record in records for output in record.outputs)


def test_a_failure_in_publishing_fails_the_batch_and_the_next_start_goes_on(spark, place):
    add_rows(place, 0, 0, 10)
    (place / "out").write_text("a file, and no folder")
    with pytest.raises(StreamingQueryException):
        start(spark, place, checkpoint=f"file://{place}/records").awaitTermination()
    (place / "out").unlink()
    start(spark, place, checkpoint=f"file://{place}/records").awaitTermination()
    assert ids(place) == list(range(10))


@pytest.mark.parametrize("replayed", [False, True], ids=["no batch", "the last batch again"])
def test_a_start_publishes_what_an_earlier_run_left_open(spark, place, replayed):
    add_rows(place, 0, 0, 10)
    query = start(spark, place, trigger={"processingTime": "0 seconds"})
    query.processAllAvailable()
    query.stop()
    assert ids(place) == []
    if replayed:  # As after a crash between the record and Spark's own commit.
        (place / "spark" / "commits" / "0").unlink()
    query = start(spark, place)
    assert ids(place) == list(range(10)), "there when start() returns"
    query.awaitTermination()
    assert ids(place) == list(range(10))


def test_a_replay_publishes_what_an_earlier_run_left_open_also_without_register(spark, place):
    add_rows(place, 0, 0, 10)
    run(spark, place, finish="never")
    (place / "spark" / "commits" / "0").unlink()
    run(spark, place, finish="never")
    assert ids(place) == []
    (place / "spark" / "commits" / "0").unlink()
    events = spark.readStream.schema("id long, part string").parquet(str(place / "source"))
    writer = events.writeStream.format("stateline_files").option("checkpointLocation", str(place / "spark"))
    start_of_spark = inspect.unwrap(type(writer).start)
    start_of_spark(writer.trigger(availableNow=True), str(place / "out")).awaitTermination()
    assert ids(place) == list(range(10))


def test_the_files_of_another_query_are_left_as_they_are(spark, place):
    add_rows(place, 0, 0, 10)
    query = start(spark, place, trigger={"processingTime": "0 seconds"})
    query.processAllAvailable()
    with pytest.raises(StreamingQueryException, match="belongs to query"):
        start(spark, place, checkpointLocation=str(place / "other")).awaitTermination()
    assert ids(place) == []
    query.stop()
    start(spark, place).awaitTermination()
    assert ids(place) == list(range(10))


def test_an_output_that_was_removed_is_begun_anew_in_the_same_session(spark, place):
    """Whoever tries something out removes the output and Spark's checkpoint, and starts again."""
    for attempt in range(2):
        for batch in range(3):
            add_rows(place, batch, attempt * 300 + batch * 100, 100)
        run(spark, place)
        assert ids(place) == list(range(attempt * 300, attempt * 300 + 300))
        shutil.rmtree(place / "out")
        shutil.rmtree(place / "spark")


def test_a_query_that_keeps_its_files_open_goes_on_with_them(spark, place):
    add_rows(place, 0, 0, 50)
    run(spark, place, finish="never")
    assert visible_files(place) == []
    add_rows(place, 1, 50, 50)
    run(spark, place, finish="never")
    assert visible_files(place) == []
    finish_files(str(place / "out"))
    assert ids(place) == list(range(100))
    assert len(visible_files(place)) == 1


def test_finishing_by_hand_retires_no_records_for_only_the_query_knows_how_many_are_to_stay(spark, place):
    for batch in range(5):
        add_rows(place, batch, batch * 10, 10)
    run(spark, place, finish="never", retained_checkpoints=100)
    finish_files(str(place / "out"))
    records = CheckpointStore(f"file://{place}/out/.stateline/stream").list()
    assert [record.checkpoint_id for record in records] == list(range(6))
    assert ids(place) == list(range(50))


@pytest.mark.parametrize("somebody_finished", [True, False])
def test_who_is_fenced_while_finishing_is_content_if_the_files_are_finished(
    spark, place, monkeypatch, somebody_finished
):
    add_rows(place, 0, 0, 10)
    run(spark, place, finish="never")
    finish = MicroBatchCoordinator.finish

    def fenced(*arguments):
        if somebody_finished:
            finish(*arguments)
        raise FencedError("another driver was faster")

    monkeypatch.setattr(MicroBatchCoordinator, "finish", fenced)
    with contextlib.nullcontext() if somebody_finished else pytest.raises(FencedError):
        finish_files(str(place / "out"))
    assert ids(place) == (list(range(10)) if somebody_finished else [])


def test_a_place_may_be_a_path_and_what_is_none_is_refused(place):
    with pytest.raises(NotFoundError, match="no stream has written anything there"):
        finish_files(place / "out", checkpoint=place / "records")
    with pytest.raises(InvalidInputError, match="is not a URL"):
        finish_files(5)


def test_finishing_where_nothing_was_written_is_an_error(place):
    with pytest.raises(NotFoundError, match="no stream has written"):
        finish_files(str(place / "nowhere"))
    assert not (place / "nowhere").exists()


def test_a_batch_replayed_after_its_commit_adds_nothing(spark, place):
    for batch in range(3):
        add_rows(place, batch, batch * 10, 10)
    run(spark, place, every_checkpoint="true")
    before = visible_files(place)
    (place / "spark" / "commits" / "2").unlink()
    (place / "spark" / "commits" / ".2.crc").unlink(missing_ok=True)
    add_rows(place, 3, 30, 10)
    run(spark, place, every_checkpoint="true")
    assert ids(place) == list(range(40))
    assert set(before) < set(visible_files(place))


def test_a_rolled_back_spark_checkpoint_is_an_error_and_loses_nothing(spark, place):
    add_rows(place, 0, 0, 10)
    run(spark, place, every_checkpoint="true")
    shutil.copytree(place / "spark", place / "old")
    add_rows(place, 1, 10, 10)
    run(spark, place, every_checkpoint="true")
    shutil.rmtree(place / "spark")
    shutil.move(place / "old", place / "spark")
    (place / "source" / "001.parquet").rename(place / "source" / "later.parquet")
    add_rows(place, 2, 20, 10)
    with pytest.raises(StreamingQueryException, match="expected the source offsets"):
        run(spark, place, every_checkpoint="true")
    assert ids(place) == list(range(20))


def test_a_rolled_back_checkpoint_is_noticed_also_where_the_session_says_its_place(spark, place):
    def run_named():
        events = spark.readStream.schema("id long, part string").option("maxFilesPerTrigger", 1)
        writer = events.parquet(str(place / "source")).writeStream.format("stateline_files").queryName("named")
        writer.trigger(availableNow=True).start(str(place / "out")).awaitTermination()

    spark.conf.set("spark.sql.streaming.checkpointLocation", str(place / "checkpoints"))
    try:
        for batch in range(2):
            add_rows(place, batch, batch * 10, 10)
        run_named()
        for name in ("offsets/1", "commits/1"):
            (place / "checkpoints" / "named" / name).unlink()
        add_rows(place, 2, 20, 10)
        with pytest.raises(StreamingQueryException, match="expected the source offsets"):
            run_named()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_a_new_query_over_an_old_output_is_refused(spark, place):
    add_rows(place, 0, 0, 10)
    run(spark, place)
    shutil.rmtree(place / "spark")
    with pytest.raises(StreamingQueryException, match="belongs to query"):
        run(spark, place)
    assert ids(place) == list(range(10))


def test_partition_values_come_back_through_spark(spark, place):
    add_rows(place, 0, 0, 30)
    run(spark, place, partitionBy="part")
    rows = spark.read.parquet(str(place / "out"))
    counts = {row["part"]: row["count"] for row in rows.groupBy("part").count().collect()}
    assert counts == {"p0": 10, "p1": 10, "p2": 10}
    assert sorted(path.name for path in (place / "out").iterdir() if path.name[0] != ".") == [
        "part=p0",
        "part=p1",
        "part=p2",
    ]


@pytest.mark.parametrize("name", ["jsonl", "csv", "arrow"])
def test_other_formats_hold_the_same_rows(spark, place, name):
    add_rows(place, 0, 0, 20)
    add_rows(place, 1, 20, 20)
    run(spark, place, format=name)
    found = []
    for file in (place / "out").glob(f"part-*.{name}"):
        if name == "arrow":
            found += pa.ipc.open_file(file).read_all()["id"].to_pylist()
        elif name == "jsonl":
            found += [json.loads(line)["id"] for line in file.read_text().splitlines()]
        else:
            found += [int(line.split(",")[0]) for line in file.read_text().splitlines()[1:]]
    assert sorted(found) == list(range(40))


def test_a_changed_schema_begins_a_new_file(spark, place):
    add_rows(place, 0, 0, 10)
    run(spark, place, finish="never")
    add_rows(place, 1, 10, 10)
    run(spark, place, schema="id long")
    tables = [pq.read_table(path) for path in (place / "out").glob("part-*")]
    assert sorted((table.num_rows, tuple(table.column_names)) for table in tables) == [
        (10, ("id",)),
        (10, ("id", "part")),
    ]


def test_a_column_that_changes_its_type_is_refused_and_the_old_program_goes_on(spark, place):
    add_rows(place, 0, 0, 10)
    run(spark, place)
    add_rows(place, 1, 10, 10)
    with pytest.raises(
        StreamingQueryException, match=r"column 'id' has the type int64 there, and decimal128\(20, 0\) now"
    ):
        start(spark, place, schema="id decimal(20,0), part string").awaitTermination()
    run(spark, place)
    assert ids(place) == list(range(20))


def test_other_folders_are_refused_because_readers_would_not_see_all_files(spark, place):
    add_rows(place, 0, 0, 10)
    run(spark, place)
    add_rows(place, 1, 10, 10)
    with pytest.raises(StreamingQueryException, match=r"partition_by is \[\] there, and \['part'\] now"):
        start(spark, place, partitionBy="part").awaitTermination()
    run(spark, place)
    assert sorted(row["id"] for row in spark.read.parquet(str(place / "out")).collect()) == list(range(20))


def test_a_batch_write_appends_files_that_appear_together(spark, place):
    rows = spark.range(1000).withColumn("part", F.concat(F.lit("p"), (F.col("id") % 2).cast("string")))
    for _ in range(2):
        rows.write.format("stateline_files").mode("append").option("partitionBy", "part").save(str(place / "out"))
    assert sorted(spark.read.parquet(str(place / "out")).select("id").toPandas()["id"]) == sorted(list(range(1000)) * 2)
    assert not list((place / "out" / ".stateline").iterdir()), "a finished job leaves no record and no folder"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rolBytes": "1MB"}, "rollbytes|roll_bytes|unknown option"),
        ({"rollBytes": "lots"}, "roll_bytes"),
        ({"format": "orc"}, "format"),
        ({"partitionBy": "nope"}, "nope"),
        ({"finish": "maybe"}, "finish"),
    ],
)
def test_bad_options_are_refused_by_name(spark, place, options, message):
    add_rows(place, 0, 0, 10)
    with pytest.raises(Exception, match=message):
        run(spark, place, **options)
    assert not (place / "out").exists() or visible_files(place) == []


@pytest.mark.parametrize(
    "options", [{"checkpoint": "out"}, {"checkpoint": "out/p=1/x"}, {"checkpointLocation": "out/s"}]
)
def test_records_that_readers_would_find_are_refused(spark, place, options):
    add_rows(place, 0, 0, 10)
    with pytest.raises(StreamingQueryException, match=r"checkpoint.* must not lie among the files of the output"):
        start(spark, place, **{name: str(place / value) for name, value in options.items()}).awaitTermination()
    start(spark, place, checkpoint=str(place / "out" / "_records")).awaitTermination()


def test_an_option_in_two_spellings_is_refused(spark, place):
    with pytest.raises(AnalysisException, match="partition_by: must be given once, got it in two spellings"):
        spark.range(3).write.format("stateline_files").mode("append").options(partitionBy="a", partition_by="b").save(
            str(place / "out")
        )


@pytest.mark.parametrize("prefix", ["store.", "root."])
def test_a_bad_option_of_a_store_is_refused_before_any_task_runs(spark, place, prefix):
    writer = spark.range(3).write.format("stateline_files").mode("append").option(f"{prefix}fsnc", "true")
    with pytest.raises(AnalysisException, match=r"'fsnc': unknown option.*fsync"):
        writer.save(str(place / "out"))
    assert not (place / "out").exists()


def test_reading_says_what_reads_the_files(spark, place):
    with pytest.raises(AnalysisException, match=r"cannot be read, only written.*spark\.read\.parquet"):
        spark.read.format("stateline_files").load(str(place / "out"))


def test_a_relative_place_is_one_place_for_all(spark, place, monkeypatch):
    monkeypatch.chdir(place)
    options = FilesSinkOptions(path="out", checkpoint="records")
    monkeypatch.chdir("/")
    assert (options.path, options.root_url) == (str(place / "out"), str(place / "records/stream"))
    assert options.output().url == str(place / "out")


def test_a_query_may_have_a_name(spark, place):
    """Spark hands it over as one more option."""
    add_rows(place, 0, 0, 10)
    events = spark.readStream.schema("id long, part string").parquet(str(place / "source"))
    writer = events.writeStream.format("stateline_files").option("checkpointLocation", str(place / "spark"))
    query = writer.queryName("named").trigger(availableNow=True).start(str(place / "out"))
    assert query.name == "named"
    query.awaitTermination()
    assert ids(place) == list(range(10))


def test_an_unknown_option_is_compared_with_the_names_that_users_know(spark, place, caplog):
    add_rows(place, 0, 0, 10)
    with pytest.raises(StreamingQueryException, match="Did you mean 'every_checkpoint'"):
        start(spark, place, every_checkpoints="true").awaitTermination()
    assert "Python Proxy" not in caplog.text, "the query fails; its listener does not fail beside it"


def test_the_memory_of_a_process_is_no_place_for_files(spark, place):
    add_rows(place, 0, 0, 10)
    with pytest.raises(StreamingQueryException, match="memory of one process"):
        start(spark, place, checkpoint="memory://records").awaitTermination()
    with pytest.raises(AnalysisException, match="memory of one process"):
        spark.range(3).write.format("stateline_files").mode("append").save("memory://out")


def test_only_append_is_accepted(spark, place):
    with pytest.raises(Exception, match="append"):
        spark.range(1).write.format("stateline_files").mode("overwrite").save(str(place / "out"))
