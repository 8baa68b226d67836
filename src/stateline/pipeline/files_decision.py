"""What the file sink does with a micro-batch, without Spark: tasks make rows durable, one record decides.

The coordinator of keyed pipelines decides here too, with one operator that has files and no state.

Nothing that counts is kept in memory from one batch to the next: each commit is made of what the tasks handed over and
of what is in the store, so it may come twice, from any process, also from one that is believed dead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa
from msgspec.structs import replace

from stateline.blob import BlobStore
from stateline.changelog.host_cache import HostCache
from stateline.changelog.segment_writer import Segments
from stateline.checkpoint import Checkpoint, CheckpointStore
from stateline.environment import Environment
from stateline.errors import DataLossError, FencedError, InternalError, NotFoundError
from stateline.files import EncodingAhead, FileJoiner, FileOutput, FilesContext, FilesResult, FileWriter
from stateline.pipeline.coordinator import MicroBatchCoordinator
from stateline.pipeline.end_of_stream import file_finisher
from stateline.pipeline.graph import Graph, OperatorPlan
from stateline.pipeline.history import HistoryRecorder
from stateline.pipeline.messages import Batch, BatchReport, SubtaskInput, SubtaskResult
from stateline.pipeline.open_files import files_due_at, is_round_of
from stateline.pipeline.output_columns import columns_of
from stateline.pipeline.plan import PipelinePlan, StorageSettings
from stateline.tables import TableTarget, check_values

__all__ = ["FilesDecision", "files_plan"]

_OPERATOR: Final = "files"


class FilesDecision:
    """The sink of one query or job, in whatever process it is at the moment.

    Args:
        plan: One operator with files, as :func:`files_plan` makes it.
        root: Store of the records and of pending rows.
        out: Store of the output.
        schema: Schema of the rows.
        environment: Clock, ids and threads.
        records: The records in ``root``, where a process goes on with them: it remembers what it would have to list.
        ahead: Encodes files that are open while the process waits for its next commit.
        copies: The copies of this host; ``None`` for none.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        root: BlobStore,
        out: BlobStore,
        schema: pa.Schema,
        environment: Environment,
        records: CheckpointStore | None = None,
        ahead: EncodingAhead | None = None,
        copies: HostCache | None = None,
    ) -> None:
        self._records = records or CheckpointStore(root, environment=environment)
        self._plan = plan
        self._segments = Segments(root, environment, copies=copies)
        self._out = out
        self._schema = schema
        self._environment = environment
        self._ahead = ahead
        self._copies = copies

    def stage(self, batches: Iterable[pa.RecordBatch]) -> FilesResult:
        """A task's work: makes its rows durable. What is a whole file by itself is encoded here, in parallel."""
        writer = FileWriter(self._context(self._environment.clock.now()))
        (operator,) = self._plan.graph.operators
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            if operator.table is not None:
                check_values(rows, operator.table, "stateline_files")
            writer.write(rows)
        segment = self._segments.writer(self._plan.settings.inline_bytes)
        return writer.finish(segment).placed(segment.finish())

    def commit(
        self,
        made: Sequence[FilesResult],
        *,
        batch_id: int,
        offsets_digest: str,
        query_id: str = "",
        at_least: int | None = None,
        run_id: str = "",
    ) -> BatchReport:
        """The driver's work: decides a batch, exactly once however often it is called.

        A commit that loses its slot to a round of its own run goes on from that round. Only the driver that also called
        this commit marks a record with its run, Spark never runs two commits of one run at once, and what the round
        decided is compared, too. So a driver believed dead, and its rounds, fence this one as ever. Each round finishes
        a file and opens none, so a commit loses only so often.

        Args:
            made: What one attempt of each task handed over.
            batch_id: The batch.
            offsets_digest: Digest of its source offsets; empty if unknown.
            query_id: The query; empty if no task knew it, which then is the one of the newest record.
            at_least: The id of a checkpoint that is known to exist: saves the listing of the root.
            run_id: The run of the query; empty if its driver makes no rounds.

        Raises:
            FencedError: Another driver has decided this batch or a later one.
            InvalidInputError: The batch does not follow the newest one, or was decided with other offsets.
        """
        while True:
            coordinator = self.coordinator()
            newest = coordinator.start(at_least)
            batch = Batch(
                query_id=query_id or (newest.query_id if newest else self._plan.root_url),
                batch_id=batch_id,
                offsets_digest=offsets_digest,
                data=made,
            )
            try:
                report = coordinator.run_batch(batch)
                break
            except FencedError:
                if newest is None or not self._is_followed_by_round(newest, run_id):
                    raise
                at_least = newest.checkpoint_id + 1
        if not report.replayed:
            self._remove_unnamed(made, report.checkpoint)
        elif self._output.rolling.every_checkpoint:
            # The run that decided the batch left files open, and this run may end with this batch.
            finished = coordinator.finish(file_finisher(self._segments, {_OPERATOR: (self._output, self._out)}))
            report = BatchReport(checkpoint=finished or report.checkpoint, replayed=True)
        if self._ahead is not None:
            open_files = (file for output in report.checkpoint.outputs for file in output.open)
            self._ahead.go_on(self._output, self._segments, open_files)
        return report

    def _remove_unnamed(self, made: Sequence[FilesResult], decided: Checkpoint) -> None:
        """Removes rows that tasks made durable for files which were finished in this very batch.

        No record names them, so retention never would. Only whoever has just decided the batch knows that nobody else
        does: an attempt that finds it decided may have the names of an older record, and leaves its own to the sweep.
        """
        staged = {rows.name for each in made for file in each.open for rows in file.pending if not rows.is_inline}
        unnamed = staged.difference(decided.object_names())
        if unnamed:
            self._segments.store.delete(sorted(unnamed))

    def roll(self, *, query_id: str, run_id: str, quiet_seconds: float) -> float | None:
        """A round of the driver: finishes the files whose time has come, in one more record of the newest batch.

        Args:
            query_id: The query; a root of another one is left alone.
            run_id: The run of the query, by which its commits know the record.
            quiet_seconds: How old the newest record must be: a stream with rows finishes its files with its batches.

        Returns:
            When a file is due next, in seconds since the epoch; ``None`` if none is open.

        Raises:
            StatelineError: What the stores raise. Call it again later.
        """
        newest, now = self._records.latest(), self._environment.clock.now()
        if newest is None or newest.query_id != query_id:
            return None
        quiet_at = newest.created_at + quiet_seconds
        due = files_due_at(self._plan, newest)
        is_due = due is not None and due <= now
        if now < quiet_at or (not is_due and self._records.is_published(newest)):
            return None if due is None else max(due, quiet_at)
        coordinator = self.coordinator()
        (operator,) = self._plan.graph.operators
        tables = {} if operator.table is None else {_OPERATOR: operator.table}
        finish_files = file_finisher(self._segments, {_OPERATOR: (self._output, self._out)}, tables)
        try:
            coordinator.start(newest.checkpoint_id)  # Publishes what an earlier round decided and could not.
            coordinator.roll(finish_files, run_id)
        except (FencedError, DataLossError):
            # A batch came meanwhile: it has decided, or retention has freed what this round was reading.
            if self._records.latest(newest.checkpoint_id) == coordinator.newest:
                raise
            return now + quiet_seconds
        return files_due_at(self._plan, coordinator.newest)

    def _is_followed_by_round(self, record: Checkpoint, run_id: str) -> bool:
        try:
            return is_round_of(run_id, record, self._records.get(record.checkpoint_id + 1))
        except NotFoundError:
            return False  # It is retired already: who has slept for so long stops.

    def is_decided(self) -> bool:
        """Whether there is any record."""
        return self._records.latest() is not None

    def coordinator(self) -> MicroBatchCoordinator[Sequence[FilesResult]]:
        """A coordinator whose one subtask joins what the tasks made to the files that are open."""

        def join(batch: Batch[Sequence[FilesResult]], tasks: Sequence[SubtaskInput]) -> list[SubtaskResult]:
            (task,) = tasks
            # Whatever the clock of a task's host said: the ages of files are told by one clock.
            times = {"opened_at": task.context.now, "written_at": task.context.now}
            staged = [replace(file, **times) for made in batch.data for file in made.open]
            segment = self._segments.writer(self._plan.settings.inline_bytes)
            joiner = FileJoiner(self._context(task.context.now), task.open_files, staged)
            result = joiner.finish(segment).placed(segment.finish())
            finished = (*(file for made in batch.data for file in made.finished), *result.finished)
            return [SubtaskResult(operator=_OPERATOR, subtask=0, states={}, finished=finished, open=result.open)]

        # Each commit of Spark's has a coordinator, in a process of its own: that is no start of the query.
        history = HistoryRecorder(self._records.store, self._environment, is_new_run=False)
        return MicroBatchCoordinator(
            self._plan,
            self._records,
            {_OPERATOR: self._out},
            join,
            self._environment,
            copies=self._copies,
            history=history,
        )

    def _context(self, now: float) -> FilesContext:
        return FilesContext(
            output=self._output,
            schema=self._schema,
            store=self._out,
            segments=self._segments,
            now=now,
            ahead=self._ahead,
        )

    @property
    def _output(self) -> FileOutput:
        (operator,) = self._plan.graph.operators
        if operator.output is None:
            raise InternalError("the operator of a sink writes files", subject=operator.name)
        return operator.output


def files_plan(
    root_url: str,
    output: FileOutput,
    settings: StorageSettings,
    schema: pa.Schema | None = None,
    root_options: Mapping[str, str] | None = None,
    *,
    table: TableTarget | None = None,
) -> PipelinePlan:
    """The plan of a sink: one operator that has files and no state.

    Args:
        root_url: Root of the records.
        output: The files.
        settings: Of the sink.
        schema: Schema of the rows; ``None`` where none are written.
        root_options: Options of the root's store.
        table: The table that the files belong to; ``None`` for plain files.
    """
    columns = {} if schema is None else columns_of(output.named(schema))
    operator = OperatorPlan(
        name=_OPERATOR,
        tables={},
        definition="",
        output_schema=schema if columns else None,
        output=output,
        output_columns=columns,
        table=table,
    )
    return PipelinePlan(
        root_url=root_url,
        parallelism=1,
        max_parallelism=1,
        graph=Graph.of_one_input([operator]),
        settings=settings,
        root_options=root_options or {},
    )
