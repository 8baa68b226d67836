"""Rows that Spark combines by key before they come to Python; ``test_random_aggregations`` compares the answers."""

from __future__ import annotations

import json
import os
from decimal import Decimal
from functools import reduce

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stateline.errors import ErrorKind, InvalidInputError
from stateline.pipeline.messages import SubtaskResult
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.spark import KeyedStream, Pipeline, count, max, min, sum
from stateline.spark.job.combining import Combiner

SECOND = 1_000_000


def source(spark, folder, batches):
    (folder / "source").mkdir(parents=True)
    for number, batch in enumerate(batches):
        path = folder / "source" / f"{number}.parquet"
        pq.write_table(batch, path)
        os.utime(path, (number, number))
    rows = spark.readStream.schema(spark.read.parquet(str(folder / "source")).schema)
    return rows.option("maxFilesPerTrigger", 1).parquet(str(folder / "source"))


def stream(spark, folder, batches, combine, key, **more):
    events = source(spark, folder, batches)
    options = {"combine": combine, "metrics_log": str(folder / "metrics.json")}
    return KeyedStream(events, key, f"file://{folder}/state", parallelism=2, options=options, **more)


def finished(stage, folder, *others):
    query = reduce(Pipeline.alongside, others, stage.write_files(f"file://{folder}/out", every_checkpoint=True))
    query.start(str(folder / "spark"), trigger={"availableNow": True}).awaitTermination()
    lines = [json.loads(line) for line in (folder / "metrics.json").read_text().splitlines()]
    return pq.read_table(folder / "out").to_pylist(), lines


def test_odd_names_windows_and_late_rows_are_as_without(spark, tmp_path):
    batches = [
        pa.table(
            {
                "user.id": pa.array([1, 1, None, 2] * 3, pa.int32()),
                "the `price`": pa.array([1.5, float("nan"), None, -0.0] * 3),
                "at": pa.array([second * SECOND + place for place in range(12)], pa.timestamp("us", "UTC")),
            }
        )
        for second in (5, 100, 101, 3)  # The last one is late.
    ]
    answers = []
    for combine in ("always", "never"):
        folder = tmp_path / combine
        keyed = stream(spark, folder, batches, combine, "USER.ID", watermark=("AT", "10 seconds"))
        stage = keyed.window("At", "20 seconds", "10 seconds").aggregate(
            n=count(), best=max("THE `price`"), least=min("the `price`"), n_prices=count("the `price`")
        )
        rows, lines = finished(stage, folder)
        figures = [[line.get(name) for name in ("rows", "rows_late", "keys", "windows_closed")] for line in lines]
        answers.append((sorted(map(repr, rows)), figures))
    assert answers[0] == answers[1]
    assert [figures[1] for figures in answers[0][1]][:4] == [0, 0, 0, 24]


def test_a_sum_that_does_not_fit_is_the_same_error(spark, tmp_path):
    errors = []
    for combine in ("always", "never"):
        batch = pa.table({"key": [1, 1], "value": [2**62, 2**62]})
        stage = stream(spark, tmp_path / combine, [batch], combine, "key").aggregate(total=sum("value"))
        with pytest.raises(InvalidInputError) as raised:
            finished(stage, tmp_path / combine)
        assert raised.value.kind is ErrorKind.ARITHMETIC_OVERFLOW
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


def test_a_sum_that_fits_does_so_whatever_came_in_between(spark, tmp_path):
    values = [2**63 - 1, 2**63 - 1, -(2**63), -(2**63), 5, -(2**63), 7, None]
    batch = pa.table({"key": [1, 1, 1, 1, 1, 2, 3, 4], "value": pa.array(values, pa.int64())})
    rows, _ = finished(stream(spark, tmp_path, [batch], "always", "key").aggregate(total=sum("value")), tmp_path)
    assert {row["key"]: row["total"] for row in rows} == {1: 3, 2: -(2**63), 3: 7, 4: None}


def test_operators_side_by_side_are_combined_each_by_its_own_key(spark, tmp_path):
    batch = pa.table({"a": [1, 1, 2, 2], "b": ["x", "y", "x", "x"], "v": [1, 2, 3, 4]})
    events = source(spark, tmp_path, [batch])
    options = {"combine": "always", "metrics_log": str(tmp_path / "metrics.json")}
    by_a, by_b = (
        KeyedStream(events, key, f"file://{tmp_path}/state", name=key, parallelism=2, options=options).aggregate(
            total=sum("v")
        )
        for key in ("a", "b")
    )
    rows, (line, *_) = finished(by_a, tmp_path, by_b.write_files(f"file://{tmp_path}/b", every_checkpoint=True))
    assert sorted((row["a"], row["total"]) for row in rows) == [(1, 3), (2, 7)]
    by_b_found = pq.read_table(tmp_path / "b").to_pylist()
    assert sorted((row["b"], row["total"]) for row in by_b_found) == [("x", 8), ("y", 2)]
    assert (line["rows"], line["keys"]) == (8, 4)


def test_rows_that_are_taken_back_behind_it_are_as_without(spark, tmp_path):
    batches = [pa.table({"key": [number % 5 for number in range(first, first + 9)]}) for first in (0, 3, 11)]
    answers = []
    for combine in ("always", "never"):
        folder = tmp_path / combine
        counts = stream(spark, folder, batches, combine, "key").aggregate(n=count())
        rows, _ = finished(counts.key_by("n", name="keys with n").aggregate(keys=count(), total=sum("key")), folder)
        answers.append(sorted(map(repr, rows)))
    assert answers[0] == answers[1]
    assert len(answers[0]) >= len(batches)


def test_a_batch_is_combined_where_the_one_before_had_many_rows_for_each_key():
    schema = pa.schema([("key", pa.int64()), ("value", pa.int64())])
    program = AggregateProgram.bind(schema, ["key"], {"n": count()})

    def learned(combine, rows, keys, of=program):
        combiner = Combiner(of, None, "xxhash64(key)", combine)
        assert combiner.is_due is (combine == "always")
        parts = [
            SubtaskResult(operator="op", subtask=part, states={}, metrics={"rows": rows / 2, "keys": keys / 2})
            for part in (0, 1)
        ]
        combiner.learn(parts)
        return combiner.is_due

    assert learned("auto", 1_000_000, 1_000)
    assert not learned("auto", 1_000_000, 500_000)
    assert not learned("auto", 1_000, 1)
    assert not learned("never", 1_000_000, 1_000)
    assert learned("always", 1, 1)


def test_a_batch_without_rows_says_nothing_about_the_next_one():
    schema = pa.schema([("key", pa.int64())])
    combiner = Combiner(AggregateProgram.bind(schema, ["key"], {"n": count()}), None, "xxhash64(key)", "auto")
    for rows, is_due in ((1_000_000, True), (0, True), (10, False), (0, False)):
        combiner.learn([SubtaskResult(operator="op", subtask=0, states={}, metrics={"rows": rows, "keys": 1})])
        assert combiner.is_due is is_due


def test_what_spark_does_not_compute_alike_is_not_combined(spark, tmp_path):
    batch = pa.table({"key": [1, 1], "price": pa.array([Decimal("1.00"), Decimal("2.00")], pa.decimal128(10, 2))})
    program = AggregateProgram.bind(batch.schema, ["key"], {"n": count(), "total": sum("price")})
    assert not Combiner(program, None, "xxhash64(key)", "always").is_due
    rows, _ = finished(stream(spark, tmp_path, [batch], "always", "key").aggregate(total=sum("price")), tmp_path)
    assert [str(row["total"]) for row in rows] == ["3.00"]
