"""Rows on their way from one operator to the subtasks of another: parcels.

A parcel holds the rows of one sender for one subtask of one reader, as an Arrow IPC stream. Spark moves parcels, not
rows: one row of its shuffle is a parcel of up to ``Sizes.parcel_bytes``, unless a row is longer. The results of
subtasks travel in parcels as well, from task to task, until the last level hands them to the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stateline.key_groups import key_group_of
from stateline.sizes import sizes
from stateline.state.columns import take

__all__ = [
    "PARCELS",
    "Parcel",
    "decode_parcels",
    "encode_parcels",
    "read_rows",
    "split_by_subtask",
    "write_rows",
]

PARCELS: Final = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("reader", pa.string(), nullable=False),
        pa.field("sender", pa.string(), nullable=False),
        pa.field("attempt", pa.string(), nullable=False),
        pa.field("content", pa.binary(), nullable=False),
    ]
)
"""What Spark sees of parcels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """Rows of one sender for one subtask, or the result of one.

    Attributes:
        partition: Where it goes: the number of a task among those of the reader's level.
        reader: The label of who reads it (:attr:`stateline.pipeline.graph.Reader.label`); empty for a result.
        sender: The subtask that made it, such as ``by_k/3``; empty for rows of an input.
        attempt: Which attempt of the sender; empty for rows of an input.
        content: The rows, or the encoded result; empty for no rows.
    """

    partition: int
    reader: str = ""
    sender: str = ""
    attempt: str = ""
    content: Any = b""


def encode_parcels(parcels: Iterable[Parcel]) -> Iterator[pa.RecordBatch]:
    """Parcels as batches of :data:`PARCELS`, each of which is small enough for one message to Spark."""
    waiting: list[Parcel] = []
    size = 0
    for parcel in parcels:
        waiting.append(parcel)
        size += len(parcel.content)
        if size >= sizes().parcel_batch_bytes:
            yield _encoded(waiting)
            waiting, size = [], 0
    if waiting:
        yield _encoded(waiting)


def _encoded(parcels: Sequence[Parcel]) -> pa.RecordBatch:
    columns = [
        pa.array([getattr(parcel, field.name) for parcel in parcels], field.type)
        for field in PARCELS
        if field.name != "content"
    ]
    columns.append(pa.array([memoryview(parcel.content) for parcel in parcels], pa.binary()))
    return pa.RecordBatch.from_arrays(columns, schema=PARCELS)


def decode_parcels(batches: Iterable[pa.RecordBatch]) -> Iterator[Parcel]:
    """The inverse of :func:`encode_parcels`. Contents are views of the batches, not copies."""
    for batch in batches:
        partitions, readers, senders, attempts = (batch.column(number).to_pylist() for number in range(4))
        for row, content in enumerate(batch.column(4)):
            yield Parcel(
                partition=partitions[row],
                reader=readers[row],
                sender=senders[row],
                attempt=attempts[row],
                content=content.as_buffer(),
            )


def read_rows(content: Any) -> Iterator[pa.RecordBatch]:
    """The rows of a parcel."""
    if len(content):
        with pa.ipc.open_stream(content) as reader:
            yield from reader


def write_rows(rows: pa.RecordBatch) -> pa.Buffer:
    """The content of a parcel with these rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue()


def split_by_subtask(
    rows: pa.RecordBatch, hashes: npt.NDArray[Any], parallelism: int, max_parallelism: int
) -> Iterator[tuple[int, pa.Buffer]]:
    """The rows of each subtask, in their order, as contents of parcels.

    Args:
        rows: Any.
        hashes: The stable hash of the key of each.
        parallelism: Subtasks.
        max_parallelism: Key groups.
    """
    if rows.num_rows == 0:
        return
    subtasks = key_group_of(hashes, max_parallelism) * parallelism // max_parallelism
    counts = np.bincount(subtasks, minlength=parallelism)
    if int(counts.max()) < rows.num_rows:
        order = np.argsort(subtasks.astype(np.uint16), kind="stable")  # Of 16 bits: numpy sorts these by counting.
        rows = pa.RecordBatch.from_arrays([take(column, order) for column in rows.columns], schema=rows.schema)
    at_once = max(1, int(rows.num_rows * sizes().parcel_bytes / max(rows.nbytes, 1)))
    ends = np.cumsum(counts)
    for subtask in np.flatnonzero(counts).tolist():
        end = int(ends[subtask])
        for start in range(end - int(counts[subtask]), end, at_once):
            yield subtask, write_rows(rows.slice(start, min(at_once, end - start)))
