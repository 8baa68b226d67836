"""One micro-batch as one Spark job: shuffle by key group, then one Python task per subtask.

Facts:
- The subtask is computed in the JVM from ``xxhash64`` of the key, which equals
  :func:`stateline.key_groups.stable_hash`, and the row is sent to exactly that partition: partition ``i`` is subtask
  ``i``, on the host where it was before (``anchor``).
- A partition without rows still runs its task, so that files can roll by age and state can be merged.
- Spark may run a task more than once, at once or later. Each attempt makes its own objects; one result per subtask
  comes back, of an attempt that ended.
- With several operators the job is a union of one shuffle each, and partition ``i`` is subtask ``i mod parallelism``.
  Each shuffle reads the rows of the batch: see ``upstream_state`` where that is not for free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, lru_cache, reduce
from typing import Final

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, functions
from pyspark.sql.types import BinaryType, StructField, StructType

from stateline.blob import BlobStore, open_store
from stateline.changelog.racing import raced
from stateline.changelog.upload_table import RetryPolicy
from stateline.environment import Environment, system_environment
from stateline.errors import InternalError
from stateline.pipeline.event_time import EVENT_TIME_COLUMN, WINDOW_COLUMN, WINDOW_START, EventTimeWatch, WindowPlan
from stateline.pipeline.messages import Batch, SubtaskInput, SubtaskResult
from stateline.pipeline.operators.api import HASH_COLUMN, OperatorProgram
from stateline.pipeline.plan import PipelinePlan
from stateline.pipeline.subtask import TaskResources, run_subtask
from stateline.spark.arrow_types import in_utc
from stateline.spark.initial_state import with_initial_rows
from stateline.spark.job.anchor import Anchor
from stateline.spark.job.local_copies import host_copies
from stateline.spark.job.task_errors import noted, rebuilt
from stateline.spark.job.upstream_state import computed
from stateline.spark.job.worker_process import freeze_imports
from stateline.spark.stream_columns import column_of

__all__ = ["BatchJob", "in_windows", "subtask_expression", "task_resources"]

_RESULT: Final = pa.schema([pa.field("result", pa.binary(), nullable=False)])
_RESULT_TYPE: Final = StructType([StructField("result", BinaryType())])
"""The same for Spark. Not as text: the JVM would be asked what it means, for each batch."""
_ENCODER: Final = msgspec.msgpack.Encoder()
_STORES_MAX: Final = 32
"""Stores that a process keeps open for its next tasks. One that is dropped is given back when no task uses it."""


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
        self._graph = plan.graph
        self._initial = dict(initial or {})
        self._programs = dict(programs)
        self._anchors = {name: Anchor(f"{plan.root_url} {name}", plan.parallelism) for name in programs}

    def __call__(self, batch: Batch[DataFrame], inputs: Sequence[SubtaskInput]) -> list[SubtaskResult]:
        """Runs all subtasks over rows that are :meth:`needed_columns`, and returns one result for each."""
        tasks = {
            name: _TaskFunction(self._plan, program, [given for given in inputs if given.operator == name])
            for name, program in self._programs.items()
        }
        first = any(given.context.checkpoint_id == 0 for given in inputs)
        frames = [
            function.over(self._shuffled(batch.data, name, self._initial.get(name) if first else None))
            for name, function in tasks.items()
        ]
        with rebuilt(), nullcontext() if len(frames) == 1 else computed(batch.data):
            rows = reduce(lambda left, right: left.union(right), frames).collect()
        results = [msgspec.msgpack.decode(bytes(row[0]), type=SubtaskResult) for row in rows]
        return _one_each(inputs, results, tasks)

    def close(self) -> None:
        """Lets go of what Spark keeps for the query. Idempotent."""
        for anchor in self._anchors.values():
            anchor.close()

    def needed_columns(self, rows: DataFrame) -> DataFrame:
        """The rows of a stream with what its operators need of them, and nothing else.

        It belongs to the stream and not to each batch: its source reads no other columns, and a batch has one
        projection less to be planned and computed.
        """
        if len(self._programs) == 1:
            return self._sent(rows, *self._programs)
        needed = {column for program in self._programs.values() for column in program.input_columns}
        needed |= {operator.window.column for operator in self._graph.operators if operator.window is not None}
        needed |= {each.watermark.column for each in self._graph.inputs if each.watermark is not None}
        columns = rows.columns
        own = {column_of(columns, column) for column in needed}
        return rows.selectExpr(*(_quoted(column) for column in columns if column in own))

    def _sent(self, rows: DataFrame, name: str) -> DataFrame:
        """What the tasks of an operator receive."""
        program, window = self._programs[name], self._graph.operator(name).window
        watermark = self._graph.watermark_read_by(name)
        if window is not None:
            rows = in_windows(rows, window)
        known = rows.columns
        columns = [_quoted(own) for own in dict.fromkeys(column_of(known, name) for name in program.input_columns)]
        if program.wants_hash:
            columns.append(f"{_hash(program)} AS {HASH_COLUMN}")
        if watermark is not None and EventTimeWatch(watermark, program.input_columns).needs_column:
            columns.append(f"{_quoted(watermark.column)} AS {EVENT_TIME_COLUMN}")
        return rows.selectExpr(*columns)

    def _shuffled(self, rows: DataFrame, name: str, initial: DataFrame | None) -> DataFrame:
        """What tasks receive, each row in the partition of its subtask; ``rows`` have the :meth:`needed_columns`."""
        plan, program, watermark = self._plan, self._programs[name], self._graph.watermark_read_by(name)
        hashed = HASH_COLUMN if initial is not None or program.wants_hash else _hash(program)
        if initial is not None:
            rows = with_initial_rows(
                rows.selectExpr(*map(_quoted, program.input_columns)),
                initial,
                functions.expr(_hash(program)).alias(HASH_COLUMN),
                event_time=None if watermark is None else watermark.column,
            )
        elif len(self._programs) > 1:
            rows = self._sent(rows, name)
        subtask = subtask_expression(hashed, plan.parallelism, plan.max_parallelism)
        return self._anchors[name].partitioned(rows, subtask)


def _hash(program: OperatorProgram) -> str:
    return f"xxhash64({', '.join(map(_quoted, program.key_columns))})"


def _quoted(column: str) -> str:
    return f"`{column.replace('`', '``')}`"


def in_windows(rows: DataFrame, window: WindowPlan) -> DataFrame:
    """Each row once for every window it is in, beside the window's start. Rows without event time are in none.

    Spark's own expression says which windows these are, so both agree on every border.
    """
    size, slide, start = (f"{value} microseconds" for value in (window.size_us, window.slide_us, window.start_us))
    windows = functions.window(functions.col(_quoted(window.column)), size, slide, start)
    return rows.withColumn(WINDOW_COLUMN, windows).withColumn(WINDOW_START, functions.col(f"{WINDOW_COLUMN}.start"))


def subtask_expression(hashed: str, parallelism: int, max_parallelism: int) -> str:
    """The subtask of a row, as Spark computes it: :func:`key_group_of` and :func:`subtask_for_key_group` in one.

    Text, which the JVM takes in one call. Functions of PySpark would be some fifty for each batch.

    Args:
        hashed: Text of the ``xxhash64`` of the key columns.
        parallelism: Subtasks.
        max_parallelism: Key groups.
    """
    key_group = f"shiftrightunsigned(shiftrightunsigned({hashed}, 32) * {max_parallelism}L, 32)"
    return f"CAST({key_group} * {parallelism}L DIV {max_parallelism}L AS INT)"


class _TaskFunction:
    """What runs in a Python worker: picks the subtask of its partition and runs it."""

    def __init__(self, plan: PipelinePlan, program: OperatorProgram, inputs: Sequence[SubtaskInput]) -> None:
        self._plan = plan
        self._program = program
        self._inputs = [_ENCODER.encode(given) for given in inputs]
        self._columns: list[str] | None = None
        self._spellings: dict[str, int] = {}

    def over(self, rows: DataFrame) -> DataFrame:
        """One row for each partition: the encoded result of its subtask.

        PySpark takes a dot in a column's name for a field of a struct here, so such columns cross by number. What the
        operator reads under another name than the column's own gets that name when it has crossed.
        """
        columns = rows.columns
        found = {name: column_of(columns, name) for name in self._program.input_columns}
        self._spellings = {name: columns.index(own) for name, own in found.items() if name != own}
        if any("." in column or "`" in column for column in columns):
            self._columns = columns
            rows = rows.toDF(*map(str, range(len(columns))))
        return rows.mapInArrow(self, _RESULT_TYPE)

    def run(self, given: SubtaskInput, batches: Iterable[pa.RecordBatch]) -> SubtaskResult:
        """Runs a subtask with the stores of this process."""
        return run_subtask(task_resources(self._plan, given.operator), self._plan, self._program, given, batches)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        if context is None:
            raise InternalError("not inside a Spark task", operation="run_subtask")
        encoded = self._inputs[context.partitionId() % len(self._inputs)]
        with noted():
            result = self.run(msgspec.msgpack.decode(encoded, type=SubtaskInput), in_utc(self._named(batches)))
        freeze_imports()
        yield pa.RecordBatch.from_arrays([pa.array([_ENCODER.encode(result)], pa.binary())], schema=_RESULT)

    def _named(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            named = batch if self._columns is None else batch.rename_columns(self._columns)
            for name, index in self._spellings.items():
                named = named.append_column(name, named.column(index))
            yield named


def _one_each(
    inputs: Sequence[SubtaskInput], results: Sequence[SubtaskResult], functions: Mapping[str, _TaskFunction]
) -> list[SubtaskResult]:
    """One result for each subtask. One that Spark's optimiser dropped for having no input runs here."""
    by_subtask = {(result.operator, result.subtask): result for result in results}
    if len(by_subtask) != len(results):
        raise InternalError("a subtask answered twice", operation="run_batch")
    return [
        by_subtask.get((given.operator, given.subtask)) or functions[given.operator].run(given, ()) for given in inputs
    ]


def task_resources(plan: PipelinePlan, operator: str) -> TaskResources:
    """The stores of this process: opened once, however many tasks it runs."""
    output, root = plan.graph.operator(operator).output, _process_store(plan, plan.root_url, plan.root_options)
    return TaskResources(
        root=root,
        output=None if output is None else _process_store(plan, output.url, output.store_options),
        environment=_process_environment(),
        cache=host_copies(plan, root),
        inline_bytes=plan.subtask_inline_bytes,
    )


@cache
def _process_environment() -> Environment:
    return system_environment()


def _process_store(plan: PipelinePlan, url: str, options: Mapping[str, str]) -> BlobStore:
    return _opened(url, tuple(sorted(options.items())), plan.upload_timeout, plan.max_attempts)


@lru_cache(maxsize=_STORES_MAX)
def _opened(url: str, options: tuple[tuple[str, str], ...], upload_timeout: float, max_attempts: int) -> BlobStore:
    environment = _process_environment()
    store = open_store(url, dict(options), environment)
    return raced(store, RetryPolicy.fixed(max_attempts, upload_timeout, 0), environment)
