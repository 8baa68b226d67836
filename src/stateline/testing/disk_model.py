"""What a disk may hold after the power went: every state that POSIX allows, and nothing that it forbids.

The model, for a program that only appends to files:

- Bytes not synced may be lost from a multiple of a sector on, or be zero, all or in the first sector alone, or be
  there. Synced bytes are there. Bytes whose ``fsync`` failed may be lost whatever was synced afterwards.
- An entry of a folder changes at once, but its change may be lost until the folder was synced; changes of different
  entries are lost independently, those of one entry in order. Syncing a file does not sync its entry.
- A rename may leave both names, or the new one, or the old one; never neither.
- What a lost entry led to is lost with it.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from stateline.testing.journal import Action, Change
from stateline.testing.seeds import Dice

__all__ = ["SECTOR_BYTES", "DiskModel", "DiskState"]

SECTOR_BYTES: Final = 512
"""What a disk writes whole or not at all."""

_DISK: Final = 0
_CONTENT_LIMIT: Final = 64
"""Combinations of file contents tried per combination of entries."""


@dataclass(frozen=True, slots=True)
class DiskState:
    """One state.

    Attributes:
        folders: Relative paths, parents first.
        files: Relative paths and what is in them.
    """

    folders: tuple[str, ...]
    files: tuple[tuple[str, bytes], ...]

    def restore(self, folder: str) -> None:
        """Makes this state in an existing, empty folder."""
        for path in self.folders:
            os.mkdir(f"{folder}/{path}", 0o700)
        for path, data in self.files:
            descriptor = os.open(f"{folder}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(descriptor, data)
            finally:
                os.close(descriptor)

    def __str__(self) -> str:
        return ", ".join(f"{path} ({len(data)} bytes)" for path, data in self.files) or "an empty disk"


class _File:
    """Bytes, and how many of them are safe."""

    __slots__ = ("data", "safe", "spoilt")

    def __init__(self) -> None:
        self.data = bytearray()
        self.safe = 0
        self.spoilt = False

    def contents(self) -> list[bytes]:
        """What may be left of it."""
        safe, tail = bytes(self.data[: self.safe]), bytes(self.data[self.safe :])
        if not tail:
            return [safe]
        cuts = {0, len(tail), *_cuts(len(safe), len(self.data))}
        found = [safe + tail[:cut] for cut in sorted(cuts)]
        found.append(safe + bytes(len(tail)))
        found.append(safe + bytes(min(SECTOR_BYTES, len(tail))) + tail[SECTOR_BYTES:])
        return list(dict.fromkeys(found))


class _Folder:
    """For each name, what it meant since the last sync: the first meaning is safe, the others are not."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: dict[str, list[int | None]] = {}

    def now(self, name: str) -> int | None:
        return self.entries.get(name, [None])[-1]

    def change(self, name: str, node: int | None) -> int:
        """Sets what ``name`` means; returns the ordinal of that meaning."""
        meanings = self.entries.setdefault(name, [None])
        meanings.append(node)
        return len(meanings) - 1

    def sync(self) -> None:
        self.entries = {name: [meanings[-1]] for name, meanings in self.entries.items() if meanings[-1] is not None}


@dataclass(slots=True)
class _Rename:
    """The old entry may go only if the new one has come."""

    old: tuple[int, str]
    old_meaning: int
    new: tuple[int, str]
    new_meaning: int


_Choice = dict[tuple[int, str], int]


class DiskModel:
    """A disk that sees changes and can say what it may hold if the power went now."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        self._folders: dict[int, _Folder] = {_DISK: _Folder()}
        self._renames: list[_Rename] = []

    def apply(self, change: Change) -> None:
        """One more change."""
        match change.action:
            case Action.MAKE_FILE:
                self._files[change.node] = _File()
                self._enter(change.folder, change.name, change.node)
            case Action.MAKE_FOLDER:
                self._folders[change.node] = _Folder()
                self._enter(change.folder, change.name, change.node)
            case Action.WRITE:
                self._files[change.node].data += change.data
            case Action.SYNC:
                self._sync(change.node)
            case Action.SYNC_FAILED:
                if change.node in self._files:
                    self._files[change.node].spoilt = True
            case Action.LINK:
                self._enter(change.folder, change.name, change.node)
            case Action.UNLINK:
                self._enter(change.folder, change.name, None)
            case Action.RENAME:
                new = self._enter(change.folder, change.name, change.node)
                old = self._enter(change.old_folder, change.old_name, None)
                self._renames.append(
                    _Rename((change.old_folder, change.old_name), old, (change.folder, change.name), new)
                )

    def states(self, limit: int, dice: Dice) -> Iterator[DiskState]:
        """The allowed states, each once.

        All of them where there are at most ``limit`` combinations; otherwise the corners (all lost, all kept, one lost,
        one kept) and ``limit`` drawn at random.
        """
        seen: set[DiskState] = set()
        for choice in self._choices(limit, dice):
            for state in self._with_contents(choice, dice):
                if state not in seen:
                    seen.add(state)
                    yield state

    # -- changes ----------------------------------------------------------------------------------------------------

    def _enter(self, folder: int, name: str, node: int | None) -> int:
        return self._folders[folder].change(name, node) if folder in self._folders else 0

    def _sync(self, node: int) -> None:
        if node in self._files:
            file = self._files[node]
            if not file.spoilt:
                file.safe = len(file.data)
            return
        self._folders[node].sync()
        self._renames = [rename for rename in self._renames if rename.old[0] != node and rename.new[0] != node]

    # -- states -----------------------------------------------------------------------------------------------------

    def _choices(self, limit: int, dice: Dice) -> Iterator[_Choice]:
        """Which meaning of each unsafe entry is on the disk."""
        bound = {key for rename in self._renames for key in (rename.old, rename.new)}
        keys: list[tuple[int, str]] = []
        options: list[Sequence[int]] = []
        for number, folder in self._folders.items():
            for name, meanings in folder.entries.items():
                key = (number, name)
                last_of = {node: meaning for meaning, node in enumerate(meanings)}
                distinct = range(len(meanings)) if key in bound else sorted(last_of.values())
                if len(distinct) > 1:
                    keys.append(key)
                    options.append(distinct)
        if math.prod(map(len, options)) <= limit:
            drawn: Iterator[tuple[int, ...]] = itertools.product(*options)
        else:
            drawn = itertools.chain(_corners(options), (tuple(map(dice.pick, options)) for _ in range(limit)))
        for meanings_chosen in drawn:
            choice = dict(zip(keys, meanings_chosen, strict=True))
            if all(_is_allowed(rename, choice) for rename in self._renames):
                yield choice

    def _with_contents(self, choice: _Choice, dice: Dice) -> Iterator[DiskState]:
        folders: list[str] = []
        files: list[tuple[str, int]] = []
        self._walk(_DISK, "", choice, folders, files)
        unsafe = sorted({node for _, node in files})
        contents = [self._files[node].contents() for node in unsafe]
        if math.prod(map(len, contents)) <= _CONTENT_LIMIT:
            drawn: Iterator[tuple[bytes, ...]] = itertools.product(*contents)
        else:
            drawn = (tuple(map(dice.pick, contents)) for _ in range(_CONTENT_LIMIT))
        for combination in drawn:
            data = dict(zip(unsafe, combination, strict=True))
            yield DiskState(tuple(folders), tuple((path, data[node]) for path, node in files))

    def _walk(self, number: int, path: str, choice: _Choice, folders: list[str], files: list[tuple[str, int]]) -> None:
        for name, meanings in sorted(self._folders[number].entries.items()):
            node = meanings[choice.get((number, name), len(meanings) - 1)]
            if node is None:
                continue
            if node in self._files:
                files.append((path + name, node))
            else:
                folders.append(path + name)
                self._walk(node, f"{path}{name}/", choice, folders, files)


def _is_allowed(rename: _Rename, choice: _Choice) -> bool:
    gone = choice.get(rename.old, rename.old_meaning) >= rename.old_meaning
    return not gone or choice.get(rename.new, rename.new_meaning) >= rename.new_meaning


def _corners(options: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    lost = tuple(option[0] for option in options)
    kept = tuple(option[-1] for option in options)
    yield lost
    yield kept
    for place in range(len(options)):
        yield (*lost[:place], kept[place], *lost[place + 1 :])
        yield (*kept[:place], lost[place], *kept[place + 1 :])


def _cuts(safe: int, length: int) -> list[int]:
    """Where a torn write may end, counted from ``safe``: after the first, a middle and the last whole sector."""
    whole = range((safe // SECTOR_BYTES + 1) * SECTOR_BYTES, length, SECTOR_BYTES)
    return [whole[place] - safe for place in {0, len(whole) // 2, len(whole) - 1}] if whole else []
