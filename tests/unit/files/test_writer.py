"""One task's share of a file output: every row in exactly one place, nothing visible before the commit."""

import gzip

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.json
import pyarrow.parquet as pq
import pytest
from files_kit import DurableWriter

from stateline.blob import InstrumentedStore, open_store
from stateline.errors import CorruptDataError, DataLossError, InvalidInputError
from stateline.files import FileOutput, RollingPolicy, partitions
from stateline.recoverable import RecoverableWriter


@pytest.fixture
def stores(tmp_path):
    root = InstrumentedStore(open_store(f"file://{tmp_path}/root"))
    return root, open_store(f"file://{tmp_path}/out")


X = pa.schema([("x", pa.int64())])
PX = pa.schema([("p", pa.int64()), ("x", pa.int64())])
TEXT_X = pa.schema([("p", pa.string()), ("x", pa.int64())])


def make_writer(output, stores, schema=X, *, open_files=(), now=0.0, subtask=0, **more):
    return DurableWriter(output, *stores, schema, open_files=open_files, subtask=subtask, now=now, **more)


def publish(stores, result):
    for file in result.finished:
        RecoverableWriter(stores[1]).recover_for_commit(file.commit).commit_after_recovery()


def visible(tmp_path, **options):
    folder = tmp_path / "out"
    return ds.dataset(folder, format="parquet", **options).to_table() if folder.exists() else None


def test_a_file_grows_over_checkpoints_and_appears_whole_when_it_rolls(tmp_path, stores):
    output = FileOutput(url="unused", rolling=RollingPolicy(roll_bytes=5000))
    open_files, seen = (), []
    for batch in range(4):
        rows = pa.table({"x": range(batch * 100, batch * 100 + 100), "y": [f"v{batch}"] * 100})
        writer = make_writer(output, stores, rows.schema, open_files=open_files, now=float(batch))
        writer.write(rows)
        result = writer.finish()
        publish(stores, result)
        open_files = result.open
        seen.append((len(result.finished), sum(file.rows for file in result.open)))
    assert seen == [(0, 100), (0, 200), (0, 300), (1, 0)]
    files = list((tmp_path / "out").glob("part-*.parquet"))
    assert len(files) == 1
    assert pq.read_table(files[0])["x"].to_pylist() == list(range(400))
    assert pq.ParquetFile(files[0]).num_row_groups == 1, "small batches must not make small row groups"


def test_nothing_is_visible_before_the_commit(tmp_path, stores):
    writer = make_writer(FileOutput(url="unused", rolling=RollingPolicy(every_checkpoint=True)), stores)
    writer.write(pa.table({"x": [1]}))
    result = writer.finish()
    assert visible(tmp_path).num_rows == 0
    publish(stores, result)
    assert visible(tmp_path)["x"].to_pylist() == [1]


@pytest.mark.parametrize("pattern", ["", "/*", "/**/*.parquet"])
def test_duckdb_which_looks_into_hidden_folders_sees_no_piece_and_no_record(tmp_path, pattern):
    """No piece has the ending of a file, also where it is a whole file that waits for its commit."""
    stores = open_store(f"file://{tmp_path}/out/.stateline"), open_store(f"file://{tmp_path}/out")
    for committed in (True, False):
        writer = make_writer(FileOutput(url="unused", rolling=RollingPolicy(every_checkpoint=True)), stores)
        writer.write(pa.table({"x": [1, 2]}))
        result = writer.finish()
        if committed:
            publish(stores, result)
    writer = make_writer(FileOutput(url="unused"), stores)
    writer.write(pa.table({"x": [3]}))
    writer.finish()
    assert list((tmp_path / "out" / ".inprogress").iterdir())
    rows = duckdb.sql(f"SELECT x FROM read_parquet('{tmp_path}/out{pattern}')").fetchall()
    assert sorted(rows) == [(1,), (2,)]


def test_a_checkpoint_of_many_open_files_costs_one_request(stores):
    writer = make_writer(FileOutput(url="unused", partition_by=("p",)), stores, PX)
    writer.write(pa.table({"p": [i % 50 for i in range(1000)], "x": range(1000)}))
    result = writer.finish()
    assert len(result.open) == 50
    assert dict(stores[0].calls) == {"put_if_absent": 1}


def test_partition_values_land_encoded_and_read_back(tmp_path, stores):
    values = ["../x", "a/b", "Zürich", "50%", "x=y", None, "plain"]
    output = FileOutput(url="unused", partition_by=("p",), rolling=RollingPolicy(every_checkpoint=True))
    writer = make_writer(output, stores, TEXT_X)
    writer.write(pa.table({"p": values, "x": range(len(values))}))
    publish(stores, writer.finish())
    partitioning = ds.partitioning(pa.schema([("p", pa.string())]), flavor="hive")
    table = visible(tmp_path, partitioning=partitioning)
    assert dict(zip(table["x"].to_pylist(), table["p"].to_pylist(), strict=True)) == dict(enumerate(values))
    assert not (tmp_path / "x").exists()


def test_a_folder_is_called_as_partition_by_spells_its_column_and_so_is_the_column_in_files(tmp_path, stores):
    output = FileOutput(url="unused", partition_by=("P",), rolling=RollingPolicy(every_checkpoint=True))
    assert output.file_schema(TEXT_X).names == ["x"]
    writer = make_writer(output, stores, TEXT_X)
    writer.write(pa.table({"x": [1, 2], "p": ["a", "long" * 80]}))
    publish(stores, writer.finish())
    assert all(path.name.startswith("P=") for path in (tmp_path / "out").glob("[!.]*"))
    long = next(path for path in (tmp_path / "out").glob("P=long*/*"))
    assert pq.read_schema(long).names == ["P", "x"]
    with pytest.raises(InvalidInputError, match="twice"):
        FileOutput(url="unused", partition_by=("p", "P"))
    with pytest.raises(InvalidInputError, match="names of columns"):
        FileOutput(url="unused", partition_by=(1,))


def test_an_overlong_partition_value_is_kept_in_the_file(tmp_path, stores):
    output = FileOutput(url="unused", partition_by=("p",), rolling=RollingPolicy(every_checkpoint=True))
    writer = make_writer(output, stores, TEXT_X)
    writer.write(pa.table({"p": ["x" * 300, "short"], "x": [1, 2]}))
    publish(stores, writer.finish())
    tables = [pq.ParquetFile(file).read() for file in (tmp_path / "out").rglob("*.parquet")]
    assert sorted(table.column_names for table in tables) == [["p", "x"], ["x"]]
    long = next(table for table in tables if "p" in table.column_names)
    assert long["p"].to_pylist() == ["x" * 300]


def test_two_open_files_of_one_folder_join_after_a_rescale(tmp_path, stores):
    output = FileOutput(url="unused", partition_by=("p",))
    left, right = make_writer(output, stores, PX), make_writer(output, stores, PX, subtask=1, now=5.0)
    left.write(pa.table({"p": [1], "x": [10]}))
    right.write(pa.table({"p": [1], "x": [20]}))
    both = (*left.finish().open, *right.finish().open)
    rolled = FileOutput(url="unused", partition_by=("p",), rolling=RollingPolicy(every_checkpoint=True))
    result = make_writer(rolled, stores, PX, open_files=both).finish()
    assert [file.rows for file in result.finished] == [2]
    publish(stores, result)
    assert sorted(visible(tmp_path)["x"].to_pylist()) == [10, 20]


def test_a_file_without_new_rows_still_rolls_by_age(tmp_path, stores):
    output = FileOutput(url="unused", rolling=RollingPolicy(roll_seconds=60))
    writer = make_writer(output, stores, now=100.0)
    writer.write(pa.table({"x": [1]}))
    open_files = writer.finish().open
    assert not make_writer(output, stores, open_files=open_files, now=159.0).finish().finished
    result = make_writer(output, stores, open_files=open_files, now=160.0).finish()
    assert [file.rows for file in result.finished] == [1]


def test_a_large_batch_is_made_durable_early(stores):
    writer = make_writer(FileOutput(url="unused"), stores, buffer_bytes=1000)
    for _ in range(3):
        writer.write(pa.table({"x": range(1000)}))
    (file,) = writer.finish().open
    assert file.rows == 3000
    assert len(file.pending) == 3


def test_lost_and_damaged_pending_rows_are_named(tmp_path, stores):
    writer = make_writer(FileOutput(url="unused"), stores)
    writer.write(pa.table({"x": range(100)}))
    open_files = writer.finish().open
    rolled = FileOutput(url="unused", rolling=RollingPolicy(every_checkpoint=True))
    path = tmp_path / "root" / open_files[0].pending[0].name
    good = path.read_bytes()
    path.write_bytes(good[:50] + bytes([good[50] ^ 1]) + good[51:])
    with pytest.raises(CorruptDataError, match=r"shared/.*segment"):
        make_writer(rolled, stores, open_files=open_files).finish()
    path.unlink()
    with pytest.raises(DataLossError, match=r"shared/.*segment"):
        make_writer(rolled, stores, open_files=open_files).finish()


def test_arrow_files_hold_the_same_rows(tmp_path, stores):
    output = FileOutput(url="unused", format="arrow", rolling=RollingPolicy(every_checkpoint=True))
    rows = pa.table({"x": [1, None, 3], "s": ["a", "b", None]})
    writer = make_writer(output, stores, rows.schema)
    writer.write(rows)
    publish(stores, writer.finish())
    (file,) = (tmp_path / "out").glob("part-*.arrow")
    assert pa.ipc.open_file(file).read_all().equals(rows)


def test_bad_settings_are_refused_by_name():
    with pytest.raises(InvalidInputError, match="format"):
        FileOutput(url="unused", format="orc")
    with pytest.raises(InvalidInputError, match="compression of parquet"):
        FileOutput(url="unused", compression="rar")
    with pytest.raises(InvalidInputError, match="twice"):
        FileOutput(url="unused", partition_by=("a", "a"))
    for rows in (0, -1, 1.5, "1000", None, True):
        with pytest.raises(InvalidInputError, match="row_group_rows"):
            FileOutput(url="unused", row_group_rows=rows)


def test_rows_of_another_schema_begin_a_new_file_and_finish_the_old_one(tmp_path, stores):
    writer = make_writer(FileOutput(url="unused"), stores)
    writer.write(pa.table({"x": [1]}))
    wider = pa.schema([("x", pa.int64()), ("y", pa.string())])
    writer = make_writer(FileOutput(url="unused"), stores, wider, open_files=writer.finish().open)
    writer.write(pa.table({"x": [2], "y": ["a"]}))
    result = writer.finish()
    assert [file.rows for file in result.finished] == [1]
    assert [file.rows for file in result.open] == [1]
    publish(stores, result)
    (file,) = (tmp_path / "out").glob("part-*.parquet")
    assert pq.read_table(file).to_pydict() == {"x": [1]}


def test_a_file_is_finished_in_the_format_it_was_begun_in(tmp_path, stores):
    writer = make_writer(FileOutput(url="unused", format="csv"), stores)
    writer.write(pa.table({"x": [1]}))
    now_parquet = make_writer(FileOutput(url="unused"), stores, open_files=writer.finish().open)
    publish(stores, now_parquet.finish())
    (file,) = (tmp_path / "out").glob("part-*")
    assert file.name.endswith(".csv")
    assert file.read_text() == '"x"\n1\n'


def test_rows_that_do_not_fit_the_declared_schema_are_refused(stores):
    writer = make_writer(FileOutput(url="unused"), stores)
    writer.write(pa.table({"x": ["text"]}))
    with pytest.raises(InvalidInputError, match="expected"):
        writer.finish()


def test_rows_of_several_schemas_that_fit_the_declared_one_all_arrive(stores, tmp_path):
    writer = make_writer(FileOutput(url="unused", rolling=RollingPolicy(every_checkpoint=True)), stores)
    for kind in (pa.int64(), pa.int32(), pa.int32(), pa.int64()):
        writer.write(pa.table({"x": pa.array([1], kind)}))
    publish(stores, result := writer.finish())
    assert [file.rows for file in result.finished] == [4]
    assert visible(tmp_path)["x"].to_pylist() == [1, 1, 1, 1]


def test_small_batches_are_split_by_folder_together(stores, monkeypatch):
    """Spark hands over 1,024 rows at a time: of each its own table for each of many folders would be the cost."""
    split = []
    monkeypatch.setattr(partitions, "partition_folder", lambda _, value, **__: split.append(value) or f"p={value[0]}")
    writer = make_writer(FileOutput(url="unused", partition_by=("p",)), stores, PX)
    for batch in range(200):
        writer.write(pa.table({"p": [row % 50 for row in range(1000)], "x": [batch] * 1000}))
    assert sum(file.rows for file in writer.finish().open) == 200_000
    assert len(split) == 50 * 4, "200,000 rows are split 65,536 or so at a time"


@pytest.mark.parametrize(("name", "codec"), [("csv", None), ("csv", "gzip"), ("jsonl", None), ("jsonl", "gzip")])
def test_line_formats_read_back(tmp_path, stores, name, codec):
    rows = pa.table({"x": [1, 2, None], "s": ['q"uote', "a,b", "ü"]})
    output = FileOutput(url="unused", format=name, compression=codec, rolling=RollingPolicy(every_checkpoint=True))
    writer = make_writer(output, stores, rows.schema)
    writer.write(rows)
    publish(stores, writer.finish())
    (file,) = (tmp_path / "out").glob(f"part-*.{name}.gz" if codec else f"part-*.{name}")
    data = gzip.decompress(file.read_bytes()) if codec else file.read_bytes()
    read = pyarrow.csv.read_csv if name == "csv" else pyarrow.json.read_json
    assert read(pa.BufferReader(data)).to_pydict() == rows.to_pydict()


@pytest.mark.parametrize(("began", "goes_on"), [("none", "gzip"), ("gzip", "none")])
def test_a_file_of_lines_keeps_the_codec_that_its_name_tells(tmp_path, stores, began, goes_on):
    """Readers find the codec by the name, and the name was given when the file was begun."""
    first = make_writer(FileOutput(url="unused", format="csv", compression=began), stores)
    first.write(pa.table({"x": [1]}))
    rolled = RollingPolicy(every_checkpoint=True)
    later = FileOutput(url="unused", format="csv", compression=goes_on, rolling=rolled)
    publish(stores, make_writer(later, stores, open_files=first.finish().open).finish())
    (file,) = (tmp_path / "out").glob("part-*")
    assert (file.suffix == ".gz") == (began == "gzip")
    assert (gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()) == b'"x"\n1\n'


def test_many_large_partition_columns_do_not_meet():
    """The product of their sizes, 65,000 to the fourth, is more than 64 bits hold."""
    count = 65_000
    columns = ("a", "b", "c", "d")
    schema = pa.schema([*((name, pa.int64()) for name in columns), ("x", pa.int64())])
    rows = pa.table({**dict.fromkeys(columns, pa.array(range(count))), "x": pa.array(range(count))}, schema)
    found = dict(partitions.split_by_folder(rows, columns, "UTC"))
    assert len(found) == count
    assert all(folder == "/".join(f"{c}={part['x'][0]}" for c in columns) for folder, part in found.items())


def test_text_files_hold_one_string_column(tmp_path, stores):
    output = FileOutput(url="unused", format="text", rolling=RollingPolicy(every_checkpoint=True))
    writer = make_writer(output, stores, pa.schema([("line", pa.string())]))
    writer.write(pa.table({"line": ["one", "two"]}))
    publish(stores, writer.finish())
    (file,) = (tmp_path / "out").glob("part-*.text")
    assert file.read_text() == "one\ntwo\n"
    broken = make_writer(output, stores, pa.schema([("line", pa.string())]))
    broken.write(pa.table({"line": ["a\nb"]}))
    with pytest.raises(InvalidInputError, match="line break"):
        broken.finish()


NO_TEXT = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])
TWICE = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))


@pytest.mark.parametrize("every_checkpoint", [False, True])
@pytest.mark.parametrize(
    ("name", "column", "complaint"),
    [
        ("text", pa.array(["a\nb"]), "line break"),
        ("jsonl", TWICE, "key twice"),
        ("jsonl", pa.array([2**60], pa.timestamp("us", "UTC")), "'x'.*years 1 to 9999"),
        ("jsonl", pa.array([[2**60]], pa.list_(pa.timestamp("us"))), "'x'.*years 1 to 9999"),
        ("csv", pa.array([2**62], pa.timestamp("us")), "'x'.*years -32767 to 32767"),
        ("jsonl", pa.array([1000, 1, None], pa.time64("ns")), "'x'.*nanoseconds"),
        ("jsonl", pa.array([[1001]], pa.list_(pa.time64("ns"))), "'x'.*nanoseconds"),
        ("jsonl", pa.array([[("a", {"t": 1})]], pa.map_(pa.string(), pa.struct([("t", pa.time64("ns"))]))), "nanosec"),
        ("jsonl", NO_TEXT, "'x'.*not UTF-8"),
        ("parquet", NO_TEXT, "'x'.*not UTF-8"),
        ("parquet", pa.StructArray.from_arrays([NO_TEXT], ["inside"]), "'x'.*not UTF-8"),
    ],
)
def test_a_value_that_no_file_holds_is_refused_before_it_is_durable(stores, name, column, complaint, every_checkpoint):
    """Rows of an open file that could not be encoded later would block it for ever, and all rows beside them."""
    rows = pa.table({"x": column})
    rolling = RollingPolicy(every_checkpoint=every_checkpoint)
    writer = make_writer(FileOutput(url="unused", format=name, rolling=rolling), stores, rows.schema)
    writer.write(rows)
    with pytest.raises(InvalidInputError, match=complaint):
        writer.finish()
    assert stores[0].calls["put_if_absent"] == 0


def test_a_partition_value_that_is_no_text_is_refused(stores):
    rows = pa.table({"p": NO_TEXT, "x": [1]})
    writer = make_writer(FileOutput(url="unused", partition_by=("p",)), stores, rows.schema)
    writer.write(rows)
    with pytest.raises(InvalidInputError, match=r"'p'.*not UTF-8"):
        writer.finish()


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (pa.array([b"\xff"], pa.binary()), "not UTF-8"),
        (pa.array([2**60], pa.timestamp("us", "UTC")), "years 1 to 9999"),
        (pa.array([1001], pa.time64("ns")), "nanoseconds"),
        (pa.array([1001], pa.timestamp("ns", "UTC")), "nanoseconds"),
    ],
)
def test_a_partition_value_that_no_folder_tells_is_refused(stores, value, complaint):
    rows = pa.table({"p": value, "x": [1]})
    writer = make_writer(FileOutput(url="unused", partition_by=("p",)), stores, rows.schema)
    writer.write(rows)
    with pytest.raises(InvalidInputError, match=f"'p'.*{complaint}"):
        writer.finish()


MOMENTS = pa.schema([("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")), ("x", pa.int64())])
SUMMER_TO_WINTER = 1_698_537_600_000_000
"""2023-10-29 00:00 UTC, 02:00 in Berlin, and an hour later 02:00 again."""


def moment_rows(*micros):
    return pa.table({"at": list(micros), "local": list(micros), "x": range(len(micros))}).cast(MOMENTS)


@pytest.mark.parametrize(
    ("zone", "names"),
    [
        ("UTC", ["1811-07-23 15%3A06%3A40", "2023-10-29 00%3A00%3A00", "2023-10-29 02%3A00%3A00.5"]),
        ("Europe/Berlin", ["1811-07-23 16%3A00%3A08", "2023-10-29 02%3A00%3A00", "2023-10-29 03%3A00%3A00.5"]),
        ("+05:00", ["1811-07-23 20%3A06%3A40", "2023-10-29 05%3A00%3A00", "2023-10-29 07%3A00%3A00.5"]),
        ("-03:30", ["1811-07-23 11%3A36%3A40", "2023-10-28 20%3A30%3A00", "2023-10-28 22%3A30%3A00.5"]),
    ],
)
def test_folders_of_moments_are_named_by_the_clock_of_the_zone_that_was_asked_for(tmp_path, stores, zone, names):
    rolling = RollingPolicy(every_checkpoint=True)
    output = FileOutput(url="unused", partition_by=("at",), partition_zone=zone, rolling=rolling)
    writer = make_writer(output, stores, MOMENTS)
    rows = moment_rows(-5_000_000_000_000_000, SUMMER_TO_WINTER, SUMMER_TO_WINTER + 7_200_500_000)
    writer.write(
        rows.set_column(0, MOMENTS.field("at"), rows["at"].cast(pa.timestamp("us", "Asia/Tokyo")).cast(MOMENTS[0].type))
    )
    publish(stores, writer.finish())
    assert sorted(path.name for path in (tmp_path / "out").glob("at=*")) == [f"at={name}" for name in names]


def test_in_the_hour_that_a_clock_shows_twice_the_files_tell_which_one(tmp_path, stores):
    rolling = RollingPolicy(every_checkpoint=True)
    output = FileOutput(url="unused", partition_by=("at",), partition_zone="Europe/Berlin", rolling=rolling)
    moments = [
        SUMMER_TO_WINTER - 1,
        SUMMER_TO_WINTER,
        SUMMER_TO_WINTER + 3_600_000_000,
        SUMMER_TO_WINTER + 7_200_000_000,
    ]
    writer = make_writer(output, stores, MOMENTS)
    writer.write(moment_rows(*moments))
    publish(stores, writer.finish())
    files = {path.parent.name: pq.read_table(path, partitioning=None) for path in (tmp_path / "out").glob("at=*/*")}
    twice = files.pop("at=2023-10-29 02%3A00%3A00")
    assert twice["at"].cast(pa.int64()).to_pylist() == moments[1:3]
    assert sorted(files) == ["at=2023-10-29 01%3A59%3A59.999999", "at=2023-10-29 03%3A00%3A00"]
    assert all(table.column_names == ["local", "x"] for table in files.values())


def test_the_zone_of_folders_is_checked_and_leaves_times_without_a_zone_alone(tmp_path, stores):
    for zone in ("Europe/Nowhere", "GMT+5", "+25:00", "", 5, None):
        with pytest.raises(InvalidInputError, match="partition_zone"):
            FileOutput(url="unused", partition_zone=zone)
    rolling = RollingPolicy(every_checkpoint=True)
    writer = make_writer(
        FileOutput(url="unused", partition_by=("local",), partition_zone="Asia/Tokyo", rolling=rolling), stores, MOMENTS
    )
    writer.write(moment_rows(SUMMER_TO_WINTER))
    publish(stores, writer.finish())
    assert (tmp_path / "out" / "local=2023-10-29 00%3A00%3A00").is_dir()
    early = FileOutput(url="unused", partition_by=("at",), partition_zone="America/New_York", rolling=rolling)
    writer = make_writer(early, stores, MOMENTS)
    writer.write(moment_rows(-62_135_596_800_000_000))
    with pytest.raises(InvalidInputError, match=r"'at'.*years 1 to 9999"):
        writer.finish()


def test_folders_that_leave_no_room_for_the_name_of_a_file_are_refused_by_their_columns(stores):
    long = pa.table({**{name: ["v" * 250] for name in "abcd"}, "x": [1]})
    writer = make_writer(FileOutput(url="unused", partition_by=("a", "b", "c")), stores, long.schema)
    writer.write(long)
    (file,) = writer.finish().open
    assert len(file.target) > 750
    writer = make_writer(FileOutput(url="unused", partition_by=("a", "b", "c", "d")), stores, long.schema)
    writer.write(long)
    with pytest.raises(InvalidInputError, match=r"'a', 'b', 'c', 'd'.*fewer columns"):
        writer.finish()


def test_fields_that_readers_take_for_one_are_refused_inside_of_other_types():
    twice = pa.struct([("id", pa.int64()), ("Id", pa.int64())])
    for kind in (twice, pa.list_(twice), pa.map_(pa.string(), pa.struct([("s", twice)]))):
        with pytest.raises(InvalidInputError, match="for one column"):
            FileOutput(url="unused").file_schema(pa.schema([("x", kind)]))
    apart = pa.struct([("id", pa.struct([("id", pa.int64())])), ("other", pa.struct([("id", pa.int64())]))])
    FileOutput(url="unused").file_schema(pa.schema([("x", apart), ("y", apart)]))


@pytest.mark.parametrize("names", [("id", "ID"), ("x", "x"), ("Ä", "ä")])
def test_columns_that_readers_take_for_one_are_refused(names):
    schema = pa.schema([*((name, pa.int64()) for name in names), ("p", pa.int64())])
    for partition_by in ((), ("p",), (names[0],)):
        with pytest.raises(InvalidInputError, match="for one column"):
            FileOutput(url="unused", partition_by=partition_by).file_schema(schema)


def test_columns_that_a_format_cannot_hold_are_refused_with_the_reason():
    with pytest.raises(InvalidInputError, match="intervals"):
        FileOutput(url="unused").file_schema(pa.schema([("d", pa.duration("us"))]))
    with pytest.raises(InvalidInputError, match="flat"):
        FileOutput(url="unused", format="csv").file_schema(pa.schema([("l", pa.list_(pa.int64()))]))
    with pytest.raises(InvalidInputError, match="one string column"):
        FileOutput(url="unused", format="text").file_schema(X)
    with pytest.raises(InvalidInputError, match="at least one column"):
        FileOutput(url="unused", partition_by=("x",)).file_schema(X)
    with pytest.raises(InvalidInputError, match="got 'z'"):
        FileOutput(url="unused", partition_by=("z",)).file_schema(X)


@pytest.mark.parametrize("every_checkpoint", [False, True])
def test_memory_does_not_grow_with_the_number_of_open_files(stores, every_checkpoint):
    """500 open partitions cost the buffer of the task, and one file while it is encoded: never 500 buffers."""
    buffer_bytes, rows, partitions = 4_000_000, 10_000, 500
    schema = pa.schema([("p", pa.int64()), ("x", pa.binary())])
    table = pa.table({"p": [row % partitions for row in range(rows)], "x": [b"v" * 100] * rows}, schema)
    rolling = RollingPolicy(every_checkpoint=every_checkpoint)
    output = FileOutput(url="unused", partition_by=("p",), rolling=rolling)
    before, peak, open_files = pa.total_allocated_bytes(), 0, ()
    for checkpoint in range(2):
        writer = make_writer(
            output, stores, schema, open_files=open_files, now=float(checkpoint), buffer_bytes=buffer_bytes
        )
        for _ in range(20):
            writer.write(table)
            peak = max(peak, pa.total_allocated_bytes() - before)
        open_files = (result := writer.finish()).open
        assert len(result.finished if every_checkpoint else result.open) == partitions
    assert peak < buffer_bytes + 4 * table.nbytes, "the rows written are six times the buffer"


def test_a_file_rolls_within_a_checkpoint_once_it_has_its_size(tmp_path, stores):
    output = FileOutput(url="unused", rolling=RollingPolicy(roll_bytes=20_000))
    writer = make_writer(output, stores, buffer_bytes=8_000)
    for batch in range(10):
        writer.write(pa.table({"x": range(batch * 1000, batch * 1000 + 1000)}))
    result = writer.finish()
    publish(stores, result)
    assert [file.rows for file in result.finished] == [3000, 3000, 3000]
    assert [file.rows for file in result.open] == [1000]
    assert sorted(visible(tmp_path)["x"].to_pylist()) == list(range(9000))


WITHOUT_NULLS = pa.struct([pa.field("a", pa.int32(), nullable=False)])
SOME = pa.StructArray.from_arrays(
    [pa.array([1, None, 3], pa.int32())], fields=list(WITHOUT_NULLS), mask=pa.array([False, True, False])
)
VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
    ]
)
BYTES = pa.array([b"1", None, b"3"])
VARIANTS = pa.StructArray.from_arrays([BYTES, BYTES], fields=list(VARIANT), mask=pa.array([False, True, False]))


@pytest.mark.parametrize("name", ["parquet", "arrow", "jsonl"])
@pytest.mark.parametrize(
    "column",
    [
        SOME,
        pa.ListArray.from_arrays([0, 2, 2, 3], SOME),
        pa.MapArray.from_arrays([0, 1, 1, 3], pa.array(["a", "b", "c"]), SOME),
        pa.StructArray.from_arrays([SOME], fields=[pa.field("s", WITHOUT_NULLS)]),
        VARIANTS,
        pa.ListArray.from_arrays(pa.array([0, None, 2, 3], pa.int32()), VARIANTS)[1:],
        pa.MapArray.from_arrays(pa.array([0, None, 0, 3], pa.int32()), pa.array(["a", "b", "c"]), VARIANTS)[1:],
        pa.StructArray.from_arrays([VARIANTS], fields=[pa.field("v", VARIANT)], mask=pa.array([True, False, False])),
        pa.LargeListArray.from_arrays([1, 3], VARIANTS),
    ],
    ids=[
        "structure",
        "list",
        "map",
        "structure in structure",
        "variant",
        "list of variants",
        "map of variants",
        "structure of variants",
        "long list of variants",
    ],
)
def test_a_structure_may_be_null_whose_fields_are_not(tmp_path, stores, name, column):
    """Spark promises fields without nulls for structures that are there; Arrow keeps nulls for the others."""
    rows = pa.table({"x": column})
    began = make_writer(FileOutput(url="unused", format=name), stores, rows.schema)
    began.write(rows)
    output = FileOutput(url="unused", format=name, rolling=RollingPolicy(every_checkpoint=True))
    goes_on = make_writer(output, stores, rows.schema, open_files=began.finish().open)
    goes_on.write(rows)
    publish(stores, goes_on.finish())
    (file,) = (tmp_path / "out").glob("part-*")
    wanted = column.to_pylist() * 2
    if name == "jsonl":
        assert len(file.read_text().splitlines()) == len(wanted)
        return
    read = ds.dataset(file, format={"parquet": "parquet", "arrow": "ipc"}[name]).to_table()
    assert read["x"].to_pylist() == wanted


def test_the_fields_of_a_variant_are_never_null_in_the_file(tmp_path, stores):
    """Spark refuses to read it otherwise."""
    rows = pa.table({"x": VARIANTS})
    output = FileOutput(url="unused", rolling=RollingPolicy(every_checkpoint=True))
    writer = make_writer(output, stores, rows.schema)
    writer.write(rows)
    publish(stores, writer.finish())
    (file,) = (tmp_path / "out").glob("part-*")
    assert "required binary field_id=-1 value" in str(pq.read_metadata(file).schema)
