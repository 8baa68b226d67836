"""Makes Stateline's data sources known to a Spark session."""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from stateline.options import check_kind
from stateline.spark.files_ending import EndOfStreamListener
from stateline.spark.files_sink import FilesSink
from stateline.spark.state_source import StateSource

__all__ = ["register"]

_WATCHED: Final[weakref.WeakKeyDictionary[SparkSession, EndOfStreamListener]] = weakref.WeakKeyDictionary()
"""Sessions that have their listener."""

_DRAIN_MILLISECONDS: Final = 60_000

_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Registers ``stateline_files`` and ``stateline`` with a session, and watches the ends of its streams. Idempotent.

    :func:`stateline.spark.get_or_create_session` does so by itself. A session whose Python finds the module
    ``pyspark_stateline`` knows both sources without it, but then nobody watches its streams. Filters reach Python data
    sources only where a setting of the session says so; unless the user has set it, it is switched on.

    Nothing else is set. In a session that it did not make, ``stateline_files`` is faster by a quarter with the settings
    of :mod:`stateline.spark.arrow_batches`.
    """
    check_kind(spark, SparkSession, "spark")
    known = spark._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001 - PySpark has no question for it
    for source in (FilesSink, StateSource):
        if not known.dataSourceExists(source.name()):
            spark.dataSource.register(source)
    if spark.conf.get(_PUSHDOWN, None) is None:
        spark.conf.set(_PUSHDOWN, "true")
    if spark not in _WATCHED:
        if not _WATCHED:
            _before_exit(_drain)
        _WATCHED[spark] = EndOfStreamListener(spark)
        spark.streams.addListener(_WATCHED[spark])


_before_exit: Final[Callable[[Callable[[], None]], object]] = getattr(threading, "_register_atexit", atexit.register)
"""Calls a function when the program has ended, as :mod:`atexit` does, but while pools of threads still take work."""


def _drain() -> None:
    """Before the interpreter goes: lets the ends of streams be handled, and then asks for no more of them.

    Without it, a script that ends right after its stream would leave files open, and Spark would print that nobody
    answers its listener.
    """
    for spark, listener in list(_WATCHED.items()):
        with contextlib.suppress(Py4JError, OSError, AttributeError):  # The session may be stopped, the JVM gone.
            spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(_DRAIN_MILLISECONDS)  # noqa: SLF001
            spark.streams.removeListener(listener)
