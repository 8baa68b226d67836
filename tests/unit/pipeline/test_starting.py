"""Where a new query starts that is given a savepoint."""

from __future__ import annotations

import pytest

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore, create_savepoint, start_from_savepoint
from stateline.environment import system_environment
from stateline.errors import ConflictError, InvalidInputError
from stateline.pipeline.graph import Graph
from stateline.pipeline.plan import PipelinePlan, SavepointStart
from stateline.pipeline.savepoint_start import check_start
from tests.unit.pipeline.records import record


def test_a_claim_of_a_savepoint_that_lies_elsewhere_says_where_it_must_lie_and_what_to_do_instead(tmp_path):
    root = open_store(f"{tmp_path}/root")
    start = SavepointStart(url=f"file://{tmp_path}/savepoints/savepoint-1", mode="claim")
    plan = PipelinePlan(root_url=root.url, parallelism=1, max_parallelism=1, graph=Graph(), start=start)
    said = rf"savepoint-1: a savepoint can be claimed only where the new root is. Copy its folder below {root.url}"
    with pytest.raises(InvalidInputError, match=said):
        check_start(plan, root, {}, system_environment())


def test_a_copy_of_a_savepoint_that_a_query_has_claimed_is_refused_before_anything_runs(tmp_path):
    old = CheckpointStore(f"{tmp_path}/old")
    old.publish(record())
    owner = CheckpointStore(f"{tmp_path}/owner")
    made = create_savepoint(old, owner.store)
    plan = PipelinePlan(
        root_url=f"{tmp_path}/new",
        parallelism=1,
        max_parallelism=1,
        graph=Graph(),
        start=SavepointStart(url=made.url),
    )
    root = open_store(plan.root_url)
    check_start(plan, root, {}, system_environment())
    start_from_savepoint(made, owner, query_id="other", mode="claim")
    with pytest.raises(ConflictError, match="query other owns it"):
        check_start(plan, root, {}, system_environment())
