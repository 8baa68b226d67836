"""State as data: what a checkpoint or savepoint holds, read by anybody, without the query that made it.

Read-only: nothing here writes, fences or retains. A checkpoint that retention takes away while it is read gives
:class:`DataLossError`, never wrong rows.

Facts:
- A slice is plain values (key groups and run handles), so a scan is cut on one machine and read on others.
- A point read fetches, of each run, its tail and the record batches that may hold the keys. A scan opens whole runs.
- Rows are those of the stored schema: for an aggregation its state columns, which are not always its results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Self

import msgspec
import numpy as np
import pyarrow as pa

from stateline.blob.api import BlobStore
from stateline.checkpoint.api import Checkpoint, OperatorState, SubtaskState
from stateline.environment import Environment
from stateline.errors import InvalidInputError
from stateline.handles import RunHandle
from stateline.key_groups import KeyGroupRange, hash_bounds, range_for_subtask
from stateline.options import check_known
from stateline.state.columns import Column, from_words
from stateline.state.keys import Hashes, KeyRows, group_rows, key_rows
from stateline.state.rescale import state_of_range
from stateline.state.rows import StateRows
from stateline.state.run_index import HashRanges
from stateline.state.run_store import RunReader
from stateline.state.runs import Run
from stateline.state.schema import StateSchema
from stateline.state.subkeys import LOWER_HALF, ordered_hashes, rows_of_keys
from stateline.state.table import StateTable

__all__ = ["SliceReader", "StoredState", "find_operator"]


def find_operator(checkpoint: Checkpoint, name: str | None) -> OperatorState:
    """The state of an operator.

    Args:
        checkpoint: The record.
        name: Of the operator; ``None`` for the only one there is.

    Raises:
        InvalidInputError: An unknown name, or no name where there are several operators.
    """
    names = [operator.name for operator in checkpoint.operators]
    if not names:
        raise InvalidInputError(
            "does not hold keyed state",
            operation="read",
            subject=f"checkpoint {checkpoint.checkpoint_id}",
            hint="Give the checkpoint root of a keyed stream: a stream of stateline_files has files and no state",
        )
    if name is None and len(names) > 1:
        raise InvalidInputError(
            "has several operators",
            operation="read",
            subject=f"checkpoint {checkpoint.checkpoint_id}",
            hint=f"Name one of: {', '.join(names)}",
        )
    found = names[0] if name is None else name
    check_known([found], names, "operator")
    return checkpoint.operators[names.index(found)]


@dataclasses.dataclass(frozen=True, slots=True)
class StoredState:
    """The state of one operator in one checkpoint or savepoint.

    Attributes:
        store: Where its runs lie.
        checkpoint_id: Of the record.
        operator: From the record.
        max_parallelism: Number of key groups.
    """

    store: BlobStore
    checkpoint_id: int
    operator: OperatorState
    max_parallelism: int

    @classmethod
    def of(cls, store: BlobStore, checkpoint: Checkpoint, operator: str | None = None) -> Self:
        """The state of an operator of a record; arguments and errors as :func:`find_operator`."""
        return cls(store, checkpoint.checkpoint_id, find_operator(checkpoint, operator), checkpoint.max_parallelism)

    def in_record(self, store: BlobStore, checkpoint: Checkpoint) -> StoredState:
        """The same operator in another record of the root: without rows where the record does not have it."""
        if checkpoint.operator(self.operator.name) is not None:
            return StoredState.of(store, checkpoint, self.operator.name)
        nothing = SubtaskState(first_key_group=0, last_key_group=checkpoint.max_parallelism - 1)
        operator = msgspec.structs.replace(self.operator, subtasks=(nothing,))
        return StoredState(store, checkpoint.checkpoint_id, operator, checkpoint.max_parallelism)

    @property
    def schema(self) -> StateSchema:
        """What the rows are; :class:`CorruptDataError` where the record's text is not a schema."""
        return StateSchema.decode(self.operator.schema)

    @property
    def stored_rows(self) -> int:
        """Rows in all runs, old versions and tombstones included. Never fewer than live keys."""
        return sum(run.rows for subtask in self.operator.subtasks for run in subtask.runs)

    def reader(self, environment: Environment | None = None) -> SliceReader:
        """Reads slices of this state."""
        return SliceReader(self.store, self.schema, self.max_parallelism, environment)

    def slices(self, count: int) -> list[SubtaskState]:
        """The state cut into ``count`` ranges of key groups (fewer if there are not so many), in order."""
        parts = max(min(count, self.max_parallelism), 1)
        ranges = (range_for_subtask(index, parts, self.max_parallelism) for index in range(parts))
        return [state_of_range(self.operator, owned, self.max_parallelism) for owned in ranges]

    def whole(self) -> SubtaskState:
        """All of it, as one slice."""
        return state_of_range(self.operator, KeyGroupRange(0, self.max_parallelism - 1), self.max_parallelism)


class SliceReader:
    """Reads slices of keyed state. Safe from any thread.

    Args:
        store: Where the runs lie.
        schema: What the rows should be; older runs are evolved.
        max_parallelism: Number of key groups.
        environment: Threads for fetching.
    """

    def __init__(
        self, store: BlobStore, schema: StateSchema, max_parallelism: int, environment: Environment | None = None
    ) -> None:
        self.store = store
        self.schema = schema
        self.max_parallelism = max_parallelism
        self._runs = RunReader(store, schema, environment=environment)

    def scan(self, state: SubtaskState, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All live rows, in no order that means anything.

        Args:
            state: The slice.
            columns: Names of key and value columns, in the order wanted; all of them by default.

        Returns:
            Batches; none is empty. The runs are open when it returns.

        Raises:
            InvalidInputError: The columns are not those of the key.
            DataLossError: A run is gone.
            CorruptDataError: A run is not what was written.
        """
        return self.table(state).scan(columns=self._indexes(columns))

    def get(self, state: SubtaskState, keys: Sequence[Column], columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """The rows of some keys that are there, ascending by hash; keys that lie outside the slice are not there.

        Args:
            state: The slice.
            keys: One array per key column, of one length; a key may come twice. Where the key ends in sub-keys, these
                may all be left out, for all rows of a grouping key.
            columns: As in :meth:`scan`.

        Raises:
            InvalidInputError: The columns are not those of the key.
            DataLossError: A run is gone.
            CorruptDataError: A run is not what was written.
        """
        indexes = self._indexes(columns)
        if self.schema.subkeys:
            rows = self._rows_of_grouping_keys(state, keys)
        else:
            wanted = self._within(state, group_rows(key_rows(self.schema, keys)).keys)
            runs = self._runs.open_all(state.runs, HashRanges.of(wanted.hashes)) if len(wanted) else []
            rows = _probed(StateTable(self.schema, state.key_groups, self.max_parallelism, runs), wanted)
        return rows if indexes is None else rows.select(indexes)

    def columns_schema(self, columns: Sequence[str]) -> pa.Schema:
        """The schema of batches of these columns; an error where the state does not have one."""
        check_known(columns, self.schema.row.names, "column")
        return pa.schema([self.schema.row.field(name) for name in columns])

    def table(self, state: SubtaskState) -> StateTable:
        """The slice, with its runs open."""
        runs = self._runs.open_all(state.runs)
        return StateTable(self.schema, state.key_groups, self.max_parallelism, runs)

    def open_runs(self, runs: Sequence[RunHandle], hashes: Hashes | None = None) -> list[Run]:
        """Opens runs, in the order given; only the record batches that may hold ``hashes``, where that fetches less."""
        mapped = any(not run.is_inline and self.store.local_path(run.name) is not None for run in runs)
        return self._runs.open_all(runs, None if mapped or hashes is None else HashRanges.of(hashes))

    def _rows_of_grouping_keys(self, state: SubtaskState, keys: Sequence[Column]) -> pa.RecordBatch:
        """What :meth:`get` says, of a table with sub-keys."""
        grouping = self.schema.grouping
        count = len(grouping.keys)
        whole = None if len(keys) == count else group_rows(key_rows(self.schema, keys)).keys
        owners = keys[:count] if whole is None else whole.columns[:count]
        wanted = self._within(state, group_rows(key_rows(grouping, owners)).keys)
        ranges = HashRanges(ordered_hashes(wanted.hashes, np.uint64(0)), ordered_hashes(wanted.hashes, LOWER_HALF))
        runs = self._runs.open_all(state.runs, ranges) if len(wanted) else []
        found = rows_of_keys(StateTable(self.schema, state.key_groups, self.max_parallelism, runs), wanted).rows
        if whole is None:
            return pa.RecordBatch.from_arrays([*found.keys.columns, *found.values], schema=self.schema.row)
        # Rows have the hashes of their table, keys those of all their columns: now the rows get these, too.
        hashed = key_rows(self.schema, found.keys.columns)
        rows = StateRows(hashed, found.values).take(np.argsort(hashed.hashes, kind="stable"))
        everywhere = KeyGroupRange(0, self.max_parallelism - 1)
        found_runs = [Run([rows], everywhere, self.max_parallelism)] if len(rows) else []
        return _probed(StateTable(self.schema, everywhere, self.max_parallelism, found_runs), whole)

    def _within(self, state: SubtaskState, keys: KeyRows) -> KeyRows:
        """Those keys that belong to the slice."""
        low, high = hash_bounds(state.key_groups, self.max_parallelism)
        return keys.take(np.flatnonzero((keys.hashes >= np.uint64(low)) & (keys.hashes <= np.uint64(high - 1))))

    def _indexes(self, columns: Sequence[str] | None) -> list[int] | None:
        if columns is None or list(columns) == self.schema.row.names:
            return None
        check_known(columns, self.schema.row.names, "column")
        return [self.schema.row.get_field_index(name) for name in columns]


def _probed(table: StateTable, keys: KeyRows) -> pa.RecordBatch:
    """The rows of a table that have some distinct keys, ascending by hash."""
    found = table.probe(keys)
    rows = pa.RecordBatch.from_arrays([*keys.columns, *found.values], schema=table.schema.row)
    return rows.take(from_words(np.flatnonzero(found.mask), pa.int64()))
