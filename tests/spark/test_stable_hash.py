"""The stable hash equals Spark's ``xxhash64``, and the key group equals the SQL expression that the JVM uses.

Values are drawn by hypothesis, which looks for edges, and by a seeded generator, which looks everywhere else. They are
compared in bulk: one Spark job for each type, not one for each value.
"""

from __future__ import annotations

import datetime as dt
import decimal
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr, xxhash64

from stateline.key_groups import MAX_PARALLELISM_LIMIT, hash_columns, key_group_of, stable_hash

pytestmark = pytest.mark.spark

DRAWN = 400
RANDOM = 3000
EPOCH = dt.datetime(1970, 1, 1)

Random = np.random.Generator


def integers(bits: int) -> tuple[st.SearchStrategy[Any], Callable[[Random], list[Any]]]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    edges = st.sampled_from([low, low + 1, -1, 0, 1, high - 1, high])
    return edges | st.integers(low, high), lambda rng: rng.integers(low, high, RANDOM, endpoint=True).tolist()


def random_bytes(rng: Random) -> list[bytes]:
    """Every length from 0 to 99: the hash treats blocks of 32, 8, 4 and 1 bytes each in its own way."""
    return [rng.bytes(int(length)) for length in np.arange(RANDOM) % 100]


def random_strings(rng: Random) -> list[str]:
    letters = [*"abcxyz019 _-", "é", "ß", "漢", "😀", "\u0000", "e\u0301"]
    return ["".join(rng.choice(letters, size=int(length))) for length in rng.integers(0, 70, RANDOM)]


def random_doubles(rng: Random) -> list[float]:
    return rng.integers(0, 2**64, RANDOM, dtype=np.uint64).view(np.float64).tolist()


def random_floats(rng: Random) -> list[float]:
    return rng.integers(0, 2**32, RANDOM, dtype=np.uint32).view(np.float32).tolist()


def decimals(precision: int, scale: int) -> tuple[st.SearchStrategy[Any], Callable[[Random], list[Any]]]:
    bound = 10**precision - 1
    near_byte_bounds = [-256, -255, -129, -128, -127, -1, 0, 1, 127, 128, 255, 256]
    edges = st.sampled_from([-bound, *(value for value in near_byte_bounds if abs(value) <= bound), bound])

    def scaled(unscaled: int) -> decimal.Decimal:
        return decimal.Decimal(unscaled).scaleb(-scale, decimal.Context(prec=60))

    def generate(rng: Random) -> list[Any]:
        digits = rng.integers(0, precision, RANDOM, endpoint=True).tolist()
        signs = rng.choice([-1, 1], RANDOM).tolist()
        words = [int.from_bytes(rng.bytes(20)) for _ in range(RANDOM)]
        return [scaled(sign * (word % 10**count)) for sign, word, count in zip(signs, words, digits, strict=True)]

    return (edges | st.integers(-bound, bound)).map(scaled), generate


def random_dates(rng: Random) -> list[dt.date]:
    return [EPOCH.date() + dt.timedelta(int(days)) for days in rng.integers(-700_000, 2_900_000, RANDOM)]


def random_times(rng: Random) -> list[dt.datetime]:
    return [EPOCH + dt.timedelta(microseconds=int(micros)) for micros in rng.integers(-(2**55), 2**57, RANDOM)]


def utc(time: dt.datetime) -> dt.datetime:
    return time.replace(tzinfo=dt.UTC)


SPECIAL_FLOATS = st.sampled_from([0.0, -0.0, float("nan"), float("inf"), float("-inf"), 5e-324, 1.5, -1.5])
NAIVE_TIMES = st.datetimes()
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any], Callable[[Random], list[Any]]]] = {
    "byte": (pa.int8(), *integers(8)),
    "short": (pa.int16(), *integers(16)),
    "int": (pa.int32(), *integers(32)),
    "long": (pa.int64(), *integers(64)),
    "string": (pa.string(), st.text(), random_strings),
    "binary": (pa.binary(), st.binary(), random_bytes),
    "boolean": (pa.bool_(), st.booleans(), lambda rng: rng.choice([True, False], RANDOM).tolist()),
    "date": (pa.date32(), st.dates(), random_dates),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        NAIVE_TIMES.map(utc),
        lambda rng: [utc(time) for time in random_times(rng)],
    ),
    "timestamp_ntz": (pa.timestamp("us"), NAIVE_TIMES, random_times),
    "float": (pa.float32(), SPECIAL_FLOATS.map(np.float32) | st.floats(width=32), random_floats),
    "double": (pa.float64(), SPECIAL_FLOATS | st.floats(), random_doubles),
    **{
        f"decimal({precision},{scale})": (pa.decimal128(precision, scale), *decimals(precision, scale))
        for precision, scale in [
            (1, 0),
            (5, 2),
            (9, 9),
            (18, 0),
            (18, 6),
            (19, 0),
            (20, 20),
            (28, 10),
            (38, 0),
            (38, 18),
        ]
    },
}


def draw(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """``count`` values that hypothesis would try, always the same."""
    values: list[Any] = []

    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: Any) -> None:
        values.append(value)

    collect()
    return values


@functools.cache
def make_column(name: str, seed: int) -> pa.Array:
    """Drawn and random values of a type, a tenth of them null, in random order."""
    data_type, strategy, generate = TYPES[name]
    rng = np.random.default_rng(seed)
    values = [*draw(strategy, DRAWN), *generate(rng)]
    order = rng.permutation(len(values))
    nulls = rng.random(len(values)) < 0.1
    return pa.array([None if nulls[i] else values[i] for i in order], type=data_type)


def spark_hashes(frame: DataFrame, names: Sequence[str]) -> np.ndarray:
    return frame.select(xxhash64(*names).alias("hash")).toArrow()["hash"].to_numpy()


def differing(table: pa.Table, ours: np.ndarray, theirs: np.ndarray) -> list[Any]:
    """The first few rows whose hashes differ, to be read in a failure."""
    return table.take(pa.array(np.flatnonzero(ours != theirs)[:5])).to_pylist()


@pytest.mark.parametrize("name", TYPES)
def test_the_hash_of_a_column_is_that_of_spark(spark: SparkSession, name: str) -> None:
    table = pa.table({"key": make_column(name, 1)})
    theirs = spark_hashes(spark.createDataFrame(table), ["key"])
    ours = hash_columns([table["key"]]).view(np.int64)
    assert differing(table, ours, theirs) == []
    assert ours.size >= 1000
    assert (ours == stable_hash(None)).any(), "no null among the values: the test has lost its point"


def test_every_not_a_number_and_both_zeros_hash_as_one(spark: SparkSession) -> None:
    patterns = [0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001, 0xFFFFFFFFFFFFFFFF]
    doubles = np.array([*patterns, 0, 1 << 63], dtype=np.uint64).view(np.float64)
    narrow = np.array([0x7FC00000, 0x7FC00001, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0, 1 << 31], dtype=np.uint32)
    table = pa.table({"double": doubles, "float": narrow.view(np.float32)})
    frame = spark.createDataFrame(table)
    for name in table.column_names:
        ours = hash_columns([table[name]]).view(np.int64)
        assert differing(table, ours, spark_hashes(frame, [name])) == []
        assert len(set(ours.tolist())) == 2


@pytest.mark.parametrize(
    "names",
    [
        ("long", "string"),
        ("string", "long"),
        ("int", "int"),
        ("string", "date"),
        ("binary", "double", "boolean"),
        ("decimal(38,18)", "decimal(9,9)", "timestamp", "float"),
        ("byte", "short", "timestamp_ntz", "string", "long", "binary"),
    ],
    ids=", ".join,
)
def test_the_hash_of_several_columns_is_that_of_spark(spark: SparkSession, names: tuple[str, ...]) -> None:
    columns = [make_column(name, seed) for seed, name in enumerate(names)]
    length = min(len(column) for column in columns)
    table = pa.table({f"k{index}": column.slice(0, length) for index, column in enumerate(columns)})
    theirs = spark_hashes(spark.createDataFrame(table), table.column_names)
    ours = hash_columns(table.columns).view(np.int64)
    assert differing(table, ours, theirs) == []


def test_the_hash_of_one_key_is_that_of_a_column_of_it(spark: SparkSession) -> None:
    """``stable_hash`` takes Python values: an int is a long, a float a double, a Decimal has its own scale."""
    values = {
        "long": -5,
        "string": "N14228 é",
        "binary": b"\x00\xff",
        "boolean": True,
        "double": -0.0,
        "date": dt.date(2013, 1, 1),
        "timestamp": dt.datetime(2013, 1, 1, 5, 30, 0, 7, tzinfo=dt.UTC),
        "timestamp_ntz": dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
        "decimal(5,2)": decimal.Decimal("-12.34"),
    }
    table = pa.table({name: pa.array([value], TYPES[name][0]) for name, value in values.items()})
    frame = spark.createDataFrame(table)
    row = frame.select(*(xxhash64(f"`{name}`").alias(name) for name in values), xxhash64("*").alias("all")).first()
    assert row is not None
    assert {name: stable_hash(value) for name, value in values.items()} == {name: row[name] for name in values}
    assert stable_hash(*values.values()) == row["all"]
    assert stable_hash(pa.scalar(-5, pa.int32())) == spark.range(1).select(xxhash64(expr("int(-5)"))).first()[0]


def test_other_encodings_of_a_column_hash_alike() -> None:
    """What Arrow may hand over for one Spark type: slices, chunks, dictionaries, other layouts and units."""
    for name in TYPES:
        column = make_column(name, 1)
        expected = hash_columns([column])
        assert np.array_equal(hash_columns([column.slice(7, 500)]), expected[7:507]), name
        chunked = pa.chunked_array([column.slice(0, 3), column.slice(3, 0), column.slice(3)])
        assert np.array_equal(hash_columns([chunked]), expected), name
        assert np.array_equal(hash_columns([column.dictionary_encode()]), expected), name
    for name, others in {
        "string": [pa.large_string(), pa.string_view(), pa.binary()],
        "binary": [pa.large_binary(), pa.binary_view()],
    }.items():
        column = make_column(name, 1)
        for other in others:
            assert np.array_equal(hash_columns([column.cast(other)]), hash_columns([column])), other
    seconds = pa.array([0, -1, 1_700_000_000, None], pa.int64())
    micros = pa.array([0, -1_000_000, 1_700_000_000_000_000, None], pa.int64())
    for unit_seconds, unit_micros in [
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.timestamp("s", "UTC"), pa.timestamp("us", "UTC")),
    ]:
        coarse, fine = seconds.cast(unit_seconds), micros.cast(unit_micros)
        assert np.array_equal(hash_columns([coarse]), hash_columns([fine]))


@pytest.mark.parametrize("max_parallelism", [1, 2, 3, 7, 127, 128, 129, 1000, 4096, 32767, MAX_PARALLELISM_LIMIT])
def test_the_key_group_in_sql_is_that_in_python(spark: SparkSession, max_parallelism: int) -> None:
    """``shiftrightunsigned(shiftrightunsigned(hash, 32) * max_parallelism, 32)``: the product stays below 2**47."""
    count = 5000
    frame = spark.range(count).select(
        xxhash64("id").alias("hash"),
        expr(f"shiftrightunsigned(shiftrightunsigned(xxhash64(id), 32) * {max_parallelism}L, 32)").alias("key_group"),
    )
    table = frame.toArrow()
    assert np.array_equal(hash_columns([pa.array(range(count))]).view(np.int64), table["hash"].to_numpy())
    ours = key_group_of(table["hash"].to_numpy(), max_parallelism)
    assert np.array_equal(ours, table["key_group"].to_numpy())
    assert ours.min() >= 0
    assert ours.max() <= max_parallelism - 1
    order = np.argsort(table["hash"].to_numpy().view(np.uint64))
    assert (np.diff(ours[order]) >= 0).all(), "not monotone in the unsigned hash"


def test_the_key_group_of_extreme_hashes_is_that_of_spark(spark: SparkSession) -> None:
    hashes = np.array([0, 1, 2**32 - 1, 2**32, 2**63 - 1, -(2**63), -(2**32), -(2**32) - 1, -1], dtype=np.int64)
    frame = spark.createDataFrame(pa.table({"hash": hashes}))
    for max_parallelism in (1, 3, 128, MAX_PARALLELISM_LIMIT):
        expression = expr(f"shiftrightunsigned(shiftrightunsigned(hash, 32) * {max_parallelism}L, 32)")
        theirs = frame.select(col("hash"), expression.alias("key_group")).toArrow()["key_group"].to_pylist()
        assert [key_group_of(int(value), max_parallelism) for value in hashes] == theirs
        assert key_group_of(hashes, max_parallelism).tolist() == theirs
