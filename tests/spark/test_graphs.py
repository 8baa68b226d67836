"""Graphs on Spark: operators behind operators, several streams in one checkpoint, late rows as an output."""

from __future__ import annotations

import datetime as dt
import os
import random
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from stateline.checkpoint import CheckpointStore
from stateline.errors import InvalidInputError
from stateline.spark import KeyedStream, count, sum

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [("a.key", pa.string()), ("other", pa.int64()), ("value", pa.int64()), ("at", pa.timestamp("us", "UTC"))]
)
DDL = "`a.key` string, other long, value long, at timestamp"


def numbering():
    """A function of its own, which goes to the tasks whole."""

    def numbered(events, state):
        """Each event with its place among those of its key."""
        events = events.append_column("row", pa.array(range(events.num_rows)))
        seen = state["seen"].fill_null(0)
        places = []
        counts = seen.to_pylist()
        for key in events["key_index"].to_pylist():
            counts[key] += 1
            places.append(counts[key])
        output = pa.table({"other": events["other"], "value": events["value"], "place": pa.array(places, pa.int64())})
        return output, state.set_column(state.schema.get_field_index("seen"), "seen", pa.array(counts, pa.int64()))

    return numbered


class Files:
    """A folder of Parquet files that becomes a stream, a file at a time."""

    def __init__(self, folder, spark, seed=0):
        self.folder, self.spark, self.dice, self.rows = folder, spark, random.Random(seed), []
        folder.mkdir()

    def add(self, rows):
        at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        made = [
            {
                "a.key": self.dice.choice("abcdef"),
                "other": self.dice.randrange(4),
                "value": self.dice.randrange(100),
                "at": at + dt.timedelta(seconds=self.dice.randrange(60)),
            }
            for _ in range(rows)
        ]
        self.rows += made
        pq.write_table(pa.Table.from_pylist(made, SCHEMA), self.folder / f"{len(self.rows):06}.parquet")

    def stream(self):
        return self.spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(self.folder))


@pytest.fixture
def files(tmp_path, spark):
    return Files(tmp_path / "events", spark)


def finish(pipeline):
    query = pipeline.start(trigger={"availableNow": True})
    query.awaitTermination()
    return query


def test_an_operator_behind_another_one_sees_all_its_rows_over_restarts_at_other_parallelisms(files, tmp_path):
    def pipeline(parallelism):
        stage = KeyedStream(files.stream(), "a.key", str(tmp_path / "root"), parallelism=parallelism).apply_arrow(
            numbering(), "seen long", "other long, value long, place long", "append"
        )
        counts = stage.key_by("other").aggregate(n=count(), total=sum("value"), places=sum("place"))
        return counts.state_only().alongside(stage.write_files(str(tmp_path / "out")))

    for parallelism in (2, 3, 1):
        files.add(50)
        files.add(30)
        finish(pipeline(parallelism))
    seen, expected = Counter(), {}
    for row in files.rows:
        seen[row["a.key"]] += 1
        n, total = expected.get(row["other"], (0, 0))
        expected[row["other"]] = (n + 1, total + row["value"])
    state = files.spark.read.format("stateline").option("operator", "by_a.key_by_other").load(str(tmp_path / "root"))
    found = {row.other: (row.n, row.total) for row in state.collect()}
    assert found == expected
    written = pq.read_table(tmp_path / "out")
    assert pc.sum(written["place"]).as_py() == pc.sum(pa.array([n * (n + 1) // 2 for n in seen.values()])).as_py()
    assert written.num_rows == len(files.rows)


def test_streams_of_two_sources_are_decided_in_one_record(files, tmp_path, spark):
    others = Files(tmp_path / "others", spark, seed=1)
    root = str(tmp_path / "root")

    def pipeline():
        first = KeyedStream(files.stream(), "a.key", root, name="first", watermark=("at", "1 second"))
        second = KeyedStream(others.stream(), "other", root, name="second")
        return first.aggregate(n=count()).state_only().alongside(second.aggregate(n=count()).state_only())

    for rows in (40, 10):
        files.add(rows)
        others.add(2 * rows)
        finish(pipeline())
    record = CheckpointStore(root).latest()
    assert [state.name for state in record.operators] == ["first", "second"]
    assert [state.name for state in record.inputs] == ["first"]
    for name, column, rows in (("first", "a.key", files.rows), ("second", "other", others.rows)):
        state = spark.read.format("stateline").option("operator", name).load(root)
        assert {row[column]: row.n for row in state.collect()} == Counter(row[column] for row in rows)


def test_late_rows_are_written_with_all_columns_of_the_stream(tmp_path, spark):
    folder = tmp_path / "in"
    folder.mkdir()
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    for number, seconds in enumerate([[5], [60], [61], [3, 62, 8], [63]]):
        rows = [
            {"a.key": "k", "other": second, "value": 1, "at": start + dt.timedelta(seconds=second)}
            for second in seconds
        ]
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), folder / f"{number}.parquet")
        os.utime(folder / f"{number}.parquet", (number, number))  # Spark takes the oldest first.
    stream = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(folder))
    keyed = KeyedStream(stream, "a.key", str(tmp_path / "root"), watermark=("at", "1 second"))
    counts = keyed.window("at", "10 seconds").aggregate("append", n=count())
    late = counts.late_rows().write_files(str(tmp_path / "late"))
    finish(counts.write_files(str(tmp_path / "out")).alongside(late))
    assert sorted(pq.read_table(tmp_path / "late")["other"].to_pylist()) == [3, 8]
    assert set(pq.read_table(tmp_path / "late").schema.names) >= set(SCHEMA.names)
    assert pc.sum(pq.read_table(tmp_path / "out")["n"]).as_py() == 1, "the other window is not over"


def test_what_cannot_feed_another_operator_is_refused_when_it_is_said(files, tmp_path):
    files.add(1)
    keyed = KeyedStream(files.stream(), "a.key", str(tmp_path / "root"))
    stage = keyed.apply_arrow(numbering(), "seen long", "other long, value long, place long", "update")
    with pytest.raises(InvalidInputError, match=r"cannot feed another operator.*append"):
        stage.key_by("other")
    with pytest.raises(InvalidInputError, match=r"late_rows operator 'by_a.key'.*cannot have late rows"):
        stage.late_rows()
    appended = keyed.apply_arrow(numbering(), "seen long", "other long, value long, place long", "append")
    with pytest.raises(InvalidInputError, match="'nothing'"):
        appended.key_by("nothing")
    with pytest.raises(InvalidInputError, match="two outputs of one kind"):
        appended.write_files(str(tmp_path / "a")).alongside(appended.write_files(str(tmp_path / "b")))
