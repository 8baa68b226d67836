"""The Row form of a processor, that of ``transformWithState``: rows in, rows out.

Also the interface of both forms, this one and that of :mod:`stateline.spark.processor.frames`.

Facts:
- All rows of a batch are converted at once, in the order of their keys; a key gets a slice.
- Rows hold what Arrow gives, as in Spark: structs are dicts, maps are lists of pairs, time stamps have the zone of the
  session. So do grouping keys.
- Output is collected for the whole batch and converted once per column. Fields go by name, also those of rows inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.types import Row, StructType

from stateline.errors import ErrorKind, InvalidInputError
from stateline.spark.arrow_types import in_zone, known_zone
from stateline.spark.processor.values import StructCodec, row_class
from stateline.state.columns import Rows
from stateline.state.variables import first_refused

__all__ = ["ProcessorForm", "RowForm", "Slices", "wrong_output"]

Slices = Callable[[int, int], Any]


class ProcessorForm(Protocol):
    """How rows go in and come out."""

    def keys(self, columns: Sequence[pa.Array]) -> list[tuple[Any, ...]]:
        """Grouping keys as ``handleInputRows`` gets them."""
        ...

    def inputs(self, rows: pa.Table, schema: StructType, ends: Rows) -> Slices:
        """The rows of a batch as a function of the half-open range of a key: an iterator for ``handleInputRows``.

        Args:
            rows: Key after key.
            schema: Spark's schema of them.
            ends: For each key the end of its rows.
        """
        ...

    def initial(self, rows: pa.Table, schema: StructType, ends: Rows) -> Slices:
        """The same for initial state: what ``handleInitialState`` is called with, one by one."""
        ...

    def take(self, yielded: Iterable[Any]) -> None:
        """Runs through what a processor yields for one key, and keeps it.

        Raises:
            InvalidInputError: Of kind ``SCHEMA_MISMATCH``: something does not fit the output schema. What can be seen
                only of many rows is seen by :meth:`output`.
        """
        ...

    def output(self) -> list[pa.Array] | None:
        """All that was taken, as columns of the output; ``None`` for nothing.

        Raises:
            InvalidInputError: Of kind ``SCHEMA_MISMATCH``: something does not fit the output schema.
        """
        ...


class RowForm:
    """``transformWithState``: rows in, rows out.

    Args:
        output: Schema of the output.
        time_zone: The session's.
    """

    def __init__(self, output: StructType, time_zone: str) -> None:
        self._names = output.names
        self._zone = known_zone(time_zone)
        self._codec = StructCodec(output, "output row", is_output=True, by_name=True)
        self._yielded: list[Any] = []
        self.take = self._yielded.extend

    def keys(self, columns: Sequence[pa.Array]) -> list[tuple[Any, ...]]:
        table = in_zone(pa.table(list(columns), names=list(map(str, range(len(columns))))), self._zone)
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def inputs(self, rows: pa.Table, schema: StructType, ends: Rows) -> Slices:  # noqa: ARG002 - each row is its own
        make = partial(tuple.__new__, row_class(schema.names))
        columns = in_zone(rows, self._zone).columns
        made = list(map(make, zip(*(column.to_pylist() for column in columns), strict=True)))
        return lambda start, end: iter(made[start:end])

    initial = inputs

    def output(self) -> list[pa.Array] | None:
        """See :class:`ProcessorForm`. A field that a row does not have is null, as in Spark."""
        if not self._yielded:
            return None
        names = self._names
        rows = [row if _has_fields(row, names) else self._by_name(row) for row in self._yielded]
        try:
            return self._codec.encode(rows)
        except InvalidInputError as error:
            number = first_refused(self._codec, enumerate(rows))
            if number is not None:
                error.subject = f"{error.subject} {self._yielded[number]!r:.200}"
            raise

    def _by_name(self, row: Any) -> tuple[Any, ...]:
        if not isinstance(row, Row) or not hasattr(row, "__fields__"):
            hint = 'Yield Row(name=value, ...); a processor of data frames needs form="pandas"'
            raise wrong_output(self._names, f"got a {type(row).__name__}: {row!r:.100}", hint)
        given = row.asDict()
        unknown = [name for name in given if name not in self._names]
        if unknown:
            raise wrong_output(self._names, f"got {unknown} in a row: {row!r:.100}", "Name the fields of the schema")
        return tuple(given.get(name) for name in self._names)


def _has_fields(row: Any, names: list[str]) -> bool:
    return type(row) is Row and getattr(row, "__fields__", None) == names


def wrong_output(names: Sequence[str], reason: str, hint: str) -> InvalidInputError:
    """What came is no output row; says what was expected."""
    return InvalidInputError(
        f"expected the fields {list(names)}, {reason}",
        operation="process",
        subject="output",
        hint=hint,
        kind=ErrorKind.SCHEMA_MISMATCH,
    )
