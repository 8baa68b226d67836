"""The rows in sections of kind ``run`` and ``rows``, without a checkpoint that names them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from stateline.blob import BlobStore
from stateline.changelog.segment import DirectoryEntry, SectionKind
from stateline.files.pending import decode_rows
from stateline.handles import SectionHandle
from stateline.sizes import sizes
from stateline.state.run import check_whole, decode_batches, described, ranged, read_index, tail_bytes
from stateline.state.schema import StateSchema

__all__ = ["batches_of", "row_count"]


def batches_of(store: BlobStore, name: str, entry: DirectoryEntry) -> Iterator[pa.RecordBatch]:
    """The rows of a section, as stored, after every check that a reader with a handle makes.

    Raises:
        CorruptDataError: The section is damaged, or contradicts itself.
    """
    section = _handle(name, entry)
    buffer = pa.py_buffer(store.get_range(name, section.offset, section.end))
    if entry.kind is SectionKind.ROWS:
        yield from decode_rows(section, buffer).to_batches()
        return
    run = described(buffer, section, entry.number)
    check_whole(buffer, run)
    index = read_index(buffer, run)
    with pa.ipc.open_file(buffer) as reader:
        decode_batches(buffer, run, StateSchema.of_run(reader.schema), index, range(len(index.batches)))
        yield from (reader.get_batch(number) for number in range(reader.num_record_batches))


def row_count(store: BlobStore, name: str, entry: DirectoryEntry) -> int | None:
    """How many rows a run says it has: from its tail alone. ``None``: rows do not say it.

    Raises:
        CorruptDataError: It is no run.
    """
    if entry.kind is not SectionKind.RUN:
        return None
    section = _handle(name, entry)
    sparse = np.zeros(section.length, np.uint8)  # As long as the run; only the pages of its tail are ever touched.
    known = 0
    wanted = min(sizes().run_tail_bytes, section.length)
    while known < wanted:
        tail = store.get_range(name, section.end - wanted, section.end)
        known = wanted
        sparse[-known:] = ranged(tail, wanted, section.place)
        wanted = min(tail_bytes(tail), section.length)
    return described(pa.py_buffer(sparse), section, entry.number).rows


def _handle(name: str, entry: DirectoryEntry) -> SectionHandle:
    return SectionHandle(name=name, offset=entry.offset, length=entry.length, crc32c=entry.crc32c)
