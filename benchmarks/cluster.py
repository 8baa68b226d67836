"""What several hosts fetch of the state that they have written themselves: four workers with a disk each, a far store.

A standalone cluster on four loopback addresses; counts over 8 subtasks, whose hosts keep copies of what they write and
read. Prints the bytes fetched from the store over those written to it, batch by batch: with subtasks that stay on their
hosts, until one worker is killed and from then on, and with subtasks that Spark places anew for each batch.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import median, table, write_results
from benchmarks.modelled_store import ModelledStore
from tests.spark.cluster import Daemon, StandaloneCluster
from tests.spark.marked_processes import wait_for_end, wait_until

ENOUGH = 0.1
DRIVER = """
import json, os, pathlib, sys, time
from stateline.spark import KeyedStream, count, get_or_create_session, max, sum

master, folder, settings = sys.argv[1], pathlib.Path(sys.argv[2]), json.loads(sys.argv[3])
spark = get_or_create_session("cluster", master, quiet=True, **settings["spark"])
events = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1).parquet(str(folder / "source"))
stream = KeyedStream(
    events, "k", settings["root"], parallelism=settings["subtasks"], options=settings["options"],
)
stage = stream.aggregate(n=count(), s=sum("v"), m=max("v")).state_only()
query = stage.start(f"file://{folder}/spark")
while query.isActive and not (folder / "stop").exists():
    time.sleep(0.02)
query.stop()
"""


class Run:
    """One query on the cluster, which gets its batches one by one.

    Args:
        cluster: Whose name is that of the root, too.
        store: Counts what is fetched and written.
        folder: Of the query.
        settings: Of Spark, beside the usual ones.
        arguments: Of the command line.
    """

    def __init__(
        self, cluster: StandaloneCluster, store: ModelledStore, folder: Path, settings: dict[str, str], arguments: Any
    ) -> None:
        (folder / "source").mkdir(parents=True)
        self._cluster, self._store, self._folder, self._arguments = cluster, store, folder, arguments
        self._dice = np.random.default_rng(1)
        self._log = folder / "metrics"
        self._batches = 0
        told = {
            "root": store.url(folder.name),
            "subtasks": arguments.subtasks,
            "options": {
                "metrics_log": str(self._log),
                "local_copies": arguments.copies,
                **{f"root.{name}": value for name, value in store.options.items()},
            },
            "spark": {
                "spark.driver.memory": "1g",
                "spark.executor.memory": "1g",
                "spark.ui.enabled": "false",
                "spark.executorEnv.PYTHONPATH": str(Path(__file__).parent.parent),
                **settings,
            },
        }
        self._driver: Daemon = cluster.start_driver(DRIVER, str(folder), json.dumps(told), name=folder.name)

    def batch(self) -> dict[str, int]:
        """Runs one batch: bytes that it fetched and wrote."""
        keys, rows = self._arguments.keys, self._arguments.rows
        picks = np.arange(keys) if self._batches == 0 else self._dice.integers(0, keys, rows)
        made = self._folder / "made.parquet"
        pq.write_table(pa.table({"k": picks * 7919, "v": picks % 1000}), made)
        self._store.reset()
        made.rename(self._folder / "source" / f"{self._batches:05}.parquet")
        self._batches += 1
        wait_until(self._is_done, 300, f"batch {self._batches}", self._cluster.logs)
        moved = self._store.counts()["bytes"]
        return {"fetched": moved.get("get", 0), "written": moved.get("put", 0) + moved.get("create", 0)}

    def end(self) -> None:
        """Stops the query."""
        (self._folder / "stop").touch()
        wait_for_end(self._driver.process, 100, self._cluster.logs)

    def _is_done(self) -> bool:
        if self._driver.process.poll() is not None:
            raise RuntimeError(f"the driver has ended\n{self._cluster.logs()}")
        return self._log.exists() and len(self._log.read_text().splitlines()) >= self._batches


def ratios(batches: list[dict[str, int]]) -> list[float]:
    return [batch["fetched"] / batch["written"] for batch in batches]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks cluster", description=__doc__)
    parser.add_argument("--workers", type=int, default=4, help="workers, each on an address of its own")
    parser.add_argument("--subtasks", type=int, default=8, help="subtasks")
    parser.add_argument("--keys", type=int, default=1_000_000, help="distinct keys; 35 bytes of state each")
    parser.add_argument("--rows", type=int, default=200_000, help="rows per micro-batch, after a first one of all keys")
    parser.add_argument("--batches", type=int, default=8, help="batches that are counted, and again after the kill")
    parser.add_argument("--skip", type=int, default=2, help="first batches that are not counted")
    parser.add_argument("--copies", default="auto", help="local_copies; by default below each executor's own folder")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="stateline-bench-") as name, ModelledStore() as store:
        folder = Path(name)
        with StandaloneCluster(folder / "cluster", arguments.workers, cores=2, memory="2g") as cluster:
            anew = Run(cluster, store, folder / "anew", {"spark.sql.unionOutputPartitioning": "false"}, arguments)
            without = [anew.batch() for _ in range(arguments.skip + arguments.batches)][arguments.skip :]
            anew.end()
            stay = Run(cluster, store, folder / "stay", {}, arguments)
            steady = [stay.batch() for _ in range(arguments.skip + arguments.batches)][arguments.skip :]
            cluster.kill_worker(cluster.workers[0])
            after = [stay.batch() for _ in range(arguments.batches)]
            stay.end()
    back = next((index for index, ratio in enumerate(ratios(after)) if ratio <= ENOUGH), None)
    lines = [
        (label, f"{median(ratios(rows)):.2f}", " ".join(f"{ratio:.2f}" for ratio in ratios(rows)))
        for label, rows in (
            ("placed anew for each batch", without),
            ("on their hosts", steady),
            ("after a worker is killed", after),
        )
    ]
    print(table(("subtasks", "fetched over written, median", "batch by batch"), lines))
    print(f"\nBack at {ENOUGH} or less: {'never' if back is None else f'in batch {back + 1} after the kill'}")
    figures = {"settings": vars(arguments), "anew": without, "steady": steady, "after": after}
    print(f"Every figure: {write_results('cluster', figures)}")
    return 0
