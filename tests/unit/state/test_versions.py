"""Versions of keys against a look at every row, over narrow and wide times."""

from __future__ import annotations

import numpy as np
import pytest

from stateline.state.versions import NO_VERSION, Versions, order_of_times


@pytest.mark.parametrize("scale", [1, 1_000_000, 1 << 59])
@pytest.mark.parametrize("keys", [1, 3, 40])
def test_the_version_that_holds_is_the_newest_at_or_before_the_time(scale, keys):
    draw = np.random.default_rng(keys * scale)
    for _ in range(30):
        count, asked, stored = draw.integers(0, 30), draw.integers(0, 30), draw.integers(0, 10)
        owners, times = draw.integers(0, keys, count), draw.integers(-7, 8, count) * scale
        versions = Versions.of(owners, times, stored)
        known = {}
        for row, place in enumerate(zip(owners.tolist(), times.tolist(), strict=True)):
            known[place] = row, known.get(place, (0, False))[1] or row < stored
        made = list(zip(versions.owners.tolist(), versions.times.tolist(), strict=True))
        assert made == sorted(known)
        assert list(zip(versions.rows.tolist(), versions.replaces.tolist(), strict=True)) == [known[at] for at in made]
        who, when = draw.integers(0, keys + 1, asked), draw.integers(-8, 9, asked) * scale + draw.integers(-1, 2, asked)
        for owner, time, place in zip(who.tolist(), when.tolist(), versions.holding(who, when).tolist(), strict=True):
            before = [at for at in made if at[0] == owner and at[1] <= time]
            assert (NO_VERSION if place == NO_VERSION else made[place]) == (before[-1] if before else NO_VERSION)


def test_what_is_superseded_has_a_newer_version_at_or_below_the_border():
    versions = Versions.of(np.array([0, 0, 0, 1, 2]), np.array([1, 5, 9, 2, 9]), 0)
    assert versions.superseded(5).tolist() == [True, False, False, False, False]
    assert versions.superseded(9).tolist() == [True, True, False, False, False]
    assert versions.superseded(None).tolist() == [False] * 5


def test_the_order_of_times_never_falls():
    times = np.array([-(1 << 62), -1, 0, 999_999, 1_000_000, 1 << 52, 1 << 62])
    order = order_of_times(times)
    assert order.tolist() == sorted(order.tolist())
    assert order.tolist()[:5] == [0, 0, 0, 0, 1]
    assert int(order[-1]) == (1 << 32) - 1
