"""``format("stateline")``: state as a table, its changes as a table and as a stream, and two queries in a chain."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import shutil

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as F

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore, create_savepoint
from stateline.spark import register
from stateline.state import KeyedStateBackend, StateSchema

SCHEMA = StateSchema(
    pa.schema([("key", pa.int64()), ("part", pa.string())]),
    pa.schema(
        [
            ("n", pa.int64()),
            ("fare", pa.decimal128(12, 2)),
            ("at", pa.timestamp("us", tz="UTC")),
            ("local", pa.timestamp("us")),
            ("day", pa.date32()),
            ("raw", pa.binary()),
            ("ok", pa.bool_()),
            ("items", pa.list_(pa.struct([("x", pa.float64()), ("tags", pa.map_(pa.string(), pa.int32()))]))),
        ]
    ),
)
MOMENT = dt.datetime(2024, 3, 31, 1, 30, 0, 123456)


def row(key, n):
    if n % 5 == 0:
        return {"key": key, "part": None} | dict.fromkeys(SCHEMA.values.names)
    return {
        "key": key,
        "part": None if n % 3 == 0 else f"p{n % 3}",
        "n": n,
        "fare": decimal.Decimal(n) / 4,
        "at": MOMENT.replace(tzinfo=dt.UTC) + dt.timedelta(seconds=n),
        "local": MOMENT + dt.timedelta(seconds=n),
        "day": dt.date(2024, 1, 1) + dt.timedelta(days=n),
        "raw": bytes([n % 256]),
        "ok": n % 2 == 0,
        "items": [{"x": float(n), "tags": [("a", n)]}, None],
    }


class Root:
    """A root with three checkpoints of 40 keys, made without Spark."""

    def __init__(self, folder):
        self.folder = folder
        self.url = f"file://{folder}/root"
        with KeyedStateBackend.open(self.url, retained_checkpoints=9, max_parallelism=8) as backend:
            state = backend.state("flights", SCHEMA)
            self.models = []
            model = {}
            for number in range(3):
                made = [row(key, key + number) for key in range(number * 10, 40)]
                rows = pa.Table.from_pylist(made, SCHEMA.row).to_pylist()  # In the words of Arrow.
                model |= {(item["key"], item["part"]): item for item in rows}
                state.put(pa.Table.from_pylist(rows, SCHEMA.row))
                gone = [key for key in model if key[0] == number]
                keys = [{"key": key, "part": part} for key, part in gone]
                state.delete(pa.Table.from_pylist(keys, SCHEMA.keys))
                for key in gone:
                    del model[key]
                backend.checkpoint()
                self.models.append(dict(model))


def plain(item):
    return repr(dict(item, items=None if item["items"] is None else [str(part) for part in item["items"]]))


def rows_of(frame):
    """Rows as the model has them."""
    return frame.toArrow().to_pylist()


@pytest.fixture
def session(spark):
    register(spark)
    return spark


@pytest.fixture
def root(tmp_path):
    return Root(tmp_path)


def same(found, model):
    return sorted(map(plain, found)) == sorted(map(plain, model.values()))


def test_the_rows_of_any_checkpoint_come_with_every_type(session, root):
    reader = session.read.format("stateline")
    frame = reader.load(root.url)
    assert frame.columns == SCHEMA.row.names
    assert dict(frame.dtypes)["local"] == "timestamp_ntz"
    for number, model in enumerate(root.models):
        found = rows_of(session.read.format("stateline").option("checkpoint", number).load(root.url))
        assert same(found, model), number
    assert same(rows_of(frame), root.models[-1])
    assert same(rows_of(reader.option("partitions", 5).load(f"{root.url}/chk-1")), root.models[1])
    savepoint = create_savepoint(CheckpointStore(root.url), f"file://{root.folder}/kept", checkpoint_id=0)
    assert same(rows_of(session.read.format("stateline").load(savepoint.url)), root.models[0])


def test_a_frame_reads_the_checkpoint_that_was_newest_when_its_first_query_began(session, tmp_path):
    url = f"file://{tmp_path}/root"
    schema = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())]))
    with KeyedStateBackend.open(url, retained_checkpoints=9, max_parallelism=8) as backend:
        for n in range(3):
            backend.state("counts", schema).put(pa.table({"k": [n], "n": [n]}))
            backend.checkpoint()
            if n == 0:
                frame = session.read.format("stateline").load(url)
            if n == 1:
                assert frame.count() == 2
    assert frame.count() == 2
    assert session.read.format("stateline").load(url).count() == 3


def test_columns_are_chosen_by_a_schema_or_an_option(session, root):
    pairs = sorted((key, item["n"] or 0) for (key, _), item in root.models[-1].items())
    by_option = session.read.format("stateline").option("columns", "n, key").load(root.url)
    assert by_option.columns == ["n", "key"]
    assert sorted((item.key, item.n or 0) for item in by_option.collect()) == pairs
    by_schema = session.read.format("stateline").schema("key long, n long").load(root.url)
    assert sorted((item.key, item.n or 0) for item in by_schema.collect()) == pairs
    assert session.read.format("stateline").load(root.url).count() == len(pairs)


def test_filters_on_the_whole_key_read_only_what_may_hold_it(session, tmp_path):
    url = f"file://{tmp_path}/root"
    schema = StateSchema(pa.schema([("key", pa.int64())]), pa.schema([("n", pa.int64())]))
    with KeyedStateBackend.open(url) as backend:
        backend.state("o", schema).put(pa.table({"key": range(100_000), "n": range(100_000)}))
        [run] = backend.checkpoint().operators[0].subtasks[0].runs
    path = tmp_path / "root" / run.name
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(run.length // 2)
        byte = file.read(1)
        file.seek(run.length // 2)
        file.write(bytes([byte[0] ^ 1]))
    source = session.read.format("stateline").option("point_reads", "true")
    with pytest.raises(PySparkException, match="CRC32C"):
        source.load(url).filter("n = 5").collect()
    answers = collections.Counter()
    for key in range(12):
        try:
            answers[[item.n for item in source.load(url).filter(F.col("key") == key).collect()] == [key]] += 1
        except PySparkException as error:
            answers["fails its checksum" in str(error)] += 0
    assert answers[True] > 3, "record batches without the key are not looked at"
    assert answers[False] == 0
    assert False not in answers


def test_filters_on_keys_give_what_a_scan_gives(session, root):
    frame = session.read.format("stateline").load(root.url)
    model = root.models[-1]
    for condition, wanted in (
        (F.col("key").isin(12, 13, 99) & (F.col("part") == "p1"), lambda k, p: k in (12, 13) and p == "p1"),
        (F.col("key").eqNullSafe(15) & F.col("part").eqNullSafe(None), lambda k, p: k == 15 and p is None),
        ((F.col("key") == 12) & F.col("part").isin("p0", "p1", "p2"), lambda k, p: k == 12 and p is not None),
        (F.col("key") == 12, lambda k, p: k == 12),
        ((F.col("key") == 2**40) & (F.col("part") == "x"), lambda k, p: False),
        ((F.col("key") > 30) & (F.col("part") == "p1"), lambda k, p: k > 30 and p == "p1"),
    ):
        expected = {key: item for key, item in model.items() if wanted(*key)}
        assert same(rows_of(frame.filter(condition)), expected)


def test_a_frame_gives_every_query_its_own_rows(session, root):
    """Spark reads a relation again as the last pushed filter left it: a filter must not narrow what it reads."""
    frame = session.read.format("stateline").load(root.url)
    point = (F.col("key") == 12) & (F.col("part") == "p0")
    other = (F.col("key") == 13) & (F.col("part") == "p1")
    model = root.models[-1]
    ours, theirs = ({key: model[key]} if key in model else {} for key in ((12, "p0"), (13, "p1")))
    assert same(rows_of(frame.filter(point)), ours)
    assert frame.count() == len(model)
    assert same(rows_of(frame.filter(point).union(frame.filter(other))), {**ours, **theirs})
    assert frame.filter(point).union(frame).count() == len(ours) + len(model)


def applied(model, changes):
    """A state after changes, which must fit it."""
    after = dict(model)
    for item in changes:
        change = item.pop("__change")
        key = (item["key"], item["part"])
        if change in ("update_before", "delete"):
            assert plain(after.pop(key)) == plain(item)
        else:
            assert key not in after
            after[key] = item
    return after


def test_changes_lead_from_one_checkpoint_to_another(session, root):
    for start, end in ((None, 2), (0, 1), (0, 2), (1, 2), (1, 1)):
        reader = session.read.format("stateline").option("mode", "changes").option("endCheckpoint", end)
        if start is not None:
            reader = reader.option("start_checkpoint", start)
        before = {} if start is None else root.models[start]
        changes = rows_of(reader.load(root.url))
        # Tasks come in any order, so what is taken away goes first.
        changes.sort(key=lambda item: item["__change"] not in ("delete", "update_before"))
        assert same(applied(before, changes).values(), root.models[end]), (start, end)


def test_an_operator_that_is_younger_than_the_start_had_no_rows_there(session, tmp_path):
    upstream = Upstream(tmp_path)
    with KeyedStateBackend.open(upstream.url, retained_checkpoints=50) as backend:
        backend.checkpoint()  # Before there is any state.
    upstream.put(a=1)
    expected = {("insert", "a", 1): 1}
    feed = session.read.format("stateline").options(mode="changes", start_checkpoint=0).load(upstream.url)
    assert {(item["__change"], item["key"], item["n"]): 1 for item in feed.collect()} == expected
    upstream.read(session, start_checkpoint=0)
    assert upstream.seen(session) == expected


@pytest.mark.parametrize(
    ("options", "path", "message"),
    [
        ({"checkpoint": 99}, "root", "no checkpoint 99"),
        ({"operator": "flight"}, "root", "Did you mean 'flights'"),
        ({"columns": "nope"}, "root", "no such column"),
        ({"columns": "key,n,key"}, "root", "must not name a column twice"),
        ({"mode": "feed"}, "root", "unknown value of mode"),
        ({"start_checkpoint": 0}, "root", "cannot be a snapshot with a start"),
        ({"checkpiont": "1"}, "root", "Did you mean 'checkpoint'"),
        ({"mode": "changes", "checkpoint": 1}, "root", "checkpoint: cannot be"),
        ({"mode": "changes", "start_checkpoint": 2, "end_checkpoint": 1}, "root", "must not be above the end 1, got 2"),
        ({"checkpoint": 1}, "root/chk-0", "names checkpoint 0, but the option names 1"),
        ({"mode": "changes", "end_checkpoint": 1}, "root/chk-0", "names checkpoint 0"),
        ({}, "nothing", "no checkpoint yet"),
    ],
)
def test_wrong_options_are_explained(session, root, options, path, message):
    with pytest.raises(PySparkException, match=message):
        session.read.format("stateline").options(**options).load(f"file://{root.folder}/{path}").collect()


def test_a_schema_of_other_types_is_refused(session, root):
    with pytest.raises(PySparkException, match="the schema expects"):
        session.read.format("stateline").schema("key string").load(root.url).collect()


@pytest.mark.parametrize(
    ("schema", "columns", "message"),
    [
        ("key long, key long", "", "column 'key': must not be named twice"),
        ("key long", "n", "cannot be chosen beside a schema of key"),
    ],
)
def test_a_schema_that_contradicts_itself_or_the_option_is_refused(session, root, schema, columns, message):
    with pytest.raises(PySparkException, match=f"InvalidInputError.*{message}"):
        session.read.format("stateline").schema(schema).option("columns", columns).load(root.url).collect()
    frame = session.read.format("stateline").schema("n long, key long").option("columns", "n, key").load(root.url)
    assert frame.columns == ["n", "key"]
    assert frame.count() == len(root.models[-1])


@pytest.mark.parametrize(("column", "is_ever_null"), [("key", False), ("n", True), ("items", True)])
def test_a_null_where_the_schema_rules_it_out_is_an_error_and_never_another_value(session, root, column, is_ever_null):
    kind = dict(session.read.format("stateline").load(root.url).dtypes)[column]
    frame = session.read.format("stateline").schema(f"{column} {kind} NOT NULL").load(root.url)
    assert frame.schema[column].nullable is False
    if is_ever_null:
        with pytest.raises(PySparkException, match=f"column '{column}': has a null.*NOT NULL"):
            frame.collect()
    else:
        assert sorted(item.key for item in frame.collect()) == sorted(key for key, _ in root.models[-1])


# -- as a stream ------------------------------------------------------------------------------------------------------


class Upstream:
    """A root that grows while a stream reads it."""

    def __init__(self, folder, retained=50):
        self.folder = folder
        self.url = f"file://{folder}/upstream"
        self.retained = retained
        self.model = {}

    def put(self, *more_columns, **values):
        schema = StateSchema(pa.schema([("key", pa.string())]), pa.schema([("n", pa.int64()), *more_columns]))
        with KeyedStateBackend.open(self.url, retained_checkpoints=self.retained) as backend:
            columns = {name: list(values.values()) for name in schema.row.names} | {"key": list(values)}
            backend.state("o", schema).put(pa.table(columns))
            backend.checkpoint()
        self.model |= values

    def read(self, session, **options):
        reader = session.readStream.format("stateline").option("mode", "changes").options(**options).load(self.url)
        writer = reader.writeStream.format("stateline_files").option("every_checkpoint", "true")
        writer = writer.option("checkpointLocation", f"{self.folder}/spark")
        query = writer.trigger(availableNow=True).start(f"{self.folder}/out")
        query.awaitTermination()

    def seen(self, session):
        rows = session.read.parquet(f"{self.folder}/out").collect()
        return collections.Counter((item["__change"], item["key"], item["n"]) for item in rows)


def test_a_stream_gives_every_change_once_over_restarts(session, tmp_path):
    upstream = Upstream(tmp_path)
    upstream.put(a=1, b=1)
    upstream.read(session)
    upstream.read(session)
    first = {("insert", "a", 1): 1, ("insert", "b", 1): 1}
    assert upstream.seen(session) == first
    upstream.put(a=2)
    upstream.put(a=3, c=1)
    upstream.read(session)
    second = {("update_before", "a", 1): 1, ("update_after", "a", 3): 1, ("insert", "c", 1): 1}
    assert upstream.seen(session) == first | second
    shutil.rmtree(tmp_path / "spark" / "commits")  # Spark runs its newest batch again, and then what is new.
    upstream.put(d=1)
    upstream.read(session)
    assert upstream.seen(session) == first | second | {("insert", "d", 1): 1}


def test_a_stream_may_begin_with_what_comes_next(session, tmp_path):
    upstream = Upstream(tmp_path)
    upstream.put(a=1)
    upstream.put(a=2)
    upstream.read(session, start_checkpoint=0)
    assert upstream.seen(session) == {("update_before", "a", 1): 1, ("update_after", "a", 2): 1}


def test_a_gap_or_another_root_is_an_error_and_never_silence(session, tmp_path):
    upstream = Upstream(tmp_path, retained=2)
    upstream.put(a=1)
    upstream.read(session)
    for number in range(4):
        upstream.put(a=10 + number)
    with pytest.raises(StreamingQueryException, match=r"checkpoint 0 was retired.*retained_checkpoints"):
        upstream.read(session)
    shutil.rmtree(tmp_path / "upstream")
    for number in range(3):
        upstream.put(b=number)
    with pytest.raises(StreamingQueryException, match=r"made anew|retired"):
        upstream.read(session)


def test_a_batch_that_comes_again_after_the_state_has_evolved_is_read_in_the_newer_form(session, tmp_path):
    upstream = Upstream(tmp_path)
    upstream.put(a=1)
    upstream.read(session)
    (tmp_path / "spark" / "commits" / "0").unlink()  # As after a crash before Spark's commit.
    upstream.put(("m", pa.int64()), b=2)
    upstream.read(session)
    assert upstream.seen(session) == {("insert", "a", 1): 1, ("insert", "b", 2): 1}
    rows = session.read.option("mergeSchema", "true").parquet(f"{tmp_path}/out").collect()
    assert sorted((item.key, item.m) for item in rows) == [("a", None), ("b", 2)]


def test_a_start_that_never_existed_is_answered_with_what_exists(session, root):
    newest = len(root.models) - 1
    nothing = f"file://{root.folder}/nothing"
    for path, there in ((root.url, f"The newest is {newest};"), (nothing, "The root has no checkpoint yet")):
        frame = session.readStream.format("stateline").schema("key string, n long, __change string")
        frame = frame.option("mode", "changes").option("start_checkpoint", 99).load(path)
        query = frame.writeStream.format("noop").option("checkpointLocation", f"{root.folder}/s{newest}").start()
        with pytest.raises(StreamingQueryException, match=f"there is no checkpoint 99. {there}") as caught:
            query.processAllAvailable()
        assert "retained_checkpoints" not in str(caught.value)


def test_a_stream_says_what_it_is(session, root):
    for options, message in (
        ({}, "cannot stream a snapshot"),
        ({"mode": "changes", "end_checkpoint": 1}, "changes with an end"),
    ):
        frame = session.readStream.format("stateline").options(**options).load(root.url)
        query = frame.writeStream.format("noop").option("checkpointLocation", f"{root.folder}/s").start()
        with pytest.raises((StreamingQueryException, PySparkException), match=message):
            query.processAllAvailable()


def test_reading_leaves_the_root_as_it_is(session, root):
    before = {path: path.read_bytes() for path in (root.folder / "root").rglob("*") if path.is_file()}
    session.read.format("stateline").load(root.url).collect()
    upstream = session.readStream.format("stateline").option("mode", "changes").load(root.url)
    query = upstream.writeStream.format("noop").option("checkpointLocation", f"{root.folder}/s")
    query.trigger(availableNow=True).start().awaitTermination()
    assert {path: path.read_bytes() for path in (root.folder / "root").rglob("*") if path.is_file()} == before
    assert open_store(root.url).list("floor/") is not None
