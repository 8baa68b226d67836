"""Where a new query starts that is given a savepoint."""

from __future__ import annotations

import pytest

from stateline.blob import open_store
from stateline.environment import system_environment
from stateline.errors import InvalidInputError
from stateline.spark.plan import PipelinePlan, SavepointStart
from stateline.spark.starting import check_start


def test_a_claim_of_a_savepoint_that_lies_elsewhere_says_where_it_must_lie_and_what_to_do_instead(tmp_path):
    root = open_store(f"{tmp_path}/root")
    start = SavepointStart(url=f"file://{tmp_path}/savepoints/savepoint-1", mode="claim")
    plan = PipelinePlan(root_url=root.url, parallelism=1, max_parallelism=1, operators=(), start=start)
    said = rf"savepoint-1: a savepoint can be claimed only where the new root is. Copy its folder below {root.url}"
    with pytest.raises(InvalidInputError, match=said):
        check_start(plan, root, {}, system_environment())
