"""Formats whose files are lines; compressed, a file is a sequence of gzip members, which every reader joins."""

from __future__ import annotations

import gzip
from abc import abstractmethod

import pyarrow as pa

from stateline.files.formats.format import Encoder, Format, Sink

__all__ = ["LineFormat"]


class LineFormat(Format):
    """A format whose rows become lines, each table by itself."""

    codecs = ("none", "gzip")
    of_lines = True

    def head(self, schema: pa.Schema) -> bytes:  # noqa: ARG002 - for subclasses
        """What a file begins with."""
        return b""

    @abstractmethod
    def lines(self, rows: pa.Table) -> bytes:
        """Rows as lines."""

    def encoder(self, sink: Sink, schema: pa.Schema, codec: str | None, row_group_rows: int) -> Encoder:  # noqa: ARG002
        return _LineEncoder(self, sink, schema, is_compressed=codec == "gzip")


class _LineEncoder(Encoder):
    def __init__(self, form: LineFormat, sink: Sink, schema: pa.Schema, *, is_compressed: bool) -> None:
        self._form = form
        self._sink = sink
        self._is_compressed = is_compressed
        head = form.head(schema)
        if head:
            self._put(head)

    def write(self, rows: pa.Table) -> None:
        self._put(self._form.lines(rows))

    def finish(self) -> None:
        """Nothing: a file of lines ends with its last line."""

    def _put(self, data: bytes) -> None:
        self._sink.write(gzip.compress(data, mtime=0) if self._is_compressed else data)
