"""Spark's schemas as Arrow schemas.

Facts:
- Spark hands timestamps to Python in the time zone of the session. The instant does not depend on it, so schemas here
  always say UTC, and what is stored does not change with a setting of the session.
- The converter of PySpark takes the zone since 4.2; before, it says UTC by itself.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, is_remote, types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from stateline.errors import ErrorKind, InvalidInputError
from stateline.spark.api_mode import Py4JError

__all__ = ["arrow_schema", "declared_schema", "in_utc", "in_zone", "known_zone", "struct_from_ddl"]

_ZONE: Final[dict[str, Any]] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
)

_PLAIN_TYPES: Final[dict[str, types.DataType]] = {
    "boolean": types.BooleanType(),
    "tinyint": types.ByteType(),
    "byte": types.ByteType(),
    "smallint": types.ShortType(),
    "short": types.ShortType(),
    "int": types.IntegerType(),
    "integer": types.IntegerType(),
    "bigint": types.LongType(),
    "long": types.LongType(),
    "float": types.FloatType(),
    "real": types.FloatType(),
    "double": types.DoubleType(),
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "date": types.DateType(),
    "timestamp": types.TimestampType(),
}
_PLAIN_FIELD: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*[:\s]\s*([A-Za-z]+)\s*")


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of rows of a Spark schema.

    Raises:
        InvalidInputError: A column of a type that has no form in Arrow.
    """
    try:
        return to_arrow_schema(schema, **_ZONE)
    except PySparkException as error:
        raise InvalidInputError(
            f"cannot convert a column to Arrow ({error})",
            subject="schema",
            hint="Drop or convert the column",
            kind=ErrorKind.SCHEMA_MISMATCH,
        ) from error


def declared_schema(schema: Any, what: str) -> pa.Schema:
    """The Arrow schema that a user declares: as one, as Spark's, or as Spark's text such as ``"total long"``.

    Raises:
        InvalidInputError: It is none of these.
    """
    if isinstance(schema, pa.Schema):
        return schema
    try:
        return arrow_schema(struct_from_ddl(schema) if isinstance(schema, str) else _struct(schema))
    except (PySparkException, Py4JError, TypeError) as error:
        raise InvalidInputError(
            f"{schema!r} is not a schema ({error})",
            subject=what,
            hint='Give a pyarrow.Schema, a StructType or text such as "total long, seen timestamp"',
            kind=ErrorKind.SCHEMA_MISMATCH,
        ) from error


def struct_from_ddl(text: str) -> StructType:
    """Spark's schema from its text. Where no session runs, as in tests, text of plain types is read without Spark.

    Raises:
        InvalidInputError: The text has other types, and no session runs.
        PySparkException: Spark cannot read it.
    """
    if _has_session():
        return StructType.fromDDL(text)
    struct = StructType()
    for field in text.split(","):
        found = _PLAIN_FIELD.fullmatch(field)
        kind = None if found is None else _PLAIN_TYPES.get(found[2].lower())
        if found is None or kind is None:
            raise InvalidInputError(
                f"cannot read {field.strip()!r} of {text!r} without Spark",
                subject="schema",
                hint="Start a session first, such as get_or_create_session(), or give a StructType",
                kind=ErrorKind.SCHEMA_MISMATCH,
            )
        struct.add(found[1], kind)
    return struct


def _has_session() -> bool:
    """Whether any thread has a session that can read text."""
    if is_remote():
        return SparkSession.getActiveSession() is not None
    from pyspark import SparkContext  # noqa: PLC0415 - a client of Connect does not have it

    return SparkContext._active_spark_context is not None  # noqa: SLF001 - no public name asks this of every thread


def _struct(schema: Any) -> StructType:
    if not isinstance(schema, StructType):
        raise TypeError(type(schema).__name__)
    return schema


def in_utc(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, with every time stamp in UTC: no value changes, only what its type says."""
    target: pa.Schema | None = None
    for batch in batches:
        if target is None:
            target = _schema_in_zone(batch.schema, "UTC")
        yield batch if batch.schema.equals(target) else pa.RecordBatch.from_arrays(_cast(batch, target), schema=target)


def in_zone(rows: pa.Table, zone: str) -> pa.Table:
    """The same rows, with every time stamp in a zone: the same instants, which Python shows by that zone's clock."""
    target = _schema_in_zone(rows.schema, zone)
    return rows if rows.schema.equals(target) else pa.Table.from_arrays(_cast(rows, target), schema=target)


def _cast(rows: pa.RecordBatch | pa.Table, target: pa.Schema) -> list[Any]:
    """The columns in types that differ in zones only.

    The others are left alone: pyarrow refuses to cast a null structure whose fields Spark says are never null, even to
    its own type.
    """
    return [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(rows.columns, target, strict=True)
    ]


def known_zone(zone: str) -> str:
    """The zone of a session, or UTC where Arrow does not know it: Spark has names of its own, such as ``GMT+5``."""
    try:
        pa.scalar(0, pa.timestamp("us", zone)).as_py()
    except (LookupError, OSError, ValueError):
        return "UTC"
    return zone


def _schema_in_zone(schema: pa.Schema, zone: str) -> pa.Schema:
    return pa.schema([field.with_type(_type_in_zone(field.type, zone)) for field in schema])


def _type_in_zone(kind: pa.DataType, zone: str) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit, zone) if kind.tz is not None else kind
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_type_in_zone(field.type, zone)) for field in kind])
    if pa.types.is_map(kind):
        item = kind.item_field
        return pa.map_(_type_in_zone(kind.key_type, zone), item.with_type(_type_in_zone(item.type, zone)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_in_zone(kind.value_type, zone)))
    return kind
