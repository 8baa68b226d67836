"""The state changelog beside the least that could do the same: one buffered write, one list, one codec call.

Every figure is a ratio of two things measured in turn, in one process. Disk caches and page faults make single rounds
noisy, so ratios are of medians, and the spread is written down too.
"""

import argparse
import gc
import os
import resource
import shutil
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import median, spread, table, write_results
from stateline.blob import InstrumentedStore, StoreDecorator
from stateline.blob.local import LocalStore
from stateline.blob.memory import MemoryStore
from stateline.changelog import ChangelogSettings, ChangelogStorage
from stateline.key_groups import KeyGroupRange, range_for_subtask

KEY_GROUPS = 128
ALL = KeyGroupRange(0, KEY_GROUPS - 1)
CHANGE_BYTES = 100


def timed(function: Callable[[], Any]) -> float:
    gc.collect()
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def make_changes(
    count: int, *, compressible: bool = False, sorted_by_group: bool = False
) -> tuple[Any, pa.Array, bytes]:
    """Key groups, values, and the bytes of the values."""
    generator = np.random.default_rng(7)
    groups = generator.integers(0, KEY_GROUPS, count)
    if sorted_by_group:
        groups.sort()
    if compressible:
        words = generator.integers(97, 123, (2000, 20), dtype=np.uint8)
        data = words[generator.integers(0, 2000, count * CHANGE_BYTES // 20)].tobytes()
    else:
        data = generator.integers(0, 256, count * CHANGE_BYTES, dtype=np.uint8).tobytes()
    offsets = np.arange(count + 1, dtype=np.int64) * CHANGE_BYTES
    values = pa.Array.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return groups, values, data


def plain_write(folder: Path, data: bytes) -> float:
    path = folder / "plain"

    def write() -> None:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    took = timed(write)
    path.unlink()
    return took


def changelog_write(folder: Path, groups: Any, values: pa.Array, settings: ChangelogSettings) -> float:
    """One batch, appended and persisted, with fsync; a storage that has run before, as in a job."""
    root = folder / "changelog"
    with ChangelogStorage.open(LocalStore(root), settings, job_id="job") as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append_batch(groups[:1000], values[:1000])
        writer.persist(writer.initial_sequence_number(), 0).result()
        start = writer.next_sequence_number()

        def write() -> None:
            writer.append_batch(groups, values)
            writer.persist(start, 1).result()

        took = timed(write)
    shutil.rmtree(root)
    return took


def batches(folder: Path, changes: int, rounds: int) -> list[dict[str, Any]]:
    """append_batch + persist against a buffered write of the same bytes with the same fsync."""
    rows = []
    for name, options in (("in any order", {}), ("sorted by key group", {"sorted_by_group": True})):
        groups, values, data = make_changes(changes, **options)
        settings = ChangelogSettings(upload_timeout=0)
        ours, plain = [], []
        for _ in range(rounds):
            plain.append(plain_write(folder, data))
            ours.append(changelog_write(folder, groups, values, settings))
        rows.append(
            {
                "name": f"append_batch + persist, {name}",
                "ratio": median(plain) / median(ours),
                "wanted": ">= 0.6" if not options else "",
                "changes_per_second": changes / median(ours),
                "note": f"best {min(plain) / min(ours):.2f}; ours ms {spread([1e3 * x for x in ours])}; "
                f"plain ms {spread([1e3 * x for x in plain])}",
            }
        )
    return rows


def compressed(folder: Path, changes: int, rounds: int) -> list[dict[str, Any]]:
    """The same with compression, against the codec alone, in one thread and with its result written and synced."""
    groups, values, data = make_changes(changes, compressible=True)
    rows = []
    for name in ("lz4", "zstd"):
        codec = pa.Codec(name)
        settings = ChangelogSettings(compression=name, upload_timeout=0)
        ours, alone, written = [], [], []
        for _ in range(rounds):
            packed: list[bytes] = []
            alone.append(timed(lambda: packed.append(codec.compress(data, asbytes=True))))  # noqa: B023
            written.append(alone[-1] + plain_write(folder, packed[0]))
            ours.append(changelog_write(folder, groups, values, settings))
        rows.append(
            {
                "name": f"the same with {name}, against {name} + write",
                "ratio": median(written) / median(ours),
                "wanted": ">= 0.8",
                "changes_per_second": changes / median(ours),
                "note": f"against {name} alone in one thread {median(alone) / median(ours):.2f}",
            }
        )
    return rows


def single_appends(changes: int, rounds: int) -> list[dict[str, Any]]:
    """A loop of ``append`` against a loop of ``list.append`` of pairs. Uploads are left out: nothing is persisted."""
    values = [os.urandom(CHANGE_BYTES) for _ in range(changes)]
    pairs = list(zip(np.random.default_rng(3).integers(0, KEY_GROUPS, changes).tolist(), values, strict=True))
    settings = ChangelogSettings(preemptive_persist_threshold="1GB", max_in_flight="2GB")
    ours, bare = [], []
    for _ in range(rounds):
        found: list[Any] = []

        def fill_list() -> None:
            for key_group, value in pairs:
                found.append((key_group, value))  # noqa: B023

        bare.append(timed(fill_list))
        found.clear()
        with ChangelogStorage.open(MemoryStore("benchmark-append"), settings) as storage:
            writer = storage.create_writer("operator", ALL)

            def fill_writer() -> None:
                for key_group, value in pairs:
                    writer.append(key_group, value)  # noqa: B023

            ours.append(timed(fill_writer))
    MemoryStore.forget("benchmark-append")
    return [
        {
            "name": "append, against list.append of a pair",
            "ratio": median(ours) / median(bare),
            "wanted": "<= 4",
            "changes_per_second": changes / median(ours),
            "note": f"ours ns {spread([1e9 * x / changes for x in ours])}; list ns "
            f"{spread([1e9 * x / changes for x in bare])}",
        }
    ]


def small_checkpoints(writers: int, checkpoints: int) -> list[dict[str, Any]]:
    """Many writers, many small checkpoints: how many objects, and which requests."""
    store = InstrumentedStore(MemoryStore("benchmark-small"))
    waits = []
    with ChangelogStorage.open(store, ChangelogSettings()) as storage:
        found = [storage.create_writer(f"operator-{index}", ALL) for index in range(writers)]
        for checkpoint in range(checkpoints):
            for writer in found:
                writer.append(checkpoint % KEY_GROUPS, b"x" * CHANGE_BYTES)
            started = time.perf_counter()
            starts = [writer.next_sequence_number() for writer in found]
            futures = [
                writer.persist(type(start)(start.value - 1), checkpoint)
                for writer, start in zip(found, starts, strict=True)
            ]
            for future in futures:
                future.result()
            waits.append(time.perf_counter() - started)
    MemoryStore.forget("benchmark-small")
    other = {name: count for name, count in store.calls.items() if name != "put_if_absent"}
    return [
        {
            "name": f"objects per checkpoint, {writers} writers, {checkpoints} checkpoints",
            "ratio": store.calls["put_if_absent"] / checkpoints,
            "wanted": "<= 1",
            "note": f"other requests on the write path: {other or 'none'}; checkpoint ms "
            f"{spread([1e3 * wait for wait in waits])}",
        }
    ]


class SlowStore(StoreDecorator):
    """Swallows writes slowly, and knows how many bytes are inside it at a time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(MemoryStore("benchmark-slow"))
        self._seconds = seconds
        self._lock = threading.Lock()
        self.written = 0

    def put_all_if_absent(self, name: str, pieces: Any) -> Any:
        time.sleep(self._seconds)
        with self._lock:
            self.written += sum(map(len, pieces))
        return self.inner.put_if_absent(name, b"")


def memory(writers: int) -> list[dict[str, Any]]:
    """Live bytes (Python and Arrow) while producers are faster than the store; resident memory for comparison."""
    limit, frame = 40_000_000, 5_000_000
    settings = ChangelogSettings(max_in_flight=limit, upload_timeout=0)
    store = SlowStore(0.05)
    value = os.urandom(1000)
    resident = Path("/proc/self/statm")

    def live() -> int:
        return tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes()

    def pages() -> int:
        return int(resident.read_text().split()[1]) * resource.getpagesize()

    gc.collect()
    tracemalloc.start()
    with ChangelogStorage.open(store, settings) as storage:
        before = live(), pages()
        peak = list(before)
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(0.002):
                peak[:] = max(peak[0], live()), max(peak[1], pages())

        def produce(index: int) -> None:
            writer = storage.create_writer(f"operator-{index}", ALL)
            for number in range(60_000):
                writer.append(number % KEY_GROUPS, value)
            writer.persist(writer.initial_sequence_number(), 1).result()

        threads = [threading.Thread(target=produce, args=(index,)) for index in range(writers)]
        watcher = threading.Thread(target=watch)
        for thread in (watcher, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        watcher.join()
    tracemalloc.stop()
    MemoryStore.forget("benchmark-slow")
    grown, grown_resident = peak[0] - before[0], peak[1] - before[1]
    bound = limit + writers * frame
    return [
        {
            "name": f"live memory, slow store, {writers} writers, against max_in_flight + a frame each",
            "ratio": grown / bound,
            "wanted": "<= 1",
            "note": f"{grown / 1e6:.0f} MB live ({grown_resident / 1e6:.0f} MB resident), {store.written / 1e6:.0f} MB "
            f"written; the bound is {bound / 1e6:.0f} MB",
        }
    ]


def ranged_restore(folder: Path, changes: int) -> list[dict[str, Any]]:
    """Bytes fetched for one sixteenth of the key groups, and the speed of a whole restore."""
    groups, values, data = make_changes(changes)
    store = InstrumentedStore(LocalStore(folder / "restore"))
    rows = []
    with ChangelogStorage.open(store, ChangelogSettings(upload_timeout=0)) as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append_batch(groups, values)
        handle = writer.persist(writer.initial_sequence_number(), 1).result().remote
        whole = sum(segment.length for segment in handle.segments)
        reader = storage.create_reader()
        worst = 0.0
        for part in range(16):
            store.reset()
            wanted = range_for_subtask(part, 16, KEY_GROUPS)
            rows_read = sum(batch.num_rows for batch in reader.read_batches(handle, wanted))
            assert rows_read == int(((groups >= wanted.start) & (groups <= wanted.end)).sum())
            worst = max(worst, store.bytes_read / whole)
        rows.append(
            {
                "name": "bytes fetched for 1/16 of the key groups, worst of 16",
                "ratio": worst,
                "wanted": "<= 0.125",
                "note": f"{len(handle.segments)} segments, {whole / 1e6:.0f} MB",
            }
        )
        speeds = [timed(lambda: [batch.num_rows for batch in reader.read_batches(handle)]) for _ in range(3)]
        plain = [timed(lambda: [store.get(name) for name in handle.object_names()]) for _ in range(3)]
        rows.append(
            {
                "name": "whole restore as batches, against reading the bytes",
                "ratio": median(plain) / median(speeds),
                "wanted": "",
                "changes_per_second": changes / median(speeds),
                "note": f"{len(data) / median(speeds) / 1e6:,.0f} MB/s",
            }
        )
    shutil.rmtree(folder / "restore")
    return rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks changelog", description=__doc__)
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure; a temporary one by default")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="stateline-changelog-", dir=options.folder))
    try:
        rows = [
            *batches(folder, options.changes, options.rounds),
            *compressed(folder, options.changes, max(options.rounds // 2, 3)),
            *single_appends(min(options.changes, 500_000), options.rounds),
            *small_checkpoints(10, 50),
            *memory(4),
            *ranged_restore(folder, options.changes),
        ]
    finally:
        shutil.rmtree(folder)
    print(
        table(
            ("what", "ratio", "wanted", "changes/s", "note"),
            [
                (
                    row["name"],
                    f"{row['ratio']:.2f}",
                    row["wanted"],
                    f"{row['changes_per_second']:,.0f}" if "changes_per_second" in row else "",
                    row["note"],
                )
                for row in rows
            ],
        )
    )
    print(f"\nload average {os.getloadavg()[0]:.1f}; written to {write_results('changelog', {'figures': rows})}")
    return 0
