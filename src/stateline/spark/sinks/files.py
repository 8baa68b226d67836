"""``format("stateline_files")``: the exactly-once file sink for any stream, and for batch writes, without state.

Tasks make rows durable under fresh names and hand over handles; ``commit`` joins them to the open files, encodes what
is complete, and decides: one object per task and one record per micro-batch (``files_decision``).

Facts (Spark 4, Python data sources):

- ``write`` runs in tasks. Each attempt of a task calls it; the message of one attempt that ended reaches ``commit``.
- ``commit`` runs in a Python process of its own beside the driver. The writer object is made anew for each batch, so
  all that ``commit`` must know is in the messages and in the store. It is called again for a batch that is replayed.
- ``abort`` is also called after a commit that took effect, so it does nothing.
- A task learns its query from ``TaskContext``'s local properties, which also hold the settings of the session;
  ``commit`` learns it from the messages.
- Every setting of the query's own session whose name begins with ``spark`` reaches the tasks as a local property. So
  the driver tells them by :data:`RUN` that it makes rounds while no rows come, and for which run.
- Spark reports neither the trigger of a query nor its end. The option ``trigger`` says which one it is, set by the
  start of a query (``spark.query.files_start``). Without it the stream may end after any batch, so each batch
  publishes its rows: nothing after the commit of a batch is needed then (decision 0077).
- Where ``checkpointLocation`` is a setting of the session, Spark hands the writer no option, and keeps its checkpoint
  below that place under the query's name. Without a name nobody could ever start from it again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from stateline.blob import open_store
from stateline.blob.urls import same_service
from stateline.checkpoint import CheckpointStore
from stateline.environment import system_environment
from stateline.errors import FencedError, InvalidInputError, NotInstalledError
from stateline.file_columns import FileColumn
from stateline.files import EncodingAhead, FileOutput, FilesResult
from stateline.pipeline.end_of_stream import finish_root
from stateline.pipeline.offsets import ReadFile, offsets_digest, query_of, read_with_store
from stateline.spark.arrow_types import arrow_schema
from stateline.spark.job.worker_process import freeze_imports
from stateline.spark.places import refuse_relative
from stateline.spark.sinks.files_job import FilesJob
from stateline.spark.sinks.files_options import FilesSinkOptions
from stateline.spark.sinks.files_stores import check_stores, copies_of, open_decision, open_records

__all__ = ["RUN", "FilesSink", "finish_earlier_run", "finish_sink", "roll_sink"]

_LOGGER: Final = logging.getLogger(__name__)
_ENVIRONMENT: Final = system_environment()
RUN: Final = "spark.stateline.run"
"""Setting of a query's own session: the id of its run, where it has no end of its own."""

_QUERY: Final = "sql.streaming.queryId"
_CHECKPOINTS: Final = "spark.sql.streaming.checkpointLocation"
_NO_ROWS: Final = pa.schema([])
_TRIES: Final = 3


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
        files: The task's rows, as JSON of :class:`~stateline.files.FilesResult`.
        query_id: The streaming query; empty for a batch write.
        spark_checkpoint: Where Spark keeps the query's checkpoint; empty if it is not known.
        run_id: The run of a stream that goes on; empty for one that ends by itself, and for a batch.
    """

    files: bytes
    query_id: str = ""
    spark_checkpoint: str = ""
    run_id: str = ""


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
            "cannot be read, only written",
            operation="read",
            subject="stateline_files",
            hint="Its files are plain files: read them with spark.read.parquet(path), or the reader of their format",
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """A writer for one micro-batch; called by Spark.

        Raises:
            InvalidInputError: An unknown option, also of a store; a column that the format cannot hold; or another
                output mode than append.
            NotInstalledError: The SDK of a cloud is missing.
        """
        return _StreamWriter(*_checked(self.options, schema, overwrite=overwrite))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer for one batch job; called by Spark.

        Raises:
            InvalidInputError: As :meth:`streamWriter`.
            NotInstalledError: As there.
        """
        options, rows, file_columns = _checked(self.options, schema, overwrite=overwrite)
        return _BatchWriter(FilesJob(options, _ENVIRONMENT.ids.new_id(), rows, file_columns))


def _checked(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> tuple[FilesSinkOptions, pa.Schema, tuple[FileColumn, ...]]:
    if overwrite:
        raise InvalidInputError(
            "can only append",
            operation="write",
            subject="stateline_files",
            hint='Use outputMode("append"), or mode("append") for a batch',
        )
    refuse_relative(FilesSink.name(), options)
    parsed = FilesSinkOptions.from_spark(options)
    rows = arrow_schema(schema)
    parsed.output().file_schema(rows)
    file_columns = check_stores(parsed, rows)
    freeze_imports()
    return parsed, rows, file_columns


class _StreamWriter(DataSourceStreamArrowWriter):
    """Writes one micro-batch of a stream."""

    def __init__(self, options: FilesSinkOptions, schema: pa.Schema, file_columns: tuple[FileColumn, ...] = ()) -> None:
        self._options = options
        self._schema = schema
        self._file_columns = file_columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """A task's work: makes its rows durable."""
        context, name = TaskContext.get(), self._options.query_name
        query_id = (context.getLocalProperty(_QUERY) if context else None) or ""
        run_id = (context.getLocalProperty(RUN) if context and query_id else None) or ""
        checkpoints = context.getLocalProperty(_CHECKPOINTS) if context and query_id and name else None
        location = self._options.checkpoint_location or (f"{checkpoints}/{name}" if checkpoints else "")
        root = open_records(self._options, self._options.root_url)
        output = self._options.output(self._file_columns)
        files = open_decision(self._options, output, self._schema, root).stage(iterator)
        freeze_imports()
        return _Staged(msgspec.json.encode(files), query_id, location, run_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """The driver's work: decides a batch, exactly once however often it is called."""
        options = self._options
        staged = [message for message in messages if isinstance(message, _Staged)]
        told = next((message for message in staged if message.query_id), None)
        location = told.spark_checkpoint if told else options.checkpoint_location
        query_id = told.query_id if told else _query_id(options, location)
        run_id = staged[0].run_id if staged else ""
        known = _recall(options, query_id)
        columns = self._file_columns
        output = _output_of_stream(options, run_id, columns) if staged else options.output(columns)
        decision = open_decision(options, output, self._schema, known.records.store, known.records, known.ahead)
        try:
            report = decision.commit(
                _files(staged),
                batch_id=batchId,
                offsets_digest=_digest(options, location, batchId),
                query_id=query_id,
                at_least=known.newest_id,
                run_id=run_id,
            )
        except BaseException:
            known.ahead.close()
            raise
        known.newest_id = report.checkpoint.checkpoint_id
        _remember(options, known)
        freeze_imports()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: the commit may have taken effect, and a sweep removes what did not."""


class _BatchWriter(DataSourceArrowWriter):
    """Writes one batch job."""

    def __init__(self, job: FilesJob) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """A task's work: makes its rows durable. What is a whole file by itself is encoded here, in parallel."""
        files = self._job.decision().stage(iterator)
        freeze_imports()
        return _Staged(msgspec.json.encode(files))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """The driver's work: one record decides all files of the job."""
        self._job.commit(_files([message for message in messages if isinstance(message, _Staged)]))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing, as for streams."""


def finish_earlier_run(options: FilesSinkOptions, location: str, read: ReadFile | None = None) -> None:
    """Publishes what an earlier run of a query left open, before the next run starts. Idempotent.

    A run that finds no new rows runs no batch, so this is where those files are finished. The root of another query is
    left as it is: the first batch of this one is refused there.

    Args:
        options: Of the sink.
        location: Where Spark keeps the checkpoint of the query; empty if that is not known.
        read: Reads files of that checkpoint; ``None`` for a store of Stateline's.

    Raises:
        StatelineError: What the stores or a table raise.
    """
    if not location or options.finish == "never":
        return
    query_id = query_of(read or _spark_files(options, location))
    records = CheckpointStore(open_records(options, options.root_url), environment=_ENVIRONMENT)
    try:
        newest = records.latest()
    finally:
        records.store.close()
    if newest is None or newest.query_id != query_id:
        return
    for _ in range(_TRIES - 1):
        try:
            finish_sink(options)
            return
        except FencedError:  # A run that this one takes over from decided a batch meanwhile.
            _LOGGER.info("Another run of the query into %s goes on", options.path)
    finish_sink(options)


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
        copies=copies_of(options),
        table_options=options.reaching_table(),
    )


def roll_sink(options: FilesSinkOptions, query_id: str, run_id: str, quiet_seconds: float) -> float | None:
    """A round of the driver of a stream that goes on; see :meth:`FilesDecision.roll`."""
    output = _output_of_stream(options, run_id)
    decision = open_decision(options, output, _NO_ROWS, open_records(options, options.root_url))
    return decision.roll(query_id=query_id, run_id=run_id, quiet_seconds=quiet_seconds)


def _output_of_stream(options: FilesSinkOptions, run_id: str, file_columns: tuple[FileColumn, ...] = ()) -> FileOutput:
    """The output of one run: what finishes its files depends on whether the stream ends by itself."""
    output = options.output(file_columns)
    if run_id:
        return replace(output, rolling=output.rolling.going_on())
    if options.trigger == "endless":
        return replace(output, rolling=output.rolling.unwatched())
    return output if options.finish == "never" else replace(output, rolling=output.rolling.ending())


def _files(staged: Sequence[_Staged]) -> list[FilesResult]:
    return [msgspec.json.decode(message.files, type=FilesResult) for message in staged]


def _recall(options: FilesSinkOptions, query_id: str) -> _Known:
    """What is known of the root of a query; it is forgotten until the commit has succeeded."""
    known, store_options = _KNOWN.pop(options.root_url, None), options.options_of_records
    if known is not None and (known.query_id, known.options) == (query_id, store_options):
        return known
    if known is not None:
        known.ahead.close()
    records = CheckpointStore(open_records(options, options.root_url), environment=_ENVIRONMENT)
    return _Known(query_id, store_options, records, EncodingAhead(_ENVIRONMENT))


def _remember(options: FilesSinkOptions, known: _Known) -> None:
    """Keeps what is known bounded, in a process that lives as long as the driver."""
    _KNOWN[options.root_url] = known
    while len(_KNOWN) > _KNOWN_MAX:
        oldest = _KNOWN.pop(next(iter(_KNOWN)))
        oldest.ahead.close()
        oldest.records.store.close()


# -- what Spark keeps beside the query ---------------------------------------------------------------------------------


def _digest(options: FilesSinkOptions, location: str, batch_id: int) -> str:
    """Digest of the source offsets; empty where Spark's checkpoint lies in a store that we cannot read."""
    read = _spark_files(options, location)
    return "" if read(f"offsets/{batch_id}") is None else offsets_digest(read, location, batch_id)


def _query_id(options: FilesSinkOptions, location: str) -> str:
    return query_of(_spark_files(options, location)) or ""


def _spark_files(options: FilesSinkOptions, location: str) -> ReadFile:
    """Reads what Spark keeps, and finds nothing in HDFS and the like.

    Rows are safe all the same, only a rolled-back Spark goes unnoticed.
    """
    if not location:
        return _read_nothing
    store_options = options.store_options if same_service(location, options.path) else {}
    try:
        return read_with_store(open_store(location, store_options, _ENVIRONMENT))
    except (InvalidInputError, NotInstalledError):
        return _read_nothing


def _read_nothing(_: str) -> None:
    return None
