"""Iceberg: files in place with their partitions and bounds, and tables that cannot be kept are refused."""

from __future__ import annotations

import datetime as dt
import decimal
import math

import pyarrow as pa
import pytest

from stateline.blob import open_store
from stateline.environment import Environment
from stateline.errors import DataLossError, InvalidInputError, UnavailableError
from stateline.files import FileOutput, RollingPolicy
from stateline.pipeline.files_decision import FilesDecision, files_plan
from stateline.pipeline.plan import PLAIN
from stateline.tables import TableTarget, commit_once
from tests.unit.tables.table_kit import APP, SCHEMA, IcebergPlace

WORLD = Environment()


@pytest.fixture
def place(tmp_path):
    with IcebergPlace(tmp_path) as found:
        yield found


def written(place, rows, partition_by=(), batches=1):
    """An Iceberg table of rows, as a query of the file sink makes it."""
    target = TableTarget(
        format="iceberg", target="air.flights", partition_by=partition_by, options=place.target().options
    )
    table = place.open(rows.schema, target)
    table.create()
    out = open_store(table.files_url(), {"fsync": "false"})
    output = FileOutput(
        url=out.url,
        partition_by=partition_by,
        columns_in_files=True,
        file_columns=table.file_columns(),
        rolling=RollingPolicy(every_checkpoint=True),
    )
    root = open_store("memory://" + WORLD.ids.new_id())
    plan = files_plan(root.url, output, PLAIN, schema=rows.schema, table=target)
    decision = FilesDecision(plan, root, out, rows.schema, WORLD)
    share = -(-rows.num_rows // batches)
    for number in range(batches):
        part = rows.slice(number * share, share).combine_chunks().to_batches()
        decision.commit([decision.stage(part)], batch_id=number, offsets_digest=str(number), query_id="q")
    return place.table()


def values(table):
    return sorted(map(repr, table.select(sorted(table.column_names)).to_pylist()))


def test_rows_of_all_types_come_back(place):
    moment = dt.datetime(2024, 3, 31, 1, 2, 3, 456789)
    rows = pa.table(
        {
            "b": [True, None],
            "i8": pa.array([-1, None], pa.int8()),
            "i32": pa.array([3, None], pa.int32()),
            "i64": pa.array([2**62, None], pa.int64()),
            "f32": pa.array([1.5, None], pa.float32()),
            "f64": [math.nan, -math.inf],
            "s": ["é" * 40, ""],
            "bin": [b"\xff\x00", None],
            "d": pa.array([decimal.Decimal("1.25"), None], pa.decimal128(20, 2)),
            "day": [dt.date(1, 1, 1), dt.date(9999, 12, 31)],
            "at": pa.array([moment.replace(tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")),
            "local": pa.array([moment, None], pa.timestamp("us")),
            "list": [[1, None], None],
            "st": [{"x": 1}, None],
        }
    )
    table = written(place, rows)
    assert values(table.scan().to_arrow()) == values(rows)
    for condition in ("i64 > 5", "day = '9999-12-31'", "local = '2024-03-31T01:02:03.456789'"):
        assert table.scan(row_filter=condition).to_arrow().num_rows == 1, condition


def test_partitions_are_told_by_the_files(place):
    texts = ["a b", "100%", "é%C3", "", None, "q" * 300, "q" * 299 + "r", "+ &?#"]
    rows = pa.table(
        {
            "p": texts * 2,
            "day": pa.array([dt.date(2024, 1, 1), None] * len(texts)),
            "n": list(range(2 * len(texts))),
        }
    )
    table = written(place, rows, ("p", "day"), batches=2)
    assert values(table.scan().to_arrow()) == values(rows)
    for text in ("a b", "q" * 299 + "r"):
        found = table.scan(row_filter=f"p = '{text}'")
        wanted = [n for n, each in enumerate(texts * 2) if each == text]
        assert sorted(found.to_arrow()["n"].to_pylist()) == wanted
        assert len(list(found.plan_files())) == 2, "other files are left out"


MOMENTS = [
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
    dt.datetime(2024, 2, 29, 0, 0),
    dt.datetime(2024, 2, 29, 0, 59),
    dt.datetime(2024, 3, 1, 12, 0),
    dt.datetime(2025, 1, 1, 0, 0),
    None,
]


@pytest.mark.parametrize("transform", ["year", "month", "day", "hour"])
@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()], ids=str)
def test_partitions_by_a_part_of_a_moment(place, transform, kind):
    if pa.types.is_date(kind) and transform == "hour":
        with pytest.raises(InvalidInputError, match="expected a moment in column"):
            written(place, pa.table({"at": pa.array([], kind)}), ("hour(at)",))
        return
    moments = [None if each is None else each.date() for each in MOMENTS] if pa.types.is_date(kind) else MOMENTS
    rows = pa.table({"at": pa.array(moments * 2, kind), "k": list("aabbab") * 2, "n": list(range(12))})
    table = written(place, rows, (f"{transform}(at)", "k"), batches=2)
    assert [str(field.transform) for field in table.spec().fields] == [transform, "identity"]
    assert values(table.scan().to_arrow()) == values(rows)
    zone = "+00:00" if kind == pa.timestamp("us", "UTC") else ""
    for moment in moments[:5]:
        found = table.scan(row_filter=f"at = '{moment.isoformat()}{zone}'")
        assert sorted(found.to_arrow()["n"].to_pylist()) == [n for n, each in enumerate(moments * 2) if each == moment]
        assert len(list(found.plan_files())) <= 4, "other partitions are left out"


def test_partitions_that_files_cannot_be_split_by_are_refused_by_name(place):
    rows = pa.table({"at": pa.array(MOMENTS, pa.timestamp("us")), "n": list(range(6))})
    for text, said in (("bucket(4, n)", r"bucket\(4, n\)"), ("day(n)", "int64"), ("day(m)", "got 'm'")):
        with pytest.raises(InvalidInputError, match=said):
            written(place, rows, (text,))
    place.open(rows.schema).create()
    with place.table().update_spec() as spec:
        spec.add_field("at", "month", "at_month")
    opened = place.open(rows.schema)
    with pytest.raises(InvalidInputError, match=r"partitioned by \['month\(at\)'\], and the rows by \[\]"):
        opened.check(opened.look(APP))


def test_a_file_that_lies_in_two_partitions_is_refused(place):
    rows = pa.table({"at": pa.array(MOMENTS[1:5], pa.timestamp("us"))})
    target = TableTarget(
        format="iceberg", target="air.flights", partition_by=("year(at)",), options=place.target().options
    )
    table = place.open(rows.schema, target)
    with pytest.raises(InvalidInputError, match="more than one partition"):
        commit_once(table, place.change(0, None, [], rows=rows), WORLD)
    commit_once(table, place.change(0, None, [], rows=rows.slice(0, 3)), WORLD)
    assert len(place.rows()) == 3


def test_the_tag_leads_to_the_checkpoint_and_outlives_expiry(place):
    commit_once(place.open(), place.change(0, None, [1]), WORLD)
    for k in range(3):
        place.append_foreign(k + 10)
    table = place.table()
    for snapshot in table.snapshots():
        if snapshot.snapshot_id != table.current_snapshot().snapshot_id and not any(
            ref.snapshot_id == snapshot.snapshot_id for ref in table.refs().values()
        ):
            table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    assert place.open().look(APP).committed == 0
    commit_once(place.open(), place.change(1, 0, [2]), WORLD)
    assert [row[0] for row in place.rows()] == [1, 2, 10, 11, 12]
    assert len(place.table().refs()) == 2, "main, and one tag for the application"


def test_a_tag_that_somebody_removed_is_noticed(place):
    commit_once(place.open(), place.change(0, None, [1]), WORLD)
    table = place.table()
    (tag,) = (name for name in table.refs() if name != "main")
    table.manage_snapshots().remove_tag(tag).commit()
    with pytest.raises(InvalidInputError, match="no rows of this query"):
        commit_once(place.open(), place.change(1, 0, [2]), WORLD)


def test_tables_that_cannot_be_kept_are_refused(place):
    place.open().create()
    table = place.table()
    with table.update_spec() as spec:
        spec.add_field("k", "bucket[4]", "k_bucket")
    opened = place.open()
    with pytest.raises(InvalidInputError, match=r"partitioned by \['bucket\[4\]\(k\)'\].*\n?"):
        opened.check(opened.look(APP))
    with pytest.raises(InvalidInputError, match="partitioned"):
        commit_once(place.open(), place.change(0, None, [1]), WORLD)
    other = place.open(pa.schema([("k", pa.string())]))
    with pytest.raises(InvalidInputError):
        other.check(other.look(APP))


@pytest.mark.parametrize("kind", [pa.uint8(), pa.timestamp("ns"), pa.float16(), pa.duration("s")])
def test_types_that_iceberg_has_not_are_refused_by_name(place, kind):
    with pytest.raises(InvalidInputError, match="column 'odd'"):
        place.open(pa.schema([("odd", kind)]))


def test_upsert_is_refused_with_what_to_do_instead():
    with pytest.raises(InvalidInputError, match="newest one of each key"):
        TableTarget(format="iceberg", target="a.b", mode="upsert", key=("k",))


def test_a_catalog_that_does_not_answer_loses_nothing(place):
    options = {"catalog.type": "rest", "catalog.uri": "http://127.0.0.1:9/"}
    table = place.open(SCHEMA, TableTarget(format="iceberg", target="a.b", options=options))
    with pytest.raises(UnavailableError, match="no row is lost"):
        table.look(APP)
    with pytest.raises(InvalidInputError, match=r"namespace\.table"):
        place.open(SCHEMA, TableTarget(format="iceberg", target="flights", options=options))


def test_files_that_are_gone_or_others_are_never_named(tmp_path, place):
    table = place.open()
    change = place.change(0, None, [1])
    (tmp_path / "warehouse" / "air" / "flights" / "data" / change.files[0].name).unlink()
    with pytest.raises(DataLossError, match="is gone"):
        commit_once(table, change, WORLD)
    odd = pa.table({"k": ["text"], "v": ["x"]})
    with pytest.raises(InvalidInputError, match="cannot take the files"):
        commit_once(table, place.change(0, None, [], rows=odd), WORLD)
    assert place.rows() == []


@pytest.mark.parametrize("change", ["rename", "drop"])
def test_columns_of_rows_that_the_table_has_lost_are_refused(place, change):
    """A file whose column has no id in the table would lose its values, and the commit would succeed."""
    with place.open() as table:
        table.create()
        assert [column.path for column in table.file_columns()] == [("k",), ("v",)]
    with place.catalog() as catalog, catalog.load_table("air.flights").update_schema() as schema:
        schema.rename_column("v", "w") if change == "rename" else schema.delete_column("v")
    with place.open() as table, pytest.raises(InvalidInputError, match="has no column 'v'"):
        table.file_columns()
