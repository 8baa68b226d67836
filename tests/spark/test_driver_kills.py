"""``kill -9`` of the real driver, JVM included: at steps of the protocol, and at random times."""

from __future__ import annotations

import random

import pytest

from tests.spark.killing import newest_id, survive

STEPS = ("record:after", "publish:after", "mark:before", "acknowledge:after", "discard:after", "tombstone:after")
"""Where the driver dies here; ``make soak`` takes every point. The simulator takes every store call."""


@pytest.mark.timeout(900)  # Several sessions, each with a JVM of its own.
def test_a_driver_that_is_killed_again_and_again_loses_nothing_and_repeats_nothing(tmp_path):
    """Each start dies at another step or time, goes on from where the one before died, with another parallelism."""
    seed = random.SystemRandom().randrange(2**32)
    dice = random.Random(seed)
    steps = [*dice.sample(STEPS, 3), "", ""]
    dice.shuffle(steps)
    survive(tmp_path, steps, dice)
    assert newest_id(tmp_path) >= len(steps), "every start decided something"
