"""``KeyedStream.sessions``: aggregations over sessions, as an operator of a pipeline.

A session is what follows upon each other without a gap: a row at ``t`` opens ``[t, t + gap)``, and what overlaps or
touches becomes one. Facts, the same as of Spark's ``pyspark.sql.functions.session_window``:

- Rows without a time are in no session.
- A row is late when ``t + gap`` is at or below the watermark with which the batch before closed sessions. It is judged
  by itself, also where a session that is still open covers it.
- ``append``: a session goes out once, when the watermark has passed its end. ``complete``: every session, at every
  batch; nothing is late, nothing is closed.

Spark has no mode ``update`` for sessions. Here it gives a row for each session that the batch touched: as it is now,
with all that it has absorbed. Sessions that were absorbed are gone, and who reads the output of this operator is told.

The state is a table of intervals (:mod:`stateline.state.intervals`). So a key may have any number of sessions: only
those are read and rewritten that rows of the batch touch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateline.errors import InvalidInputError
from stateline.options import parse_choice
from stateline.pipeline.event_time import WINDOW_END, WINDOW_START, SessionPlan, WatermarkPlan
from stateline.pipeline.operators.aggregation import OUTPUT_MODES, check_names
from stateline.pipeline.operators.api import (
    CHECKPOINT_COLUMN,
    HASH_COLUMN,
    BatchContext,
    Emits,
    OperatorProgram,
    Processed,
    Reading,
)
from stateline.state.aggregate import Aggregation, KeyedAggregation
from stateline.state.aggregate.api import GroupedRows
from stateline.state.columns import Mask, Rows, contiguous, from_words, take, words_of
from stateline.state.intervals import END, Intervals, Touching, ending, interval_rows, touching
from stateline.state.keys import Groups, KeyRows, group_rows
from stateline.state.merge import Expired
from stateline.state.rows import StateRows
from stateline.state.schema import StateSchema
from stateline.state.table import StateTable

__all__ = ["SessionProgram"]

Longs = npt.NDArray[np.int64]

_TABLE: Final = "sessions"
_SLOT: Final = "window_slot"
"""Last key column of the state; see :mod:`stateline.state.intervals`."""


@dataclass(frozen=True, slots=True)
class SessionProgram(OperatorProgram):
    """Aggregations over the sessions of one keyed stream."""

    _aggregation: KeyedAggregation
    _mode: str
    _sessions: SessionPlan
    _watermark: WatermarkPlan | None
    _time: pa.DataType

    wants_hash = True

    @classmethod
    def bind(
        cls,
        schema: pa.Schema,
        keys: Sequence[str],
        sessions: SessionPlan,
        aggregations: Mapping[str, Aggregation],
        *,
        output_mode: str = "update",
        watermark: WatermarkPlan | None = None,
        updates: bool = False,
    ) -> Self:
        """Checks keys, aggregations and mode against the columns of the input.

        Args:
            schema: The input.
            keys: Key columns.
            sessions: Which rows are in one session.
            aggregations: What to keep, by the name of the result.
            output_mode: ``update``, ``append`` or ``complete``.
            watermark: That of the input.
            updates: Whether the input is the output of an operator that takes rows back.

        Raises:
            InvalidInputError: Nothing to keep, a name that is taken, a column that does not exist or does not fit, an
                unknown mode, mode append without a watermark on the column of the sessions, an input that updates.
        """
        mode = parse_choice(output_mode, OUTPUT_MODES, "output mode")
        check_names(keys, aggregations, (WINDOW_START, WINDOW_END, _SLOT))
        closes = watermark is not None and watermark.column == sessions.column and mode != "complete"
        if mode == "append" and not closes:
            raise InvalidInputError(
                "a row of mode append is final, and nothing here says when one is",
                operation="aggregate",
                subject="output mode 'append'",
                hint=f"Give the stream a watermark on the column of the sessions: KeyedStream(..., watermark="
                f"({sessions.column!r}, delay)). Or use mode update",
            )
        if updates:
            raise InvalidInputError(
                "cannot take rows back: without a row that was there, a session may have been two",
                operation="sessions",
                subject=f"column {sessions.column!r}",
                hint="Make sessions of a stream whose rows stay, such as the output of mode append",
            )
        kind = pa.timestamp("us", schema.field(sessions.column).type.tz)
        return cls(
            KeyedAggregation.bind(schema, keys, aggregations), mode, sessions, watermark if closes else None, kind
        )

    @property
    def key_columns(self) -> tuple[str, ...]:
        return tuple(self._aggregation.state_schema.keys.names)

    @property
    def input_columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self._aggregation.input_columns, self._sessions.column]))

    @property
    def readings(self) -> tuple[Reading, ...]:
        drops = self._watermark is not None and self._watermark.drops_late_rows
        late_by = self._sessions.column if drops else None
        return (
            Reading(
                key_columns=self.key_columns,
                columns=self.input_columns,
                late_by=late_by,
                late_after_us=self._sessions.gap_us,
            ),
        )

    @property
    def emits(self) -> Emits:
        emitted: dict[str, Emits] = {"append": "appends", "update": "updates", "complete": "unknown"}
        return emitted[self._mode]

    @property
    def event_time_columns(self) -> tuple[str, ...]:
        return (WINDOW_END,) if self._watermark is not None else ()

    @property
    def closes_windows(self) -> bool:
        return self._watermark is not None

    @property
    def acts_on_watermark(self) -> bool:
        return self._mode == "append"  # Else what has closed is only not there any more.

    @property
    def tables(self) -> Mapping[str, StateSchema]:
        kept = self._aggregation.state_schema
        ends = [pa.field(name, self._time) for name in (WINDOW_START, WINDOW_END)]
        keys = pa.schema([*kept.keys, pa.field(_SLOT, pa.int64())])
        return {_TABLE: StateSchema(keys, pa.schema([*ends, *kept.values]), subkeys=1)}

    @property
    def definition(self) -> str:
        # Where sessions close, one whose end has been passed is not there: so that belongs to the meaning.
        sessions = {"sessions": self._sessions.definition, "closes": self.closes_windows}
        return json.dumps(json.loads(self._aggregation.definition) | sessions)

    @property
    def output_schema(self) -> pa.Schema:
        """Key columns, ``window_start``, ``window_end``, aggregations, ``checkpoint_id``."""
        width = len(self.key_columns)
        fields = list(self._aggregation.output_schema)
        ends = [pa.field(name, self._time) for name in (WINDOW_START, WINDOW_END)]
        return pa.schema(
            [*fields[:width], *ends, *fields[width:], pa.field(CHECKPOINT_COLUMN, pa.int64(), nullable=False)]
        )

    def process(
        self, batches: Iterable[pa.RecordBatch], tables: Mapping[str, StateTable], context: BatchContext
    ) -> Processed:
        """Joins the rows to the sessions that they touch, and hands on what the output mode says."""
        table = tables[_TABLE]
        after, until = (context.late_watermark_us, context.watermark_us) if self.closes_windows else (None, None)
        received = list(batches)
        metrics = {"rows": sum(batch.num_rows for batch in received)}
        merged = self._merged(table, pa.Table.from_batches(received), after) if received else None
        metrics["keys"] = 0 if merged is None else len(merged.sessions)
        changes = StateRows.none(table.schema) if merged is None else _changes(table, merged, self._sessions.gap_us)
        output, retracted, forgotten = [], [], []
        if self._mode == "update" and merged is not None:
            output = [self._results(merged.keys, merged.sessions, merged.states)]
            if context.retracts:
                retracted = [self._results(merged.keys, merged.before.intervals, merged.before.kept)]
        if context.forgets and until is not None:
            closed = ending(table, changes, after=after, until=until)
            forgotten = [self._stored([*closed.keys.columns, *closed.values])]
        if self._mode == "complete":
            output = [self._stored(batch.columns) for batch in table.with_changes(changes).scan()]
        if self._mode == "append" and until is not None:
            closed = ending(table, changes, after=after, until=until)
            metrics["windows_closed"] = len(closed)
            output = [self._stored([*closed.keys.columns, *closed.values])]
        return Processed(
            changes=_still_open(changes, until),
            output=self._output(output, context),
            retracted=self._output(retracted, context),
            forgotten=self._output(forgotten, context),
            expired={} if until is None else {_TABLE: _closed(until)},
            metrics=metrics,
        )

    def _merged(self, table: StateTable, rows: pa.Table, after: int | None) -> _Merged | None:
        """The sessions that the rows touch, as they are with them; ``None`` where no row has a time."""
        times = contiguous(rows.column(self._sessions.column))
        if times.null_count:
            rows = rows.filter(times.is_valid())
            times = times.drop_null()
        if rows.num_rows == 0:
            return None
        keys = self._aggregation.keys(rows, rows.column(HASH_COLUMN).to_numpy())
        groups = group_rows(keys)
        found = _sessions(groups, times.cast(self._time).cast(pa.int64()).to_numpy(), self._sessions.gap_us)
        before = touching(table, groups.keys, found.intervals, self._sessions.gap_us, after=after)
        sessions, firsts, parts = _joined(found.intervals, before)
        columns = self._aggregation.columns(rows, keys)
        states = self._aggregation.partial(
            GroupedRows(Groups(groups.keys, found.order, found.starts.take(firsts)), columns)
        )
        if len(before):
            distinct, kept = self._reduced(before.kept, parts)
            states = self._aggregation.merge(_spread(kept, distinct, len(sessions)), states)
        return _Merged(groups.keys, sessions, tuple(states), before, parts)

    def _reduced(self, states: Sequence[pa.Array], parts: Rows) -> tuple[Rows, Sequence[pa.Array]]:
        """One state for each number in ``parts``, which ascend: neighbours are merged, until none is left."""
        while True:
            begins = np.concatenate(([True], parts[1:] != parts[:-1]))
            if begins.all():
                return parts, states
            starts = np.flatnonzero(begins)
            sizes = np.diff(starts, append=len(parts))
            lefts = np.flatnonzero((np.arange(len(parts)) - starts.repeat(sizes)) % 2 == 0)
            paired = lefts[(lefts + 1 < len(parts)) & ~np.append(begins, True).take(lefts + 1)]
            merged = self._aggregation.merge(
                [take(column, paired) for column in states], [take(column, paired + 1) for column in states]
            )
            source = np.arange(len(parts))
            source[paired] = len(parts) + np.arange(len(paired))
            chosen = source.take(lefts)
            states = [take(pa.concat_arrays([old, new]), chosen) for old, new in zip(states, merged, strict=True)]
            parts = parts.take(lefts)

    def _stored(self, columns: Sequence[pa.Array]) -> pa.Table:
        """What users see of rows of the state."""
        width = len(self.key_columns)
        ends, kept = columns[width + 1 : width + 3], columns[width + 3 :]
        return self._shown(columns[:width], ends, kept)

    def _results(self, keys: KeyRows, intervals: Intervals, states: Sequence[pa.Array]) -> pa.Table:
        """What users see of sessions of some keys."""
        ends = [from_words(words, self._time) for words in (intervals.starts, intervals.ends)]
        return self._shown(keys.take(intervals.owners).columns, ends, states)

    def _shown(self, keys: Sequence[pa.Array], ends: Sequence[pa.Array], states: Sequence[pa.Array]) -> pa.Table:
        made = self._aggregation.results(
            pa.RecordBatch.from_arrays([*keys, *states], schema=self._aggregation.state_schema.row)
        )
        width = len(keys)
        return pa.Table.from_arrays([*made.columns[:width], *ends, *made.columns[width:]], schema=self._shown_schema)

    @property
    def _shown_schema(self) -> pa.Schema:
        shown = self.output_schema
        return shown.remove(len(shown) - 1)

    def _output(self, tables: Sequence[pa.Table], context: BatchContext) -> pa.Table | None:
        """The rows of the output with the column that is the same in all of them."""
        rows = sum(table.num_rows for table in tables)
        if rows == 0:
            return None
        made = pa.concat_tables(tables)
        checkpoints = pa.array(np.full(rows, context.checkpoint_id))
        return pa.Table.from_arrays([*made.columns, checkpoints], schema=self.output_schema)


@dataclass(frozen=True, slots=True)
class _Found:
    """The sessions of one batch by itself, ascending by key and time.

    Attributes:
        intervals: When they are, by the number of the key.
        order: The rows, session after session, by time within one; equal times in order of arrival.
        starts: The place in ``order`` where each session begins.
    """

    intervals: Intervals
    order: Rows
    starts: Rows


@dataclass(frozen=True, slots=True)
class _Merged:
    """The sessions that a batch has touched.

    Attributes:
        keys: Grouping keys.
        sessions: As they are now.
        states: What is kept of each.
        before: Stored ones that have become part of them.
        parts: Of which session each of these has become part.
    """

    keys: KeyRows
    sessions: Intervals
    states: tuple[pa.Array, ...]
    before: Touching
    parts: Rows


def _sessions(groups: Groups, times: Longs, gap_us: int) -> _Found:
    """The sessions of rows without regard to what is stored."""
    order, owners = groups.order, groups.index()
    times = times.take(order)
    same = owners[1:] == owners[:-1]
    if (same & (times[1:] < times[:-1])).any():
        by_time = _order_by_time(owners, times, len(groups))
        order, times = order.take(by_time), times.take(by_time)
    starts = np.flatnonzero(np.concatenate(([True], ~same | (times[1:] - times[:-1] > gap_us))))
    lasts = np.append(starts[1:], len(order)) - 1
    return _Found(Intervals(owners.take(starts), times.take(starts), times.take(lasts) + gap_us), order, starts)


def _order_by_time(owners: Rows, times: Longs, count: int) -> Rows:
    """A stable order by owner, which ascends already, and time."""
    low = int(times.min())
    span = int(times.max()) - low + 1
    if span * count < 1 << 63:
        return np.argsort(owners * span + (times - low), kind="stable")
    return np.lexsort((times, owners))


def _joined(found: Intervals, before: Touching) -> tuple[Intervals, Rows, Rows]:
    """The sessions that come of those of a batch and stored ones that touch them.

    Returns:
        The sessions, the first one of the batch in each, and for each stored one the session that it is in.
    """
    bridges = np.zeros(len(found) + 1, dtype=np.int64)
    np.add.at(bridges, before.firsts + 1, 1)
    np.subtract.at(bridges, before.lasts + 1, 1)
    begins = bridges.cumsum()[:-1] == 0
    firsts = np.flatnonzero(begins)
    parts = (begins.cumsum() - 1).take(before.firsts)
    starts = found.starts.take(firsts)
    ends = found.ends.take(np.append(firsts[1:], len(found)) - 1)
    np.minimum.at(starts, parts, before.intervals.starts)
    np.maximum.at(ends, parts, before.intervals.ends)
    return Intervals(found.owners.take(firsts), starts, ends), firsts, parts


def _spread(states: Sequence[pa.Array], places: Rows, rows: int) -> list[pa.Array]:
    """Columns of so many rows with the states at given places, which ascend; null elsewhere."""
    number = np.zeros(rows, dtype=np.int64)
    number[places] = np.arange(len(places))
    absent = np.ones(rows, dtype=np.bool_)
    absent[places] = False
    numbers = pa.array(number, mask=absent if absent.any() else None)
    return [column.take(numbers) for column in states]


def _changes(table: StateTable, merged: _Merged, gap_us: int) -> StateRows:
    """The sessions as they are now; and those that lie in another slot now, as deleted."""
    sessions, before = merged.sessions, merged.before.intervals
    moved = np.flatnonzero(before.starts // gap_us != sessions.starts.take(merged.parts) // gap_us)
    gone = before.take(moved)
    both = Intervals(*(np.concatenate(pair) for pair in zip(_columns(sessions), _columns(gone), strict=True)))
    nothing = [pa.nulls(len(moved), column.type) for column in merged.states]
    kept = [pa.concat_arrays(pair) if len(moved) else pair[0] for pair in zip(merged.states, nothing, strict=True)]
    deleted = np.arange(len(both)) >= len(sessions)
    return interval_rows(table, merged.keys, both, gap_us, kept, deleted)


def _columns(intervals: Intervals) -> tuple[npt.NDArray[Any], ...]:
    return intervals.owners, intervals.starts, intervals.ends


def _still_open(changes: StateRows, until: int | None) -> dict[str, StateRows]:
    """What is to be stored: nothing of what the next batch would not see any more, be it new or deleted."""
    if until is not None:
        still_open = np.flatnonzero(words_of(changes.values[END]) > until)
        changes = changes if len(still_open) == len(changes) else changes.take(still_open)
    return {_TABLE: changes} if len(changes) else {}


def _closed(until: int) -> Expired:
    """A test for merges: which sessions are closed."""

    def closed(rows: StateRows) -> Mask:
        mask: Mask = words_of(rows.values[END]) <= until
        return mask

    return closed
