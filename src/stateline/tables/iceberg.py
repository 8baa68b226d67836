"""An Iceberg table of any catalog: files are added in place, and a tag of ours moves with them in one commit.

The tag of an application points at the snapshot of its newest commit, whose summary says which checkpoint it was. So
the token is found without walking the history, and no clean-up of old snapshots takes it away.

Facts (pyiceberg 0.12):
- Its own retry of a commit drops the requirements on references: two drivers that add the same file would both succeed.
  So the commit goes to the catalog here, with all requirements, and what fails is looked at anew.
- A tag cannot be required of a table without snapshots. There ``main`` is required to be none, which is as good.
- Files carry the ids of the table's columns, and their entries are made in :mod:`stateline.tables.iceberg_files`. Files
  of earlier versions have no ids: for these the table gets a mapping of names.
- It cuts places off at ``#`` and ``?``, as if they were URLs.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
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
    ValidationError,
)
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table import Transaction
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    SetSnapshotRefUpdate,
)
from pyiceberg.transforms import parse_transform

from stateline.blob import BlobStore
from stateline.environment import Environment, side_by_side, system_environment
from stateline.errors import (
    AccessDeniedError,
    InternalError,
    InvalidInputError,
    OutcomeUnknownError,
    StatelineError,
    UnavailableError,
)
from stateline.file_columns import FileColumn
from stateline.partition_fields import TIME_TRANSFORMS, PartitionField
from stateline.redaction import safe_error
from stateline.tables.api import Attempt, NewFile, Outcome, Table, TableChange, TableLoss, TableState
from stateline.tables.columns import check_fit, check_kinds, refused_columns
from stateline.tables.footers import column_reader, read_footer
from stateline.tables.iceberg_files import FileEntries, SourceFile, file_columns, has_ids, plain_columns
from stateline.tables.iceberg_history import APP, CHECKPOINT, find_loss
from stateline.tables.targets import TableTarget

__all__ = ["IcebergCommits", "open_table"]

_NAME: Final = "name"
_NAME_MAPPING: Final = "schema.name-mapping.default"
_MERGING: Final = "commit.manifest-merge.enabled"
_WAREHOUSE: Final = "warehouse"
_DATA_PATH: Final = "write.data.path"
_FOR_EVER_MS: Final = 2**62
_VERSION_MAX: Final = 2
_DIGITS_MAX: Final = 38
_FOOTERS_AT_ONCE: Final = 8
_CUT_OFF: Final = ("#", "?")
_TAG: Final = re.compile("[^A-Za-z0-9_.-]")


def open_table(
    target: TableTarget,
    schema: pa.Schema | None,
    store: BlobStore | None,
    environment: Environment | None,
) -> IcebergCommits:
    """The table of a target; see :func:`stateline.tables.open_table`."""
    return IcebergCommits(target, schema, store, environment or system_environment())


class IcebergCommits(Table):
    """A table of an Iceberg catalog.

    Args:
        target: Which one: ``namespace.table``. Options ``catalog.<property>`` are those of the catalog in pyiceberg;
            ``catalog.name`` is its name, under which pyiceberg's own configuration may have more.
        schema: Columns of the rows; ``None`` if unknown.
        store: Where its new files are; ``None`` where none come.
        environment: Threads.
    """

    def __init__(
        self, target: TableTarget, schema: pa.Schema | None, store: BlobStore | None, environment: Environment
    ) -> None:
        self._target = target
        self._store = store
        self._environment = environment
        self._schema = None if schema is None else plain_columns(schema)
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
                self._check_partition(self._schema.field(field.column))

    @property
    def name(self) -> str:
        return f"iceberg {self._target.target}"

    def files_url(self) -> str:
        table = self._made()
        return self._checked_place(table.properties.get(_DATA_PATH) or f"{table.location().rstrip('/')}/data")

    def file_columns(self) -> tuple[FileColumn, ...]:
        table = self._made()
        if self._schema is not None:  # A file whose column has no id would lose its values in silence.
            check_fit(self._schema, plain_columns(table.schema().as_arrow()), self.name)
        return self._columns_of(table)

    def look(self, app: str) -> TableState:
        with self._asking("load"):
            table = self._load()
            if table is None:
                return TableState(identity=None, committed=None)
            newest = table.snapshot_by_name(_tag_of(app))
            head = table.current_snapshot()
        summary = None if newest is None else newest.summary
        committed = None if summary is None else int(summary.additional_properties[CHECKPOINT])
        version = "" if head is None else str(head.snapshot_id)
        return TableState(
            identity=str(table.metadata.table_uuid),
            committed=committed,
            version=version,
            file_columns=file_columns(table.schema()),
            snapshot=table,
        )

    def create(self) -> None:
        if self._schema is None:
            raise refused_columns(
                "is not there, and nobody knows its columns", self.name, "Start the program, which knows them"
            )
        catalog = self._catalog()
        for place in (self._target.target, catalog.properties.get(_WAREHOUSE, "")):
            self._checked_place(place)
        try:
            with self._asking("create", ValidationError, ValueError):
                catalog.create_namespace_if_not_exists(self._target.target.rpartition(".")[0])
                with catalog.create_table_transaction(self._target.target, schema=self._schema) as transaction:
                    self._columns_of(transaction)
                    with transaction.update_spec() as spec:
                        for field in self._partitions:
                            spec.add_field(field.column, parse_transform(field.transform), field.name)
                    transaction.set_properties(**{_MERGING: "true"})
        except (ValidationError, ValueError) as error:
            hint = "Rename the columns that it names, or complete the options catalog.*"
            raise refused_columns(f"cannot be created: {error}", self.name, hint) from error
        except (TableAlreadyExistsError, CommitFailedException):
            return  # Another process was faster: look again.

    def check(self, state: TableState) -> None:
        if self._store is not None:
            self._checked_place(self._path_of("-"))
        if state.snapshot is not None:
            self._check_table(state.snapshot)
            if self._schema is not None:
                check_fit(self._schema, plain_columns(state.snapshot.schema().as_arrow()), self.name)

    def loss(self, state: TableState, app: str, checked: str) -> TableLoss | None:
        table = state.snapshot
        tag = table.metadata.refs.get(_tag_of(app))
        return None if tag is None else find_loss(table.metadata, tag.snapshot_id, app, checked)

    def set_token(self, app: str, checkpoint_id: int | None, state: TableState) -> Attempt:
        table, tag = state.snapshot, _tag_of(app)
        if checkpoint_id is not None:
            return self._swap(table, _Staging(table), (), app, checkpoint_id)
        before = table.metadata.refs.get(tag)
        if before is None:
            return Attempt(outcome=Outcome.DONE)
        asserted = (
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertRefSnapshotId(ref=tag, snapshot_id=before.snapshot_id),
        )
        return self._attempted(
            lambda: self._catalog().commit_table(table, asserted, (RemoveSnapshotRefUpdate(ref_name=tag),))
        )

    def attempt(self, change: TableChange, state: TableState) -> Attempt:
        table, token = state.snapshot, change.token
        self._check_table(table)
        sources = side_by_side(self._environment, "stateline-footers", self._source, change.files, _FOOTERS_AT_ONCE)
        transaction = _Staging(table)
        mapping = table.name_mapping()
        if mapping is None:
            mapping = table.schema().name_mapping
            if not all(has_ids(source.footer) for source in sources):
                with self._asking("commit"):
                    transaction.set_properties(**{_NAME_MAPPING: mapping.model_dump_json()})
        entries = FileEntries(table.metadata, mapping, self.name)
        files = [entries.entry(source) for source in sources]
        return self._swap(table, transaction, files, token.app, token.checkpoint_id)

    def _swap(
        self, table: IcebergTable, transaction: _Staging, files: Sequence[DataFile], app: str, checkpoint_id: int
    ) -> Attempt:
        """Commits files and the tag in one step of the catalog, if the branch and the tag are where they were."""
        tag = _tag_of(app)
        before = table.metadata.refs.get(tag)

        def commit() -> str:
            summary = {CHECKPOINT: str(checkpoint_id), APP: app}
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
                tied.append(AssertRefSnapshotId(ref=tag, snapshot_id=None if before is None else before.snapshot_id))
            self._catalog().commit_table(
                table,
                (*transaction._requirements, *tied),  # noqa: SLF001 - the public way drops them
                (*transaction._updates, moved),  # noqa: SLF001
            )
            return str(appended.snapshot_id)

        return self._attempted(commit)

    def _attempted(self, commit: Callable[[], object]) -> Attempt:
        """The outcome of a commit, which returns the snapshot that it made, if it made one."""
        try:
            with self._asking("commit"):
                made = commit()
        except CommitFailedException as error:
            return Attempt(outcome=Outcome.NOT_DONE, cause=error)
        except (UnavailableError, OutcomeUnknownError) as error:
            return Attempt(outcome=Outcome.UNKNOWN, cause=error)
        return Attempt(outcome=Outcome.DONE, version=made if isinstance(made, str) else "")

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

    def _made(self) -> IcebergTable:
        """The table, which is created if it is missing."""
        with self._asking("load"):
            table = self._load()
        if table is None:
            self.create()
            with self._asking("load"):
                table = self._catalog().load_table(self._target.target)
        return table

    def _path_of(self, name: str) -> str:
        """A file as the table names it: by a URL that no reader decodes."""
        if self._store is None:
            raise InternalError("files go into the table, but no store is open", subject=self.name)
        local = self._store.local_path(name)
        return f"{self._store.url}/{name}" if local is None else f"file://{local}"

    def _source(self, file: NewFile) -> SourceFile:
        path = self._path_of(file.name)
        store = self._store
        if store is None:
            raise InternalError("files go into the table, but no store is open", subject=self.name)
        return SourceFile(file=file, path=path, footer=read_footer(store, file), column=column_reader(store, file))

    def _checked_place(self, place: str) -> str:
        """A place of the table's files, which the library must not cut off."""
        found = [character for character in _CUT_OFF if character in place]
        if found:
            raise InvalidInputError(
                f"the place {place!r} has the character {found[0]!r}, and pyiceberg cuts places off there",
                operation="write_table",
                subject=self.name,
                hint="Use a warehouse, and names of tables, without # and ?",
            )
        return place

    def _check_partition(self, column: pa.Field) -> None:
        """Refuses floats: readers disagree whether NaN, -0.0 and 0.0 are found in a partition."""
        if pa.types.is_floating(column.type):
            raise refused_columns(
                f"cannot be partitioned by column {column.name!r} of type {column.type}: readers do not agree on NaN "
                "and -0.0 in partitions",
                self.name,
                "Partition by another column, such as a whole number made from it",
            )

    def _columns_of(self, table: IcebergTable | Transaction) -> tuple[FileColumn, ...]:
        """The columns of a table, whose names in files differ."""
        schema = table.table_metadata.schema() if isinstance(table, Transaction) else table.schema()
        columns = file_columns(schema)
        names: dict[tuple[tuple[str, ...], str], FileColumn] = {}
        for column in columns:
            other = names.setdefault((column.path[:-1], column.name.lower()), column)
            if other is not column:
                raise refused_columns(
                    f"has the columns {other.path[-1]!r} and {column.path[-1]!r}, which files would call {column.name}",
                    self.name,
                    "Rename one of them",
                )
        return columns

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
    def _asking(self, operation: str, *passed: type[Exception]) -> Iterator[None]:
        """Turn what catalogs and file systems raise, of any class, into errors of ours.

        Args:
            operation: What is asked.
            passed: Classes that the caller handles itself.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Of the library, about things that nobody here can change.
                yield
        except (StatelineError, CommitFailedException, NoSuchTableError, TableAlreadyExistsError, *passed):
            raise
        except (ForbiddenError, UnauthorizedError, AuthorizationExpiredError, PermissionError) as error:
            hint = "Mend the rights or credentials of the catalog; no row is lost"
            raise AccessDeniedError(
                f"is refused ({error})", operation=operation, subject=self.name, hint=hint
            ) from safe_error(error)
        except Exception as error:  # noqa: BLE001 - a stand-in may take the place of the cause
            raise UnavailableError(
                f"cannot be reached ({type(error).__name__}: {error})",
                operation=operation,
                subject=self.name,
                hint="Check the options catalog.* and the service; no row is lost, and the next start goes on",
            ) from safe_error(error)


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
