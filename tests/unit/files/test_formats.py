"""How rows become bytes."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from stateline.errors import ErrorKind, InvalidInputError
from stateline.files import FileOutput
from stateline.files.formats import FORMATS
from stateline.files.partitions import check_partition


def lines(name: str, table: pa.Table) -> bytes:
    sink = io.BytesIO()
    encoder = FORMATS[name].encoder(sink, table.schema, None, 1000)
    encoder.write(table)
    encoder.finish()
    return sink.getvalue()


def parquet(*tables: pa.Table) -> bytes:
    sink = io.BytesIO()
    encoder = FORMATS["parquet"].encoder(sink, tables[0].schema, "snappy", 1000)
    for table in tables:
        encoder.write(table)
    encoder.finish()
    return sink.getvalue()


def test_only_columns_that_repeat_get_a_dictionary():
    rows = 500
    table = pa.table(
        {
            "id": pa.array(range(rows)),
            "name": pa.array([f"n{index % 7}" for index in range(rows)]),
            "none": pa.nulls(rows),
            "a.b": pa.array([f"unique {index}" for index in range(rows)]),
            "nested": pa.array([[{"x": index}] for index in range(rows)]),
        }
    )
    data = parquet(table, table)
    found = pq.read_metadata(io.BytesIO(data)).row_group(0)
    encodings = {found.column(index).path_in_schema: found.column(index).encodings for index in range(5)}
    with_dictionary = {path for path, names in encodings.items() if "RLE_DICTIONARY" in names}
    assert with_dictionary == {"name", "none", "nested.list.element.x"}
    assert pq.read_table(io.BytesIO(data)).equals(pa.concat_tables([table, table]))


def test_a_file_without_rows_is_a_file():
    data = parquet(pa.table({"id": pa.array([], pa.int64())}))
    assert pq.read_table(io.BytesIO(data)).num_rows == 0


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None, "", "b\n\nc", 'q"']),
        pa.array([1, None, None, 4, None]),
        pa.array([None, True, False, None, None]),
    ],
)
def test_a_null_in_the_only_column_of_csv_is_a_row_that_readers_see(column):
    data = lines("csv", pa.table({"v": column}))
    several_lines = pyarrow.csv.ParseOptions(newlines_in_values=True)
    as_it_is = pyarrow.csv.ConvertOptions(column_types={"v": column.type}, strings_can_be_null=True)
    read = pyarrow.csv.read_csv(io.BytesIO(data), parse_options=several_lines, convert_options=as_it_is)
    assert read["v"].to_pylist() == [value if value != "" else None for value in column.to_pylist()]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_floats_that_are_no_numbers_are_spelled_in_csv_as_spark_reads_them(kind):
    values = [0.5, None, float("nan"), float("inf"), float("-inf"), -0.0, 1e20]
    both = pa.table({"v": pa.array(values, kind), "text": ["nan"] * len(values)})
    for table in (both, both.select(["v"])):
        data = lines("csv", table)
        spelled = [line.split(b",")[0].strip(b'"') for line in data.splitlines()[1:]]
        assert spelled == [b"0.5", b"", b"NaN", b"Inf", b"-Inf", b"-0", b"1e+20"]
    assert data.count(b"nan") == 0
    as_it_is = pyarrow.csv.ConvertOptions(column_types={"v": kind}, null_values=[""], quoted_strings_can_be_null=True)
    assert str(pyarrow.csv.read_csv(io.BytesIO(data), convert_options=as_it_is)["v"].to_pylist()) == str(
        both["v"].to_pylist()
    )


def test_maps_are_objects_in_json():
    nested = pa.map_(pa.string(), pa.list_(pa.map_(pa.int64(), pa.float64())))
    data = lines("jsonl", pa.table({"m": pa.array([[("a", [[(1, 0.5)]]), ("b", None)], [], None], nested)}))
    assert [json.loads(line)["m"] for line in data.splitlines()] == [{"a": [{"1": 0.5}], "b": None}, {}, None]


def test_a_map_that_holds_a_key_twice_is_refused_in_json():
    twice = pa.table({"m": pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))})
    with pytest.raises(InvalidInputError, match="key twice"):
        lines("jsonl", twice)


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\r"])
def test_text_refuses_whatever_a_reader_takes_for_the_end_of_a_line(value):
    with pytest.raises(InvalidInputError, match="line break"):
        lines("text", pa.table({"v": [value]}))


@pytest.mark.parametrize("name", ["parquet", "arrow", "jsonl"])
@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.duration("us")),
        pa.struct([("a", pa.struct([("b", pa.month_day_nano_interval())]))]),
        pa.map_(pa.string(), pa.duration("us")),
    ],
)
def test_intervals_inside_of_other_types_are_refused_with_the_reason(name, kind):
    with pytest.raises(InvalidInputError, match="intervals"):
        FORMATS[name].check_schema(pa.schema([("x", kind)]))


def test_structures_without_fields_are_refused_in_parquet():
    for kind in (pa.struct([]), pa.list_(pa.struct([])), pa.map_(pa.string(), pa.struct([]))):
        with pytest.raises(InvalidInputError, match="structures without fields"):
            FORMATS["parquet"].check_schema(pa.schema([("x", kind)]))
        FORMATS["jsonl"].check_schema(pa.schema([("x", kind)]))


def test_decimals_whose_point_lies_beside_their_digits_are_refused_in_parquet():
    """An aggregator may declare one; at the first file the encoder would raise an ``OSError``."""
    for kind in (pa.decimal128(10, -2), pa.decimal128(3, 5), pa.list_(pa.decimal256(60, -1))):
        with pytest.raises(InvalidInputError, match="decimals whose point"):
            FORMATS["parquet"].check_schema(pa.schema([("x", kind)]))
        FORMATS["arrow"].check_schema(pa.schema([("x", kind)]))
    FORMATS["parquet"].check_schema(pa.schema([("x", pa.decimal128(5, 5)), ("y", pa.decimal128(38, 0))]))


@pytest.mark.parametrize(
    "kind", [pa.string_view(), pa.list_(pa.binary_view()), pa.run_end_encoded(pa.int32(), pa.int64())]
)
@pytest.mark.parametrize("name", ["parquet", "csv"])
def test_layouts_that_an_encoder_does_not_know_are_refused(name, kind):
    with pytest.raises(InvalidInputError, match=r"plain values|flat text"):
        FORMATS[name].check_schema(pa.schema([("x", kind)]))
    FORMATS["arrow"].check_schema(pa.schema([("x", kind)]))


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (pa.float16(), "float"),
        (pa.timestamp("ns"), r"timestamp\[us\]"),
        (pa.timestamp("ns", "Europe/Berlin"), r"timestamp\[us, tz=Europe/Berlin\]"),
        (pa.time32("s"), r"time64\[us\]"),
        (pa.time32("ms"), r"time64\[us\]"),
        (pa.decimal256(50, 2), r"decimal128\(38, 2\)"),
        (pa.decimal256(76, 76), r"decimal128\(38, 38\)"),
        (pa.uuid(), r"fixed_size_binary\[16\]"),
    ],
)
def test_what_spark_cannot_read_from_parquet_is_refused_with_what_to_cast_it_to(kind, target):
    inside = [pa.list_(kind), pa.struct([("a", kind)]), pa.map_(pa.string(), kind), pa.list_view(kind)]
    encoded = [] if pa.types.is_float16(kind) else [pa.dictionary(pa.int8(), kind)]
    for each in (kind, *inside, *encoded):
        schema = pa.schema([("k", pa.int64()), ("x", each)])
        with pytest.raises(InvalidInputError, match=rf"'x'.*cast it to {target}") as caught:
            FileOutput(url="unused").file_schema(schema)
        assert caught.value.kind is ErrorKind.SCHEMA_MISMATCH
        FORMATS["arrow"].check_schema(schema)


def test_what_spark_reads_from_parquet_is_written():
    """Each was read by Spark 4.3 from a file of this encoder."""
    plain = [pa.null(), pa.bool_(), pa.int8(), pa.uint8(), pa.uint64(), pa.float32(), pa.date32(), pa.date64()]
    plain += [pa.decimal32(5, 2), pa.decimal64(12, 2), pa.decimal128(38, 10), pa.decimal256(38, 2), pa.binary(3)]
    plain += [pa.timestamp(unit, zone) for unit in ("s", "ms", "us") for zone in (None, "UTC")]
    plain += [
        pa.time64("us"),
        pa.time64("ns"),
        pa.large_string(),
        pa.large_binary(),
        pa.dictionary(pa.int8(), pa.string()),
    ]
    for kind in plain:
        for each in (kind, pa.list_(kind), pa.list_view(kind), pa.list_(kind, 2), pa.struct([("a", kind)])):
            assert FORMATS["parquet"].check_schema(pa.schema([("x", each)])) is None, "nothing is refused"


def test_whole_microseconds_of_times_are_no_loss_at_any_depth():
    times = pa.array([3_723_123_456_000, None], pa.time64("ns"))
    point = pa.StructArray.from_arrays([times, pa.array([1, 2])], ["t", "x"])
    rows = pa.table(
        {
            "t": times,
            "list": pa.LargeListArray.from_arrays([0, 1, 2], times),
            "point": point,
            "map": pa.MapArray.from_arrays([0, 1, 2], pa.array(["a", "b"]), point),
        }
    )
    FORMATS["jsonl"].check_rows(rows)
    assert json.loads(lines("jsonl", rows).splitlines()[0])["map"] == {"a": {"t": "01:02:03.123456", "x": 1}}


FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""Of the years 1 and 9999, since the epoch."""


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_json_holds_the_times_of_the_years_1_to_9999(unit, zone):
    a_day = 86_400 * {"s": 1, "ms": 1000, "us": 1_000_000}[unit]
    first, last = FIRST_DAY * a_day, (LAST_DAY + 1) * a_day - 1
    good = pa.table({"x": pa.array([first, None, last], pa.timestamp(unit, zone))})
    FORMATS["jsonl"].check_rows(good)
    assert json.loads(lines("jsonl", good).splitlines()[0])["x"].startswith("0001-01-01T00:00:00")
    for value in (first - 1, last + 1):
        with pytest.raises(InvalidInputError, match=r"'x'.*years 1 to 9999"):
            FORMATS["jsonl"].check_rows(pa.table({"x": pa.array([0, value], pa.timestamp(unit, zone))}))


def test_dates_have_the_same_bounds_and_so_have_times_inside_of_other_types():
    FORMATS["jsonl"].check_rows(pa.table({"x": pa.array([FIRST_DAY, LAST_DAY], pa.date32())}))
    for value in (FIRST_DAY - 1, LAST_DAY + 1):
        days = pa.array([value], pa.date32())
        for column in (days, pa.ListArray.from_arrays([0, 1], days), pa.StructArray.from_arrays([days], ["day"])):
            with pytest.raises(InvalidInputError, match=r"'x'.*years 1 to 9999"):
                FORMATS["jsonl"].check_rows(pa.table({"x": column}))
            FORMATS["parquet"].check_rows(pa.table({"x": column}))


def test_csv_holds_years_of_16_bits():
    """Arrow would write the year 294247 as 32103."""
    far = pa.array([240_000_000_000_000_000], pa.timestamp("us"))
    FORMATS["csv"].check_rows(pa.table({"x": far}))
    assert b"9575-" in lines("csv", pa.table({"x": far}))
    with pytest.raises(InvalidInputError, match=r"'x'.*years -32767 to 32767"):
        FORMATS["csv"].check_rows(pa.table({"x": pa.array([2**63 - 1], pa.timestamp("us"))}))


@pytest.mark.parametrize("key", [pa.bool_(), pa.float64(), pa.struct([("a", pa.int64())])])
def test_keys_that_have_no_text_are_refused_in_json(key):
    with pytest.raises(InvalidInputError, match="name in JSON is text"):
        FORMATS["jsonl"].check_schema(pa.schema([("x", pa.list_(pa.map_(key, pa.int64())))]))
    FORMATS["parquet"].check_schema(pa.schema([("x", pa.list_(pa.map_(key, pa.int64())))]))


FAR = 253402300800_000_000
"""Microseconds from the epoch to the year 10000: Arrow and Spark have it, Python has not."""


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, FAR, None], pa.timestamp("us", "UTC")),
        pa.array([-FAR], pa.timestamp("us")),
        pa.array([2**30], pa.date32()),
        pa.array([[FAR]], pa.list_(pa.timestamp("us"))),
        pa.array([{"t": [FAR]}], pa.struct([("t", pa.list_(pa.timestamp("us")))])),
    ],
)
def test_moments_that_json_cannot_hold_are_refused_before_they_are_durable(column):
    with pytest.raises(InvalidInputError, match=r"'c'.*years 1 to 9999"):
        FORMATS["jsonl"].check_rows(pa.table({"c": column}))
    FORMATS["parquet"].check_rows(pa.table({"c": column}))
    FORMATS["jsonl"].check_rows(pa.table({"c": pa.array([FAR - 1, None, -FAR // 5], pa.timestamp("us", "UTC"))}))
    with pytest.raises(InvalidInputError, match="microseconds"):
        FORMATS["jsonl"].check_schema(pa.schema([("c", pa.list_(pa.timestamp("ns")))]))


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("p", pa.list_(pa.int64()), "no form"),
        ("p", pa.struct([("a", pa.int64())]), "no form"),
        ("p", pa.duration("us"), "intervals"),
        ("_p", pa.int64(), "readers skip"),
        (".p", pa.int64(), "readers skip"),
        ("p", pa.dictionary(pa.int32(), pa.string()), "only by plain values"),
        ("p", pa.string_view(), "only by plain values"),
    ],
)
def test_columns_that_cannot_be_folders_are_refused_with_the_reason(name, kind, reason):
    with pytest.raises(InvalidInputError, match=reason):
        check_partition(pa.field(name, kind))
