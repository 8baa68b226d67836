"""One change set: what a writer collected between two sequence numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from stateline.changelog.api import SequenceNumber, StateChange
from stateline.changelog.block import Compression, decode_block
from stateline.changelog.changes import EncodedChanges, encode_changes
from stateline.changelog.columns import ChangeColumns, joined_columns
from stateline.errors import ClosedError
from stateline.options import check_kind

__all__ = ["StateChangeSet"]


class StateChangeSet:
    """An immutable list of changes with a number.

    Args:
        log_id: The writer.
        sequence_number: The number of the set within its writer.
        changes: In the order in which they were appended.

    Attributes:
        size: Bytes of the changes.
        weight: What they count as, where bytes are limited: an empty change is not free.
    """

    __slots__ = ("_columns", "_count", "_encoded", "log_id", "sequence_number", "size", "weight")

    def __init__(self, log_id: UUID, sequence_number: SequenceNumber, changes: Iterable[StateChange]) -> None:
        check_kind(log_id, UUID, "log_id")
        check_kind(sequence_number, SequenceNumber, "sequence_number")
        self._fill(log_id, sequence_number, (ChangeColumns.of(changes),))

    @classmethod
    def of_columns(
        cls, log_id: UUID, sequence_number: SequenceNumber, columns: Sequence[ChangeColumns]
    ) -> StateChangeSet:
        """A set from columns, without a copy."""
        made = cls.__new__(cls)
        made._fill(log_id, sequence_number, tuple(columns))  # noqa: SLF001 - a second constructor
        return made

    def _fill(self, log_id: UUID, sequence_number: SequenceNumber, columns: tuple[ChangeColumns, ...]) -> None:
        self.log_id = log_id
        self.sequence_number = sequence_number
        self.size = sum(part.size for part in columns)
        self.weight = sum(part.weight for part in columns)
        self._count = sum(len(part) for part in columns)
        self._columns: tuple[ChangeColumns, ...] | None = columns
        self._encoded: EncodedChanges | None = None

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"StateChangeSet({self.log_id}, {self.sequence_number}, {self._count} changes, {self.size} bytes)"

    @property
    def changes(self) -> tuple[StateChange, ...]:
        """The changes: as appended, or sorted by key group once encoded, or none once the set is durable."""
        columns = self._columns
        if columns is not None:
            return tuple(change for part in columns for change in part.changes())
        encoded = self._encoded
        return () if encoded is None else tuple(_changes_of(encoded))

    def encode(self, compression: Compression) -> EncodedChanges:
        """The section of this set. Encoded once: every attempt of an upload sends the same bytes.

        The columns are given up, so that waiting for a slow store costs the memory of one of the two forms. Two threads
        that come at once both encode, which gives the same bytes.
        """
        columns, encoded = self._columns, self._encoded
        if columns is None:
            if encoded is None:
                raise ClosedError("its bytes were given up", operation="encode", subject=repr(self))
            return encoded
        joined = joined_columns(columns)
        if self._columns is columns:  # Kept joined: with the section there are two forms in memory, not three.
            columns = self._columns = (joined,)
        encoded = encode_changes(self.log_id, self.sequence_number.value, joined, compression)
        if self._columns is columns:  # Else another attempt was faster, and the bytes may have been given up.
            self._encoded = encoded
            self._columns = None
        return encoded

    def give_up(self) -> None:
        """The set is durable: its bytes are not needed any more. An attempt that comes too late cannot encode it."""
        self._columns = self._encoded = None


def _changes_of(encoded: EncodedChanges) -> Iterable[StateChange]:
    data = memoryview(b"".join(encoded.section.pieces))
    for block in encoded.table.blocks:
        key_groups, values = decode_block(
            data[block.offset : block.offset + block.length],
            rows=block.rows,
            change_bytes=block.change_bytes,
            raw_crc32c=block.raw_crc32c,
            compression=encoded.table.compression,
            subject="a section in memory",
        )
        yield from map(StateChange, key_groups.tolist(), values.to_pylist())
