"""Files of a record made visible: created if absent, verified, as often as needed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from stateline.blob import BlobStore
from stateline.checkpoint import Checkpoint
from stateline.environment import Environment, side_by_side
from stateline.errors import DataLossError
from stateline.handles import CommitPoint
from stateline.pipeline.table_commits import TableCommits
from stateline.recoverable import RecoverableWriter

__all__ = ["make_visible", "publish_files"]

_FILES_AT_ONCE: Final = 8
"""How many files are published side by side."""


def publish_files(
    record: Checkpoint, outputs: Mapping[str, BlobStore], tables: TableCommits, environment: Environment
) -> None:
    """Makes the finished files of a record visible and removes their pieces. Idempotent.

    A file that is gone is nobody's loss where its table has its rows: whoever rewrites a table may have cleaned up.

    Args:
        record: The record.
        outputs: Stores by operator.
        tables: Those of the driver.
        environment: Threads.

    Raises:
        DataLossError: A file is gone, and its rows are in no table.
        StatelineError: What a store or a table raises.
    """
    commits = [(output.operator, file.commit) for output in record.outputs for file in output.finished]
    try:
        _publish(commits, outputs, environment)
    except DataLossError:
        there = tables.committed(record)
        if not there:
            raise
        _publish([each for each in commits if each[0] not in there], outputs, environment)


def make_visible(outputs: Mapping[str, BlobStore], of_operator: tuple[str, CommitPoint]) -> None:
    """Makes one file visible."""
    operator, commit = of_operator
    RecoverableWriter(outputs[operator]).recover_for_commit(commit).commit_after_recovery()


def _publish(
    commits: list[tuple[str, CommitPoint]], outputs: Mapping[str, BlobStore], environment: Environment
) -> None:
    side_by_side(environment, "stateline-publish", partial(make_visible, outputs), commits, _FILES_AT_ONCE)
