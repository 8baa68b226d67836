"""Sessions in plain Python, and a driver of the operator that merges runs whenever a test says so."""

from __future__ import annotations

import builtins
import collections
import datetime as dt
import itertools

import numpy as np
import pyarrow as pa

from stateline.key_groups import KeyGroupRange
from stateline.pipeline.event_time import SessionPlan
from stateline.pipeline.late_rows import rows_in_time
from stateline.pipeline.operators.api import HASH_COLUMN, BatchContext
from stateline.pipeline.operators.sessions import SessionProgram
from stateline.state import keys
from stateline.state.aggregate import collect_list, count, max, sum
from stateline.state.rows import StateRows
from stateline.state.runs import Run
from stateline.state.table import StateTable
from tests.unit.state.state_kit import merge_once

TEXT = pa.string()
EPOCH = dt.datetime(1970, 1, 1)
MAX_PARALLELISM = 8
AGGREGATIONS = {"n": count(), "total": sum("value"), "most": max("value"), "all": collect_list("value", 1000)}


def schema_of(key):
    return pa.schema([("key", key), ("at", pa.timestamp("us")), ("value", pa.int64())])


def program_of(schema, mode, gap_us, watermark):
    sessions = SessionPlan(column="at", gap_us=gap_us)
    return SessionProgram.bind(schema, ["key"], sessions, AGGREGATIONS, output_mode=mode, watermark=watermark)


class Model:
    """What Spark's ``session_window`` does, session by session; and the mode ``update``, which Spark does not have.

    Rows are ``(key, time, value)``, sessions ``(start, end, values)`` by key.
    """

    def __init__(self, mode, gap_us, watermark):
        self.mode, self.gap_us, self.watermark = mode, gap_us, watermark
        self.closes = watermark is not None and mode != "complete"
        self.state, self.current, self.applied, self.late = {}, None, None, 0

    def run(self, batch):
        """The output of a batch, and the rows of earlier output that hold no longer."""
        in_time = [row for row in batch if not self.is_late(row)]
        self.late = len(batch) - len(in_time)
        added, gone = [], []
        for key in {row[0] for row in in_time}:
            rows = [(at, at + self.gap_us, (value,)) for other, at, value in in_time if other == key and at is not None]
            before = self.state.get(key, [])
            self.state[key] = joined(before, sorted(rows, key=lambda row: row[0]))
            added += [(key, *one) for one in self.state[key] if one not in before]
            gone += [(key, *one) for one in before if one not in self.state[key]]
        closed = []
        if self.closes and self.current is not None:
            for key, sessions in self.state.items():
                closed += [(key, *one) for one in sessions if one[1] <= self.current]
                self.state[key] = [one for one in sessions if one[1] > self.current]
        output = {"update": added, "append": closed, "complete": self.open_sessions()}[self.mode]
        self.advance([row[1] for row in batch if row[1] is not None])
        return collections.Counter(output), collections.Counter(gone if self.mode == "update" else [])

    def is_late(self, row):
        """Judged by itself, also where a session that is open covers it."""
        drops = self.closes and self.watermark.late_data == "drop"
        return drops and row[1] is not None and self.applied is not None and row[1] + self.gap_us <= self.applied

    def open_sessions(self):
        return [(key, *one) for key, sessions in self.state.items() for one in sessions]

    def advance(self, times):
        self.applied = self.current
        if times and self.watermark is not None:
            reached = builtins.max(times) // 1000 * 1000 - self.watermark.delay_us
            self.current = reached if self.current is None else builtins.max(self.current, reached)


def joined(stored, rows):
    """What touches becomes one; values of stored sessions come first, each side in the order of time."""
    spans = []
    for start, end, _ in sorted([*stored, *rows], key=lambda one: one[:2]):
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], builtins.max(spans[-1][1], end))
        else:
            spans.append((start, end))
    return [
        (start, end, tuple(value for one in (*stored, *rows) if start <= one[0] < end for value in one[2]))
        for start, end in spans
    ]


class Driver:
    """One subtask of the operator, without records: changes are applied, and runs merged as a test says."""

    def __init__(self, mode, gap_us, watermark, key=TEXT):
        self.schema = schema_of(key)
        self.program = program_of(self.schema, mode, gap_us, watermark)
        (self.reading,) = self.program.readings
        (schema,) = self.program.tables.values()
        self.table = StateTable(schema, KeyGroupRange(0, MAX_PARALLELISM - 1), MAX_PARALLELISM)
        self.batches, self.metrics = 0, {}

    def run(self, batch, model, merging=None, dice=None):
        """The output of a batch, and what was retracted; the model says what time it is, dice where runs are cut."""
        columns = ("key", "at", "value")
        rows = pa.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in batch], self.schema)
        if self.reading.late_by is not None and model.applied is not None:
            kept = rows_in_time(rows, self.reading.late_by, model.applied - self.reading.late_after_us)
            rows = rows if kept is None else rows.filter(pa.array(kept))
        hashes = keys.hash_columns([rows.column("key").combine_chunks()]).view(np.int64)
        rows = rows.select(list(self.program.input_columns)).append_column(HASH_COLUMN, pa.array(hashes))
        context = BatchContext(
            checkpoint_id=self.batches,
            now=0.0,
            watermark_us=model.current,
            late_watermark_us=model.applied,
            retracts=True,
        )
        processed = self.program.process(rows.to_batches() if len(rows) else [], {"sessions": self.table}, context)
        for changes in processed.changes.values():
            self.table = self.table.with_changes(changes)
        if merging is not None:
            self.table, _ = merge_once(self.table, merging, processed.expired.get("sessions"))
        if dice is not None:
            runs = [cut(run, dice) for run in self.table.runs]
            self.table = StateTable(self.table.schema, self.table.key_groups, MAX_PARALLELISM, runs)
        self.batches, self.metrics = self.batches + 1, processed.metrics
        return shown(processed.output), shown(processed.retracted)

    def open_sessions(self, model):
        """What the state holds, without what the next batch does not see any more."""
        closed_us = model.applied if self.program.closes_windows and model.applied is not None else -(2**63)
        rows = pa.Table.from_batches(self.table.scan(), self.table.schema.row)
        rows = rows.select(["key", "window_start", "window_end", "all"]).to_pylist()
        found = [
            (row["key"], micros(row["window_start"]), micros(row["window_end"]), tuple(row["all"])) for row in rows
        ]
        return collections.Counter(row for row in found if row[2] > closed_us)


def cut(run, dice):
    """The same run in batches of a few rows; rows of one hash stay together."""
    rows = StateRows.concat(run.batches)
    borders = np.flatnonzero(np.diff(rows.keys.hashes)) + 1
    places = [0, *(int(place) for place in borders if dice.random() < 0.3), len(rows)]
    batches = [rows.slice(start, end) for start, end in itertools.pairwise(places)]
    return Run(batches, run.key_groups, MAX_PARALLELISM)


def shown(rows):
    """Rows of the output as the model has them; what is computed of the values is checked here."""
    found = collections.Counter()
    for row in rows.to_pylist() if isinstance(rows, pa.Table) else rows or []:
        values = tuple(row["all"])
        assert (row["n"], row["total"], row["most"]) == (len(values), builtins.sum(values), builtins.max(values))
        found[row["key"], micros(row["window_start"]), micros(row["window_end"]), values] += 1
    return found


def micros(time):
    return (time - EPOCH) // dt.timedelta(microseconds=1)
