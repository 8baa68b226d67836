"""Makes Stateline's data sources known to a Spark session."""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from stateline.options import check_kind
from stateline.spark.job.end_listener import listener_of
from stateline.spark.sinks.files import FilesSink
from stateline.spark.sources.state import StateSource

__all__ = ["register"]

_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Registers ``stateline_files`` and ``stateline`` with a session, and watches the ends of its streams. Idempotent.

    :func:`stateline.spark.get_or_create_session` does so by itself. A session whose Python finds the module
    ``pyspark_stateline`` knows both sources without it, but then nobody watches its streams. Filters reach Python data
    sources only where a setting of the session says so; unless the user has set it, it is switched on.

    Nothing else is set. In a session that it did not make, ``stateline_files`` is faster by a quarter with the settings
    of :mod:`stateline.spark.job.arrow_batches`.
    """
    check_kind(spark, SparkSession, "spark")
    known = spark._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001 - PySpark has no question for it
    for source in (FilesSink, StateSource):
        if not known.dataSourceExists(source.name()):
            spark.dataSource.register(source)
    if spark.conf.get(_PUSHDOWN, None) is None:
        spark.conf.set(_PUSHDOWN, "true")
    listener_of(spark)
