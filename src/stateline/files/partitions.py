"""Partition columns: rows split by the folder that their values name.

Facts:
- The layout is Hive's: ``column=value`` per partition column. Spark, Hive, Trino, DuckDB and pyarrow read it.
- ASCII characters with a meaning in paths are written as ``%XX``, the set that Spark escapes, so that Spark reads the
  same value back; other Unicode stays as it is, because Spark decodes ``%XX`` as a character and not as a UTF-8 byte.
- Null and the empty string are ``__HIVE_DEFAULT_PARTITION__``: readers cannot tell an empty folder value from none, so
  Spark itself writes both this way.
- Files that carry their partition columns are joined by folder, and a table says which value a file has. So there each
  value has a folder of its own: an empty text is ``column=``, and a text that is spelled as the name of null begins
  with ``%5F``.
- A folder name holds at most 255 bytes. A longer value keeps its beginning, followed by a digest of the whole, and its
  files then also carry the column itself, so that nothing is lost.
- Readers take a timestamp in the name of a folder for one without a zone, and Spark writes and reads that of its
  session. A clock that is put back shows an hour twice; then the files carry the column, too.
- Arrow looks zones up by name, and knows offsets such as ``+05:00`` only from pyarrow 22 on, so we add them ourselves.
"""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateline.blob.names import MAX_NAME_BYTES, MAX_SEGMENT_BYTES
from stateline.errors import ErrorKind, InvalidInputError
from stateline.files.formats.limits import (
    PYTHON_YEARS,
    check_microseconds,
    check_text,
    check_years,
    is_binary,
    is_extension,
    is_interval,
    is_view,
)
from stateline.options import check_kind
from stateline.partition_fields import PartitionField

__all__ = [
    "NULL_PARTITION",
    "check_partition",
    "check_zone",
    "folder_values",
    "is_abbreviated",
    "partition_folder",
    "split_by_folder",
]

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Hive and Spark call the partition of nulls."""

_NOT_NULL: Final = f"%{ord(NULL_PARTITION[0]):02X}{NULL_PARTITION[1:]}"
"""A text that is spelled as the name of null, as the name of a folder. Readers that unescape it get the text."""

_ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f") | frozenset(map(chr, range(0x20)))
_DIGEST_DIGITS: Final = 32
_FOLDER_BYTES_MAX: Final = MAX_NAME_BYTES - len(f"/part-{32 * 'f'}.parquet.gz")
_MARK: Final = "~"
_OFFSET: Final = re.compile(r"(?P<sign>[+-])(?P<hours>[01]\d|2[0-3]):?(?P<minutes>[0-5]\d)", re.ASCII)


def check_partition(field: pa.Field) -> None:
    """Checks that the values of a column can name folders.

    Raises:
        InvalidInputError: They cannot; names the column, its type and the reason.
    """
    reason = None
    if field.name.startswith((".", "_")):
        reason = "readers skip folders whose names begin so"
    elif len(f"{_escape(field.name)}=".encode()) > MAX_SEGMENT_BYTES - _DIGEST_DIGITS - len(_MARK):
        reason = "its name leaves no room for a value in the name of a folder"
    elif pa.types.is_nested(field.type):
        reason = f"{field.type} has no form as the name of a folder"
    elif pa.types.is_dictionary(field.type) or is_view(field.type) or is_extension(field.type):
        reason = f"rows are not split by {field.type}, only by plain values"
    elif is_interval(field.type):
        reason = f"{field.type} cannot name a folder: readers do not agree on the form of intervals"
    if reason is not None:
        raise InvalidInputError(
            reason,
            operation="write_files",
            subject=f"partition_by {field.name!r}",
            hint="Rename or convert the column, or partition by another one",
            kind=ErrorKind.SCHEMA_MISMATCH,
        )


def check_zone(zone: str) -> None:
    """Checks that a time zone is an offset, or one that Arrow knows.

    Raises:
        InvalidInputError: It is neither.
    """
    check_kind(zone, str, "partition_zone", "the name of a time zone")
    if _fixed_offset(zone) is not None:
        return
    try:
        pc.local_timestamp(pa.array([0], pa.timestamp("us", zone or "none")))
    except pa.ArrowException as error:
        raise InvalidInputError(
            f"must be a time zone that Arrow knows, got {zone!r} ({error})",
            subject="partition_zone",
            hint="Give a name such as Europe/Berlin, or an offset such as +05:00",
        ) from error


def split_by_folder(
    rows: pa.Table, columns: Sequence[str], zone: str, *, keep: bool = False
) -> Iterator[tuple[str, pa.Table]]:
    """Splits rows by the folder they belong to.

    Args:
        rows: The rows.
        columns: Partition columns, outermost first. Of rows that keep them also parts of moments: ``day(column)``.
        zone: The time zone whose clock names folders of timestamps with a zone.
        keep: Whether rows keep the columns in any case.

    Returns:
        Folders and their rows, without the columns that the folder's name tells in full.

    Raises:
        InvalidInputError: A value cannot name a folder; names the column and the reason.
    """
    if rows.num_rows == 0:
        return
    if not columns:
        yield "", rows.combine_chunks()  # Now, while Spark fills the next batches, and not when all wait for it.
        return
    fields = [PartitionField.parse(column) if keep else PartitionField(column) for column in columns]
    names = [field.name for field in fields]
    told, is_shown_twice = folder_values(
        pa.table([field.values(rows[field.column]) for field in fields], names=names), zone
    )
    codes, values = _partition_codes(told, names)
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(len(values) + 1))
    ordered = rows.take(pa.array(order))
    slim = ordered if keep else ordered.drop_columns(names)
    for code, value in enumerate(values):
        tells_less = keep or is_abbreviated(names, value) or is_shown_twice[order[starts[code]]]
        source = ordered if tells_less else slim
        yield partition_folder(names, value, exact=keep), source.slice(starts[code], starts[code + 1] - starts[code])


def folder_values(rows: pa.Table, zone: str) -> tuple[pa.Table, Any]:
    """What folders tell of columns: timestamps with a zone as the clock of ``zone`` shows them, all else as it is.

    Args:
        rows: The columns.
        zone: The time zone.

    Returns:
        The columns, and for each row whether its clock shows the same again, so that the folder does not tell it all.

    Raises:
        InvalidInputError: A value cannot name a folder; names the column and the reason.
    """
    _check_values(rows)
    twice = np.zeros(rows.num_rows, dtype=np.bool_)
    for index, field in enumerate(rows.schema):
        if not pa.types.is_timestamp(field.type) or field.type.tz is None:
            continue
        offset = _fixed_offset(zone)
        shown = _shown(rows.column(index), zone, offset)
        check_years(field.name, shown, PYTHON_YEARS)
        rows = rows.set_column(index, field.name, shown)
        if offset is None:
            first, last = (pc.assume_timezone(shown, zone, ambiguous=which) for which in ("earliest", "latest"))
            twice |= pc.fill_null(pc.not_equal(first, last), False).to_numpy()
    return rows, twice


def partition_folder(columns: Sequence[str], values: Sequence[Any], *, exact: bool = False) -> str:
    """The relative folder for rows with these partition values, such as ``"origin=EWR/day=2013-01-01"``.

    Args:
        columns: Partition columns, outermost first.
        values: One Python value per column; ``None`` is null.
        exact: Whether null, the empty text and the name of null have three folders, and not one.

    Raises:
        InvalidInputError: It leaves no room for the name of a file.
    """
    parts = zip(columns, values, strict=True)
    folder = "/".join(_segment(column, value, exact=exact) for column, value in parts)
    if len(folder.encode("utf-8", errors="surrogatepass")) > _FOLDER_BYTES_MAX:
        raise InvalidInputError(
            f"the values {[str(value)[:40] for value in values]} make a name of more than {_FOLDER_BYTES_MAX} bytes",
            operation="write_files",
            subject=f"partition_by {list(columns)}",
            hint="Partition by fewer columns, or by shorter values such as a hash",
        )
    return folder


def is_abbreviated(columns: Sequence[str], values: Sequence[Any]) -> bool:
    """Whether some value is too long for a folder name, so that the files must carry the columns themselves."""
    return any(
        _full_segment(column, value) != _segment(column, value) for column, value in zip(columns, values, strict=True)
    )


def _fixed_offset(zone: str) -> dt.timedelta | None:
    """How far the clock of a zone is ahead of UTC, where the zone is an offset."""
    if zone == "UTC":
        return dt.timedelta()
    found = _OFFSET.fullmatch(zone)
    if found is None:
        return None
    ahead = dt.timedelta(hours=int(found["hours"]), minutes=int(found["minutes"]))
    return ahead if found["sign"] == "+" else -ahead


def _shown(moments: Any, zone: str, offset: dt.timedelta | None) -> Any:
    """What the clock of a zone shows at moments."""
    if offset is None:
        return pc.local_timestamp(moments.cast(pa.timestamp("us", zone)))
    return pc.add(moments.cast(pa.timestamp("us")), pa.scalar(offset, pa.duration("us")))


def _check_values(rows: pa.Table) -> None:
    binary = [index for index, field in enumerate(rows.schema) if is_binary(field.type)]
    for index in binary:
        # Different bytes would become the same text otherwise, and the folder is all that tells the value.
        column = rows.column(index).cast(pa.large_binary()).cast(pa.large_string(), safe=False)
        rows = rows.set_column(index, rows.field(index).name, column)
    check_text(rows)
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        check_years(name, column, PYTHON_YEARS)
    check_microseconds(rows)


def _partition_codes(rows: pa.Table, columns: Sequence[str]) -> tuple[np.ndarray, list[tuple[object, ...]]]:
    """A dense code per row and the partition values of each code."""
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    values: list[tuple[object, ...]] = [()]
    for column in columns:
        encoded = pc.dictionary_encode(rows[column].combine_chunks(), null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        known = encoded.dictionary.to_pylist()
        # Dense after each column, so that the product of many large columns cannot overflow.
        combined, codes = np.unique(codes * len(known) + encoded.indices.to_numpy(), return_inverse=True)
        values = [(*values[code // len(known)], known[code % len(known)]) for code in combined.tolist()]
    return codes, values


def _text(value: Any) -> str | None:
    """The text that Spark's partition discovery turns back into a value; ``None`` for null and empty strings."""
    if value is None or value in ("", b""):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace")
    if isinstance(value, dt.datetime):
        text = value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        return text.rstrip("0").rstrip(".") if "." in text else text
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value)


def _full_segment(column: str, value: Any, *, exact: bool = False) -> str:
    text = _text(value)
    if exact and value is not None:
        escaped = _escape(text or "")
        return f"{_escape(column)}={_NOT_NULL if escaped == NULL_PARTITION else escaped}"
    return f"{_escape(column)}={NULL_PARTITION if text is None else _escape(text)}"


def _segment(column: str, value: Any, *, exact: bool = False) -> str:
    segment = _full_segment(column, value, exact=exact)
    encoded = segment.encode("utf-8", errors="surrogatepass")
    if len(encoded) <= MAX_SEGMENT_BYTES:
        return segment
    digest = hashlib.sha256(encoded).hexdigest()[:_DIGEST_DIGITS]
    kept = encoded[: MAX_SEGMENT_BYTES - _DIGEST_DIGITS - len(_MARK)]
    return kept.decode("utf-8", errors="ignore").rstrip("%") + _MARK + digest


def _escape(text: str) -> str:
    return "".join(f"%{ord(character):02X}" if character in _ESCAPED else character for character in text)
