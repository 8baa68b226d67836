"""``kill -9`` of a driver while its query is saved and moved to a new root; ``make soak`` takes every step."""

from __future__ import annotations

import random

import pytest

from tests.spark.moving import LAY, Move, survive_moves


@pytest.mark.timeout(900)  # Several sessions, each with a JVM of its own.
def test_a_query_killed_before_its_savepoint_and_in_its_restore_counts_every_row_once(tmp_path):
    dice = random.Random(random.SystemRandom().randrange(2**32))
    middle = f"{LAY}:{dice.choice(('before', 'after'))}:{dice.randint(2, 5)}"
    survive_moves(tmp_path, [Move(before="acknowledge:after", restore=[middle])], dice, union=True)
