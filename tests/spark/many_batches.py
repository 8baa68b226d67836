"""Many micro-batches of one real Spark driver, and what it holds: ``python -m tests.spark.many_batches --batches N``.

Counts memory, threads and open files of the driver, its JVM and the Python workers, and the files of the root, at eight
moments. Prints one document: ``samples``, ``points`` and ``failures``, where something grew in the second half.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
from pathlib import Path

from stateline import spark as st
from tests.spark.marked_processes import descendants, wait_until

SAMPLES = 8
KEYS = 500
COUNTED = ("rss_kib", "threads", "open_files", "mapped_files")
TOLERATED_RSS = 1.05


def process(pid: int) -> dict[str, object]:
    """What one process holds."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "name": status["Name"].strip(),
        "rss_kib": int(status["VmRSS"].split()[0]),
        "threads": int(status["Threads"]),
        "open_files": len(os.listdir(f"/proc/{pid}/fd")),
        "mapped_files": sum(line.endswith(".arrow (deleted)") for line in maps.splitlines()),
    }


def held(jvm, folder: Path) -> dict[str, object]:
    """What the driver, its JVM and the Python workers hold now, the workers summed."""
    gc.collect()
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    found: dict[str, object] = {"driver": {**process(os.getpid()), "objects": len(gc.get_objects())}}
    workers = []
    for pid in descendants(os.getpid()):
        try:
            held_by = process(pid)
        except (FileNotFoundError, ProcessLookupError, KeyError):
            continue
        if held_by["name"] == "java":
            found["jvm"] = {**held_by, "heap_kib": (runtime.totalMemory() - runtime.freeMemory()) // 1024}
        elif held_by["name"].startswith("python"):  # Hadoop runs a shell now and then.
            workers.append(held_by)
    found["workers"] = {
        "count": len(workers),
        **{name: sum(worker[name] for worker in workers) for name in COUNTED},
    }
    found["files"] = sum(len(names) for _, _, names in os.walk(folder / "state"))
    return found


def grown(samples: list[dict[str, dict[str, int]]]) -> list[str]:
    """What grew between the middle and the end."""
    middle, end = samples[len(samples) // 2 - 1], samples[-1]
    found = []
    for who, what, limit in (
        ("driver", "rss_kib", middle["driver"]["rss_kib"] * TOLERATED_RSS),
        ("driver", "threads", middle["driver"]["threads"] + 1),
        ("driver", "open_files", middle["driver"]["open_files"] + 15),
        ("jvm", "heap_kib", middle["jvm"]["heap_kib"] * 1.15 + 5_000),  # Spark remembers the last hundred batches.
        ("jvm", "threads", middle["jvm"]["threads"] + 15),  # Pools of its own come and go, up to a hundred threads.
        ("jvm", "open_files", middle["jvm"]["open_files"] + 30),
        ("workers", "count", middle["workers"]["count"] + 1),
        ("workers", "rss_kib", middle["workers"]["rss_kib"] * TOLERATED_RSS + 60_000),
        ("workers", "open_files", middle["workers"]["open_files"] + 15),
        ("workers", "mapped_files", middle["workers"]["mapped_files"] + 15),  # Deleted, they still take room on disk.
    ):
        if end[who][what] > limit:
            found.append(f"{what} of {who}: {middle[who][what]} in the middle, {end[who][what]} at the end")
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--rows", type=int, default=1000, help="rows of each batch")
    arguments = parser.parse_args()
    conf = {"spark.driver.memory": "512m", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    spark = st.get_or_create_session("many-batches", "local[2]", quiet=True, **conf)
    samples: list = []
    with tempfile.TemporaryDirectory(prefix="stateline-batches-") as place:
        folder = Path(place)
        rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", arguments.rows).load()
        events = rate.selectExpr(f"value % {KEYS} AS key", "value")
        query = (
            st.KeyedStream(events, key="key", checkpoint=f"file://{folder}/state", parallelism=2)
            .aggregate(n=st.count(), total=st.sum("value"), largest=st.max("value"))
            .write_files(f"file://{folder}/out", roll_bytes="200KB")
            .start(f"{folder}/spark", trigger={"processingTime": "0 seconds"})
        )
        for number in range(SAMPLES):
            wanted = (number + 1) * arguments.batches // SAMPLES

            def reached(wanted: int = wanted) -> bool:
                progress = query.lastProgress
                return not query.isActive or (progress is not None and progress["batchId"] >= wanted)

            wait_until(reached, 3600, f"batch {wanted}")
            if query.exception() is not None:
                raise query.exception()
            samples.append({"batch": wanted, **held(spark._jvm, folder)})
            sys.stderr.write(f"{json.dumps(samples[-1])}\n")
        query.stop()
    spark.stop()
    sys.stdout.write(json.dumps({"points": arguments.batches, "samples": samples, "failures": grown(samples)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
