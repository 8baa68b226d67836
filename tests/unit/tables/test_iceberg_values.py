"""Iceberg: every value is found by its filter, in every column and in every partition, whatever names they have."""

from __future__ import annotations

import datetime as dt
import decimal
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import EqualTo, GreaterThan, GreaterThanOrEqual, IsNaN, IsNull, LessThan
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from stateline.blob import open_store
from stateline.environment import Environment
from stateline.errors import ErrorKind, InvalidInputError
from stateline.files import FileOutput, RollingPolicy
from stateline.pipeline.end_of_stream import finish_root
from stateline.pipeline.files_decision import FilesDecision, files_plan
from stateline.pipeline.messages import Batch
from stateline.pipeline.plan import PLAIN
from stateline.tables import NewFile, TableTarget, commit_once
from stateline.tables.footers import column_reader
from tests.unit.tables.table_kit import APP, SCHEMA, IcebergPlace

WORLD = Environment()
MARKER = "__HIVE_DEFAULT_PARTITION__"
LAST = "\U0010ffff"


@pytest.fixture
def place(tmp_path):
    with IcebergPlace(tmp_path) as found:
        yield found


class Query:
    """A query of the file sink that writes into the place's Iceberg table, planned at one moment."""

    def __init__(self, place, schema, partition_by=(), root=None, rolling=None):
        options = place.target().options
        self.target = TableTarget(format="iceberg", target="air.flights", partition_by=partition_by, options=options)
        table = place.open(schema, self.target)
        self.out = open_store(table.files_url(), {"fsync": "false"})
        self.output = FileOutput(
            url=self.out.url,
            partition_by=partition_by,
            columns_in_files=True,
            file_columns=table.file_columns(),
            rolling=rolling or RollingPolicy(every_checkpoint=True),
        )
        self.schema = schema
        self.root = root or open_store("memory://" + WORLD.ids.new_id())

        plan = files_plan(self.root.url, self.output, PLAIN, schema=self.schema, table=self.target)
        self.decision = FilesDecision(plan, self.root, self.out, self.schema, WORLD)
        self.driver = self.decision.coordinator()
        self.driver.start()
        self.driver.check_tables()

    def write(self, number, rows):
        staged = [self.decision.stage(rows.combine_chunks().to_batches())]
        self.driver.run_batch(Batch(query_id="q", batch_id=number, offsets_digest=str(number), data=staged))


def written(place, rows, partition_by=()):
    Query(place, rows.schema, partition_by).write(0, rows)
    return place.table()


def found(table, condition, column="n"):
    return sorted(table.scan(row_filter=condition).to_arrow()[column].to_pylist())


def condition_of(column, value):
    if value is None:
        return IsNull(column)
    return IsNaN(column) if value != value else EqualTo(column, value)


MOMENT = dt.datetime(2024, 3, 31, 1, 2, 3, 456789)
VALUES = {
    "text": (pa.string(), [None, "", MARKER, "null", "NaN", "a/b=c", "100%25", " ", "ü" * 90, LAST, "x" * 5000]),
    "binary": (pa.binary(), [None, b"", b"a", b"b" * 40]),
    "bool": (pa.bool_(), [None, True, False]),
    "int8": (pa.int8(), [None, -128, 127]),
    "int32": (pa.int32(), [None, -(2**31), 0, 2**31 - 1]),
    "int64": (pa.int64(), [None, -(2**63), 2**63 - 1]),
    "decimal": (pa.decimal128(20, 2), [None, *map(decimal.Decimal, ("0.00", "-1.25", "129.00", "-1.28"))]),
    "date": (pa.date32(), [None, dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)]),
    "local": (pa.timestamp("us"), [None, MOMENT, dt.datetime(1969, 12, 31, 23, 59, 59, 999999)]),
    "moment": (pa.timestamp("us", "UTC"), [None, MOMENT.replace(tzinfo=dt.UTC)]),
    "float": (pa.float64(), [None, math.nan, math.inf, -math.inf, 0.0, 1.5]),
}


def drawn(names, count):
    """Rows in which each column has all of its values, again and again, and their number in ``n``."""
    columns = {name: [VALUES[name][1][n % len(VALUES[name][1])] for n in range(count)] for name in names}
    rows = {name: pa.array(values, VALUES[name][0]) for name, values in columns.items()}
    return pa.table({**rows, "n": list(range(count))}), columns


def same(one, other):
    return one == other or (one is not None and other is not None and one != one and other != other)


def test_every_value_is_found_in_its_partition(place):
    names = [name for name in VALUES if name != "float"]
    rows, columns = drawn(names, 11)
    table = written(place, rows, tuple(names))
    assert len(table.inspect.files()) == 11, "one file for each partition"
    for name, values in columns.items():
        for value in VALUES[name][1]:
            condition = condition_of(name, value)
            wanted = [n for n, each in enumerate(values) if same(each, value)]
            assert found(table, condition) == wanted, (name, value)
            assert len(list(table.scan(row_filter=condition).plan_files())) == len(wanted), "others are left out"


def test_null_and_texts_that_look_like_it_have_partitions_of_their_own_in_every_batch(place):
    texts = [None, "", MARKER, "%5F" + MARKER[1:], "null"]
    query = Query(place, pa.schema([("k", pa.string()), ("n", pa.int64())]), ("k",))
    for number in range(2):
        query.write(number, pa.table({"k": texts, "n": [number * 5 + n for n in range(5)]}))
    for n, text in enumerate(texts):
        assert found(place.table(), condition_of("k", text)) == [n, n + 5]
    assert len(place.table().inspect.partitions()) == len(texts)


def test_every_value_is_found_by_its_filter_without_partitions(place):
    rows, columns = drawn(VALUES, 11)
    table = written(place, rows)
    for name, values in columns.items():
        for value in VALUES[name][1]:
            wanted = [n for n, each in enumerate(values) if same(each, value)]
            assert found(table, condition_of(name, value)) == wanted, (name, value)
            if value is not None and value == value:
                wanted = [n for n, each in enumerate(values) if each is not None and each >= value]
                assert found(table, GreaterThanOrEqual(name, value)) == wanted, (name, value)


def test_partitions_of_floats_are_refused(place):
    for kind in (pa.float32(), pa.float64()):
        with pytest.raises(InvalidInputError, match="column 'k'") as refused:
            Query(place, pa.schema([("k", kind), ("n", pa.int64())]), ("k",))
        assert refused.value.kind is ErrorKind.SCHEMA_MISMATCH


def test_bounds_of_long_texts_hold_the_text(place):
    texts = [
        (character * size, character * (size - 1) + LAST + character)
        for character in ("a", LAST, "\ud7ff", "\uffff", "\x00")
        for size in (15, 16, 17, 40)
    ]
    rows = {f"k{n}": list(pair) for n, pair in enumerate(texts)}
    rows |= {f"b{n}": [text.encode() for text in pair] for n, pair in enumerate(texts)}
    table = written(place, pa.table({**rows, "n": [0, 1]}))
    for name, pair in rows.items():
        for number, value in enumerate(pair):
            assert found(table, EqualTo(name, value)) == [n for n in (0, 1) if pair[n] == value], number


def bounds(table, column):
    """The lower and the upper bound of the only file."""
    entry = table.inspect.files().to_pylist()[0]
    field = table.schema().find_field(column)
    ends = (dict(entry[name]).get(field.field_id) for name in ("lower_bounds", "upper_bounds"))
    return tuple(None if end is None else from_bytes(field.field_type, end) for end in ends)


def test_bounds_are_kept_where_every_value_is_finite(place):
    whole = pa.table(
        {
            "finite": [-1.5, 2.5],
            "zero": [0.0, -0.0],
            "nan": [1.0, math.nan],
            "i": pa.array([3, None], pa.int32()),
            "d": [decimal.Decimal("-1.28"), decimal.Decimal("1.27")],
            "day": [dt.date(1969, 12, 31), dt.date(2024, 1, 1)],
            "s": ["a" * 20, "b" * 20],
            "raw": [b"\xff" * 20, b"\x00"],
            "st": [{"x": 1}, {"x": 7}],
        }
    )
    table = written(place, whole)
    assert bounds(table, "finite") == (-1.5, 2.5)
    assert [math.copysign(1, end) for end in bounds(table, "zero")] == [-1, 1]
    assert bounds(table, "nan") == (None, None)
    assert bounds(table, "i") == (3, 3)
    assert bounds(table, "d") == (decimal.Decimal("-1.28"), decimal.Decimal("1.27"))
    assert bounds(table, "day") == (-1, 19723)
    assert bounds(table, "s") == ("a" * 16, "b" * 15 + "c")
    assert bounds(table, "raw") == (b"\x00", None)
    entry = table.inspect.files().to_pylist()[0]
    number = table.schema().find_field("i").field_id
    assert (dict(entry["null_value_counts"])[number], dict(entry["value_counts"])[number]) == (1, 2)
    assert not list(table.scan(row_filter=GreaterThan("finite", 2.5)).plan_files())
    assert not list(table.scan(row_filter=LessThan("s", "a" * 15)).plan_files())
    assert found(table, IsNaN("nan"), "i") == [None]


NAMES = ["a.b", "day(t.s)", "D.x", "a b", "ä", "1st", "a-b", '"q"', "a,b", "x" * 100, "%41", "a=b"]


def test_columns_of_any_name_are_found(place):
    inner = [dict.fromkeys(NAMES, 1) | {"l": [dict.fromkeys(NAMES, 2)]}] * 3
    rows = pa.table({**{name: ["x", "y", None] for name in NAMES}, "n": [0, 1, 2], "st": inner})
    table = written(place, rows)
    assert table.scan().to_arrow().to_pylist() == rows.to_pylist()
    for name in NAMES:
        for number, value in enumerate(("x", "y", None)):
            assert found(table, condition_of(name, value)) == [number], name


def test_partitions_by_columns_of_any_name_are_found(place):
    names = [name for name in NAMES if "(" not in name]
    texts = ("x", "y", None, "")
    table = written(place, pa.table({**dict.fromkeys(names, texts), "n": [0, 1, 2, 3]}), tuple(names))
    assert len(table.inspect.files()) == 4
    for name in names:
        for number, value in enumerate(texts):
            assert found(table, condition_of(name, value)) == [number], name
            assert len(list(table.scan(row_filter=condition_of(name, value)).plan_files())) == 1


def test_a_part_of_a_moment_of_a_column_with_a_dot(place):
    moments = [MOMENT, MOMENT + dt.timedelta(days=1), None]
    rows = pa.table({"t.s": pa.array(moments, pa.timestamp("us")), "n": [0, 1, 2]})
    table = written(place, rows, ("day(t.s)",))
    for number, moment in enumerate(moments):
        condition = condition_of("t.s", moment and moment.isoformat())
        assert found(table, condition) == [number]
        assert len(list(table.scan(row_filter=condition).plan_files())) == 1


def test_names_that_would_be_one_name_in_files_are_refused(place):
    with pytest.raises(InvalidInputError, match="a_x2Eb"):
        Query(place, pa.schema([("a.b", pa.int64()), ("a_x2Eb", pa.int64())]))
    with pytest.raises(InvalidInputError):
        Query(place, pa.schema([("a.b", pa.int64()), ("a", pa.struct([("b", pa.int64())]))]))


def test_files_carry_the_ids_of_the_table_at_any_depth(place):
    inner = pa.struct([("x", pa.int64()), ("l", pa.list_(pa.int32()))])
    schema = pa.schema([("st", inner), ("m", pa.map_(pa.string(), inner)), ("ls", pa.list_(inner)), ("n", pa.int8())])
    row = {"x": 1, "l": [2]}
    rows = pa.table({"st": [row], "m": [[("k", row)]], "ls": [[row]], "n": [7]}, schema=schema)
    table = written(place, rows)
    assert table.scan().to_arrow()["n"].to_pylist() == [7]
    assert table.scan().to_arrow()["m"].to_pylist() == [[("k", row)]]
    path = table.inspect.files()["file_path"][0].as_py().removeprefix("file://")
    in_file = pq.ParquetFile(path).schema_arrow

    def ids(fields):
        for field in fields:
            yield int(field.metadata[b"PARQUET:field_id"])
            kind = field.type
            if pa.types.is_map(kind):
                yield from ids([kind.key_field, kind.item_field])
            elif pa.types.is_nested(kind):
                yield from ids([kind.field(index) for index in range(kind.num_fields)])

    assert sorted(ids(in_file)) == sorted(table.schema().field_ids)
    assert table.name_mapping() is None, "the ids are enough"


@pytest.mark.parametrize("memory_maps", [True, False])
def test_a_column_is_read_from_a_file_in_any_store(tmp_path, monkeypatch, memory_maps):
    store = open_store(tmp_path.as_uri(), {"fsync": "false"})
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1, 2], "b": ["x" * 5000] * 2}), sink)
    store.put_if_absent("f", sink.getvalue().to_pybytes())
    if not memory_maps:
        monkeypatch.setattr(type(store), "local_path", lambda *_: None)
    read = column_reader(store, NewFile(name="f", length=sink.getvalue().size, rows=2))
    assert read(1).to_pylist() == ["x" * 5000] * 2
    assert read(0).to_pylist() == [1, 2]
    store.close()


def test_files_that_are_finished_without_the_program_carry_ids(tmp_path, place):
    root = open_store((tmp_path / "root").as_uri(), {"fsync": "false"})
    query = Query(place, pa.schema([("a.b", pa.int64())]), ("a.b",), root=root, rolling=RollingPolicy())
    query.write(0, pa.table({"a.b": [1, 2]}))
    assert place.rows() == []
    output = FileOutput(url=query.out.url, partition_by=("a.b",), columns_in_files=True)
    finish_root(
        root.url, {}, output, WORLD, retained_checkpoints=9, elsewhere=False, table_options=query.target.options
    )
    assert place.rows() == [(1,), (2,)]
    assert place.table().name_mapping() is None


TWO = pa.schema([("k", pa.int64()), ("n", pa.int64())])


def both(k, n):
    return pa.table({"k": [k], "n": [n]}, schema=TWO)


def test_a_renamed_column_keeps_its_values_and_a_new_one_of_its_name_has_none(place):
    query = Query(place, TWO)
    query.write(0, both(0, 10))
    with place.table().update_schema() as update:
        update.rename_column("n", "x")
    with place.table().update_schema() as update:
        update.add_column("n", LongType())
    Query(place, TWO, root=query.root).write(1, both(1, 11))
    rows = sorted(place.table().scan().to_arrow().to_pylist(), key=lambda row: row["k"])
    assert rows == [{"k": 0, "x": 10, "n": None}, {"k": 1, "x": None, "n": 11}]
    assert found(place.table(), EqualTo("n", 11), "k") == [1]
    assert found(place.table(), EqualTo("x", 10), "k") == [0]


def test_a_column_that_was_dropped_and_added_again_is_empty(place):
    query = Query(place, TWO)
    query.write(0, both(0, 10))
    with place.table().update_schema() as update:
        update.delete_column("n")
    with place.table().update_schema() as update:
        update.add_column("n", LongType())
    Query(place, TWO, root=query.root).write(1, both(1, 11))
    rows = sorted(place.table().scan().to_arrow().to_pylist(), key=lambda row: row["k"])
    assert rows == [{"k": 0, "n": None}, {"k": 1, "n": 11}]


def test_a_query_whose_columns_were_changed_meanwhile_is_refused_before_its_rows_are_decided(place):
    query = Query(place, TWO)
    query.write(0, both(0, 10))
    with place.table().update_schema() as update:
        update.delete_column("n")
    with place.table().update_schema() as update:
        update.add_column("n", LongType())
    query.write(1, both(1, 11))  # As a writer of Iceberg's own that has loaded the table before.
    for _ in range(2):
        with pytest.raises(InvalidInputError, match=r"dropped or renamed the columns \['n'\]"):
            query.write(2, both(2, 12))
    Query(place, TWO, root=query.root).write(2, both(2, 12))
    rows = sorted(place.table().scan().to_arrow().to_pylist(), key=lambda row: row["k"])
    assert rows == [{"k": 0, "n": None}, {"k": 1, "n": None}, {"k": 2, "n": 12}]


def test_other_columns_of_the_table_may_change_meanwhile(place):
    query = Query(place, TWO)
    query.write(0, both(0, 10))
    with place.table().update_schema() as update:
        update.add_column("other", LongType())
    query.write(1, both(1, 11))
    assert sorted(place.table().scan().to_arrow()["n"].to_pylist()) == [10, 11]


def test_rows_that_were_decided_before_a_column_was_dropped_are_committed_without_it(place):
    table = place.open(TWO)
    table.create()
    change = place.change(0, None, [], rows=Rows.with_ids(table, both(0, 10)))
    with place.table().update_schema() as update:
        update.delete_column("n")
    commit_once(place.open(None), change, WORLD)
    assert place.rows() == [(0,)]


class Rows:
    @staticmethod
    def with_ids(table, rows):
        from stateline.file_columns import as_in_file, file_schema

        return as_in_file(rows, file_schema(rows.schema, table.file_columns()))


def test_files_of_earlier_versions_without_ids_are_found_by_their_names(place):
    table = place.open()
    commit_once(table, place.change(0, None, [1, 2]), WORLD)
    assert place.rows() == [(1, "c0"), (2, "c0")]
    assert place.table().name_mapping() is not None
    assert len(place.table().scan(row_filter="k = 2").to_arrow()) == 1


def test_a_table_may_have_got_wider_types_meanwhile(place):
    narrow = pa.schema([("i", pa.int32()), ("f", pa.float32()), ("d", pa.decimal128(9, 2))])
    rows = pa.table({"i": [1], "f": [0.5], "d": [decimal.Decimal("1.25")]}, schema=narrow)
    table = place.open(narrow)
    table.create()
    change = place.change(0, None, [], rows=Rows.with_ids(table, rows))
    from pyiceberg.types import DecimalType, DoubleType

    with place.table().update_schema() as update:
        update.update_column("i", LongType())
        update.update_column("f", DoubleType())
        update.update_column("d", DecimalType(20, 2))
    commit_once(place.open(None), change, WORLD)
    assert place.rows() == [(1, 0.5, decimal.Decimal("1.25"))]
    for column, value in (("i", 1), ("f", 0.5), ("d", decimal.Decimal("1.25"))):
        assert len(place.table().scan(row_filter=EqualTo(column, value)).to_arrow()) == 1


@pytest.mark.parametrize("name", ["ware#house", "ware?house"])
def test_a_place_that_the_library_would_cut_off_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    with IcebergPlace(tmp_path / name) as place:
        options = place.target().options | {
            "catalog.uri": f"sqlite:///{tmp_path}/catalog.db",
            "catalog.warehouse": f"file://{tmp_path}/{name}",
        }
        target = TableTarget(format="iceberg", target="air.flights", options=options)
        with pytest.raises(InvalidInputError, match=f"'{name[4]}'|'\\{name[4]}'"):
            place.open(SCHEMA, target).files_url()
        assert list((tmp_path / name).iterdir()) == [], "nothing was made"


def test_a_table_of_another_place_is_refused_too(tmp_path, place):
    with place.catalog() as catalog:
        catalog.create_namespace("air")
        schema = Schema(NestedField(1, "k", LongType()), NestedField(2, "v", LongType()))
        properties = {"write.data.path": f"file://{tmp_path}/a#b"}
        catalog.create_table("air.flights", schema, properties=properties)
    with pytest.raises(InvalidInputError, match="'#'"):
        place.open(SCHEMA).files_url()
    assert place.open(SCHEMA).look(APP).committed is None
