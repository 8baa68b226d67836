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
    def rolls_back(self) -> bool:
        """Whether it may take rows away that nobody deleted."""
        return self.operation == _RESTORE or self.operation in _REPLACING


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


def find_loss(read: Read, app: str, committed: int, checked: int | None, newest: int) -> TableLoss | None:
    """Replay the log of a table.

    Args:
        read: Reads entries.
        app: The application.
        committed: Its token.
        checked: The version at which all its rows were there; ``None`` if unknown: then its newest commit counts.
        newest: The version of the table.
    """
    log = _Log(read, app)
    if checked is None or checked > newest:
        checked = log.newest_commit(newest, committed)
    log.load(range(checked + 1, newest + 1))
    if not any(entry.rolls_back for entry in log.present(checked, newest)):
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

    def newest_commit(self, newest: int, committed: int) -> int:
        """The version that set a token; where it expired, the one before the oldest entry that exists."""
        for version in range(newest, -1, -1):
            entry = self.entry(version)
            if entry is None or entry.tokens.get(self.app) == committed:
                return version
        return -1

    def rows_at(self, version: int) -> tuple[int | None, bool]:
        """The newest checkpoint whose rows were there at a version, and whether that is certain."""
        for at in range(version, -1, -1):
            entry = self.entry(at)
            if entry is None or entry.rolls_back:
                return None, False
            if self.app in entry.tokens:
                return _checkpoint(entry.tokens[self.app]), True
        return None, True

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
    """Whose rows are in the table, version after version.

    Rows are those of an entry of the application, by its version; ``_BEFORE`` stands for all of them at the start.
    """

    _BEFORE: Final = -1
    _UNKNOWN: Final = -2

    def __init__(self, log: _Log, checked: int) -> None:
        self._log = log
        self._checked = checked
        self._rows = self._token = self._BEFORE
        self._rows_at = {checked: self._BEFORE}
        self._older = 0
        """The version before the start that was restored, if one was."""
        self._reason = ""
        self._is_later = False

    def loss(self, newest: int) -> TableLoss | None:
        for version in range(self._checked + 1, newest + 1):
            entry = self._log.entry(version)
            if entry is not None:
                self._take(entry)
            self._rows_at[version] = self._rows
        if self._rows == self._token:
            return None
        kept, is_certain = self._kept()
        return TableLoss(reason=self._reason, kept=kept, is_certain=is_certain and not self._is_later)

    def _take(self, entry: LogEntry) -> None:
        if self._log.app in entry.tokens:
            if entry.is_mark or self._rows == self._token:
                self._rows = entry.version
                self._is_later = False
            else:
                self._is_later = True
            self._token = entry.version
        if entry.operation in _REPLACING:
            self._rows = self._UNKNOWN
            self._older = -1
            self._reason = f"version {entry.version} of the table replaced it ({entry.operation})"
        elif entry.operation == _RESTORE:
            self._restore(entry)

    def _restore(self, entry: LogEntry) -> None:
        version = self._log.restored_version(entry)
        name = "an older version" if version is None else f"version {version}"
        self._reason = f"version {entry.version} of the table restored {name}"
        if version is None:
            self._rows, self._older = self._UNKNOWN, entry.version
        elif version >= self._checked:
            self._rows = self._rows_at[version]
        elif any(self._log.app in each.tokens for each in self._log.present(version, self._checked)):
            self._rows, self._older = self._UNKNOWN, version
        else:
            self._rows = self._BEFORE

    def _kept(self) -> tuple[int | None, bool]:
        if self._rows >= 0:
            entry = self._log.entry(self._rows)
            return None if entry is None else _checkpoint(entry.tokens[self._log.app]), entry is not None
        return self._log.rows_at(self._checked if self._rows == self._BEFORE else self._older)


def _checkpoint(token: int) -> int | None:
    """The checkpoint of a token; a negative one stands for none."""
    return None if token < 0 else token


def _file_of(action: Mapping[str, Any]) -> str:
    vector = action.get("deletionVector") or {}
    return f"{action['path']} {vector.get('pathOrInlineDv', '')} {vector.get('offset', '')}"
