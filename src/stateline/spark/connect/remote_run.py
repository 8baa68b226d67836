"""The driver's part of a pipeline, in the Python worker that the server starts for ``foreachBatch``.

Facts (Spark 4, how Connect runs ``foreachBatch``):

- The function is pickled by the client, and unpickled once, in a process of its own beside the server's driver, before
  the query starts; what it raises there fails ``start()``. Later it is called for each batch, in the same process.
- That process has a Connect session to its own server, with the id of the program's; batches come in a clone of it.
- The query goes on when the client is gone. It ends when it is stopped, when its session is released or expires, or
  when a query with the same checkpoint is started in any session of the server. Then the process is killed, and told
  nothing.
- The end is therefore done later, by another such process; see :mod:`stateline.spark.connect.server_call`.

So a description travels, and unpickling it opens the driver's stores and checks all that a classic ``start()`` checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from stateline.blob import open_store
from stateline.blob.urls import same_service
from stateline.checkpoint.spark_files import StoreFiles
from stateline.environment import system_environment
from stateline.errors import NotFoundError
from stateline.pipeline.offsets import ReadFile, list_with_store, query_of, read_with_store
from stateline.pipeline.operators.api import OperatorProgram
from stateline.pipeline.plan import PipelinePlan
from stateline.spark.job.batch_job import BatchJob
from stateline.spark.job.task_errors import noted
from stateline.spark.query.run import PipelineRun
from stateline.spark.sinks.for_each_batch import BatchDelivery, BatchFunction

__all__ = ["RemoteBatches", "RemoteEnd", "RunDescription"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDescription:
    """One run of a pipeline's query, as it is pickled.

    Attributes:
        plan: The pipeline.
        programs: What its operators compute, by name.
        schema: The columns of the stream, which the operators need.
        spark_checkpoint: Where Spark keeps its checkpoint.
        makes_folder: Whether that is the folder below the root, to be made for a new root.
        pause_seconds: How long after a batch the stream counts as quiet.
        ends: Whether it ends by itself.
        upstream_state: Whether operators of Spark's with state stand in front.
        functions: What is handed rows, by operator, with their Arrow schema.
        initial: Rows for the first batch, by operator.
    """

    plan: PipelinePlan
    programs: Mapping[str, OperatorProgram]
    schema: StructType
    spark_checkpoint: str
    makes_folder: bool
    pause_seconds: float
    ends: bool
    upstream_state: bool
    functions: Mapping[str, tuple[BatchFunction, pa.Schema]] = field(default_factory=dict)
    initial: Mapping[str, DataFrame] = field(default_factory=dict)

    def opened(self, session: SparkSession) -> PipelineRun:
        """The driver's part, in this process. Its batches and its end may come in other sessions of the server."""
        job = BatchJob(self.plan, self.programs, self.initial, self.upstream_state)
        return PipelineRun(self.plan, job, session, self.schema, BatchDelivery(session, self.plan, self.functions))

    def open(self, run: PipelineRun, *, makes_folder: bool) -> ReadFile:
        """Has a run check that all goes on together; returns how Spark's checkpoint is read.

        Raises:
            InvalidInputError: It does not, or Spark's checkpoint lies where Stateline has no store.
        """
        plan = self.plan
        options = plan.root_options if same_service(self.spark_checkpoint, plan.root_url) else {}
        store = open_store(self.spark_checkpoint, options, system_environment())
        read = read_with_store(store)
        list_folder = list_with_store(store)
        run.open(
            self.spark_checkpoint, read, list_folder, StoreFiles(store), makes_folder=makes_folder, looks_again=True
        )
        return read


class RemoteBatches:
    """What a client gives to ``foreachBatch``; unpickled, it is the function that the server's worker calls."""

    def __init__(self, description: RunDescription) -> None:
        self._description = description

    def __reduce__(self) -> tuple[Callable[[RunDescription], Any], tuple[RunDescription]]:
        return _Batches.started, (self._description,)


class _Batches:
    """The run, in the server's worker."""

    def __init__(self, description: RunDescription, session: SparkSession) -> None:
        self._session = session
        self._run = description.opened(session)
        self._read: ReadFile
        self._run_id = ""

    @classmethod
    def started(cls, description: RunDescription) -> _Batches:
        """Called by unpickling.

        Raises:
            StatelineError: As a classic start; Spark makes text of it, with a note that the client reads.
        """
        with noted():
            batches = cls(description, SparkSession.active())
            batches._start(description)
            return batches

    def _start(self, description: RunDescription) -> None:
        self._read = description.open(self._run, makes_folder=description.makes_folder)
        if description.ends:
            self._run.finish_earlier_run()
        # A round that fails is told by the next batch: nobody else would hear of it.
        self._run.plan_rounds(description.pause_seconds, self._is_active, lambda: None)
        if not description.ends:
            self._run.rounds.start()

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Runs one batch.

        Raises:
            StatelineError: With a note that the client reads.
        """
        with noted():
            query_id = query_of(self._read)
            if query_id is None:
                raise NotFoundError(
                    "Spark's checkpoint does not name its query",
                    operation="run_batch",
                    subject=f"batch {batch_id}",
                    hint="Give start() the checkpoint location that Spark uses for this query, as the server sees it",
                )
            if not self._run_id:
                active = self._session.streams.get(query_id)
                self._run_id = "" if active is None else str(active.runId)
            self._run.run_batch(rows, batch_id, query_id)

    def _is_active(self) -> bool:
        """Whether this run is the one that the server has under way, as far as is known before its first batch."""
        query_id = query_of(self._read)
        active = None if query_id is None else self._session.streams.get(query_id)
        return not self._run_id or (active is not None and str(active.runId) == self._run_id)


class RemoteEnd:
    """What is left to do when the query has ended; see :meth:`stateline.spark.query.run.PipelineRun.finish`."""

    def __init__(self, description: RunDescription) -> None:
        self._description = description

    def __call__(self, session: SparkSession) -> None:
        """Closes what the last watermark has passed, and finishes the files that are open.

        Raises:
            StatelineError: It failed; or the root is gone on with.
        """
        run = self._description.opened(session)
        try:
            self._description.open(run, makes_folder=False)
            run.plan_rounds(0, lambda: False, lambda: None)
            run.prepare(session)
            run.finish()
        finally:
            run.close()
