"""The join of two keyed streams as an operator of a pipeline.

A batch joins new left rows with stored and new right rows, and new right rows with stored left ones: each pair comes
out once, in the batch in which the later of the two came. Then rows of an outer side come out alone that leave without
ever having had a partner (``interval``). A left row of a semi join comes out in the batch in which its first partner is
there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa

from stateline.errors import ErrorKind, InvalidInputError
from stateline.options import check_known, parse_choice
from stateline.pipeline.event_time import WatermarkPlan
from stateline.pipeline.operators.api import BatchContext, Emits, OperatorProgram, Processed, Reading
from stateline.pipeline.operators.join.batch import JoinBatch
from stateline.pipeline.operators.join.interval import EQUAL_TIMES, Border, Interval
from stateline.pipeline.operators.join.output import LEFT, RIGHT, JoinedColumns
from stateline.pipeline.operators.join.side import SideTable
from stateline.state.schema import StateSchema, stored_key_type
from stateline.state.table import StateTable

__all__ = ["HOWS", "JoinProgram", "JoinSide"]

HOWS: Final = ("full", "inner", "left", "right", "semi")

_TABLES: Final = ("left", "right")
_OUTER: Final = {"left": (True, False), "right": (False, True), "full": (True, True)}
"""Whether rows of the left, and of the right, come out alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSide:
    """One of the two streams.

    Attributes:
        schema: Its columns.
        keys: Its key columns.
        watermark: Its event time, if it has one.
        updates: Whether it is the output of an operator that replaces what came out before.
    """

    schema: pa.Schema
    keys: Sequence[str]
    watermark: WatermarkPlan | None = None
    updates: bool = False


@dataclass(frozen=True, slots=True)
class JoinProgram(OperatorProgram):
    """Two keyed streams, joined."""

    _how: str
    _sides: tuple[SideTable, SideTable]
    _late_by: tuple[str | None, str | None]
    _keeps_late_rows: bool
    _ttl_ms: int | None
    _output: JoinedColumns

    @classmethod
    def bind(
        cls,
        left: JoinSide,
        right: JoinSide,
        how: str = "inner",
        *,
        interval: Interval | None = None,
        suffix: str = "_right",
        ttl_ms: int | None = None,
    ) -> Self:
        """Checks both sides, the kind of the join and its bounds.

        Where the event times of both sides are at the same place of the key, they are equal in every pair: such a join
        is bounded by the watermark without an interval.

        Args:
            left: The left stream.
            right: The right stream.
            how: ``inner``, ``left``, ``right``, ``full`` or ``semi``.
            interval: Which times match; ``None`` for all.
            suffix: Added to names of the right side that the left side has.
            ttl_ms: Processing time after which a row is forgotten, milliseconds; without an interval only.

        Raises:
            InvalidInputError: An unknown kind, keys of another number or type, an interval without two watermarks, an
                outer join without an interval, a side that replaces its rows, a name that is taken.
        """
        parse_choice(how, HOWS, "how")
        sides = (left, right)
        _check_keys(sides)
        for side, name in zip(sides, _TABLES, strict=True):
            _check_appends(side, name)
        if interval is None and ttl_ms is None and _times_are_keys(sides):
            interval = EQUAL_TIMES
        _check_bounds(sides, how, interval, ttl_ms)
        times = [None if side.watermark is None else side.watermark.column for side in sides]
        seen_from = (interval, None if interval is None else interval.mirrored())
        tables = tuple(
            SideTable.of(side.schema, side.keys, seen, time, forgets=ttl_ms is not None)
            for side, seen, time in zip(sides, seen_from, times, strict=True)
        )
        layouts = (tables[LEFT], tables[RIGHT])
        outer = _OUTER.get(how, (False, False))
        output = JoinedColumns.of(
            layouts,
            (left.schema, right.schema),
            suffix,
            may_lack=(outer[RIGHT], outer[LEFT]),
            is_semi=how == "semi",
        )
        drops = [side.watermark is not None and side.watermark.drops_late_rows for side in sides]
        late_by = [time if drop else None for time, drop in zip(times, drops, strict=True)]
        return cls(how, layouts, (late_by[LEFT], late_by[RIGHT]), not all(drops), ttl_ms, output)

    @property
    def key_columns(self) -> tuple[str, ...]:
        return tuple(self._sides[LEFT].keys.keys.names)

    @property
    def input_columns(self) -> tuple[str, ...]:
        return self._sides[LEFT].input_columns

    @property
    def wants_hash(self) -> bool:
        return True

    @property
    def readings(self) -> tuple[Reading, ...]:
        return tuple(
            Reading(key_columns=tuple(side.keys.keys.names), columns=side.input_columns, late_by=late_by)
            for side, late_by in zip(self._sides, self._late_by, strict=True)
        )

    @property
    def emits(self) -> Emits:
        return "appends"

    @property
    def event_time_columns(self) -> tuple[str, ...]:
        """The event times of both sides, where the interval bounds them."""
        if self._sides[LEFT].interval is None or self._keeps_late_rows:
            return ()
        numbers = enumerate(side.time for side in self._sides)
        names = [self._output.name_of(side, number) for side, number in numbers if number is not None]
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def watermark_lag_us(self) -> int:
        interval = self._sides[LEFT].interval
        return 0 if interval is None else interval.lag_us

    @property
    def tables(self) -> Mapping[str, StateSchema]:
        return {name: side.schema for name, side in zip(_TABLES, self._sides, strict=True)}

    @property
    def definition(self) -> str:
        left, right = self._sides
        meaning = {
            "program": "join",
            "how": self._how,
            "keys": [side.keys.keys.names for side in self._sides],
            "times": [None if side.time is None else side.schema.row.names[side.time] for side in (left, right)],
            "within_us": None if left.interval is None else [left.interval.lower_us, left.interval.upper_us],
            "forgets": self._ttl_ms is not None,
        }
        return json.dumps(meaning)

    @property
    def output_schema(self) -> pa.Schema:
        return self._output.schema

    @property
    def acts_on_watermark(self) -> bool:
        return self._how in _OUTER

    def process_sides(
        self, sides: Sequence[Iterable[pa.RecordBatch]], tables: Mapping[str, StateTable], context: BatchContext
    ) -> Processed:
        """Joins the rows of a batch with each other and with those before.

        The rows that come out are in memory at once; beside them, a million pairs at a time.
        """
        left, right = self._sides
        arrived = (left.arrive(sides[LEFT], context), right.arrive(sides[RIGHT], context))
        stored = (tables[_TABLES[LEFT]], tables[_TABLES[RIGHT]])
        before, now = (self._borders(at, context) for at in (context.late_watermark_us, context.watermark_us))
        batch = JoinBatch.of(self._sides, arrived, stored, before, now)
        new = [each.rows for each in arrived]
        if self._how == "semi":
            found, new[LEFT] = batch.first_found()
            joined = [self._output.alone(rows, LEFT) for rows in found]
        else:
            joined = [self._output.joined(arrived[side].rows, side, pairs) for side, pairs in batch.pairs()]
        alone = [
            self._output.alone(rows, side)
            for side, is_outer in enumerate(_OUTER.get(self._how, ()))
            if is_outer
            for rows in batch.leaving_alone(side)
        ]
        changes = {name: batch.kept(side, new[side]) for side, name in enumerate(_TABLES)}
        expired = {name: test for side, name in enumerate(_TABLES) if (test := batch.over(side)) is not None}
        metrics = {
            "rows": sum(len(each.rows) + len(each.alone) for each in arrived),
            "rows_joined": sum(rows.num_rows for rows in joined),
            "rows_alone": sum(rows.num_rows for rows in alone),
        }
        return Processed(
            changes={name: rows for name, rows in changes.items() if len(rows)},
            output=pa.Table.from_batches([*joined, *alone]) if joined or alone else None,
            expired=expired,
            metrics=metrics,
        )

    def _borders(self, watermark_us: int | None, context: BatchContext) -> tuple[Border, Border]:
        """What becomes of the rows of both sides once the watermark is there."""
        left, right = self._sides
        if left.interval is None or right.interval is None:
            until = Border() if self._ttl_ms is None else Border(kept=context.now_ms - self._ttl_ms)
            return until, until
        return (
            left.interval.border(watermark_us, partners_are_asked=self._how in ("right", "full")),
            right.interval.border(watermark_us, partners_are_asked=self._how in ("left", "full", "semi")),
        )


def _check_keys(sides: tuple[JoinSide, JoinSide]) -> None:
    left, right = sides
    for side, name in zip(sides, _TABLES, strict=True):
        check_known(side.keys, side.schema.names, f"key column of the {name} side")
    if len(left.keys) != len(right.keys):
        raise _refused(
            f"expected as many keys on both sides, got {list(left.keys)} and {list(right.keys)}",
            "keys",
            "Rows are joined whose first keys are equal, and whose second keys are, and so on",
        )
    for mine, theirs in zip(left.keys, right.keys, strict=True):
        kinds = [
            stored_key_type(side.schema.field(key).type, key) for side, key in zip(sides, (mine, theirs), strict=True)
        ]
        if kinds[LEFT] != kinds[RIGHT]:
            raise _refused(
                f"expected keys of one type, got {kinds[LEFT]} for {mine!r} and {kinds[RIGHT]} for {theirs!r}",
                "keys",
                "Cast one of them: equal values of different types have different hashes",
                ErrorKind.SCHEMA_MISMATCH,
            )


def _check_appends(side: JoinSide, name: str) -> None:
    if side.updates:
        raise _refused(
            "cannot read an operator that replaces rows of its output: what was joined with the old row would stay",
            f"{name} side",
            "Join an output that only appends, such as windows in mode append, or look rows up with lookup()",
        )


def _times_are_keys(sides: tuple[JoinSide, JoinSide]) -> bool:
    """Whether the event times of both sides are at the same place of the key."""
    left, right = (
        None
        if side.watermark is None or side.watermark.column not in side.keys
        else side.keys.index(side.watermark.column)
        for side in sides
    )
    return left is not None and left == right


def _check_bounds(sides: tuple[JoinSide, JoinSide], how: str, interval: Interval | None, ttl_ms: int | None) -> None:
    if interval is None:
        if how in _OUTER:
            raise _refused(
                f"a {how} join must know when no partner can come any more",
                "within",
                "Give within=(lower, upper) and a watermark on both streams; or join inner",
            )
        return
    if ttl_ms is not None:
        raise _refused("cannot be given with an interval, which bounds the state", "ttl", "Leave one of the two out")
    for side, name in zip(sides, _TABLES, strict=True):
        if side.watermark is None:
            raise _refused(
                f"the {name} stream must have a watermark",
                "within",
                "Give both streams one: KeyedStream(..., watermark=(column, delay)). Its column is what is compared",
            )
    zones = [side.schema.field(side.watermark.column).type.tz is None for side in sides if side.watermark is not None]
    if zones[LEFT] != zones[RIGHT]:
        raise _refused(
            "cannot compare event times with a time zone and without one",
            "within",
            "Cast one of the columns: .cast('timestamp') or .cast('timestamp_ntz')",
            ErrorKind.SCHEMA_MISMATCH,
        )


def _refused(reason: str, subject: str, hint: str, kind: ErrorKind | None = None) -> InvalidInputError:
    return InvalidInputError(reason, operation="join", subject=subject, hint=hint, kind=kind)
