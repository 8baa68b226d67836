"""The class that users extend to aggregate Arrow tables in their own way, and the checks of what it returns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from stateline.errors import ErrorKind, InvalidInputError, StatelineError, UserCodeError
from stateline.options import check_known
from stateline.state.aggregate.api import Aggregation, BoundAggregation, GroupedRows
from stateline.state.columns import contiguous
from stateline.state.schema import is_kept_alike, stored_type

__all__ = ["Aggregator"]


class Aggregator(Aggregation):
    """An aggregation of the user's own. It must keep the rules of :mod:`stateline.state.aggregate.api`.

    The spread of a column::

        class Range(Aggregator):
            state_schema = pa.schema([("low", pa.int64()), ("high", pa.int64())])
            output_type = pa.int64()

            def reduce(self, rows, group, num_groups):
                made = rows.append_column("g", group).group_by("g").aggregate([("x", "min"), ("x", "max")])
                made = made.sort_by("g")
                return pa.table([made["x_min"], made["x_max"]], schema=self.state_schema)

            def merge(self, older, newer):
                return pa.table([pc.min_element_wise(older["low"], newer["low"]),
                                 pc.max_element_wise(older["high"], newer["high"])], schema=self.state_schema)

            def result(self, state):
                return pc.subtract(state["high"], state["low"])

        stream.aggregate(spread=Range("x"))

    Attributes:
        state_schema: Columns kept per key. They are nullable; all null means absent. :meth:`merge` and :meth:`result`
            get them in the types they are kept in: plain strings and lists for large ones and dictionaries, and
            everything inside of a value may be null.
        output_type: Type of the result.

    Args:
        columns: Input columns.
    """

    state_schema: pa.Schema
    output_type: pa.DataType

    def __init__(self, *columns: str) -> None:
        self.columns = columns

    @abstractmethod
    def reduce(self, rows: pa.Table, group: pa.Array, num_groups: int) -> pa.Table:
        """States of one batch.

        Args:
            rows: The input columns, group after group, in order of arrival within a group.
            group: For each row its group, ascending from 0; each group has a row.
            num_groups: How many.

        Returns:
            One row of ``state_schema`` per group, in order.
        """

    @abstractmethod
    def merge(self, older: pa.Table, newer: pa.Table) -> pa.Table:
        """The states of ``older`` and ``newer``, row by row. A row of ``older`` that is all null is absent."""

    @abstractmethod
    def result(self, state: pa.Table) -> pa.Array:
        """The value that users see, row by row, of ``output_type``."""

    @property
    def definition(self) -> str:
        """Class and columns; override it to put parameters in: a change of the text is a change of the state."""
        return f"{type(self).__qualname__}({', '.join(self.columns)})"

    def bind(self, schema: pa.Schema, name: str) -> BoundAggregation:
        self._check_declared(name)
        check_known(self.columns, schema.names, f"column in {self.definition}")
        return _BoundAggregator(self, name)

    def _defined(self, name: str) -> Any:
        """Its own ``definition``, which a subclass may have written."""
        try:
            return self.definition
        except UserCodeError.causes as error:
            raise UserCodeError(
                f"definition raised {UserCodeError.described(error)}",
                operation="aggregate",
                subject=f"{name}={type(self).__qualname__}",
                hint="See the chained error",
            ) from error

    def _check_declared(self, name: str) -> None:
        """Refuses a class that does not declare its state and output: it would fail later, in some other way."""
        state, output = getattr(self, "state_schema", None), getattr(self, "output_type", None)
        columns = getattr(self, "columns", None)  # Of __init__, which a class with one of its own may forget to call.
        reason = None
        if not isinstance(state, pa.Schema) or not len(state):
            reason = f"state_schema: expected a pyarrow.Schema of one column or more, got {state!r:.100}"
        elif not isinstance(output, pa.DataType):
            reason = f"output_type: expected a pyarrow.DataType, got {output!r:.100}"
        elif not isinstance(columns, tuple | list) or not all(isinstance(column, str) for column in columns):
            reason = f"columns: expected column names, got {columns!r:.100}; super().__init__ takes them"
        elif not isinstance(definition := self._defined(name), str):
            reason = f"definition: expected a string, got {definition!r:.100}"
        if reason is not None:
            raise InvalidInputError(
                reason,
                operation="aggregate",
                subject=f"{name}={type(self).__qualname__}",
                hint="Declare what the docstring of Aggregator says",
                kind=ErrorKind.SCHEMA_MISMATCH,
            )


class _BoundAggregator(BoundAggregation):
    def __init__(self, aggregator: Aggregator, name: str) -> None:
        self._aggregator = aggregator
        self._subject = f"{name}={aggregator.definition}"
        kept = [(field.name, stored_type(field.type, f"{name}.{field.name}")) for field in aggregator.state_schema]
        self._schema = pa.schema(kept)
        self.state = tuple((f".{column}", kind) for column, kind in kept)
        self.output = aggregator.output_type

    def partial(self, rows: GroupedRows) -> list[pa.Array]:
        names = self._aggregator.columns
        table = pa.table([rows.column(name) for name in names], names=list(names))
        return self._state(self._call(self._aggregator.reduce, table, pa.array(rows.index), len(rows)), len(rows))

    def merge(self, older: Sequence[pa.Array], newer: Sequence[pa.Array]) -> list[pa.Array]:
        merged = self._call(self._aggregator.merge, self._table(older), self._table(newer))
        return self._state(merged, len(newer[0]))

    def result(self, state: Sequence[pa.Array]) -> pa.Array:
        if len(state[0]) == 0:  # Arrays that user code makes of nothing often have no type.
            return pa.nulls(0, self.output)
        return self._column(
            self._call(self._aggregator.result, self._table(state)), self.output, len(state[0]), "result"
        )

    def _table(self, state: Sequence[pa.Array]) -> pa.Table:
        return pa.table(list(state), schema=self._schema)

    def _state(self, made: Any, rows: int) -> list[pa.Array]:
        if not isinstance(made, pa.Table) or made.schema.names != self._schema.names:
            names = made.schema.names if isinstance(made, pa.Table) else type(made).__name__
            raise self._wrong(f"expected a state table with columns {self._schema.names}, got {names}")
        return [
            self._column(column, field.type, rows, field.name)
            for column, field in zip(made.columns, self._schema, strict=True)
        ]

    def _column(self, made: Any, kind: pa.DataType, rows: int, what: str) -> pa.Array:
        if not isinstance(made, pa.Array | pa.ChunkedArray):
            raise self._wrong(f"{what}: expected an Arrow array, got {type(made).__name__}")
        wrong = f"{what}: expected {rows} rows of {kind}, got {len(made)} of {made.type}"
        if len(made) != rows or not is_kept_alike(made.type, kind):
            raise self._wrong(wrong)
        try:
            return contiguous(made if made.type == kind else made.cast(kind))
        except pa.ArrowException as error:  # Such as a null where the declared type has none.
            raise self._wrong(f"{wrong} ({error})") from error

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except StatelineError:
            raise
        except UserCodeError.causes as error:
            raise UserCodeError(
                f"{function.__name__} raised {UserCodeError.described(error)}",
                operation="aggregate",
                subject=self._subject,
                hint="Nothing was committed; see the chained error",
            ) from error

    def _wrong(self, reason: str) -> InvalidInputError:
        return InvalidInputError(
            reason,
            operation="aggregate",
            subject=self._subject,
            hint="Return what the docstring of Aggregator says",
            kind=ErrorKind.SCHEMA_MISMATCH,
        )
