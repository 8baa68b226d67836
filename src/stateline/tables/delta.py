"""A Delta table: files are added in place, rows are merged by key; each commit carries its token as a ``txn`` action.

Facts (delta-rs 1.6):
- A commit that is newer than the loaded table and has the same application fails ours, whatever its version. Those of
  other applications, and compactions, do not. Versions are not compared: so every commit follows a look, on the very
  object that looked.
- Nothing of an ``add`` action is checked, and a partition value that cannot be parsed destroys the table. So all is
  checked here first: size, columns, types, partition values.
- A creator that comes second in mode ``ignore`` loses its files without a word. So a table is created empty.
- Tokens without the time of their commit go with Spark's next checkpoint of the log, where the table's properties say
  that tokens expire (``delta.setTransactionRetentionDuration``). A negative token stands for none.
- Names of files are given as they are on disk: the library escapes them for the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.table import TableFeatures
from deltalake.transaction import AddAction, CommitProperties, Transaction

from stateline.blob import BlobStore
from stateline.blob.urls import is_local, split_local_url
from stateline.environment import Environment, side_by_side, system_environment
from stateline.errors import ErrorKind, InternalError, InvalidInputError, StatelineError, UnavailableError
from stateline.tables.api import Attempt, NewFile, Outcome, Table, TableChange, TableLoss, TableState
from stateline.tables.columns import check_fit, check_kinds, plain_schema, refused_columns, with_promises
from stateline.tables.delta_columns import check_names
from stateline.tables.delta_history import MARK, LogEntry, find_loss, parse_entry
from stateline.tables.delta_merge import limit_bounds, merge_rows, properties_for_bounds
from stateline.tables.delta_statistics import check_partition_kind, file_statistics, partition_values
from stateline.tables.footers import read_footer
from stateline.tables.rows import canonical_keys, check_keys, joined_rows
from stateline.tables.targets import TableTarget

__all__ = ["DeltaLog", "open_table"]

_FOOTERS_AT_ONCE: Final = 8
_DIGITS_MAX: Final = 38
_KEPT_FEATURES: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",  # Constraints themselves are refused, and so are the next ones.
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
_REFUSED_FIELDS: Final = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
_INVARIANTS: Final = "invariants"
_WRITER_MAX: Final = 7
_CLEANED_EVERY: Final = 100
_S3_OPTIONS: Final = {
    "endpoint": "AWS_ENDPOINT_URL",
    "region": "AWS_REGION",
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",  # nosec B105 - the name of an option
    "session_token": "AWS_SESSION_TOKEN",  # nosec B105
}


def open_table(
    target: TableTarget, schema: pa.Schema | None, store: BlobStore | None, environment: Environment | None
) -> DeltaLog:
    """The table of a target; see :func:`stateline.tables.open_table`."""
    return DeltaLog(target, schema, store, environment or system_environment())


class DeltaLog(Table):
    """A Delta table, by its log.

    Args:
        target: Which one.
        schema: Columns of the rows; ``None`` if unknown.
        store: The table's folder, for appends.
        environment: Threads.
    """

    def __init__(
        self, target: TableTarget, schema: pa.Schema | None, store: BlobStore | None, environment: Environment
    ) -> None:
        self._target = target
        self._schema = None if schema is None else plain_schema(schema)
        self._store = store
        self._environment = environment
        self._place = split_local_url(target.target) if is_local(target.target) else _cloud_url(target.target)
        self._storage = _storage_options(target)
        if is_local(target.target) and "%" in self._place:
            reason = f"cannot be in the folder {self._place!r}: Delta readers take what follows '%' as a code"
            raise refused_columns(reason, self.name, "Give the folder a name without '%'")
        if self._schema is not None:
            check_kinds(self._schema, _holds, "Delta table", self.name)
            check_names(self._schema, self.name, is_merged=target.mode == "upsert")
            for column in target.partition_by:
                check_partition_kind(self._schema.field(column), self.name)

    @property
    def name(self) -> str:
        return f"delta {self._target.target}"

    def files_url(self) -> str:
        return self._target.target if self._target.takes_files else ""

    def look(self, app: str) -> TableState:
        try:
            table = DeltaTable(self._place, storage_options=self._storage)
            committed = table.transaction_version(app)
        except TableNotFoundError:
            return TableState(identity=None, committed=None)
        except (DeltaError, OSError, ValueError) as error:
            raise self._unavailable(error) from error
        return TableState(
            identity=str(table.metadata().id),
            committed=None if committed is None or committed < 0 else committed,
            version=str(table.version()),
            snapshot=table,
        )

    def loss(self, state: TableState, app: str, checked: str) -> TableLoss | None:
        if state.committed is None:
            return None
        files = DeltaStorageHandler(self._place, self._storage)

        def read(version: int) -> LogEntry | None:
            try:
                with files.open_input_file(f"_delta_log/{version:020}.json") as entry:
                    return parse_entry(version, bytes(entry.read()))
            except FileNotFoundError:
                return None
            except (DeltaError, OSError, ValueError) as error:
                raise self._unavailable(error) from error

        def read_all(versions: Sequence[int]) -> Sequence[LogEntry | None]:
            return side_by_side(self._environment, "stateline-log", read, versions, _FOOTERS_AT_ONCE)

        since = int(checked) if checked else None
        return find_loss(read_all, app, since, state.snapshot.version())

    def set_token(self, app: str, checkpoint_id: int | None, state: TableState) -> Attempt:
        table = state.snapshot
        properties = CommitProperties(
            app_transactions=[self._token(app, -1 if checkpoint_id is None else checkpoint_id)],
            custom_metadata={MARK: "set"},
        )
        try:
            table.create_write_transaction(
                [],
                mode="append",
                schema=table.schema(),
                partition_by=table.metadata().partition_columns,
                commit_properties=properties,
            )
        except CommitFailedError as error:
            return Attempt(outcome=Outcome.NOT_DONE, cause=error)
        except (DeltaError, OSError) as error:
            return Attempt(outcome=Outcome.UNKNOWN, cause=error)
        return Attempt(outcome=Outcome.DONE)

    def _token(self, app: str, checkpoint_id: int) -> Transaction:
        """A token with the time of its commit: without one, Spark drops it where tokens expire."""
        return Transaction(app, checkpoint_id, int(self._environment.clock.now() * 1000))

    def create(self) -> None:
        if self._schema is None:
            raise refused_columns(
                "is not there, and nobody knows its columns", self.name, "Start the program, which knows them"
            )
        try:
            table = DeltaTable.create(
                self._place,
                Schema.from_arrow(self._schema),
                mode="ignore",
                partition_by=list(self._target.partition_by),
                configuration={} if self._target.takes_files else properties_for_bounds(self._schema),
                storage_options=self._storage,
            )
        except (DeltaError, OSError) as error:
            if "timestampNtz" in str(error):  # deltalake 1.6 sets the feature for other columns, and not for maps.
                reason = "cannot be created with timestamps without a zone inside a map"
                raise refused_columns(reason, self.name, "Give them a zone, or create it with Spark first") from error
            raise self._unavailable(error) from error
        _complete_features(table)

    def check(self, state: TableState) -> None:
        if state.snapshot is not None:
            there = self._columns(state.snapshot)
            if self._schema is not None:
                check_fit(self._schema, there, self.name)

    def attempt(self, change: TableChange, state: TableState) -> Attempt:
        table, token = state.snapshot, change.token
        there = self._columns(table)
        if _complete_features(table):
            return Attempt(outcome=Outcome.NOT_DONE)
        properties = CommitProperties(
            app_transactions=[self._token(token.app, token.checkpoint_id)],
            custom_metadata={"stateline.checkpoint": str(token.checkpoint_id)},
        )
        if self._target.takes_files:
            actions = self._actions(change, there)
        else:
            if limit_bounds(table, there):
                return Attempt(outcome=Outcome.NOT_DONE)
            rows = canonical_keys(joined_rows(change.rows(), self._schema), self._target.key, newest=False)
            check_fit(with_promises(plain_schema(rows.schema), there), there, self.name)
            check_keys(rows, self._target.key, self.name)
        try:
            if self._target.takes_files:
                table.create_write_transaction(
                    actions,
                    mode="append",
                    schema=table.schema(),
                    partition_by=table.metadata().partition_columns,
                    commit_properties=properties,
                    post_commithook_properties=_cleaning(table),
                )
            else:
                gone = canonical_keys(joined_rows(change.gone()), self._target.key, newest=False)
                rows = rows.cast(plain_schema(rows.schema))
                merge_rows(table, rows, gone, self._target.key, properties, _cleaning(table))
        except CommitFailedError as error:
            return Attempt(outcome=Outcome.NOT_DONE, cause=error)
        except DeltaProtocolError as error:
            raise refused_columns(f"cannot be written: {error}", self.name, "Use another table") from error
        except (DeltaError, OSError) as error:
            return Attempt(outcome=Outcome.UNKNOWN, cause=error)
        return Attempt(outcome=Outcome.DONE, version=str(table.version()))

    def close(self) -> None:
        """Nothing is held open."""

    def _columns(self, table: DeltaTable) -> pa.Schema:
        """The columns of a table that can be kept exactly once."""
        _check_features(table, self.name, is_changed=not self._target.takes_files)
        partitions = list(table.metadata().partition_columns)
        if self._target.takes_files and partitions != list(self._target.partition_by):
            raise refused_columns(
                f"is partitioned by {partitions}, and the rows by {list(self._target.partition_by)}",
                self.name,
                f"Give partition_by={partitions}",
            )
        return plain_schema(pa.schema(table.schema().to_arrow()))

    def _actions(self, change: TableChange, there: pa.Schema) -> list[AddAction]:
        if self._store is None:
            raise InternalError("files go into the table, but no store is open", subject=self.name)
        store = self._store

        def read(file: NewFile) -> pq.FileMetaData:
            return read_footer(store, file)

        footers = side_by_side(self._environment, "stateline-footers", read, change.files, _FOOTERS_AT_ONCE)
        return [
            self._action(file, footer, there, int(change.created_at * 1000))
            for file, footer in zip(change.files, footers, strict=True)
        ]

    def _action(self, file: NewFile, footer: pq.FileMetaData, there: pa.Schema, modified_ms: int) -> AddAction:
        columns = plain_schema(footer.schema.to_arrow_schema())
        partitions = self._target.partition_by
        check_kinds(columns, _holds, "Delta table", self.name)
        check_fit(with_promises(columns, there), there, self.name, optional=partitions)
        return AddAction(
            path=file.name,
            size=file.length,
            partition_values=partition_values(file.name, partitions, there, footer),
            modification_time=modified_ms,
            data_change=True,
            stats=file_statistics(footer),
        )

    def _unavailable(self, error: Exception) -> StatelineError:
        if isinstance(error, DeltaProtocolError):
            return refused_columns(f"cannot be read: {error}", self.name, "Use another table")
        return UnavailableError(
            f"cannot be reached ({error})",
            operation="commit",
            subject=self.name,
            hint="Check the place, its rights and its options; no row is lost, and the next start goes on",
        )


def _check_features(table: DeltaTable, name: str, *, is_changed: bool) -> None:
    """Refuses a table whose promises nobody would keep: the library does not look at what is added.

    Args:
        table: The table.
        name: Its name.
        is_changed: Whether rows of it are replaced.
    """
    protocol, configuration = table.protocol(), table.metadata().configuration
    unknown = sorted({*(protocol.writer_features or ())} - _KEPT_FEATURES)
    mapping = configuration.get("delta.columnMapping.mode", "none")
    constraints = sorted(key for key in configuration if key.startswith("delta.constraints."))
    rules = sorted(_rules(json.loads(table.schema().to_json())))
    if protocol.min_writer_version > _WRITER_MAX:
        reason = f"asks for writers of version {protocol.min_writer_version}"
    elif unknown:
        reason = f"has features that are not known here: {unknown}"
    elif mapping != "none":
        reason = f"maps columns by {mapping}: readers would look for other names in the files"
    elif constraints:
        reason = f"has constraints, which nobody would check: {constraints}"
    elif rules:
        reason = f"has columns that are computed or checked by rules, which nobody would do: {rules}"
    elif is_changed and configuration.get("delta.appendOnly", "false").lower() == "true":
        reason = "takes appends only"
    else:
        return
    raise InvalidInputError(
        f"the table {reason}",
        operation="write_table",
        subject=name,
        hint="Drop the feature from the table, or use a table of its own",
        kind=ErrorKind.SCHEMA_MISMATCH,
    )


def _complete_features(table: DeltaTable) -> bool:
    """Add the feature that columns without nulls need, where the protocol of a table lists its features without it.

    deltalake creates such a table if a column is a timestamp without a zone, and Spark refuses to read it.

    Returns:
        Whether the table was changed, so that it must be looked at again.
    """
    features = table.protocol().writer_features
    if features is None or _INVARIANTS in features or not any(map(_is_required, pa.schema(table.schema().to_arrow()))):
        return False
    try:
        table.alter.add_feature(TableFeatures.Invariants)
    except DeltaError:
        return False  # Another process may keep the protocol from being changed: the rows are committed all the same.
    return True


def _is_required(field: pa.Field) -> bool:
    """Whether a column, or a field inside it, refuses nulls. The keys of a map always do."""
    kind = field.type
    if pa.types.is_map(kind):
        return not field.nullable or _is_required(kind.item_field)
    inside = [kind.field(index) for index in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return not field.nullable or any(map(_is_required, inside))


def _cleaning(table: DeltaTable) -> PostCommitHookProperties:
    """Has old entries of the log go once in a hundred versions, where checkpoints come, if its properties say so.

    The library would list the whole log for them after each commit, which would take longer each time.
    """
    is_due = (table.version() + 2) % _CLEANED_EVERY == 0  # Checkpoints come after versions 99, 199, ...
    return PostCommitHookProperties(cleanup_expired_logs=None if is_due else False)


def _rules(kind: Any) -> Iterator[str]:
    """The columns, at any depth of a schema, whose values are not only what somebody writes."""
    for each in kind.get("fields", ()) if isinstance(kind, Mapping) else ():
        if any(rule in each.get("metadata", {}) for rule in _REFUSED_FIELDS):
            yield str(each["name"])
        yield from _rules(each["type"])
    for part in ("elementType", "keyType", "valueType"):
        if isinstance(kind, Mapping) and part in kind:
            yield from _rules(kind[part])


def _holds(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "us")
    if pa.types.is_decimal128(kind):
        return bool(0 <= kind.scale <= kind.precision <= _DIGITS_MAX)
    return bool(
        pa.types.is_signed_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_date32(kind)
    )


def _storage_options(target: TableTarget) -> dict[str, str]:
    """How the library reaches the place: what the store of the files was told, and options of its own."""
    options, own = target.store_options, target.own_options
    if not target.target.startswith(("s3://", "s3a://")):
        return own
    made = {_S3_OPTIONS[name]: str(value) for name, value in options.items() if name in _S3_OPTIONS}
    made["AWS_CONDITIONAL_PUT"] = "etag"
    if options.get("endpoint", "").startswith("http://"):
        made["AWS_ALLOW_HTTP"] = "true"
    if options.get("path_style", "false").lower() == "false" and "endpoint" not in options:
        made["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = "true"
    return made | own


def _cloud_url(url: str) -> str:
    return url.replace("s3a://", "s3://", 1) if url.startswith("s3a://") else url
