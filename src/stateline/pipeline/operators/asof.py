"""``KeyedStream.join_asof``: each row of a stream beside the version of another stream that held at its time.

Rows of the other stream are versions of their key: each holds from its own event time on, until the next one. A row is
joined with the newest version at or below its own time. Both streams have a watermark, and there are two modes:

- ``wait``: a row waits until the watermark has reached its time. By then all versions up to it are known, unless they
  are late, so the result does not depend on what came first. This is the temporal join of Flink.
- ``now``: a row is joined at once with the versions that are known by then, those of its own batch included. What
  comes later changes nothing. This is the as-of join of Quix.

Facts:
- At the end of a batch, whoever will ask has a time above the watermark. So of each key the versions above it stay, and
  the newest one at or below it. What is superseded goes when its key is read again, or when runs are merged.
- A waiting row goes out in the batch whose watermark passes its time. What lies at or below the watermark of the batch
  before has gone out, and counts as absent; merges drop it.
- As in SQL, null equals nothing: a row with a null in its key, or without a time, has no version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, Self, cast, get_args

import numpy as np
import pyarrow as pa

from stateline.options import parse_choice
from stateline.pipeline.event_time import Duration
from stateline.pipeline.operators.api import HASH_COLUMN, BatchContext, Emits, OperatorProgram, Processed, Reading
from stateline.pipeline.operators.asof_sides import (
    AsofSide,
    asof_columns,
    check_asof_sides,
    check_deleted,
    parse_tolerance,
)
from stateline.state.columns import Mask, Rows, contiguous, fixed_words, from_words, take, valid_mask
from stateline.state.keys import KeyRows, group_rows, key_rows
from stateline.state.merge import Expired
from stateline.state.rows import StateRows
from stateline.state.schema import StateSchema
from stateline.state.subkeys import grouping_keys, rows_of_keys, rows_where, subkey_changes
from stateline.state.table import StateTable
from stateline.state.variables import variable_schema
from stateline.state.versions import NO_VERSION, Times, Versions, expired_versions, order_of_times

__all__ = ["ASOF_MODES", "AsofHow", "AsofMode", "AsofProgram"]

AsofMode = Literal["wait", "now"]
ASOF_MODES: Final = get_args(AsofMode)
AsofHow = Literal["inner", "left"]

_OPERATION: Final = "join_asof"
_WAITING: Final = "waiting"
_VERSIONS: Final = "versions"
_ROW_ID: Final = (pa.field("batch", pa.int64()), pa.field("row", pa.int64()))
"""What tells waiting rows apart that are equal: the batch that brought them, and which of its rows they were."""


class _Timed(NamedTuple):
    """Rows of one side.

    Attributes:
        keys: Grouping keys.
        times: Event times; 0 for none.
        is_timed: Which rows have a time.
        values: The columns that are neither key nor time.
    """

    keys: KeyRows
    times: Times
    is_timed: Mask
    values: tuple[pa.Array, ...]

    def take(self, rows: Rows) -> _Timed:
        values = tuple(take(column, rows) for column in self.values)
        return _Timed(self.keys.take(rows), self.times.take(rows), self.is_timed.take(rows), values)

    @property
    def is_comparable(self) -> Mask:
        """Which rows have a key without nulls, and a time."""
        comparable = self.is_timed
        for column in self.keys.columns:
            valid = valid_mask(column)
            comparable = comparable if valid is None else comparable & valid
        return comparable


@dataclass(frozen=True, slots=True)
class AsofProgram(OperatorProgram):
    """The as-of join of two keyed streams."""

    _left: AsofSide
    _right: AsofSide
    _how: AsofHow
    _mode: AsofMode
    _output: pa.Schema
    _tolerance_us: int | None
    _deleted: str | None

    @classmethod
    def bind(
        cls,
        left: AsofSide,
        right: AsofSide,
        *,
        how: str = "inner",
        mode: str = "wait",
        suffix: str = "_right",
        tolerance: Duration | None = None,
        deleted: str | None = None,
    ) -> Self:
        """Checks everything that can be checked before a row comes.

        Raises:
            InvalidInputError: An unknown ``how`` or ``mode``, keys of different types, a side without a watermark or
                with rows that are taken back, a negative tolerance, a name that is taken, no such column of deletions.
        """
        chosen_how, chosen_mode = parse_choice(how, get_args(AsofHow), "how"), parse_choice(mode, ASOF_MODES, "mode")
        check_asof_sides(left, right)
        if deleted is not None:
            check_deleted(deleted, right)
        return cls(
            left,
            right,
            cast("AsofHow", chosen_how),
            cast("AsofMode", chosen_mode),
            asof_columns(left, right, suffix, deleted, is_outer=chosen_how == "left"),
            None if tolerance is None else parse_tolerance(tolerance),
            deleted,
        )

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self._left.keys

    @property
    def input_columns(self) -> tuple[str, ...]:
        return self._left.reading.columns

    @property
    def wants_hash(self) -> bool:
        return True

    @property
    def readings(self) -> tuple[Reading, ...]:
        return self._left.reading, self._right.reading

    @property
    def emits(self) -> Emits:
        return "appends"

    @property
    def event_time_columns(self) -> tuple[str, ...]:
        """The time of the left row; none where late rows are kept, which come after any watermark."""
        return () if self._left.reading.late_by is None else (self._left.time,)

    @property
    def tables(self) -> Mapping[str, StateSchema]:
        """The versions by key and time and, where rows wait, these by key, time and row."""
        keys, left, right = pa.schema(self._left.key_fields), self._left, self._right
        from_time = pa.schema([pa.field(right.time, right.time_type)])
        made = {_VERSIONS: variable_schema(keys, from_time, pa.schema(right.values), has_ttl=False)}
        if self._mode == "wait":
            place = pa.schema([pa.field(left.time, left.time_type), *_ROW_ID])
            waiting = variable_schema(keys, place, pa.schema(left.values), has_ttl=False)
            made[_WAITING] = replace(waiting, append_only=True)
        return made

    @property
    def definition(self) -> str:
        """What decides which rows are kept. How rows without a version come out may change."""
        sides = {"keys": list(self._left.keys), "times": [self._left.time, self._right.time]}
        bounds = {"mode": self._mode, "tolerance_us": self._tolerance_us, "deleted": self._deleted}
        return json.dumps({"program": _OPERATION} | sides | bounds)

    @property
    def output_schema(self) -> pa.Schema:
        """Key columns by their names on the left, other columns of the left, then those of the right."""
        return self._output

    @property
    def acts_on_watermark(self) -> bool:
        """Whether rows wait for it."""
        return self._mode == "wait"

    def process_sides(
        self, sides: Sequence[Iterable[pa.RecordBatch]], tables: Mapping[str, StateTable], context: BatchContext
    ) -> Processed:
        """Joins the rows whose time has come, and keeps the versions and the rows that somebody will need."""
        left, right = (self._arrived(side, rows) for side, rows in zip((self._left, self._right), sides, strict=True))
        changes: dict[str, StateRows] = {}
        due, waiting = left, 0
        if self._mode == "wait":
            due, kept = self._due(left, tables[_WAITING], context)
            waiting = 0 if kept is None else len(kept)
            changes |= {} if kept is None else {_WAITING: kept}
        versions = right.take(np.flatnonzero(right.is_comparable))
        known = _Known.of(tables[_VERSIONS], due, versions, context.watermark_us)
        kept = known.changes(tables[_VERSIONS], self._gone(known, context))
        changes |= {} if kept is None else {_VERSIONS: kept}
        output = self._joined(due, known)
        return Processed(
            changes=changes,
            output=output if output.num_rows else None,
            expired=self._expired(context),
            metrics={
                "rows": len(left.times) + len(right.times),
                "rows_joined": output.num_rows,
                "rows_waiting": waiting,
            },
        )

    # -- what comes, and what its time has come for -----------------------------------------------------------------

    def _arrived(self, side: AsofSide, batches: Iterable[pa.RecordBatch]) -> _Timed:
        received = list(batches)
        rows = pa.Table.from_batches(received) if received else _nothing(side)
        grouping = StateSchema(pa.schema(self._left.key_fields), pa.schema([]))
        keys = key_rows(grouping, [rows.column(key) for key in side.keys], rows.column(HASH_COLUMN).to_numpy())
        times = contiguous(rows.column(side.time)).cast(side.time_type)
        values = tuple(contiguous(rows.column(field.name)).cast(field.type) for field in side.values)
        is_timed = np.ones(len(times), dtype=np.bool_) if (valid := valid_mask(times)) is None else valid
        return _Timed(grouping_keys(keys, len(side.keys)), _words(times.fill_null(0)), is_timed, values)

    def _due(self, arrived: _Timed, table: StateTable, context: BatchContext) -> tuple[_Timed, StateRows | None]:
        """The rows that are joined in this batch, and those of them that came which wait from now on."""
        border = context.watermark_us
        waits = arrived.is_comparable
        if border is not None:
            waits = waits & (arrived.times > border)
        later = np.flatnonzero(waits)
        kept = arrived.take(later)
        due = arrived.take(np.flatnonzero(~waits))
        if border is not None and border != context.late_watermark_us:
            due = _concat([self._come(table, context.late_watermark_us, border), due])
        if len(later) == 0:
            return due, None
        row_id = [pa.array(np.full(len(later), context.sequence)), pa.array(later)]
        times = from_words(kept.times, self._left.time_type)
        nothing = np.zeros(len(later), dtype=np.bool_)
        owners = np.arange(len(later))
        return due, subkey_changes(table, kept.keys, owners, [times, *row_id], kept.values, nothing)

    def _come(self, table: StateTable, after: int | None, until: int) -> _Timed:
        """The waiting rows with a time in ``(after, until]``."""
        keys = len(self._left.keys)

        def has_come(rows: StateRows) -> Mask:
            times = _words(rows.keys.columns[keys])
            return times <= until if after is None else (times <= until) & (times > after)

        rows = rows_where(table, has_come)
        times = _words(rows.keys.columns[keys])
        return _Timed(grouping_keys(rows.keys, keys), times, np.ones(len(times), dtype=np.bool_), rows.values)

    # -- what is kept of the versions -------------------------------------------------------------------------------

    def _outdated(self, border: int) -> int | None:
        """No row above the border looks back to a version at or below this."""
        return None if self._tolerance_us is None else border - self._tolerance_us

    def _gone(self, known: _Known, context: BatchContext) -> Mask:
        """Which versions nobody can ask for after this batch."""
        border = context.watermark_us
        gone = known.versions.superseded(border)
        if border is None:
            return gone
        outdated = self._outdated(border)
        if outdated is not None:
            gone |= known.versions.times <= outdated
        if self._deleted is not None and self._right.reading.late_by is not None:
            # What it ends is gone with it, and no version from before it can come any more.
            gone |= self._is_deletion(known, known.versions.rows) & (known.versions.times <= border)
        return gone

    def _is_deletion(self, known: _Known, rows: Rows) -> Mask:
        if self._deleted is None:
            return np.zeros(len(rows), dtype=np.bool_)
        column = [field.name for field in self._right.values].index(self._deleted)
        marks = known.values[column].fill_null(False).to_numpy(zero_copy_only=False)
        mask: Mask = marks.take(rows)
        return mask

    def _expired(self, context: BatchContext) -> dict[str, Expired]:
        border, keys = context.watermark_us, len(self._left.keys)
        if border is None:
            return {}
        tests: dict[str, Expired] = {_VERSIONS: expired_versions(keys, border, self._outdated(border))}
        if self._mode == "wait":
            tests[_WAITING] = lambda rows: _words(rows.keys.columns[keys]) <= border
        return tests

    # -- what comes out ---------------------------------------------------------------------------------------------

    def _joined(self, due: _Timed, known: _Known) -> pa.Table:
        """The rows that are due, each with its version."""
        place = known.place
        has_version = place != NO_VERSION
        if len(known.versions):
            since = known.versions.times.take(place)
            has_version &= ~self._is_deletion(known, known.versions.rows.take(place))
            if self._tolerance_us is not None:
                has_version &= due.times - since <= self._tolerance_us
        else:
            since = np.zeros(len(place), dtype=np.int64)
        if self._how == "inner":
            rows = np.flatnonzero(has_version)
            due, since, place, has_version = due.take(rows), since.take(rows), place.take(rows), has_version.take(rows)
        found = known.versions.rows.take(place) if len(known.versions) else place
        chosen = pa.array(found, mask=~has_version)
        of_left = _by_column(self._left, due.values, from_words(due.times, self._left.time_type, due.is_timed))
        of_right = _by_column(
            self._right,
            tuple(column.take(chosen) for column in known.values),
            from_words(since, self._right.time_type, has_version),
        )
        shown = [field.name for field in self._right.others if field.name != self._deleted]
        left = [of_left[field.name] for field in self._left.others]
        return pa.table([*due.keys.columns, *left, *(of_right[name] for name in shown)], schema=self._output)


class _Known(NamedTuple):
    """The versions of the keys that a batch reads or writes.

    Attributes:
        keys: These keys.
        versions: By key and time; the stored rows come first among their rows.
        stored: How many rows were stored.
        values: Columns of the stored rows, then of the new ones.
        place: For each row that is due the place of its version, or ``NO_VERSION``.
    """

    keys: KeyRows
    versions: Versions
    stored: int
    values: tuple[pa.Array, ...]
    place: Rows

    @classmethod
    def of(cls, table: StateTable, due: _Timed, arrived: _Timed, border: int | None) -> Self:
        """Reads the keys of the rows that are due and of the versions that arrived.

        Stored versions are read up to the time of the rows that are due, and up to the border, where they may go.
        """
        asking = np.flatnonzero(due.is_comparable)
        every = KeyRows.concat([arrived.keys, due.keys.take(asking)])
        groups = group_rows(every)
        owners = np.empty(len(every), dtype=np.int64)
        owners[groups.order] = groups.index()
        count = len(arrived.times)
        until = np.full(len(groups), 0 if border is None else border)
        np.maximum.at(until, owners[count:], due.times.take(asking))
        before = rows_of_keys(table, groups.keys, order_of_times(until))
        times = _words(before.rows.keys.columns[len(groups.keys.columns)])
        versions = Versions.of(
            np.concatenate([before.owners, owners[:count]]), np.concatenate([times, arrived.times]), len(times)
        )
        place = np.full(len(due.times), NO_VERSION)
        place[asking] = versions.holding(owners[count:], due.times.take(asking))
        values = tuple(map(_joined_arrays, before.rows.values, arrived.values))
        return cls(groups.keys, versions, len(times), values, place)

    def changes(self, table: StateTable, gone: Mask) -> StateRows | None:
        """What is to be stored: new versions, and a tombstone for each stored one that is gone."""
        is_new = self.versions.rows >= self.stored
        chosen = np.flatnonzero(np.where(gone, self.versions.replaces, is_new))
        if len(chosen) == 0:
            return None
        times = from_words(self.versions.times.take(chosen), table.schema.keys.types[-1])
        rows = self.versions.rows.take(chosen)
        values = [take(column, rows) for column in self.values]
        return subkey_changes(
            table,
            self.keys,
            self.versions.owners.take(chosen),
            [times],
            values,
            gone.take(chosen),
            order_of_times(self.versions.times.take(chosen)),
        )


def _by_column(side: AsofSide, values: Sequence[pa.Array], times: pa.Array) -> dict[str, pa.Array]:
    return {side.time: times} | {field.name: column for field, column in zip(side.values, values, strict=True)}


def _concat(parts: Sequence[_Timed]) -> _Timed:
    return _Timed(
        KeyRows.concat([part.keys for part in parts]),
        np.concatenate([part.times for part in parts]),
        np.concatenate([part.is_timed for part in parts]),
        tuple(map(_joined_arrays, *(part.values for part in parts))),
    )


def _joined_arrays(*arrays: pa.Array) -> pa.Array:
    filled = [array for array in arrays if len(array)] or list(arrays[:1])
    return filled[0] if len(filled) == 1 else pa.concat_arrays(filled)


def _words(times: pa.Array) -> Times:
    """Microseconds since the epoch, of a column without nulls."""
    words = fixed_words(times)
    return np.empty(0, dtype=np.int64) if words is None else words.view(np.int64)


def _nothing(side: AsofSide) -> pa.Table:
    fields = [side.schema.field(name) for name in side.reading.columns]
    return pa.schema([*fields, pa.field(HASH_COLUMN, pa.int64())]).empty_table()
