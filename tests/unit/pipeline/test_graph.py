"""Graphs as values: what is refused, and which inputs reach an operator."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stateline.errors import InvalidInputError
from stateline.pipeline.event_time import WatermarkPlan
from stateline.pipeline.graph import Graph, Input, OperatorPlan

SCHEMA = pa.schema([("at", pa.timestamp("us"))])
WATERMARK = WatermarkPlan.of(SCHEMA, "at", "10 seconds")
OTHER = WatermarkPlan.of(SCHEMA, "at", "1 second")


def operator(name: str, *inputs: str, upstream: tuple[str, ...] = ()) -> OperatorPlan:
    return OperatorPlan(name=name, inputs=inputs, upstream=upstream, tables={}, definition="")


def names(inputs: tuple[Input, ...]) -> list[str]:
    return [each.name for each in inputs]


def test_operators_side_by_side_read_one_input_whose_name_does_not_depend_on_their_order():
    first = Graph.of_one_input([operator("b"), operator("a")], WATERMARK)
    second = Graph.of_one_input([operator("a")], WATERMARK).alongside(Graph.of_one_input([operator("b")], WATERMARK))
    assert first.inputs == second.inputs == (Input(name="a", watermark=WATERMARK),)
    assert names(first.inputs_reaching("b")) == ["a"]
    assert first.watermark_read_by("b") == WATERMARK


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Graph.of_one_input([operator("a"), operator("a")]), "two operators are called 'a'.*name="),
        (lambda: Graph((Input(name="a"), Input(name="a"))), "two inputs are called 'a'"),
        (lambda: Graph((Input(name="a"),), (operator("a", "b"),)), r"operator 'a'.*cannot read \['b'\]"),
        (lambda: Graph((), (operator("a", upstream=("a",)),)), r"cannot read \['a'\]"),
        (lambda: Graph((), (operator("a", upstream=("b",)), operator("b"))), "no operator of that name before it"),
        (
            lambda: Graph.of_one_input([operator("a")], WATERMARK).alongside(
                Graph.of_one_input([operator("b")], OTHER)
            ),
            "alongside watermark.*expected one watermark",
        ),
    ],
)
def test_what_is_not_a_graph_is_refused(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()


def test_the_inputs_of_a_chain_are_those_of_everything_in_front_of_it():
    graph = Graph(
        (Input(name="joined"), Input(name="joined.right"), Input(name="alone")),
        (
            operator("joined", "joined", "joined.right"),
            operator("alone", "alone"),
            operator("last", upstream=("joined",)),
            operator("all", "alone", upstream=("last",)),
        ),
    )
    assert names(graph.inputs_reaching("last")) == ["joined", "joined.right"]
    assert names(graph.inputs_reaching("alone")) == ["alone"]
    assert names(graph.inputs_reaching("all")) == ["joined", "joined.right", "alone"]
    assert graph.watermark_read_by("last") is None


def test_an_input_is_found_by_any_operator_that_reads_it():
    graph = Graph((Input(name="a"), Input(name="z")), (operator("b", "a"), operator("z", "z"), operator("a", "a")))
    assert {name: graph.find_input(name) for name in ("a", "b", "z", "gone")} == {
        "a": Input(name="a"),
        "b": Input(name="a"),
        "z": Input(name="z"),
        "gone": None,
    }
