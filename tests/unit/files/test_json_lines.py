"""JSON of whole columns: the same values as row by row, for every type and at any depth."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import tracemalloc

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stateline.errors import InvalidInputError
from stateline.files.formats import FORMATS

BERLIN = dt.timezone(dt.timedelta(hours=1))
FIRST, LAST = dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.text(
    'a"\\/\n\t\x00\x1f\x7f\u2028é', max_size=6
)
MOMENTS = st.datetimes(FIRST, LAST) | st.datetimes(FIRST, LAST).map(lambda moment: moment.replace(microsecond=0))
TIMES = st.times() | st.times().map(lambda time: time.replace(microsecond=0))


def whole(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


def zoned(zone: dt.tzinfo) -> st.SearchStrategy[dt.datetime]:
    return MOMENTS.map(lambda moment: moment.replace(tzinfo=zone))


NAMES = [
    (pa.string(), TEXTS),
    (pa.large_string(), TEXTS),
    (pa.int64(), whole(64, signed=True)),
    (pa.uint8(), whole(8, signed=False)),
    (pa.date32(), st.dates(FIRST.date(), LAST.date())),
    (pa.timestamp("us"), MOMENTS),
    (pa.decimal128(9, 2), st.integers(-(10**9) + 1, 10**9 - 1).map(lambda digits: decimal.Decimal(digits).scaleb(-2))),
    (pa.binary(), st.binary(max_size=5)),
]
"""What can be a key of a map."""

PLAIN = [
    *NAMES,
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    (pa.int8(), whole(8, signed=True)),
    (pa.uint64(), whole(64, signed=False)),
    (pa.float16(), st.floats(width=16)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats() | st.integers(-(10**18), 10**18).map(float)),
    (pa.date64(), st.dates(FIRST.date(), LAST.date())),
    (pa.timestamp("s"), MOMENTS.map(lambda moment: moment.replace(microsecond=0))),
    (pa.timestamp("us", "UTC"), zoned(dt.UTC)),
    (pa.timestamp("us", "+01:00"), zoned(BERLIN)),
    (pa.time32("s"), TIMES.map(lambda time: time.replace(microsecond=0))),
    (pa.time64("us"), TIMES),
    (pa.time64("ns"), TIMES),
    (pa.decimal256(40, 10), st.integers(-(10**30), 10**30).map(lambda digits: decimal.Decimal(digits).scaleb(-10))),
    (pa.binary(2), st.binary(min_size=2, max_size=2)),
    (pa.string_view(), TEXTS),
]


def nested(inside: st.SearchStrategy) -> st.SearchStrategy:
    def lists(one):
        kind, values = one
        layouts = st.sampled_from([pa.list_(kind), pa.large_list(kind), pa.list_view(kind)])
        return layouts.map(lambda made: (made, st.lists(values | st.none(), max_size=3)))

    def pairs(one):
        kind, values = one
        fixed = st.lists(values | st.none(), min_size=2, max_size=2)
        return (pa.list_(kind, 2), fixed)

    def structures(some):
        fields = {f"f {number}": one for number, one in enumerate(some)}
        kind = pa.struct([(name, one[0]) for name, one in fields.items()])
        return (kind, st.fixed_dictionaries({name: one[1] | st.none() for name, one in fields.items()}))

    def maps(drawn):
        (key, names), (kind, values) = drawn
        entries = st.dictionaries(names, values | st.none(), max_size=3).map(lambda found: list(found.items()))
        return (pa.map_(key, kind), entries)

    return st.one_of(
        inside.flatmap(lists),
        inside.map(pairs),
        st.lists(inside, max_size=3).map(structures),
        st.tuples(st.sampled_from(NAMES), inside).map(maps),
    )


KINDS = st.recursive(st.sampled_from(PLAIN), nested, max_leaves=5)


@st.composite
def tables(draw):
    columns = {}
    rows = draw(st.integers(1, 6))
    for name in draw(st.lists(st.sampled_from(["a", 'b "q"', "c.d", "é"]), unique=True, min_size=1, max_size=3)):
        kind, values = draw(KINDS)
        columns[name] = pa.array(draw(st.lists(values | st.none(), min_size=rows, max_size=rows)), kind)
    table = pa.table(columns)
    start = draw(st.integers(0, rows - 1))
    return table.slice(start, draw(st.integers(0, rows - start)))


def row_by_row(table: pa.Table) -> list[dict]:
    """Rows in Python, with maps as dictionaries at any depth; pyarrow 21 makes them of the outer ones alone."""

    def made(value, kind):
        if value is None or not pa.types.is_nested(kind):
            return value
        if pa.types.is_map(kind):
            return {name: made(inside, kind.item_type) for name, inside in value}
        if pa.types.is_struct(kind):
            return {field.name: made(value[field.name], field.type) for field in kind}
        return [made(inside, kind.value_type) for inside in value]

    kinds = [(field.name, field.type) for field in table.schema]
    return [{name: made(row[name], kind) for name, kind in kinds} for row in table.to_pylist()]


def encoded(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    encoder = FORMATS["jsonl"].encoder(sink, table.schema, None, 1000)
    encoder.write(table)
    encoder.finish()
    return sink.getvalue()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(tables())
def test_json_of_columns_has_the_values_of_json_row_by_row(table):
    FORMATS["jsonl"].check_schema(table.schema)
    FORMATS["jsonl"].check_rows(table)
    one_by_one = msgspec.json.Encoder(decimal_format="string").encode_lines(row_by_row(table))
    data = encoded(table)
    assert data.count(b"\n") == table.num_rows
    found, expected = ([json.loads(line) for line in text.splitlines()] for text in (data, one_by_one))
    assert json.dumps(found) == json.dumps(expected)  # As text, so that 1 is not 1.0, and the order counts.


def test_values_that_are_stored_once_are_written_as_often_as_they_come():
    values = pa.array(["a", 'b"', None, "a"])
    moments = pa.array([0, 1, None, 0], pa.timestamp("us"))
    for stored in (values.dictionary_encode(), pc.run_end_encode(values)):
        column = pa.chunked_array([stored, stored.slice(1)])
        found = [json.loads(line)["x"] for line in encoded(pa.table({"x": column})).splitlines()]
        assert found == ["a", 'b"', None, "a", 'b"', None, "a"]
    lists = pa.ListArray.from_arrays([0, 2, 4], moments.dictionary_encode())
    found = [json.loads(line)["x"] for line in encoded(pa.table({"x": lists})).splitlines()]
    assert found == [["1970-01-01T00:00:00", "1970-01-01T00:00:00.000001"], [None, "1970-01-01T00:00:00"]]
    maps = [[("n", [("m", 1)])], [("n", [])], [("n", None)]]
    nested = pa.array(maps, pa.map_(pa.string(), pa.map_(pa.string(), pa.int64())))
    for views in (pa.ListViewArray, pa.LargeListViewArray):
        column = views.from_arrays([2, 0, 1], [1, 2, 2], nested)
        found = [json.loads(line)["x"] for line in encoded(pa.table({"x": column})).splitlines()]
        assert found == [[{"n": None}], [{"n": {"m": 1}}, {"n": {}}], [{"n": {}}, {"n": None}]]
    for kind in (pa.dictionary(pa.int8(), pa.timestamp("ns")), pa.run_end_encoded(pa.int32(), pa.duration("s"))):
        with pytest.raises(InvalidInputError, match=r"microseconds|intervals"):
            FORMATS["jsonl"].check_schema(pa.schema([("x", pa.list_(kind))]))


def test_json_of_more_rows_than_one_batch_keeps_their_order():
    batches = [pa.record_batch({"x": pa.array([[n], None, [n, n + 1]])}) for n in range(0, 30, 3)]
    data = encoded(pa.Table.from_batches(batches))
    assert [json.loads(line)["x"] for line in data.splitlines()[:4]] == [[0], None, [0, 1], [3]]
    assert data.count(b"\n") == 30


@pytest.mark.parametrize("key", [pa.array([1, 2, 1]), pa.array(["a", "b", "a"]), pa.array([0, 5, 0], pa.date32())])
def test_a_key_that_comes_twice_in_one_map_at_any_depth_is_refused(key):
    good = pa.MapArray.from_arrays([0, 2, 3], key, pa.array([1, 2, 3]))
    bad = pa.MapArray.from_arrays([0, 3, 3], key, pa.array([1, 2, 3]))
    FORMATS["jsonl"].check_rows(pa.table({"m": good}))
    FORMATS["jsonl"].check_rows(pa.table({"m": bad.slice(1)}))
    inside = pa.StructArray.from_arrays([bad], ["m"])
    for column in (bad, inside, pa.ListArray.from_arrays([0, 2], bad)):
        with pytest.raises(InvalidInputError, match=r"'x'.*key twice|key twice.*'x'"):
            FORMATS["jsonl"].check_rows(pa.table({"x": column}))


def test_json_is_made_of_whole_columns_and_not_of_an_object_of_python_for_each_value():
    count = 10_000
    rows = pa.table(
        {
            "point": pa.array([{"x": n, "name": f"x{n}"} for n in range(count)]),
            "list": pa.array([[{"n": n}, {"n": None}] for n in range(count)]),
            "map": pa.array([[("k", 0.5 * n)] for n in range(count)], pa.map_(pa.string(), pa.float64())),
        }
    )
    tracemalloc.start()
    try:
        FORMATS["jsonl"].check_rows(rows)
        data = encoded(rows)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * len(data), "objects of Python would take more than fifteen times the bytes of the file"
