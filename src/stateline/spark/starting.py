"""How a new query starts from a savepoint: the checkpoint before its first batch.

Owns finding the savepoint and checking it against the program. Does not own copying or claiming it
(``stateline.checkpoint.savepoint``), nor the decision (the coordinator publishes the checkpoint).

The query is known only when its first batch comes, so that is when the savepoint is copied or claimed. Nothing is kept
in memory in between: a crash before the record exists repeats it, with the same names, for the same query.
"""

from __future__ import annotations

from collections.abc import Mapping

from stateline.blob import BlobStore, open_store
from stateline.blob.urls import relative_name
from stateline.checkpoint import Checkpoint, CheckpointStore, Savepoint, open_savepoint, start_from_savepoint
from stateline.environment import Environment
from stateline.spark.plan import PipelinePlan

__all__ = ["first_checkpoint", "open_start"]


def open_start(plan: PipelinePlan, root: BlobStore, environment: Environment) -> Savepoint | None:
    """The savepoint that a plan starts from; ``None`` for an empty state.

    Raises:
        NotFoundError: There is none, or it is incomplete.
        CorruptDataError: Its record is not what was written.
        InvalidInputError: It is to be claimed and does not lie below the root.
    """
    start = plan.start
    if start is None:
        return None
    if start.mode == "claim":
        return open_savepoint(root, relative_name(root.url, start.url))
    return open_savepoint(open_store(start.url, start.options, environment))


def first_checkpoint(
    savepoint: Savepoint,
    plan: PipelinePlan,
    root: CheckpointStore,
    outputs: Mapping[str, BlobStore],
    query_id: str,
    environment: Environment,
) -> Checkpoint:
    """The state before batch 0 of a query. The caller publishes it.

    Args:
        savepoint: From :func:`open_start`.
        plan: Says whether it is copied or claimed.
        root: A root without a checkpoint.
        outputs: The query's outputs by operator: files that the savepoint left open go on there.
        query_id: The query.
        environment: Clock and ids.

    Raises:
        ConflictError: Somebody else owns the savepoint.
        DataLossError: Something in it is gone.
        CorruptDataError: Something in it is not what was written.
    """
    targets = {
        output.url: outputs[output.operator]
        for output in savepoint.checkpoint.outputs
        if output.open and output.operator in outputs
    }
    mode = "copy" if plan.start is None else plan.start.mode
    return start_from_savepoint(
        savepoint, root, query_id=query_id, mode=mode, outputs=targets, first_batch_id=0, environment=environment
    )
