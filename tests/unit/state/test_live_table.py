"""A table with a time to live answers as a dict with a clock, whatever was merged, and whatever the ttl was before."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from state_kit import ALL, LONGS, MAX_PARALLELISM, changes, merge_once

from stateline.errors import InternalError, InvalidInputError
from stateline.state.columns import at_or_below
from stateline.state.keys import group_rows, key_rows
from stateline.state.merge import MergeSettings
from stateline.state.table import StateTable
from stateline.state.time_to_live import (
    EXPIRY_COLUMN,
    Lifetime,
    LiveTable,
    expiry_test,
    ttl_milliseconds,
    with_expiry,
)

SCHEMA = with_expiry(LONGS, "test")


def seen(live):
    return {row["k"]: row["v"] for batch in live.scan() for row in batch.to_pylist()}


@pytest.mark.parametrize("seed", range(8))
def test_merges_change_no_answer_also_where_the_ttl_becomes_shorter(seed):
    draw = random.Random(seed)
    settings = MergeSettings(tier_runs=2, runs_max=4, small_rows=0)
    table, model, now, merged = StateTable(SCHEMA, ALL, MAX_PARALLELISM), {}, 1_700_000_000_000, 0
    for _ in range(60):
        now += draw.choice([0, 1, 10])
        live = LiveTable(table, Lifetime(now, draw.choice([1, 5, 50])))
        model = {key: (value, ends) for key, (value, ends) in model.items() if ends > now}
        assert seen(live) == {key: value for key, (value, _) in model.items()}
        keys = group_rows(key_rows(LONGS, [pa.array(range(30))])).keys
        found = live.probe(keys)
        values = [None if key not in model else model[key][0] for key in keys.columns[0].to_pylist()]
        assert found.values[0].to_pylist() == values
        assert found.mask.tolist() == [value is not None for value in values]
        touched = draw.sample(range(30), draw.randrange(6))
        put = {key: (draw.randrange(1000),) for key in touched[1:]}
        written = live.written(changes(LONGS, put, touched[:1]))
        ends = live._lifetime.now_ms + live._lifetime.ttl_ms
        model |= {key: (value, ends) for key, (value,) in put.items()}
        model.pop(touched[0] if touched else None, None)
        assert seen(live.with_changes(written)) == {key: value for key, (value, _) in model.items()}
        table, count = merge_once(table.with_changes(written), settings, expiry_test(now))
        merged += count
    assert merged > 20
    assert table.rows < 200


def test_rows_without_an_end_live_for_ever():
    table = StateTable(SCHEMA, ALL, MAX_PARALLELISM).with_changes(changes(SCHEMA, {1: (7, None), 2: (8, 5)}))
    assert seen(LiveTable(table, Lifetime(2**62, 1))) == {1: 7}
    merged, _ = merge_once(
        table.with_changes(changes(SCHEMA, {3: (9, None)})), MergeSettings(runs_max=1), expiry_test(9)
    )
    assert merged.rows == 2


def test_without_a_time_to_live_all_of_a_table_is_seen():
    table = StateTable(LONGS, ALL, MAX_PARALLELISM).with_changes(changes(LONGS, {1: (7,)}))
    live = LiveTable(table, Lifetime(0))
    assert (seen(live), live.schema) == ({1: 7}, LONGS)
    assert live.written(changes(LONGS, {2: (1,)})).values[0].to_pylist() == [1]


def test_the_column_of_the_end_is_the_last_one_and_keeps_defaults():
    schema = with_expiry(LONGS.with_defaults({"v": 3}), "test")
    assert schema.values.names == ["v", EXPIRY_COLUMN]
    assert LiveTable(StateTable(schema, ALL, MAX_PARALLELISM), Lifetime(0, 1)).schema.default("v").as_py() == 3
    with pytest.raises(InvalidInputError, match="needs itself"):
        with_expiry(schema, "test")


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.timestamp("us"), pa.timestamp("us", "UTC")])
def test_at_or_below_compares_words_and_nulls_are_not(kind):
    values = pa.array([1, None, 3, 2], pa.int8()).cast(pa.int64()).cast(kind)
    assert at_or_below(values, 2).tolist() == [True, False, False, True]
    assert at_or_below(values[1:], 2**40).tolist() == [False, True, True]
    assert at_or_below(values[:0], 2).tolist() == []
    with pytest.raises(InternalError, match="whole numbers or times"):
        at_or_below(pa.array(["a"]), 2)


def test_a_ttl_is_whole_milliseconds_and_one_at_least():
    assert [ttl_milliseconds(ttl, "test") for ttl in ("2 hours", 1.5, "0.0015 seconds")] == [7_200_000, 1500, 1]
    for ttl in (0, -1, "-1 hour", "0.0009 seconds", "1 month", "soon", None, True):
        with pytest.raises(InvalidInputError, match="ttl"):
            ttl_milliseconds(ttl, "test")
