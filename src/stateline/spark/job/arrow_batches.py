"""How many rows Spark hands to Python at a time.

Facts (Spark 4.3, ``BatchedPythonArrowInput``; the limit of bytes came with SPARK-51316):

- A batch for Python ends at ``maxRecordsPerBatch`` rows or at ``maxBytesPerBatch`` bytes: 10,000 and 64 MiB by default.
- For the second, Spark asks the Arrow writer for its size before every row, which walks over all columns. By the JVM's
  flight recorder that is a quarter to a third of a task's time in the JVM.
- It does not ask where the limit is the greatest integer.

So there is no limit of bytes, and one of rows that is low enough to do without for rows of up to 100 KB or so. Longer
ones need the limit of bytes back, or memory: see decision 0013.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

__all__ = ["ARROW_BATCH_SETTINGS", "set_arrow_batches"]

ARROW_BATCH_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1024",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}


def set_arrow_batches(session: SparkSession) -> None:
    """Sets both, unless somebody has set one of them. Idempotent."""
    if all(session.conf.get(name, None) is None for name in ARROW_BATCH_SETTINGS):
        for name, value in ARROW_BATCH_SETTINGS.items():
            session.conf.set(name, value)
