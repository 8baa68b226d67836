"""Which batch comes next, and how files of Spark's checkpoint are read.

Facts (Spark 4, ``MicroBatchExecution``):

- After a batch, and so after its record exists, Spark writes ``<checkpoint>/commits/<batchId>``.
- What is in the entries of the commit log has versions; only their names are read.
- What a batch covers is in the offset log: :mod:`stateline.checkpoint.offsets`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from stateline.blob import BlobStore
from stateline.checkpoint.offsets import ReadFile, offsets_digest, source_offsets
from stateline.errors import NotFoundError

__all__ = [
    "ListFolder",
    "ReadFile",
    "list_with_hadoop",
    "list_with_store",
    "next_batch",
    "offsets_digest",
    "query_of",
    "read_with_hadoop",
    "read_with_store",
    "source_offsets",
]

ListFolder = Callable[[str], list[str]]
"""Names in a folder of Spark's checkpoint; none if there is no such folder."""


def next_batch(read: ReadFile, list_folder: ListFolder) -> tuple[str, int] | None:
    """The query, and the batch after the last one that Spark has committed; ``None`` if its checkpoint does not say."""
    query_id = query_of(read)
    committed = [int(name) for name in list_folder("commits") if name.isdecimal()]
    return None if query_id is None or not committed else (query_id, max(committed) + 1)


def query_of(read: ReadFile) -> str | None:
    """The id of the query that a checkpoint belongs to; ``None`` if it does not say."""
    metadata = read("metadata")
    if metadata is None:
        return None
    try:
        return str(msgspec.json.decode(metadata)["id"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return None  # Spark does not start from it.


def read_with_store(store: BlobStore) -> ReadFile:
    """Reads a checkpoint that lies at the root of a store: where there is no JVM to ask."""

    def read(name: str) -> str | None:
        try:
            return store.get(name).decode()
        except NotFoundError:
            return None

    return read


def list_with_store(store: BlobStore) -> ListFolder:
    """Lists a checkpoint that lies at the root of a store."""
    return lambda name: [info.name.rpartition("/")[2] for info in store.list(f"{name}/")]


def list_with_hadoop(session: Any, spark_checkpoint: str) -> ListFolder:
    """Lists through Hadoop's file systems; see :func:`read_with_hadoop`."""
    open_path = _hadoop(session, spark_checkpoint)

    def list_folder(name: str) -> list[str]:
        file_system, path = open_path(name)
        if not file_system.exists(path):
            return []
        return [str(status.getPath().getName()) for status in file_system.listStatus(path)]

    return list_folder


def read_with_hadoop(session: Any, spark_checkpoint: str) -> ReadFile:
    """Reads through Hadoop's file systems, so that any location that Spark can use is read.

    Args:
        session: The ``SparkSession`` that runs the query.
        spark_checkpoint: ``checkpointLocation`` of the query.
    """
    open_path = _hadoop(session, spark_checkpoint)
    as_text = session.sparkContext._jvm.org.apache.commons.io.IOUtils.toString  # noqa: SLF001

    def read(name: str) -> str | None:
        file_system, path = open_path(name)
        if not file_system.exists(path):
            return None
        stream = file_system.open(path)
        try:
            return str(as_text(stream, "UTF-8"))
        finally:
            stream.close()

    return read


def _hadoop(session: Any, spark_checkpoint: str) -> Callable[[str], tuple[Any, Any]]:
    """A function from a relative name to its file system and path."""
    make_path = session.sparkContext._jvm.org.apache.hadoop.fs.Path  # noqa: SLF001 - PySpark has no public door to it
    configuration = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001

    def open_path(name: str) -> tuple[Any, Any]:
        path = make_path(f"{spark_checkpoint}/{name}")
        return path.getFileSystem(configuration), path

    return open_path
