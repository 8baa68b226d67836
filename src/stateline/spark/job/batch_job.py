"""One micro-batch as one Spark job: shuffle by key group, then one Python task per subtask.

Facts:
- The subtask is computed in the JVM from ``xxhash64`` of the key, which equals
  :func:`stateline.key_groups.stable_hash`, and the row is sent to exactly that partition: partition ``i`` is subtask
  ``i``, on the host where it was before (``anchor``).
- A partition without rows still runs its task, so that files can roll by age and state can be merged.
- Operators behind operators, and joins, are further levels of the same job (``dataflow``): parcels in place of rows.
- Spark may run a task more than once, at once or later. Each attempt makes its own objects; one result per subtask
  comes back, of an attempt that ended.
- With several operators the job is a union of one shuffle each, and partition ``i`` is subtask ``i mod parallelism``.
  Each shuffle reads the rows of the batch: see ``upstream_state`` where that is not for free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, lru_cache, reduce
from typing import Final

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, functions
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from stateline.blob import BlobStore, open_store
from stateline.changelog.racing import raced
from stateline.changelog.upload_table import RetryPolicy
from stateline.environment import Environment, system_environment
from stateline.errors import InternalError, InvalidInputError
from stateline.pipeline.dataflow import Dataflow, decode_result, inputs_of_level, is_consistent, run_in_process
from stateline.pipeline.event_time import EVENT_TIME_COLUMN, WINDOW_COLUMN, WINDOW_START, EventTimeWatch, WindowPlan
from stateline.pipeline.lookups import LookupRoot
from stateline.pipeline.messages import Batch, SubtaskInput, SubtaskResult
from stateline.pipeline.operators.api import HASH_COLUMN, OperatorProgram
from stateline.pipeline.parcels import decode_parcels, encode_parcels
from stateline.pipeline.plan import PipelinePlan
from stateline.pipeline.subtask import TaskResources, run_subtask
from stateline.spark.api_mode import in_session
from stateline.spark.arrow_types import in_utc
from stateline.spark.columns.initial_state import with_initial_rows
from stateline.spark.columns.names import column_of
from stateline.spark.job.anchor import Anchor
from stateline.spark.job.combining import Combiner, shuffled_into
from stateline.spark.job.local_copies import host_copies
from stateline.spark.job.task_errors import noted, rebuilt
from stateline.spark.job.upstream_state import computed
from stateline.spark.job.worker_process import freeze_imports

__all__ = ["BatchJob", "in_windows", "subtask_expression", "task_resources"]

_RESULT: Final = pa.schema([pa.field("result", pa.binary(), nullable=False)])
_RESULT_TYPE: Final = StructType([StructField("result", BinaryType())])
"""The same for Spark. Not as text: the JVM would be asked what it means, for each batch."""
_PARCELS_TYPE: Final = StructType(
    [
        StructField("partition", IntegerType()),
        *(StructField(name, StringType()) for name in ("reader", "sender", "attempt")),
        StructField("content", BinaryType()),
    ]
)
_CONSISTENT_ATTEMPTS: Final = 3
"""How often a batch is computed whose subtasks have read different attempts of each other."""
_ENCODER: Final = msgspec.msgpack.Encoder()
_STORES_MAX: Final = 32
"""Stores that a process keeps open for its next tasks. One that is dropped is given back when no task uses it."""


class BatchJob:
    """Runs the subtasks of a batch on Spark. Called by the coordinator, once per batch.

    Args:
        plan: The pipeline.
        programs: What each operator computes, by name.
        initial: Rows that an operator takes with the first batch of a new root, by name.
        upstream_state: Whether operators of Spark's with state stand in front; ``None`` to find out, in a classic
            session.

    Raises:
        InvalidInputError: There are such rows, and several operators or streams are joined.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        programs: Mapping[str, OperatorProgram],
        initial: Mapping[str, DataFrame] | None = None,
        upstream_state: bool | None = None,
    ) -> None:
        self.upstream_state = upstream_state
        self._plan = plan
        self._graph = plan.graph
        self._flow = Dataflow(plan, dict(programs))
        self._initial = dict(initial or {})
        self._programs = dict(programs)
        self._is_direct = plan.graph.is_direct
        if self._initial and not self._is_direct:
            raise InvalidInputError(
                "cannot go with several streams in one pipeline",
                operation="start",
                subject=f"initial_state of {sorted(self._initial)}",
                hint="Give the processor a pipeline of its own",
            )
        levels = self._flow.levels
        first = [operator.name for operator in levels[0]] if levels and self._is_direct else []
        self._anchors = {name: Anchor(f"{plan.root_url} {name}", plan.parallelism) for name in first}
        self._combiners = {name: self._combiner(name) for name in first}
        self._level_anchors = {
            level: Anchor(f"{plan.root_url} level {level}", self._flow.tasks_of_level(level))
            for level in range(1, len(levels))
        }

    def __call__(self, batch: Batch[DataFrame], inputs: Sequence[SubtaskInput]) -> list[SubtaskResult]:
        """Runs all subtasks over rows that are :meth:`needed_columns`, and returns one result for each.

        Raises:
            InternalError: Tasks were run again so often that their readers never agreed on their attempts.
        """
        for _ in range(_CONSISTENT_ATTEMPTS):
            results = self._run(batch, inputs)
            if is_consistent(results):
                return results
        raise InternalError(
            "tasks whose output was lost were run again while others had read it",
            operation="run_batch",
            subject=f"batch {batch.batch_id}",
            hint="Executors are lost again and again: see why in Spark's log. The next start computes the batch anew",
        )

    def _run(self, batch: Batch[DataFrame], inputs: Sequence[SubtaskInput]) -> list[SubtaskResult]:
        levels = self._flow.levels
        is_last = len(levels) == 1
        tasks: dict[str, _TaskFunction] = {}
        combined = set()
        frames = [batch.data]
        if self._is_direct:
            first = any(given.context.checkpoint_id == 0 for given in inputs)
            for operator in levels[0]:
                name = operator.name
                given = [each for each in inputs if each.operator == name]
                tasks[name] = _TaskFunction(self._flow, self._programs[name], given, is_last=is_last)
            initial = self._initial if first else {}
            combined = {name for name in tasks if name not in initial and self._combiners[name].is_due}
            frames = [
                function.over(
                    self._shuffled(batch.data, name, initial.get(name), combined=name in combined),
                    self._programs[name].key_columns
                    if name in combined
                    else self._graph.operator(name).columns_of_side(0),
                )
                for name, function in tasks.items()
            ]
        rows = reduce(lambda left, right: left.union(right), frames)
        for level in range(1, len(levels)):
            task = _LevelTask(self._flow, level, inputs_of_level(self._flow, level, inputs))
            rows = task.over(self._level_anchors[level])(rows)
        shuffles = shuffled_into(batch.data.sparkSession, self._plan.parallelism) if combined else nullcontext()
        with rebuilt(), shuffles, nullcontext() if len(frames) == 1 else computed(batch.data, self.upstream_state):
            collected = rows.collect()
        results = self._complete(inputs, [decode_result(bytes(row[-1])) for row in collected])
        for name, combiner in self._combiners.items():
            combiner.learn([result for result in results if result.operator == name])
        return results

    def _complete(self, inputs: Sequence[SubtaskInput], results: list[SubtaskResult]) -> list[SubtaskResult]:
        """One result for each subtask. Those that Spark's optimiser dropped for having no input run here."""
        answered = {(result.operator, result.subtask) for result in results}
        if len(answered) != len(results):
            raise InternalError("a subtask answered twice", operation="run_batch")
        missing = [given for given in inputs if (given.operator, given.subtask) not in answered]
        if not missing:
            return results
        if len(self._flow.levels) > 1:
            return run_in_process(self._flow, (), inputs, lambda name, _: task_resources(self._plan, name))
        return results + [
            run_subtask(
                task_resources(self._plan, given.operator), self._plan, self._programs[given.operator], given, ()
            )
            for given in missing
        ]

    def close(self) -> None:
        """Lets go of what Spark keeps for the query. Idempotent."""
        for anchor in (*self._anchors.values(), *self._level_anchors.values()):
            anchor.close()

    def needed_columns(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        """One stream of what the operators need of their streams, and nothing else.

        It belongs to the stream and not to each batch: its source reads no other columns, and a batch has one
        projection less to be planned and computed.

        Args:
            frames: The streams by the names of the inputs.
        """
        if not self._is_direct:
            sorted_rows = (_Sorting(self._flow, name).over(frame) for name, frame in frames.items())
            return reduce(lambda left, right: left.union(right), sorted_rows)
        ((name, rows),) = frames.items()
        operators = self._flow.levels[0]
        if len(operators) == 1:
            return self._sent(rows, operators[0].name)
        columns = rows.columns
        own = {column_of(columns, column) for column in self._flow.columns_read(name)}
        return rows.selectExpr(*(_quoted(column) for column in columns if column in own))

    def _sent(self, rows: DataFrame, name: str) -> DataFrame:
        """What the tasks of an operator receive."""
        operator, program = self._graph.operator(name), self._programs[name]
        watermark = self._graph.watermark_read_by(name)
        if operator.window is not None:
            rows = in_windows(rows, operator.window)
        known = rows.columns
        read = operator.columns_of_side(0)
        columns = [_quoted(own) for own in dict.fromkeys(column_of(known, name) for name in read)]
        if program.wants_hash:
            columns.append(f"{_hash(program)} AS {HASH_COLUMN}")
        if watermark is not None and EventTimeWatch(watermark, program.readings[0].columns).needs_column:
            columns.append(f"{_quoted(watermark.column)} AS {EVENT_TIME_COLUMN}")
        return rows.selectExpr(*columns)

    def _combiner(self, name: str) -> Combiner:
        program = self._programs[name]
        watermark = self._graph.watermark_read_by(name)
        wants_rows = bool(self._graph.operator(name).late_columns)
        return Combiner(program, watermark, _hash(program), "never" if wants_rows else self._plan.combine)

    def _shuffled(self, rows: DataFrame, name: str, initial: DataFrame | None, *, combined: bool) -> DataFrame:
        """What tasks receive, each row in the partition of its subtask; ``rows`` have the :meth:`needed_columns`."""
        plan, program, watermark = self._plan, self._programs[name], self._graph.watermark_read_by(name)
        if initial is not None:
            initial = in_session(initial, rows.sparkSession)
        hashed = HASH_COLUMN if initial is not None or program.wants_hash else _hash(program)
        if initial is not None:
            rows = with_initial_rows(
                rows.selectExpr(*map(_quoted, program.input_columns)),
                initial,
                functions.expr(_hash(program)).alias(HASH_COLUMN),
                event_time=None if watermark is None else watermark.column,
            )
        elif len(self._anchors) > 1:
            rows = self._sent(rows, name)
        if combined:
            rows = self._combiners[name].combined(rows)
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


class _CrossingColumns:
    """Columns on their way into Python, and the names that an operator knows them by.

    PySpark takes a dot in a column's name for a field of a struct there, so such columns cross by number. What is read
    under another name than the column's own gets that name when it has crossed.
    """

    def __init__(self, columns: Sequence[str], read: Iterable[str]) -> None:
        found = {name: column_of(columns, name) for name in read}
        self._spellings = {name: columns.index(own) for name, own in found.items() if name != own}
        self._columns = list(columns) if any("." in column or "`" in column for column in columns) else None

    def crossing(self, rows: DataFrame) -> DataFrame:
        """The rows as they cross."""
        return rows if self._columns is None else rows.toDF(*map(str, range(len(self._columns))))

    def named(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that have crossed."""
        for batch in batches:
            named = batch if self._columns is None else batch.rename_columns(self._columns)
            for name, index in self._spellings.items():
                named = named.append_column(name, named.column(index))
            yield named


class _TaskFunction:
    """What runs in a Python worker on rows of an input: picks the subtask of its partition and runs it."""

    def __init__(
        self, flow: Dataflow, program: OperatorProgram, inputs: Sequence[SubtaskInput], *, is_last: bool
    ) -> None:
        self._flow = flow
        self._program = program
        self._inputs = [_ENCODER.encode(given) for given in inputs]
        self._is_last = is_last
        self._columns: _CrossingColumns

    def over(self, rows: DataFrame, read: Iterable[str]) -> DataFrame:
        """The encoded result of each subtask, one row for each; parcels where there are more levels.

        Args:
            rows: The rows of the subtasks, each in its partition.
            read: Columns by the names that the operator knows them by.
        """
        self._columns = _CrossingColumns(rows.columns, read)
        return self._columns.crossing(rows).mapInArrow(self, _RESULT_TYPE if self._is_last else _PARCELS_TYPE)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = msgspec.msgpack.decode(self._inputs[_partition() % len(self._inputs)], type=SubtaskInput)
        resources = task_resources(self._flow.plan, given.operator)
        rows = in_utc(self._columns.named(batches))
        with noted():
            if self._is_last:
                result = run_subtask(resources, self._flow.plan, self._program, given, rows)
                made = [pa.RecordBatch.from_arrays([pa.array([_ENCODER.encode(result)], pa.binary())], schema=_RESULT)]
            else:
                made = list(encode_parcels(self._flow.run_subtask(given, [rows], resources, {})))
        freeze_imports()
        yield from made


class _LevelTask:
    """What runs in a Python worker on parcels: the subtask of its partition, in one of the further levels."""

    def __init__(self, flow: Dataflow, level: int, inputs: Sequence[SubtaskInput]) -> None:
        self._flow = flow
        self._level = level
        self._inputs = [_ENCODER.encode(given) for given in inputs]

    def over(self, anchor: Anchor) -> Callable[[DataFrame], DataFrame]:
        """Parcels of one level to parcels of the next."""
        task = f"CAST(pmod(partition, {len(self._inputs)}) AS INT)"
        return lambda parcels: anchor.partitioned(parcels, task).mapInArrow(self, _PARCELS_TYPE)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        inputs = [msgspec.msgpack.decode(encoded, type=SubtaskInput) for encoded in self._inputs]
        with noted():
            made = self._flow.run(
                self._level,
                _partition() % len(inputs),
                decode_parcels(batches),
                inputs,
                lambda name: task_resources(self._flow.plan, name),
            )
            yield from encode_parcels(made)
        freeze_imports()


class _Sorting:
    """What runs in a Python worker on the rows of one of several streams: makes parcels for those who read them."""

    def __init__(self, flow: Dataflow, name: str) -> None:
        self._flow = flow
        self._name = name
        self._columns: _CrossingColumns

    def over(self, rows: DataFrame) -> DataFrame:
        """Parcels."""
        read = self._flow.columns_read(self._name)
        columns = rows.columns
        own = [*dict.fromkeys(column_of(columns, name) for name in read)]
        self._columns = _CrossingColumns(own, read)
        return self._columns.crossing(rows.selectExpr(*map(_quoted, own))).mapInArrow(self, _PARCELS_TYPE)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = in_utc(self._columns.named(batches))
        yield from encode_parcels(self._flow.sorted_by_reader(self._name, rows))
        freeze_imports()


def _partition() -> int:
    context = TaskContext.get()
    if context is None:
        raise InternalError("not inside a Spark task", operation="run_subtask")
    return int(context.partitionId())


def task_resources(plan: PipelinePlan, operator: str) -> TaskResources:
    """The stores of this process: opened once, however many tasks it runs."""
    output, root = plan.graph.operator(operator).output, _process_store(plan, plan.root_url, plan.root_options)
    return TaskResources(
        root=root,
        output=None if output is None else _process_store(plan, output.url, output.store_options),
        environment=_process_environment(),
        cache=host_copies(plan, root),
        inline_bytes=plan.subtask_inline_bytes,
        lookups={url: _lookup_root(plan, url, options) for url, options in plan.graph.lookup_roots.items()},
    )


def _lookup_root(plan: PipelinePlan, url: str, options: Mapping[str, str]) -> LookupRoot:
    store = _process_store(plan, url, options)
    return LookupRoot(store, host_copies(plan, store))


@cache
def _process_environment() -> Environment:
    return system_environment()


def _process_store(plan: PipelinePlan, url: str, options: Mapping[str, str]) -> BlobStore:
    return _opened(url, tuple(sorted(options.items())), plan.settings.upload_timeout, plan.settings.max_attempts)


@lru_cache(maxsize=_STORES_MAX)
def _opened(url: str, options: tuple[tuple[str, str], ...], upload_timeout: float, max_attempts: int) -> BlobStore:
    environment = _process_environment()
    store = open_store(url, dict(options), environment)
    return raced(store, RetryPolicy.fixed(max_attempts, upload_timeout, 0), environment)
