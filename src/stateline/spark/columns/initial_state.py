"""Initial state: rows that a processor takes with the first batch of a new root.

They are shuffled beside the input, by the same key, each kind in a struct column of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stateline.errors import InvalidInputError
from stateline.spark.columns.names import StreamColumns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["INITIAL_COLUMN", "INPUT_COLUMN", "InitialRows", "initial_rows", "with_initial_rows"]

INPUT_COLUMN: Final = "__input"
"""The input row, as a struct; null in an initial row."""
INITIAL_COLUMN: Final = "__initial"
"""The initial row, as a struct; null in an input row."""


@dataclass(frozen=True, slots=True)
class InitialRows:
    """What a user gives as initial state.

    Attributes:
        rows: The rows.
        keys: Their key columns, as they spell them.
    """

    rows: DataFrame
    keys: tuple[str, ...]


def initial_rows(initial: Any, keys: Sequence[str]) -> InitialRows | None:
    """The rows of what a user gives as initial state.

    Args:
        initial: ``None``, a DataFrame, or a DataFrame grouped by the key.
        keys: The key columns of the stream.

    Raises:
        InvalidInputError: It is something else, a stream, or lacks a key column.
    """
    if initial is None:
        return None
    # Of its class: a DataFrame of Connect has a column of any name that one asks for.
    rows: Any = initial if hasattr(type(initial), "isStreaming") else getattr(initial, "_df", initial)
    if not hasattr(rows, "isStreaming") or rows.isStreaming:
        raise _refused(
            "must be a DataFrame with an end, not a stream", "Give a DataFrame from spark.read, or its groupBy"
        )
    columns = StreamColumns.of(rows)
    found = {name: columns.own(name) for name in keys}
    missing = [name for name, column in found.items() if column not in columns.names]
    if missing:
        raise _refused(
            f"expected the key columns {list(keys)}, {missing} are missing",
            "Select or rename them: initial state has the key columns of the stream",
        )
    return InitialRows(rows, tuple(found.values()))


def with_initial_rows(
    rows: DataFrame, initial: DataFrame, hashed: Column, *, event_time: str | None = None
) -> DataFrame:
    """Input rows and initial rows together.

    Args:
        rows: The input.
        initial: The initial state.
        hashed: The hash of the key, named as tasks expect it.
        event_time: A column of the input to carry beside it; null in initial rows.

    Returns:
        Columns :data:`INPUT_COLUMN`, :data:`INITIAL_COLUMN`, the hash, the event time.
    """
    from pyspark.sql import functions  # noqa: PLC0415 - this module must load without pyspark

    def packed(frame: DataFrame, name: str, beside: Sequence[Column]) -> DataFrame:
        row = functions.struct(*map(quoted, frame.columns))
        return frame.select(row.alias(name), hashed, *beside)

    def quoted(column: str) -> Column:
        return functions.col(f"`{column.replace('`', '``')}`")

    beside = [] if event_time is None else [quoted(event_time)]
    mine, first = packed(rows, INPUT_COLUMN, beside), packed(initial, INITIAL_COLUMN, [])
    return mine.unionByName(first, allowMissingColumns=True)


def _refused(reason: str, hint: str) -> InvalidInputError:
    return InvalidInputError(reason, operation="process", subject="initial_state", hint=hint)
