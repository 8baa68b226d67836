"""The driver's side of one micro-batch: decide once, publish as often as needed. No Spark in here.

Owns the protocol: which checkpoint a batch starts from, the one record that decides it, and what is published when.
Does not own how subtasks run (a function does), nor what they compute.

One batch ``b``; its checkpoint gets the id that follows the newest one::

    1. what is the newest record?     b is decided already -> finish its publishing, return
                                      other query, other offsets, a gap -> a typed error, nothing happens
    2. run the subtasks               they make segments nobody else can name, and return handles
       pack                           small sections came with results: into one segment, or into the record
    3. publish the record             create-if-absent: THIS is the commit; losing it is FencedError
                                      then the floor is read: a stale driver that re-made a freed slot stops here
    4. publish the finished files     create-if-absent, verified, idempotent
       discard their pieces           by exact name, before the batch is acknowledged
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

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, TypeVar

import msgspec

from stateline.blob import BlobStore
from stateline.changelog.host_cache import HostCache
from stateline.changelog.segment_writer import Segments
from stateline.checkpoint import Checkpoint, CheckpointStore, SubtaskState, checkpoint_time
from stateline.checkpoint.packing import packed
from stateline.environment import Environment, side_by_side
from stateline.errors import InternalError
from stateline.handles import CommitPoint, FinishedFile, OpenFile, RowsHandle
from stateline.key_groups import check_parallelism, range_for_subtask
from stateline.pipeline.compatibility import Step, check_continuation, decided_earlier, next_properties, next_step
from stateline.pipeline.delivery import Delivery, deliveries_of
from stateline.pipeline.event_time import Watermark
from stateline.pipeline.fencing import fenced_if_overtaken
from stateline.pipeline.open_files import FinishFiles, due_files, files_by_subtask, files_due_at, with_files_finished
from stateline.pipeline.plan import PipelinePlan
from stateline.pipeline.starting import check_start, first_checkpoint
from stateline.pipeline.subtask_results import gathered, max_event_time, summed_metrics
from stateline.pipeline.upkeep import Upkeep
from stateline.recoverable import RecoverableWriter
from stateline.state.rescale import rescale

__all__ = [
    "Batch",
    "BatchReport",
    "MicroBatchCoordinator",
    "SubtaskResult",
    "SubtaskRunner",
    "SubtaskTask",
]

D = TypeVar("D")

_AT_ONCE: Final = 0
"""A time that has come."""

_FILES_AT_ONCE: Final = 8
"""How many files are published side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Generic[D]):
    """One micro-batch as the engine hands it over.

    Attributes:
        query_id: Identity of the query, constant over restarts.
        batch_id: 0 and up, without gaps.
        offsets_digest: Digest of the source offsets of the batch.
        data: What the subtask runner needs to find the rows; not looked at here.
    """

    query_id: str
    batch_id: int
    offsets_digest: str
    data: D


class SubtaskTask(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one subtask of one operator needs to know, as plain values.

    Attributes:
        checkpoint_id: The checkpoint being made.
        operator: Name of the operator.
        subtask: 0 to ``parallelism - 1``.
        states: Its key groups and its runs so far, by table.
        open_files: Output files it goes on with.
        now: The checkpoint's wall-clock time, seconds since the epoch: the same for all subtasks.
        watermark_us: The watermark that holds for this batch, microseconds since the epoch; ``None`` without one.
        late_watermark_us: The one that held for the batch before: what lies at or below it is closed, and late.
        earlier_checkpoints: See :attr:`Checkpoint.earlier_checkpoints`.
    """

    checkpoint_id: int
    operator: str
    subtask: int
    states: dict[str, SubtaskState]
    open_files: tuple[OpenFile, ...]
    now: float
    watermark_us: int | None = None
    late_watermark_us: int | None = None
    earlier_checkpoints: int = 0


class SubtaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one subtask hands back: handles of durable sections, small sections themselves, and counts.

    Attributes:
        operator: Name of the operator.
        subtask: Index of the subtask.
        states: Its runs after the batch, by table.
        finished: Files to publish with the checkpoint.
        open: Files that go on.
        metrics: Counts and seconds by name, summed over subtasks in the report.
        max_event_time_us: The greatest event time of its rows, microseconds since the epoch; ``None`` for none.
        delivery: Its output rows, where they are handed to a function after the checkpoint; ``None`` for none.
        next_timer_ms: No timer by processing time comes before this, milliseconds since the epoch; ``None`` for none.
    """

    operator: str
    subtask: int
    states: dict[str, SubtaskState]
    finished: tuple[FinishedFile, ...] = ()
    open: tuple[OpenFile, ...] = ()
    metrics: dict[str, float] = {}
    max_event_time_us: int | None = None
    delivery: RowsHandle | None = None
    next_timer_ms: int | None = None


SubtaskRunner = Callable[[Batch[D], Sequence[SubtaskTask]], Sequence[SubtaskResult]]
"""Runs every subtask of a batch, each at least once, and returns one result for each: of an attempt that ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """What became of one batch.

    Attributes:
        checkpoint: The record that decides the batch, ours or an earlier attempt's.
        replayed: The batch had been decided before; nothing was computed.
        metrics: Sums of the subtasks' metrics, and the coordinator's own seconds by step.
    """

    checkpoint: Checkpoint
    replayed: bool
    metrics: Mapping[str, float] = field(default_factory=dict)


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
        self._segments = Segments(checkpoints.store, environment, copies=copies)
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
                self._is_published = self._checkpoints.is_published(newest)
            else:
                check_start(self._plan, self._checkpoints.store, self._outputs, self._environment)
            self._newest = newest
            self._started = True
        if self._newest is not None and not self._is_published:
            self._publish(self._newest)
        return self._newest

    @fenced_if_overtaken
    def run_batch(self, batch: Batch[D]) -> BatchReport:
        """Processes one batch exactly once, however often it is called and by however many drivers.

        Returns:
            After the record exists, its files are visible, and their pieces are gone.

        Raises:
            FencedError: Another driver has decided this batch or a later one. Stop this query.
            InvalidInputError: See :func:`next_step`.
        """
        newest = self.start()
        if newest is None and batch.batch_id == 0 and self._plan.start is not None:
            first = first_checkpoint(self._plan, self._checkpoints, self._outputs, batch.query_id, self._environment)
            newest = self._newest = self._checkpoints.publish(first)
        step = next_step(newest, batch, self._plan.root_url)
        if newest is not None and step is Step.FINISH_NEWEST:
            return BatchReport(checkpoint=newest, replayed=True)
        if newest is not None and step is Step.LOOK_BACK:
            earlier = decided_earlier(self._checkpoints.get, newest, batch, self._plan.root_url)
            return BatchReport(checkpoint=earlier, replayed=True)
        return self._run(newest, batch)

    @fenced_if_overtaken
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
        return None if newest is None or not self._is_passed(newest) else self._run_again(newest, no_rows())

    def due_at(self) -> float | None:
        """From when on there is something to do without rows: seconds since the epoch, ``None`` for never."""
        times = (self._operators_due_at(), files_due_at(self._plan, self._newest))
        return min((at for at in times if at is not None), default=None)

    @fenced_if_overtaken
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

    @fenced_if_overtaken
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
        if self._is_passed(self._newest):
            return _AT_ONCE
        acts = any(operator.acts_on_time for operator in self._plan.operators)
        due = None if not acts or self._next_timer_ms is None else self._next_timer_ms / 1000
        return _AT_ONCE if due is not None and due <= self._newest.created_at else due  # Whatever the clock says.

    def _is_passed(self, newest: Checkpoint) -> bool:
        """Whether the watermark has passed something that no batch has closed yet."""
        acts = any(operator.acts_on_watermark for operator in self._plan.operators)
        return acts and not Watermark.of(newest).is_applied

    def _run_again(self, newest: Checkpoint, data: D) -> BatchReport:
        """The newest batch once more, with other rows: none."""
        again = Batch(
            query_id=newest.query_id, batch_id=newest.batch_id, offsets_digest=newest.offsets_digest, data=data
        )
        return self._run(newest, again)

    @fenced_if_overtaken
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
        record = with_files_finished(newest, targets, finish_files, self._environment, run_id)
        metrics = {"output_seconds": clock.monotonic() - began} | self._commit(record)
        return BatchReport(checkpoint=record, replayed=False, metrics=metrics)

    def _time(self) -> float:
        """The time of the next checkpoint."""
        return checkpoint_time(self._environment.clock.now(), self._newest)

    def check_not_overtaken(self) -> None:
        """Raises :class:`FencedError` if another driver has decided the checkpoint that comes next."""
        if self._newest is not None:
            self._checkpoints.check_undecided(_next_id(self._newest))

    def _run(self, newest: Checkpoint | None, batch: Batch[D]) -> BatchReport:
        clock = self._environment.clock
        began, now = clock.monotonic(), self._time()
        results = self._run_subtasks(batch, self._tasks(newest, now))
        computed = clock.monotonic()
        operators, outputs, deliveries = gathered(results, self._plan, self._output_urls)
        watermark = Watermark.of(newest).after(self._plan.watermark, max_event_time(results))
        record = Checkpoint(
            checkpoint_id=_next_id(newest),
            batch_id=batch.batch_id,
            query_id=batch.query_id,
            offsets_digest=batch.offsets_digest,
            max_parallelism=self._plan.max_parallelism,
            parallelism=self._plan.parallelism,
            nonce=self._environment.ids.new_id(),
            created_at=now,
            operators=operators,
            outputs=outputs,
            deliveries=deliveries,
            watermark_us=watermark.current_us,
            properties=next_properties(self._plan, newest, self._output_urls),
            states=dict(watermark.states),
        )
        self._next_timer_ms = min((at for item in results if (at := item.next_timer_ms) is not None), default=None)
        record = packed(record, self._segments, self._plan.record_bytes)
        metrics = summed_metrics(results) | {"subtasks_seconds": computed - began}
        metrics |= {"pack_seconds": clock.monotonic() - computed}
        metrics.update(self._commit(record))
        return BatchReport(checkpoint=record, replayed=False, metrics=metrics)

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
        retain = partial(self._checkpoints.retain, self._plan.retained_checkpoints)
        if self._upkeep is None:
            retain()
        else:
            self._upkeep.begin(retain)
        return {
            "record_seconds": decided - began,
            "publish_seconds": published - decided,
            "retain_seconds": clock.monotonic() - published + began - came,
        }

    # -- step 2: tasks --------------------------------------------------------------------------------------------

    def _tasks(self, newest: Checkpoint | None, now: float) -> list[SubtaskTask]:
        tasks = []
        watermark = Watermark.of(newest)
        for operator in self._plan.operators:
            files = files_by_subtask(newest, operator.name, self._plan.parallelism)
            states = {table: self._states(newest, operator.state_name(table)) for table in operator.tables}
            tasks += [
                SubtaskTask(
                    checkpoint_id=_next_id(newest),
                    operator=operator.name,
                    subtask=subtask,
                    states={table: stack[subtask] for table, stack in states.items()},
                    open_files=tuple(files.get(subtask, ())),
                    now=now,
                    watermark_us=watermark.current_us,
                    late_watermark_us=watermark.applied_us,
                    earlier_checkpoints=0 if newest is None else newest.earlier_checkpoints,
                )
                for subtask in range(self._plan.parallelism)
            ]
        return tasks

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
        commits = [(output.operator, file.commit) for output in record.outputs for file in output.finished]
        side_by_side(self._environment, "stateline-publish", self._make_visible, commits, _FILES_AT_ONCE)
        for delivery in deliveries_of(record):
            if self._deliver is None:
                raise InternalError("there is nobody to deliver to", operation="publish", subject=str(delivery.key))
            self._deliver(delivery)
        if record.publishes:
            self._checkpoints.mark_published(record.checkpoint_id)
        self._is_published = True

    def _make_visible(self, of_operator: tuple[str, CommitPoint]) -> None:
        operator, commit = of_operator
        RecoverableWriter(self._outputs[operator]).recover_for_commit(commit).commit_after_recovery()


def _next_id(newest: Checkpoint | None) -> int:
    return 0 if newest is None else newest.checkpoint_id + 1
