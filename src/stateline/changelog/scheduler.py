"""The shell of the queue: when uploads run, and together with which others, as the table says.

Owns the waiting of writers, the timer of a batch, and that every task ends. Does not own room, order and batches
(``upload_table``), attempts (``retry``) or objects (``uploader``).

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
from typing import Final

from stateline.changelog.api import (
    AvailabilityProvider,
    StateChangeUploader,
    StateChangeUploadScheduler,
    UploadTasksResult,
)
from stateline.changelog.metrics import ChangelogMetrics
from stateline.changelog.retry import Pledge, RetryingExecutor, closed_uploads
from stateline.changelog.settings import ChangelogSettings
from stateline.changelog.upload_table import QueuedTask, RetryPolicy, UploadQueue
from stateline.changelog.upload_task import UploadTask, end_tasks
from stateline.environment import Cancellable, Clock, Environment, Executor
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


class _DirectScheduler:
    """See :func:`direct_scheduler`. It has no limit, so it is always available."""

    available: Final = True

    def __init__(self, uploader: StateChangeUploader) -> None:
        self._uploader = uploader
        self._process = os.getpid()
        self._closed = False
        self.availability: AvailabilityProvider = self

    def availability_future(self) -> Future[None]:
        """See :meth:`AvailabilityProvider.availability_future`."""
        return _done()

    def upload(self, task: UploadTask) -> None:
        """See :meth:`StateChangeUploadScheduler.upload`."""
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
        """See :meth:`StateChangeUploadScheduler.close`."""
        self._closed = True
        self._uploader.close()


class _BatchingScheduler:
    """See :func:`batching_scheduler`."""

    def __init__(self, uploader: StateChangeUploader, settings: ChangelogSettings, retrying: RetryingExecutor) -> None:
        self.uploader = uploader
        self.clock, self.metrics = retrying.clock, retrying.metrics
        self._delay = settings.persist_delay
        self._policy = RetryPolicy.of(settings)
        self._retrying = retrying
        self._monitor = retrying.monitor
        self._queue = UploadQueue(settings)
        self._timer: Cancellable | None = None
        self._room: Future[None] = _done()
        self._process = os.getpid()
        self._closed = False
        self.availability: AvailabilityProvider = self

    # -- availability ---------------------------------------------------------------------------------------------

    @property
    def available(self) -> bool:
        """See :attr:`AvailabilityProvider.available`."""
        with self._monitor:
            return self._queue.throttle.has_capacity or self._refuses

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
        """See :meth:`StateChangeUploadScheduler.upload`."""
        try:
            place = None if self._process != os.getpid() else self._place(task)
        except BaseException as error:  # The caller was interrupted, as a rule while it waited for room.
            if not task.taken:
                task.fail(error)
            raise
        if place is None:
            task.fail(_refused(self._process))

    def _place(self, task: UploadTask) -> QueuedTask | None:
        """Queues the task as soon as there is room; ``None``: there never will be."""
        arrived = self.clock.monotonic()
        with self._monitor:
            blocked = not self._queue.has_room_for(task)
        if blocked:
            self._drain_soon(only_full=False)  # What waits for its batch would only hold the room that we need.
        with self._monitor:
            if not self._wait_for_room(task):
                return None
            place = self._queue.place_of(task, self.clock.monotonic())
            self._start_timer(anew=place.begins_batch)
            self._queue.enter(place)
            self._show_gauges()
        if place.ends_batch or self._timer is None:
            self._drain_soon(only_full=place.ends_batch)
        self.metrics.histogram("capacity_wait_seconds").record(self.clock.monotonic() - arrived)
        return place

    def _wait_for_room(self, task: UploadTask) -> bool:
        """Waits, in the order of arrival; ``False`` if the scheduler is closed."""
        waiting = self._queue.waiting
        try:
            waiting.append(task)
            self._monitor.wait_for(lambda: self._refuses or self._queue.has_room_for(task))
        finally:
            if task in waiting:
                waiting.remove(task)
            self._monitor.notify_all()
        return not self._refuses

    # -- starting batches -----------------------------------------------------------------------------------------

    def _start_timer(self, *, anew: bool) -> None:
        """Lets the queue wait for more tasks, but not for ever, whatever happens to the thread that queues."""
        old = self._timer
        if old is None or anew:
            try:
                self._timer = self._retrying.executor.call_later(self._delay, self._timer_fired)
            except Exception as error:  # noqa: BLE001 - from an executor of whatever kind
                _LOG.debug("a batch does not wait for more tasks: %s", error)
                return
            if old is not None:
                old.cancel()

    def _drain_soon(self, *, only_full: bool) -> None:
        try:
            self._retrying.executor.submit(self._drain, only_full)
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
            batches = self._queue.take(only_full=only_full)
            if not self._queue:
                timer, self._timer = self._timer, None
            self._show_gauges()
        if timer is not None:
            timer.cancel()
        for batch in batches:
            self.metrics.histogram("upload_batch_tasks").record(len(batch))
            self._retrying.execute(self._policy, _Batch(batch, self))

    def leave(self, places: list[QueuedTask]) -> None:
        """Gives the room of tasks back before they end, and tells whoever waits for it."""
        room = _done()
        with self._monitor:
            self._queue.leave(places)
            if self.available:
                room, self._room = self._room, room
            self._show_gauges()
            self._monitor.notify_all()
        if not room.done():
            room.set_result(None)

    def _show_gauges(self) -> None:
        gauge = self.metrics.gauge
        gauge("upload_queue_tasks").set(len(self._queue))
        gauge("upload_queue_bytes").set(self._queue.bytes)
        gauge("in_flight_bytes").set(self._queue.throttle.in_flight)

    def close(self) -> None:
        """See :meth:`StateChangeUploadScheduler.close`."""
        with self._monitor:
            if self._closed:
                return
            self._closed = True
            if self._process != os.getpid():
                return  # Tasks, attempts and futures are those of the process that was forked.
            timer, self._timer = self._timer, None
            batches = self._queue.take(only_full=False)
        if timer is not None:
            timer.cancel()
        for batch in batches:
            self.leave(batch)
            end_tasks((place.task, _refused(self._process)) for place in batch)
        self.leave([])
        self._retrying.close()
        self.uploader.close()


class _Batch:
    """The action of one batch: all tasks go into one object, all share its fate. Lets the tasks go when they end."""

    def __init__(self, places: list[QueuedTask], scheduler: _BatchingScheduler) -> None:
        self._places = places
        self._scheduler = scheduler
        self._waited = False

    def try_execute(self) -> object:
        """See :meth:`RetriableAction.try_execute`."""
        if not self._waited:
            self._waited = True
            now = self._scheduler.clock.monotonic()
            for place in self._places:
                self._scheduler.metrics.histogram("queue_wait_seconds").record(now - place.arrived_at)
        return self._scheduler.uploader.upload([place.task for place in self._places])

    def discard(self, result: object) -> None:
        """See :meth:`RetriableAction.discard`."""
        discard = getattr(self._scheduler.uploader, "discard", None)  # One that has none keeps what late attempts made.
        if discard is not None and isinstance(result, UploadTasksResult):
            discard(result)

    def complete(self, result: object) -> None:
        """See :meth:`RetriableAction.complete`."""
        outcomes = [(place.task, place.task.outcome(result)) for place in self._places]
        for task, outcome in outcomes:  # Before a completion gives their room in flight to somebody else.
            for change_set in () if isinstance(outcome, BaseException) else task.change_sets:
                change_set.give_up()
        self._end()
        end_tasks(outcomes)

    def fail(self, error: BaseException) -> None:
        """See :meth:`RetriableAction.fail`."""
        self._scheduler.metrics.counter("upload_failures").increment()
        end_tasks([(task, error) for task in self._end()])

    def _end(self) -> list[UploadTask]:
        places, self._places = self._places, []
        self._scheduler.leave(places)
        return [place.task for place in places]


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
