"""How a new query starts from a savepoint: the checkpoint before its first batch.

The query is known only when its first batch comes, so that is when the savepoint is copied or claimed. Nothing is kept
in memory in between: a crash before the record exists repeats it, with the same names, for the same query.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from stateline.blob import BlobStore, open_store
from stateline.checkpoint import Checkpoint, CheckpointStore, Savepoint, open_savepoint, start_from_savepoint
from stateline.checkpoint.layout import METADATA
from stateline.checkpoint.savepoint import folder_of_claim
from stateline.environment import Environment
from stateline.errors import InternalError
from stateline.pipeline.compatibility import check_plan
from stateline.pipeline.output_columns import check_folders
from stateline.pipeline.plan import PipelinePlan, SavepointStart
from stateline.progress import ProgressLog

__all__ = ["check_start", "first_checkpoint"]

_LOGGER: Final = logging.getLogger(__name__)


def check_start(
    plan: PipelinePlan, root: BlobStore, outputs: Mapping[str, BlobStore], environment: Environment
) -> None:
    """Checks, before anything runs, that the savepoint of a plan, if it has one, can be continued by the plan.

    Raises:
        NotFoundError: There is none, or it is incomplete.
        ConflictError: It is to be copied, and somebody owns it.
        CorruptDataError: Its record is not what was written.
        InvalidInputError: It holds something else than the plan goes on with; it is to be claimed and does not lie
            below the root.
    """
    if plan.start is None:
        return
    savepoint = _open(plan.start, root, environment)
    if plan.start.mode == "copy":
        savepoint.check_free("start")  # Who may claim it again, only the first batch knows: its query.
    record = savepoint.checkpoint
    # Its files may go on in another output than the one they were begun in, but in the same folders of it.
    check_plan(plan, record, {output.operator: output.url for output in record.outputs if output.operator in outputs})
    check_folders(plan, record, {name: store.url for name, store in outputs.items()})


def first_checkpoint(
    plan: PipelinePlan,
    root: CheckpointStore,
    outputs: Mapping[str, BlobStore],
    query_id: str,
    environment: Environment,
) -> Checkpoint:
    """The state before batch 0 of a query. The caller publishes it.

    Args:
        plan: Says where to start.
        root: A root without a checkpoint.
        outputs: The query's outputs by operator: files that the savepoint left open go on there.
        query_id: The query.
        environment: Clock and ids.

    Raises:
        ConflictError: Somebody else owns the savepoint.
        DataLossError: Something in it is gone.
        CorruptDataError: Something in it is not what was written.
    """
    if plan.start is None:
        raise InternalError("the plan starts from nothing", operation="start")
    savepoint = _open(plan.start, root.store, environment)
    targets = {
        output.url: outputs[output.operator].url
        for output in savepoint.checkpoint.outputs
        if output.open and output.operator in outputs
    }
    log = ProgressLog(_LOGGER, f"copying savepoint {savepoint.url} into {root.store.url}", environment.clock)
    return start_from_savepoint(
        savepoint,
        root,
        query_id=query_id,
        mode=plan.start.mode,
        outputs=targets,
        first_batch_id=0,
        progress=log.tell,
        environment=environment,
    )


def _open(start: SavepointStart, root: BlobStore, environment: Environment) -> Savepoint:
    url = start.url.rstrip("/").removesuffix(f"/{METADATA}")
    if start.mode == "claim":
        return open_savepoint(root, folder_of_claim(root, url))
    return open_savepoint(open_store(url, start.options, environment))
