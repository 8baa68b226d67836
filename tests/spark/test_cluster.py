"""The standalone cluster that other tests build on: it runs jobs, loses workers, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.cluster import StandaloneCluster, is_alive, marked_processes, wait_until

CONNECT = textwrap.dedent("""\
    import json, os, pathlib, sys, time
    from pyspark import TaskContext
    from stateline.spark import get_or_create_session

    spark = get_or_create_session("on-the-cluster", sys.argv[1], quiet=True, **{
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "150s",
    })

    def host():
        return os.environ["SPARK_LOCAL_IP"]
""")

HOSTS = CONNECT + textwrap.dedent("""\
    print(json.dumps(sorted(spark.sparkContext.parallelize(range(8), 8).map(lambda _: host()).distinct().collect())))
""")

WAITING = CONNECT + textwrap.dedent("""\
    folder = pathlib.Path(sys.argv[2])

    def work(partition, rows):
        attempt = TaskContext.get().taskAttemptId()
        (folder / f"started-{partition}-{host()}-{attempt}").touch()
        deadline = time.monotonic() + 150
        while not (folder / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        yield partition, host(), sum(rows)

    print(json.dumps(spark.sparkContext.parallelize(range(100), 2).mapPartitionsWithIndex(work).collect()))
""")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster") / "spark") as running:
        yield running
    assert marked_processes(running.marker) == []


def result_of(cluster: StandaloneCluster, name: str, program: str, *arguments: str) -> object:
    driver = cluster.start_driver(program, *arguments, name=name)
    assert driver.process.wait(timeout=200) == 0, cluster.logs()
    return json.loads(driver.log.read_text().splitlines()[-1])


def test_a_job_runs_on_both_workers(cluster: StandaloneCluster) -> None:
    assert result_of(cluster, "hosts", HOSTS) == ["127.0.0.2", "127.0.0.3"]


def test_a_job_survives_the_loss_of_a_worker(cluster: StandaloneCluster, tmp_path: Path) -> None:
    driver = cluster.start_driver(WAITING, str(tmp_path), name="waiting")

    def started() -> dict[str, str]:
        """Which host each partition runs on, once both run."""
        return {name.split("-")[1]: name.split("-")[2] for name in os.listdir(tmp_path) if name.startswith("started")}

    wait_until(lambda: len(started()) == 2, 150, "both tasks", cluster.logs)
    running = started()
    assert set(running.values()) == {"127.0.0.2", "127.0.0.3"}
    doomed = cluster.workers[0]
    [lost] = [partition for partition, host in running.items() if host == doomed.host]
    cluster.kill_worker(doomed)
    assert driver.process.poll() is None
    (tmp_path / "go").touch()
    assert driver.process.wait(timeout=200) == 0, cluster.logs()
    answer = json.loads(driver.log.read_text().splitlines()[-1])
    assert [total for _, _, total in answer] == [sum(range(50)), sum(range(50, 100))]
    assert {host for _, host, _ in answer} == {cluster.workers[1].host}
    attempts = [name for name in os.listdir(tmp_path) if name.startswith(f"started-{lost}-")]
    assert len(attempts) == 2, "the lost partition ran once more"


def test_nothing_is_left_when_the_test_process_is_killed(tmp_path: Path) -> None:
    """The reaper, not a ``finally``, cleans up: a killed process runs none. A stand-in takes the place of Spark."""
    program = textwrap.dedent("""\
        import pathlib, subprocess, sys, time
        from tests.spark import cluster as module

        cluster = module.StandaloneCluster(pathlib.Path(sys.argv[1]))
        cluster._start_daemon = lambda name, host, main, arguments: cluster._start(name, host, ["sleep", "600"])
        cluster._wait_for_line = lambda daemon, pattern: "spark://127.0.0.1:1"
        cluster.start()
        print(cluster.marker, flush=True)
        time.sleep(600)
        """)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "spark")], env=environ, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    marker = process.stdout.readline().strip()
    pids = marked_processes(marker)
    assert len(pids) == 3
    process.kill()
    process.wait()
    process.stdout.close()
    wait_until(lambda: not any(map(is_alive, pids)), 30, "the reaper")


def test_a_cluster_that_cannot_start_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = StandaloneCluster(tmp_path / "spark")
    monkeypatch.setattr(
        broken,
        "_start_daemon",
        lambda name, host, main, arguments: broken._start(name, host, ["sh", "-c", "echo no such luck; exit 3"]),
    )
    with pytest.raises(RuntimeError, match=r"master ended with 3\n(?s:.*)no such luck"), broken:
        pytest.fail("the cluster runs")
    assert marked_processes(broken.marker) == []
