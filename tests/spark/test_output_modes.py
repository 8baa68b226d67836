"""Aggregations without windows in the modes of Spark, and each aggregation's answer beside Spark's own."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F

import stateline.spark as st
from stateline.errors import InvalidInputError
from tests.spark.event_files import LATE_AND_EARLY, EventFiles, same


@pytest.fixture
def events(tmp_path, spark):
    return EventFiles(tmp_path, spark)


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_without_windows_the_modes_answer_as_sparks_do(events, mode):
    events.add(*LATE_AND_EARLY[:3])
    ours = events.run(events.keyed(watermark=("at", "10 minutes")).aggregate(mode, n=st.count(), top=st.max("value")))
    grouped = events.events().withWatermark("at", "10 minutes").groupBy("key")
    theirs = events.spark_answer(grouped.agg(F.count("*").alias("n"), F.max("value").alias("top")), mode)
    assert same(ours) == same(theirs)
    assert len(ours) == 3


def spread_of(column):
    """A class made here travels to the workers as it is; one of a module would have to be there."""

    class Spread(st.Aggregator):
        """A user's own: the distance between the smallest and the largest value."""

        state_schema = pa.schema([("low", pa.int64()), ("high", pa.int64())])
        output_type = pa.int64()

        def reduce(self, rows, group, num_groups):
            made = rows.append_column("g", group).group_by("g").aggregate([("value", "min"), ("value", "max")])
            made = made.sort_by("g")
            return pa.table([made["value_min"], made["value_max"]], schema=self.state_schema)

        def merge(self, older, newer):
            low = pc.min_element_wise(older["low"], newer["low"])
            high = pc.max_element_wise(older["high"], newer["high"])
            return pa.table([low, high], schema=self.state_schema)

        def result(self, state):
            return pc.subtract(state["high"], state["low"])

    return Spread(column)


OURS = {
    "rows": st.count(),
    "times": st.count("at"),
    "total": st.sum("value"),
    "average": st.mean("value"),
    "low": st.min("value"),
    "high": st.max("at"),
    "opening": st.first("value", by="at"),
    "closing": st.last("value", by="at"),
    "at_low": st.min_by("at", "value"),
    "at_high": st.max_by("at", "value"),
    "kinds": st.count_distinct("value"),
    "about": st.approx_count_distinct("value", rsd=0.02),
    "all": st.collect_list("value", 1000),
    "some": st.collect_set("value", 1000),
    "var": st.variance("value"),
    "var_p": st.var_pop("value"),
    "dev": st.stddev("value"),
    "dev_p": st.stddev_pop("value"),
    "spread": spread_of("value"),
}


def theirs():
    return {
        "rows": F.count("*"),
        "times": F.count("at"),
        "total": F.sum("value"),
        "average": F.mean("value"),
        "low": F.min("value"),
        "high": F.max("at"),
        "opening": F.min_by("value", "at"),
        "closing": F.max_by("value", "at"),
        "at_low": F.min_by("at", "value"),
        "at_high": F.max_by("at", "value"),
        "kinds": F.count_distinct("value"),
        "about": F.approx_count_distinct("value", 0.02),
        "all": F.sort_array(F.collect_list("value")),
        "some": F.sort_array(F.collect_set("value")),
        "var": F.variance("value"),
        "var_p": F.var_pop("value"),
        "dev": F.stddev("value"),
        "dev_p": F.stddev_pop("value"),
        "spread": F.max("value") - F.min("value"),
    }


def test_each_aggregation_over_batches_answers_as_spark_does_over_all_rows(events):
    for batch in range(3):
        rows = range(batch * 200, (batch + 1) * 200)
        events.add([(None if row % 13 == 0 else f"k{row % 7}", (row * 37 % 600) / 7) for row in rows])
    found = events.run(events.keyed().aggregate("complete", **OURS))[2]
    read = events.spark.read.schema("key string, value long, at timestamp").parquet(str(events.folder / "source"))
    expected = {
        row["key"]: row for row in read.groupBy("key").agg(*(c.alias(n) for n, c in theirs().items())).collect()
    }
    assert {row["key"] for row in found} == expected.keys()
    for row in found:
        answer = expected[row["key"]].asDict()
        for name in OURS:
            mine, value = row[name], answer[name]
            if name in ("all", "some"):
                mine = sorted(mine)
            if hasattr(value, "timestamp"):
                mine, value = mine.timestamp(), value.astimezone().timestamp()
            assert mine == (pytest.approx(value, rel=0.1 if name == "about" else 1e-9)), (row["key"], name)


def lower_case(events):
    """Strings that Spark takes for equal where their bytes are not."""
    return events.events().withColumn("name", F.expr("key collate UTF8_LCASE"))


def test_a_string_of_another_collation_may_be_kept_where_it_is_not_compared(events):
    events.add(*LATE_AND_EARLY[:1])
    stage = events.keyed(lower_case(events)).aggregate(n=st.count("name"), last=st.last("name", by="at"))
    [ours] = events.run(stage).values()
    assert {row["key"] for row in ours} == {row["last"] for row in ours} != set()
    assert all(row["last"] == row["key"] and row["n"] > 0 for row in ours)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda e: e.keyed(watermark=("value", "1 minute")), "must be a timestamp, got int64"),
        (lambda e: e.keyed(watermark=("at", "-1 minute")), "delay of the watermark"),
        (lambda e: e.keyed(watermark=("att", "1 minute")), "Did you mean 'at'"),
        (lambda e: e.keyed(watermark="at"), "Give a pair"),
        (lambda e: e.keyed(late_data="ignore"), "drop, keep"),
        (lambda e: e.keyed(e.events().withWatermark("at", "1 minute"), watermark=("at", "2 minutes")), "got two"),
        (lambda e: e.keyed().aggregate("append", n=st.count()), "a row of mode append is final"),
        (lambda e: e.keyed().window("at", "1 minute").aggregate("append", n=st.count()), "mode append"),
        (
            lambda e: e.keyed(lower_case(e)).aggregate(n=st.count_distinct("name")),
            "column 'name': expected the collation UTF8_BINARY, got UTF8_L",
        ),
        (
            lambda e: e.keyed(lower_case(e)).aggregate(n=st.max_by("at", "name")),
            "column 'name': expected the collation UTF8_BINARY, got UTF8_L",
        ),
        (lambda e: e.keyed(lower_case(e), key="name"), "key 'name': expected .* got UTF8_LCASE"),
        (lambda e: e.keyed().aggregate("upsert", n=st.count()), "append, complete, update"),
        (lambda e: e.keyed().aggregate(output_mode="append", n=st.count()), "Give the mode first"),
        (lambda e: e.keyed().window("value", "1 minute"), "must be a timestamp"),
        (lambda e: e.keyed().window("at", "1 minute", "2 minutes"), "slide"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(events, make, message):
    events.add([("a", 1)])
    with pytest.raises(InvalidInputError, match=message):
        make(events)
    assert not (events.folder / "state").exists()


def test_a_sum_that_outgrows_its_type_over_batches_commits_nothing_and_its_hint_can_be_followed(events):
    almost = 2**62  # In each batch by itself the sum fits.
    events.add([("a", 1)], [("a", 2), ("b", 3)])
    large = events.events().withColumn("value", F.col("value") + F.lit(almost))
    for _ in range(2):
        with pytest.raises(InvalidInputError, match=r"does not fit int64.*give its aggregations other names, too"):
            events.run(events.keyed(large).aggregate(n=st.count(), total=st.sum("value")))
        assert events.newest().batch_id == 0
        assert [row["total"] for rows in events.output().values() for row in rows] == [almost + 1]
    wide = large.withColumn("value", F.col("value").cast("decimal(38, 0)"))
    events.run(events.keyed(wide).aggregate(n=st.count(), wide_total=st.sum("value")))
    state = events.spark.read.format("stateline").load(f"file://{events.folder}/state").drop("key_group")
    found = {row["key"]: (row["n"], row["wide_total"]) for row in state.collect()}
    assert found == {"a": (2, almost + 1), "b": (1, almost + 2)}, "counts go on, the other sum begins anew"
