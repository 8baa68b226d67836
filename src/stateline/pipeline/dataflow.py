"""How rows move through the graph of a pipeline in one micro-batch: what each task runs, and what it sends where.

Level after level, each a shuffle of parcels and one task for each subtask of each operator of the level. Pure: an
engine moves the parcels. On Spark that is one job; :func:`run_in_process` does it in this process.

- **Rows of an input** go straight to the operators that read them, by a shuffle of Spark's own, where a graph
  :attr:`~stateline.pipeline.graph.Graph.is_direct`. Else :meth:`Dataflow.sorted_by_reader` makes parcels of them.
- **Results** of subtasks travel with the parcels, so that the driver gets them from the last level.
- **One attempt of each subtask counts, for its result and for its rows.** An engine may run a task again whose output
  was lost, while some of its readers have read the first attempt's rows. So each subtask says whose rows it has read,
  of which attempt, and :func:`is_consistent` tells a batch that must be computed once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from stateline.errors import InternalError
from stateline.key_groups import hash_columns
from stateline.pipeline.event_time import EVENT_TIME_COLUMN, EventTimeWatch
from stateline.pipeline.graph import OperatorPlan, Reader
from stateline.pipeline.messages import SubtaskInput, SubtaskResult
from stateline.pipeline.operators.api import HASH_COLUMN, WEIGHT_COLUMN, OperatorProgram
from stateline.pipeline.parcels import Parcel, read_rows, split_by_subtask
from stateline.pipeline.plan import PipelinePlan
from stateline.pipeline.subtask import SubtaskOutput, TaskResources, run_operator
from stateline.pipeline.windows import in_windows

__all__ = ["Dataflow", "decode_result", "inputs_of_level", "is_consistent", "run_in_process"]

_ENCODER: Final = msgspec.msgpack.Encoder()


@dataclass(frozen=True)
class Dataflow:
    """The tasks of a pipeline.

    Attributes:
        plan: The pipeline.
        programs: What each operator computes, by name.
    """

    plan: PipelinePlan
    programs: Mapping[str, OperatorProgram]

    @cached_property
    def levels(self) -> tuple[tuple[OperatorPlan, ...], ...]:
        """See :attr:`stateline.pipeline.graph.Graph.levels`."""
        return self.plan.graph.levels

    def tasks_of_level(self, level: int) -> int:
        """How many there are."""
        return len(self.levels[level]) * self.plan.parallelism

    def columns_read(self, name: str) -> tuple[str, ...]:
        """The columns of an input that operators need."""
        needed: dict[str, None] = {}
        for reader in self.plan.graph.readers_of("input", name):
            operator = reader.operator
            found = operator.columns_of_side(reader.side)
            if operator.window is not None:
                found = (*(column for column in found if column != operator.key_columns[-1]), operator.window.column)
            watermark = self.plan.graph.watermark_read_by(operator.name, reader.side)
            needed |= dict.fromkeys((*found, *(() if watermark is None else (watermark.column,))))
        return tuple(needed)

    def sorted_by_reader(self, name: str, batches: Iterable[pa.RecordBatch]) -> Iterator[Parcel]:
        """Rows of an input, which have :meth:`columns_read`, as parcels for the operators that read it."""
        readers = self.plan.graph.readers_of("input", name)
        for batch in batches:
            for reader in readers:
                watermark = self.plan.graph.watermark_read_by(reader.operator.name, reader.side)
                rows = batch
                if watermark is not None and EventTimeWatch(watermark, reader.reading.columns).needs_column:
                    rows = rows.append_column(EVENT_TIME_COLUMN, rows.column(watermark.column))
                yield from self._addressed(reader, rows)

    def run(
        self,
        level: int,
        task: int,
        parcels: Iterable[Parcel],
        inputs: Sequence[SubtaskInput],
        resources: Callable[[str], TaskResources],
    ) -> Iterator[Parcel]:
        """Runs one task: hands on what is for others, then what its subtask makes, and its result.

        Args:
            level: Of the task.
            task: Its number in the level.
            parcels: What was sent to it.
            inputs: What the driver tells the subtasks of the level, in the order of its tasks.
            resources: Gives an operator its stores.
        """
        operator = self.levels[level][task // self.plan.parallelism]
        sides = {Reader(operator, side).label: side for side in range(len(operator.readings))}
        mine: list[list[Parcel]] = [[] for _ in sides]
        attempts: dict[str, str] = {}
        for parcel in parcels:
            side = sides.get(parcel.reader)
            if side is None:
                yield parcel
                continue
            mine[side].append(parcel)
            if attempts.setdefault(parcel.sender, parcel.attempt) != parcel.attempt:
                raise InternalError("got the rows of two attempts", operation="run_batch", subject=parcel.sender)
        attempts.pop("", None)
        yield from self.run_subtask(
            inputs[task], [_in_order(side) for side in mine], resources(operator.name), attempts
        )

    def run_subtask(
        self,
        given: SubtaskInput,
        sides: Sequence[Iterable[pa.RecordBatch]],
        resources: TaskResources,
        received: Mapping[str, str],
    ) -> Iterator[Parcel]:
        """Runs one subtask over its rows; see :meth:`run`."""
        output = run_operator(resources, self.plan, self.programs[given.operator], given, *sides)
        attempt = resources.environment.ids.new_id()
        sender = f"{given.operator}/{given.subtask}"
        for reader, rows in self._for_readers(given, output):
            sent = set()
            for batch in rows:
                for parcel in self._addressed(reader, batch, sender, attempt):
                    sent.add(parcel.partition)
                    yield parcel
            for task in self._tasks_of(reader):  # The others learn which attempt had nothing for them.
                if task not in sent:
                    yield Parcel(partition=task, reader=reader.label, sender=sender, attempt=attempt)
        result = msgspec.structs.replace(output.result, attempt=attempt, received=dict(received))
        yield Parcel(partition=given.subtask, content=_ENCODER.encode(result))

    def _for_readers(
        self, given: SubtaskInput, output: SubtaskOutput
    ) -> Iterator[tuple[Reader, Iterable[pa.RecordBatch]]]:
        """What each reader of an operator gets."""
        graph = self.plan.graph
        readers = graph.readers_of("operator", given.operator)
        if readers:
            updates = graph.operator(given.operator).emits == "updates"
            rows = list(_with_weights(output) if updates else _batches(output.rows))
            yield from ((reader, rows) for reader in readers)
        for side, late in enumerate(output.late):
            yield from ((reader, late) for reader in graph.readers_of("late", given.operator, side))

    def _addressed(self, reader: Reader, rows: pa.RecordBatch, sender: str = "", attempt: str = "") -> Iterator[Parcel]:
        """Rows as parcels for the subtasks of a reader."""
        operator, reading = reader.operator, reader.reading
        if operator.window is not None:
            rows = in_windows(rows, operator.window)
        kept = [*operator.columns_of_side(reader.side)]
        kept += [name for name in (EVENT_TIME_COLUMN, WEIGHT_COLUMN) if name in rows.schema.names and name not in kept]
        hashes = hash_columns([rows.column(name) for name in reading.key_columns])
        rows = rows.select(kept).append_column(HASH_COLUMN, pa.array(hashes.view(np.int64)))
        first = self._tasks_of(reader).start
        for subtask, content in split_by_subtask(rows, hashes, self.plan.parallelism, self.plan.max_parallelism):
            yield Parcel(
                partition=first + subtask, reader=reader.label, sender=sender, attempt=attempt, content=content
            )

    def _tasks_of(self, reader: Reader) -> range:
        """The tasks of an operator, among those of its level."""
        for operators in self.levels:
            names = [operator.name for operator in operators]
            if reader.operator.name in names:
                first = names.index(reader.operator.name) * self.plan.parallelism
                return range(first, first + self.plan.parallelism)
        raise InternalError("is in no level", operation="run_batch", subject=f"operator {reader.operator.name!r}")


def run_in_process(
    flow: Dataflow,
    parcels: Iterable[Parcel],
    inputs: Sequence[SubtaskInput],
    resources: Callable[[str, int], TaskResources],
) -> list[SubtaskResult]:
    """Runs all levels here, one task after the other.

    Args:
        flow: The tasks.
        parcels: The rows of all inputs, sorted by reader.
        inputs: What the driver tells the subtasks.
        resources: Gives a subtask of an operator its stores.
    """
    moving = list(parcels)
    for level, operators in enumerate(flow.levels):
        if not operators:
            continue
        count = flow.tasks_of_level(level)
        given = inputs_of_level(flow, level, inputs)
        tasks: list[list[Parcel]] = [[] for _ in range(count)]
        for parcel in moving:
            tasks[parcel.partition % count].append(parcel)
        moving = []
        for number, mine in enumerate(tasks):
            subtask = given[number].subtask
            moving += flow.run(level, number, mine, given, lambda name, subtask=subtask: resources(name, subtask))  # type: ignore[misc]
    return [decode_result(parcel.content) for parcel in moving]


def inputs_of_level(flow: Dataflow, level: int, inputs: Sequence[SubtaskInput]) -> list[SubtaskInput]:
    """What the driver tells the subtasks of a level, in the order of its tasks."""
    order = {operator.name: number for number, operator in enumerate(flow.levels[level])}
    mine = [given for given in inputs if given.operator in order]
    return sorted(mine, key=lambda given: (order[given.operator], given.subtask))


def is_consistent(results: Sequence[SubtaskResult]) -> bool:
    """Whether all rows that subtasks have read are of the attempts whose results these are."""
    attempts = {f"{result.operator}/{result.subtask}": result.attempt for result in results}
    return all(attempts.get(sender) == read for result in results for sender, read in result.received.items())


def decode_result(content: Any) -> SubtaskResult:
    """The result in a parcel to the driver."""
    return msgspec.msgpack.decode(content, type=SubtaskResult)


def _in_order(parcels: list[Parcel]) -> Iterator[pa.RecordBatch]:
    """The rows of parcels by sender, so that an attempt that gets the same rows sees them in the same order."""
    ordered = sorted(parcels, key=lambda parcel: int(parcel.sender.rpartition("/")[2] or 0))
    for parcel in ordered:
        yield from read_rows(parcel.content)


def _batches(rows: pa.Table | None) -> list[pa.RecordBatch]:
    return [] if rows is None else [batch for batch in rows.combine_chunks().to_batches() if batch.num_rows]


def _with_weights(output: SubtaskOutput) -> Iterator[pa.RecordBatch]:
    """What holds no longer, then what does."""
    for weight, rows in ((-1, output.retracted), (1, output.rows)):
        for batch in _batches(rows):
            yield batch.append_column(WEIGHT_COLUMN, pa.array(np.full(batch.num_rows, weight, dtype=np.int8)))
