"""The driver's side of one micro-batch: decide once, publish as often as needed. No Spark in here.

One batch ``b``; its checkpoint gets the id that follows the newest one::

    1. what is the newest record?     b is decided already -> finish its publishing, return
                                      other query, other offsets, a gap -> a typed error, nothing happens
    2. run the subtasks               they make segments nobody else can name, and return handles
       pack                           small sections came with results: into one segment, or into the record
    3. publish the record             create-if-absent: THIS is the commit; losing it is FencedError
                                      then the floor is read: a stale driver that re-made a freed slot stops here
    4. publish the finished files     create-if-absent, verified, idempotent
       discard their pieces           by exact name, before the batch is acknowledged
       commit into tables             rows and a token in the table's own transaction, from what the record says
       deliver rows                   to functions of the user's own, under a key that never changes
       mark it published              so that files which a consumer has moved away since are not missed
       retain                         keep the newest records and all they reach; beside the next batch

A crash anywhere is answered by starting again: before 3 nothing has happened (garbage for the sweep), after 3 step 4 is
repeated for the newest record, by whichever driver comes next. ``abort`` does not exist.

End of stream: an input that has ended (``availableNow``) leaves files open that no later batch will roll. ``finish``
makes one more checkpoint of the same batch, with the same state and with the open files finished: the same record, the
same race, so a driver believed dead cannot go on filling files that its successor has finished. ``settle`` comes before
it and closes what the last watermark has passed, in the same way. Batch ids and checkpoint ids advance together and
differ by the number of such ends. ``act_on_time`` and ``roll`` do the same between two batches, in a stream that is
quiet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Generic, TypeVar

from stateline.blob import BlobStore
from stateline.changelog.host_cache import HostCache
from stateline.changelog.segment_writer import Segments
from stateline.checkpoint import (
    Checkpoint,
    CheckpointStore,
    SubtaskState,
    checkpoint_time,
)
from stateline.checkpoint.packing import packed
from stateline.checkpoint.position import carried_offsets, offsets_state
from stateline.environment import Environment
from stateline.errors import DataLossError, InternalError
from stateline.key_groups import check_parallelism, range_for_subtask
from stateline.pipeline.compatibility import Step, check_continuation, decided_earlier, next_properties, next_step
from stateline.pipeline.delivery import Delivery, deliveries_of
from stateline.pipeline.gathering import gathered
from stateline.pipeline.graph import OperatorPlan
from stateline.pipeline.history import HistoryRecorder, state_figures
from stateline.pipeline.lookups import LookupRoots
from stateline.pipeline.messages import (
    Batch,
    BatchReport,
    LookupSlice,
    SubtaskInput,
    SubtaskRunner,
    max_event_times,
    summed_metrics,
)
from stateline.pipeline.open_files import FinishFiles, due_files, files_by_subtask, files_due_at, with_files_finished
from stateline.pipeline.operators.api import BatchContext
from stateline.pipeline.plan import PipelinePlan
from stateline.pipeline.publishing import publish_files
from stateline.pipeline.savepoint_start import check_start, first_checkpoint
from stateline.pipeline.table_commits import TableCommits, check_tables
from stateline.pipeline.upkeep import Upkeep
from stateline.pipeline.watermarks import Watermarks
from stateline.state.rescale import rescale

__all__ = ["MicroBatchCoordinator"]

D = TypeVar("D")

_AT_ONCE: Final = 0
"""A time that has come."""


class MicroBatchCoordinator(Generic[D]):
    """Runs the protocol of the module docstring. Not thread-safe: one batch after the other.

    Args:
        plan: Operators and outputs.
        checkpoints: The root.
        outputs: Store of each operator that writes files, by operator name.
        run_subtasks: Runs the subtasks of a batch.
        environment: Clock for ages, ids for nonces.
        deliver: Hands over rows that a checkpoint delivers; called after the checkpoint exists, until it returns.
        upkeep: Where old checkpoints are let go beside the next batch; ``None`` for within their own.
        copies: The copies of this host; ``None`` for none.
        lookups: The other roots that its operators look into.
        history: Summarises its checkpoints; by default one for this coordinator alone.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        checkpoints: CheckpointStore,
        outputs: Mapping[str, BlobStore],
        run_subtasks: SubtaskRunner[D],
        environment: Environment,
        deliver: Callable[[Delivery], None] | None = None,
        upkeep: Upkeep | None = None,
        copies: HostCache | None = None,
        lookups: LookupRoots | None = None,
        history: HistoryRecorder | None = None,
    ) -> None:
        check_parallelism(plan.parallelism, plan.max_parallelism)
        self._plan = plan
        self._checkpoints = checkpoints
        self._outputs = dict(outputs)
        self._output_urls = {name: store.url for name, store in outputs.items()}
        self._run_subtasks = run_subtasks
        self._environment = environment
        self._deliver = deliver
        self._upkeep = upkeep
        self._lookups = lookups or LookupRoots({})
        self._history = history or HistoryRecorder(checkpoints.store, environment)
        self._segments = Segments(checkpoints.store, environment, copies=copies)
        self._tables = TableCommits(plan.graph, checkpoints.store, self._outputs, environment, copies)
        self._newest: Checkpoint | None = None
        self._started = False
        self._is_published = True
        self._next_timer_ms: int | None = _AT_ONCE  # Nobody knows what the newest record holds before a batch has run.

    @property
    def newest(self) -> Checkpoint | None:
        """The newest record this driver knows of; ``None`` for a new root or before :meth:`start`."""
        return self._newest

    def start(self, at_least: int | None = None) -> Checkpoint | None:
        """Finds the newest record, checks that it fits the plan, and finishes its publishing. Idempotent.

        Args:
            at_least: The id of a checkpoint that is known to exist: saves the listing of the root.

        Raises:
            CorruptDataError: The newest record cannot be read.
            InvalidInputError: The record's operators or outputs are not those of the plan.
        """
        if not self._started:
            newest = self._checkpoints.latest(at_least)
            if newest is not None:
                check_continuation(self._plan, newest, self._output_urls)
                check_tables(self._plan.graph, newest)
                self._is_published = self._checkpoints.is_published(newest)
            else:
                check_start(self._plan, self._checkpoints.store, self._outputs, self._environment)
            self._newest = newest
            self._started = True
        if self._newest is not None and not self._is_published:
            with self._fenced():
                self._publish(self._newest)
        return self._newest

    def check_tables(self) -> None:
        """Checks that tables can take the rows, and have those of all checkpoints, before anything runs.

        Raises:
            InvalidInputError: A table has other columns, was rolled back, or is another one.
            UnavailableError: A table cannot be reached.
        """
        self._tables.check(self._newest)

    def run_batch(self, batch: Batch[D]) -> BatchReport:
        """Processes one batch exactly once, however often it is called and by however many drivers.

        Returns:
            After the record exists, its files are visible, and their pieces are gone.

        Raises:
            FencedError: Another driver has decided this batch or a later one. Stop this query.
            InvalidInputError: See :func:`next_step`.
        """
        newest = self._caught_up(batch)
        if newest is None and batch.batch_id == 0 and self._plan.start is not None:
            newest = self.begin(batch.query_id)
        step = next_step(newest, batch, self._plan.root_url)
        if newest is not None and step is Step.FINISH_NEWEST:
            self._history.replayed()
            return BatchReport(checkpoint=newest, replayed=True)
        if newest is not None and step is Step.LOOK_BACK:
            earlier = decided_earlier(self._checkpoints.get, newest, batch, self._plan.root_url)
            self._history.replayed()
            return BatchReport(checkpoint=earlier, replayed=True)
        return self._run(newest, batch)

    def begin(self, query_id: str) -> Checkpoint:
        """Publishes the state of the plan's savepoint as the first checkpoint of a root without any.

        Raises:
            FencedError: Another driver was first.
        """
        first = first_checkpoint(self._plan, self._checkpoints, self._outputs, query_id, self._environment)
        self._newest = self._checkpoints.publish(first)
        return self._newest

    def _caught_up(self, batch: Batch[D]) -> Checkpoint | None:
        """The newest record, read again if the batch does not follow the one that this driver knows.

        Another driver over the same Spark checkpoint may have decided the batches in between since then.
        """
        newest = self.start()
        if batch.batch_id <= (0 if newest is None else newest.batch_id + 1):
            return newest
        self._started = False
        return self.start()

    def settle(self, no_rows: Callable[[], D]) -> BatchReport | None:
        """Closes what the newest watermark has passed, in one more checkpoint of the newest batch. Idempotent.

        A batch works with the watermark of the batches before it, so at the end of a stream something may be left
        that no further batch will close.

        Args:
            no_rows: Makes the rows of a batch without rows.

        Returns:
            What became of it; ``None`` if there was nothing to do.

        Raises:
            FencedError: Another driver went on from the record.
        """
        newest = self.start()
        return None if newest is None or not self._has_passed(newest) else self._run_again(newest, no_rows())

    def due_at(self) -> float | None:
        """From when on there is something to do without rows: seconds since the epoch, ``None`` for never."""
        times = (self._operators_due_at(), files_due_at(self._plan, self._newest))
        return min((at for at in times if at is not None), default=None)

    def act_on_time(self, no_rows: Callable[[], D], finish_files: FinishFiles | None = None) -> BatchReport | None:
        """Does what is due by now, in one more checkpoint of the newest batch.

        Args:
            no_rows: Makes the rows of a batch without rows. Only where operators have something to do; their subtasks
                finish the files that are due, too.
            finish_files: Finishes files where nothing else is due: operators are not run for that, since those of the
                complete mode would show all of their state again.

        Returns:
            What became of it; ``None`` if there was nothing to do.

        Raises:
            FencedError: Another driver went on from the record.
        """
        now, due = self._time(), self._operators_due_at()
        if self._newest is not None and due is not None and due <= now:
            return self._run_again(self._newest, no_rows())
        return None if finish_files is None else self.roll(finish_files)

    def roll(self, finish_files: FinishFiles, run_id: str = "") -> BatchReport | None:
        """Finishes the open files whose time has come, in one more checkpoint of the newest batch.

        Args:
            finish_files: Encodes and stages them.
            run_id: The run of the query, where it is to be told from others; see :func:`is_round_of`.

        Returns:
            What became of it; ``None`` if no file is due.

        Raises:
            FencedError: Another driver went on from the record.
        """
        newest = self.start()
        due = frozenset[str]() if newest is None else due_files(self._plan, newest, self._time())
        return None if newest is None or not due else self._finish(newest, due, finish_files, run_id)

    def _operators_due_at(self) -> float | None:
        if self._newest is None:
            return None
        if self._has_passed(self._newest):
            return _AT_ONCE
        acts = any(operator.acts_on_time for operator in self._plan.graph.operators)
        due = None if not acts or self._next_timer_ms is None else self._next_timer_ms / 1000
        return _AT_ONCE if due is not None and due <= self._newest.created_at else due  # Whatever the clock says.

    def _has_passed(self, newest: Checkpoint) -> bool:
        """Whether a watermark has passed something that no batch has closed yet."""
        return Watermarks.of(self._plan.graph, newest).wait_to_close()

    def _run_again(self, newest: Checkpoint, data: D) -> BatchReport:
        """The newest batch once more, with other rows: none."""
        again = Batch(
            query_id=newest.query_id,
            batch_id=newest.batch_id,
            offsets_digest=newest.offsets_digest,
            data=data,
            offsets=carried_offsets(newest),
        )
        return self._run(newest, again)

    def finish(self, finish_files: FinishFiles) -> Checkpoint | None:
        """Finishes the files that the newest record left open, at the end of the stream. Idempotent.

        Args:
            finish_files: Encodes and stages them.

        Returns:
            The newest record: a new one if files were open.

        Raises:
            FencedError: Another driver went on from the record, or finished it.
        """
        newest = self.start()
        targets = [file.target for output in newest.outputs for file in output.open] if newest is not None else []
        return newest if newest is None or not targets else self._finish(newest, targets, finish_files).checkpoint

    def _finish(
        self, newest: Checkpoint, targets: Collection[str], finish_files: FinishFiles, run_id: str = ""
    ) -> BatchReport:
        clock = self._environment.clock
        began = clock.monotonic()
        with self._fenced():
            record = with_files_finished(newest, targets, finish_files, self._environment, run_id)
            metrics = {"output_seconds": clock.monotonic() - began}
            record = self._history.summarised(newest, record, metrics, {})
            metrics |= self._commit(record)
        return BatchReport(checkpoint=record, replayed=False, metrics=metrics)

    def _time(self) -> float:
        """The time of the next checkpoint."""
        return checkpoint_time(self._environment.clock.now(), self._newest)

    @contextmanager
    def _fenced(self) -> Iterator[None]:
        """A step that finds data gone looks whether another driver went on, whose retention then deleted it.

        Raises:
            FencedError: So it is. Without that, the loss stands.
        """
        try:
            yield
        except DataLossError:
            if self._newest is not None:
                self._checkpoints.check_undecided(_next_id(self._newest))
            raise

    def _run(self, newest: Checkpoint | None, batch: Batch[D]) -> BatchReport:
        clock, plan = self._environment.clock, self._plan
        began, now = clock.monotonic(), self._time()
        watermarks = Watermarks.of(plan.graph, newest)
        with self._fenced():
            results = self._lookups.attempts(lambda: self._run_subtasks(batch, self._inputs(newest, now, watermarks)))
            computed = clock.monotonic()
            operators, outputs, deliveries = gathered(plan, self._output_urls, results)
            record = Checkpoint(
                checkpoint_id=_next_id(newest),
                batch_id=batch.batch_id,
                query_id=batch.query_id,
                offsets_digest=batch.offsets_digest,
                max_parallelism=plan.max_parallelism,
                parallelism=plan.parallelism,
                nonce=self._environment.ids.new_id(),
                created_at=now,
                operators=operators,
                outputs=outputs,
                deliveries=deliveries,
                inputs=watermarks.after(max_event_times(results)),
                properties=next_properties(plan, newest, self._output_urls),
                states=offsets_state(batch.batch_id, batch.offsets),
            )
            self._next_timer_ms = min((at for item in results if (at := item.next_timer_ms) is not None), default=None)
            record = packed(record, self._segments, plan.settings.record_bytes)
            record = self._tables.checked(record, newest, results)
            metrics = summed_metrics(results) | {
                "subtasks_seconds": computed - began,
                "pack_seconds": clock.monotonic() - computed,
            }
            record = self._history.summarised(newest, record, metrics, state_figures(results))
            return BatchReport(checkpoint=record, replayed=False, metrics=metrics | self._commit(record))

    def _commit(self, record: Checkpoint) -> dict[str, float]:
        """Steps 3 and 4; the seconds they took.

        What the last batch left to be done beside this one is done, or has failed, before this one is decided.
        """
        clock = self._environment.clock
        came = clock.monotonic()
        if self._upkeep is not None:
            self._upkeep.settle()
        began = clock.monotonic()
        self._checkpoints.publish(record)
        decided = clock.monotonic()
        self._newest, self._is_published = record, False
        self._publish(record)
        published = clock.monotonic()
        afterwards = partial(self._retain, self._history.writing())
        if self._upkeep is None:
            afterwards()
        else:
            self._upkeep.begin(afterwards)
        seconds = {
            "record_seconds": decided - began,
            "publish_seconds": published - decided,
            "retain_seconds": clock.monotonic() - published + began - came,
        }
        self._history.decided(record, seconds)
        return seconds

    def _retain(self, write_history: Callable[[], None]) -> None:
        """Lets old checkpoints go; before that, writes what is due of the history."""
        write_history()
        self._checkpoints.retain(self._plan.settings.retention)

    # -- step 2: subtasks -----------------------------------------------------------------------------------------

    def _inputs(self, newest: Checkpoint | None, now: float, watermarks: Watermarks) -> list[SubtaskInput]:
        inputs = []
        for operator in self._plan.graph.operators:
            files = files_by_subtask(newest, operator.name, self._plan.parallelism)
            states = {table: self._states(newest, operator.state_name(table)) for table in operator.tables}
            watermark = watermarks.of_operator(operator.name)
            context = BatchContext(
                checkpoint_id=_next_id(newest),
                now=now,
                watermark_us=watermark.current_us,
                late_watermark_us=watermark.late_us,
                earlier_checkpoints=0 if newest is None else newest.earlier_checkpoints,
                retracts=self._plan.graph.retracts(operator),
                forgets=operator.deletes,
            )
            inputs += [
                SubtaskInput(
                    operator=operator.name,
                    subtask=subtask,
                    states={table: stack[subtask] for table, stack in states.items()},
                    open_files=tuple(files.get(subtask, ())),
                    context=context,
                    lookups=self._lookup_slices(newest, operator, subtask),
                )
                for subtask in range(self._plan.parallelism)
            ]
        return inputs

    def _lookup_slices(self, newest: Checkpoint | None, operator: OperatorPlan, subtask: int) -> dict[str, LookupSlice]:
        parallelism, key_groups = self._plan.parallelism, self._plan.max_parallelism
        owned = range_for_subtask(subtask, parallelism, key_groups)
        return {
            name: self._lookups.slice(lookup, owned, key_groups)
            if lookup.root is not None
            else LookupSlice(
                state=self._states(newest, lookup.state)[subtask],
                max_parallelism=key_groups,
                checkpoint_id=_next_id(newest) - 1,
            )
            for name, lookup in operator.lookups.items()
        }

    def _states(self, newest: Checkpoint | None, name: str) -> Sequence[SubtaskState]:
        plan = self._plan
        stored = None if newest is None else newest.operator(name)
        if stored is not None:
            return rescale(stored, plan.parallelism, plan.max_parallelism)
        ranges = [range_for_subtask(index, plan.parallelism, plan.max_parallelism) for index in range(plan.parallelism)]
        return [SubtaskState(first_key_group=owned.start, last_key_group=owned.end) for owned in ranges]

    # -- step 4: publishing ---------------------------------------------------------------------------------------

    def _publish(self, record: Checkpoint) -> None:
        """Makes files visible, removes their pieces, delivers rows, and remembers that it did.

        The pieces go before the mark and the mark before the acknowledgement: a zombie that publishes late finds either
        the file or nothing to make it from, and a driver that starts later does not miss files that were moved away.
        """
        publish_files(record, self._outputs, self._tables, self._environment)
        self._tables.commit(record)
        for delivery in deliveries_of(record):
            if self._tables.takes_rows(delivery.key.operator):
                continue
            if self._deliver is None:
                raise InternalError("no function takes the rows", operation="publish", subject=str(delivery.key))
            self._deliver(delivery)
        if record.publishes:
            self._checkpoints.mark_published(record.checkpoint_id)
        self._is_published = True


def _next_id(newest: Checkpoint | None) -> int:
    return 0 if newest is None else newest.checkpoint_id + 1
