"""From partition values to folder names that every reader understands and no value can escape from.

Facts:
- The layout is Hive's: ``column=value`` per partition column. Spark, Hive, Trino, DuckDB and pyarrow read it.
- ASCII characters with a meaning in paths are written as ``%XX``, the set that Spark escapes, so that Spark reads
  back the
  same value; other Unicode stays as it is, because Spark decodes ``%XX`` as a character and not as a UTF-8 byte.
- Null and the empty string are ``__HIVE_DEFAULT_PARTITION__``: readers cannot tell an empty folder value from none, so
  Spark itself writes both this way.
- A folder name holds at most 255 bytes. A longer value keeps its beginning, followed by a digest of the whole, and its
  files then also carry the column itself, so that nothing is lost.
"""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import math
from collections.abc import Sequence
from typing import Any, Final

from stateline.blob.names import MAX_NAME_BYTES, MAX_SEGMENT_BYTES
from stateline.errors import InvalidInputError

__all__ = ["NULL_PARTITION", "is_abbreviated", "name_fits", "partition_folder", "partition_text"]

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Hive and Spark call the partition of nulls."""

_ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f") | frozenset(map(chr, range(0x20)))
_DIGEST_DIGITS: Final = 32
_FOLDER_BYTES_MAX: Final = MAX_NAME_BYTES - len(f"/part-{32 * 'f'}.parquet.gz")
_MARK: Final = "~"


def partition_folder(columns: Sequence[str], values: Sequence[Any]) -> str:
    """The relative folder for rows with these partition values: ``"origin=EWR/day=2013-01-01"``; empty for no columns.

    Args:
        columns: Partition columns, outermost first.
        values: One Python value per column; ``None`` is null.

    Raises:
        InvalidInputError: It leaves no room for the name of a file.
    """
    folder = "/".join(_segment(column, value) for column, value in zip(columns, values, strict=True))
    if len(folder.encode("utf-8", errors="surrogatepass")) > _FOLDER_BYTES_MAX:
        raise InvalidInputError(
            f"the values {[str(value)[:40] for value in values]} make a name of more than {_FOLDER_BYTES_MAX} bytes",
            operation="write_files",
            subject=f"partition_by {list(columns)}",
            hint="Partition by fewer columns, or by shorter values such as a hash",
        )
    return folder


def name_fits(column: str) -> bool:
    """Whether a folder name that begins with this column's has room for any value, at least an abbreviated one."""
    return len(f"{_escape(column)}=".encode()) <= MAX_SEGMENT_BYTES - _DIGEST_DIGITS - len(_MARK)


def is_abbreviated(columns: Sequence[str], values: Sequence[Any]) -> bool:
    """Whether some value was too long for a folder name, so that the files must carry the columns themselves."""
    return any(
        _full_segment(column, value) != _segment(column, value) for column, value in zip(columns, values, strict=True)
    )


def partition_text(value: Any) -> str | None:
    """A value as the text that Spark's partition discovery turns back into it; ``None`` for null and empty strings."""
    if value is None or value == "" or value == b"":
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


def _full_segment(column: str, value: Any) -> str:
    text = partition_text(value)
    return f"{_escape(column)}={NULL_PARTITION if text is None else _escape(text)}"


def _segment(column: str, value: Any) -> str:
    segment = _full_segment(column, value)
    if len(segment.encode("utf-8", errors="surrogatepass")) <= MAX_SEGMENT_BYTES:
        return segment
    digest = hashlib.sha256(segment.encode("utf-8", errors="surrogatepass")).hexdigest()[:_DIGEST_DIGITS]
    kept = segment.encode("utf-8", errors="surrogatepass")[: MAX_SEGMENT_BYTES - _DIGEST_DIGITS - len(_MARK)]
    return kept.decode("utf-8", errors="ignore").rstrip("%") + _MARK + digest


def _escape(text: str) -> str:
    return "".join(f"%{ord(character):02X}" if character in _ESCAPED else character for character in text)
