"""Random keyed aggregations, with and without windows, through Stateline and through Spark, batch by batch.

A failure says its seed. ``AGGREGATIONS_SEED`` takes a seed again, ``AGGREGATIONS_CASES`` more cases of one.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.spark.compared_aggregations import check
from tests.spark.drawn_aggregations import drawn_case

SEED = os.environ.get("AGGREGATIONS_SEED") or str(random.SystemRandom().randrange(2**32))
CASES = int(os.environ.get("AGGREGATIONS_CASES", "3"))


@pytest.mark.parametrize("number", range(CASES))
def test_random_aggregations_answer_as_sparks_do(spark, tmp_path, number):
    """Windows close in every second case: there Spark's answer is that of a stream, not of one query."""
    case = drawn_case(f"{SEED}/{number}", closing=number % 2 == 0)
    settings = {"spark.sql.session.timeZone": case.zone, "spark.sql.ansi.enabled": str(case.ansi).lower()}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        check(case, spark, tmp_path / "case")
    except Exception as error:
        error.add_note(f"The same again: AGGREGATIONS_SEED={SEED}; this was case {number}\n{case}")
        raise
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
