"""The vectorised XXH64 equals the C library on every length, seed and alignment."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stateline.xxh64 import LONG_BYTES, xxh64_of_slices


def hashes(strings: list[bytes], seeds: list[int]) -> list[int]:
    data = np.frombuffer(b"".join(strings), dtype=np.uint8)
    lengths = np.array([len(string) for string in strings], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    return xxh64_of_slices(data, starts, lengths, np.array(seeds, dtype=np.uint64)).tolist()


@pytest.mark.parametrize("length", [*range(70), LONG_BYTES - 1, LONG_BYTES, LONG_BYTES + 1, 1000])
def test_every_length_equals_the_c_library(length: int) -> None:
    strings = [bytes((31 * row + column) % 256 for column in range(length)) for row in range(5)]
    seeds = [0, 1, 42, 2**63, 2**64 - 1]
    assert hashes(strings, seeds) == [
        xxhash.xxh64_intdigest(string, seed) for string, seed in zip(strings, seeds, strict=True)
    ]


@given(st.lists(st.tuples(st.binary(max_size=300), st.integers(0, 2**64 - 1)), max_size=40))
def test_mixed_lengths_equal_the_c_library(rows: list[tuple[bytes, int]]) -> None:
    assert hashes([row[0] for row in rows], [row[1] for row in rows]) == [xxhash.xxh64_intdigest(*row) for row in rows]


def test_more_rows_than_a_block() -> None:
    strings = [b"%d" % number for number in range(40_000)]
    assert hashes(strings, [42] * len(strings)) == [xxhash.xxh64_intdigest(string, 42) for string in strings]
