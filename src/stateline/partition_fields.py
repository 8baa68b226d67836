"""By what rows are partitioned: a column, or the year, month, day or hour of one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from stateline.errors import ErrorKind, InvalidInputError

__all__ = ["TIME_TRANSFORMS", "PartitionField"]

TIME_TRANSFORMS: Final = {"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H"}
"""By name: how the values name a folder, as Iceberg writes them."""

_CALL: Final = re.compile(r"(\w+)\((.+)\)\Z")
_IDENTITY: Final = "identity"


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One field of a partitioning.

    Attributes:
        column: The column.
        transform: ``identity``, or one of :data:`TIME_TRANSFORMS`: of the column's moment in UTC, or of its date.
    """

    column: str
    transform: str = _IDENTITY

    @classmethod
    def parse(cls, text: str) -> PartitionField:
        """A field as a user gives it: ``column``, or ``day(column)``.

        Raises:
            InvalidInputError: A transform that files cannot be split by, such as ``bucket(16, column)``.
        """
        found = _CALL.match(text)
        if found is None:
            return cls(text)
        if found[1] not in TIME_TRANSFORMS:
            raise InvalidInputError(
                f"cannot partition by {text}: files are split by a column, or by its {', '.join(TIME_TRANSFORMS)}",
                operation="write_table",
                subject="partition_by",
                hint="Use a column of the bucket, or a time: day(column)",
            )
        return cls(found[2].strip(), found[1])

    @property
    def name(self) -> str:
        """The name of the field: that of the column, with the part behind it."""
        return self.column if self.transform == _IDENTITY else f"{self.column}_{self.transform}"

    def check(self, schema: pa.Schema) -> None:
        """Checks that the column has such values.

        Raises:
            InvalidInputError: There is none, or it is no date and no moment.
        """
        kind = schema.field(self.column).type if self.column in schema.names else None
        if kind is None:
            reason = f"expected a column of the rows, got {self.column!r}"
        elif self.transform == _IDENTITY or pa.types.is_timestamp(kind):
            return
        elif self.transform == "hour" or not pa.types.is_date32(kind):
            wanted = "a moment" if self.transform == "hour" else "a moment or a date"
            reason = f"expected {wanted} in column {self.column!r}, got {kind}"
        else:
            return
        raise InvalidInputError(
            reason,
            operation="write_table",
            subject=f"partition_by {self}",
            hint=f"The columns are {schema.names}",
            kind=ErrorKind.SCHEMA_MISMATCH,
        )

    def values(self, column: Any) -> Any:
        """What tells the partition of each row: the column itself, or text such as ``2024-03-31``."""
        if self.transform == _IDENTITY:
            return column
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz))
            column = column if column.type.tz is None else pc.local_timestamp(column.cast(pa.timestamp("us", "UTC")))
        # Rounded down first: text of a moment would have its seconds rounded to zero.
        return pc.strftime(pc.floor_temporal(column, unit=self.transform), format=TIME_TRANSFORMS[self.transform])

    def __str__(self) -> str:
        return self.column if self.transform == _IDENTITY else f"{self.transform}({self.column})"
