"""One micro-batch as one Spark job: shuffle by key group, then one Python task per subtask.

Owns the way from a DataFrame to tasks and back. Does not own what a task does (``task``) or when (``coordinator``).

Facts:
- The subtask is computed in the JVM from ``xxhash64`` of the key, which equals
  :func:`stateline.key_groups.stable_hash`, and
  ``repartitionById`` (Spark 4.1) sends the row to exactly that partition: partition ``i`` is subtask ``i``.
- A partition without rows still runs its task, so that files can roll by age and state can be merged.
- Spark may run a task more than once, at once or later. Each attempt makes its own objects; one result per subtask
  comes back, of an attempt that ended.
- With several operators the job is a union of one shuffle each, and partition ``i`` is subtask ``i mod parallelism``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, reduce
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from stateline.blob import BlobStore, open_store
from stateline.environment import Environment, system_environment
from stateline.errors import InternalError
from stateline.spark.coordinator import Batch, SubtaskResult, SubtaskTask
from stateline.spark.event_time import EVENT_TIME_COLUMN, WINDOW_START, EventTimeWatch, WindowPlan
from stateline.spark.initial_state import SUBTASK_COLUMN, with_initial_rows
from stateline.spark.plan import OperatorPlan, PipelinePlan
from stateline.spark.task import HASH_COLUMN, OperatorProgram, TaskContext, run_subtask
from stateline.state.run_cache import RunCache

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["BatchJob", "in_windows", "subtask_expression", "task_context"]

_RESULT: Final = pa.schema([pa.field("result", pa.binary(), nullable=False)])
_ENCODER: Final = msgspec.json.Encoder()


class BatchJob:
    """Runs the subtasks of a batch on Spark. Called by the coordinator, once per batch.

    Args:
        plan: The pipeline.
        programs: What each operator computes, by name.
        initial: Rows that an operator takes with the first batch of a new root, by name.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        programs: Mapping[str, OperatorProgram],
        initial: Mapping[str, DataFrame] | None = None,
    ) -> None:
        self._plan = plan
        self._initial = dict(initial or {})
        self._programs = dict(programs)
        self._operators = {operator.name: operator for operator in plan.operators}

    def __call__(self, batch: Batch[DataFrame], tasks: Sequence[SubtaskTask]) -> list[SubtaskResult]:
        """Runs all ``tasks`` and returns one result for each."""
        functions = {
            name: _TaskFunction(
                self._plan, self._operators[name], program, [task for task in tasks if task.operator == name]
            )
            for name, program in self._programs.items()
        }
        first = any(task.checkpoint_id == 0 for task in tasks)
        frames = [
            self._shuffled(
                batch.data, self._operators[name], self._programs[name], self._initial.get(name) if first else None
            ).mapInArrow(function, "result binary")
            for name, function in functions.items()
        ]
        rows = reduce(lambda left, right: left.union(right), frames).collect()
        results = [msgspec.json.decode(bytes(row[0]), type=SubtaskResult) for row in rows]
        return _one_each(tasks, results, functions)

    def _shuffled(
        self, rows: DataFrame, operator: OperatorPlan, program: OperatorProgram, initial: DataFrame | None
    ) -> DataFrame:
        """The columns that the operator needs, in the partition of the subtask that owns the key."""
        from pyspark.sql import functions  # noqa: PLC0415 - this module must load without pyspark

        if operator.window is not None:
            rows = in_windows(rows, operator.window)
        hashed = functions.xxhash64(*[functions.col(f"`{column}`") for column in program.key_columns])
        subtask = subtask_expression(hashed, self._plan.parallelism, self._plan.max_parallelism)
        if initial is not None:
            return (
                with_initial_rows(
                    rows.select(*program.input_columns),
                    initial,
                    hashed.alias(HASH_COLUMN),
                    subtask,
                    event_time=None if self._plan.watermark is None else self._plan.watermark.column,
                )
                .repartitionById(self._plan.parallelism, SUBTASK_COLUMN)
                .drop(SUBTASK_COLUMN)
            )
        columns = [functions.col(f"`{column}`") for column in program.input_columns]
        if program.wants_hash:
            columns.append(hashed.alias(HASH_COLUMN))
        watermark = self._plan.watermark
        if watermark is not None and EventTimeWatch(watermark, program.input_columns).needs_column:
            columns.append(functions.col(f"`{watermark.column}`").alias(EVENT_TIME_COLUMN))
        return (
            rows.select(*columns, subtask.alias(SUBTASK_COLUMN))
            .repartitionById(self._plan.parallelism, SUBTASK_COLUMN)
            .drop(SUBTASK_COLUMN)
        )


def in_windows(rows: DataFrame, window: WindowPlan) -> DataFrame:
    """Each row once for every window it is in, beside the window's start. Rows without event time are in none.

    Spark's own expression says which windows these are, so both agree on every border.
    """
    from pyspark.sql import functions  # noqa: PLC0415

    size, slide, start = (f"{value} microseconds" for value in (window.size_us, window.slide_us, window.start_us))
    windows = functions.window(functions.col(f"`{window.column}`"), size, slide, start)
    return rows.withColumn("__window", windows).withColumn(WINDOW_START, functions.col("__window.start"))


def subtask_expression(hashed: Column, parallelism: int, max_parallelism: int) -> Column:
    """The subtask of a row, as Spark computes it: :func:`key_group_of` and :func:`subtask_for_key_group` in one.

    Args:
        hashed: ``xxhash64`` of the key columns.
        parallelism: Subtasks.
        max_parallelism: Key groups.
    """
    from pyspark.sql import functions  # noqa: PLC0415

    key_group = functions.shiftrightunsigned(
        functions.shiftrightunsigned(hashed, 32) * functions.lit(max_parallelism), 32
    )
    return functions.floor(key_group * functions.lit(parallelism) / functions.lit(max_parallelism)).cast("int")


class _TaskFunction:
    """What runs in a Python worker: picks the subtask of its partition and runs it."""

    def __init__(
        self, plan: PipelinePlan, operator: OperatorPlan, program: OperatorProgram, tasks: Sequence[SubtaskTask]
    ) -> None:
        self._plan = plan
        self._operator = operator
        self._program = program
        self._tasks = [_ENCODER.encode(task) for task in tasks]

    def run(self, task: SubtaskTask, batches: Iterable[pa.RecordBatch]) -> SubtaskResult:
        """Runs a subtask with the stores of this process."""
        context = task_context(self._plan, self._operator)
        plan = self._plan
        return run_subtask(context, self._operator, self._program, task, batches, plan.max_parallelism, plan.watermark)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415

        from stateline.spark.arrow_types import in_utc  # noqa: PLC0415

        context = TaskContext.get()
        if context is None:
            raise InternalError("not inside a Spark task", operation="run_subtask")
        encoded = self._tasks[context.partitionId() % len(self._tasks)]
        result = self.run(msgspec.json.decode(encoded, type=SubtaskTask), in_utc(batches))
        yield pa.RecordBatch.from_arrays([pa.array([_ENCODER.encode(result)], pa.binary())], schema=_RESULT)


def _one_each(
    tasks: Sequence[SubtaskTask], results: Sequence[SubtaskResult], functions: Mapping[str, _TaskFunction]
) -> list[SubtaskResult]:
    """One result per task. A subtask that Spark's optimiser dropped for having no input runs here."""
    by_task = {(result.operator, result.subtask): result for result in results}
    if len(by_task) != len(results):
        raise InternalError("a subtask answered twice", operation="run_batch")
    return [by_task.get((task.operator, task.subtask)) or functions[task.operator].run(task, ()) for task in tasks]


def task_context(plan: PipelinePlan, operator: OperatorPlan) -> TaskContext:
    """The stores of this process: opened once, however many tasks it runs."""
    output = operator.output
    return TaskContext(
        root=_process_store(plan.root_url, tuple(sorted(plan.root_options.items()))),
        output=None if output is None else _process_store(output.url, tuple(sorted(output.store_options.items()))),
        environment=_process_environment(),
        cache=_process_cache(plan.local_copies, plan.local_copies_bytes) if plan.local_copies else None,
    )


@cache
def _process_environment() -> Environment:
    return system_environment()


@cache
def _process_cache(folder: str, bytes_max: int) -> RunCache:
    return RunCache(folder, bytes_max, _process_environment())


@cache
def _process_store(url: str, options: tuple[tuple[str, str], ...]) -> BlobStore:
    return open_store(url, dict(options), _process_environment())
