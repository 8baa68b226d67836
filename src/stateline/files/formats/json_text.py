"""JSON of whole columns at once, without a loop over rows: each type's values become an array of text.

Values that have no text in JSON are refused before, by ``jsonl``.

Facts:
- What is inside of a list stands next to each other in memory. So the text of all lists of a column is that of their
  elements with other offsets, and joining them copies nothing.
- The text is what ``msgspec`` writes for the same values in Python, but for the form of exponents; the tests compare.
  Values of types that are rare (binary, moments in other zones than UTC, and so on) are in fact encoded by it, one by
  one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["entries", "holds_key_twice", "json_lines"]

_TEXT: Final = pa.large_string()
"""Text of a whole batch may have more bytes than 32 bits count."""

_LISTS: Final = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
_ENCODER: Final = msgspec.json.Encoder(decimal_format="string")
_BACKSLASH: Final = ord("\\")
_QUOTE: Final = ord('"')
_FIRST_PLAIN: Final = ord(" ")


def json_lines(batch: pa.RecordBatch) -> bytes:
    """One JSON object for each row, in a line of its own."""
    if batch.num_rows == 0:
        return b""
    lines = _objects(batch.schema.names, batch.columns, batch.num_rows, end="}\n")
    offsets = _offsets(lines)
    return memoryview(lines.buffers()[2])[offsets[0] : offsets[-1]].tobytes()


def entries(maps: pa.MapArray) -> pa.ListArray:
    """Maps as lists of structures."""
    made = pa.StructArray.from_arrays([maps.keys, maps.items], ["key", "value"])
    return pa.Array.from_buffers(
        pa.list_(made.type), len(maps), maps.buffers()[:2], offset=maps.offset, children=[made]
    )


def holds_key_twice(maps: pa.MapArray) -> bool:
    """Whether some map has two values for one key."""
    lists = entries(maps)
    lengths = _lengths(lists)
    if len(lengths) == 0 or lengths.max() < 2:
        return False
    keys = _plain(lists.flatten().field(0)).dictionary_encode()
    owners = np.repeat(np.arange(len(lengths)), lengths)
    pairs = np.sort(owners * len(keys.dictionary) + keys.indices.to_numpy(), kind="stable")  # They nearly are.
    return bool((pairs[1:] == pairs[:-1]).any())


def _text_of(values: Any) -> pa.Array:
    """The JSON of values, never null: a null is ``null``."""
    text = _json(_plain(values))
    return pc.fill_null(text, pa.scalar("null", _TEXT)) if text.null_count else text


def _plain(values: Any) -> Any:
    """The same values in one of the layouts that are told apart below."""
    if pa.types.is_dictionary(values.type):
        return _plain(values.dictionary_decode())
    if pa.types.is_run_end_encoded(values.type):
        return _plain(pc.run_end_decode(values))
    return values.cast(_TEXT) if pa.types.is_string(values.type) or pa.types.is_string_view(values.type) else values


def _json(values: Any) -> pa.Array:
    kind = values.type
    if pa.types.is_struct(kind):
        text = _objects([field.name for field in kind], values.flatten(), len(values))
        return _where_valid(values, text)
    if pa.types.is_map(kind):
        lists = entries(values)
        inside = lists.flatten()
        key = _text_of(inside.field(0))
        name = _joined('"', key, '"') if pa.types.is_integer(_plain(inside.field(0)).type) else key
        return _where_valid(values, _lists(_joined(name, ":", _text_of(inside.field(1))), _lengths(lists), "{", "}"))
    if any(is_lists(kind) for is_lists in _LISTS):
        return _where_valid(values, _lists(_text_of(values.flatten()), _lengths(values), "[", "]"))
    if pa.types.is_large_string(kind):
        return _joined('"', _escaped(values), '"')
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return values.cast(_TEXT)
    if pa.types.is_floating(kind):
        return _floats(values.cast(pa.float64()))
    if pa.types.is_date32(kind):
        return _joined('"', values.cast(_TEXT), '"')
    if pa.types.is_timestamp(kind) and kind.tz in (None, "UTC"):
        text = values.cast(pa.timestamp("us")).cast(_TEXT)  # Text of a moment with a zone takes thirty times as long.
        return _joined('"', _without_zeros(pc.replace_substring(text, " ", "T")), '"' if kind.tz is None else 'Z"')
    if pa.types.is_time(kind):
        return _joined('"', _without_zeros(values.cast(pa.time64("us")).cast(_TEXT)), '"')
    encoded = (_ENCODER.encode(value).decode() for value in values.to_pylist(maps_as_pydicts="strict"))
    return pa.array(encoded, _TEXT)


def _objects(names: Sequence[str], columns: Sequence[Any], rows: int, *, end: str = "}") -> pa.Array:
    """One object for each row."""
    if not names:
        return pa.array(["{" + end] * rows, _TEXT)
    parts: list[Any] = []
    for number, (name, column) in enumerate(zip(names, columns, strict=True)):
        parts += [f"{',' if number else '{'}{_ENCODER.encode(name).decode()}:", _text_of(column)]
    return _joined(*parts, end)


def _lists(elements: pa.Array, lengths: Any, begin: str, end: str) -> pa.Array:
    """The elements of each list, with commas in between."""
    ends = np.concatenate([[0], np.cumsum(lengths)])
    first = np.zeros(len(elements), dtype=np.bool_)
    first[ends[:-1][lengths > 0]] = True
    separated = _joined(pc.if_else(pa.array(first), pa.scalar("", _TEXT), pa.scalar(",", _TEXT)), elements)
    offsets = _offsets(separated)[ends]
    text = pa.LargeStringArray.from_buffers(len(lengths), pa.py_buffer(offsets), separated.buffers()[2])
    return _joined(begin, text, end)


def _floats(values: Any) -> pa.Array:
    """Arrow leaves the point out of whole numbers, and readers without a schema would take them for integers."""
    text = values.cast(_TEXT)
    whole = pc.fill_null(pc.equal(values, pc.trunc(values)), False)
    if pc.any(whole).as_py():
        # Only those without an exponent; finding them all is slow.
        plain = pc.and_(whole, pc.invert(pc.match_substring(text, "e")))
        text = pc.if_else(plain, _joined(text, ".0"), text)
    finite = pc.is_finite(values)
    return text if pc.all(finite, min_count=0).as_py() else pc.if_else(finite, text, pa.scalar(None, _TEXT))


def _escaped(text: pa.Array) -> pa.Array:
    offsets = _offsets(text)
    data = np.frombuffer(text.buffers()[2] or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    special = np.unique(data[(data < _FIRST_PLAIN) | (data == _QUOTE) | (data == _BACKSLASH)]).tolist()
    for character in sorted(special, key=lambda each: each != _BACKSLASH):  # First what the others bring along.
        escape = _ENCODER.encode(chr(character)).decode().strip('"') if character != _QUOTE else '\\"'
        text = pc.replace_substring(text, chr(character), escape)
    return text


def _without_zeros(text: pa.Array) -> pa.Array:
    return pc.replace_substring(text, ".000000", "")


def _where_valid(values: Any, text: pa.Array) -> pa.Array:
    return pc.if_else(values.is_valid(), text, pa.scalar(None, _TEXT)) if values.null_count else text


def _lengths(lists: Any) -> Any:
    return pc.fill_null(pc.list_value_length(lists), 0).to_numpy()


def _joined(*parts: Any) -> pa.Array:
    texts = [pa.scalar(part, _TEXT) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*texts, pa.scalar("", _TEXT))


def _offsets(text: Any) -> Any:
    return np.frombuffer(text.buffers()[1], dtype=np.int64)[text.offset : text.offset + len(text) + 1]
