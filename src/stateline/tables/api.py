"""A table that takes what a record decided, exactly once: one protocol for Delta, Iceberg and databases.

The commit of a checkpoint is a pure function of its record. Its **token** is the application (the root and the
operator, for the life of both) and the checkpoint id, which rises. A table stores the newest token of an application
*in the transaction that stores the rows*. So whoever comes, comes again, or comes late::

    look                     what is the newest token of this application?
      as before this commit  commit rows and token, provided that nobody has moved the token since this look
      this one, or newer     it is done: ours, or of a driver that came before
      older, or gone         the table was rolled back or made anew: refused, never filled again in silence

A table format with versions can be rolled back while the token stays. So each look is followed by :meth:`Table.loss`.

Guarantees asked of each table:

- **Look and commit are tied.** What :meth:`Table.look` returned goes into :meth:`Table.attempt`, and an attempt from a
  look that is no longer true has no effect, however long its driver slept in between.
- **An attempt has three outcomes.** Only what is known is called done or not done. Unknown is resolved by looking
  again.
- Appends, compactions and clean-ups of other writers between look and commit do no harm.
- What is kept for an application is of bounded size.
"""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from stateline.environment import Closable
from stateline.errors import InvalidInputError
from stateline.file_columns import FileColumn

__all__ = ["Attempt", "NewFile", "Outcome", "Table", "TableChange", "TableLoss", "TableState", "TableToken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableToken:
    """Whose commit it is, which one, and what must be there before it.

    Attributes:
        app: The application: one operator of one root, for the life of the root.
        checkpoint_id: The checkpoint whose rows these are.
        previous: The newest checkpoint of the application that was committed before; ``None`` for the first commit.
        identity: The table's own identity when that was; empty if unknown.
        checked: The table's version at which all rows before this commit were last seen to be there; empty if unknown.
    """

    app: str
    checkpoint_id: int
    previous: int | None = None
    identity: str = ""
    checked: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """What a look saw.

    Attributes:
        identity: The table's own identity, which another table of the same name has not; ``None`` where there is no
            table. A database knows none: empty.
        committed: The newest checkpoint of the application in the table; ``None`` for none.
        version: The table's version, as its format counts.
        checked: The version up to which :meth:`Table.loss` found no loss; empty before it was called.
        file_columns: Its columns by ids, as :meth:`Table.file_columns` has them.
        snapshot: What the attempt is tied to. Nobody but the table itself looks at it.
    """

    identity: str | None
    committed: int | None
    version: str = ""
    checked: str = field(default="", compare=False)
    file_columns: tuple[FileColumn, ...] = field(default=(), repr=False, compare=False)
    snapshot: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLoss:
    """Rows of an application that a rollback by another writer removed, while its token stayed.

    Attributes:
        reason: The rollback, for people, such as ``version 9 restored version 4``.
        kept: The newest checkpoint whose rows, and those of all earlier ones, are still in the table; ``None`` for
            none.
        is_certain: Whether ``kept`` is known.
    """

    reason: str
    kept: int | None = None
    is_certain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A published Parquet file.

    Attributes:
        name: Relative to the store of the output.
        length: Bytes.
        rows: Rows.
    """

    name: str
    length: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """What one checkpoint adds to one table.

    Attributes:
        token: Its token.
        created_at: The time of the checkpoint, seconds since the epoch.
        files: Files, for a table that takes files.
        rows: Reads the rows, for a table that takes rows; each call reads them anew.
        gone: Reads the keys whose rows go before the others come, each once, for an upsert that deletes.
    """

    token: TableToken
    created_at: float
    files: tuple[NewFile, ...] = ()
    rows: Callable[[], Iterator[pa.Table]] = field(default=lambda: iter(()), repr=False)
    gone: Callable[[], Iterator[pa.Table]] = field(default=lambda: iter(()), repr=False)


class Outcome(enum.Enum):
    """What became of an attempt."""

    DONE = "rows and token are in the table"
    NOT_DONE = "somebody was faster: look again"
    UNKNOWN = "the answer was lost: look again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The outcome of an attempt.

    Attributes:
        outcome: What is known.
        version: The version that it made, where it is known.
        cause: Why it is not done, or not known to be.
    """

    outcome: Outcome
    version: str = ""
    cause: Exception | None = None


class Table(Closable):
    """One table, in one process; what it promises is in :mod:`stateline.tables.api`.

    Every method may raise, besides what it lists: :class:`AccessDeniedError`, :class:`UnavailableError`, and
    :class:`InvalidInputError` for a table that cannot be kept exactly once; it says why.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The table, for people: without credentials."""

    def files_url(self) -> str:
        """Where new files go, unless somebody says otherwise; empty for a table that takes rows.

        Where only the table itself knows, it is made if it is missing.
        """
        return ""

    def file_columns(self) -> tuple[FileColumn, ...]:
        """Columns by the ids that files must carry; empty for a table that finds columns by their names.

        A table that has ids is created if it is missing.
        """
        return ()

    @abstractmethod
    def look(self, app: str) -> TableState:
        """What is there now, of an application; nothing is changed."""

    def loss(self, state: TableState, app: str, checked: str) -> TableLoss | None:  # noqa: ARG002 - for subclasses
        """Find out whether a rollback removed rows of committed checkpoints while the token stayed; read-only.

        Deletes, overwrites, compactions and clean-ups by other writers are no loss, and neither are entries of the
        table's history that expired. The default is for tables whose rows and token are only rolled back together.

        Args:
            state: What a look saw; the table exists.
            app: The application.
            checked: The version at which an earlier call found no loss; empty if unknown.
        """
        return None

    def set_token(self, app: str, checkpoint_id: int | None, state: TableState) -> Attempt:  # noqa: ARG002
        """Move the token of an application to a checkpoint, without rows, if the look still holds.

        The table then counts as one that has the rows of this checkpoint and of all earlier ones, so :meth:`loss`
        forgets what happened before. ``None`` takes the token away.
        """
        raise InvalidInputError(
            f"cannot set the token of a table of {self.name.partition(' ')[0]}",
            operation="table",
            subject=self.name,
            hint="Start a new query with a new root and a new table",
        )

    @abstractmethod
    def create(self) -> None:
        """Creates the table without rows, or finds one of that name. Idempotent; two may do it at once.

        Raises:
            InvalidInputError: The columns of the rows are not known here, or the format cannot hold them.
        """

    @abstractmethod
    def check(self, state: TableState) -> None:
        """Checks that the table can take the rows, before any are decided. Columns of rows must be known.

        Raises:
            InvalidInputError: Columns, nullability or partitioning differ, or the table has a feature that cannot be
                kept; says which.
        """

    @abstractmethod
    def attempt(self, change: TableChange, state: TableState) -> Attempt:
        """Commits rows and token in one step, if the look still holds.

        Raises:
            InvalidInputError: The table cannot take these rows as it is now. Nothing was committed.
            DataLossError: A file is gone. Nothing was committed.
        """
