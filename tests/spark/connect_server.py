"""A real server of Spark Connect, in a process group of its own, and programs that are its clients.

Clients are processes, too: a process that has talked to a server takes every session for one of Connect.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.spark.class_archive import SHORT_LIVED
from tests.spark.cluster import SPARK_HOME
from tests.spark.marked_processes import (
    START_SECONDS_MAX,
    MarkedProcesses,
    descendants,
    kill_with_descendants,
    wait_until,
)

MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"
CLIENT_SECONDS_MAX = 250


@dataclass
class ConnectServer(MarkedProcesses):
    """A server on the loopback address.

    Attributes:
        port: Where it listens; the same after every start.
    """

    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    _caller: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        """What clients call it."""
        return f"sc://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """What it says."""
        return self.folder / "server.log"

    def start(self) -> None:
        """Returns when it listens."""
        self.port = self.port or free_port()
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
        self.process = self.run(self.log, [*command, "--class", MAIN])
        wait_until(self._listens, START_SECONDS_MAX, "the server", self.log.read_text)

    def kill(self) -> None:
        """Kills, with SIGKILL, the server and its Python workers."""
        assert self.process is not None
        kill_with_descendants(self.process)

    def environment(self, host: str = "127.0.0.1") -> dict[str, str]:
        path = os.pathsep.join(path for path in sys.path if path)
        return {**super().environment(host), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path}

    def batch_workers(self) -> list[int]:
        """The processes that are called for each batch."""
        assert self.process is not None
        return [pid for pid in descendants(self.process.pid) if "foreach_batch_worker" in command_line(pid)]

    def client(self, *arguments: object, url: str = "") -> subprocess.Popen[bytes]:
        """Starts a client; see :mod:`tests.spark.connect_client`. Without arguments, it waits for calls."""
        program = [sys.executable, "-m", "tests.spark.connect_client", url or self.url, *map(str, arguments)]
        stdin = subprocess.DEVNULL if arguments else subprocess.PIPE
        return self.run(self.folder / "client.log", program, stdin=stdin)

    def call(self, scenario: str, folder: Path, **more: object) -> Any:
        """What a client answers. One process runs all calls, each in a session of its own."""
        if self._caller is None or self._caller.poll() is not None:
            self._caller = self.client()
        caller, answer = self._caller, self.folder / f"answer-{uuid.uuid4().hex}.json"
        call = {"scenario": scenario, "folder": str(folder), "answer": str(answer), **more}
        assert caller.stdin is not None
        caller.stdin.write(f"{json.dumps(call)}\n".encode())
        caller.stdin.flush()
        wait_until(lambda: answer.exists() or caller.poll() is not None, CLIENT_SECONDS_MAX, scenario, self.logs)
        assert answer.exists(), self.logs()
        return json.loads(answer.read_text())

    def _listens(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended with {self.process.returncode}\n{self.logs()}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False


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
