"""Columns by other spellings than their own: found, called and refused as Spark does it."""

from __future__ import annotations

import datetime as dt
import sys

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from stateline.errors import InvalidInputError
from stateline.files.partitions import folder_values, partition_folder
from stateline.spark import Aggregator, KeyedStream, count, first, sum

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's workers cannot find this module.

DDL = "Key long, Value long, Moment timestamp"
MOMENT = dt.datetime(2024, 1, 1, 0, 5, tzinfo=dt.UTC)


class Total(Aggregator):
    """Reads its columns by the names it was given."""

    state_schema = pa.schema([("total", pa.int64())])
    output_type = pa.int64()

    def reduce(self, rows, group, num_groups):
        value, key = self.columns
        both = pc.add(rows[value], rows[key])
        made = pa.table({"g": group, "both": both}).group_by("g").aggregate([("both", "sum")]).sort_by("g")
        return pa.table([made["both_sum"]], schema=self.state_schema)

    def merge(self, older, newer):
        return pa.table([pc.add(older["total"], newer["total"])], schema=self.state_schema)

    def result(self, state):
        return state["total"]


class Summing(StatefulProcessor):
    """Sees rows as the stream spells them."""

    def init(self, handle):
        self.total = handle.getValueState("total", "total long")

    def handleInitialState(self, key, initialState, timerValues):  # noqa: N802, N803 - Spark's
        self.total.update((initialState["N"],))

    def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803 - Spark's
        total = (self.total.get() or (0,))[0]
        for row in rows:
            total += row.Value + row.Key
        self.total.update((total,))
        yield Row(k=key[0], total=total)

    def close(self):
        pass


def last_values(events, state):
    return events.select(["KEY", "value"]), state.set_column(1, "n", pa.nulls(state.num_rows, pa.int64()))


@pytest.fixture
def stream(spark, tmp_path):
    (tmp_path / "source").mkdir()
    moments = pa.array([MOMENT] * 3, pa.timestamp("us", "UTC"))
    rows = pa.table({"Key": [1, 2, 1], "Value": [10, 20, 30], "Moment": moments})
    pq.write_table(rows, tmp_path / "source" / "0.parquet")
    return spark.readStream.schema(DDL).parquet(str(tmp_path / "source"))


def test_columns_are_found_in_any_spelling_and_are_called_as_the_user_spelled_them(spark, tmp_path, stream):
    def keyed(name, key="KEY"):
        return KeyedStream(
            stream, key, str(tmp_path / "state"), parallelism=1, name=name, watermark=("moment", "1 hour 30 minutes")
        )

    initial = spark.createDataFrame([(1, 1000), (3, 3000)], "kEY long, N long")
    sums = {"n": count("key"), "total": sum("VALUE"), "both": Total("value", "kEy"), "one": first("VALUE", by="moment")}
    pipelines = [
        keyed("sums").aggregate(**sums).write_files(str(tmp_path / "sums"), partition_by="kEY"),
        keyed("hours").window("MOMENT", "1 hour").aggregate(n=count()).write_files(str(tmp_path / "hours")),
        keyed("late", "moment").aggregate(n=count()).write_files(str(tmp_path / "late"), partition_by="MOMENT"),
        keyed("rows")
        .process(Summing(), "k long, total long", initial_state=initial)
        .write_files(str(tmp_path / "rows")),
        keyed("arrow")
        .apply_arrow(last_values, "n long", "KEY long, value long", columns=["value"])
        .write_files(str(tmp_path / "arrow")),
    ]
    whole = pipelines[0]
    for one in pipelines[1:]:
        whole = whole.alongside(one)
    whole.start(str(tmp_path / "spark"), trigger={"availableNow": True}).awaitTermination()

    def rows(name, columns):
        found = ds.dataset(tmp_path / name, partitioning="hive").to_table()
        assert set(columns) <= set(found.column_names), found.column_names
        return sorted(tuple(row[column] for column in columns) for row in found.to_pylist())

    assert rows("sums", ["kEY", "n", "total", "both", "one"]) == [(1, 2, 40, 42, 10), (2, 1, 20, 22, 20)]
    assert {path.name for path in (tmp_path / "sums").glob("[!.]*")} == {"kEY=1", "kEY=2"}
    assert rows("hours", ["KEY", "n"]) == [(1, 2), (2, 1)]
    assert [path.name for path in (tmp_path / "late").glob("[!.]*")] == ["MOMENT=2024-01-01 00%3A05%3A00"]
    assert rows("rows", ["k", "total"]) == [(1, 1042), (2, 22)]
    assert rows("arrow", ["KEY", "value"]) == [(1, 10), (1, 30), (2, 20)]
    state = spark.read.format("stateline").option("operator", "sums").load(str(tmp_path / "state"))
    batch = spark.createDataFrame([(1, 2)], "Key long, Value long")
    assert state.columns[0] == batch.groupBy("KEY").count().columns[0] == "KEY"
    batch.write.partitionBy("kEY").parquet(str(tmp_path / "of spark"))
    assert (tmp_path / "of spark" / "kEY=1").is_dir()


def test_a_name_that_could_mean_two_columns_is_refused(spark, tmp_path, stream):
    both = stream.toDF("k", "K", "at")
    place = str(tmp_path / "state")
    for make in (
        lambda: KeyedStream(both, "k", place),
        lambda: KeyedStream(both, "at", place).aggregate(n=sum("K")),
        lambda: KeyedStream(both, "at", place).apply_arrow(last_values, "n long", "n long"),
        lambda: KeyedStream(both, "at", place).process(Summing(), "k long, total long"),
    ):
        with pytest.raises(InvalidInputError, match=r"ambiguous: the stream has \['k', 'K'\]"):
            make()
    with pytest.raises(InvalidInputError, match=r"cannot name .* twice"):
        KeyedStream(stream, ["key", "KEY"], place)
    KeyedStream(both, "AT", place).aggregate(n=count())
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        KeyedStream(both, ["k", "K"], place).aggregate(n=count())
        with pytest.raises(InvalidInputError, match="Did you mean 'Key'"):
            KeyedStream(stream, "key", place)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_folders_of_moments_have_the_names_of_sparks_own_sink_in_the_zone_of_its_session(spark, tmp_path):
    # Of the hour that Berlin's clock shows twice only one: where a task has both, Spark's own sink fails.
    micros = [-5_000_000_000_000_000, 0, 1_698_537_600_000_000, 1_698_544_800_000_000, 1_700_000_000_123_456]
    moments = spark.createDataFrame([(each, 1) for each in micros], "at long, x int")
    rows = pa.table({"at": pa.array(micros, pa.timestamp("us", "UTC"))})
    for number, zone in enumerate(("Europe/Berlin", "America/New_York", "+05:30")):
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            moments.selectExpr("timestamp_micros(at) AS at", "x").write.partitionBy("at").parquet(
                f"{tmp_path}/{number}"
            )
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
        told, _ = folder_values(rows, zone)
        ours = {partition_folder(["at"], [value]) for value in told["at"].to_pylist()}
        assert ours == {path.name for path in (tmp_path / str(number)).glob("at=*")}
