"""What input a micro-batch covers, read from the offset log of Spark's checkpoint.

Facts (Spark 4, ``MicroBatchExecution``):

- Before a batch runs, Spark writes ``<checkpoint>/offsets/<batchId>``: a version line, a line of metadata (watermark,
  time, configuration), then one line of offsets per source. A replayed batch finds the same file.
- In version 1 the sources are numbered by their lines. In version 2 (Spark 4.2, where a source has a name or
  ``spark.sql.streaming.offsetLog.formatVersion`` says so) a line is ``<id>:<offset>``, in any order, and the id is the
  name of the source, or its number.
- A rolled-back, copied or edited checkpoint may give the same batch id other offsets. So a digest of the source lines
  is stored with the record, and the same batch with another digest is an error.
- The offset of a file source is only a number into a log of its own, ``<checkpoint>/sources/<id>/<number>`` (or
  ``<number>.compact``, which also holds older entries): the files that the number means are part of the digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from stateline.errors import CorruptDataError, NotFoundError, UnsupportedVersionError

__all__ = ["ReadFile", "offsets_digest", "source_lines", "source_offsets"]

ReadFile = Callable[[str], str | None]
"""Reads a file of Spark's checkpoint by its relative name; ``None`` if there is none."""

_HEADER_LINES: Final = 2
_IN_ORDER: Final = "v1"
_BY_ID: Final = "v2"


def offsets_digest(read: ReadFile, spark_checkpoint: str, batch_id: int) -> str:
    """SHA-256 over what a batch covers, as 64 hexadecimal digits; see :func:`source_offsets`."""
    return source_offsets(read, spark_checkpoint, batch_id)[0]


def source_offsets(read: ReadFile, spark_checkpoint: str, batch_id: int) -> tuple[str, str]:
    """Return the digest of what a batch covers, and the entry of the offset log.

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
    for line, source, offset in source_lines(entry, f"{spark_checkpoint}/{name}"):
        digest.update(f"{line}\n".encode())
        for file in _files_of(read, source, offset):
            digest.update(f"{file}\n".encode())
    return digest.hexdigest(), entry


def source_lines(entry: str, subject: str) -> list[tuple[str, str, str]]:
    """Return the line, the id and the offset of each source of an entry of the offset log.

    Args:
        entry: The text of the entry.
        subject: Its URL, for messages.

    Raises:
        CorruptDataError: It is not an entry of the offset log.
        UnsupportedVersionError: Its version is unknown.
    """
    lines: Sequence[str] = entry.strip("\n").split("\n")
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
