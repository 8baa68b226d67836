"""Spark's own stateful operators in front of ours, such as ``df.dropDuplicates(...)``: they run once in a micro-batch.

Facts (Spark 4, ``MicroBatchExecution``):

- The rows of a micro-batch are an RDD that is computed by whoever reads it, as often as it is read. Each time every
  partition of every such operator commits its state, and Spark's figures add up. Where the answer of an operator
  depends on the order of rows, each reader may get another one.
- When the batch has been handled, Spark asks whether every partition has committed its state. If nobody has read the
  rows, none has, and the query fails. With ``spark.sql.streaming.stateStore.checkpointFormatVersion`` 2 it fails so at
  each start: the commit log must name what these tasks have written.
- On Connect nobody can look behind the rows of a micro-batch. But the explained plan of the stream shows each such
  operator, and where it would have its state: see :mod:`stateline.spark.query.stream_sources`.
- Nothing of it counts before Spark's commit log has the batch: one that failed is computed anew from the state before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import DataFrame

__all__ = ["computed", "drain"]

_STATE: Final = "StateStore"
"""Part of the name of each RDD that computes with state of Spark's."""


def drain(rows: DataFrame, has_state: bool | None = None) -> None:
    """Has the operators in front, if there are any, keep the state of a batch whose rows nobody needs any more.

    Args:
        rows: Of the batch.
        has_state: Whether there are such operators; ``None`` to find out, in a classic session.
    """
    if _have_state(rows) if has_state is None else has_state:
        _compute(rows)


@contextmanager
def computed(rows: DataFrame, has_state: bool | None = None) -> Iterator[None]:
    """Meanwhile ``rows`` may be read by several: the operators in front, if there are any, have run before.

    Args:
        rows: Of a batch.
        has_state: As of :func:`drain`.
    """
    if not (_have_state(rows) if has_state is None else has_state):
        yield
        return
    rows.persist()
    try:
        _compute(rows)  # Two readers that are the first ones, in two executors, would both compute a partition.
        yield
    finally:
        rows.unpersist()


def _have_state(rows: DataFrame) -> bool:
    """Whether they come from operators of Spark's with state. Computes nothing."""
    lineage = rows._jdf.queryExecution().toRdd().toDebugString()  # noqa: SLF001 - as an RDD of Python's it takes longer
    return _STATE in lineage


def _compute(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()
