"""A whole life of keyed state against a dict: put, delete, checkpoint, merge, rescale, restart, collisions.

Each machine draws a key type (with nulls, NaN and -0.0), a number of hash bits, merge settings and a batch size, and
after every step compares each subtask's table with the model, by search and by scan.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import math
from dataclasses import replace as replaced
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from stateline.blob.memory import MemoryStore
from stateline.changelog.segment_writer import Segments
from stateline.checkpoint.api import OperatorState, SubtaskState
from stateline.environment import system_environment
from stateline.key_groups import hash_columns, range_for_subtask
from stateline.sizes import resized
from stateline.state import keys as keys_module
from stateline.state.keys import group_rows, key_rows
from stateline.state.merge import MergeSettings
from stateline.state.open_runs import OpenRuns
from stateline.state.rescale import rescale
from stateline.state.rows import StateRows
from stateline.state.run import RunSettings
from stateline.state.run_store import RunReader, RunReaderSettings, RunWriter
from stateline.state.schema import StateSchema
from stateline.state.snapshot import snapshot
from stateline.state.stored import StoredState
from stateline.state.table import StateTable
from tests.kit.sizes import SIZES
from tests.kit.state_invariants import check_feed

GROUPS = 16
D = decimal.Decimal
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "long": (pa.int64(), [*range(12), None, -1, 2**62]),
    "int": (pa.int32(), [*range(-3, 3), None, -128, 128, 2**31 - 1]),
    "string": (pa.string(), ["", "a", "b", "é", "long " * 20, None]),
    "double": (pa.float64(), [0.0, -0.0, 1.5, math.nan, math.inf, None]),
    "decimal": (pa.decimal128(30, 2), [D("0.00"), D("1.10"), D("-1.10"), D(10) ** 20, None]),
    "date": (pa.date32(), [dt.date(2024, 1, day) for day in range(1, 5)] + [None]),
    "boolean": (pa.bool_(), [True, False, None]),
    "timestamp": (pa.timestamp("us", tz="UTC"), [dt.datetime(2024, 1, d, tzinfo=dt.UTC) for d in (1, 2)]),
}
KEYS = [
    ("long",),
    ("string",),
    ("string", "date"),
    ("double", "boolean"),
    ("decimal", "long"),
    ("timestamp",),
    ("int", "long"),
]
VALUES = pa.schema([("n", pa.int64()), ("text", pa.string()), ("list", pa.list_(pa.int32()))])
values = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-130, 130) | st.integers(-(2**31), 2**15),
    st.none() | st.text(max_size=5),
    st.none() | st.lists(st.integers(0, 9), max_size=3),
)


def identity(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(("nan" if math.isnan(part) else part + 0.0) if isinstance(part, float) else part for part in key)


class StateMachine(RuleBasedStateMachine):
    @initialize(
        kinds=st.sampled_from(KEYS),
        bits=st.sampled_from([64, 64, 6, 4]),
        parallelism=st.integers(1, 4),
        runs_max=st.integers(1, 6),
        tier_runs=st.integers(2, 4),
        small_rows=st.sampled_from([0, 20, 10_000]),
        piece_bytes=st.sampled_from([1, 300, 1 << 28]),
        rows_free=st.sampled_from([0, 5, 1 << 16]),
        batch_rows=st.sampled_from([1, 3, 65_536]),
        whole_bytes=st.sampled_from([0, 1 << 20]),
        inline_bytes=st.sampled_from([0, 0, 10_000, 1 << 20]),
        segment_bytes=st.sampled_from([1, 1 << 20]),
        chosen=st.sampled_from(sorted(SIZES)),
    )
    def open(
        self,
        kinds: tuple[str, ...],
        bits: int,
        parallelism: int,
        runs_max: int,
        tier_runs: int,
        small_rows: int,
        piece_bytes: int,
        rows_free: int,
        batch_rows: int,
        whole_bytes: int,
        inline_bytes: int,
        segment_bytes: int,
        chosen: str,
    ) -> None:
        self.kinds = kinds
        keys = pa.schema([(f"k{number}", COLUMNS[kind][0]) for number, kind in enumerate(kinds)])
        self.schema = StateSchema(keys, VALUES)
        self.stack = contextlib.ExitStack()
        patch = self.stack.enter_context(pytest.MonkeyPatch.context())
        mask = np.uint64(((1 << bits) - 1) << (64 - bits))
        patch.setattr(keys_module, "hash_columns", lambda columns: hash_columns(columns) & mask)
        # Few rows at a time leave stacks that are merged half way.
        self.stack.enter_context(resized(replaced(SIZES[chosen], merge_free_rows=rows_free)))
        self.merging = MergeSettings(
            runs_max=runs_max, tier_runs=tier_runs, small_rows=small_rows, piece_bytes=piece_bytes
        )
        self.store = MemoryStore("state-machine")
        self.stack.callback(MemoryStore.forget, "state-machine")
        self.segments = Segments(self.store, system_environment(), segment_bytes=segment_bytes)
        self.inline_bytes = inline_bytes
        self.settings = RunSettings(batch_rows=batch_rows)
        self.reading = RunReaderSettings(whole_bytes=whole_bytes)
        self.model: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self.uncommitted: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self.checkpoint_id = 0
        self.written: list[tuple[list[tuple[Any, ...]], list[Any], list[bool]]] = []
        self.retained: list[tuple[StoredState, dict[Any, Any]]] = []
        ranges = [range_for_subtask(index, parallelism, GROUPS) for index in range(parallelism)]
        self.stored = tuple(SubtaskState(first_key_group=r.start, last_key_group=r.end) for r in ranges)
        self.reopen()

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()

    def reopen(self) -> None:
        """Restarts from the last checkpoint: what came after it is lost, in the model too."""
        reader = RunReader(self.store, self.schema, settings=self.reading, open_runs=OpenRuns())
        self.tables = [
            StateTable(self.schema, state.key_groups, GROUPS, reader.open_all(state.runs)) for state in self.stored
        ]
        self.committed = dict(self.model)

    def keys_of(self, data: st.DataObject, max_size: int) -> list[tuple[Any, ...]]:
        parts = [st.sampled_from(COLUMNS[kind][1]) for kind in self.kinds]
        return data.draw(st.lists(st.tuples(*parts), max_size=max_size, unique_by=identity))

    def rows(self, keys: list[tuple[Any, ...]], values: list[Any], deleted: list[bool]) -> StateRows:
        arrays = [
            pa.array([key[i] for key in keys], type=field.type, from_pandas=False)
            for i, field in enumerate(self.schema.keys)
        ]
        groups = group_rows(key_rows(self.schema, arrays))
        order = pa.array(groups.order)
        columns = [pa.array([row[i] for row in values], type=field.type) for i, field in enumerate(VALUES)]
        marks = np.array(deleted, dtype=bool)[groups.order]
        return StateRows(groups.keys, tuple(column.take(order) for column in columns), marks if marks.any() else None)

    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        keys = self.keys_of(data, 12)
        rows = [data.draw(values) for _ in keys]
        deleted = [data.draw(st.integers(0, 3)) == 0 for _ in keys]
        self.written.append((keys, rows, deleted))
        self.apply(keys, rows, deleted)

    @rule(number=st.integers(1, 3))
    def change_again(self, number: int) -> None:
        """An earlier change comes back: a run of it has the bytes of the earlier one."""
        if len(self.written) >= number:
            self.apply(*self.written[-number])

    def apply(self, keys: list[tuple[Any, ...]], rows: list[Any], deleted: list[bool]) -> None:
        for key, row, gone in zip(keys, rows, deleted, strict=True):
            self.model.pop(identity(key), None)
            if not gone:
                self.model[identity(key)] = row
        whole = self.rows(keys, rows, deleted)
        for index, table in enumerate(self.tables):
            low, high = (Bounds(table).low, Bounds(table).high)
            self.tables[index] = table.with_changes(whole.between(low, high))

    @rule()
    def checkpoint(self) -> None:
        self.checkpoint_id += 1
        segment = self.segments.writer(self.inline_bytes)
        writer = RunWriter(segment, "op", self.schema, GROUPS, settings=self.settings)
        made = [snapshot(table, None, writer, self.checkpoint_id, settings=self.merging).state for table in self.tables]
        placed = segment.finish().of
        self.stored = tuple(replace(state, runs=tuple(map(placed, state.runs))) for state in made)
        self.reopen()
        operator = OperatorState(name="op", schema=self.schema.encode(), definition="", subtasks=self.stored)
        retained = StoredState(self.store, self.checkpoint_id, operator, GROUPS)
        for before, rows in self.retained:
            check_feed(before, retained, rows, self.model)
        self.retained = [*self.retained[-2:], (retained, dict(self.model))]

    @rule()
    def crash(self) -> None:
        self.model = dict(self.committed)
        self.reopen()

    @rule(parallelism=st.integers(1, GROUPS))
    def change_parallelism(self, parallelism: int) -> None:
        self.model = dict(self.committed)
        operator = OperatorState(name="op", schema="", definition="", subtasks=self.stored)
        self.stored = rescale(operator, parallelism, GROUPS)
        self.reopen()

    @invariant()
    def every_scan_equals_the_model(self) -> None:
        if not hasattr(self, "tables"):
            return
        found = {}
        for table in self.tables:
            for batch in table.scan():
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    key = identity(row[: len(self.kinds)])
                    assert key not in found
                    found[key] = row[len(self.kinds) :]
        assert found == self.model

    @rule(data=st.data())
    def search(self, data: st.DataObject) -> None:
        keys = self.keys_of(data, 30)
        whole = self.rows(keys, [(None, None, None)] * len(keys), [False] * len(keys))
        found = {}
        for table in self.tables:
            wanted = whole.between(Bounds(table).low, Bounds(table).high).keys
            answer = table.probe(wanted)
            names = list(zip(*(column.to_pylist() for column in wanted.columns), strict=True))
            got = list(zip(*(column.to_pylist() for column in answer.values), strict=True))
            for name, value, there in zip(names, got, answer.mask.tolist(), strict=True):
                assert identity(name) not in found
                found[identity(name)] = value if there else None
        assert found == {identity(key): self.model.get(identity(key)) for key in keys}


class Bounds:
    def __init__(self, table: StateTable) -> None:
        from stateline.key_groups import hash_bounds

        self.low, self.high = hash_bounds(table.key_groups, GROUPS)


StateMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestStateMachine = StateMachine.TestCase
