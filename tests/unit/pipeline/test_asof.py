"""``join_asof`` against a model in plain Python: random streams, late rows, restarts at other parallelism, merges."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
from dataclasses import replace

import pyarrow as pa
import pytest

from stateline.errors import InvalidInputError
from stateline.key_groups import hash_columns, key_group_of, range_for_subtask, subtask_for_key_group
from stateline.pipeline.event_time import WatermarkPlan
from stateline.pipeline.graph import Graph, Input, OperatorPlan, Source
from stateline.pipeline.operators.api import HASH_COLUMN, BatchContext
from stateline.pipeline.operators.asof import AsofProgram
from stateline.pipeline.operators.asof_sides import AsofSide
from stateline.pipeline.watermarks import Watermarks
from stateline.state.merge import MergeSettings, merge_runs
from stateline.state.table import StateTable
from stateline.testing import GraphHarness
from tests.unit.state.state_kit import merge_once

MAX_PARALLELISM = 8
SECOND = 1_000_000
TIME = pa.timestamp("us", tz="UTC")
LEFT = pa.schema([("at", TIME), ("k", pa.string()), ("amount", pa.int64()), ("rate", pa.float64())])
RIGHT = pa.schema([("code", pa.string()), ("since", TIME), ("rate", pa.float64()), ("gone", pa.bool_())])


def side(schema, key, column, delay=10, late_data="drop", **more):
    watermark = WatermarkPlan(column=column, delay_us=delay * SECOND, late_data=late_data)
    return AsofSide(schema, (key,), watermark, **more)


def program(late_data="drop", delay=10, **more):
    left = side(LEFT, "k", "at", delay, late_data)
    return AsofProgram.bind(left, side(RIGHT, "code", "since", delay, late_data), **more)


class Job:
    """The program over subtasks in memory: late rows taken out, state merged as by checkpoints, any parallelism."""

    def __init__(self, program, parallelism=2):
        self.program = program
        self.parallelism = parallelism
        self.number = 0
        self.newest = [None, None]
        self.watermark = self.late = None
        self.expired = {}
        self.tables = self._new_tables({name: [] for name in program.tables})

    def _new_tables(self, runs):
        made = []
        for subtask in range(self.parallelism):
            owned = range_for_subtask(subtask, self.parallelism, MAX_PARALLELISM)
            made.append(
                {
                    name: StateTable(
                        schema,
                        owned,
                        MAX_PARALLELISM,
                        [
                            run.part(owned, MAX_PARALLELISM, None)
                            for run in runs[name]
                            if len(run.key_groups.intersection(owned))
                        ],
                    )
                    for name, schema in self.program.tables.items()
                }
            )
        return made

    def restart(self, parallelism):
        runs = {name: [run for each in self.tables for run in each[name].runs] for name in self.program.tables}
        self.parallelism = parallelism
        self.tables = self._new_tables(runs)

    def batch(self, *sides):
        """One micro-batch; the rows that came out."""
        context = BatchContext(self.number, 0.0, self.watermark, self.late)
        parts = [self._spread(rows, reading, schema) for rows, reading, schema in self._read(sides)]
        out = []
        for subtask in range(self.parallelism):
            tables = self.tables[subtask]
            made = self.program.process_sides([part[subtask] for part in parts], tables, context)
            self.expired = made.expired
            for name, table in tables.items():
                changed = table if made.changes.get(name) is None else table.with_changes(made.changes[name])
                settings = MergeSettings(tier_runs=2, small_rows=0)
                tables[name], _ = merge_once(changed, settings, made.expired.get(name))
            out += [] if made.output is None else made.output.to_pylist()
        self._advance(sides)
        return out

    def _read(self, sides):
        return zip(sides, self.program.readings, (LEFT, RIGHT), strict=True)

    def _spread(self, rows, reading, schema):
        if reading.late_by is not None and self.late is not None:
            rows = [row for row in rows if row[reading.late_by] is None or row[reading.late_by] > self.late]
        table = pa.Table.from_pylist(rows, schema).select(list(reading.columns))
        hashes = hash_columns([table.column(key).combine_chunks() for key in reading.key_columns])
        groups = key_group_of(hashes, MAX_PARALLELISM).tolist()
        owners = [subtask_for_key_group(group, self.parallelism, MAX_PARALLELISM) for group in groups]
        table = table.append_column(HASH_COLUMN, pa.array(hashes.view("int64")))
        masks = [[owner == subtask for owner in owners] for subtask in range(self.parallelism)]
        return [table.filter(pa.array(mask, pa.bool_())).to_batches() for mask in masks]

    def _advance(self, sides):
        for number, (rows, column) in enumerate(zip(sides, ("at", "since"), strict=True)):
            times = [row[column] for row in rows if row[column] is not None]
            self.newest[number] = max(
                [*times, *([] if self.newest[number] is None else [self.newest[number]])], default=None
            )
        self.late = self.watermark
        if None not in self.newest:
            delays = (10 * SECOND, 10 * SECOND)
            reached = min(newest - delay for newest, delay in zip(self.newest, delays, strict=True))
            self.watermark = reached if self.watermark is None else max(self.watermark, reached)
        self.number += 1

    def state(self, name):
        """All rows that a merge of everything would leave, and those that readers see."""
        rows = []
        for each in self.tables:
            table = each[name]
            merged = merge_runs(
                table.runs, table.key_groups, MAX_PARALLELISM, drop_tombstones=True, expired=self.expired.get(name)
            )
            rows += [
                row
                for batch in StateTable(table.schema, table.key_groups, MAX_PARALLELISM, [merged]).scan()
                for row in batch.to_pylist()
            ]
        return rows


class Model:
    """The same, row by row, and nothing is ever forgotten."""

    def __init__(self, how, mode, tolerance=None, deleted=False):
        self.how, self.mode, self.tolerance, self.deleted = how, mode, tolerance, deleted
        self.versions = {}
        self.waiting = []

    def batch(self, left, right, watermark, late):
        def in_time(time):
            return time is None or late is None or time > late

        for row in right:
            if row["code"] is not None and row["since"] is not None and in_time(row["since"]):
                self.versions.setdefault(row["code"], {})[row["since"]] = row
        due = []
        for row in self.waiting + [row for row in left if in_time(row["at"])]:
            waits = self.mode == "wait" and row["k"] is not None and row["at"] is not None
            if waits and (watermark is None or row["at"] > watermark):
                due.append((row, True))
            else:
                due.append((row, False))
        self.waiting = [row for row, waits in due if waits]
        out = []
        for row, waits in due:
            if waits:
                continue
            version = self._holding(row)
            if version is None and self.how == "inner":
                continue
            version = version or dict.fromkeys(RIGHT.names)
            shown = {"since": version["since"], "rate_right": version["rate"]}
            out.append(row | shown | ({} if self.deleted else {"gone": version["gone"]}))
        return out

    def _holding(self, row):
        if row["k"] is None or row["at"] is None:
            return None
        times = [time for time in self.versions.get(row["k"], {}) if time <= row["at"]]
        if not times or (self.tolerance is not None and row["at"] - max(times) > self.tolerance):
            return None
        version = self.versions[row["k"]][max(times)]
        return None if self.deleted and version["gone"] else version

    def needed(self, border):
        """The versions that somebody may still ask for, by key and time."""
        kept = set()
        for key, versions in self.versions.items():
            old = [time for time in versions if time <= border]
            for time, version in versions.items():
                if time <= border and (time < max(old) or (self.deleted and version["gone"])):
                    continue
                if self.tolerance is not None and time <= border - self.tolerance:
                    continue
                kept.add((key, time))
        return kept


def as_rows(rows):
    return sorted((tuple(sorted(row.items())) for row in rows), key=repr)


def in_microseconds(rows):
    def plain(name, value):
        return round(value.timestamp() * SECOND) if name in ("at", "since") and value is not None else value

    return [{name: plain(name, value) for name, value in row.items()} for row in rows]


def drawn(draw, keys, now, late_share):
    """Rows of both sides around a moment; ties, nulls and late ones among them."""

    def time():
        if draw.random() < 0.03:
            return None
        back = 40 if draw.random() < late_share else 12
        return (now + draw.randrange(-back, 6)) * SECOND + draw.choice([0, 0, 0, 1, 700_000])

    def key():
        return None if draw.random() < 0.03 else draw.choice(keys)

    left = [
        {"at": time(), "k": key(), "amount": draw.randrange(3), "rate": 0.5} for _ in range(draw.choice([0, 1, 9, 30]))
    ]
    right = [
        {"code": key(), "since": time(), "rate": float(draw.randrange(9)), "gone": draw.choice([None, False, True])}
        for _ in range(draw.choice([0, 1, 5, 20]))
    ]
    return left, right


@pytest.mark.parametrize("mode", ["wait", "now"])
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize(("tolerance", "deleted"), [(None, None), (7, None), (None, "gone"), (7, "gone")])
def test_random_streams_give_what_the_model_gives(mode, how, tolerance, deleted):
    for seed in range(2):
        draw = random.Random(f"{mode}-{how}-{tolerance}-{deleted}-{seed}")
        job = Job(program(how=how, mode=mode, tolerance=tolerance, deleted=deleted))
        model = Model(how, mode, None if tolerance is None else tolerance * SECOND, deleted is not None)
        keys = [f"k{number}" for number in range(draw.choice([1, 4, 40]))]
        now = 1_000
        for _ in range(25):
            now += draw.randrange(0, 9)
            left, right = drawn(draw, keys, now, late_share=0.2)
            watermark, late = job.watermark, job.late
            expected = model.batch(left, right, watermark, late)
            got = job.batch(left, right)
            assert as_rows(in_microseconds(got)) == as_rows(expected), f"seed {seed}, batch {job.number}"
            if draw.random() < 0.2:
                job.restart(draw.choice([1, 2, 3, 8]))
        if job.late is not None:
            stored = {(row["k"], row["since"]) for row in in_microseconds(job.state("versions"))}
            # What is superseded goes when its key is read or merged, so a merge of everything leaves what is needed.
            needed = model.needed(job.late)
            assert needed <= stored
            extra = {key for key, _ in stored - needed}
            assert not extra if deleted is None else all(at <= job.late for _, at in stored - needed)
        if mode == "wait":
            assert len(job.state("waiting")) == len(model.waiting)


@pytest.mark.parametrize("mode", ["wait", "now"])
def test_a_whole_pipeline_with_restarts_gives_what_the_model_gives(mode):
    draw = random.Random(mode)
    joining = program(how="left", mode=mode, tolerance=20)
    watermark = {"join": side(LEFT, "k", "at").watermark, "join.right": side(RIGHT, "code", "since").watermark}
    graph = Graph(
        tuple(Input(name=name, watermark=each) for name, each in watermark.items()),
        (OperatorPlan.of("join", joining, tuple(Source("input", name) for name in watermark)),),
    )
    job = GraphHarness(graph, {"join": joining}, {"join": LEFT, "join.right": RIGHT})
    model = Model("left", mode, 20 * SECOND)
    now, late = 1_000, 0
    for _ in range(15):
        now += draw.randrange(0, 9)
        left, right = drawn(draw, [f"k{number}" for number in range(6)], now, late_share=0.2)
        current = Watermarks.of(graph, job.checkpoint).of_operator("join")
        expected = model.batch(left, right, current.current_us, current.late_us)
        out = job.run_batch({"join": left, "join.right": right}).get("join", [])
        assert as_rows(in_microseconds(out)) == as_rows(expected)
        late += job.metrics["rows_late"]
        if draw.random() < 0.4:
            job.restart(parallelism=draw.randint(1, 8))
    assert late > 0
    out = job.finish().get("join", [])
    current = Watermarks.of(graph, job.checkpoint).of_operator("join")
    assert as_rows(in_microseconds(out)) == as_rows(model.batch([], [], current.current_us, current.late_us))


def test_what_waits_does_not_depend_on_what_came_first():
    draw = random.Random(7)
    left = [{"at": draw.randrange(100) * SECOND, "k": draw.choice("ab"), "amount": n, "rate": 0.0} for n in range(60)]
    right = [{"code": draw.choice("ab"), "since": n * SECOND, "rate": float(n), "gone": None} for n in range(0, 100, 7)]
    end = [{"at": 200 * SECOND, "k": "z", "amount": 0, "rate": 0.0}], [dict(right[0], code="z", since=200 * SECOND)]
    results = []
    for order in (1, -1):
        job = Job(program())
        out = []
        for sides in [(left, []), ([], right)][::order]:
            out += job.batch(*sides)
        out += job.batch(*end)
        results.append(out + job.batch([], []))
    assert len(results[0]) >= 40
    assert as_rows(results[0]) == as_rows(results[1])


def test_a_version_that_was_ended_does_not_come_back():
    job = Job(program(how="left", mode="now", deleted="gone"))
    version = {"code": "a", "since": 50 * SECOND, "rate": 1.0, "gone": None}
    row = {"at": 100 * SECOND, "k": "z", "amount": 1, "rate": 0.0}
    job.batch([row], [version, version | {"code": "z", "since": 100 * SECOND}])
    job.batch([], [version | {"since": 60 * SECOND, "gone": True}])  # At or below the watermark: it needs no trace.
    assert [each["k"] for each in job.state("versions")] == ["z"]
    (found,) = job.batch([row | {"k": "a"}], [])
    assert found["since"] is None


def test_a_late_version_that_is_kept_holds_for_rows_to_come():
    for late_data, rate in (("drop", 1.0), ("keep", 2.0)):
        job = Job(program(late_data, mode="now"))
        version = {"code": "a", "since": 10 * SECOND, "rate": 1.0, "gone": None}
        job.batch(
            [{"at": 100 * SECOND, "k": "a", "amount": 1, "rate": 0.0}],
            [version, version | {"code": "b", "since": 100 * SECOND}],
        )
        job.batch([], [])
        job.batch([], [version | {"since": 50 * SECOND, "rate": 2.0}])
        (row,) = job.batch([{"at": 101 * SECOND, "k": "a", "amount": 1, "rate": 0.0}], [])
        assert row["rate_right"] == rate


NAN = math.nan
MOMENT = pa.scalar(dt.datetime(2024, 1, 1, tzinfo=dt.UTC), pa.timestamp("us", "UTC")).as_py()
"""With the zone as pyarrow makes it, which is another class in older versions."""
VALUES = {
    "long": (pa.int64(), [0, -1, 2**62, None]),
    "text": (pa.string(), ["", "a", "é" * 40, None]),
    "words": (pa.dictionary(pa.int32(), pa.string()), ["a", "b", None]),
    "large": (pa.large_string(), ["a", "b", None]),
    "binary": (pa.binary(), [b"", b"\x00", None]),
    "boolean": (pa.bool_(), [True, False, None]),
    "double": (pa.float64(), [0.0, 0.5, NAN, None]),
    "date": (pa.date32(), [dt.date(2024, 1, 1), dt.date(1960, 1, 1), None]),
    "moment": (pa.timestamp("us", "UTC"), [MOMENT, None]),
    "decimal": (pa.decimal128(10, 2), [decimal.Decimal("1.50"), decimal.Decimal("-2.00"), None]),
}
NESTED = {
    "list": (pa.list_(pa.string()), [["a", None], [], None]),
    "struct": (pa.struct([("x", pa.int64()), ("y", pa.list_(pa.int8()))]), [{"x": 1, "y": [2]}, None]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [], None]),
}


@pytest.mark.parametrize("kind", [*VALUES, *NESTED])
def test_columns_of_every_type_come_out_as_they_came(kind):
    type_, values = (VALUES | NESTED)[kind]
    key = ("key", type_) if kind in VALUES else ("key", pa.string())
    left = pa.schema([key, ("at", TIME), ("mine", type_)])
    right = pa.schema([key, ("since", TIME), ("theirs", type_)])
    joining = AsofProgram.bind(side(left, "key", "at"), side(right, "key", "since"))
    inputs = tuple(
        Input(name=name, watermark=each)
        for name, each in (
            ("join", side(left, "key", "at").watermark),
            ("join.right", side(right, "key", "since").watermark),
        )
    )
    plan = OperatorPlan.of("join", joining, (Source("input", "join"), Source("input", "join.right")))
    job = GraphHarness(Graph(inputs, (plan,)), {"join": joining}, {"join": left, "join.right": right})
    for place, value in enumerate(values):
        keyed = {"key": value if kind in VALUES else str(place)}
        versions = [keyed | {"since": place * SECOND, "theirs": values[place - 1]}]
        job.run_batch({"join": [keyed | {"at": (place + 1) * SECOND, "mine": value}], "join.right": versions})
    job.restart(parallelism=3)
    end = [{"key": None, "at": 90 * SECOND}], [{"key": None, "since": 90 * SECOND}]
    job.run_batch({"join": end[0], "join.right": end[1]})
    out = job.run_batch({"join": [], "join.right": []})["join"]
    expected = [(value, values[place - 1]) for place, value in enumerate(values) if kind in NESTED or value is not None]
    assert sorted(repr((row["mine"], row["theirs"])) for row in out) == sorted(map(repr, expected))


def test_the_names_of_the_output():
    assert program().output_schema.names == ["k", "at", "amount", "rate", "since", "rate_right", "gone"]
    assert program(deleted="gone", suffix="_then").output_schema.names[4:] == ["since", "rate_then"]
    assert program().event_time_columns == ("at",)
    assert program("keep").event_time_columns == ()


@pytest.mark.parametrize(
    ("left", "right", "more", "message"),
    [
        ({}, {}, {"how": "right"}, "how"),
        ({}, {}, {"mode": "later"}, "mode"),
        ({}, {}, {"tolerance": "-1 second"}, "tolerance"),
        ({}, {}, {"deleted": "rate"}, "must be a boolean column"),
        ({}, {}, {"deleted": "went"}, "deleted"),
        ({}, {}, {"suffix": ""}, "which is taken"),
        ({}, {}, {"suffix": None}, "suffix"),
        ({"watermark": None}, {}, {}, "the left stream: must have a watermark"),
        ({}, {"watermark": None}, {}, "the right stream: must have a watermark"),
        ({"updates": True}, {}, {}, "cannot have rows that take earlier ones back"),
        ({}, {"updates": True}, {}, "cannot have rows that take earlier ones back"),
        ({"keys": ("amount",)}, {}, {}, "expected keys of the same types"),
        ({"keys": ("k", "amount")}, {}, {}, "expected keys of the same types"),
        ({"keys": ("at",)}, {}, {}, "cannot be the event time and part of the key"),
        ({"schema": LEFT.set(0, pa.field("at", pa.timestamp("us")))}, {}, {}, "expected event times of one type"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(left, right, more, message):
    sides = (replace(side(LEFT, "k", "at"), **left), replace(side(RIGHT, "code", "since"), **right))
    with pytest.raises(InvalidInputError, match=message):
        AsofProgram.bind(*sides, **more)
