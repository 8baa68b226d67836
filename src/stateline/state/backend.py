"""Keyed state for a plain Python program: the same tables, runs and checkpoints, without Spark.

::

    with KeyedStateBackend.open("file:///data/state") as backend:
        planes = backend.state("planes", StateSchema.of(schema, key_names=["tailnum"]))
        planes.put(rows)                                  # an Arrow table: key and value columns
        found = planes.get(keys)                          # found.mask, found.rows
        flights = backend.aggregation("flights", KeyedAggregation.bind(schema, ["origin"], {"n": count()}))
        results = flights.update(rows)
        backend.checkpoint()                              # one atomic record for all of them

Rules:
- Nothing is durable before :meth:`KeyedStateBackend.checkpoint` returns, and all of it is after that.
- One writer per root. A second one loses with ``FencedError`` at its next checkpoint, and nothing of it is seen.
- State that a Spark pipeline wrote can be read here, whole or by key-group range, but not checkpointed.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from os import PathLike
from typing import Any, Final, Self, TypeAlias

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from stateline.blob import BlobStore
from stateline.changelog.host_cache import HostCache
from stateline.changelog.racing import raced
from stateline.changelog.segment_writer import Segments, SegmentWriter
from stateline.changelog.settings import ChangelogSettings
from stateline.changelog.upload_table import RetryPolicy
from stateline.checkpoint import Checkpoint, CheckpointStore, OperatorState, SubtaskState, checkpoint_time
from stateline.environment import Closable, Environment, system_environment
from stateline.errors import ClosedError, ErrorKind, InvalidInputError
from stateline.key_groups import KeyGroupRange, check_parallelism
from stateline.options import check_kind, check_text, parse_int
from stateline.sizes import sizes
from stateline.state.aggregate.plan import KeyedAggregation
from stateline.state.columns import contiguous, take
from stateline.state.evolution import carried_properties, check_evolution
from stateline.state.keys import Groups, group_rows, key_rows
from stateline.state.merge import MergeSettings, merge_runs
from stateline.state.rescale import state_of_range
from stateline.state.rows import StateRows
from stateline.state.run import RunSettings
from stateline.state.run_store import RunReader, RunReaderSettings, RunWriter
from stateline.state.schema import StateSchema, stored_type
from stateline.state.snapshot import snapshot
from stateline.state.table import StateTable

__all__ = ["AggregatedState", "KeyedState", "KeyedStateBackend", "Lookup"]

Rows: TypeAlias = Any
"""A pa.Table or a pa.RecordBatch."""

_PROGRAM: Final = "stateline.state.KeyedStateBackend"
_KEY_VALUE: Final = "key-value"
_KEY_GROUPS: Final = "a KeyGroupRange, such as KeyGroupRange(0, 63)"


@dataclasses.dataclass(frozen=True, slots=True)
class Lookup:
    """What :meth:`KeyedState.get` found.

    Attributes:
        mask: For each key asked for whether it is there.
        rows: Key and value columns in the order asked; values of missing keys are null.
    """

    mask: pa.BooleanArray
    rows: pa.Table


class KeyedState:
    """Values by key. Made by :meth:`KeyedStateBackend.state`. Not thread-safe.

    Attributes:
        name: Unique within the root.
        schema: Keys and values.
        definition: What computes the values, as a checkpoint keeps it.
        table: The present rows: an immutable value that every change replaces.
    """

    def __init__(self, name: str, table: StateTable, definition: str, check_open: Callable[[], None]) -> None:
        self.name = name
        self.schema = table.schema
        self.definition = definition
        self.table = table
        self._check_open = check_open

    def put(self, rows: Rows) -> None:
        """Sets the values of keys. Where a key comes twice, its last row wins.

        Args:
            rows: All key and value columns of the schema, in any order; others are ignored.

        Raises:
            InvalidInputError: A missing column, another type, or a key outside the key groups of the backend.
        """
        groups = self._grouped(rows)
        if len(groups):
            newest = groups.order.take(groups.starts + groups.sizes - 1)
            values = tuple(take(self._value(rows, field), newest) for field in self.schema.values)
            self.apply(StateRows(groups.keys, values))

    def delete(self, keys: Rows) -> None:
        """Removes keys; those that are not there are no error.

        Args:
            keys: All key columns; others are ignored.
        """
        groups = self._grouped(keys)
        if len(groups):
            values = tuple(pa.nulls(len(groups), field.type) for field in self.schema.values)
            self.apply(StateRows(groups.keys, values, np.ones(len(groups), dtype=np.bool_)))

    def get(self, keys: Rows) -> Lookup:
        """Looks keys up, all at once. Sees every ``put`` and ``delete`` before.

        Args:
            keys: All key columns; others are ignored. A key may come any number of times.
        """
        groups = self._grouped(keys)
        found = self.table.probe(groups.keys)
        place = np.empty(len(groups.order), dtype=np.int64)
        place[groups.order] = groups.index()
        columns = [*groups.keys.columns, *found.values]
        rows = pa.table([take(column, place) for column in columns], schema=self.schema.row)
        return Lookup(pa.array(found.mask.take(place)), rows)

    def scan(self, key_groups: KeyGroupRange | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, in batches of key and value columns, in no order that means anything."""
        self._check_open()
        check_kind(key_groups, KeyGroupRange | None, "key_groups", _KEY_GROUPS)
        return self.table.scan(key_groups)

    def to_table(self) -> pa.Table:
        """All rows at once."""
        return pa.Table.from_batches(self.scan(), schema=self.schema.row)

    def apply(self, changes: StateRows) -> None:
        """Lays ready-made rows over the table; runs in memory are merged before there are many."""
        self._check_open()
        table = self.table.with_changes(changes)
        runs = table.runs
        durable = [run for run in runs if run.handle is not None]
        if len(runs) - len(durable) > sizes().runs_in_memory:
            recent = merge_runs(runs[len(durable) :], table.key_groups, table.max_parallelism, drop_tombstones=False)
            table = StateTable(table.schema, table.key_groups, table.max_parallelism, (*durable, recent))
        self.table = table

    def _grouped(self, rows: Rows) -> Groups:
        self._check_open()
        check_kind(rows, pa.Table | pa.RecordBatch, "rows", "a pyarrow.Table or a pyarrow.RecordBatch")
        return group_rows(key_rows(self.schema, [self._column(rows, name) for name in self.schema.keys.names]))

    def _value(self, rows: Rows, field: pa.Field) -> pa.Array:
        column = contiguous(self._column(rows, field.name))
        if stored_type(column.type, field.name) != field.type:
            raise self._refused(field.name, f"expected type {field.type}, got {column.type}")
        return column if column.type == field.type else column.cast(field.type)

    def _column(self, rows: Rows, name: str) -> Any:
        if rows.schema.names.count(name) != 1:
            raise self._refused(name, f"must come once, got it {rows.schema.names.count(name)} times")
        return rows.column(name)

    def _refused(self, column: str, reason: str) -> InvalidInputError:
        return InvalidInputError(
            reason,
            operation=self.name,
            subject=f"column {column!r}",
            hint=f"The state is {self.schema}",
            kind=ErrorKind.SCHEMA_MISMATCH,
        )


class AggregatedState:
    """Aggregations by key. Made by :meth:`KeyedStateBackend.aggregation`. Not thread-safe.

    Attributes:
        name: Unique within the root.
        aggregation: What is kept.
    """

    def __init__(self, state: KeyedState, aggregation: KeyedAggregation) -> None:
        self.name = state.name
        self.aggregation = aggregation
        self._state = state

    def update(self, rows: Rows) -> pa.RecordBatch:
        """Merges rows into the state of their keys.

        Returns:
            One row per key of ``rows``: key columns, then results.

        Raises:
            InvalidInputError: As :meth:`KeyedAggregation.update`. The state is as before.
        """
        update = self.aggregation.update(self._state.table, rows)
        self._state.apply(update.changes)
        return update.output

    def results(self) -> pa.Table:
        """The results of all keys."""
        batches = [self.aggregation.results(batch) for batch in self._state.scan()]
        return pa.Table.from_batches(batches, schema=self.aggregation.output_schema)


class KeyedStateBackend(Closable):
    """The state below one checkpoint root, or a range of it. Made by :meth:`open`. Not thread-safe.

    Attributes:
        key_groups: What is visible here, inclusive.
        max_parallelism: Number of key groups of the root.
    """

    def __init__(
        self,
        store: BlobStore,
        restored: Checkpoint | None,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        *,
        checkpoints: CheckpointStore,
        environment: Environment,
        retained_checkpoints: int = 3,
        merging: MergeSettings | None = None,
        runs: RunSettings | None = None,
        fetching: RunReaderSettings | None = None,
        cache: HostCache | None = None,
    ) -> None:
        self.key_groups = key_groups
        self.max_parallelism = max_parallelism
        self._store = store
        self._restored = restored
        self._checkpoints = checkpoints
        self._environment = environment
        self._retained_checkpoints = parse_int(retained_checkpoints, "retained_checkpoints", minimum=1)
        check_kind(merging, MergeSettings | None, "merging", "MergeSettings")
        check_kind(runs, RunSettings | None, "runs", "RunSettings")
        check_kind(fetching, RunReaderSettings | None, "fetching", "RunReaderSettings")
        self._merging, self._runs, self._fetching = merging, runs, fetching
        check_kind(cache, HostCache | None, "cache", "a HostCache")
        if cache is not None:
            cache.check_apart([store], "cache")
        self._cache = cache
        self._states: dict[str, KeyedState] = {}
        self._unsettled: Checkpoint | None = None
        self._closed = False

    @classmethod
    def open(
        cls,
        root: str | PathLike[str] | BlobStore,
        *,
        checkpoint_id: int | None = None,
        key_groups: KeyGroupRange | None = None,
        max_parallelism: int = 128,
        environment: Environment | None = None,
        **settings: Any,
    ) -> Self:
        """Opens a root at its newest checkpoint, or makes a new one.

        Args:
            root: URL, path or store of the checkpoint root.
            checkpoint_id: A retained checkpoint to read instead of the newest one.
            key_groups: What to see of it; everything by default. A part can be read but not checkpointed.
            max_parallelism: Number of key groups of a new root; an old one keeps its own.
            environment: Clock, ids, threads; the real ones by default.
            settings: ``retained_checkpoints`` (3), ``merging``, ``runs``, ``fetching``, ``cache``: see the classes
                ``MergeSettings``, ``RunSettings``, ``RunReaderSettings`` and ``HostCache``.

        Raises:
            NotFoundError: There is no such checkpoint.
            CorruptDataError: The newest record cannot be read.
            InvalidInputError: Key groups or ``retained_checkpoints`` out of bounds, an argument of another class, or a
                ``cache`` whose folder overlaps the root.
        """
        environment = environment or system_environment()
        checkpoints = CheckpointStore(root, environment=environment)
        restored = checkpoints.latest() if checkpoint_id is None else checkpoints.get(checkpoint_id)
        count = max_parallelism if restored is None else restored.max_parallelism
        check_parallelism(1, count)
        everything = KeyGroupRange(0, count - 1)
        visible = everything if key_groups is None else key_groups
        check_kind(visible, KeyGroupRange, "key_groups", _KEY_GROUPS)
        if visible.intersection(everything) != visible or not len(visible):
            raise InvalidInputError(
                f"must lie within {everything}, got {visible}",
                operation="open",
                subject="key_groups",
                hint="Give a part of the key groups",
            )
        store = raced(checkpoints.store, RetryPolicy.of(ChangelogSettings()), environment)
        return cls(store, restored, visible, count, checkpoints=checkpoints, environment=environment, **settings)

    @property
    def checkpoint_id(self) -> int | None:
        """The checkpoint that the state started from or last made; ``None`` before the first one."""
        return None if self._restored is None else self._restored.checkpoint_id

    def names(self) -> list[str]:
        """The states of the root, sorted: stored ones and those opened here."""
        stored = () if self._restored is None else (operator.name for operator in self._restored.operators)
        return sorted({*stored, *self._states})

    def state(self, name: str, schema: StateSchema | None = None) -> KeyedState:
        """Values by key, under a name.

        Args:
            name: Unique within the root.
            schema: Keys and values; not needed for a state that is stored already. Value columns may be added (give
                :meth:`StateSchema.with_defaults` what old rows shall have), dropped and widened.

        Raises:
            InvalidInputError: A schema that the stored one cannot become (kind ``SCHEMA_MISMATCH``), see
                :mod:`stateline.state.evolution`; or no schema for a new state.
        """
        return self._opened(name, schema, _KEY_VALUE)

    def aggregation(self, name: str, aggregation: KeyedAggregation) -> AggregatedState:
        """Aggregations by key, under a name.

        Raises:
            InvalidInputError: The stored state was made by another definition (kind ``SCHEMA_MISMATCH``).
        """
        check_kind(aggregation, KeyedAggregation, "aggregation", "what KeyedAggregation.bind() returns")
        state = self._opened(name, aggregation.state_schema, aggregation.definition, exact=True)
        return AggregatedState(state, aggregation)

    def checkpoint(self, position: str = "") -> Checkpoint:
        """Makes all states durable in one atomic record.

        Args:
            position: Where the program stands in its input, kept with the state; see :attr:`position`.

        Returns:
            The record. Everything put before is in it.

        Raises:
            FencedError: Another writer made this checkpoint. Stop.
            InvalidInputError: Only a part of the key groups is open, or the root belongs to a pipeline.
            StatelineError: What the store raises. Everything is still in memory: repeat the call.
        """
        self._check_open()
        self._check_writable()
        check_text(position, "position")
        if self._unsettled is not None:
            # The last attempt may have succeeded. Its record is settled first: it has the next id, or none has.
            self._settle(self._unsettled)
        before = self._restored
        checkpoint_id = 0 if before is None else before.checkpoint_id + 1
        operators = {} if before is None else {operator.name: operator for operator in before.operators}
        segment = Segments(self._store, self._environment, copies=self._cache).writer()
        added = {name: self._added(segment, state, checkpoint_id) for name, state in self._states.items()}
        placement = segment.finish()
        for name, subtask in added.items():
            operators[name] = OperatorState(
                name=name,
                schema=self._states[name].schema.encode(),
                definition=self._states[name].definition,
                subtasks=(replace(subtask, runs=tuple(map(placement.of, subtask.runs))),),
            )
        made = self._settle(
            Checkpoint(
                checkpoint_id=checkpoint_id,
                batch_id=checkpoint_id,
                query_id=self._environment.ids.new_id() if before is None else before.query_id,
                offsets_digest=hashlib.sha256(position.encode()).hexdigest(),
                max_parallelism=self.max_parallelism,
                parallelism=1,
                nonce=self._environment.ids.new_id(),
                created_at=checkpoint_time(self._environment.clock.now(), before),
                operators=tuple(operators.values()),
                properties={
                    **carried_properties(before, {name: operator.schema for name, operator in operators.items()}),
                    "program": _PROGRAM,
                    "position": position,
                },
            )
        )
        for name, kept in self._states.items():
            kept.table = self._load(operators[name], kept.schema)
        self._checkpoints.retain(self._retained_checkpoints)
        return made

    def _added(self, segment: SegmentWriter, state: KeyedState, checkpoint_id: int) -> SubtaskState:
        """Adds the new runs of a state to a segment."""
        writer = RunWriter(segment, state.name, state.schema, self.max_parallelism, settings=self._runs)
        return snapshot(state.table, None, writer, checkpoint_id, settings=self._merging).state

    def _settle(self, record: Checkpoint) -> Checkpoint:
        self._unsettled = record
        self._restored = self._checkpoints.publish(record)
        self._unsettled = None
        return self._restored

    @property
    def position(self) -> str:
        """What the last checkpoint was given as ``position``; empty before the first one."""
        return "" if self._restored is None else self._restored.properties.get("position", "")

    def close(self) -> None:
        """Closes the store, if this opened it from a URL. What was not checkpointed is gone. Idempotent."""
        self._closed = True
        self._checkpoints.close()

    def _opened(self, name: str, schema: StateSchema | None, definition: str, *, exact: bool = False) -> KeyedState:
        self._check_open()
        check_text(name, "name")
        check_kind(schema, StateSchema | None, "schema", "a StateSchema, such as StateSchema.of(schema, key_names)")
        known = self._states.get(name)
        restored = self._restored
        stored = None if restored is None else restored.operator(name)
        if known is not None:
            (schema or known.schema).check_same(known.schema, name)
            self._check_definition(name, known.definition, definition, exact=exact)
            return known
        if restored is not None and stored is not None:
            expected = schema or StateSchema.decode(stored.schema)
            check_evolution(restored, name, expected)
            self._check_definition(name, stored.definition, definition, exact=exact)
            table, definition = self._load(stored, expected), stored.definition
        elif schema is None:
            raise InvalidInputError(
                "a new state needs a schema",
                operation="state",
                subject=repr(name),
                hint=f"Give one, or the name of a stored state: {', '.join(self.names())}",
            )
        else:
            table = StateTable(schema, self.key_groups, self.max_parallelism)
        state = self._states[name] = KeyedState(name, table, definition, self._check_open)
        return state

    def _load(self, operator: OperatorState, schema: StateSchema) -> StateTable:
        mine = state_of_range(operator, self.key_groups, self.max_parallelism)
        reader = RunReader(
            self._store, schema, settings=self._fetching, cache=self._cache, environment=self._environment
        )
        return StateTable(schema, self.key_groups, self.max_parallelism, reader.open_all(mine.runs))

    def _check_definition(self, name: str, stored: str, given: str, *, exact: bool) -> None:
        """Refuses an aggregation over state of another definition; as plain values, any state may be read."""
        if exact and stored != given:
            raise InvalidInputError(
                f"expected the stored definition {stored}, got {given}",
                operation="aggregation",
                subject=repr(name),
                hint="Restore the old aggregations, or choose another name and replay the input",
                kind=ErrorKind.SCHEMA_MISMATCH,
            )

    def _check_writable(self) -> None:
        if len(self.key_groups) != self.max_parallelism:
            raise InvalidInputError(
                f"cannot write while only the key groups {self.key_groups} are open",
                operation="checkpoint",
                subject=self._store.url,
                hint="Open the whole root to write to it",
            )
        if self._restored is not None and self._restored.properties.get("program") != _PROGRAM:
            raise InvalidInputError(
                f"the root belongs to query {self._restored.query_id}",
                operation="checkpoint",
                subject=self._store.url,
                hint="Its state can be read here; write to a root of your own",
                kind=ErrorKind.FOREIGN_ROOT,
            )

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the backend is closed", operation="state", subject=self._store.url)
