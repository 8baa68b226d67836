"""Where rows go: a table that a user names, checked, and opened by the module of its format when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import pyarrow as pa

from stateline.blob import BlobStore, open_store
from stateline.blob.urls import is_relative, refuse_credentials, store_options
from stateline.environment import Environment
from stateline.errors import InvalidInputError, NotInstalledError
from stateline.extras import extra_module
from stateline.options import check_kind, check_known, parse_choice, plain_options, pop_prefixed
from stateline.redaction import hide_options
from stateline.tables.api import Table

__all__ = ["FILE_TABLES", "TABLE_FORMATS", "TableTarget", "open_table", "resolve_options"]


@dataclass(frozen=True, slots=True)
class _Format:
    """How a format is loaded.

    Attributes:
        module: Its module, which has a function ``open_table``.
        extra: The extra of this package that brings its library; empty where none is needed.
        modes: What it can do.
    """

    module: str
    extra: str
    modes: tuple[str, ...]


_APPEND: Final = "append"
_UPSERT: Final = "upsert"

TABLE_FORMATS: Final[Mapping[str, _Format]] = {
    "delta": _Format("stateline.tables.delta", "delta", (_APPEND, _UPSERT)),
    "iceberg": _Format("stateline.tables.iceberg", "iceberg", (_APPEND,)),
    "postgresql": _Format("stateline.tables.postgresql", "sql", (_APPEND, _UPSERT)),
    "sqlite": _Format("stateline.tables.sqlite", "", (_APPEND, _UPSERT)),
}
"""By the name that users give."""

_PREFIXES: Final = {"delta": "storage.", "iceberg": "catalog."}
"""Begin the options of a library that reads the table by itself; the others are for the store of our files."""

_CATALOG_URI: Final = "catalog.uri"
_CATALOG_WAREHOUSE: Final = "catalog.warehouse"
_PLACES: Final = {"sqlite": ("uri",), "iceberg": (_CATALOG_URI, _CATALOG_WAREHOUSE)}
"""Options that may name a path, by format."""

_SQLITE: Final = "sqlite:///"

FILE_TABLES: Final = tuple(_PREFIXES)
"""Tables that are made of files."""

_CHANGES: Final = (
    "Append the rows as they come, with checkpoint_id, and let readers take the newest one of each key: a merge of "
    "pyiceberg rewrites files and is no single step"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTarget:
    """A table as a user names it.

    Attributes:
        format: One of :data:`TABLE_FORMATS`.
        target: Delta: URL of the table; Iceberg: ``namespace.table``; databases: the name of the table.
        mode: ``append``, or ``upsert`` by key.
        key: Columns that tell rows apart, for ``upsert``.
        deletes: Whether an ``upsert`` also deletes the rows that its operator takes back or forgets.
        partition_by: Columns by which a table of files is partitioned, outermost first.
        options: Of the format; may hold credentials, so they are never shown.

    Raises:
        InvalidInputError: They do not go together; says why.
    """

    format: str
    target: str
    mode: Literal["append", "upsert"] = "append"
    key: tuple[str, ...] = ()
    deletes: bool = False
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_kind(self.format, str, "format", f"one of {', '.join(TABLE_FORMATS)}")
        parse_choice(self.format, TABLE_FORMATS, "format")
        check_kind(self.target, str, "target", "the name or URL of a table")
        hide_options(self.options)
        if self.format == "delta":
            refuse_credentials(self.target)
        if not self.target.strip():
            raise _refused("must not be empty", "target", "Give the name or URL of a table")
        parse_choice(self.mode, (_APPEND, _UPSERT), "mode")
        if self.mode not in TABLE_FORMATS[self.format].modes:
            raise _refused(f"a table of format {self.format} can only append", "mode", _CHANGES)
        for name in ("key", "partition_by"):
            _check_columns(getattr(self, name), name)
        if bool(self.key) != (self.mode == _UPSERT):
            hint = "Name the columns that tell rows apart" if self.mode == _UPSERT else 'Give mode="upsert", too'
            raise _refused(f"must go with mode upsert, got {list(self.key)} with mode {self.mode}", "key", hint)
        check_kind(self.deletes, bool, "deletes", "True or False")
        if self.deletes and self.mode != _UPSERT:
            raise _refused("must go with mode upsert", "deletes", 'Give mode="upsert" and a key, or leave it out')
        if self.partition_by and self.format not in FILE_TABLES:
            raise _refused(f"cannot partition a table of {self.format}", "partition_by", "Leave it to the database")

    def resolved(self, resolve: Callable[[str, str], str]) -> TableTarget:
        """The same table for every process.

        Args:
            resolve: Called with a relative path and what the user calls it; returns it as an absolute one.
        """
        is_path = self.format == "delta" and is_relative(self.target)
        return replace(
            self,
            target=resolve(self.target, "target") if is_path else self.target,
            options=resolve_options(self.format, plain_options(self.options), resolve),
        )

    @property
    def own_options(self) -> dict[str, str]:
        """The options of the library of a table of files, without their prefix."""
        return pop_prefixed(plain_options(self.options), _PREFIXES.get(self.format, ""))

    @property
    def store_options(self) -> dict[str, str]:
        """The options of the store of its files."""
        options = plain_options(self.options)
        pop_prefixed(options, _PREFIXES.get(self.format, ""))
        return options

    @property
    def takes_files(self) -> bool:
        """Whether rows go in as finished files; else they go in themselves, in the transaction of the token."""
        return self.format in FILE_TABLES and self.mode == _APPEND


def open_table(
    target: TableTarget,
    *,
    schema: pa.Schema | None,
    store: BlobStore | None = None,
    environment: Environment | None = None,
) -> Table:
    """Opens a table. No I/O happens before the first call on it.

    Args:
        target: Which one.
        schema: Columns of the rows; ``None`` where nobody knows them: then the table must exist.
        store: Where its files are, for a table that takes files.
        environment: Clock and ids.

    Raises:
        InvalidInputError: An option is unknown or wrong.
        NotInstalledError: A library is missing; the hint names the ``pip install``.
    """
    form = TABLE_FORMATS[target.format]
    _check_options(target)
    for column in schema or ():
        if column.name in target.key and pa.types.is_nested(column.type):
            reason = f"cannot compare rows by a column of {column.type}"
            raise _refused(reason, f"key {column.name!r}", "Use columns of plain values, such as a field of it")
    module = extra_module(form.module, form.extra, operation="open_table", subject=f"{target.format} {target.target}")
    table: Table = module.open_table(target, schema, store, environment)
    return table


def resolve_options(form: str, options: Mapping[str, str], resolve: Callable[[str, str], str]) -> dict[str, str]:
    """The options of a table, with relative paths resolved in those that name one.

    Args:
        form: The format of the table.
        options: Its options.
        resolve: As of :meth:`TableTarget.resolved`.
    """
    made = dict(options)
    database = str(made.get(_CATALOG_URI, ""))
    # The warehouse of a service is a name, or a place that only the service knows.
    is_ours = made.get("catalog.type") == "sql" or database.startswith(("sqlite:", "postgresql"))
    for name in _PLACES.get(form, ()):
        value = made.get(name)
        if not isinstance(value, str) or (name == _CATALOG_WAREHOUSE and not is_ours):
            continue
        is_sqlite = value.startswith(_SQLITE)
        if name == _CATALOG_URI and not is_sqlite:
            continue
        path, mark, query = value.removeprefix(_SQLITE).partition("?") if is_sqlite else (value, "", "")
        if path and path != ":memory:" and is_relative(path):
            made[name] = f"{_SQLITE if is_sqlite else ''}{resolve(path, f'option {name}')}{mark}{query}"
    return made


def _check_options(target: TableTarget) -> None:
    """Refuse options that neither the library of a table of files knows, by their prefix, nor a store."""
    options = target.store_options if target.format in _PREFIXES else {}
    if not options:
        return
    try:
        if target.format == "delta":
            open_store(target.target, options).close()
    except NotInstalledError:
        pass  # An upsert needs none of our stores. An append needs one later, and says so then.
    # Where the files of an Iceberg table are, only its catalog knows.
    check_known(options, [*store_options(), f"{_PREFIXES[target.format]}<option>"])


def _check_columns(columns: Sequence[str], name: str) -> None:
    for column in columns:
        check_kind(column, str, name, "names of columns")
    if len({column.lower() for column in columns}) != len(columns):
        raise _refused(f"cannot name a column twice, got {list(columns)}", name, "Remove the repeated name")


def _refused(reason: str, subject: str, hint: str) -> InvalidInputError:
    return InvalidInputError(reason, operation="write_table", subject=subject, hint=hint)
