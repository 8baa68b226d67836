"""Tables over simulated stores: each format's compare-and-set, where every step can fail, be lost, or land late.

Owns the models. Does not own the pipeline in front of them (``scenarios.tables``).

A table is a row of versions, each an object that is created if absent: that creation is the format's atomic step. What
decides between two writers is what the format has:

- :class:`DeltaModel`: the next entry of the log, and the check for conflicts of who loses it: an entry of the same
  application ends the attempt, and any other one is gone round. Versions of applications are not compared.
- :class:`IcebergModel`: the catalog's swap, which requires the table's identity, the branch and the tag of a look.
- :class:`DatabaseModel`: the real code and the real statements of SQLite, over a database that is read as a whole when
  a transaction begins and created as a whole when it ends.
"""

from __future__ import annotations

import json
import sqlite3
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import pyarrow as pa

from stateline.blob import BlobStore
from stateline.blob.checksum import crc32c
from stateline.environment import Environment, Ids
from stateline.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    DataLossError,
    NotFoundError,
    StatelineError,
    UnavailableError,
)
from stateline.tables import Attempt, NewFile, Outcome, Table, TableChange, TableState, TableTarget
from stateline.tables.sql import DatabaseError, Session
from stateline.tables.sqlite import SqliteTable, _SqliteSession

__all__ = ["DatabaseModel", "DeltaModel", "IcebergModel", "TableModel", "Versions"]

_VERSIONS: Final = "version-"
_ATTEMPTS: Final = 15
"""So often a writer goes round the entries of others, as delta-rs does by default."""


class Versions:
    """The versions of one table: objects that are created if absent, and say themselves whether they are whole.

    No two are equal, whoever makes them: who creates what is there already, byte for byte, is told that it did.

    Args:
        store: Where they are.
        ids: Tells versions apart.
    """

    def __init__(self, store: BlobStore, ids: Ids) -> None:
        self._store = store
        self._ids = ids

    def newest(self) -> tuple[int, bytes] | None:
        """The number and the content of the newest version; ``None`` where there is no table.

        Raises:
            UnavailableError: It cannot be read, or is not what was written.
        """
        names = [info.name for info in self._store.list(_VERSIONS)]
        return None if not names else (int(max(names)[len(_VERSIONS) :]), self._read(max(names)))

    def get(self, number: int) -> bytes:
        """The content of a version that exists."""
        return self._read(_name(number))

    def create(self, number: int, content: bytes) -> None:
        """Creates a version.

        Raises:
            AlreadyExistsError: Somebody was faster.
        """
        name = _name(number)
        self._store.put_if_absent(name, f"{name} {crc32c(content):08x} {self._ids.new_id()}\n".encode() + content)

    def _read(self, name: str) -> bytes:
        header, _, content = self._store.get(name).partition(b"\n")
        if not header.startswith(f"{name} {crc32c(content):08x} ".encode()):
            raise UnavailableError("is not what was written", operation="read", subject=name, hint="Try again")
        return content


class TableModel(Table):
    """A table of a simulated process.

    Args:
        target: Which one.
        versions: Its versions.
        files: Where the files are that go into it, as this process reaches them.
        truth: The same, past all faults: a table names files, and whoever reads it reads what they hold.
        environment: Ids.
    """

    def __init__(
        self,
        target: TableTarget,
        versions: Versions,
        files: BlobStore,
        truth: BlobStore,
        environment: Environment,
    ) -> None:
        self._target = target
        self._versions = versions
        self._files = files
        self._truth = truth
        self._environment = environment

    @property
    def name(self) -> str:
        return f"{self._target.format} {self._target.target}"

    def check(self, state: TableState) -> None:
        """The model takes all columns."""

    def close(self) -> None:
        """Nothing is held open."""

    @abstractmethod
    def rows(self) -> list[tuple[Any, ...]]:
        """All rows."""

    @abstractmethod
    def append_foreign(self, row: tuple[Any, ...]) -> None:
        """Another writer appends a row."""

    @abstractmethod
    def compact(self) -> tuple[str, ...]:
        """Another writer rewrites the table.

        Returns:
            The files that are not in it any more.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """A version of a table of files.

    Attributes:
        identity: The table's own.
        tokens: The newest checkpoint by application.
        head: Of Iceberg: the newest snapshot.
        tags: Of Iceberg: the snapshot of each application's newest commit.
        committer: The application that made the version; empty for others.
        files: The rows of each file, in the order in which they came. A file may be there twice.
    """

    identity: str
    tokens: dict[str, int] = field(default_factory=dict)
    head: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    committer: str = ""
    files: list[tuple[str, list[list[Any]]]] = field(default_factory=list)

    def encode(self) -> bytes:
        return json.dumps({name: getattr(self, name) for name in self.__slots__}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls(**json.loads(data))


class _FilesModel(TableModel):
    """What the tables of files share."""

    def look(self, app: str) -> TableState:
        """The newest version; see :meth:`Table.look`."""
        found = self._versions.newest()
        if found is None:
            return TableState(identity=None, committed=None)
        content = _Content.decode(found[1])
        return TableState(
            identity=content.identity,
            committed=content.tokens.get(app),
            version=str(found[0]),
            snapshot=(found[0], content),
        )

    def create(self) -> None:
        """See :meth:`Table.create`."""
        try:
            self._versions.create(0, _Content(identity=self._environment.ids.new_id()).encode())
        except AlreadyExistsError:
            return

    def attempt(self, change: TableChange, state: TableState) -> Attempt:
        """See :meth:`Table.attempt`."""
        added = [(file.name, self._read(file)) for file in change.files]
        try:
            return self._commit(change, state, added)
        except AccessDeniedError:
            raise
        except StatelineError as error:
            return Attempt(outcome=Outcome.UNKNOWN, cause=error)

    @abstractmethod
    def _commit(self, change: TableChange, state: TableState, added: list[tuple[str, list[list[Any]]]]) -> Attempt:
        """The atomic step of the format."""

    def rows(self) -> list[tuple[Any, ...]]:
        """See :meth:`TableModel.rows`."""
        found = self._versions.newest()
        files = [] if found is None else _Content.decode(found[1]).files
        return [tuple(row) for _, rows in files for row in rows]

    def append_foreign(self, row: tuple[Any, ...]) -> None:
        """See :meth:`TableModel.append_foreign`."""
        name = f"foreign-{self._environment.ids.new_id()}"
        self._change(lambda content: replace(content, files=[*content.files, (name, [list(row)])]))

    def compact(self) -> tuple[str, ...]:
        """See :meth:`TableModel.compact`."""
        before: list[str] = []
        name = f"compacted-{self._environment.ids.new_id()}"

        def compacted(content: _Content) -> _Content:
            before[:] = [file for file, _ in content.files]
            return replace(content, files=[(name, [row for _, rows in content.files for row in rows])])

        self._change(compacted)
        return tuple(before)

    def _change(self, changed: Callable[[_Content], _Content]) -> None:
        """What another writer does: again and again, until nobody was faster."""
        while (found := self._versions.newest()) is not None:
            after = changed(_Content.decode(found[1]))
            try:
                self._versions.create(
                    found[0] + 1, replace(after, committer="", head=self._environment.ids.new_id()).encode()
                )
            except AlreadyExistsError:
                continue
            return

    def _read(self, file: NewFile) -> list[list[Any]]:
        """The rows of a file, which must be there: the real tables read its footer."""
        try:
            self._files.get(file.name)
            data = self._truth.get(file.name)
        except NotFoundError as error:
            raise DataLossError("a file is gone", operation="commit", subject=file.name) from error
        return [list(row.values()) for row in pa.ipc.open_file(data).read_all().to_pylist()]


class DeltaModel(_FilesModel):
    """A log whose next entry one writer creates."""

    def _commit(self, change: TableChange, state: TableState, added: list[tuple[str, list[list[Any]]]]) -> Attempt:
        number, content = state.snapshot
        app = change.token.app
        for following in range(number + 1, number + 1 + _ATTEMPTS):
            there = dict(content.files)  # A path that is there is replaced: one that was compacted away comes back.
            after = replace(
                content,
                tokens={**content.tokens, app: change.token.checkpoint_id},
                committer=app,
                files=list((there | dict(added)).items()),
            )
            try:
                self._versions.create(following, after.encode())
            except AlreadyExistsError as error:
                content = _Content.decode(self._versions.get(following))
                if content.committer == app:
                    return Attempt(outcome=Outcome.NOT_DONE, cause=error)
                continue
            return Attempt(outcome=Outcome.DONE, version=str(following))
        return Attempt(outcome=Outcome.NOT_DONE)


class IcebergModel(_FilesModel):
    """A catalog that swaps the newest version, if what was required of it holds."""

    def _commit(self, change: TableChange, state: TableState, added: list[tuple[str, list[list[Any]]]]) -> Attempt:
        _, looked = state.snapshot
        app, snapshot = change.token.app, self._environment.ids.new_id()
        found = self._versions.newest()
        if found is None:
            return Attempt(outcome=Outcome.NOT_DONE)
        content = _Content.decode(found[1])
        if not self._holds(looked, content, app):
            return Attempt(outcome=Outcome.NOT_DONE)
        after = replace(
            content,
            tokens={**content.tokens, app: change.token.checkpoint_id},
            head=snapshot,
            tags={**content.tags, app: snapshot},
            committer=app,
            files=[*content.files, *added],
        )
        try:
            self._versions.create(found[0] + 1, after.encode())
        except AlreadyExistsError as error:
            return Attempt(outcome=Outcome.NOT_DONE, cause=error)
        return Attempt(outcome=Outcome.DONE, version=snapshot)

    def _holds(self, looked: _Content, now: _Content, app: str) -> bool:
        """Whether the requirements of a commit hold: the table, the branch and the tag are those of the look."""
        same_tag = looked.tags.get(app) == now.tags.get(app)
        return looked.identity == now.identity and looked.head == now.head and same_tag


class DatabaseModel(SqliteTable, TableModel):
    """The real table of SQLite over versions of a database.

    Args:
        target: Which one.
        schema: Columns of the rows; ``None`` for other writers.
        versions: Those of the database.
        token_first: See :attr:`stateline.tables.sql.SqlTable.token_first`: PostgreSQL moves it last.
    """

    def __init__(
        self, target: TableTarget, schema: pa.Schema | None, versions: Versions, *, token_first: bool = True
    ) -> None:
        super().__init__(target, schema)
        self._versions = versions
        self.token_first = token_first

    def rows(self) -> list[tuple[Any, ...]]:
        """See :meth:`TableModel.rows`."""
        with self._session(may_create=False) as session:
            if session is None or not self._columns(session):
                return []
            return session.run(f"SELECT * FROM {self._target.target}")

    def append_foreign(self, row: tuple[Any, ...]) -> None:
        """See :meth:`TableModel.append_foreign`."""
        self._change(f"INSERT INTO {self._target.target} VALUES ({', '.join('?' * len(row))})", row)

    def compact(self) -> tuple[str, ...]:
        """See :meth:`TableModel.compact`."""
        self._change("ANALYZE", ())
        return ()

    def _change(self, statement: str, values: Sequence[object]) -> None:
        while True:
            with self._session(may_create=False) as session:
                if session is None or not self._columns(session):
                    return
                session.run(statement, *values)
                try:
                    session.commit()
                except DatabaseError as error:
                    if isinstance(error.__cause__, AlreadyExistsError):
                        continue
                    raise
                return

    def _open(self, *, may_create: bool) -> Session | None:
        with _translated():
            found = self._versions.newest()
        return None if found is None and not may_create else _ModelSession(self._versions, found, self._target)


class _ModelSession(_SqliteSession):
    """A transaction over a version of a database, which is the next version when it is committed."""

    def __init__(self, versions: Versions, found: tuple[int, bytes] | None, target: TableTarget) -> None:
        self._versions = versions
        self._number = -1 if found is None else found[0]
        self._target = target
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        if found is not None:
            self._connection.deserialize(found[1])
        self._cursor = self._connection.cursor()
        self._do("BEGIN")

    def commit(self) -> None:
        """Creates the next version."""
        super().commit()
        with _translated():
            self._versions.create(self._number + 1, self._connection.serialize())
        self._number += 1


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of the store as what a database says."""
    try:
        yield
    except AccessDeniedError as error:
        raise DatabaseError(str(error), None, denied=True) from error
    except StatelineError as error:
        raise DatabaseError(str(error), Outcome.NOT_DONE) from error


def _name(number: int) -> str:
    return f"{_VERSIONS}{number:06}"
