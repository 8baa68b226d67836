"""Arrow IPC files: record batches as ``row_groups`` says."""

from __future__ import annotations

import pyarrow as pa

from stateline.files.formats.format import Encoder, Format, Sink, SinkFile

__all__ = ["ArrowFormat"]


class _ArrowEncoder(Encoder):
    def __init__(self, sink: Sink, schema: pa.Schema, codec: str | None, row_group_rows: int) -> None:
        self._rows = row_group_rows
        options = pa.ipc.IpcWriteOptions(compression=codec)
        self._writer = pa.ipc.new_file(pa.PythonFile(SinkFile(sink), mode="w"), schema, options=options)

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, max_chunksize=self._rows)

    def finish(self) -> None:
        self._writer.close()


class ArrowFormat(Format):
    """Arrow IPC files, which hold every type of Arrow."""

    name = "arrow"
    codecs = ("zstd", "lz4", "none")

    def encoder(self, sink: Sink, schema: pa.Schema, codec: str | None, row_group_rows: int) -> Encoder:
        return _ArrowEncoder(sink, schema, codec, row_group_rows)
