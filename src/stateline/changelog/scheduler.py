"""The shell of the queue: when uploads run, and together with which others, as the table says.

Invariants:
- Every task that was given to :meth:`upload` is completed or failed exactly once, whatever happens.
- The delay counts from the first task of a batch; later tasks do not extend it.
- No callback, no availability future and no upload is started while the monitor is held.
- A caller may be interrupted between any two steps (Ctrl-C). Its thread only queues, all or nothing, after a timer was
  started for it; batches are made and started by other threads, which nothing interrupts.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from concurrent.futures import Executor as PlainPool
from concurrent.futures import Future
from typing import Any, Final

from stateline.changelog.api import AvailabilityProvider
from stateline.changelog.metrics import ChangelogMetrics
from stateline.changelog.retry import Pledge, RetryingExecutor, closed_uploads
from stateline.changelog.settings import ChangelogSettings
from stateline.changelog.upload_table import Batch, RetryPolicy, UploadRoom
from stateline.changelog.upload_task import (
    StateChangeUploader,
    StateChangeUploadScheduler,
    UploadTask,
    UploadTasksResult,
    end_tasks,
)
from stateline.environment import Clock, Environment, Executor
from stateline.errors import ClosedError
from stateline.options import check_kind

__all__ = ["batching_scheduler", "direct_scheduler", "scheduler_from_options"]

_LOG: Final = logging.getLogger(__name__)


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
    retrying = RetryingExecutor(
        settings.num_upload_threads, executor=executor, clock=clock, metrics=metrics, environment=environment
    )
    return _BatchingScheduler(uploader, settings, retrying)


def scheduler_from_options(
    uploader: StateChangeUploader,
    options: ChangelogSettings | Mapping[str, str] | None = None,
    **parts: Any,
) -> StateChangeUploadScheduler:
    """The scheduler that the option ``scheduler`` names: ``batching`` (the default) or ``direct``.

    Args:
        uploader: Closed together with the scheduler.
        options: Settings, or strings that are parsed.
        parts: What :func:`batching_scheduler` takes besides.

    Raises:
        InvalidInputError: An unknown option or a bad value.
    """
    if not isinstance(options, ChangelogSettings):
        options = ChangelogSettings.from_options({} if options is None else options)
    if options.scheduler == "direct":
        return direct_scheduler(uploader)
    return batching_scheduler(uploader, options, **parts)


class _DirectScheduler:
    """See :func:`direct_scheduler`. It has no limit, so it is always available."""

    available: Final = True

    def __init__(self, uploader: StateChangeUploader) -> None:
        self._uploader = uploader
        self._process = os.getpid()
        self._closed = False
        self.availability: AvailabilityProvider = self

    def availability_future(self) -> Future[None]:
        return _done()

    def upload(self, task: UploadTask) -> None:
        if self._closed or self._process != os.getpid():
            task.fail(_refused(self._process))
            return
        try:
            result = self._uploader.upload([task])
        except BaseException as error:
            task.fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            end_tasks([(task, task.outcome(result))])

    def close(self) -> None:
        self._closed = True
        self._uploader.close()


class _BatchingScheduler:
    def __init__(self, uploader: StateChangeUploader, settings: ChangelogSettings, retrying: RetryingExecutor) -> None:
        self.uploader = uploader
        self.clock, self.metrics = retrying.clock, retrying.metrics
        self._delay = settings.persist_delay
        self.policy = RetryPolicy.of(settings)
        self.retrying = retrying
        self._monitor = retrying.monitor
        self._uploads = UploadRoom(settings)
        self._newest: _Batch | None = None  # May yet get more tasks.
        self._room: Future[None] = _done()
        self._process = os.getpid()
        self._closed = False
        self.availability: AvailabilityProvider = self

    # -- availability ---------------------------------------------------------------------------------------------

    @property
    def available(self) -> bool:
        with self._monitor:
            return self._uploads.throttle.has_capacity or self._refuses

    def availability_future(self) -> Future[None]:
        """See :meth:`AvailabilityProvider.availability_future`. All who wait share it, so none can cancel it."""
        with self._monitor:
            if self.available:
                return _done()
            if self._room.done():
                self._room = Pledge()
            return self._room

    @property
    def _refuses(self) -> bool:
        return self._closed or self._process != os.getpid()

    # -- taking tasks ---------------------------------------------------------------------------------------------

    def upload(self, task: UploadTask) -> None:
        arrived = self.clock.monotonic()
        try:
            ready = None if self._process != os.getpid() else self._queued(task)
        except BaseException as error:  # The caller was interrupted, as a rule while it waited for room.
            if not task.taken:
                task.fail(error)
            raise
        if ready is None:
            task.fail(_refused(self._process))
            return
        for batch in ready:
            self._start_soon(batch)
        self.metrics.histogram("capacity_wait_seconds").record(self.clock.monotonic() - arrived)

    def _queued(self, task: UploadTask) -> list[_Batch] | None:
        """Queues the task as soon as there is room: the batches that are to go now. ``None``: there never will be."""
        with self._monitor:
            blocked, last = not self._uploads.has_room_for(task), self._newest
        if blocked and last is not None:
            self._start_soon(last)  # What waits for more tasks would only hold the room that we need.
        with self._monitor:
            if not self._wait_for_room(task):
                return None
            last, batch = self._newest, self._batch_for(task)
            self._uploads.enter(batch, batch.with_task(task, self.clock.monotonic()))
            ready = [batch] if batch.race.timer is None or self._uploads.is_full(batch) else []
            if last not in (None, batch) and last.race.attempts.is_open and not self._uploads.is_full(last):
                ready = [last, batch]  # Together they are enough to go at once.
            self._show_gauges()
        return ready

    def _wait_for_room(self, task: UploadTask) -> bool:
        """Waits, in the order of arrival; ``False`` if the scheduler is closed."""
        waiting = self._uploads.waiting
        try:
            waiting.append(task)
            self._monitor.wait_for(lambda: self._refuses or self._uploads.has_room_for(task))
        finally:
            if task in waiting:
                waiting.remove(task)
            self._monitor.notify_all()
        return not self._refuses

    # -- starting batches -----------------------------------------------------------------------------------------

    def _batch_for(self, task: UploadTask) -> _Batch:
        """The newest batch, if the task fits; else a new one, which waits for more tasks, but not for ever."""
        newest = self._newest
        if newest is not None and newest.race.attempts.is_open and self._uploads.fits(newest, task):
            return newest
        batch = _Batch(self)
        try:
            self.retrying.queue(batch.race, self._delay)
        except Exception as error:  # noqa: BLE001 - from an executor of whatever kind
            _LOG.debug("a batch does not wait for more tasks: %s", error)
        self._newest = batch
        return batch

    def _start_soon(self, batch: _Batch) -> None:
        try:
            self.retrying.executor.submit(batch.race.run)
        except Exception as error:  # noqa: BLE001 - from an executor of whatever kind
            _LOG.debug("batches are started by whoever fills them: %s", error)
            batch.race.due()

    def began(self, batch: Batch) -> None:
        """For the batch only: its first attempt begins."""
        self.metrics.histogram("upload_batch_tasks").record(len(batch.places))
        now = self.clock.monotonic()
        for place in batch.places:
            self.metrics.histogram("queue_wait_seconds").record(now - place.arrived_at)
        with self._monitor:
            self._show_gauges()

    def left(self, batch: Batch) -> list[UploadTask]:
        """For the batch only: gives the room of its tasks back, which end now, and tells whoever waits for it."""
        room = _done()
        with self._monitor:
            tasks = self._uploads.leave(batch)
            if self.available:
                room, self._room = self._room, room
            self._show_gauges()
            self._monitor.notify_all()
        if not room.done():
            room.set_result(None)
        return tasks

    def _show_gauges(self) -> None:
        waits = self._newest if self._newest is not None and self._newest.race.attempts.is_open else Batch()
        self.metrics.gauge("upload_queue_tasks").set(len(waits.places))
        self.metrics.gauge("upload_queue_bytes").set(waits.bytes)
        self.metrics.gauge("in_flight_bytes").set(self._uploads.throttle.in_flight)

    def close(self) -> None:
        with self._monitor:
            if self._closed:
                return
            self._closed = True
        if self._process == os.getpid():  # Else tasks, attempts and futures are those of the process that was forked.
            self.left(Batch())
            self.retrying.close()
            self.uploader.close()


class _Batch(Batch):
    """The action of one batch: all tasks go into one object, all share its fate. Lets the tasks go when they end."""

    def __init__(self, scheduler: _BatchingScheduler) -> None:
        super().__init__()
        self.race = scheduler.retrying.race(scheduler.policy, self)
        self._scheduler = scheduler

    def try_execute(self) -> object:
        if self.race.attempts.started == 1:
            self._scheduler.began(self)
        return self._scheduler.uploader.upload([place.task for place in self.places]) if self.places else None

    def discard(self, result: object) -> None:
        discard = getattr(self._scheduler.uploader, "discard", None)  # One that has none keeps what late attempts made.
        if discard is not None and isinstance(result, UploadTasksResult):
            discard(result)

    def complete(self, result: object) -> None:
        outcomes = [(place.task, place.task.outcome(result)) for place in self.places]
        for task, outcome in outcomes:  # Before a completion gives their room in flight to somebody else.
            for change_set in () if isinstance(outcome, BaseException) else task.change_sets:
                change_set.give_up()
        self._scheduler.left(self)
        end_tasks(outcomes)

    def fail(self, error: BaseException) -> None:
        self._scheduler.metrics.counter("upload_failures").increment()
        end_tasks([(task, error) for task in self._scheduler.left(self)])


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future


def _refused(process: int) -> ClosedError:
    """Why a scheduler of this process takes no task."""
    if process == os.getpid():
        return closed_uploads()
    return ClosedError(
        "the storage belongs to the process that this one was forked from",
        operation="upload",
        subject="changelog",
        hint="Open a storage in the process that writes",
    )
