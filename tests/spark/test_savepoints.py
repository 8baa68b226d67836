"""New queries over old state: from savepoints, copied, moved or claimed, and with changed programs."""

from __future__ import annotations

import builtins
import collections
import os
import shutil
import sys

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore, create_savepoint, open_savepoint, verify_root
from stateline.errors import ConflictError, InvalidInputError, NotFoundError, UnavailableError
from stateline.spark import KeyedStream, count, max, sum
from stateline.state.stored import StoredState

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's workers cannot find this module.

KEYS = 7


class Source:
    """Numbered files of rows, one per micro-batch."""

    def __init__(self, folder):
        self.folder = folder / "source"
        self.folder.mkdir()
        self.files = []

    def add(self, kind=None, rows=50):
        number = len(self.files)
        ids = range(number * rows, (number + 1) * rows)
        table = pa.table({"key": [i * i % KEYS for i in ids], "value": pa.array([i % 31 for i in ids], kind)})
        pq.write_table(table, self.folder / f"{number:03}.parquet")
        self.files.append(table.to_pylist())

    def events(self, spark, first, last, folder, schema="key long, value long"):
        """A stream of some of the files."""
        view = folder / f"view-{first}-{last}"
        view.mkdir(exist_ok=True)
        for number in range(first, last):
            self.show(number, view)
        return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(view))

    def show(self, number, view):
        """Puts a file where the stream looks; Spark takes files in the order of their times."""
        copied = shutil.copy(self.folder / f"{number:03}.parquet", view)
        os.utime(copied, (1_700_000_000 + number * 60,) * 2)

    def model(self, first=0, last=None):
        found = {}
        for row in [row for file in self.files[first:last] for row in file]:
            n, total, largest = found.get(row["key"], (0, 0, -1))
            found[row["key"]] = (n + 1, total + row["value"], builtins.max(largest, row["value"]))
        return found

    def output(self, first, last):
        """Every output row of batches ``first`` to ``last``: key and count."""
        rows = collections.Counter()
        for number in range(first, last):
            touched = {row["key"] for row in self.files[number]}
            rows.update((key, self.model(0, number + 1)[key][0]) for key in touched)
        return rows


@pytest.fixture
def source(tmp_path):
    made = Source(tmp_path)
    for _ in range(6):
        made.add()
    return made


def keyed(events, folder, name, **options):
    return KeyedStream(events, key="key", checkpoint=f"file://{folder}/{name}/root", **options)


def run(stage, folder, name, *, files=True):
    pipeline = stage.write_files(f"file://{folder}/{name}/out") if files else stage.state_only()
    pipeline.start(str(folder / name / "spark"), trigger={"availableNow": True}).awaitTermination()


def plain(stream):
    return stream.aggregate(n=count(), total=sum("value"), largest=max("value"))


def state(folder, name, checkpoint_id=None):
    root = CheckpointStore(f"file://{folder}/{name}/root")
    record = root.latest() if checkpoint_id is None else root.get(checkpoint_id)
    stored = StoredState.of(root.store, record)
    rows = [row for part in stored.slices(3) for batch in stored.reader().scan(part) for row in batch.to_pylist()]
    return {row.pop("key"): tuple(row.values()) for row in rows}


def output(folder, name):
    rows = ds.dataset(folder / name / "out", format="parquet").to_table().to_pylist()
    return collections.Counter((row["key"], row["n"]) for row in rows)


@pytest.fixture
def old(spark, source, tmp_path):
    """A query that has seen three files; its checkpoint of the third batch has an open file."""
    stage = plain(keyed(source.events(spark, 0, 3, tmp_path), tmp_path, "old", parallelism=2))
    pipeline = stage.write_files(f"file://{tmp_path}/old/out")
    query = pipeline.start(str(tmp_path / "old" / "spark"), trigger={"processingTime": "0 seconds"})
    query.processAllAvailable()
    query.stop()
    return CheckpointStore(f"file://{tmp_path}/old/root")


def test_a_copy_of_a_savepoint_starts_a_query_anywhere_at_another_parallelism(spark, source, old, tmp_path):
    assert old.get(2).outputs[0].open, "rows that nobody has seen yet"
    made = create_savepoint(old, f"file://{tmp_path}/kept", checkpoint_id=2)
    moved = open_store("memory://moved-savepoint")
    for info in made.store.list(f"{made.folder}/"):
        moved.put(info.name.removeprefix(f"{made.folder}/"), made.store.get(info.name))
    shutil.rmtree(tmp_path / "kept")
    shutil.rmtree(tmp_path / "old" / "root")
    events = source.events(spark, 3, 5, tmp_path)
    options = {"start_from": "memory://moved-savepoint", "source": "new"}
    run(plain(keyed(events, tmp_path, "new", parallelism=3, options=options)), tmp_path, "new")
    assert state(tmp_path, "new") == source.model(0, 5)
    assert output(tmp_path, "new") == source.output(0, 5), "rows of the open file come out once, where the query writes"
    root = CheckpointStore(f"file://{tmp_path}/new/root")
    assert [record.checkpoint_id for record in root.list()] == [0, 1, 2]
    assert root.get(1).batch_id == 0
    source.show(5, tmp_path / "view-3-5")
    run(plain(keyed(events, tmp_path, "new", parallelism=1, options=options)), tmp_path, "new")
    assert state(tmp_path, "new") == source.model()
    assert output(tmp_path, "new") == source.output(0, 6)
    assert verify_root(root).is_sound


def test_a_claimed_savepoint_becomes_the_query_s_own(spark, source, old, tmp_path):
    made = create_savepoint(old, f"file://{tmp_path}/new/root", checkpoint_id=2)
    events = source.events(spark, 3, 5, tmp_path)
    options = {"start_mode": "claim", "source": "new"}
    run(plain(keyed(events, tmp_path, "new", start_from=f"{made.url}/_metadata", options=options)), tmp_path, "new")
    assert state(tmp_path, "new") == source.model(0, 5)
    assert output(tmp_path, "new") == source.output(0, 5)
    assert made.owner() is not None
    other = keyed(events, tmp_path, "third", start_from=made.url, source="new")
    with pytest.raises(ConflictError, match="owns it"):
        run(plain(other), tmp_path, "third")


def test_a_claim_that_was_interrupted_is_repeated_by_the_same_query(spark, source, old, tmp_path, monkeypatch):
    made = create_savepoint(old, f"file://{tmp_path}/new/root", checkpoint_id=2)
    publish = CheckpointStore.publish

    def fail_first(store, checkpoint):
        if checkpoint.checkpoint_id == 0:
            monkeypatch.setattr(CheckpointStore, "publish", publish)
            raise UnavailableError("the network is gone")
        return publish(store, checkpoint)

    monkeypatch.setattr(CheckpointStore, "publish", fail_first)
    events = source.events(spark, 3, 5, tmp_path)
    options = {"start_mode": "claim"}
    stage = plain(keyed(events, tmp_path, "new", start_from=made.url, source="new", options=options))
    with pytest.raises(UnavailableError, match="network is gone"):
        run(stage, tmp_path, "new")
    assert made.owner() is not None
    run(stage, tmp_path, "new")
    assert state(tmp_path, "new") == source.model(0, 5)
    assert output(tmp_path, "new") == source.output(0, 5)


def test_what_cannot_start_is_refused_before_anything_runs(spark, source, old, tmp_path):
    made = create_savepoint(old, f"file://{tmp_path}/kept", checkpoint_id=2)
    events = source.events(spark, 3, 4, tmp_path)

    def start(stage):
        stage.write_files(f"file://{tmp_path}/new/out").start(str(tmp_path / "new" / "spark"))

    with pytest.raises(NotFoundError, match="is not a savepoint"):
        start(plain(keyed(events, tmp_path, "new", start_from=f"file://{tmp_path}/nothing")))
    url = f"{made.url}/_metadata"
    with pytest.raises(InvalidInputError, match="cannot change its meaning"):
        start(keyed(events, tmp_path, "new", start_from=url).aggregate(n=count("value")))
    with pytest.raises(InvalidInputError, match="not a savepoint"):
        start(plain(keyed(events, tmp_path, "new", start_from=f"{old.store.url}/chk-2")))
    with pytest.raises(InvalidInputError, match="only where the new root is"):
        start(plain(keyed(events, tmp_path, "new", start_from=made.url, options={"start_mode": "claim"})))
    with pytest.raises(InvalidInputError, match="max_parallelism"):
        start(plain(keyed(events, tmp_path, "new", start_from=made.url, max_parallelism=64)))
    with pytest.raises(InvalidInputError, match=r"cannot change its meaning.*stored.*got"):
        start(keyed(events, tmp_path, "new", start_from=made.url).aggregate(n=count("value")))
    with pytest.raises(InvalidInputError, match="start_mode"):
        keyed(events, tmp_path, "new", start_from=made.url, options={"start_mode": "move"})
    assert open_savepoint(made.url).owner() is None


def test_aggregations_may_be_added_dropped_and_widened(spark, tmp_path):
    source = Source(tmp_path)
    for _ in range(2):
        source.add(pa.int32())
    narrow = source.events(spark, 0, 2, tmp_path, "key long, value int")
    run(keyed(narrow, tmp_path, "q").aggregate(n=count(), total=sum("value"), top=max("value")), tmp_path, "q")
    source.add(pa.int64())
    source.show(2, tmp_path / "view-0-2")
    wide = spark.readStream.schema("key long, value long").parquet(str(tmp_path / "view-0-2"))
    stage = keyed(wide, tmp_path, "q").aggregate(top=max("value"), n=count(), largest=max("value"))
    run(stage, tmp_path, "q")
    whole, newest = source.model(), source.model(2)
    assert state(tmp_path, "q") == {
        key: (largest, n, newest[key][2] if key in newest else None) for key, (n, _, largest) in whole.items()
    }
    root = CheckpointStore(f"file://{tmp_path}/q/root")
    assert root.latest().properties["dropped.by_key"] == '["total"]'

    def start(**aggregations):
        keyed(wide, tmp_path, "q").aggregate(**aggregations).state_only().start(str(tmp_path / "q" / "spark"))

    with pytest.raises(InvalidInputError, match="total was dropped before"):
        start(n=count(), total=sum("value"))
    with pytest.raises(InvalidInputError, match="'top' cannot change its meaning"):
        start(n=count(), top=sum("value"))
    with pytest.raises(InvalidInputError, match=r"cannot change its type.*stored.*got"):
        keyed(narrow, tmp_path, "q").aggregate(n=count(), top=max("value")).state_only().start(str(tmp_path / "x"))


class Arrivals(StatefulProcessor):
    """All rows of a key, in order of arrival, in a list that is only appended to."""

    def init(self, handle):
        self.rows = handle.getListState("rows", "value long")

    def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803 - Spark's
        self.rows.appendList([(row.value,) for row in rows])
        yield Row(key=key[0], seen=[value for (value,) in self.rows.get()])

    def close(self):
        pass


def test_lists_go_on_at_their_end_after_a_start_from_a_savepoint(spark, tmp_path):
    source = Source(tmp_path)
    for _ in range(7):
        source.add(rows=KEYS)
    source.files = [[{"key": number, "value": 10 * batch} for number in range(3)] for batch in range(7)]
    for number, rows in enumerate(source.files):
        pq.write_table(pa.Table.from_pylist(rows), source.folder / f"{number:03}.parquet")

    def lists(stream):
        found = []
        pipeline = stream.process(Arrivals(), "key long, seen array<long>").for_each_batch(
            lambda rows, key: found.append(sorted(tuple(row) for row in rows.collect()))
        )
        pipeline.start(f"{pipeline.plan.root_url}-spark", trigger={"availableNow": True}).awaitTermination()
        return found

    lists(keyed(source.events(spark, 0, 3, tmp_path), tmp_path, "old", parallelism=2))
    saved = create_savepoint(CheckpointStore(f"file://{tmp_path}/old/root"), f"file://{tmp_path}/saved")
    events = source.events(spark, 3, 7, tmp_path)
    found = lists(keyed(events, tmp_path, "new", start_from=saved.url, source="new", parallelism=3))
    expected = [[(key, [10 * number for number in range(last)]) for key in range(3)] for last in range(4, 8)]
    assert found == expected
