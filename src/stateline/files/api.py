"""What an exactly-once file output is, told once by the user and carried to every task.

Owns the settings and the result of a task. Does not own the decision: a file is visible only after the checkpoint
record that names it exists, and the coordinator publishes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from stateline.errors import InvalidInputError
from stateline.files.rolling import RollingPolicy
from stateline.handles import FinishedFile, OpenFile

__all__ = ["COMPRESSIONS", "FORMATS", "FileOutput", "FilesResult"]

FORMATS: Final = ("parquet", "arrow")
"""Formats by name. All of them are encoded once, when the file rolls."""

COMPRESSIONS: Final = {
    "parquet": ("snappy", "zstd", "lz4", "gzip", "brotli", "none"),
    "arrow": ("zstd", "lz4", "none"),
}
"""Codecs per format; the first is the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOutput:
    """One folder of output files.

    Files are called ``<column>=<value>/.../part-<uuid>.<format>``: the UUID is random, so no two files ever share a
    name, and a name says nothing about attempts.

    Attributes:
        url: Root of the output.
        format: One of :data:`FORMATS`.
        partition_by: Columns that become folders, outermost first.
        compression: A codec of the format; ``None`` for its default.
        rolling: When a file is complete.
        row_group_rows: Rows per row group (Parquet) or record batch (Arrow).
        store_options: Options of the output's store.
    """

    url: str
    format: str = "parquet"
    partition_by: tuple[str, ...] = ()
    compression: str | None = None
    rolling: RollingPolicy = field(default_factory=RollingPolicy)
    row_group_rows: int = 1_048_576
    store_options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise _unknown("format", self.format, FORMATS)
        if self.compression is not None and self.compression not in COMPRESSIONS[self.format]:
            raise _unknown(f"compression of {self.format}", self.compression, COMPRESSIONS[self.format])
        if len(set(self.partition_by)) != len(self.partition_by):
            raise InvalidInputError(
                f"{list(self.partition_by)} names a column twice", subject="partition_by", hint="Name each column once"
            )

    @property
    def codec(self) -> str | None:
        """The codec as pyarrow spells it; ``None`` for uncompressed."""
        name = self.compression or COMPRESSIONS[self.format][0]
        return None if name == "none" else name


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesResult:
    """What a task hands back: all of it durable, none of it visible.

    Attributes:
        finished: Files that the checkpoint publishes.
        open: Files that go on growing.
    """

    finished: tuple[FinishedFile, ...] = ()
    open: tuple[OpenFile, ...] = ()


def _unknown(what: str, value: str, known: tuple[str, ...]) -> InvalidInputError:
    return InvalidInputError(f"{value!r} is not one", subject=what, hint=f"Known: {', '.join(known)}")
