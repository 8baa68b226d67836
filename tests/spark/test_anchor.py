"""Rows beside an anchor, on a session that takes itself for one with executors on several hosts."""

from __future__ import annotations

import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stateline.spark import KeyedStream, count
from stateline.spark.job import anchor
from stateline.spark.job.anchor import Anchor, values_of_partitions

SUBTASK = "CAST(k % 3 AS INT)"


@pytest.fixture(autouse=True)
def hosts(monkeypatch):
    monkeypatch.setattr(anchor, "_executors", lambda _: ("a:1", "b:1", "b:2"))


@pytest.fixture
def session(spark):
    """As those of micro-batches."""
    fresh = spark.newSession()
    fresh.conf.set("spark.sql.adaptive.enabled", "false")
    return fresh


def persisted(spark):
    return spark.sparkContext._jsc.getPersistentRDDs().size()


def keys_by_partition(frame):
    def keys(batches):
        from pyspark import TaskContext

        found = [key for batch in batches for key in batch["k"].to_pylist()]
        yield pa.RecordBatch.from_pydict({"partition": [TaskContext.get().partitionId()], "keys": [sorted(found)]})

    return sorted(tuple(row) for row in frame.mapInArrow(keys, "partition long, keys array<long>").collect())


def rows_of(session, rows):
    return session.createDataFrame(
        [(key, f"v{key}", [key]) for key in range(rows)], "k long, `a b` string, c array<long>"
    )


EXPECTED = [(0, [0, 3, 6, 9]), (1, [1, 4, 7]), (2, [2, 5, 8])]


def test_spark_hashes_the_numbers_to_their_partitions(session):
    values = values_of_partitions(40)
    frame = session.createDataFrame([(value,) for value in values], "v int")
    assert [row[0] for row in frame.selectExpr("pmod(hash(v), 40)").collect()] == list(range(40))


def test_a_row_is_in_the_partition_of_its_subtask_batch_after_batch(session):
    placed = Anchor("n", 3)
    for _ in range(2):
        assert keys_by_partition(placed.partitioned(rows_of(session, 10), SUBTASK)) == EXPECTED
        assert persisted(session) == 1
    assert keys_by_partition(placed.partitioned(rows_of(session, 0), SUBTASK)) == [(0, []), (1, []), (2, [])]
    other = rows_of(session, 10).select("k")
    assert keys_by_partition(placed.partitioned(other, SUBTASK)) == EXPECTED
    assert persisted(session) == 1
    placed.close()
    placed.close()
    assert persisted(session) == 0


def test_the_anchor_outweighs_the_executors_that_can_share_a_host(session):
    placed = Anchor("n", 3)
    plan = placed.partitioned(rows_of(session, 10), SUBTASK)._jdf.queryExecution().executedPlan()
    assert plan.children().size() == 4  # Two executors of host b may have half of the rows each.
    placed.close()


def test_rows_are_partitioned_without_it_where_spark_does_not_zip_unions(session, caplog):
    session.conf.set("spark.sql.unionOutputPartitioning", "false")
    placed = Anchor("n", 3)
    with caplog.at_level(logging.DEBUG, "stateline.spark.job.anchor"):
        for _ in range(2):
            assert keys_by_partition(placed.partitioned(rows_of(session, 10), SUBTASK)) == EXPECTED
    assert [record.getMessage() for record in caplog.records] == [
        "Spark does not zip unions here: it chooses the hosts of n, batch by batch"
    ]
    assert persisted(session) == 0


def test_rows_are_partitioned_without_it_on_one_host_and_under_adaptive_execution(session, monkeypatch):
    placed = Anchor("n", 3)
    session.conf.set("spark.sql.adaptive.enabled", "true")
    assert keys_by_partition(placed.partitioned(rows_of(session, 10), SUBTASK)) == EXPECTED
    session.conf.set("spark.sql.adaptive.enabled", "false")
    monkeypatch.setattr(anchor, "_executors", lambda _: ("a:1", "a:2"))
    assert keys_by_partition(placed.partitioned(rows_of(session, 10), SUBTASK)) == EXPECTED
    assert persisted(session) == 0


def test_a_local_session_has_no_executors(session, monkeypatch):
    monkeypatch.undo()
    assert anchor._executors(session) == ()


@pytest.mark.parametrize("fails", [False, True])
def test_operators_of_one_key_share_batches_and_nothing_is_kept_after_the_query(spark, tmp_path, fails):
    (tmp_path / "source").mkdir()
    for number in range(2):
        pq.write_table(pa.table({"k": list(range(20)), "v": [number] * 20}), tmp_path / "source" / f"{number}.parquet")
    events = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "source"))
    delivered = []

    def deliver(frame, key):
        delivered.extend(tuple(row) for row in frame.select("k", "n").collect())
        if fails:
            raise ValueError("the second batch does not come")

    def counted(name):
        stream = KeyedStream(events, "k", f"file://{tmp_path}/state", parallelism=2, name=name)
        return stream.aggregate(n=count())

    pipeline = counted("one").for_each_batch(deliver).alongside(counted("two").write_files(f"file://{tmp_path}/out"))
    query = pipeline.start(trigger={"availableNow": True})
    if fails:
        with pytest.raises(Exception, match="the second batch does not come"):
            query.awaitTermination()
        assert sorted(delivered) == [(key, 1) for key in range(20)]
    else:
        query.awaitTermination()
        assert sorted(delivered) == [(key, n) for key in range(20) for n in (1, 2)]
    assert persisted(spark) == 0
