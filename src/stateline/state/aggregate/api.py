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

from stateline.errors import ErrorKind, InvalidInputError
from stateline.options import check_known
from stateline.state.columns import Mask, Rows, take
from stateline.state.keys import Groups

__all__ = [
    "Aggregation",
    "BoundAggregation",
    "Function",
    "GroupedRows",
    "Inputs",
    "arithmetic",
    "merge_nullable",
    "overflow",
]


class GroupedRows:
    """A batch whose rows are grouped by key: columns in group order, made once and shared by all aggregations.

    Args:
        groups: The grouping.
        columns: Input columns by name, each one contiguous Arrow array in input order.
    """

    def __init__(self, groups: Groups, columns: Mapping[str, pa.Array]) -> None:
        self.groups = groups
        self._columns = columns
        self._ordered: dict[str, pa.Array] = {}
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

    def counts(self, valid: Mask | None) -> Rows:
        """For each group how many rows ``valid`` holds for; ``None`` means all."""
        if valid is None:
            return self.sizes
        counted: Rows = np.add.reduceat(valid, self.starts, dtype=np.int64)
        return counted


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
    """

    def __init__(
        self,
        definition: str,
        columns: Sequence[str],
        bound: Callable[[Inputs], BoundAggregation],
        *,
        compared: Sequence[str] = (),
    ) -> None:
        self._definition = definition
        self.columns = tuple(columns)
        self.compared = tuple(compared)
        self._bound = bound

    @property
    def definition(self) -> str:
        return self._definition

    def bind(self, schema: pa.Schema, name: str) -> BoundAggregation:
        check_known(self.columns, schema.names, f"column in {self.definition}")
        inputs = pa.schema([schema.field(column) for column in self.columns])
        return self._bound(Inputs(inputs, f"{name}={self.definition}"))


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
