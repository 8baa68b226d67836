"""Late rows of an operator as the output of one of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from stateline.errors import InvalidInputError
from stateline.options import parse_choice
from stateline.pipeline.event_time import WINDOW_START
from stateline.pipeline.graph import OperatorPlan, Source
from stateline.pipeline.operators.late_output import LateRowsProgram
from stateline.spark.pipeline import Pipeline

__all__ = ["late_output_of"]

_SIDES = ("left", "right")


def late_output_of(
    pipeline: Pipeline, operator: OperatorPlan, columns: Sequence[pa.Schema], side: str, name: str | None
) -> tuple[Pipeline, OperatorPlan, LateRowsProgram, pa.Schema]:
    """The pipeline with an operator that puts out the late rows of another one, that operator, and its columns.

    See :meth:`~stateline.spark.stream.keyed_stream.PipelineStage.late_rows`.

    Args:
        pipeline: It ends with the operator.
        operator: Whose late rows.
        columns: What it is given on each side.
        side: Which one.
        name: Of the output; ``None`` for one made from the operator's.
    """
    number = _SIDES.index(parse_choice(side, _SIDES, "side"))
    if number >= len(operator.readings) or operator.readings[number].late_by is None:
        raise InvalidInputError(
            "cannot have late rows",
            operation="late_rows",
            subject=f"operator {operator.name!r}, side {side}",
            hint="Rows are late for windows, sessions, joins, deduplication and apply_arrow with a watermark, "
            "unless late_data is keep",
        )
    given = columns[number]
    if operator.window is not None and WINDOW_START not in given.names:
        given = given.append(given.field(operator.window.column).with_name(WINDOW_START))
    program = LateRowsProgram(given, operator.readings[number].key_columns)
    plan = replace(operator, late_columns={**operator.late_columns, number: tuple(program.output_schema.names)})
    reader = OperatorPlan.of(name or f"{operator.name}_late", program, (Source("late", operator.name, number),))
    pipeline = pipeline.with_outputs_of(plan).with_operator(reader, program, None)
    return pipeline, pipeline.plan.graph.operator(reader.name), program, given
