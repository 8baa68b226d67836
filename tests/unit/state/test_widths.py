"""Whole numbers are stored in as few bits as a run needs, and read as what they were declared."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from state_kit import ALL, LONGS, MAX_PARALLELISM, StoredRuns, changes, contents, merge_once, run_of

from stateline.blob.memory import MemoryStore
from stateline.checkpoint.api import SubtaskState
from stateline.errors import CorruptDataError
from stateline.state.changes import change_schema, changes_between
from stateline.state.expiry import expire_keys
from stateline.state.keys import group_rows, key_rows
from stateline.state.merge import MergeSettings
from stateline.state.open_runs import OpenRuns
from stateline.state.rows import StateRows
from stateline.state.run import encode_run
from stateline.state.run_store import RunReader
from stateline.state.schema import StateSchema
from stateline.state.stored import SliceReader
from stateline.state.subkeys import rows_of_keys, rows_where
from stateline.state.table import StateTable
from stateline.state.time_to_live import EXPIRY_COLUMN, expiry_test
from stateline.state.timers import expired_timers, next_timer
from stateline.state.widths import concat, declared_field, narrowed_schema

EDGES = [
    ([-128, 127], pa.int8()),
    ([-129], pa.int16()),
    ([128], pa.int16()),
    ([-(2**15), 2**15 - 1], pa.int16()),
    ([2**15], pa.int32()),
    ([-(2**31), 2**31 - 1], pa.int32()),
    ([2**31], pa.int64()),
    ([-(2**31) - 1], pa.int64()),
    ([-(2**63), 2**63 - 1], pa.int64()),
    ([None, 5], pa.int8()),
    ([None], pa.int8()),
]


def stored_schema(rows: StateRows, schema: StateSchema) -> pa.Schema:
    return pa.ipc.open_file(encode_run(run_of(rows), schema, MAX_PARALLELISM).data).schema


EXPECTED = {1: (-1000,), -3: (None,), 4: (4,), 300: (300,), -70_000: (2**20,), 2**40: (-(2**40),)}
"""What :meth:`TestATable.stored` holds."""


class Stored:
    """Rows of several checkpoints, each a run of its own width, read back from a store."""

    def __init__(self, schema: StateSchema, *layers: StateRows) -> None:
        self.schema = schema
        self.store = MemoryStore("widths")
        writer = StoredRuns(self.store, schema, MAX_PARALLELISM)
        self.handles = tuple(writer.write(run_of(rows), number) for number, rows in enumerate(layers))
        runs = RunReader(self.store, schema, open_runs=OpenRuns()).open_all(self.handles)
        self.table = StateTable(schema, ALL, MAX_PARALLELISM, runs)
        self.widths = [run.batches[0].values[0].type for run in runs if run.batches[0].values]


@pytest.fixture(autouse=True)
def _forgotten() -> Any:
    yield
    MemoryStore.forget("widths")


@pytest.mark.parametrize(("values", "kind"), EDGES)
def test_a_run_stores_the_narrowest_type_that_holds_its_values(values: list[int | None], kind: pa.DataType) -> None:
    rows = changes(LONGS, {key: [value] for key, value in enumerate(values)})
    stored = stored_schema(rows, LONGS)
    assert stored.types == [pa.uint64(), pa.int8(), kind]
    assert [declared_field(field).type for field in stored][1:] == [pa.int64(), pa.int64()]
    assert StateSchema.of_run(stored) == LONGS
    assert contents(Stored(LONGS, rows).table) == {key: (value,) for key, value in enumerate(values)}


def test_the_narrowest_type_holds_the_values_of_all_parts() -> None:
    declared = pa.schema([("v", pa.int32())])
    parts = [[pa.array([1], pa.int32())], [pa.array([], pa.int32())], [pa.array([300], pa.int16())]]
    assert narrowed_schema(declared, parts).types == [pa.int16()]


def test_only_signed_whole_numbers_become_narrow() -> None:
    kinds = [pa.uint64(), pa.float64(), pa.timestamp("us"), pa.duration("us"), pa.decimal128(9, 0), pa.bool_()]
    schema = pa.schema([(str(kind), kind) for kind in kinds])
    assert narrowed_schema(schema, [[pa.array([None], kind) for kind in kinds]]) == schema


@pytest.mark.parametrize(
    ("kind", "note"),
    [(pa.int64(), b"int32"), (pa.int8(), b"int8"), (pa.int8(), b"double"), (pa.string(), b"int64"), (pa.int8(), b"")],
)
def test_a_note_of_a_type_that_it_cannot_have_been_is_damage(kind: pa.DataType, note: bytes) -> None:
    hashes = pa.field("__hash", pa.uint64(), nullable=False)
    wrong = pa.field("k", kind, metadata={b"stateline.role": b"key", b"stateline.type": note})
    with pytest.raises(CorruptDataError, match="was never one of type"):
        StateSchema.of_run(pa.schema([hashes, wrong]))


def test_columns_of_several_widths_become_one() -> None:
    parts = [pa.array([-1, None], pa.int8()), pa.array([2**40], pa.int64()), pa.array([-(2**31)], pa.int32())]
    assert concat(parts) == pa.array([-1, None, 2**40, -(2**31)], pa.int64())
    assert concat([part.drop_null() for part in parts]) == pa.array([-1, 2**40, -(2**31)], pa.int64())
    assert concat([part.slice(0, 1) for part in parts[::2]]) == pa.array([-1, -(2**31)], pa.int32())
    with pytest.raises(pa.ArrowInvalid):
        concat([parts[0], pa.array([1], pa.uint64())])


def test_rows_are_narrowed_column_by_column() -> None:
    rows = changes(LONGS, {1: [2**20], -200: [None]}, deleted=[3])
    narrow = rows.narrowed()
    assert [column.type for column in (*narrow.keys.columns, *narrow.values)] == [pa.int16(), pa.int32()]
    assert narrow.declared(LONGS).values == rows.values
    assert narrow.declared(LONGS).keys.columns == rows.keys.columns


class TestATable:
    """A stack of runs, each wider than the one before, with negative keys and values."""

    def stored(self) -> Stored:
        stored = Stored(
            LONGS,
            changes(LONGS, {1: [-1], 2: [2], -3: [-3], 4: [4]}),
            changes(LONGS, {1: [-1000], 300: [300]}, deleted=[2]),
            changes(LONGS, {-70_000: [2**20], -3: [None]}),
            changes(LONGS, {2**40: [-(2**40)]}),
        )
        assert stored.widths == [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
        return stored

    def test_a_search_finds_the_declared_types(self) -> None:
        wanted = [*EXPECTED, 2, 127, -1]
        keys = group_rows(key_rows(LONGS, [pa.array(wanted, pa.int64())])).keys
        found = self.stored().table.probe(keys)
        assert found.values[0].type == pa.int64()
        values = dict(zip(keys.columns[0].to_pylist(), found.values[0].to_pylist(), strict=True))
        assert values == {key: value for key, (value,) in EXPECTED.items()} | dict.fromkeys([2, 127, -1])
        assert found.mask.sum() == len(EXPECTED)

    def test_a_scan_gives_the_declared_types(self) -> None:
        table = self.stored().table
        assert {batch.schema for batch in table.scan()} == {LONGS.row}
        assert contents(table) == EXPECTED

    def test_a_merge_is_as_wide_as_its_widest_run(self) -> None:
        table = self.stored().table.with_changes(changes(LONGS, {5: [5]}))
        merged, count = merge_once(table, MergeSettings(runs_max=1))
        assert count == 5
        assert contents(merged) == EXPECTED | {5: (5,)}

    def test_a_merge_without_the_wide_rows_is_narrow_again(self) -> None:
        wide = Stored(LONGS, changes(LONGS, {1: [2**40], 2: [2]}), changes(LONGS, {1: [1]}))
        merged, _ = merge_once(wide.table, MergeSettings(runs_max=1))
        encoded = encode_run(merged.runs[0], LONGS, MAX_PARALLELISM)
        assert pa.ipc.open_file(encoded.data).schema.types == [pa.uint64(), pa.int8(), pa.int8()]

    def test_changes_show_the_declared_types(self) -> None:
        stored = self.stored()
        before, after = (
            SubtaskState(first_key_group=ALL.start, last_key_group=ALL.end, runs=stored.handles[:count])
            for count in (2, 4)
        )
        reader = SliceReader(stored.store, LONGS, MAX_PARALLELISM)
        rows = pa.Table.from_batches(changes_between(reader, before, after), change_schema(LONGS)).to_pylist()
        assert sorted((row["__change"], row["k"], row["v"]) for row in rows if row["k"] != -3) == [
            ("insert", -70_000, 2**20),
            ("insert", 2**40, -(2**40)),
        ]

    def test_keys_that_are_closed_have_the_declared_types(self) -> None:
        schema = StateSchema(pa.schema([("k", pa.int64()), ("at", pa.timestamp("us"))]), LONGS.values)
        stored = Stored(schema, changes(schema, {(1, _at(5)): [1], (2, _at(50)): [2]}))
        closed = expire_keys(stored.table, changes(schema, {(3, _at(6)): [3]}), 1, after=None, until=10)
        assert [column.type for column in (*closed.rows.keys.columns, *closed.rows.values)] == schema.row.types
        assert sorted(closed.rows.values[0].to_pylist()) == [1, 3]

    def test_keys_are_closed_by_a_narrow_column(self) -> None:
        stored = self.stored()
        closed = expire_keys(stored.table, changes(LONGS, {6: [6]}), 0, after=-100, until=299)
        assert sorted(closed.rows.keys.columns[0].to_pylist()) == [-3, 1, 4, 6]
        far = expire_keys(stored.table, changes(LONGS), 0, after=299, until=2**41)
        assert sorted(far.rows.keys.columns[0].to_pylist()) == [300, 2**40]


def test_timers_and_rows_of_sub_keys_have_the_declared_types() -> None:
    schema = StateSchema(pa.schema([("k", pa.int64()), ("expiry_ms", pa.int64())]), pa.schema([]))
    stored = Stored(schema, changes(schema, {(1, 5): [], (1, 100): [], (2, 90): []}))
    far = 1_700_000_000_000
    assert {column.type for column in expired_timers(stored.table, 99).columns} == {pa.int64()}
    assert sorted(expired_timers(stored.table, far).columns[1].to_pylist()) == [5, 90, 100]
    assert next_timer(stored.table, 90, None) == 100
    assert next_timer(stored.table, far, None) is None
    keys = group_rows(key_rows(LONGS, [pa.array([1], pa.int64())])).keys
    assert len(rows_where(stored.table, lambda rows: np.ones(len(rows), dtype=np.bool_))) == 3
    assert {column.type for column in rows_of_keys(stored.table, keys).rows.keys.columns} == {pa.int64()}


def test_what_has_expired_is_told_from_narrow_times() -> None:
    schema = StateSchema(LONGS.keys, pa.schema([("v", pa.int64()), (EXPIRY_COLUMN, pa.int64())]))
    stored = Stored(schema, changes(schema, {1: [1, 5], 2: [2, 100], 3: [3, None]}))
    (rows,) = stored.table.runs[0].batches
    assert rows.values[1].type == pa.int8()
    expired = {
        now: sorted(rows.keys.take(np.flatnonzero(expiry_test(now)(rows))).columns[0].to_pylist())
        for now in (4, 5, 1_700_000_000_000)
    }
    assert expired == {4: [], 5: [1], 1_700_000_000_000: [1, 2]}


def test_a_state_that_is_widened_reads_its_narrow_rows() -> None:
    narrow = StateSchema(LONGS.keys, pa.schema([("v", pa.int32())]))
    wide = StateSchema(LONGS.keys, pa.schema([("v", pa.float64())]))
    stored = Stored(narrow, changes(narrow, {1: [-7], 2: [None]}))
    for wanted in (LONGS, wide):
        runs = RunReader(stored.store, wanted, open_runs=OpenRuns()).open_all(stored.handles)
        table = StateTable(wanted, ALL, MAX_PARALLELISM, runs)
        assert {batch.schema for batch in table.scan()} == {wanted.row}
        assert contents(table) == {1: (-7,), 2: (None,)}


def _at(microseconds: int) -> Any:
    return dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=microseconds)
