"""What a checkpoint asks of its store: 2 subtasks with 4 tables; 64 with little to say; 64 with 10 MB each.

The real task and coordinator code, without Spark, over a store that counts. What decides a checkpoint (its objects and
its record), what is read on the way (the floor), and what is done beside the next batch (letting old ones go) are told
apart. ``python -m benchmarks requests``
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.harness import table, write_results
from stateline.blob import InstrumentedStore, open_store
from stateline.checkpoint import CheckpointStore
from stateline.environment import system_environment
from stateline.key_groups import hash_columns, key_group_of, subtask_for_key_group
from stateline.pipeline.coordinator import MicroBatchCoordinator
from stateline.pipeline.graph import Graph, OperatorPlan
from stateline.pipeline.messages import Batch
from stateline.pipeline.operators.api import OperatorProgram, Processed
from stateline.pipeline.plan import PLAIN, PipelinePlan, PipelineSettings
from stateline.pipeline.subtask import TaskResources, run_subtask
from stateline.state import StateSchema
from stateline.state.keys import group_rows, key_rows
from stateline.state.rows import StateRows

KEY_GROUPS = 128
SCHEMA = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([("v", pa.binary())]))


class Case(NamedTuple):
    """One pipeline and one batch of it.

    Attributes:
        name: For people.
        subtasks: How many.
        tables: Of the operator.
        keys: Changed in all.
        value_bytes: Of one value.
        wanted: Requests that write, at most.
    """

    name: str
    subtasks: int
    tables: int
    keys: int
    value_bytes: int
    wanted: int


CASES = (
    Case("2 subtasks, 4 tables", 2, 4, 20_000, 100, 3),
    Case("64 subtasks, 1,000 keys in all", 64, 1, 1_000, 20, 2),
    Case("64 subtasks, 10 MB each", 64, 1, 640, 1_000_000, 65),
)


class Values(OperatorProgram):
    """A program that sets the values of its keys in each of its tables."""

    key_columns = ("k",)
    input_columns = ("k",)
    wants_hash = False
    definition = "values"
    output_schema = pa.schema([])

    def __init__(self, case: Case) -> None:
        self.value_bytes = case.value_bytes
        self.names = [f"t{number}" for number in range(case.tables)]

    @property
    def tables(self) -> Mapping[str, StateSchema]:
        return dict.fromkeys(self.names, SCHEMA)

    def process(self, batches: Iterable[pa.RecordBatch], tables: Mapping[str, Any], context: Any) -> Processed:  # noqa: ARG002
        """Sets them."""
        keys = pa.Table.from_batches(batches, pa.schema([("k", pa.int64())]))["k"]
        if not len(keys):
            return Processed(changes={})
        groups = group_rows(key_rows(SCHEMA, [keys]))
        size = self.value_bytes
        noise = np.random.default_rng(len(keys)).bytes(len(groups.keys) * size)
        values = pa.array([noise[start : start + size] for start in range(0, len(noise), size)], pa.binary())
        return Processed(changes={name: StateRows(groups.keys, (values,)) for name in tables})


def measure(case: Case, folder: Path, batches: int, record_bytes: int = 0) -> list[dict[str, int]]:
    """The requests of each batch but the first; the record takes so many bytes of what came inline."""
    store = InstrumentedStore(open_store(f"file://{folder}", {"fsync": "false"}))
    program = Values(case)
    plan = PipelinePlan(
        root_url=store.url,
        parallelism=case.subtasks,
        max_parallelism=KEY_GROUPS,
        graph=Graph.of_one_input([OperatorPlan.of("values", program)]),
        settings=replace(PLAIN, inline_bytes=PipelineSettings().inline_bytes, record_bytes=record_bytes),
    )

    def run_subtasks(batch: Batch[Any], tasks: Any) -> Any:
        context = TaskResources(
            root=store, output=None, environment=system_environment(), inline_bytes=plan.subtask_inline_bytes
        )
        return [run_subtask(context, plan, program, task, batch.data[task.subtask]) for task in tasks]

    coordinator: MicroBatchCoordinator[Any] = MicroBatchCoordinator(
        plan, CheckpointStore(store), {}, run_subtasks, system_environment()
    )
    asked = []
    for number in range(batches + 1):
        keys = np.random.default_rng(number).integers(0, 2**40, case.keys)
        groups = key_group_of(hash_columns([pa.array(keys)]), KEY_GROUPS)
        owners = np.array([subtask_for_key_group(group, case.subtasks, KEY_GROUPS) for group in groups.tolist()])
        data = [[pa.record_batch({"k": keys[owners == subtask]})] for subtask in range(case.subtasks)]
        store.reset()
        coordinator.run_batch(Batch(query_id="q", batch_id=number, offsets_digest=str(number), data=data))
        if number:
            asked.append(dict(store.calls))
    return asked


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks requests", description=__doc__)
    parser.add_argument("--batches", type=int, default=5, help="checkpoints of each case")
    arguments = parser.parse_args(argv)
    rows, figures, within = [], {}, True
    for case in CASES:
        with tempfile.TemporaryDirectory(prefix="stateline-bench-") as folder:
            asked = measure(case, Path(folder), arguments.batches)
        figures[case.name] = asked
        usual = Counter(asked[-1])
        within = within and usual["put_if_absent"] <= case.wanted
        reads = sum(usual[name] for name in ("get", "get_range", "head", "list"))
        beside = usual["put"] + usual["delete"] + usual["discard"]
        rows.append((case.name, usual["put_if_absent"], case.wanted, reads, beside))
    print(table(("a checkpoint of", "writes", "wanted", "reads", "beside the next batch"), rows))
    print(f"\nEvery figure: {write_results('requests', {'settings': vars(arguments), 'calls': figures})}")
    return 0 if within else 1
