"""``KeyedStream.top``: the best rows of each key, as an operator of a pipeline.

The output has all rows of each key whose best rows have changed, with their ``rank`` from 1.

What is kept:

- Of rows that stay as they are: the best ones. A row that is not among them never will be.
- Of rows that may be taken back: all of them, because any may become one of the best. A row is known by its values.

Facts:
- Equal rows are ordered by arrival: the order of batches, then that in which a subtask receives the rows of one batch.
- A row with null in the order is worse than any without, whatever the direction. NaN is greater than every number.
- Where the time of the watermark is part of the key, a key goes when the watermark has passed it, and later rows are
  late. Forgetting is a comparison where rows are read; merges leave the same rows out.
- Only the rows of the keys of a batch are read, and only rows that came or went are written. With a time to live all
  rows of these keys are written, as their ends are put off together: a key goes as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self, cast

import numpy as np
import pyarrow as pa

from stateline.errors import ErrorKind, InternalError, InvalidInputError
from stateline.options import check_known, parse_choice, parse_int
from stateline.pipeline.event_time import WatermarkPlan
from stateline.pipeline.operators.api import (
    CHECKPOINT_COLUMN,
    HASH_COLUMN,
    WEIGHT_COLUMN,
    BatchContext,
    Emits,
    OperatorProgram,
    Processed,
    Reading,
)
from stateline.pipeline.operators.ranking import TIES, Ranked, Ties, may_be_best, order_of, ranked
from stateline.state.aggregate.ordering import is_orderable
from stateline.state.columns import Rows, contiguous, take
from stateline.state.expiry import over_by
from stateline.state.keys import Groups, KeyRows, group_rows, key_rows
from stateline.state.merge import Expired
from stateline.state.rows import StateRows
from stateline.state.schema import StateSchema, stored_key_type, stored_type
from stateline.state.subkeys import rows_of_keys, subkey_changes
from stateline.state.table import StateTable
from stateline.state.time_to_live import Lifetime, expiry_test, with_expiry

__all__ = ["ARRIVAL", "RANK", "TopProgram"]

RANK: Final = "rank"
"""Output column: 1 for the best row of a key."""
ARRIVAL: Final = ".arrival"
"""State column: the number of the batch that a row came with, and its place in that."""

_COUNT: Final = ".count"
_TABLE: Final = "rows"
_OPERATION: Final = "top"
_ROWS_PER_BATCH: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Rows of the keys of a batch.

    Attributes:
        owners: The number of each row's key.
        columns: As they are shown, without key columns.
        arrivals: In the order of arrival.
        counts: How many equal rows each one stands for; 1 where rows stay as they are.
    """

    owners: Rows
    columns: tuple[pa.Array, ...]
    arrivals: Rows
    counts: Rows

    def __len__(self) -> int:
        return len(self.owners)

    def take(self, rows: Rows) -> _Candidates:
        """The rows numbered, in that order."""
        columns = tuple(take(column, rows) for column in self.columns)
        return _Candidates(self.owners.take(rows), columns, self.arrivals.take(rows), self.counts.take(rows))

    def followed_by(self, other: _Candidates) -> _Candidates:
        """Both."""
        return _Candidates(
            np.concatenate([self.owners, other.owners]),
            tuple(map(_joined, self.columns, other.columns)),
            np.concatenate([self.arrivals, other.arrivals]),
            np.concatenate([self.counts, other.counts]),
        )


@dataclass(frozen=True, slots=True)
class _Change:
    """What a batch does to the best rows of its keys.

    Attributes:
        before: The best rows, before, of the keys whose best rows change, by key and rank.
        before_ranks: Their ranks.
        now: The same, now.
        now_ranks: Their ranks.
        written: The rows that are stored, or stored with another count; those of count 0 go.
    """

    before: _Candidates
    before_ranks: Any
    now: _Candidates
    now_ranks: Any
    written: _Candidates


@dataclass(frozen=True, slots=True)
class TopProgram(OperatorProgram):
    """The best rows of each key of one stream."""

    _rows: pa.Schema  # What is shown, key columns first.
    _keys: tuple[str, ...]
    _n: int
    _order: tuple[tuple[str, bool], ...]  # Columns, and whether the smallest value is the best.
    _ties: Ties
    _updates: bool
    _closes_by: str | None
    _drops_late_rows: bool
    _ttl_ms: int | None = None

    @classmethod
    def bind(
        cls,
        schema: pa.Schema,
        keys: Sequence[str],
        n: int,
        by: str | Sequence[str],
        *,
        ascending: bool | Sequence[bool] = False,
        ties: str = "first",
        columns: Sequence[str] | None = None,
        watermark: WatermarkPlan | None = None,
        updates: bool = False,
        ttl_ms: int | None = None,
    ) -> Self:
        """Checks what can be checked before a row comes.

        Args:
            schema: Of the stream.
            keys: Its key columns.
            n: Rows of a key, 1 or more.
            by: The column that says which row is better, or several: the next one decides among equal rows.
            ascending: Whether smaller is better; one for all columns, or one for each.
            ties: See :data:`~stateline.pipeline.operators.ranking.Ties`.
            columns: Columns of the stream that are shown beside the key; all by default.
            watermark: That of the stream.
            updates: Whether rows of the stream may be taken back: they carry weights.
            ttl_ms: A key that no row touched for so many milliseconds of processing time is forgotten.

        Raises:
            InvalidInputError: ``n`` below 1, a column that does not exist or has no order, a name that the output
                needs; or rows that may be taken back, with a time to live, or that cannot be told from each other.
        """
        if updates and ttl_ms is not None:
            raise InvalidInputError(
                "cannot follow an operator that replaces rows: what is forgotten could not be taken back",
                operation=_OPERATION,
                subject="ttl",
                hint="Leave it out, or let the operator in front append, such as windows in mode 'append'",
            )
        order = _order_of(schema, keys, by, ascending)
        shown: Sequence[str] = schema.names
        if columns is not None:
            check_known(columns, schema.names, "column")
            shown = [*columns, *(column for column, _ in order)]
        kept = list(dict.fromkeys([*keys, *shown]))
        for name in (RANK, CHECKPOINT_COLUMN):
            if name in kept:
                raise InvalidInputError(
                    "is the name of a column that the output gets",
                    operation=_OPERATION,
                    subject=f"{name!r}",
                    hint="Rename it, or leave it out: top(..., columns=[...])",
                )
        rows = [_kept_field(schema.field(name), is_compared=updates or name in keys) for name in kept]
        closes = watermark is not None and watermark.column in keys
        program = cls(
            pa.schema(rows),
            tuple(keys),
            parse_int(n, "n", minimum=1),
            order,
            cast("Ties", parse_choice(ties, TIES, "ties")),
            updates,
            watermark.column if watermark is not None and closes else None,
            watermark is not None and watermark.drops_late_rows,
            ttl_ms,
        )
        program.tables  # noqa: B018 - refuses names that are taken
        return program

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self._keys

    @property
    def input_columns(self) -> tuple[str, ...]:
        return tuple(self._rows.names)

    @property
    def wants_hash(self) -> bool:
        return True

    @property
    def readings(self) -> tuple[Reading, ...]:
        """One: where the time of the watermark is part of the key, a row is late when that has been passed."""
        reading = Reading(key_columns=self.key_columns, columns=self.input_columns)
        return (replace(reading, late_by=self._closes_by) if self._drops_late_rows else reading,)

    @property
    def emits(self) -> Emits:
        # Of a key that is forgotten nobody knows the rows that its next ones replace.
        return "updates" if self._ttl_ms is None else "unknown"

    @property
    def removals_unknown(self) -> str:
        if self._ttl_ms is not None:
            return "nobody looks for the keys whose time to live is over"
        return "" if self._closes_by is None else "nobody looks for the keys that the watermark has passed"

    @property
    def event_time_columns(self) -> tuple[str, ...]:
        return () if self._closes_by is None or not self._drops_late_rows else (self._closes_by,)

    @property
    def ttl_ms(self) -> int | None:
        return self._ttl_ms

    @property
    def tables(self) -> Mapping[str, StateSchema]:
        keys, others = (list(self._rows)[part] for part in (slice(len(self._keys)), slice(len(self._keys), None)))
        arrival = pa.field(ARRIVAL, pa.int64())
        if self._updates:
            values = pa.schema([arrival, (_COUNT, pa.int64())])
            return {_TABLE: StateSchema(pa.schema([*keys, *others]), values, subkeys=len(others))}
        best = StateSchema(pa.schema([*keys, arrival]), pa.schema(others), subkeys=1)
        return {_TABLE: best if self._ttl_ms is None else with_expiry(best, _OPERATION)}

    @property
    def definition(self) -> str:
        order = [[column, "ascending" if ascending else "descending"] for column, ascending in self._order]
        said = {"program": _OPERATION, "keys": list(self._keys), "n": self._n, "order": order, "ties": self._ties}
        more = {"updates": self._updates, "ttl": self._ttl_ms is not None}
        return json.dumps(said | {name: True for name, holds in more.items() if holds})

    @property
    def output_schema(self) -> pa.Schema:
        """The key columns, the other columns, ``rank`` and ``checkpoint_id``."""
        rank = pa.field(RANK, pa.int32(), nullable=False)
        return self._rows.append(rank).append(pa.field(CHECKPOINT_COLUMN, pa.int64(), nullable=False))

    def process(
        self, batches: Iterable[pa.RecordBatch], tables: Mapping[str, StateTable], context: BatchContext
    ) -> Processed:
        """Compares the rows with the stored ones of their keys."""
        received = list(batches)
        rows = pa.Table.from_batches(received) if received else None
        over = self._over(context.watermark_us, context)
        expired = {} if over is None else {_TABLE: over}
        if rows is None or rows.num_rows == 0:
            return Processed(changes={}, expired=expired)
        table = tables[_TABLE]
        groups = self._grouped(rows)
        stored, came = self._stored(table, groups.keys, context), self._came(rows, groups, context)
        if self._updates:
            change = self._among_all(stored, came, groups.keys)
        else:
            change = self._among_best(stored, came, retracts=context.retracts)
        changes = self._changes(table, groups.keys, change.written, context)
        return Processed(
            changes={_TABLE: changes} if len(changes) else {},
            output=self._output(groups.keys, change.now, change.now_ranks, context),
            retracted=self._output(groups.keys, change.before, change.before_ranks, context)
            if context.retracts
            else None,
            expired=expired,
            metrics={"rows": rows.num_rows, "keys": len(groups)},
        )

    # -- what is there ----------------------------------------------------------------------------------------------

    @property
    def _others(self) -> list[pa.Field]:
        return list(self._rows)[len(self._keys) :]

    def _grouped(self, rows: pa.Table) -> Groups:
        schema = StateSchema(pa.schema(list(self._rows)[: len(self._keys)]), pa.schema([]))
        keys = [rows.column(name) for name in self._keys]
        return group_rows(key_rows(schema, keys, rows.column(HASH_COLUMN).to_numpy()))

    def _came(self, rows: pa.Table, groups: Groups, context: BatchContext) -> _Candidates:
        """The rows of the batch."""
        owners = np.empty(rows.num_rows, dtype=np.int64)
        owners[groups.order] = groups.index()
        arrivals = context.sequence * _ROWS_PER_BATCH + np.arange(rows.num_rows)
        counts = np.ones(rows.num_rows, dtype=np.int64)
        if self._updates:
            counts = rows.column(WEIGHT_COLUMN).to_numpy().astype(np.int64)
        columns = tuple(_plain(rows.column(field.name), field.type) for field in self._others)
        return _Candidates(owners, columns, arrivals, counts)

    def _stored(self, table: StateTable, keys: KeyRows, context: BatchContext) -> _Candidates:
        """The rows that are stored for the keys of the batch."""
        found = rows_of_keys(table, keys)
        rows, owners = found.rows, found.owners
        over = self._over(context.late_watermark_us, context)
        if over is not None and (gone := over(rows)).any():
            rows, owners = rows.take(np.flatnonzero(~gone)), owners[~gone]
        others = rows.keys.columns[len(self._keys) :]
        if self._updates:
            arrivals, counts = (column.to_numpy() for column in rows.values)
            return _Candidates(owners, others, arrivals, counts)
        columns = rows.values[: len(self._others)]
        return _Candidates(owners, columns, others[0].to_numpy(), np.ones(len(rows), dtype=np.int64))

    def _over(self, watermark_us: int | None, context: BatchContext) -> Expired | None:
        """A test: which rows belong to keys that are forgotten, by the watermark or the clock; ``None`` for no key."""
        tests = [] if self._closes_by is None else [over_by(self._keys.index(self._closes_by), watermark_us)]
        if self._ttl_ms is not None:
            tests.append(expiry_test(context.now_ms))
        return (lambda rows: np.logical_or.reduce([test(rows) for test in tests])) if tests else None

    # -- what changes -----------------------------------------------------------------------------------------------

    def _among_best(self, stored: _Candidates, came: _Candidates, *, retracts: bool) -> _Change:
        """The change where all stored rows are the best ones."""
        old = len(stored)
        owners = np.concatenate([stored.owners, came.owners])
        order = self._order_by([stored, came])
        rows = may_be_best(owners, order, old, self._n)
        best = self._ranked(owners, order, np.concatenate([stored.arrivals, came.arrivals]), rows)
        news = best.rows >= old
        changed = np.zeros(int(owners.max()) + 1, dtype=np.bool_)
        changed[owners.take(best.rows[news])] = True
        best = best.where(changed.take(owners.take(best.rows)))
        fresh = best.rows[best.rows >= old] - old
        places = best.rows.copy()
        places[places >= old] = old + np.arange(len(fresh))
        new = came.take(fresh)
        left = np.ones(old, dtype=np.bool_)
        left[best.rows[best.rows < old]] = False
        left &= changed.take(stored.owners)
        counted = replace(stored, counts=np.where(left, 0, stored.counts))
        written = new.followed_by(counted if self._ttl_ms is not None else counted.take(np.flatnonzero(left)))
        before, ranks = stored.take(np.empty(0, dtype=np.int64)), np.empty(0, dtype=np.int32)
        if retracts:
            chosen = np.flatnonzero(changed.take(stored.owners))
            was = self._ranked(stored.owners, [part[:old] for part in order], stored.arrivals, chosen)
            before, ranks = stored.take(was.rows), was.ranks
        return _Change(before, ranks, stored.followed_by(new).take(places), best.ranks, written)

    def _among_all(self, stored: _Candidates, came: _Candidates, keys: KeyRows) -> _Change:
        """The change where all rows are stored, and some are taken back."""
        both = stored.followed_by(came)
        whole = group_rows(self._whole_keys(keys, both))
        first = whole.order.take(whole.starts)
        counts = np.add.reduceat(both.counts.take(whole.order), whole.starts)
        if (counts < 0).any():
            raise InternalError("a row was taken back that is not there", operation=_OPERATION)
        counted = both.counts.copy()
        counted[len(stored) :] = 0  # Of the first row of a group: what is stored of it.
        counts_before = counted.take(first)
        rows = both.take(first)
        order = self._order_by([rows])
        was = self._ranked_counted(rows, order, counts_before)
        now = self._ranked_counted(rows, order, counts)
        span = int(max(was.places.max(initial=0), now.places.max(initial=0))) + 1
        differ = np.setxor1d(was.rows * span + was.places, now.rows * span + now.places) // span
        changed = np.zeros(len(keys), dtype=np.bool_)
        changed[rows.owners.take(differ)] = True
        was, now = (one.where(changed.take(rows.owners.take(one.rows))) for one in (was, now))
        written = np.flatnonzero(counts != counts_before)
        return _Change(
            rows.take(was.rows),
            was.ranks,
            rows.take(now.rows),
            now.ranks,
            replace(rows, counts=counts).take(written),
        )

    def _order_by(self, parts: Sequence[_Candidates]) -> list[Any]:
        names = [field.name for field in self._others]
        columns = []
        for name, _ in self._order:
            number = names.index(name)
            columns.append(pa.concat_arrays([part.columns[number] for part in parts]))
        return order_of(columns, [ascending for _, ascending in self._order])

    def _ranked(self, owners: Rows, order: Sequence[Any], arrivals: Rows, rows: Rows) -> Ranked:
        """The best of some rows."""
        best = ranked(owners.take(rows), [part.take(rows) for part in order], arrivals.take(rows), self._n, self._ties)
        return replace(best, rows=rows.take(best.rows))

    def _ranked_counted(self, rows: _Candidates, order: Sequence[Any], counts: Rows) -> Ranked:
        """The best rows, where each stands for several."""
        repeated = np.repeat(np.arange(len(rows)), counts if self._ties == "all" else np.minimum(counts, self._n))
        return self._ranked(rows.owners, order, rows.arrivals, repeated)

    # -- what comes of it -------------------------------------------------------------------------------------------

    def _whole_keys(self, keys: KeyRows, rows: _Candidates) -> KeyRows:
        """The rows as keys of the table of all rows."""
        grouping = keys.take(rows.owners)
        return key_rows(self.tables[_TABLE], [*grouping.columns, *rows.columns])

    def _changes(self, table: StateTable, keys: KeyRows, written: _Candidates, context: BatchContext) -> StateRows:
        gone = written.counts == 0
        if self._updates:
            values = [pa.array(written.arrivals), pa.array(written.counts)]
            return subkey_changes(table, keys, written.owners, written.columns, values, gone)
        values = Lifetime(context.now_ms, self._ttl_ms).stamped(written.columns, len(written))
        return subkey_changes(table, keys, written.owners, [pa.array(written.arrivals)], values, gone)

    def _output(self, keys: KeyRows, rows: _Candidates, ranks: Any, context: BatchContext) -> pa.Table | None:
        if len(rows) == 0:
            return None
        checkpoint = pa.array(np.full(len(rows), context.checkpoint_id))
        columns = [*keys.take(rows.owners).columns, *rows.columns, pa.array(ranks), checkpoint]
        return pa.Table.from_arrays(columns, schema=self.output_schema)


def _order_of(
    schema: pa.Schema, keys: Sequence[str], by: str | Sequence[str], ascending: bool | Sequence[bool]
) -> tuple[tuple[str, bool], ...]:
    """The columns that rows are compared by, and their directions."""
    columns = [by] if isinstance(by, str) else list(by)
    directions = [ascending] * len(columns) if isinstance(ascending, bool) else list(ascending)
    if not columns or len(directions) != len(columns):
        raise InvalidInputError(
            f"must name a column or more, with one direction or one for each: got {columns} and {directions}",
            operation=_OPERATION,
            subject="by",
            hint='Such as top(3, "price"), or top(1, ["price", "at"], ascending=[False, True])',
        )
    check_known(columns, schema.names, "column")
    for column in columns:
        if column in keys:
            raise InvalidInputError(
                "cannot order the rows of a key: it is part of the key",
                operation=_OPERATION,
                subject=f"column {column!r}",
                hint="Leave it out of by, or out of the key",
            )
        kind = schema.field(column).type
        if not is_orderable(kind):
            raise InvalidInputError(
                f"has type {kind}, which has no order",
                operation=_OPERATION,
                subject=f"column {column!r}",
                hint="Use a number, string, date, timestamp, boolean, binary or decimal",
                kind=ErrorKind.SCHEMA_MISMATCH,
            )
    return tuple(zip(columns, directions, strict=True))


def _kept_field(field: pa.Field, *, is_compared: bool) -> pa.Field:
    """A column as it is stored and shown.

    Raises:
        InvalidInputError: It cannot be stored; or its values cannot be compared, where rows are known by them.
    """
    if not is_compared:
        return pa.field(field.name, stored_type(field.type, field.name))
    try:
        return pa.field(field.name, stored_key_type(field.type, field.name))
    except InvalidInputError as error:
        raise InvalidInputError(
            f"has type {field.type}, whose values cannot be compared",
            operation=_OPERATION,
            subject=f"column {field.name!r}",
            hint="The operator in front takes rows back, and they are found by their values. Leave the column out: "
            "top(..., columns=[...])",
            kind=ErrorKind.SCHEMA_MISMATCH,
        ) from error


def _plain(column: Any, kind: pa.DataType) -> pa.Array:
    array = contiguous(column)
    return array if array.type == kind else array.cast(kind)


def _joined(one: pa.Array, other: pa.Array) -> pa.Array:
    return one if len(other) == 0 else other if len(one) == 0 else pa.concat_arrays([one, other])
