"""An Iceberg table of any catalog: files are added in place, and a tag of ours moves with them in one commit.

The tag of an application points at the snapshot of its newest commit, whose summary says which checkpoint it was. So
the token is found without walking the history, and no clean-up of old snapshots takes it away.

Facts (pyiceberg 0.12):
- Its own retry of a commit drops the requirements on references: two drivers that add the same file would both succeed.
  So the commit goes to the catalog here, with all requirements, and what fails is looked at anew.
- A tag cannot be required of a table without snapshots. There ``main`` is required to be none, which is as good.
- A partition column that is not in the file counts as null without a word: files carry their partition columns. What
  partition a file is in the library reads from its bounds, and refuses two: ours are split by what the table has.
- Files have no ids of columns. The table gets a mapping of names, once.
- Bounds come from the footers of the files. Those of NaN are never in them, as the format asks.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table import Transaction, _parquet_files_to_data_files
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, SetSnapshotRefUpdate
from pyiceberg.transforms import parse_transform

from stateline.blob import BlobStore
from stateline.environment import Environment
from stateline.errors import (
    AccessDeniedError,
    DataLossError,
    InternalError,
    InvalidInputError,
    OutcomeUnknownError,
    StatelineError,
    UnavailableError,
)
from stateline.partition_fields import TIME_TRANSFORMS, PartitionField
from stateline.tables.api import Attempt, NewFile, Outcome, Table, TableChange, TableState
from stateline.tables.columns import check_fit, check_kinds, plain_schema, refused_columns
from stateline.tables.targets import TableTarget

__all__ = ["IcebergCommits", "open_table"]

_NAME: Final = "name"
_CHECKPOINT: Final = "stateline.checkpoint"
_NAME_MAPPING: Final = "schema.name-mapping.default"
_MERGING: Final = "commit.manifest-merge.enabled"
_DATA_PATH: Final = "write.data.path"
_FOR_EVER_MS: Final = 2**62
_VERSION_MAX: Final = 2
_DIGITS_MAX: Final = 38
_TAG: Final = re.compile("[^A-Za-z0-9_.-]")


def open_table(
    target: TableTarget,
    schema: pa.Schema | None,
    store: BlobStore | None,
    environment: Environment | None,  # noqa: ARG001
) -> IcebergCommits:
    """The table of a target; see :func:`stateline.tables.open_table`."""
    return IcebergCommits(target, schema, store)


class IcebergCommits(Table):
    """A table of an Iceberg catalog.

    Args:
        target: Which one: ``namespace.table``. Options ``catalog.<property>`` are those of the catalog in pyiceberg;
            ``catalog.name`` is its name, under which pyiceberg's own configuration may have more.
        schema: Columns of the rows; ``None`` if unknown.
        store: Where its new files are; ``None`` where none come.
    """

    def __init__(self, target: TableTarget, schema: pa.Schema | None, store: BlobStore | None) -> None:
        self._target = target
        self._store = store
        self._schema = None if schema is None else _iceberg_columns(schema)
        self._partitions = [PartitionField.parse(column) for column in target.partition_by]
        properties = target.own_options
        self._catalog_name = properties.pop(_NAME, "default")
        self._properties = properties
        self._opened: Catalog | None = None
        namespace, _, table = target.target.rpartition(".")
        if not namespace or not table:
            raise InvalidInputError(
                f"must be namespace.table, got {target.target!r}",
                operation="write_table",
                subject="target",
                hint='Give such as "flights.late"; the catalog is in the options catalog.*',
            )
        if self._schema is not None:
            check_kinds(self._schema, _holds, "table of Iceberg", self.name)
            for field in self._partitions:
                field.check(self._schema)

    @property
    def name(self) -> str:
        return f"iceberg {self._target.target}"

    def files_url(self) -> str:
        with self._asking("load"):
            table = self._load()
        if table is None:
            self.create()
            with self._asking("load"):
                table = self._catalog().load_table(self._target.target)
        return table.properties.get(_DATA_PATH) or f"{table.location().rstrip('/')}/data"

    def look(self, app: str) -> TableState:
        with self._asking("load"):
            table = self._load()
            if table is None:
                return TableState(identity=None, committed=None)
            newest = table.snapshot_by_name(_tag_of(app))
            head = table.current_snapshot()
        summary = None if newest is None else newest.summary
        committed = None if summary is None else int(summary.additional_properties[_CHECKPOINT])
        version = "" if head is None else str(head.snapshot_id)
        return TableState(identity=str(table.metadata.table_uuid), committed=committed, version=version, snapshot=table)

    def create(self) -> None:
        if self._schema is None:
            raise refused_columns(
                "is not there, and nobody knows its columns", self.name, "Start the program, which knows them"
            )
        catalog = self._catalog()
        try:
            with self._asking("create"):
                catalog.create_namespace_if_not_exists(self._target.target.rpartition(".")[0])
                with catalog.create_table_transaction(self._target.target, schema=self._schema) as transaction:
                    with transaction.update_spec() as spec:
                        for field in self._partitions:
                            spec.add_field(field.column, parse_transform(field.transform), field.name)
                    mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
                    transaction.set_properties(**{_NAME_MAPPING: mapping, _MERGING: "true"})
        except (TableAlreadyExistsError, CommitFailedException):
            return  # Somebody was faster: look again.

    def check(self, state: TableState) -> None:
        if state.snapshot is not None:
            self._check_table(state.snapshot)
            if self._schema is not None:
                check_fit(self._schema, _iceberg_columns(state.snapshot.schema().as_arrow()), self.name)

    def attempt(self, change: TableChange, state: TableState) -> Attempt:
        table, token, tag = state.snapshot, change.token, _tag_of(change.token.app)
        self._check_table(table)
        paths = [self._path_of(file) for file in change.files]
        before = table.metadata.refs.get(tag)
        try:
            with self._asking("commit"):
                transaction = _Staging(table)
                if table.name_mapping() is None:
                    mapping = table.schema().name_mapping.model_dump_json()
                    transaction.set_properties(**{_NAME_MAPPING: mapping})
                files = self._data_files(table, paths)
                summary = {_CHECKPOINT: str(token.checkpoint_id)}
                producer = transaction.update_snapshot(snapshot_properties=summary)
                # Manifests that are never merged make each commit longer than the one before.
                is_merging = table.properties.get(_MERGING, "false").lower() == "true"
                with producer.merge_append() if is_merging else producer.fast_append() as appended:
                    for file in files:
                        appended.append_data_file(file)
                moved = SetSnapshotRefUpdate(
                    ref_name=tag,
                    type=SnapshotRefType.TAG,
                    snapshot_id=appended.snapshot_id,
                    max_ref_age_ms=_FOR_EVER_MS,
                )
                tied: list[Any] = [AssertTableUUID(uuid=table.metadata.table_uuid)]
                if table.metadata.snapshots:
                    tied.append(
                        AssertRefSnapshotId(ref=tag, snapshot_id=None if before is None else before.snapshot_id)
                    )
                self._catalog().commit_table(
                    table,
                    (*transaction._requirements, *tied),  # noqa: SLF001 - the public way drops them
                    (*transaction._updates, moved),  # noqa: SLF001
                )
        except CommitFailedException as error:
            return Attempt(outcome=Outcome.NOT_DONE, cause=error)
        except (UnavailableError, OutcomeUnknownError) as error:
            return Attempt(outcome=Outcome.UNKNOWN, cause=error)
        return Attempt(outcome=Outcome.DONE, version=str(appended.snapshot_id))

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _catalog(self) -> Catalog:
        if self._opened is None:
            with self._asking("open"):
                self._opened = load_catalog(self._catalog_name, **self._properties)
        return self._opened

    def _load(self) -> IcebergTable | None:
        try:
            return self._catalog().load_table(self._target.target)
        except NoSuchTableError:
            return None

    def _path_of(self, file: NewFile) -> str:
        """A file as the table names it: by a URL that nobody decodes."""
        if self._store is None:
            raise InternalError("files go into the table, but no store is open", subject=self.name)
        local = self._store.local_path(file.name)
        return f"{self._store.url}/{file.name}" if local is None else f"file://{local}"

    def _data_files(self, table: IcebergTable, paths: list[str]) -> list[Any]:
        """The entries of files, with the bounds of their footers, after a check of their columns."""
        try:
            return list(_parquet_files_to_data_files(table.metadata, paths, table.io))
        except FileNotFoundError as error:
            raise DataLossError(
                "a file that a record has published is gone, and its rows are not in the table yet",
                operation="commit",
                subject=str(error),
                hint="Bring it back to this name: nothing but the query may move files of a table",
            ) from error
        except (ValueError, TypeError) as error:
            raise refused_columns(f"cannot take the files: {error}", self.name, "Change the table back") from error

    def _check_table(self, table: IcebergTable) -> None:
        """Refuses a table of which a commit would promise what nobody keeps."""
        names = {field.source_id: table.schema().find_column_name(field.source_id) for field in table.spec().fields}
        there = [PartitionField(names[each.source_id] or "", str(each.transform)) for each in table.spec().fields]
        wanted, found = ([*map(str, fields)] for fields in (self._partitions, there))
        if table.metadata.format_version > _VERSION_MAX:
            reason = f"has format version {table.metadata.format_version}: ids of its rows would be missing"
        elif found != wanted:
            reason = f"is partitioned by {found}, and the rows by {wanted}"
        else:
            return
        known = all(each.transform in (*TIME_TRANSFORMS, PartitionField("").transform) for each in there)
        hint = f"Give partition_by={found}" if known else "Files are split by columns, or by parts of moments"
        raise refused_columns(reason, self.name, hint)

    @contextmanager
    def _asking(self, operation: str) -> Iterator[None]:
        """What catalogs and file systems raise, which is of any class, as errors of ours."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Of the library, about things that nobody here can change.
                yield
        except (StatelineError, CommitFailedException, NoSuchTableError, TableAlreadyExistsError):
            raise
        except (ForbiddenError, UnauthorizedError, AuthorizationExpiredError, PermissionError) as error:
            hint = "Mend the rights or credentials of the catalog; no row is lost"
            raise AccessDeniedError(
                f"is refused ({error})", operation=operation, subject=self.name, hint=hint
            ) from error
        except Exception as error:
            raise UnavailableError(
                f"cannot be reached ({type(error).__name__}: {error})",
                operation=operation,
                subject=self.name,
                hint="Check the options catalog.* and the service; no row is lost, and the next start goes on",
            ) from error


class _Staging(Transaction):
    """A transaction that nobody commits by itself: its parts are taken out.

    The library copies all metadata, with every snapshot that there is, whenever somebody looks at it.
    """

    def __init__(self, table: IcebergTable) -> None:
        super().__init__(table)
        self._copied: tuple[int, Any] = (0, table.metadata)

    @property
    def table_metadata(self) -> Any:
        """The metadata with the changes so far."""
        if self._copied[0] != len(self._updates):
            self._copied = len(self._updates), super().table_metadata
        return self._copied[1]


def _tag_of(app: str) -> str:
    """The tag of an application; other engines take only such names without quotes."""
    return "stateline-" + _TAG.sub("-", app)


def _iceberg_columns(schema: pa.Schema) -> pa.Schema:
    """Columns in the types that the format has: it knows no whole numbers of less than 32 bits."""
    small = (pa.int8(), pa.int16())
    plain = plain_schema(schema)
    return pa.schema([field.with_type(pa.int32()) if field.type in small else field for field in plain])


def _holds(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
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
