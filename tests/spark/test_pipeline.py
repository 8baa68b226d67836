"""Keyed pipelines through Spark itself: state and files in one checkpoint, each row counted once."""

from __future__ import annotations

import builtins
import collections
import datetime as dt
import gc
import json
import shutil
import sys
import threading
import time

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamReader, StatefulProcessor

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore
from stateline.errors import CorruptDataError, FencedError, InvalidInputError
from stateline.key_groups import KeyGroupRange
from stateline.spark import KeyedStream, count, last, max, mean, sum
from stateline.spark import pipeline as pipeline_module
from stateline.state.run_store import RunReader
from stateline.state.schema import StateSchema
from stateline.state.table import StateTable

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's workers cannot find this module.

SCHEMA = "id long, key string, value long, at timestamp"
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


class Place:
    """A source of numbered files, and everything a pipeline writes."""

    def __init__(self, folder, spark):
        self.folder, self.spark = folder, spark
        self.rows = []
        (folder / "source").mkdir()

    def add(self, number, rows, keys=7):
        start = len(self.rows)
        made = [
            {
                "id": start + index,
                "key": f"k{(start + index) % keys}" if (start + index) % 11 else None,
                "value": (start + index) * 3 % 101,
                "at": START + dt.timedelta(seconds=(start + index) * 37 % 1000),
            }
            for index in range(rows)
        ]
        self.rows += made
        schema = pa.schema(
            [("id", pa.int64()), ("key", pa.string()), ("value", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))]
        )
        pq.write_table(pa.Table.from_pylist(made, schema), self.folder / "source" / f"{number:03}.parquet")

    def events(self, name=None):
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        if name is not None:
            reader = reader.name(name)
        return reader.parquet(str(self.folder / "source"))

    def keyed(self, events=None, **options):
        return KeyedStream(events or self.events(), key="key", checkpoint=f"file://{self.folder}/state", **options)

    def pipeline(self, *, files=None, **options):
        stage = self.keyed(**options).aggregate(
            n=count(), total=sum("value"), largest=max("value"), average=mean("value"), newest=last("id", by="at")
        )
        if files is None:
            return stage.state_only()
        return stage.write_files(f"file://{self.folder}/out", **files)

    def run(self, pipeline=None, **options):
        query = (pipeline or self.pipeline(**options)).start(str(self.folder / "spark"), trigger={"availableNow": True})
        query.awaitTermination()
        return query

    def run_without_end(self, **options):
        """All rows that there are, in a stream that is stopped: its files stay open."""
        query = self.pipeline(**options).start(str(self.folder / "spark"), trigger={"processingTime": "0 seconds"})
        query.processAllAvailable()
        query.stop()

    def checkpoints(self):
        return CheckpointStore(open_store(f"file://{self.folder}/state"))

    def state(self, operator="by_key"):
        newest = self.checkpoints().latest()
        stored = newest.operator(operator)
        schema = StateSchema.decode(stored.schema)
        reader = RunReader(open_store(f"file://{self.folder}/state"), schema)
        found = {}
        for subtask in stored.subtasks:
            runs = [reader.open(run) for run in subtask.runs]
            for batch in StateTable(schema, subtask.key_groups, newest.max_parallelism, runs).scan():
                for row in batch.to_pylist():
                    assert row["key"] not in found
                    found[row["key"]] = row
        return found

    def model(self):
        found = {}
        for row in self.rows:
            kept = found.setdefault(row["key"], {"n": 0, "total": 0, "largest": None, "newest": None})
            kept["n"] += 1
            kept["total"] += row["value"]
            kept["largest"] = row["value"] if kept["largest"] is None else builtins.max(kept["largest"], row["value"])
            if kept["newest"] is None or row["at"] >= kept["newest"][0]:
                kept["newest"] = (row["at"], row["id"])
        return found

    def check_state(self, operator="by_key"):
        state, model = self.state(operator), self.model()
        assert state.keys() == model.keys()
        for key, kept in model.items():
            row = state[key]
            assert (row["n"], row["total"], row["largest"]) == (kept["n"], kept["total"], kept["largest"])

    def output(self):
        if not (self.folder / "out").exists():
            return []
        return ds.dataset(self.folder / "out", format="parquet").to_table().to_pylist()


@pytest.fixture
def place(tmp_path, spark):
    return Place(tmp_path, spark)


def test_workers_do_not_look_at_all_imports_after_each_task(place, spark, monkeypatch):
    monkeypatch.setitem(spark.sparkContext.environment, "WORKERS", "of their own")
    place.add(0, 20)
    place.run()

    def frozen(batches):
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"frozen": pa.array([gc.get_freeze_count()] * batch.num_rows)})

    assert all(row.frozen > 10_000 for row in spark.range(2).mapInArrow(frozen, "frozen long").collect())


def test_state_equals_the_model_and_output_has_a_row_per_touched_key_and_batch(place):
    for number in range(4):
        place.add(number, 100)
    place.run(files={"every_checkpoint": True})
    place.check_state()
    rows = place.output()
    per_batch = collections.Counter(row["checkpoint_id"] for row in rows)
    assert per_batch == {0: 8, 1: 8, 2: 8, 3: 8}, "seven keys and null, in each batch"
    final = {row["key"]: row for row in rows if row["checkpoint_id"] == 3}
    for key, kept in place.model().items():
        assert final[key]["n"] == kept["n"]
        assert final[key]["average"] == pytest.approx(kept["total"] / kept["n"])
        assert final[key]["newest"] == kept["newest"][1]


def test_the_time_zone_of_the_session_changes_nothing(place):
    place.add(0, 30)
    before = place.spark.conf.get("spark.sql.session.timeZone")
    try:
        for number, zone in enumerate(("America/New_York", "Asia/Tokyo"), start=1):
            place.spark.conf.set("spark.sql.session.timeZone", zone)
            place.add(number, 30)
            place.run()
    finally:
        place.spark.conf.set("spark.sql.session.timeZone", before)
    newest = {key: row["newest"] for key, row in place.state().items()}
    assert newest == {key: kept["newest"][1] for key, kept in place.model().items()}


def test_relative_places_are_those_of_the_program_also_after_it_changed_its_folder(place, monkeypatch):
    place.add(0, 20)
    here = place.folder / "here"
    here.mkdir()
    monkeypatch.chdir(here)  # The tasks' processes were started elsewhere.
    stage = KeyedStream(place.events(), key="key", checkpoint="../state").aggregate(n=count())
    pipeline = stage.write_files("../out")
    monkeypatch.chdir("/")
    place.run(pipeline)
    assert builtins.sum(row["n"] for row in place.output()) == 20
    assert {row["n"] for row in place.state().values()} == {row["n"] for row in place.output()}


def test_a_restart_goes_on_with_state_and_open_files_at_any_parallelism(place):
    for number, parallelism in enumerate((1, 3, 2)):
        place.add(number, 60)
        place.run_without_end(files={}, parallelism=parallelism)
    place.check_state()
    assert not (place.folder / "out").exists() or place.output() == [], "the files are open"
    place.run(files={}, parallelism=2)
    assert collections.Counter(row["checkpoint_id"] for row in place.output()) == {0: 8, 1: 8, 2: 8}


def test_files_span_micro_batches_and_a_stream_that_ends_publishes_them(place):
    for number in range(5):
        place.add(number, 50)
    place.run_without_end(files={"partition_by": ["key"]}, parallelism=1)
    place.run(files={"partition_by": ["key"]}, parallelism=1)
    files = list((place.folder / "out").rglob("*.parquet"))
    assert len(files) == 8, "one per key, over five batches"
    assert len({path.parent.name for path in files}) == 8


def test_two_operators_share_one_checkpoint(place):
    for number in range(3):
        place.add(number, 40)
    events = place.events()
    one = place.keyed(events, name="one").aggregate(n=count(), total=sum("value"), largest=max("value"))
    other = place.keyed(events, name="other").aggregate(n=count(), total=sum("value"), largest=max("value"))
    place.run(one.state_only().alongside(other.write_files(f"file://{place.folder}/out", every_checkpoint=True)))
    place.check_state("one")
    place.check_state("other")
    assert [state.name for state in place.checkpoints().latest().operators] == ["one", "other"]
    assert len(place.output()) == 24


@pytest.mark.parametrize("operators", [1, 2])
def test_what_no_operator_needs_is_not_even_computed(place, operators):
    for number in range(2):
        place.add(number, 40)
    failing = F.expr("CAST(raise_error('it was computed') AS BIGINT)")
    events = place.events().withColumn("unneeded", failing).withWatermark("at", "1 hour")
    by_key = place.keyed(events).aggregate(n=count(), total=sum("value"), largest=max("value")).state_only()
    windows = (
        place.keyed(events, name="windows").window("at", "10 minutes").aggregate("update", newest=last("id", by="at"))
    )
    other = windows.write_files(f"file://{place.folder}/out", every_checkpoint=True)
    place.run(by_key if operators == 1 else by_key.alongside(other))
    place.check_state()
    expected = {(row["key"], int(row["at"].timestamp()) // 600 * 600) for row in place.rows}
    found = {(row["key"], int(row["window_start"].timestamp())) for row in place.output()}
    assert found == (expected if operators == 2 else set())


ODD = ["a.key", "two words", "tick`s", "ev.at", "Count"]


class OddCounter(StatefulProcessor):
    """A count that begins with an initial one, over columns whose names need quotes."""

    def init(self, handle):
        self.n = handle.getValueState("n.n", "`n.n` long")

    def handleInitialState(self, key, initialState, timerValues):  # noqa: N802, N803 - Spark's
        self.n.update((initialState["n.n"],))

    def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803 - Spark's
        seen = sorted(row["tick`s"] for row in rows)
        self.n.update(((self.n.get() or (0,))[0] + len(seen),))
        yield Row(**{"a.key": key[0], "n.n": self.n.get()[0], "seen": seen})

    def close(self):
        pass


def odd_function(events, state):
    return events.select(["a.key", "tick`s"]), state


def test_columns_with_dots_blanks_and_backticks_in_their_names(spark, tmp_path):
    made = {
        "a.key": ["x", "y", "x"],
        "two words": [1, 1, 2],
        "tick`s": [5, 6, 7],
        "ev.at": [START] * 3,
        "Count": [1] * 3,
    }
    schema = pa.schema([*((name, pa.string() if name == "a.key" else pa.int64()) for name in ODD[:3])])
    schema = schema.append(pa.field("ev.at", pa.timestamp("us", "UTC"))).append(pa.field("Count", pa.int64()))
    (tmp_path / "source").mkdir()
    pq.write_table(pa.table(made, schema), tmp_path / "source" / "0.parquet")
    ddl = "`a.key` string, `two words` long, `tick``s` long, `ev.at` timestamp, Count long"
    initial = spark.createDataFrame([("x", 40)], "`a.key` string, `n.n` long")

    def keyed(name, key, **options):
        events = spark.readStream.schema(ddl).parquet(str(tmp_path / "source"))
        return KeyedStream(events, key, f"file://{tmp_path}/state-{name}", parallelism=2, **options)

    def rows(name, stage):
        found = []
        pipeline = stage.for_each_batch(lambda frame, key: found.extend(tuple(row) for row in frame.collect()))
        pipeline.start(f"{tmp_path}/spark-{name}", trigger={"availableNow": True}).awaitTermination()
        return sorted(found)

    stage = keyed("n", ["a.key", "two words"]).aggregate(**{"n.n": count(), "tick`s": sum("tick`s")})
    assert rows("n", stage) == [("x", 1, 1, 5, 0), ("x", 2, 1, 7, 0), ("y", 1, 1, 6, 0)]
    windows = keyed("w", "a.key", watermark=("ev.at", "1 minute")).window("ev.at", "1 hour")
    assert [row[3:] for row in rows("w", windows.aggregate(n=count("Count")))] == [(2, 0), (1, 0)]
    stage = keyed("p", "a.key", watermark=("ev.at", "1 minute")).process(
        OddCounter(), "`a.key` string, `n.n` long, seen array<long>", time_mode="EventTime", initial_state=initial
    )
    assert rows("p", stage) == [("x", 42, [5, 7]), ("y", 1, [6])]
    stage = keyed("f", "a.key").apply_arrow(odd_function, "n long", "`a.key` string, `tick``s` long")
    assert rows("f", stage) == [("x", 5), ("x", 7), ("y", 6)]


def test_a_batch_that_is_replayed_after_its_commit_changes_nothing(place):
    place.add(0, 50)
    place.add(1, 50)
    place.run(files={"every_checkpoint": True})
    before = sorted(path.name for path in (place.folder / "out").iterdir())
    commits = place.folder / "spark" / "commits"
    (commits / "1").unlink()
    (commits / ".1.crc").unlink(missing_ok=True)
    place.run(files={"every_checkpoint": True})
    assert sorted(path.name for path in (place.folder / "out").iterdir()) == before
    place.check_state()


def test_an_empty_source_and_empty_partitions_are_no_special_case(place):
    place.add(0, 1)
    place.add(1, 0)
    place.add(2, 2)
    place.run(files={"every_checkpoint": True}, parallelism=4)
    place.check_state()
    assert place.checkpoints().latest().batch_id == 2


def test_another_driver_that_decides_first_fences_this_one(place, monkeypatch):
    place.add(0, 20)
    place.add(1, 20)
    pipeline = place.pipeline(files={"every_checkpoint": True})
    run_subtasks = pipeline_module.BatchJob.__call__

    def overtaken(job, batch, tasks):
        results = run_subtasks(job, batch, tasks)
        if batch.batch_id == 1:
            rival = place.checkpoints()
            newest = rival.latest()
            rival.publish(
                type(newest)(
                    **{
                        **{name: getattr(newest, name) for name in newest.__struct_fields__},
                        "checkpoint_id": 1,
                        "batch_id": 1,
                        "nonce": "of-the-rival",
                    }
                )
            )
        return results

    monkeypatch.setattr(pipeline_module.BatchJob, "__call__", overtaken)
    with pytest.raises(FencedError, match="another driver was first") as caught:
        place.run(pipeline)
    assert isinstance(caught.value.__cause__, StreamingQueryException)
    assert place.checkpoints().latest().nonce == "of-the-rival"
    assert {row["checkpoint_id"] for row in place.output()} == {0}, "the loser publishes nothing"


def test_a_new_query_over_an_old_root_is_refused(place):
    place.add(0, 20)
    place.run()
    shutil.rmtree(place.folder / "spark")
    with pytest.raises(InvalidInputError, match="belongs to query"):
        place.run()
    place.check_state()


def test_a_lost_root_is_not_silently_started_anew(place):
    place.add(0, 20)
    place.run()
    shutil.rmtree(place.folder / "state")
    with pytest.raises(InvalidInputError, match="newest decided batch is none, so batch 0 must come next"):
        place.run()  # Although there is no new row.


def test_a_root_that_is_older_than_sparks_checkpoint_is_refused_also_without_new_rows(place):
    place.add(0, 20)
    place.run()
    shutil.copytree(place.folder / "state", place.folder / "backup")
    place.add(1, 20)
    place.run()
    newest = place.checkpoints().latest()
    (place.folder / "state").rename(place.folder / "kept")
    (place.folder / "backup").rename(place.folder / "state")
    with pytest.raises(InvalidInputError, match=r"batch 2 of .*/state: the newest decided batch is 0.*rows in between"):
        place.run()
    shutil.rmtree(place.folder / "state")
    (place.folder / "kept").rename(place.folder / "state")
    place.run()
    (place.folder / "spark" / "commits" / "1").unlink()  # As after a crash before Spark's commit.
    place.run()
    shutil.rmtree(place.folder / "spark" / "commits")
    place.run()
    assert place.checkpoints().latest() == newest
    place.check_state()


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("v1", None),
        pytest.param(
            "v2",
            "numbers",
            marks=pytest.mark.skipif(
                not hasattr(DataStreamReader, "name"), reason="sources have names from PySpark 4.2 on"
            ),
        ),
    ],
)
def test_a_rolled_back_spark_checkpoint_is_refused(place, form, name):
    def run():
        place.run(events=place.events(name))

    place.spark.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", str(name is not None).lower())
    try:
        place.add(0, 20)
        run()
        shutil.copytree(place.folder / "spark", place.folder / "old")
        place.add(1, 20)
        run()
        assert (place.folder / "spark" / "offsets" / "1").read_text().startswith(f"{form}\n")
        shutil.rmtree(place.folder / "spark")
        (place.folder / "old").rename(place.folder / "spark")
        (place.folder / "source" / "001.parquet").rename(place.folder / "source" / "later.parquet")
        with pytest.raises(InvalidInputError, match="expected the source offsets"):
            run()
    finally:
        place.spark.conf.unset("spark.sql.streaming.queryEvolution.enableSourceEvolution")
    place.check_state()


def test_a_changed_program_is_refused_with_both_definitions(place):
    place.add(0, 20)
    place.run()
    other = place.keyed().aggregate(n=count(), total=sum("id")).state_only()
    with pytest.raises(InvalidInputError, match=r"'total' cannot change its meaning.*sum\(value\).*sum\(id\)"):
        place.run(other)
    with pytest.raises(InvalidInputError, match="max_parallelism"):
        place.run(max_parallelism=64)


def test_a_corrupt_newest_record_is_loud(place):
    place.add(0, 20)
    place.run()
    path = place.folder / "state" / "chk-0" / "_metadata"
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"batch_id"', b'"bitch_id"'))
    with pytest.raises(CorruptDataError, match="chk-0"):
        place.run()
    path.write_bytes(data)
    place.run()
    place.check_state()


def test_a_root_without_permission_is_a_typed_error(place):
    place.add(0, 20)
    (place.folder / "state").write_text("a file is in the way")
    with pytest.raises(Exception, match="in the way"):
        place.run()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda place: place.keyed(optionz={}), "optionz"),
        (lambda place: place.keyed(options={"retained_chekpoints": "3"}), "retained_checkpoints"),
        (lambda place: place.keyed(parallelism=0), "parallelism"),
        (lambda place: place.keyed(parallelism=200), "parallelism"),
        (lambda place: KeyedStream(place.events(), key="kee", checkpoint="x"), "Did you mean 'key'"),
        (lambda place: KeyedStream(place.events(), key=[], checkpoint="x"), "empty"),
        (lambda place: KeyedStream(place.events(), key=["key", "key"], checkpoint="x"), "twice"),
        (lambda place: KeyedStream(place.spark.range(1), key="id", checkpoint="x"), "must be a stream"),
        (lambda place: KeyedStream(None, key="id", checkpoint="x"), "must be a stream"),
        (lambda place: KeyedStream(place.events(), key=5, checkpoint="x"), "key: 5 is not a column name"),
        (
            lambda place: KeyedStream(place.events(), key=[F.col("key")], checkpoint="x"),
            "key: Column.* is not a column",
        ),
        (
            lambda place: place.keyed(place.events().withColumn("__HASH", F.col("id"))),
            "column '__HASH': is a reserved name.*Rename",
        ),
        (lambda place: place.keyed(parallelism="4"), "parallelism: must be a whole number, got '4'"),
        (lambda place: place.pipeline().start("x", trigger="10 seconds"), "trigger: expected .*, got str.*dict"),
        (lambda place: place.keyed().aggregate(), "must have an aggregation"),
        (lambda place: place.keyed().aggregate(s=sum("valu")), "value"),
        (lambda place: place.keyed().aggregate(s=sum("key")), "key"),
        (lambda place: place.keyed().aggregate(key=count()), "key"),
        (lambda place: place.keyed().aggregate(n=count()).write_files("x", format="orc"), "orc"),
        (
            lambda place: place.keyed().aggregate(n=count()).write_files("x", partition_by="m"),
            "expected a column of the output, got 'm'",
        ),
        (lambda place: place.keyed().aggregate(n=count()).write_files("x", roll_bytes="-1"), "roll_bytes"),
        (lambda place: place.pipeline().start("x", trigger={"continuous": "1 second"}), "continuous"),
        (
            lambda place: place.pipeline().start("x", trigger={"processingTime": "abc"}),
            "start trigger.*Spark rejects",
        ),
        (
            lambda place: place.pipeline().start("x", trigger={"availableNow": False}),
            "start trigger.*Spark rejects",
        ),
        (lambda place: place.pipeline().start("x", query_name=5), "query_name 5: Spark rejects"),
        (lambda place: place.pipeline().start(""), "spark_checkpoint: must not be empty"),
        (lambda place: place.pipeline().start(5), "spark_checkpoint: expected .*, got int"),
        (lambda place: place.keyed(max_parallelism=None), "max_parallelism: must be a whole number, got None"),
        (lambda place: place.keyed(options="x"), "options: expected Mapping, got str. Give a value of type Mapping"),
        (lambda place: place.keyed(options={1: "x"}), "option 1: expected str, got int"),
        (lambda place: place.keyed(watermark=5), "watermark: expected a column and a delay, got 5"),
        (
            lambda place: place.keyed().apply_arrow(lambda rows, state: rows, "n long", "a long, a int"),
            "cannot name 'a' twice",
        ),
        (
            lambda place: place.keyed().apply_arrow(lambda rows, state: rows, "n long", pa.schema([])),
            "output_schema: .*empty",
        ),
        (
            lambda place: place.keyed().aggregate(n=count()).write_files("x", partition_by=None),
            "partition_by: expected Iterable, got NoneType",
        ),
    ],
)
def test_what_is_wrong_is_refused_before_anything_runs(place, make, message):
    place.add(0, 1)
    with pytest.raises((InvalidInputError, TypeError), match=message):
        make(place)
    assert not (place.folder / "state").exists()


@pytest.mark.parametrize("kind", ["map<string,int>", "variant", "array<int>", "struct<a:int>"])
def test_types_that_cannot_be_keys_are_refused(place, kind):
    place.add(0, 1)
    value = F.parse_json(F.lit("1")) if kind == "variant" else F.lit(None).cast(kind)
    with pytest.raises(Exception, match=r"(?i)key|variant"):
        KeyedStream(place.events().withColumn("key", value), key="key", checkpoint="x")


def test_path_like_partition_values_land_inside_the_output(place):
    values = ["../x", "a/b", "", "x" * 300, "Zürich 東京", None, "..", "%2e", "a=b"]
    rows = pa.table({"id": range(len(values)), "key": values, "value": [1] * len(values), "at": [START] * len(values)})
    pq.write_table(rows, place.folder / "source" / "000.parquet")
    stage = place.keyed().aggregate(n=count())
    place.run(stage.write_files(f"file://{place.folder}/out", partition_by="key", every_checkpoint=True))
    found = place.spark.read.parquet(str(place.folder / "out")).select("key", "n").collect()
    read_back = {row["key"] for row in found}
    assert len(found) == len(values)
    assert {"../x", "a/b", "Zürich 東京", None, "..", "%2e", "a=b"} <= read_back, "'' comes back as null, as from Spark"
    outside = [path for path in place.folder.rglob("*.parquet") if not path.is_relative_to(place.folder / "out")]
    assert [path.parent.name for path in outside] == ["source"]
    assert all(len(part.encode()) <= 255 for path in place.folder.rglob("*") for part in path.parts)


def test_stopping_keeps_files_open_and_the_next_start_goes_on(place):
    place.add(0, 30)
    query = place.pipeline(files={}).start(str(place.folder / "spark"))
    query.processAllAvailable()
    query.stop()
    assert place.output() == []
    assert place.checkpoints().latest().outputs[0].open
    place.add(1, 30)
    query = place.pipeline(files={}).start(str(place.folder / "spark"), finish_on_stop=True)
    query.processAllAvailable()
    query.stop()
    assert collections.Counter(row["checkpoint_id"] for row in place.output()) == {0: 8, 1: 8}
    place.check_state()


def test_a_checkpoint_costs_one_object_per_subtask_and_one_record(place):
    for number in range(6):
        place.add(number, 30)
    log = place.folder / "metrics.jsonl"
    query = place.run(parallelism=2, options={"retained_checkpoints": "100", "metrics_log": str(log)})
    reports = [json.loads(line) for line in log.read_text().splitlines()]
    assert reports == list(query.recent_reports)
    assert [(line["batch_id"], line["rows"], line["parallelism"]) for line in reports] == [(n, 30, 2) for n in range(6)]
    assert query.metrics.snapshot()["rows"] == 180
    newest = place.checkpoints().latest()
    objects = list((place.folder / "state" / "shared").iterdir())
    records = list((place.folder / "state").glob("chk-*/_metadata"))
    assert newest.checkpoint_id == 5
    assert len(records) == 6
    assert len(objects) <= 6 * 2
    assert newest.operators[0].subtasks[0].key_groups == KeyGroupRange(0, 63)


def test_threads_and_folders_do_not_pile_up_over_batches(place):
    for number in range(12):
        place.add(number, 5)
    before = threading.active_count()
    place.run(files={"every_checkpoint": True})
    deadline = time.monotonic() + 60
    while threading.active_count() > before + 4:  # Threads that have nothing to do end soon, on a busy machine later.
        assert time.monotonic() < deadline, "threads pile up"
        time.sleep(0.05)
    assert not (place.folder / "out" / ".inprogress").exists(), "no pieces are left"
    kept = [path.parent.name for path in (place.folder / "state").glob("chk-*/_metadata")]
    assert len(kept) == 12, "retired slots stay taken until a whole block is closed"
