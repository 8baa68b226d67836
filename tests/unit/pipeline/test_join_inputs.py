"""What a join refuses before anything runs, and what it says of itself."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json

import pyarrow as pa
import pytest
from join_model import LEFT, RIGHT, TIME, program_of, sides

from stateline.errors import InvalidInputError
from stateline.pipeline.event_time import WatermarkPlan
from stateline.pipeline.operators.join import Interval, JoinProgram, JoinSide

TEN_MINUTES = Interval(0, 600_000_000)


def bind(how="inner", left=None, right=None, **options):
    given = [dataclasses.replace(side, **(changed or {})) for side, changed in zip(sides(), (left, right), strict=True)]
    return JoinProgram.bind(*given, how, **options)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"how": "cross"}, "cross"),
        ({"right": {"keys": ["key"]}}, "as many keys"),
        ({"right": {"keys": ["d", "key"]}}, "expected keys of one type, got string for 'k' and int32 for 'd'"),
        ({"left": {"keys": ["k", "nobody"]}}, "nobody"),
        ({"how": "left"}, "must know when no partner can come any more"),
        ({"how": "full", "left": {"watermark": None}}, "must know when"),
        ({"interval": TEN_MINUTES, "right": {"watermark": None}}, "the right stream must have a watermark"),
        ({"interval": TEN_MINUTES, "ttl_ms": 1}, "cannot be given with an interval"),
        ({"left": {"updates": True}}, "left side: cannot read an operator that replaces rows"),
        ({"right": {"updates": True}}, "right side: cannot read an operator that replaces rows"),
        ({"suffix": ""}, "cannot be called 'v', which is taken"),
        ({"suffix": 3}, "suffix"),
    ],
    ids=str,
)
def test_what_cannot_be_joined_is_refused(arguments, said):
    with pytest.raises(InvalidInputError) as caught:
        bind(**arguments)
    assert said in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    "within", [None, "1 minute", 5, ("1 minute",), ("2 minutes", "1 minute"), ("1 month", "2 months")]
)
def test_what_is_no_interval_is_refused(within):
    with pytest.raises(InvalidInputError, match="within"):
        Interval.of(within)


def test_intervals_may_be_negative_or_a_point():
    assert Interval.of(("-5 minutes", dt.timedelta(minutes=-1))) == Interval(-300_000_000, -60_000_000)
    assert Interval.of((0, 0)) == Interval(0, 0)
    assert Interval.of(["-1 second", "0 seconds"]).mirrored() == Interval(0, 1_000_000)


def test_event_times_with_and_without_a_zone_are_not_compared():
    schema = RIGHT.set(0, pa.field("then", pa.timestamp("us")))
    with pytest.raises(InvalidInputError, match="with a time zone and without one"):
        bind(right={"schema": schema}, interval=TEN_MINUTES)


def test_columns_come_out_as_documented():
    assert bind().output_schema.names == ["k", "d", "v", "at", "then", "v_right"]
    assert bind("semi").output_schema.names == ["k", "d", "v", "at"]
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64(), nullable=False), ("at", TIME)]
    )
    plan = WatermarkPlan(column="at", delay_us=0)
    one = JoinSide(schema=schema, keys=["id"], watermark=plan)
    nullable = {
        how: [field.nullable for field in JoinProgram.bind(one, one, how, interval=TEN_MINUTES).output_schema]
        for how in ("inner", "left", "right", "full")
    }
    assert nullable == {
        "inner": [False, False, True, False, True],
        "left": [False, False, True, True, True],
        "right": [False, True, True, False, True],
        "full": [False, True, True, True, True],
    }


def test_what_it_says_to_the_operators_behind_it():
    program = program_of("inner", (-2_000_000, 5_000_000))
    assert program.emits == "appends"
    assert program.event_time_columns == ("at", "then")
    assert program.watermark_lag_us == 5_001_000
    assert program_of("semi", (-2_000_000, -1_000_000)).event_time_columns == ("at",)
    assert program_of("semi", (-2_000_000, -1_000_000)).watermark_lag_us == 2_001_000
    assert program_of("inner").event_time_columns == ()
    assert program_of("inner", (0, 1), late_data="keep").event_time_columns == ()
    assert [program_of(how, (0, 1)).acts_on_watermark for how in ("inner", "semi", "left", "right", "full")] == [
        False, False, True, True, True
    ]  # fmt: skip
    late = [(reading.key_columns, reading.late_by) for reading in program.readings]
    assert late == [(("k", "d"), "at"), (("key", "d"), "then")]
    assert {reading.late_by for reading in program_of("inner", (0, 1), late_data="keep").readings} == {None}


def test_event_times_in_the_key_bound_the_state_without_an_interval():
    keys = {"keys": ["k", "at"]}, {"keys": ["key", "then"]}
    program = bind("full", *keys)
    assert program.watermark_lag_us == 0
    assert program.event_time_columns == ("at",)
    assert json.loads(program.definition)["within_us"] == [0, 0]
    assert program.tables["left"].keys.names == ["k", "at", "batch", "row"]
    assert bind("inner", *keys, ttl_ms=1_000).event_time_columns == ()


def test_names_of_the_tables_give_way_to_those_of_the_streams():
    schema = LEFT.append(pa.field("Row", pa.int64())).append(pa.field("arrived_ms", pa.int64()))
    table = bind(left={"schema": schema}, ttl_ms=1_000).tables["left"]
    assert table.keys.names == ["k", "d", "batch", "row_"]
    assert table.values.names == ["v", "at", "Row", "arrived_ms", "arrived_ms_"]
