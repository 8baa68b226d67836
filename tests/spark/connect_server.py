"""A real server of Spark Connect, in a process group of its own, and programs that are its clients.

Clients are processes, too: a process that has talked to a server takes every session for one of Connect. Everything
carries a marker in its environment, and is killed when the test's process ends; see :mod:`tests.spark.cluster`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from stateline.spark.java import find_java
from tests.spark import cluster
from tests.spark.cluster import MARKER, SPARK_HOME, START_SECONDS_MAX, descendants, is_alive, wait_for_end, wait_until
from tests.spark.keyed_driver import SHORT_LIVED

ROOT = Path(__file__).parents[2]
MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"
CLIENT_SECONDS_MAX = 250


@dataclass
class ConnectServer:
    """A server on the loopback address. Use it as a context manager.

    Attributes:
        folder: Where logs and an empty configuration live.
        port: Where it listens; the same after every start.
    """

    folder: Path
    port: int = 0
    marker: str = field(default_factory=lambda: uuid.uuid4().hex)
    process: subprocess.Popen[bytes] | None = None
    _reaper: subprocess.Popen[bytes] | None = None
    _started: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """What clients call it."""
        return f"sc://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """What it says."""
        return self.folder / "server.log"

    def __enter__(self) -> Self:
        (self.folder / "conf").mkdir(parents=True)
        self.port = self.port or free_port()
        self._reaper = subprocess.Popen(
            [sys.executable, cluster.__file__, self.marker], stdin=subprocess.PIPE, start_new_session=True
        )
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when it listens."""
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.extraJavaOptions": SHORT_LIVED,
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.ui.enabled": "false",
        }
        command = ["bash", str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "1g"]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        self.process = self._run([*command, "--class", MAIN], self.log)
        wait_until(self._listens, START_SECONDS_MAX, "the server", self.log.read_text)

    def kill(self) -> None:
        """Kills, with SIGKILL, the server and its Python workers."""
        assert self.process is not None
        family = descendants(self.process.pid)
        for pid in [self.process.pid, *family]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=60)
        wait_until(lambda: not any(is_alive(pid) for pid in family), 60, "the end of the workers")

    def batch_workers(self) -> list[int]:
        """The processes that are called for each batch."""
        assert self.process is not None
        return [pid for pid in descendants(self.process.pid) if "foreach_batch_worker" in command_line(pid)]

    def stop(self) -> None:
        """Kills all that was started, and returns when it is gone. Idempotent."""
        if self._reaper is not None and self._reaper.stdin is not None:
            self._reaper.stdin.close()
            self._reaper.wait(timeout=60)
        for process, output in self._started:
            process.wait(timeout=60)
            output.close()

    def client(self, scenario: str, *arguments: object) -> subprocess.Popen[bytes]:
        """Starts a client; see :mod:`tests.spark.connect_client`."""
        program = [sys.executable, "-m", "tests.spark.connect_client", self.url, scenario, *map(str, arguments)]
        return self._run(program, self.folder / "client.log")

    def call(self, scenario: str, *arguments: object) -> Any:
        """What a client answers, when it has ended."""
        answer = self.folder / f"answer-{uuid.uuid4().hex}.json"
        process = self.client(scenario, *arguments, "--answer", answer)
        status = wait_for_end(process, CLIENT_SECONDS_MAX, self.logs)
        assert status == 0, self.logs()
        return json.loads(answer.read_text())

    def logs(self) -> str:
        """The end of every log, for the message of a failure."""
        return "\n".join(f"== {log.name}\n{log.read_text()[-4000:]}" for log in sorted(self.folder.glob("*.log")))

    def _listens(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended with {self.process.returncode}\n{self.logs()}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def _run(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        output = log.open("ab")
        inherited = {name: text for name, text in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        environment = {
            **inherited,
            MARKER: self.marker,
            "JAVA_HOME": find_java().home,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._started.append((process, output))
        return process


def free_port() -> int:
    """A port that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command_line(pid: int) -> str:
    """How a process was started; empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""
