"""A function that runs in a Python worker beside the server's driver, and may run jobs there.

Connect has one door to such a worker: ``foreachBatch``. So a call is a stream of one batch, which ends by itself, and
whose checkpoint Spark removes. Other doors were weighed in ``docs/decisions/0066-connect.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from stateline.spark.job.task_errors import noted, rebuilt

__all__ = ["call_on_server"]

_SOURCE: Final = "rate-micro-batch"


def call_on_server(session: SparkSession, function: Callable[[SparkSession], None]) -> None:
    """Runs a function on the server and waits for its end.

    Args:
        session: A session of Spark Connect.
        function: Can be pickled. It is given a session of the server, which is its own.

    Raises:
        StatelineError: It raised this.
        StreamingQueryException: It raised something else, or the server ended it.
    """
    stream = session.readStream.format(_SOURCE).option("rowsPerBatch", 1).load()
    with rebuilt():
        query = stream.writeStream.foreachBatch(_Call(function)).trigger(availableNow=True).start()
        query.awaitTermination()


class _Call:
    """What the worker calls for the only batch."""

    def __init__(self, function: Callable[[SparkSession], None]) -> None:
        self._function = function

    def __call__(self, rows: DataFrame, batch_id: int) -> None:  # noqa: ARG002 - Spark's signature
        with noted():
            self._function(rows.sparkSession)
