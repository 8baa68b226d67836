"""Ranges of hashes in tables: what is found is what a look at every row finds, whatever the runs look like."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from state_kit import ALL, MAX_PARALLELISM, contents, merge_once, run_of

from stateline.key_groups import KeyGroupRange
from stateline.state.keys import KeyRows
from stateline.state.merge import MergeSettings
from stateline.state.rows import StateRows
from stateline.state.runs import Run
from stateline.state.schema import StateSchema
from stateline.state.subkeys import LOWER_HALF, ordered_hashes
from stateline.state.table import StateTable

SCHEMA = StateSchema(
    pa.schema([("k", pa.int64()), ("row", pa.int64())]), pa.schema([("v", pa.int32())]), append_only=True
)
UPPERS = np.sort(np.random.default_rng(7).integers(0, 1 << 32, 40, dtype=np.uint64)) << np.uint64(32)


def rows_of(generator, count, first=0):
    """Rows of few grouping keys, many of which share whole hashes."""
    uppers = generator.choice(UPPERS, count)
    hashes = np.sort(ordered_hashes(uppers, generator.integers(0, 30, count, dtype=np.uint64)))
    numbers = np.arange(first, first + count)
    keys = KeyRows(hashes, (pa.array((hashes >> np.uint64(32)).astype(np.int64)), pa.array(numbers)))
    return StateRows(keys, (pa.array(numbers.astype(np.int32)),))


def apart(run):
    """The same run with batches that do not lie one behind the other in memory."""
    copies = [batch.take(np.arange(len(batch))) for batch in reversed(run.batches)]
    return Run(copies[::-1], run.key_groups, MAX_PARALLELISM)


def ranges_of(generator, count):
    uppers = np.sort(generator.choice(UPPERS, count))
    lows = np.sort(ordered_hashes(uppers, generator.integers(0, 30, count, dtype=np.uint64)))
    width = np.uint64(generator.integers(0, 20))
    return lows, (lows & ~LOWER_HALF) | np.minimum((lows & LOWER_HALF) + width, LOWER_HALF)


def found_in(table, lows, highs, **options):
    pairs = []
    for found in table.between(lows, highs, **options):
        assert len(found.numbers) == len(found.places) > 0
        rows = found.source.rows(found.places)
        pairs += zip(found.numbers.tolist(), rows.keys.columns[1].to_pylist(), strict=True)
    return sorted(pairs)


@pytest.mark.parametrize("rows_max", [1, 7, 1 << 20])
@pytest.mark.parametrize("seed", range(4))
def test_ranges_find_what_a_look_at_every_row_finds(seed, rows_max):
    generator = np.random.default_rng(seed)
    layers = [rows_of(generator, int(count), first=1000 * number) for number, count in enumerate((60, 5, 33, 1))]
    batch_rows = int(generator.integers(1, 9))
    whole = [apart(run_of(layer, batch_rows=batch_rows)) for layer in layers]
    parts = [whole[0].part(KeyGroupRange(*part), MAX_PARALLELISM, None) for part in ((0, 3), (6, 12))]
    table = StateTable(SCHEMA, ALL, MAX_PARALLELISM, [*parts, *whole[1:]])
    stored = [
        (hash_, row)
        for run in table.runs
        for batch in run.batches
        for hash_, row in zip(batch.keys.hashes.tolist(), batch.keys.columns[1].to_pylist(), strict=True)
    ]
    for _ in range(12):  # From some miss on, an index says which ranges have no row.
        lows, highs = ranges_of(generator, 25)
        expected = sorted(
            (number, row)
            for number, (low, high) in enumerate(zip(lows.tolist(), highs.tolist(), strict=True))
            for hash_, row in stored
            if low <= hash_ <= high
        )
        assert found_in(table, lows, highs, rows_max=rows_max) == expected
        looking = generator.random(25) < 0.5
        assert found_in(table, lows, highs, looking=looking) == [pair for pair in expected if looking[pair[0]]]
    assert any(run.searched._index_of_upper_halves is not None for run in table.runs)


def test_who_looks_for_any_row_is_shown_one_of_each_range_first():
    layers = [rows_of(np.random.default_rng(number), 300, first=1000 * number) for number in range(3)]
    table = StateTable(SCHEMA, ALL, MAX_PARALLELISM, [run_of(layer, batch_rows=50) for layer in layers])
    looking = np.ones(len(UPPERS), dtype=np.bool_)
    seen = 0
    for found in table.between(UPPERS, UPPERS | LOWER_HALF, looking):
        seen += len(found.numbers)
        looking[found.numbers] = False
    assert seen <= len(UPPERS) + 6  # A range that reaches over two batches has a first row in both.
    assert not looking.any()


def test_pieces_are_no_larger_than_asked_for():
    table = StateTable(SCHEMA, ALL, MAX_PARALLELISM, [run_of(rows_of(np.random.default_rng(3), 400), batch_rows=8)])
    lows = np.repeat(UPPERS, 3)
    sizes = [len(found.numbers) for found in table.between(lows, lows | LOWER_HALF, rows_max=50)]
    assert sum(sizes) == 3 * 400
    assert max(sizes) <= 50


def test_what_is_only_appended_is_merged_without_a_look_at_its_keys(monkeypatch):
    generator = np.random.default_rng(5)
    table = StateTable(SCHEMA, ALL, MAX_PARALLELISM)
    kept = {}
    monkeypatch.setattr("stateline.state.merge.group_starts", None)
    for number in range(20):
        rows = rows_of(generator, 50, first=100 * number)
        kept |= dict.fromkeys(rows.keys.columns[1].to_pylist(), number)
        table, _ = merge_once(
            table.with_changes(rows),
            MergeSettings(runs_max=3, tier_runs=2, small_rows=10),
            lambda batch: batch.keys.columns[1].to_numpy() % 3 == 0,
        )
        assert not any(run.tombstones for run in table.runs)
    assert {row for _, row in contents(table)} >= {row for row in kept if row % 3}
    assert len(table.runs) <= 3


def test_the_text_of_a_schema_says_whether_rows_are_only_appended():
    plain = StateSchema(SCHEMA.keys, SCHEMA.values)
    assert StateSchema.decode(SCHEMA.encode()).append_only
    assert not StateSchema.decode(plain.encode()).append_only
    assert plain == SCHEMA
    assert SCHEMA.encode() != plain.encode()
