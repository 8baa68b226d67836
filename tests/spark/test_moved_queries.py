"""A query is killed, saved, and moved to a new root and a new Spark checkpoint: it reads every row once."""

from __future__ import annotations

import builtins
import collections
import os

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from stateline.checkpoint import CheckpointStore, create_savepoint, verify_root
from stateline.checkpoint.position import POSITION
from stateline.checkpoint.spark_files import StoreFiles
from stateline.errors import ConflictError, InvalidInputError
from stateline.pipeline.reporting import BatchReporter
from stateline.spark import KeyedStream, count, sum
from stateline.spark.query.hadoop_files import HadoopFiles
from stateline.state.stored import StoredState
from tests.arch.source_tree import ROOT
from tests.pages import run_page
from tests.spark.page_worlds import streams, write_rows

SCHEMA = "key long, value long, id long"


class Inputs:
    """Folders of files, and what is to be counted of them."""

    def __init__(self, spark, folder):
        self.spark, self.folder, self.files = spark, folder, collections.Counter()
        self.totals, self.ids = collections.Counter(), 0

    def add(self, name, files=1):
        """Adds files of 20 rows each."""
        (self.folder / name).mkdir(exist_ok=True)
        for _ in range(files):
            ids = range(self.ids, self.ids + 20)
            self.ids += 20
            table = pa.table({"key": [i % 3 for i in ids], "value": [i % 7 for i in ids], "id": list(ids)})
            path = self.folder / name / f"{self.files[name]:03}.parquet"
            pq.write_table(table, path)
            os.utime(path, (1_700_000_000 + self.files[name],) * 2)
            self.files[name] += 1
            for i in ids:
                self.totals[i % 3] += i % 7

    def stream(self, name):
        return self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(self.folder / name))

    def both(self):
        return self.stream("in").union(self.stream("more"))


@pytest.fixture
def inputs(spark, tmp_path):
    made = Inputs(spark, tmp_path)
    made.add("in", 2)
    made.add("more", 2)
    return made


def stage(events, folder, name, **more):
    stream = KeyedStream(events, key="key", checkpoint=f"{folder}/{name}/root", parallelism=2, **more)
    return stream.aggregate(n=count(), total=sum("value"))


def run(events, folder, name, **more):
    pipeline = stage(events, folder, name, **more).write_files(f"{folder}/out")
    pipeline.start(f"{folder}/{name}/spark", trigger={"availableNow": True}).awaitTermination()


def root_of(folder, name):
    return CheckpointStore(f"{folder}/{name}/root")


def totals(folder, name):
    root = root_of(folder, name)
    stored = StoredState.of(root.store, root.latest())
    rows = [row for part in stored.slices(2) for batch in stored.reader().scan(part) for row in batch.to_pylist()]
    return {row["key"]: row["total"] for row in rows}


def save(folder, name, **more):
    return create_savepoint(root_of(folder, name), f"{folder}/saved", **more)


def kill_after_the_record(monkeypatch):
    """The next batch is decided and published, and Spark never hears of it."""
    report = BatchReporter.__call__

    def die(self, made):
        monkeypatch.setattr(BatchReporter, "__call__", report)
        raise RuntimeError("killed")

    monkeypatch.setattr(BatchReporter, "__call__", die)


@pytest.mark.parametrize("kind", ["folder", "union"])
def test_totals_of_a_query_that_was_killed_and_moved_twice_equal_those_of_one_that_ran_through(
    inputs, tmp_path, monkeypatch, kind
):
    inputs.totals.clear()
    (tmp_path / kind).mkdir()
    inputs.folder = tmp_path / kind
    inputs.files.clear()
    names = ["in", "more"] if kind == "union" else ["in"]
    for name in names:
        inputs.add(name, 2)

    def events():
        return inputs.both() if kind == "union" else inputs.stream("in")

    run(events(), tmp_path, "0")
    for number in (1, 2):
        for name in names:
            inputs.add(name)
        kill_after_the_record(monkeypatch)
        with pytest.raises(Exception, match="killed"):
            run(events(), tmp_path, f"{number - 1}")
        last = root_of(tmp_path, f"{number - 1}").latest().batch_id
        assert not os.path.exists(tmp_path / f"{number - 1}" / "spark" / "commits" / str(last)), "Spark was not told"
        saved = save(tmp_path, f"{number - 1}")
        assert saved.checkpoint.properties[POSITION] == ""
        inputs.add(names[-1])
        run(events(), tmp_path, f"{number}", start_from=saved.url)
        root = root_of(tmp_path, f"{number}")
        assert root.get(0).batch_id == last
        assert root.get(1).batch_id == last + 1
        assert root.get(0).query_id != root_of(tmp_path, f"{number - 1}").latest().query_id
        assert verify_root(root).is_sound
    assert totals(tmp_path, "2") == inputs.totals
    run(events(), tmp_path, "2", start_from="file:///deleted/meanwhile")
    assert totals(tmp_path, "2") == inputs.totals
    shown = ds.dataset(tmp_path / "out", format="parquet").to_table().to_pylist()
    assert len({(row["key"], row["n"]) for row in shown}) == len(shown), "no batch was shown twice"
    assert {key: max(row["total"] for row in shown if row["key"] == key) for key in range(3)} == inputs.totals


def test_a_restore_that_is_killed_at_any_file_reads_every_row_once(inputs, tmp_path, monkeypatch):
    run(inputs.both(), tmp_path, "old")
    saved = save(tmp_path, "old")
    inputs.add("in")
    create = StoreFiles.create
    for alive_for in (1, 3, 6):
        left = alive_for

        def dying(self, name, data):
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            left -= 1
            create(self, name, data)

        monkeypatch.setattr(StoreFiles, "create", dying)
        with pytest.raises(KeyboardInterrupt):
            run(inputs.both(), tmp_path, "new", start_from=saved.url)
        assert root_of(tmp_path, "new").latest() is None
    monkeypatch.setattr(StoreFiles, "create", create)
    with pytest.raises(ConflictError, match="restore was not completed"):
        run(inputs.both(), tmp_path, "new", start_from=saved.url, source="new")
    with pytest.raises(ConflictError, match="restore was not completed"):
        run(inputs.both(), tmp_path, "new")
    publish = CheckpointStore.publish
    monkeypatch.setattr(CheckpointStore, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(inputs.both(), tmp_path, "new", start_from=saved.url)
    monkeypatch.setattr(CheckpointStore, "publish", publish)
    run(inputs.both(), tmp_path, "new", start_from=saved.url)
    assert totals(tmp_path, "new") == inputs.totals


def test_other_sources_are_refused_unless_the_source_is_new(spark, inputs, tmp_path):
    run(inputs.both(), tmp_path, "old")
    url = save(tmp_path, "old").url
    rate = spark.readStream.format("rate").load().selectExpr("value AS key", "value", "value AS id")
    others = {
        "number": inputs.stream("in"),
        "kind": inputs.stream("in").union(rate),
        "order": inputs.stream("more").union(inputs.stream("in")),
        "state in front": inputs.both().dropDuplicates(["id"]),
    }
    for name, events in others.items():
        expected = "no state of Spark's own operators" if name == "state in front" else "of a query that reads"
        with pytest.raises(InvalidInputError, match=rf'{expected}.*source="new"'):
            run(events, tmp_path, "new", start_from=url)
    assert not os.path.exists(tmp_path / "new" / "spark")
    used = tmp_path / "used"
    run(inputs.stream("in"), tmp_path, "used")
    pipeline = stage(inputs.both(), tmp_path, "new", start_from=url).state_only()
    with pytest.raises(ConflictError, match="must be new to start from a savepoint"):
        pipeline.start(f"{used}/spark")
    run(inputs.stream("in"), tmp_path, "new", start_from=url, source="new")
    twice = totals(tmp_path, "new")
    assert {key: twice[key] - inputs.totals[key] for key in range(3)} == totals(tmp_path, "used")
    for arguments, said in (
        ({"source": "old"}, "source"),
        ({"source": "new"}, "start_from"),
        ({"start_from": 3}, "start_from"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            stage(inputs.both(), tmp_path, "other", **arguments)


def test_a_savepoint_without_source_offsets_needs_the_source(inputs, tmp_path):
    run(inputs.stream("in"), tmp_path, "old")
    (tmp_path / "old" / "spark").rename(tmp_path / "elsewhere")
    bare = save(tmp_path, "old")
    said = rf'{bare.folder}: has no source offsets: .*Give KeyedStream source="new"'
    with pytest.raises(InvalidInputError, match=said):
        run(inputs.stream("in"), tmp_path, "new", start_from=bare.url)
    whole = save(tmp_path, "old", spark_checkpoint=f"{tmp_path}/elsewhere")
    run(inputs.stream("in"), tmp_path, "new", start_from=whole.url)
    assert totals(tmp_path, "new") == totals(tmp_path, "old")


def test_state_of_spark_s_own_operators_moves_along(inputs, tmp_path):
    def events():
        return inputs.stream("in").dropDuplicates(["id"])

    run(events(), tmp_path, "old")
    saved = save(tmp_path, "old")
    table = pq.read_table(tmp_path / "in" / "000.parquet")
    pq.write_table(table, tmp_path / "in" / "again.parquet")  # The same ids: the state in front must know them.
    inputs.add("in")
    inputs.totals.subtract({key: totals_of(tmp_path / "more", key) for key in range(3)})
    run(events(), tmp_path, "new", start_from=saved.url)
    assert totals(tmp_path, "new") == dict(inputs.totals)


def totals_of(folder, key):
    rows = ds.dataset(folder, format="parquet").to_table().to_pylist()
    return builtins.sum(row["value"] for row in rows if row["key"] == key)


def test_a_clock_source_continues_with_its_next_number(spark, tmp_path):
    def numbers(name, **more):
        events = spark.readStream.format("rate").option("rowsPerSecond", 10).load().selectExpr("0 AS key", "value")
        pipeline = stage(events, tmp_path, name, **more).state_only()
        query = pipeline.start(f"{tmp_path}/{name}/spark", trigger={"processingTime": "1 second"})
        while (root_of(tmp_path, name).latest() is None) or not totals_seen(name):
            assert query.exception() is None
            query.awaitTermination(1)
        query.stop()
        return counted(tmp_path, name)

    def totals_seen(name):
        return counted(tmp_path, name)[0] > (0 if name == "old" else before)

    before = 0
    before, _ = numbers("old")
    n, total = numbers("new", start_from=save(tmp_path, "old").url)
    assert n > before
    assert total == n * (n - 1) // 2, "every number up to the last one, once"


def counted(folder, name):
    root = root_of(folder, name)
    stored = StoredState.of(root.store, root.latest())
    rows = [row for part in stored.slices(2) for batch in stored.reader().scan(part) for row in batch.to_pylist()]
    return (rows[0]["n"], rows[0]["total"]) if rows else (0, 0)


def test_the_programs_of_the_guide_count_every_row_once(spark, tmp_path):
    write_rows(tmp_path / "events")
    names = {"spark": spark, **streams(spark, tmp_path / "events")}
    found = run_page(ROOT / "docs/guides/savepoints.md", tmp_path, names)
    rows = found["totals"].collect()
    assert {row["tailnum"]: row["flights"] for row in rows} == {f"N{number}": 15 for number in range(1, 5)}
    assert CheckpointStore(f"{found['NEW']}/state").latest().batch_id == 1, "the batch of the savepoint: no row is new"


def test_files_of_hadoop_are_created_whole_and_once(spark, tmp_path):
    files = HadoopFiles(spark, f"file:{tmp_path}/spark")
    assert files.names("offsets") == []
    assert files.read("offsets/0") is None
    files.create("offsets/0", b"first")
    files.create("offsets/0", b"second")
    files.create("sources/0/_x/1", bytes(range(256)))
    assert files.read("offsets/0") == b"first"
    assert files.read("sources/0/_x/1") == bytes(range(256))
    assert files.names("offsets") == ["offsets/0"]
    assert files.names("sources") == ["sources/0/_x/1"]
    assert not list((tmp_path / "spark").rglob("*.tmp"))
