"""Processors by themselves: restarts, and all that can be wrong, each refused with what was expected."""

# ruff: noqa: N802, N803 - methods and arguments are Spark's

from __future__ import annotations

import datetime as dt
import decimal
import sys
import threading

import numpy as np
import pandas as pd
import processor_samples as samples
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from processor_kit import Bench
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import ArrayType, DoubleType, StructType

from stateline.errors import ErrorKind, InvalidInputError, UserCodeError
from stateline.spark import KeyedStream
from stateline.spark.arrow_types import arrow_schema
from tests.unit.pipeline.engine import Engine

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's workers cannot find this module.

pytestmark = pytest.mark.usefixtures("spark")

SCHEMA = "k string, v long"
OUTPUT = "k string, n long"


class Does(StatefulProcessor):
    """Does what it is told, in ``init`` and with each key."""

    def __init__(self, act=None, declare=None, fire=None):
        self.act, self.declare, self.fire = act, declare, fire

    def init(self, handle):
        self.handle = handle
        self.value = handle.getValueState("value", "n long, t timestamp")
        if self.declare:
            self.declare(handle)

    def handleInputRows(self, key, rows, timerValues):
        rows = list(rows)
        return iter((self.act(self, key, rows) if self.act else None) or [])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        return iter((self.fire(self, key) if self.fire else None) or [])

    def close(self):
        pass


def bench(processor, **options):
    return Bench(processor, SCHEMA, "k", OUTPUT, **options)


def test_processing_time_timers_come_with_the_time_of_the_batch_and_without_rows():
    def act(self, key, rows):
        self.handle.registerTimer(rows[0].v)

    fired = bench(Does(act, fire=lambda self, key: [Row(k=key.k, n=1)]), time_mode="ProcessingTime")
    assert fired.batch([("a", 20_000), ("b", 10_000)], now=10.0) == [("b", 1)], "one is due at once"
    assert fired.batch([], now=19.999) == []
    assert fired.batch([], now=20.0, parallelism=3) == [("a", 1)]
    assert fired.batch([], now=30.0) == []
    assert fired.state("timers") == []


def test_what_raises_names_the_key_and_shows_the_user_s_own_lines_and_leaves_no_trace():
    def act(self, key, rows):
        n = (self.value.get() or (0,))[0] + len(rows)
        self.value.update((n, None))
        if any(row.v < 0 for row in rows):
            raise KeyError("no such thing")
        return [Row(k=key[0], n=n)]

    running = bench(Does(act))
    assert running.batch([("good", 1)]) == [("good", 1)]
    before = running.states
    with pytest.raises(UserCodeError) as raised:
        running.batch([("good", 1), ("bad", -1)])
    text = str(raised.value)
    assert "handleInputRows Does, key ('bad',)" in text
    assert "KeyError: 'no such thing'" in text
    assert 'raise KeyError("no such thing")' in text
    assert "processor_run" not in text
    assert isinstance(raised.value.__cause__, KeyError)
    assert running.states is before
    assert running.batch([("good", 1), ("bad", 1)]) == [("bad", 1), ("good", 2)], "as if nothing had been"


def test_an_initial_state_that_raises_is_told_by_its_own_handler_and_key():
    class Refuses(Does):
        def handleInitialState(self, key, initialState, timerValues):
            raise ValueError("not this one")

    failing = bench(Refuses(), initial=("k string, x long", [("a", 1)]))
    with pytest.raises(UserCodeError, match=r"^handleInitialState Refuses, key \('a',\): ValueError: not this one"):
        failing.batch([("b", 1)])


@pytest.mark.parametrize("rows", [[("a", 1, 50)], [("a", 1, 50), ("a", 2, 60)], [("a", 1, 50), ("a", 2, 95)]])
def test_late_rows_are_counted_also_where_a_subtask_has_no_other(rows):
    counted = Bench(Does(), "k string, v long, at timestamp", "k", OUTPUT, time_mode="EventTime")
    rows = [(k, v, dt.datetime.fromtimestamp(at, dt.UTC)) for k, v, at in rows]
    counted.batch(rows, watermark=95, late=90, parallelism=1)
    assert counted.metrics[0]["rows"] == len(rows)
    assert counted.metrics[0]["rows_late"] == sum(at.timestamp() <= 90 for _, _, at in rows)


def test_a_timer_that_raises_names_its_key():
    def act(self, key, rows):
        self.handle.registerTimer(0)

    failing = bench(Does(act, fire=lambda self, key: 1 / 0), time_mode="ProcessingTime")
    with pytest.raises(UserCodeError, match=r"handleExpiredTimer Does, key \('a',\).*ZeroDivisionError"):
        failing.batch([("a", 1)])


@pytest.mark.parametrize(("end", "name"), [(lambda: next(iter([])), "StopIteration"), (sys.exit, "SystemExit")])
@pytest.mark.parametrize("where", ["handleInputRows", "handleExpiredTimer"])
def test_what_ends_something_else_is_told_like_all_that_is_raised(where, end, name):
    """The ``next()`` of an iterator without elements ends no loop of ours, and ``sys.exit()`` no worker of Spark."""

    def act(self, key, rows):
        self.handle.registerTimer(0)
        return end() if where == "handleInputRows" else None

    failing = bench(Does(act, fire=lambda self, key: end()), time_mode="ProcessingTime")
    with pytest.raises(UserCodeError, match=rf"{where} Does, key \('a',\).*{name}"):
        failing.batch([("a", 1)])


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda self, key, rows: self.value.update(5), r"value state 'value'.*n:bigint,t:timestamp.*got a int: 5"),
        (lambda self, key, rows: self.value.update((1,)), r"got 1 values: \(1,\)"),
        (
            lambda self, key, rows: self.value.update(("x", None)),
            r"value state 'value', key \('a',\).*field 'n' got 'x' of type str",
        ),
        (lambda self, key, rows: self.value.update((1.5, None)), r"field 'n' got 1.5 of type float.*not a whole"),
        (lambda self, key, rows: self.value.update((2**63, None)), r"field 'n' got 9223372036854775808"),
        (lambda self, key, rows: self.value.update((1, "noon")), r"field 't' got 'noon' of type str"),
        (lambda self, key, rows: self.handle.registerTimer(5), r"registerTimer timers, key .*in time mode 'none'"),
        (lambda self, key, rows: self.handle.getListState("new", "n long"), r"list state 'new'.*was not declared"),
        (
            lambda self, key, rows: self.handle.getValueState("value", "n long"),
            r"value state 'value'.*only once, in init",
        ),
        (
            lambda self, key, rows: self.handle.deleteIfExists("value"),
            r"deleteIfExists state 'value'.*clear\(\) empties",
        ),
        (lambda self, key, rows: [("a", 1)], r"expected the fields \['k', 'n'\], got a tuple: \('a', 1\)"),
        (lambda self, key, rows: [Row("a", 1)], r"got a Row"),
        (lambda self, key, rows: [Row(k="a", n=1, m=2)], r"got \['m'\] in a row"),
        (lambda self, key, rows: [Row(k="a", n="x")], r"output row Row\(k='a', n='x'\).*field 'n' got 'x'"),
        (lambda self, key, rows: [Row(k="a", n=1.5)], r"output row.*field 'n' got 1.5"),
        (lambda self, key, rows: self.value.update((1, 1.5)), r"field 't' got 1.5"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_what_was_expected(act, message):
    with pytest.raises(InvalidInputError, match=message):
        bench(Does(act)).batch([("a", 1)])


def test_a_row_inside_of_an_output_row_with_an_unknown_field_is_refused_as_the_outer_one_is():
    wrong = Does(lambda self, key, rows: [Row(k="a", st=Row(x=1, z=2))])
    with pytest.raises(
        InvalidInputError, match=r"field 'st' got Row\(x=1, z=2\).*expected the fields \['x', 'y'\].*'z'"
    ):
        Bench(wrong, SCHEMA, "k", "k string, st struct<x:int,y:int>").batch([("a", 1)])


def test_a_value_that_does_not_fit_is_told_with_its_key_among_many():
    class Keeps(Does):
        def init(self, handle):
            self.value = handle.getValueState("value", "n long")
            self.list = handle.getListState("list", "n long")
            self.map = handle.getMapState("map", "e int", "n long")

    def kept(name):
        def act(self, key, rows):
            value = "x" if key[0] == "k7" else 1
            self.value.update((value if name == "value" else 1,))
            self.list.put([(1,), (value if name == "list" else 1,)])
            self.map.updateValue((value if name == "map key" else 1,), (value if name == "map" else 1,))

        return Keeps(act)

    for name in ("value", "list", "map", "map key"):
        kind = name.split()[0]
        with pytest.raises(InvalidInputError, match=rf"{kind} state '{kind}', key \('k7',\).*got 'x'"):
            bench(kept(name)).batch([(f"k{number}", number) for number in range(20)])


@pytest.mark.parametrize("form", ["row", "pandas"])
@pytest.mark.parametrize("returned", [None, 5])
def test_what_is_no_iterator_is_refused_with_the_key(form, returned):
    class Returns(Does):
        def handleInputRows(self, key, rows, timerValues):
            return returned

    kind = type(returned).__name__
    with pytest.raises(
        InvalidInputError, match=rf"handleInputRows Returns, key \('a',\): must return an iterator.*{kind}"
    ):
        bench(Returns(), form=form).batch([("a", 1)])


def test_a_handler_with_other_arguments_is_told_as_python_tells_it():
    class Narrow(Does):
        def handleInputRows(self, key, rows):
            return iter([])

    with pytest.raises(UserCodeError, match=r"handleInputRows Narrow, key \('a',\): TypeError: .*3 positional"):
        bench(Narrow()).batch([("a", 1)])


@pytest.mark.parametrize("time", [1.5, "soon", None, True, 2**63])
def test_the_time_of_a_timer_is_whole_milliseconds(time):
    wrong = bench(Does(lambda self, key, rows: self.handle.registerTimer(time)), time_mode="EventTime")
    with pytest.raises(
        InvalidInputError, match=r"registerTimer timers.*key.*the time of a timer must be a whole number"
    ):
        wrong.batch([("a", 1)])


@pytest.mark.parametrize(
    ("declare", "mode", "message"),
    [
        (lambda handle: handle.getValueState("x", "n long", -5), "ProcessingTime", "time to live must be .*, got -5"),
        (lambda handle: handle.getValueState("x", "n long", 1.5), "ProcessingTime", "time to live must be .*, got 1.5"),
        (
            lambda handle: handle.getListState("x", "n long", True),
            "ProcessingTime",
            "time to live must be .*, got True",
        ),
        (lambda handle: handle.getMapState("x", "k long", "n long", 2**63 - 1), "ProcessingTime", "0 to 46116860"),
        (lambda handle: handle.getMapState("x", "k long", "n long", 5), "EventTime", "goes by processing time"),
        (lambda handle: handle.getListState("x", "n long", 5), "None", "goes by processing time"),
        (lambda handle: handle.getListState("value", "n long"), "None", "cannot use this name twice"),
        (lambda handle: handle.getValueState("x", "n lung"), "None", "'n lung' cannot be read"),
        (lambda handle: handle.getValueState("x", 5), "None", "its schema must be a StructType or DDL text, got int"),
        (lambda handle: handle.getMapState("x", "k array<int>", "n long"), "None", "cannot be a key"),
        (lambda handle: handle.registerTimer(5), "EventTime", r"cannot call registerTimer\(\) in init"),
        (lambda handle: handle.getValueState("x", "n long").update((1,)), "None", r"cannot call update\(\) in init"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused_where_the_pipeline_is_built(declare, mode, message):
    with pytest.raises(InvalidInputError, match=message):
        bench(Does(declare=declare), time_mode=mode)


def test_an_init_that_raises_is_told_apart():
    with pytest.raises(UserCodeError, match="init Does: ZeroDivisionError"):
        bench(Does(declare=lambda handle: 1 / 0))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"output_mode": "complete"}, "output_mode: 'complete' is not valid"),
        ({"time_mode": "Wall"}, "time_mode: 'Wall' is not valid"),
        ({"form": "arrow"}, "form: 'arrow' is not valid"),
        ({"output_schema": "n lung"}, "output_schema: its schema"),
        ({"initial": ("k long, n long", [])}, "type bigint, the stream has string"),
    ],
)
def test_unknown_modes_and_schemas_are_refused(option, message):
    with pytest.raises(InvalidInputError, match=message):
        bench(samples.Counter(), **option)


def test_a_processor_that_cannot_go_to_the_tasks_is_refused_where_it_is_given(spark, capfd):
    for inside in (threading.Lock(), spark):
        holds = Does()
        holds.inside = inside
        with pytest.raises(InvalidInputError, match=r"process Does: cannot be copied to the tasks"):
            bench(holds)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "use",
    [
        lambda self: self.value.update((5, None)),
        lambda self: self.value.get(),
        lambda self: self.value.clear(),
        lambda self: self.items.appendValue((5,)),
        lambda self: self.items.put([(5,)]),
        lambda self: self.items.exists(),
        lambda self: self.map.updateValue((5,), (5,)),
        lambda self: self.map.exists(),
        lambda self: self.map.clear(),
    ],
)
def test_state_that_is_used_in_close_is_that_of_no_key(use):
    """It was that of the last key. Where the pipeline is built nothing is seen of it: there are no rows."""

    class Closes(Does):
        def close(self):
            if hasattr(self, "seen"):
                use(self)

    def declare(handle):
        declared[:] = [handle.getListState("items", "n long"), handle.getMapState("map", "n long", "n long")]

    def act(self, key, rows):
        self.seen, (self.items, self.map) = True, declared

    declared = []
    with pytest.raises(InvalidInputError, match=r"^process state: cannot be used while no key is processed"):
        bench(Closes(act, declare)).batch([("a", 1), ("b", 1)])


def test_a_wrong_time_is_told_with_the_call_that_was_given_it():
    deletes = Does(lambda self, key, rows: self.handle.deleteTimer(1.5))
    with pytest.raises(
        InvalidInputError,
        match=r"^deleteTimer timers, key \('a',\): the time of a timer must be a whole number, got 1\.5",
    ):
        bench(deletes, time_mode="ProcessingTime").batch([("a", 1)])


def test_a_processor_in_the_other_form_is_told_how_to_say_its_form():
    frames = Does(lambda self, key, rows: [pd.DataFrame({"k": ["a"], "n": [1]})])
    with pytest.raises(InvalidInputError, match=r'(?s)got a DataFrame.*needs form="pandas"'):
        bench(frames).batch([("a", 1)])
    rows = Does(lambda self, key, rows: [Row(k="a", n=1)])
    with pytest.raises(InvalidInputError, match=r'got a Row.*needs form="row"'):
        bench(rows, form="pandas").batch([("a", 1)])


def test_something_else_than_a_processor_is_refused():
    with pytest.raises(InvalidInputError, match="must be a StatefulProcessor, got function"):
        bench(lambda key, rows: rows)


def test_the_definition_tells_what_is_kept_so_that_a_changed_state_is_refused_at_the_start():
    kept = bench(Does()).program.definition
    assert kept == "process by (k string): value value(n:bigint,t:timestamp)"
    more = bench(Does(declare=lambda handle: handle.getMapState("m", "e int", "n long", 5)), time_mode="ProcessingTime")
    assert more.program.definition == (
        "process by (k string): map m(e:int -> n:bigint) with ttl; value value(n:bigint,t:timestamp); "
        "timers by processingtime"
    )


def test_state_of_other_variables_or_types_than_those_stored_is_refused_at_the_start_with_both():
    kept = bench(Does()).program
    root = Engine(kept, arrow_schema(kept.input))
    root.run([{"k": "a", "v": 1}])
    before = root.coordinator.newest

    class Other(Does):
        def init(self, handle):
            self.handle = handle
            self.value = handle.getValueState("value", "n string, t timestamp")

    for processor, message in (
        (Other(), r"stored: .*value\(n:bigint,t:timestamp\); got: .*value\(n:string,t:timestamp\)"),
        (
            Does(declare=lambda handle: handle.getListState("more", "n long")),
            r"expected \['op'\] as in the checkpoint, got \['op/state.more', 'op/state.value'\]",
        ),
    ):
        program = bench(processor).program
        changed = Engine(program, arrow_schema(program.input), root=root.root)
        with pytest.raises(InvalidInputError, match=message) as raised:
            changed.coordinator.start()
        assert raised.value.kind is ErrorKind.SCHEMA_MISMATCH
    assert root.checkpoints.latest() == before
    again = Engine(kept, arrow_schema(kept.input), root=root.root)
    assert again.run([{"k": "a", "v": 1}]).checkpoint_id == 1


def test_a_processor_that_fails_half_way_fails_the_query_and_the_mended_one_goes_on_with_the_same_batch(
    spark, tmp_path
):
    def act(mended):
        def half_way(self, key, rows):
            n = (self.value.get() or (0,))[0] + len(rows)
            self.value.update((n, None))
            yield Row(k=key[0], n=n)
            if not mended and any(row.v < 0 for row in rows):
                raise KeyError("no such thing")

        return half_way

    (tmp_path / "source").mkdir()

    def run(number, rows, *, mended):
        made = pa.table({"k": [key for key, _ in rows], "v": [v for _, v in rows]})
        pq.write_table(made, tmp_path / "source" / f"{number}.parquet")
        events = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "source"))
        stage = KeyedStream(events, "k", f"file://{tmp_path}/state", parallelism=2).process(Does(act(mended)), OUTPUT)
        pipeline = stage.write_files(f"file://{tmp_path}/out", every_checkpoint=True)
        pipeline.start(str(tmp_path / "spark"), trigger={"availableNow": True}).awaitTermination()

    def put_out():
        files = ds.dataset(tmp_path / "out", format="parquet") if (tmp_path / "out").exists() else None
        return sorted((row["k"], row["n"]) for row in files.to_table().to_pylist()) if files else []

    run(0, [("good", 1), ("bad", 1)], mended=False)
    records = sorted(path.name for path in (tmp_path / "state").glob("chk-*"))
    with pytest.raises(UserCodeError) as raised:
        run(1, [("good", 1), ("bad", -1), ("new", 1)], mended=False)
    for part in ("handleInputRows Does, key ('bad',)", "KeyError: 'no such thing'", "in half_way"):
        assert part in str(raised.value)
    assert put_out() == [("bad", 1), ("good", 1)], "nothing of the batch is there"
    assert sorted(path.name for path in (tmp_path / "state").glob("chk-*")) == records
    run(2, [("late", 1)], mended=True)
    assert put_out() == [("bad", 1), ("bad", 2), ("good", 1), ("good", 2), ("late", 1), ("new", 1)]


def test_a_frame_with_other_columns_or_values_is_refused():
    def frames(*made):
        return Does(lambda self, key, rows: made)

    for frame, message in (
        (pd.DataFrame({"k": ["a"], "m": [1]}), r"got a frame with \['k', 'm'\]"),
        (pd.DataFrame([["a", 1, 2]]), r"got a frame with \[0, 1, 2\]"),
        (pd.DataFrame({"k": ["a"], "n": ["x"]}), "field 'n' got 'x'"),
        (pd.DataFrame({"k": ["a"], "n": [1.5]}), "field 'n' got 1.5"),
        (Row(k="a", n=1), "got a Row"),
    ):
        with pytest.raises(InvalidInputError, match=message) as raised:
            bench(frames(frame), form="pandas").batch([("a", 1)])
        assert raised.value.kind is ErrorKind.SCHEMA_MISMATCH
    good = frames(pd.DataFrame([["b", 2.0]]), pd.DataFrame(), pd.DataFrame({"n": [None, 1], "k": ["c", None]}))
    assert bench(good, form="pandas").batch([("a", 1)]) == [("b", 2), ("c", None), (None, 1)]


def test_naive_times_inside_of_values_of_a_frame_are_by_the_clock_of_the_session_as_whole_columns_are():
    noon = pd.Timestamp("2024-01-01 12:00")
    aware = noon.tz_localize("UTC")
    output = "k string, t timestamp, a array<timestamp>, st struct<x:timestamp,y:int>, m map<string,timestamp>"
    made = [
        pd.DataFrame({"k": ["a"], "t": [noon], "a": [[time, None]], "st": [inside], "m": [{"q": time, "r": None}]})
        for time, inside in ((noon, {"x": noon, "y": 1}), (noon, (noon, 1)), (aware, (aware, 1)))
    ]
    running = Does(lambda self, key, rows: made)
    taken = Bench(running, SCHEMA, "k", output, form="pandas", time_zone="America/New_York").batch([("a", 1)])
    shown = [
        (t.hour, [x and x.hour for x in a], st["x"].hour, [x and x.hour for _, x in m]) for _, t, a, st, m in taken
    ]
    assert sorted(shown) == [(17, [12, None], 12, [12, None])] + [(17, [17, None], 17, [17, None])] * 2


END = dt.datetime(9999, 12, 31)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([END, None], [END, None]),
        ([END, dt.datetime(2024, 1, 1)], [END, dt.datetime(2024, 1, 1)]),
        ([END, pd.Timestamp("2024-01-01", tz="UTC")], [END, dt.datetime(2024, 1, 1)]),
        ([dt.datetime(1500, 1, 1, tzinfo=dt.UTC)], [dt.datetime(1500, 1, 1)]),
        (["9999-12-31"], [END]),
        ([dt.date(9999, 12, 31), pd.NaT], [END, None]),
        ([1, 2_000_000], [dt.datetime(1970, 1, 1, 0, 0, 0, 1), dt.datetime(1970, 1, 1, 0, 0, 2)]),
        (pd.Series([1, None], dtype=object), [dt.datetime(1970, 1, 1, 0, 0, 0, 1), None]),
        (pd.Series([1, None], dtype="Int64"), [dt.datetime(1970, 1, 1, 0, 0, 0, 1), None]),
        ([np.nan, np.nan], [None, None]),
    ],
)
def test_times_of_every_year_may_be_put_out_in_a_frame_and_numbers_are_microseconds(column, expected):
    running = Does(lambda self, key, rows: [pd.DataFrame({"t": column})])
    taken = Bench(running, SCHEMA, "k", "t timestamp", form="pandas").batch([("a", 1)])
    shown = [time and time.replace(tzinfo=None) for (time,) in taken]
    assert sorted(shown, key=repr) == sorted(expected, key=repr)


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
def test_a_time_that_no_frame_can_show_is_refused_by_its_column(kind):
    rows = [("a", END.replace(tzinfo=dt.UTC) if kind == "timestamp" else END)]
    running = Bench(Does(), f"k string, until {kind}", "k", OUTPUT, form="pandas")
    with pytest.raises(InvalidInputError, match=r"column 'until' of the input: cannot show a time.*row form"):
        running.batch(rows)
    Bench(Does(), f"k string, until {kind}", "k", OUTPUT).batch(rows)


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz", "date", "interval day to second", "array<timestamp>"])
@pytest.mark.parametrize("number", [1.5, np.float32(2.5), decimal.Decimal(1)])
def test_a_fraction_is_no_time_in_a_row_and_in_state(kind, number):
    """Such as ``time.time()``: Arrow would take it for microseconds, and cut it off."""
    value = [number] if kind.startswith("array") else number
    puts_out = Does(lambda self, key, rows: [Row(t=value)])
    with pytest.raises(InvalidInputError, match=r"output row.*field 't' got.*not a time"):
        Bench(puts_out, SCHEMA, "k", f"t {kind}").batch([("a", 1)])
    kept = []
    keeps = Does(
        lambda self, key, rows: kept[-1].update((value,)),
        lambda handle: kept.append(handle.getValueState("kept", f"t {kind}")),
    )
    with pytest.raises(InvalidInputError, match=r"value state 'kept'.*field 't' got"):
        Bench(keeps, SCHEMA, "k", OUTPUT).batch([("a", 1)])


@pytest.mark.parametrize("column", [[1.5], [True], [pd.Timedelta(1)], [[END]]])
def test_what_is_no_time_is_refused_by_name(column):
    running = Does(lambda self, key, rows: [pd.DataFrame({"t": column})])
    with pytest.raises(InvalidInputError, match="field 't' got"):
        Bench(running, SCHEMA, "k", "t timestamp", form="pandas").batch([("a", 1)])


@pytest.mark.parametrize(("other", "hours"), [(None, []), (pd.NaT, []), ("2024-01-01 12:00", [17])])
def test_frames_of_one_batch_may_differ_in_whether_times_have_a_zone(other, hours):
    noon = pd.Timestamp("2024-01-01 12:00")
    made = [pd.DataFrame({"k": ["a"], "t": [t]}) for t in (noon, noon.tz_localize("UTC"), other)]
    running = Does(lambda self, key, rows: made)
    form = {"form": "pandas", "time_zone": "America/New_York"}
    taken = Bench(running, SCHEMA, "k", "k string, t timestamp", **form).batch([("a", 1)])
    assert sorted(t.hour for _, t in taken if t) == [12, 17, *hours]
    assert len(taken) == 3


@pytest.mark.parametrize("output", ["k string, t timestamp", "k string, t array<timestamp>"])
def test_a_time_that_no_clock_shows_is_refused_by_name(output):
    never = pd.Timestamp("2024-03-31 02:30")
    made = pd.DataFrame({"k": ["a", "b"], "t": [[never], [never]] if "array" in output else [never, never]})
    form = {"form": "pandas", "time_zone": "Europe/Berlin"}
    running = Bench(Does(lambda self, key, rows: [made]), SCHEMA, "k", output, **form)
    with pytest.raises(InvalidInputError, match="no clock of Europe/Berlin shows 2024-03-31 02:30"):
        running.batch([("a", 1)])


def test_a_long_of_one_frame_is_not_cut_off_by_a_missing_one_of_another():
    frames = [pd.DataFrame({"k": ["a"], "n": [2**53 + 1]}), pd.DataFrame({"k": ["b"], "n": [np.nan]})]
    whole = Does(lambda self, key, rows: [*frames, pd.DataFrame({"k": [None], "n": pd.array([2**63 - 1], "Int64")})])
    assert bench(whole, form="pandas").batch([("a", 1)]) == [("a", 2**53 + 1), ("b", None), (None, 2**63 - 1)]


def test_a_row_without_a_field_and_a_whole_float_are_taken():
    rows = [Row(k="a"), Row(n=2.0, k="b")]
    assert bench(Does(lambda self, key, _: rows)).batch([("a", 1)]) == [("a", None), ("b", 2)]


def test_state_in_a_processor_s_own_attributes_is_gone_with_the_batch():
    def act(self, key, rows):
        self.count = getattr(self, "count", 0) + 1
        return [Row(k=key[0], n=self.count)]

    forgetful = bench(Does(act))
    assert forgetful.batch([("a", 1)]) == forgetful.batch([("a", 1)]) == [("a", 1)]


@pytest.mark.parametrize("form", ["row", "pandas"])
def test_null_in_a_column_of_the_output_that_is_not_null_is_refused(form):
    def given(n):
        return Does(lambda self, key, rows: [pd.DataFrame({"n": [n]}) if form == "pandas" else Row(n=n)])

    missing = Bench(given(None), SCHEMA, "k", "n double NOT NULL", form=form)
    with pytest.raises(InvalidInputError, match=r"column 'n': a row of the output has null .* says NOT NULL"):
        missing.batch([("a", 1)])
    ((number,),) = Bench(given(np.nan), SCHEMA, "k", "n double NOT NULL", form=form).batch([("a", 1)])
    assert np.isnan(number), "NaN is a number"
    inside = Bench(given([1.0, None]), SCHEMA, "k", StructType().add("n", ArrayType(DoubleType(), False)), form=form)
    with pytest.raises(InvalidInputError, match=r"column 'n\.element': a row of the output has null"):
        inside.batch([("a", 1)])
    missing = Bench(given(None), SCHEMA, "k", "n double", form=form)
    assert missing.batch([("a", 1)]) == [(None,)]
