"""Two ways to run a processor, and to compare them: by Spark itself, and by tasks of a pipeline without a Spark job."""

from __future__ import annotations

import datetime as dt
import math
import shutil
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from stateline.blob import open_store
from stateline.checkpoint.api import OperatorState, SubtaskState
from stateline.environment import system_environment
from stateline.key_groups import hash_columns, key_group_of, range_for_subtask, subtask_for_key_group
from stateline.pipeline.event_time import WatermarkPlan
from stateline.pipeline.graph import Graph, OperatorPlan
from stateline.pipeline.messages import SubtaskInput
from stateline.pipeline.operators.api import HASH_COLUMN, BatchContext
from stateline.pipeline.plan import PipelinePlan
from stateline.pipeline.subtask import TaskResources, run_subtask
from stateline.spark.arrow_types import arrow_schema
from stateline.spark.processor.operator import ProcessorProgram
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

    def process_sides(self, sides, tables, context):
        processed = self._program.process_sides(sides, tables, context)
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
        if time_mode == "EventTime":
            field = next((field.name for field in self.schema if field.dataType.typeName() == "timestamp"), "at")
            self.options["watermark"] = WatermarkPlan(column=field, delay_us=0)
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
        plan = PipelinePlan(
            root_url=self.store.url,
            parallelism=parallelism,
            max_parallelism=GROUPS,
            graph=Graph.of_one_input([OperatorPlan.of("p", program)]),
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
                    TaskResources(root=self.store, output=None, environment=system_environment()),
                    plan,
                    program,
                    SubtaskInput(
                        operator="p",
                        subtask=subtask,
                        states={name: self._state(name, subtask, parallelism) for name in program.tables},
                        open_files=(),
                        context=BatchContext(
                            self.checkpoint_id,
                            now,
                            None if watermark is None else int(watermark * 1_000_000),
                            None if late is None else int(late * 1_000_000),
                        ),
                    ),
                    mine.to_batches() if mine.num_rows else [],
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
    spark, folder, batches, schema, keys, processor, output, *, times, time_mode="None", pandas=False, initial=None
):
    """Runs batches through Spark's own operator; returns what each put out, as tuples, sorted.

    Spark's clock shows the time of a batch when it runs, and stands still: state expires, and timers come, as they do
    in tasks with these times, however fast the machine is. A folder whose query failed, or ended, goes on with the
    first batch that it has not committed.

    Args:
        times: Processing time of each batch, in seconds. A batch may be without rows where Spark runs one.
    """
    (folder / "source").mkdir(parents=True, exist_ok=True)
    events = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "source"))
    if "at" in events.columns:
        events = events.withWatermark("at", "0 seconds")
    grouped = events.groupBy(*([keys] if isinstance(keys, str) else keys))
    apply = grouped.transformWithStateInPandas if pandas else grouped.transformWithState
    rows = apply(processor, output, "update", time_mode, initial)
    put_out: dict[int, list[Any]] = {}

    def take(frame, number):
        put_out[number] = sorted((tuple(row) for row in frame.collect()), key=repr)

    before = spark.conf.get("spark.sql.streaming.stateStore.providerClass")
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    clock = spark._jvm.org.apache.spark.util.ManualClock()
    query = None
    try:
        for number, (batch, time) in enumerate(zip(batches, times, strict=True)):
            committed = folder / "spark" / "commits" / str(number)
            if committed.exists():
                continue
            _write_source(spark, folder, number, batch, schema)
            clock.setTime(round(time * 1000))
            query = query or _start_by_clock(spark, rows, take, folder / "spark", clock)
            while not committed.exists():
                assert not query.awaitTermination(0.02), "a query that has failed raises"
    finally:
        if query is not None:
            query.stop()
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", before)
    return [put_out.get(number, []) for number in range(len(batches))]


def _write_source(spark, folder, number, rows, schema):
    file = folder / "source" / f"{number:03}.parquet"
    if rows and not file.exists():
        written = folder / f"written-{number}"
        spark.createDataFrame(rows, schema).coalesce(1).write.parquet(str(written))
        shutil.copy(next(written.glob("*.parquet")), file)


def _start_by_clock(spark, rows, take, checkpoint, clock):
    """What ``rows.writeStream.foreachBatch(take).start()`` does, which takes no clock."""
    jvm = spark._jvm
    streaming = jvm.org.apache.spark.sql.streaming
    writer = rows.writeStream.foreachBatch(take)._jwrite
    function = writer.getClass().getDeclaredField("foreachBatchWriter")
    function.setAccessible(True)
    sink = jvm.org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink(
        function.get(writer), rows._jdf.exprEnc()
    )
    nothing = jvm.scala.Option.empty()
    started = spark._jsparkSession.streams().startQuery(
        nothing,  # name of the query
        nothing,  # name of the sink
        jvm.scala.Option.apply(str(checkpoint)),
        rows._jdf,
        getattr(getattr(jvm, "scala.collection.immutable.Map$"), "MODULE$").empty(),  # options
        sink,
        streaming.OutputMode.Update(),
        False,  # no temporary checkpoint
        True,  # recover from the checkpoint
        streaming.Trigger.ProcessingTime(1),  # one batch for each time that the clock shows
        clock,
        nothing,  # catalog
        nothing,  # table
    )
    return StreamingQuery(started)


def spark_state(spark, folder, variable=None):
    """What Spark's state holds: of a variable, or all timers. Rows in the form of :func:`bench_state`."""
    reader = spark.read.format("statestore")
    if variable is None:
        read = reader.option("readRegisteredTimers", True).load(str(folder / "spark"))
        return [(*row.key, row.expiration_timestamp_ms) for row in read.collect()]
    read = reader.option("stateVarName", variable.name).load(str(folder / "spark"))
    column = {"value": "value", "list": "list_element", "map": "user_map_value"}[variable.kind]
    numbers = Counter()
    rows = []
    for row in read.collect():
        subkey = ()
        if variable.kind == "list":
            subkey = (numbers[row.key],)
            numbers[row.key] += 1
        elif variable.kind == "map":
            subkey = row.user_map_key
        value = row[column]
        rows.append((*row.key, *subkey, *((*value.value, value.ttlExpirationMs) if variable.ttl_ms else value)))
    return rows


def bench_state(bench, now, variable=None):
    """The same of tasks: without what has expired, and the elements of lists numbered from 0."""
    if variable is None:
        return bench.state("timers")
    rows = [row for row in bench.state("state." + variable.name) if variable.ttl_ms is None or row[-1] > now * 1000]
    if variable.kind != "list":
        return rows
    keys = len(bench.options["keys"])
    numbers = Counter()
    numbered = []
    for key, _, element in sorted(((row[:keys], row[keys], row[keys + 1 :]) for row in rows), key=lambda row: row[1]):
        numbered.append((*key, numbers[key], *element))
        numbers[key] += 1
    return numbered


def check_state(spark, folder, bench, now):
    """Compares all that a processor keeps after its newest batch: each variable, and timers."""
    timers = [None] if "timers" in bench.states else []
    for variable in [*bench.program.variables.values(), *timers]:
        held = as_plain(bench_state(bench, now, variable))
        assert held == as_plain(spark_state(spark, folder, variable)), getattr(variable, "subject", "timers")


def check_same(
    spark,
    folder,
    processor,
    batches,
    schema,
    keys,
    output,
    *,
    times=None,
    time_mode="None",
    pandas=False,
    initial=None,
    time_zone="UTC",
):
    """Runs batches both ways, in Stateline at changing parallelism; compares each batch's output, and state in the end.

    Returns:
        The bench, and what each batch put out.
    """
    times = times or [1_000.0 + number for number in range(len(batches))]
    frame = None if initial is None else spark.createDataFrame(initial[1], initial[0]).groupBy(keys)
    options = {"times": times, "time_mode": time_mode, "pandas": pandas, "initial": frame}
    expected = through_spark(spark, folder, batches, schema, keys, processor, output, **options)
    bench = Bench(processor, schema, keys, output, time_mode=time_mode, initial=initial, time_zone=time_zone)
    assert bench.program.form == ("pandas" if pandas else "row")
    moments = watermarks(batches, bench.schema.names)
    for number, (rows, now, moment) in enumerate(zip(batches, times, moments, strict=True)):
        got = bench.batch(rows, now=now, parallelism=(2, 3, 1)[number % 3], **moment)
        assert as_plain(got) == as_plain(expected[number]), f"batch {number}"
        bench.restart(processor)
    check_state(spark, folder, bench, times[-1])
    return bench, expected


def watermarks(batches, columns):
    """What Spark's watermark is in each batch: the greatest time of the batches before; and of those before these."""
    if "at" not in columns:
        return [{}] * len(batches)
    place, bounds = columns.index("at"), [0.0]
    for rows in batches:
        times = [(row[place] - dt.datetime(1970, 1, 1)).total_seconds() for row in rows if row[place] is not None]
        bounds.append(max([bounds[-1], *times]))
    return [{"watermark": bounds[i], "late": bounds[i - 1] if i else 0.0} for i in range(len(batches))]


def as_plain(rows):
    """Rows of either side as comparable values."""

    def plain(value):
        if hasattr(value, "asDict"):
            return plain(value.asDict())
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            if value and isinstance(value, list) and all(type(item) is tuple and len(item) == 2 for item in value):
                return {name: plain(item) for name, item in value}  # a map, as Arrow shows it
            return [plain(item) for item in value]
        if isinstance(value, dt.datetime) and value.tzinfo is not None:
            return value.astimezone(dt.UTC).replace(tzinfo=None)
        if isinstance(value, bytearray):
            return bytes(value)
        return "NaN" if isinstance(value, float) and math.isnan(value) else value

    return sorted(([plain(value) for value in row] for row in rows), key=repr)
