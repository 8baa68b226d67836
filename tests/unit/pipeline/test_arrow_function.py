"""What a function over Arrow tables is given, and every wrong thing that it may return."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from stateline.errors import InvalidInputError, UserCodeError
from stateline.pipeline.event_time import WatermarkPlan
from stateline.pipeline.operators.arrow_function import ArrowFunctionProgram
from tests.unit.pipeline.engine import Engine

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64()), ("at", pa.timestamp("us"))])
INT = pa.int64()
STATE = pa.schema([("total", pa.int64())])
OUTPUT = pa.schema([("key", pa.string()), ("total", pa.int64())])
WATERMARK = WatermarkPlan.of(SCHEMA, "at", "5 seconds")
ROWS = [{"key": key, "value": value, "at": 0} for key, value in [("b", 1), ("a", 2), ("b", 3), (None, 4)]]


def bind(function, **options):
    return ArrowFunctionProgram.bind(SCHEMA, ["key"], function, STATE, OUTPUT, **options)


def engine(function, **options):
    return Engine(bind(function, **options), SCHEMA, parallelism=1, watermark=options.get("watermark"))


def totals(events, state):
    sums = events.group_by("key_index").aggregate([("value", "sum")]).sort_by("key_index")["value_sum"]
    state = state.set_column(1, "total", pc.add(state["total"].fill_null(0), sums))
    return state, state


def answers(engine, checkpoint):
    return {row["key"]: row["total"] for row in engine.output[checkpoint]}


def test_events_come_in_order_with_the_row_of_their_key_and_state_comes_once_per_key():
    seen = []

    def look(events, state, moment):
        keys = state["key"].to_pylist()
        seen.append([(keys[row["key_index"]] == row["key"], row["value"]) for row in events.to_pylist()])
        assert events.schema.names == ["key", "value", "at", "key_index"]
        assert state.schema.names == ["key", "total"]
        assert sorted(keys, key=str) == [None, "a", "b"]
        assert (moment.checkpoint_id, moment.watermark_us) == (0, None)
        return None, None

    engine(look).run(ROWS)
    assert seen == [[(True, 1), (True, 2), (True, 3), (True, 4)]]


def test_state_is_kept_replaced_left_alone_and_deleted():
    driver = engine(totals)
    driver.run(ROWS)
    assert answers(driver, 0) == {"a": 2, "b": 4, None: 4}

    def forget_b(events, state):
        is_b = pc.fill_null(pc.equal(state["key"], "b"), False)
        return state, None, state.filter(is_b).select(["key"])

    middle = Engine(bind(forget_b), SCHEMA, root=driver.root, parallelism=2)
    middle.run(ROWS)
    assert answers(middle, 1) == {"a": 2, "b": 4, None: 4}
    last = Engine(bind(totals), SCHEMA, root=driver.root, parallelism=3)
    last.run(ROWS)
    assert answers(last, 2) == {"a": 4, "b": 4, None: 8}


def test_it_is_not_called_without_events_and_late_ones_are_taken_out():
    calls = []

    def note(events, state):
        calls.append(events.num_rows)
        return None, None

    driver = engine(note, watermark=WATERMARK)
    driver.run([])
    driver.run([{"key": "a", "value": 1, "at": 100_000_000}])
    late = [{"key": "a", "value": 1, "at": time} for time in (1, 95_000_000, 95_000_001, None)]
    driver.run(late)
    driver.run(late)
    driver.run(late[:1])
    assert calls == [1, 4, 2]
    assert driver.metrics["rows_late"] == 1
    kept = engine(note, watermark=WatermarkPlan.of(SCHEMA, "at", "5 seconds", "keep"))
    for _ in range(3):
        kept.run([{"key": "a", "value": 1, "at": 1}, {"key": "a", "value": 1, "at": 9_000_000}])
    assert calls[3:] == [2, 2, 2]


@pytest.mark.parametrize("raised", [KeyError("no such thing"), SystemExit(1)])
def test_what_it_raises_is_a_typed_error_with_its_traceback_and_nothing_is_committed(raised):
    def broken(events, state):
        raise raised

    driver = engine(broken)
    with pytest.raises(UserCodeError, match=rf"(?s)apply_arrow .*broken: raised {type(raised).__name__}.*in broken"):
        driver.run(ROWS)
    assert driver.checkpoints.latest() is None


def keyed(*keys, total=None, kind=INT):
    return pa.table({"key": pa.array(keys, pa.string()), "total": pa.array([total] * len(keys), kind)})


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, r"expected \(output, state\) or \(output, state, deleted\), got NoneType"),
        ((1, 2, 3, 4), "got a tuple of 4"),
        ((5, None), "output: expected a pyarrow.Table, got int"),
        ((None, [1]), "state: expected a pyarrow.Table, got list"),
        ((pa.table({"total": [1]}), None), r"output: expected the columns \['key', 'total'\], got \['total'\]"),
        ((keyed("a", kind=pa.string()), None), "output: 'total': expected int64, got string"),
        ((None, keyed("a", kind=pa.float64())), "state: 'total': expected int64, got double"),
        ((keyed("a", total=b"0" * 16, kind=pa.uuid()), None), "output: 'total': expected int64, got extension<"),
        ((None, keyed("z")), "state: expected keys of the events, got {'key': 'z', 'total': None}"),
        (
            (None, keyed("a", "b", "a")),
            "state: expected each key at most once, got {'key': 'a', .*} again",
        ),
        ((None, None, keyed("z").select(["key"])), "deleted: expected keys of the events, got {'key': 'z'}"),
        ((None, keyed("a"), keyed("a").select(["key"])), "deleted: expected each key at most once"),
        ((None, None, keyed("a")), r"deleted: expected the columns \['key'\]"),
    ],
)
def test_what_it_returns_is_checked_and_the_error_says_what_was_expected_and_what_came(returned, message):
    driver = engine(lambda events, state: returned)
    with pytest.raises(InvalidInputError, match=message):
        driver.run(ROWS)
    assert driver.checkpoints.latest() is None


def test_a_null_where_the_declared_type_has_none_is_told_by_its_column():
    kind = pa.struct([pa.field("x", INT, nullable=False)])
    made = pa.table({"key": ["a"], "st": pa.array([{"x": None}], pa.struct([("x", INT)]))})
    output = pa.schema([("key", pa.string()), ("st", kind)])
    program = ArrowFunctionProgram.bind(SCHEMA, ["key"], lambda events, state: (made, None), STATE, output)
    with pytest.raises(InvalidInputError, match=r"output: 'st': expected struct<x: int64 not null>.*nulls"):
        Engine(program, SCHEMA, parallelism=1).run(ROWS)


def test_large_strings_record_batches_and_columns_in_another_order_are_taken():
    def back(events, state):
        large = state.set_column(0, "key", state["key"].cast(pa.large_string())).select(["total", "key"])
        return large.to_batches()[0], large

    driver = engine(back)
    driver.run(ROWS)
    assert answers(driver, 0) == {"a": None, "b": None, None: None}


def test_a_name_that_is_taken_and_an_empty_schema_are_refused():
    with pytest.raises(InvalidInputError, match="key_index"):
        ArrowFunctionProgram.bind(SCHEMA, ["key"], totals, pa.schema([("key_index", pa.int64())]), OUTPUT)
    with pytest.raises(InvalidInputError, match="empty"):
        ArrowFunctionProgram.bind(SCHEMA, ["key"], totals, pa.schema([]), OUTPUT)
    with pytest.raises(InvalidInputError, match="valu"):
        bind(totals, columns=["valu"])


def test_null_in_a_column_of_the_output_that_is_not_null_is_refused():
    output = pa.schema([("key", pa.string()), pa.field("total", pa.int64(), nullable=False)])
    program = ArrowFunctionProgram.bind(SCHEMA, ["key"], lambda events, state: (state, None), STATE, output)
    with pytest.raises(InvalidInputError, match=r"column 'total': a row of the output has null .* says NOT NULL"):
        Engine(program, SCHEMA, parallelism=1).run(ROWS)
