"""The standalone cluster that other tests build on leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.spark.cluster import StandaloneCluster
from tests.spark.marked_processes import is_alive, marked_processes, wait_until


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
    wait_until(lambda: len(marked_processes(marker)) == 3, 30, "the processes")  # One may be forked, and not begun.
    pids = marked_processes(marker)
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
