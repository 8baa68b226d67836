"""How a new query starts from a savepoint: the checkpoint before its first batch.

- Where the sources continue, Spark's files are laid into its new checkpoint first, which fixes the id of the query.
  Then the savepoint is copied or claimed and the first record is published, before Spark starts.
- Where the source begins anew, Spark chooses the id of the query. So all this happens when the first batch arrives.

Nothing is kept in memory in between: a crash before the record exists repeats it, with the same names, for the same
query.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from stateline.blob import BlobStore, open_store
from stateline.checkpoint import Checkpoint, CheckpointStore, Savepoint, open_savepoint, start_from_savepoint
from stateline.checkpoint.layout import METADATA
from stateline.checkpoint.position import POSITION, SOURCES, SPARK_CHECKPOINT, lay_position
from stateline.checkpoint.savepoint import folder_of_claim
from stateline.checkpoint.spark_files import SparkFiles
from stateline.environment import Environment
from stateline.errors import InternalError
from stateline.pipeline.compatibility import check_plan, check_sources, stream_properties
from stateline.pipeline.output_columns import check_folders
from stateline.pipeline.plan import PipelinePlan, SavepointStart
from stateline.progress import ProgressLog

__all__ = ["check_start", "continues_source", "first_checkpoint", "restore_source"]

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
    if continues_source(plan):
        check_sources(plan, record, savepoint.url)


def continues_source(plan: PipelinePlan) -> bool:
    """Whether the sources of a root without checkpoints continue where a savepoint stands."""
    return plan.start is not None and plan.start.source == "savepoint"


def restore_source(plan: PipelinePlan, root: BlobStore, files: SparkFiles, environment: Environment) -> str:
    """Lays the files of the plan's savepoint into Spark's new checkpoint; returns the id of the query. Idempotent.

    Raises:
        ConflictError: That folder is in use, or holds another savepoint.
        DataLossError: Something in the savepoint is gone.
        CorruptDataError: Something in it is not what was written.
    """
    if plan.start is None:
        raise InternalError("the plan starts from nothing", operation="start")
    savepoint = _open(plan.start, root, environment)
    return lay_position(savepoint.checkpoint, savepoint.read_state, files, environment.ids)


def first_checkpoint(
    plan: PipelinePlan,
    root: CheckpointStore,
    outputs: Mapping[str, BlobStore],
    query_id: str,
    environment: Environment,
) -> Checkpoint:
    """The state before the first batch of a query. The caller publishes it.

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
    first = start_from_savepoint(
        savepoint,
        root,
        query_id=query_id,
        mode=plan.start.mode,
        outputs=targets,
        first_batch_id=0,
        continues=continues_source(plan),
        progress=log.tell,
        environment=environment,
    )
    kept = {name: text for name, text in first.properties.items() if name not in (SPARK_CHECKPOINT, SOURCES, POSITION)}
    return replace(first, properties=kept | stream_properties(plan))


def _open(start: SavepointStart, root: BlobStore, environment: Environment) -> Savepoint:
    url = start.url.rstrip("/").removesuffix(f"/{METADATA}")
    if start.mode == "claim":
        return open_savepoint(root, folder_of_claim(root, url))
    return open_savepoint(open_store(url, start.options, environment))
