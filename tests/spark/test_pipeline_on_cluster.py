"""The pipeline on a real standalone cluster: tasks that write after their batch is decided, and a worker that is lost.

One cluster for all tests of this module; the last one kills a worker of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateline.blob import open_store
from stateline.checkpoint import CheckpointStore, verify_root
from tests.spark.cluster import Daemon, StandaloneCluster
from tests.spark.keyed_model import check, make_source
from tests.spark.marked_processes import descendants, marked_processes, wait_for_end, wait_until

ROOT = Path(__file__).parents[2]

DRIVER = f"""
import runpy, sys
sys.path.insert(0, {str(ROOT)!r})
runpy.run_module("tests.spark.keyed_driver", run_name="__main__", alter_sys=True)
"""

FILES, ROWS, LATE = 6, 50, 2

PATIENT = "spark.python.task.killTimeout=120s"
"""Spark ends the Python side of a task that it gives up after two seconds; here it lets it go on to its end."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("late") / "spark") as started:
        yield started
    assert marked_processes(started.marker) == []


@pytest.fixture
def work(tmp_path) -> Path:
    make_source(tmp_path / "work", files=FILES, rows=ROWS)
    return tmp_path / "work"


def start_with_a_late_task(cluster: StandaloneCluster, work: Path, *settings: str) -> Daemon:
    options = [word for setting in (PATIENT, *settings) for word in ("--conf", setting)]
    return start(cluster, work, "--late", str(LATE), "--parallelism", "2", "--inline-bytes", "0", *options)


def start(cluster: StandaloneCluster, work: Path, *options: str) -> Daemon:
    return cluster.start_driver(DRIVER, str(work), *options, name=f"driver-{work.parent.name}")


def objects_nobody_reaches(work: Path) -> list[str]:
    return verify_root(CheckpointStore(open_store(f"file://{work}/state"))).orphaned


def assert_late_task_counts_once(cluster: StandaloneCluster, work: Path, driver: Daemon) -> None:
    """It ran on both hosts, wrote on both, and counts once."""
    first = (work / "late-began").read_text()
    assert [path.name for path in work.glob("again-*") if not path.name.endswith(first)], "it ran on one host only"
    wait_until(lambda: bool(objects_nobody_reaches(work)), 60, "what the late task wrote", cluster.logs)
    assert wait_for_end(driver.process, 250, cluster.logs) == 0, cluster.logs()
    check(work, files=FILES, rows=ROWS)
    assert objects_nobody_reaches(work)


@pytest.mark.timeout(600)
def test_both_attempts_of_a_speculated_task_write_and_one_counts(cluster, work):
    settings = (
        "speculation=true",
        "speculation.interval=50ms",
        "speculation.quantile=0.5",
        "speculation.multiplier=1.1",
    )
    driver = start_with_a_late_task(cluster, work, *(f"spark.{setting}" for setting in settings))
    wait_until((work / "late-went-on").exists, 200, "the late task", cluster.logs)
    assert_late_task_counts_once(cluster, work, driver)


@pytest.mark.timeout(600)
def test_a_frozen_executor_that_wakes_up_after_its_batch_changes_nothing(cluster, work):
    """It is believed dead, its task runs elsewhere, the batch is decided; then its Python worker goes on."""
    settings = ("network.timeout=10s", "network.timeoutInterval=1s", "executor.heartbeatInterval=2s")
    driver = start_with_a_late_task(cluster, work, *(f"spark.{setting}" for setting in settings))
    wait_until((work / "late-began").exists, 200, "the late task", cluster.logs)
    host = (work / "late-began").read_text()
    worker = next(worker for worker in cluster.workers if worker.host == host)
    family = [worker.process.pid, *descendants(worker.process.pid)]
    with frozen(family):
        record = work / "state" / f"chk-{LATE}" / "_metadata"
        wait_until(record.exists, 200, "the same batch, elsewhere", cluster.logs)
        assert not (work / "late-went-on").exists()
        for pid in family:
            if "java" not in Path(f"/proc/{pid}/comm").read_text():
                os.kill(pid, signal.SIGCONT)  # Its executor would end it, did it know what has happened.
        assert_late_task_counts_once(cluster, work, driver)
    assert (work / "late-went-on").exists()


@contextlib.contextmanager
def frozen(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pytest.mark.timeout(600)
def test_a_worker_lost_in_the_middle_of_a_batch_changes_nothing(cluster, work):
    driver = start(cluster, work, "--hold-from", str(3 * ROWS), "--parallelism", "3")
    wait_until(lambda: list(work.glob("started-*")), 200, "the held batch", cluster.logs)
    (host,) = {path.name.split("-")[1] for path in work.glob("started-*")}
    cluster.kill_worker(next(worker for worker in cluster.workers if worker.host == host))
    (work / "go").touch()
    assert wait_for_end(driver.process, 250, cluster.logs) == 0, cluster.logs()
    hosts = {path.name.split("-")[1] for path in work.glob("started-*")}
    assert len(hosts) == 2, "the batch was processed again on the other host"
    check(work, files=FILES, rows=ROWS)
