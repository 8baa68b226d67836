"""A state table: a stack of runs, searched newest first.

- Both the keys asked for and the runs ascend by hash, so one pass of a binary search with narrowing bounds per run
  finds all candidates; whole keys are compared only where hashes are equal.
- A key found in a newer run, be it as a tombstone, is not looked for in older ones.
- A table is a value: it never changes. New changes make a new table.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from stateline.errors import InvalidInputError
from stateline.key_groups import KeyGroupRange, hash_bounds
from stateline.sizes import sizes
from stateline.state.columns import Mask, Rows, take
from stateline.state.gather import Piece, Places, gather
from stateline.state.keys import Hashes, KeyRows
from stateline.state.rows import StateRows, place_of
from stateline.state.runs import Run, SearchedBatches
from stateline.state.schema import StateSchema
from stateline.state.widths import retyped

__all__ = ["Found", "Located", "StateTable"]


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What a table holds for the keys asked for, in their order.

    Attributes:
        mask: Which keys are there.
        values: One column per value column; null where the key is not there.
    """

    mask: Mask
    values: tuple[pa.Array, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Located:
    """Rows that lie in ranges of hashes.

    Attributes:
        numbers: For each row the number of its range.
        places: Where the rows are.
        source: In what.
    """

    numbers: Rows
    places: Places
    source: SearchedBatches

    def take(self, chosen: Rows) -> Located:
        """Those numbered, ascending."""
        return Located(self.numbers.take(chosen), self.places.take(chosen), self.source)


class StateTable:
    """The state of one subtask.

    Args:
        schema: Keys and values.
        key_groups: What the subtask owns, inclusive.
        max_parallelism: Number of key groups.
        runs: Oldest first; a newer run wins.
    """

    __slots__ = ("key_groups", "max_parallelism", "runs", "schema")

    def __init__(
        self, schema: StateSchema, key_groups: KeyGroupRange, max_parallelism: int, runs: Sequence[Run] = ()
    ) -> None:
        self.schema = schema
        self.key_groups = key_groups
        self.max_parallelism = max_parallelism
        self.runs = tuple(runs)

    def __repr__(self) -> str:
        return f"StateTable({self.schema}, key groups {self.key_groups}, runs {len(self.runs)}, rows {self.rows})"

    @property
    def rows(self) -> int:
        """Rows in all runs: live ones, older versions of them and tombstones. Never fewer than live keys."""
        return sum(len(run) for run in self.runs)

    @property
    def is_append_only(self) -> bool:
        """Whether each key is in one run only: not where early versions wrote runs, which may repeat rows."""
        return self.schema.append_only and all(run.is_exact for run in self.runs)

    @property
    def nbytes(self) -> int:
        """Bytes of all these rows."""
        return sum(run.nbytes for run in self.runs)

    def with_changes(self, changes: StateRows) -> StateTable:
        """The table after ``changes``, which win over everything before; they stay in memory."""
        if len(changes) == 0:
            return self
        self.check_owned(changes.keys)
        newest = Run([changes], self.key_groups, self.max_parallelism)
        return StateTable(self.schema, self.key_groups, self.max_parallelism, (*self.runs, newest))

    def check_owned(self, keys: KeyRows) -> None:
        """Checks that sorted keys belong to this subtask.

        Raises:
            InvalidInputError: Some hash is outside its key groups: it came to the wrong subtask.
        """
        low, high = hash_bounds(self.key_groups, self.max_parallelism)
        if len(keys) and not low <= int(keys.hashes[0]) <= int(keys.hashes[-1]) < high:
            raise InvalidInputError(
                f"a key belongs to another subtask than that of key groups {self.key_groups}",
                operation="put",
                subject="key",
                hint="Rows must be shuffled by key_group_of(xxhash64(key)), with the max_parallelism of the state",
            )

    def probe(self, keys: KeyRows) -> Found:
        """Looks many keys up at once.

        Args:
            keys: Distinct, ascending by hash, as :func:`~stateline.state.keys.group_rows` gives them.

        Raises:
            InvalidInputError: A key of another subtask.
        """
        self.check_owned(keys)
        mask = np.zeros(len(keys), dtype=np.bool_)
        looking = np.ones(len(keys), dtype=np.bool_)
        pieces: list[Piece] = []
        sources: list[SearchedBatches] = []
        for searched, asked in _by_object(self.runs, keys.hashes):
            wanted = np.concatenate([np.flatnonzero(looking[part]) + part.start for part in asked])
            for found, places in searched.find(keys, wanted):
                looking[found] = False
                piece = Piece(found, places)
                live = searched.live(places)
                if live is not None:
                    piece = piece.take(np.flatnonzero(live))
                if len(piece.to):
                    mask[piece.to] = True
                    pieces.append(piece)
                    sources.append(searched)
        values = tuple(
            gather(field.type, pieces, [source.values[column] for source in sources], mask)
            for column, field in enumerate(self.schema.values)
        )
        return Found(mask, values)

    def between(
        self,
        lows: Hashes,
        highs: Hashes,
        looking: Mask | None = None,
        rows_max: int | None = None,
        *,
        preceded: bool = False,
    ) -> Iterator[Located]:
        """All rows whose hashes lie in ranges, newest run first: older versions and tombstones too.

        Of a table that is only appended to, each row is found once, even if runs of early versions repeat it.

        Args:
            lows: Where each range begins, inclusive; ascending.
            highs: Where it ends, inclusive; ascending, and of the same upper half.
            looking: Which ranges are still of interest. The caller may take some out between two answers: so it is
                asked about the first row of each range, before any other one is looked at.
            rows_max: Rows that come at a time, if no single range has more of them in one batch of a run. By default
                ``Sizes.located_rows``.
            preceded: Whether of each object that last row comes, too, which lies before a range, has its upper half and
                deletes nothing; and what deletes something between the two.

        Yields:
            Rows of one object each; none is empty.
        """
        located = self._located(lows, highs, looking, rows_max or sizes().located_rows, preceded=preceded)
        return self._first_copies(located) if self.schema.append_only and not self.is_append_only else located

    def _located(
        self, lows: Hashes, highs: Hashes, looking: Mask | None, rows_max: int, *, preceded: bool
    ) -> Iterator[Located]:
        """What :meth:`between` says, run by run."""
        for source, asked in _by_object(self.runs, lows):
            numbers = np.concatenate([np.arange(part.start, part.stop) for part in asked])
            if looking is not None:
                numbers = numbers[looking[numbers]]
            ranges = source.ranges_between(lows.take(numbers), highs.take(numbers), preceded=preceded)
            if looking is not None:
                for found, places in source.places_in(ranges.firsts(), rows_max):
                    yield Located(numbers.take(found), places, source)
                ranges = ranges.others()
                ranges = ranges.take(np.flatnonzero(looking[numbers.take(ranges.numbers)]))
            for found, places in source.places_in(ranges, rows_max):
                yield Located(numbers.take(found), places, source)

    def _first_copies(self, located: Iterator[Located]) -> Iterator[Located]:
        """The rows that are in no newer run: those of early versions may be in two."""
        for found in located:
            places, which = found.places.distinct()
            first = found.take(np.flatnonzero(~self._is_in_newer(found.source, places).take(which)))
            if len(first.numbers):
                yield first

    def _is_in_newer(self, source: SearchedBatches, places: Places) -> Mask:
        """Which rows of an object, ascending, are also in a run above that part of the object which has them."""
        keys = source.rows(places).keys
        found = np.zeros(len(keys), dtype=np.bool_)
        for number, run in enumerate(self.runs):
            for newer in self.runs[number + 1 :] if run.searched is source else ():
                if newer.searched is not source:
                    start = place_of(keys.hashes, max(run.low, newer.low))
                    end = place_of(keys.hashes, min(run.high, newer.high))
                    for again, _ in newer.searched.find(keys, np.flatnonzero(~found[start:end]) + start):
                        found[again] = True
        return found

    def scan(
        self, key_groups: KeyGroupRange | None = None, columns: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """All live rows, in no order that means anything.

        Rows are handed on as they lie, newest run first; only a batch of which some rows are hidden is copied. That is
        a third of what putting the runs in order costs, and no reader of all rows needs them in order.

        Args:
            key_groups: Of these rows only; all that the subtask owns by default.
            columns: Numbers of columns of ``schema.row``, in the order wanted; all of them by default.

        Yields:
            Batches of those columns; none is empty.
        """
        wanted = self.key_groups if key_groups is None else self.key_groups.intersection(key_groups)
        if len(wanted) == 0:
            return
        numbers = range(len(self.schema.row)) if columns is None else columns
        schema = pa.schema([self.schema.row.field(number) for number in numbers])
        is_append_only = self.is_append_only
        runs = [Run(run.batches, wanted, self.max_parallelism) for run in reversed(self.runs)]
        for age, run in enumerate(runs):
            for batch in run.batches:
                stored = (*batch.keys.columns, *batch.values)
                arrays = [stored[number] for number in numbers]
                gone = _gone(batch, [] if is_append_only else runs[:age])
                if gone.any():
                    live = np.flatnonzero(~gone)
                    arrays = [take(array, live) for array in arrays]
                if not gone.all():
                    yield pa.RecordBatch.from_arrays(list(retyped(arrays, schema.types)), schema=schema)


def _gone(batch: StateRows, newer: Sequence[Run]) -> Mask:
    """Which rows of a batch no reader sees: those that delete their key, or have a newer version."""
    hashes = batch.keys.hashes
    gone = np.zeros(len(batch), dtype=np.bool_) if batch.deleted is None else batch.deleted.copy()
    searched = SearchedBatches([batch])
    for run in newer:
        for part in run.between(int(hashes[0]), int(hashes[-1]) + 1):
            for _, places in searched.find(part.keys, np.arange(len(part))):
                gone[places.rows] = True
    return gone


def _by_object(runs: Sequence[Run], hashes: Hashes) -> Iterator[tuple[SearchedBatches, list[slice]]]:
    """What is to be searched for ascending hashes, newest first, and which of them each can have.

    Parts of one object that are neighbours in the stack share no key group, so they are searched in one step.
    """
    lows: Hashes = np.array([run.low for run in runs], dtype=np.uint64)
    lasts: Hashes = np.array([run.high - 1 for run in runs], dtype=np.uint64)
    starts, ends = hashes.searchsorted(lows).tolist(), hashes.searchsorted(lasts, side="right").tolist()
    for _, some in itertools.groupby(reversed(range(len(runs))), lambda number: id(runs[number].searched)):
        parts = list(some)
        asked: list[slice] = []
        for start, end in sorted((starts[part], ends[part]) for part in parts):
            first = max(start, asked[-1].stop) if asked else start  # Runs of early versions may share equal bytes.
            if first < end:
                asked.append(slice(first, end))
        if asked:
            yield runs[parts[0]].searched, asked
