"""Spark's types as Python values: what a processor sees of columns, and what becomes of what it hands back.

Facts (tried in Spark 4.3, ``tests/spark/test_processors.py`` repeats them):
- In state, Spark gives time stamps as naive local times, structs as rows, maps as dicts, binary as ``bytes``.
- State gives back what was stored, also in the batch that wrote it: numpy's numbers as Python's, structs as rows.
- State rounds decimals to the scale of their field, half up.
- A value of the wrong type becomes null in Spark without a word. Here it is an error, unless it can be kept as it is:
  a whole float in an integer column, an integer in a float column, a number in a string column.
- Most types need no work per value beside Arrow's own. The work per value of the others is one function per column.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import types as spark_types
from pyspark.sql.types import DataType, Row, StructType

from stateline.errors import ErrorKind, InvalidInputError
from stateline.floats import canonical_float
from stateline.spark.arrow_types import arrow_schema
from stateline.state.schema import stored_type
from stateline.state.variables import Values

__all__ = ["StructCodec", "is_whole", "row_class"]

Convert = Callable[[Any], Any]

_ROWS: Final = (tuple, list)
_TIMES: Final = (spark_types.DatetimeType, spark_types.DayTimeIntervalType)
_NESTED: Final = (spark_types.ArrayType, spark_types.MapType, StructType)


class StructCodec:
    """Rows of one struct as tuples, and as columns; see :class:`stateline.state.variables.RowCodec`.

    Args:
        struct: Spark's schema of a row.
        subject: What errors call it, such as ``"value state 'count'"``.
        is_output: Whether rows are output, and not state. There a naive time stamp is UTC, in state local; and a
            decimal with too many digits is refused, in state rounded. Both as in Spark.
        is_key: Whether rows are looked up by: then all NaN are one, and -0.0 is 0.0, as in every key.
        by_name: Whether the fields of a row inside a value go by their names, and not by their places. As in Spark,
            they do where rows of rows are put out, and not in state nor in data frames.
    """

    def __init__(
        self, struct: StructType, subject: str, *, is_output: bool = False, is_key: bool = False, by_name: bool = False
    ) -> None:
        self._subject = subject
        self._expected = struct.simpleString().removeprefix("struct")
        types = [stored_type(field.type, field.name) for field in arrow_schema(struct)]
        self.schema = pa.schema([pa.field(name, kind) for name, kind in zip(struct.names, types, strict=True)])
        self.has_mutable = any(isinstance(field.dataType, _NESTED) for field in struct)
        self._readers = [_reader(field.dataType, is_key=is_key) for field in struct]
        self._writers = [_writer(field.dataType, is_output=is_output, by_name=by_name) for field in struct]
        self._kept_types = [_kept_types(field.dataType, is_key=is_key) for field in struct]
        self._kept_rows: set[tuple[type, ...]] = set()  # Seen so far: a look at this is all that most rows cost.
        self._quick = [_quick(field.dataType) for field in struct]
        self._plain = [_is_plain(field.dataType, is_output=is_output) for field in struct]

    def checked(self, row: Any) -> Values:
        """A row as the state keeps it, and gives it back.

        Raises:
            InvalidInputError: It is no tuple, one of another length, or a value does not fit its field.
        """
        if not isinstance(row, _ROWS):
            raise self._refused(f"got a {type(row).__name__}: {row!r:.100}")
        types = tuple(map(type, row))
        if types in self._kept_rows:
            return tuple(row)
        if len(row) != len(self._plain):
            raise self._refused(f"got {len(row)} values: {tuple(row)!r:.100}")
        if all(map(frozenset.__contains__, self._kept_types, types)):
            self._kept_rows.add(types)
            return tuple(row)
        return tuple(map(self._kept, range(len(row)), row))

    def decode(self, columns: Sequence[pa.Array], rows: int) -> list[Values]:
        """One tuple per row; their number says it all where there are no columns."""
        if not columns:
            return [()] * rows
        values = []
        for column, read in zip(columns, self._readers, strict=True):
            items = column.to_pylist()
            values.append(items if read is None else [None if item is None else read(item) for item in items])
        return list(zip(*values, strict=True))

    def encode(self, rows: Sequence[Values | None]) -> list[pa.Array]:
        """One column per field; a row that is ``None`` becomes nulls.

        Raises:
            InvalidInputError: A value does not fit its field.
        """
        nothing = (None,) * len(self._plain)
        items = list(zip(*(nothing if row is None else row for row in rows), strict=True))
        return [self.column(number, values) for number, values in enumerate(items)]

    def column(self, number: int, values: Sequence[Any]) -> pa.Array:
        """One field of many rows as a column.

        Raises:
            InvalidInputError: A value does not fit.
        """
        kind = self.schema.field(number).type
        direct = _direct(values, kind) if self._plain[number] and is_whole(values, kind) else None
        if direct is not None:
            return direct
        write = self._writers[number]
        made = [None if value is None else self._written(number, write, value) for value in values]
        return pa.array(made, kind)

    def _kept(self, number: int, value: Any) -> Any:
        """A value of a field as :meth:`decode` will give it."""
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or type(value) in self._kept_types[number]:
            return value
        quick = self._quick[number].get(type(value))
        if quick is not None:
            with suppress(ArithmeticError, ValueError):  # Arrow says what is wrong with it.
                return quick(value)
        made = pa.array([self._written(number, self._writers[number], value)], self.schema.field(number).type)
        (kept,), read = made.to_pylist(), self._readers[number]
        return kept if read is None else read(kept)

    def _written(self, number: int, write: Convert, value: Any) -> Any:
        kind = self.schema.field(number).type
        try:
            made = write(value)
            pa.array([made], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError, ArithmeticError) as error:
            raise self._refused(
                f"field {self.schema.field(number).name!r} got {value!r:.100} of type {type(value).__name__} ({error})"
            ) from error
        return made

    def _refused(self, reason: str) -> InvalidInputError:
        return InvalidInputError(
            f"expected a row of {self._expected}, {reason}",
            operation="process",
            subject=self._subject,
            hint="Give a tuple with one value per field",
            kind=ErrorKind.SCHEMA_MISMATCH,
        )


def row_class(names: Sequence[str]) -> type[Row]:
    """A :class:`pyspark.sql.Row` whose field names belong to the class: made at the cost of a tuple.

    Names that a row has already (``count``, ``index``) stay what they are there, as in Spark.
    """
    fields = {
        name: property(_item_getter(number))
        for number, name in reversed(list(enumerate(names)))
        if not hasattr(Row, name) and not name.startswith("__")
    }
    return type("Row", (Row,), {"__slots__": (), **fields, "__fields__": list(names)})


def _item_getter(number: int) -> Convert:
    def get(row: tuple[Any, ...]) -> Any:
        return tuple.__getitem__(row, number)

    return get


_INTEGERS: Final = frozenset((int, type(None), np.int64, np.int32, np.int16, np.int8))


_FRACTIONS: Final = frozenset((float, decimal.Decimal, np.float64, np.float32, np.float16))


def is_whole(values: Iterable[Any], kind: pa.DataType) -> bool:
    """Whether no integer and no time is made of a fraction: Arrow would cut its rest off without a word."""
    if pa.types.is_integer(kind):
        return set(map(type, values)) <= _INTEGERS
    return not pa.types.is_temporal(kind) or _FRACTIONS.isdisjoint(map(type, values))


def _direct(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """The column as Arrow makes it; ``None`` if it refuses: then each value is looked at."""
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _is_plain(kind: DataType, *, is_output: bool) -> bool:
    """Whether Arrow converts it as Spark does."""
    if isinstance(kind, spark_types.TimestampType):
        return is_output
    return not isinstance(kind, _NESTED)


def _local(value: dt.datetime) -> dt.datetime:
    return value.astimezone().replace(tzinfo=None)


_FLOATS: Final = (spark_types.DoubleType, spark_types.FloatType)

_KEPT_TYPES: Final[dict[type[DataType], type]] = {
    spark_types.BinaryType: bytes,
    spark_types.BooleanType: bool,
    spark_types.DateType: dt.date,
    spark_types.DoubleType: float,
    spark_types.LongType: int,
    spark_types.IntegerType: int,
    spark_types.ShortType: int,
    spark_types.ByteType: int,
    spark_types.StringType: str,
}
"""Types of Python that state gives back as they are."""


def _kept_types(kind: DataType, *, is_key: bool) -> frozenset[type]:
    kept = None if is_key and isinstance(kind, _FLOATS) else _KEPT_TYPES.get(type(kind))
    return frozenset((type(None),) if kept is None else (type(None), kept))


def _quick(kind: DataType) -> Mapping[type, Convert]:
    """By type of Python, what state gives back for a value: the same as Arrow would say, at a tenth of the time."""
    if isinstance(kind, spark_types.TimestampType):
        return {dt.datetime: lambda value: value if value.tzinfo is None else _local(value)}
    if isinstance(kind, spark_types.TimestampNTZType):
        return {dt.datetime: lambda value: value if value.tzinfo is None else _in_utc(value).replace(tzinfo=None)}
    if isinstance(kind, spark_types.DoubleType):
        return {int: float}
    return {decimal.Decimal: _decimal_writer(kind.scale)} if isinstance(kind, spark_types.DecimalType) else {}


def _in_utc(value: dt.datetime) -> dt.datetime:
    return value.astimezone(dt.UTC)


def _reader(kind: DataType, *, is_key: bool = False) -> Convert | None:
    """From what Arrow gives to what Spark gives; ``None`` where that is the same."""
    if is_key and isinstance(kind, _FLOATS):
        return canonical_float
    if isinstance(kind, spark_types.TimestampType):
        return _local
    if isinstance(kind, spark_types.ArrayType):
        element = _reader(kind.elementType)
        return None if element is None else lambda items: [None if item is None else element(item) for item in items]
    if isinstance(kind, spark_types.MapType):
        key, value = _or_same(_reader(kind.keyType)), _or_same(_reader(kind.valueType))
        return lambda items: {key(name): None if item is None else value(item) for name, item in items}
    if isinstance(kind, StructType):
        names, fields = kind.names, [_or_same(_reader(field.dataType)) for field in kind]
        make = Row(*names)
        return lambda items: make(
            *(None if items[name] is None else read(items[name]) for name, read in zip(names, fields, strict=True))
        )
    return None


def _or_same(convert: Convert | None) -> Convert:
    return convert or (lambda item: item)


def _nullable(convert: Convert) -> Convert:
    return lambda item: None if item is None else convert(item)


def _writer(kind: DataType, *, is_output: bool, by_name: bool) -> Convert:
    """From what a processor gives to what Arrow takes."""
    if isinstance(kind, spark_types.TimestampType):
        return _time if is_output else lambda value: _plain(value).astimezone(dt.UTC)
    if isinstance(kind, _TIMES):
        return _time
    if isinstance(kind, spark_types.ArrayType):
        element = _nullable(_writer(kind.elementType, is_output=is_output, by_name=by_name))
        return lambda items: [element(item) for item in items]
    if isinstance(kind, spark_types.MapType):
        key = _writer(kind.keyType, is_output=is_output, by_name=by_name)
        value = _nullable(_writer(kind.valueType, is_output=is_output, by_name=by_name))
        return lambda items: [(key(name), value(item)) for name, item in _pairs(items)]
    if isinstance(kind, StructType):
        return _struct_writer(kind, is_output=is_output, by_name=by_name)
    if isinstance(kind, spark_types.StringType):
        return _text
    if isinstance(kind, spark_types.IntegralType):
        return _whole
    if isinstance(kind, spark_types.DecimalType) and not is_output:
        return _decimal_writer(kind.scale)
    return _plain


def _pairs(items: Any) -> Any:
    """The entries of a map: of a dict, or of a list of pairs, as rows of the input have them."""
    return items.items() if hasattr(items, "items") else items


def _decimal_writer(scale: int) -> Convert:
    unit = decimal.Decimal(1).scaleb(-scale)

    def write(value: Any) -> Any:
        value = _plain(value)
        if isinstance(value, decimal.Decimal) and value.is_finite():
            return value.quantize(unit, decimal.ROUND_HALF_UP, _DIGITS)
        return value

    return write


_DIGITS: Final = decimal.Context(prec=80)


def _struct_writer(kind: StructType, *, is_output: bool, by_name: bool) -> Convert:
    names = kind.names
    fields = [_nullable(_writer(field.dataType, is_output=is_output, by_name=by_name)) for field in kind]

    def write(value: Any) -> dict[str, Any]:
        if by_name and isinstance(value, Row) and hasattr(value, "__fields__"):
            value = value.asDict()
        if isinstance(value, dict):
            unknown = [name for name in value if name not in names]
            if unknown and is_output:  # As of rows that are put out. State takes what it has fields for, as Spark's.
                raise ValueError(f"expected the fields {names}, got {unknown}")
            items = [value.get(name) for name in names]
        else:
            items = list(value)
            if len(items) != len(names):
                raise ValueError(f"expected {len(names)} values, got {len(items)}")
        return {name: field(item) for name, field, item in zip(names, fields, items, strict=True)}

    return write


def _plain(value: Any) -> Any:
    """A value of numpy or pandas as one of Python."""
    if isinstance(value, np.generic):
        return value.item()
    for method in ("to_pydatetime", "to_pytimedelta"):
        if hasattr(value, method):
            return getattr(value, method)()
    return value


def _whole(value: Any) -> Any:
    value = _plain(value)
    if isinstance(value, bool) or value != int(value):
        raise ValueError("not a whole number")
    return int(value)


def _time(value: Any) -> Any:
    value = _plain(value)
    if isinstance(value, float | decimal.Decimal):
        raise ValueError("not a time")
    return value


def _text(value: Any) -> Any:
    value = _plain(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float | decimal.Decimal) else value
