"""A query that writes drawn rows into a table, without Spark: the real ``write_table``, coordinator and commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa

from stateline.blob import BlobStore, open_store
from stateline.checkpoint import CheckpointStore
from stateline.environment import Environment
from stateline.pipeline.coordinator import MicroBatchCoordinator
from stateline.pipeline.graph import Graph, OperatorPlan
from stateline.pipeline.messages import Batch, SubtaskInput, SubtaskResult
from stateline.pipeline.operators.api import BatchContext, OperatorProgram, Processed
from stateline.pipeline.plan import PipelinePlan, PipelineSettings
from stateline.pipeline.subtask import TaskResources, run_subtask
from stateline.spark.pipeline import Pipeline
from stateline.spark.stream.outputs import StageOutputs
from stateline.state.open_runs import OpenRuns
from stateline.state.schema import StateSchema
from stateline.testing import ManualClock

__all__ = ["ID", "Query"]

ID: Final = "rid"
"""A column that every table has: it tells rows apart."""
_OPERATOR: Final = "rows"
_GONE: Final = "gone by now"
_NOW: Final = 1_750_000_000.0


@dataclass(frozen=True)
class _Rows(OperatorProgram):
    """Hands rows on. Those that are marked take earlier ones back."""

    rows: pa.Schema

    @property
    def key_columns(self) -> tuple[str, ...]:
        return (ID,)

    @property
    def input_columns(self) -> tuple[str, ...]:
        return (*self.rows.names, _GONE)

    @property
    def wants_hash(self) -> bool:
        return False

    @property
    def emits(self) -> Any:
        return "updates"

    @property
    def tables(self) -> Mapping[str, StateSchema]:
        return {}

    @property
    def definition(self) -> str:
        return "rows"

    @property
    def output_schema(self) -> pa.Schema:
        return self.rows

    def process(self, batches: Iterable[pa.RecordBatch], tables: Any, context: BatchContext) -> Processed:
        found = list(batches)
        if not found:
            return Processed(changes={})
        given = pa.Table.from_batches(found)
        marks = given[_GONE]
        rows = given.drop_columns([_GONE])
        gone = rows.filter(marks)
        return Processed(
            changes={}, output=rows.filter(pa.compute.invert(marks)), retracted=gone if gone.num_rows else None
        )


class Query:
    """A query with a root of its own.

    Args:
        schema: Of the rows.
        root: URL of the store of its records.
        parallelism: Subtasks.
        table: The arguments of ``write_table``; ``None`` for plain files.
        files: The arguments of ``write_files``.

    Raises:
        StatelineError: ``write_table`` refuses them.
    """

    def __init__(
        self,
        schema: pa.Schema,
        root: str,
        *,
        parallelism: int = 1,
        table: Mapping[str, Any] | None = None,
        files: Mapping[str, Any] | None = None,
    ) -> None:
        self._schema = schema
        self._program = _Rows(schema)
        self.root: BlobStore = open_store(root)
        self._environment = Environment(clock=ManualClock(_NOW))
        graph = Graph.of_one_input([OperatorPlan.of(_OPERATOR, self._program)])
        operator = graph.operator(_OPERATOR)
        plan = PipelinePlan(
            root_url=root,
            parallelism=parallelism,
            max_parallelism=8,
            graph=graph,
            settings=PipelineSettings(retained_checkpoints=3),
        )
        frames: Any = {_OPERATOR: SimpleNamespace(sparkSession=None)}
        stage = StageOutputs(Pipeline(plan, frames, {_OPERATOR: self._program}), operator, self._program)
        written = stage.write_table(**table) if table is not None else stage.write_files(**files or {})
        self._plan: PipelinePlan = written.plan
        (made,) = self._plan.graph.operators
        self._out = None if made.output is None else open_store(made.output.url, {"fsync": "false"})
        self._coordinator = self._driver()
        newest = self.newest
        self._number = 0 if newest is None else newest + 1

    @property
    def newest(self) -> int | None:
        """The id of the newest record."""
        found = CheckpointStore(self.root).latest()
        return None if found is None else found.checkpoint_id

    def run(self, rows: pa.Table, gone: pa.Table | None = None) -> None:
        """Commit one batch.

        Args:
            rows: Rows that come.
            gone: Rows that the operator takes back.

        Raises:
            StatelineError: The batch failed.
        """
        parts = [(rows, False)] + ([(gone, True)] if gone is not None and gone.num_rows else [])
        data = pa.concat_tables(
            [each.append_column(_GONE, pa.array([mark] * each.num_rows, pa.bool_())) for each, mark in parts]
        )
        batch = Batch(query_id="q", batch_id=self._number, offsets_digest=f"{self._number:064}", data=data)
        self._coordinator.run_batch(batch)
        self._number += 1

    def start(self) -> None:
        """Begin, as a program does: finish what an earlier one decided, and check the table.

        Raises:
            StatelineError: It refuses to go on.
        """
        self._coordinator = self._driver()
        self._coordinator.start()
        self._coordinator.check_tables()

    def close(self) -> None:
        """Close the stores."""
        self.root.close()
        if self._out is not None:
            self._out.close()

    def _driver(self) -> MicroBatchCoordinator[pa.Table]:
        outputs = {} if self._out is None else {_OPERATOR: self._out}
        store = CheckpointStore(self.root, environment=self._environment)
        return MicroBatchCoordinator(self._plan, store, outputs, self._run_subtasks, self._environment)

    def _run_subtasks(self, batch: Batch[pa.Table], inputs: Sequence[SubtaskInput]) -> list[SubtaskResult]:
        resources = TaskResources(
            root=self.root,
            output=self._out,
            environment=self._environment,
            open_runs=OpenRuns(),
            inline_bytes=self._plan.subtask_inline_bytes,
        )
        owners = pa.compute.cast(batch.data[ID], pa.int64()).to_pylist()
        results = []
        for given in inputs:
            mine = batch.data.filter(pa.array([owner % len(inputs) == given.subtask for owner in owners], pa.bool_()))
            batches = mine.to_batches() if mine.num_rows else []
            results.append(run_subtask(resources, self._plan, self._program, given, batches))
        return results
