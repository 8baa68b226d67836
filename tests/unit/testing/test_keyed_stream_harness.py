"""Programs over lists of rows, without a Spark session."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from stateline.blob.memory import MemoryStore
from stateline.environment import Environment, system_environment
from stateline.errors import InvalidInputError, UnavailableError
from stateline.state.aggregate import count, max, sum
from stateline.testing import (
    ActorKilled,
    Fault,
    FaultKind,
    FaultyStore,
    KeyedStreamHarness,
    ManualClock,
    OperatorHarness,
    ScriptedFaults,
)

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
SECOND = 1_000_000


def totals(stream):
    return stream.aggregate(n=count(), total=sum("value"))


def rows(*pairs):
    return [{"key": key, "value": value} for key, value in pairs]


def events(*pairs):
    return [{"key": key, "at": at * SECOND} for key, at in pairs]


def found(output):
    return sorted((row["key"], row["n"], row["total"]) for row in output)


def test_batches_go_in_and_rows_come_out_over_restarts_at_any_parallelism():
    harness = totals(KeyedStreamHarness(SCHEMA, "key"))
    assert harness.checkpoint is None
    assert found(harness.run_batch(rows(("a", 1), ("b", 2), ("a", 3)))) == [("a", 2, 4), ("b", 1, 2)]
    for parallelism in (5, 1, 128):
        harness.restart(parallelism=parallelism)
        assert len(harness.checkpoint.operators[0].subtasks) != parallelism
        harness.run_batch(rows(("a", 1)))
        assert len(harness.checkpoint.operators[0].subtasks) == parallelism
    assert found(harness.run_batch(rows(("b", 2)))) == [("b", 2, 4)]
    assert sorted(row["key"] for row in harness.state()) == ["a", "b"]
    assert harness.metrics["rows"] == 1
    assert {number: len(output) for number, output in harness.outputs.items()} == {0: 2, 1: 1, 2: 1, 3: 1, 4: 1}


def test_a_batch_that_comes_again_changes_nothing():
    harness = totals(KeyedStreamHarness(SCHEMA, "key"))
    harness.run_batch(rows(("a", 1)))
    harness.restart()
    assert harness.run_batch(rows(("a", 1)), batch_id=0) == []
    assert found(harness.run_batch(rows(("a", 1)))) == [("a", 2, 2)]


def test_a_batch_that_failed_can_run_again():
    faults = ScriptedFaults([Fault(kind=FaultKind.UNAVAILABLE, operation="put_if_absent", at=2)])
    stream = KeyedStreamHarness(SCHEMA, "key", root=FaultyStore(MemoryStore("harness-faults"), faults))
    harness = totals(stream)
    harness.run_batch(rows(("a", 1)))
    with pytest.raises(UnavailableError):
        harness.run_batch(rows(("a", 1)))
    harness.restart()
    assert found(harness.run_batch(rows(("a", 1)))) == [("a", 2, 2)]
    MemoryStore.forget("harness-faults")


def test_a_driver_that_dies_once_its_batch_is_decided_leaves_the_output_to_the_next_one():
    faults = ScriptedFaults([Fault(kind=FaultKind.CRASH_AFTER, operation="put_if_absent")])
    store = FaultyStore(MemoryStore("harness-crash"), faults)
    harness = totals(KeyedStreamHarness(SCHEMA, "key", root=store))
    with pytest.raises(ActorKilled):
        harness.run_batch(rows(("a", 1)))
    assert harness.outputs == {}
    store.revive()
    harness.restart()
    assert harness.run_batch(rows(("a", 1)), batch_id=0) == [], "it is decided already"
    assert [found(output) for output in harness.outputs.values()] == [[("a", 1, 1)]]
    MemoryStore.forget("harness-crash")


def test_the_next_program_goes_on_from_the_state_or_is_refused():
    stream = KeyedStreamHarness(SCHEMA, "key")
    totals(stream).run_batch(rows(("a", 1)))
    assert found(totals(stream).run_batch(rows(("a", 2)))) == [("a", 2, 3)]
    with pytest.raises(InvalidInputError, match="aggregat"):
        stream.aggregate(n=max("value")).run_batch(rows(("a", 2)))


def test_rows_move_the_watermark_and_windows_close():
    stream = KeyedStreamHarness(SCHEMA, "key", watermark=("at", "5 seconds"))
    harness = stream.window("at", "10 seconds").aggregate("append", n=count())
    assert harness.run_batch(events(("a", 1), ("a", 4))) == []
    assert harness.run_batch(events(("b", 16))) == []
    assert harness.watermark_us == 11 * SECOND
    assert [(row["key"], row["n"]) for row in harness.advance_time()] == [("a", 2)]
    assert harness.run_batch(events(("a", 2))) == [], "it is late"
    assert harness.metrics["rows_late"] == 1
    assert harness.run_batch(events(("c", 60))) == []
    assert [(row["key"], row["n"]) for row in harness.finish()] == [("b", 1)]
    assert harness.finish() == []
    assert harness.state()[0]["key"] == "c"


def test_a_function_over_arrow_tables():
    def total(events, state):
        sums = events.group_by("key_index").aggregate([("value", "sum")]).sort_by("key_index")
        new = pc.add(state["total"].fill_null(0), sums["value_sum"])
        state = state.set_column(state.schema.get_field_index("total"), "total", new)
        return state, state

    kept = pa.schema([("total", pa.int64())])
    shown = pa.schema([("key", pa.string()), ("total", pa.int64())])
    harness = KeyedStreamHarness(SCHEMA, ["key"]).apply_arrow(total, kept, shown)
    harness.run_batch(rows(("a", 1), ("a", 2)))
    assert harness.run_batch(rows(("a", 4))) == [{"key": "a", "total": 7}]
    assert harness.state() == [{"key": "a", "total": 7}]


def test_what_cannot_be_is_refused_where_it_is_said():
    with pytest.raises(InvalidInputError, match="key column"):
        KeyedStreamHarness(SCHEMA, "kye")
    with pytest.raises(InvalidInputError, match="must be a timestamp"):
        KeyedStreamHarness(SCHEMA, "key", watermark=("value", "1s"))
    with pytest.raises(InvalidInputError, match="'retain'"):
        KeyedStreamHarness(SCHEMA, "key", options={"retain": "3"})
    harness = totals(KeyedStreamHarness(SCHEMA, "key"))
    with pytest.raises(InvalidInputError, match=r"'vlaue'.*Did you mean 'value'"):
        harness.run_batch([{"key": "a", "vlaue": 1}])
    with pytest.raises(InvalidInputError, match=r"rows: a value does not fit its column.*value int64"):
        harness.run_batch([{"key": "a", "value": "many"}])
    with pytest.raises(InvalidInputError, match="state table"):
        harness.state("count")
    real = OperatorHarness(harness.program, SCHEMA, environment=system_environment())
    with pytest.raises(InvalidInputError, match="ManualClock"):
        real.advance_time(1)


def test_processing_time_is_that_of_the_clock():
    clock = ManualClock(1_000.0)
    harness = totals(KeyedStreamHarness(SCHEMA, "key", clock=clock))
    assert harness.clock is clock
    harness.run_batch(rows(("a", 1)))
    assert harness.checkpoint.created_at == 1_000.0
    assert harness.advance_time(60) == []
    harness.run_batch([])
    assert harness.checkpoint.created_at == 1_060.0
    other = OperatorHarness(harness.program, SCHEMA, environment=Environment(clock=clock))
    assert other.clock is clock


def test_it_runs_without_pyspark():
    program = """
import sys
sys.modules["pyspark"] = None
import pyarrow as pa
from stateline.state.aggregate import count
from stateline.testing import KeyedStreamHarness
harness = KeyedStreamHarness(pa.schema([("key", pa.string())]), "key").aggregate(n=count())
assert harness.run_batch([{"key": "a"}]) == [{"key": "a", "n": 1, "checkpoint_id": 0}]
del sys.modules["pyspark"]
import importlib.util
importlib.util.find_spec = lambda name: None
try:
    KeyedStreamHarness("key string", "key")
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "pip install 'stateline[spark]'" in done.stdout


def test_an_operator_behind_another_one_and_streams_of_the_same_schema_are_told_apart():
    def counted(stream):
        state, output = pa.schema([("n", pa.int64())]), pa.schema([("value", pa.int64())])
        return stream.apply_arrow(lambda events, state: (events.select(["value"]), None), state, output, "append")

    schema = pa.schema([("key", pa.string()), ("value", pa.int64())])
    harness = counted(KeyedStreamHarness(schema, "key")).key_by("value").aggregate(n=count())
    rows = [{"key": key, "value": len(key)} for key in ("a", "bb", "cc")]
    assert sorted((row["value"], row["n"]) for row in harness.run_batch(rows)) == [(1, 1), (2, 2)]
    harness.restart(parallelism=3)
    assert [(row["value"], row["n"]) for row in harness.run_batch([{"key": "d", "value": 1}])] == [(1, 2)]
    assert harness.name == "op_by_value"
    with pytest.raises(InvalidInputError, match="cannot feed another operator"):
        KeyedStreamHarness(schema, "key").apply_arrow(
            lambda events, state: (None, None), schema.remove(0), schema.remove(0)
        ).key_by("value")


def test_duplicates_are_dropped_in_front_of_an_aggregation_and_late_rows_go_first_in_both():
    stream = KeyedStreamHarness(SCHEMA, "key", watermark=("at", "10 seconds"))
    harness = stream.drop_duplicates(within_watermark=True).key_by("value").window("at", "10 seconds")
    harness = harness.aggregate("append", n=count())
    shown = [
        [(row["value"], row["window_start"].second, row["n"]) for row in harness.run_batch(batch)]
        for batch in (
            [{"key": key, "value": 1, "at": 100 * SECOND} for key in "aab"],
            [{"key": "a", "value": 1, "at": 109 * SECOND}, {"key": "c", "value": 1, "at": 125 * SECOND}],
            [{"key": "d", "value": 1, "at": 101 * SECOND}],
            [{"key": "e", "value": 1, "at": 102 * SECOND}],
        )
    ]
    assert shown == [[], [], [(1, 40, 3)], []], "a and b, and d that is not late yet; e is"


def test_behind_an_operator_a_key_is_remembered_for_the_delay_of_the_stream():
    first = KeyedStreamHarness(SCHEMA, ["key", "at"], watermark=("at", "10 seconds")).drop_duplicates()
    second = first.key_by("key").drop_duplicates(within_watermark=True)
    rows = [[{"key": "a", "at": at * SECOND}] for at in (100, 105, 111, 122, 123, 124)]
    passed = [len(second.run_batch(batch)) for batch in rows]
    assert passed == [1, 0, 0, 0, 0, 1], "forgotten at 110: the batch that reads 123 knows of 122, and so of 112"


def test_keys_are_forgotten_by_the_clock():
    stream = KeyedStreamHarness(SCHEMA, "key", ttl="1 minute")
    harness = totals(stream)
    harness.run_batch(rows(("a", 1), ("b", 1)))
    stream.clock.advance(59)
    harness.run_batch(rows(("a", 1)))
    stream.clock.advance(1)
    assert found(harness.run_batch(rows(("a", 1), ("b", 1)))) == [("a", 3, 3), ("b", 1, 1)]
    once = KeyedStreamHarness(SCHEMA, "key", ttl="1 minute").drop_duplicates()
    assert [len(once.run_batch(rows(("a", 1)))) for _ in range(2)] == [1, 0]
    once.clock.advance(60)
    assert len(once.run_batch(rows(("a", 1)))) == 1
    with pytest.raises(InvalidInputError, match="1 millisecond or more"):
        KeyedStreamHarness(SCHEMA, "key", ttl=0)
    best = KeyedStreamHarness(SCHEMA, "key", ttl="1 minute").top(1, by="value")
    assert [len(best.run_batch(rows(("a", value)))) for value in (2, 1)] == [1, 0]
    best.clock.advance(60)
    assert len(best.run_batch(rows(("a", 1)))) == 1
    with pytest.raises(InvalidInputError, match="forgets no keys by the clock"):
        KeyedStreamHarness(SCHEMA, "key", ttl="1 minute").sessions("at", "1 minute").aggregate(n=count())


def test_rows_beside_versions_and_beside_state():
    prices = pa.schema([("code", pa.string()), ("since", pa.timestamp("us", "UTC")), ("price", pa.int64())])
    left = KeyedStreamHarness(SCHEMA, "key", watermark=("at", "1 second"))
    joined = left.join_asof(KeyedStreamHarness(prices, "code", watermark=("since", "1 second")), how="left")
    rows = [{"key": "a", "value": second, "at": second * SECOND} for second in (1, 3, 9)]
    joined.run_batch(rows, [{"code": "a", "since": second * SECOND, "price": second} for second in (2, 9)])
    found = joined.run_batch([], [])
    assert sorted((row["value"], row["price"]) for row in found) == [(1, None), (3, 2)]

    totals = KeyedStreamHarness(SCHEMA, "key", name="totals").aggregate(total=sum("value"))
    beside = KeyedStreamHarness(SCHEMA, "key").lookup(totals)
    assert [row["total"] for row in beside.run_batch(rows[:1], rows)] == [None]
    assert [row["total"] for row in beside.run_batch(rows[:1], [])] == [13]

    totals.run_batch(rows)
    elsewhere = KeyedStreamHarness(SCHEMA, "key").lookup(totals.root.url, columns=["total"], how="inner")
    assert [row["total"] for row in elsewhere.run_batch([*rows[:1], {"key": "b"}])] == [13]
