"""The index of a run: where its record batches lie, and which rows they hold. ``run`` defines its fields."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import struct
from collections.abc import Sequence
from typing import Final, Self

import numpy as np

from stateline.errors import CorruptDataError
from stateline.handles import RunHandle
from stateline.key_groups import KeyGroupRange, hash_bounds
from stateline.state.keys import Hashes

__all__ = ["BatchEntry", "HashRanges", "RunIndex", "corrupt_run", "decode_entries", "encode_index", "inconsistency"]

_HEAD_CRC: Final = struct.Struct("<I")
_ENTRY: Final = struct.Struct("<QQQII")


@dataclasses.dataclass(frozen=True, slots=True)
class BatchEntry:
    """Where one record batch lies in the file."""

    first_hash: int
    offset: int
    length: int
    rows: int
    crc32c: int


@dataclasses.dataclass(frozen=True, slots=True)
class HashRanges:
    """Ranges of hashes in which somebody looks for rows.

    Attributes:
        lows: Where each begins, inclusive.
        highs: Where it ends, inclusive.
    """

    lows: Hashes
    highs: Hashes

    @classmethod
    def of(cls, hashes: Hashes) -> Self:
        """Single hashes."""
        return cls(hashes, hashes)


@dataclasses.dataclass(frozen=True, slots=True)
class RunIndex:
    """What the tail of a run says about the rest.

    Attributes:
        max_parallelism: Number of key groups.
        head_crc32c: CRC32C of the bytes before the record batches.
        batches: The record batches, ascending.
        is_exact: Whether the version that wrote the run merged rows of append-only tables without copying any.
    """

    max_parallelism: int
    head_crc32c: int
    batches: tuple[BatchEntry, ...]
    is_exact: bool = False

    @property
    def tail_start(self) -> int:
        """Offset of the first byte after the last record batch."""
        return self.batches[-1].offset + self.batches[-1].length

    def covering(self, key_groups: KeyGroupRange) -> range:
        """The batches, by number, that can hold rows of ``key_groups``."""
        low, high = hash_bounds(key_groups, self.max_parallelism)
        firsts = [entry.first_hash for entry in self.batches]
        start = max(sum(first <= low for first in firsts) - 1, 0)
        return range(start, sum(first < high for first in firsts))

    def holding(self, wanted: HashRanges) -> list[int]:
        """The batches, by number and ascending, that can hold rows in some ranges: one for each range of one hash."""
        firsts = np.array([entry.first_hash for entry in self.batches], dtype=np.uint64)
        starts = np.maximum(firsts.searchsorted(wanted.lows, side="right") - 1, 0)
        ends = firsts.searchsorted(wanted.highs, side="right")
        marks = np.zeros(len(firsts) + 1, dtype=np.int64)
        np.add.at(marks, starts, starts < ends)
        np.add.at(marks, ends, -(starts < ends).astype(np.int64))
        return np.flatnonzero(marks.cumsum()).tolist()


def encode_index(head_crc32c: int, batches: Sequence[BatchEntry]) -> bytes:
    """The text of an index: as long for all indexes of so many batches."""
    entries = (_ENTRY.pack(one.first_hash, one.offset, one.length, one.rows, one.crc32c) for one in batches)
    return base64.b64encode(_HEAD_CRC.pack(head_crc32c) + b"".join(entries))


def decode_entries(text: bytes, name: str) -> tuple[int, tuple[BatchEntry, ...]]:
    """The CRC32C of the head, and the batches; the opposite of :func:`encode_index`.

    Raises:
        CorruptDataError: The text is not an index.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise corrupt_run(name, f"has an index that is not base64: {error}") from error
    if len(data) < _HEAD_CRC.size or (len(data) - _HEAD_CRC.size) % _ENTRY.size:
        raise corrupt_run(name, f"has an index of {len(data)} bytes")
    entries = _ENTRY.iter_unpack(data[_HEAD_CRC.size :])
    return _HEAD_CRC.unpack_from(data)[0], tuple(BatchEntry(*entry) for entry in entries)


def inconsistency(index: RunIndex, handle: RunHandle, batches: int, rows: int, tombstones: int) -> str | None:
    """What is wrong with an index, in words; ``None`` if nothing is."""
    entries = index.batches
    if not entries or len(entries) != batches:
        return f"has {batches} record batches, but {len(entries)} in its index"
    if rows != handle.rows or tombstones != handle.tombstones or rows != sum(entry.rows for entry in entries):
        return "has numbers of rows that contradict each other"
    if any(entry.rows == 0 for entry in entries):
        return "has an empty record batch"
    if any(after.first_hash <= before.first_hash for before, after in itertools.pairwise(entries)):
        return "has record batches that do not ascend"
    if any(after.offset != before.offset + before.length for before, after in itertools.pairwise(entries)):
        return "has record batches that do not lie end to end"
    if index.tail_start > handle.length:
        return "has record batches that reach beyond its end"
    return None


def corrupt_run(name: str, reason: str) -> CorruptDataError:
    """The error for a run that is not what was written."""
    return CorruptDataError(
        reason,
        operation="open",
        subject=name,
        hint="The bytes are not those that were written: restore the object, or go back to an older checkpoint",
    )
