"""Sizes that decide which way the code takes, in one place: so few rows can take the ways of large state in tests.

They are no options: each default was measured, or bounds memory, and no other value makes a stream right or wrong. What
users may set is in the settings of each part, whose defaults are here where a size decides a way.

A suite that lowers them must hold as it does with the defaults::

    with resized(Sizes(slice_rows=4, merge_window_rows=8)):
        ...

Other processes take them from the environment: ``STATELINE_SIZES='slice_rows=4,merge_window_rows=8'``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Final

from stateline.errors import ErrorKind, InvalidInputError

__all__ = ["VARIABLE", "Sizes", "parse_sizes", "resized", "sizes"]

VARIABLE: Final = "STATELINE_SIZES"
"""The environment variable that changes sizes of a process."""

_KIB: Final = 1024
_MIB: Final = 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """See the module docstring. All are 1 or more, except where 0 is named.

    Attributes:
        slices_max: Slices of a subtask's key groups that are merged each on its own, at most.
        slice_rows: Rows of a slice. Merging a slice of 65,536 rows takes a few milliseconds.
        merge_window_rows: Rows merged at a time: few enough for the cache, enough to make numpy's overhead vanish.
        merge_free_rows: Rows that any checkpoint may merge, however few have changed; 0 for none.
        merge_small_rows: Default of ``MergeSettings.small_rows``; may be 0.
        merge_piece_bytes: Default of ``MergeSettings.piece_bytes``.
        runs_in_memory: Runs in memory of a ``KeyedState``, at most, before they are merged.
        run_batches: Record batches that a run is cut into, if they have ``run_batch_rows`` rows or more.
        run_batch_rows: Rows of the smallest record batches that a run is cut into, and that are gathered for it.
        run_tail_bytes: How much of the end of a run is read first: the tail of all but huge runs.
        fetch_whole_bytes: Default of ``RunReaderSettings.whole_bytes``; may be 0.
        fetch_range_bytes: Default of ``RunReaderSettings.range_bytes``.
        index_rows_per_miss: An index of so many rows is made in the time that it saves for each hash that is missing.
        index_sample: Hashes that show how many of all are missing.
        index_steps: Steps from the place that an index gives: by then one in fifty hashes has not met its row.
        located_rows: Rows that a search of ranges returns at a time.
        feed_rows: Rows of a part of the state that the change feed reads at a time.
        record_bytes: Longest strings of one length that are copied as records; Arrow copies longer ones well enough.
        driver_inline_bytes: Bytes of sections that all subtasks together may hand back with their results.
        segment_bytes: A segment of so many bytes is uploaded while the next one is filled.
        parcel_bytes: Bytes of a parcel on its way between subtasks.
        parcel_batch_bytes: Bytes of the record batches that parcels are joined to.
        waiting_batch_rows: Rows of the record batches of waiting rows; smaller ones are joined.
        waiting_buffer_bytes: Rows of open files in memory, before they are written as waiting rows.
        waiting_short_bytes: Sections of waiting rows below this are joined.
        waiting_objects: Objects with short sections of a file, before they are joined.
        waiting_objects_at_once: Objects that are joined at a time.
        gathered_rows: Rows of a file that are gathered before they are encoded.
        gathered_bytes: Bytes of them.
        encoded_bytes: Bytes of a batch of rows that is encoded at a time.
        held_bytes: Bytes of files that are encoded ahead of their time.
        copied_bytes: Bytes of an object that is copied or checked at a time.
        history_block: Checkpoints whose summaries become one object of the history. Fixed for the life of a root.
        history_blocks_carried: Complete blocks that a record carries at most, before their object exists.
    """

    slices_max: int = 32
    slice_rows: int = 65_536
    merge_window_rows: int = 65_536
    merge_free_rows: int = 65_536
    merge_small_rows: int = 10_000
    merge_piece_bytes: int = 256 * _MIB
    runs_in_memory: int = 8
    run_batches: int = 64
    run_batch_rows: int = 8192
    run_tail_bytes: int = 32 * _KIB
    fetch_whole_bytes: int = _MIB
    fetch_range_bytes: int = 8 * _MIB
    index_rows_per_miss: int = 16
    index_sample: int = 256
    index_steps: int = 3
    located_rows: int = 1 << 20
    feed_rows: int = 1_000_000
    record_bytes: int = 256
    driver_inline_bytes: int = 256 * _MIB
    segment_bytes: int = 64 * _MIB
    parcel_bytes: int = 8 * _MIB
    parcel_batch_bytes: int = 32 * _MIB
    waiting_batch_rows: int = 32_768
    waiting_buffer_bytes: int = 64 * _MIB
    waiting_short_bytes: int = 256 * _KIB
    waiting_objects: int = 16
    waiting_objects_at_once: int = 256
    gathered_rows: int = 65_536
    gathered_bytes: int = 8 * _MIB
    encoded_bytes: int = 32 * _MIB
    held_bytes: int = 128 * _MIB
    copied_bytes: int = 16 * _MIB
    history_block: int = 64
    history_blocks_carried: int = 3

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            least = 0 if field.name in _MAY_BE_ZERO else 1
            if getattr(self, field.name) < least:
                raise InvalidInputError(
                    f"must be {least} or more, got {getattr(self, field.name)}",
                    subject=f"size {field.name!r}",
                    hint=f"The default is {field.default}",
                )


_MAY_BE_ZERO: Final = frozenset({"merge_free_rows", "merge_small_rows", "fetch_whole_bytes"})


def parse_sizes(text: str) -> Sizes:
    """Sizes from text such as ``slice_rows=4,merge_window_rows=8``; the defaults from an empty text.

    Raises:
        InvalidInputError: An unknown name, or no whole number in range.
    """
    known = [field.name for field in dataclasses.fields(Sizes)]
    given: dict[str, int] = {}
    for item in filter(None, text.split(",")):
        name, _, number = (part.strip() for part in item.partition("="))
        if name not in known or not number.isdecimal():
            raise InvalidInputError(
                f"{item.strip()!r} is not a size",
                subject=VARIABLE,
                hint=f"Give name=number, separated by commas. Names: {', '.join(known)}",
                kind=ErrorKind.UNKNOWN_OPTION,
            )
        given[name] = int(number)
    return Sizes(**given)


_CURRENT: Final = [parse_sizes(os.environ.get(VARIABLE, ""))]


def sizes() -> Sizes:
    """The sizes of this process."""
    return _CURRENT[-1]


@contextlib.contextmanager
def resized(wanted: Sizes) -> Iterator[None]:
    """Other sizes for a while, in all threads of this process. For tests."""
    _CURRENT.append(wanted)
    try:
        yield
    finally:
        _CURRENT.pop()
