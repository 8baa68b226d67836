"""Finishing open files without a batch: at the end of a stream, and when their time has come while no rows come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stateline.blob import BlobStore, open_store
from stateline.checkpoint import Checkpoint
from stateline.environment import Environment
from stateline.errors import InternalError
from stateline.files import FileOutput, encode_file
from stateline.files.pending import load_rows
from stateline.handles import FinishedFile, OpenFile
from stateline.spark.coordinator import MicroBatchCoordinator
from stateline.spark.open_files import FinishFiles
from stateline.spark.plan import PipelinePlan

__all__ = ["file_finisher", "finish_open_files", "plan_finisher"]


def finish_open_files(
    plan: PipelinePlan, coordinator: MicroBatchCoordinator[Any], environment: Environment
) -> Checkpoint | None:
    """Encodes, decides and publishes every file that the newest checkpoint left open. Idempotent.

    Returns:
        The newest record; ``None`` if there is none, and so nothing was ever written.

    Raises:
        FencedError: Another driver went on with the files.
    """
    return coordinator.finish(plan_finisher(plan, environment))


def plan_finisher(plan: PipelinePlan, environment: Environment) -> FinishFiles:
    """What encodes and stages open files of a plan, over stores of its own."""
    root = open_store(plan.root_url, plan.root_options, environment)
    outputs = {
        operator.name: (operator.output, open_store(operator.output.url, operator.output.store_options, environment))
        for operator in plan.operators
        if operator.output is not None
    }
    return file_finisher(root, outputs, environment)


def file_finisher(
    root: BlobStore, outputs: Mapping[str, tuple[FileOutput, BlobStore]], environment: Environment
) -> FinishFiles:
    """What encodes and stages open files.

    Args:
        root: Store of their rows.
        outputs: The output of each operator, and its store.
        environment: Threads, and ids for names.
    """

    def finish(operator: str, files: Sequence[OpenFile]) -> list[FinishedFile]:
        if operator not in outputs and files:
            raise InternalError("it has open files but no output", operation="finish", subject=operator)
        return [_finished(*outputs[operator], root, file, environment) for file in files]

    return finish


def _finished(
    output: FileOutput, store: BlobStore, root: BlobStore, file: OpenFile, environment: Environment
) -> FinishedFile:
    commit = encode_file(output, store, file.target, load_rows(root, file.pending), environment)
    return FinishedFile(commit=commit, rows=file.rows)
