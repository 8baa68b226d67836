"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from stateline.quantities import UNKNOWN, bytes_text, count_text, duration_text, share_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1, "1"),
        (9999, "9,999"),
        (1.5, "1.5"),
        (0.25, "0.25"),
        (5774.7, "5,775"),
        (12_345, "12.3k"),
        (1_000_000, "1M"),
        (999_950, "1M"),
        (-12_345, "-12.3k"),
        (None, UNKNOWN),
        (math.nan, UNKNOWN),
        (math.inf, UNKNOWN),
    ],
)
def test_counts(value, text):
    assert count_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1234, "1.23 kB"), (99_960, "100 kB"), (1e9, "1 GB"), (None, UNKNOWN)],
)
def test_bytes(value, text):
    assert bytes_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (4e-5, "40 µs"),
        (0.0123, "12.3 ms"),
        (1.234, "1.23 s"),
        (59.9, "59.9 s"),
        (90, "1 min 30 s"),
        (60, "1 min"),
        (3 * 3600 + 120, "3 h 2 min"),
        (90_000, "1 d 1 h"),
        (-90, "-1 min 30 s"),
        (None, UNKNOWN),
    ],
)
def test_durations(value, text):
    assert duration_text(value) == text


def test_shares():
    assert share_text(1, 4) == "25 %"
    assert share_text(1, 0) == UNKNOWN
