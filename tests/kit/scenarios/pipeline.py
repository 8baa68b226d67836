"""The real coordinator, tasks, state and files under the micro-batch scenario: no Spark, the same code.

The pipeline counts rows per key, and writes each row to files that span checkpoints. State and rows carry the attempt
that made them, so no two attempts write equal bytes. A driver that starts anew has another parallelism, so every
restart is a rescale too, and merges after another number of checkpoints.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa

from stateline.blob.api import BlobStore, Buffer
from stateline.changelog.segment_writer import Segments
from stateline.checkpoint import Checkpoint, CheckpointStore, OperatorState
from stateline.errors import NotFoundError
from stateline.files import FileOutput, RollingPolicy
from stateline.key_groups import key_group_of, subtask_for_key_group
from stateline.pipeline.coordinator import MicroBatchCoordinator
from stateline.pipeline.delivery import Delivery
from stateline.pipeline.end_of_stream import file_finisher
from stateline.pipeline.graph import Graph, OperatorPlan
from stateline.pipeline.messages import Batch, SubtaskInput, SubtaskResult
from stateline.pipeline.operators.api import BatchContext, OperatorProgram, Processed
from stateline.pipeline.plan import PLAIN, PipelinePlan, PipelineSettings, SavepointStart, StorageSettings
from stateline.pipeline.subtask import TaskResources, run_subtask
from stateline.pipeline.upkeep import Upkeep
from stateline.state.keys import Groups, group_rows, key_rows
from stateline.state.merge import MergeSettings
from stateline.state.open_runs import OpenRuns
from stateline.state.rows import StateRows
from stateline.state.run_store import RunReader
from stateline.state.schema import StateSchema
from stateline.state.subkeys import subkey_changes
from stateline.state.table import StateTable
from stateline.tables import TableTarget
from tests.kit.invariants import require
from tests.kit.scenarios.micro_batch import MicroBatch, MicroBatchAdapter, MicroBatchSystem, Row
from tests.kit.state_invariants import check_feeds
from tests.kit.world import Process, World

__all__ = [
    "ARRIVALS",
    "FIRST_QUERY",
    "PARITIES",
    "ROWS",
    "CountingProgram",
    "Pipeline",
    "PipelineAdapter",
    "PipelineSystem",
    "Places",
    "batches_of",
    "group_of",
    "incarnation_of",
    "is_tombstone",
    "rows_of",
]

_MAX_PARALLELISM: Final = 8
_SCHEMA: Final = StateSchema.of(
    pa.schema([("key", pa.string()), ("count", pa.int64()), ("attempt", pa.string())]), ["key"]
)
APPENDED: Final = StateSchema(
    pa.schema([("key", pa.string()), ("batch", pa.int64()), ("number", pa.int64())]),
    pa.schema([("attempt", pa.string())]),
    append_only=True,
    subkeys=2,
)
"""The schema of the table called ``arrivals``: it keeps each row that it gets."""

ROWS: Final = pa.schema([("batch", pa.int64()), ("number", pa.int64()), ("key", pa.string()), ("attempt", pa.string())])
ARRIVALS: Final = "arrivals"
PARITIES: Final = "parities"
_ODD: Final = StateSchema.of(pa.schema([("key", pa.string()), ("odd", pa.int64())]), ["key"])
"""The schema of the table called ``parities``: whether a key has had an odd number of rows, whatever attempt counts."""

_PARALLELISMS: Final = (2, 1, 3)
"""One incarnation after the other: the first restart merges subtasks, the second splits them."""


class Places(NamedTuple):
    """The stores of one query.

    Attributes:
        root: Of its records and its state.
        out: Of its files.
        query: Its id.
    """

    root: str
    out: str
    query: str


FIRST_QUERY: Final = Places("root", "out", "query")


@dataclass(frozen=True, slots=True)
class CountingProgram(OperatorProgram):
    """Adds one to the count of a row's key, in each of its tables, and hands the row on with the attempt at work."""

    attempt: str
    names: tuple[str, ...] = ("counts",)

    key_columns: ClassVar[tuple[str, ...]] = ("key",)
    input_columns: ClassVar[tuple[str, ...]] = ("key", "batch", "number")
    wants_hash: ClassVar[bool] = False
    definition: ClassVar[str] = "count per key"
    output_schema: ClassVar[pa.Schema] = ROWS

    @property
    def tables(self) -> Mapping[str, StateSchema]:
        """See :attr:`stateline.pipeline.operators.api.OperatorProgram.tables`."""
        return {name: {ARRIVALS: APPENDED, PARITIES: _ODD}.get(name, _SCHEMA) for name in self.names}

    def process(
        self,
        batches: Iterable[pa.RecordBatch],
        tables: Mapping[str, StateTable],
        context: BatchContext,
    ) -> Processed:
        """See :meth:`stateline.pipeline.operators.api.OperatorProgram.process`."""
        rows = pa.Table.from_batches(batches, ROWS)
        if rows.num_rows == 0:
            return Processed(changes={})
        groups = group_rows(key_rows(_SCHEMA, [rows["key"]]))
        changes = {}
        for name in self.names:
            if name == ARRIVALS:
                changes[name] = _appended(tables[name], groups, rows, self.attempt)
                continue
            before = tables[name].probe(groups.keys).values[0].fill_null(0).to_numpy(zero_copy_only=False)
            if name == PARITIES:
                changes[name] = StateRows(groups.keys, (pa.array((before + groups.sizes) % 2, pa.int64()),))
                continue
            marks = self.attempt if name == self.names[0] else f"{self.attempt} in {name}"
            attempts = pa.array([marks] * len(before), pa.string())
            changes[name] = StateRows(groups.keys, (pa.array(before + groups.sizes, pa.int64()), attempts))
        marked = rows.set_column(3, "attempt", pa.array([self.attempt] * rows.num_rows))
        return Processed(changes=changes, output=marked)


def _settings(retained: int, record_bytes: int, *, counts_states: bool) -> StorageSettings:
    """Plain settings, under the rule of keyed streams or that of files."""
    if not counts_states:
        return replace(PLAIN, retained_checkpoints=retained, record_bytes=record_bytes)
    plain = {each.name: getattr(PLAIN, each.name) for each in fields(PLAIN)}
    return PipelineSettings(**(plain | {"retained_checkpoints": retained, "record_bytes": record_bytes}))


def _appended(table: StateTable, groups: Groups, rows: pa.Table, attempt: str) -> StateRows:
    """Each row of a batch as the table of arrivals keeps it."""
    order = pa.array(groups.order)
    subkeys = [rows[name].combine_chunks().take(order) for name in ("batch", "number")]
    marks = pa.array([attempt] * len(order), pa.string())
    owners = np.repeat(np.arange(len(groups)), groups.sizes)
    return subkey_changes(table, groups.keys, owners, subkeys, [marks], np.zeros(len(order), dtype=np.bool_))


class PipelineSystem(MicroBatchSystem):
    """One driver.

    Args:
        process: The simulated process it lives in.
        parallelism: Subtasks.
        retained: Checkpoints kept.
        counts_states: Whether only those count that changed state.
        rolling: When files are finished.
        merging: When runs are merged.
        places: Where its records and its files are.
        start: The savepoint from which a new root starts.
        tables: The tables of its operator, all of which count.
        inline_bytes: So many bytes of sections come with every other result.
        record_bytes: So many bytes of sections may be in a record.
    """

    def __init__(
        self,
        process: Process,
        parallelism: int,
        retained: int,
        rolling: RollingPolicy,
        merging: MergeSettings,
        places: Places = FIRST_QUERY,
        start: SavepointStart | None = None,
        tables: tuple[str, ...] = ("counts",),
        inline_bytes: int = 0,
        record_bytes: int = 0,
        *,
        counts_states: bool = True,
    ) -> None:
        self._process = process
        self._inline_bytes = inline_bytes
        self._places = places
        self._merging = merging
        self._tables = tables
        self._output = FileOutput(url="memory://out", format="arrow", compression="none", rolling=rolling)
        operator = replace(OperatorPlan.of("counts", CountingProgram("", tables)), output=self._output)
        self._plan = PipelinePlan(
            root_url="memory://root",
            parallelism=parallelism,
            max_parallelism=_MAX_PARALLELISM,
            graph=Graph.of_one_input([operator]),
            settings=_settings(retained, record_bytes, counts_states=counts_states),
            start=start,
        )
        self.upkeep = Upkeep(process.environment)
        self.coordinator = self._new_coordinator()

    def deliver(self, hand_over: Callable[[Delivery], None]) -> None:
        """Has the output handed to a function from here on, in place of files. Called before :meth:`start`."""
        operators = [replace(operator, output=None, delivers=True) for operator in self._plan.graph.operators]
        self._plan = replace(self._plan, graph=Graph.of_one_input(operators))
        self.coordinator = self._new_coordinator(hand_over)

    def into(self, table: TableTarget) -> None:
        """Has the output go into a table from here on, as files or as rows. Called before :meth:`start`."""
        operators = [
            replace(operator, table=table)
            if table.takes_files
            else replace(operator, output=None, delivers=True, table=table)
            for operator in self._plan.graph.operators
        ]
        self._plan = replace(self._plan, graph=Graph.of_one_input(operators))
        self.coordinator = self._new_coordinator()

    def _new_coordinator(self, hand_over: Callable[[Delivery], None] | None = None) -> MicroBatchCoordinator[list[Row]]:
        process = self._process
        return MicroBatchCoordinator(
            self._plan,
            CheckpointStore(process.store(self._places.root), environment=process.environment),
            {
                operator.name: process.store(self._places.out)
                for operator in self._plan.graph.operators
                if operator.output is not None
            },
            self.run_subtasks,
            process.environment,
            hand_over,
            self.upkeep,
        )

    def start(self) -> None:
        """See :meth:`MicroBatchSystem.start`."""
        self.coordinator.start()
        self.coordinator.check_tables()

    def run_batch(self, batch_id: int, offsets_digest: str, partitions: Sequence[Sequence[Row]]) -> None:
        """See :meth:`MicroBatchSystem.run_batch`."""
        rows = [row for partition in partitions for row in partition]
        self.coordinator.run_batch(
            Batch(query_id=self._places.query, batch_id=batch_id, offsets_digest=offsets_digest, data=rows)
        )

    def finish(self) -> None:
        """Finishes the files that are still open, as the end of a stream does."""
        root, out = self._process.store(self._places.root), self._process.store(self._places.out)
        segments = Segments(root, self._process.environment)
        self.coordinator.finish(file_finisher(segments, {"counts": (self._output, out)}))

    def run_subtasks(self, batch: Batch[list[Row]], tasks: Sequence[SubtaskInput]) -> list[SubtaskResult]:
        """Runs every subtask in a process of its own, on the rows whose keys it owns, in the order of this attempt."""
        program = CountingProgram(self._process.environment.ids.new_id(), self._tables)
        return self._process.run_tasks([self._function(program, task, batch.data) for task in tasks])

    def _function(
        self, program: CountingProgram, task: SubtaskInput, rows: Sequence[Row]
    ) -> Callable[[Process], SubtaskResult]:
        mine = [row for row in rows if self._subtask_of(row) == task.subtask]

        def run(process: Process) -> SubtaskResult:
            return run_subtask(self.context(process, task), self._plan, program, task, batches_of(mine))

        return run

    def context(self, process: Process, task: SubtaskInput) -> TaskResources:
        """What a task finds in the process in which it runs."""
        return TaskResources(
            root=process.store(self._places.root),
            output=process.store(self._places.out),
            environment=process.environment,
            merging=self._merging,
            open_runs=OpenRuns(),
            inline_bytes=self._inline_bytes if (task.context.checkpoint_id + task.subtask) % 2 else 0,
        )

    def _subtask_of(self, row: Row) -> int:
        group = group_of(row.key)
        return subtask_for_key_group(group, self._plan.parallelism, _MAX_PARALLELISM)


class PipelineAdapter(MicroBatchAdapter):
    """Connects :class:`PipelineSystem`.

    Args:
        retained: Checkpoints kept.
        rolling: When files are finished.
        places: Where its records and its files are.
        inline_bytes: So many bytes of sections come with every other result, and stay in the record.
        counts_states: Whether only checkpoints that changed state count as kept ones.
    """

    def __init__(
        self,
        retained: int = 2,
        rolling: RollingPolicy | None = None,
        places: Places = FIRST_QUERY,
        inline_bytes: int = 0,
        *,
        counts_states: bool = True,
    ) -> None:
        self._counts_states = counts_states
        self._inline_bytes = inline_bytes
        self._retained = retained
        self._rolling = rolling or RollingPolicy(every_checkpoint=True)
        self.places = places

    def open(self, process: Process, start: SavepointStart | None = None) -> PipelineSystem:
        """See :meth:`MicroBatchAdapter.open`."""
        parallelism = _PARALLELISMS[incarnation_of(process) % len(_PARALLELISMS)]
        second = incarnation_of(process) % 2
        merging = MergeSettings(runs_max=1 + second, piece_bytes=1 if second else 1 << 20)
        return PipelineSystem(
            process,
            parallelism,
            self._retained,
            self._rolling,
            merging,
            self.places,
            start,
            inline_bytes=self._inline_bytes,
            record_bytes=self._inline_bytes,
            counts_states=self._counts_states,
        )

    def newest(self, world: World) -> Checkpoint | None:
        """The newest record."""
        return CheckpointStore(world.objects(self.places.root)).latest()

    def finals(self, world: World) -> Iterable[str]:
        """See :meth:`MicroBatchAdapter.finals`."""
        return [info.name for info in world.objects(self.places.out).list("part-")]

    def rows(self, world: World, name: str) -> Sequence[tuple[Row, str]]:
        """See :meth:`MicroBatchAdapter.rows`."""
        try:
            data = world.objects(self.places.out).get(name)
        except NotFoundError:
            return ()
        read = pa.ipc.open_file(data).read_all().to_pylist()
        return [(Row(row["batch"], row["number"], row["key"]), row["attempt"]) for row in read]

    def remove_final(self, process: Process, name: str) -> None:
        """See :meth:`MicroBatchAdapter.remove_final`."""
        process.store(self.places.out).delete([name])

    def movable(self, world: World) -> Iterable[int]:
        """See :meth:`MicroBatchAdapter.movable`."""
        newest = self.newest(world)
        if newest is None:
            return []
        unsafe: set[str] = set()
        if not CheckpointStore(world.objects(self.places.root)).is_published(newest):
            unsafe = {file.commit.target for output in newest.outputs for file in output.finished}
        held = {row.batch for name in unsafe for row, _ in self.rows(world, name)}
        return [batch for batch in range(newest.batch_id + 1) if batch not in held]

    def decided(self, world: World) -> int:
        """See :meth:`MicroBatchAdapter.decided`."""
        newest = self.newest(world)
        return -1 if newest is None else newest.batch_id

    def state(self, world: World) -> Mapping[str, int]:
        """See :meth:`MicroBatchAdapter.state`."""
        return {row["key"]: row["count"] for row in self._state_rows(world)}

    def changed_by(self, world: World) -> Mapping[str, str]:
        """The attempt that last changed each key."""
        return {row["key"]: row["attempt"] for row in self._state_rows(world)}

    def _state_rows(self, world: World) -> Iterator[dict[str, Any]]:
        newest = self.newest(world)
        for table in () if newest is None else newest.operators[:1]:
            yield from rows_of(world.objects(self.places.root), table)

    def missing(self, world: World) -> Iterable[str]:
        """See :meth:`MicroBatchAdapter.missing`."""
        root = world.objects(self.places.root)
        newest = self.newest(world)
        return () if newest is None else [name for name in newest.object_names() if not _exists(root, name)]

    def unclean(self, world: World, batch_id: int) -> Iterable[str]:
        """See :meth:`MicroBatchAdapter.unclean`.

        Rounds and the end of a stream are records of the same batch, after its own; what they finish is not the
        batch's.
        """
        out = world.objects(self.places.out)
        records = [None, *CheckpointStore(world.objects(self.places.root)).list()]
        own = [
            record
            for before, record in itertools.pairwise(records)
            if record is not None
            and record.batch_id == batch_id
            and (record.checkpoint_id == 0 or (before is not None and before.batch_id < batch_id))
        ]
        parts = [
            part.name
            for record in own
            for output in record.outputs
            for file in output.finished
            for part in file.commit.parts
        ]
        return [name for name in parts if _exists(out, name)]


class Pipeline(MicroBatch):
    """The micro-batch scenario over the real coordinator; at its end the stream ends, and open files are finished.

    Args:
        spanning: Whether files span checkpoints; otherwise every checkpoint finishes its files.
        roll_bytes: Size at which a file that spans checkpoints is finished.
        more: As :class:`MicroBatch`.
    """

    name: ClassVar[str] = "pipeline"

    def __init__(self, *, spanning: bool = False, roll_bytes: int = 400, **more: Any) -> None:
        rolling = RollingPolicy(roll_bytes=roll_bytes) if spanning else RollingPolicy(every_checkpoint=True)
        self._pipeline = self._adapter(rolling)
        super().__init__(self._pipeline, **{"keys": 6, **more})

    def _adapter(self, rolling: RollingPolicy) -> PipelineAdapter:
        return PipelineAdapter(rolling=rolling)

    def may_replace(self, name: str, data: Buffer) -> bool:
        """See :meth:`Scenario.may_replace`."""
        return is_tombstone(name, data)

    def check(self, world: World) -> None:
        """See :meth:`Scenario.check`. One decision names output and state: both are of the same attempts."""
        super().check(world)
        newest: dict[str, tuple[int, str]] = {}
        for row, attempt in self.visible(world):
            newest[row.key] = max(newest.get(row.key, (-1, "")), (row.batch, attempt))
        wanted = {key: attempt for key, (_, attempt) in newest.items()}
        found = self._pipeline.changed_by(world)
        require(found == wanted, "C3", f"the state was changed by {found}, the rows were written by {wanted}")
        root = world.objects(self._pipeline.places.root)
        check_feeds(root, CheckpointStore(root).list())

    def _drive(self, process: Process, incarnation: int) -> None:
        super()._drive(process, incarnation)
        self.end(process)

    def end(self, process: Process) -> None:
        """The end of the stream."""
        self._pipeline.open(process).finish()


def rows_of(root: BlobStore, operator: OperatorState) -> Iterator[dict[str, Any]]:
    """The rows of a table as a record names them, past every cache."""
    schema = StateSchema.decode(operator.schema)
    reader = RunReader(root, schema, open_runs=OpenRuns())
    for subtask in operator.subtasks:
        runs = [reader.open(run) for run in subtask.runs]
        for batch in StateTable(schema, subtask.key_groups, _MAX_PARALLELISM, runs).scan():
            yield from batch.to_pylist()


def is_tombstone(name: str, data: Buffer) -> bool:
    """Whether this retires a record: the one overwrite of the house."""
    return name.endswith("/_metadata") and b'"stateline.retired"' in bytes(data[:200])


def batches_of(rows: Sequence[Row], attempt: str | None = None) -> Iterator[pa.RecordBatch]:
    """The rows as the engine hands them to a task, marked with an attempt; nothing for no rows."""
    if rows:
        yield pa.RecordBatch.from_pydict(
            {
                "batch": [row.batch for row in rows],
                "number": [row.number for row in rows],
                "key": [row.key for row in rows],
                "attempt": [attempt] * len(rows),
            },
            schema=ROWS,
        )


def _exists(store: BlobStore, name: str) -> bool:
    try:
        store.head(name)
    except NotFoundError:
        return False
    return True


def incarnation_of(process: Process) -> int:
    """Which driver of its world it is, from 0: the number in its name."""
    return int(process.name.partition("-")[2].partition("~")[0])


@functools.cache
def group_of(key: str) -> int:
    """The key group of a key."""
    hashes = key_rows(_SCHEMA, [pa.array([key])]).hashes
    return int(np.asarray(key_group_of(hashes, _MAX_PARALLELISM))[0])
