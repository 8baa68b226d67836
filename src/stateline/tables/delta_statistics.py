"""What a Delta log says of one file, made from its Parquet footer and its name: statistics and partition values.

Wrong statistics give wrong answers: readers skip files by them. So a file has bounds of all its columns, or of none.

Facts:
- deltalake's own reader takes a bound that is left out, while other columns have theirs, for one that no value meets,
  and skips the file. Binary, lists and maps have no bounds, and it expects none.
- Bounds of texts have 32 characters at most. A maximum that is cut must still be one, so its last character is raised
  to the next code point. There is none after U+10FFFF: the character before it is raised then.
- Bounds of timestamps have milliseconds, cut by readers and writers of the format: a maximum is raised to the next one.
- Readers take a bound of a float for one of all rows, NaN included. So there is one only where every value is finite.
- Numbers of JSON with many digits are read exactly where they are written in full, without an exponent.
- Partition values are text. Null and the empty text cannot be told apart.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from stateline.errors import CorruptDataError, InvalidInputError
from stateline.tables.columns import leaves_of, refused_columns
from stateline.tables.footers import leaf_bounds

__all__ = ["check_partition_kind", "file_statistics", "partition_values"]

_COLUMNS_MAX: Final = 200
"""A file of more leaf columns has no bounds: the log would be longer than what they save."""

_TEXT_MAX: Final = 32
_LAST_CODE_POINT: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_CUT: Final = re.compile("~[0-9a-f]{32}\\Z")
"""Ends the name of a folder whose value is too long for it; the file has the column itself then."""
_MILLISECOND: Final = dt.timedelta(milliseconds=1)


def file_statistics(footer: pq.FileMetaData) -> str:
    """The member ``stats`` of an ``add`` action: rows, nulls, and bounds if those of all columns are certain."""
    leaves = [
        (index, path, kind)
        for index, (path, kind) in enumerate(
            leaf for column in footer.schema.to_arrow_schema() for leaf in leaves_of(column.type, (column.name,))
        )
        if path is not None and not pa.types.is_binary(kind) and not pa.types.is_large_binary(kind)
    ]
    known = leaf_bounds(footer)
    nulls: dict[str, Any] = {}
    bounds: tuple[dict[str, Any], dict[str, Any]] | None = ({}, {}) if len(leaves) <= _COLUMNS_MAX else None
    for index, path, kind in leaves:
        found = known[index]
        _put(nulls, path, None if found.nulls is None else str(found.nulls))
        if bounds is None or found.nulls == footer.num_rows:
            continue
        lower, upper = _least(found.least, kind), _greatest(found.greatest, kind)
        if lower is not None and upper is not None:
            _put(bounds[0], path, lower)
            _put(bounds[1], path, upper)
        elif len(path) == 1:
            bounds = None
    members = {"numRecords": str(footer.num_rows), "nullCount": nulls}
    if bounds is not None:
        members |= {"minValues": bounds[0], "maxValues": bounds[1]}
    return _json(members)


def partition_values(
    name: str, columns: Sequence[str], schema: pa.Schema, footer: pq.FileMetaData
) -> dict[str, str | None]:
    """The member ``partitionValues`` of an ``add`` action.

    Args:
        name: The file, in folders ``column=value``.
        columns: Partition columns, outermost first.
        schema: Columns of the table.
        footer: Of the file, which has a column itself where its folder does not tell its value in full.

    Raises:
        CorruptDataError: The name does not tell values of these columns.
    """
    folders = name.split("/")[:-1]
    in_file = {column.name: at for at, column in enumerate(footer.schema.to_arrow_schema())}
    found: dict[str, str | None] = {}
    for column, folder in zip(columns, folders, strict=False):
        key, _, text = folder.partition("=")
        kind = schema.field(column).type
        if unquote(key) == column:
            is_cut = column in in_file and _CUT.search(text) is not None
            found[column] = _value_in_file(footer, in_file[column]) if is_cut else _written(text, kind)
    if [*found] != [*columns]:
        raise CorruptDataError(
            f"expected folders of {list(columns)}, got {folders}", operation="commit", subject=f"file {name}"
        )
    for column, value in found.items():
        _check_value(value, schema.field(column).type, name)
    return found


def check_partition_kind(column: pa.Field, name: str) -> None:
    """Checks that the values of a column can be partition values of a Delta table.

    Raises:
        InvalidInputError: They cannot.
    """
    kind = column.type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        reason = f"cannot be partitioned by column {column.name!r} of type {kind}"
        raise refused_columns(reason, name, "Partition by another column")


def _json(value: str | dict[str, Any]) -> str:
    """An object of JSON whose values are texts of JSON already."""
    if isinstance(value, str):
        return value
    members = (f"{json.dumps(name, ensure_ascii=False)}:{_json(each)}" for name, each in value.items())
    return f"{{{','.join(members)}}}"


def _put(tree: dict[str, Any], path: tuple[str, ...], value: str | None) -> None:
    if value is not None:
        for name in path[:-1]:
            tree = tree.setdefault(name, {})
        tree[path[-1]] = value


def _least(value: Any, kind: pa.DataType) -> str | None:
    """The JSON of a lower bound; ``None`` for none."""
    if isinstance(value, str):
        return json.dumps(value[:_TEXT_MAX], ensure_ascii=False)
    if isinstance(value, dt.datetime):
        return _moment(value - dt.timedelta(microseconds=value.microsecond % 1000), kind)
    return _number(value)


def _greatest(value: Any, kind: pa.DataType) -> str | None:
    """The JSON of an upper bound; ``None`` for none."""
    if isinstance(value, str):
        cut = value if len(value) <= _TEXT_MAX else _raised(value[:_TEXT_MAX])
        return None if cut is None else json.dumps(cut, ensure_ascii=False)
    if isinstance(value, dt.datetime):
        over = value.microsecond % 1000
        try:
            return _moment(value if not over else value - dt.timedelta(microseconds=over) + _MILLISECOND, kind)
        except OverflowError:
            return None
    return _number(value)


def _raised(text: str) -> str | None:
    """A short text above every text that begins with this one; ``None`` if there is none."""
    for end in range(len(text), 0, -1):
        code = ord(text[end - 1]) + 1
        if code <= _LAST_CODE_POINT:
            return text[: end - 1] + chr(_SURROGATES.stop if code in _SURROGATES else code)
    return None


def _number(value: Any) -> str | None:
    """The JSON of a number or a date, in full."""
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, dt.date):
        return json.dumps(value.isoformat())
    return json.dumps(value) if isinstance(value, bool | int | float) else None


def _moment(value: dt.datetime, kind: pa.DataType) -> str:
    text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return json.dumps(text if kind.tz is None else f"{text}Z")


def _written(text: str, kind: pa.DataType) -> str | None:
    """A partition value as the log has it, from the name of a folder."""
    if text == _NULL:
        return None
    value = unquote(text)
    return f"{value.replace(' ', 'T')}Z" if pa.types.is_timestamp(kind) and kind.tz is not None else value


def _value_in_file(footer: pq.FileMetaData, index: int) -> str | None:
    """The value of a column that is the same in all rows of a file."""
    leaf = 0
    for at, column in enumerate(footer.schema.to_arrow_schema()):
        if at == index:
            break
        leaf += sum(1 for _ in leaves_of(column.type))
    found = leaf_bounds(footer)[leaf]
    if not isinstance(found.least, str) or found.least != found.greatest:
        raise InvalidInputError(
            "cannot tell the value of a partition column: it is too long for the name of a folder, and for a footer",
            operation="commit",
            subject=f"column {footer.schema.to_arrow_schema().field(index).name!r}",
            hint="Partition by a shorter value, such as a hash",
        )
    return found.least


def _check_value(text: str | None, kind: pa.DataType, name: str) -> None:
    """Refuses what no reader could parse: the library would say so only after it is in the log."""
    try:
        if text is not None:
            _PARSERS.get(str(kind), _cast)(text, kind)
    except (ValueError, pa.ArrowException) as error:
        raise CorruptDataError(
            f"{text!r} is not a {kind} ({error})", operation="commit", subject=f"partition value of file {name}"
        ) from error


def _cast(text: str, kind: pa.DataType) -> None:
    pa.array([text]).cast(kind)


def _moment_of(text: str, _: pa.DataType) -> None:
    dt.datetime.fromisoformat(text)


_PARSERS: Final[Mapping[str, Callable[[str, pa.DataType], None]]] = {
    "timestamp[us, tz=UTC]": _moment_of,
    "timestamp[us]": _moment_of,
}
