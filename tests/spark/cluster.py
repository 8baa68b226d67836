"""A real Spark standalone cluster on the loopback addresses: a master, and workers on 127.0.0.2, 127.0.0.3 and so on.

Every worker has an address of its own, so that Spark takes them for different hosts (and speculates between them).
Drivers run as subprocesses, because a process can hold one Spark context only.

Everything that the cluster starts carries a marker in its environment: the daemons, their executors, the executors'
Python workers, the drivers. A small process, the reaper, waits on a pipe from the test; when the pipe closes, whether
by :meth:`StandaloneCluster.stop` or because the test process died, it kills whatever carries the marker. Needs Linux:
``/proc``, and a whole network of loopback addresses.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

import pyspark

from stateline.spark.java import find_java

MARKER = "STATELINE_TEST_CLUSTER"
SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS_MAX = 150


@dataclass
class Daemon:
    """A master or a worker: the leader of a process group of its own, with its output in a file."""

    name: str
    host: str
    process: subprocess.Popen[bytes]
    log: Path


@dataclass
class StandaloneCluster:
    """One master and ``num_workers`` workers. Use it as a context manager.

    Attributes:
        folder: Where logs, working folders and an empty configuration live.
        num_workers: Number of workers, each with one executor at most for each application.
        cores: Cores of each worker.
        memory: Memory that each worker gives to executors.
    """

    folder: Path
    num_workers: int = 2
    cores: int = 1
    memory: str = "1g"
    marker: str = field(default_factory=lambda: uuid.uuid4().hex)
    master_url: str = ""
    workers: list[Daemon] = field(default_factory=list)
    _reaper: subprocess.Popen[bytes] | None = None
    _started: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = field(default_factory=list)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when every worker has registered with the master."""
        (self.folder / "conf").mkdir(parents=True)
        self._reaper = subprocess.Popen(
            [sys.executable, __file__, self.marker], stdin=subprocess.PIPE, start_new_session=True
        )
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

    def stop(self) -> None:
        """Kills everything that the cluster has started, and returns when it is gone. Idempotent."""
        if self._reaper is not None and self._reaper.stdin is not None:
            self._reaper.stdin.close()
            self._reaper.wait(timeout=60)
        for process, output in self._started:
            process.wait(timeout=60)
            output.close()

    def environment(self, host: str = "127.0.0.1") -> dict[str, str]:
        """The environment of a process that belongs to the cluster."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        return {
            **inherited,
            MARKER: self.marker,
            "JAVA_HOME": find_java().home,
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self.folder / f"local-{host}"),
            "SPARK_LOG_DIR": str(self.folder / "logs"),
            "SPARK_DAEMON_MEMORY": "256m",
        }

    def start_driver(self, program: str, *arguments: str, name: str = "driver") -> Daemon:
        """Runs Python code as a driver, in a process group of its own. ``sys.argv[1]`` is the URL of the master."""
        command = [sys.executable, "-c", program, self.master_url, *arguments]
        return self._start(name, "127.0.0.1", command)

    def kill_worker(self, worker: Daemon) -> None:
        """Kills, with SIGKILL, a worker, its executors and their Python workers, as the loss of its host would."""
        family = descendants(worker.process.pid)
        for pid in [worker.process.pid, *family]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        worker.process.wait(timeout=30)
        wait_until(lambda: not any(is_alive(pid) for pid in family), 30, f"the end of {worker.name}")

    def logs(self) -> str:
        """The end of every log, for the message of a failure."""
        parts = [f"== {log.name}\n{log.read_text(errors='replace')[-4000:]}" for log in self.folder.glob("*.log")]
        return "\n".join(sorted(parts))

    def _start_daemon(self, name: str, host: str, main: str, arguments: list[str]) -> Daemon:
        spark_class = str(SPARK_HOME / "bin" / "spark-class")
        return self._start(
            name, host, ["bash", spark_class, f"org.apache.spark.deploy.{main}", "--host", host, *arguments]
        )

    def _start(self, name: str, host: str, command: list[str]) -> Daemon:
        log = self.folder / f"{name}.log"
        output = log.open("wb")
        process = subprocess.Popen(
            command,
            env=self.environment(host),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._started.append((process, output))
        return Daemon(name, host, process, log)

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


def wait_until(
    condition: Callable[[], bool], timeout_seconds: float, what: str, details: Callable[[], str] = str
) -> None:
    """Asks again and again, because what is waited for happens in another process.

    Time in which this process was stopped, or the machine asleep, hardly counts: the others slept, too.

    Raises:
        TimeoutError: Names what did not happen, with ``details()``.
    """
    left = timeout_seconds
    before = time.monotonic()
    while not condition():
        if left < 0:
            raise TimeoutError(f"waited {timeout_seconds} s in vain for {what}\n{details()}")
        time.sleep(0.02)
        now = time.monotonic()
        left -= min(now - before, 1)
        before = now


def wait_for_end(process: subprocess.Popen[bytes], timeout_seconds: float, details: Callable[[], str] = str) -> int:
    """The exit status of a process. Waits as :func:`wait_until`."""
    wait_until(lambda: process.poll() is not None, timeout_seconds, f"the end of process {process.pid}", details)
    return process.returncode


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def descendants(pid: int) -> list[int]:
    """The processes below ``pid``, at this moment."""
    children: dict[int, list[int]] = {}
    for child in _all_pids():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parent = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(child)
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def marked_processes(marker: str) -> list[int]:
    """The living processes that carry the marker of a cluster."""
    entry = f"{MARKER}={marker}".encode()
    found = []
    for pid in _all_pids():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") and is_alive(pid):
                found.append(pid)
    return found


def _all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _reap(marker: str) -> None:
    """Waits for the end of the pipe, then kills the marked processes until none is left."""
    sys.stdin.buffer.read()
    while pids := marked_processes(marker):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":
    _reap(sys.argv[1])
