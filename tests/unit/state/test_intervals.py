"""Tables of intervals: what touches, whatever runs and hashes look like, is what a look at every interval finds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from state_kit import ALL, MAX_PARALLELISM, run_of

from stateline.state.intervals import Intervals, ending, interval_rows, touching
from stateline.state.keys import KeyRows
from stateline.state.schema import StateSchema
from stateline.state.table import StateTable

WIDTH = 10
SCHEMA = StateSchema(
    pa.schema([("key", pa.int64()), ("slot", pa.int64())]),
    pa.schema([("start", pa.timestamp("us")), ("end", pa.timestamp("us")), ("kept", pa.string())]),
)
KEYS = np.arange(24)
HALVES = np.sort(np.random.default_rng(3).integers(0, 1 << 32, 8, dtype=np.uint64)) << np.uint64(32)
HASHES = HALVES.repeat(3)
"""Three keys each share the upper half of their hash."""


def drawn(generator, keys, *, most):
    """Disjoint intervals of keys: by owner, then by start."""
    rows = []
    for owner in range(len(keys)):
        at = int(generator.integers(-300, 300))
        for _ in range(int(generator.integers(0, most + 1))):
            end = at + WIDTH + int(generator.choice([0, 1, 5, 40]))
            rows.append((owner, at, end))
            at = end + 1 + int(generator.choice([0, 3, 60]))
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return Intervals(*(np.ascontiguousarray(column) for column in columns))


def keys_of(numbers):
    return KeyRows(HASHES[numbers], (pa.array(numbers),))


def table_of(generator, layers):
    """Each layer has keys of its own, in runs of small batches."""
    table, stored = StateTable(SCHEMA, ALL, MAX_PARALLELISM), []
    for numbers in layers:
        intervals = drawn(generator, numbers, most=9)
        kept = [f"{numbers[owner]} at {start}" for owner, start in zip(intervals.owners, intervals.starts, strict=True)]
        alive = np.zeros(len(intervals), dtype=np.bool_)
        rows = interval_rows(table, keys_of(numbers), intervals, WIDTH, [pa.array(kept, pa.string())], alive)
        if len(rows):
            run = run_of(rows, batch_rows=int(generator.integers(1, 9)))
            table = StateTable(SCHEMA, ALL, MAX_PARALLELISM, [*table.runs, run])
        stored += zip(
            numbers[intervals.owners].tolist(), intervals.starts.tolist(), intervals.ends.tolist(), kept, strict=True
        )
    return table, stored


@pytest.mark.parametrize("seed", range(12))
def test_what_touches_is_what_a_look_at_every_interval_finds(seed):
    generator = np.random.default_rng(seed)
    split = generator.permutation(KEYS)
    table, stored = table_of(generator, [np.sort(split[:9]), np.sort(split[9:12]), np.sort(split[12:22])])
    for _ in range(8):  # From some miss on, a filter says which keys have none.
        numbers = np.sort(generator.choice(KEYS, int(generator.integers(1, 25)), replace=False))
        asked = drawn(generator, numbers, most=4)
        after = None if generator.random() < 0.5 else int(generator.integers(-300, 300))
        found = touching(table, keys_of(numbers), asked, WIDTH, after=after)
        expected = []
        for key, start, end, kept in stored:
            touched = [
                number
                for number, (owner, first, last) in enumerate(
                    zip(asked.owners.tolist(), asked.starts.tolist(), asked.ends.tolist(), strict=True)
                )
                if numbers[owner] == key and start <= last and end >= first
            ]
            if touched and (after is None or end > after):
                owner = int(asked.owners[touched[0]])
                expected.append((owner, start, end, touched[0], touched[-1], kept))
        made = (found.intervals.owners, found.intervals.starts, found.intervals.ends, found.firsts, found.lasts)
        assert list(zip(*(column.tolist() for column in made), found.kept[0].to_pylist(), strict=True)) == sorted(
            expected
        )


def test_what_ends_is_found_in_the_runs_whose_ends_reach_into_the_time():
    generator = np.random.default_rng(0)
    table, stored = table_of(generator, [KEYS[:8], KEYS[8:16], KEYS[16:]])
    nothing = interval_rows(
        table,
        keys_of(KEYS[:0]),
        Intervals(*(np.empty(0, np.int64) for _ in range(3))),
        WIDTH,
        [pa.array([], pa.string())],
        np.empty(0, np.bool_),
    )
    for after, until in ((None, -200), (-200, -200), (-200, 0), (0, 150), (150, 10_000), (10_000, 20_000)):
        found = ending(table, nothing, after=after, until=until)
        low = -(10**9) if after is None else after
        assert sorted(found.values[2].to_pylist()) == sorted(kept for _, _, end, kept in stored if low < end <= until)
