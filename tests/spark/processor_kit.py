"""Processors, and two ways to run them: by Spark itself, and by the tasks of a pipeline without a Spark job."""

# ruff: noqa: N802, N803 - methods and arguments are Spark's

from __future__ import annotations

import os
import shutil
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import StructType

from stateline.blob import open_store
from stateline.checkpoint.api import OperatorState, SubtaskState
from stateline.environment import system_environment
from stateline.key_groups import hash_columns, key_group_of, range_for_subtask, subtask_for_key_group
from stateline.spark.arrow_types import arrow_schema
from stateline.spark.coordinator import SubtaskTask
from stateline.spark.plan import OperatorPlan
from stateline.spark.processor import ProcessorProgram
from stateline.spark.task import HASH_COLUMN, TaskContext, run_subtask
from stateline.state.rescale import rescale
from stateline.state.run_store import RunReader
from stateline.state.schema import StateSchema
from stateline.state.table import StateTable

GROUPS = 16
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class _Watched:
    """A program whose output is kept."""

    def __init__(self, program, taken):
        self._program, self._taken = program, taken

    def __getattr__(self, name):
        return getattr(self._program, name)

    def process(self, batches, tables, moment):
        processed = self._program.process(batches, tables, moment)
        if processed.output is not None:
            self._taken += processed.output.to_pylist()
        return processed


class Bench:
    """A processor in tasks of a pipeline, with its state in memory, batch after batch."""

    def __init__(self, processor, schema, keys, output, *, time_mode="None", initial=None, **options):
        self.options = {
            "keys": [keys] if isinstance(keys, str) else list(keys),
            "output_schema": output,
            "output_mode": "update",
            "time_mode": time_mode,
            "time_zone": "UTC",
            **options,
        }
        self.schema = StructType.fromDDL(schema)
        self.initial_schema, self.initial = (None, None)
        if initial is not None:
            self.initial_schema, self.initial = StructType.fromDDL(initial[0]), initial[1]
        self.store = open_store(f"memory://{id(self)}")
        self.states: dict[str, OperatorState] = {}
        self.checkpoint_id = 0
        self.restart(processor)

    def restart(self, processor):
        """The same root, another process: perhaps another program."""
        self.program = ProcessorProgram.bind(processor, self.schema, initial=self.initial_schema, **self.options)

    def batch(self, rows, *, now=1_000.0, watermark=None, late=None, parallelism=2):
        """Runs one batch; returns what it put out, as tuples, sorted."""
        taken: list[dict[str, Any]] = []
        program = _Watched(self.program, taken)
        plan = OperatorPlan(
            name="p",
            tables={name: table.encode() for name, table in program.tables.items()},
            definition=program.definition,
        )
        table = self._table(rows)
        hashes = table[HASH_COLUMN].to_numpy().view(np.uint64)
        groups = key_group_of(hashes, GROUPS).tolist()
        owners = np.array([subtask_for_key_group(group, parallelism, GROUPS) for group in groups], np.int64)
        results = []
        for subtask in range(parallelism):
            mine = table.filter(pa.array(owners == subtask))
            results.append(
                run_subtask(
                    TaskContext(root=self.store, output=None, environment=system_environment()),
                    plan,
                    program,
                    SubtaskTask(
                        checkpoint_id=self.checkpoint_id,
                        operator="p",
                        subtask=subtask,
                        states={name: self._state(name, subtask, parallelism) for name in program.tables},
                        open_files=(),
                        now=now,
                        watermark_us=None if watermark is None else int(watermark * 1_000_000),
                        late_watermark_us=None if late is None else int(late * 1_000_000),
                    ),
                    mine.to_batches() if mine.num_rows else [],
                    GROUPS,
                )
            )
        self.states = {
            name: OperatorState(
                name=name,
                schema=table.encode(),
                definition=program.definition,
                subtasks=tuple(result.states[name] for result in results),
            )
            for name, table in program.tables.items()
        }
        self.checkpoint_id += 1
        self.metrics = [result.metrics for result in results]
        return sorted((tuple(row.values()) for row in taken), key=repr)

    def state(self, name):
        """All live rows of one table, as tuples, sorted."""
        schema = StateSchema.decode(self.states[name].schema)
        reader = RunReader(self.store, schema)
        rows = []
        for subtask in self.states[name].subtasks:
            runs = [reader.open(run) for run in subtask.runs]
            for batch in StateTable(schema, subtask.key_groups, GROUPS, runs).scan():
                rows += [tuple(row.values()) for row in batch.to_pylist()]
        return sorted(rows, key=repr)

    def _state(self, name, subtask, parallelism):
        if name in self.states:
            return rescale(self.states[name], parallelism, GROUPS)[subtask]
        owned = range_for_subtask(subtask, parallelism, GROUPS)
        return SubtaskState(first_key_group=owned.start, last_key_group=owned.end)

    def _table(self, rows):
        table = _arrow(self.schema, rows)
        keys = self.options["keys"]
        hashes = [hash_columns([table[key] for key in keys])]
        if self.initial is not None and self.checkpoint_id == 0:
            first = _arrow(self.initial_schema, self.initial)
            hashes.append(hash_columns([first[key] for key in keys]))
            table = pa.concat_tables(
                [
                    pa.table({"__input": table.to_struct_array(), "__initial": pa.nulls(len(table), _struct(first))}),
                    pa.table({"__input": pa.nulls(len(first), _struct(table)), "__initial": first.to_struct_array()}),
                ]
            )
        return table.append_column(HASH_COLUMN, pa.array(np.concatenate(hashes).view(np.int64)))


def _struct(table):
    return pa.struct(list(table.schema))


def _arrow(schema, rows):
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], arrow_schema(schema))


def through_spark(
    spark, folder, batches, schema, keys, processor, output, *, time_mode="None", pandas=False, initial=None
):
    """Runs batches through Spark's own operator; returns what each put out, as tuples, sorted."""
    source = folder / "source"
    source.mkdir(parents=True)
    for number, rows in enumerate(batches):
        written = folder / f"written-{number}"
        spark.createDataFrame(rows, schema).coalesce(1).write.parquet(str(written))
        file = next(written.glob("*.parquet"))
        shutil.copy(file, source / f"{number:03}.parquet")
        os.utime(source / f"{number:03}.parquet", (1_000_000 + number, 1_000_000 + number))
    events = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
    if time_mode == "EventTime":
        events = events.withWatermark("at", "0 seconds")
    grouped = events.groupBy(*([keys] if isinstance(keys, str) else keys))
    apply = grouped.transformWithStateInPandas if pandas else grouped.transformWithState
    rows = apply(processor, output, "update", time_mode, initial)
    put_out: dict[int, list[Any]] = {}

    def take(frame, number):
        put_out[number] = sorted((tuple(row) for row in frame.collect()), key=repr)

    before = spark.conf.get("spark.sql.streaming.stateStore.providerClass")
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    try:
        query = (
            rows.writeStream.outputMode("update")
            .foreachBatch(take)
            .option("checkpointLocation", str(folder / "spark"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    finally:
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", before)
    return [put_out.get(number, []) for number in range(len(batches))]


class Counter(StatefulProcessor):
    """A running count and sum."""

    def init(self, handle):
        self.totals = handle.getValueState("totals", "n long, total long")

    def handleInputRows(self, key, rows, timerValues):
        n, total = self.totals.get() or (0, 0)
        for row in rows:
            n += 1
            total += row.v
        self.totals.update((n, total))
        yield Row(*COUNTER_FIELDS)(*key, n, total)

    def close(self):
        pass


COUNTER_FIELDS = ("k", "n", "total")
