"""What a format is: how rows become bytes, and which columns and values it cannot hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

__all__ = ["Encoder", "Format", "Sink", "SinkFile"]


class Sink(Protocol):
    """Where encoded bytes go."""

    def write(self, data: bytes) -> int:
        """Takes all of ``data``."""
        ...


class SinkFile:
    """A sink as the file object that pyarrow's encoders write to; closing it publishes nothing."""

    closed = False

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._position = 0

    def write(self, data: Any) -> int:
        """Takes all of ``data``: bytes, or a buffer of Arrow's."""
        self._position += len(data)
        return self._sink.write(data)

    def tell(self) -> int:
        """Bytes so far."""
        return self._position

    def flush(self) -> None:
        """Nothing: what counts is made durable when the stream is closed for its commit."""

    def close(self) -> None:
        """Takes no more."""
        self.closed = True


class Encoder(ABC):
    """Encodes one file. ``write`` any number of tables of one schema, then ``finish`` once."""

    @abstractmethod
    def write(self, rows: pa.Table) -> None:
        """Encodes rows."""

    @abstractmethod
    def finish(self) -> None:
        """Writes what ends the file. Does not close the sink."""


def _no_check(_: pa.Table) -> None:
    """Every value of the format's types has a place in it."""


def _no_cast(_: pa.DataType) -> None:
    """Spark reads every type that the format holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One format.

    Attributes:
        encoder: Makes the encoder of a file, of a sink, the schema of all tables to come, a codec (``None`` for none)
            and the rows of a row group or record batch.
        codecs: The codecs; the first is the default.
        complaint: Why the format cannot hold a type, whatever is inside of it; ``None`` if it can.
        cast: The type that Spark reads from the format, for one that it does not read; ``None`` for one that it reads.
        check_rows: Refuses what only the values tell.
        of_lines: Whether its files are lines, whose codec is told by the end of the name.
    """

    encoder: Callable[[Sink, pa.Schema, str | None, int], Encoder]
    codecs: tuple[str, ...]
    complaint: Callable[[pa.DataType], str | None]
    cast: Callable[[pa.DataType], pa.DataType | None] = _no_cast
    check_rows: Callable[[pa.Table], None] = _no_check
    of_lines: bool = False
