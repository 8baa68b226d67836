"""A pipeline without Spark: the real coordinator, tasks and state over a store in memory, and rows in lists."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore
from stateline.environment import system_environment
from stateline.files.pending import load_rows
from stateline.key_groups import hash_columns, key_group_of, subtask_for_key_group
from stateline.pipeline.coordinator import MicroBatchCoordinator
from stateline.pipeline.event_time import EVENT_TIME_COLUMN, WINDOW_START, EventTimeWatch
from stateline.pipeline.graph import Graph, OperatorPlan
from stateline.pipeline.messages import Batch
from stateline.pipeline.operators.api import HASH_COLUMN
from stateline.pipeline.plan import PipelinePlan
from stateline.pipeline.subtask import TaskResources, run_subtask
from stateline.state.open_runs import OpenRuns

MAX_PARALLELISM = 8


class Engine:
    """One driver of one pipeline.

    Args:
        program: What it computes.
        schema: Of the rows.
        root: Store of the checkpoints; a new one in memory by default.
        environment: The real world by default.
        cache: ``cache(subtask)`` gives the copies of runs on the host of that subtask; none by default.
        deliver: Called with ``(rows, key)``; by default the rows are kept in ``output``, by checkpoint.
        files: A ``FileOutput`` that gets the rows, instead of ``deliver``.
        inline_bytes: Of each subtask.
        record_bytes: Of the record.
    """

    def __init__(
        self,
        program,
        schema,
        *,
        root=None,
        watermark=None,
        parallelism=2,
        deliver=None,
        retained=3,
        cache=None,
        environment=None,
        files=None,
        inline_bytes=0,
        record_bytes=0,
    ):
        self.program, self.schema, self.watermark = program, schema, watermark
        self.environment = environment or system_environment()
        self.root = root or open_store(f"memory://{self.environment.ids.new_id()}")
        self.output, self.metrics = {}, {}
        self.cache = cache or (lambda subtask: None)
        self.deliver = deliver or self.keep
        self.out = None if files is None else open_store(files.url, files.store_options)
        self.operator = replace(OperatorPlan.of("op", program), output=files, delivers=files is None)
        self.plan = plan = PipelinePlan(
            root_url=self.root.url,
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
            graph=Graph.of_one_input([self.operator], watermark),
            retained_checkpoints=retained,
            inline_bytes=inline_bytes,
            record_bytes=record_bytes,
        )
        self.checkpoints = CheckpointStore(self.root, environment=self.environment)
        self.coordinator = MicroBatchCoordinator(
            plan,
            self.checkpoints,
            {} if files is None else {"op": self.out},
            self.run_subtasks,
            self.environment,
            self.hand_over,
        )

    def keep(self, rows, key):
        self.output[key.checkpoint_id] = rows

    def hand_over(self, delivery):
        tables = load_rows(self.root, delivery.rows)
        self.deliver([row for table in tables for row in table.to_pylist()], delivery.key)

    def run(self, rows, batch_id=None):
        """One batch of rows, given as dictionaries."""
        newest = self.coordinator.start()
        following = 0 if newest is None else newest.batch_id + 1
        number = following if batch_id is None else batch_id
        report = self.coordinator.run_batch(
            Batch(query_id="q", batch_id=number, offsets_digest=f"{number:064}", data=rows)
        )
        self.metrics = report.metrics
        return report.checkpoint

    def settle(self):
        self.coordinator.settle(list)
        return self.coordinator.newest

    def run_subtasks(self, batch, tasks):
        rows = self.windowed(pa.Table.from_pylist(batch.data, self.schema))
        keys = [rows.column(name).combine_chunks() for name in self.program.key_columns]
        hashes = hash_columns(keys)
        owners = [
            subtask_for_key_group(group, len(tasks), MAX_PARALLELISM)
            for group in key_group_of(hashes, MAX_PARALLELISM).tolist()
        ]
        sent = rows.select(list(self.program.input_columns))
        if self.program.wants_hash:
            sent = sent.append_column(HASH_COLUMN, pa.array(hashes.view("int64")))
        if EventTimeWatch(self.watermark, self.program.input_columns).needs_column:
            sent = sent.append_column(EVENT_TIME_COLUMN, rows.column(self.watermark.column))
        return [
            run_subtask(
                TaskResources(
                    root=self.root,
                    output=self.out,
                    environment=self.environment,
                    cache=self.cache(task.subtask),
                    open_runs=OpenRuns(),
                    inline_bytes=self.plan.subtask_inline_bytes,
                ),
                self.plan,
                self.program,
                task,
                sent.filter(pa.array([owner == task.subtask for owner in owners], pa.bool_())).to_batches(),
            )
            for task in tasks
        ]

    def windowed(self, rows):
        """Each row once for every window it is in, as Spark does it before the shuffle."""
        window = self.operator.window
        if window is None:
            return rows
        times = rows.column(window.column).cast(pa.int64()).to_pylist()
        pairs = []
        for row, time in enumerate(times):
            if time is not None:
                start = (time - window.start_us) // window.slide_us * window.slide_us + window.start_us
                while start > time - window.size_us:
                    pairs.append((row, start))
                    start -= window.slide_us
        made = rows.take(pa.array([row for row, _ in pairs], pa.int64()))
        starts = pa.array([start for _, start in pairs], pa.int64()).cast(rows.schema.field(window.column).type)
        return made.append_column(WINDOW_START, starts)
