"""How far event time has come: the watermark of each input, and what follows from them for each operator. Pure.

- The watermark of an input after a batch is the greatest event time seen so far, in whole milliseconds, less the delay.
  It never goes back.
- The watermark of an operator is the least of what it reads: of inputs, and of the outputs of operators, which may
  stay behind their own (``watermark_lag_us``). Inputs without a watermark, and late rows, do not count; an input that
  has not seen an event yet holds the operator back.
- Batch ``n`` closes what the watermarks after batch ``n - 1`` have passed, at its end. So what batch ``n`` may still
  change is everything that the batch before did not close: **late is what lies at or below the watermark that the batch
  before worked with**. Nobody is told that a window is final and then sees it change.
- So a record keeps two numbers for each input (:class:`stateline.checkpoint.InputState`). Both survive restarts at any
  parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from msgspec.structs import replace

from stateline.checkpoint import Checkpoint, InputState
from stateline.pipeline.event_time import WatermarkPlan
from stateline.pipeline.graph import Graph, Input, Source

__all__ = ["OperatorWatermark", "Watermarks"]

_MILLISECOND: Final = 1_000


class OperatorWatermark(NamedTuple):
    """What an operator works with, microseconds since the epoch; ``None`` before there is a watermark.

    Attributes:
        current_us: In the next batch.
        late_us: In the newest batch: everything at or below it is closed.
    """

    current_us: int | None
    late_us: int | None


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The watermarks of a pipeline after its newest record.

    Args:
        graph: The pipeline.
        record: The newest record; ``None`` before the first one.
    """

    _graph: Graph
    _states: Mapping[str, InputState]

    @classmethod
    def of(cls, graph: Graph, record: Checkpoint | None) -> Self:
        """What a record says of the inputs of a graph."""
        states = {}
        for state in () if record is None else record.inputs:
            found = graph.find_input(state.name)
            name = state.name if found is None else found.name
            states[name] = replace(state, name=name)
        return cls(graph, states)

    def of_operator(self, name: str) -> OperatorWatermark:
        """What an operator works with in the next batch."""
        read = [each for source in self._graph.operator(name).sources if (each := self._of_source(source)) is not None]
        return OperatorWatermark(_least([each.current_us for each in read]), _least([each.late_us for each in read]))

    def _of_source(self, source: Source) -> OperatorWatermark | None:
        """The watermark of what is read; ``None`` where there is none and never will be."""
        if source.kind == "late":
            return None
        if source.kind == "input":
            state = self._states.get(source.name)
            if state is not None:
                return OperatorWatermark(state.watermark_us, state.late_watermark_us)
            found = self._graph.find_input(source.name)
            return None if found is None or found.watermark is None else OperatorWatermark(None, None)
        if not any(each.watermark or each.name in self._states for each in self._graph.inputs_reaching(source.name)):
            return None
        lag_us = self._graph.operator(source.name).watermark_lag_us
        current_us, late_us = self.of_operator(source.name)
        return OperatorWatermark(
            None if current_us is None else current_us - lag_us, None if late_us is None else late_us - lag_us
        )

    def wait_to_close(self) -> bool:
        """Whether a watermark has passed something that no batch has closed yet, and an operator acts on that."""
        for operator in self._graph.operators:
            if operator.acts_on_watermark:
                current_us, late_us = self.of_operator(operator.name)
                if current_us != late_us:
                    return True
        return False

    def after(self, max_event_times_us: Mapping[str, int]) -> tuple[InputState, ...]:
        """What the record of the next batch says.

        Args:
            max_event_times_us: The greatest event time of the batch by input, microseconds since the epoch.

        Returns:
            For each input a watermark that is nowhere less than the one before. What is stored of an input that has
            none any more stays as it is.
        """
        planned = {
            each.name: self._advanced(each, each.watermark, max_event_times_us.get(each.name))
            for each in self._graph.inputs
            if each.watermark is not None
        }
        return tuple((dict(self._states) | planned).values())

    def _advanced(self, source: Input, watermark: WatermarkPlan, max_event_time_us: int | None) -> InputState:
        state = self._states.get(source.name)
        before = current = None if state is None else state.watermark_us
        if max_event_time_us is not None:
            reached = max_event_time_us // _MILLISECOND * _MILLISECOND - watermark.delay_us
            current = reached if current is None else max(current, reached)
        return InputState(name=source.name, column=watermark.column, watermark_us=current, late_watermark_us=before)


def _least(watermarks_us: list[int | None]) -> int | None:
    known = [each for each in watermarks_us if each is not None]
    return min(known) if known and len(known) == len(watermarks_us) else None
