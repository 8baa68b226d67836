"""When uploads run, and together with which others.

Owns the queue, the batches, the limit of bytes in flight and the waiting of writers. Does not own attempts
(``retry``) or objects (``uploader``).

Invariants:
- Every task that was given to :meth:`upload` is completed or failed exactly once, whatever happens.
- Bytes in flight (queued or being uploaded) never exceed the limit; a single task above it goes alone. Writers that
  wait for room are served in the order of their arrival, so a large task is not overtaken for ever.
- A batch becomes one object. It has at most ``persist_size_threshold`` bytes, unless a single task has more.
- The delay counts from the first task of a batch; later tasks do not extend it.
- No callback, no availability future and no upload is started while the monitor is held.
- A caller may be interrupted between any two steps (Ctrl-C). Its thread only queues, all or nothing, after a timer was
  started for it; batches are made and started by other threads, which nothing interrupts.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor as PlainPool
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from stateline.changelog.api import (
    AvailabilityProvider,
    SequenceNumber,
    StateChangeUploader,
    StateChangeUploadScheduler,
    UploadResult,
    UploadTasksResult,
)
from stateline.changelog.metrics import ChangelogMetrics
from stateline.changelog.outcomes import closed_scheduler, end_tasks, inherited_scheduler, outcomes_of
from stateline.changelog.retry import RetryingExecutor, RetryPolicy
from stateline.changelog.settings import ChangelogSettings
from stateline.changelog.throttle import UploadThrottle
from stateline.changelog.upload_task import UploadTask
from stateline.environment import (
    Cancellable,
    Clock,
    Environment,
    Executor,
    executor_of,
    system_environment,
)
from stateline.options import check_kind

__all__ = ["batching_scheduler", "direct_scheduler", "scheduler_from_options"]

_LOG = logging.getLogger(__name__)

MAX_BATCH_CHANGE_SETS: Final = 16_384
"""Change sets in one batch, however small they are: each is a frame of the object."""


def direct_scheduler(uploader: StateChangeUploader) -> StateChangeUploadScheduler:
    """Uploads each task at once, in the caller's thread, without a limit and without retries."""
    return _DirectScheduler(uploader)


def batching_scheduler(
    uploader: StateChangeUploader,
    settings: ChangelogSettings | None = None,
    *,
    executor: Executor | PlainPool | None = None,
    clock: Clock | None = None,
    metrics: ChangelogMetrics | None = None,
    environment: Environment | None = None,
) -> StateChangeUploadScheduler:
    """Collects the tasks of many writers into few objects, and retries.

    Args:
        uploader: Closed together with the scheduler.
        settings: Delay, thresholds, limit, retries and number of threads.
        executor: Where uploads and timers run: one of ``stateline.environment``, or a pool of ``concurrent.futures``;
            by default a pool of ``environment``, closed with the scheduler.
        clock: For waiting times; by default that of ``environment``.
        metrics: Where to count.
        environment: The world; the real one by default.
    """
    settings = ChangelogSettings() if settings is None else settings
    check_kind(settings, ChangelogSettings, "settings")
    return _BatchingScheduler(
        uploader,
        settings,
        executor=executor,
        clock=clock,
        metrics=metrics or ChangelogMetrics(),
        environment=environment or system_environment(),
    )


def scheduler_from_options(
    uploader: StateChangeUploader,
    options: ChangelogSettings | Mapping[str, str] | None = None,
    *,
    executor: Executor | PlainPool | None = None,
    clock: Clock | None = None,
    metrics: ChangelogMetrics | None = None,
    environment: Environment | None = None,
) -> StateChangeUploadScheduler:
    """The scheduler that the option ``scheduler`` names: ``batching`` (the default) or ``direct``.

    Raises:
        InvalidInputError: An unknown option or a bad value.
    """
    if not isinstance(options, ChangelogSettings):
        options = ChangelogSettings.from_options({} if options is None else options)
    if options.scheduler == "direct":
        return direct_scheduler(uploader)
    return batching_scheduler(
        uploader, options, executor=executor, clock=clock, metrics=metrics, environment=environment
    )


class _AlwaysAvailable:
    """The availability of a scheduler without a limit."""

    @property
    def available(self) -> bool:
        return True

    def availability_future(self) -> Future[None]:
        return _done()


class _DirectScheduler:
    """See :func:`direct_scheduler`."""

    def __init__(self, uploader: StateChangeUploader) -> None:
        self._uploader = uploader
        self._process = os.getpid()
        self._closed = False
        self.availability: AvailabilityProvider = _AlwaysAvailable()

    def upload(self, task: UploadTask) -> None:
        """See :meth:`StateChangeUploadScheduler.upload`."""
        if self._closed or self._process != os.getpid():
            task.fail(closed_scheduler() if self._closed else inherited_scheduler())
            return
        try:
            result = self._uploader.upload([task])
        except BaseException as error:
            task.fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            end_tasks(outcomes_of(result, [task]))

    def close(self) -> None:
        """See :meth:`StateChangeUploadScheduler.close`."""
        self._closed = True
        self._uploader.close()


@dataclass(eq=False, slots=True)
class _Queued:
    """A task in the scheduler.

    Attributes:
        task: Wraps the writer's own, so that its end gives the room back first.
        arrived_at: When it was queued.
        batch_bytes: Of it and those before it that are meant for the same batch.
        ends_batch: Whether its batch is full with it.
    """

    task: UploadTask
    arrived_at: float
    batch_bytes: int
    ends_batch: bool


class _BatchingScheduler:
    """See :func:`batching_scheduler`."""

    def __init__(
        self,
        uploader: StateChangeUploader,
        settings: ChangelogSettings,
        *,
        executor: Executor | PlainPool | None,
        clock: Clock | None,
        metrics: ChangelogMetrics,
        environment: Environment,
    ) -> None:
        self._uploader = uploader
        self._settings = settings
        self._policy = RetryPolicy.of(settings)
        self._metrics = metrics
        self._clock = clock or environment.clock
        self._executor = executor_of(executor, environment, "changelog-upload", settings.num_upload_threads)
        self._owns_executor = self._executor is not executor
        self._retrying = RetryingExecutor(
            executor=self._executor, clock=self._clock, metrics=metrics, environment=environment
        )
        self._monitor = environment.executors.monitor()
        self._throttle = UploadThrottle(settings.max_in_flight)
        self._waiting: deque[object] = deque()
        self._queue: deque[_Queued] = deque()
        self._queued_bytes = 0
        self._unfinished: dict[UploadTask, None] = {}
        self._timer: Cancellable | None = None
        self._broken: BaseException | None = None
        self._process = os.getpid()
        self._closed = False
        self._room: Future[None] = _done()
        self.availability: AvailabilityProvider = self

    # -- availability ---------------------------------------------------------------------------------------------

    @property
    def available(self) -> bool:
        """See :attr:`AvailabilityProvider.available`."""
        with self._monitor:
            return self._throttle.has_capacity or self._refuses

    def availability_future(self) -> Future[None]:
        """See :meth:`AvailabilityProvider.availability_future`."""
        with self._monitor:
            return _done() if self._refuses else self._room

    # -- taking tasks ---------------------------------------------------------------------------------------------

    def upload(self, task: UploadTask) -> None:
        """See :meth:`StateChangeUploadScheduler.upload`."""
        try:
            refusal = self._enqueue(task)
        except BaseException as error:  # The caller was interrupted, as a rule while it waited for room.
            if not task.taken:
                task.fail(error)
            raise
        if refusal is not None:
            task.fail(refusal)

    def _enqueue(self, task: UploadTask) -> BaseException | None:
        """Queues the task as soon as there is room; returns the reason if it never will be."""
        if self._process != os.getpid():
            return inherited_scheduler()
        arrived = self._clock.monotonic()
        with self._monitor:
            blocked = bool(self._waiting) or not self._throttle.fits(task.size)
        if blocked:
            self._drain_soon(only_full=False)  # What waits for its batch would only hold the room that we need.
        with self._monitor:
            if not self._wait_for_room(task.size):
                return self._broken or closed_scheduler()
            queued = self._queued(task)
            self._start_timer()
            self._admit(task, queued)
            self._show_gauges()
        if queued.ends_batch or self._timer is None:
            self._drain_soon(only_full=queued.ends_batch)
        self._metrics.histogram("capacity_wait_seconds").record(self._clock.monotonic() - arrived)
        return None

    def _admit(self, task: UploadTask, queued: _Queued) -> None:
        """Queues the task, or leaves everything as it was."""
        in_flight, queued_bytes = self._throttle.in_flight, self._queued_bytes
        try:
            self._throttle.seize(task.size)
            if not self._throttle.has_capacity and self._room.done():
                self._room = _Room()
            self._unfinished[queued.task] = None
            self._queued_bytes += task.size
            self._queue.append(queued)
            task.taken = True
        except BaseException:
            if self._queue and self._queue[-1] is queued:
                self._queue.pop()
            self._queued_bytes = queued_bytes
            self._unfinished.pop(queued.task, None)
            if self._throttle.in_flight != in_flight:
                self._throttle.release(task.size)
            raise

    def _wait_for_room(self, size: int) -> bool:
        """Waits, in the order of arrival; ``False`` if the scheduler is closed or broken."""
        ticket = object()
        try:
            self._waiting.append(ticket)
            self._monitor.wait_for(lambda: self._refuses or (self._waiting[0] is ticket and self._throttle.fits(size)))
        finally:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            self._monitor.notify_all()
        return not self._refuses

    @property
    def _refuses(self) -> bool:
        return self._closed or self._broken is not None or self._process != os.getpid()

    def _wrap(self, task: UploadTask) -> UploadTask:
        def succeed(results: list[UploadResult]) -> None:
            self._finished(wrapped)
            task.complete(results)

        def fail(_: list[SequenceNumber], error: BaseException) -> None:
            self._finished(wrapped)
            task.fail(error)

        wrapped = UploadTask(task.change_sets, succeed, fail)
        return wrapped

    def _finished(self, task: UploadTask) -> None:
        """Gives the room of a task back, once, and tells whoever waits for it."""
        with self._monitor:
            self._unfinished.pop(task, None)
            self._throttle.release(task.size)
            room = self._take_room() if self._throttle.has_capacity else None
            self._show_gauges()
            self._monitor.notify_all()
        if room is not None:
            room.set_result(None)

    def _take_room(self) -> Future[None] | None:
        """The future that somebody may wait for, to be completed by the caller alone; ``None`` if it is done."""
        if self._room.done():
            return None
        room, self._room = self._room, _done()
        return room

    # -- starting batches -----------------------------------------------------------------------------------------

    def _queued(self, task: UploadTask) -> _Queued:
        batch_bytes = task.size
        if self._queue and not self._queue[-1].ends_batch:
            batch_bytes += self._queue[-1].batch_bytes
        full = self._settings.persist_delay == 0 or batch_bytes >= self._settings.persist_size_threshold
        ends_batch = full or bool(self._waiting) or self._refuses
        return _Queued(self._wrap(task), self._clock.monotonic(), batch_bytes, ends_batch)

    def _start_timer(self) -> None:
        """Lets the queue wait for more tasks, but not for ever, whatever happens to the thread that queues."""
        old = self._timer
        if old is None or (self._queue and self._queue[-1].ends_batch):
            try:
                self._timer = self._executor.call_later(self._settings.persist_delay, self._timer_fired)
            except Exception as error:  # noqa: BLE001 - from an executor of whatever kind
                _LOG.debug("a batch does not wait for more tasks: %s", error)
                return
            if old is not None:
                old.cancel()

    def _drain_soon(self, *, only_full: bool) -> None:
        try:
            self._executor.submit(self._drain, only_full)
        except Exception as error:  # noqa: BLE001 - from an executor of whatever kind
            _LOG.debug("batches are started by whoever fills them: %s", error)
            self._drain()

    def _timer_fired(self) -> None:
        with self._monitor:
            self._timer = None
        self._drain()

    def _drain(self, only_full: bool = False) -> None:
        """Starts everything that is queued, or full batches only. Empty queues start nothing, so no object is empty."""
        timer = None
        with self._monitor:
            count = len(self._queue)
            while only_full and count and not self._queue[count - 1].ends_batch:
                count -= 1
            queued = [self._queue.popleft() for _ in range(count)]
            self._queued_bytes -= sum(item.task.size for item in queued)
            if not self._queue:
                timer, self._timer = self._timer, None
            self._show_gauges()
        if timer is not None:
            timer.cancel()
        for batch in _batches(queued, self._settings.persist_size_threshold):
            self._start(batch)

    def _start(self, batch: Sequence[_Queued]) -> None:
        self._metrics.histogram("upload_batch_tasks").record(len(batch))
        action = _BatchUpload(batch, self._uploader, self._clock, self._metrics)
        try:
            self._retrying.execute(self._policy, action)
        except Exception as error:  # noqa: BLE001 - a defect: every task and every later upload gets it
            with self._monitor:
                self._broken = error
                self._monitor.notify_all()
            for item in batch:
                item.task.fail(error)

    def _show_gauges(self) -> None:
        self._metrics.gauge("upload_queue_tasks").set(len(self._queue))
        self._metrics.gauge("upload_queue_bytes").set(self._queued_bytes)
        self._metrics.gauge("in_flight_bytes").set(self._throttle.in_flight)

    def close(self) -> None:
        """See :meth:`StateChangeUploadScheduler.close`."""
        with self._monitor:
            if self._closed:
                return
            self._closed = True
            if self._process != os.getpid():
                return  # Tasks, attempts and futures are those of the process that was forked.
            room = self._take_room()
            timer, self._timer = self._timer, None
            self._queue.clear()
            self._queued_bytes = 0
            unfinished = list(self._unfinished)
            self._monitor.notify_all()
        if timer is not None:
            timer.cancel()
        if room is not None:
            room.set_result(None)
        self._retrying.close()
        for task in unfinished:
            task.fail(closed_scheduler())
        if self._owns_executor:
            self._executor.close(wait=False)
        self._uploader.close()


class _BatchUpload:
    """The action of one batch: all tasks go into one object, all share its fate. Lets the tasks go when they end."""

    def __init__(
        self, batch: Sequence[_Queued], uploader: StateChangeUploader, clock: Clock, metrics: ChangelogMetrics
    ) -> None:
        self._batch = batch
        self._uploader = uploader
        self._clock = clock
        self._metrics = metrics
        self._waited = False

    def try_execute(self) -> object:
        """See :meth:`RetriableAction.try_execute`."""
        if not self._waited:
            self._waited = True
            now = self._clock.monotonic()
            for item in self._batch:
                self._metrics.histogram("queue_wait_seconds").record(now - item.arrived_at)
        return self._uploader.upload([item.task for item in self._batch])

    def discard(self, result: object) -> None:
        """See :meth:`RetriableAction.discard`."""
        discard = getattr(self._uploader, "discard", None)  # One that has none keeps what late attempts made.
        if discard is not None and isinstance(result, UploadTasksResult):
            discard(result)

    def complete(self, result: object) -> None:
        """See :meth:`RetriableAction.complete`."""
        outcomes = outcomes_of(result, [item.task for item in self._take_batch()])
        for task, outcome in outcomes:  # Before a completion gives their room in flight to somebody else.
            for change_set in () if isinstance(outcome, BaseException) else task.change_sets:
                change_set.give_up()
        end_tasks(outcomes)

    def fail(self, error: BaseException) -> None:
        """See :meth:`RetriableAction.fail`."""
        self._metrics.counter("upload_failures").increment()
        for item in self._take_batch():
            item.task.fail(error)

    def _take_batch(self) -> Sequence[_Queued]:
        batch, self._batch = self._batch, ()
        return batch


def _batches(queued: Sequence[_Queued], max_bytes: int) -> list[list[_Queued]]:
    """Cuts the queue, in order, into batches within both bounds; a single task may exceed the first."""
    batches: list[list[_Queued]] = []
    size = sets = 0
    for item in queued:
        size += item.task.size
        sets += len(item.task.change_sets)
        ended = bool(batches) and batches[-1][-1].ends_batch
        if not batches or ended or size > max_bytes or sets > MAX_BATCH_CHANGE_SETS:
            batches.append([])
            size, sets = item.task.size, len(item.task.change_sets)
        batches[-1].append(item)
    return batches


class _Room(Future[None]):
    """Done when there is room. All who wait share it, so none of them can cancel it."""

    def __init__(self) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future
