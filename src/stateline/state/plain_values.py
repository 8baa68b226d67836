"""Rows and keys of state as plain Python values and as text, and keys that were given as text."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import os
import re
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from stateline.errors import InvalidInputError
from stateline.state.schema import StateSchema

__all__ = ["key_columns", "python_rows", "time_text", "value_text"]

_NULL: Final = r"\N"
_ESCAPED_NULL: Final = re.compile(r"\\+\\N")
"""Text that would be null with one backslash less: that one goes, so that every text can be said."""


def python_rows(given: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as what JSON and tables are made from, also where Python has no such value."""
    try:
        rows: list[dict[str, Any]] = given.to_pylist()
    except (OverflowError, ValueError):  # Arrow and Spark have days, moments and texts that Python has not.
        columns = {name: [_value(scalar) for scalar in given.column(name)] for name in given.schema.names}
        rows = [{name: values[at] for name, values in columns.items()} for at in range(given.num_rows)]
    return rows


def _value(scalar: pa.Scalar) -> Any:
    """The value in Python; as text where Python has no such day or moment, escaped where it is no UTF-8."""
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.MapScalar):
        return [(_value(entry["key"]), _value(entry["value"])) for entry in scalar.values]
    if isinstance(scalar, pa.ListScalar):
        return [_value(item) for item in scalar.values]
    if isinstance(scalar, pa.StructScalar):
        return {name: _value(item) for name, item in scalar.items()}
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return scalar.as_buffer().to_pybytes().decode("utf-8", "backslashreplace")
    except (OverflowError, ValueError):
        return str(pc.cast(scalar, pa.string()))


def value_text(value: object) -> str:
    """A value of a row, for people."""
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return repr(value)[2:-1]
    return str(value)


def time_text(seconds: float) -> str:
    """A moment in UTC, to the second."""
    try:
        return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return str(seconds)


def key_columns(schema: StateSchema, texts: Sequence[str]) -> list[pa.Array]:
    r"""One array of one value per key column.

    Args:
        schema: Of the state.
        texts: The values, in the order of the key columns; those of sub-keys may be left out. ``\N`` means null, and
            binary is given as base64.

    Raises:
        InvalidInputError: Another number of values, or one that is no value of its column.
    """
    fields, grouping = list(schema.keys), list(schema.grouping.keys)
    if len(texts) == len(grouping):
        fields = grouping
    elif len(texts) != len(fields):
        either = f"{len(grouping)} or " if schema.subkeys else ""
        names = ", ".join(f"{field.name} ({field.type})" for field in grouping)
        optional = ", ".join(f"{field.name} ({field.type})" for field in fields[len(grouping) :])
        raise InvalidInputError(
            f"expected {either}{len(fields)} values, got {len(texts)}",
            operation="get",
            subject="KEY",
            hint=f"Give one for each of: {names}" + (f"; or of all of these, too: {optional}" if optional else ""),
        )
    return [_key_value(field, text) for field, text in zip(fields, texts, strict=True)]


def _key_value(field: pa.Field, text: str) -> pa.Array:
    if text == _NULL:
        return pa.nulls(1, field.type)
    if _ESCAPED_NULL.fullmatch(text):
        text = text[1:]
    try:
        if pa.types.is_binary(field.type) or pa.types.is_fixed_size_binary(field.type):
            return pa.array([base64.b64decode(text, validate=True)], field.type)
        if pa.types.is_string(field.type):  # The bytes that were typed: the column may hold text that is not UTF-8.
            return pa.array([os.fsencode(text)], pa.binary()).view(field.type)
        return pa.array([text]).cast(field.type)
    except (pa.ArrowException, binascii.Error, ValueError) as error:
        raise InvalidInputError(
            f"{text!r} is not a value of type {field.type}",
            operation="get",
            subject=f"key column {field.name!r}",
            hint=_how_to_write(field.type),
        ) from error


def _how_to_write(type_: pa.DataType) -> str:
    if pa.types.is_timestamp(type_):
        return "Write it like 2024-01-31T12:00:00" + ("Z, with its offset" if type_.tz else "")
    if pa.types.is_date(type_):
        return "Write it like 2024-01-31"
    if pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return "Give the bytes as base64"
    return r"Give a value of that type, or \N for null"
