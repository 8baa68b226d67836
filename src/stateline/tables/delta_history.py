"""What others did to a Delta table since it was last checked: whether a rollback removed rows of an application.

A ``RESTORE`` is one more version of the table, and so is ``CREATE OR REPLACE``. Both remove files, and keep the tokens.
So the entries of the log are replayed, as far as they exist: each commit of the application brings its rows, a restored
version brings back the rows that it had. At the end the rows must be those of the newest token.

Facts:
- Deletes, overwrites, merges and compactions of others are theirs to make: rows that they remove are no loss.
- Entries of the log expire (``delta.logRetentionDuration``, 30 days). Those that are missing count as harmless.
- Spark names a restored version, or only the moment that the user gave. Then the version is found by its files: the
  newest one that had exactly the files that the table has after the restore.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from stateline.tables.api import TableLoss

__all__ = ["MARK", "LogEntry", "find_loss", "parse_entry"]

MARK: Final = "stateline.token"
"""In the ``commitInfo`` of an entry that only sets a token, after a user has looked at the table."""

_AT_ONCE: Final = 64
_COMMITS: Final = 2
_RESTORE: Final = "RESTORE"
_REPLACING: Final = frozenset(
    {
        "CREATE OR REPLACE TABLE",
        "CREATE OR REPLACE TABLE AS SELECT",
        "REPLACE TABLE",
        "REPLACE TABLE AS SELECT",
        "CLONE",
    }
)

Read = Callable[[Sequence[int]], Sequence["LogEntry | None"]]
"""Reads entries of the log; ``None`` for one that does not exist any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One version of a table.

    Attributes:
        version: Which one.
        operation: What made it; empty if the writer did not say.
        restored: For a restore: the version that came back, where the writer named it.
        tokens: The tokens it sets, by application.
        is_mark: Whether it only sets a token.
        added: Its new files, with their deletion vectors.
        removed: The files it removes.
    """

    version: int
    operation: str = ""
    restored: int | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    is_mark: bool = False
    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()

    @property
    def restores(self) -> bool:
        """Whether it brings back an older version that had other files."""
        return self.operation == _RESTORE and self.added != self.removed

    @property
    def replaces(self) -> bool:
        """Whether it replaces the table."""
        return self.operation in _REPLACING


def parse_entry(version: int, data: bytes) -> LogEntry:
    """Read the parts of an entry that matter here.

    Raises:
        ValueError: It is not JSON.
    """
    actions = [json.loads(line) for line in data.splitlines() if line.strip()]
    info: dict[str, Any] = next((each["commitInfo"] for each in actions if each.get("commitInfo")), {})
    restored = (info.get("operationParameters") or {}).get("version")
    return LogEntry(
        version=version,
        operation=str(info.get("operation") or "").upper(),
        restored=int(str(restored)) if str(restored).isdecimal() else None,
        tokens={each["txn"]["appId"]: each["txn"]["version"] for each in actions if each.get("txn")},
        is_mark=MARK in info,
        added=frozenset(_file_of(each["add"]) for each in actions if each.get("add")),
        removed=frozenset(_file_of(each["remove"]) for each in actions if each.get("remove")),
    )


def find_loss(read: Read, app: str, checked: int | None, newest: int) -> TableLoss | None:
    """Replay the log of a table.

    Args:
        read: Reads entries.
        app: The application.
        checked: The version at which all its rows were there; ``None`` if unknown.
        newest: The version of the table.
    """
    log = _Log(read, app)
    if checked is None or checked > newest:
        checked = log.start(newest)
    log.load(range(checked + 1, newest + 1))
    if not any(entry.restores or entry.replaces for entry in log.present(checked, newest)):
        return None
    return _Replay(log, checked).loss(newest)


class _Log:
    """Entries, each read once."""

    def __init__(self, read: Read, app: str) -> None:
        self._read = read
        self.app = app
        self._entries: dict[int, LogEntry | None] = {}

    def load(self, versions: range) -> None:
        missing = [version for version in versions if version not in self._entries]
        self._entries |= dict(zip(missing, self._read(missing), strict=True)) if missing else {}

    def entry(self, version: int) -> LogEntry | None:
        """An entry; those before it are read along, since a search goes backwards."""
        if version not in self._entries:
            self.load(range(max(0, version - _AT_ONCE + 1), version + 1))
        return self._entries[version]

    def present(self, after: int, last: int) -> list[LogEntry]:
        return [found for version in range(after + 1, last + 1) if (found := self.entry(version)) is not None]

    def start(self, newest: int) -> int:
        """A version at which all rows were there: the newest commit but one, for the newest one had looked after it.

        A first commit had no rows before it. Where entries expired, it is the version before the oldest one.
        """
        commits, oldest = 0, 0
        for version in range(newest, -1, -1):
            entry = self.entry(version)
            if entry is None:
                return version
            if self.app in entry.tokens:
                commits += 1
                oldest = version
                if entry.is_mark or commits == _COMMITS:
                    return version
        return oldest - 1

    def rows_at(self, version: int) -> tuple[int | None, bool]:
        """The newest checkpoint whose rows were there at a version, and whether that is certain."""
        at: int | None = version
        while at is not None and at >= 0:
            entry = self.entry(at)
            if entry is None:
                return None, False
            if self.app in entry.tokens:
                return _checkpoint(entry.tokens[self.app]), True
            if entry.replaces:
                return None, True
            at = self.restored_version(entry) if entry.restores else at - 1
        return None, at is not None

    def restored_version(self, restore: LogEntry) -> int | None:
        """The version that a restore brought back; ``None`` if it cannot be found."""
        if restore.restored is not None:
            return restore.restored
        # Files that only the older, or only the restored version has. Both empty: they are the same.
        older, restored = set(restore.removed - restore.added), set(restore.added - restore.removed)
        for version in range(restore.version - 1, -1, -1):
            if not older and not restored:
                return version
            entry = self.entry(version)
            if entry is None:
                return None
            for file in entry.added - entry.removed:
                older.discard(file) if file in older else restored.add(file)
            for file in entry.removed - entry.added:
                restored.discard(file) if file in restored else older.add(file)
        return None


class _Replay:
    """Whose rows are in the table, version after version."""

    def __init__(self, log: _Log, checked: int) -> None:
        self._log = log
        self._checked = checked
        self._rows = self._token = _Rows(checked)
        self._rows_at = {checked: self._rows}
        self._reason = ""
        self._is_later = False
        """Whether rows were committed on top of a loss."""

    def loss(self, newest: int) -> TableLoss | None:
        for version in range(self._checked + 1, newest + 1):
            entry = self._log.entry(version)
            if entry is not None:
                self._take(entry)
            self._rows_at[version] = self._rows
        if self._is_whole():
            return None
        kept, is_certain = self._checkpoint_of(self._rows)
        return TableLoss(reason=self._reason, kept=kept, is_certain=is_certain and not self._is_later)

    def _take(self, entry: LogEntry) -> None:
        if self._log.app in entry.tokens:
            self._is_later = not entry.is_mark and not self._is_whole()
            self._token = _Rows(entry.version)
            if not self._is_later:
                self._rows = self._token
        if entry.replaces:
            self._rows = _NO_ROWS
            self._reason = f"version {entry.version} of the table replaced it ({entry.operation})"
        elif entry.restores:
            version = self._log.restored_version(entry)
            name = "an older version" if version is None else f"version {version}"
            self._reason = f"version {entry.version} of the table restored {name}"
            if version is None:
                self._rows = _UNKNOWN_ROWS
            else:
                self._rows = self._rows_at.get(version) or _Rows(version)

    def _is_whole(self) -> bool:
        if self._rows == self._token:
            return True
        kept, is_certain = self._checkpoint_of(self._rows)
        return is_certain and (kept, True) == self._checkpoint_of(self._token)

    def _checkpoint_of(self, rows: _Rows) -> tuple[int | None, bool]:
        """The newest checkpoint whose rows these are, and whether that is certain."""
        if rows is _UNKNOWN_ROWS:
            return None, False
        return self._log.rows_at(rows.version)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows that were in the table at a version; at -1 there were none."""

    version: int


_NO_ROWS: Final = _Rows(-1)
_UNKNOWN_ROWS: Final = _Rows(-2)


def _checkpoint(token: int) -> int | None:
    """The checkpoint of a token; a negative one stands for none."""
    return None if token < 0 else token


def _file_of(action: Mapping[str, Any]) -> str:
    vector = action.get("deletionVector") or {}
    return f"{action['path']} {vector.get('pathOrInlineDv', '')} {vector.get('offset', '')}"
