"""Every type of Spark through the file sink, and back through Spark, pyarrow and DuckDB."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

UTC = dt.UTC

SCHEMA = """
    id int, tiny byte, small short, whole int, large long, single float, double double, flag boolean, text string,
    bytes binary, day date, at timestamp, wall timestamp_ntz, money decimal(38, 18), cents decimal(9, 2),
    list array<int>, names map<string, long>, point struct<x: double, tags: array<string>>,
    deep array<struct<key: string, values: map<int, decimal(10, 3)>>>
"""

ROWS = [
    (
        *(0, -128, -32768, -(2**31), -(2**63), 1.5, -0.0, True, "ünï\n\u0000", b"\x00\xff", dt.date(1, 1, 1)),
        *(dt.datetime(1901, 2, 3, 4, 5, 6, 789, tzinfo=UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)),
        *(Decimal("12345678901234567890.123456789012345678"), Decimal("-1234567.89")),
        *([1, None, 3], {"a": 1, "b": None}, (1.5, ["x", None]), [("k", {1: Decimal("1.500"), 2: None}), None]),
    ),
    (1, 127, 32767, 2**31 - 1, 2**63 - 1, *(None,) * 14),
    (
        *(2, 0, 0, 0, 0, float("inf"), float("-inf"), False, "", b"", dt.date(9999, 12, 31)),
        *(dt.datetime(2024, 2, 29, 0, 0, tzinfo=UTC), dt.datetime(1970, 1, 1)),
        *(Decimal("-0.000000000000000001"), Decimal("0.00"), [], {}, (None, []), []),
    ),
]


@pytest.fixture(scope="module")
def written(spark, tmp_path_factory):
    """The folder, and the rows as Spark holds them."""
    folder = tmp_path_factory.mktemp("types")
    frame = spark.createDataFrame(ROWS, SCHEMA).coalesce(1)
    frame.write.format("stateline_files").mode("append").save(f"file://{folder}/out")
    return folder / "out", frame


def as_given(value, kind):
    """A value that pyarrow read, in the form of :data:`ROWS`: structs as tuples, maps as mappings."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return tuple(as_given(value[field.name], field.type) for field in kind)
    if pa.types.is_map(kind):
        return {key: as_given(item, kind.item_type) for key, item in value}
    if pa.types.is_list(kind):
        return [as_given(item, kind.value_type) for item in value]
    return value.astimezone(UTC) if isinstance(value, dt.datetime) and value.tzinfo else value


def test_spark_reads_what_spark_wrote(spark, written):
    folder, frame = written
    found = spark.read.parquet(str(folder))
    assert [(field.name, field.dataType) for field in found.schema] == [
        (field.name, field.dataType) for field in frame.schema
    ]
    assert sorted(found.collect()) == sorted(frame.collect())


def test_pyarrow_reads_the_same(written):
    folder, _ = written
    table = ds.dataset(folder, format="parquet").to_table().sort_by("id")
    found = [
        tuple(as_given(value, field.type) for field, value in zip(table.schema, row.values(), strict=True))
        for row in table.to_pylist()
    ]
    assert found == ROWS


def test_duckdb_reads_the_same(written):
    folder, frame = written
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        names = [field.name for field in frame.schema if field.name not in ("at", "deep", "names", "day", "wall")]
        rows = connection.execute(
            f"SELECT {', '.join(names)}, epoch_us(\"at\"), epoch_us(wall), CAST(day AS VARCHAR), names['a'], "
            f"deep[1].values[1] FROM read_parquet('{folder}/*.parquet') ORDER BY id"
        ).fetchall()
    for row, wanted in zip(rows, ROWS, strict=True):
        for name, value in zip(names, row, strict=False):
            expected = dict(zip(frame.columns, wanted, strict=True))[name]
            if name == "point" and expected is not None:
                expected = dict(zip(("x", "tags"), expected, strict=True))
            assert value == expected, name
    epoch = dt.datetime(1970, 1, 1, tzinfo=UTC)
    instants = [row[11] for row in ROWS]
    assert [row[len(names)] for row in rows] == [
        None if at is None else (at - epoch) // dt.timedelta(microseconds=1) for at in instants
    ]
    assert [row[len(names) + 2] for row in rows] == ["0001-01-01", None, "9999-12-31"]
    assert [row[len(names) + 3] for row in rows] == [1, None, None]
    assert [row[len(names) + 4] for row in rows] == [Decimal("1.500"), None, None]


@pytest.mark.parametrize("kind", ["INTERVAL DAY TO SECOND", "INTERVAL YEAR TO MONTH"])
def test_intervals_are_refused_with_the_reason(spark, kind, tmp_path):
    frame = spark.sql(f"SELECT CAST(NULL AS {kind}) AS pause")
    with pytest.raises(Exception, match=r"(?s)pause.*interval|interval.*pause|cannot convert a column to Arrow"):
        frame.write.format("stateline_files").mode("append").save(f"file://{tmp_path}/out")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("*.parquet"))


def test_a_structure_may_be_null_whose_fields_are_not(spark, tmp_path):
    frame = spark.sql(
        "SELECT id, CASE WHEN id > 0 THEN named_struct('a', id) END AS point, "
        "array(named_struct('b', 1), CASE WHEN id > 0 THEN named_struct('b', 2) END) AS points, "
        "CASE WHEN id > 0 THEN parse_json('{\"c\": [1, null]}') END AS anything FROM range(3)"
    )
    frame.write.format("stateline_files").mode("append").save(f"file://{tmp_path}/out")
    found = spark.read.schema(frame.schema).parquet(f"{tmp_path}/out")
    as_text = ["id", "to_json(struct(*)) AS row"]
    assert sorted(found.selectExpr(*as_text).collect()) == sorted(frame.selectExpr(*as_text).collect())
