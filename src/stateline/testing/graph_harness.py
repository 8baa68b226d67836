"""A pipeline of any graph on lists of rows, without Spark: the real coordinator, tasks, state and records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import pyarrow as pa

from stateline.blob import BlobStore, open_store
from stateline.changelog.host_cache import HostCache
from stateline.checkpoint import Checkpoint, CheckpointStore
from stateline.environment import Environment
from stateline.errors import ErrorKind, InvalidInputError
from stateline.files.pending import load_rows
from stateline.options import check_known
from stateline.pipeline.coordinator import MicroBatchCoordinator
from stateline.pipeline.dataflow import Dataflow, run_in_process
from stateline.pipeline.delivery import Delivery
from stateline.pipeline.graph import Graph
from stateline.pipeline.lookups import LookupRoot, LookupRoots
from stateline.pipeline.messages import Batch, BatchReport, SubtaskInput, SubtaskResult
from stateline.pipeline.operators.api import OperatorProgram
from stateline.pipeline.parcels import Parcel
from stateline.pipeline.plan import PipelinePlan, PipelineSettings
from stateline.pipeline.subtask import TaskResources
from stateline.state.open_runs import OpenRuns
from stateline.state.stored import StoredState
from stateline.state.time_to_live import EXPIRY_COLUMN
from stateline.testing.clock import ManualClock

__all__ = ["GraphHarness", "PipelineHarness", "Row", "Rows", "table_of"]

Row = Mapping[str, Any]
"""A row: values by column. Spark's ``Row`` is taken, too."""
Rows: TypeAlias = Mapping[str, Iterable[Row]]
"""The rows of each input, by its name in the graph."""

_QUERY: Final = "q"
_VARIABLE: Final = "state."


class PipelineHarness:
    """What all harnesses share: a driver, its root, time, and a look at the state.

    Give ``root`` the store of another harness, and this one goes on from its newest checkpoint.

    Args:
        graph: Inputs and operators. The output of each operator without files is kept in :attr:`outputs`.
        programs: What each operator computes, by name.
        schemas: Of the rows of each input, by its name.
        root: Store of the checkpoints; a new one in memory by default.
        parallelism: Subtasks of each operator.
        max_parallelism: Key groups.
        settings: Those of a pipeline.
        environment: Clock, ids and threads; by default the real ones with a :class:`ManualClock`.
        copies: Gives the copies of state on the host of a subtask; without it, hosts keep none.

    Attributes:
        root: Store of the checkpoints.
        plan: What runs.
        coordinator: The driver.
        metrics: What the newest batch counted.
    """

    def __init__(
        self,
        graph: Graph,
        programs: Mapping[str, OperatorProgram],
        schemas: Mapping[str, pa.Schema],
        *,
        root: BlobStore | None = None,
        parallelism: int = 2,
        max_parallelism: int = 8,
        settings: PipelineSettings | None = None,
        environment: Environment | None = None,
        copies: Callable[[int], HostCache | None] | None = None,
    ) -> None:
        self.environment = environment or Environment(clock=ManualClock())
        self.root = root or open_store(f"memory://{self.environment.ids.new_id()}")
        self.checkpoints = CheckpointStore(self.root, environment=self.environment)
        operators = tuple(replace(each, delivers=each.output is None) for each in graph.operators)
        self.plan = PipelinePlan(
            root_url=self.root.url,
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            graph=Graph(graph.inputs, operators),
            settings=settings or PipelineSettings(),
        )
        self._stores = {
            each.name: open_store(each.output.url, each.output.store_options)
            for each in operators
            if each.output is not None
        }
        self._lookups = {url: open_store(url, options) for url, options in self.plan.graph.lookup_roots.items()}
        self._rows: dict[int, dict[str, list[dict[str, Any]]]] = {}
        self.metrics: Mapping[str, float] = {}
        self._programs = dict(programs)
        self._schemas = dict(schemas)
        self._copies = copies
        self.coordinator: MicroBatchCoordinator[Rows] = self._new_driver()

    def _new_driver(self) -> MicroBatchCoordinator[Rows]:
        return MicroBatchCoordinator(
            self.plan,
            self.checkpoints,
            self._stores,
            self._run_subtasks,
            self.environment,
            self._hand_over,
            lookups=LookupRoots(self._lookups),
        )

    # -- what a test does -----------------------------------------------------------------------------------------

    def _report(self, rows: Rows, batch_id: int | None) -> BatchReport:
        check_known(rows, self._schemas, "input")
        newest = self.coordinator.start()
        number = batch_id
        if number is None:
            number = 0 if newest is None else newest.batch_id + 1
        data = {name: list(some) for name, some in rows.items()}
        batch: Batch[Rows] = Batch(query_id=_QUERY, batch_id=number, offsets_digest=f"{number:064}", data=data)
        report = self.coordinator.run_batch(batch)
        self.metrics = report.metrics
        return report

    def _passed(self, seconds: float) -> BatchReport | None:
        if seconds:
            self.clock.advance(seconds)
        self.coordinator.start()
        return self.coordinator.act_on_time(dict)

    def _finished(self) -> BatchReport | None:
        return self.coordinator.settle(dict)

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
                operation=type(self).__name__,
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
        """The least watermark that the next batch works with, microseconds since the epoch."""
        newest = self.checkpoint
        return None if newest is None else newest.watermark_us

    def _state(self, operator: str, name: str | None = None) -> list[dict[str, Any]]:
        tables = {table.removeprefix(_VARIABLE): table for table in self._programs[operator].tables}
        own = [""] if "" in tables else list(tables)
        if name is None and len(own) != 1:
            raise InvalidInputError(
                f"the operator has {len(tables)} state tables",
                operation="state",
                subject="name",
                hint=f"Name one of: {', '.join(tables)}",
            )
        chosen = own[0] if name is None else name.removeprefix(_VARIABLE)
        check_known([chosen], tables, "state table")
        newest = self.checkpoint
        if newest is None:
            return []
        stored = StoredState.of(self.root, newest, self.plan.graph.operator(operator).state_name(tables[chosen]))
        rows = [row for batch in stored.reader(self.environment).scan(stored.whole()) for row in batch.to_pylist()]
        now_ms = newest.created_at * 1000
        return [row for row in rows if row.get(EXPIRY_COLUMN) is None or row[EXPIRY_COLUMN] > now_ms]

    # -- what Spark does in production ----------------------------------------------------------------------------

    def _rows_of(self, report: BatchReport | None) -> dict[str, list[dict[str, Any]]]:
        if report is None or report.replayed:
            return {}
        return self._rows.get(report.checkpoint.checkpoint_id, {})

    def _hand_over(self, delivery: Delivery) -> None:
        self._rows.setdefault(delivery.key.checkpoint_id, {})[delivery.key.operator] = self._loaded(delivery)

    def _loaded(self, delivery: Delivery) -> list[dict[str, Any]]:
        return [row for table in load_rows(self.root, delivery.rows) for row in table.to_pylist()]

    def _run_subtasks(self, batch: Batch[Rows], inputs: Sequence[SubtaskInput]) -> list[SubtaskResult]:
        flow = Dataflow(self.plan, self._programs)
        parcels: list[Parcel] = []
        for name, schema in self._schemas.items():
            rows = table_of(batch.data.get(name, ()), schema).combine_chunks().to_batches()
            parcels += flow.sorted_by_reader(name, rows)
        return run_in_process(flow, parcels, inputs, self._resources)

    def _resources(self, operator: str, subtask: int) -> TaskResources:
        return TaskResources(
            root=self.root,
            output=self._stores.get(operator),
            environment=self.environment,
            cache=None if self._copies is None else self._copies(subtask),
            open_runs=OpenRuns(),
            inline_bytes=self.plan.subtask_inline_bytes,
            lookups={url: LookupRoot(store) for url, store in self._lookups.items()},
        )


class GraphHarness(PipelineHarness):
    """One driver of a graph; see :class:`PipelineHarness`."""

    @property
    def outputs(self) -> Mapping[int, Mapping[str, list[dict[str, Any]]]]:
        """Rows that came out, by checkpoint and operator."""
        return self._rows

    def run_batch(self, rows: Rows, *, batch_id: int | None = None) -> dict[str, list[dict[str, Any]]]:
        """Processes one micro-batch and commits it.

        Args:
            rows: The rows of each input; inputs that are left out have none.
            batch_id: Of an earlier batch, which Spark gives again after a crash: its record stands, and nothing is
                computed. By default the number that follows the newest.

        Returns:
            What came out of it by operator, in no order that means anything.

        Raises:
            StatelineError: The batch failed, and nothing of it is kept. The same batch can be run again.
        """
        return self._rows_of(self.report_batch(rows, batch_id=batch_id))

    def report_batch(self, rows: Rows, *, batch_id: int | None = None) -> BatchReport:
        """As :meth:`run_batch`; returns the report with the checkpoint."""
        return self._report(rows, batch_id)

    def advance_time(self, seconds: float = 0.0) -> dict[str, list[dict[str, Any]]]:
        """Lets time pass while no rows come: timers fire that are due, windows close that the watermark has passed.

        Args:
            seconds: How long. 0 does what is due already.

        Returns:
            What came out by operator.

        Raises:
            InvalidInputError: The harness was given an environment without a :class:`ManualClock`.
        """
        return self._rows_of(self._passed(seconds))

    def finish(self) -> dict[str, list[dict[str, Any]]]:
        """Ends the stream as ``availableNow`` does: closes what the last watermark has passed.

        Returns:
            What came out by operator.
        """
        return self._rows_of(self._finished())

    def state(self, operator: str, name: str | None = None) -> list[dict[str, Any]]:
        """The live rows of a state table of an operator in the newest checkpoint, in no order.

        Args:
            operator: Whose.
            name: Of the table; not needed where there is only one.

        Raises:
            InvalidInputError: The operator has no such table, or several and no name was given.
        """
        return self._state(operator, name)


def table_of(rows: Iterable[Row], schema: pa.Schema) -> pa.Table:
    """Rows as an Arrow table.

    Raises:
        InvalidInputError: A row has a column that is not in the schema, or a value that does not fit its column.
    """
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
