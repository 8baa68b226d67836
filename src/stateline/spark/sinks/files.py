"""``format("stateline_files")``: the exactly-once file sink for any stream, and for batch writes, without state.

Owns the translation between Spark's Python data source API and the sink. Does not own what the sink does with a
micro-batch (``files_decision``).

Facts (Spark 4, Python data sources):

- ``write`` runs in tasks. Each attempt of a task calls it; the message of one attempt that ended reaches ``commit``.
- ``commit`` runs in a Python process of its own beside the driver. The writer object is made anew for each batch, so
  all that ``commit`` must know is in the messages and in the store. It is called again for a batch that is replayed.
- ``abort`` is also called after a commit that took effect, so it does nothing.
- A task learns its query from ``TaskContext``'s local properties, which also hold the settings of the session;
  ``commit`` learns it from the messages.
- Every setting of the query's own session whose name begins with ``spark`` reaches the tasks as a local property. So
  the driver tells them by :data:`RUN` that it makes rounds while no rows come, and for which run, and by
  :data:`WATCHED` that it notices the end of the query. In a session that found the sink by itself it does neither.
- Where ``checkpointLocation`` is a setting of the session, Spark hands the writer no option, and keeps its checkpoint
  below that place under the query's name. Without a name nobody could ever start from it again.

So tasks make rows durable under fresh names and hand over handles; ``commit`` joins them to the open files, encodes
what is complete, and decides: one object per task and one record per micro-batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from stateline.blob import BlobStore, open_store
from stateline.blob.urls import same_service
from stateline.changelog.racing import raced
from stateline.checkpoint import CheckpointStore
from stateline.environment import system_environment
from stateline.errors import (
    FencedError,
    InvalidInputError,
    NotFoundError,
    NotInstalledError,
    OutcomeUnknownError,
    StatelineError,
    UnavailableError,
)
from stateline.files import EncodingAhead, FileOutput, RollingPolicy
from stateline.pipeline.end_of_stream import finish_root
from stateline.pipeline.files_decision import FilesDecision, TaskFiles, files_plan
from stateline.pipeline.offsets import offsets_digest
from stateline.pipeline.plan import PipelinePlan
from stateline.spark.arrow_types import arrow_schema
from stateline.spark.job.local_copies import host_copies
from stateline.spark.job.worker_process import freeze_imports
from stateline.spark.sinks.files_options import FilesSinkOptions

__all__ = ["RUN", "WATCHED", "FilesSink", "finish_job", "finish_sink", "roll_sink"]

_LOGGER: Final = logging.getLogger(__name__)

_ENVIRONMENT: Final = system_environment()
RUN: Final = "spark.stateline.run"
"""Setting of a query's own session: the id of its run, where it has no end of its own."""

WATCHED: Final = "spark.stateline.watched"
"""Setting of a session whose queries are watched: somebody notices their end."""

_QUERY: Final = "sql.streaming.queryId"
_CHECKPOINTS: Final = "spark.sql.streaming.checkpointLocation"
_PAUSES_SECONDS: Final = (1.0, 4.0, 15.0)
_MAY_PASS: Final = (UnavailableError, OutcomeUnknownError, FencedError)
"""What another try may mend. Only a record of our own, of which no answer came, can fence a job: its root is new."""


@dataclass
class _Known:
    """What a process remembers of a root between two commits, so that the second one needs no LIST.

    Attributes:
        query_id: The query. Another one may begin in the same place, after a user has removed an output.
        options: Options of the root's store.
        records: The root.
        ahead: Encodes open files until the next commit.
        newest_id: A checkpoint that is known to exist.
    """

    query_id: str
    options: Mapping[str, str]
    records: CheckpointStore
    ahead: EncodingAhead
    newest_id: int | None = None


_KNOWN: Final[dict[str, _Known]] = {}
"""By root, latest last. Only of commits that succeeded: after a failure everything is read again."""

_KNOWN_MAX: Final = 16


@dataclass(frozen=True)
class _Staged(WriterCommitMessage):
    """What one task hands to ``commit``, as plain values: it crosses a process in Spark's own serialisation.

    Attributes:
        query_id: The streaming query; empty for a batch write.
        spark_checkpoint: Where Spark keeps the query's checkpoint; empty if it is not known.
        run_id: The run of a stream that goes on; empty for one that ends by itself, and for a batch.
        is_watched: Whether somebody notices the end of the query.
        files: The task's rows, as JSON of :class:`TaskFiles`.
    """

    query_id: str
    spark_checkpoint: str
    run_id: str
    is_watched: bool
    files: bytes


class FilesSink(DataSource):
    """The data source behind ``format("stateline_files")``; see :class:`FilesSinkOptions` for its options."""

    @classmethod
    def name(cls) -> str:
        """The name that ``format()`` takes."""
        return "stateline_files"

    def schema(self) -> StructType:
        """Refuses: Spark asks for a schema when somebody reads.

        Raises:
            InvalidInputError: Always.
        """
        raise InvalidInputError(
            "it only writes",
            operation="read",
            subject="stateline_files",
            hint="Its files are plain files: read them with spark.read.parquet(path), or as what their format is",
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """A writer for one micro-batch; called by Spark.

        Raises:
            InvalidInputError: An unknown option, also of a store; a column that the format cannot hold; or another
                output mode than append.
            NotInstalledError: The SDK of a cloud is missing.
        """
        return _StreamWriter(_Sink.make(self.options, schema, overwrite=overwrite))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer for one batch job; called by Spark.

        Raises:
            InvalidInputError: As :meth:`streamWriter`.
            NotInstalledError: So, too.
        """
        return _BatchWriter(_Sink.make(self.options, schema, overwrite=overwrite))


def finish_sink(options: FilesSinkOptions) -> bool:
    """Finishes the open files of a stream's sink; see :func:`stateline.spark.finish_files`.

    Returns:
        Whether there is one: whether a stream has written anything there.
    """
    return finish_root(
        options.root_url,
        options.options_of_records,
        options.output(),
        _ENVIRONMENT,
        retained_checkpoints=options.retained_checkpoints,
        elsewhere=False,
    )


def roll_sink(options: FilesSinkOptions, query_id: str, run_id: str, quiet_seconds: float) -> float | None:
    """A round of the driver of a stream that goes on; see :meth:`FilesDecision.roll`."""
    return _Sink(options, options.root_url, b"", run_id=run_id).roll(query_id, quiet_seconds)


def finish_job(options: FilesSinkOptions, job_id: str) -> bool:
    """Makes all files of a decided batch job visible; see :func:`stateline.spark.finish_files`.

    Returns:
        Whether there is its record: whether it was decided, and not all of this has been done before.
    """
    return _Sink(options, options.root_url, b"").for_job(job_id).finish_job()


@dataclass(frozen=True)
class _Sink:
    """The sink of one query or job, in whatever process it is at the moment.

    Attributes:
        options: What the user said.
        root_url: Root of the records.
        schema: Arrow schema of the rows, serialised; empty where nothing but the end is left to do.
        job: Whether it is a batch job, which has no next batch.
        run_id: The run of a stream that goes on; empty for what has an end.
        is_watched: Whether somebody notices the end of a stream.
    """

    options: FilesSinkOptions
    root_url: str
    schema: bytes
    job: bool = False
    run_id: str = ""
    is_watched: bool = True

    @classmethod
    def make(cls, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> _Sink:
        if overwrite:
            raise InvalidInputError(
                "it only appends",
                operation="write",
                subject="stateline_files",
                hint='Use outputMode("append"), or mode("append") for a batch',
            )
        parsed = FilesSinkOptions.from_spark(options)
        rows = arrow_schema(schema)
        output = parsed.output()
        output.file_schema(rows)
        for url, settings in ((output.url, output.store_options), (parsed.root_url, parsed.options_of_records)):
            open_store(url, settings, _ENVIRONMENT)  # No call on it: only what is wrong with the options is told here.
        freeze_imports()
        return cls(parsed, parsed.root_url, rows.serialize().to_pybytes())

    def for_job(self, job_id: str) -> _Sink:
        """The sink of one batch job: its record has a root of its own."""
        return replace(self, root_url=f"{self.root_url.removesuffix('stream')}jobs/{job_id}", job=True)

    def for_run(self, messages: Sequence[WriterCommitMessage | None]) -> _Sink:
        """The sink of one run of a stream, as its tasks know it."""
        staged = next((message for message in messages if isinstance(message, _Staged)), None)
        return self if staged is None else replace(self, run_id=staged.run_id, is_watched=staged.is_watched)

    def stage(self, batches: Iterable[pa.RecordBatch]) -> _Staged:
        """A task's work: makes its rows durable. What is a whole file by itself is encoded here, in parallel."""
        context, name = TaskContext.get(), self.options.query_name
        query_id = (context.getLocalProperty(_QUERY) if context else None) or ""
        run_id = (context.getLocalProperty(RUN) if context and query_id else None) or ""
        is_watched = context is not None and context.getLocalProperty(WATCHED) is not None
        checkpoints = context.getLocalProperty(_CHECKPOINTS) if context and query_id and name else None
        location = self.options.checkpoint_location or (f"{checkpoints}/{name}" if checkpoints else "")
        files = self._decision().stage(batches)
        freeze_imports()
        return _Staged(query_id, location, run_id, is_watched, msgspec.json.encode(files))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """The driver's work: decides a batch, exactly once however often it is called."""
        staged = [message for message in messages if isinstance(message, _Staged)]
        made = [msgspec.json.decode(message.files, type=TaskFiles) for message in staged]
        named = next((message for message in staged if message.query_id), None)
        location = named.spark_checkpoint if named else self.options.checkpoint_location
        query_id = named.query_id if named else self._query_id(location)
        known = self._known(query_id)
        try:
            report = self._decision(known.records, known.ahead).commit(
                made,
                batch_id=batch_id,
                offsets_digest=self._digest(location, batch_id),
                query_id=query_id,
                at_least=known.newest_id,
                run_id=self.run_id,
            )
        except BaseException:
            known.ahead.close()
            raise
        if not self.job:
            known.newest_id = report.checkpoint.checkpoint_id
            _KNOWN[self.root_url] = known
            _forget_oldest()
        freeze_imports()

    def roll(self, query_id: str, quiet_seconds: float) -> float | None:
        """Finishes the files whose time has come; when the next one is due."""
        return self._decision().roll(query_id=query_id, run_id=self.run_id, quiet_seconds=quiet_seconds)

    def commit_job(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The driver's work for a batch job: one record decides all its files.

        No restart goes on from the record of a job: whoever sees it fail runs it again, and then rows that are visible
        come twice. So what is decided is tried again before it fails.

        Raises:
            StatelineError: Nothing is visible, and the job may run again; or the error says what is to be done first.
        """
        for pause in (*_PAUSES_SECONDS, None):
            try:
                self.commit(messages, 0)
                break
            except StatelineError as error:
                decided = self._is_decided(error)
                if decided is False:
                    raise
                if pause is None or not isinstance(error, _MAY_PASS):
                    raise self._unfinished(error, decided=bool(decided)) from error
                _ENVIRONMENT.clock.sleep(pause)
        self._remove_job()

    def finish_job(self) -> bool:
        """Publishes what a job has decided; whether there is its record."""
        if self._decision().coordinator().start() is None:
            return False
        self._remove_job()
        return True

    def _remove_job(self) -> None:
        """Removes what only the decision of a batch job needed, after its files are visible.

        A failure is no failure of the job: whoever runs it again has all of its rows twice.
        """
        # From above, so that on a local disk the folder of the job goes, too.
        above = self.options.root_url.removesuffix("stream")
        folder = self.root_url.removeprefix(above)
        store = open_store(above, self.options.options_of_records, _ENVIRONMENT)
        try:
            store.delete([f"{folder}/{info.name}" for info in self._root().list("")])
        except StatelineError:
            _LOGGER.warning("all files of a job are visible, but its record could not be removed", exc_info=True)

    def _is_decided(self, error: StatelineError) -> bool | None:
        """Whether a job that failed was decided before; ``None`` if nobody knows."""
        try:
            return self._decision().is_decided() or (None if isinstance(error, OutcomeUnknownError) else False)
        except StatelineError:
            return None

    def _unfinished(self, error: StatelineError, *, decided: bool) -> StatelineError:
        call = f"finish_files({self.options.path!r}, job={self.root_url.rpartition('/')[2]!r})"
        if decided:
            what = "The job is decided, and some of its files may be visible: do not run it again, its rows would come "
            what += f"twice. Call stateline.spark.{call}, with its other options for places, until it returns"
        else:
            what = f"Whether the job is decided is not known. Call stateline.spark.{call}, with its other options for "
            what += (
                "places: it makes all files visible, or raises NotFoundError if none ever will be: then run it again"
            )
        # To be unavailable would mean that nothing has happened.
        kind = OutcomeUnknownError if isinstance(error, _MAY_PASS) else type(error)
        return kind(error.message, operation=error.operation, subject=error.subject, hint=what)

    # -- wiring ---------------------------------------------------------------------------------------------------

    @property
    def output(self) -> FileOutput:
        """The output; the files of a batch job end with it, and those of a stream without an end by time."""
        output = self.options.output()
        if self.job:
            return replace(output, rolling=RollingPolicy(every_checkpoint=True))
        if not self.is_watched:
            return replace(output, rolling=output.rolling.unwatched())
        return replace(output, rolling=output.rolling.going_on()) if self.run_id else output

    def _known(self, query_id: str) -> _Known:
        known, options = _KNOWN.pop(self.root_url, None), self.options.options_of_records
        if known is None or (known.query_id, known.options) != (query_id, options):
            if known is not None:
                known.ahead.close()
            records = CheckpointStore(self._root(), environment=_ENVIRONMENT)
            return _Known(query_id, options, records, EncodingAhead(_ENVIRONMENT))
        return known

    def _decision(self, records: CheckpointStore | None = None, ahead: EncodingAhead | None = None) -> FilesDecision:
        root = self._root() if records is None else records.store
        out = self._opened(self.output.url, self.output.store_options)
        plan = self._plan()
        copies = host_copies(plan, root)
        return FilesDecision(plan, root, out, self._schema(), _ENVIRONMENT, records, ahead, copies)

    def _schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.schema)) if self.schema else pa.schema([])

    def _plan(self) -> PipelinePlan:
        options = self.options
        retained, records = options.retained_checkpoints, options.options_of_records
        return files_plan(
            self.root_url,
            self.output,
            retained,
            records,
            self._schema(),
            inline_bytes=options.inline_bytes,
            record_bytes=options.record_bytes,
            local_copies=options.local_copies,
            local_copies_bytes=options.local_copies_bytes,
        )

    def _root(self) -> BlobStore:
        return self._opened(self.root_url, self.options.options_of_records)

    def _opened(self, url: str, options: Mapping[str, str]) -> BlobStore:
        return raced(open_store(url, options, _ENVIRONMENT), self.options.retry_policy, _ENVIRONMENT)

    # -- what Spark keeps beside the query --------------------------------------------------------------------------

    def _digest(self, location: str, batch_id: int) -> str:
        """Digest of the source offsets; empty where Spark's checkpoint lies in a store that we cannot read."""
        read = partial(self._spark_file, location)
        return "" if read(f"offsets/{batch_id}") is None else offsets_digest(read, location, batch_id)

    def _query_id(self, location: str) -> str:
        entry = self._spark_file(location, "metadata")
        return "" if entry is None else str(msgspec.json.decode(entry)["id"])

    def _spark_file(self, location: str, name: str) -> str | None:
        if not location:
            return None
        options = self.options.store_options if same_service(location, self.options.path) else {}
        try:
            return open_store(location, options, _ENVIRONMENT).get(name).decode()
        except (InvalidInputError, NotFoundError, NotInstalledError):
            return None  # HDFS and the like: rows are safe all the same, only a rolled-back Spark goes unnoticed.


def _forget_oldest() -> None:
    """Keeps what is known bounded, in a process that lives as long as the driver."""
    while len(_KNOWN) > _KNOWN_MAX:
        oldest = _KNOWN.pop(next(iter(_KNOWN)))
        oldest.ahead.close()
        oldest.records.store.close()


class _StreamWriter(DataSourceStreamArrowWriter):
    """Spark's view of a stream's sink."""

    def __init__(self, sink: _Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Runs in a task."""
        return self._sink.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Runs beside the driver."""
        self._sink.for_run(messages).commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: the commit may have taken effect, and what did not is swept later."""


class _BatchWriter(DataSourceArrowWriter):
    """Spark's view of a batch job's sink."""

    def __init__(self, sink: _Sink) -> None:
        self._sink = sink.for_job(_ENVIRONMENT.ids.new_id())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Runs in a task."""
        return self._sink.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Runs beside the driver: one record decides all files of the job."""
        self._sink.commit_job(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: see :meth:`_StreamWriter.abort`."""
