"""Types of columns with the values worth drawing, and what each reader calls both.

A value is plain Python whose ``repr`` is a program: text holds bytes that are no UTF-8 as lone surrogates, a date is a
number of days, a moment a number of microseconds, both since 1970.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa

from stateline.tables.columns import plain_type

__all__ = ["KINDS", "Kind", "array_of", "as_text", "python_of", "spark_of", "sql_of", "texts_of"]

nan: Final = math.nan
inf: Final = math.inf
_TOP: Final = "\U0010ffff"
_HIVE: Final = "__HIVE_DEFAULT_PARTITION__"
_DIGITS: Final = Context(prec=40)
_DAY_US: Final = 86_400_000_000
_MOMENTS: Final = (
    None,
    0,
    -1,
    1,
    999_999,
    1_699_999_999_123_456,
    -_DAY_US,
    -_DAY_US + 1,
    _DAY_US - 1,
    253_402_300_799_999_999,
    -2_208_988_800_000_000,
)


@dataclass(frozen=True)
class Kind:
    """A type of a column.

    Attributes:
        arrow: What it is in Arrow.
        values: Values that are likely to be stored or compared in the wrong way.
        rare: Values that a table may refuse.
    """

    arrow: pa.DataType
    values: tuple[Any, ...]
    rare: tuple[Any, ...] = ()


def _whole(bits: int) -> Kind:
    top = 2 ** (bits - 1)
    return Kind(pa.int64() if bits == 64 else getattr(pa, f"int{bits}")(), (None, 0, 1, -1, 7, top - 1, -top))


def _decimals(*texts: str) -> tuple[Decimal | None, ...]:
    return (None, *map(Decimal, texts))


_FLOATS: Final = (None, 0.0, -0.0, 1.0, 1.5, -1.5, nan, inf, -inf)
_TEXTS: Final = (
    None,
    "",
    "a",
    "A",
    "b",
    "a ",
    " ",
    "null",
    "NaN",
    _HIVE,
    "é",
    "日本",
    "a/b",
    "a=b",
    "%2F",
    "a%",
    "'",
    '"',
    "\\",
    "a\nb",
    "x" * 31 + "yz",
    "x" * 32 + "y",
    "x" * 32 + _TOP,
    "x" * 32 + _TOP + "y",
    "x" * 31 + _TOP + "é",
    _TOP * 3,
    _TOP * 40,
    "\ud7ff\ue000" * 20,
    "é" * 40,
    "2024-01-01",
    "1",
)

KINDS: Final = {
    "int8": _whole(8),
    "int16": _whole(16),
    "int32": _whole(32),
    "int64": _whole(64),
    "bool": Kind(pa.bool_(), (None, True, False)),
    "float": Kind(pa.float32(), (*_FLOATS, 3.4028234663852886e38, 1.401298464324817e-45)),
    "double": Kind(pa.float64(), (*_FLOATS, 1.7976931348623157e308, 5e-324, -1e300, 0.1)),
    "string": Kind(pa.string(), _TEXTS, ("a\0b", "\0", "a\udcffb", "\udcc3", "long" * 1300)),
    "large_string": Kind(pa.large_string(), _TEXTS),
    "binary": Kind(pa.binary(), (None, b"", b"a", b"\xff" * 40, b"\0", b"a" * 16 + b"\xff", b"\xc3(")),
    "date": Kind(pa.date32(), (None, 0, -1, 1, 19723, 2932896, -25567, 11016), (-719162, -719163, 2932897, 10**7)),
    "timestamp": Kind(pa.timestamp("us", "UTC"), _MOMENTS, (253_402_300_800_000_000, -62_135_596_800_000_001, 2**62)),
    "timestamp_ntz": Kind(pa.timestamp("us"), _MOMENTS, (253_402_300_800_000_000, 2**62)),
    "decimal": Kind(pa.decimal128(10, 2), _decimals("0", "-0.01", "1.50", "99999999.99", "-99999999.99")),
    "big_decimal": Kind(pa.decimal128(38, 10), _decimals("0", "1E-10", "-1.5", "9" * 28, "-" + "9" * 28)),
    "texts": Kind(pa.list_(pa.string()), (None, [], [None], ["a", ""], ["x" * 40]), (["a\0b"], ["a\udcff"])),
    "pair": Kind(
        pa.struct([("f", pa.float64()), ("s", pa.string()), ("t", pa.timestamp("us", "UTC"))]),
        (
            None,
            {"f": None, "s": None, "t": None},
            {"f": nan, "s": "", "t": 0},
            {"f": 1.5, "s": "x" * 32 + _TOP + "y", "t": -1},
            {"f": inf, "s": _HIVE, "t": 1_699_999_999_123_456},
        ),
    ),
}
"""By the name that a case gives."""


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


def array_of(kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    """Values as an array, also those that Arrow refuses to make of Python objects."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        raw = pa.binary() if pa.types.is_string(kind) else pa.large_binary()
        made = pa.array([None if each is None else _bytes(each) for each in values], raw)
        return made.view(kind)
    if pa.types.is_date32(kind):
        return pa.array(values, pa.int32()).view(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).view(kind)
    if pa.types.is_struct(kind):
        parts = [array_of(each.type, [None if v is None else v[each.name] for v in values]) for each in kind]
        missing = pa.array([each is None for each in values], pa.bool_())
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=missing)
    if pa.types.is_list(kind):
        inside = array_of(kind.value_type, [item for each in values if each is not None for item in each])
        offsets, at = [], 0
        for each in values:
            offsets.append(None if each is None else at)
            at += 0 if each is None else len(each)
        return pa.ListArray.from_arrays(pa.array([*offsets, at], pa.int32()), inside, type=kind)
    return pa.array(values, kind)


def as_text(value: Any, kind: pa.DataType) -> str | None:
    """A text for each value; different values have different texts."""
    if value is None:
        return None
    if pa.types.is_floating(kind):
        return repr(float(value))
    if pa.types.is_struct(kind):
        return "{" + ",".join(str(as_text(value[each.name], each.type)) for each in kind) + "}"
    if pa.types.is_list(kind):
        return "[" + ",".join(str(as_text(each, kind.value_type)) for each in value) + "]"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return (value if isinstance(value, bytes) else _bytes(value)).hex()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return f"{_quantized(value, kind):f}"
    return str(value)


def _quantized(value: Decimal, kind: pa.DataType) -> Decimal:
    return value.quantize(Decimal(1).scaleb(-kind.scale), context=_DIGITS)


def texts_of(column: pa.ChunkedArray | pa.Array) -> list[str | None]:
    """The texts of the values of a column."""
    kind = _without_views(plain_type(column.type))
    return [as_text(value, kind) for value in _plain(column.cast(kind), kind)]


def _without_views(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_without_views(each.type)) for each in kind])
    return pa.list_(_without_views(kind.value_type)) if pa.types.is_list(kind) else kind


def _plain(column: Any, kind: pa.DataType) -> list[Any]:
    """The values of a column as this module has them."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(kind):
        return column.cast(pa.large_string()).view(pa.large_binary()).to_pylist()
    if pa.types.is_date32(kind):
        return column.cast(pa.date32()).view(pa.int32()).to_pylist()
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz)).view(pa.int64()).to_pylist()
    if pa.types.is_struct(kind):
        parts = {each.name: _plain(column.field(each.name), each.type) for each in kind}
        valid = column.is_valid().to_pylist()
        return [{n: part[i] for n, part in parts.items()} if valid[i] else None for i in range(len(column))]
    if pa.types.is_list(kind):
        lists, inside = [], _plain(column.flatten(), kind.value_type)
        at = 0
        for length in column.value_lengths().to_pylist():
            lists.append(None if length is None else inside[at : at + length])
            at += length or 0
        return lists
    return column.to_pylist()


def python_of(value: Any, kind: pa.DataType) -> Any:
    """A value as the objects of Python that libraries take.

    Raises:
        OverflowError: Python has no such date.
    """
    if value is None:
        return None
    if pa.types.is_date32(kind):
        return date(1970, 1, 1) + timedelta(days=value)
    if pa.types.is_timestamp(kind):
        return datetime(1970, 1, 1, tzinfo=UTC if kind.tz else None) + timedelta(microseconds=value)
    return _quantized(value, kind) if isinstance(value, Decimal) else value


def spark_of(value: Any, kind: pa.DataType) -> str:
    """A value in Spark's SQL."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return f"CAST(X'{_bytes(value).hex()}' AS STRING)"
    if pa.types.is_binary(kind):
        return f"X'{value.hex()}'"
    if pa.types.is_floating(kind):
        return f"CAST('{_float(value)}' AS {'FLOAT' if pa.types.is_float32(kind) else 'DOUBLE'})"
    if pa.types.is_date32(kind):
        return f"date_from_unix_date({value})"
    if pa.types.is_timestamp(kind):
        return f"timestamp_micros({value})" if kind.tz else f"CAST(timestamp_micros({value}) AS TIMESTAMP_NTZ)"
    if pa.types.is_decimal(kind):
        return f"CAST('{value}' AS DECIMAL({kind.precision},{kind.scale}))"
    if pa.types.is_boolean(kind):
        return str(value).upper()
    names = {8: "TINYINT", 16: "SMALLINT", 32: "INT", 64: "BIGINT"}
    return f"CAST('{value}' AS {names[kind.bit_width]})"


def sql_of(value: Any, kind: pa.DataType) -> str:
    """A value in the SQL of DataFusion."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "'" + value.replace("'", "''") + "'"
    if pa.types.is_binary(kind):
        return f"X'{value.hex()}'"
    if pa.types.is_floating(kind):
        return f"CAST('{_float(value)}' AS {'REAL' if pa.types.is_float32(kind) else 'DOUBLE'})"
    if pa.types.is_date32(kind):
        return f"arrow_cast(arrow_cast({value}, 'Int32'), 'Date32')"
    if pa.types.is_timestamp(kind):
        zone = 'Some("UTC")' if kind.tz else "None"
        return f"arrow_cast(arrow_cast('{value}', 'Int64'), 'Timestamp(Microsecond, {zone})')"
    if pa.types.is_decimal(kind):
        return f"arrow_cast('{value:f}', 'Decimal128({kind.precision}, {kind.scale})')"
    if pa.types.is_boolean(kind):
        return str(value).upper()
    return f"arrow_cast('{value}', 'Int{kind.bit_width}')"


def _float(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)
