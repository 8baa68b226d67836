"""Best rows and chains on Spark: the answers of batch SQL over all rows so far, over restarts at other parallelisms."""

from __future__ import annotations

import collections
import datetime as dt

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from stateline.errors import InvalidInputError
from stateline.spark import KeyedStream, count, count_distinct, count_if, max, mean, sum
from tests.spark.event_files import LATE_AND_EARLY, EventFiles

pytestmark = pytest.mark.spark

LIVES = ((1, LATE_AND_EARLY[:2]), (3, LATE_AND_EARLY[2:3]), (2, LATE_AND_EARLY[3:]))


@pytest.fixture
def events(tmp_path, spark):
    return EventFiles(tmp_path, spark)


def finish(pipeline):
    pipeline.start(trigger={"availableNow": True}).awaitTermination()


def all_rows(events):
    return events.spark.read.schema(events.events().schema).parquet(str(events.folder / "source"))


def newest(rows, key):
    """Of each key the rows of its newest checkpoint."""
    last = collections.defaultdict(int)
    for row in rows:
        last[row[key]] = [last[row[key]], row["checkpoint_id"]][row["checkpoint_id"] > last[row[key]]]
    return [row for row in rows if row["checkpoint_id"] == last[row[key]]]


def test_the_best_rows_are_those_of_row_number(events):
    for parallelism, batches in LIVES:
        events.add(*batches)
        finish(
            events.keyed(parallelism=parallelism)
            .top(2, ["value", "AT"], ascending=[False, True])
            .write_files(str(events.folder / "out"), every_checkpoint=True)
        )
    best = Window.partitionBy("key").orderBy(F.desc_nulls_last("value"), F.asc_nulls_last("at"))
    expected = all_rows(events).withColumn("rank", F.row_number().over(best)).where("rank <= 2")
    found = newest(pq.read_table(events.folder / "out").to_pylist(), "key")
    assert {(row["key"], row["rank"]): (row["value"], plain(row["AT"])) for row in found} == {
        (row.key, row["rank"]): (row.value, plain(row.at)) for row in expected.collect()
    }
    assert pq.read_table(events.folder / "out").schema.field("rank").type == pa.int32()


def test_rows_that_are_taken_back_leave_the_state_of_what_reads_them(events):
    root = f"file://{events.folder}/state"
    for parallelism, batches in LIVES:
        events.add(*batches)
        counts = events.keyed(parallelism=parallelism, name="counts").aggregate(n=count(), most=max("value"))
        by_count = counts.key_by("n", name="by_count")
        finish(by_count.aggregate(keys=count(), total=sum("most"), mean=mean("most"), best=max("most")).state_only())
        first = all_rows(events).groupBy("key").agg(F.count("*").alias("n"), F.max("value").alias("most"))
        expected = first.groupBy("n").agg(
            F.count("*").alias("keys"), F.sum("most").alias("total"), F.mean("most").alias("mean"), F.max("most")
        )
        state = events.spark.read.format("stateline").option("operator", "by_count").load(root)
        found = {row["n"]: (row[".weight"], row["best"]) for row in state.collect()}
        assert found == {row["n"]: (row["keys"], row["max(most)"]) for row in expected.collect()}


def test_windows_that_close_pass_through_a_chain_in_one_batch_as_in_sparks_own(events):
    events.add(*LATE_AND_EARLY)
    counts = (
        events.keyed(watermark=("at", "10 minutes"))
        .window("at", "10 minutes", "5 minutes")
        .aggregate("append", n=count())
    )
    hot = counts.key_by("window_end", name="hot").top(1, "n", ties="all")
    per_window = counts.key_by("window_end", name="per_window").aggregate("append", most=max("n"), keys=count())
    longer = counts.key_by("key", name="longer").window("window_end", "20 minutes").aggregate("append", n=sum("n"))
    outputs = {"hot": hot, "per_window": per_window, "longer": longer}
    first, *others = (
        stage.write_files(str(events.folder / name), every_checkpoint=True) for name, stage in outputs.items()
    )
    for other in others:
        first = first.alongside(other)
    finish(first)
    theirs = events.events().withWatermark("at", "10 minutes")
    inner = theirs.groupBy("key", F.window("at", "10 minutes", "5 minutes").alias("w")).agg(F.count("*").alias("n"))
    answers = {
        "per_window": (inner.groupBy("w").agg(F.max("n").alias("most"), F.count("*").alias("keys")), ["most", "keys"]),
        "longer": (
            inner.groupBy("key", F.window("w", "20 minutes").alias("w")).agg(F.sum("n").alias("n")),
            ["key", "n"],
        ),
    }
    for name, (frame, columns) in answers.items():
        found = rows_of(pq.read_table(events.folder / name).to_pylist(), ["window_end", *columns])
        flat = frame.withColumn("window_end", F.col("w.end")).drop("w")
        query = (
            flat.writeStream.format("memory").queryName(name).outputMode("append").trigger(availableNow=True).start()
        )
        query.awaitTermination()
        expected = [row.asDict() for row in events.spark.sql(f"select * from {name}").collect()]
        assert found == rows_of(expected, ["window_end", *columns]), name
        assert found
    most = {row["window_end"]: row["most"] for row in pq.read_table(events.folder / "per_window").to_pylist()}
    shown = pq.read_table(events.folder / "hot").to_pylist()
    assert {row["window_end"]: row["n"] for row in shown} == most
    assert {row["rank"] for row in shown} == {1}


def rows_of(rows, columns):
    return collections.Counter(tuple(plain(row[column]) for column in columns) for row in rows)


def plain(value):
    """Times of Arrow and of Spark alike: the session's zone is UTC."""
    return value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value


def test_distinct_values_and_conditions_answer_as_filter_does(events):
    for parallelism, batches in LIVES:
        events.add(*batches)
        stream = events.keyed(events.events().withColumn("odd", F.col("value") % 2 == 1), parallelism=parallelism)
        wanted = {
            "times": count_distinct("at"),
            "odd_times": count_distinct("at").where("odd"),
            "odd": count_if("odd"),
            "odd_most": max("value").where("odd"),
        }
        finish(stream.aggregate(**wanted).write_files(str(events.folder / "out"), every_checkpoint=True))
    odd = "filter (where value % 2 = 1)"
    expected = (
        all_rows(events)
        .groupBy("key")
        .agg(
            F.expr("count(distinct at)"),
            F.expr(f"count(distinct at) {odd}"),
            F.expr(f"count(*) {odd}"),
            F.expr(f"max(value) {odd}"),
        )
    )
    found = newest(pq.read_table(events.folder / "out").to_pylist(), "key")
    assert {tuple(row[name] for name in ("key", *wanted)) for row in found} == set(map(tuple, expected.collect()))


def test_what_no_chain_can_take_back_is_refused_when_it_is_said(events):
    events.add([("a", 1)])
    stream = events.keyed(watermark=("at", "1 minute"))
    updated = stream.aggregate(n=count(), share=mean("value"), last=max("at")).key_by("n")
    with pytest.raises(InvalidInputError, match=r"total=sum\(share\): cannot follow a step that updates.*rounded sum"):
        updated.aggregate(total=sum("share"))
    with pytest.raises(InvalidInputError, match="n: 0 is not valid"):
        updated.top(0, "last")
    with pytest.raises(InvalidInputError, match="'checkpoint_id'"):
        updated.top(1, "checkpoint_id")
    with pytest.raises(InvalidInputError, match="mode append"):
        updated.aggregate("append", n=count())
    with pytest.raises(InvalidInputError, match="rank"):
        stream.top(1, "value").key_by("key", name="again").top(1, "value")
    with pytest.raises(InvalidInputError, match="must be a column that the watermark reaches"):
        stream.window("at", "1 minute").aggregate("append", last=max("at")).key_by("key").window("last", "1 minute")
    lists = KeyedStream(events.events().withColumn("list", F.array("value")), "key", str(events.folder / "other"))
    kept = lists.top(1, "value")
    with pytest.raises(InvalidInputError, match="columns="):
        kept.key_by("value").top(1, "at", columns=["list"])
