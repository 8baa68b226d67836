"""One subtask of an operator, batch by batch and without records: what a graph gives it, and what it gives back."""

from __future__ import annotations

import pyarrow as pa

from stateline.key_groups import KeyGroupRange, hash_columns
from stateline.pipeline.operators.api import HASH_COLUMN, WEIGHT_COLUMN, BatchContext
from stateline.state.merge import merge_runs
from stateline.state.table import StateTable

ALL = KeyGroupRange(0, 7)


class Steps:
    """Rows may have a ``weight``: -1 for those that are taken back."""

    def __init__(self, made, schema):
        self.made, self.schema, self.number = made, schema, 0
        self.tables = {name: StateTable(kept, ALL, 8) for name, kept in made.tables.items()}

    def run(self, rows, **context):
        """Output and retracted rows of a batch."""
        batch = pa.RecordBatch.from_pylist(
            [{name: value for name, value in row.items() if name != "weight"} for row in rows], self.schema
        )
        hashes = hash_columns([batch.column(name) for name in self.made.key_columns]).view("int64")
        batch = batch.append_column(HASH_COLUMN, pa.array(hashes))
        batch = batch.append_column(WEIGHT_COLUMN, pa.array([row.get("weight", 1) for row in rows], pa.int8()))
        context = BatchContext(checkpoint_id=self.number, now=0.0, **({"retracts": True} | context))
        done = self.made.process([batch] if rows else [], self.tables, context)
        for name, changes in done.changes.items():
            table = self.tables[name].with_changes(changes)
            if self.number % 3 == 2:
                whole = merge_runs(table.runs, ALL, 8, drop_tombstones=True, expired=done.expired.get(name))
                table = StateTable(table.schema, ALL, 8, [whole])
            self.tables[name] = table
        self.number += 1
        return tuple([] if table is None else table.to_pylist() for table in (done.output, done.retracted))

    def state(self, name):
        """The live rows of a table."""
        return [row for batch in self.tables[name].scan() for row in batch.to_pylist()]


def back(row):
    """The row, taken back."""
    return row | {"weight": -1}
