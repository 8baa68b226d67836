"""The stable hash and the assignment of key groups: none of it may ever change."""

import datetime as dt
import decimal
import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline.errors import InvalidInputError
from stateline.key_groups import (
    HASH_SEED,
    MAX_PARALLELISM_LIMIT,
    KeyGroupRange,
    check_key_type,
    default_max_parallelism,
    hash_bounds,
    hash_columns,
    key_group_of,
    range_for_subtask,
    stable_hash,
    subtask_for_key_group,
)
from tests.kit.strategies import key_columns, key_group_ranges, parallelisms

# XXH64 with seed 42 of the little-endian bytes, which is Spark's xxhash64; tests/spark compares with a running Spark.
KNOWN = [
    ((), 42),
    ((None,), 42),
    (("",), -7444071767201028348),
    (("Spark",), -4294468057691064905),
    ((0,), -5252525462095825812),
    ((1,), -7001672635703045582),
    ((-1,), 3858142552250413010),
    ((pa.scalar(1, pa.int32()),), -6698625589789238999),
    ((True,), -6698625589789238999),
    ((1.0,), -2162451265447482029),
]


def partitions(parallelism, groups):
    ranges = [range_for_subtask(index, parallelism, groups) for index in range(parallelism)]
    return [(owned.start, owned.end) for owned in ranges]


@pytest.mark.parametrize("groups", [1, 2, 3, 7, 128, 1000])
def test_ranges_partition_the_groups_for_every_parallelism(groups):
    for parallelism in range(1, groups + 1):
        ranges = partitions(parallelism, groups)
        assert ranges[0][0] == 0
        assert ranges[-1][1] == groups - 1
        assert all(right[0] == left[1] + 1 for left, right in itertools.pairwise(ranges))
        sizes = {end - start + 1 for start, end in ranges}
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1


def test_ranges_and_owners_are_inverse_up_to_the_largest_number_of_groups():
    """A sample of all parallelisms for 32768 groups, vectorised: the two formulas of the module, as it states them."""
    groups = np.arange(MAX_PARALLELISM_LIMIT, dtype=np.int64)
    for parallelism in (*range(1, MAX_PARALLELISM_LIMIT, 37), MAX_PARALLELISM_LIMIT - 1, MAX_PARALLELISM_LIMIT):
        owners = groups * parallelism // MAX_PARALLELISM_LIMIT
        index = np.arange(parallelism, dtype=np.int64)
        starts = -(-index * MAX_PARALLELISM_LIMIT // parallelism)
        assert np.array_equal(np.searchsorted(owners, index, side="left"), starts)


@given(parallelisms(), st.data())
def test_a_group_is_in_the_range_of_its_subtask(pair, data):
    parallelism, groups = pair
    group = data.draw(st.integers(0, groups - 1))
    owner = subtask_for_key_group(group, parallelism, groups)
    assert group in range_for_subtask(owner, parallelism, groups)
    assert owner == 0 or group not in range_for_subtask(owner - 1, parallelism, groups)
    assert owner == parallelism - 1 or group not in range_for_subtask(owner + 1, parallelism, groups)


@given(parallelisms(2000))
@settings(max_examples=50)
def test_any_parallelism_partitions(pair):
    parallelism, groups = pair
    ranges = partitions(parallelism, groups)
    assert [start for start, _ in ranges] == [0, *(end + 1 for _, end in ranges[:-1])]
    assert ranges[-1][1] == groups - 1


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: range_for_subtask(0, 0, 1), "parallelism"),
        (lambda: range_for_subtask(0, 3, 2), "parallelism"),
        (lambda: range_for_subtask(0, 1, MAX_PARALLELISM_LIMIT + 1), "max_parallelism"),
        (lambda: range_for_subtask(2, 2, 4), "subtask"),
        (lambda: range_for_subtask(-1, 2, 4), "subtask"),
        (lambda: subtask_for_key_group(4, 2, 4), "key group"),
        (lambda: subtask_for_key_group(-1, 2, 4), "key group"),
        (lambda: key_group_of(1, 0), "max_parallelism"),
        (lambda: KeyGroupRange(-1, 3), "KeyGroupRange"),
        (lambda: KeyGroupRange(5, 3), "KeyGroupRange"),
        (lambda: KeyGroupRange("a", "b"), "KeyGroupRange"),
        (lambda: KeyGroupRange(0, 1.5), "KeyGroupRange"),
        (lambda: KeyGroupRange(None, 1), "KeyGroupRange"),
    ],
)
def test_what_is_out_of_bounds_is_named(call, word):
    with pytest.raises(InvalidInputError) as caught:
        call()
    assert caught.value.subject == word


@pytest.mark.parametrize(
    ("parallelism", "groups"),
    [(1, 128), (85, 128), (86, 256), (128, 256), (171, 256), (172, 512), (21845, 32768), (32768, 32768)],
)
def test_the_default_number_of_groups(parallelism, groups):
    assert default_max_parallelism(parallelism) == groups


# -- ranges -----------------------------------------------------------------------------------------------------------


def test_a_range_is_inclusive_and_iterable():
    owned = KeyGroupRange(3, 5)
    assert list(owned) == [3, 4, 5]
    assert len(owned) == 3
    assert 3 in owned
    assert 5 in owned
    assert 6 not in owned
    assert "3" not in owned
    assert str(owned) == "[3, 5]"
    assert not KeyGroupRange.EMPTY
    assert list(KeyGroupRange.EMPTY) == []


@given(key_group_ranges(64), key_group_ranges(64))
def test_an_intersection_is_that_of_the_sets(left, right):
    both = left.intersection(right)
    assert set(both) == set(left) & set(right)
    assert both == right.intersection(left)
    if not both:
        assert both == KeyGroupRange.EMPTY


# -- hash -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "expected"), KNOWN)
def test_known_answers(key, expected):
    assert stable_hash(*key) == expected


def test_a_null_leaves_the_seed_as_it_is():
    assert stable_hash(None) == HASH_SEED
    assert stable_hash(None, "a") == stable_hash("a")
    assert stable_hash("a", None) == stable_hash("a")
    assert stable_hash("a", "b") != stable_hash("b", "a")


def test_zeros_and_nans_are_one_each():
    assert stable_hash(0.0) == stable_hash(-0.0)
    odd_nan = np.frombuffer(b"\x01\x00\x00\x00\x00\x00\xf8\xff", np.float64)
    assert hash_columns([pa.array(odd_nan)])[0] == hash_columns([pa.array([float("nan")])])[0]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (5, pa.int8()), (5, pa.int16()), (5, pa.date32()), (None, pa.string()), ("x", pa.large_string()),
        ("x", pa.string_view()), (b"x", pa.binary()), (b"x", pa.binary(1)), (b"x", pa.binary_view()),
        (decimal.Decimal("1.50"), pa.decimal128(10, 2)), (decimal.Decimal("1.50"), pa.decimal128(30, 2)),
        (dt.datetime(2024, 1, 2), pa.timestamp("us")), (dt.datetime(2024, 1, 2), pa.timestamp("ms")),
    ],
)  # fmt: skip
def test_slices_dictionaries_and_chunks_hash_as_their_values(value, kind):
    column = (
        pa.array([None, value, value], type=pa.int32()).cast(kind)
        if kind == pa.date32()
        else pa.array([None, value, value], type=kind)
    )
    whole = hash_columns([column])
    assert hash_columns([column.slice(1)]).tolist() == whole[1:].tolist()
    assert hash_columns([pa.chunked_array([column.slice(0, 1), column.slice(1)])]).tolist() == whole.tolist()
    if not (pa.types.is_binary_view(kind) or pa.types.is_string_view(kind)):
        assert hash_columns([column.dictionary_encode()]).tolist() == whole.tolist()
    assert whole[1] == whole[2]


@given(key_columns(rows=7))
@settings(max_examples=60)
def test_a_column_hashes_row_by_row(columns):
    together = hash_columns(columns)
    alone = [hash_columns([column.slice(row, 1) for column in columns])[0] for row in range(7)]
    assert together.tolist() == alone


@pytest.mark.parametrize(
    "kind", [pa.uint8(), pa.uint64(), pa.map_(pa.string(), pa.int64()), pa.list_(pa.int8()), pa.decimal256(40, 2)]
)
def test_what_cannot_be_a_key_is_refused_by_column(kind):
    with pytest.raises(InvalidInputError, match="cannot be a key") as caught:
        check_key_type(kind, "tail")
    assert caught.value.subject == "column 'tail'"
    with pytest.raises(InvalidInputError):
        hash_columns([pa.array([], type=kind)])


def test_no_column_and_no_key_type_are_refused():
    with pytest.raises(InvalidInputError, match="expected at least one key column"):
        hash_columns([])
    with pytest.raises(InvalidInputError):
        stable_hash(object())
    with pytest.raises(InvalidInputError):
        stable_hash(2**70)


# -- groups of hashes -------------------------------------------------------------------------------------------------

HASHES = st.integers(0, 2**64 - 1)


@given(HASHES, HASHES, st.integers(1, MAX_PARALLELISM_LIMIT))
def test_the_group_is_monotone_in_the_unsigned_hash(left, right, groups):
    low, high = sorted((left, right))
    assert 0 <= key_group_of(low, groups) <= key_group_of(high, groups) < groups


@given(st.lists(HASHES, max_size=20), st.integers(1, MAX_PARALLELISM_LIMIT))
def test_arrays_signed_or_not_agree_with_single_hashes(hashes, groups):
    column = np.array(hashes, dtype=np.uint64)
    expected = [key_group_of(value, groups) for value in hashes]
    assert key_group_of(column, groups).tolist() == expected
    assert key_group_of(column.view(np.int64), groups).tolist() == expected
    assert [key_group_of(int(value), groups) for value in column.view(np.int64)] == expected


@given(key_group_ranges(1000).filter(len), HASHES)
def test_bounds_hold_exactly_the_hashes_of_a_range(owned, value):
    low, high = hash_bounds(owned, 1000)
    assert (low <= value < high) == (key_group_of(value, 1000) in owned)


@pytest.mark.parametrize("groups", [1, 3, 128, 1000, MAX_PARALLELISM_LIMIT])
def test_bounds_meet_at_their_edges(groups):
    bounds = [hash_bounds(KeyGroupRange(group, group), groups) for group in range(groups)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == 2**64
    assert all(left[1] == right[0] for left, right in itertools.pairwise(bounds))
    for group in (0, groups // 2, groups - 1):
        low, high = bounds[group]
        assert key_group_of(low, groups) == key_group_of(high - 1, groups) == group


def test_keys_spread_over_groups():
    hashes = hash_columns([pa.array([f"N{number:05}" for number in range(20_000)])])
    counts = np.bincount(key_group_of(hashes, 128), minlength=128)
    assert counts.min() > 90
    assert counts.max() < 240
