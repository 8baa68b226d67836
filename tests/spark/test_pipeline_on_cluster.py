"""The same pipeline on a real standalone cluster, which loses a worker in the middle of a batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.cluster import StandaloneCluster, marked_processes, wait_until
from tests.spark.keyed_model import check, make_source

ROOT = Path(__file__).parents[2]

DRIVER = f"""
import runpy, sys
sys.path.insert(0, {str(ROOT)!r})
runpy.run_module("tests.spark.keyed_driver", run_name="__main__", alter_sys=True)
"""


@pytest.mark.timeout(900)  # Several sessions, each with a JVM of its own.
def test_a_worker_lost_in_the_middle_of_a_batch_changes_nothing(tmp_path):
    files, rows = 6, 50
    work = tmp_path / "work"
    make_source(work, files=files, rows=rows)
    with StandaloneCluster(tmp_path / "spark") as cluster:
        driver = cluster.start_driver(DRIVER, str(work), "--hold-from", str(3 * rows), "--parallelism", "3")
        wait_until(lambda: list(work.glob("started-*")), 200, "the held batch", cluster.logs)
        (host,) = {path.name.split("-")[1] for path in work.glob("started-*")}
        cluster.kill_worker(next(worker for worker in cluster.workers if worker.host == host))
        (work / "go").touch()
        assert driver.process.wait(timeout=250) == 0, cluster.logs()
        hosts = {path.name.split("-")[1] for path in work.glob("started-*")}
        assert len(hosts) == 2, "the batch was processed again on the other host"
        marker = cluster.marker
    assert marked_processes(marker) == []
    check(work, files=files, rows=rows)
