"""The two streams of an as-of join, and what must hold for them before a row comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from stateline.errors import ErrorKind, InvalidInputError
from stateline.options import check_known, duration_microseconds
from stateline.pipeline.event_time import Duration, WatermarkPlan
from stateline.pipeline.operators.api import Reading
from stateline.pipeline.operators.suffixes import names_beside
from stateline.state.schema import stored_key_type, stored_type

__all__ = ["AsofSide", "asof_columns", "check_asof_sides", "check_deleted", "parse_tolerance"]

_OPERATION: Final = "join_asof"


@dataclass(frozen=True, slots=True)
class AsofSide:
    """One of the two streams.

    Attributes:
        schema: Its columns.
        keys: Those by which it is keyed.
        watermark: Its event time; ``None`` for a stream without.
        updates: Whether it has rows that take earlier ones back.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    watermark: WatermarkPlan | None
    updates: bool = False

    @property
    def time(self) -> str:
        """The column of event time."""
        return "" if self.watermark is None else self.watermark.column

    @property
    def time_type(self) -> pa.DataType:
        """The type in which event times are kept."""
        return stored_key_type(self.schema.field(self.time).type, self.time)

    @property
    def key_fields(self) -> list[pa.Field]:
        """The key columns as they are kept."""
        fields = [self.schema.field(name) for name in self.keys]
        return [field.with_type(stored_key_type(field.type, field.name)).remove_metadata() for field in fields]

    @property
    def others(self) -> list[pa.Field]:
        """All columns that are not of the key, as they are kept; the time is among them."""
        return [
            pa.field(
                field.name,
                self.time_type if field.name == self.time else stored_type(field.type, field.name),
                field.nullable,
            )
            for field in self.schema
            if field.name not in self.keys
        ]

    @property
    def values(self) -> list[pa.Field]:
        """The same without the time."""
        return [field for field in self.others if field.name != self.time]

    @property
    def reading(self) -> Reading:
        """What tasks receive of it."""
        drops = self.watermark is not None and self.watermark.drops_late_rows
        columns = (*self.keys, *(field.name for field in self.others))
        return Reading(key_columns=self.keys, columns=columns, late_by=self.time if drops else None)


def asof_columns(left: AsofSide, right: AsofSide, suffix: str, deleted: str | None, *, is_outer: bool) -> pa.Schema:
    """The columns of the output: those of the key by their names on the left, others of the left, those of the right.

    Args:
        left: The rows.
        right: The versions.
        suffix: Added to names of the right that are taken.
        deleted: A column of the right that does not come out; ``None`` for none.
        is_outer: Whether rows come out without a version.

    Raises:
        InvalidInputError: A name of the right is taken, with its suffix too.
    """
    fields = [*left.key_fields, *left.others]
    others = [field for field in right.others if field.name != deleted]
    names = names_beside((field.name for field in fields), (field.name for field in others), suffix, _OPERATION)
    beside = (pa.field(name, field.type, is_outer or field.nullable) for name, field in zip(names, others, strict=True))
    return pa.schema([*fields, *beside])


def check_asof_sides(left: AsofSide, right: AsofSide) -> None:
    """Checks that rows of one side can have versions on the other.

    Raises:
        InvalidInputError: A side without a watermark, keyed by its time, or with rows that are taken back; keys or
            times of different types.
    """
    for side, name in ((left, "left"), (right, "right")):
        _check_side(side, name)
    _check_same_types(left, right)


def check_deleted(deleted: str, right: AsofSide) -> None:
    """Checks that a column can say from when on there is no version.

    Raises:
        InvalidInputError: There is no such column beside key and time, or it is not boolean.
    """
    check_known([deleted], [field.name for field in right.values], "deleted")
    if not pa.types.is_boolean(right.schema.field(deleted).type):
        raise _refused(
            f"must be a boolean column, got {right.schema.field(deleted).type}",
            f"deleted {deleted!r}",
            "Name a column that is true in rows from whose time on there is no version",
        )


def parse_tolerance(tolerance: Duration) -> int:
    """Microseconds of a duration that is not negative."""
    microseconds = duration_microseconds(tolerance, "tolerance")
    if microseconds < 0:
        raise InvalidInputError(
            f"must not be negative, got {tolerance!r}", operation=_OPERATION, subject="tolerance", hint="Give 0 or more"
        )
    return microseconds


def _check_side(side: AsofSide, name: str) -> None:
    if side.updates:
        raise _refused(
            "cannot have rows that take earlier ones back: what was joined with them is final",
            f"the {name} stream",
            "Join streams and outputs in mode append; of an aggregation, aggregate('append', ...) in windows",
        )
    if side.watermark is None:
        raise _refused(
            "must have a watermark: its column says when a row happened",
            f"the {name} stream",
            'Give its KeyedStream watermark=("at", "10 minutes")',
        )
    if side.time in side.keys:
        raise _refused(
            "cannot be the event time and part of the key: no other row would have the same key",
            f"column {side.time!r} of the {name} stream",
            "Leave it out of the key",
        )


def _check_same_types(left: AsofSide, right: AsofSide) -> None:
    kinds = [[field.type for field in side.key_fields] for side in (left, right)]
    if kinds[0] != kinds[1]:
        raise _refused(
            f"expected keys of the same types on both sides, got ({_types(left.key_fields)}) on the left and "
            f"({_types(right.key_fields)}) on the right",
            "key",
            "Name as many columns on both sides, in the same order, and cast those that differ",
        )
    if left.time_type != right.time_type:
        raise _refused(
            f"expected event times of one type, got {left.time_type} on the left and {right.time_type} on the right",
            f"columns {left.time!r} and {right.time!r}",
            "Cast one of them: .cast('timestamp') or .cast('timestamp_ntz')",
        )


def _types(fields: Sequence[pa.Field]) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in fields)


def _refused(reason: str, subject: str, hint: str) -> InvalidInputError:
    return InvalidInputError(reason, operation=_OPERATION, subject=subject, hint=hint, kind=ErrorKind.SCHEMA_MISMATCH)
