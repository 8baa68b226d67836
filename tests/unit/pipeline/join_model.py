"""A join in plain Python, row by row with marks as Spark keeps them, and the program beside it on real tables."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from typing import Any

import pyarrow as pa

from stateline.key_groups import key_group_of, range_for_subtask
from stateline.pipeline.event_time import WatermarkPlan
from stateline.pipeline.operators.api import HASH_COLUMN, BatchContext
from stateline.pipeline.operators.join import Interval, JoinProgram, JoinSide
from stateline.state import keys as keys_module
from stateline.state.merge import MergeSettings
from stateline.state.table import StateTable
from tests.unit.state.state_kit import merge_once

MAX_PARALLELISM = 16
TIME = pa.timestamp("us", tz="UTC")
LEFT = pa.schema([("k", pa.string()), ("v", pa.int64()), ("d", pa.int32()), ("at", TIME)])
RIGHT = pa.schema([("then", TIME), ("d", pa.int32()), ("v", pa.string()), ("key", pa.string())])
SIDES = (LEFT, RIGHT)
KEYS = (["k", "d"], ["key", "d"])
TIMES = ("at", "then")
MERGES = MergeSettings(runs_max=3, tier_runs=2, small_rows=10)


def sides(*, late_data="drop", watermarks=True):
    plans = [WatermarkPlan(column=column, delay_us=0, late_data=late_data) if watermarks else None for column in TIMES]
    return [
        JoinSide(schema=schema, keys=keys, watermark=plan)
        for schema, keys, plan in zip(SIDES, KEYS, plans, strict=True)
    ]


def program_of(how, within_us=None, ttl_ms=None, **more):
    interval = None if within_us is None else Interval(*within_us)
    return JoinProgram.bind(*sides(watermarks=within_us is not None, **more), how, interval=interval, ttl_ms=ttl_ms)


class JoinLife:
    """The subtasks of one join through many batches."""

    def __init__(self, program, parallelism=1, merging=MERGES):
        self.program = program
        self.merging = merging
        self.batch = 0
        self.metrics: collections.Counter[str] = collections.Counter()
        self.subtasks: list[dict[str, StateTable]] = [
            {
                name: StateTable(schema, range_for_subtask(number, parallelism, MAX_PARALLELISM), MAX_PARALLELISM)
                for name, schema in program.tables.items()
            }
            for number in range(parallelism)
        ]

    def rescale(self, parallelism):
        """Another parallelism takes the runs over."""
        taken = []
        for number in range(parallelism):
            owned = range_for_subtask(number, parallelism, MAX_PARALLELISM)
            tables = {}
            for name, schema in self.program.tables.items():
                runs = [
                    run.part(owned, MAX_PARALLELISM, None)
                    for subtask in self.subtasks
                    for run in subtask[name].runs
                    if len(run.key_groups.intersection(owned))
                ]
                tables[name] = StateTable(schema, owned, MAX_PARALLELISM, [run for run in runs if len(run)])
            taken.append(tables)
        self.subtasks = taken

    def run(self, left, right, watermark_us=None, late_us=None, now_ms=0):
        """One batch; returns the rows that came out, as tuples."""
        context = BatchContext(
            checkpoint_id=self.batch, now=now_ms / 1000, watermark_us=watermark_us, late_watermark_us=late_us
        )
        self.batch += 1
        found = []
        tables = [_table(rows, schema, keys) for rows, schema, keys in zip((left, right), SIDES, KEYS, strict=True)]
        for number, stored in enumerate(self.subtasks):
            owned = range_for_subtask(number, len(self.subtasks), MAX_PARALLELISM)
            given = [
                table.filter(pa.array([group in owned for group in groups], pa.bool_())).to_batches()
                for table, groups in tables
            ]
            processed = self.program.process_sides(given, stored, context)
            self.metrics.update(processed.metrics)
            if processed.output is not None:
                processed.output.validate(full=True)
                assert processed.output.schema == self.program.output_schema
                found += [tuple(row.values()) for row in processed.output.to_pylist()]
            for name, table in stored.items():
                changes = processed.changes.get(name)
                grown = table if changes is None else table.with_changes(changes.narrowed())
                _check_keys_are_unique(grown)
                stored[name] = merge_once(grown, self.merging, processed.expired.get(name))[0]
        return collections.Counter(found)

    def rows(self, name):
        """Rows stored of one side, those included that are over."""
        return sum(subtask[name].rows for subtask in self.subtasks)


def _check_keys_are_unique(table):
    keys = [
        key
        for run in table.runs
        for batch in run.batches
        for key in zip(*(column.to_pylist() for column in batch.keys.columns), strict=True)
    ]
    assert len(keys) == len(set(keys))


def _table(rows, schema, keys):
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
    table = table.select([*keys, *(name for name in schema.names if name not in keys)])
    hashes = keys_module.hash_columns([table.column(key).combine_chunks() for key in keys])
    groups = key_group_of(hashes, MAX_PARALLELISM).tolist()
    return table.append_column(HASH_COLUMN, pa.array(hashes.view("int64"))), groups


@dataclasses.dataclass
class Row:
    """A row that the model keeps."""

    key: tuple[Any, ...]
    time: int | None
    value: Any
    came_ms: int
    matched: bool = False

    @property
    def can_match(self):
        return None not in self.key


class JoinModel:
    """What should come out. Times are microseconds since the epoch."""

    def __init__(self, how, within_us=None, ttl_ms=None):
        self.how, self.within_us, self.ttl_ms = how, within_us, ttl_ms
        self.stored: tuple[list[Row], list[Row]] = ([], [])

    def match(self, left, right):
        if left.key != right.key or not left.can_match:
            return False
        if self.within_us is None:
            return True
        if left.time is None or right.time is None:
            return False
        return left.time + self.within_us[0] <= right.time <= left.time + self.within_us[1]

    def run(self, left, right, watermark_us=None, now_ms=0):
        new = (
            [Row((key, d), at, value, now_ms) for key, value, d, at in left],
            [Row((key, d), then, value, now_ms) for then, d, value, key in right],
        )
        if self.ttl_ms is not None:
            for rows in self.stored:
                rows[:] = [row for row in rows if row.came_ms > now_ms - self.ttl_ms]
        out = []
        for one, other in itertools.chain(
            itertools.product(new[0], self.stored[1] + new[1]), itertools.product(self.stored[0], new[1])
        ):
            if self.match(one, other):
                if self.how != "semi":
                    out.append((*one.key, one.value, one.time, other.time, other.value))
                elif not one.matched:
                    out.append((*one.key, one.value, one.time))
                one.matched = other.matched = True
        for side, rows in enumerate(self.stored):
            rows.extend(new[side])
        for side, how in enumerate(("left", "right")):
            if self.how in (how, "full"):
                out += [self.alone(row, side) for row in self.leave(side, watermark_us) if not row.matched]
            else:
                self.leave(side, watermark_us)
        return collections.Counter(out)

    def leave(self, side, watermark_us):
        """Takes the rows out that the watermark has passed, or that can never match."""
        rows = self.stored[side]
        border = None
        if self.within_us is not None and watermark_us is not None:
            lower, upper = self.within_us
            border = watermark_us - upper - 1000 if side == 0 else watermark_us + lower - 1000
        gone = [
            row
            for row in rows
            if not row.can_match
            or (self.within_us is not None and row.time is None)
            or (border is not None and row.time <= border)
        ]
        kept = [row for row in rows if not any(row is each for each in gone)]
        rows[:] = kept
        return gone

    @staticmethod
    def alone(row, side):
        return (*row.key, row.value, row.time, None, None) if side == 0 else (*row.key, None, None, row.time, row.value)


def in_microseconds(rows, numbers):
    """The same rows with times as the model has them."""
    found = collections.Counter()
    for row, count in rows.items():
        found[tuple(_microseconds(value) if number in numbers else value for number, value in enumerate(row))] = count
    return found


def _microseconds(value):
    return None if value is None else pa.scalar(value, TIME).value
