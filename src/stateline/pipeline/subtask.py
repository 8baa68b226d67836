"""The executor's side of one micro-batch: one subtask of one operator. No Spark in here.

Invariants:
- A subtask reads only what the record before it names and what its arguments hold, and writes only under fresh names.
  So it may run twice, at once or later, on the same rows in another order: one result is chosen, the rest is garbage.
- When it returns, everything its result names is durable; small sections may come with the result itself.
- All that it writes into the root is one segment, unless it is more than is good for the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from stateline.blob import BlobStore, InstrumentedStore
from stateline.changelog.host_cache import HostCache
from stateline.changelog.segment_writer import Placement, Segments, SegmentWriter
from stateline.checkpoint import SubtaskState
from stateline.environment import Environment
from stateline.errors import ErrorKind, InternalError, InvalidInputError
from stateline.files import FileOutput, FilesContext, FilesResult, FileWriter
from stateline.files.nulls import broken_promise
from stateline.files.pending import add_rows
from stateline.handles import RowsHandle
from stateline.key_groups import range_for_subtask
from stateline.pipeline.event_time import EventTimeWatch
from stateline.pipeline.graph import OperatorPlan
from stateline.pipeline.late_rows import LateRows
from stateline.pipeline.lookups import LookupRoot, open_lookup
from stateline.pipeline.messages import SubtaskInput, SubtaskResult
from stateline.pipeline.operators.api import Lookup, OperatorProgram, Processed
from stateline.pipeline.plan import PipelinePlan
from stateline.pipeline.removals import rows_that_come, with_removals
from stateline.state.merge import MergeSettings
from stateline.state.open_runs import OpenRuns
from stateline.state.run_store import RunReader, RunWriter
from stateline.state.schema import StateSchema
from stateline.state.snapshot import snapshot
from stateline.state.table import StateTable
from stateline.tables import TableTarget, check_rows, check_values, key_hashes

__all__ = ["SubtaskOutput", "TaskResources", "run_operator", "run_subtask"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResources:
    """The stores, the clock and the caches that a task uses.

    Attributes:
        root: Store of the checkpoint root.
        output: Store of the operator's files, if it writes any.
        environment: Clock, ids, threads.
        cache: Copies of sections on this host's disk, for a root that is elsewhere.
        merging: When runs are merged.
        open_runs: Runs that are open; by default those that all tasks of this process share.
        inline_bytes: Sections of so many bytes in all come with the result.
        lookups: The other roots that the operator looks into, by URL.
    """

    root: BlobStore
    output: BlobStore | None
    environment: Environment
    cache: HostCache | None = None
    merging: MergeSettings = field(default_factory=MergeSettings)
    open_runs: OpenRuns | None = None
    inline_bytes: int = 0
    lookups: Mapping[str, LookupRoot] = field(default_factory=dict)

    @property
    def segments(self) -> Segments:
        """Where the segments of a task go."""
        return Segments(self.root, self.environment, self.cache)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskOutput:
    """What one subtask made.

    Attributes:
        result: What the driver is told.
        rows: Output rows; ``None`` for none.
        retracted: Rows of earlier output that hold no longer; ``None`` for none.
        late: The late rows of each reading, where an operator reads them.
    """

    result: SubtaskResult
    rows: pa.Table | None
    retracted: pa.Table | None
    late: tuple[list[pa.RecordBatch], ...]


def run_subtask(
    resources: TaskResources,
    plan: PipelinePlan,
    program: OperatorProgram,
    given: SubtaskInput,
    *sides: Iterable[pa.RecordBatch],
) -> SubtaskResult:
    """As :func:`run_operator`, where no other operator reads what comes out."""
    return run_operator(resources, plan, program, given, *sides).result


def run_operator(
    resources: TaskResources,
    plan: PipelinePlan,
    program: OperatorProgram,
    given: SubtaskInput,
    *sides: Iterable[pa.RecordBatch],
) -> SubtaskOutput:
    """Runs one subtask: opens its state, processes its rows, makes state and output durable.

    Args:
        resources: Stores and environment.
        plan: The pipeline.
        program: What the operator computes.
        given: What the driver tells this subtask.
        sides: Its rows, of each reading.

    Raises:
        DataLossError: A run or pending rows that the newest record names are gone.
        CorruptDataError: They are not what was written.
        StatelineError: What the program or the stores raise. Nothing is changed; at most garbage is left.
    """
    operator = plan.graph.operator(given.operator)
    clock = resources.environment.clock
    began = clock.monotonic()
    root = InstrumentedStore(resources.root)
    tables = {
        name: _open_table(root, resources, schema, given, name, plan.max_parallelism)
        for name, schema in program.tables.items()
    }
    looked_up = {name: _open_lookup(resources, plan, given, name, lookup) for name, lookup in program.lookups.items()}
    opened = clock.monotonic()
    watches = [
        EventTimeWatch(plan.graph.watermark_read_by(given.operator, side), reading.columns)
        for side, reading in enumerate(program.readings)
    ]
    late = [
        LateRows(reading, given.context.late_watermark_us, operator.late_columns.get(side, ()))
        for side, reading in enumerate(program.readings)
    ]
    received = [rows.taken_out(watch.watch(side)) for side, watch, rows in zip(sides, watches, late, strict=True)]
    processed = program.process_sides(received, tables | looked_up, given.context)
    computed = clock.monotonic()
    segment = resources.segments.writer(resources.inline_bytes)
    metrics = dict(processed.metrics)
    if any(reading.late_by is not None for reading in program.readings):
        metrics["rows_late"] = sum(rows.count for rows in late)
        metrics["rows"] = metrics.get("rows", 0) + metrics["rows_late"]
    states = {
        name: _snapshot(resources, operator, given, table, processed, name, segment, metrics)
        for name, table in tables.items()
    }
    stored = clock.monotonic()
    _check_not_null(program.output_schema, processed.output, given.operator)
    rows: pa.Table | None = processed.output
    hashes: bytes | None = b""
    if operator.table is not None and not operator.table.takes_files:
        rows, hashes = _rows_for_table(operator.table, processed, given.operator, shared=plan.parallelism > 1)
    elif operator.table is not None and rows is not None:
        check_values(rows, operator.table, f"operator {given.operator}")
    files = _write_output(resources, operator.output, program.output_schema, given, processed.output, segment)
    delivery = _delivered(segment, given, rows) if operator.delivers else None
    written = clock.monotonic()
    placement = segment.finish()
    metrics["open_seconds"] = opened - began
    metrics["process_seconds"] = computed - opened
    metrics["state_seconds"] = stored - computed
    metrics["output_seconds"] = written - stored
    metrics["upload_seconds"] = clock.monotonic() - written
    metrics["segment_bytes_written"] = placement.bytes_written
    metrics["bytes_fetched"] = root.bytes_read
    metrics["requests"] = sum(root.calls.values()) + (placement.bytes_written > 0)
    files = files.placed(placement)
    result = SubtaskResult(
        operator=given.operator,
        subtask=given.subtask,
        states={name: _placed(state, placement) for name, state in states.items()},
        finished=files.finished,
        open=files.open,
        metrics=metrics,
        event_times_us=_event_times(operator, watches),
        next_timer_ms=processed.next_timer_ms,
        delivery=None if delivery is None else placement.of(delivery),
        key_hashes=hashes,
    )
    return SubtaskOutput(
        result=result, rows=processed.output, retracted=processed.retracted, late=tuple(rows.rows for rows in late)
    )


def _event_times(operator: OperatorPlan, watches: Sequence[EventTimeWatch]) -> dict[str, int]:
    """The greatest event time by input: an operator may read one input on both sides."""
    times: dict[str, int] = {}
    for source, watch in zip(operator.sources, watches, strict=True):
        if watch.max_us is not None:
            times[source.name] = max(times.get(source.name, watch.max_us), watch.max_us)
    return times


def _snapshot(
    resources: TaskResources,
    operator: OperatorPlan,
    given: SubtaskInput,
    table: StateTable,
    processed: Processed,
    name: str,
    segment: SegmentWriter,
    metrics: dict[str, float],
) -> SubtaskState:
    """Adds what a table has become to the segment, and counts it."""
    clock = resources.environment.clock
    began = clock.monotonic()
    writer = RunWriter(segment, operator.state_name(name), table.schema, table.max_parallelism)
    changes, expired = processed.changes.get(name), processed.expired.get(name)
    made = snapshot(table, changes, writer, given.context.checkpoint_id, settings=resources.merging, expired=expired)
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
    root: BlobStore, resources: TaskResources, schema: StateSchema, given: SubtaskInput, name: str, max_parallelism: int
) -> StateTable:
    state = given.states[name]
    reader = RunReader(
        root, schema, cache=resources.cache, open_runs=resources.open_runs, environment=resources.environment
    )
    stack = (given.operator, name, state.key_groups.start, state.key_groups.end)
    return StateTable(schema, state.key_groups, max_parallelism, reader.open_stack(stack, state.runs))


def _open_lookup(
    resources: TaskResources, plan: PipelinePlan, given: SubtaskInput, name: str, lookup: Lookup
) -> StateTable:
    owned = range_for_subtask(given.subtask, plan.parallelism, plan.max_parallelism)
    root = LookupRoot(resources.root, resources.cache) if lookup.root is None else resources.lookups[lookup.root]
    stack = (given.operator, name, owned.start, owned.end)
    return open_lookup(lookup, given.lookups[name], stack, root, resources.environment, resources.open_runs)


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
                    hint="Return a value, or leave NOT NULL out of the schema",
                    kind=ErrorKind.SCHEMA_MISMATCH,
                )


def _write_output(
    resources: TaskResources,
    output: FileOutput | None,
    schema: pa.Schema,
    given: SubtaskInput,
    rows: pa.Table | None,
    segment: SegmentWriter,
) -> FilesResult:
    if output is None:
        return FilesResult()
    if resources.output is None:
        raise InternalError("the operator writes files, but no store is open", subject=given.operator)
    files = FilesContext(
        output=output,
        schema=schema,
        store=resources.output,
        segments=resources.segments,
        now=given.context.now,
        subtask=given.subtask,
    )
    writer = FileWriter(files, given.open_files)
    if rows is not None:
        writer.write(rows)
    return writer.finish(segment)


def _rows_for_table(
    table: TableTarget, processed: Processed, operator: str, *, shared: bool
) -> tuple[pa.Table | None, bytes | None]:
    """The rows for a table that takes rows, checked; the hashes of their keys, where other subtasks may have them."""

    def checked(come: pa.Table) -> pa.Table:
        return check_rows(come, table, f"operator {operator}")

    if table.deletes:
        rows = with_removals(processed, table.key, checked)
        come = None if rows is None else rows_that_come(rows)
    else:
        rows = come = None if processed.output is None else checked(processed.output)
    if come is None:
        return rows, b""
    return rows, key_hashes(come, table.key) if shared and table.key else b""


def _delivered(segment: SegmentWriter, given: SubtaskInput, rows: pa.Table | None) -> RowsHandle | None:
    """Adds rows that are handed over after the checkpoint."""
    if rows is None or rows.num_rows == 0:
        return None
    return add_rows(segment, given.operator, rows, given.context.checkpoint_id)
