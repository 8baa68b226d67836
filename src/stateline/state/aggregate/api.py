"""What an aggregation is: partial states of a batch, merged with what is stored, turned into results.

A new one is a module beside this, with a :class:`BoundAggregation` and the function that users call, which returns a
:class:`Function`; and an entry in :mod:`stateline.state.aggregate.functions`.

Rules, for every aggregation:
- **Merging is exact**: the result of rows split over any batches in any way equals that of all rows at once, except
  that sums of floating-point numbers depend on the order of addition, as they do in Spark.
- An absent state is all null: the first rows of a key merge with nulls.
- Null inputs are skipped, as SQL says; an aggregation of nothing but nulls is null, a count of them 0.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateline.errors import ErrorKind, InvalidInputError, StatelineError
from stateline.options import check_known, check_text
from stateline.state.columns import Mask, Rows, take
from stateline.state.keys import Groups

__all__ = [
    "Aggregation",
    "BoundAggregation",
    "Function",
    "GroupedRows",
    "Inputs",
    "SqlWords",
    "arithmetic",
    "merge_nullable",
    "overflow",
    "sql_name",
    "unretractable",
]


@dataclasses.dataclass(frozen=True, slots=True)
class SqlWords:
    """How an aggregation says in Spark's SQL what it keeps.

    Attributes:
        raising: SQL that raises an error where it is evaluated.
        condition: A column of truth values; only rows where it is true count. ``None`` for all rows.
    """

    raising: Callable[[StatelineError], str]
    condition: str | None = None

    def aggregate(self, function: str, argument: str) -> str:
        """An aggregate function of the rows that count."""
        filtered = "" if self.condition is None else f" FILTER (WHERE {sql_name(self.condition)})"
        return f"{function}({argument}){filtered}"


class GroupedRows:
    """A batch whose rows are grouped by key: columns in group order, made once and shared by all aggregations.

    Args:
        groups: The grouping.
        columns: Input columns by name, each one contiguous Arrow array in input order.
        weights: 1 for each row that came, -1 for each that is taken back, in input order; ``None`` where all came.

    Attributes:
        weights: The same, in group order.
    """

    def __init__(self, groups: Groups, columns: Mapping[str, pa.Array], weights: Rows | None = None) -> None:
        self.groups = groups
        self.weights = None if weights is None else weights.take(groups.order)
        self._columns = columns
        self._ordered: dict[str, pa.Array] = {}
        self._masks: dict[str, Mask] = {}
        self._sizes: Rows | None = None
        self._index: Rows | None = None

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def starts(self) -> Rows:
        """First row of each group; ascending, for ``ufunc.reduceat``."""
        return self.groups.starts

    @property
    def sizes(self) -> Rows:
        """Rows of each group."""
        if self._sizes is None:
            self._sizes = self.groups.sizes
        return self._sizes

    @property
    def index(self) -> Rows:
        """The group of each row, ascending."""
        if self._index is None:
            self._index = self.groups.index()
        return self._index

    def column(self, name: str) -> pa.Array:
        """A column, group after group, in input order within a group."""
        found = self._ordered.get(name)
        if found is None:
            found = self._ordered[name] = take(self._columns[name], self.groups.order)
        return found

    def mask(self, name: str) -> Mask:
        """For which rows, in group order, a column of truth values is true."""
        found = self._masks.get(name)
        if found is None:
            found = self._masks[name] = self.column(name).fill_null(False).to_numpy(zero_copy_only=False)
        return found

    def counts(self, valid: Mask | None) -> Rows:
        """For each group how many rows ``valid`` holds for, less those taken back; ``None`` means all."""
        if self.weights is not None:
            weights = self.weights if valid is None else np.where(valid, self.weights, 0)
            weighed: Rows = np.add.reduceat(weights, self.starts)
            return weighed
        if valid is None:
            return self.sizes
        counted: Rows = np.add.reduceat(valid, self.starts, dtype=np.int64)
        return counted


class _ChosenRows(GroupedRows):
    """The same groups, as if they had only the rows of a mask: the others have null in every column.

    Args:
        rows: All rows.
        mask: Which of them count, in group order.
    """

    def __init__(self, rows: GroupedRows, mask: Mask) -> None:
        super().__init__(rows.groups, {})
        self.weights = rows.weights
        self._rows = rows
        self._mask = mask

    def column(self, name: str) -> pa.Array:
        column = self._rows.column(name)
        return pc.if_else(pa.array(self._mask), column, pa.scalar(None, column.type))

    def counts(self, valid: Mask | None) -> Rows:
        return super().counts(self._mask if valid is None else self._mask & valid)


class BoundAggregation(ABC):
    """An aggregation of columns whose types are known.

    Attributes:
        state: Name suffix and type of each state column; the suffix ``""`` is the column named as the aggregation.
        output: Type of the result.
        input_type: What the state means only together with, and its own types do not tell: the type of the values that
            were hashed, say. Kept in the checkpoint beside the definition; empty where there is nothing to tell.
    """

    state: Sequence[tuple[str, pa.DataType]]
    output: pa.DataType
    input_type: str = ""

    @abstractmethod
    def partial(self, rows: GroupedRows) -> list[pa.Array]:
        """The state columns of a batch, one row per group. ``rows`` has one group or more."""

    @abstractmethod
    def merge(self, older: Sequence[pa.Array], newer: Sequence[pa.Array]) -> list[pa.Array]:
        """The states of both, row by row. A row of ``older`` that is all null is absent.

        Raises:
            InvalidInputError: Of kind ``ARITHMETIC_OVERFLOW``.
        """

    def result(self, state: Sequence[pa.Array]) -> pa.Array:
        """The value that users see, row by row: the first state column, unless a subclass says otherwise."""
        return state[0]

    def sql(self, words: SqlWords) -> Sequence[str]:
        """Spark's SQL of each state column over the rows of a group; empty where Spark does not compute the same.

        It gives what :meth:`partial` gives, but for the last digits of floating-point sums.
        """
        del words
        return ()


class Aggregation(ABC):
    """What to keep per key, as the user says it; made by the functions of :mod:`stateline.state.aggregate`.

    Attributes:
        columns: Input columns that it reads.
        compared: Those of them whose values it compares with each other, strings by their bytes.
    """

    columns: tuple[str, ...]
    compared: tuple[str, ...] = ()

    @property
    @abstractmethod
    def definition(self) -> str:
        """What is computed, as text: equal texts compute the same. Kept in the checkpoint."""

    @abstractmethod
    def bind(self, schema: pa.Schema, name: str) -> BoundAggregation:
        """Checks the columns against the schema of the input.

        Args:
            schema: The input.
            name: The name that the user gave the aggregation, for errors.

        Raises:
            InvalidInputError: A column that does not exist, or whose type does not fit.
        """

    def bind_tabled(self, schema: pa.Schema, name: str) -> BoundAggregation:
        """As :meth:`bind`, where tables of values can be kept beside the state."""
        return self.bind(schema, name)

    def bind_retractable(self, schema: pa.Schema, name: str) -> BoundAggregation:
        """As :meth:`bind_tabled`, for rows that may be taken back; ``partial`` is then given their weights.

        Raises:
            InvalidInputError: As :meth:`bind`; or a row's part in the result cannot be taken back.
        """
        check_known(self.columns, schema.names, f"column in {self.definition}")
        raise unretractable(f"{name}={self.definition}", "what a row has added to it cannot be taken out again")


@dataclasses.dataclass(frozen=True, slots=True)
class Inputs:
    """The input columns of one aggregation, whose types are known.

    Attributes:
        schema: Names and types.
        subject: How errors name the aggregation: ``total=sum(x)``.
    """

    schema: pa.Schema
    subject: str

    def kind(self, column: str) -> pa.DataType:
        """The type of a column."""
        return self.schema.field(column).type

    def refused(self, reason: str, hint: str) -> InvalidInputError:
        """The error of a column whose type does not fit."""
        return InvalidInputError(reason, operation="aggregate", subject=self.subject, hint=hint)


class Function(Aggregation):
    """An aggregation as a function of :mod:`stateline.state.aggregate.functions` makes it.

    Args:
        definition: See :attr:`Aggregation.definition`.
        columns: Input columns, each once.
        bound: Makes the bound aggregation, or refuses the types of the columns.
        compared: See :class:`Aggregation`.
        retractable: As ``bound``, for rows that may be taken back; ``None`` where they cannot be.
        tabled: As ``bound``, served by a table of values, for the rows of a condition if there is one; see
            :mod:`stateline.state.aggregate.values`. It is used where rows may be taken back.
        grows: Whether ``bound`` keeps every value. Then ``tabled`` is better wherever there can be tables.
        condition: See :meth:`where`.
    """

    def __init__(
        self,
        definition: str,
        columns: Sequence[str],
        bound: Callable[[Inputs], BoundAggregation],
        *,
        compared: Sequence[str] = (),
        retractable: Callable[[Inputs], BoundAggregation] | None = None,
        tabled: Callable[[Inputs, str | None], BoundAggregation] | None = None,
        grows: bool = False,
        condition: str | None = None,
    ) -> None:
        self._definition = definition
        self._arguments = tuple(columns)
        self.compared = tuple(compared)
        self._bound = bound
        self._retractable = retractable
        self._tabled = tabled
        self._grows = grows
        self._condition = condition

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        condition = () if self._condition is None else (self._condition,)
        return tuple(dict.fromkeys([*self._arguments, *condition]))

    @property
    def definition(self) -> str:
        return self._definition if self._condition is None else f"{self._definition} where {self._condition}"

    def where(self, condition: str) -> Function:
        """The same of fewer rows: those where a column of truth values is true. SQL's ``filter (where ...)``."""
        if self._condition is not None:
            raise InvalidInputError(
                "has a condition already",
                operation="where",
                subject=self.definition,
                hint="Make one column of both conditions",
            )
        check_text(condition, "condition")
        return Function(
            self._definition,
            self._arguments,
            self._bound,
            compared=self.compared,
            retractable=self._retractable,
            tabled=self._tabled,
            grows=self._grows,
            condition=condition,
        )

    def bind(self, schema: pa.Schema, name: str) -> BoundAggregation:
        return self._chosen(self._bound(self._inputs(schema, name)))

    def bind_tabled(self, schema: pa.Schema, name: str) -> BoundAggregation:
        if self._tabled is None or not self._grows:
            return self.bind(schema, name)
        return self._tabled(self._inputs(schema, name), self._condition)

    def bind_retractable(self, schema: pa.Schema, name: str) -> BoundAggregation:
        if self._retractable is not None:
            return self._chosen(self._retractable(self._inputs(schema, name)))
        if self._tabled is not None:
            return self._tabled(self._inputs(schema, name), self._condition)
        return super().bind_retractable(schema, name)

    def _chosen(self, bound: BoundAggregation) -> BoundAggregation:
        return bound if self._condition is None else _Where(bound, self._condition)

    def _inputs(self, schema: pa.Schema, name: str) -> Inputs:
        check_known(self.columns, schema.names, f"column in {self.definition}")
        inputs = Inputs(pa.schema([schema.field(column) for column in self._arguments]), f"{name}={self.definition}")
        if self._condition is not None and not pa.types.is_boolean(schema.field(self._condition).type):
            raise inputs.refused(
                f"column {self._condition!r} has type {schema.field(self._condition).type}, not boolean",
                "Make a column of the condition before: df.withColumn(...)",
            )
        return inputs


class _Where(BoundAggregation):
    """An aggregation of the rows where a column is true."""

    def __init__(self, bound: BoundAggregation, condition: str) -> None:
        self._of = bound
        self._condition = condition
        self.state, self.output, self.input_type = bound.state, bound.output, bound.input_type

    def partial(self, rows: GroupedRows) -> list[pa.Array]:
        return self._of.partial(_ChosenRows(rows, rows.mask(self._condition)))

    def merge(self, older: Sequence[pa.Array], newer: Sequence[pa.Array]) -> list[pa.Array]:
        return self._of.merge(older, newer)

    def result(self, state: Sequence[pa.Array]) -> pa.Array:
        return self._of.result(state)

    def sql(self, words: SqlWords) -> Sequence[str]:
        return self._of.sql(dataclasses.replace(words, condition=self._condition))


def sql_name(column: str) -> str:
    """A column in Spark's SQL."""
    return f"`{column.replace('`', '``')}`"


def merge_nullable(older: pa.Array, newer: pa.Array, combine: Callable[[pa.Array, pa.Array], pa.Array]) -> pa.Array:
    """``combine(older, newer)`` where both are present, the one that is where one is, null where none is."""
    combined = combine(older, newer)
    if combined.null_count == 0:
        return combined
    return pc.coalesce(combined, newer, older)


@contextmanager
def arithmetic(subject: str, kind: pa.DataType) -> Iterator[None]:
    """Turns what Arrow says about a number that does not fit into an error that names the aggregation."""
    try:
        yield
    except pa.ArrowInvalid as error:
        raise overflow(subject, kind) from error


def unretractable(subject: str, reason: str, hint: str = "") -> InvalidInputError:
    """The error of an aggregation over rows that may be taken back."""
    return InvalidInputError(
        f"cannot follow a step that updates its output: {reason}",
        operation="aggregate",
        subject=subject,
        hint=(hint or "Use count, sum, mean or a variance of whole numbers or decimals")
        + "; or let the step before append: windows in mode append",
    )


def overflow(subject: str, kind: pa.DataType) -> InvalidInputError:
    """The error of a result that does not fit its type, as Spark's ANSI mode raises it."""
    return InvalidInputError(
        f"the result does not fit {kind}",
        operation="aggregate",
        subject=subject,
        hint="Cast the column to a wider type before, such as "
        + ("double" if pa.types.is_decimal(kind) else "decimal(38, 0) or double")
        + "; where a stream has state of it already, give its aggregations other names, too: they begin anew",
        kind=ErrorKind.ARITHMETIC_OVERFLOW,
    )
