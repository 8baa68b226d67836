"""What a keyed stream asks of its store and its hosts: requests, bytes, disk, memory, cores and money.

    python -m examples.sizing --rows-per-second 100000 --keys 10000000 --subtasks 64 --trigger 30

Every constant is measured, and says where. Prices are inputs: the defaults are those of S3 Standard in us-east-1 as
they were known on :data:`PRICES_AS_OF`. ``docs/sizing.md`` explains the model, and what it leaves out.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Final

import numpy as np

__all__ = ["PRICES_AS_OF", "Estimate", "Prices", "Stream", "estimate", "write_requests"]

PRICES_AS_OF: Final = "2025-06-01"
DAY_SECONDS: Final = 86_400
LOCAL_COPIES_BYTES = 10_000_000_000
"""Room for the copies of a host, by default."""

MONTH_SECONDS: Final = 365 * DAY_SECONDS / 12

ROW_BYTES: Final = 21
"""A key, a count, a sum and a maximum in a run (docs/decisions/0023-narrow-numbers.md)."""
INLINE_BYTES: Final = 64 * 1024
"""What a subtask hands back without an object of its own; option ``inline_bytes``."""
INLINE_ALL_BYTES: Final = 256 * 1024 * 1024
"""What all subtasks hand back together, at most (docs/decisions/0040-inline-and-packed-sections.md)."""
RECORD_BYTES: Final = 20 * 1024
"""Of these that stay in the record; option ``record_bytes``."""
SECTION_BYTES: Final = 1_400
"""Of what a subtask hands back, besides its rows: an Arrow file with one row (``tests/documents/test_sizing.py``)."""
SEGMENT_BYTES: Final = 64 * 1024 * 1024
"""A subtask that writes more makes several segments (docs/decisions/0040-inline-and-packed-sections.md)."""
PIECE_BYTES: Final = 8 * 1024 * 1024
"""Pieces of an output file, each a request to stage and one to publish on S3; option ``chunk_size`` of the writer."""
MERGED: Final = ((1.0, 1.5), (2.0, 2.5), (5.0, 2.5), (10.0, 3.3), (50.0, 3.8), (100.0, 3.2))
"""Live keys for each changed key, and rows merged for each changed row (docs/decisions/0032-merges-in-slices.md)."""
STORED_ROWS: Final = 1.9
"""Rows stored for each live row, the highest of the same table."""
CORE_ROWS_PER_SECOND: Final = 530_000
"""``stateful``, 1 M longs: 1.06 to 1.07 M rows/s on two cores, Spark included (docs/evidence/performance.md)."""
BUSY: Final = 0.5
"""Of the cores: the rest is room for catching up after a restart."""
BATCH_SECONDS: Final = 0.56
"""``remote``, 500,000 rows over a store of 30 ms (docs/evidence/performance.md): a trigger has to be longer."""
WORKER_BYTES: Final = 280 * 1024 * 1024
"""A Python worker without its mapped files: half of 560 MiB (docs/decisions/0045-measurements.md)."""
INDEX_ROW_BYTES: Final = 3
"""Memory of a worker for each stored row of its subtask, at most (docs/decisions/0039-search-of-runs.md)."""
BATCH_ROW_BYTES: Final = 200
"""Memory of a worker for each row of a batch: an assumption, twice what rows of ten columns take in Arrow."""


@dataclass(frozen=True)
class Prices:
    """In US dollars.

    Attributes:
        put: For 1,000 requests that write, copy, list or begin an upload.
        get: For 1,000 requests that read.
        stored: For a gigabyte in a month.
    """

    put: float = 0.005
    get: float = 0.0004
    stored: float = 0.023


@dataclass(frozen=True)
class Stream:
    """What is known of a stream.

    Attributes:
        rows_per_second: Rows that come.
        keys: Keys that are kept.
        subtasks: Parallelism.
        trigger: Seconds from one checkpoint to the next.
        row_bytes: Of a key and its state, in a run.
        output_row_bytes: Of an output row, in its file; 0 where nothing is written to files.
        folders: Into which each file's rows are split by ``partition_by``.
        roll_seconds: Age at which a file is finished.
        retained_checkpoints: As the option of that name; ``None`` for its default.
        hosts: With executors.
    """

    rows_per_second: float
    keys: float
    subtasks: int
    trigger: float
    row_bytes: float = ROW_BYTES
    output_row_bytes: float = 0
    folders: int = 1
    roll_seconds: float = 300
    retained_checkpoints: int | None = None
    hosts: int = 1

    @property
    def retained(self) -> int:
        """Checkpoints that are kept: by default 10, and those of the last hour, up to 100."""
        if self.retained_checkpoints is not None:
            return self.retained_checkpoints
        return min(max(10, int(3600 / self.trigger) + 1), 100)

    @property
    def changed_keys(self) -> float:
        """Distinct keys of a micro-batch where all keys are alike; fewer where some are hot."""
        rows = self.rows_per_second * self.trigger
        return self.keys * -math.expm1(-rows / self.keys)


@dataclass(frozen=True)
class Estimate:
    """What a stream costs.

    Attributes:
        puts_per_checkpoint: Requests that write, on the way to a checkpoint and beside the next batch.
        gets_per_checkpoint: Requests that read, while no host loses its copies.
        file_puts_per_second: Requests of output files that are finished.
        written_bytes_per_checkpoint: Of state, merges included, and of output rows that wait.
        file_bytes_per_second: Of finished output files.
        state_bytes: Of the root, what old checkpoints need included.
        host_disk_bytes: Copies on each host.
        worker_bytes: Memory of a Python worker, mapped files not counted.
        driver_bytes: Sections that subtasks hand to the driver in place of writing them.
        cores: Of all hosts.
        requests_usd: A month.
        storage_usd: A month, of the root alone: output stays as long as you like.
    """

    puts_per_checkpoint: float
    gets_per_checkpoint: float
    file_puts_per_second: float
    written_bytes_per_checkpoint: float
    file_bytes_per_second: float
    state_bytes: float
    host_disk_bytes: float
    worker_bytes: float
    driver_bytes: float
    cores: int
    requests_usd: float
    storage_usd: float


def inline_bytes(subtasks: int) -> float:
    """What a subtask hands to the driver in place of writing it."""
    return min(INLINE_BYTES, INLINE_ALL_BYTES / subtasks)


def write_requests(subtasks: int, bytes_each: float) -> float:
    """Requests that decide a checkpoint: its record, and the objects of its subtasks.

    Where subtasks write little, this is the mean, and rather too much: what they hand back stays in the record until it
    is full, or until a merge makes it less.

    Args:
        subtasks: How many.
        bytes_each: What each of them writes.
    """
    if bytes_each > inline_bytes(subtasks):
        return 1 + subtasks * math.ceil(bytes_each / SEGMENT_BYTES)
    return 1 + min(1.0, subtasks * (SECTION_BYTES + bytes_each) / RECORD_BYTES)


def estimate(stream: Stream, prices: Prices | None = None) -> Estimate:
    """What a stream asks of its store and its hosts, in the mean."""
    prices = prices or Prices()
    changed = stream.changed_keys
    ratios, merged = zip(*MERGED, strict=True)
    rows_merged = float(np.interp(math.log(stream.keys / changed), np.log(ratios), merged))
    waiting = changed * stream.output_row_bytes
    written = changed * stream.row_bytes * (1 + rows_merged) + waiting
    retires = 1  # The tombstone of the checkpoint that is let go. Deletions are free.
    puts = write_requests(stream.subtasks, written / stream.subtasks) + retires
    gets = 1.0  # The floor.
    file_bytes = waiting / stream.trigger
    files = stream.folders / max(stream.roll_seconds, stream.trigger) if stream.output_row_bytes else 0.0
    pieces = math.ceil(file_bytes / files / PIECE_BYTES) if files else 0
    file_puts = files * (2 * pieces + 2)  # Staged, copied by S3; the upload begun and completed.
    state = stream.keys * stream.row_bytes * STORED_ROWS + stream.retained * written
    checkpoints = MONTH_SECONDS / stream.trigger
    a_month = (checkpoints * puts + MONTH_SECONDS * file_puts) * prices.put + checkpoints * gets * prices.get
    batch_rows = stream.rows_per_second * stream.trigger / stream.subtasks
    state_rows = stream.keys * STORED_ROWS / stream.subtasks
    return Estimate(
        puts_per_checkpoint=puts,
        gets_per_checkpoint=gets,
        file_puts_per_second=file_puts,
        written_bytes_per_checkpoint=written,
        file_bytes_per_second=file_bytes,
        state_bytes=state,
        host_disk_bytes=min(state / stream.hosts, LOCAL_COPIES_BYTES),
        worker_bytes=WORKER_BYTES + batch_rows * BATCH_ROW_BYTES + state_rows * INDEX_ROW_BYTES,
        driver_bytes=written if written / stream.subtasks <= inline_bytes(stream.subtasks) else 0.0,
        cores=max(1, math.ceil(stream.rows_per_second / CORE_ROWS_PER_SECOND / BUSY)),
        requests_usd=a_month / 1000,
        storage_usd=state / 1e9 * prices.stored,
    )


def text_of(stream: Stream, found: Estimate) -> str:
    """An estimate for people."""
    checkpoints = DAY_SECONDS / stream.trigger
    lines = [
        ("changed keys in a batch", f"{stream.changed_keys:,.0f}"),
        ("checkpoints a day", f"{checkpoints:,.0f}"),
        ("requests a checkpoint", f"{found.puts_per_checkpoint:,.1f} writes, {found.gets_per_checkpoint:,.0f} read"),
        ("requests of files a day", f"{found.file_puts_per_second * DAY_SECONDS:,.0f}"),
        ("written a checkpoint", _size(found.written_bytes_per_checkpoint)),
        ("written a day", _size(found.written_bytes_per_checkpoint * checkpoints)),
        ("output files a day", _size(found.file_bytes_per_second * DAY_SECONDS)),
        ("state in the store", _size(found.state_bytes)),
        ("copies on each host's disk", _size(found.host_disk_bytes)),
        ("memory of a Python worker", _size(found.worker_bytes)),
        ("handed to the driver at once", _size(found.driver_bytes)),
        ("cores", f"{found.cores:,}"),
        ("requests a month", f"${found.requests_usd:,.2f}"),
        ("storage of the state a month", f"${found.storage_usd:,.2f}"),
    ]
    width = max(len(name) for name, _ in lines)
    shown = [f"{name:<{width}}  {value}" for name, value in lines]
    if stream.trigger < 2 * BATCH_SECONDS:
        shown.append(f"\nA micro-batch of 500,000 rows takes {BATCH_SECONDS} s: this trigger is hardly longer.")
    return "\n".join(shown)


def _size(count: float) -> str:
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count:,.0f} B"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.sizing", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows-per-second", type=_positive, required=True, help="rows that come")
    parser.add_argument("--keys", type=_positive, required=True, help="keys that are kept")
    parser.add_argument("--subtasks", type=int, default=8, help="parallelism (8)")
    parser.add_argument("--trigger", type=_positive, default=10.0, help="seconds between checkpoints (10)")
    parser.add_argument("--row-bytes", type=_positive, default=ROW_BYTES, help=f"of a key and its state ({ROW_BYTES})")
    parser.add_argument(
        "--output-row-bytes", type=float, default=0.0, help="of an output row in its file (0: no files)"
    )
    parser.add_argument("--folders", type=int, default=1, help="that partition_by makes (1)")
    parser.add_argument("--roll-seconds", type=_positive, default=300.0, help="age at which files are finished (300)")
    parser.add_argument("--retained-checkpoints", type=int, help="as the option of that name (by default 10 to 100)")
    parser.add_argument("--hosts", type=int, default=1, help="with executors (1)")
    parser.add_argument("--put-usd", type=float, default=Prices.put, help=f"1,000 writes ({Prices.put})")
    parser.add_argument("--get-usd", type=float, default=Prices.get, help=f"1,000 reads ({Prices.get})")
    parser.add_argument("--stored-usd", type=float, default=Prices.stored, help=f"a GB and month ({Prices.stored})")
    given = vars(parser.parse_args(argv))
    prices = Prices(put=given.pop("put_usd"), get=given.pop("get_usd"), stored=given.pop("stored_usd"))
    stream = Stream(**given)
    print(text_of(stream, estimate(stream, prices)))
    return 0


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be more than 0, got {text}")
    return value


if __name__ == "__main__":
    raise SystemExit(main())
