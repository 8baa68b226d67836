"""Starts a driver, watches it, kills it at random moments, starts it again, until it ends by itself.

Knows nothing of Spark or of Stateline: a command, a function that reads the progress, and a plan of kills.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from examples.demo.progress import Progress


class DemoError(Exception):
    """The demo cannot go on; the message says why and where to look."""


@dataclass(frozen=True)
class KillPoint:
    """A moment for SIGKILL.

    Attributes:
        fraction: Share of all events after which it may come.
        delay_seconds: How long after that: it may hit any phase of a micro-batch.
        latest_fraction: Share of all events after which it waits no longer, however fast the machine is.
    """

    fraction: float
    delay_seconds: float
    latest_fraction: float = 1.0


def plan_kills(count: int, seed: int) -> list[KillPoint]:
    """``count`` random moments, spread over the run and ordered."""
    generator = random.Random(seed)
    share = 1 / (count + 1)
    return [
        KillPoint(
            fraction=(number + generator.uniform(0.2, 0.8)) * share,
            delay_seconds=generator.uniform(0, 2),
            latest_fraction=(number + 1) * share,
        )
        for number in range(count)
    ]


@dataclass
class Situation:
    """What there is to see at one moment."""

    progress: Progress = field(default_factory=Progress)
    kills: int = 0
    starts: int = 0
    parallelism: int = 0


class Display(Protocol):
    """Shows people what happens."""

    def show(self, situation: Situation) -> None:
        """Called several times a second."""

    def say(self, message: str) -> None:
        """Something happened."""


@dataclass
class Supervisor:
    """One run of the demo, from the first start to the end of the last driver.

    Attributes:
        command: Makes the command line of a driver with the given parallelism.
        read_progress: What is decided so far.
        display: Where it is shown.
        total_events: Events of the whole source.
        kills: When to kill.
        parallelism: Of all drivers but the last.
        last_parallelism: Of the driver that starts after the last kill.
        logs: Folder for the output of the drivers.
        stall_seconds: A driver without progress for so long is given up.
    """

    command: Callable[[int], Sequence[str]]
    read_progress: Callable[[], Progress]
    display: Display
    total_events: int
    kills: Sequence[KillPoint]
    parallelism: int
    last_parallelism: int
    logs: Path
    stall_seconds: float = 180.0
    poll_seconds: float = 0.1
    situation: Situation = field(default_factory=Situation)

    def run(self) -> Situation:
        """Returns when a driver has ended by itself, successfully.

        Raises:
            DemoError: A driver failed or stalled, or ended before all kills were done.
            KeyboardInterrupt: Passed on, after the driver has been killed.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        pending = [kill for kill in self.kills if kill.fraction * self.total_events > self.read_progress().events]
        while True:
            if not self._run_driver(pending):
                return self.situation
            pending.pop(0)

    def _run_driver(self, pending: Sequence[KillPoint]) -> bool:
        """Runs one driver until it is killed (``True``) or has ended (``False``)."""
        last = not pending
        self.situation.parallelism = self.last_parallelism if last else self.parallelism
        self.situation.starts += 1
        log = self.logs / f"driver-{self._next_log():02d}.log"
        before = self.read_progress()
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command(self.situation.parallelism),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.display.say(
                f"Driver {self.situation.starts} started, parallelism {self.situation.parallelism}, "
                f"from checkpoint {before.checkpoint_id}"
            )
            try:
                return self._watch(process, before, None if last else pending[0], log)
            finally:
                kill_session(process)

    def _watch(self, process: subprocess.Popen[bytes], before: Progress, kill: KillPoint | None, log: Path) -> bool:
        changed_at = time.monotonic()
        kill_at = None
        while process.poll() is None:
            progress = self.read_progress()
            now = time.monotonic()
            if progress != self.situation.progress:
                changed_at = now
            self.situation.progress = progress
            self.display.show(self.situation)
            if kill is not None and progress.checkpoint_id > before.checkpoint_id:
                share = progress.events / self.total_events
                if kill_at is None and share >= kill.fraction:
                    kill_at = now + kill.delay_seconds
                if (kill_at is not None and now >= kill_at) or share >= kill.latest_fraction:
                    self._kill(process)
                    return True
            if now - changed_at > self.stall_seconds:
                raise DemoError(f"no progress for {self.stall_seconds:.0f} s; see {log}\n{tail(log)}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self.poll_seconds)
        self.situation.progress = self.read_progress()
        self.display.show(self.situation)
        if process.returncode != 0:
            raise DemoError(f"the driver ended with exit code {process.returncode}; see {log}\n{tail(log)}")
        if kill is not None:
            raise DemoError("the driver ended before it could be killed as planned; try another --seed")
        return False

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        killed = kill_session(process)
        self.situation.kills += 1
        progress = self.read_progress()
        self.display.say(
            f"SIGKILL {self.situation.kills}: {killed} processes, at checkpoint {progress.checkpoint_id}, "
            f"{progress.events:,} events"
        )

    def _next_log(self) -> int:
        return len(list(self.logs.glob("driver-*.log"))) + 1


def kill_session(process: subprocess.Popen[bytes]) -> int:
    """Kills, with SIGKILL, the process group that ``process`` leads, then what else is in its session.

    The group has the driver and its JVM. Spark's Python workers make a group of their own but stay in the session;
    where the session cannot be listed, they end by themselves once their JVM is gone. Returns how many were seen.
    """
    killed = set(session_members(process.pid))
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while members := session_members(process.pid):
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(members)
        process.poll()
        if time.monotonic() > deadline:
            raise DemoError(f"these processes do not die: {members}")
        time.sleep(0.005)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
    return len(killed)


def session_members(session: int) -> list[int]:
    """The living processes of a session, whose id is that of its leader; none where there is no ``/proc`` to ask."""
    if not os.path.isdir("/proc/self"):
        return []
    members = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] not in "ZX":
                    members.append(int(name))
    return members


def tail(log: Path, lines: int = 25) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
