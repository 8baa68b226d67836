"""Watches the queries that write ``stateline_files``: rounds while they run, and their open files when they have ended.

Spark tells a Python sink nothing of the end of its query, so a listener in the driver watches for it. What it misses
(the process dies, or exits before the listener has run) costs nothing but time: the files stay open, and the next
start of the query, or :func:`finish_files`, goes on with them.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from stateline.environment import system_environment
from stateline.errors import InvalidInputError, NotFoundError, StatelineError
from stateline.spark.files_options import FilesSinkOptions
from stateline.spark.files_rounds import FilesRounds
from stateline.spark.files_sink import RUN, FilesSink, finish_job, finish_sink, roll_sink

__all__ = ["EndOfStreamListener", "finish_files"]

_LOGGER: Final = logging.getLogger(__name__)
_JOB: Final = re.compile("[0-9a-f]{32}")
_TRIGGERS_THAT_END: Final = ("AvailableNowTrigger", "OneTimeTrigger")
_INTERVAL: Final = "ProcessingTimeTrigger"


def finish_files(path: str, *, job: str | None = None, **options: str) -> None:
    """Finishes the files that streams into ``path`` left open, in one more record. Idempotent.

    Call it when no query writes there: where one still runs, it or this call may be fenced (``FencedError``). When it
    returns, all rows are visible, also if somebody else was finishing the same files.

    Args:
        path: Root URL of the output, as given to ``start()``.
        job: A batch job that was decided and then failed, or was killed, before all its files were visible: makes them
            so. The error of the job names it, and so does a folder in ``<path>/.stateline/jobs``.
        options: The sink's other options that say where things are, such as ``checkpoint``.

    Raises:
        FencedError: A query went on with the files meanwhile.
        NotFoundError: No stream has written anything there; or there is no such job: it was never decided, and nothing
            of it is visible, or an earlier call has finished it.
        InvalidInputError: An option that there is not, or a job that cannot be one.
    """
    parsed = FilesSinkOptions.from_spark({"path": path, **options})
    if job is not None:
        _finish_job(parsed, job)
        return
    # How many records are to stay, only the query knows: its next batch retires the others.
    if not finish_sink(replace(parsed, retained_checkpoints=sys.maxsize)):
        raise NotFoundError(
            "no stream has written anything there",
            operation="finish_files",
            subject=parsed.root_url,
            hint="Check the path, and give the option checkpoint if the stream had one",
        )


def _finish_job(options: FilesSinkOptions, job: str) -> None:
    if not isinstance(job, str) or not _JOB.fullmatch(job):
        raise InvalidInputError(
            f"{job!r} is none",
            operation="finish_files",
            subject="job",
            hint="Give the 32 hexadecimal digits that the error of the job names",
        )
    if not finish_job(options, job):
        raise NotFoundError(
            "there is no decision of this job",
            operation="finish_files",
            subject=f"{options.root_url.removesuffix('stream')}jobs/{job}",
            hint="If no earlier call has finished it, it was never decided: none of its files is visible, run it again",
        )


class EndOfStreamListener(StreamingQueryListener):
    """Watches the queries of one session. Added by :func:`stateline.spark.register`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._lock = threading.Lock()
        self._ending: dict[str, tuple[FilesSinkOptions, bool]] = {}
        self._rounds: dict[str, FilesRounds] = {}
        self._proxy: Any = None

    @property
    def _jlistener(self) -> Any:
        """What Spark calls."""
        if self._proxy is None:
            jvm = self._spark.sparkContext._jvm  # noqa: SLF001 - as PySpark's own property does
            self._proxy = jvm.PythonStreamingQueryListenerWrapper(_StartsAndEnds(self))
        return self._proxy

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Remembers the options of a query that writes here. Runs before ``start()`` returns."""
        query = self._spark.streams.get(str(event.id))
        execution = None if query is None else query._jsq.streamingQuery()  # noqa: SLF001 - PySpark does not show the sink
        if execution is None or not _is_ours(execution.sink()):
            return
        try:
            options = FilesSinkOptions.from_spark(_options_of(execution))
        except InvalidInputError as error:
            _LOGGER.debug("the first batch of the query will fail: %s", error)
            return
        ends = any(name in str(execution.trigger().toString()) for name in _TRIGGERS_THAT_END)
        rounds = None if ends else _rounds_of(query, options, event, execution)
        with self._lock:
            self._ending[str(event.id)] = options, ends
            if rounds is not None:
                self._rounds[str(event.id)] = rounds
        if rounds is not None:
            rounds.start()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Finishes the files, if the stream ended by itself, or if the user wants it at each stop."""
        with self._lock:
            options, ends = self._ending.pop(str(event.id), (None, False))
            rounds = self._rounds.pop(str(event.id), None)
        if rounds is not None:
            rounds.close()
        if options is None or event.exception is not None or options.finish == "never":
            return
        if ends or options.finish == "stop":
            try:
                finish_sink(options)
            except StatelineError:
                _LOGGER.exception("the open files of %s could not be finished; call finish_files()", options.path)


class _StartsAndEnds(JStreamingQueryListener):
    """Leaves events of progress as they are: to read one, PySpark calls the JVM 500 times, for each batch."""

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802
        """Nothing."""

    def onQueryIdle(self, jevent: Any) -> None:  # noqa: N802
        """Nothing."""


def _rounds_of(
    query: StreamingQuery, options: FilesSinkOptions, event: QueryStartedEvent, execution: Any
) -> FilesRounds | None:
    """The rounds of a query that goes on, of which its tasks are told; ``None`` if time finishes none of its files."""
    query_id, run_id = str(event.id), str(event.runId)
    execution.sparkSessionForStream().conf().set(RUN, run_id)
    trigger = execution.trigger()
    interval = trigger.intervalMs() / 1000 if _INTERVAL in str(trigger.toString()) else 0.0
    limit = options.output().rolling.going_on().shortest_seconds
    if limit is None:
        return None
    roll = partial(roll_sink, options, query_id, run_id)
    return FilesRounds(system_environment(), interval, limit, lambda: query.isActive, roll)


def _is_ours(sink: Any) -> bool:
    """Whether a query writes to ``stateline_files``; not every sink of Spark can say its name."""
    is_python = str(sink.getClass().getSimpleName()) == "PythonTable"
    return is_python and str(sink.name()) == FilesSink.name()


def _options_of(execution: Any) -> Mapping[str, str]:
    """The options of a query: a private field of ``MicroBatchExecution``, for Spark shows them nowhere."""
    options = execution.getClass().getDeclaredField("extraOptions")
    options.setAccessible(True)
    entries = options.get(execution).iterator()
    found = {}
    while entries.hasNext():
        entry = entries.next()
        found[str(entry._1())] = str(entry._2())  # noqa: SLF001 - the names of a Scala pair
    return found
