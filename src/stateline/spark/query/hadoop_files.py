"""Spark's checkpoint through Hadoop's file systems, so that any location that Spark can use is read and written.

Facts:
- A file is written under a hidden name, synced and renamed, so that no reader finds half of it. HDFS refuses to rename
  over an existing file; an object store shows the copy when it is whole.
- Hadoop's local file system syncs no folders. Local checkpoints are therefore written by Stateline's own store.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pyspark.sql import SparkSession

from stateline.blob import open_store
from stateline.checkpoint.spark_files import SparkFiles, StoreFiles, is_hidden
from stateline.environment import system_environment
from stateline.errors import UnavailableError
from stateline.spark.api_mode import Py4JError

__all__ = ["HadoopFiles", "qualified", "spark_files"]

_LOCAL: str = "file:"


def qualified(session: SparkSession, spark_checkpoint: str) -> str:
    """Return the URL of a folder as Spark resolves it, in a classic session."""
    path = _path(session, spark_checkpoint)
    return str(path.getFileSystem(_configuration(session)).makeQualified(path).toString())


def spark_files(session: SparkSession, spark_checkpoint: str) -> SparkFiles:
    """Return the files of Spark's checkpoint, in a classic session."""
    url = qualified(session, spark_checkpoint)
    if url.startswith(_LOCAL):
        return StoreFiles(open_store(_path(session, url).toUri().getPath(), {}, system_environment()))
    return HadoopFiles(session, url)


class HadoopFiles:
    """Spark's checkpoint in a file system of Hadoop's.

    Args:
        session: A classic session.
        url: The folder.
    """

    def __init__(self, session: SparkSession, url: str) -> None:
        self._session = session
        self._url = url.rstrip("/")
        root = _path(session, self._url)
        self._file_system: Any = root.getFileSystem(_configuration(session))
        self._prefix = f"{self._file_system.makeQualified(root).toString()}/"

    @property
    def url(self) -> str:
        """Where it is, for messages."""
        return self._url

    def read(self, name: str) -> bytes | None:
        """The bytes of a file; ``None`` if it does not exist."""
        path = self._path_of(name)
        if not self._file_system.exists(path):
            return None
        stream = self._file_system.open(path)
        try:
            jvm: Any = self._session.sparkContext._jvm  # noqa: SLF001 - PySpark has no public door to it
            return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def names(self, folder: str) -> list[str]:
        """The names of all files below a folder, sorted, without hidden ones."""
        path = self._path_of(folder)
        if not self._file_system.exists(path):
            return []
        found = []
        files = self._file_system.listFiles(path, True)
        while files.hasNext():
            name = str(files.next().getPath().toString()).removeprefix(self._prefix)
            if not is_hidden(name):
                found.append(name)
        return sorted(found)

    def create(self, name: str, data: bytes) -> None:
        """Create a file, whole and durable; an existing one is left as it is.

        Raises:
            UnavailableError: The file system did not take it.
        """
        path = self._path_of(name)
        if self._file_system.exists(path):
            return
        folder, _, leaf = name.rpartition("/")
        hidden = f".{leaf}.{system_environment().ids.new_id()}.tmp"
        temporary = self._path_of(f"{folder}/{hidden}" if folder else hidden)
        stream = self._file_system.create(temporary, False)
        try:
            stream.write(bytearray(data))
            with suppress(Py4JError):  # Object stores cannot sync, and need not: closing is durable there.
                stream.hsync()
        finally:
            stream.close()
        if not self._file_system.rename(temporary, path) and not self._file_system.exists(path):
            raise UnavailableError(
                "the file system did not rename a file that was just written",
                operation="start",
                subject=f"{self._url}/{name}",
                hint="Start the query again",
            )

    def _path_of(self, name: str) -> Any:
        return _path(self._session, self._prefix + name)


def _path(session: SparkSession, url: str) -> Any:
    return session.sparkContext._jvm.org.apache.hadoop.fs.Path(url)  # noqa: SLF001


def _configuration(session: SparkSession) -> Any:
    return session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
