"""One operator on lists of rows, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from stateline.blob import BlobStore
from stateline.files import FileOutput
from stateline.key_groups import hash_columns, key_group_of
from stateline.pipeline.delivery import BatchKey, Delivery
from stateline.pipeline.event_time import WatermarkPlan
from stateline.pipeline.graph import Graph, OperatorPlan
from stateline.pipeline.messages import Batch, BatchReport, SubtaskInput, SubtaskResult
from stateline.pipeline.operators.api import HASH_COLUMN, OperatorProgram
from stateline.pipeline.subtask import run_subtask
from stateline.testing.graph_harness import PipelineHarness, Row, Rows, table_of

__all__ = ["OperatorHarness", "StageHarness"]

_OPERATOR: Final = "op"


class StageHarness(PipelineHarness):
    """One driver of a graph, seen from one of its operators: rows of the streams go in, rows of that operator come out.

    Args:
        name: The operator.
        graph: Inputs and operators.
        programs: What each operator computes, by name.
        schemas: Of the rows of each input, by its name.
        deliver: Called with the rows of a checkpoint and their key, in place of keeping them in :attr:`outputs`.
        initial: Rows for the first batch of a new root, of an operator that is alone.
        more: As :class:`~stateline.testing.graph_harness.PipelineHarness`: ``root``, ``parallelism``,
            ``max_parallelism``, ``settings``, ``environment``, ``copies``.

    Attributes:
        name: The operator.
        program: What it computes.
    """

    def __init__(
        self,
        name: str,
        graph: Graph,
        programs: Mapping[str, OperatorProgram],
        schemas: Mapping[str, pa.Schema],
        *,
        deliver: Callable[[list[dict[str, Any]], BatchKey], None] | None = None,
        initial: pa.Table | None = None,
        **more: Any,
    ) -> None:
        super().__init__(graph, programs, schemas, **more)
        self.name = name
        self.program = programs[name]
        self._deliver = deliver
        self._initial = initial

    @property
    def outputs(self) -> Mapping[int, list[dict[str, Any]]]:
        """Rows that came out, by checkpoint."""
        return {checkpoint: rows[self.name] for checkpoint, rows in self._rows.items() if self.name in rows}

    def run_batch(self, *rows: Iterable[Row], batch_id: int | None = None) -> list[dict[str, Any]]:
        """Processes one micro-batch and commits it.

        Args:
            rows: Its rows, of each stream: in the order in which the program reads them.
            batch_id: Of an earlier batch, which Spark gives again after a crash: its record stands, and nothing is
                computed. By default the number that follows the newest.

        Returns:
            What came out of it, in no order that means anything.

        Raises:
            StatelineError: The batch failed, and nothing of it is kept. The same batch can be run again.
        """
        return self._output_of(self.report_batch(*rows, batch_id=batch_id))

    def report_batch(self, *rows: Iterable[Row], batch_id: int | None = None) -> BatchReport:
        """As :meth:`run_batch`; returns the report with the checkpoint."""
        return self._report(dict(zip(self._schemas, rows, strict=False)), batch_id)

    def advance_time(self, seconds: float = 0.0) -> list[dict[str, Any]]:
        """Lets time pass while no rows come: timers fire that are due, windows close that the watermark has passed.

        Args:
            seconds: How long. 0 does what is due already.

        Returns:
            What came out.

        Raises:
            InvalidInputError: The harness was given an environment without a ``ManualClock``.
        """
        return self._output_of(self._passed(seconds))

    def finish(self) -> list[dict[str, Any]]:
        """Ends the stream as ``availableNow`` does: closes what the last watermark has passed.

        Returns:
            What came out.
        """
        return self._output_of(self._finished())

    def state(self, name: str | None = None) -> list[dict[str, Any]]:
        """The live rows of a state table in the newest checkpoint: key columns and values, in no order.

        Args:
            name: Of a processor's state variable, ``timers``, or a table; not needed where there is only one.

        Raises:
            InvalidInputError: The operator has no such table, or several and no name was given.
        """
        return self._state(self.name, name)

    def _output_of(self, report: BatchReport | None) -> list[dict[str, Any]]:
        return self._rows_of(report).get(self.name, [])

    def _hand_over(self, delivery: Delivery) -> None:
        if self._deliver is None or delivery.key.operator != self.name:
            super()._hand_over(delivery)
        else:
            self._deliver(self._loaded(delivery), delivery.key)

    def _run_subtasks(self, batch: Batch[Rows], inputs: Sequence[SubtaskInput]) -> list[SubtaskResult]:
        if self._initial is None or inputs[0].context.checkpoint_id != 0:
            return super()._run_subtasks(batch, inputs)
        rows = self._with_initial(
            table_of(next(iter(batch.data.values()), ()), next(iter(self._schemas.values()))), self._initial
        )
        groups = key_group_of(rows.column(HASH_COLUMN).to_numpy().view("uint64"), self.plan.max_parallelism)
        owners = groups * len(inputs) // self.plan.max_parallelism
        results = []
        for given in inputs:
            mine = rows.filter(pa.array(owners == given.subtask))
            batches = mine.to_batches() if mine.num_rows else []
            resources = self._resources(self.name, given.subtask)
            results.append(run_subtask(resources, self.plan, self.program, given, batches))
        return results

    def _with_initial(self, rows: pa.Table, initial: pa.Table) -> pa.Table:
        keys = self.program.key_columns
        sent = rows.select(list(self.program.input_columns))
        return _with_initial(sent, _hashes(rows, keys), initial, _hashes(initial, keys))


class OperatorHarness(StageHarness):
    """One driver of one operator over one stream.

    Give ``root`` the store of another harness, and this one goes on from its newest checkpoint.

    Args:
        program: What is computed.
        schema: Of the rows.
        watermark: The watermark of the stream, if it has one.
        output: Files that get the output, in place of :attr:`outputs`.
        more: As :class:`StageHarness`.

    Attributes:
        schema: Of the rows.
        operator: How the plan describes the operator.
        files: Store of the files, if there are any.
    """

    def __init__(
        self,
        program: OperatorProgram,
        schema: pa.Schema,
        *,
        watermark: WatermarkPlan | None = None,
        output: FileOutput | None = None,
        **more: Any,
    ) -> None:
        operator = replace(OperatorPlan.of(_OPERATOR, program), output=output)
        graph = Graph.of_one_input([operator], watermark)
        super().__init__(_OPERATOR, graph, {_OPERATOR: program}, {_OPERATOR: schema}, **more)
        self.schema = schema
        self.operator = self.plan.graph.operator(_OPERATOR)
        self.files: BlobStore | None = self._stores.get(_OPERATOR)


def _hashes(rows: pa.Table, keys: Sequence[str]) -> pa.Array:
    return pa.array(hash_columns([rows.column(name).combine_chunks() for name in keys]).view("int64"))


def _with_initial(rows: pa.Table, hashes: pa.Array, initial: pa.Table, initial_hashes: pa.Array) -> pa.Table:
    """Both kinds of rows, each in a struct column of its own that is null in rows of the other kind."""
    from stateline.spark.columns.initial_state import INITIAL_COLUMN, INPUT_COLUMN  # noqa: PLC0415 - only processors

    mine, first = (pa.struct(list(table.schema)) for table in (rows, initial))
    schema = pa.schema([(INPUT_COLUMN, mine), (INITIAL_COLUMN, first), (HASH_COLUMN, pa.int64())])
    packed = [
        [pa.array(rows.to_pylist(), mine), pa.nulls(rows.num_rows, first), hashes],
        [pa.nulls(initial.num_rows, mine), pa.array(initial.to_pylist(), first), initial_hashes],
    ]
    return pa.concat_tables([pa.Table.from_arrays(columns, schema=schema) for columns in packed])
