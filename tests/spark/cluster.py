"""A real Spark standalone cluster on the loopback addresses: a master, and workers on 127.0.0.2, 127.0.0.3 and so on.

Every worker has an address of its own, so that Spark takes them for different hosts (and speculates between them).
Drivers run as subprocesses, because a process can hold one Spark context only. Needs Linux: a whole network of loopback
addresses.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from tests.spark.class_archive import SHORT_LIVED
from tests.spark.marked_processes import START_SECONDS_MAX, MarkedProcesses, kill_with_descendants, wait_until

SPARK_HOME = Path(pyspark.__file__).parent


@dataclass
class Daemon:
    """A master or a worker: the leader of a process group of its own, with its output in a file."""

    name: str
    host: str
    process: subprocess.Popen[bytes]
    log: Path


@dataclass
class StandaloneCluster(MarkedProcesses):
    """One master and ``num_workers`` workers.

    Attributes:
        num_workers: Number of workers, each with one executor at most for each application.
        cores: Cores of each worker.
        memory: Memory that each worker gives to executors.
    """

    num_workers: int = 2
    cores: int = 1
    memory: str = "1g"
    master_url: str = ""
    workers: list[Daemon] = field(default_factory=list)

    def start(self) -> None:
        """Returns when every worker has registered with the master."""
        ports = ["--port", "0", "--webui-port", "0"]
        master = self._start_daemon("master", "127.0.0.1", "master.Master", ports)
        self.master_url = self._wait_for_line(master, r"Starting Spark master at (spark://\S+)")
        for number in range(1, self.num_workers + 1):
            size = ["--cores", str(self.cores), "--memory", self.memory, "--work-dir", f"{self.folder}/work-{number}"]
            worker = self._start_daemon(
                f"worker-{number}", f"127.0.0.{number + 1}", "worker.Worker", [*ports, *size, self.master_url]
            )
            self.workers.append(worker)
        for worker in self.workers:
            self._wait_for_line(worker, r"Successfully registered with master (\S+)")

    def environment(self, host: str = "127.0.0.1") -> dict[str, str]:
        more = {
            "SPARK_LOG_DIR": str(self.folder / "logs"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
            "SPARK_SUBMIT_OPTS": SHORT_LIVED,
        }
        return {**super().environment(host), **more}

    def start_driver(self, program: str, *arguments: str, name: str = "driver") -> Daemon:
        """Runs Python code as a driver, in a process group of its own. ``sys.argv[1]`` is the URL of the master."""
        command = [sys.executable, "-c", program, self.master_url, *arguments]
        return self._start(name, "127.0.0.1", command)

    def kill_worker(self, worker: Daemon) -> None:
        """Kills, with SIGKILL, a worker, its executors and their Python workers, as the loss of its host would."""
        kill_with_descendants(worker.process)

    def _start_daemon(self, name: str, host: str, main: str, arguments: list[str]) -> Daemon:
        spark_class = str(SPARK_HOME / "bin" / "spark-class")
        return self._start(
            name, host, ["bash", spark_class, f"org.apache.spark.deploy.{main}", "--host", host, *arguments]
        )

    def _start(self, name: str, host: str, command: list[str]) -> Daemon:
        log = self.folder / f"{name}.log"
        return Daemon(name, host, self.run(log, command, host), log)

    def _wait_for_line(self, daemon: Daemon, pattern: str) -> str:
        """The first group of the first line of a daemon's log that matches."""
        found: list[str] = []

        def matched() -> bool:
            if daemon.process.poll() is not None:
                raise RuntimeError(f"{daemon.name} ended with {daemon.process.returncode}\n{self.logs()}")
            found.extend(re.findall(pattern, daemon.log.read_text(errors="replace"))[:1])
            return bool(found)

        wait_until(matched, START_SECONDS_MAX, f"{pattern!r} in the log of {daemon.name}", self.logs)
        return found[0]
