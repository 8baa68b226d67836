"""How watermarks advance, what a record keeps of them, and what they mean for the operators of a graph."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateline.checkpoint import Checkpoint, InputState
from stateline.errors import InvalidInputError
from stateline.pipeline.compatibility import check_plan
from stateline.pipeline.event_time import WatermarkPlan
from stateline.pipeline.graph import Graph, Input, OperatorPlan, Source
from stateline.pipeline.plan import PipelinePlan
from stateline.pipeline.watermarks import Watermarks
from tests.unit.pipeline.records import record

SCHEMA = pa.schema([("at", pa.timestamp("us", tz="UTC")), ("local", pa.timestamp("us"))])
PLAN = WatermarkPlan.of(SCHEMA, "at", "10 seconds")


def operator(name: str, *inputs: str, upstream: tuple[str, ...] = (), acts: bool = False, lag: int = 0) -> OperatorPlan:
    sources = (*(Source("input", each) for each in inputs), *(Source("operator", each) for each in upstream))
    return OperatorPlan(
        name=name, sources=sources, tables={}, definition="", acts_on_watermark=acts, watermark_lag_us=lag
    )


def one_input(watermark: WatermarkPlan | None = PLAN, *names: str) -> Graph:
    return Graph.of_one_input([operator(name, acts=True) for name in names or ("op",)], watermark)


def stored(name: str, current: int | None, late: int | None = None, column: str = "at") -> InputState:
    return InputState(name=name, column=column, watermark_us=current, late_watermark_us=late)


def after(graph: Graph, newest: Checkpoint | None, **times: int) -> Checkpoint:
    return record(inputs=Watermarks.of(graph, newest).after(times))


@given(st.lists(st.none() | st.integers(-(10**15), 10**15), max_size=12))
def test_a_watermark_never_goes_back_and_follows_the_greatest_time(times):
    newest, seen, before = None, [], None
    for time in times:
        newest = after(one_input(), newest, **({} if time is None else {"op": time}))
        seen += [] if time is None else [time]
        (state,) = newest.inputs
        assert state.late_watermark_us == before
        assert state.watermark_us == (max(seen) // 1000 * 1000 - 10_000_000 if seen else None)
        before = state.watermark_us
        assert Watermarks.of(one_input(), newest).wait_to_close() == (before != state.late_watermark_us)


def test_without_a_watermark_what_is_stored_stays_as_it_is():
    newest = record(inputs=(stored("op", 7, 5),))
    assert after(one_input(None), newest, op=10**9).inputs == newest.inputs
    assert Watermarks.of(one_input(None), newest).of_operator("op") == (7, 5)
    assert after(one_input(None), None, op=1).inputs == ()
    assert not Watermarks.of(one_input(), None).wait_to_close()


def test_a_smaller_delay_after_a_restart_moves_it_forward_and_a_greater_one_does_not_move_it_back():
    newest = after(one_input(), None, op=60_000_000)
    for delay, watermark_us in (("5s", 55_000_000), ("1h", 50_000_000)):
        assert (
            after(one_input(WatermarkPlan.of(SCHEMA, "at", delay)), newest, op=60_000_000).watermark_us == watermark_us
        )


def test_a_watermark_of_another_column_is_refused_with_both_names():
    plan = PipelinePlan(root_url="x", parallelism=1, max_parallelism=1, graph=one_input())
    check_plan(plan, record(inputs=(stored("op", 1),)), {})
    with pytest.raises(InvalidInputError, match=r"column of the watermark.*'op'.*expected local .* got at"):
        check_plan(plan, record(inputs=(stored("op", 1, column="local"),)), {})


TWO = Graph(
    (Input(name="left", watermark=PLAN), Input(name="right", watermark=PLAN), Input(name="quiet")),
    (
        operator("left", "left"),
        operator("right", "right"),
        operator("both", upstream=("left", "right")),
        operator("last", "quiet", upstream=("both",), acts=True),
    ),
)


def test_an_operator_works_with_the_least_watermark_of_the_inputs_that_reach_it():
    first = after(TWO, None, left=30_000_000)
    assert Watermarks.of(TWO, first).of_operator("left") == (20_000_000, None)
    assert Watermarks.of(TWO, first).of_operator("both") == (None, None), "the right side may still bring anything"
    second = after(TWO, first, right=15_000_000)
    watermarks = Watermarks.of(TWO, second)
    assert watermarks.of_operator("left") == (20_000_000, 20_000_000)
    assert watermarks.of_operator("both") == watermarks.of_operator("last") == (5_000_000, None)
    assert watermarks.wait_to_close(), "the last operator has not worked with it yet"
    third = after(TWO, second, left=100_000_000)
    assert Watermarks.of(TWO, third).of_operator("both") == (5_000_000, 5_000_000)
    assert not Watermarks.of(TWO, third).wait_to_close(), "what moved on reaches no operator that acts on it"


def test_an_input_that_is_added_later_has_no_watermark_and_the_others_keep_theirs():
    newest = after(one_input(PLAN, "left"), None, left=30_000_000)
    again = after(TWO, newest)
    assert [(state.name, state.watermark_us) for state in again.inputs] == [("left", 20_000_000), ("right", None)]


def test_an_input_keeps_its_watermark_when_an_operator_that_reads_it_changes_its_name():
    newest = after(one_input(PLAN, "b"), None, b=30_000_000)
    again = after(one_input(PLAN, "a", "b"), newest)
    assert again.inputs == (stored("a", 20_000_000, 20_000_000),)


def test_a_watermark_travels_along_edges_and_stays_behind_where_an_operator_says_so():
    graph = Graph(
        (Input(name="a", watermark=PLAN), Input(name="none")),
        (
            operator("a", "a", lag=3_000_000),
            operator("b", upstream=("a",), lag=1),
            operator("c", "none", upstream=("b",)),
        ),
    )
    newest = record(inputs=(stored("a", 20_000_000, 10_000_000),))
    watermarks = Watermarks.of(graph, newest)
    assert [tuple(watermarks.of_operator(name)) for name in "abc"] == [
        (20_000_000, 10_000_000),
        (17_000_000, 7_000_000),
        (16_999_999, 6_999_999),
    ]


def test_late_rows_have_no_watermark():
    late = OperatorPlan(name="late", sources=(Source("late", "a"),), tables={}, definition="")
    graph = Graph((Input(name="a", watermark=PLAN),), (operator("a", "a"), late))
    newest = record(inputs=(stored("a", 20_000_000, 10_000_000),))
    assert Watermarks.of(graph, newest).of_operator("late") == (None, None)
