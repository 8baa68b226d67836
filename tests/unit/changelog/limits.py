"""A second and 64 MiB: what hostile input may cost."""

from __future__ import annotations

import contextlib
import resource
import time
import tracemalloc
from collections.abc import Iterator

import pyarrow as pa

MIB = 1024 * 1024


@contextlib.contextmanager
def bounded(seconds: float = 1.0, mebibytes: float = 64) -> Iterator[None]:
    """Fails if the body takes more processor time, or more memory at its peak, in Python, Arrow or the process."""
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    arrow = pa.total_allocated_bytes()
    tracemalloc.start()
    started = time.process_time()
    try:
        yield
    finally:
        took = time.process_time() - started
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert took < seconds
    assert peak < mebibytes * MIB
    assert pa.total_allocated_bytes() - arrow < mebibytes * MIB
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident) * 1024 < mebibytes * MIB
