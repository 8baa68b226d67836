"""A whole life of a table that is only appended to: append, expire, checkpoint, merge, rescale, restart.

After every step each row that was appended and has not expired is there once, by scan and by a search of its grouping
key; and the changes between any two of the newest checkpoints lead from one to the other.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace as replaced
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from stateline.blob.memory import MemoryStore
from stateline.changelog.segment_writer import Segments
from stateline.checkpoint.api import OperatorState, SubtaskState
from stateline.environment import system_environment
from stateline.key_groups import hash_bounds, range_for_subtask
from stateline.sizes import resized
from stateline.state.keys import group_rows, key_rows
from stateline.state.merge import MergeSettings
from stateline.state.open_runs import OpenRuns
from stateline.state.rescale import rescale
from stateline.state.run_store import RunReader, RunWriter
from stateline.state.schema import StateSchema
from stateline.state.snapshot import snapshot
from stateline.state.stored import StoredState
from stateline.state.subkeys import LOWER_HALF, rows_of_keys, subkey_changes
from stateline.state.table import StateTable
from tests.kit.early_versions import copying_merges, unnamed_inline_sections
from tests.kit.sizes import SIZES
from tests.kit.state_invariants import check_appended, check_feed

GROUPS = 16
SCHEMA = StateSchema(
    pa.schema([("k", pa.int64()), ("row", pa.int64())]), pa.schema([("at", pa.int64())]), append_only=True, subkeys=1
)
GROUPING = SCHEMA.grouping


class AppendedMachine(RuleBasedStateMachine):
    @initialize(
        chosen=st.sampled_from(sorted(SIZES)),
        parallelism=st.integers(1, 3),
        runs_max=st.integers(2, 6),
        tier_runs=st.integers(2, 4),
        inline_bytes=st.sampled_from([0, 1 << 20]),
        early=st.booleans(),
    )
    def open(
        self, chosen: str, parallelism: int, runs_max: int, tier_runs: int, inline_bytes: int, early: bool
    ) -> None:
        self.stack = contextlib.ExitStack()
        self.stack.enter_context(resized(replaced(SIZES[chosen], merge_piece_bytes=1 << 20)))
        self.merging = MergeSettings(runs_max=runs_max, tier_runs=tier_runs, rows_per_change=1.01)
        self.store = MemoryStore("appended-machine")
        self.stack.callback(MemoryStore.forget, "appended-machine")
        self.segments = Segments(self.store, system_environment())
        self.inline_bytes, self.early = inline_bytes, early
        self.model: list[tuple[int, int, int]] = []
        self.next_row = self.checkpoint_id = 0
        self.border = self.committed_border = -1
        self.retained: list[StoredState] = []
        ranges = [range_for_subtask(index, parallelism, GROUPS) for index in range(parallelism)]
        self.stored = tuple(SubtaskState(first_key_group=r.start, last_key_group=r.end) for r in ranges)
        self.committed = list(self.model)
        self.reopen()

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()

    def reopen(self) -> None:
        reader = RunReader(self.store, SCHEMA, open_runs=OpenRuns())
        self.tables = [
            StateTable(SCHEMA, state.key_groups, GROUPS, reader.open_all(state.runs)) for state in self.stored
        ]

    @rule(keys=st.lists(st.integers(0, 40), min_size=1, max_size=12), near=st.booleans())
    def append(self, keys: list[int], near: bool) -> None:
        """Many keys, or rows of one key: these change few slices, so that gaps are left between them."""
        keys = [keys[0], *keys[1:2]] * (len(keys) // 2 + 1) if near else keys
        numbers = list(range(self.next_row, self.next_row + len(keys)))
        self.next_row += len(keys)
        self.model += [(key, number, number) for key, number in zip(keys, numbers, strict=True)]
        groups = group_rows(key_rows(GROUPING, [pa.array(keys, pa.int64())]))
        owners = np.repeat(np.arange(len(groups)), groups.sizes)
        rows = pa.array(np.array(numbers).take(groups.order))
        changes = subkey_changes(
            self.tables[0], groups.keys, owners, [rows], [rows], np.zeros(len(numbers), dtype=np.bool_)
        )
        for index, table in enumerate(self.tables):
            self.tables[index] = table.with_changes(changes.between(*hash_bounds(table.key_groups, GROUPS)))

    @rule(rows=st.integers(0, 5))
    def expire(self, rows: int) -> None:
        self.border = min(self.border + rows, self.next_row - 1)

    @rule(times=st.integers(1, 3))
    def checkpoint(self, times: int) -> None:
        for _ in range(times):
            self.checkpoint_id += 1
            self._checkpoint()

    def _checkpoint(self) -> None:
        border = self.border
        segment = self.segments.writer(self.inline_bytes)
        writer = RunWriter(segment, "op", SCHEMA, GROUPS)
        early = self.early and self.checkpoint_id <= 6
        with copying_merges() if early else contextlib.nullcontext():
            made = [
                snapshot(
                    table,
                    None,
                    writer,
                    self.checkpoint_id,
                    settings=self.merging,
                    expired=lambda rows: rows.values[0].to_numpy(zero_copy_only=False) <= border,
                ).state
                for table in self.tables
            ]
        with unnamed_inline_sections() if early else contextlib.nullcontext():
            placed = segment.finish().of
            self.stored = tuple(replace(state, runs=tuple(map(placed, state.runs))) for state in made)
        self.committed, self.committed_border = list(self.model), border
        self.reopen()
        operator = OperatorState(name="op", schema=SCHEMA.encode(), definition="", subtasks=self.stored)
        retained = StoredState(self.store, self.checkpoint_id, operator, GROUPS)
        for before in self.retained:
            check_feed(before, retained, self._rows(before), self._rows(retained))
        self.retained = [*self.retained[-2:], retained]

    def _rows(self, stored: StoredState) -> dict[tuple[int, ...], tuple[int, ...]]:
        reader = RunReader(self.store, SCHEMA, open_runs=OpenRuns())
        whole = stored.whole()
        table = StateTable(SCHEMA, whole.key_groups, GROUPS, reader.open_all(whole.runs))
        return {row[:2]: row[2:] for batch in table.scan() for row in zip(*batch.to_pydict().values(), strict=True)}

    @rule()
    def crash(self) -> None:
        self.model, self.border = list(self.committed), self.committed_border
        self.reopen()

    @rule(parallelism=st.integers(1, GROUPS))
    def change_parallelism(self, parallelism: int) -> None:
        self.crash()
        operator = OperatorState(name="op", schema="", definition="", subtasks=self.stored)
        self.stored = rescale(operator, parallelism, GROUPS)
        self.reopen()

    def _live(self, rows: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        return [row for row in rows if row[2] > self.border]

    @invariant()
    def each_row_is_there_once(self) -> None:
        if not hasattr(self, "tables"):
            return
        scanned: list[Any] = []
        found: list[Any] = []
        ranges: list[int] = []
        for table in self.tables:
            for batch in table.scan():
                scanned += zip(*batch.to_pydict().values(), strict=True)
            keys = group_rows(key_rows(GROUPING, [pa.array(range(41), pa.int64())])).keys
            low, high = hash_bounds(table.key_groups, GROUPS)
            mine = keys.take(np.flatnonzero((keys.hashes >= np.uint64(low)) & (keys.hashes <= np.uint64(high - 1))))
            rows = rows_of_keys(table, mine).rows
            found += zip(*(column.to_pylist() for column in (*rows.keys.columns, *rows.values)), strict=True)
            upper, lower = mine.hashes & ~LOWER_HALF, mine.hashes | LOWER_HALF
            for each in table.between(upper, lower):
                ranges += each.source.rows(each.places).values[0].to_pylist()
        check_appended(self._live(scanned), self._live(self.model), "scan")
        check_appended(self._live(found), self._live(self.model), "search")
        times = [at for at in ranges if at > self.border]
        check_appended(times, [row[2] for row in self._live(self.model)], "ranges")


AppendedMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestAppendedMachine = AppendedMachine.TestCase
