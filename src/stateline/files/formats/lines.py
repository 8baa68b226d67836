"""Formats whose files are lines.

Facts:
- Readers of lines know compressed ones by the ending of the file's name, so it says ``.gz``.
"""

from __future__ import annotations

import gzip
from abc import abstractmethod
from typing import Final

import pyarrow as pa

from stateline.files.formats.format import Encoder, Sink

__all__ = ["GZIP_ENDING", "LINE_CODECS", "LineEncoder"]

GZIP_ENDING: Final = ".gz"
"""What comes after the format in the name of a compressed file of lines."""

LINE_CODECS: Final = ("none", "gzip")


class LineEncoder(Encoder):
    """Encodes lines; compressed, a file is a sequence of gzip members, which every reader joins."""

    def __init__(self, sink: Sink, schema: pa.Schema, codec: str | None, row_group_rows: int) -> None:  # noqa: ARG002
        self._sink = sink
        self._codec = codec
        head = self.head(schema)
        if head:
            self._put(head)

    def head(self, schema: pa.Schema) -> bytes:  # noqa: ARG002 - for subclasses
        """What a file begins with."""
        return b""

    @abstractmethod
    def lines(self, rows: pa.Table) -> bytes:
        """Rows as lines."""

    def write(self, rows: pa.Table) -> None:
        self._put(self.lines(rows))

    def finish(self) -> None:
        """Nothing: a file of lines ends with its last line."""

    def _put(self, data: bytes) -> None:
        self._sink.write(gzip.compress(data, mtime=0) if self._codec == "gzip" else data)
