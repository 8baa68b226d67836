"""Rows that move through graphs: chains, several inputs, late rows, and attempts that do not go together."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest

from stateline.errors import InternalError
from stateline.key_groups import hash_columns, key_group_of
from stateline.pipeline import parcels as parcels_module
from stateline.pipeline.dataflow import Dataflow, inputs_of_level, is_consistent
from stateline.pipeline.event_time import WatermarkPlan, WindowPlan
from stateline.pipeline.graph import Graph, Input, OperatorPlan, Source
from stateline.pipeline.messages import SubtaskInput, SubtaskResult
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.pipeline.operators.api import BatchContext, OperatorProgram, Processed, Reading
from stateline.pipeline.operators.late_output import LateRowsProgram
from stateline.pipeline.parcels import Parcel, decode_parcels, encode_parcels, read_rows, split_by_subtask, write_rows
from stateline.pipeline.windows import in_windows
from stateline.sizes import Sizes
from stateline.state.aggregate import count, sum
from stateline.testing import GraphHarness

EVENTS = pa.schema([("key", pa.string()), ("other", pa.int64()), ("value", pa.int64()), ("at", pa.timestamp("us"))])
WATERMARK = WatermarkPlan.of(EVENTS, "at", "2 seconds")


@dataclass(frozen=True)
class Sides(OperatorProgram):
    """Counts the rows of two sides by key, without state."""

    key_columns = ("key",)
    input_columns = ("key", "value")
    wants_hash = True
    definition = "sides"
    emits = "appends"

    @property
    def tables(self):
        return {}

    @property
    def readings(self):
        return (Reading(key_columns=("key",), columns=("key", "value")), Reading(key_columns=("k",), columns=("k",)))

    @property
    def output_schema(self):
        return pa.schema([("key", pa.string()), ("left", pa.int64()), ("right", pa.int64())])

    def process_sides(self, sides, tables, context):
        left = Counter(key for batch in sides[0] for key in batch.column("key").to_pylist())
        right = Counter(key for batch in sides[1] for key in batch.column("k").to_pylist())
        rows = [{"key": key, "left": left[key], "right": right[key]} for key in {**left, **right}]
        return Processed(changes={}, output=pa.Table.from_pylist(rows, self.output_schema) if rows else None)


def rows_of(dice: random.Random, count: int) -> list[dict]:
    return [
        {"key": dice.choice("abcdefgh"), "other": dice.randrange(3), "value": dice.randrange(9), "at": None}
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_an_operator_behind_another_gets_each_row_once_whatever_the_parallelism(seed):
    dice = random.Random(seed)
    first = LateRowsProgram(EVENTS, ("key",))
    second = AggregateProgram.bind(EVENTS, ["other"], {"n": count(), "total": sum("value")})
    graph = Graph(
        (Input(name="first"),),
        (
            OperatorPlan.of("first", first, (Source("input", "first"),)),
            OperatorPlan.of("second", second, (Source("operator", "first"),)),
        ),
    )
    harness = GraphHarness(graph, {"first": first, "second": second}, {"first": EVENTS})
    expected: dict[int, tuple[int, int]] = {}
    for _ in range(6):
        batch = rows_of(dice, dice.randrange(0, 40))
        for row in batch:
            n, total = expected.get(row["other"], (0, 0))
            expected[row["other"]] = (n + 1, total + row["value"])
        out = harness.run_batch({"first": batch})
        assert sorted(row["value"] for row in out.get("first", [])) == sorted(row["value"] for row in batch)
        shown = {row["other"]: (row["n"], row["total"]) for row in out.get("second", [])}
        assert shown == {key: expected[key] for key in {row["other"] for row in batch}}
        harness.restart(parallelism=dice.choice([1, 2, 3, 5]))
    assert {row["other"]: row["n"] for row in harness.state("second")} == {k: n for k, (n, _) in expected.items()}


def test_an_operator_with_two_sides_gets_the_rows_of_each_by_its_own_key_columns():
    program, other = Sides(), pa.schema([("k", pa.string())])
    plan = OperatorPlan.of("both", program, (Source("input", "both"), Source("input", "both.right")))
    graph = Graph((Input(name="both"), Input(name="both.right")), (plan,))
    harness = GraphHarness(graph, {"both": program}, {"both": EVENTS, "both.right": other}, parallelism=3)
    left = rows_of(random.Random(1), 50)
    right = [{"k": key} for key in "aabbbz"]
    out = harness.run_batch({"both": left, "both.right": right})["both"]
    counts = Counter(row["key"] for row in left)
    assert {row["key"]: (row["left"], row["right"]) for row in out} == {
        key: (counts[key], Counter("aabbbz")[key]) for key in {*counts, *"abz"}
    }
    assert harness.run_batch({"both.right": right})["both"] != []


def test_late_rows_are_an_output_of_their_own_and_reach_no_operator():
    window = WindowPlan.of(EVENTS, "at", "10 seconds", None, 0)
    program = AggregateProgram.bind(EVENTS, ["key"], {"n": count()}, window=window, watermark=WATERMARK)
    late = LateRowsProgram(EVENTS, ("key",))
    graph = Graph(
        (Input(name="counts", watermark=WATERMARK),),
        (
            replace(
                OperatorPlan.of("counts", program, (Source("input", "counts"),)), late_columns={0: tuple(EVENTS.names)}
            ),
            OperatorPlan.of("late", late, (Source("late", "counts"),)),
        ),
    )
    harness = GraphHarness(graph, {"counts": program, "late": late}, {"counts": EVENTS})

    def event(at_seconds: int, value: int) -> dict:
        return {"key": "a", "other": 0, "value": value, "at": np.datetime64(at_seconds, "s").item()}

    for at in (5, 30, 31):
        harness.run_batch({"counts": [event(at, 1)]})
    out = harness.run_batch({"counts": [event(3, 7), event(32, 1), event(9, 8)]})
    assert sorted(row["value"] for row in out["late"]) == [7, 8]
    assert out["late"][0].keys() == set(EVENTS.names)
    assert [row["n"] for row in out["counts"]] == [3]
    assert harness.metrics["rows_late"] == 2


def test_results_whose_rows_came_from_another_attempt_do_not_go_together():
    def result(operator, subtask, attempt, **received):
        read = {name.replace("_", "/"): read for name, read in received.items()}
        return SubtaskResult(operator=operator, subtask=subtask, states={}, attempt=attempt, received=read)

    assert is_consistent([result("a", 0, "x"), result("b", 0, "y", a_0="x"), result("b", 1, "z", a_0="x")])
    assert not is_consistent([result("a", 0, "x"), result("b", 0, "y", a_0="x"), result("b", 1, "z", a_0="w")])


def test_each_subtask_says_whose_rows_it_has_read_also_where_there_were_none():
    first, second = LateRowsProgram(EVENTS, ("key",)), LateRowsProgram(EVENTS, ("other",))
    graph = Graph(
        (Input(name="a"),),
        (
            OperatorPlan.of("a", first, (Source("input", "a"),)),
            OperatorPlan.of("b", second, (Source("operator", "a"),)),
        ),
    )
    harness = GraphHarness(graph, {"a": first, "b": second}, {"a": EVENTS})
    flow = Dataflow(harness.plan, {"a": first, "b": second})
    context = BatchContext(checkpoint_id=0, now=0.0)
    sent = [
        parcel
        for subtask in (0, 1)
        for parcel in flow.run(0, subtask, (), _inputs(flow, 0, context), lambda name: harness._resources(name, 0))
    ]
    assert Counter((parcel.reader, parcel.partition) for parcel in sent if parcel.reader) == {("b", 0): 2, ("b", 1): 2}
    doubled = [*sent, replace(next(parcel for parcel in sent if parcel.reader), attempt="another")]
    with pytest.raises(InternalError, match="two attempts"):
        list(flow.run(1, 0, doubled, _inputs(flow, 1, context), lambda name: harness._resources(name, 0)))


def _inputs(flow, level, context):
    given = [
        SubtaskInput(operator=name, subtask=subtask, states={}, open_files=(), context=context)
        for name in "ab"
        for subtask in (1, 0)
    ]
    return inputs_of_level(flow, level, given)


def test_parcels_cross_as_they_are_and_long_ones_are_cut(monkeypatch):
    monkeypatch.setattr(parcels_module, "sizes", lambda: Sizes(parcel_bytes=200, parcel_batch_bytes=2000))
    batch = pa.record_batch({"key": [f"k{number % 7}" for number in range(300)], "n": range(300)})
    hashes = hash_columns([batch.column("key")])
    made = [Parcel(partition=to, reader="r", content=rows) for to, rows in split_by_subtask(batch, hashes, 3, 8)]
    messages = list(encode_parcels([*made, Parcel(partition=9, sender="a/1", attempt="x")]))
    assert len(messages) > 1
    back = list(decode_parcels(messages))
    assert (back[-1].partition, back[-1].sender, list(read_rows(back[-1].content))) == (9, "a/1", [])
    found: dict[int, list[int]] = {}
    for parcel in back[:-1]:
        for rows in read_rows(parcel.content):
            assert rows.nbytes <= 400
            found.setdefault(parcel.partition, []).extend(rows.column("n").to_pylist())
    groups = key_group_of(hashes, 8) * 3 // 8
    assert found == {to: np.flatnonzero(groups == to).tolist() for to in np.unique(groups).tolist()}


def test_rows_of_one_subtask_are_handed_on_as_they_lie():
    batch = pa.record_batch({"n": [3, 1, 2]})
    ((subtask, content),) = split_by_subtask(batch, np.zeros(3, dtype=np.uint64), 4, 8)
    assert subtask == 0
    assert next(iter(read_rows(content))).equals(batch)
    assert list(split_by_subtask(batch.slice(0, 0), np.empty(0, np.uint64), 4, 8)) == []
    assert list(read_rows(write_rows(batch))) == [batch]


@pytest.mark.parametrize(("size", "slide", "start"), [(10, 10, 0), (10, 3, 1), (7, 2, 0)])
def test_rows_are_in_the_windows_that_their_time_is_in(size, slide, start):
    window = WindowPlan.of(EVENTS, "at", f"{size} seconds", f"{slide} seconds", f"{start} seconds")
    times = [-25_000_000, 0, 9_999_999, 10_000_000, None, 123_456_789]
    batch = pa.record_batch({"at": pa.array(times, pa.timestamp("us")), "n": range(6)})
    placed = in_windows(batch, window)
    found = Counter(zip(placed.column("n").to_pylist(), placed.column("window_start").to_pylist(), strict=True))
    expected = Counter(
        (n, np.datetime64(begin * 1_000_000, "us").item())
        for n, time in enumerate(times)
        if time is not None
        for begin in range(-100 * slide + start, 200, slide)
        if begin * 1_000_000 <= time < (begin + size) * 1_000_000
    )
    assert found == expected


def test_an_end_of_a_window_is_in_the_window_that_it_ends():
    window = replace(WindowPlan.of(EVENTS, "at", "10 seconds", None, 0), shift_us=-1)
    batch = pa.record_batch({"at": pa.array([10_000_000, 10_000_001], pa.timestamp("us"))})
    assert in_windows(batch, window).column("window_start").cast(pa.int64()).to_pylist() == [0, 10_000_000]
