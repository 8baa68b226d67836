"""Subtasks stay on their hosts: where the disk has the state of one, its next micro-batch runs.

Facts (``docs/decisions/0037-affinity.md``):

- Spark sends a task to where the cached blocks are that it reads. The *anchor* is a DataFrame without rows, partitioned
  as the rows of the batches are, and persisted: its block ``i`` is empty, and lies on the host of subtask ``i``. The
  union of both has partition ``i`` of either in one task.
- Spark zips a union where all sides are partitioned by the same hash, and concatenates it otherwise; and
  ``repartitionById`` hashes nothing. So rows are partitioned by a number that Spark hashes to their subtask.
- Of the hosts that the sides of a union prefer, Spark takes the most frequent one, and of equals any. The rows prefer
  each executor that has a fifth of them, or more. So the anchor is in the union once more often than such executors
  can share a host.
- A block that was lost with its executor is made again by the task that misses it, where that runs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from hashlib import sha256
from typing import Any, Final

import numpy as np
from pyspark.sql import Column, DataFrame, SparkSession, functions

from stateline.spark.api_mode import empty_rows, is_connect

__all__ = ["Anchor", "hosts_of_subtasks", "values_of_partitions"]

_LOGGER: Final = logging.getLogger(__name__)
_FIFTHS: Final = 5


class Anchor:
    """Keeps the subtasks of one operator where they are. Not thread-safe: a query runs one batch at a time.

    Where there is one host only, on Connect, and where Spark does not zip the union, rows are partitioned without it.

    Args:
        name: Unique; it decides where subtasks begin. So a query that is started again, on the same hosts, finds its
            state there, and many queries with few subtasks do not meet on one host.
        parallelism: Subtasks.
    """

    def __init__(self, name: str, parallelism: int) -> None:
        self._name = name
        self._parallelism = parallelism
        self._values = f"array({', '.join(map(str, values_of_partitions(parallelism)))})"
        self._zips = True
        self._places: Sequence[str] = ()
        self._executors: Mapping[str, int] = {}
        self._hosts: Sequence[str] = [""] * parallelism
        self._columns: Sequence[str] = ()
        self._frame: DataFrame | None = None

    def partitioned(self, rows: DataFrame, subtask: str) -> DataFrame:
        """The rows of a batch, each in the partition of its subtask.

        Args:
            rows: Of the same columns in all batches, but for those that come with initial state.
            subtask: Text of the expression.
        """
        if self._zips and self._settled(rows.sparkSession):
            hashed = functions.expr(f"{self._values}[{subtask}]")
            anchor = self._anchor_of(rows, hashed)
            if anchor is not None:
                weight = min(max(self._executors.values()), _FIFTHS) + 1
                sides = [anchor] * weight + [rows.repartition(self._parallelism, hashed)]
                return reduce(lambda left, right: left.union(right), sides)
        return rows.repartitionById(self._parallelism, functions.expr(subtask))

    def close(self) -> None:
        """Lets go of the blocks. Idempotent."""
        frame, self._frame = self._frame, None
        if frame is not None:
            context = frame.sparkSession.sparkContext._jsc  # noqa: SLF001 - None where Python has stopped it
            if context is not None and not context.sc().isStopped():
                frame.unpersist()

    def _settled(self, session: SparkSession) -> bool:
        """Whether there is a choice of hosts. Gives those subtasks another one that have lost theirs, and makes room.

        Adaptive execution drops the sides of a union that are empty, so batches run without it.
        """
        places = _executors(session)
        if places != self._places:
            self._places, self._executors = places, Counter(place.rpartition(":")[0] for place in places)
            found = self._found()
            current = [host or before for host, before in zip(found, self._hosts, strict=True)]
            self._hosts = hosts_of_subtasks(self._name, current, self._executors)
            if self._hosts != found:
                self.close()
        return len(self._executors) > 1 and session.conf.get("spark.sql.adaptive.enabled") == "false"

    def _found(self) -> Sequence[str]:
        """The host of each block; empty text for one that is lost, or not there yet."""
        if self._frame is None:
            return [""] * self._parallelism
        context = self._frame.sparkSession.sparkContext._jsc.sc()  # noqa: SLF001 - PySpark shows no locations
        blocks = self._frame._jdf.queryExecution().toRdd()  # noqa: SLF001
        locations = [context.getPreferredLocs(blocks, index) for index in range(self._parallelism)]
        return ["" if found.isEmpty() else str(found.head().host()) for found in locations]

    def _anchor_of(self, rows: DataFrame, hashed: Column) -> DataFrame | None:
        """The anchor of such rows, its blocks in their places; ``None`` where Spark does not zip it with them."""
        if self._frame is not None and self._columns == rows.columns:
            return self._frame
        self.close()
        session, self._columns = rows.sparkSession, rows.columns
        self._frame = empty_rows(session, rows.schema).repartition(self._parallelism, hashed).persist()
        plan = self._frame.union(rows.repartition(self._parallelism, hashed))._jdf.queryExecution().executedPlan()  # noqa: SLF001
        self._zips = plan.outputPartitioning().numPartitions() == self._parallelism
        if not self._zips:
            _LOGGER.debug("Spark does not zip unions here: it chooses the hosts of %s, batch by batch", self._name)
            self.close()
            return None
        # Spark sends a task that zips two RDDs to where either of them wants it to run.
        self._frame._jdf.toJavaRDD().zip(_nothing_on(self._hosts, session)).count()  # noqa: SLF001
        return self._frame


def _executors(session: SparkSession) -> Sequence[str]:
    """Host and port of each executor there is at this moment; none where Spark is local, or does not say."""
    if is_connect(session):
        return ()
    context = session.sparkContext._jsc.sc()  # noqa: SLF001 - PySpark shows no executors
    if context.isLocal():
        return ()
    driver = context.statusStore().executorSummary("driver").hostPort()
    places = str(context.getExecutorMemoryStatus().keySet().mkString(" ")).split()
    return sorted(place for place in places if place != driver)


def _nothing_on(hosts: Sequence[str], session: SparkSession) -> Any:
    """An RDD of the JVM without rows, which prefers a host for each of its partitions."""
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - PySpark has no RDD that prefers hosts
    sequence = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    placed = sequence([jvm.scala.Tuple2(host, sequence([host])) for host in hosts])
    anything = jvm.scala.reflect.ClassTag.Any()
    return session.sparkContext._jsc.sc().makeRDD(placed, anything).toJavaRDD().sample(False, 0.0)  # noqa: SLF001


def hosts_of_subtasks(name: str, current: Sequence[str], executors: Mapping[str, int]) -> Sequence[str]:
    """The host of each subtask: its own, unless that is gone or has more than its share of them.

    Args:
        name: Decides between hosts that are equal.
        current: The hosts so far; empty text for a subtask without one.
        executors: How many each host has.
    """
    if not executors:
        return current
    total = sum(executors.values())
    room = {host: -(-len(current) * count // total) for host, count in executors.items()}
    order = sorted(executors, key=lambda host: sha256(f"{name} {host}".encode()).digest())
    hosts = list(current)
    for index, host in enumerate(current):
        if room.get(host, 0) > 0:
            room[host] -= 1
        else:
            hosts[index] = ""
    for index, host in enumerate(hosts):
        if not host:
            hosts[index] = max(order, key=lambda other: room[other] / executors[other])
            room[hosts[index]] -= 1
    return hosts


def values_of_partitions(partitions: int) -> list[int]:
    """Numbers that Spark's hash partitioning sends to the partitions 0, 1, 2 and so on: for each the smallest one."""
    count = 8 * partitions
    while True:
        found, values = np.unique(_murmur3(np.arange(count)) % partitions, return_index=True)
        if len(found) == partitions:
            return [int(value) for value in values]
        count *= 2


def _murmur3(values: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Spark's hash of integers: Murmur3 with 32 bits, seed 42."""
    words = values.astype(np.uint32)
    mixed = _rotated(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    hashed = _rotated(np.uint32(42) ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64) ^ np.uint32(4)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashed = (hashed ^ hashed >> np.uint32(shift)) * np.uint32(factor)
    return (hashed ^ hashed >> np.uint32(16)).view(np.int32)


def _rotated(words: np.ndarray[Any, np.dtype[np.uint32]], bits: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return words << np.uint32(bits) | words >> np.uint32(32 - bits)
