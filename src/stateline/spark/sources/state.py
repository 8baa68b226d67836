"""``format("stateline")``: keyed state as a table, and its change feed as a table or a stream.

Read-only: nothing is written to the root, so a query that runs there is neither disturbed nor fenced.

Facts (Spark 4, Python data sources):

- A source is told which columns are wanted only through a schema or an option: ``.schema("key long")`` or
  ``option("columns", "key")``. ``select`` alone prunes above it.
- Spark asks every value of a column whether it is null, unless the user's schema says ``NOT NULL``: then a scan is an
  eighth faster, and a null is an error. Whether a column has nulls may differ from checkpoint to checkpoint, so a
  schema that Spark asks for here never says so.
- ``pushFilters`` gets comparisons with literals. Where equality or ``IN`` names a value for every key column, only the
  record batches that may hold those keys are fetched. Spark evaluates all filters again, so a superset is right.
- It must be switched on: ``spark.sql.python.filterPushdown.enabled``, which ``register`` does.
- Spark keeps what ``pushFilters`` left to read with the DataFrame, for all its later queries and for both sides of a
  union. So a read is narrowed only where the user said that it has one use: ``option("point_reads", "true")``.
- Tasks get plain values: handles of runs, and a schema. They read no record, so all tasks of a read see one checkpoint.

A stream is exactly once because an offset names a decision: the id of a checkpoint **and** the nonce of its record.
The net changes between two records are one function of them, so a batch that Spark replays has the same rows. A record
that was retired meanwhile, or a root that was made anew, is a clear error and never a gap. A batch that was planned
before the state evolved, and comes again after it, is read in the newer form, which is what the stream's schema shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from stateline.blob import open_store
from stateline.checkpoint import Checkpoint, SubtaskState
from stateline.errors import ErrorKind, InvalidInputError
from stateline.spark.arrow_types import arrow_schema
from stateline.spark.job.worker_process import freeze_imports
from stateline.spark.places import refuse_relative
from stateline.spark.sources.state_filters import named_keys
from stateline.spark.sources.state_options import LATEST, StateSourceOptions
from stateline.spark.sources.state_root import StateRoot
from stateline.state.changes import change_schema, changes_between
from stateline.state.schema import StateSchema
from stateline.state.stored import SliceReader, StoredState

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # Before Spark 4.2, availableNow runs one batch of a Python source.

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Nothing to support."""


__all__ = ["StateSource"]

_ROWS_PER_TASK: Final = 2_500_000
"""Starting a task costs what moving half a million rows to the JVM costs, so a task has several times as many."""


class StateSource(DataSource):
    """The data source behind ``format("stateline")``; see :class:`StateSourceOptions` for its options."""

    @classmethod
    def name(cls) -> str:
        return "stateline"

    def schema(self) -> StructType:
        """The columns of the state, or of the feed; called by Spark where the user gives no schema.

        Raises:
            NotFoundError: There is no checkpoint.
            InvalidInputError: A wrong option, or a column of a type that Spark does not have.
        """
        options = _parsed(self.options)
        stored = StateRoot(options).newest_of_interest()
        # Spark asks before it says whether this is a stream; a stream without a mode has changes, so it says so here.
        schema = change_schema(stored.schema) if options.is_feed else stored.schema.row
        if options.columns:
            schema = pa.schema([_field(schema, name) for name in options.columns])
        freeze_imports()
        return _spark_schema(schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads a snapshot, or the changes between two checkpoints; called by Spark."""
        options = _parsed(self.options)
        snapshot = _PointReader if options.point_reads else _SnapshotReader
        made = _FeedReader(options, schema) if options.is_feed else snapshot(options, schema)
        freeze_imports()
        return made

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Reads the changes as a stream; called by Spark.

        Raises:
            InvalidInputError: An option that a stream does not have.
        """
        options = _parsed(self.options)
        if not options.is_feed or options.end_checkpoint is not None:
            raise InvalidInputError(
                "cannot stream a snapshot, or changes with an end",
                operation="readStream",
                subject="stateline",
                hint="Give option('mode', 'changes') and no end_checkpoint",
            )
        return _StreamReader(options, schema)


def _parsed(options: Mapping[str, str]) -> StateSourceOptions:
    refuse_relative(StateSource.name(), options)
    return StateSourceOptions.from_spark(options)


# -- what tasks get ---------------------------------------------------------------------------------------------------


class _Task(msgspec.Struct, frozen=True, kw_only=True):
    """A slice of state for one task.

    Attributes:
        state: The key groups and their runs.
        before: What the changes are told against; only for a feed.
        keys: For a point read: the keys, as an Arrow IPC stream.
    """

    state: SubtaskState
    before: SubtaskState | None = None
    keys: bytes | None = None


@dataclass(frozen=True)
class _Rows:
    """Makes the rows of a slice in whatever process Spark runs the task. Plain values only: it is copied there.

    Attributes:
        store_url: The store of the runs.
        store_options: Its options.
        state_schema: What the runs hold, encoded.
        max_parallelism: Number of key groups.
        target: The Arrow schema that Spark expects, serialised.
        is_feed: Whether rows are changes.
    """

    store_url: str
    store_options: Mapping[str, str]
    state_schema: str
    max_parallelism: int
    target: bytes
    is_feed: bool

    @classmethod
    def of(cls, stored: StoredState, options: StateSourceOptions, schema: StructType) -> _Rows:
        """Rows of one state, or of a feed that ends with it.

        Raises:
            InvalidInputError: Spark expects a column that is not there, or of another type.
        """
        _check_names(options.columns, schema.names)
        stored_columns = change_schema(stored.schema) if options.is_feed else stored.schema.row
        target = arrow_schema(schema)
        available = arrow_schema(_spark_schema(pa.schema([_field(stored_columns, name) for name in target.names])))
        for field in target:
            if available.field(field.name).type != field.type:
                raise InvalidInputError(
                    f"has the type {available.field(field.name).type}, the schema expects {field.type}",
                    operation="load",
                    subject=f"column {field.name!r}",
                    hint="Load it without a schema and cast it, or read it again: the state may have evolved",
                    kind=ErrorKind.SCHEMA_MISMATCH,
                )
        return cls(
            store_url=stored.store.url,
            store_options=dict(options.root_options),
            state_schema=stored.operator.schema,
            max_parallelism=stored.max_parallelism,
            target=target.serialize().to_pybytes(),
            is_feed=options.is_feed,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task; Spark makes one partition without a value where there is nothing to read."""
        if partition.value is None:
            return
        task = msgspec.json.decode(partition.value, type=_Task)
        target = pa.ipc.read_schema(pa.py_buffer(self.target))
        store = open_store(self.store_url, self.store_options)
        reader = SliceReader(store, StateSchema.decode(self.state_schema), self.max_parallelism)
        for batch in self._batches(reader, task, target.names):
            columns = [_as_expected(column, field) for column, field in zip(batch.columns, target, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=target)
        freeze_imports()

    def _batches(self, reader: SliceReader, task: _Task, names: list[str]) -> Iterator[pa.RecordBatch]:
        if self.is_feed:
            for batch in changes_between(reader, task.before, task.state):
                yield batch.select(names)
        elif task.keys is not None:
            keys = pa.ipc.open_stream(task.keys).read_all()
            batch = reader.get(task.state, keys.columns, names)
            if batch.num_rows:
                yield batch
        else:
            yield from reader.scan(task.state, names)


def _as_expected(column: pa.Array, field: pa.Field) -> pa.Array:
    """A column as Spark expects it. Spark does not look for nulls where the schema rules them out, so this does.

    Raises:
        InvalidInputError: A null in a column that the user's schema calls ``NOT NULL``.
    """
    if not field.nullable and column.null_count:
        raise InvalidInputError(
            "has a null, and the schema says NOT NULL",
            operation="read",
            subject=f"column {field.name!r}",
            hint="Load it without a schema, or leave NOT NULL out for this column",
            kind=ErrorKind.SCHEMA_MISMATCH,
        )
    return column if column.type.equals(field.type) else column.cast(field.type)


def _partition(task: _Task) -> InputPartition:
    return InputPartition(msgspec.json.encode(task))


def _slices(stored: StoredState, options: StateSourceOptions) -> list[SubtaskState]:
    return stored.slices(options.partitions or -(-stored.stored_rows // _ROWS_PER_TASK))


# -- readers ----------------------------------------------------------------------------------------------------------


class _Reader(DataSourceReader):
    """What tasks of all readers do. They get plain values and read no record."""

    _rows: _Rows

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)

    def __getstate__(self) -> dict[str, Any]:
        return {"_rows": self._rows}


class _SnapshotReader(_Reader):
    """The rows of one checkpoint or savepoint."""

    def __init__(self, options: StateSourceOptions, schema: StructType) -> None:
        self._options = options
        self._stored = StateRoot(options).newest_of_interest()
        self._rows = _Rows.of(self._stored, options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        return [_partition(_Task(state=state)) for state in _slices(self._stored, self._options)]


class _PointReader(_SnapshotReader):
    """The rows of the grouping keys that the filters of one query name; all rows where filters do not name these."""

    _keys: bytes | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Looks for the keys that filters name. Spark evaluates all filters again."""
        self._keys = named_keys(self._stored.schema.grouping.keys, filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        if self._keys is not None:
            return [_partition(_Task(state=self._stored.whole(), keys=self._keys))]
        return super().partitions()


class _FeedReader(_Reader):
    """The changes between two checkpoints."""

    def __init__(self, options: StateSourceOptions, schema: StructType) -> None:
        root = StateRoot(options)
        after = root.newest_of_interest()
        before = None
        if options.start_checkpoint == LATEST:
            raise InvalidInputError(
                "must be a checkpoint id where changes are not streamed",
                operation="load",
                subject="start_checkpoint",
                hint="Give an id, or use spark.readStream to begin with the latest",
            )
        if isinstance(options.start_checkpoint, int):
            if options.start_checkpoint > after.checkpoint_id:
                raise InvalidInputError(
                    f"must not be above the end {after.checkpoint_id}, got {options.start_checkpoint}",
                    operation="load",
                    subject="start_checkpoint",
                    hint="Changes lead from an older checkpoint to a newer one",
                )
            before = after.in_record(root.store, root.get(options.start_checkpoint))
        self._partitions = _feed_partitions(before, after, options)
        self._rows = _Rows.of(after, options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        return self._partitions


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The changes as a stream. An offset is ``{"checkpoint": id, "nonce": nonce}``; -1 is before the first one."""

    def __init__(self, options: StateSourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._root = StateRoot(options)
        self._at_start = self._root.newest()
        self._target: dict[str, Any] | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fixes where a query that ends by itself ends; without it, Spark would stop after one batch, or a replay."""
        self._target = self.latestOffset()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        start = self._options.start_checkpoint
        if start == LATEST:
            return self.latestOffset()
        return _NOTHING if start is None else _offset(self._root.get(int(start)))

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: ARG002, N802
        """The newest checkpoint. One batch takes all there is: net changes do not grow with the checkpoints between."""
        if self._target is not None:
            return self._target
        newest = self._root.newest()
        return _NOTHING if newest is None else _offset(newest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Slices of what changed between two offsets."""
        if start == end:
            return []
        before, after = (self._record(offset) for offset in (start, end))
        if after is None or start["checkpoint"] > end["checkpoint"]:
            raise _made_anew(self._options.path, start["checkpoint"])
        stored = self._root.stored(after)
        newer = max(after, self._at_start or after, key=lambda record: record.checkpoint_id)
        rows = _Rows.of(self._root.stored(newer), self._options, self._schema)
        older = None if before is None else stored.in_record(self._root.store, before)
        made = _feed_partitions(older, stored, self._options)
        # The reader that tasks get was copied when the stream began, so each partition says how to read it.
        return [_StreamPartition(partition.value, rows) for partition in made]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        rows: _Rows = partition.rows
        return rows.read(partition)

    def _record(self, offset: Mapping[str, Any]) -> Checkpoint | None:
        """The record that an offset names; ``None`` for the one before the first.

        Raises:
            NotFoundError: It was retired.
            InvalidInputError: There is another record in its place.
        """
        if offset["checkpoint"] < 0:
            return None
        record = self._root.get(offset["checkpoint"])
        if record.nonce != offset["nonce"]:
            raise _made_anew(self._options.path, record.checkpoint_id)
        return record

    def __getstate__(self) -> dict[str, Any]:
        """Tasks need nothing but their partition."""
        return {}


class _StreamPartition(InputPartition):
    def __init__(self, value: bytes, rows: _Rows) -> None:
        super().__init__(value)
        self.rows = rows


_NOTHING: Final[dict[str, Any]] = {"checkpoint": -1, "nonce": ""}


def _offset(record: Checkpoint) -> dict[str, Any]:
    return {"checkpoint": record.checkpoint_id, "nonce": record.nonce}


def _feed_partitions(
    before: StoredState | None, after: StoredState, options: StateSourceOptions
) -> list[InputPartition]:
    new = _slices(after, options)
    old: Sequence[SubtaskState | None] = [None] * len(new) if before is None else before.slices(len(new))
    pairs = zip(old, new, strict=True)
    return [_partition(_Task(before=was, state=now)) for was, now in pairs if was is None or was.runs != now.runs]


def _field(schema: pa.Schema, name: str) -> pa.Field:
    index = schema.get_field_index(name)
    if index < 0:
        raise InvalidInputError(
            "there is no such column",
            operation="load",
            subject=f"column {name!r}",
            hint=f"Columns: {', '.join(schema.names)}",
            kind=ErrorKind.SCHEMA_MISMATCH,
        )
    return schema.field(index)


def _check_names(wanted: Sequence[str], names: Sequence[str]) -> None:
    """Refuses what Spark passes on unseen: a column that comes twice, and an option that a schema overrules."""
    twice = [name for at, name in enumerate(names) if name in names[:at]]
    if twice or (wanted and list(wanted) != list(names)):
        raise InvalidInputError(
            "must not be named twice in the schema"
            if twice
            else f"cannot be chosen beside a schema of {', '.join(names)}",
            operation="load",
            subject=f"column {twice[0]!r}" if twice else f"columns {', '.join(wanted)}",
            hint="Name each column once, in a schema or in option('columns', ...)",
            kind=ErrorKind.SCHEMA_MISMATCH,
        )


def _spark_schema(schema: pa.Schema) -> StructType:
    try:
        return from_arrow_schema(schema)
    except PySparkException as error:
        raise InvalidInputError(
            f"cannot be shown in Spark ({error})",
            operation="load",
            subject="schema",
            hint="Name the other columns with option('columns', ...), or use `stateline state export`",
            kind=ErrorKind.SCHEMA_MISMATCH,
        ) from error


def _made_anew(path: str, checkpoint_id: int) -> InvalidInputError:
    return InvalidInputError(
        f"checkpoint {checkpoint_id} is not the one that this stream has read: the root was created again",
        operation="readStream",
        subject=path,
        hint="Restore the root, or start the stream anew, with a new Spark checkpoint",
        kind=ErrorKind.FOREIGN_ROOT,
    )
