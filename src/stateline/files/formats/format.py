"""What a format is: how rows become the bytes of a file, and which columns and values it cannot hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final, Protocol

import pyarrow as pa

from stateline.errors import ErrorKind, InvalidInputError
from stateline.files.formats.limits import check_text, children, is_interval

__all__ = ["GZIP_SUFFIX", "Encoder", "Format", "Sink", "SinkFile"]

GZIP_SUFFIX: Final = ".gz"
"""Follows the format in the name of a compressed file of lines: readers know the codec by it."""


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


class Format(ABC):
    """A file format; it has one instance, in :data:`stateline.files.formats.FORMATS`.

    Attributes:
        name: What users call it, and the suffix of its files.
        codecs: Its codecs; the first is the default.
        of_lines: Whether its files are lines, whose codec the end of the name tells.
        by_position: Whether readers find columns by their position, and not by their name.
    """

    name: ClassVar[str]
    codecs: ClassVar[tuple[str, ...]]
    of_lines: ClassVar[bool] = False
    by_position: ClassVar[bool] = False

    @abstractmethod
    def encoder(self, sink: Sink, schema: pa.Schema, codec: str | None, row_group_rows: int) -> Encoder:
        """An encoder for one file.

        Args:
            sink: Where the bytes go.
            schema: The schema of all tables to come.
            codec: One of ``codecs``, as pyarrow spells it; ``None`` for none.
            row_group_rows: Most rows of a row group or record batch.
        """

    def complaint(self, kind: pa.DataType) -> str | None:  # noqa: ARG002 - for subclasses
        """Why the format cannot hold a type, whatever is inside it; ``None`` if it can."""
        return None

    def cast(self, kind: pa.DataType) -> pa.DataType | None:  # noqa: ARG002
        """The type to cast to where Spark does not read this one from the format; ``None`` where it does."""
        return None

    def check_schema(self, schema: pa.Schema, *, for_spark: bool = True) -> None:
        """Checks that the format can hold columns of these types.

        Args:
            schema: The columns.
            for_spark: Whether Spark must be able to read them.

        Raises:
            InvalidInputError: It cannot; names the column, its type and the reason, or what to cast it to.
        """
        for field in schema:
            reason = self._reason_against(field.type, for_spark=for_spark)
            if reason is not None:
                raise InvalidInputError(
                    f"{field.type} cannot be written as {self.name}: {reason}",
                    operation="write_files",
                    subject=f"column {field.name!r}",
                    hint="Convert the column, or choose another format",
                    kind=ErrorKind.SCHEMA_MISMATCH,
                )

    def check_rows(self, rows: pa.Table) -> None:
        """Checks values before they are durable: afterwards nobody could take them back.

        Raises:
            InvalidInputError: The format cannot hold a value; names the column and the reason.
        """
        check_text(rows)

    def _reason_against(self, kind: pa.DataType, *, for_spark: bool) -> str | None:
        if is_interval(kind):
            return "readers do not agree on the form of intervals"
        reason = self.complaint(kind)
        if reason is None and for_spark and (target := self.cast(kind)) is not None:
            reason = f"Spark cannot read {kind} from it; cast it to {target}"
        is_encoded = pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind)
        inside = [kind.value_type] if is_encoded else children(kind)
        return reason or next(
            filter(None, (self._reason_against(child, for_spark=for_spark) for child in inside)), None
        )
