"""Processes that belong together, such as a cluster or a server of Spark, and of which none is left when a test ends.

All that is started carries a marker in its environment, and so does what it starts itself: daemons, their executors,
the executors' Python workers, drivers. A small process, the reaper, waits on a pipe from the test; when the pipe
closes, whether by :meth:`MarkedProcesses.stop` or because the test process died, it kills whatever carries the marker.
Needs Linux: ``/proc``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

MARKER = "STATELINE_TEST_CLUSTER"
START_SECONDS_MAX = 150


@dataclass
class MarkedProcesses(ABC):
    """Use it as a context manager; what a subclass runs begins in :meth:`start`.

    Attributes:
        folder: Where logs and an empty configuration of Spark live.
        marker: What all processes carry.
    """

    folder: Path
    marker: str = field(default_factory=lambda: uuid.uuid4().hex, kw_only=True)
    _reaper: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _started: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = field(default_factory=list, init=False)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Returns when what it has started is ready."""

    def stop(self) -> None:
        """Kills everything that was started, and returns when it is gone. Idempotent."""
        if self._reaper is not None and self._reaper.stdin is not None:
            self._reaper.stdin.close()
            self._reaper.wait(timeout=60)
        for process, output in self._started:
            process.wait(timeout=60)
            if process.stdin is not None:
                process.stdin.close()
            output.close()

    def environment(self, host: str = "127.0.0.1") -> dict[str, str]:
        """The environment of a process that belongs here, on an address of its own."""
        from stateline.spark.java import find_java  # Here, as this file is the reaper's program, too.

        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        return {
            **inherited,
            MARKER: self.marker,
            "JAVA_HOME": find_java().home,
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self.folder / f"local-{host}"),
        }

    def run(
        self, log: Path, command: list[str], host: str = "127.0.0.1", stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Starts a process as the leader of a group of its own; what it prints comes to the end of its log."""
        if self._reaper is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._reaper = subprocess.Popen(
                [sys.executable, __file__, self.marker], stdin=subprocess.PIPE, start_new_session=True
            )
        output = log.open("ab")
        process = subprocess.Popen(
            command,
            env=self.environment(host),
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._started.append((process, output))
        return process

    def logs(self) -> str:
        """The end of every log, for the message of a failure."""
        parts = [f"== {log.name}\n{log.read_text(errors='replace')[-4000:]}" for log in self.folder.glob("*.log")]
        return "\n".join(sorted(parts))


def kill_with_descendants(process: subprocess.Popen[bytes]) -> None:
    """Kills, with SIGKILL, a process and all below it, as the loss of its host would; returns when they are gone."""
    family = descendants(process.pid)
    for pid in [process.pid, *family]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(timeout=60)
    wait_until(lambda: not any(is_alive(pid) for pid in family), 60, f"the end of what process {process.pid} started")


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
    """The living processes that carry a marker."""
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
