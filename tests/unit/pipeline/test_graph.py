"""Graphs as values: what is refused, and which inputs reach an operator."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from stateline.errors import InvalidInputError
from stateline.files import FileOutput
from stateline.pipeline.event_time import WatermarkPlan
from stateline.pipeline.graph import Graph, Input, OperatorPlan, Source
from stateline.tables import TableTarget

SCHEMA = pa.schema([("at", pa.timestamp("us"))])
WATERMARK = WatermarkPlan.of(SCHEMA, "at", "10 seconds")
OTHER = WatermarkPlan.of(SCHEMA, "at", "1 second")


def operator(name: str, *inputs: str, upstream: tuple[str, ...] = ()) -> OperatorPlan:
    sources = (*(Source("input", each) for each in inputs), *(Source("operator", each) for each in upstream))
    return OperatorPlan(name=name, sources=sources, tables={}, definition="")


def beside(one: Graph, other: Graph) -> Graph:
    """Both over the same stream."""
    return one.alongside(other, {other.inputs[0].name: one.inputs[0].name}).graph


def names(inputs: tuple[Input, ...]) -> list[str]:
    return [each.name for each in inputs]


def test_operators_side_by_side_read_one_input_whose_name_does_not_depend_on_their_order():
    first = Graph.of_one_input([operator("b"), operator("a")], WATERMARK)
    second = beside(Graph.of_one_input([operator("a")], WATERMARK), Graph.of_one_input([operator("b")], WATERMARK))
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
            lambda: beside(Graph.of_one_input([operator("a")], WATERMARK), Graph.of_one_input([operator("b")], OTHER)),
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


def test_graphs_of_different_streams_keep_both_whatever_they_are_called():
    one, other = (Graph.of_one_input([operator(name)], WATERMARK) for name in ("b", "a"))
    merged = one.alongside(other, {})
    assert names(merged.graph.inputs) == ["b", "a"]
    assert (merged.mine, merged.theirs) == ({"b": "b"}, {"a": "a"})


def test_a_stage_that_both_graphs_were_made_from_is_there_once_with_the_outputs_of_both():
    stage = Graph.of_one_input([operator("a")], WATERMARK)
    written = stage.with_outputs_of(replace(stage.operator("a"), delivers=True))
    behind = stage.with_operator(operator("b", upstream=("a",))).graph
    merged = behind.alongside(written, {"a": "a"}, shared=["a"]).graph
    assert [(each.name, each.delivers) for each in merged.operators] == [("a", True), ("b", False)]
    with pytest.raises(InvalidInputError, match="two outputs of one kind"):
        merged.alongside(written, {"a": "a"}, shared=["a"])
    with pytest.raises(InvalidInputError, match="two operators are called 'a'"):
        behind.alongside(written, {"a": "a"})
    lake = replace(
        stage.operator("a"), output=FileOutput(url="/lake"), table=TableTarget(format="delta", target="/lake")
    )
    rows = replace(stage.operator("a"), delivers=True, table=TableTarget(format="sqlite", target="t"))
    with pytest.raises(InvalidInputError, match="or two tables"):
        stage.with_outputs_of(lake).alongside(stage.with_outputs_of(rows), {"a": "a"}, shared=["a"])


def test_an_input_that_nothing_reads_yet_gets_its_name_from_the_first_that_does():
    pending = Graph((Input(name="stream 1"), Input(name="stream 2")))
    made = pending.with_operator(operator("joined", "stream 1", "stream 2"))
    assert made.mine == {"stream 1": "joined", "stream 2": "joined.right"}
    assert [reader.label for reader in made.graph.readers_of("input", "joined.right")] == ["joined.right"]
    assert made.graph.find_input("joined.right") == Input(name="joined.right")


def test_levels_go_straight_from_one_stream_and_after_a_level_of_sorting_from_several():
    def levels(graph: Graph) -> list[list[str]]:
        return [[each.name for each in level] for level in graph.levels]

    chain = Graph((Input(name="a"),), (operator("a", "a"), operator("b", upstream=("a",)), operator("c", "a")))
    assert (chain.is_direct, levels(chain)) == (True, [["a", "c"], ["b"]])
    joined = Graph((Input(name="a"),), (operator("a", "a"), operator("b", "a", upstream=("a",))))
    assert (joined.is_direct, levels(joined)) == (False, [[], ["a"], ["b"]])
    two = Graph((Input(name="a"), Input(name="b")), (operator("a", "a"), operator("b", "b")))
    assert (two.is_direct, levels(two)) == (False, [[], ["a", "b"]])
