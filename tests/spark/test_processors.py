"""The same unchanged processors through Spark's own operator and through Stateline: the same output, batch by batch."""

from __future__ import annotations

import datetime as dt
import decimal

import processor_kit as kit
import pytest
from processor_kit import Bench, through_spark

EVENTS = "k string, v long, at timestamp"
START = dt.datetime(2024, 1, 1)  # Naive: the session, the JVM and Python are in UTC here.


def at(seconds):
    return dt.datetime(1970, 1, 1) + dt.timedelta(seconds=seconds)


def as_plain(rows):
    """Rows of either side as comparable values."""

    def plain(value):
        if hasattr(value, "asDict"):
            return plain(value.asDict())
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            if value and all(isinstance(item, tuple) and len(item) == 2 for item in value) and isinstance(value, list):
                return {name: plain(item) for name, item in value}
            return [plain(item) for item in value]
        if isinstance(value, dt.datetime) and value.tzinfo is not None:
            return value.astimezone(dt.UTC).replace(tzinfo=None)
        return value

    return sorted(([plain(value) for value in row] for row in rows), key=repr)


def check_same(spark, folder, processor, batches, schema, keys, output, *, pandas=False, initial=None, time_zone="UTC"):
    """Runs batches both ways, in Stateline at changing parallelism, and compares each batch's output."""
    frame = None if initial is None else spark.createDataFrame(initial[1], initial[0]).groupBy(keys)
    expected = through_spark(spark, folder, batches, schema, keys, processor, output, pandas=pandas, initial=frame)
    bench = Bench(processor, schema, keys, output, initial=initial, time_zone=time_zone)
    assert bench.program.form == ("pandas" if pandas else "row")
    for number, rows in enumerate(batches):
        got = bench.batch(rows, parallelism=(2, 3, 1)[number % 3])
        assert as_plain(got) == as_plain(expected[number]), f"batch {number}"
        bench.restart(processor)
    return bench


def watermarks(batches):
    """What Spark's watermark is in each batch: the greatest time of the batches before; and of those before these."""
    bounds, newest = [0.0], 0.0
    for rows in batches:
        newest = max([newest, *((row[2] - at(0)).total_seconds() for row in rows)])
        bounds.append(newest)
    return [{"watermark": bounds[i], "late": bounds[i - 1] if i else 0.0} for i in range(len(batches))]


def test_a_running_counter_with_a_composite_key_and_nulls_in_it(spark, tmp_path):
    batches = [
        [("a", 1, at(0)), ("b", 2, at(1)), ("a", 3, at(0)), (None, 4, at(0))],
        [("a", 5, at(0)), ("a", 6, at(1)), (None, 7, at(0)), ("b", 8, None)],
        [("b", 9, None), ("c", 1, at(5))],
    ]
    bench = check_same(spark, tmp_path, kit.Counter(), batches, EVENTS, ["k", "at"], "k string, n long, total long")
    assert sorted(row for row in bench.state("state.totals") if row[0] == "a") == [
        ("a", at(0).replace(tzinfo=dt.UTC), 3, 9),
        ("a", at(1).replace(tzinfo=dt.UTC), 1, 6),
    ]


def test_the_pandas_form(spark, tmp_path):
    batches = [[("a", 1, at(0)), ("b", 2, at(1)), ("a", 3, at(2))], [("b", 5, at(0)), ("c", 7, at(9))]]
    check_same(
        spark,
        tmp_path,
        kit.FrameCounter(),
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
    bench = _event_time(spark, tmp_path, kit.Sessions(), batches, output)
    assert {row[0] for row in bench.state("state.rows")} == {"d", "e"}, "all others are closed"
    assert len(bench.state("timers")) == 2


def _event_time(spark, folder, processor, batches, output, *, pandas=False, initial=None):
    frame = None if initial is None else spark.createDataFrame(initial[1], initial[0]).groupBy("k")
    options = {"time_mode": "EventTime", "pandas": pandas, "initial": frame}
    expected = through_spark(spark, folder, batches, EVENTS, "k", processor, output, **options)
    bench = Bench(
        processor, EVENTS, "k", output, time_mode="EventTime", initial=initial, form="pandas" if pandas else "row"
    )
    for number, moment in enumerate(watermarks(batches)):
        got = bench.batch(batches[number], parallelism=(2, 3, 1)[number % 3], **moment)
        assert as_plain(got) == as_plain(expected[number]), f"batch {number}"
        bench.restart(processor)
    return bench


def test_timers_in_the_past_chained_set_anew_and_deleted(spark, tmp_path):
    batches = [
        [(key, v, at(3)) for key, v in (("chain", 1), ("chain", 20), ("again", 2), ("drop", 1), ("drop", 2))]
        + [("due", 10, at(3)), ("early", 9, at(3))],
        [("x", 30, at(10))],
        [("past", 5, at(11)), ("far past", -5, at(11))],
        [("z", 40, at(12))],
    ]
    _event_time(spark, tmp_path, kit.Chained(), batches, "k string, what string, at long, v array<long>")


def test_timers_and_initial_state_in_the_pandas_form(spark, tmp_path):
    batches = [
        [("a", 1, at(10)), ("b", 5, at(11)), ("a", 2, at(12))],
        [("a", 2, at(20)), ("b", 30, at(21))],
        [("b", 25, at(40)), ("a", 2, at(3))],
        [("c", 2, at(50))],
    ]
    initial = ("k string, n long", [("z", 7), ("z", 8), ("a", 15), ("y", 100)])
    bench = _event_time(spark, tmp_path, kit.FrameTimers(), batches, "k string, o string", pandas=True, initial=initial)
    assert [key for key, _ in bench.state("timers")] == ["y"]


def test_a_map_and_a_list(spark, tmp_path):
    batches = [
        [("a", 1, at(0)), ("a", 2, at(1)), ("b", 4, at(0)), ("a", 7, at(2))],
        [("a", 3, at(0)), ("b", -4, at(0)), ("b", 5, at(1))],
        [("a", 9, at(0)), ("b", 1, at(0)), ("c", 2, at(0))],
    ]
    check_same(spark, tmp_path, kit.Stock(), batches, EVENTS, "k", "k string, items string, top array<long>")


def test_state_variables_without_fields(spark, tmp_path):
    batches = [
        [("a", 1, at(0)), ("a", 2, at(1)), ("b", 4, at(0))],
        [("a", 2, at(0)), ("a", 3, at(0)), ("c", 5, at(1))],
        [("a", 1, at(0)), ("b", 4, at(0)), ("c", 2, at(0))],
    ]
    check_same(spark, tmp_path, kit.Sets(), batches, EVENTS, "k", "k string, seen string")


def test_initial_state_also_of_keys_that_have_no_rows(spark, tmp_path):
    batches = [[("a", 1, at(0)), ("b", 2, at(0))], [("c", 5, at(0)), ("a", 1, at(0))]]
    bench = check_same(
        spark,
        tmp_path,
        kit.Seeded(),
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
    check_same(spark, tmp_path, kit.Types(), batches, kit.TYPES_INPUT, "k", kit.TYPES_OUTPUT)


def test_state_gives_back_in_its_own_batch_what_it_gives_back_later(spark, tmp_path):
    batches = [[("a", 1, at(0)), ("a", 2, at(0)), ("b", 3, at(1))], [("a", 4, at(0)), ("b", 5, at(2))]]
    check_same(spark, tmp_path, kit.GivenBack(), batches, EVENTS, "k", "k string, seen string")


def test_the_fields_of_rows_inside_of_rows_that_are_put_out_go_by_their_names(spark, tmp_path):
    inside = "struct<x:int,y:int>"
    output = f"k string, st {inside}, a array<{inside}>, m map<string,{inside}>"
    check_same(spark, tmp_path, kit.RowsInside(), [[("a", 1, at(0))]], EVENTS, "k", output)


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
    check_same(spark, tmp_path / "row", kit.Clock(), batches, schema, ["t", "n"], schema, time_zone=time_zone)
    pandas = kit.FrameClock()
    output = "k string, t timestamp"
    check_same(spark, tmp_path / "pd", pandas, batches, schema, ["t", "n"], output, pandas=True, time_zone=time_zone)


def test_integers_inside_the_values_of_a_frame_stay_integers_beside_missing_ones(spark, tmp_path):
    schema = "k string, a array<long>, st struct<x:long>, m map<string,long>"
    long = 2**60 + 1
    batches = [[("a", [long], (long,), {"x": long}), ("a", [1, None], (None,), {"x": None}), ("a", [], (2,), {"x": 3})]]
    check_same(spark, tmp_path, kit.FrameInside(), batches, schema, "k", "k string", pandas=True)


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
            kit.Seeded(),
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
