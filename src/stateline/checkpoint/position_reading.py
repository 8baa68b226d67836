"""How a savepoint finds Spark's checkpoint: where its user says, or where the record says."""

from __future__ import annotations

from contextlib import suppress

from stateline.blob.api import BlobStore
from stateline.blob.urls import open_store, relative_name
from stateline.checkpoint.api import Checkpoint
from stateline.checkpoint.position import SPARK_CHECKPOINT, PutState, States, carry_position
from stateline.checkpoint.spark_files import SparkFiles, StoreFiles
from stateline.environment import Environment
from stateline.errors import InvalidInputError, StatelineError

__all__ = ["carried_position"]


def carried_position(
    root: BlobStore,
    checkpoint: Checkpoint,
    given: SparkFiles | str | None,
    put: PutState,
    environment: Environment,
) -> tuple[States, str]:
    """Where the sources stand, or the reason why that cannot be carried.

    Args:
        root: The root of the checkpoint.
        checkpoint: The checkpoint that a savepoint is made of.
        given: Spark's checkpoint, if the user named it.
        put: Keeps the bytes of one file.
        environment: For stores that are opened.

    Raises:
        InvalidInputError: The user gave a Spark checkpoint that is not the one of this record.
    """
    if given is not None:
        files = StoreFiles(open_store(given, {}, environment)) if isinstance(given, str) else given
        position, reason = carry_position(checkpoint, files, put)
        if reason:
            raise InvalidInputError(
                reason,
                operation="create_savepoint",
                subject="spark_checkpoint",
                hint="Give the folder where Spark keeps the checkpoint of this query, or leave it out",
            )
        return position, ""
    try:
        return carry_position(checkpoint, _recorded_files(root, checkpoint, environment), put)
    except (StatelineError, OSError) as error:
        return {}, f"Spark's checkpoint could not be read: {error}"


def _recorded_files(root: BlobStore, checkpoint: Checkpoint, environment: Environment) -> SparkFiles | None:
    """Spark's checkpoint where the record says; ``None`` if it does not, or if Stateline has no store for that."""
    url = checkpoint.properties.get(SPARK_CHECKPOINT, "")
    if not url:
        return None
    url = f"s3{url.removeprefix('s3a')}" if url.startswith("s3a:") else url
    with suppress(InvalidInputError):  # It is not below the root.
        return StoreFiles(root, relative_name(root.url, url))
    try:
        return StoreFiles(open_store(url, {}, environment))
    except StatelineError:
        return None  # Such as hdfs://, or a store whose package is not installed. The savepoint then says so.
