"""As-of joins and lookups on Spark: two sources, a chain behind them, another root that goes on."""

from __future__ import annotations

import datetime as dt
import os
import random
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore
from stateline.errors import InvalidInputError, NotFoundError
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.pipeline.plan import PipelineSettings
from stateline.spark import KeyedStream, count, sum
from stateline.spark.job.batch_job import BatchJob
from stateline.testing import OperatorHarness

pytestmark = pytest.mark.spark

FILE_TIME = 1_700_000_000
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
ORDERS = (
    "Currency string, ordered_at timestamp, amount long",
    pa.schema([("Currency", pa.string()), ("ordered_at", pa.timestamp("us", "UTC")), ("amount", pa.int64())]),
)
RATES = (
    "code string, since timestamp, rate double, amount long",
    pa.schema(
        [("code", pa.string()), ("since", pa.timestamp("us", "UTC")), ("rate", pa.float64()), ("amount", pa.int64())]
    ),
)


class Source:
    """A folder of Parquet files that becomes a stream, a file at a time."""

    def __init__(self, folder, spark, schemas):
        self.folder, self.spark, self.rows = folder, spark, []
        self.ddl, self.schema = schemas
        folder.mkdir()

    def add(self, rows):
        self.rows += rows
        path = self.folder / f"{len(self.rows):06}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, self.schema), path)
        # Spark takes files in the order of their times, and these are written within one of its ticks.
        os.utime(path, (FILE_TIME + len(self.rows), FILE_TIME + len(self.rows)))

    def stream(self):
        return self.spark.readStream.schema(self.ddl).option("maxFilesPerTrigger", 1).parquet(str(self.folder))


def seconds(number):
    return START + dt.timedelta(seconds=number)


def finish(pipeline):
    pipeline.start(trigger={"availableNow": True}).awaitTermination()


def rows_of(folder):
    return pq.read_table(folder).to_pylist() if folder.exists() else []


def counted(rows):
    return Counter(tuple(sorted((name, str(value)) for name, value in row.items())) for row in rows)


@pytest.fixture
def orders(tmp_path, spark):
    return Source(tmp_path / "orders", spark, ORDERS)


@pytest.fixture
def rates(tmp_path, spark):
    return Source(tmp_path / "rates", spark, RATES)


def test_orders_get_the_rate_of_their_moment_and_feed_windows_behind_them(orders, rates, tmp_path):
    draw, root = random.Random(1), str(tmp_path / "root")

    def pipeline(parallelism):
        left = KeyedStream(
            orders.stream(), "currency", root, name="orders", watermark=("ordered_at", "30 seconds"),
            parallelism=parallelism,
        )  # fmt: skip
        right = KeyedStream(
            rates.stream(), "code", root, name="rates", watermark=("since", "30 seconds"), parallelism=parallelism
        )
        priced = left.join_asof(right, how="left", tolerance="20 seconds", suffix="_of_rate")
        hourly = priced.key_by("currency", name="windows").window("ordered_at", "10 seconds")
        return priced.write_files(str(tmp_path / "priced")).alongside(
            hourly.aggregate("append", n=count(), amount=sum("amount")).write_files(str(tmp_path / "windows"))
        )

    for parallelism, starts in ((2, (0, 0)), (3, (60, 60, 100))):
        for source, make in (
            (orders, lambda at: {"Currency": draw.choice("abc"), "ordered_at": at, "amount": draw.randrange(9)}),
            (rates, lambda at: {"code": draw.choice("abc"), "since": at, "rate": draw.random(), "amount": 1}),
        ):
            for start in starts:
                source.add([make(seconds(start + draw.randrange(30))) for _ in range(30)])
        finish(pipeline(parallelism))
    newest = CheckpointStore(root).latest()
    border = dt.datetime.fromtimestamp(newest.watermark_us / 1e6, dt.UTC)
    expected = []
    for order in orders.rows:
        if order["ordered_at"] <= border:
            times = [rate["since"] for rate in rates.rows if rate["code"] == order["Currency"]]
            times = [at for at in times if at <= order["ordered_at"] <= at + dt.timedelta(seconds=20)]
            version = next(
                (rate for rate in reversed(rates.rows)
                 if times and rate["since"] == max(times) and rate["code"] == order["Currency"]), {},
            )  # fmt: skip
            expected.append(
                {"currency": order["Currency"], "ordered_at": order["ordered_at"], "amount": order["amount"]}
                | {"since": version.get("since"), "rate": version.get("rate"), "amount_of_rate": version.get("amount")}
            )
    assert len(expected) > 100
    assert counted(rows_of(tmp_path / "priced")) == counted(expected)
    windows = Counter(
        (row["currency"], (row["ordered_at"] - START).seconds // 10)
        for row in expected
        if seconds(((row["ordered_at"] - START).seconds // 10 + 1) * 10) <= border
    )
    written = rows_of(tmp_path / "windows")
    found = {(row["currency"], (row["window_start"] - START).seconds // 10): row["n"] for row in written}
    assert found == windows


def test_rows_see_the_newest_state_of_another_root_and_of_a_stage_beside_them(orders, tmp_path):
    other, root = str(tmp_path / "other"), str(tmp_path / "root")

    def totals():
        stream = KeyedStream(orders.stream(), "Currency", other, parallelism=1, max_parallelism=5)
        return stream.aggregate(n=count(), amount=sum("amount")).state_only()

    def pipeline():
        stream = KeyedStream(orders.stream(), "currency", root, name="rows")
        own = KeyedStream(orders.stream(), "Currency", root, name="own").aggregate(n=count())
        beside = stream.lookup(own, how="inner").write_files(str(tmp_path / "own"))
        looked_up = KeyedStream(orders.stream(), "currency", root, name="look").lookup(other, columns=["amount"])
        return looked_up.write_files(str(tmp_path / "out")).alongside(beside)

    def order(currency, amount):
        return {"Currency": currency, "ordered_at": seconds(0), "amount": amount}

    orders.add([order("a", 1), order("b", 2), order(None, 3)])
    finish(totals())
    finish(pipeline())
    orders.add([order("a", 10), order("c", 20)])
    finish(totals())
    finish(pipeline())
    found = {(row["currency"], row["amount"]): row["amount_right"] for row in rows_of(tmp_path / "out")}
    assert found == {("a", 1): 1, ("b", 2): 2, (None, 3): None, ("a", 10): 11, ("c", 20): 20}
    assert [(row["currency"], row["amount"], row["n"]) for row in rows_of(tmp_path / "own")] == [("a", 10, 1)]


def test_a_batch_whose_runs_were_taken_away_by_the_other_root_is_computed_again(orders, tmp_path, monkeypatch):
    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])
    counts = AggregateProgram.bind(schema, ["k"], {"n": count()})
    settings = PipelineSettings(retained_checkpoints=2, inline_bytes=0)
    other = OperatorHarness(counts, schema, root=open_store(f"file://{tmp_path}/other"), settings=settings)
    other.run_batch([{"k": "a", "v": 1}])
    seen, run = [], BatchJob.__call__

    def interrupted(self, batch, inputs):
        seen.append(inputs[0].lookups["lookup"].checkpoint_id)
        for _ in range(5 if len(seen) == 1 else 0):
            other.run_batch([{"k": "a", "v": 1}])
        return run(self, batch, inputs)

    monkeypatch.setattr(BatchJob, "__call__", interrupted)
    orders.add([{"Currency": "a", "ordered_at": seconds(0), "amount": 1}])
    stream = KeyedStream(orders.stream(), "Currency", str(tmp_path / "root"))
    finish(stream.lookup(str(tmp_path / "other")).write_files(str(tmp_path / "out")))
    assert seen == [0, 5]
    assert [row["n"] for row in rows_of(tmp_path / "out")] == [6]


def test_what_cannot_be_is_refused_by_the_call(orders, rates, tmp_path):
    root = str(tmp_path / "root")
    stream = KeyedStream(orders.stream(), "Currency", root, watermark=("ordered_at", "1 second"))
    stage = stream.aggregate(n=count())
    without = KeyedStream(rates.stream(), "code", root)
    with pytest.raises(InvalidInputError, match="the checkpoint of this stream itself"):
        stream.lookup(root)
    with pytest.raises(NotFoundError, match="neither a checkpoint nor a savepoint"):
        stream.lookup(str(tmp_path / "nothing"))
    with pytest.raises(InvalidInputError, match="options"):
        stream.lookup(stage, options={})
    with pytest.raises(InvalidInputError, match="source"):
        stream.lookup(stream)
    with pytest.raises(InvalidInputError, match="must have a watermark"):
        stream.join_asof(without)
    with pytest.raises(InvalidInputError, match="other"):
        stream.join_asof(stage)
    elsewhere = KeyedStream(rates.stream(), "code", f"{root}2", watermark=("since", "1 second"))
    with pytest.raises(InvalidInputError, match="same root"):
        stream.join_asof(elsewhere)
    with pytest.raises(InvalidInputError, match=r"cannot feed another operator|cannot have rows that take"):
        stage.key_by("Currency").join_asof(elsewhere)
