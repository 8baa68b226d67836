"""The end of a stream: files that no later batch will roll are finished in one more checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stateline.blob import BlobStore, open_store
from stateline.checkpoint import Checkpoint
from stateline.environment import Environment
from stateline.errors import InternalError
from stateline.files import FileOutput, encode_file
from stateline.files.pending import load_rows
from stateline.handles import FinishedFile, OpenFile
from stateline.spark.coordinator import MicroBatchCoordinator
from stateline.spark.plan import PipelinePlan

__all__ = ["finish_open_files"]


def finish_open_files(
    plan: PipelinePlan, coordinator: MicroBatchCoordinator[Any], environment: Environment
) -> Checkpoint | None:
    """Encodes, decides and publishes every file that the newest checkpoint left open. Idempotent.

    Returns:
        The newest record; ``None`` if there is none, and so nothing was ever written.

    Raises:
        FencedError: Another driver went on with the files.
    """
    root = open_store(plan.root_url, plan.root_options, environment)
    outputs = {operator.name: operator.output for operator in plan.operators}

    def finish(operator: str, files: Sequence[OpenFile]) -> list[FinishedFile]:
        output = outputs.get(operator)
        if output is None:
            raise InternalError("it has open files but no output", operation="finish", subject=operator)
        store = open_store(output.url, output.store_options, environment)
        return [_finished(output, store, root, file, environment) for file in files]

    return coordinator.finish(finish)


def _finished(
    output: FileOutput, store: BlobStore, root: BlobStore, file: OpenFile, environment: Environment
) -> FinishedFile:
    commit = encode_file(output, store, file.target, load_rows(root, file.pending), environment)
    return FinishedFile(commit=commit, rows=file.rows)
