"""Starts and ends of the queries of a session: what the driver does around them.

Spark calls a Python sink only for a batch. So a listener starts the rounds of an endless ``stateline_files`` query, and
does what is left to do when a query has ended: it closes windows that the last watermark has passed, finishes files
where the user asked for that at ``stop()``, and closes stores. Files of a query that ends by itself need none of it:
each of its batches publishes its own (decision 0077). What the listener misses, because the process is killed, stays
for the next start of the query, or for :func:`stateline.spark.finish_files`.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - later, at the exit of the program, it cannot be imported any more
import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from pyspark.errors import StreamingQueryException
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
from stateline.errors import InvalidInputError
from stateline.pipeline.files_rounds import FilesRounds
from stateline.pipeline.query_end import QueryEnd
from stateline.spark.api_mode import Py4JError
from stateline.spark.sinks.files import RUN, FilesSink, finish_sink, roll_sink
from stateline.spark.sinks.files_options import FilesSinkOptions
from stateline.threads import new_lock

__all__ = ["EndOfStreamListener", "listener_of"]

_LOGGER: Final = logging.getLogger(__name__)
_TRIGGERS_THAT_END: Final = ("AvailableNowTrigger", "OneTimeTrigger")
_INTERVAL: Final = "ProcessingTimeTrigger"
_DRAIN_MILLISECONDS: Final = 60_000


class EndOfStreamListener(StreamingQueryListener):
    """Watches the queries of one session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._lock = new_lock()
        self._watched: dict[str, tuple[StreamingQuery, QueryEnd]] = {}
        self._proxy: Any = None

    @property
    def _jlistener(self) -> Any:
        """What Spark calls."""
        if self._proxy is None:
            jvm = self._spark.sparkContext._jvm  # noqa: SLF001 - as PySpark's own property does
            self._proxy = jvm.PythonStreamingQueryListenerWrapper(_StartsAndEnds(self))
        return self._proxy

    def watch(self, query: StreamingQuery, end: QueryEnd) -> None:
        """Has ``end`` done when a query that was just started has ended; does it here if it has ended already."""
        with self._lock:
            self._watched[query.runId] = query, end
        if not query.isActive:  # Its event may have come before this.
            self._end(query.runId)

    def end_all(self) -> None:
        """Has done what is left to do for all queries that have ended."""
        with self._lock:
            watched = list(self._watched.values())
        for query, end in watched:
            # The session may be stopped, the JVM gone.
            with contextlib.suppress(Py4JError, OSError):
                if not query.isActive:
                    self._end(query.runId)
            end.wait()  # What has begun takes as long as it takes.

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Remembers the options of a query that writes ``stateline_files``. Runs before ``start()`` returns."""
        query = self._spark.streams.get(str(event.id))
        if query is None:
            return
        execution = query._jsq.streamingQuery()  # noqa: SLF001 - PySpark does not show the sink
        if not _is_ours(execution.sink()):
            return
        try:
            options = FilesSinkOptions.from_spark(_options_of(execution))
        except InvalidInputError as error:
            _LOGGER.debug("the first batch of the query will fail: %s", error)
            return
        if any(name in str(execution.trigger().toString()) for name in _TRIGGERS_THAT_END):
            return
        rounds = _rounds_of(query, options, event, execution)
        finishes = options.finish == "stop"
        if not finishes and rounds is None:
            return
        close = rounds.close if rounds is not None else _nothing

        def finish() -> None:
            close()  # A round that is being made would fence it.
            finish_sink(options)

        end = QueryEnd(system_environment(), options.path, finish if finishes else None, close)
        with self._lock:
            self._watched[str(event.runId)] = query, end
        if rounds is not None:
            rounds.start()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Does what is left to do."""
        self._end(str(event.runId))

    def _end(self, run_id: str) -> None:
        """Does what is left to do for a query that is not active any more, if it is watched."""
        with self._lock:
            query, end = self._watched.get(run_id, (None, None))
        if query is None or end is None:
            return
        with contextlib.suppress(StreamingQueryException):  # Its last batch may still be on its way out.
            query.awaitTermination()
        end.run(failed=query.exception() is not None)
        with self._lock:
            self._watched.pop(run_id, None)


class _StartsAndEnds(JStreamingQueryListener):
    """Leaves events of progress as they are: to read one, PySpark calls the JVM 500 times, for each batch."""

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802
        """Nothing."""

    def onQueryIdle(self, jevent: Any) -> None:  # noqa: N802
        """Nothing."""


_LISTENERS: Final[weakref.WeakKeyDictionary[SparkSession, EndOfStreamListener]] = weakref.WeakKeyDictionary()
"""By session."""

_before_exit: Final[Callable[[Callable[[], None]], object]] = getattr(threading, "_register_atexit", atexit.register)
"""Calls a function when the program has ended, as :mod:`atexit` does, but while pools of threads still take work.

The pools of the standard library register themselves in the same list, when they are first imported, and nothing can
be registered any more when the program has ended. So this module imports them.
"""


def listener_of(spark: SparkSession) -> EndOfStreamListener:
    """The listener of a session, added to it by the first call."""
    if spark not in _LISTENERS:
        if not _LISTENERS:
            _before_exit(_drain)
        _LISTENERS[spark] = EndOfStreamListener(spark)
        spark.streams.addListener(_LISTENERS[spark])
    return _LISTENERS[spark]


def _drain() -> None:
    """Before the interpreter goes: has the ends of queries done, and then asks Spark to tell of no more of them.

    Without it, a script that ends right after its stream would leave files open, and Spark would print that nobody
    answers its listener. Whoever waits for any query goes on before Spark has told of its end, so queries are asked.
    """
    for spark, listener in list(_LISTENERS.items()):
        listener.end_all()
        with contextlib.suppress(Py4JError, OSError, AttributeError):
            spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(_DRAIN_MILLISECONDS)  # noqa: SLF001
            spark.streams.removeListener(listener)


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


def _nothing() -> None:
    """Nothing is held."""


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
