"""A store that is far away: micro-batches over a modelled one beside the same over the local disk.

``python -m benchmarks remote``: count, sum and maximum of a million keys with default options, the local disk, the
modelled store, and the modelled store of which one request in a hundred stalls, in turn. Prints the median over that of
the local disk, and the 99th percentile over the median. A checkpoint is three requests of which each needs the one
before: segments of both subtasks, the record, a look whether the record still counts. What they take alone, with the
bytes of this run, and a batch of the local disk are together the least that this order allows.

``python -m benchmarks remote --cold``: the first batch after a restart with much state, with empty folders of local
copies and with surviving ones, over what it must take: the bytes at the rate of eight connections, and a usual batch.
New Python workers start in it. What that takes is shown by the first batch of a root without state, on the local disk,
less a usual batch of it; no restart does without.
"""

import argparse
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import median, own_workers, table, write_results
from benchmarks.modelled_store import BYTES_PER_SECOND, STALL_SECONDS, ModelledStore

CONNECTIONS = 8


def make_source(folder: Path, *, first: int, batches: int, rows: int, keys: int, fresh: bool = False) -> None:
    """One Parquet file for each micro-batch; with ``fresh`` rows no key comes twice."""
    folder.mkdir(exist_ok=True)
    for batch in range(first, first + batches):
        dice = np.random.default_rng(batch)
        picks = np.arange(batch * rows, (batch + 1) * rows) if fresh else dice.integers(0, keys, rows)
        columns = {"k": picks * 2_654_435_761 % 2**61, "v": dice.integers(0, 1000, rows)}
        pq.write_table(pa.table(columns), folder / f"{batch:05}.parquet")


def run(
    spark: Any, source: Path, place: Path, root: str, store: ModelledStore | None, options: dict[str, str]
) -> list[float]:
    """Seconds of each micro-batch, by Spark's own measure."""
    from stateline.spark import KeyedStream, count, max, sum

    events = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1).parquet(str(source))
    given = {**options, **({f"root.{name}": value for name, value in store.options.items()} if store else {})}
    stream = KeyedStream(events, key="k", checkpoint=root, parallelism=2, options=given)
    query = stream.aggregate(n=count(), s=sum("v"), m=max("v")).state_only()
    running = query.start(str(place / "spark"), trigger={"availableNow": True})
    running.awaitTermination()
    progress = [item for item in running.recentProgress if item["numInputRows"]]
    return [item["durationMs"]["triggerExecution"] / 1000 for item in progress]


def steady(spark: Any, folder: Path, store: ModelledStore, arguments: argparse.Namespace) -> dict[str, Any]:
    """Both stores, and the one that stalls, in turn."""
    make_source(folder / "source", first=0, batches=arguments.batches, rows=arguments.rows, keys=arguments.keys)
    seconds: dict[str, list[float]] = {"local disk": [], "modelled store": [], "with stalls": []}
    requests = []
    for round_ in range(arguments.rounds):
        for name, found in seconds.items():
            own_workers(spark, f"{name}-{round_}", tuned=True)
            place = folder / f"{name}-{round_}".replace(" ", "-")
            place.mkdir()
            remote = None if name == "local disk" else store
            root = f"file://{place}/root" if remote is None else remote.url(place.name)
            store.model(stall_share=arguments.stalls if name == "with stalls" else 0.0)
            store.reset()
            found.extend(run(spark, folder / "source", place, root, remote, {})[arguments.skip :])
            requests.append((name, store.counts()))
            print(f"round {round_ + 1} {name:15} {median(found):.2f} s", flush=True)
            shutil.rmtree(place)
    counted = next(counts for name, counts in requests if name == "modelled store")
    waits = in_turn(store, counted["bytes"]["create"] // arguments.batches)
    local = median(seconds["local disk"])
    seconds["local disk, and three requests"] = [local + wait for wait in waits]
    rows = [
        (
            name,
            f"{median(found):.2f} s",
            f"{median(found) / local:.2f}x",
            f"{float(np.percentile(found, 99)) / median(found):.2f}x",
            f"{len(found)}",
        )
        for name, found in seconds.items()
    ]
    print("\n" + table(("", "median", "over local disk", "99th percentile over median", "batches"), rows))
    return {"seconds": seconds, "requests": requests}


def in_turn(store: ModelledStore, checkpoint_bytes: int, rounds: int = 10) -> list[float]:
    """Seconds of the requests of a checkpoint of so many bytes, with nothing else to do."""
    from stateline.blob import open_store

    store.model(stall_share=0.0)
    segments = [bytes(checkpoint_bytes // 2)] * 2
    found = []
    with open_store(store.url("in-turn"), store.options) as blobs, ThreadPoolExecutor(2) as subtasks:
        for round_ in range(rounds):
            names = [f"{round_}-{subtask}" for subtask in range(2)]
            began = time.perf_counter()
            list(subtasks.map(blobs.put_if_absent, names, segments))
            blobs.put_if_absent(f"{round_}-record", bytes(1000))
            blobs.get(f"{round_}-record")
            found.append(time.perf_counter() - began)
    return found


def cold(spark: Any, folder: Path, store: ModelledStore, arguments: argparse.Namespace) -> dict[str, Any]:
    """Restarts with much state: with copies, without them, and with them again."""
    source, place, copies = folder / "source", folder / "place", folder / "copies"
    place.mkdir()
    options = {"local_copies": str(copies)}
    built = -(-arguments.state_keys // arguments.rows)
    make_source(source, first=0, batches=built, rows=arguments.rows, keys=0, fresh=True)
    own_workers(spark, "build", tuned=True)
    run(spark, source, place, store.url("cold"), store, options)
    figures: dict[str, list[Any]] = {"empty": [], "surviving": [], "no state": []}
    usual: list[float] = []
    usual_without: list[float] = []
    done = built
    for round_ in range(arguments.rounds):
        for name, found in figures.items():
            if name == "empty":
                shutil.rmtree(copies, ignore_errors=True)
            for old in source.iterdir():
                old.unlink()
            make_source(source, first=done, batches=arguments.after, rows=arguments.rows, keys=arguments.state_keys)
            done += arguments.after
            own_workers(spark, f"{name}-{round_}", tuned=True)
            store.reset()
            if name == "no state":
                own = folder / f"{name}-{round_}".replace(" ", "-")
                seconds = run(spark, source, own, f"file://{own}/root", None, {})
                usual_without += seconds[2:]
            else:
                seconds = run(spark, source, place, store.url("cold"), store, options)
                usual += seconds[2:]
            found.append((seconds[0], store.counts()["bytes"].get("get", 0)))
            print(f"round {round_ + 1} {name:10} {seconds[0]:.2f} s, then {median(seconds[2:]):.2f} s", flush=True)
    batch = median(usual)
    start = median([seconds for seconds, _ in figures["no state"]]) - median(usual_without)
    rows = []
    for name in ("empty", "surviving"):
        found = figures[name]
        fetched = median([size for _, size in found])
        first, due = median([seconds for seconds, _ in found]), batch + fetched / (BYTES_PER_SECOND * CONNECTIONS)
        rows.append(
            (
                name,
                f"{first:.2f} s",
                f"{fetched / 1e6:,.0f} MB",
                f"{due:.2f} s",
                f"{first / due:.2f}x",
                f"{(start + due) / due:.2f}x",
            )
        )
    print(f"\nWorkers start in {start:.2f} s.\n")
    print(table(("copies", "first batch", "fetched", "at best", "first over best", "with the start: floor"), rows))
    return {"first": figures, "usual": usual, "usual_without_state": usual_without}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks remote", description=__doc__)
    parser.add_argument("--cold", action="store_true", help="restarts, instead of steady batches")
    parser.add_argument("--rows", type=int, default=500_000, help="rows per micro-batch")
    parser.add_argument("--keys", type=int, default=1_000_000, help="distinct keys")
    parser.add_argument("--state-keys", type=int, default=5_000_000, help="distinct keys before a restart")
    parser.add_argument("--batches", type=int, default=38, help="micro-batches per round")
    parser.add_argument("--after", type=int, default=6, help="micro-batches after a restart")
    parser.add_argument("--skip", type=int, default=4, help="first batches of a round that are not counted")
    parser.add_argument("--rounds", type=int, default=3, help="rounds")
    parser.add_argument("--stalls", type=float, default=0.01, help=f"share of requests that take {STALL_SECONDS:g} s")
    arguments = parser.parse_args(argv)

    from stateline.spark import get_or_create_session

    spark = get_or_create_session(
        "stateline-benchmark",
        master="local[2]",
        **{
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "4g",
            "spark.ui.showConsoleProgress": "false",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="stateline-bench-") as folder, ModelledStore() as store:
        figures = (cold if arguments.cold else steady)(spark, Path(folder), store, arguments)
    spark.stop()
    print(f"\nEvery figure: {write_results('remote', {'settings': vars(arguments), **figures})}")
    return 0
