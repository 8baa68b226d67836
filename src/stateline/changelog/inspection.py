"""Segments without their handles: what is inside, and whether it is whole.

Memory: tables, and about :data:`~stateline.changelog.reader.RUN_BYTES` at a time; never a whole object. Damage is
reported with its offset and does not hide what is intact elsewhere in the object.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from stateline.blob.api import BlobStore
from stateline.blob.checksum import crc32c
from stateline.changelog.api import StateChange
from stateline.changelog.changes import ChangesTable, decode_table
from stateline.changelog.reader import RUN_BYTES, Columns, Fetch, check_messages, decode_blocks, runs_of
from stateline.changelog.segment import DirectoryEntry, SectionKind, read_directory
from stateline.errors import CorruptDataError
from stateline.key_groups import KeyGroupRange

__all__ = ["FoundSection", "Inspection", "Problem", "changes_of", "inspect_segment", "verify_section"]

_ALL: Final = KeyGroupRange(0, 32767)


@dataclass(frozen=True, slots=True)
class Problem:
    """Damage.

    Attributes:
        offset: The first byte that could not be used.
        message: What is wrong there.
    """

    offset: int
    message: str

    @classmethod
    def of(cls, error: CorruptDataError, offset: int) -> Problem:
        """What an error tells: at the offset that its subject ends with, or at ``offset``."""
        _, found, number = (error.subject or "").rpartition(" at byte ")
        return cls(int(number) if found and number.isdecimal() else offset, error.message)


@dataclass(frozen=True, slots=True)
class FoundSection:
    """A section that the directory names.

    Attributes:
        entry: What the directory says.
        table: Of changes; ``None`` for every other kind.
    """

    entry: DirectoryEntry
    table: ChangesTable | None


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is known about one object.

    Attributes:
        name: The object.
        size: Its bytes.
        sections: Those whose table, if they should have one, is intact; in order.
        problems: None if the directory and all tables are intact.
    """

    name: str
    size: int
    sections: tuple[FoundSection, ...]
    problems: tuple[Problem, ...]


def inspect_segment(store: BlobStore, name: str) -> Inspection:
    """Reads the directory, all tables and what is between sections; see :func:`verify_section` for the rest.

    Raises:
        NotFoundError: There is no such object.
    """
    size = store.head(name).size
    problems: list[Problem] = []
    sections: list[FoundSection] = []
    try:
        for entry in read_directory(store, name).entries:
            end = entry.offset + entry.length
            data = store.get_range(name, end - entry.head_length, end + entry.padding)
            if any(data[entry.head_length :]):
                problems.append(Problem(end, "the padding is not zero"))
            try:
                sections.append(FoundSection(entry, _table(data[: entry.head_length], name, entry)))
            except CorruptDataError as error:
                problems.append(Problem.of(error, entry.offset))
    except CorruptDataError as error:
        problems.append(Problem.of(error, size))
    return Inspection(name, size, tuple(sections), tuple(problems))


def verify_section(store: BlobStore, name: str, section: FoundSection) -> Problem | None:
    """Reads every byte of a section and checks it; ``None`` if all are intact."""
    entry = section.entry
    try:
        if section.table is None:
            _check_whole(store, name, entry)
        for _ in _columns_of(store, name, section, _ALL):
            pass
    except CorruptDataError as error:
        return Problem.of(error, entry.offset)
    return None


def changes_of(
    store: BlobStore, name: str, section: FoundSection, key_groups: KeyGroupRange | None = None
) -> Iterator[StateChange]:
    """The changes of a section, metadata first, then by key group; none of another kind.

    Args:
        store: Where the object is.
        name: The object.
        section: From :func:`inspect_segment`.
        key_groups: Only these, and metadata.

    Raises:
        CorruptDataError: A block is damaged. What came before it was intact.
    """
    wanted = _ALL if key_groups is None else key_groups
    for groups, values in _columns_of(store, name, section, wanted):
        for key_group, value in zip(groups.tolist(), values.to_pylist(), strict=True):
            if key_group < 0 or key_group in wanted:
                yield StateChange(key_group, value)


def _table(data: bytes, name: str, entry: DirectoryEntry) -> ChangesTable | None:
    if entry.kind is not SectionKind.CHANGES:
        return None
    subject = f"{name} at byte {entry.offset + entry.length - entry.head_length}"
    table = decode_table(data, subject)
    found = (table.log_id.hex, table.sequence_number, table.length, table.crc32c)
    if found != (entry.owner, entry.number, entry.length, entry.crc32c):
        raise CorruptDataError("the table is not the one of the directory", operation="inspect", subject=subject)
    return table


def _check_whole(store: BlobStore, name: str, entry: DirectoryEntry) -> None:
    checksum = 0
    end = entry.offset + entry.length
    for start in range(entry.offset, end, RUN_BYTES):
        checksum = crc32c(store.get_range(name, start, min(start + RUN_BYTES, end)), checksum)
    if checksum != entry.crc32c:
        raise CorruptDataError(
            "the checksum of the section does not match", operation="inspect", subject=f"{name} at byte {entry.offset}"
        )


def _columns_of(store: BlobStore, name: str, section: FoundSection, wanted: KeyGroupRange) -> Iterator[Columns]:
    offset, table = section.entry.offset, section.table
    if table is None:
        return
    fetch = _reads(store, name, offset, offset + table.length)
    check_messages(fetch, table, name, offset)
    for run in runs_of(block for block in table.blocks if block.overlaps(wanted)):
        start, end = run[0].offset, run[-1].offset + run[-1].length
        data = fetch(offset + start, offset + end)
        yield from decode_blocks(memoryview(data), start, table, run, name, offset)


def _reads(store: BlobStore, name: str, start: int, end: int) -> Fetch:
    """Reads within a range of an object, of which a short one is fetched once and whole."""
    if end - start > RUN_BYTES:
        return lambda first, last: store.get_range(name, first, last)
    data = store.get_range(name, start, end)
    return lambda first, last: data[first - start : last - start]
