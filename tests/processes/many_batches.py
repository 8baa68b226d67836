"""Thousands of micro-batches in one process, which says what it holds: ``python -m tests.processes.many_batches JOB``.

What must not grow with the number of batches is counted: memory, threads, open files, Python objects, and files on
disk, but for the floors, of which one small object stays for each block of checkpoints.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from stateline.blob.local import LocalStore, LocalStoreSettings
from stateline.changelog import ChangelogHandle, ChangelogSettings, ChangelogStorage
from stateline.checkpoint import layout
from stateline.environment import system_environment
from stateline.files import RollingPolicy
from stateline.key_groups import KeyGroupRange
from stateline.state.merge import MergeSettings
from stateline.testing.crashable import scratch_folder
from tests.kit.scenarios.micro_batch import Row
from tests.kit.scenarios.pipeline import PipelineSystem
from tests.processes.jobs import InOneProcess
from tests.processes.system_call_kills import files_below

SAMPLES = 8
KEYS = 40
ROWS = 30


def held(folder: Path) -> dict[str, int]:
    """What this process holds now."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return {
        "rss_kib": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024,
        "threads": threading.active_count(),
        "open_files": len(os.listdir("/proc/self/fd")),
        "objects": len(gc.get_objects()),
        "files": sum("/floor/" not in name for name in files_below(folder)),
    }


def pipeline(folder: Path) -> Callable[[int], None]:
    """The real coordinator, tasks and state, files that span batches, and retention."""
    layout.FLOOR_BLOCK = 10  # So that slots are freed all the time.
    stores = {name: LocalStore(folder / name, LocalStoreSettings(fsync=False)) for name in ("root", "out")}
    system = PipelineSystem(
        InOneProcess(stores, 0, system_environment()),  # type: ignore[arg-type]
        parallelism=2,
        retained=3,
        rolling=RollingPolicy(roll_bytes=20_000),
        merging=MergeSettings(),
    )
    dice = random.Random(1)

    def run(batch: int) -> None:
        rows = [Row(batch, number, f"k{dice.randrange(KEYS)}") for number in range(ROWS)]
        system.run_batch(batch, f"digest-{batch}", [rows])
        system.upkeep.settle()  # Else what it has open at this moment is counted.
        stores["out"].delete([info.name for info in stores["out"].list("part-")])  # A consumer moves them away.

    return run


def changelog(folder: Path) -> Callable[[int], None]:
    """A writer that persists, confirms and truncates; whoever owns the checkpoints deletes the objects of old ones."""
    store = LocalStore(folder / "remote", LocalStoreSettings(fsync=False))
    settings = ChangelogSettings(persist_delay=0, local_recovery_dir=str(folder / "local"))
    storage = ChangelogStorage.open(store, settings)
    writer = storage.create_writer("operator", KeyGroupRange(0, 3))
    reader = storage.create_reader()
    live: list[tuple[int, ChangelogHandle]] = []

    def run(batch: int) -> None:
        start = writer.next_sequence_number()
        for number in range(ROWS):
            writer.append(number % 4, f"{batch}/{number}".encode())
        handle = writer.persist(start, batch).result().remote
        end = writer.next_sequence_number()
        writer.confirm(start, end, batch)
        writer.truncate(end)
        live.append((batch, handle))
        if len(live) > 3:
            _, old = live.pop(0)
            store.delete(old.object_names())
        assert len(list(reader.read(handle))) == ROWS

    return run


JOBS = {"pipeline": pipeline, "changelog": changelog}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=sorted(JOBS))
    parser.add_argument("--batches", type=int, default=2000)
    arguments = parser.parse_args()
    samples = []
    with scratch_folder() as scratch:
        folder = Path(scratch)
        run = JOBS[arguments.job](folder)
        for batch in range(arguments.batches):
            run(batch)
            if (batch + 1) % (arguments.batches // SAMPLES) == 0:
                samples.append({"batch": batch + 1, **held(folder)})
    sys.stdout.write(json.dumps(samples) + "\n")


if __name__ == "__main__":
    main()
