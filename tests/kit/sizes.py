"""Sizes for suites: all of them tiny, so that few rows take every way that only large state takes."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, replace
from typing import Any, Final

from stateline.sizes import Sizes, resized, sizes

__all__ = ["SIZES", "TINY", "as_text", "smaller"]

TINY: Final = Sizes(
    slices_max=16,
    slice_rows=1,
    merge_window_rows=3,
    merge_free_rows=0,
    merge_small_rows=0,
    merge_piece_bytes=2048,
    runs_in_memory=1,
    run_batches=4,
    run_batch_rows=2,
    run_tail_bytes=64,
    fetch_whole_bytes=0,
    fetch_range_bytes=300,
    index_rows_per_miss=10_000,
    index_sample=2,
    index_steps=1,
    located_rows=3,
    feed_rows=3,
    record_bytes=2,
    driver_inline_bytes=20_000,
    segment_bytes=4000,
    parcel_bytes=100,
    parcel_batch_bytes=300,
    waiting_batch_rows=2,
    waiting_buffer_bytes=500,
    waiting_short_bytes=5000,
    waiting_objects=2,
    waiting_objects_at_once=2,
    gathered_rows=2,
    gathered_bytes=100,
    encoded_bytes=1000,
    held_bytes=1000,
    copied_bytes=64,
    history_block=4,
    history_blocks_carried=1,
)
"""An index of hashes is made at the first miss: so many rows are one miss worth."""

SIZES: Final = {"default": Sizes(), "tiny": TINY}
"""With these every suite must hold."""


def smaller(**changes: int) -> contextlib.AbstractContextManager[None]:
    """The present sizes, but for some."""
    return resized(replace(sizes(), **changes))


def as_text(wanted: Sizes) -> str:
    """The sizes as ``STATELINE_SIZES`` has them."""
    given: dict[str, Any] = asdict(wanted)
    return ",".join(f"{name}={number}" for name, number in given.items())
