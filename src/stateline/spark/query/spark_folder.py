"""Where Spark keeps its own checkpoint of a pipeline if its user names no place: below the root of the pipeline's.

Facts:
- Spark makes folders that are missing, and syncs none of them. On a local disk the root would then not be known to
  survive power loss, and anybody could read it. So the store makes the folder, by a mark that Spark does not look at.
- Object stores have names of their own in Hadoop: what Stateline calls ``s3`` is ``s3a`` there.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from stateline.blob import BlobStore
from stateline.blob.urls import split_local_url
from stateline.checkpoint.layout import SPARK_PREFIX
from stateline.errors import AlreadyExistsError, InvalidInputError
from stateline.spark.api_mode import has_file_system

__all__ = ["make_spark_folder", "spark_folder"]

_MARK: Final = f"{SPARK_PREFIX}_stateline"
_ABOUT: Final = b"Spark's own checkpoint of the query whose state lies above. The two belong together.\n"


def spark_folder(session: SparkSession, root_url: str) -> str:
    """The folder of Spark's checkpoint below a root, as Spark spells it.

    Raises:
        InvalidInputError: Spark has no file system for the root.
    """
    folder = SPARK_PREFIX.rstrip("/")
    if "://" not in root_url or root_url.startswith("file:"):
        return f"file://{split_local_url(root_url)}/{folder}"
    below = f"{root_url.rstrip('/')}/{folder}"
    spellings = [below, f"s3a{below.removeprefix('s3')}"] if below.startswith("s3:") else [below]
    for url in spellings:
        if has_file_system(session, url):
            return url
    raise InvalidInputError(
        f"Spark has no file system for {below}",
        operation="start",
        subject="spark_checkpoint",
        hint="Give start() a folder where Spark can keep its checkpoint, or add Hadoop's file system to the session",
    )


def make_spark_folder(root: BlobStore) -> None:
    """Makes the folder in a root that has no checkpoint yet. Idempotent."""
    try:
        root.put_if_absent(_MARK, _ABOUT)
    except AlreadyExistsError:
        return
