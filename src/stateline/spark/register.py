"""Makes Stateline's data sources known to a Spark session."""

from __future__ import annotations

import weakref
from typing import Final

from pyspark.sql import SparkSession

from stateline.spark.files_ending import EndOfStreamListener
from stateline.spark.files_sink import FilesSink

__all__ = ["register"]

_WATCHED: Final[weakref.WeakSet[SparkSession]] = weakref.WeakSet()
"""Sessions that have their listener."""


def register(spark: SparkSession) -> None:
    """Registers ``stateline_files`` with a session. Idempotent.

    :func:`stateline.spark.get_or_create_session` does so by itself.
    """
    spark.dataSource.register(FilesSink)
    if spark not in _WATCHED:
        spark.streams.addListener(EndOfStreamListener(spark))
        _WATCHED.add(spark)
