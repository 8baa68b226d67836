"""The merging rule keeps its two bounds for any sequence of persists."""

import math

from hypothesis import given
from hypothesis import strategies as st

from stateline.recoverable.folding import LOWEST_TIER_BYTES, PIECES_PER_TIER, pieces_to_fold, tier_count

FOLD = 5 * 1024 * 1024


def play(sizes, fold_bytes):
    """Persists of the given sizes: the most small pieces at any time, and the bytes sent."""
    small, sent, most = [], 0, 0
    for size in sizes:
        count = pieces_to_fold(small, size, fold_bytes)
        merged = size + sum(small[len(small) - count :])
        sent += merged
        small = [*small[: len(small) - count], merged]
        if merged >= fold_bytes:
            assert len(small) == 1, "a long piece leaves no short one before it"
            small = []
        most = max(most, len(small))
    return most, sent


def worst_rewriting(fold_bytes):
    return tier_count(fold_bytes) + 1


@given(st.lists(st.integers(1, 2 * FOLD), max_size=200))
def test_small_pieces_stay_few_for_any_sizes(sizes):
    most, _ = play(sizes, FOLD)
    assert most <= (PIECES_PER_TIER - 1) * tier_count(FOLD)


@given(st.lists(st.integers(LOWEST_TIER_BYTES, 2 * FOLD), max_size=200))
def test_a_byte_is_sent_again_only_when_its_tier_rises(sizes):
    _, sent = play(sizes, FOLD)
    assert sent <= sum(sizes) * worst_rewriting(FOLD)


@given(st.integers(1, LOWEST_TIER_BYTES), st.integers(1, 400))
def test_tiny_persists_send_little_more_than_the_lowest_tier_each(size, count):
    _, sent = play([size] * count, FOLD)
    assert sent <= count * (LOWEST_TIER_BYTES + size * worst_rewriting(FOLD))


def test_equal_persists_of_a_megabyte_are_sent_less_than_three_times():
    _, sent = play([1024 * 1024] * 1000, FOLD)
    assert sent / (1000 * 1024 * 1024) < 3


def test_tiers_are_logarithmic():
    assert tier_count(FOLD) == 1 + math.ceil(math.log(FOLD / LOWEST_TIER_BYTES, PIECES_PER_TIER))
    assert tier_count(1) == 1


def test_pieces_out_of_order_are_absorbed():
    assert pieces_to_fold([4 * LOWEST_TIER_BYTES, 1, 1], LOWEST_TIER_BYTES, FOLD) == 2
    assert pieces_to_fold([1, 1], 1, FOLD) == 0
    assert pieces_to_fold([1, 1, 1], 1, FOLD) == 3
    assert pieces_to_fold([], 10**9, FOLD) == 0
    assert pieces_to_fold([FOLD - 1, 1], FOLD, FOLD) == 2
