"""A keyed operator that runs on lists of rows: the real coordinator, subtasks, state and records, without a Spark job.

What Spark does in production is done here by a loop: rows are spread over the subtasks by the hash of their key, each
subtask runs, and its result goes back to the coordinator. Everything else is the code that a query runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from stateline.blob import BlobStore, open_store
from stateline.changelog.host_cache import HostCache
from stateline.checkpoint import Checkpoint, CheckpointStore
from stateline.environment import Environment
from stateline.errors import ErrorKind, InvalidInputError
from stateline.files import FileOutput
from stateline.files.pending import load_rows
from stateline.key_groups import hash_columns, key_group_of, subtask_for_key_group
from stateline.options import check_known
from stateline.pipeline.coordinator import MicroBatchCoordinator
from stateline.pipeline.delivery import BatchKey, Delivery
from stateline.pipeline.event_time import EVENT_TIME_COLUMN, WINDOW_START, EventTimeWatch, WatermarkPlan, WindowPlan
from stateline.pipeline.graph import Graph, OperatorPlan
from stateline.pipeline.messages import Batch, BatchReport, SubtaskInput, SubtaskResult
from stateline.pipeline.operators.api import HASH_COLUMN, OperatorProgram
from stateline.pipeline.plan import PipelinePlan, PipelineSettings
from stateline.pipeline.subtask import TaskResources, run_subtask
from stateline.state.open_runs import OpenRuns
from stateline.state.stored import StoredState
from stateline.state.variables import EXPIRY_COLUMN
from stateline.testing.clock import ManualClock

__all__ = ["OperatorHarness", "Row"]

Row = Mapping[str, Any]
"""A row: values by column. Spark's ``Row`` is taken, too."""

_OPERATOR: Final = "op"
_QUERY: Final = "q"
_VARIABLE: Final = "state."


class OperatorHarness:
    """One driver of one operator.

    Give ``root`` the store of another harness, and this one goes on from its newest checkpoint.

    Args:
        program: What is computed.
        schema: Of the rows.
        root: Store of the checkpoints; a new one in memory by default.
        watermark: The watermark of the stream, if it has one.
        parallelism: Subtasks.
        max_parallelism: Key groups.
        settings: Those of a pipeline.
        environment: Clock, ids and threads; by default the real ones with a :class:`ManualClock`.
        initial: Rows for the first batch of a new root.
        output: Files that get the output, in place of :attr:`outputs`.
        deliver: Called with the rows of a checkpoint and their key, in place of keeping them in :attr:`outputs`.
        copies: Gives the copies of state on the host of a subtask; without it, hosts keep none.

    Attributes:
        outputs: Rows that came out, by checkpoint.
        files: Store of the files, if there are any.
        metrics: What the newest batch counted.
    """

    def __init__(
        self,
        program: OperatorProgram,
        schema: pa.Schema,
        *,
        root: BlobStore | None = None,
        watermark: WatermarkPlan | None = None,
        parallelism: int = 2,
        max_parallelism: int = 8,
        settings: PipelineSettings | None = None,
        environment: Environment | None = None,
        initial: pa.Table | None = None,
        output: FileOutput | None = None,
        deliver: Callable[[list[dict[str, Any]], BatchKey], None] | None = None,
        copies: Callable[[int], HostCache | None] | None = None,
    ) -> None:
        settings = settings or PipelineSettings()
        self.program = program
        self.schema = schema
        self.environment = environment or Environment(clock=ManualClock())
        self.root = root or open_store(f"memory://{self.environment.ids.new_id()}")
        self.checkpoints = CheckpointStore(self.root, environment=self.environment)
        self.operator = replace(OperatorPlan.of(_OPERATOR, program), output=output, delivers=output is None)
        self.plan = PipelinePlan(
            root_url=self.root.url,
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            graph=Graph.of_one_input([self.operator], watermark),
            retained_checkpoints=settings.retained_checkpoints,
            inline_bytes=settings.inline_bytes,
            record_bytes=settings.record_bytes,
        )
        self.outputs: dict[int, list[dict[str, Any]]] = {}
        self.metrics: Mapping[str, float] = {}
        self._initial = initial
        self._deliver = deliver
        self._copies = copies
        self.files = None if output is None else open_store(output.url, output.store_options)
        self.coordinator: MicroBatchCoordinator[list[Row]] = self._new_driver()

    def _new_driver(self) -> MicroBatchCoordinator[list[Row]]:
        outputs = {} if self.files is None else {_OPERATOR: self.files}
        return MicroBatchCoordinator(
            self.plan, self.checkpoints, outputs, self._run_subtasks, self.environment, self._hand_over
        )

    # -- what a test does -----------------------------------------------------------------------------------------

    def run_batch(self, rows: Iterable[Row], *, batch_id: int | None = None) -> list[dict[str, Any]]:
        """Processes one micro-batch and commits it.

        Args:
            rows: Its rows.
            batch_id: Of an earlier batch, which Spark gives again after a crash: its record stands, and nothing is
                computed. By default the number that follows the newest.

        Returns:
            What came out of it, in no order that means anything.

        Raises:
            StatelineError: The batch failed, and nothing of it is kept. The same batch can be run again.
        """
        return self._output_of(self.report_batch(rows, batch_id=batch_id))

    def report_batch(self, rows: Iterable[Row], *, batch_id: int | None = None) -> BatchReport:
        """As :meth:`run_batch`; returns the report with the checkpoint."""
        newest = self.coordinator.start()
        number = batch_id
        if number is None:
            number = 0 if newest is None else newest.batch_id + 1
        batch = Batch(query_id=_QUERY, batch_id=number, offsets_digest=f"{number:064}", data=list(rows))
        report = self.coordinator.run_batch(batch)
        self.metrics = report.metrics
        return report

    def advance_time(self, seconds: float = 0.0) -> list[dict[str, Any]]:
        """Lets time pass while no rows come: timers fire that are due, windows close that the watermark has passed.

        Args:
            seconds: How long. 0 does what is due already.

        Returns:
            What came out.

        Raises:
            InvalidInputError: The harness was given an environment without a :class:`ManualClock`.
        """
        if seconds:
            self.clock.advance(seconds)
        self.coordinator.start()
        report = self.coordinator.act_on_time(list)
        return [] if report is None else self._output_of(report)

    def finish(self) -> list[dict[str, Any]]:
        """Ends the stream as ``availableNow`` does: closes what the last watermark has passed.

        Returns:
            What came out.
        """
        report = self.coordinator.settle(list)
        return [] if report is None else self._output_of(report)

    def restart(self, *, parallelism: int | None = None) -> None:
        """Another driver goes on from the newest checkpoint, as after a crash: nothing else is left.

        Args:
            parallelism: Subtasks from here on; as before by default.
        """
        self.plan = replace(self.plan, parallelism=parallelism or self.plan.parallelism)
        self.coordinator = self._new_driver()

    # -- what a test looks at -------------------------------------------------------------------------------------

    @property
    def clock(self) -> ManualClock:
        """Processing time.

        Raises:
            InvalidInputError: The harness was given an environment with a clock of another kind.
        """
        clock = self.environment.clock
        if not isinstance(clock, ManualClock):
            raise InvalidInputError(
                f"expected a ManualClock, got a {type(clock).__name__}",
                operation="OperatorHarness",
                subject="environment",
                hint="Pass Environment(clock=ManualClock())",
            )
        return clock

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest record; ``None`` before the first batch."""
        return self.coordinator.start()

    @property
    def watermark_us(self) -> int | None:
        """The watermark that the next batch works with, microseconds since the epoch."""
        newest = self.checkpoint
        return None if newest is None else newest.watermark_us

    def state(self, name: str | None = None) -> list[dict[str, Any]]:
        """The live rows of a state table in the newest checkpoint: key columns and values, in no order.

        Args:
            name: Of a processor's state variable, ``timers``, or a table; not needed where there is only one.

        Raises:
            InvalidInputError: The operator has no such table, or several and no name was given.
        """
        tables = {table.removeprefix(_VARIABLE): table for table in self.program.tables}
        if name is None and len(tables) != 1:
            raise InvalidInputError(
                f"the operator has {len(tables)} state tables",
                operation="state",
                subject="name",
                hint=f"Name one of: {', '.join(tables)}",
            )
        chosen = next(iter(tables)) if name is None else name.removeprefix(_VARIABLE)
        check_known([chosen], tables, "state table")
        newest = self.checkpoint
        if newest is None:
            return []
        stored = StoredState.of(self.root, newest, self.operator.state_name(tables[chosen]))
        rows = [row for batch in stored.reader(self.environment).scan(stored.whole()) for row in batch.to_pylist()]
        now_ms = newest.created_at * 1000
        return [row for row in rows if row.get(EXPIRY_COLUMN) is None or row[EXPIRY_COLUMN] > now_ms]

    # -- what Spark does in production ----------------------------------------------------------------------------

    def _output_of(self, report: BatchReport) -> list[dict[str, Any]]:
        return [] if report.replayed else self.outputs.get(report.checkpoint.checkpoint_id, [])

    def _hand_over(self, delivery: Delivery) -> None:
        rows = [row for table in load_rows(self.root, delivery.rows) for row in table.to_pylist()]
        if self._deliver is not None:
            self._deliver(rows, delivery.key)
        else:
            self.outputs[delivery.key.checkpoint_id] = rows

    def _run_subtasks(self, batch: Batch[list[Row]], inputs: Sequence[SubtaskInput]) -> list[SubtaskResult]:
        initial = self._initial if inputs[0].context.checkpoint_id == 0 else None
        rows = self._sent(_table_of(batch.data, self.schema), initial)
        groups = key_group_of(rows.column(HASH_COLUMN).to_numpy().view("uint64"), self.plan.max_parallelism).tolist()
        owners = [subtask_for_key_group(group, len(inputs), self.plan.max_parallelism) for group in groups]
        if not self.program.wants_hash and initial is None:
            rows = rows.drop_columns([HASH_COLUMN])
        results = []
        for given in inputs:
            mine = rows.filter(pa.array([owner == given.subtask for owner in owners], pa.bool_()))
            results.append(self._run_subtask(given, mine.to_batches() if mine.num_rows else []))
        return results

    def _run_subtask(self, given: SubtaskInput, batches: Iterable[pa.RecordBatch]) -> SubtaskResult:
        resources = TaskResources(
            root=self.root,
            output=self.files,
            environment=self.environment,
            cache=None if self._copies is None else self._copies(given.subtask),
            open_runs=OpenRuns(),
            inline_bytes=self.plan.subtask_inline_bytes,
        )
        return run_subtask(resources, self.plan, self.program, given, batches)

    def _sent(self, rows: pa.Table, initial: pa.Table | None) -> pa.Table:
        """The rows as tasks get them: with the hash of the key and, where it is needed, the event time."""
        program, watermark = self.program, self.plan.graph.watermark_read_by(_OPERATOR)
        if self.operator.window is not None:
            rows = _in_windows(rows, self.operator.window)
        hashes = _hashes(rows, program.key_columns)
        sent = rows.select(list(program.input_columns))
        if initial is not None:
            return _with_initial(sent, hashes, initial, _hashes(initial, program.key_columns))
        sent = sent.append_column(HASH_COLUMN, hashes)
        if watermark is not None and EventTimeWatch(watermark, program.input_columns).needs_column:
            sent = sent.append_column(EVENT_TIME_COLUMN, rows.column(watermark.column))
        return sent


def _table_of(rows: Iterable[Row], schema: pa.Schema) -> pa.Table:
    made: list[Any] = [row.asDict(recursive=True) if hasattr(row, "asDict") else dict(row) for row in rows]
    check_known({name for row in made for name in row}, schema.names, "column of a row")
    try:
        return pa.Table.from_pylist(made, schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(
            f"a value does not fit its column ({error})",
            operation="run_batch",
            subject="rows",
            hint=f"Give values of these types: {', '.join(f'{field.name} {field.type}' for field in schema)}",
            kind=ErrorKind.SCHEMA_MISMATCH,
        ) from error


def _hashes(rows: pa.Table, keys: Sequence[str]) -> pa.Array:
    return pa.array(hash_columns([rows.column(name).combine_chunks() for name in keys]).view("int64"))


def _with_initial(rows: pa.Table, hashes: pa.Array, initial: pa.Table, initial_hashes: pa.Array) -> pa.Table:
    """Both kinds of rows, each in a struct column of its own that is null in rows of the other kind."""
    from stateline.spark.initial_state import INITIAL_COLUMN, INPUT_COLUMN  # noqa: PLC0415 - only processors

    mine, first = (pa.struct(list(table.schema)) for table in (rows, initial))
    schema = pa.schema([(INPUT_COLUMN, mine), (INITIAL_COLUMN, first), (HASH_COLUMN, pa.int64())])
    packed = [
        [pa.array(rows.to_pylist(), mine), pa.nulls(rows.num_rows, first), hashes],
        [pa.nulls(initial.num_rows, mine), pa.array(initial.to_pylist(), first), initial_hashes],
    ]
    return pa.concat_tables([pa.Table.from_arrays(columns, schema=schema) for columns in packed])


def _in_windows(rows: pa.Table, window: WindowPlan) -> pa.Table:
    """Each row once for every window that its time is in, beside the window's start."""
    numbers, starts = [], []
    for number, time in enumerate(rows.column(window.column).cast(pa.int64()).to_pylist()):
        if time is None:
            continue
        start = (time - window.start_us) // window.slide_us * window.slide_us + window.start_us
        while start > time - window.size_us:
            numbers.append(number)
            starts.append(start)
            start -= window.slide_us
    made = rows.take(pa.array(numbers, pa.int64()))
    kind = rows.schema.field(window.column).type
    return made.append_column(WINDOW_START, pa.array(starts, pa.int64()).cast(kind))
