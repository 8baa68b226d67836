"""Checks of the columns and places that a user names, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame

from stateline.blob.urls import absolute_url, relative_name
from stateline.errors import ErrorKind, InvalidInputError, UserCodeError
from stateline.options import check_kind, check_known
from stateline.pipeline.event_time import EVENT_TIME_COLUMN, WINDOW_COLUMN
from stateline.pipeline.operators.api import HASH_COLUMN, ROWS_COLUMN
from stateline.spark.columns.initial_state import INITIAL_COLUMN, INPUT_COLUMN

__all__ = [
    "check_collation",
    "check_columns",
    "check_hidden",
    "check_reserved",
    "check_shared",
    "key_names",
    "shipped",
]

_RESERVED: Final = (HASH_COLUMN, ROWS_COLUMN, EVENT_TIME_COLUMN, WINDOW_COLUMN, INPUT_COLUMN, INITIAL_COLUMN)


def key_names(key: Any) -> list[str]:
    """The key columns, given as one name or several.

    Raises:
        InvalidInputError: They are given as something else.
    """
    names = [key] if isinstance(key, str) else list(key) if isinstance(key, Iterable) else [key]
    for name in names:
        if not isinstance(name, str):
            raise InvalidInputError(
                f"{name!r:.100} is not a column name",
                subject="key",
                hint='Give names of columns, such as "id" or ["id", "day"]',
            )
    return names


def check_reserved(schema: pa.Schema) -> None:
    """Checks that no column has a name that rows get on their way to the tasks.

    Raises:
        InvalidInputError: One has.
    """
    for name in schema.names:
        if name.lower() in _RESERVED:
            raise InvalidInputError(
                "is a reserved name: rows get such a column on their way to the tasks",
                operation="KeyedStream",
                subject=f"column {name!r}",
                hint="Rename it: df.withColumnRenamed(...)",
                kind=ErrorKind.SCHEMA_MISMATCH,
            )


def check_columns(schema: pa.Schema, columns: Sequence[str], what: str) -> None:
    """Checks that columns exist and are named once.

    Raises:
        InvalidInputError: They are not, or there is no key column.
    """
    if not columns:
        raise InvalidInputError("must not be empty", subject=what, hint="Name at least one column")
    for position, column in enumerate(columns):
        if column in columns[:position]:
            raise InvalidInputError(f"cannot name {column!r} twice", subject=what, hint="Name each column once")
        check_known([column], schema.names, what)


def check_collation(df: DataFrame, columns: Iterable[str], what: str) -> None:
    """Refuses strings that Spark compares by other rules than their bytes: its hash, equality and order are not ours.

    Raises:
        InvalidInputError: There are such.
    """
    for column in columns:
        collation = getattr(df.schema[column].dataType, "collation", "UTF8_BINARY")
        if collation != "UTF8_BINARY":
            raise InvalidInputError(
                f"expected the collation UTF8_BINARY, got {collation}",
                subject=f"{what} {column!r}",
                hint="Cast it: F.col(...).cast('string collate UTF8_BINARY')",
                kind=ErrorKind.SCHEMA_MISMATCH,
            )


def check_hidden(place: str, output: str, what: str) -> None:
    """Refuses a place for records, not files, that readers of an output would find among its files.

    Args:
        place: URL of the place; nothing is refused if it is empty, or no URL of ours.
        output: URL of the output.
        what: What the user calls the place.

    Raises:
        InvalidInputError: It is the output itself or lies below it, in no folder that readers skip.
    """
    try:
        inside = relative_name(output, f"{absolute_url(place)}/x") if place else ".x"
    except InvalidInputError:
        return  # Elsewhere, or in a store that only Spark knows.
    if not any(folder.startswith((".", "_")) for folder in inside.split("/")):
        raise InvalidInputError(
            f"{place} must not lie among the files of the output, where readers find it",
            subject=what,
            hint=f"Give a place outside of {output}, or in a folder of it whose name begins with a dot",
        )


def check_shared(url: str, what: str) -> None:
    """Refuses a store that each process has for itself: what Spark's tasks wrote there would vanish with them.

    Raises:
        InvalidInputError: It is one.
    """
    check_kind(url, str, what)
    if url.lower().startswith("memory:"):
        raise InvalidInputError(
            f"{url} cannot be used: it is the memory of one process, and Spark has several",
            subject=what,
            hint="Give a local folder or an object store",
        )


def shipped(value: object, operation: str, subject: str) -> bytes:
    """What holds the user's code, as the tasks get it.

    Args:
        value: A processor, or a program with a function of the user's.
        operation: The call that was given it.
        subject: What errors call it.

    Raises:
        InvalidInputError: It holds something that lives in this process alone, such as a lock, a file or the session.
    """
    try:
        made: bytes = cloudpickle.dumps(value)
    except UserCodeError.causes as error:  # Whatever an object of the user's says where it is to be copied.
        raise InvalidInputError(
            f"cannot be copied to the tasks ({UserCodeError.described(error)})",
            operation=operation,
            subject=subject,
            hint="Make locks, connections and files where they are used, or in init(); the session stays on the driver",
        ) from error
    return made
