"""The same unchanged processors through Spark's own operator and through Stateline: the same output, batch by batch."""

from __future__ import annotations

import datetime as dt
import decimal

import processor_samples as samples
import pytest
from processor_kit import check_same

EVENTS = "k string, v long, at timestamp"
START = dt.datetime(2024, 1, 1)  # Naive: the session, the JVM and Python are in UTC here.


def at(seconds):
    return dt.datetime(1970, 1, 1) + dt.timedelta(seconds=seconds)


def test_a_running_counter_with_a_composite_key_and_nulls_in_it(spark, tmp_path):
    batches = [
        [("a", 1, at(0)), ("b", 2, at(1)), ("a", 3, at(0)), (None, 4, at(0))],
        [("a", 5, at(0)), ("a", 6, at(1)), (None, 7, at(0)), ("b", 8, None)],
        [("b", 9, None), ("c", 1, at(5))],
    ]
    bench, _ = check_same(
        spark, tmp_path, samples.Counter(), batches, EVENTS, ["k", "at"], "k string, n long, total long"
    )
    assert sorted(row for row in bench.state("state.totals") if row[0] == "a") == [
        ("a", at(0).replace(tzinfo=dt.UTC), 3, 9),
        ("a", at(1).replace(tzinfo=dt.UTC), 1, 6),
    ]


def test_the_pandas_form(spark, tmp_path):
    batches = [[("a", 1, at(0)), ("b", 2, at(1)), ("a", 3, at(2))], [("b", 5, at(0)), ("c", 7, at(9))]]
    check_same(
        spark,
        tmp_path,
        samples.FrameCounter(),
        batches,
        EVENTS,
        "k",
        "k string, n long, total long, newest timestamp",
        pandas=True,
    )


def test_sessions_that_event_time_closes(spark, tmp_path):
    batches = [
        [("a", 1, at(10)), ("b", 2, at(11)), ("a", 3, at(12))],
        [("a", 4, at(14)), ("c", 5, at(16))],
        [("d", 6, at(20)), ("b", 7, at(12))],
        [("d", 8, at(40)), ("late", 9, at(16)), ("in time", 10, at(17))],
        [("e", 1, at(41))],
    ]
    output = "k string, what string, at long, v array<long>"
    bench, _ = check_same(spark, tmp_path, samples.Sessions(), batches, EVENTS, "k", output, time_mode="EventTime")
    assert {row[0] for row in bench.state("state.rows")} == {"d", "e"}, "all others are closed"
    assert len(bench.state("timers")) == 2


def test_timers_in_the_past_chained_set_anew_and_deleted(spark, tmp_path):
    batches = [
        [(key, v, at(3)) for key, v in (("chain", 1), ("chain", 20), ("again", 2), ("drop", 1), ("drop", 2))]
        + [("due", 10, at(3)), ("early", 9, at(3))],
        [("x", 30, at(10))],
        [("past", 5, at(11)), ("far past", -5, at(11))],
        [("z", 40, at(12))],
    ]
    output = "k string, what string, at long, v array<long>"
    check_same(spark, tmp_path, samples.Chained(), batches, EVENTS, "k", output, time_mode="EventTime")


def test_timers_and_initial_state_in_the_pandas_form(spark, tmp_path):
    batches = [
        [("a", 1, at(10)), ("b", 5, at(11)), ("a", 2, at(12))],
        [("a", 2, at(20)), ("b", 30, at(21))],
        [("b", 25, at(40)), ("a", 2, at(3))],
        [("c", 2, at(50))],
    ]
    initial = ("k string, n long", [("z", 7), ("z", 8), ("a", 15), ("y", 100)])
    options = {"time_mode": "EventTime", "pandas": True, "initial": initial}
    bench, _ = check_same(spark, tmp_path, samples.FrameTimers(), batches, EVENTS, "k", "k string, o string", **options)
    assert [key for key, _ in bench.state("timers")] == ["y"]


def test_a_map_and_a_list(spark, tmp_path):
    batches = [
        [("a", 1, at(0)), ("a", 2, at(1)), ("b", 4, at(0)), ("a", 7, at(2))],
        [("a", 3, at(0)), ("b", -4, at(0)), ("b", 5, at(1))],
        [("a", 9, at(0)), ("b", 1, at(0)), ("c", 2, at(0))],
    ]
    check_same(spark, tmp_path, samples.Stock(), batches, EVENTS, "k", "k string, items string, top array<long>")


def test_state_variables_without_fields(spark, tmp_path):
    batches = [
        [("a", 1, at(0)), ("a", 2, at(1)), ("b", 4, at(0))],
        [("a", 2, at(0)), ("a", 3, at(0)), ("c", 5, at(1))],
        [("a", 1, at(0)), ("b", 4, at(0)), ("c", 2, at(0))],
    ]
    check_same(spark, tmp_path, samples.Sets(), batches, EVENTS, "k", "k string, seen string")


def test_initial_state_also_of_keys_that_have_no_rows(spark, tmp_path):
    batches = [[("a", 1, at(0)), ("b", 2, at(0))], [("c", 5, at(0)), ("a", 1, at(0))]]
    bench, _ = check_same(
        spark,
        tmp_path,
        samples.Seeded(),
        batches,
        EVENTS,
        "k",
        "k string, n long, total long",
        initial=("k string, n long", [("a", 10), ("c", 20), (None, 30)]),
    )
    assert (None, 30, 3000) in bench.state("state.totals")


def test_every_type_in_rows_state_and_output(spark, tmp_path):
    row = (
        *(1, 2, 3, 4, 1.1, 2.5, "s", b"bytes", True, dt.date(2020, 2, 29), START, START, decimal.Decimal("1.50")),
        *("a", [1, None], {"x": 1, "y": None}),
    )
    extreme = (
        *(-128, -32768, -(2**31), -(2**63), float("inf"), -0.0, "", b"", False, dt.date(1960, 1, 1)),
        *(dt.datetime(1960, 1, 1, 0, 0, 0, 1), dt.datetime(2200, 1, 1), decimal.Decimal("-99999999.99")),
        *("b", [], {"": 7}),
    )
    batches = [[row, extreme], [row, extreme]]
    check_same(spark, tmp_path, samples.Types(), batches, samples.TYPES_INPUT, "k", samples.TYPES_OUTPUT)


def test_state_gives_back_in_its_own_batch_what_it_gives_back_later(spark, tmp_path):
    batches = [[("a", 1, at(0)), ("a", 2, at(0)), ("b", 3, at(1))], [("a", 4, at(0)), ("b", 5, at(2))]]
    check_same(spark, tmp_path, samples.GivenBack(), batches, EVENTS, "k", "k string, seen string")


def test_the_fields_of_rows_inside_of_rows_that_are_put_out_go_by_their_names(spark, tmp_path):
    inside = "struct<x:int,y:int>"
    output = f"k string, st {inside}, a array<{inside}>, m map<string,{inside}>"
    check_same(spark, tmp_path, samples.RowsInside(), [[("a", 1, at(0))]], EVENTS, "k", output)


@pytest.fixture
def time_zone(spark):
    """Another time zone of the session, and not of Python."""
    name, before = "spark.sql.session.timeZone", spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set(name, "America/New_York")
    yield "America/New_York"
    spark.conf.set(name, before)


def test_rows_and_keys_show_the_clock_of_the_session_and_may_be_put_out_as_they_came(spark, tmp_path, time_zone):
    schema = (
        "k string, t timestamp, n timestamp_ntz, m map<string,timestamp>, st struct<a:timestamp,b:array<timestamp>>"
    )
    row = ("a", START, START, {"x": START}, (START, [START, None]))
    batches = [[row, row], [row, ("b", dt.datetime(2024, 7, 1), START, {"y": None}, None)]]
    check_same(spark, tmp_path / "row", samples.Clock(), batches, schema, ["t", "n"], schema, time_zone=time_zone)
    pandas = samples.FrameClock()
    output = "k string, t timestamp"
    check_same(spark, tmp_path / "pd", pandas, batches, schema, ["t", "n"], output, pandas=True, time_zone=time_zone)


def test_integers_inside_the_values_of_a_frame_stay_integers_beside_missing_ones(spark, tmp_path):
    schema = "k string, a array<long>, st struct<x:long>, m map<string,long>"
    long = 2**60 + 1
    batches = [[("a", [long], (long,), {"x": long}), ("a", [1, None], (None,), {"x": None}), ("a", [], (2,), {"x": 3})]]
    check_same(spark, tmp_path, samples.FrameInside(), batches, schema, "k", "k string", pandas=True)


def test_a_whole_pipeline_with_initial_state_over_restarts_at_another_parallelism(spark, tmp_path):
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    from stateline.spark import KeyedStream

    (tmp_path / "source").mkdir()
    initial = spark.createDataFrame([("k1", 1000), ("nobody", 5)], "k string, n long")

    def run(number, parallelism):
        made = pa.table({"k": [f"k{i % 5}" for i in range(20)], "v": list(range(20))})
        pq.write_table(made, tmp_path / "source" / f"{number}.parquet")
        events = spark.readStream.schema("k string, v long").parquet(str(tmp_path / "source"))
        stream = KeyedStream(events, "k", f"file://{tmp_path}/state", parallelism=parallelism)
        stage = stream.process(
            samples.Seeded(),
            "k string, n long, total long",
            initial_state=initial.groupBy("k"),
        )
        pipeline = stage.write_files(f"file://{tmp_path}/out", every_checkpoint=True)
        pipeline.start(str(tmp_path / "spark"), trigger={"availableNow": True}).awaitTermination()

    for number, parallelism in enumerate((2, 3)):
        run(number, parallelism)
    rows = ds.dataset(tmp_path / "out", format="parquet").to_table().to_pylist()
    assert sorted((row["k"], row["n"]) for row in rows) == sorted(
        (f"k{i}", 4 * (batch + 1) + (1000 if i == 1 else 0)) for i in range(5) for batch in range(2)
    )
