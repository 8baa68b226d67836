"""What the results of all subtasks of a batch make together. Pure.

Owns the parts of a record that come from results, and their sums. Does not own the record (``coordinator``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stateline.checkpoint import DeliveryState, OperatorState, OutputState
from stateline.errors import InternalError
from stateline.pipeline.plan import PipelinePlan

if TYPE_CHECKING:
    from stateline.pipeline.coordinator import SubtaskResult

__all__ = ["gathered", "max_event_time", "summed_metrics"]


def gathered(
    results: Sequence[SubtaskResult], plan: PipelinePlan, output_urls: Mapping[str, str]
) -> tuple[tuple[OperatorState, ...], tuple[OutputState, ...], tuple[DeliveryState, ...]]:
    """The parts of the record that the subtasks' results make, each result used exactly once.

    Raises:
        InternalError: A result is missing, or there is one too many.
    """
    operators = []
    outputs = []
    deliveries = []
    for operator in plan.operators:
        mine = sorted((item for item in results if item.operator == operator.name), key=lambda item: item.subtask)
        if [item.subtask for item in mine] != list(range(plan.parallelism)):
            raise InternalError(
                f"got results of subtasks {[item.subtask for item in mine]}, expected each of {plan.parallelism} once",
                operation="run_batch",
                subject=f"operator {operator.name}",
            )
        operators += [
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
    return tuple(operators), tuple(outputs), tuple(deliveries)


def summed_metrics(results: Sequence[SubtaskResult]) -> dict[str, float]:
    """Sums of the subtasks' metrics by name."""
    totals: dict[str, float] = {}
    for result in results:
        for name, value in result.metrics.items():
            totals[name] = totals.get(name, 0) + value
    return totals


def max_event_time(results: Sequence[SubtaskResult]) -> int | None:
    """The greatest event time that any subtask saw, microseconds since the epoch; ``None`` for none."""
    times = [result.max_event_time_us for result in results if result.max_event_time_us is not None]
    return max(times, default=None)
