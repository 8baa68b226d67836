"""Changes as columns: how they wait in memory between ``append`` and the section.

Invariants:
- ``offsets`` has one number more than there are changes, ascending; change ``i`` is ``data[offsets[i]:offsets[i +
  1]]``.
- Columns are never changed once made, so slices share memory with what they were cut from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stateline.blob.api import Buffer
from stateline.changelog.api import StateChange
from stateline.errors import InvalidInputError
from stateline.key_groups import MAX_PARALLELISM_LIMIT, KeyGroupRange
from stateline.options import check_kind

__all__ = [
    "EMPTY_CHANGE_BYTES",
    "MAX_CHANGE_BYTES",
    "ChangeColumns",
    "batch_columns",
    "joined_columns",
    "sorted_columns",
]

MAX_CHANGE_BYTES: Final = 2**31 - 1 - 4096
"""The longest single change: a block's offsets are 32-bit numbers."""

EMPTY_CHANGE_BYTES: Final = 10
"""What an empty change counts as, where bytes are limited: its key group and its offset are in memory nevertheless."""


@dataclass(frozen=True, slots=True, eq=False)
class ChangeColumns:
    """Some changes in the order in which they were appended.

    Attributes:
        key_groups: Of each change; -1 for metadata.
        offsets: Of each change within ``data``, and the end of the last. Need not start at 0.
        data: The bytes of the changes, one after the other.
    """

    key_groups: npt.NDArray[np.int16]
    offsets: npt.NDArray[np.int64]
    data: pa.Buffer

    @classmethod
    def of(cls, changes: Iterable[StateChange]) -> ChangeColumns:
        """Columns from single changes.

        Raises:
            InvalidInputError: A key group below -1 or above 32767, or a value that is no bytes.
        """
        check_kind(changes, Iterable, "changes")
        changes = tuple(changes)
        for change in changes:
            check_kind(change, StateChange, "change")
            is_integer = isinstance(change.key_group, int | np.integer)
            if not is_integer or not StateChange.META <= change.key_group < MAX_PARALLELISM_LIMIT:
                raise InvalidInputError(
                    f"the key group must be an integer from -1 to 32767, got {change.key_group!r}",
                    subject="StateChange",
                    hint="Take it from key_group_of, or give StateChange.META",
                )
            if not isinstance(change.value, bytes | bytearray | memoryview):
                raise InvalidInputError(
                    f"the value must be bytes, got {type(change.value).__name__}",
                    subject="StateChange",
                    hint="Encode it",
                )
        key_groups = np.fromiter((change.key_group for change in changes), np.int16, len(changes))
        return cls(key_groups, *_joined([change.value for change in changes]))

    def __len__(self) -> int:
        return len(self.key_groups)

    @property
    def size(self) -> int:
        """Bytes of the changes."""
        return int(self.offsets[-1] - self.offsets[0])

    @property
    def weight(self) -> int:
        """What the changes count as, where bytes are limited. If they outnumber their bytes, so many are empty."""
        return self.size + EMPTY_CHANGE_BYTES * max(len(self) - self.size, 0)

    def slice(self, start: int, end: int) -> ChangeColumns:
        """The changes ``[start, end)``, without a copy."""
        return ChangeColumns(self.key_groups[start:end], self.offsets[start : end + 1], self.data)

    def split(self, max_bytes: int) -> Iterator[ChangeColumns]:
        """Consecutive slices that weigh at most ``max_bytes`` each, or have one change that is longer."""
        bounds, weight = self.offsets, self.weight
        if weight <= max_bytes and len(self):
            yield self
            return
        if weight > self.size:
            bounds = bounds.copy()
            bounds[1:] += EMPTY_CHANGE_BYTES * np.cumsum(self.offsets[1:] == self.offsets[:-1])
        start = 0
        while start < len(self):
            end = int(np.searchsorted(bounds, bounds[start] + max_bytes, side="right")) - 1
            end = min(max(end, start + 1), len(self))
            yield self.slice(start, end)
            start = end

    def changes(self) -> Iterator[StateChange]:
        """The changes one by one."""
        view = memoryview(self.data)
        bounds = self.offsets.tolist()
        for key_group, start, end in zip(self.key_groups.tolist(), bounds, bounds[1:], strict=False):
            yield StateChange(key_group, bytes(view[start:end]))


def joined_columns(chunks: Sequence[ChangeColumns]) -> ChangeColumns:
    """All changes in their order, as one; a single chunk as it is."""
    if not chunks:
        return ChangeColumns(np.empty(0, np.int16), np.zeros(1, np.int64), pa.py_buffer(b""))
    if len(chunks) == 1:
        return chunks[0]
    key_groups = np.concatenate([chunk.key_groups for chunk in chunks])
    return ChangeColumns(
        key_groups, *_buffers(pa.concat_arrays([_as_array(chunk.offsets, chunk.data) for chunk in chunks]))
    )


def sorted_columns(columns: ChangeColumns) -> ChangeColumns:
    """The changes sorted by key group, metadata first; the order within one key group stays. Copies only if it must."""
    key_groups, offsets, data = columns.key_groups, columns.offsets, columns.data
    if not bool((key_groups[1:] < key_groups[:-1]).any()):
        return columns
    order = np.argsort(key_groups, kind="stable")
    return ChangeColumns(key_groups[order], *_taken(offsets, data, order))


def _taken(
    offsets: npt.NDArray[np.int64], data: pa.Buffer, order: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.int64], pa.Buffer]:
    """The changes in another order. Changes of one length, which are common, are moved without looking at offsets."""
    lengths = np.diff(offsets)
    width = int(lengths[0])
    if width == 0 or bool((lengths != width).any()):
        return _buffers(pc.take(_as_array(offsets, data), _indices(order), boundscheck=False))
    rows = len(order)
    values = pa.Array.from_buffers(pa.binary(width), rows, [None, data.slice(int(offsets[0]), rows * width)])
    moved = pc.take(values, _indices(order), boundscheck=False)
    return np.arange(rows + 1, dtype=np.int64) * width, moved.buffers()[1]


def _indices(order: npt.NDArray[np.intp]) -> pa.Array:
    """The order as an Arrow array. Not by ``pa.array``: its first call with a numpy array imports pandas, if it can."""
    return pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)])


def batch_columns(key_groups: Any, values: Any, allowed: KeyGroupRange) -> list[ChangeColumns]:
    """The columns of one ``append_batch``; Arrow values are taken without a copy.

    Args:
        key_groups: A numpy or Arrow array of integers, or a sequence of ``int``.
        values: An Arrow (large) binary, string or fixed-size binary array, chunked or not, or a sequence of bytes-like.
        allowed: Where the key groups must lie.

    Raises:
        InvalidInputError: Different lengths, nulls, another type, or a key group outside ``allowed``.
    """
    groups = _key_group_column(key_groups)
    arrays = _value_columns(values)
    count = sum(len(offsets) - 1 for offsets, _ in arrays)
    if count != len(groups):
        raise _bad(f"{len(groups)} key groups and {count} values")
    if count == 0:
        return []
    low, high = int(groups.min()), int(groups.max())
    if low not in allowed or high not in allowed:
        raise _bad(f"key group {low if low not in allowed else high} is outside {allowed}")
    narrow = groups.astype(np.int16)
    columns = []
    start = 0
    for offsets, data in arrays:
        end = start + len(offsets) - 1
        if end > start:
            if offsets[-1] - offsets[0] > MAX_CHANGE_BYTES and int(np.diff(offsets).max()) > MAX_CHANGE_BYTES:
                raise _bad(f"a value has more than {MAX_CHANGE_BYTES} bytes")
            columns.append(ChangeColumns(narrow[start:end], offsets, data))
        start = end
    return columns


def _key_group_column(key_groups: Any) -> npt.NDArray[Any]:
    if isinstance(key_groups, pa.Array | pa.ChunkedArray):
        if key_groups.null_count:
            raise _bad("a key group is null")
        key_groups = key_groups.to_numpy() if isinstance(key_groups, pa.ChunkedArray) else key_groups.to_numpy(False)
    try:
        column = np.asarray(key_groups)
    except ValueError as error:  # Sequences in a sequence.
        raise _bad(f"the key groups are not a column of integers ({error})") from error
    if column.size == 0:
        return np.empty(0, np.int16)
    if column.ndim != 1 or column.dtype.kind not in "iu":
        raise _bad(f"key groups of type {column.dtype} and {column.ndim} dimensions are not a column of integers")
    return column


def _value_columns(values: Any) -> list[tuple[npt.NDArray[np.int64], pa.Buffer]]:
    if isinstance(values, pa.ChunkedArray):
        return [column for chunk in values.chunks for column in _value_columns(chunk)]
    if not isinstance(values, pa.Array):
        return [_joined(values)]
    if values.null_count:
        raise _bad("a value is null", hint="Append an empty value instead")
    kind = values.type
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind) or pa.types.is_string(kind):
        values = pc.cast(values, pa.large_string()).view(pa.large_binary())
    elif not (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    ):
        raise _bad(f"values of type {kind} are not bytes")
    return [_buffers(values if pa.types.is_large_binary(values.type) else pc.cast(values, pa.large_binary()))]


def _joined(values: Iterable[Buffer]) -> tuple[npt.NDArray[np.int64], pa.Buffer]:
    """Offsets and one buffer from separate values."""
    try:
        items = list(values)
        data = b"".join(items)
        offsets = np.zeros(len(items) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, items), np.int64, len(items)), out=offsets[1:])
        if offsets[-1] != len(data):  # A view whose items are wider than one byte.
            return _joined([bytes(item) for item in items])
    except (TypeError, BufferError) as error:
        raise _bad(f"the values are not a sequence of bytes ({error})") from error
    return offsets, pa.py_buffer(data)


def _as_array(offsets: npt.NDArray[np.int64], data: pa.Buffer) -> pa.Array:
    bounds = pa.py_buffer(np.ascontiguousarray(offsets))
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, [None, bounds, data])


def _buffers(values: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Buffer]:
    """Offsets and data of a large binary array."""
    _, bounds, data = values.buffers()
    if len(values) == 0 or bounds is None:
        return np.zeros(1, np.int64), pa.py_buffer(b"")
    offsets = np.frombuffer(bounds, np.int64, len(values) + 1, values.offset * 8)
    return offsets, pa.py_buffer(b"") if data is None else data


def _bad(message: str, hint: str = "Give two columns of one length") -> InvalidInputError:
    return InvalidInputError(message, operation="append_batch", hint=hint)
