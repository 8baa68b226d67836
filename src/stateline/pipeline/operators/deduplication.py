"""``KeyedStream.drop_duplicates``: the first row of each key, as an operator of a pipeline.

A row passes if its key is not remembered. First is what came first: within a batch the order in which the rows arrive,
whatever their times say, as in Spark. What passed is never taken back.

What is remembered of a key is when it may be forgotten:

- Nothing says so: it is remembered for ever.
- The column of the watermark is part of the key: forgotten when the watermark has reached its time.
- ``within_watermark``: forgotten when the watermark has reached ``expires_at``, the time of the row that passed and the
  delay of the watermark. Duplicates do not put it off.
- ``ttl``: forgotten when processing time has reached ``expires_at_ms``, so long after the row passed.

Invariants:
- A key is forgotten at the end of a batch. What a batch remembers is what the watermark of the batch before, and the
  time of this one, leave; so forgetting is a comparison where a key is looked up, and state is never searched for it.
  Merges leave out the same keys.
- A row that is late never passes, so a key that is forgotten by its own time does not come back
  (but for ``late_data="keep"``, where late rows pass again in every batch).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import pyarrow as pa

from stateline.errors import InvalidInputError
from stateline.pipeline.event_time import WatermarkPlan
from stateline.pipeline.operators.api import HASH_COLUMN, BatchContext, Emits, OperatorProgram, Processed, Reading
from stateline.state.columns import Mask, Rows, at_or_below, contiguous, fixed_words, from_words, valid_mask
from stateline.state.keys import KeyRows, group_rows, key_rows
from stateline.state.merge import Expired
from stateline.state.rows import StateRows
from stateline.state.schema import StateSchema
from stateline.state.table import Found, StateTable
from stateline.state.time_to_live import Lifetime, expiry_test, with_expiry

__all__ = ["EXPIRES_AT", "DropDuplicatesProgram"]

EXPIRES_AT: Final = "expires_at"
"""Value column of ``within_watermark``: the event time at which the key is forgotten."""

_TABLE: Final = "keys"
_OPERATION: Final = "drop_duplicates"
_TIME_MAX: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class DropDuplicatesProgram(OperatorProgram):
    """The first row of each key of one stream."""

    _stream: pa.Schema
    _grouped_by: tuple[str, ...]
    _state: StateSchema
    _watermark: WatermarkPlan | None
    _event_times: tuple[str, ...]
    _within_watermark: bool
    _ttl_ms: int | None

    @classmethod
    def bind(
        cls,
        schema: pa.Schema,
        keys: Sequence[str],
        *,
        grouped_by: Sequence[str] = (),
        watermark: WatermarkPlan | None = None,
        event_times: Sequence[str] = (),
        within_watermark: bool = False,
        ttl_ms: int | None = None,
        updates: bool = False,
    ) -> Self:
        """Checks what can be checked before a row comes.

        Args:
            schema: Of the stream.
            keys: Names of its key columns, as the user gave them.
            grouped_by: The names of the same columns in the stream, where they differ.
            watermark: That of the stream.
            event_times: Further columns that it governs, which the rows hand on as they are.
            within_watermark: Whether a key is remembered for the delay of the watermark.
            ttl_ms: Processing time after which a key is forgotten, in milliseconds.
            updates: Whether the stream takes rows back that it gave before.

        Raises:
            InvalidInputError: ``within_watermark`` without a watermark, or together with ``ttl``; a key column of the
                name that state needs; a stream that takes rows back.
        """
        if updates:
            raise InvalidInputError(
                "cannot follow an operator that replaces rows: the first row of a key may be one that is taken back",
                operation=_OPERATION,
                subject="stream",
                hint="Let the operator in front append, such as windows in mode 'append', or keep the newest rows of a "
                "key with top(1, by=...)",
            )
        if within_watermark and watermark is None:
            raise InvalidInputError(
                "cannot be used without a watermark: it says how long a key is remembered",
                operation=_OPERATION,
                subject="within_watermark",
                hint="Give the stream one, KeyedStream(..., watermark=(column, delay)), or leave within_watermark out",
            )
        if within_watermark and ttl_ms is not None:
            raise InvalidInputError(
                "cannot be used together with a ttl: each says when a key is forgotten",
                operation=_OPERATION,
                subject="within_watermark",
                hint="Give one of them: within_watermark goes by event time, ttl by processing time",
            )
        columns = tuple(grouped_by or keys)
        fields = [schema.field(column).with_name(key) for key, column in zip(keys, columns, strict=True)]
        ends = schema.field(watermark.column).type if within_watermark and watermark is not None else None
        state = _state_of(fields, ends, has_ttl=ttl_ms is not None)
        return cls(schema.remove_metadata(), columns, state, watermark, tuple(event_times), within_watermark, ttl_ms)

    @property
    def key_columns(self) -> tuple[str, ...]:
        return tuple(self._state.keys.names)

    @property
    def input_columns(self) -> tuple[str, ...]:
        """All columns of the stream, keys first."""
        return tuple(dict.fromkeys([*self.key_columns, *self._stream.names]))

    @property
    def wants_hash(self) -> bool:
        return True

    @property
    def readings(self) -> tuple[Reading, ...]:
        """One stream; rows are late by the watermark's column, also where it is not part of the key."""
        watermark = self._watermark
        late_by = watermark.column if watermark is not None and watermark.drops_late_rows else None
        return (Reading(key_columns=self.key_columns, columns=self.input_columns, late_by=late_by),)

    @property
    def emits(self) -> Emits:
        return "appends"

    @property
    def event_time_columns(self) -> tuple[str, ...]:
        """The columns that the watermark governs, its own first, where no row comes late."""
        (reading,) = self.readings
        return () if reading.late_by is None else tuple(dict.fromkeys([reading.late_by, *self._event_times]))

    @property
    def ttl_ms(self) -> int | None:
        return self._ttl_ms

    @property
    def tables(self) -> Mapping[str, StateSchema]:
        return {_TABLE: self._state}

    @property
    def definition(self) -> str:
        """Keys, and what makes them forgotten. How long they are remembered may change."""
        said: dict[str, object] = {"program": _OPERATION, "keys": list(self.key_columns)}
        if self._within_watermark:
            said["within_watermark"] = True
        if self._ttl_ms is not None:
            said["ttl"] = True
        return json.dumps(said)

    @property
    def output_schema(self) -> pa.Schema:
        """That of the stream."""
        return self._stream

    @property
    def acts_on_watermark(self) -> bool:
        """As in Spark: a watermark that advances makes rows late and keys forgotten, also where no rows come."""
        return self._watermark is not None

    def process(
        self, batches: Iterable[pa.RecordBatch], tables: Mapping[str, StateTable], context: BatchContext
    ) -> Processed:
        """Lets the first row of each key pass that is not remembered, and remembers it."""
        received = [batch for batch in batches if batch.num_rows]
        expired = {} if (test := self._expired(context)) is None else {_TABLE: test}
        if not received:
            return Processed(changes={}, expired=expired)
        rows = pa.Table.from_batches(received)
        hashes = rows.column(HASH_COLUMN).to_numpy()
        groups = group_rows(key_rows(self._state, [rows.column(name) for name in self.key_columns], hashes))
        found = tables[_TABLE].probe(groups.keys)
        remembered = self._remembered(groups.keys, found, context)
        new = np.flatnonzero(~remembered)
        first = groups.order.take(groups.starts.take(new))
        changes = self._changes(groups.keys.take(new), rows, first, context)
        if self._ttl_ms is not None:
            changes = self._with_ends(changes, groups.keys, found, remembered, context)
        metrics = {"rows": rows.num_rows, "keys": len(groups), "rows_duplicate": rows.num_rows - len(new)}
        return Processed(
            changes={_TABLE: changes} if len(changes) else {},
            output=self._passed(rows, first),
            expired=expired,
            metrics=metrics,
        )

    @property
    def _time_key(self) -> int | None:
        """Which key column is the watermark's; ``None`` where the key has no such time, or another rule goes first."""
        if self._watermark is None or self._within_watermark or self._watermark.column not in self._grouped_by:
            return None
        return self._grouped_by.index(self._watermark.column)

    def _lifetime(self, context: BatchContext) -> Lifetime:
        return Lifetime(context.now_ms, self._ttl_ms)

    def _remembered(self, keys: KeyRows, found: Found, context: BatchContext) -> Mask:
        """Which keys have not been forgotten before this batch."""
        mask = found.mask
        live = self._lifetime(context).live(found.values)
        if live is not None:
            mask = mask & live
        if context.late_watermark_us is not None:
            mask = mask & ~self._reached(keys, found.values, context.late_watermark_us)
        return mask

    def _reached(self, keys: KeyRows, values: Sequence[pa.Array], watermark_us: int) -> Mask:
        """Which keys are forgotten because a watermark has come so far."""
        if self._within_watermark:
            return at_or_below(values[0], watermark_us)
        time_key = self._time_key
        if time_key is not None:
            return at_or_below(keys.columns[time_key], watermark_us)
        return np.zeros(len(keys), dtype=np.bool_)

    def _changes(self, keys: KeyRows, rows: pa.Table, first: Rows, context: BatchContext) -> StateRows:
        """What is remembered of new keys, but for those that the end of this batch makes forgotten."""
        values: list[pa.Array] = []
        if self._within_watermark and self._watermark is not None:
            times = contiguous(rows.column(self._watermark.column))
            values = [_later(times, first, self._watermark.delay_us)]
        values = self._lifetime(context).stamped(values, len(keys))
        changes = StateRows(keys, tuple(values))
        if context.watermark_us is not None:
            over = self._reached(keys, values, context.watermark_us)
            if over.any():
                changes = changes.take(np.flatnonzero(~over))
        return changes

    def _with_ends(
        self, changes: StateRows, keys: KeyRows, found: Found, remembered: Mask, context: BatchContext
    ) -> StateRows:
        """The changes, and an end for remembered keys without one: they are older than the time to live itself."""
        endless = remembered & ~found.values[-1].is_valid().to_numpy(zero_copy_only=False)
        if not endless.any():
            return changes
        older = keys.take(np.flatnonzero(endless))
        given = StateRows(older, tuple(self._lifetime(context).stamped([], len(older))))
        together = StateRows.concat([changes, given])
        return together.take(np.argsort(together.keys.hashes, kind="stable"))

    def _passed(self, rows: pa.Table, first: Rows) -> pa.Table | None:
        """The rows numbered, in order of arrival."""
        if len(first) == 0:
            return None
        passes = np.zeros(rows.num_rows, dtype=np.bool_)
        passes[first] = True
        kept = rows.select(self._stream.names)
        return (kept if passes.all() else kept.filter(pa.array(passes))).cast(self._stream)

    def _expired(self, context: BatchContext) -> Expired | None:
        """Which keys nobody looks up any more after this batch; ``None`` where none is ever forgotten."""
        has_ttl, until_us = self._ttl_ms is not None, context.watermark_us
        goes_by_watermark = until_us is not None and (self._within_watermark or self._time_key is not None)
        if not has_ttl and not goes_by_watermark:
            return None
        outlived = expiry_test(context.now_ms)

        def expired(rows: StateRows) -> Mask:
            gone = outlived(rows) if has_ttl else np.zeros(len(rows), dtype=np.bool_)
            return gone | self._reached(rows.keys, rows.values, until_us) if until_us is not None else gone

        return expired


def _state_of(keys: Sequence[pa.Field], ends: pa.DataType | None, *, has_ttl: bool) -> StateSchema:
    """The schema of the table of keys; ``ends`` is the type of :data:`EXPIRES_AT`, if there is such a column."""
    if ends is not None and EXPIRES_AT in [field.name for field in keys]:
        raise InvalidInputError(
            "is the name of a column that within_watermark needs itself",
            operation=_OPERATION,
            subject=f"key {EXPIRES_AT!r}",
            hint="Rename yours",
        )
    values = [] if ends is None else [pa.field(EXPIRES_AT, ends)]
    state = StateSchema(pa.schema(keys), pa.schema(values))
    return with_expiry(state, _OPERATION) if has_ttl else state


def _later(times: pa.Array, rows: Rows, delay_us: int) -> pa.Array:
    """The times of some rows and a delay. No time counts as 1970, as in Spark, so such a key is forgotten soon."""
    words, valid = fixed_words(times), valid_mask(times)
    taken = np.zeros(len(rows), dtype=np.int64) if words is None else words.take(rows)
    if valid is not None:
        taken = np.where(valid.take(rows), taken, 0)
    return from_words(np.minimum(taken, _TIME_MAX - delay_us) + delay_us, times.type)
