"""What a checkpoint costs when much state does not change: 100,000 changed keys of 0.5 M and of 5 M.

The real task and coordinator code on the local disk, with fsync, without Spark: two subtasks, one after the other; old
checkpoints are let go beside the next batch, as a driver does.
The checkpoint is the writing of changes and of the record; the whole batch, which also reads the state of its keys from
ten times as many, is shown beside it. Bytes and requests are those of the store; the middle one of several batches
counts, and what merging adds is in the means.

The floor is a batch that merges nothing and finds the least that there can be: one run with all keys, and one of the
batch before. But state that takes at most twice its room needs merges: two rows for each that changes, as half of what
is merged may be stale by then. Until then the changes of one batch after another lie over a key, unless they are merged
among themselves. What a merged row, and each run more above a key, add to the floor is measured here, too; *least* is
the shortest batch that can be made of them (:func:`least`).
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import median, table, write_results
from stateline.blob import InstrumentedStore, open_store
from stateline.checkpoint import CheckpointStore
from stateline.environment import system_environment
from stateline.key_groups import hash_columns
from stateline.pipeline.coordinator import MicroBatchCoordinator
from stateline.pipeline.graph import Graph, OperatorPlan
from stateline.pipeline.messages import Batch
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.pipeline.plan import PipelinePlan
from stateline.pipeline.subtask import TaskResources, run_subtask
from stateline.pipeline.upkeep import Upkeep
from stateline.state import aggregate as agg
from stateline.state.merge import MergeSettings
from stateline.state.open_runs import OpenRuns

KEY_GROUPS = 128
SUBTASKS = 2
MERGE_ALL = MergeSettings(runs_max=1, rows_per_change=100)
MERGE_NOTHING = MergeSettings(runs_max=1000, tier_runs=1000, space_factor=100)
DEPTH = 6
"""Runs above each key, at most, in which what each of them adds is measured."""


class Engine:
    """A pipeline in this thread, over one folder."""

    def __init__(self, folder: Path) -> None:
        schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
        aggregations = {"n": agg.count(), "s": agg.sum("v"), "m": agg.max("v")}
        self.program = AggregateProgram.bind(schema, ["k"], aggregations)
        self.store = InstrumentedStore(open_store(f"file://{folder}"))
        self.open_runs = OpenRuns()
        self.plan = PipelinePlan(
            root_url=f"file://{folder}",
            parallelism=SUBTASKS,
            max_parallelism=KEY_GROUPS,
            graph=Graph.of_one_input([OperatorPlan.of("counts", self.program)]),
        )
        self.upkeep = Upkeep(system_environment())
        self.coordinator: MicroBatchCoordinator[Any] = MicroBatchCoordinator(
            self.plan,
            CheckpointStore(self.store),
            {},
            self.run_subtasks,
            system_environment(),
            upkeep=self.upkeep,
        )
        self.batch_id = 0
        self.merging = MergeSettings()

    def close(self) -> None:
        self.upkeep.close()

    def run_subtasks(self, batch: Batch[Any], tasks: Any) -> Any:
        context = TaskResources(
            root=self.store,
            output=None,
            environment=system_environment(),
            open_runs=self.open_runs,
            merging=self.merging,
        )
        return [run_subtask(context, self.plan, self.program, task, batch.data[task.subtask]) for task in tasks]

    def run(self, keys: Any) -> tuple[float, float, int, dict[str, int]]:
        """Seconds of one batch, and of its checkpoint; bytes written and requests."""
        subtask = np.asarray(hash_columns([pa.array(keys)])).view(np.uint64) >> np.uint64(63)
        parts = [keys[subtask == number] for number in range(SUBTASKS)]
        data = [[pa.record_batch({"k": part, "v": part % 1000})] for part in parts]
        self.store.reset()
        began = time.perf_counter()
        digest = str(self.batch_id)
        report = self.coordinator.run_batch(
            Batch(query_id="q", batch_id=self.batch_id, offsets_digest=digest, data=data)
        )
        took = time.perf_counter() - began
        self.batch_id += 1
        checkpoint = report.metrics["state_seconds"] + report.metrics["record_seconds"]
        return took, checkpoint, self.store.bytes_written, dict(self.store.calls)


class State:
    """An engine with the state of many keys, and what its batches take.

    Args:
        folder: Its root.
        keys: How many keys there are.
        changed: How many of them a batch changes.
    """

    def __init__(self, folder: Path, keys: int, changed: int) -> None:
        self.engine = Engine(folder)
        self._changed = changed
        self._generator = np.random.default_rng(keys)
        self._names = np.unique(self._generator.integers(-(2**62), 2**62, keys))
        for part in np.array_split(self._generator.permutation(self._names), 10):
            self.engine.run(part)
        self.figures: dict[str, list[Any]] = {"keys": [keys]}

    def batch(self) -> None:
        """A usual batch."""
        took, checkpoint, size, calls = self._run(MergeSettings())
        self._add(batch_seconds=took, checkpoint_seconds=checkpoint, bytes=size, calls=calls)

    def floor(self) -> None:
        """A batch that merges all, and batches over what it leaves: with one run more above each key each time."""
        merged = self._run(MERGE_ALL)[0]
        self._run(MERGE_NOTHING)  # Opens what was merged.
        took = [self._run(MERGE_NOTHING)[0] for _ in range(DEPTH)]
        self._add(merge_all_seconds=merged, floor_seconds=took[0], deep_seconds=took[-1])

    def _run(self, merging: MergeSettings) -> tuple[float, float, int, dict[str, int]]:
        self.engine.merging = merging
        return self.engine.run(self._generator.choice(self._names, self._changed, replace=False))

    def _add(self, **measured: Any) -> None:
        for name, value in measured.items():
            self.figures.setdefault(name, []).append(value)


def least(figures: dict[str, list[Any]], changed: int) -> dict[str, list[float]]:
    """The shortest batch on average, by what merges and searches take, where space is twice the live rows; and these.

    Changes are merged into the run of all keys when there are as many rows of them: after ``keys / changed`` batches.
    Until then they are merged among themselves never, once, twice, ..., each time with as many others, so that
    ``fan_out`` runs of each size gather, and half of these lie above a key on average; one is part of the floor. It is
    a model, not a proof: what each checkpoint costs alike is in the cost of a row, so of few keys it is too high.
    """
    keys, floor = figures["keys"][0], median(figures["floor_seconds"])
    row = (median(figures["merge_all_seconds"]) - floor) / (keys + DEPTH * changed)
    run = (median(figures["deep_seconds"]) - floor) / (DEPTH - 1)
    gathering = []
    for times in range(4):
        fan_out = max((keys / changed) ** (1 / (times + 1)), 1)
        runs = (times + 1) * (fan_out - 1) / 2
        gathering.append(times * changed * row + max(runs - 1, 0) * run)
    shortest = floor + 2 * changed * row + min(gathering)
    return {"least_seconds": [shortest], "merged_row_nanoseconds": [row * 1e9], "run_seconds": [run]}


def measure(folder: Path, sizes: Sequence[int], changed: int, batches: int) -> list[dict[str, list[Any]]]:
    """Builds the states, then measures batches that change little of them, one of each state in turn."""
    with ExitStack() as stack:
        states = []
        for keys in sizes:
            states.append(State(folder / str(keys), keys, changed))
            stack.callback(states[-1].engine.close)
        for step in (State.batch, State.floor):
            for _ in range(batches):
                for state in states:
                    step(state)
    return [{**state.figures, **least(state.figures, changed)} for state in states]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks checkpoint", description=__doc__)
    parser.add_argument("--changed", type=int, default=100_000, help="keys that a batch changes")
    parser.add_argument("--batches", type=int, default=15, help="measured batches")
    parser.add_argument("--keys", type=int, nargs=2, default=(500_000, 5_000_000), help="keys of the two states")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="stateline-bench-") as folder:
        found = measure(Path(folder), arguments.keys, arguments.changed, arguments.batches)
    rows = []
    for one in found:
        asked = one["calls"][len(one["calls"]) // 2]
        rows.append(
            (
                f"{one['keys'][0]:,}",
                f"{median(one['batch_seconds']) * 1e3:,.0f}",
                f"{median(one['floor_seconds']) * 1e3:,.0f}",
                f"{median(one['least_seconds']) * 1e3:,.0f}",
                f"{median(one['checkpoint_seconds']) * 1e3:,.1f}",
                f"{statistics.mean(one['checkpoint_seconds']) * 1e3:,.1f}",
                f"{median(one['bytes']) / 1e6:,.1f}",
                f"{statistics.mean(one['bytes']) / 1e6:,.1f}",
                asked.get("put_if_absent", 0),
                sum(asked.get(name, 0) for name in ("list", "head", "exists")),
            )
        )
    heads = (
        "keys",
        "batch ms",
        "floor ms",
        "least ms",
        "ms (median)",
        "ms (mean)",
        "MB (median)",
        "MB (mean)",
        "writes",
        "LIST and HEAD",
    )
    print(table(heads, rows))
    for name, wanted in (
        ("checkpoint_seconds", 1.3),
        ("bytes", 1.3),
        ("batch_seconds", 1.35),
        ("floor_seconds", 1.35),
        ("least_seconds", 1.35),
    ):
        middle = [median(one[name]) for one in found]
        print(f"{name}: {max(middle) / min(middle):.2f}x apart (wanted <= {wanted})")
    for one in found:
        row, run = one["merged_row_nanoseconds"][0], one["run_seconds"][0] * 1e3
        print(f"{one['keys'][0]:,} keys: {row:.0f} ns for each row merged, {run:.1f} ms for each run more above a key")
    print(f"\nEvery figure: {write_results('checkpoint', {'settings': vars(arguments), 'measured': found})}")
    return 0
