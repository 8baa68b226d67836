"""Subtasks stay on their hosts on a real standalone cluster, and move once when they lose them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.spark.cluster import Daemon, StandaloneCluster
from tests.spark.marked_processes import marked_processes, wait_for_end, wait_until

ROOT = Path(__file__).parents[2]
KEYS, PARALLELISM = 60, 6

DRIVER = f"""
import os, pathlib, sys, time
sys.path.insert(0, {str(ROOT)!r})
from stateline.spark import KeyedStream, get_or_create_session
from tests.spark.class_archive import SHORT_LIVED

master, folder = sys.argv[1:]

def where(events, state, moment):
    import pyarrow as pa
    host = pa.array([os.environ["SPARK_LOCAL_IP"]] * len(state))
    batch = pa.array([moment.checkpoint_id] * len(state), pa.int64())
    kept = state.select(["k"]).append_column("host", host)
    return kept.append_column("batch", batch), kept

spark = get_or_create_session("affinity", master, quiet=True, **{{
    "spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": SHORT_LIVED, "spark.executor.extraJavaOptions": SHORT_LIVED,
    "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
    "spark.locality.wait": "600s",  # However slow this machine is, a task waits for its host.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.cores.max": "3",
}})
events = spark.readStream.schema("k long").option("maxFilesPerTrigger", 1).parquet(f"{{folder}}/source")
stream = KeyedStream(events, "k", f"file://{{folder}}/state", parallelism={PARALLELISM})
stage = stream.apply_arrow(where, "host string", "k long, host string, batch long")
query = stage.write_files(f"file://{{folder}}/out", every_checkpoint=True).start()
while not pathlib.Path(folder, "stop").exists() and query.isActive:
    time.sleep(0.02)
query.stop()
"""


def wait_for_batch(folder: Path, number: int, cluster: StandaloneCluster, driver: Daemon) -> None:
    record = folder / "state" / f"chk-{number}" / "_metadata"
    wait_until(lambda: record.exists() or driver.process.poll() is not None, 200, f"batch {number}", cluster.logs)
    assert record.exists(), cluster.logs()


@pytest.mark.timeout(600)
def test_subtasks_stay_on_their_hosts_and_move_once_when_one_is_lost(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    with StandaloneCluster(tmp_path / "spark", num_workers=3) as cluster:
        driver = cluster.start_driver(DRIVER, str(tmp_path))
        for number in range(6):
            if number == 3:
                cluster.kill_worker(cluster.workers[0])
            pq.write_table(pa.table({"k": list(range(KEYS))}), tmp_path / f"{number}.parquet")
            (tmp_path / f"{number}.parquet").rename(source / f"{number}.parquet")
            wait_for_batch(tmp_path, number, cluster, driver)
        (tmp_path / "stop").touch()
        assert wait_for_end(driver.process, 100, cluster.logs) == 0, cluster.logs()
    assert marked_processes(cluster.marker) == []
    hosts: list[dict[int, str]] = [{} for _ in range(6)]
    for row in ds.dataset(tmp_path / "out", format="parquet").to_table().to_pylist():
        hosts[row["batch"]][row["k"]] = row["host"]
    before, after, lost = hosts[0], hosts[3], cluster.workers[0].host
    assert hosts[:3] == [before] * 3
    assert hosts[3:] == [after] * 3
    assert {key for key in before if before[key] != after[key]} == {key for key in before if before[key] == lost}
    assert set(before.values()) == {worker.host for worker in cluster.workers}
    assert lost not in after.values()
    assert min(Counter(before.values()).values()) > KEYS / 3 / 3, "hosts have equal shares of the subtasks"
