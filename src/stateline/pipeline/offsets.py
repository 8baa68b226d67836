"""What input a micro-batch covers and which batch comes next, read from what Spark keeps in its checkpoint.

Facts (Spark 4, ``MicroBatchExecution``):

- Before a batch runs, Spark writes ``<checkpoint>/offsets/<batchId>``: a version line, a line of metadata (watermark,
  time, configuration), then one line of offsets per source. A replayed batch finds the same file.
- In version 1 the sources are numbered by their lines. In version 2 (Spark 4.2, where a source has a name or
  ``spark.sql.streaming.offsetLog.formatVersion`` says so) a line is ``<id>:<offset>``, in any order, and the id is the
  name of the source, or its number.
- A rolled-back, copied or edited checkpoint may give the same batch id other offsets. So a digest of the source lines
  is stored with the record, and the same batch with another digest is an error.
- After a batch, and so after its record exists, Spark writes ``<checkpoint>/commits/<batchId>``.
- What is in the entries of the commit log has versions, too; only their names are read.
- The offset of a file source is only a number into a log of its own, ``<checkpoint>/sources/<id>/<number>`` (or
  ``<number>.compact``, which also holds older entries): the files that the number means are part of the digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from stateline.blob import BlobStore
from stateline.errors import CorruptDataError, NotFoundError, UnsupportedVersionError

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
]

ReadFile = Callable[[str], str | None]
"""Reads a file of Spark's checkpoint by its relative name; ``None`` if there is none."""

ListFolder = Callable[[str], list[str]]
"""Names in a folder of Spark's checkpoint; none if there is no such folder."""

_HEADER_LINES: Final = 2
_IN_ORDER: Final = "v1"
_BY_ID: Final = "v2"


def offsets_digest(read: ReadFile, spark_checkpoint: str, batch_id: int) -> str:
    """SHA-256 over what a batch covers, as 64 hexadecimal digits.

    Args:
        read: Reads files of the checkpoint.
        spark_checkpoint: Its location, for messages.
        batch_id: The micro-batch.

    Raises:
        NotFoundError: There is no entry for the batch: another checkpoint location, or no micro-batch query.
        CorruptDataError: The entry is not one of the offset log.
        UnsupportedVersionError: It has a version that was not there when this was written.
    """
    name = f"offsets/{batch_id}"
    entry = read(name)
    if entry is None:
        raise NotFoundError(
            "the batch has no entry in the offset log",
            operation="read",
            subject=f"{spark_checkpoint}/{name}",
            hint="Give start() the checkpoint location that Spark uses for this query",
        )
    digest = hashlib.sha256()
    for line, source, offset in _sources(entry.strip("\n").split("\n"), f"{spark_checkpoint}/{name}"):
        digest.update(f"{line}\n".encode())
        for file in _files_of(read, source, offset):
            digest.update(f"{file}\n".encode())
    return digest.hexdigest()


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


def _sources(lines: Sequence[str], subject: str) -> list[tuple[str, str, str]]:
    """The line, the id and the offset of each source of an entry."""
    version, sources = lines[0], lines[_HEADER_LINES:]
    if version == _IN_ORDER:
        found = [(line, str(number), line) for number, line in enumerate(sources)]
    elif version == _BY_ID:
        found = [(line, *line.partition(":")[::2]) for line in sources]
    elif version.startswith("v") and version[1:].isdecimal():
        raise UnsupportedVersionError(
            f"expected an entry of version {_IN_ORDER} or {_BY_ID}, got {version}",
            operation="read",
            subject=subject,
            hint="Use a version of Spark that this version of Stateline knows, or a newer Stateline",
        )
    else:
        found = []
    if not found or not all(source and offset for _, source, offset in found):
        raise CorruptDataError(
            "the entry has no source offsets", operation="read", subject=subject, hint="Restore Spark's checkpoint"
        )
    return found


def _files_of(read: ReadFile, source: str, offset: str) -> list[str]:
    """The entries of a file source's log for its offset; none for other sources."""
    try:
        number = msgspec.json.decode(offset)["logOffset"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return []
    for name in (f"sources/{source}/{number}", f"sources/{source}/{number}.compact"):
        entry = read(name)
        if entry is not None:
            return sorted(line for line in entry.split("\n") if f'"batchId":{number}}}' in line.replace(" ", ""))
    return []
