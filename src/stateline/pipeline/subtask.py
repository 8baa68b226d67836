"""The executor's side of one micro-batch: one subtask of one operator. No Spark in here.

Owns the order of work in a task: open the state, process the rows, make output and state durable, hand back handles.
Does not own what is computed (an :class:`OperatorProgram` does) nor whether it counts (the record does).

Invariants:
- A task reads only what the record before it names and what its arguments hold, and writes only under fresh names. So
  it may run twice, at once or later, on the same rows in another order: one result is chosen, the rest is garbage.
- When it returns, everything its result names is durable; small sections may come with the result itself.
- All that it writes into the root is one segment, unless it is more than is good for the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, Self

import msgspec
import pyarrow as pa

from stateline.blob import BlobStore
from stateline.changelog.host_cache import HostCache
from stateline.changelog.segment_writer import Placement, Segments, SegmentWriter
from stateline.checkpoint import SubtaskState
from stateline.environment import Environment
from stateline.errors import ErrorKind, InternalError, InvalidInputError
from stateline.files import FileOutput, FilesContext, FilesResult, FileWriter
from stateline.files.nulls import broken_promise
from stateline.files.pending import add_rows
from stateline.handles import RowsHandle
from stateline.pipeline.coordinator import SubtaskResult, SubtaskTask
from stateline.pipeline.event_time import EventTimeWatch, WatermarkPlan
from stateline.pipeline.plan import OperatorPlan
from stateline.state.merge import Expired, MergeSettings
from stateline.state.open_runs import OpenRuns
from stateline.state.rows import StateRows
from stateline.state.run_store import RunReader, RunWriter
from stateline.state.schema import StateSchema
from stateline.state.snapshot import snapshot
from stateline.state.table import StateTable

__all__ = ["HASH_COLUMN", "BatchMoment", "OperatorProgram", "Processed", "TaskContext", "run_subtask"]

HASH_COLUMN: Final = "__hash"
"""The stable hash of the key, where the JVM has computed it already."""


@dataclass(frozen=True, slots=True)
class BatchMoment:
    """Which batch it is, and when: decided by the coordinator, the same for all subtasks and for every attempt.

    Attributes:
        checkpoint_id: The checkpoint being made.
        now: Processing time of the batch, seconds since the epoch.
        watermark_us: The watermark that holds for the batch, microseconds since the epoch; ``None`` without one. What
            it has passed is closed at the end of the batch.
        late_watermark_us: The one that held for the batch before: what lies at or below it is closed, and late.
        earlier_checkpoints: See :attr:`stateline.checkpoint.Checkpoint.earlier_checkpoints`.
    """

    checkpoint_id: int
    now: float
    watermark_us: int | None = None
    late_watermark_us: int | None = None
    earlier_checkpoints: int = 0

    @property
    def sequence(self) -> int:
        """A number of the batch that never repeats in the life of its state, and ascends: also over savepoints."""
        return self.earlier_checkpoints + self.checkpoint_id

    @property
    def now_ms(self) -> int:
        """Processing time in whole milliseconds, by the microsecond: 1.001 s are 1,001 ms, though a float has less."""
        return round(self.now * 1_000_000) // 1_000

    @classmethod
    def of(cls, task: SubtaskTask) -> Self:
        """The moment of a task's batch."""
        return cls(task.checkpoint_id, task.now, task.watermark_us, task.late_watermark_us, task.earlier_checkpoints)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """What a program makes of the rows of one batch.

    Attributes:
        changes: New rows of each state table, by table name; a table without changes may be left out.
        output: Output rows; ``None`` for none.
        metrics: Counts by name.
        next_timer_ms: No timer by processing time comes before this, milliseconds since the epoch; ``None`` for no
            timer at all.
        expired: Tests by table name: which rows have outlived their time, to be dropped when runs are merged.
    """

    changes: Mapping[str, StateRows]
    output: pa.Table | None = None
    expired: Mapping[str, Expired] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    next_timer_ms: int | None = None


class OperatorProgram(Protocol):
    """What a keyed operator computes. Shipped to every task, so it must survive being copied to another process."""

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Key columns of the input, in the order in which they are hashed."""
        ...

    @property
    def input_columns(self) -> tuple[str, ...]:
        """Columns of the input that tasks receive, key columns first."""
        ...

    @property
    def wants_hash(self) -> bool:
        """Whether tasks also receive :data:`HASH_COLUMN`: cheaper to send than to compute in Python, for strings."""
        ...

    @property
    def tables(self) -> Mapping[str, StateSchema]:
        """Schemas of the operator's state tables, by name."""
        ...

    @property
    def definition(self) -> str:
        """What is computed, as text that is the same for the same program."""
        ...

    @property
    def output_schema(self) -> pa.Schema:
        """Schema of the output rows."""
        ...

    def process(
        self, batches: Iterable[pa.RecordBatch], tables: Mapping[str, StateTable], moment: BatchMoment
    ) -> Processed:
        """Processes the rows of one batch that belong to one subtask; there may be none.

        Must not keep anything between calls: the next batch may be processed elsewhere.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """The part of the world that a task needs.

    Attributes:
        root: Store of the checkpoint root.
        output: Store of the operator's files, if it writes any.
        environment: Clock, ids, threads.
        cache: Copies of sections on this host's disk, for a root that is elsewhere.
        merging: When runs are merged.
        open_runs: Runs that are open; by default those that all tasks of this process share.
        inline_bytes: Sections of so many bytes in all come with the result.
    """

    root: BlobStore
    output: BlobStore | None
    environment: Environment
    cache: HostCache | None = None
    merging: MergeSettings = field(default_factory=MergeSettings)
    open_runs: OpenRuns | None = None
    inline_bytes: int = 0

    @property
    def segments(self) -> Segments:
        """Where the segments of a task go."""
        return Segments(self.root, self.environment, self.cache)


def run_subtask(
    context: TaskContext,
    operator: OperatorPlan,
    program: OperatorProgram,
    task: SubtaskTask,
    batches: Iterable[pa.RecordBatch],
    max_parallelism: int,
    watermark: WatermarkPlan | None = None,
) -> SubtaskResult:
    """Runs one subtask.

    Args:
        context: Stores and environment.
        operator: The operator's plan.
        program: What it computes.
        task: What the coordinator tells this subtask.
        batches: Its rows.
        max_parallelism: Key groups.
        watermark: The watermark of the stream, if it has one: the greatest event time of the rows is looked for.

    Raises:
        DataLossError: A run or pending rows that the newest record names are gone.
        CorruptDataError: They are not what was written.
        StatelineError: What the program or the stores raise. Nothing is changed; at most garbage is left.
    """
    clock = context.environment.clock
    began = clock.monotonic()
    tables = {
        name: _open_table(context, schema, task, name, max_parallelism) for name, schema in program.tables.items()
    }
    opened = clock.monotonic()
    event_time = EventTimeWatch(watermark, program.input_columns)
    processed = program.process(event_time.watch(batches), tables, BatchMoment.of(task))
    computed = clock.monotonic()
    segment = context.segments.writer(context.inline_bytes)
    metrics = dict(processed.metrics)
    states = {
        name: _snapshot(context, operator, task, table, processed, name, segment, metrics)
        for name, table in tables.items()
    }
    stored = clock.monotonic()
    _check_not_null(program.output_schema, processed.output, task.operator)
    files = _write_output(context, operator.output, program.output_schema, task, processed.output, segment)
    delivery = _delivered(segment, task, processed.output) if operator.delivers else None
    written = clock.monotonic()
    placement = segment.finish()
    metrics["open_seconds"] = opened - began
    metrics["process_seconds"] = computed - opened
    metrics["state_seconds"] = stored - computed
    metrics["output_seconds"] = written - stored
    metrics["upload_seconds"] = clock.monotonic() - written
    metrics["segment_bytes_written"] = placement.bytes_written
    files = files.placed(placement)
    return SubtaskResult(
        operator=task.operator,
        subtask=task.subtask,
        states={name: _placed(state, placement) for name, state in states.items()},
        finished=files.finished,
        open=files.open,
        metrics=metrics,
        max_event_time_us=event_time.max_us,
        next_timer_ms=processed.next_timer_ms,
        delivery=None if delivery is None else placement.of(delivery),
    )


def _snapshot(
    context: TaskContext,
    operator: OperatorPlan,
    task: SubtaskTask,
    table: StateTable,
    processed: Processed,
    name: str,
    segment: SegmentWriter,
    metrics: dict[str, float],
) -> SubtaskState:
    """Adds what a table has become to the segment, and counts it."""
    clock = context.environment.clock
    began = clock.monotonic()
    writer = RunWriter(segment, operator.state_name(name), table.schema, table.max_parallelism)
    changes, expired = processed.changes.get(name), processed.expired.get(name)
    made = snapshot(table, changes, writer, task.checkpoint_id, settings=context.merging, expired=expired)
    merging = clock.monotonic() - began - made.write_seconds
    sections = {run.identity: run.length for run in made.state.runs}
    for count, amount in (
        ("write_seconds", made.write_seconds),
        ("merge_seconds", merging if made.merged else 0.0),
        ("state_bytes_written", sum(run.length for run in made.written)),
        ("runs_merged", made.merged),
        ("runs", len(made.state.runs)),
        ("state_rows", made.rows),
        ("state_bytes", sum(sections.values())),
    ):
        metrics[count] = metrics.get(count, 0) + amount
    return made.state


def _placed(state: SubtaskState, placement: Placement) -> SubtaskState:
    return msgspec.structs.replace(state, runs=tuple(map(placement.of, state.runs)))


def _open_table(
    context: TaskContext, schema: StateSchema, task: SubtaskTask, name: str, max_parallelism: int
) -> StateTable:
    state = task.states[name]
    reader = RunReader(
        context.root, schema, cache=context.cache, open_runs=context.open_runs, environment=context.environment
    )
    stack = (task.operator, name, state.key_groups.start, state.key_groups.end)
    return StateTable(schema, state.key_groups, max_parallelism, reader.open_stack(stack, state.runs))


def _check_not_null(schema: pa.Schema, rows: pa.Table | None, operator: str) -> None:
    """Arrow lets nulls pass where a schema rules them out, and whoever reads the rows believes the schema."""
    if rows is None:
        return
    for column in schema:
        for chunk in rows.column(column.name).chunks:
            broken = broken_promise(column, chunk)
            if broken is not None:
                raise InvalidInputError(
                    "a row of the output has null in it, the output schema says NOT NULL",
                    operation="process",
                    subject=f"operator {operator}, column {broken!r}",
                    hint="Put a value out, or leave NOT NULL out of the schema",
                    kind=ErrorKind.SCHEMA_MISMATCH,
                )


def _write_output(
    context: TaskContext,
    output: FileOutput | None,
    schema: pa.Schema,
    task: SubtaskTask,
    rows: pa.Table | None,
    segment: SegmentWriter,
) -> FilesResult:
    if output is None:
        return FilesResult()
    if context.output is None:
        raise InternalError("the operator writes files, but no store is open", subject=task.operator)
    files = FilesContext(
        output=output,
        schema=schema,
        store=context.output,
        segments=context.segments,
        now=task.now,
        subtask=task.subtask,
    )
    writer = FileWriter(files, task.open_files)
    if rows is not None:
        writer.write(rows)
    return writer.finish(segment)


def _delivered(segment: SegmentWriter, task: SubtaskTask, rows: pa.Table | None) -> RowsHandle | None:
    """Adds rows that are handed over after the checkpoint."""
    if rows is None or rows.num_rows == 0:
        return None
    return add_rows(segment, task.operator, rows, task.checkpoint_id)
