"""Joins of random streams agree with plain Python: every kind, late rows, nulls, ties at the borders, rescaling."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import random

import numpy as np
import pytest
from join_model import LEFT, RIGHT, SIDES, TIMES, JoinLife, JoinModel, in_microseconds, program_of

from stateline.pipeline.event_time import WatermarkPlan
from stateline.pipeline.graph import Graph, Input, OperatorPlan, Source
from stateline.pipeline.operators.late_output import LateRowsProgram
from stateline.state import keys as keys_module
from stateline.state.table import StateTable
from stateline.testing.graph_harness import GraphHarness

MS = 1_000
HOWS = ["inner", "left", "right", "full", "semi"]
INTERVALS_MS = [(0, 10), (-6, 6), (-20, -8), (5, 12), (0, 0)]
NOW, BEFORE_1970, ORDER_BEGINS_ANEW = 1_700_000_000_000_000, -70 * MS, (1 << 44) - 60 * MS


RESCALED = {8: 3, 16: 1}


class RandomStreams:
    """Rows of both sides, whose times advance; the watermark follows the slower side, as the engine has it."""

    def __init__(self, seed, base=NOW, grid_ms=1):
        self.random = random.Random(seed)
        self.base, self.grid_ms = base, grid_ms
        self.newest = [None, None]
        self.sent = [[], []]  # With the late ones.
        self.watermark = self.late = None
        self.batch = 0

    def advance(self, delay_ms=8):
        known = [None if each is None else each // MS * MS - delay_ms * MS for each in self.newest]
        self.late = self.watermark
        if None not in known:
            self.watermark = max(min(known), self.watermark if self.watermark is not None else min(known))

    def side(self, number, count):
        rows = []
        for _ in range(count):
            at = None
            if self.random.random() > 0.05:
                moment = self.batch * 6 + self.random.randint(-18, 12)
                at = self.base + moment // self.grid_ms * self.grid_ms * MS
                at += self.random.choice([0, 0, 0, 1, 500, 999])
            row = {
                "k": self.random.choice(["a", "b", "c", None]),
                "d": self.random.choice([1, 1, 1, 2, None]),
                "v": self.random.randint(0, 3),
                TIMES[number]: at,
            }
            row |= {"key": row["k"], "v": row["v"] if number == 0 else str(row["v"])}
            rows.append(tuple(row[name] for name in SIDES[number].names))
        times = [row[SIDES[number].names.index(TIMES[number])] for row in rows]
        self.sent[number] = rows
        in_time = [row for row, at in zip(rows, times, strict=True) if at is None or not self.is_late(at)]
        self.newest[number] = max([self.newest[number], *times], key=lambda at: (at is not None, at or 0), default=None)
        return in_time

    def is_late(self, at):
        return self.late is not None and at <= self.late

    def next(self):
        """The rows of a batch, late ones left out, and the two watermarks."""
        self.advance()
        quiet = {0: self.batch % 7 == 3, 1: self.batch % 5 == 2 or 12 < self.batch < 18}
        rows = [self.side(number, 0 if quiet[number] else self.random.randint(0, 12)) for number in (0, 1)]
        self.batch += 1
        return rows, self.watermark, self.late


def compare(how, within_ms, base=NOW, batches=24, **streams_of):
    """Runs both side by side."""
    within_us = tuple(bound * MS for bound in within_ms)
    life, model = JoinLife(program_of(how, within_us), parallelism=2), JoinModel(how, within_us)
    streams = RandomStreams(f"{how}{within_ms}", base, **streams_of)
    total = 0
    for number in range(batches):
        if number in RESCALED:
            life.rescale(RESCALED[number])
        (left, right), watermark, late = streams.next()
        ours = in_microseconds(life.run(left, right, watermark, late), (3, 4))
        assert ours == model.run(left, right, watermark), f"batch {number}"
        total += ours.total()
    assert total > 3


@pytest.mark.parametrize("within_ms", INTERVALS_MS, ids=str)
@pytest.mark.parametrize("how", HOWS)
def test_joins_with_an_interval_agree_with_plain_python(how, within_ms):
    compare(how, within_ms, grid_ms=8 if within_ms == (0, 0) else 1)


@pytest.mark.parametrize(
    ("bits", "base"),
    [(None, ORDER_BEGINS_ANEW), (None, BEFORE_1970), (33, NOW), (1, ORDER_BEGINS_ANEW)],
    ids=["order-begins-anew", "before-1970", "few-upper-bits", "colliding"],
)
@pytest.mark.parametrize("how", HOWS)
def test_any_times_and_hashes_do(monkeypatch, how, bits, base):
    if bits is not None:  # Different keys share hashes.
        mask = np.uint64(((1 << bits) - 1) << (64 - bits))
        whole = keys_module.hash_columns
        monkeypatch.setattr(keys_module, "hash_columns", lambda columns: whole(columns) & mask)
    compare(how, (-6, 6), base)


@pytest.mark.parametrize("ttl_ms", [None, 25])
@pytest.mark.parametrize("how", ["inner", "semi"])
def test_joins_without_an_interval_agree_with_plain_python(how, ttl_ms):
    life = JoinLife(program_of(how, ttl_ms=ttl_ms), parallelism=2)
    model = JoinModel(how, ttl_ms=ttl_ms)
    streams = RandomStreams(f"{how}{ttl_ms}")
    for number in range(24):
        if number in RESCALED:
            life.rescale(RESCALED[number])
        (left, right), _, _ = streams.next()
        ours = in_microseconds(life.run(left, right, now_ms=number * 10), (3, 4))
        assert ours == model.run(left, right, now_ms=number * 10), f"batch {number}"
    assert ttl_ms is None or life.rows("left") + life.rows("right") < 90


@pytest.mark.parametrize("how", HOWS)
def test_what_the_watermark_has_passed_leaves_the_state(how):
    life = JoinLife(program_of(how, (-5 * MS, 5 * MS)), parallelism=2)
    late = None
    stored = []
    for number in range(60):
        watermark = NOW + number * 10 * MS
        rows = [("a", number, 1, watermark + at) for at in range(1, 5 * MS, 300)]
        life.run(rows, [(at, d, "x", key) for key, _, d, at in rows[:5]], watermark, late)
        late = watermark
        stored.append((life.rows("left"), life.rows("right")))
    assert max(left for left, _ in stored[20:]) <= 8 * 17
    assert max(right for _, right in stored[20:]) <= 8 * 5
    assert not any(run.tombstones for subtask in life.subtasks for table in subtask.values() for run in table.runs)


def test_a_hot_key_is_joined_in_pieces(monkeypatch):
    monkeypatch.setattr(StateTable.between, "__defaults__", (None, 10))
    life = JoinLife(program_of("full", (0, 10 * MS)))
    model = JoinModel("full", (0, 10 * MS))
    for _ in range(3):
        rows = [("a", number, 1, NOW + number % 7 * MS) for number in range(40)]
        others = [(at + 3 * MS, d, str(number), key) for number, (key, _, d, at) in enumerate(rows)]
        assert in_microseconds(life.run(rows, others), (3, 4)) == model.run(rows, others)


def test_rows_that_are_late_and_kept_meet_what_is_still_there():
    within_us = (0, 10 * MS)
    life = JoinLife(program_of("left", within_us, late_data="keep"))
    life.run([], [(NOW + 5 * MS, 1, "there", "a"), (NOW + 90 * MS, 1, "x", "b")], None, None)
    life.run([], [], NOW + 10 * MS, None)
    life.run([], [], NOW + 12 * MS, NOW + 10 * MS)
    out = life.run([("a", 1, 1, NOW + 1 * MS), ("a", 2, 1, NOW - 9 * MS)], [], NOW + 12 * MS, NOW + 12 * MS)
    assert {row[2]: row[5] for row in out} == {1: "there", 2: None}
    assert life.program.event_time_columns == ()


def test_rows_that_are_late_and_kept_meet_those_that_come_with_them():
    life = JoinLife(program_of("full", (0, 10 * MS), late_data="keep"))
    left, right = ("a", 1, 1, NOW), (NOW + 3 * MS, 1, "with it", "a")
    out = life.run([left], [right], NOW + 90 * MS, NOW + 90 * MS)
    assert [(row[2], row[5]) for row in out] == [(1, "with it")]
    assert life.rows("left") == life.rows("right") == 0


def graph_of(how, within_us):
    """The join as an operator of a pipeline over two inputs."""
    inputs = tuple(
        Input(name=name, watermark=WatermarkPlan(column=time, delay_us=8 * MS))
        for name, time in zip(("j", "j.right"), TIMES, strict=True)
    )
    program = program_of(how, within_us)
    join = OperatorPlan.of("j", program, tuple(Source("input", each.name) for each in inputs))
    return Graph(inputs, (join,)), program


@pytest.mark.parametrize("how", ["full", "semi"])
def test_in_a_pipeline_over_restarts_at_other_parallelisms(how):
    within_us = (-6 * MS, 6 * MS)
    graph, program = graph_of(how, within_us)
    harness = GraphHarness(graph, {"j": program}, dict(zip(("j", "j.right"), SIDES, strict=True)))
    model, streams = JoinModel(how, within_us), RandomStreams(how)
    late = 0
    for number in range(20):
        if number in RESCALED:
            harness.restart(parallelism=RESCALED[number])
        (left, right), watermark, _ = streams.next()
        given = [
            [dict(zip(schema.names, row, strict=True)) for row in rows]
            for schema, rows in zip(SIDES, streams.sent, strict=True)
        ]
        found = harness.run_batch({"j": given[0], "j.right": given[1]}).get("j", [])
        ours = in_microseconds(collections.Counter(tuple(row.values()) for row in found), (3, 4))
        assert ours == model.run(left, right, watermark), f"batch {number}"
        late += harness.metrics["rows_late"]
        assert harness.metrics["rows"] == len(given[0]) + len(given[1])
    assert late > 2
    streams.advance()
    found = harness.finish().get("j", [])
    ours = in_microseconds(collections.Counter(tuple(row.values()) for row in found), (3, 4))
    assert ours == model.run([], [], streams.watermark)
    assert harness.state("j", "left")


def test_a_checkpoint_writes_the_rows_that_came_whatever_there_is():
    """Without an end in sight the state grows; what is written beside the rows of a batch is what merges read."""
    graph, program = graph_of("inner", (-(10**9) * MS, 10**9 * MS))
    harness = GraphHarness(graph, {"j": program}, dict(zip(("j", "j.right"), SIDES, strict=True)))
    dice, written = random.Random(1), []
    for batch in range(60):
        at = NOW + batch * MS
        left = [{"k": str(dice.randrange(10**9)), "v": 1, "d": 1, "at": at} for _ in range(200)]
        right = [{"then": at, "d": 1, "v": "x", "key": str(dice.randrange(10**9))} for _ in range(200)]
        harness.run_batch({"j": left, "j.right": right})
        if harness.metrics["runs_merged"] == 0:
            written.append(harness.metrics["state_bytes_written"])
    assert harness.metrics["state_bytes"] > 20 * max(written)
    assert len(written) > 20
    assert max(written) < 1.1 * min(written)


def test_late_rows_of_either_side_are_handed_on():
    graph, program = graph_of("inner", (0, 0))
    readers = [
        OperatorPlan.of(name, LateRowsProgram(SIDES[side], ("d",)), (Source("late", "j", side),))
        for side, name in enumerate(("late", "later"))
    ]
    late_columns = {side: tuple(schema.names) for side, schema in enumerate(SIDES)}
    join = dataclasses.replace(graph.operators[0], late_columns=late_columns)
    programs = {"j": program, "late": LateRowsProgram(LEFT, ("d",)), "later": LateRowsProgram(RIGHT, ("d",))}
    harness = GraphHarness(
        Graph(graph.inputs, (join, *readers)), programs, dict(zip(("j", "j.right"), SIDES, strict=True))
    )
    for at in (0, 100, 100):
        moment = dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=at)
        harness.run_batch(
            {
                "j": [{"k": "a", "v": at, "d": 1, "at": moment}],
                "j.right": [{"then": moment, "d": 1, "v": "x", "key": "a"}],
            }
        )
    old = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    found = harness.run_batch(
        {
            "j": [{"k": "a", "v": 7, "d": 1, "at": old}],
            "j.right": [{"then": old, "d": 1, "v": "old", "key": "a"}],
        }
    )
    assert found.get("j", []) == []
    assert [row["v"] for row in found["late"]] == [7]
    assert [row["v"] for row in found["later"]] == ["old"]
