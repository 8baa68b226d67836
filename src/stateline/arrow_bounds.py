"""How much memory an Arrow record batch would take, found out before it is taken; and whether its values lie within it.

Facts:
- A compressed buffer begins with its uncompressed length, 8 bytes, and Arrow allocates that much before it looks at the
  rest. So eight bytes can ask for any amount of memory.
- These lengths lie in the body of a message, where its metadata says: a flatbuffer, of which a table's field ``n`` is
  found through the table's vtable. Numbers are little-endian.
- Buffers that are not compressed are slices of the message: pyarrow checks them against its length.
- A file lists its messages in its footer; a stream is one message after the other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateline.errors import CorruptDataError

__all__ = ["MAX_INFLATED_BYTES", "ValueCheck", "check_file", "check_nested_values", "check_stream", "check_table"]

MAX_INFLATED_BYTES: Final = 256 * 1024 * 1024
"""Bytes of the buffers of one record batch of a file, or of all of a stream, after decompression. A writer does not
compress more."""

_CONTINUATION: Final = 0xFFFFFFFF
_DICTIONARY_BATCH: Final = 2
_RECORD_BATCH: Final = 3
_FILE_END_BYTES: Final = 4 + 6
_BLOCK: Final = struct.Struct("<qiiq")
_BUFFER: Final = struct.Struct("<qq")
_PREFIX: Final = struct.Struct("<II")
_LENGTH: Final = struct.Struct("<q")


def check_file(data: memoryview, batches: Iterable[int], subject: str) -> None:
    """Checks some record batches of an IPC file, by number.

    Raises:
        CorruptDataError: One would take too much memory, or it is not a file.
    """
    try:
        end = len(data) - _FILE_END_BYTES
        footer = _root(data, end - _number(data, "<i", end))
        count, start = _vector(data, footer, 3)
        for number in batches:
            if number >= count:
                raise _corrupt(f"expected record batch {number}, got {count} batches", subject)
            offset, metadata_bytes, _, _ = _BLOCK.unpack_from(data, start + _BLOCK.size * number)
            _check(_announced(data, offset, offset + metadata_bytes), subject)
    except (struct.error, IndexError) as error:
        raise _corrupt(f"is not an Arrow file: {error}", subject) from error


def check_stream(data: memoryview, subject: str) -> None:
    """Checks all batches of an IPC stream together; what follows its end is not looked at.

    Raises:
        CorruptDataError: They would take too much memory, or the bytes are not a stream.
    """
    total = 0
    try:
        for start, body in _messages(data):
            total += _announced(data, start, body)
            _check(total, subject)
    except (struct.error, IndexError) as error:
        raise _corrupt(f"is not an Arrow stream: {error}", subject) from error


def _messages(data: memoryview) -> Iterator[tuple[int, int]]:
    """Where each message of a stream, and its body, start."""
    position = 0
    while position + _PREFIX.size <= len(data):
        marker, metadata_bytes = _PREFIX.unpack_from(data, position)
        if marker != _CONTINUATION or metadata_bytes == 0:
            return
        body = position + _PREFIX.size + metadata_bytes
        yield position, body
        place = _field(data, _root(data, position + _PREFIX.size), 3)
        body_bytes = 0 if place is None else _number(data, "<q", place)
        if body_bytes < 0:
            return
        position = body + body_bytes


def _announced(data: memoryview, message: int, body: int) -> int:
    """The bytes that the compressed buffers of a message say they have; 0 where nothing is compressed."""
    header = _root(data, message + _PREFIX.size)
    kind = _field(data, header, 1)
    if kind is None or data[kind] not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return 0
    place = _field(data, header, 2)
    if place is not None and data[kind] == _DICTIONARY_BATCH:
        place = _field(data, place + _number(data, "<I", place), 1)  # The batch of its values.
    if place is None:
        return 0
    batch = place + _number(data, "<I", place)
    if _field(data, batch, 3) is None:
        return 0
    count, start = _vector(data, batch, 2)
    total = 0
    for buffer in range(count):
        offset, length = _BUFFER.unpack_from(data, start + _BUFFER.size * buffer)
        if length >= _LENGTH.size:
            total += max(_LENGTH.unpack_from(data, body + offset)[0], 0)  # -1: this one is as it is.
    return total


def _root(data: memoryview, at: int) -> int:
    return at + int(_number(data, "<I", at))


def _vector(data: memoryview, table: int, field: int) -> tuple[int, int]:
    """The count and the first element of a vector."""
    place = _field(data, table, field)
    if place is None:
        return 0, 0
    at = place + _number(data, "<I", place)
    return _number(data, "<I", at), at + 4


def _field(data: memoryview, table: int, field: int) -> int | None:
    """Where a field of a table is; ``None`` where it has its default."""
    vtable = table - _number(data, "<i", table)
    entry = 4 + 2 * field
    if entry + 2 > _number(data, "<H", vtable):
        return None
    offset = _number(data, "<H", vtable + entry)
    return table + offset if offset else None


def _number(data: memoryview, layout: str, at: int) -> int:
    if at < 0:
        raise IndexError(f"{at} is before the beginning")
    (value,) = struct.unpack_from(layout, data, at)
    return int(value)


def _check(announced: int, subject: str) -> None:
    if announced > MAX_INFLATED_BYTES:
        raise _corrupt(f"announces {announced} bytes of batches, expected at most {MAX_INFLATED_BYTES}", subject)


def _corrupt(message: str, subject: str) -> CorruptDataError:
    return CorruptDataError(
        message, operation="open", subject=subject, hint="Restore the object, or go back to an older checkpoint"
    )


class ValueCheck:
    """Checks that no value of record batches reaches outside its buffer.

    What each column needs is found out once for all of them. Of strings only the offsets are looked at: pyarrow's full
    check reads every character, too.

    Args:
        schema: Of the batches.
    """

    def __init__(self, schema: pa.Schema) -> None:
        kinds = schema.types
        self._offset_types = [(number, width) for number, kind in enumerate(kinds) if (width := _offset_type(kind))]
        self._only_fully = [number for number, kind in enumerate(kinds) if _is_checked_only_fully(kind)]

    def __call__(self, batch: pa.RecordBatch) -> None:
        """Checks one batch.

        Raises:
            pa.ArrowInvalid: A value reaches outside, or text inside of a nested column is not UTF-8.
        """
        batch.validate()
        for number in self._only_fully:
            batch.column(number).validate(full=True)
        for number, width in self._offset_types:
            column = batch.column(number)
            offsets: npt.NDArray[Any] = np.frombuffer(column.buffers()[1], dtype=width)[column.offset :][
                : len(column) + 1
            ]
            if (offsets[1:] < offsets[:-1]).any():
                raise pa.ArrowInvalid("offsets of a string column do not ascend")


def _is_checked_only_fully(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_nested(kind)
        or pa.types.is_dictionary(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary_view(kind)
    )


def _offset_type(kind: pa.DataType) -> type[np.int32] | type[np.int64] | None:
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return np.int32
    return np.int64 if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) else None


def check_nested_values(batch: pa.RecordBatch) -> None:
    """The part of :class:`ValueCheck` for lists, structures and maps, which have no cheaper check than the full one.

    Raises:
        pa.ArrowInvalid: A value reaches outside its buffer, or text is not UTF-8.
    """
    for column in batch.columns:
        if pa.types.is_nested(column.type):
            column.validate(full=True)


def check_table(table: pa.Table) -> None:
    """Checks that no value of a table reaches outside its buffer, also inside of others. Text may be any bytes.

    Raises:
        pa.ArrowInvalid: One does.
    """
    table.validate()
    for column in table.columns:
        for chunk in column.chunks:
            plain = _as_bytes(chunk.type)
            (chunk if plain == chunk.type else chunk.view(plain)).validate(full=True)


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    """The type of the same layout that asks nothing of the bytes of text."""
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_bytes(field.type)) for field in kind])
    if pa.types.is_map(kind):
        key, item = (field.with_type(_as_bytes(field.type)) for field in (kind.key_field, kind.item_field))
        return pa.map_(key, item)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_bytes(kind.value_type)))
    return kind
