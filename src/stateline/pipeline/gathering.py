"""What the results of all subtasks make of a record: states, files, and rows to be handed over. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stateline.checkpoint import DeliveryState, OperatorState, OutputState
from stateline.errors import InternalError
from stateline.pipeline.messages import SubtaskResult
from stateline.pipeline.plan import PipelinePlan

__all__ = ["gathered"]


def gathered(
    plan: PipelinePlan, output_urls: Mapping[str, str], results: Sequence[SubtaskResult]
) -> tuple[tuple[OperatorState, ...], tuple[OutputState, ...], tuple[DeliveryState, ...]]:
    """The parts of the record that the subtasks' results make, each result used exactly once.

    Args:
        plan: Operators and outputs.
        output_urls: Where the files of each operator lie that writes any.
        results: Of each subtask of each operator.

    Raises:
        InternalError: A result is missing, or there is one too many.
    """
    states = []
    outputs = []
    deliveries = []
    for operator in plan.graph.operators:
        mine = sorted((item for item in results if item.operator == operator.name), key=lambda item: item.subtask)
        if [item.subtask for item in mine] != list(range(plan.parallelism)):
            raise InternalError(
                f"expected one result of each of {plan.parallelism} subtasks, got {[item.subtask for item in mine]}",
                operation="run_batch",
                subject=f"operator {operator.name}",
            )
        states += [
            OperatorState(
                name=operator.state_name(table),
                schema=schema,
                definition=operator.definition,
                subtasks=tuple(item.states[table] for item in mine),
            )
            for table, schema in operator.tables.items()
        ]
        if operator.output is not None:
            outputs.append(
                OutputState(
                    operator=operator.name,
                    url=output_urls[operator.name],
                    finished=tuple(file for item in mine for file in item.finished),
                    open=tuple(file for item in mine for file in item.open),
                )
            )
        rows = tuple(item.delivery for item in mine if item.delivery is not None)
        if rows:
            deliveries.append(DeliveryState(operator=operator.name, rows=rows))
    return tuple(states), tuple(outputs), tuple(deliveries)
