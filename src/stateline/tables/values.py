"""Values that a table cannot take: found in the rows of a subtask, before a record decides them.

Facts:
- Arrow checks no value when it makes a column: text may be no UTF-8, a decimal may have too many digits, and a time may
  lie outside the day. Writers of tables check them, or write what no reader can read.
- Python's times, of which the logs of Delta and Iceberg are made, and Spark's, have the years 1 to 9999. The texts that
  SQLite's functions read have the years 0 to 9999. PostgreSQL counts from 4714 BC, dates to the year 5874897 and
  timestamps to the year 294276.
- PostgreSQL has no character 0 in text, and no entry of an index over 2,704 bytes. SQLite keeps NaN as null.
- The value of a partition that is too long for the name of a folder is read from the footer of its file, which has no
  bounds of more than 4,096 bytes. A merge into Delta writes its folders itself, and never shortens a name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stateline.errors import ErrorKind, InvalidInputError
from stateline.tables.targets import TableTarget

__all__ = ["check_values", "shown_values"]

Mask = npt.NDArray[np.bool_]

_DAY_US: Final = 86_400_000_000
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_SHOWN_COLUMNS: Final = 3
_SHOWN_CHARACTERS: Final = 40
_FOLDER_BYTES: Final = 255
_FOOTER_BYTES: Final = 4_096
_INDEX_BYTES: Final = 2_600


@dataclass(frozen=True, slots=True)
class _Limits:
    """What a format takes.

    Attributes:
        name: The format, for people.
        days: First and last date, in days since 1970.
        moments_us: First and last timestamp, in microseconds since 1970.
        years: Both, for people.
        has_nul: Whether text may have the character 0.
        has_nan: Whether NaN stays NaN.
    """

    name: str
    days: tuple[int, int]
    moments_us: tuple[int, int]
    years: str
    has_nul: bool = True
    has_nan: bool = True


def _first_day(year: int) -> int:
    return int(np.datetime64(year - 1970, "Y").astype("datetime64[D]").astype("int64"))


def _in_years(name: str, first: int, last: int, *, has_nan: bool = True) -> _Limits:
    days = _first_day(first), _first_day(last + 1) - 1
    return _Limits(name, days, (days[0] * _DAY_US, (days[1] + 1) * _DAY_US - 1), f"{first} to {last}", has_nan=has_nan)


_LIMITS: Final = {
    "delta": _in_years("Delta", 1, 9999),
    "iceberg": _in_years("Iceberg", 1, 9999),
    "sqlite": _in_years("SQLite", 0, 9999, has_nan=False),
    "postgresql": _Limits(
        "PostgreSQL",
        (-2_440_588, _first_day(5_874_898) - 1),
        (-2_440_588 * _DAY_US, _first_day(294_277) * _DAY_US - 1),
        "4714 BC to 294276 (dates to 5874897)",
        has_nul=False,
    ),
}


@dataclass(frozen=True, slots=True)
class _Complaint:
    """Rows that a table cannot take.

    Attributes:
        rows: Which.
        reason: What is wrong with the value.
        hint: What to do.
    """

    rows: Mask
    reason: str
    hint: str


def check_values(rows: pa.Table, target: TableTarget, subject: str) -> None:
    """Check that a table can take every value of some rows, nested values included.

    Args:
        rows: The rows of one subtask.
        target: The table.
        subject: Whose rows they are, for the error.

    Raises:
        InvalidInputError: The table cannot take a value; names the row, the column and the reason.
    """
    limits = _LIMITS[target.format]
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        before = 0
        for chunk in column.chunks:
            found = _complaint(chunk, limits)
            if found is not None:
                raise _refused(rows, name, before + int(np.argmax(found.rows)), found, target, subject)
            before += len(chunk)
    for name, found in _long_names(rows, target):
        raise _refused(rows, name, int(np.argmax(found.rows)), found, target, subject)


def _complaint(values: Any, limits: _Limits) -> _Complaint | None:
    """The first reason against some values of a column, or of an array inside one."""
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return _complaint(values.storage, limits)
    if pa.types.is_dictionary(kind):
        return _complaint(values.dictionary_decode(), limits)
    if pa.types.is_run_end_encoded(kind):
        return _complaint(pc.run_end_decode(values), limits)
    if pa.types.is_struct(kind):
        parts = [values.field(index) for index in range(kind.num_fields)]
        return _lifted(values, parts, limits, lambda rows: rows)
    if pa.types.is_fixed_size_list(kind):
        return _complaint(values.cast(pa.list_(kind.value_field)), limits)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        parts = [values.keys, values.items] if pa.types.is_map(kind) else [values.values]
        offsets = values.offsets.to_numpy(zero_copy_only=False)
        return _lifted(values, parts, limits, lambda rows: _of_parents(rows, offsets))
    return next(filter(None, (rule(values, limits) for rule in _RULES)), None)


def _lifted(values: Any, parts: Any, limits: _Limits, of_parents: Callable[[Mask], Mask]) -> _Complaint | None:
    """A complaint about something inside values, as one about these. Whatever lies behind a null does not count."""
    for part in parts:
        found = _complaint(part, limits)
        if found is not None:
            wrong = of_parents(found.rows) & values.is_valid().to_numpy(zero_copy_only=False)
            if wrong.any():
                return _Complaint(wrong, found.reason, found.hint)
    return None


def _of_parents(elements: Mask, offsets: npt.NDArray[Any]) -> Mask:
    """Which lists have an element of a mask."""
    counted = np.concatenate([[0], np.cumsum(elements)])
    return np.asarray(counted[offsets[1:]] > counted[offsets[:-1]])


def _not_sound(values: Any, _: _Limits) -> _Complaint | None:
    """Values that Arrow calls wrong: text that is not UTF-8, decimals of too many digits, times outside a day."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        wrong = np.array([_is_unsound(values.slice(at, 1)) for at in range(len(values))])
        if not wrong.any():
            return None
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            return _Complaint(wrong, "text that is not UTF-8", "Repair it with make_valid_utf8(), or keep it as binary")
        return _Complaint(wrong, f"a value outside the range of {values.type}", "Cast the column to a wider type")
    return None


def _is_unsound(value: Any) -> bool:
    try:
        value.validate(full=True)
    except pa.ArrowInvalid:
        return bool(value.is_valid()[0].as_py())
    return False


def _nul(values: Any, limits: _Limits) -> _Complaint | None:
    if limits.has_nul or not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return None
    reason = f"text with the character 0, which {limits.name} cannot store"
    return _complained(pc.match_substring(values, "\0"), reason, "Replace the character")


def _nan(values: Any, limits: _Limits) -> _Complaint | None:
    if limits.has_nan or not pa.types.is_floating(values.type):
        return None
    return _complained(pc.is_nan(values), f"NaN, which {limits.name} keeps as null", "Make it null, or a number")


def _out_of_years(values: Any, limits: _Limits) -> _Complaint | None:
    kind = values.type
    if pa.types.is_date32(kind):
        numbers, (first, last) = values.cast(pa.int32()), limits.days
        bounds = pa.int32()
    elif pa.types.is_timestamp(kind):
        numbers, bounds, unit = values.cast(pa.int64()), pa.int64(), _PER_SECOND[kind.unit]
        first, last = (limit * unit // 10**6 for limit in limits.moments_us)
        first += limits.moments_us[0] * unit % 10**6 > 0
    else:
        return None
    least, greatest = np.iinfo(bounds.to_pandas_dtype()).min, np.iinfo(bounds.to_pandas_dtype()).max
    first, last = (pa.scalar(min(max(each, least), greatest), bounds) for each in (first, last))
    seen = pc.min_max(numbers)
    if not seen["min"].is_valid or (seen["min"].as_py() >= first.as_py() and seen["max"].as_py() <= last.as_py()):
        return None
    wrong = pc.or_(pc.less(numbers, first), pc.greater(numbers, last))
    what = "date" if pa.types.is_date32(kind) else "timestamp"
    reason = f"a {what} outside the years of {limits.name}, {limits.years}"
    return _complained(wrong, reason, "Make it null, or keep it as text")


_RULES: Final[Sequence[Callable[[Any, _Limits], _Complaint | None]]] = (_not_sound, _nul, _nan, _out_of_years)
"""What is asked of arrays that are not nested, in order: text is searched only where it is text."""


def _complained(wrong: Any, reason: str, hint: str) -> _Complaint | None:
    rows = pc.fill_null(wrong, False).to_numpy(zero_copy_only=False)
    return _Complaint(rows, reason, hint) if rows.any() else None


def _long_names(rows: pa.Table, target: TableTarget) -> Any:
    """Complaints about text that is too long for a place where it names something: a partition, or a key."""
    for name in target.partition_by:
        column = rows[name] if name in rows.column_names else None
        if column is None or not _is_long_type(column.type) or target.format == "iceberg":
            continue  # An Iceberg table reads the value from the file, whose footer has no room for it.
        if target.takes_files:
            rest = _FOOTER_BYTES
            wrong = pc.greater(pc.binary_length(column), rest)
        else:
            rest = _FOLDER_BYTES - len(quote(name, safe="")) - 1
            known = column.combine_chunks().dictionary_encode()
            known = known.combine_chunks() if isinstance(known, pa.ChunkedArray) else known
            long = [text is not None and len(quote(text, safe="")) > rest for text in known.dictionary.to_pylist()]
            wrong = pc.take(pa.array(long, pa.bool_()), known.indices)
        found = _complained(wrong, f"a value of more than {rest} bytes to partition by", "Partition by a hash of it")
        if found is not None:
            yield name, found
    lengths = [pc.binary_length(rows[name]) for name in target.key if _is_long_type(rows[name].type)]
    if target.format == "postgresql" and lengths:
        total = np.sum([pc.fill_null(each, 0).to_numpy().astype(np.int64) for each in lengths], axis=0)
        found = _complained(
            pa.array(total > _INDEX_BYTES),
            f"a key of more than {_INDEX_BYTES} bytes, which no index of PostgreSQL holds",
            "Use a hash of it as the key",
        )
        if found is not None:
            yield target.key[0], found


def _is_long_type(kind: pa.DataType) -> bool:
    return any(
        is_one(kind)
        for is_one in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def _refused(
    rows: pa.Table, column: str, row: int, found: _Complaint, target: TableTarget, subject: str
) -> InvalidInputError:
    names = [name for name in target.key or rows.column_names if name != column][:_SHOWN_COLUMNS]
    shown = shown_values(rows, row, names)
    return InvalidInputError(
        f"column {column!r} of row {row}{f' {shown}' if shown else ''} has {found.reason}",
        operation="write_table",
        subject=subject,
        hint=found.hint,
        kind=ErrorKind.SCHEMA_MISMATCH,
    )


def shown_values(rows: pa.Table, row: int, names: Sequence[str]) -> dict[str, Any]:
    """Values of one row by column, for an error; long ones are cut, and those that Python cannot hold left out."""
    shown: dict[str, Any] = {}
    for name in names:
        try:
            value = rows[name][row].as_py()
        except (ValueError, OverflowError):
            continue
        text = repr(value)
        shown[name] = value if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
    return shown
