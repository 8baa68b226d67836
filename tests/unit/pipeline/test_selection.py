"""Rows of an operator's output, filtered and computed: what comes and what is taken back is chosen alike."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from stateline.errors import InvalidInputError
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.pipeline.operators.api import BatchContext, OperatorProgram, Processed
from stateline.pipeline.operators.selection import SelectionProgram
from stateline.state.aggregate.functions import count

SCHEMA = pa.schema(
    [("key", pa.string()), ("total", pa.int64()), ("number", pa.int64()), ("at", pa.timestamp("us", "UTC"))]
)
CONTEXT = BatchContext(checkpoint_id=3, now=0.0)


@dataclass(frozen=True)
class Rows(OperatorProgram):
    """Puts out the rows that it is given, and takes back those of its second side."""

    emits = "updates"
    event_time_columns = ("at",)
    watermark_lag_us = 7
    output_schema = SCHEMA
    definition = "rows"

    def process_sides(self, sides, tables, context):
        output, retracted = (pa.Table.from_batches(side) if side else None for side in sides)
        return Processed(changes={}, output=output, retracted=retracted, metrics={"rows": context.checkpoint_id})


def rows(*given: tuple) -> list[pa.RecordBatch]:
    names = SCHEMA.names
    return [pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True)) for row in given], SCHEMA)]


COME = rows(("a", 7, 2, 1), ("b", 9, 3, 2), ("c", -7, 2, 3), (None, None, 1, None))
GONE = rows(("a", 6, 2, 1), ("b", 1, 1, 2))


def test_a_condition_chooses_rows_that_come_and_rows_that_are_taken_back() -> None:
    program = SelectionProgram.filtered(Rows(), pc.field("total") > 5)
    made = program.process_sides([COME, GONE], {}, CONTEXT)
    assert made.output == pa.Table.from_batches(COME).slice(0, 2)
    assert made.retracted == pa.Table.from_batches(GONE).slice(0, 1)
    assert made.metrics == {"rows": 3}
    assert program.output_schema == SCHEMA


def test_columns_are_chosen_renamed_and_computed_in_order() -> None:
    program = SelectionProgram.projected(
        Rows(), ["number", "key"], {"mean": pc.divide(pc.field("total"), pc.field("number")), "time": pc.field("at")}
    )
    made = program.process_sides([COME, GONE], {}, CONTEXT)
    assert program.output_schema.names == ["number", "key", "mean", "time"]
    assert made.output is not None
    assert made.output.schema == program.output_schema
    assert made.output["mean"].to_pylist() == [3, 3, -3, None]
    assert made.output["key"].to_pylist() == ["a", "b", "c", None]
    assert made.retracted is not None
    assert made.retracted.select(["number", "mean"]).to_pylist() == [
        {"number": 2, "mean": 3},
        {"number": 1, "mean": 1},
    ]


def test_nothing_stays_nothing() -> None:
    program = SelectionProgram.projected(Rows(), ["key"], {"one": pc.scalar(1)})
    made = program.process_sides([[], []], {}, CONTEXT)
    assert (made.output, made.retracted) == (None, None)
    none = program.process_sides([rows(), rows()], {}, CONTEXT)
    assert none.output is not None
    assert (none.output.num_rows, none.output.schema) == (0, program.output_schema)


def test_what_others_ask_is_what_the_inner_program_says() -> None:
    program = SelectionProgram.projected(Rows(), ["key"], {"time": pc.field("at"), "later": pc.field("at")})
    assert program.event_time_columns == ("time", "later")
    assert (program.emits, program.watermark_lag_us) == ("updates", 7)
    assert SelectionProgram.projected(Rows(), ["key"], {}).event_time_columns == ()
    assert SelectionProgram.filtered(Rows(), pc.field("key") == "a").event_time_columns == ("at",)
    inner = AggregateProgram.bind(SCHEMA, ["key"], {"rows": count()})
    outer = SelectionProgram.filtered(inner, pc.field("rows") > 1)
    for name in ("key_columns", "input_columns", "wants_hash", "readings", "tables", "window", "closes_windows"):
        assert getattr(outer, name) == getattr(inner, name)
    assert (outer.acts_on_watermark, outer.acts_on_time) == (inner.acts_on_watermark, inner.acts_on_time)


def test_every_question_to_an_operator_is_answered_by_the_inner_program() -> None:
    asked = {name for name, member in vars(OperatorProgram).items() if isinstance(member, property)}
    assert asked - set(vars(SelectionProgram)) == {"columns_handed_on"}  # It follows from the output's schema.


def test_the_number_of_a_checkpoint_is_handed_on_and_nothing_is_computed_from_it() -> None:
    inner = AggregateProgram.bind(SCHEMA, ["key"], {"rows": count()})
    chosen = SelectionProgram.projected(inner, ["key", "checkpoint_id"], {"twice": pc.field("rows") + pc.field("rows")})
    assert chosen.output_schema.field("checkpoint_id") == inner.output_schema.field("checkpoint_id")
    assert chosen.columns_handed_on.names == ["key", "twice"]
    with pytest.raises(InvalidInputError, match="No match"):
        SelectionProgram.projected(inner, ["key"], {"batch": pc.field("checkpoint_id")})
    with pytest.raises(InvalidInputError, match="No match"):
        SelectionProgram.filtered(inner, pc.field("checkpoint_id") > 1)


def test_selections_stand_behind_selections_and_survive_another_process() -> None:
    first = SelectionProgram.projected(Rows(), [], {"double": pc.add(pc.field("total"), pc.field("total"))})
    second = pickle.loads(pickle.dumps(SelectionProgram.filtered(first, pc.field("double") == 14)))
    made = second.process_sides([COME, []], {}, CONTEXT)
    assert made.output.to_pylist() == [{"double": 14}]


def test_another_selection_is_another_program() -> None:
    definitions = [
        Rows().definition,
        SelectionProgram.filtered(Rows(), pc.field("total") > 5).definition,
        SelectionProgram.filtered(Rows(), pc.field("total") > 6).definition,
        SelectionProgram.projected(Rows(), ["total"], {}).definition,
        SelectionProgram.projected(Rows(), [], {"total": pc.field("number")}).definition,
    ]
    assert len(set(definitions)) == len(definitions)
    assert SelectionProgram.filtered(Rows(), pc.field("total") > 5).definition == definitions[1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SelectionProgram.filtered(Rows(), "total > 5"), "'total > 5' is not an Arrow expression"),
        (
            lambda: SelectionProgram.filtered(Rows(), pc.field("totl") > 5),
            "cannot be computed: No match.*the columns are",
        ),
        (lambda: SelectionProgram.filtered(Rows(), pc.field("total")), "expected a boolean, got int64"),
        (lambda: SelectionProgram.filtered(Rows(), pc.field("total") > "x"), "cannot be computed"),
        (lambda: SelectionProgram.projected(Rows(), [], {}), "expected one or more columns"),
        (lambda: SelectionProgram.projected(Rows(), ["key", "key"], {}), "expected one or more columns"),
        (lambda: SelectionProgram.projected(Rows(), ["key"], {"key": pc.scalar(1)}), "of different names"),
        (lambda: SelectionProgram.projected(Rows(), ["kee"], {}), "kee"),
        (lambda: SelectionProgram.projected(Rows(), [], {"x": 1}), "1 is not an Arrow expression"),
    ],
)
def test_bad_selections_are_refused_before_anything_runs(make, message: str) -> None:
    with pytest.raises(InvalidInputError, match=f"(?is){message}"):
        make()
