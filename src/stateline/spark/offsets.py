"""What input a micro-batch covers, read from Spark's own offset log.

Facts (Spark 4, ``MicroBatchExecution``): before a batch runs, Spark writes ``<checkpoint>/offsets/<batchId>``: a
version line,
a line of metadata (watermark, timestamp, configuration), then the offsets of each source. A replayed batch finds the
same
file; a rolled-back or copied checkpoint may have another one under the same id. So the digest of the source lines is
what makes "the same batch again" provable.
"""

from __future__ import annotations

import hashlib
from typing import Any

from stateline.errors import CorruptDataError, NotFoundError

__all__ = ["digest_of_offsets", "offsets_digest"]

_HEADER_LINES = 2


def digest_of_offsets(log_entry: str) -> str:
    """SHA-256 over the source offsets of one entry of the offset log, as 64 hexadecimal digits.

    Raises:
        CorruptDataError: The text is not an entry of the log.
    """
    lines = log_entry.strip("\n").split("\n")
    if len(lines) <= _HEADER_LINES or not lines[0].startswith("v"):
        raise CorruptDataError(
            "it has no source offsets", operation="read offset log", hint="Restore Spark's checkpoint"
        )
    return hashlib.sha256("\n".join(lines[_HEADER_LINES:]).encode()).hexdigest()


def offsets_digest(session: Any, spark_checkpoint: str, batch_id: int) -> str:
    """The digest of a batch's source offsets, through Hadoop's file system so that any checkpoint location works.

    Args:
        session: The ``SparkSession`` that runs the query.
        spark_checkpoint: ``checkpointLocation`` of the query.
        batch_id: The micro-batch.

    Raises:
        NotFoundError: There is no entry for the batch: another checkpoint location, or no micro-batch query.
    """
    jvm = session.sparkContext._jvm  # noqa: SLF001 - PySpark has no public door to Hadoop's file systems
    path = jvm.org.apache.hadoop.fs.Path(f"{spark_checkpoint}/offsets/{batch_id}")
    file_system = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
    if not file_system.exists(path):
        raise NotFoundError(
            "the batch has no entry in the offset log",
            operation="read offset log",
            subject=path.toString(),
            hint="Give start() the checkpoint location that Spark uses for this query",
        )
    stream = file_system.open(path)
    try:
        text = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
    finally:
        stream.close()
    return digest_of_offsets(text)
