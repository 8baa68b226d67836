"""What the keyed driver must have made: the plain answer, and what lies in the folders."""

from __future__ import annotations

import collections
import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from examples.demo.offsets import batch_of_files
from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore
from stateline.state.run_store import RunReader
from stateline.state.schema import StateSchema
from stateline.state.table import StateTable

KEYS = 13


def make_source(folder: Path, *, files: int, rows: int) -> None:
    """One file per micro-batch."""
    for number in range(files):
        write_source(folder / "source", number, rows=rows)


def write_source(folder: Path, number: int, *, rows: int) -> None:
    """Writes one file, whose ids follow those of the file of the number before."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = range(number * rows, (number + 1) * rows)
    table = pa.table({"id": ids, "key": [i * i % KEYS for i in ids], "value": [i * 7 % 101 for i in ids]})
    hidden = folder / f".{number:03}"
    pq.write_table(table, hidden)
    os.utime(hidden, (number, number))  # Spark takes files in the order of their times, which may be equal else.
    hidden.rename(folder / f"{number:03}.parquet")


def model(batches: Sequence[int], *, rows: int) -> tuple[dict[int, tuple[int, int, int]], collections.Counter]:
    """The final state by key, and every output row: key, count, total, largest, checkpoint.

    Args:
        batches: The micro-batch of each source file.
        rows: Rows of each file.
    """
    state: dict[int, tuple[int, int, int]] = {}
    output: collections.Counter = collections.Counter()
    for batch in range(batches[-1] + 1):
        touched = set()
        for i in (i for i in range(len(batches) * rows) if batches[i // rows] == batch):
            key, value = i * i % KEYS, i * 7 % 101
            n, total, largest = state.get(key, (0, 0, -1))
            state[key] = (n + 1, total + value, max(largest, value))
            touched.add(key)
        output.update((key, *state[key], batch) for key in touched)
    return state, output


def _without_checkpoints(output: collections.Counter) -> collections.Counter:
    counted: collections.Counter = collections.Counter()
    for row, count in output.items():
        counted[row[:-1]] += count
    return counted


def check(folder: Path, *, files: int, rows: int, is_taken_over: bool = False) -> None:
    """Compares state and output with the model, row by row.

    Args:
        folder: Where the query runs.
        files: Source files.
        rows: Rows of each file.
        is_taken_over: Whether a run may have taken over from another one: it first publishes the open files, in a
            checkpoint of their own, so later batches have other checkpoints.
    """
    batches = batch_of_files(folder / "spark")
    assert len(batches) == files
    state, output = model(batches, rows=rows)
    found = ds.dataset(folder / "out", format="parquet").to_table().to_pylist()
    columns = ("key", "n", "total", "largest", "checkpoint_id")
    if is_taken_over:
        columns, output = columns[:-1], _without_checkpoints(output)
    assert collections.Counter(tuple(row[column] for column in columns) for row in found) == output
    assert stored_state(folder) == state
    assert not (folder / "out" / ".inprogress").exists() or len(list((folder / "out" / ".inprogress").iterdir())) < 50


def stored_state(folder: Path) -> dict[int, tuple[int, int, int]]:
    store = open_store(f"file://{folder}/state")
    newest = CheckpointStore(store).latest()
    assert newest is not None
    (operator,) = newest.operators
    schema = StateSchema.decode(operator.schema)
    reader = RunReader(store, schema)
    found = {}
    for subtask in operator.subtasks:
        runs = [reader.open(run) for run in subtask.runs]
        for batch in StateTable(schema, subtask.key_groups, newest.max_parallelism, runs).scan():
            for row in batch.to_pylist():
                assert row["key"] not in found
                found[row["key"]] = (row["n"], row["total"], row["largest"])
    return found


def newest_id(folder: Path) -> int:
    """The newest decided checkpoint; -1 for none."""
    ids = [int(path.parent.name[4:]) for path in (folder / "state").glob("chk-*/_metadata")]
    return max(ids, default=-1)
