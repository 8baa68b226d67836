"""The rows that a join hands on: columns of both sides, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa

from stateline.pipeline.operators.join.side import SideTable, columns_of
from stateline.pipeline.operators.suffixes import names_beside
from stateline.state.columns import take
from stateline.state.rows import StateRows
from stateline.state.table import Located
from stateline.state.widths import retyped

__all__ = ["LEFT", "RIGHT", "JoinedColumns"]

LEFT: Final = 0
RIGHT: Final = 1


@dataclass(frozen=True, slots=True)
class JoinedColumns:
    """Where the columns of the output come from.

    Attributes:
        schema: Of the output.
        sources: For each column its number on the left and on the right side's table; ``None`` where a side has none.
            A key column has both.
    """

    schema: pa.Schema
    sources: tuple[tuple[int | None, int | None], ...]

    @classmethod
    def of(
        cls,
        sides: tuple[SideTable, SideTable],
        schemas: tuple[pa.Schema, pa.Schema],
        suffix: str,
        *,
        may_lack: tuple[bool, bool],
        is_semi: bool,
    ) -> Self:
        """The key columns by their names on the left, other columns of the left, and other columns of the right.

        Args:
            sides: Left and right.
            schemas: Of the streams.
            suffix: Added to names of the right that are taken.
            may_lack: Whether rows come out without a row of the left, and of the right.
            is_semi: Whether only the columns of the left come out.

        Raises:
            InvalidInputError: A name of the right is taken, with its suffix too.
        """
        left, right = sides
        keys = list(zip(left.keys.keys.names, right.keys.keys.names, strict=True))
        fields: list[pa.Field] = []
        sources: list[tuple[int | None, int | None]] = []
        for name, other in keys:
            nullable = any(schema.field(key).nullable for schema, key in zip(schemas, (name, other), strict=True))
            fields.append(pa.field(name, left.schema.row.field(name).type, nullable))
            sources.append((left.numbers[name], right.numbers[other]))
        for name in left.input_columns[len(keys) :]:
            fields.append(_field(left, schemas[LEFT], name, name, nullable=may_lack[LEFT]))
            sources.append((left.numbers[name], None))
        others = () if is_semi else right.input_columns[len(keys) :]
        taken = [field.name for field in fields]
        for name, named in zip(others, names_beside(taken, others, suffix, "join"), strict=True):
            fields.append(_field(right, schemas[RIGHT], name, named, nullable=may_lack[RIGHT]))
            sources.append((None, right.numbers[name]))
        return cls(pa.schema(fields), tuple(sources))

    def name_of(self, side: int, number: int) -> str | None:
        """The name in the output of a column of one side's table; ``None`` where it does not come out."""
        return next(
            (name for name, source in zip(self.schema.names, self.sources, strict=True) if source[side] == number), None
        )

    def joined(self, rows: StateRows, side: int, pairs: Located) -> pa.RecordBatch:
        """Rows of one side with their partners.

        Args:
            rows: The rows that the pairs have numbers of.
            side: Theirs.
            pairs: One or more.
        """
        mine, theirs = columns_of(rows), columns_of(pairs.source)
        columns = []
        for source in self.sources:
            own, other = source[side], source[1 - side]
            if own is not None:
                columns.append(take(mine[own], pairs.numbers))
            elif other is not None:
                columns.append(theirs[other].take(pairs.places))
        return self._batch(columns)

    def alone(self, rows: StateRows, side: int) -> pa.RecordBatch:
        """Rows of one side without a row of the other."""
        mine = columns_of(rows)
        numbers = [source[side] for source in self.sources]
        columns = [
            pa.nulls(len(rows), kind) if number is None else mine[number]
            for number, kind in zip(numbers, self.schema.types, strict=True)
        ]
        return self._batch(columns)

    def _batch(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(list(retyped(columns, self.schema.types)), schema=self.schema)


def _field(side: SideTable, schema: pa.Schema, name: str, named: str, *, nullable: bool) -> pa.Field:
    kind = side.schema.row.field(name).type
    return pa.field(named, kind, nullable or schema.field(name).nullable)
