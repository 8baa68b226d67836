"""The columns of a stream by the names that a user gives them: Spark's rule.

Facts (Spark 4):

- Unless ``spark.sql.caseSensitive`` is set, ``k`` means column ``K``. What is selected or grouped by is then called as
  the user spelled it: ``groupBy("k")`` gives ``k``. Whole rows keep the names of the stream.
- Of columns that differ in upper and lower case only, none can be named.

So an operator knows a column by each name that its user gave, and state and output are called so. A column crosses to
the tasks once, under its own name, and gets the others there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from stateline.errors import ErrorKind, InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["StreamColumns", "column_of"]


def column_of(columns: Sequence[str], name: str) -> str:
    """The one of a stream's columns that a name means, which has been found to mean one."""
    if name in columns:
        return name
    return next((column for column in columns if column.lower() == name.lower()), name)


@dataclass(frozen=True, slots=True)
class StreamColumns:
    """Finds columns by name.

    Attributes:
        names: The columns' own names.
        case_sensitive: Whether upper and lower case are told apart.
    """

    names: tuple[str, ...]
    case_sensitive: bool

    @classmethod
    def of(cls, df: DataFrame) -> Self:
        """The columns of a DataFrame, by the rule of its session."""
        is_sensitive = str(df.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true"
        return cls(tuple(df.columns), is_sensitive)

    def own(self, name: Any) -> Any:
        """The own name of a column; ``name`` itself if there is no such column, or if it is none.

        Raises:
            InvalidInputError: It could mean several.
        """
        if self.case_sensitive or not isinstance(name, str):
            return name
        meant = [column for column in self.names if column.lower() == name.lower()]
        if len(meant) > 1:
            raise InvalidInputError(
                f"is ambiguous: the stream has {meant}",
                operation="KeyedStream",
                subject=f"column {name!r}",
                hint="Rename one of them, or set spark.sql.caseSensitive",
                kind=ErrorKind.SCHEMA_MISMATCH,
            )
        return meant[0] if meant else name

    def spelled(self, schema: pa.Schema, names: Iterable[Any]) -> pa.Schema:
        """The schema of the stream, with a field more for each name that means a column in another spelling.

        Raises:
            InvalidInputError: A name could mean several columns.
        """
        for name in dict.fromkeys(name for name in names if isinstance(name, str)):
            own = self.own(name)
            if name != own:
                schema = schema.append(schema.field(own).with_name(name))
        return schema
